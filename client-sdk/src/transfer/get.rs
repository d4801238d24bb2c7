//! Reads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderValue, Method};
use bytes::Bytes;
use keyway_fabric::gpu::StreamTurn;
use keyway_fabric::memory::HostSliceMut;
use keyway_proto::{ByteRange, Checksum, KeyStrength, TransferPath};
use tokio::time::Instant;

use super::direct::Route;
use super::fetch::{Fetch, Fetched};
use super::landing::GetTarget;
use super::{Failed, Meter, ObjectInfo, Progress, ProgressFn, Stop, Unverified, Verified};
use super::{fetch, parts};
use crate::builder::GET_PART_BYTES_MAX;
use crate::error::ClientError;
use crate::http::{Call, Client, Query};
use crate::rdma::{Fallbacks, Travelled};

impl Client {
    /// Reads an object, or a range of it.
    pub fn get_object(&self, bucket: &str, key: &str) -> GetObject {
        GetObject {
            client: self.clone(),
            bucket: bucket.into(),
            key: key.into(),
            range: None,
            version: None,
            if_match: None,
            if_none_match: None,
            part_bytes: self.defaults().get_part_bytes,
            concurrency: self.defaults().concurrency,
            progress: None,
            deadline: None,
            turn: None,
        }
    }
}

/// A read: [`into`](Self::into) the caller's memory, or as [`bytes`](Self::bytes).
///
/// Dropping the future cancels it; the memory is freed, or can be lent again, when the last
/// part in flight has let go of its piece.
#[derive(Clone)]
#[must_use = "a request is sent by `into` or `bytes`"]
pub struct GetObject {
    pub(super) client: Client,
    pub(super) bucket: Arc<str>,
    pub(super) key: Arc<str>,
    range: Option<ByteRange>,
    version: Option<String>,
    pub(super) if_match: Option<String>,
    if_none_match: Option<String>,
    /// None: as the path has it.
    part_bytes: Option<u64>,
    pub(super) concurrency: usize,
    progress: Option<ProgressFn>,
    deadline: Option<Duration>,
    pub(super) turn: Option<Arc<StreamTurn>>,
}

/// A finished read.
#[derive(Debug)]
#[non_exhaustive]
pub struct GetOutcome<T> {
    /// The memory that was filled, from its first byte on.
    pub target: T,
    /// Bytes read.
    pub bytes: u64,
    /// How they travelled.
    pub path: TransferPath,
    /// What protected the caller's memory. Where parts travelled differently, path and strength
    /// are those of the weakest.
    pub strength: KeyStrength,
    /// Requests that went over HTTP although RDMA was allowed, and why.
    pub fallbacks: Fallbacks,
    /// Whether they were checked against a checksum of the whole.
    pub verified: Verified,
    /// Requests that had to be made again.
    pub retries: u32,
    /// The object they belong to.
    pub info: ObjectInfo,
}

impl GetObject {
    /// Reads these bytes alone.
    pub fn range(mut self, range: ByteRange) -> Self {
        self.range = Some(range);
        self
    }

    /// Reads this version.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// Fails with status 412 unless the object has this ETag.
    pub fn if_match(mut self, etag: impl Into<String>) -> Self {
        self.if_match = Some(etag.into());
        self
    }

    /// Fails with status 304 where the object has this ETag.
    pub fn if_none_match(mut self, etag: impl Into<String>) -> Self {
        self.if_none_match = Some(etag.into());
        self
    }

    /// Bytes of one ranged request, at most 1 GiB; more than that is read in parts side by side.
    /// As [`get_part_bytes`](crate::ClientBuilder::get_part_bytes) unless said.
    pub fn part_bytes(mut self, bytes: u64) -> Self {
        self.part_bytes = Some(bytes.clamp(1, GET_PART_BYTES_MAX));
        self
    }

    /// Parts in flight at a time.
    pub fn concurrency(mut self, parts: usize) -> Self {
        self.concurrency = parts.max(1);
        self
    }

    /// Is told how far the read has come, from whichever thread moved the bytes.
    pub fn on_progress(mut self, report: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(report));
        self
    }

    /// Gives up after this long, retries and pauses included.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.deadline = Some(after);
        self
    }

    /// Takes its turn on a stream of the caller's: the first byte is written when the work is
    /// done that the stream was given before, and what it is given after waits until the read
    /// has ended, well or not. Nobody should free GPU memory meanwhile, see [`StreamTurn`].
    pub fn on_stream(mut self, turn: StreamTurn) -> Self {
        self.turn = Some(Arc::new(turn));
        self
    }

    /// Reads into the caller's memory, which comes back in the outcome or in the error.
    ///
    /// # Errors
    /// [`Failed`] with the reason, among them [`ClientError::TargetTooSmall`],
    /// [`ClientError::Changed`] and [`ClientError::ChecksumMismatch`].
    pub async fn into<M: GetTarget>(self, target: M) -> Result<GetOutcome<M>, Failed<M>> {
        let stop = self.stop();
        let room = target.length() as u64;
        let part_bytes = match self.fitting(room, target.is_shareable(), &stop).await {
            Ok(bytes) => bytes,
            Err(error) => return Err(Failed { error, target }),
        };
        match self.range {
            None if room <= part_bytes => return self.single(target, stop).await,
            Some(range) if range.length() > room => {
                let needed = range.length();
                let error = ClientError::TargetTooSmall { needed, available: room };
                return Err(Failed { error, target });
            }
            _ => {}
        }
        self.ranged(target, part_bytes, None, stop).await
    }

    /// Reads into memory of the client's own: one request for an object or range of up to
    /// one part.
    ///
    /// # Errors
    /// As [`into`](Self::into).
    pub async fn bytes(self) -> Result<GetOutcome<Bytes>, ClientError> {
        let (stop, shared) = (self.stop(), self.client.rdma().shares());
        let part_bytes = self.fitting(u64::MAX, shared, &stop).await?;
        let outcome = match self.range {
            Some(range) => {
                let target = fetch::memory(range.length(), shared)?;
                self.ranged(target, part_bytes, None, stop).await
            }
            // Memory is lent before the first byte comes, so its size has to be known.
            None if self.client.rdma().is_there().await => {
                let info = stop.or(self.head()).await?;
                let target = fetch::memory(info.size, shared)?;
                self.ranged(target, part_bytes, Some(info), stop).await
            }
            None => {
                let again = self.clone();
                let target = fetch::memory(0, shared)?;
                let grow = move |bytes| (bytes <= part_bytes).then(|| fetch::memory(bytes, shared));
                match self.single_growing(target, grow, stop.clone()).await {
                    // Larger than one part: its size is known now, up to a replacement.
                    Err(Failed { error: ClientError::TargetTooSmall { needed, .. }, .. }) => {
                        let target = fetch::memory(needed, shared)?;
                        again.ranged(target, part_bytes, None, stop).await
                    }
                    outcome => outcome,
                }
            }
        };
        Ok(outcome.map_err(|failed| failed.error)?.map(|target| target.freeze().into_bytes()))
    }

    /// Bytes of one request of a read of at most so many.
    async fn fitting(
        &self,
        bytes: u64,
        is_shareable: bool,
        stop: &Stop,
    ) -> Result<u64, ClientError> {
        let rdma = self.client.rdma();
        let fitting = Box::pin(rdma.read_part_bytes(bytes, self.part_bytes, is_shareable));
        stop.or(async { Ok(fitting.await) }).await
    }

    pub(super) fn stop(&self) -> Stop {
        Stop { deadline: self.deadline.map(|after| Instant::now() + after), token: None }
    }

    /// The same, bound to the version that is there now.
    pub(super) async fn pinned(mut self) -> Result<Self, ClientError> {
        if self.if_match.is_none() {
            self.if_match = self.head().await?.etag;
        }
        Ok(self)
    }

    /// What the object is, under the same conditions.
    #[cfg(feature = "object_store")]
    pub(crate) async fn describe(&self) -> Result<ObjectInfo, ClientError> {
        self.head().await
    }

    async fn head(&self) -> Result<ObjectInfo, ClientError> {
        let mut call = self.call(Method::HEAD)?;
        call.header("x-amz-checksum-mode", "ENABLED")?;
        let (answer, _) = self.client.call(&call).await?;
        ObjectInfo::from_answer(&answer)
    }

    fn call(&self, method: Method) -> Result<Call, ClientError> {
        let mut call = Call::object(method, &self.bucket, &self.key);
        if let Some(version) = &self.version {
            call.query = Query::default().with("versionId", version);
        }
        if let Some(etag) = &self.if_match {
            call.header("if-match", etag)?;
        }
        if let Some(etag) = &self.if_none_match {
            call.header("if-none-match", etag)?;
        }
        Ok(call)
    }

    /// The whole object in one request.
    async fn single<M: GetTarget>(self, target: M, stop: Stop) -> Result<GetOutcome<M>, Failed<M>> {
        let fetch = match self.whole(stop) {
            Ok(fetch) => fetch,
            Err(error) => return Err(Failed { error, target }),
        };
        let fetched = target.fetch(fetch).await?;
        let expected = fetched.info.checksum();
        conclude(fetched, expected)
    }

    /// The same; `grow` may make the memory that it needs.
    async fn single_growing(
        self,
        target: HostSliceMut,
        grow: impl Fn(u64) -> Option<Result<HostSliceMut, ClientError>> + Send + Sync,
        stop: Stop,
    ) -> Result<GetOutcome<HostSliceMut>, Failed<HostSliceMut>> {
        let fetch = match self.whole(stop) {
            Ok(fetch) => fetch,
            Err(error) => return Err(Failed { error, target }),
        };
        let fetched = fetch.run_growing(target, grow).await?;
        let expected = fetched.info.checksum();
        conclude(fetched, expected)
    }

    /// What fetches the whole object in one request.
    fn whole(self, stop: Stop) -> Result<Fetch, ClientError> {
        let mut call = self.call(Method::GET)?;
        call.headers.insert("x-amz-checksum-mode", HeaderValue::from_static("ENABLED"));
        Ok(Fetch {
            client: self.client,
            call,
            range: None,
            pin: None,
            hash: None,
            meter: Meter::new(None, self.progress),
            stop,
            route: Route::default(),
            turn: self.turn,
        })
    }

    /// A range, or an object larger than one part: in parts side by side. `known` is what the
    /// object was a moment ago.
    async fn ranged<M: GetTarget>(
        self,
        target: M,
        part_bytes: u64,
        known: Option<ObjectInfo>,
        stop: Stop,
    ) -> Result<GetOutcome<M>, Failed<M>> {
        let one_part = self.range.filter(|range| range.length() <= part_bytes);
        // The size decides the parts, the ETag pins them, the checksum is what to hash.
        let head = match (one_part, known) {
            (Some(_), _) => None,
            (None, Some(known)) => Some(known),
            (None, None) => match stop.or(Box::pin(self.head())).await {
                Ok(info) => Some(info),
                Err(error) => return Err(Failed { error, target }),
            },
        };
        let mut call = match self.call(Method::GET) {
            Ok(call) => call,
            Err(error) => return Err(Failed { error, target }),
        };
        let range = match (self.range, &head) {
            (Some(range), _) => range,
            (None, head) => ByteRange::whole(head.as_ref().map_or(0, |info| info.size)),
        };
        let available = target.length() as u64;
        if range.length() > available {
            let error = ClientError::TargetTooSmall { needed: range.length(), available };
            return Err(Failed { error, target });
        }
        let expected = match &head {
            Some(info) if range == ByteRange::whole(info.size) => info.checksum(),
            _ => Err(Unverified::Range),
        };
        if range.is_empty() {
            let checksum = expected.ok().map(|sum| Checksum::of(sum.kind(), &[]));
            let info = head.unwrap_or_default();
            let travelled = Travelled::over_http(Fallbacks::default());
            let fetched = Fetched { target, bytes: 0, info, checksum, retries: 0, travelled };
            return conclude(fetched, expected);
        }
        let version = head.as_ref().and_then(|info| info.version.as_deref());
        if let Some(version) = version.filter(|version| *version != "null") {
            call.query = Query::default().with("versionId", version);
        }
        let fetch = Fetch {
            client: self.client,
            call,
            range: Some(range),
            pin: head.as_ref().and_then(|info| info.etag.clone()),
            hash: expected.ok().map(|sum| sum.kind()),
            meter: Meter::new(Some(range.length()), self.progress),
            stop,
            route: Route::default(),
            turn: self.turn,
        };
        // What does not combine is hashed in order, so it is read in order.
        let in_order = expected.is_ok_and(|sum| !sum.kind().combines());
        let mut fetched = if range.length() <= part_bytes || in_order {
            target.fetch(fetch).await?
        } else {
            parts::fetch(fetch, range, target, part_bytes, self.concurrency).await?
        };
        if let Some(info) = head {
            fetched.info = info;
        }
        conclude(fetched, expected)
    }
}

impl<T> GetOutcome<T> {
    /// The same with another target.
    pub fn map<U>(self, turn: impl FnOnce(T) -> U) -> GetOutcome<U> {
        let Self { target, bytes, path, strength, fallbacks, verified, retries, info } = self;
        let target = turn(target);
        GetOutcome { target, bytes, path, strength, fallbacks, verified, retries, info }
    }
}

impl fmt::Debug for GetObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GetObject")
            .field("bucket", &self.bucket)
            .field("key", &self.key)
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

/// Holds the bytes' checksum against the service's.
fn conclude<M>(
    fetched: Fetched<M>,
    expected: Result<Checksum, Unverified>,
) -> Result<GetOutcome<M>, Failed<M>> {
    let verified = match (expected, fetched.checksum) {
        (Ok(expected), Some(found)) if expected == found => Verified::Whole(found),
        (Ok(expected), Some(found)) => {
            let error = ClientError::ChecksumMismatch { expected, found };
            return Err(Failed { error, target: fetched.target });
        }
        (Ok(_), None) => Verified::No(Unverified::NoneStored),
        (Err(reason), _) => Verified::No(reason),
    };
    Ok(GetOutcome {
        target: fetched.target,
        bytes: fetched.bytes,
        path: fetched.travelled.path,
        strength: fetched.travelled.strength,
        fallbacks: fetched.travelled.fallbacks,
        verified,
        retries: fetched.retries,
        info: fetched.info,
    })
}
