//! The digests that receipts carry.
//!
//! CRCs run at many GB/s: computed in place. MD5 and SHA take milliseconds per MiB: for
//! bodies past [`INLINE_BYTES_MAX`] they run on a blocking thread, beside the I/O, fed with
//! the network's own reference-counted frames through a short queue.

use bytes::Bytes;
use keyway_proto::checksum::MultiHasher;
use keyway_proto::{DigestSet, Digests};
use tokio::sync::{mpsc, oneshot};

use crate::node::TransferError;

/// Longest body whose slow digests are computed in place: about a third of a millisecond.
const INLINE_BYTES_MAX: u64 = 128 << 10;

/// Frames, of 64 KiB at most over HTTP/1, that may wait for the hashing thread: with many uploads at
/// once they are most of the memory beside the pool. Eight take 3 to 6 % less CPU for bodies of 1 MiB
/// and more, and 5 MiB more at 64 uploads.
const QUEUED_FRAMES_MAX: usize = 4;

pub(super) struct Digester {
    inline: MultiHasher,
    thread: Option<Thread>,
}

struct Thread {
    frames: mpsc::Sender<Bytes>,
    digests: oneshot::Receiver<Digests>,
}

impl Digester {
    /// For a body of `length` bytes.
    pub(super) fn new(digests: DigestSet, length: u64) -> Self {
        let (fast, slow) = digests.iter().partition::<Vec<_>, _>(|kind| kind.combines());
        if slow.is_empty() || length <= INLINE_BYTES_MAX {
            return Self { inline: MultiHasher::new(digests), thread: None };
        }
        Self {
            inline: MultiHasher::new(fast.into_iter().collect()),
            thread: Some(Thread::start(slow.into_iter().collect())),
        }
    }

    /// Takes the next bytes in; waits when the hashing thread is behind.
    pub(super) async fn update(&mut self, frame: &Bytes) -> Result<(), TransferError> {
        if let Some(thread) = &self.thread {
            // The clone shares the frame's memory.
            thread.frames.send(frame.clone()).await.map_err(|_| lost())?;
        }
        self.inline.update(frame);
        Ok(())
    }

    pub(super) async fn finish(self) -> Result<Digests, TransferError> {
        let inline = self.inline.finish();
        let Some(Thread { frames, digests }) = self.thread else { return Ok(inline) };
        drop(frames);
        let slow = digests.await.map_err(|_| lost())?;
        Ok(inline.iter().chain(slow.iter()).copied().collect())
    }
}

impl Thread {
    /// The thread ends when its sender is dropped, also by cancelling.
    fn start(set: DigestSet) -> Self {
        let (frames, mut queue) = mpsc::channel::<Bytes>(QUEUED_FRAMES_MAX);
        let (answer, digests) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            let mut hasher = MultiHasher::new(set);
            while let Some(frame) = queue.blocking_recv() {
                hasher.update(&frame);
            }
            let _ = answer.send(hasher.finish());
        });
        Self { frames, digests }
    }
}

fn lost() -> TransferError {
    TransferError::Store { reason: "the hashing thread was lost".into(), sticky: false }
}

#[cfg(test)]
mod tests {
    use keyway_proto::{Checksum, ChecksumKind};

    use super::*;

    /// In place or beside, the digests are the same.
    #[tokio::test]
    async fn both_ways_agree() {
        let set: DigestSet = ChecksumKind::ALL.into_iter().collect();
        let bytes = Bytes::from(vec![0x5a; 3 * INLINE_BYTES_MAX as usize + 1]);
        for length in [INLINE_BYTES_MAX, bytes.len() as u64] {
            let body = bytes.slice(..length as usize);
            let mut digester = Digester::new(set, length);
            assert_eq!(digester.thread.is_some(), length > INLINE_BYTES_MAX);
            for frame in body.chunks(10_000) {
                digester.update(&body.slice_ref(frame)).await.expect("the thread lives");
            }
            let digests = digester.finish().await.expect("the thread answers");
            for kind in ChecksumKind::ALL {
                assert_eq!(digests.value(kind), Some(&Checksum::of(kind, &body)));
            }
        }
    }
}
