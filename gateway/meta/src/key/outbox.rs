//! Keys of what is to be told: by target, in the order of their commits.
//!
//! A target's name has no zero byte, so that one ends it.

use bytes::{BufMut as _, Bytes};

use super::{BACKLOG, COUNTER, EVENT, Range, build, successor};

/// The counter of events.
pub(crate) fn event_counter() -> Bytes {
    Bytes::from_static(&[COUNTER, b'n'])
}

/// What keys of a target's events begin with; their number follows.
pub(crate) fn events(target: &str) -> Bytes {
    build(EVENT, target.len() + 1, |key| {
        key.put_slice(target.as_bytes());
        key.put_u8(0);
    })
}

/// A target's events behind the one of this number.
pub(crate) fn events_of(target: &str, behind: u64) -> Range {
    let prefix = events(target);
    let start = build(EVENT, target.len() + 9, |key| {
        key.put_slice(&prefix[1..]);
        key.put_u64(behind.saturating_add(1));
    });
    (start, successor(&prefix))
}

/// The number of an event.
pub(crate) fn event_number(key: &[u8]) -> Option<u64> {
    key.strip_prefix(&[EVENT])?;
    Some(u64::from_be_bytes(*key.last_chunk()?))
}

/// How many events of a target wait, and their bytes.
pub(crate) fn backlog(target: &str) -> Bytes {
    build(BACKLOG, target.len(), |key| key.put_slice(target.as_bytes()))
}

/// The backlogs of all targets.
pub(crate) fn backlogs() -> Range {
    (Bytes::from_static(&[BACKLOG]), Bytes::from_static(&[BACKLOG + 1]))
}

/// The target whose backlog it is.
pub(crate) fn backlog_target(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.strip_prefix(&[BACKLOG])?).ok()
}
