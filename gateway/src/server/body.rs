//! Bodies on their way through the server: the request's under a clock, the response's
//! counted to its end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
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

/// A request's body whose sender must keep it moving.
pub(super) struct RequestBody {
    inner: Incoming,
    info: RequestInfo,
    progress: Progress,
    timer: LazyTimer,
}

impl RequestBody {
    pub(super) fn new(inner: Incoming, info: RequestInfo, progress: Progress) -> Self {
        Self { inner, info, progress, timer: LazyTimer::default() }
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
        match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                this.progress.advance(bytes);
                this.info.add_received(bytes);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                Poll::Ready(Some(Err(RequestBodyError::Connection(error))))
            }
            Poll::Ready(None) => Poll::Ready(None),
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
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
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
