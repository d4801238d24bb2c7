//! Turns: writers to one key wait in line.
//!
//! Commits on one key conflict when they meet, and all but one are decided anew. That is
//! right but wasteful on a hot key, so writers of this process take turns by key. Keys share
//! a fixed number of lines: with 64 writers on different keys, about one in 70 waits for a
//! stranger.

use std::hash::{BuildHasher as _, RandomState};

use tokio::sync::{Mutex, MutexGuard};

/// Lines in all.
const LINES: usize = 4096;

pub(super) struct Turns {
    lines: Box<[Mutex<()>]>,
    hasher: RandomState,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self {
            lines: std::iter::repeat_with(Mutex::default).take(LINES).collect(),
            hasher: RandomState::new(),
        }
    }

    /// Waits for the turn to write `key`; it ends with the guard.
    pub(super) async fn wait(&self, key: &[u8]) -> MutexGuard<'_, ()> {
        let line = self.hasher.hash_one(key) as usize % LINES;
        self.lines[line].lock().await
    }
}
