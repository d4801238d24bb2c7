//! GET: chunks become a stream of verified frames.
//!
//! Sketch, per piece of at most 1 MiB: one device read into a lease, one pass of CRC32C as its
//! frames are taken, one `Bytes` over the lease; no copy. What the store holds in memory needs
//! none of that: one frame per contiguous run, and no pass over its bytes. The first piece is
//! read and its first frame verified before anything is handed out, so that a missing or
//! damaged object is an error instead of a broken body, and an object of one piece needs
//! nothing but that: no task, no queue. Longer ones keep [`READS_IN_FLIGHT`] reads ahead of the
//! consumer; when buffers are scarce they hold one smaller piece at a time, so that slow
//! consumers cannot take the pool from the others.
//!
//! Where all of it must be verified before the first byte leaves, what is longer than the smallest
//! piece is read twice, and compared both times.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use futures::Stream;
use futures::future::BoxFuture;
use futures::stream::{FuturesOrdered, StreamExt as _, TryStreamExt as _};
use keyway_fabric::memory::{Lease, LeaseClass, LeasePool};
use keyway_proto::unit::BLOCK_BYTES;
use keyway_proto::{
    ByteRange, Digests, Durability, GetPlan, KeyFate, KeyStrength, Receipt, TransferId,
    TransferPath, Verification,
};
use tokio::sync::oneshot;

use super::Counters;
use super::admission::Turn;
use super::chunk::{Chunk, Reading as Terms, front};
use crate::node::{Delivery, TransferError};
use crate::store::{BlobStore, Fetched, Frame, PIECE_BYTES_MAX, StoreError};

/// Reads under way ahead of the consumer, in one transfer. The piece being consumed comes
/// on top.
const READS_IN_FLIGHT: usize = 3;

/// Largest read while buffers are scarce.
const SCARCE_PIECE_BYTES: u64 = LeaseClass::Medium.bytes() as u64;

const _: () = assert!(SCARCE_PIECE_BYTES.is_multiple_of(BLOCK_BYTES));

/// Most bytes of a frame for HTTP: servers count a slow client's progress in frames.
const BODY_FRAME_BYTES: usize = 256 << 10;

/// A GET that has begun.
pub(crate) struct Reading {
    /// Bytes that the frames will have.
    pub(crate) length: u64,
    pub(crate) frames: Frames,
    receipt: oneshot::Receiver<Receipt>,
}

pub(crate) async fn start(
    plan: &GetPlan,
    store: &dyn BlobStore,
    pool: &LeasePool,
    turn: Turn,
    counters: &Arc<Counters>,
) -> Result<Reading, TransferError> {
    let mut verification = plan.verification;
    if verification == Verification::BeforeDelivery && !is_one_read(plan) {
        // Nobody hears of this reading, and nothing of it is counted.
        let uncounted = Arc::default();
        let (mut frames, _receipt) =
            begin(plan, Verification::Inline, store, pool, None, &uncounted).await?;
        while frames.try_next().await?.is_some() {}
        verification = Verification::Inline;
    }
    let (frames, receipt) = begin(plan, verification, store, pool, Some(turn), counters).await?;
    Ok(Reading { length: frames.length, frames, receipt })
}

/// Whether one read of a device brings all that the plan asks for, however scarce buffers are.
fn is_one_read(plan: &GetPlan) -> bool {
    match plan.pieces.as_slice() {
        [] => true,
        [only] => front(only.range, SCARCE_PIECE_BYTES, plan.key.is_some()) == only.range,
        _ => false,
    }
}

async fn begin(
    plan: &GetPlan,
    verification: Verification,
    store: &dyn BlobStore,
    pool: &LeasePool,
    turn: Option<Turn>,
    counters: &Arc<Counters>,
) -> Result<(Frames, oneshot::Receiver<Receipt>), TransferError> {
    let mut reads = Reads { parts: pin_all(plan, store, pool)?, part: 0, pool: pool.clone() };
    let length = plan.length();
    let (mut first, mut current) = (reads.held(), None);
    if first.is_none()
        && let Some(read) = reads.next()
    {
        let mut fetched = checked(read.await?, verification)?;
        first = fetched.next_frame().transpose()?;
        current = Some(fetched);
    }
    let (receipt_sender, receipt) = oneshot::channel();
    let mut frames = Frames {
        transfer: plan.transfer,
        verification,
        ahead: first,
        current,
        reads,
        held: None,
        under_way: FuturesOrdered::new(),
        waits: false,
        frame_bytes_max: usize::MAX,
        length,
        delivered: 0,
        receipt: Some(receipt_sender),
        counters: Arc::clone(counters),
        _turn: turn,
    };
    if length == 0 {
        frames.finish();
    }
    Ok((frames, receipt))
}

/// What was read, with its blocks compared now, as they are taken, or not at all.
pub(super) fn checked(fetched: Fetched, verification: Verification) -> Result<Fetched, StoreError> {
    match verification {
        Verification::BeforeDelivery => fetched.verified(),
        Verification::Inline => Ok(fetched),
        Verification::Client => Ok(fetched.unverified()),
    }
}

impl From<Reading> for Delivery {
    fn from(reading: Reading) -> Self {
        let Reading { length, frames, receipt } = reading;
        let frames = Frames { frame_bytes_max: BODY_FRAME_BYTES, ..frames };
        Self { length, body: Box::pin(frames.map_ok(Frame::into_bytes)), receipt }
    }
}

fn pin_all(
    plan: &GetPlan,
    store: &dyn BlobStore,
    pool: &LeasePool,
) -> Result<Vec<Part>, TransferError> {
    let terms = Terms { key: plan.key.as_ref(), verification: plan.verification, pool };
    let pin = |piece: &keyway_proto::Piece| {
        let pin = Chunk::pin(store, piece.chunk, terms)?;
        if piece.range.is_empty() || !ByteRange::whole(pin.length()).contains(piece.range) {
            return Err(TransferError::InvalidPlan("a range leaves its chunk"));
        }
        Ok(Part { pin, rest: piece.range })
    };
    plan.pieces.iter().map(pin).collect()
}

/// A pinned chunk and what is still to be read of it.
struct Part {
    pin: Chunk,
    rest: ByteRange,
}

/// The reads of a plan, one after the other.
struct Reads {
    parts: Vec<Part>,
    part: usize,
    pool: LeasePool,
}

impl Reads {
    /// The next bytes, if the store has them in memory.
    fn held(&mut self) -> Option<Frame> {
        let part = self.parts.get(self.part)?;
        let frame = part.pin.held(part.rest)?;
        self.pass(frame.len() as u64);
        Some(frame)
    }

    /// Begins the next read, which waits for its buffer. A transfer that has reads under
    /// way uses [`Self::next_at_once`] instead: one that holds buffers and waits for more
    /// could lock others out, and they it.
    fn next(&mut self) -> Option<Read> {
        let range = self.next_range()?;
        Some(self.begin(range, None))
    }

    /// Begins the next read if a buffer is free for it.
    fn next_at_once(&mut self) -> Option<Read> {
        let range = self.next_range()?;
        let class = self.parts[self.part].pin.read_class(range);
        let lease = self.pool.try_lease(class)?;
        Some(self.begin(range, Some(lease)))
    }

    fn next_range(&self) -> Option<ByteRange> {
        let window = if self.is_scarce() { SCARCE_PIECE_BYTES } else { PIECE_BYTES_MAX as u64 };
        let part = self.parts.get(self.part)?;
        Some(part.pin.front_within(part.rest, window))
    }

    fn begin(&mut self, range: ByteRange, lease: Option<Lease>) -> Read {
        let read = self.parts[self.part].pin.read(range, lease);
        self.pass(range.length());
        read
    }

    /// The next `bytes` bytes are taken care of.
    fn pass(&mut self, bytes: u64) {
        let part = &mut self.parts[self.part];
        let (offset, length) = (part.rest.offset() + bytes, part.rest.length() - bytes);
        part.rest = ByteRange::new(offset, length).expect("inside the part");
        if part.rest.is_empty() {
            self.part += 1;
        }
    }

    fn is_scarce(&self) -> bool {
        self.pool.is_scarce(LeaseClass::Unit)
    }
}

type Read = BoxFuture<'static, Result<Fetched, StoreError>>;

/// The frames of a GET, in order.
pub(crate) struct Frames {
    transfer: TransferId,
    verification: Verification,
    /// The next to be handed out, where it is known.
    ahead: Option<Frame>,
    /// The piece that frames are taken from.
    current: Option<Fetched>,
    reads: Reads,
    under_way: FuturesOrdered<Read>,
    /// What follows the reads under way, found in memory.
    held: Option<Frame>,
    /// Whether the read under way had to wait for its buffer: until it has ended, no other
    /// is begun.
    waits: bool,
    frame_bytes_max: usize,
    length: u64,
    delivered: u64,
    /// Taken when the receipt is given, or when the transfer failed.
    receipt: Option<oneshot::Sender<Receipt>>,
    counters: Arc<Counters>,
    _turn: Option<Turn>,
}

impl Frames {
    /// Whether the next frame waits for a buffer, or had to.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    fn read_ahead(&mut self) {
        let bound = if self.reads.is_scarce() { 1 } else { READS_IN_FLIGHT };
        while self.under_way.len() < bound && !self.waits && self.held.is_none() {
            self.held = self.reads.held();
            if self.held.is_some() {
                return;
            }
            if let Some(read) = self.reads.next_at_once() {
                self.under_way.push_back(read);
                continue;
            }
            if self.under_way.is_empty()
                && let Some(read) = self.reads.next()
            {
                self.under_way.push_back(read);
                self.waits = true;
            }
            return;
        }
    }

    fn deliver(&mut self, mut frame: Frame) -> Poll<Option<Result<Frame, TransferError>>> {
        if frame.len() > self.frame_bytes_max {
            let mut bytes = frame.into_bytes();
            self.ahead = Some(Frame::new(bytes.split_off(self.frame_bytes_max)));
            frame = Frame::new(bytes);
        }
        self.delivered += frame.len() as u64;
        self.counters.delivered_bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
        // With the last bytes rather than after them: a consumer that knows the length
        // does not ask again.
        if self.delivered == self.length {
            self.finish();
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn fail(&mut self, error: StoreError) -> Poll<Option<Result<Frame, TransferError>>> {
        self.receipt = None;
        self.counters.count_failure();
        Poll::Ready(Some(Err(error.into())))
    }

    fn finish(&mut self) {
        let Some(receipt) = self.receipt.take() else { return };
        // Nobody waiting for it is no failure.
        let _ = receipt.send(Receipt {
            transfer: self.transfer,
            bytes: self.delivered,
            digests: Digests::default(),
            path: TransferPath::Http,
            strength: KeyStrength::Http,
            key: KeyFate::NoKey,
            durability: Durability::default(),
        });
    }
}

impl Stream for Frames {
    type Item = Result<Frame, TransferError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.receipt.is_none() {
            return Poll::Ready(None);
        }
        if let Some(frame) = self.ahead.take() {
            return self.deliver(frame);
        }
        loop {
            match self.current.as_mut().and_then(Fetched::next_frame) {
                Some(Ok(frame)) => return self.deliver(frame),
                Some(Err(error)) => return self.fail(error),
                None => self.current = None,
            }
            self.read_ahead();
            match ready!(self.under_way.poll_next_unpin(context)) {
                Some(Ok(fetched)) => {
                    match checked(fetched, self.verification) {
                        Ok(fetched) => self.current = Some(fetched),
                        Err(error) => return self.fail(error),
                    }
                    self.waits = false;
                    self.read_ahead();
                }
                Some(Err(error)) => return self.fail(error),
                // All reads before it have been taken.
                None => match self.held.take() {
                    Some(frame) => return self.deliver(frame),
                    None => return Poll::Ready(None),
                },
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.receipt.is_some()), None)
    }
}
