//! Reads of a chunk that are under way: those who want the same blocks wait for them instead
//! of reading them again.
//!
//! A flight runs in a task of its own, with its buffer in hand: it waits for no consumer and
//! for no other flight, so waiting for it is always safe.

use std::sync::Arc;

use keyway_proto::ByteRange;
use tokio::sync::watch;

use super::entry::Entry;

/// A read under way, as others see it.
pub(super) struct Flight {
    /// The blocks that it reads.
    span: ByteRange,
    /// Closed when it has ended.
    ended: watch::Receiver<()>,
}

/// A read under way, its owner's. Dropped when it has ended.
pub(super) struct Flying {
    entry: Arc<Entry>,
    ended: Option<watch::Sender<()>>,
}

/// What to do about blocks that are not here.
pub(super) enum Boarding {
    /// Somebody reads them: wait for the end, and look again.
    Wait(watch::Receiver<()>),
    /// Nobody does: read them.
    Begin(Flying),
}

impl Flying {
    /// Looks for a flight that covers `span`, or begins one.
    pub(super) fn board(entry: &Arc<Entry>, span: ByteRange) -> Boarding {
        let mut flights = entry.flights.lock();
        if let Some(flight) = flights.iter().find(|flight| flight.span.contains(span)) {
            return Boarding::Wait(flight.ended.clone());
        }
        let (sender, ended) = watch::channel(());
        flights.push(Flight { span, ended });
        Boarding::Begin(Self { entry: Arc::clone(entry), ended: Some(sender) })
    }

    pub(super) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        // Closed first, so that it is known by that in the list.
        self.ended = None;
        let open = |flight: &Flight| flight.ended.has_changed().is_ok();
        self.entry.flights.lock().retain(open);
    }
}
