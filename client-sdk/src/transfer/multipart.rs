//! Writes in parts, side by side.
//!
//! The object's CRC64NVME is combined from the parts' and sent with the completion, so the
//! service checks the whole although nobody reads it twice; one that does not know it checks each
//! part by its MD5 ([`checks`](super::checks)). Until the completion nothing is visible; whatever
//! ends the upload before it aborts it, cancellation and deadline too, and while it is being
//! created. Creation and abort run in tasks of their own, which outlive the caller, but not the
//! runtime.
//!
//! One case is left to the bucket's AbortIncompleteMultipartUpload rule: the answer to a creation
//! that is lost on its way, or not waited for any longer because the service stalls. It may have
//! created an upload whose id nobody here knows, and the key's other uploads may be somebody
//! else's, so that looking for it would not be safe.

use std::sync::Arc;

use ::http::{Method, StatusCode};
#[cfg(feature = "object_store")]
use bytes::Bytes;
use keyway_proto::{Checksum, ChecksumKind, Durability};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, JoinSet};

use super::put::{PutObject, PutOutcome, ask, confirmed, told};
use super::send::{ended, send};
use super::source::{Run, Source};
use super::{Meter, Unverified, Verified};
use crate::error::{ClientError, Malformed, ServiceError};
use crate::http::{Call, Client, Query};
use crate::rdma::{Fallbacks, Travelled};
use crate::xml;

/// What names the kind of checksum that an upload's parts carry.
const ALGORITHM: &str = "x-amz-checksum-algorithm";

/// Uploads `source` in parts of `part_bytes`.
pub(super) async fn put(
    put: &PutObject,
    source: Source,
    part_bytes: u64,
    meter: Meter,
) -> Result<PutOutcome, ClientError> {
    let bytes = source.bytes();
    let mut upload = PutUpload::begin(put).await?;
    let result = async {
        let parts = upload.parts(source, part_bytes, meter, put.concurrency).await?;
        upload.complete(put, bytes, parts).await
    }
    .await;
    if result.is_err()
        && let Some(abort) = upload.give_up()
    {
        // Where the task ended otherwise, the runtime ends.
        let _ = abort.await;
    }
    result
}

/// Where an upload's requests go.
#[derive(Clone, Debug)]
struct Place {
    client: Client,
    bucket: Arc<str>,
    key: Arc<str>,
    id: Arc<str>,
    durability: Durability,
}

/// An upload that is aborted unless it was completed.
#[derive(Debug)]
pub(crate) struct PutUpload {
    place: Place,
    open: bool,
    /// Where it is aborted: it may be dropped on a thread that has no runtime.
    runtime: Handle,
}

/// A part that the service has.
#[derive(Debug)]
pub(crate) struct Part {
    number: u16,
    etag: String,
    sum: Checksum,
    bytes: u64,
    retries: u32,
    travelled: Travelled,
    /// Whether the service confirmed a checksum of it.
    is_confirmed: bool,
}

impl PutUpload {
    /// Creates an upload. Dropping the future has it aborted as soon as its id is known.
    pub(crate) async fn begin(put: &PutObject) -> Result<Self, ClientError> {
        let checks = put.client.checks();
        let mut with_crc64nvme = checks.send_crc64nvme();
        let mut retries = put.client.retries();
        loop {
            // A task of its own: what it gives to nobody is dropped, and so aborted.
            let creation = tokio::spawn(Self::create(put.clone(), with_crc64nvme));
            match ended(creation).await {
                Ok(upload) => return Ok(upload),
                Err(error) if with_crc64nvme && checks.may_blame(&error) => {
                    tracing::debug!(%error, "will try without a CRC64NVME");
                    with_crc64nvme = false;
                }
                Err(error) => retries.after(error).await?,
            }
        }
    }

    async fn create(put: PutObject, with_crc64nvme: bool) -> Result<Self, ClientError> {
        let mut call = Call::object(Method::POST, &put.bucket, &put.key);
        call.query = Query::flag("uploads");
        call.headers = put.headers.clone();
        if with_crc64nvme {
            call.header(ALGORITHM, "CRC64NVME")?;
            call.header("x-amz-checksum-type", "FULL_OBJECT")?;
        }
        let answer = put.client.attempt(&call).await?;
        let is_repeated = answer.text(ALGORITHM).is_some();
        let begun: xml::InitiateMultipartUploadResult = xml::parse(&answer.document().await?)?;
        put.client.checks().answered(with_crc64nvme, is_repeated);
        let place = Place {
            client: put.client.clone(),
            bucket: Arc::clone(&put.bucket),
            key: Arc::clone(&put.key),
            id: begun.upload_id.into(),
            durability: put.durability,
        };
        Ok(Self { place, open: true, runtime: Handle::current() })
    }

    /// Sends all parts; on a failure waits for none of the others to arrive.
    async fn parts(
        &self,
        source: Source,
        part_bytes: u64,
        meter: Meter,
        concurrency: usize,
    ) -> Result<Vec<Part>, ClientError> {
        let count = source.bytes().div_ceil(part_bytes);
        let mut next = 0;
        let mut parts = Vec::with_capacity(count as usize);
        let mut running = JoinSet::new();
        loop {
            while running.len() < concurrency && next < count {
                let offset = next * part_bytes;
                let length = part_bytes.min(source.bytes() - offset);
                next += 1;
                let number = u16::try_from(next).map_err(|_| ClientError::TooLarge(offset))?;
                let (place, source, meter) = (self.place.clone(), source.clone(), meter.clone());
                running.spawn(async move {
                    place.part(number, &source.run(offset, length), &meter).await
                });
            }
            match running.join_next().await {
                None => break,
                Some(Ok(Ok(part))) => parts.push(part),
                Some(Ok(Err(error))) => {
                    running.shutdown().await;
                    return Err(error);
                }
                Some(Err(error)) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => return Err(ClientError::GivenUp),
                },
            }
        }
        parts.sort_unstable_by_key(|part| part.number);
        Ok(parts)
    }

    /// Makes the object visible.
    pub(crate) async fn complete(
        &mut self,
        put: &PutObject,
        bytes: u64,
        parts: Vec<Part>,
    ) -> Result<PutOutcome, ClientError> {
        let empty = Checksum::of(ChecksumKind::Crc64Nvme, &[]);
        let sum = parts.iter().try_fold(empty, |sum, part| sum.combine(&part.sum, part.bytes));
        let sum = sum.expect("CRCs combine");
        let mut retries: u32 = parts.iter().map(|part| part.retries).sum();
        let travelled = parts.iter().map(|part| part.travelled);
        let travelled = travelled.reduce(|all, part| all.and(&part));
        let travelled = travelled.unwrap_or_else(|| Travelled::over_http(Fallbacks::default()));
        let count = parts.len();
        let are_confirmed = parts.iter().all(|part| part.is_confirmed);
        let with_crc64nvme = put.client.checks().send_crc64nvme();
        let completed = |part: Part| xml::CompletedPart {
            number: part.number,
            etag: part.etag,
            crc64nvme: with_crc64nvme.then(|| part.sum.to_base64()),
        };
        let parts = parts.into_iter().map(completed).collect();
        let mut call = self.place.call(Method::POST);
        call.headers = put.condition.clone();
        call.header("content-type", "application/xml")?;
        if with_crc64nvme {
            call.header("x-amz-checksum-crc64nvme", &sum.to_base64())?;
            call.header("x-amz-checksum-type", "FULL_OBJECT")?;
        }
        ask(&mut call, put.durability)?;
        call.body = xml::write(&xml::CompleteMultipartUpload { parts })?.into();
        let done = self.place.completed(&call, sum, bytes).await?;
        self.open = false;
        retries += done.retries;
        let verified = match confirmed(sum, done.crc64nvme.as_deref())? {
            Verified::No(Unverified::NoneStored) if are_confirmed => {
                Verified::No(Unverified::Composite)
            }
            verified => verified,
        };
        Ok(PutOutcome {
            bytes,
            path: travelled.path,
            strength: travelled.strength,
            fallbacks: travelled.fallbacks,
            verified,
            retries,
            etag: done.etag,
            version: done.version,
            parts: count,
            durability: done.durability,
        })
    }
}

impl PutUpload {
    /// Sends one part of the caller's.
    #[cfg(feature = "object_store")]
    pub(crate) fn part(
        &self,
        number: u64,
        body: Bytes,
    ) -> impl Future<Output = Result<Part, ClientError>> + Send + 'static {
        let place = self.place.clone();
        async move {
            let number = u16::try_from(number).map_err(|_| ClientError::TooLarge(number))?;
            place.part(number, &Source::Memory(body).whole(), &Meter::new(None, None)).await
        }
    }

    /// Gives the upload up, and tells whether the service knows.
    #[cfg(feature = "object_store")]
    pub(crate) async fn abort(&mut self) -> Result<(), ClientError> {
        self.place.client.call(&self.place.call(Method::DELETE)).await?;
        self.open = false;
        Ok(())
    }

    /// Has an open upload aborted by a task, which whoever waits for it may leave.
    fn give_up(&mut self) -> Option<JoinHandle<()>> {
        let place = std::mem::take(&mut self.open).then(|| self.place.clone())?;
        Some(self.runtime.spawn(async move { place.abort().await }))
    }
}

impl Drop for PutUpload {
    fn drop(&mut self) {
        // Detached. Where the runtime has ended there is nobody left to send it; the service's
        // own sweep of unfinished uploads remains.
        drop(self.give_up());
    }
}

/// The answer to a completion.
struct Completed {
    etag: Option<String>,
    version: Option<String>,
    crc64nvme: Option<String>,
    retries: u32,
    durability: Durability,
}

impl Place {
    fn call(&self, method: Method) -> Call {
        let mut call = Call::object(method, &self.bucket, &self.key);
        call.query = Query::default().with("uploadId", &self.id);
        call
    }

    async fn part(&self, number: u16, run: &Run<'_>, meter: &Meter) -> Result<Part, ClientError> {
        let mut call = self.call(Method::PUT);
        call.query = call.query.with("partNumber", &number.to_string());
        let sent = send(&self.client, call, run, self.durability, meter).await?;
        let is_confirmed = sent.verified.is_whole();
        let etag = sent.etag.ok_or_else(|| Malformed::new("a part without an ETag"))?;
        let (sum, retries, travelled) = (sent.sum, sent.retries, sent.travelled);
        Ok(Part { number, etag, sum, bytes: run.length, retries, travelled, is_confirmed })
    }

    /// Completes, until answered for good. An upload that is gone after a lost answer was
    /// completed by it if the object is the one that was sent.
    async fn completed(
        &self,
        call: &Call,
        sum: Checksum,
        bytes: u64,
    ) -> Result<Completed, ClientError> {
        let mut retries = self.client.retries();
        loop {
            match self.complete_once(call).await {
                Ok(done) => return Ok(Completed { retries: retries.spent(), ..done }),
                Err(error) if error.code() == Some("NoSuchUpload") && retries.spent() > 0 => {
                    let info = self.client.head_object(&self.bucket, &self.key).await?;
                    if info.size == bytes && info.checksums.contains(&sum) {
                        return Ok(Completed {
                            etag: info.etag,
                            version: info.version,
                            crc64nvme: Some(sum.to_base64()),
                            retries: retries.spent(),
                            // The answer that told is lost.
                            durability: self.durability,
                        });
                    }
                    return Err(error);
                }
                Err(error) => retries.after(error).await?,
            }
        }
    }

    async fn complete_once(&self, call: &Call) -> Result<Completed, ClientError> {
        let answer = self.client.attempt(call).await?;
        let version = answer.text("x-amz-version-id").map(ToOwned::to_owned);
        let durability = told(&answer);
        let done: xml::CompletedUpload = xml::parse(&answer.document().await?)?;
        // The status was sent before the work was done: the document has the last word.
        if let Some(code) = done.code {
            return Err(ClientError::Service(Box::new(ServiceError {
                status: match code.as_str() {
                    "InternalError" => StatusCode::INTERNAL_SERVER_ERROR,
                    "SlowDown" => StatusCode::SERVICE_UNAVAILABLE,
                    "PreconditionFailed" => StatusCode::PRECONDITION_FAILED,
                    _ => StatusCode::OK,
                },
                code,
                message: done.message.unwrap_or_default(),
                request_id: done.request_id,
            })));
        }
        let (etag, crc64nvme) = (done.etag, done.crc64nvme);
        Ok(Completed { etag, version, crc64nvme, retries: 0, durability })
    }

    /// Gives up an upload. Failing that is logged: the caller has a reason of its own.
    async fn abort(&self) {
        if let Err(error) = self.client.call(&self.call(Method::DELETE)).await {
            tracing::warn!(%error, bucket = &*self.bucket, "an upload could not be aborted");
        }
    }
}
