//! Memory that a peer may reach, until its key is dead.
//!
//! [`Armed`] owns the memory and gives it back only once the key's death is certain: by a
//! completion that names it, by the completion of our own revocation, or because the queue
//! pair no longer exists. What is dropped before that goes to the port's thread, which
//! destroys the queue pair first and the memory afterwards.
//!
//! ```compile_fail
//! # fn early(armed: keyway_fabric::verbs::Armed<Vec<u8>>) -> Vec<u8> {
//! armed.memory // there is no way to the memory but `release`
//! # }
//! ```

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use keyway_proto::RemoteWindow;
use keyway_proto::key::Direction;
use tokio::sync::oneshot;

use super::domain::{Access, Anchor};
use super::work::{Bound, Held, Lend};
use super::{Domain, Link, LinkError, Registration, VerbsError};
use crate::memory::{DeviceSlice, DeviceSliceMut, HostSlice, HostSliceMut};

/// Memory lent to a peer under a key.
pub struct Armed<M: Send + 'static> {
    link: Link,
    memory: Option<M>,
    window: RemoteWindow,
    key: Key,
    dead: bool,
}

enum Key {
    /// A window of the link's.
    Window { slot: usize, died: oneshot::Receiver<()> },
    /// A registration made for this; `None` once it is being given back.
    Registration(Option<Arc<Registration>>),
    /// The slab that the memory is a piece of. It lives on.
    Slab(Arc<Registration>),
}

impl<M: Send + 'static> Armed<M> {
    /// Lends memory by registering exactly it, where windows cannot be had. Blocks for a
    /// system call that pins pages. The link must be the only one in its domain: its end is what
    /// keeps the peer out where deregistering fails.
    ///
    /// # Errors
    /// The memory, and why it was not registered.
    ///
    /// # Panics
    /// When the anchor is not the memory's, or the link not of the domain.
    pub fn register(
        link: Link,
        domain: &Arc<Domain>,
        memory: M,
        anchor: Anchor,
        direction: Direction,
    ) -> Result<Self, (VerbsError, M)> {
        let (address, bytes) = (anchor.address(), anchor.bytes());
        let length = u32::try_from(bytes).unwrap_or(u32::MAX);
        assert!(owns(&memory, address, length, direction), "the anchor is the memory's own");
        assert!(Arc::ptr_eq(link.domain(), domain), "the link leads into the domain");
        match domain.register(anchor, Access::Remote(direction)) {
            Ok(registration) => {
                let key = registration.remote_key();
                let window = RemoteWindow { address, length, key };
                let key = Key::Registration(Some(registration));
                Ok(Self { link, memory: Some(memory), window, key, dead: false })
            }
            Err(error) => Err((error, memory)),
        }
    }

    /// Lends a piece of memory that stays registered, at `address`: the key opens all that is. It
    /// ends with nothing but the link; [`revoke`](Self::revoke) says that the peer is known to be
    /// done with the piece. The link must be the only one in the slab's domain, and `memory` what
    /// nobody looks into the piece without.
    ///
    /// # Panics
    /// When the slab does not cover the piece, or the link is not of its domain.
    pub fn piece(
        link: Link,
        memory: M,
        slab: &Arc<Registration>,
        address: u64,
        length: u32,
    ) -> Self {
        assert!(slab.covers(address, length as usize), "a piece lies in its slab");
        assert!(Arc::ptr_eq(link.domain(), slab.domain()), "the link leads into the domain");
        let window = RemoteWindow { address, length, key: slab.remote_key() };
        let key = Key::Slab(Arc::clone(slab));
        Self { link, memory: Some(memory), window, key, dead: false }
    }

    /// What the peer is told.
    pub fn remote(&self) -> RemoteWindow {
        self.window
    }

    /// Whether the key is certainly dead, or the peer done with what it was lent.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Waits for the peer's invalidation: the completion that names this key. Registrations
    /// know none, and wait for the link's end.
    ///
    /// # Errors
    /// [`LinkError`] when the queue pair was destroyed instead; the key is dead then, too.
    pub async fn invalidated(&mut self) -> Result<(), LinkError> {
        if self.dead {
            return Ok(());
        }
        let named = match &mut self.key {
            Key::Window { died, .. } => died.await.is_ok(),
            Key::Registration(_) | Key::Slab(_) => false,
        };
        let outcome = if named { Ok(()) } else { Err(self.link.destroyed().await) };
        // A registration outlives the queue pair, but nothing of its domain can use it: the
        // session's queue pair is the only one.
        self.dead = named || !matches!(self.key, Key::Registration(_));
        outcome
    }

    /// Ends the key from this end and waits until the adapter has done so. Of a slab's piece: takes
    /// the peer's word that nothing of its touches the piece any more. Without that, only
    /// [`fence`](Self::fence) is an end. Whoever stops waiting and revokes again waits for the same
    /// end.
    ///
    /// # Errors
    /// [`LinkError`] when the queue pair was destroyed instead.
    pub async fn revoke(&mut self) -> Result<(), LinkError> {
        if self.dead {
            return Ok(());
        }
        let outcome = match &mut self.key {
            Key::Window { slot, .. } => self.link.revoke(*slot, self.window.key).await,
            Key::Slab(_) => Ok(()),
            Key::Registration(registration) => {
                let left = match registration.take() {
                    Some(registration) => deregister(registration).await,
                    // Under way since an earlier call, which nobody can ask any more.
                    None => Err(None),
                };
                match left {
                    Ok(()) => Ok(()),
                    Err(registration) => {
                        // Nothing but the link's queue pair leads into its domain. When that is
                        // gone another attempt is made; if it fails, the memory is never unmapped.
                        let ended = self.link.fence().await;
                        drop(registration);
                        Err(ended)
                    }
                }
            }
        };
        // An error comes after the queue pair's end.
        self.dead = true;
        outcome
    }

    /// Ends the key by destroying the queue pair, and waits until it is gone.
    pub async fn fence(&mut self) {
        if !self.dead {
            self.link.fence().await;
            if let Key::Registration(_) = self.key {
                let _ = self.revoke().await;
            }
            self.dead = true;
        }
    }

    /// Gives the memory back.
    ///
    /// # Errors
    /// The lend itself while its key may live.
    pub fn release(mut self) -> Result<M, Self> {
        if !self.dead {
            return Err(self);
        }
        Ok(self.memory.take().expect("the memory is there until it is given back"))
    }
}

/// A lend whose window is not bound yet. It goes with the work that binds it: who stops waiting
/// frees nothing. Dropped, it gives the memory back, for then the work was never posted or its queue
/// pair is gone.
pub(super) struct Arming<M: Send + 'static> {
    link: Link,
    address: u64,
    length: u32,
    /// `None` once it is answered.
    waiting: Option<(Answer<M>, M)>,
}

/// Who waits for a lend: gets it, or the memory where its link has ended.
pub(super) type Answer<M> = oneshot::Sender<Result<Armed<M>, M>>;

impl<M: Send + 'static> Arming<M> {
    pub(super) fn new(link: Link, memory: M, address: u64, length: u32, reply: Answer<M>) -> Self {
        Self { link, address, length, waiting: Some((reply, memory)) }
    }
}

impl<M: Send + 'static> Lend for Arming<M> {
    fn bound(mut self: Box<Self>, bound: Bound) -> Option<Held> {
        let (reply, memory) = self.waiting.take().expect("a window is bound once");
        if reply.is_closed() {
            return Some(Box::new(memory));
        }
        let Bound { slot, key, died } = bound;
        let window = RemoteWindow { address: self.address, length: self.length, key };
        let key = Key::Window { slot, died };
        let link = self.link.clone();
        // Whoever goes just now drops the lend, which ends the link.
        let _ = reply.send(Ok(Armed { link, memory: Some(memory), window, key, dead: false }));
        None
    }
}

impl<M: Send + 'static> Drop for Arming<M> {
    fn drop(&mut self) {
        if let Some((reply, memory)) = self.waiting.take() {
            let _ = reply.send(Err(memory));
        }
    }
}

/// Whether the memory is what keeps its owner away from the range while a peer may reach it. Asked
/// as the program runs: a registration covers all of a buffer, and knows no slices.
pub(super) fn owns(memory: &dyn Any, address: u64, length: u32, direction: Direction) -> bool {
    let exclusive = memory
        .downcast_ref::<HostSliceMut>()
        .map(|slice| (slice.address(), slice.len()))
        .or_else(|| memory.downcast_ref::<DeviceSliceMut>().map(|s| (s.address(), s.len())));
    let shared = memory
        .downcast_ref::<HostSlice>()
        .map(|slice| (slice.address(), slice.len()))
        .or_else(|| memory.downcast_ref::<DeviceSlice>().map(|s| (s.address(), s.len())));
    let range = exclusive.or_else(|| shared.filter(|_| direction == Direction::Read));
    range.is_some_and(|(from, bytes)| {
        let to = from.saturating_add(bytes as u64);
        address >= from && address.checked_add(length.into()).is_some_and(|end| end <= to)
    })
}

/// Deregisters on a thread that may block: unpinning is slow for large memory. The task cannot be
/// cancelled once it runs.
///
/// # Errors
/// What the device did not let go of.
async fn deregister(registration: Arc<Registration>) -> Result<(), Option<Arc<Registration>>> {
    let ended = tokio::task::spawn_blocking(move || Registration::end(registration)).await;
    match ended {
        Ok(Ok(())) => Ok(()),
        Ok(Err((error, registration))) => {
            tracing::error!(%error, "a key's registration did not end; its link does");
            Err(Some(registration))
        }
        // The runtime ends, and dropped it.
        Err(_) => Err(None),
    }
}

impl<M: Send + 'static> Drop for Armed<M> {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        if self.dead {
            return;
        }
        // Abandoned: the queue pair goes first, then the memory.
        let registration = match &mut self.key {
            Key::Registration(registration) => registration.take(),
            Key::Slab(slab) => Some(Arc::clone(slab)),
            Key::Window { .. } => None,
        };
        self.link.fence_keeping(Some(Box::new((registration, memory))));
    }
}

impl<M: Send + 'static> fmt::Debug for Armed<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Armed").field("dead", &self.dead).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HostBuffer;

    /// A registration covers all of a buffer: only the slice says whose turn it is in which range.
    #[test]
    fn memory_is_lent_by_its_owner_alone() {
        let mut buffer = HostBuffer::zeroed(8192).expect("memory");
        let mut lower = buffer.slice_mut(..4096).expect("not lent");
        let from = lower.address();
        let whole = |direction| owns(&lower, from, 4096, direction);
        assert!(whole(Direction::Write) && whole(Direction::Read));
        assert!(owns(&lower, from + 4095, 1, Direction::Write));
        for (address, length) in [(from, 4097), (from + 1, 4096), (from + 4096, 1), (from - 1, 1)] {
            assert!(!owns(&lower, address, length, Direction::Write));
        }
        let first = lower.split_to(1);
        assert!(!owns(&lower, from, 1, Direction::Read) && owns(&first, from, 1, Direction::Read));
        let shared = lower.freeze();
        assert!(owns(&shared, from + 1, 4095, Direction::Read));
        assert!(!owns(&shared, from + 1, 4095, Direction::Write), "others may be reading");
        assert!(!owns(&(), from, 1, Direction::Read));
    }
}
