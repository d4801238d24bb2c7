//! Reads and writes with plain values.

use std::time::Duration;

use keyway_client::{
    Client, ClientError, Failed, FlushReply, GetObject, GetOutcome, GetTarget, ObjectInfo,
    PutObject, StreamTurn,
};
use keyway_proto::{ByteRange, Durability};

use crate::failure::Failure;
use crate::memory::{Memory, Source, Target};
use crate::place::Place;
use crate::report::Report;

/// Bytes that a read of unknown size begins with: one request for most objects, and no more
/// memory than is touched.
const FIRST_BYTES: usize = 8 << 20;

/// A transfer's place in the order of a CUDA stream.
#[derive(Debug)]
pub enum Turn {
    /// After what the stream was given before, and before what it is given after.
    Whole(StreamTurn),
    /// After what it was given before. The stream goes on when the transfer begins: the caller
    /// waits for the transfer's end itself.
    After(StreamTurn),
}

/// How an object is read.
#[derive(Debug, Default)]
pub struct Fetch {
    /// These bytes alone.
    pub range: Option<ByteRange>,
    /// This version.
    pub version: Option<String>,
    /// Only while it has this ETag.
    pub if_match: Option<String>,
    /// Bytes of one ranged request.
    pub part_bytes: Option<u64>,
    /// Parts in flight.
    pub concurrency: Option<usize>,
    /// Gives up after this long.
    pub deadline: Option<Duration>,
    /// Its place in a stream. Of reads into host memory it has no say.
    pub turn: Option<Turn>,
}

/// How an object is written.
#[derive(Debug, Default)]
pub struct Store {
    /// Its media type.
    pub content_type: Option<String>,
    /// The user's metadata.
    pub metadata: Vec<(String, String)>,
    /// Only where there is none yet.
    pub if_absent: bool,
    /// Only in place of the one with this ETag.
    pub if_match: Option<String>,
    /// When it is answered.
    pub durability: Durability,
    /// Bytes of one part.
    pub part_bytes: Option<u64>,
    /// Parts in flight.
    pub concurrency: Option<usize>,
    /// Gives up after this long.
    pub deadline: Option<Duration>,
    /// Its place in a stream. Of writes from host memory it has no say.
    pub turn: Option<Turn>,
}

impl Turn {
    /// Waits for the turn, unless the client does.
    async fn begin(self) -> Result<Option<StreamTurn>, Failure> {
        match self {
            Self::Whole(turn) => Ok(Some(turn)),
            Self::After(turn) => {
                turn.begun().await?;
                Ok(None)
            }
        }
    }
}

impl Fetch {
    /// A range from its offset and length.
    ///
    /// # Errors
    /// When it has no end.
    pub fn range(offset: u64, length: u64) -> Result<ByteRange, Failure> {
        ByteRange::new(offset, length).ok_or(Failure::Range { offset, length })
    }

    /// The same without its turn.
    fn again(&self) -> Self {
        Self {
            range: self.range,
            version: self.version.clone(),
            if_match: self.if_match.clone(),
            part_bytes: self.part_bytes,
            concurrency: self.concurrency,
            deadline: self.deadline,
            turn: None,
        }
    }

    fn request(&self, client: &Client, place: &Place) -> GetObject {
        let mut get = client.get_object(&place.bucket, &place.key);
        if let Some(range) = self.range {
            get = get.range(range);
        }
        if let Some(version) = &self.version {
            get = get.version(version);
        }
        if let Some(etag) = &self.if_match {
            get = get.if_match(etag);
        }
        if let Some(bytes) = self.part_bytes {
            get = get.part_bytes(bytes);
        }
        if let Some(parts) = self.concurrency {
            get = get.concurrency(parts);
        }
        if let Some(after) = self.deadline {
            get = get.deadline(after);
        }
        get
    }

    /// Reads into the target, whose lend ends with the future.
    ///
    /// # Errors
    /// As the client's.
    pub async fn into(
        mut self,
        client: Client,
        place: Place,
        target: Target,
    ) -> Result<Report, Failure> {
        let mut get = self.request(&client, &place);
        if let (Target::Device(_), Some(turn)) = (&target, self.turn.take())
            && let Some(turn) = turn.begin().await?
        {
            get = get.on_stream(turn);
        }
        Ok(match target {
            // Boxed: the client's futures are large, and are moved about here.
            Target::Host(target) => read(Box::pin(get.into(target)).await)?,
            Target::Device(target) => read(Box::pin(get.into(target)).await)?,
        })
    }

    /// Reads several ranges of one version of the object, each into a target of its own. Of
    /// the fetch, version and range have no say.
    ///
    /// # Errors
    /// The first failure. The others have ended by then.
    pub async fn ranges(
        mut self,
        client: Client,
        place: Place,
        wanted: Vec<(ByteRange, Target)>,
    ) -> Result<Vec<Report>, Failure> {
        let (mut host, mut device) = (Vec::new(), Vec::new());
        // Which of the two each one went to.
        let mut order = Vec::with_capacity(wanted.len());
        for (range, target) in wanted {
            order.push(matches!(target, Target::Host(_)));
            match target {
                Target::Host(target) => host.push((range, target)),
                Target::Device(target) => device.push((range, target)),
            }
        }
        if !host.is_empty() && !device.is_empty() && self.if_match.is_none() {
            // Two reads, of one version all the same.
            self.if_match = head(client.clone(), place.clone()).await?.etag;
        }
        let turn = match self.turn.take().filter(|_| !device.is_empty()) {
            Some(turn) => turn.begin().await?,
            None => None,
        };
        let (host, device) = futures::try_join!(
            self.ranges_of(&client, &place, host, None),
            self.ranges_of(&client, &place, device, turn),
        )?;
        let (mut host, mut device) = (host.into_iter(), device.into_iter());
        Ok(order
            .into_iter()
            .filter_map(|is_host| match is_host {
                true => host.next(),
                false => device.next(),
            })
            .collect())
    }

    async fn ranges_of<M: GetTarget>(
        &self,
        client: &Client,
        place: &Place,
        wanted: Vec<(ByteRange, M)>,
        turn: Option<StreamTurn>,
    ) -> Result<Vec<Report>, Failure> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let mut get = client.get_ranges(&place.bucket, &place.key);
        if let Some(turn) = turn {
            get = get.on_stream(turn);
        }
        if let Some(etag) = &self.if_match {
            get = get.if_match(etag);
        }
        if let Some(parts) = self.concurrency {
            get = get.concurrency(parts);
        }
        if let Some(after) = self.deadline {
            get = get.deadline(after);
        }
        for (range, target) in wanted {
            get = get.range(range, target);
        }
        let outcomes = get.send().await.map_err(|failed| failed.error)?;
        Ok(outcomes.into_iter().map(|outcome| Report::of_get(outcome).0).collect())
    }

    /// Reads into new memory, of the host or of a GPU, which may be longer than what was read.
    ///
    /// # Errors
    /// As the client's, and where there is no memory.
    pub async fn whole(
        self,
        client: Client,
        place: Place,
        gpu: Option<u32>,
    ) -> Result<(Report, Memory), Failure> {
        let mut room = match self.range {
            Some(range) => range.length() as usize,
            None => FIRST_BYTES,
        };
        loop {
            let mut memory = Memory::new(gpu, room)?;
            let target = memory.target(0..room)?;
            // New memory stands in no stream.
            match self.again().into(client.clone(), place.clone(), target).await {
                Ok(report) => return Ok((report, memory)),
                // An object may grow between two attempts, but not for ever.
                Err(Failure::Client(ClientError::TargetTooSmall { needed, .. }))
                    if self.range.is_none() && needed > room as u64 =>
                {
                    room = needed as usize;
                }
                Err(failure) => return Err(failure),
            }
        }
    }
}

impl Store {
    fn request(&self, client: &Client, place: &Place) -> Result<PutObject, Failure> {
        let mut put = client.put_object(&place.bucket, &place.key);
        if let Some(kind) = &self.content_type {
            put = put.content_type(kind)?;
        }
        for (name, value) in &self.metadata {
            put = put.metadata(name, value)?;
        }
        put = put.durability(self.durability);
        if self.if_absent {
            put = put.if_absent();
        }
        if let Some(etag) = &self.if_match {
            put = put.if_match(etag)?;
        }
        if let Some(bytes) = self.part_bytes {
            put = put.part_bytes(bytes);
        }
        if let Some(parts) = self.concurrency {
            put = put.concurrency(parts);
        }
        if let Some(after) = self.deadline {
            put = put.deadline(after);
        }
        Ok(put)
    }

    /// Writes the source as the whole object.
    ///
    /// # Errors
    /// As the client's.
    pub async fn send(
        mut self,
        client: Client,
        place: Place,
        source: Source,
    ) -> Result<Report, Failure> {
        let mut put = self.request(&client, &place)?;
        if let (Source::Device(_), Some(turn)) = (&source, self.turn.take())
            && let Some(turn) = turn.begin().await?
        {
            put = put.on_stream(turn);
        }
        let put = match source {
            Source::Host(slice) => put.body(slice),
            Source::Device(slice) => put.body(slice),
        };
        Ok(Report::of_put(put.send().await?))
    }
}

/// The report of a read whose memory goes back to its buffer.
fn read<M>(result: Result<GetOutcome<M>, Failed<M>>) -> Result<Report, Failure> {
    match result {
        Ok(outcome) => Ok(Report::of_get(outcome).0),
        Err(failed) => Err(failed.error.into()),
    }
}

/// Waits until what was written to memory is durable: all of a bucket, or one object.
///
/// # Errors
/// As the client's.
pub async fn flush(
    client: Client,
    place: Place,
    deadline: Option<Duration>,
) -> Result<FlushReply, Failure> {
    let mut flush = client.flush();
    flush = match place.key.is_empty() {
        true => flush.bucket(place.bucket),
        false => flush.object(place.bucket, place.key),
    };
    if let Some(after) = deadline {
        flush = flush.deadline(after);
    }
    Ok(flush.await?)
}

/// What an object is.
///
/// # Errors
/// As the client's.
pub async fn head(client: Client, place: Place) -> Result<ObjectInfo, Failure> {
    Ok(client.head_object(&place.bucket, &place.key).await?)
}
