//! The file of a form on its way to a node: its length is not announced.
//!
//! Sketch. What a form says is its own length; the file ends somewhere within it, for fields may
//! follow, which nobody reads. So all of it but the last [`TAIL_BYTES`] is certainly the file: it
//! goes to the node as it comes, as one write of a known length. The rest is held until it ends,
//! and is a second write. The digests are those of both, and are computed here, for no node sees
//! the whole; about 1.6 ns per byte where the ETag is an MD5.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use keyway_dataplane::node::BodyError;
use keyway_dataplane::{Body, TransferError};
use keyway_proto::checksum::MultiHasher;
use keyway_proto::{DataKey, DigestSet, Durability, TenantId};
use parking_lot::Mutex;
use s3s::S3ErrorCode;
use s3s::dto::StreamingBlob;

use crate::limits::Pace;
use crate::s3::Core;
use crate::s3::errors::{EntityTooLarge, Failure};
use crate::s3::store::{Stored, store_stream};

/// What fields behind the file, and the boundary, may take.
const TAIL_BYTES: u64 = 64 << 10;
/// Most that is held of a file: the tail, and what came with the fields.
const HELD_BYTES_MAX: u64 = 4 << 20;

/// What is known of a form's file before it is read.
#[derive(Clone, Copy, Debug)]
pub(in crate::s3) struct FileSize {
    /// Bytes that it certainly has.
    pub(super) at_least: u64,
    /// The least and the most that it may have.
    pub(super) range: (u64, u64),
}

impl FileSize {
    /// Of a form of which so much is still to come.
    pub(super) fn of(to_come: u64, range: Option<(u64, u64)>) -> Self {
        let range = range.unwrap_or((0, u64::MAX));
        Self { at_least: to_come.saturating_sub(TAIL_BYTES), range }
    }

    /// Bytes that it certainly has.
    ///
    /// # Errors
    /// `EntityTooLarge` when these are too many.
    pub(in crate::s3) fn at_least(self, core: &Core) -> Result<u64, Failure> {
        if self.at_least > self.most(core) {
            return Err(Failure::code(S3ErrorCode::EntityTooLarge));
        }
        Ok(self.at_least)
    }

    fn most(self, core: &Core) -> u64 {
        self.range.1.min(core.put_max_bytes)
    }
}

/// Stores a form's file; gives its length, too.
///
/// Dropping the future leaves nothing behind.
///
/// # Errors
/// `EntityTooLarge`, `EntityTooSmall`, the body's and the node's; nothing is kept then.
pub(in crate::s3) async fn store(
    core: &Core,
    tenant: TenantId,
    size: FileSize,
    digests: DigestSet,
    key: Option<&DataKey>,
    body: Option<StreamingBlob>,
    pace: &Pace,
) -> Result<(Stored, u64), Failure> {
    let file = Arc::new(Mutex::new(File {
        body: paced(body, pace),
        hasher: MultiHasher::new(digests),
        received: 0,
        most: size.most(core),
        rest: Bytes::new(),
    }));
    let head = match size.at_least(core)? {
        0 => None,
        length => {
            let body = Box::pin(Head { file: Arc::clone(&file), left: length });
            let none = DigestSet::NONE;
            Some(store_stream(core, tenant, length, none, Durability::Disk, key, body).await?)
        }
    };
    let (mut held, mut held_bytes) = (Vec::new(), 0);
    while let Some(frame) = futures::future::poll_fn(|cx| file.lock().poll_next(cx)).await {
        let frame = frame?;
        held_bytes += frame.len() as u64;
        if held_bytes > HELD_BYTES_MAX {
            // More than the form's length has room for.
            return Err(Failure::code(S3ErrorCode::IncompleteBody));
        }
        held.push(Ok(frame));
    }
    let (hasher, length) = {
        let mut file = file.lock();
        let hasher = std::mem::replace(&mut file.hasher, MultiHasher::new(DigestSet::NONE));
        (hasher, file.received)
    };
    if length < size.range.0 {
        return Err(Failure::code(S3ErrorCode::EntityTooSmall));
    }
    let mut whole = head.unwrap_or_default();
    if held_bytes > 0 {
        let body = Box::pin(futures::stream::iter(held));
        let none = DigestSet::NONE;
        let disk = Durability::Disk;
        let tail = store_stream(core, tenant, held_bytes, none, disk, key, body).await?;
        whole.append(tail);
    }
    whole.digests = hasher.finish();
    Ok((whole, length))
}

fn paced(body: Option<StreamingBlob>, pace: &Pace) -> Body {
    let Some(body) = body else { return Box::pin(futures::stream::empty()) };
    let mut body: Body = Box::pin(
        body.map(|frame| frame.map_err(|error| TransferError::Body(BodyError(Arc::from(error))))),
    );
    pace.slow(&mut body);
    body
}

/// A file that is read by two writes, one after the other.
struct File {
    body: Body,
    hasher: MultiHasher,
    received: u64,
    most: u64,
    /// What the first write left of its last frame.
    rest: Bytes,
}

impl File {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, TransferError>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.rest))));
        }
        let frame = match ready!(self.body.poll_next_unpin(cx)) {
            Some(Ok(frame)) => frame,
            other => return Poll::Ready(other),
        };
        self.received = self.received.saturating_add(frame.len() as u64);
        if self.received > self.most {
            let too_large = TransferError::Body(BodyError(Arc::new(EntityTooLarge)));
            return Poll::Ready(Some(Err(too_large)));
        }
        self.hasher.update(&frame);
        Poll::Ready(Some(Ok(frame)))
    }
}

/// The file's first bytes.
struct Head {
    file: Arc<Mutex<File>>,
    left: u64,
}

impl Stream for Head {
    type Item = Result<Bytes, TransferError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let polled = {
            let mut file = self.file.lock();
            let polled = ready!(file.poll_next(cx));
            polled.map(|frame| {
                frame.map(|mut frame| {
                    let fits =
                        usize::try_from(self.left).map_or(frame.len(), |n| n.min(frame.len()));
                    file.rest = frame.split_off(fits);
                    frame
                })
            })
        };
        if let Some(Ok(frame)) = &polled {
            self.left -= frame.len() as u64;
        }
        Poll::Ready(polled)
    }
}
