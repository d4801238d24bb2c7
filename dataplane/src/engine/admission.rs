//! Who may start a transfer, and when.
//!
//! Turns are given first come first served, within one bound for transfers under way and
//! one for those that wait. The tenant is asked for already, so that fair shares between
//! tenants change this file alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyway_proto::TenantId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::node::TransferError;

pub(crate) struct Admission {
    turns: Arc<Semaphore>,
    transfers_max: usize,
    waiting: AtomicUsize,
    waiting_max: usize,
}

/// A transfer's right to run, given back on drop.
pub(crate) struct Turn {
    _permit: OwnedSemaphorePermit,
}

impl Admission {
    pub(super) fn new(transfers_max: usize, waiting_max: usize) -> Self {
        let transfers_max = transfers_max.clamp(1, Semaphore::MAX_PERMITS);
        let turns = Arc::new(Semaphore::new(transfers_max));
        Self { turns, transfers_max, waiting: AtomicUsize::new(0), waiting_max }
    }

    /// Waits for a turn. Dropping the future gives up the place.
    pub(crate) async fn admit(&self, _tenant: TenantId) -> Result<Turn, TransferError> {
        if let Ok(permit) = Arc::clone(&self.turns).try_acquire_owned() {
            return Ok(Turn { _permit: permit });
        }
        let _place = Place::take(&self.waiting, self.waiting_max)?;
        let permit = Arc::clone(&self.turns).acquire_owned().await;
        Ok(Turn { _permit: permit.expect("the semaphore is never closed") })
    }

    pub(super) fn transfers(&self) -> usize {
        self.transfers_max - self.turns.available_permits()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(waiting: &'a AtomicUsize, max: usize) -> Result<Self, TransferError> {
        let place = Self(waiting);
        if waiting.fetch_add(1, Ordering::Relaxed) >= max {
            return Err(TransferError::Busy);
        }
        Ok(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn only_a_full_queue_is_busy() {
        let admission = Admission::new(1, 1);
        let running = admission.admit(TenantId::ROOT).now_or_never().expect("free").expect("free");
        let mut waiting = Box::pin(admission.admit(TenantId::ROOT));
        assert!(waiting.as_mut().now_or_never().is_none());
        let refused = admission.admit(TenantId::ROOT).now_or_never().expect("answers at once");
        assert!(matches!(refused, Err(TransferError::Busy)));
        assert_eq!((admission.transfers(), admission.waiting()), (1, 1));
        drop(running);
        assert!(waiting.now_or_never().is_some_and(|turn| turn.is_ok()));
        assert_eq!((admission.transfers(), admission.waiting()), (0, 0));
    }
}
