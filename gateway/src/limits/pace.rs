//! Bodies in their time: what passes over HTTP is slowed down, not refused.
//!
//! A frame is cut into pieces, and each is paid for before it goes on: so many bodies of one
//! tenant share its rate piece by piece. While a body waits, what is behind it waits too: the
//! client's socket when it sends, the node's frames, at most a handful, when it receives.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use keyway_dataplane::{Body, TransferError};
use tokio::time::Sleep;

use super::usage::Usage;

/// Pieces are no smaller: what a wait costs is for so many bytes.
const PIECE_BYTES_MIN: usize = 4 << 10;
/// And no larger.
const PIECE_BYTES_MAX: usize = 256 << 10;
/// Pieces in a second of one body alone.
const PIECES_PER_SECOND: u64 = 64;

/// What slows bodies down; of most callers nothing does.
#[derive(Clone, Default)]
pub(crate) struct Pace(Option<Usage>);

impl Pace {
    pub(super) fn new(usage: &Usage) -> Self {
        Self(usage.paces().then(|| usage.clone()))
    }

    /// Has the body come in its time.
    pub(crate) fn slow(&self, body: &mut Body) {
        let Some(usage) = &self.0 else { return };
        let slowest = usage.slowest().unwrap_or(u64::MAX);
        let piece = usize::try_from(slowest / PIECES_PER_SECOND).unwrap_or(PIECE_BYTES_MAX);
        let unpaced = std::mem::replace(body, Box::pin(futures::stream::empty()));
        *body = Box::pin(Paced {
            body: unpaced,
            usage: usage.clone(),
            piece: piece.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX),
            rest: Bytes::new(),
            waiting: None,
        });
    }
}

struct Paced {
    body: Body,
    usage: Usage,
    piece: usize,
    /// What is left of the last frame.
    rest: Bytes,
    /// A piece that is paid for, and until when it waits.
    waiting: Option<(Bytes, Pin<Box<Sleep>>)>,
}

impl Stream for Paced {
    type Item = Result<Bytes, TransferError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some((_, sleep)) = &mut this.waiting {
                ready!(sleep.as_mut().poll(cx));
            }
            if let Some((piece, _)) = this.waiting.take() {
                return Poll::Ready(Some(Ok(piece)));
            }
            if this.rest.is_empty() {
                match ready!(this.body.as_mut().poll_next(cx)) {
                    Some(Ok(frame)) if !frame.is_empty() => this.rest = frame,
                    other => return Poll::Ready(other),
                }
            }
            let piece = this.rest.split_to(this.rest.len().min(this.piece));
            let wait = this.usage.pay(piece.len() as u64);
            if wait == Duration::ZERO {
                return Poll::Ready(Some(Ok(piece)));
            }
            this.waiting = Some((piece, Box::pin(tokio::time::sleep(wait))));
        }
    }
}
