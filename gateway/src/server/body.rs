//! Bodies on their way through the server: the request's under a clock, the response's
//! counted to its end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::exchange::{Exchange, RequestInfo};
use super::guard::{LazyTimer, Progress};

/// Why a request's body broke off.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestBodyError {
    /// The client went away or broke the protocol.
    #[error("the request's body broke off")]
    Connection(#[source] hyper::Error),
    /// The client did not send enough in its time.
    #[error("the request's body stalled")]
    Stalled,
}

/// A request's body whose sender must keep it moving. Dropped before its end, it leaves the
/// rest to the exchange.
pub(super) struct RequestBody {
    /// None once it ended or broke off.
    inner: Option<Incoming>,
    info: RequestInfo,
    progress: Progress,
    timer: LazyTimer,
}

impl RequestBody {
    pub(super) fn new(inner: Incoming, info: RequestInfo, progress: Progress) -> Self {
        Self { inner: Some(inner), info, progress, timer: LazyTimer::default() }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(rest) = self.inner.take().filter(|inner| !inner.is_end_stream()) {
            self.info.leave_unread(rest);
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let this = self.get_mut();
        let Some(inner) = &mut this.inner else { return Poll::Ready(None) };
        match Pin::new(inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                this.progress.advance(bytes);
                this.info.add_received(bytes);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                this.inner = None;
                Poll::Ready(Some(Err(RequestBodyError::Connection(error))))
            }
            Poll::Ready(None) => {
                this.inner = None;
                Poll::Ready(None)
            }
            Poll::Pending => match this.progress.wait() {
                Some(left) => {
                    this.timer.arm(left, cx);
                    Poll::Pending
                }
                None => {
                    this.info.set_stalled();
                    Poll::Ready(Some(Err(RequestBodyError::Stalled)))
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

/// Reads what a handler left of a request's body and forgets it. Answers whether its end
/// came within `limit`.
pub(super) async fn drained(mut rest: Incoming, limit: Duration) -> bool {
    let end = async {
        while let Some(frame) = rest.frame().await {
            if frame.is_err() {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(limit, end).await.unwrap_or(false)
}

/// A response's body broke off.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResponseBodyError {
    /// Its source failed.
    #[error("the response's body broke off")]
    Source(#[source] axum::Error),
    /// Its source panicked.
    #[error("the response's body panicked")]
    Panicked,
}

/// A response's body that is the exchange's end when dropped.
pub(super) struct ResponseBody {
    inner: axum::body::Body,
    exchange: Exchange,
}

impl ResponseBody {
    pub(super) fn new(inner: axum::body::Body, exchange: Exchange) -> Self {
        Self { inner, exchange }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = ResponseBodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        let this = self.get_mut();
        let inner = Pin::new(&mut this.inner);
        // A panic here would take the whole connection along, which under HTTP/2 carries
        // other requests too.
        let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| inner.poll_frame(cx))) else {
            this.inner = axum::body::Body::empty();
            this.exchange.panicked();
            this.exchange.broke_off();
            return Poll::Ready(Some(Err(ResponseBodyError::Panicked)));
        };
        Poll::Ready(match ready!(outcome) {
            Some(Ok(frame)) => {
                this.exchange.add_sent(frame.data_ref().map_or(0, Buf::remaining));
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                this.exchange.broke_off();
                Some(Err(ResponseBodyError::Source(error)))
            }
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
