//! Writes.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderMap, HeaderName, HeaderValue, Method};
use bytes::Bytes;
use keyway_fabric::gpu::StreamTurn;
use keyway_fabric::memory::{DeviceSlice, HostSlice};
use keyway_proto::unit::{OBJECT_BYTES_MAX, PART_BYTES_MIN, PART_NUMBER_MAX};
use keyway_proto::{Checksum, Durability, KeyStrength, TransferPath};

use super::send::send;
use super::source::Source;
use super::{Meter, Progress, ProgressFn, Unverified, Verified, multipart};
use crate::error::ClientError;
use crate::http::{Answer, Call, Client};
use crate::rdma::Fallbacks;

/// What a write asks for, and its answer tells.
const DURABILITY: &str = "x-keyway-durability";

impl Client {
    /// Writes an object.
    pub fn put_object(&self, bucket: &str, key: &str) -> PutObject {
        PutObject {
            client: self.clone(),
            bucket: bucket.into(),
            key: key.into(),
            body: PutBody::Bytes(Bytes::new()),
            headers: HeaderMap::new(),
            condition: HeaderMap::new(),
            durability: Durability::Disk,
            part_bytes: self.defaults().put_part_bytes,
            concurrency: self.defaults().concurrency,
            progress: None,
            deadline: None,
            turn: None,
        }
    }
}

/// What is written.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum PutBody {
    /// Bytes in memory. RDMA sends a copy of them.
    Bytes(Bytes),
    /// The caller's memory, sent from where it lies, by RDMA too; the lend ends with the
    /// transfer.
    Host(HostSlice),
    /// The caller's memory in a GPU, sent by way of its copy engine; the lend ends with the
    /// transfer.
    Device(DeviceSlice),
    /// The file at this path, read part by part as it goes out.
    File(PathBuf),
}

impl From<Bytes> for PutBody {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<HostSlice> for PutBody {
    fn from(slice: HostSlice) -> Self {
        Self::Host(slice)
    }
}

impl From<DeviceSlice> for PutBody {
    fn from(slice: DeviceSlice) -> Self {
        Self::Device(slice)
    }
}

impl From<Vec<u8>> for PutBody {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl From<&'static str> for PutBody {
    fn from(text: &'static str) -> Self {
        Self::Bytes(Bytes::from_static(text.as_bytes()))
    }
}

impl From<PathBuf> for PutBody {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

/// A write; [`send`](Self::send) it.
///
/// Dropping the future cancels it: a single request leaves no object, and an upload in
/// parts is aborted in the background, so that nothing stays behind.
#[derive(Clone)]
#[must_use = "a request is sent by `send`"]
pub struct PutObject {
    pub(super) client: Client,
    pub(super) bucket: Arc<str>,
    pub(super) key: Arc<str>,
    body: PutBody,
    /// What the object keeps: media type, metadata, system headers.
    pub(super) headers: HeaderMap,
    /// What must hold when it becomes visible.
    pub(super) condition: HeaderMap,
    pub(super) durability: Durability,
    part_bytes: u64,
    pub(super) concurrency: usize,
    progress: Option<ProgressFn>,
    deadline: Option<Duration>,
    turn: Option<Arc<StreamTurn>>,
}

/// A finished write.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PutOutcome {
    /// Bytes written.
    pub bytes: u64,
    /// How they travelled.
    pub path: TransferPath,
    /// What protected the caller's memory. Where parts travelled differently, path and strength
    /// are those of the weakest.
    pub strength: KeyStrength,
    /// Requests that went over HTTP although RDMA was allowed, and why.
    pub fallbacks: Fallbacks,
    /// Whether the service confirmed the checksum of the whole. Even where it does not
    /// repeat it, a service that knows the kind has checked it before storing. One that does not
    /// know CRC64NVME is sent the MD5 of each request, and confirms it by its ETag: of a single
    /// request that is the checksum of the whole, of parts it is [`Unverified::Composite`].
    pub verified: Verified,
    /// Requests that had to be made again.
    pub retries: u32,
    /// The new object's ETag.
    pub etag: Option<String>,
    /// Its version, where the bucket keeps versions.
    pub version: Option<String>,
    /// Parts it was sent in; 1 for a single request.
    pub parts: usize,
    /// What it survives by now.
    pub durability: Durability,
}

impl PutObject {
    /// What is written: memory, or a file by its path.
    pub fn body(mut self, body: impl Into<PutBody>) -> Self {
        self.body = body.into();
        self
    }

    /// The object's media type.
    ///
    /// # Errors
    /// When the value cannot stand in a header.
    pub fn content_type(self, content_type: &str) -> Result<Self, ClientError> {
        self.header(::http::header::CONTENT_TYPE, content_type)
    }

    /// Adds to the user's metadata.
    ///
    /// # Errors
    /// When name or value cannot stand in a header.
    pub fn metadata(self, name: &str, value: &str) -> Result<Self, ClientError> {
        let name = HeaderName::try_from(format!("x-amz-meta-{name}"));
        self.header(name.map_err(::http::Error::from)?, value)
    }

    /// Adds a system header that the object keeps, such as `cache-control`.
    ///
    /// # Errors
    /// When the value cannot stand in a header.
    pub fn header(mut self, name: HeaderName, value: &str) -> Result<Self, ClientError> {
        let value = HeaderValue::from_str(value).map_err(::http::Error::from)?;
        self.headers.insert(name, value);
        Ok(self)
    }

    /// Fails with status 412 where the object exists. After a retry the failure may mean
    /// that the attempt before had succeeded.
    pub fn if_absent(mut self) -> Self {
        self.condition.insert(::http::header::IF_NONE_MATCH, HeaderValue::from_static("*"));
        self
    }

    /// Fails with status 412 unless the object to be replaced has this ETag.
    ///
    /// # Errors
    /// When the value cannot stand in a header.
    pub fn if_match(mut self, etag: &str) -> Result<Self, ClientError> {
        let value = HeaderValue::from_str(etag).map_err(::http::Error::from)?;
        self.condition.insert(::http::header::IF_MATCH, value);
        Ok(self)
    }

    /// Bytes of one part; a larger object is sent in parts side by side. At least 5 MiB.
    pub fn part_bytes(mut self, bytes: u64) -> Self {
        self.part_bytes = bytes.max(PART_BYTES_MIN);
        self
    }

    /// When the write is answered. With [`Durability::Memory`] a Keyway service that has room
    /// for it answers when the bytes are in its memory, and brings them to its device behind: a
    /// crash in between takes the object back, and what it replaced returns. Its ETag is then no
    /// MD5. [`Client::flush`] waits for the device. Other services do not know this.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Parts in flight at a time.
    pub fn concurrency(mut self, parts: usize) -> Self {
        self.concurrency = parts.max(1);
        self
    }

    /// Is told how far the write has come, from whichever thread moved the bytes.
    pub fn on_progress(mut self, report: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(report));
        self
    }

    /// Gives up after this long, retries and pauses included.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.deadline = Some(after);
        self
    }

    /// Takes its turn on a stream of the caller's: the first byte is read when the work is done
    /// that the stream was given before, and what it is given after waits until the write has
    /// ended, well or not.
    pub fn on_stream(mut self, turn: StreamTurn) -> Self {
        self.turn = Some(Arc::new(turn));
        self
    }

    /// Writes the object. It becomes visible whole, or not at all.
    ///
    /// # Errors
    /// The service's refusal, [`ClientError::ChecksumMismatch`] when it stored other bytes
    /// than were sent, [`ClientError::Deadline`].
    pub async fn send(self) -> Result<PutOutcome, ClientError> {
        let deadline = self.deadline;
        // Large: whoever holds this future need not be.
        let write = Box::pin(self.write());
        match deadline {
            None => write.await,
            Some(after) => {
                tokio::time::timeout(after, write).await.unwrap_or(Err(ClientError::Deadline))
            }
        }
    }

    async fn write(mut self) -> Result<PutOutcome, ClientError> {
        let turn = self.turn.take();
        if let Some(turn) = &turn {
            turn.begun().await?;
        }
        let source = Source::open(std::mem::replace(&mut self.body, PutBody::Bytes(Bytes::new())));
        let source = source.await?;
        let bytes = source.bytes();
        if bytes > OBJECT_BYTES_MAX {
            return Err(ClientError::TooLarge(bytes));
        }
        let meter = Meter::new(Some(bytes), self.progress.clone());
        let most = Box::pin(self.client.rdma().part_bytes_max(bytes.min(self.part_bytes))).await;
        self.part_bytes = most.map_or(self.part_bytes, |most| most.min(self.part_bytes));
        if bytes <= self.part_bytes {
            return self.single(&source, &meter).await;
        }
        let part_bytes = self.part_bytes.max(bytes.div_ceil(u64::from(PART_NUMBER_MAX)));
        multipart::put(&self, source, part_bytes, meter).await
    }

    async fn single(self, source: &Source, meter: &Meter) -> Result<PutOutcome, ClientError> {
        let mut call = Call::object(Method::PUT, &self.bucket, &self.key);
        call.headers = self.headers;
        call.headers.extend(self.condition);
        let sent = send(&self.client, call, &source.whole(), self.durability, meter).await?;
        Ok(PutOutcome {
            bytes: source.bytes(),
            path: sent.travelled.path,
            strength: sent.travelled.strength,
            fallbacks: sent.travelled.fallbacks,
            verified: sent.verified,
            retries: sent.retries,
            etag: sent.etag,
            version: sent.version,
            parts: 1,
            durability: sent.durability,
        })
    }
}

impl fmt::Debug for PutObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutObject")
            .field("bucket", &self.bucket)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// Asks for a durability, unless it is what every service gives.
pub(super) fn ask(call: &mut Call, durability: Durability) -> Result<(), ClientError> {
    if durability == Durability::Memory {
        call.header(DURABILITY, durability.as_str())?;
    }
    Ok(())
}

/// The durability that an answer tells; one that tells none is of a service that knows one.
pub(super) fn told(answer: &Answer) -> Durability {
    answer.text(DURABILITY).and_then(Durability::named).unwrap_or_default()
}

/// Holds the checksum that the service computed against ours.
pub(super) fn confirmed(sum: Checksum, said: Option<&str>) -> Result<Verified, ClientError> {
    let Some(said) = said else { return Ok(Verified::No(Unverified::NoneStored)) };
    match Checksum::from_base64(sum.kind(), said) {
        Some(found) if found == sum => Ok(Verified::Whole(sum)),
        Some(found) => Err(ClientError::ChecksumMismatch { expected: sum, found }),
        None => Ok(Verified::No(Unverified::Composite)),
    }
}
