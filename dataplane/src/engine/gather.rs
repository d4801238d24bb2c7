//! Gathering: many pieces of chunks become runs of verified bytes, each with its place.
//!
//! Sketch, per piece of a few KiB that is in memory: its chunk by number, a slice of what is held
//! of it, and nothing else; each chunk is pinned and looked up once. A piece that must be read
//! costs what it costs a GET, with [`READS_IN_FLIGHT`] of them ahead of the consumer. Runs come in
//! the order of the pieces, so that whoever takes them can sum them.
//!
//! Where no buffer is free while the consumer has some, it is told ([`Step::Scarce`]) to have its
//! own written first: nobody waits for buffers with buffers in hand.

use std::collections::VecDeque;

use futures::future::BoxFuture;
use futures::stream::{FuturesOrdered, StreamExt as _};
use keyway_fabric::memory::{LeaseClass, LeasePool};
use keyway_proto::unit::BLOCK_BYTES;
use keyway_proto::{ByteRange, GatherPiece, GatherPlan, Verification};

use super::admission::Turn;
use super::chunk::{self, Reading};
use super::get::checked;
use crate::node::TransferError;
use crate::store::{BlobStore, Fetched, Frame, Resident, StoreError};

/// Reads under way ahead of the consumer: as many as keep a drive busy with blocks.
const READS_IN_FLIGHT: usize = 16;
/// Runs known ahead of the consumer, while one before them is read.
const RUNS_AHEAD_MAX: usize = 1024;

/// What comes next.
pub(crate) enum Step {
    /// The next bytes.
    Run(Run),
    /// No buffer is free: once the consumer has none, [`Gathering::wait`].
    Scarce,
    /// All was taken.
    End,
}

/// A run of verified bytes.
pub(crate) struct Run {
    /// Where its first byte lands.
    pub(crate) at: u64,
    pub(crate) frame: Frame,
    /// Bytes of the buffer that it holds, where it may hold one. That can be more than it has: a
    /// device reads whole blocks.
    pub(crate) lease_bytes: usize,
}

/// A gathering that has begun.
pub(crate) struct Gathering<'p> {
    chunks: Vec<Source>,
    pieces: &'p [GatherPiece],
    /// Bytes of the first piece that are taken care of.
    done: u64,
    ahead: VecDeque<Ahead>,
    under_way: FuturesOrdered<BoxFuture<'static, Result<Fetched, StoreError>>>,
    /// What was read and is being taken.
    current: Option<Current>,
    pool: LeasePool,
    verification: Verification,
    turn: Option<Turn>,
}

enum Ahead {
    Held(Run),
    /// The next of the reads under way.
    Read(Landing),
}

/// Where what is read lands, and the buffer that is read into.
struct Landing {
    at: u64,
    lease_bytes: usize,
}

/// What was read, and where its next byte lands.
struct Current {
    landing: Landing,
    fetched: Fetched,
}

struct Source {
    pin: chunk::Chunk,
    resident: Option<Box<dyn Resident>>,
}

impl<'p> Gathering<'p> {
    /// Pins the plan's chunks.
    ///
    /// # Errors
    /// [`TransferError::NoSuchChunk`], and [`TransferError::InvalidPlan`] for a piece that leaves
    /// its chunk.
    pub(crate) fn start(
        plan: &'p GatherPlan,
        store: &dyn BlobStore,
        pool: &LeasePool,
        turn: Option<Turn>,
    ) -> Result<Self, TransferError> {
        let reading = Reading { key: plan.key.as_ref(), verification: plan.verification, pool };
        let pin = |chunk: &_| {
            let pin = chunk::Chunk::pin(store, *chunk, reading)?;
            Ok(Source { pin, resident: None })
        };
        let chunks = plan.chunks.iter().map(pin).collect::<Result<Vec<_>, TransferError>>()?;
        let inside = |piece: &GatherPiece| {
            let chunk = chunks.get(piece.chunk as usize);
            chunk.is_some_and(|chunk| piece.range().end() <= chunk.pin.length())
        };
        if !plan.is_sound() || !plan.pieces.iter().all(inside) {
            return Err(TransferError::InvalidPlan("a piece leaves its chunk"));
        }
        Ok(Self {
            chunks,
            pieces: &plan.pieces,
            done: 0,
            ahead: VecDeque::new(),
            under_way: FuturesOrdered::new(),
            current: None,
            pool: pool.clone(),
            verification: plan.verification,
            turn,
        })
    }

    /// Reads all that the plan asks for and compares it with its sums, for nobody.
    ///
    /// # Errors
    /// As [`start`](Self::start) and [`next`](Self::next).
    pub(crate) async fn check(
        plan: &'p GatherPlan,
        store: &dyn BlobStore,
        pool: &LeasePool,
    ) -> Result<(), TransferError> {
        let mut gathering = Self::start(plan, store, pool, None)?;
        loop {
            match gathering.next().await? {
                Step::Run(_) => {}
                Step::Scarce => gathering.wait().await?,
                Step::End => return Ok(()),
            }
        }
    }

    /// The next run, as soon as it is there.
    ///
    /// # Errors
    /// Of the store; there are no more runs then.
    pub(crate) async fn next(&mut self) -> Result<Step, TransferError> {
        loop {
            if let Some(Current { landing, fetched }) = &mut self.current {
                if let Some(frame) = fetched.next_frame() {
                    let frame = frame?;
                    let Landing { at, lease_bytes } = landing;
                    let run = Run { at: *at, lease_bytes: std::mem::take(lease_bytes), frame };
                    *at += run.frame.len() as u64;
                    return Ok(Step::Run(run));
                }
                self.current = None;
            }
            if self.ahead.is_empty() {
                let Some((at, range)) = self.rest() else { return Ok(Step::End) };
                if let Some(run) = self.held(at, range) {
                    return Ok(Step::Run(run));
                }
            }
            self.look_ahead();
            match self.ahead.pop_front() {
                Some(Ahead::Held(run)) => return Ok(Step::Run(run)),
                Some(Ahead::Read(landing)) => match self.under_way.next().await {
                    Some(fetched) => {
                        let fetched = checked(fetched?, self.verification)?;
                        self.current = Some(Current { landing, fetched });
                    }
                    None => unreachable!("every read that is known ahead is under way"),
                },
                None => return Ok(Step::Scarce),
            }
        }
    }

    /// Reads what comes next when a buffer is free. The caller has none of its own.
    ///
    /// # Errors
    /// Of the store.
    pub(crate) async fn wait(&mut self) -> Result<(), TransferError> {
        if let Some((at, range)) = self.rest() {
            let range = self.chunk().pin.front(range);
            let (read, lease_bytes) =
                (self.chunk().pin.read(range, None), self.class(range).bytes());
            self.pass(range.length());
            let landing = Landing { at, lease_bytes };
            let fetched = checked(read.await?, self.verification)?;
            self.current = Some(Current { landing, fetched });
        }
        Ok(())
    }

    /// The transfer's turn, when all was taken.
    pub(crate) fn into_turn(self) -> Option<Turn> {
        self.turn
    }

    /// Begins reads while there are buffers for them, and finds what is held between them.
    fn look_ahead(&mut self) {
        let scarce = self.pool.is_scarce(LeaseClass::Unit);
        let reads_max = if scarce { 1 } else { READS_IN_FLIGHT };
        while self.under_way.len() < reads_max && self.ahead.len() < RUNS_AHEAD_MAX {
            let Some((at, range)) = self.rest() else { return };
            if let Some(run) = self.held(at, range) {
                self.ahead.push_back(Ahead::Held(run));
                continue;
            }
            let range = self.chunk().pin.front(range);
            let class = self.class(range);
            let Some(lease) = self.pool.try_lease(class) else { return };
            self.under_way.push_back(self.chunk().pin.read(range, Some(lease)));
            self.pass(range.length());
            self.ahead.push_back(Ahead::Read(Landing { at, lease_bytes: class.bytes() }));
        }
    }

    /// What is left of the first piece, and where it lands.
    fn rest(&self) -> Option<(u64, ByteRange)> {
        let piece = self.pieces.first()?;
        let range = piece.range();
        let rest = ByteRange::new(range.offset() + self.done, range.length() - self.done);
        Some((u64::from(piece.at) + self.done, rest.expect("inside the piece")))
    }

    /// The first piece's chunk.
    fn chunk(&self) -> &Source {
        &self.chunks[self.pieces[0].chunk as usize]
    }

    /// The buffer that a read of the first piece takes.
    fn class(&self, range: ByteRange) -> LeaseClass {
        self.chunk().pin.read_class(range)
    }

    /// Takes the front of what is left of the first piece, if it is in memory.
    fn held(&mut self, at: u64, range: ByteRange) -> Option<Run> {
        let frame = self.chunks[self.pieces[0].chunk as usize].held(range)?;
        self.pass(frame.len() as u64);
        Some(Run { at, frame, lease_bytes: 0 })
    }

    /// The next `bytes` bytes are taken care of.
    fn pass(&mut self, bytes: u64) {
        self.done += bytes;
        if let [first, rest @ ..] = self.pieces
            && self.done == u64::from(first.length)
        {
            (self.pieces, self.done) = (rest, 0);
        }
    }
}

impl Source {
    fn held(&mut self, range: ByteRange) -> Option<Frame> {
        // Whole blocks have sums of their own, against which the far end's are held.
        if has_a_block(range, self.pin.length()) {
            return self.pin.held(range);
        }
        if self.resident.is_none() {
            self.resident = self.pin.resident();
        }
        let bytes = self.resident.as_mut().and_then(|resident| resident.bytes(range));
        bytes.map(Frame::new).or_else(|| self.pin.held(range))
    }
}

/// Whether a range of a chunk of `length` bytes covers one of its blocks.
fn has_a_block(range: ByteRange, length: u64) -> bool {
    let first = range.offset().next_multiple_of(BLOCK_BYTES);
    first < range.end() && (first + BLOCK_BYTES).min(length) <= range.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_in_ranges() {
        const B: u64 = BLOCK_BYTES;
        let has = |offset, bytes, length| {
            has_a_block(ByteRange::new(offset, bytes).expect("a range"), length)
        };
        assert!(!has(0, 4096, 4 * B) && !has(1, B, 4 * B) && !has(1, 2 * B - 2, 4 * B));
        assert!(has(0, B, 4 * B) && has(B - 1, B + 1, 4 * B) && has(3 * B - 7, 2 * B, 9 * B));
        // The last block of a chunk is as long as what is left.
        assert!(
            has(4 * B, 5, 4 * B + 5) && !has(4 * B, 4, 4 * B + 5) && !has(4 * B + 1, 4, 4 * B + 5)
        );
        assert!(has(0, 7, 7));
    }
}
