//! Object bytes between HTTP and a storage node.
//!
//! Sketch. In: hyper's frame → (signature and payload-hash checks of the protocol layer) →
//! [`Intake`] → node. Out: node's frame → [`Outgoing`] → hyper. A frame is a reference to
//! memory that somebody else filled: no byte is copied here, and nothing is held but one
//! frame. What bounds it: the hash of a signed payload, about 0.6 ns per byte.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use keyway_dataplane::node::BodyError;
use keyway_dataplane::{Body, Delivery, TransferError};
use parking_lot::Mutex;
use s3s::StdError;
use s3s::dto::StreamingBlob;
use s3s::stream::{ByteStream, RemainingLength};

use crate::limits::Pace;

/// The body of a PUT on its way to a node.
///
/// The frame that completes the announced length is held back until the sender's own end:
/// only then have the signatures, the payload hash and the trailers been checked. So a node
/// never holds a complete object that its sender did not vouch for.
pub(super) struct Intake {
    source: StreamingBlob,
    expected: u64,
    received: u64,
    last: Option<Bytes>,
    ended: bool,
    pace: Pace,
}

impl Intake {
    /// The body that must be `expected` bytes long.
    pub(super) fn new(source: StreamingBlob, expected: u64) -> Self {
        Self { source, expected, received: 0, last: None, ended: false, pace: Pace::default() }
    }

    /// The same, taken no faster than its sender may send.
    pub(super) fn paced(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }

    /// The body in the form that a node takes.
    pub(super) fn into_body(mut self) -> Body {
        let pace = std::mem::take(&mut self.pace);
        let mut body: Body = Box::pin(self);
        pace.slow(&mut body);
        body
    }

    /// Reads a body that must be empty to its end.
    ///
    /// # Errors
    /// As the stream's items.
    pub(super) async fn finish_empty(mut self) -> Result<(), TransferError> {
        match self.next().await {
            None => Ok(()),
            Some(Err(error)) => Err(error),
            Some(Ok(_)) => Err(TransferError::BodyTooLong { expected: self.expected }),
        }
    }

    fn take_frame(&mut self, frame: Bytes) -> Result<Option<Bytes>, TransferError> {
        self.received = self.received.saturating_add(frame.len() as u64);
        if self.received > self.expected {
            return Err(TransferError::BodyTooLong { expected: self.expected });
        }
        if self.received == self.expected {
            self.last = Some(frame);
            return Ok(None);
        }
        Ok(Some(frame))
    }

    fn end(&mut self) -> Result<Option<Bytes>, TransferError> {
        if self.received < self.expected {
            return Err(TransferError::BodyTooShort {
                received: self.received,
                expected: self.expected,
            });
        }
        Ok(self.last.take())
    }
}

impl Stream for Intake {
    type Item = Result<Bytes, TransferError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if self.ended {
                return Poll::Ready(None);
            }
            let step = match ready!(Pin::new(&mut self.source).poll_next(cx)) {
                Some(Ok(frame)) if frame.is_empty() => continue,
                Some(Ok(frame)) => self.take_frame(frame),
                Some(Err(error)) => Err(TransferError::Body(BodyError(Arc::from(error)))),
                None => {
                    self.ended = true;
                    self.end()
                }
            };
            match step {
                Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                Ok(None) => {}
                Err(error) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}

/// The body of a GET on its way to the client.
///
/// It ends in an error unless every byte was delivered: hyper then breaks the connection, so
/// that no client takes a part for the whole.
pub(super) struct Outgoing {
    /// Behind a lock for its `Sync` alone: with `&mut` in hand, nobody ever takes it.
    body: Mutex<Body>,
    remaining: u64,
}

impl Outgoing {
    /// The bytes of these deliveries, one after the other.
    pub(super) fn new(mut deliveries: Vec<Delivery>) -> Self {
        let remaining = deliveries.iter().map(|delivery| delivery.length).sum();
        let body = match deliveries.pop() {
            Some(only) if deliveries.is_empty() => only.body,
            last => {
                deliveries.extend(last);
                Box::pin(futures::stream::iter(deliveries).flat_map(|delivery| delivery.body))
            }
        };
        Self { body: Mutex::new(body), remaining }
    }
}

impl Stream for Outgoing {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let frame = match ready!(self.body.get_mut().poll_next_unpin(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(Box::new(error)))),
            None if self.remaining == 0 => return Poll::Ready(None),
            None => return Poll::Ready(Some(Err(Box::new(BrokenDelivery)))),
        };
        match self.remaining.checked_sub(frame.len() as u64) {
            Some(rest) => {
                self.remaining = rest;
                Poll::Ready(Some(Ok(frame)))
            }
            None => Poll::Ready(Some(Err(Box::new(BrokenDelivery)))),
        }
    }
}

impl ByteStream for Outgoing {
    fn remaining_length(&self) -> RemainingLength {
        usize::try_from(self.remaining)
            .map_or_else(|_| RemainingLength::unknown(), RemainingLength::new_exact)
    }
}

/// A node that did not deliver what it announced.
#[derive(Debug, thiserror::Error)]
#[error("the node delivered another number of bytes than it announced")]
struct BrokenDelivery;

#[cfg(test)]
mod tests {
    use futures::stream;
    use tokio::sync::oneshot;

    use super::*;

    fn intake(frames: &[&'static str], expected: u64) -> Intake {
        let frames: Vec<Result<Bytes, std::io::Error>> =
            frames.iter().map(|text| Ok(Bytes::from_static(text.as_bytes()))).collect();
        Intake::new(StreamingBlob::wrap(stream::iter(frames)), expected)
    }

    async fn outcome(intake: Intake) -> (usize, Option<TransferError>) {
        let items: Vec<_> = intake.collect().await;
        let bytes = items.iter().flatten().map(Bytes::len).sum();
        (bytes, items.into_iter().find_map(Result::err))
    }

    #[tokio::test]
    async fn a_body_of_the_announced_length_passes() {
        assert!(matches!(outcome(intake(&["ab", "", "c"], 3)).await, (3, None)));
        assert!(matches!(outcome(intake(&[""], 0)).await, (0, None)));
    }

    #[tokio::test]
    async fn short_and_long_bodies_fail_before_the_last_byte() {
        assert!(matches!(
            outcome(intake(&["ab"], 3)).await,
            (2, Some(TransferError::BodyTooShort { received: 2, expected: 3 }))
        ));
        assert!(matches!(
            outcome(intake(&["ab", "c", "d"], 3)).await,
            (2, Some(TransferError::BodyTooLong { expected: 3 }))
        ));
    }

    /// Goal: a check that fails after the last byte keeps that byte from the node.
    #[tokio::test]
    async fn the_last_frame_waits_for_the_senders_end() {
        let frames = [Ok(Bytes::from_static(b"abc")), Err(std::io::Error::other("bad signature"))];
        let intake = Intake::new(StreamingBlob::wrap(stream::iter(frames)), 3);
        assert!(matches!(outcome(intake).await, (0, Some(TransferError::Body(_)))));
    }

    fn delivery(length: u64, frames: &[&'static str]) -> Delivery {
        let frames: Vec<Result<Bytes, TransferError>> =
            frames.iter().map(|text| Ok(Bytes::from_static(text.as_bytes()))).collect();
        let (_, receipt) = oneshot::channel();
        Delivery { length, body: Box::pin(stream::iter(frames)), receipt }
    }

    #[tokio::test]
    async fn a_delivery_that_falls_short_ends_in_an_error() {
        let whole = Outgoing::new(vec![delivery(3, &["ab", "c"]), delivery(1, &["d"])]);
        let items: Vec<_> = whole.collect().await;
        assert!(items.iter().all(Result::is_ok));

        let short: Vec<_> = Outgoing::new(vec![delivery(3, &["ab"])]).take(2).collect().await;
        assert!(short[1].is_err());
        let long: Vec<_> = Outgoing::new(vec![delivery(1, &["ab"])]).take(1).collect().await;
        assert!(long[0].is_err());
    }
}
