//! A session's slabs: memory of the client's own that stays registered, for adapters that have no
//! windows and register slowly.
//!
//! Sketch: one registration per session and direction, made with the first transfer that needs it.
//! A transfer waits for pieces of it, and its bytes are copied once by the processor: into the
//! pieces before a node is told of them (PUT), out of them after it has answered that all of its
//! writes have arrived (GET). The caller's memory is never registered, so what a node, or whoever
//! else has the session's keys, can reach at any time is the slab and no byte beside it.
//!
//! The keys live as long as the session. So pieces come back for the next transfer only when the node
//! has said that it is done with them; else the queue pair is destroyed, and the slab, which nobody
//! can reach any more, goes with the session. A later session makes its own.
//!
//! What is written is not what is read: a slab has rights for one direction alone. A node that is
//! sent a GET's key reads nothing with it.

use std::sync::Arc;

use keyway_fabric::memory::{PIECE_BYTES_MAX, Pieces, Slab};
use keyway_fabric::verbs::{self, Access, Domain, Link, Registration, VerbsError};
use keyway_proto::RemoteWindow;
use keyway_proto::key::Direction;
use keyway_proto::session_token::TOKEN_WINDOWS_MAX;
use tokio::sync::OnceCell;

use super::armed::Armed;
use super::registrations::release;
use super::target::Target;
use super::transaction::RdmaError;

/// Bytes copied before other tasks have their turn.
const COPIED_AT_ONCE_BYTES: usize = 1 << 20;

/// Most bytes of one slab: a run of all of it has a window per piece in one token.
const SLAB_BYTES_MAX: usize = TOKEN_WINDOWS_MAX * PIECE_BYTES_MAX;

/// So many bytes as a slab has them.
pub(super) fn whole_pieces(bytes: usize) -> usize {
    bytes.clamp(PIECE_BYTES_MAX, SLAB_BYTES_MAX) / PIECE_BYTES_MAX * PIECE_BYTES_MAX
}

/// The slabs of one session.
pub(super) struct Slabs {
    domain: Arc<Domain>,
    bytes: usize,
    written: OnceCell<Registered>,
    read: OnceCell<Registered>,
}

struct Registered {
    slab: Slab,
    registration: Arc<Registration>,
}

/// Pieces in the hands of a transfer, and the registration that they are of.
pub(super) struct HeldPieces {
    pub(super) pieces: Pieces,
    pub(super) registration: Arc<Registration>,
}

/// A caller's memory, and the pieces that stand in for it.
pub(super) struct Lent<M> {
    pub(super) memory: M,
    pub(super) pieces: Pieces,
}

impl Slabs {
    /// None yet; each will have so many bytes.
    pub(super) fn new(domain: &Arc<Domain>, bytes: usize) -> Self {
        let (written, read) = (OnceCell::new(), OnceCell::new());
        Self { domain: Arc::clone(domain), bytes: whole_pieces(bytes), written, read }
    }

    /// Whether they are long enough for a run of so many bytes.
    pub(super) fn hold(&self, bytes: u64) -> bool {
        bytes <= self.bytes as u64
    }

    /// Pieces for so many bytes in this direction. Waits for them.
    ///
    /// # Errors
    /// [`RdmaError::Registration`] where there is no memory, or it cannot be registered.
    pub(super) async fn take(
        &self,
        bytes: usize,
        direction: Direction,
    ) -> Result<HeldPieces, RdmaError> {
        let slab = match direction {
            Direction::Write => &self.written,
            Direction::Read => &self.read,
        };
        // Those who come meanwhile wait for the one registration.
        let Registered { slab, registration } =
            slab.get_or_try_init(|| register(&self.domain, self.bytes, direction)).await?;
        let pieces = slab.take(bytes).await;
        Ok(HeldPieces { pieces, registration: Arc::clone(registration) })
    }
}

impl Drop for Slabs {
    fn drop(&mut self) {
        // Unpinning takes its time.
        let registered = [self.written.take(), self.read.take()].into_iter().flatten();
        release(registered.map(|slab| slab.registration).collect());
    }
}

async fn register(
    domain: &Arc<Domain>,
    bytes: usize,
    direction: Direction,
) -> Result<Registered, RdmaError> {
    let domain = Arc::clone(domain);
    let make = move || {
        let slab = Slab::map(bytes)?;
        let registration = domain.register(slab.anchor(), Access::Remote(direction))?;
        Ok(Registered { slab, registration })
    };
    let made = tokio::task::spawn_blocking(make).await;
    // It ends without a result when the runtime ends.
    made.unwrap_or(Err(VerbsError::Closed)).map_err(RdmaError::Registration)
}

impl<M: Target> Lent<M> {
    /// Lends the pieces. The slab is of the link's domain.
    pub(super) fn arm(self, link: Link, slab: &Arc<Registration>) -> Armed<M> {
        let length = |bytes| u32::try_from(bytes).expect("a piece is bounded");
        let places: Vec<_> = self.pieces.places().collect();
        let (address, bytes) = *places.first().expect("a run has a piece");
        let armed = verbs::Armed::piece(link, self, slab, address, length(bytes));
        let key = armed.remote().key;
        let window = |(address, bytes)| RemoteWindow { address, length: length(bytes), key };
        Armed::Slab(armed, places.into_iter().map(window).collect())
    }

    /// Copies the memory into the pieces, for a node to read.
    pub(super) async fn copy_in(&mut self) {
        let mut rest = self.memory.host_bytes().expect("slabs stand in for the host's memory");
        for part in self.pieces.parts_mut() {
            let (from, behind) = rest.split_at(part.len());
            copy(part, from).await;
            rest = behind;
        }
    }

    /// Copies the first `bytes` bytes out of the pieces, where a node wrote them. What lies behind
    /// them in the pieces was another transfer's.
    pub(super) async fn copy_out(&mut self, bytes: usize) {
        let memory = self.memory.host_bytes_mut().expect("a node writes for memory to be filled");
        let mut rest = &mut memory[..bytes];
        for part in self.pieces.parts() {
            let (to, behind) = rest.split_at_mut(part.len().min(rest.len()));
            copy(to, &part[..to.len()]).await;
            rest = behind;
        }
    }
}

async fn copy(to: &mut [u8], from: &[u8]) {
    let steps = to.chunks_mut(COPIED_AT_ONCE_BYTES).zip(from.chunks(COPIED_AT_ONCE_BYTES));
    for (turn, (to, from)) in steps.enumerate() {
        if turn > 0 {
            tokio::task::yield_now().await;
        }
        to.copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use keyway_fabric::memory::HostBuffer;

    use super::*;

    #[tokio::test]
    async fn a_run_of_several_pieces_is_copied_in_order_and_no_further() {
        let slab = Slab::map(2 * PIECE_BYTES_MAX).expect("memory");
        let bytes = PIECE_BYTES_MAX + 5;
        let mut object = vec![0; bytes];
        fastrand::Rng::with_seed(7).fill(&mut object);
        let mut source = HostBuffer::from(object.clone());
        let memory = source.slice(..).expect("not lent");
        let pieces = slab.take(bytes).now_or_never().expect("free");
        let mut lent = Lent { memory, pieces };
        lent.copy_in().await;

        let mut target = HostBuffer::zeroed(bytes).expect("memory");
        let memory = target.slice_mut(..).expect("not lent");
        let mut back = Lent { memory, pieces: lent.pieces };
        // Less came than there is room for: what is behind it stays the caller's.
        back.copy_out(bytes - 2).await;
        assert_eq!(back.memory[..bytes - 2], object[..bytes - 2]);
        assert_eq!(back.memory[bytes - 2..], [0; 2]);
    }

    #[test]
    fn a_whole_slab_has_room_in_one_token() {
        let slab = Slab::map(SLAB_BYTES_MAX).expect("memory");
        let run = slab.take(SLAB_BYTES_MAX).now_or_never().expect("free");
        assert_eq!(run.places().count(), TOKEN_WINDOWS_MAX);
    }
}
