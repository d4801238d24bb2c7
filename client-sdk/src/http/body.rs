//! Request bodies: bytes that are in memory, or are fetched into it piece by piece.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::stream::BoxStream;
use http_body::{Body, Frame, SizeHint};
use keyway_fabric::gpu::GpuError;

/// Pieces handed to the connection at a time: enough for one vectored write, small enough
/// for a progress report that moves.
const FRAME_BYTES: usize = 512 * 1024;

/// Told the bytes of each piece when the connection takes it.
pub(crate) type BodyProgress = Arc<dyn Fn(u64) + Send + Sync>;

/// The body of a request that may be sent several times.
#[derive(Clone)]
pub(crate) enum CallBody {
    /// What it is.
    Bytes(Bytes),
    /// Where it comes from.
    Fetched(Arc<dyn Fetched>),
}

/// Bytes that come from somewhere, as often as they are wanted.
pub(crate) trait Fetched: Send + Sync {
    /// How many they are.
    fn length(&self) -> u64;

    /// All of them, in order.
    fn pieces(&self) -> BoxStream<'static, Result<Bytes, GpuError>>;
}

impl CallBody {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::Fetched(fetched) => fetched.length() == 0,
        }
    }
}

impl Default for CallBody {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl From<Bytes> for CallBody {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

/// A body of known length on its way.
pub(crate) struct RequestBody {
    rest: Bytes,
    /// What comes after the rest, and how many bytes that is.
    later: Option<(BoxStream<'static, Result<Bytes, GpuError>>, u64)>,
    progress: Option<BodyProgress>,
}

impl RequestBody {
    pub(crate) fn new(body: &CallBody, progress: Option<BodyProgress>) -> Self {
        match body {
            CallBody::Bytes(bytes) => Self { rest: bytes.clone(), later: None, progress },
            CallBody::Fetched(fetched) => {
                let later = Some((fetched.pieces(), fetched.length()));
                Self { rest: Bytes::new(), later, progress }
            }
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = GpuError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GpuError>>> {
        while self.rest.is_empty() {
            let Some((pieces, left)) = self.later.as_mut().filter(|(_, left)| *left > 0) else {
                return Poll::Ready(None);
            };
            match ready!(pieces.as_mut().poll_next(cx)) {
                Some(Ok(piece)) => {
                    *left = left.saturating_sub(piece.len() as u64);
                    self.rest = piece;
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let bytes = self.rest.len().min(FRAME_BYTES);
        let piece = self.rest.split_to(bytes);
        if let Some(progress) = &self.progress {
            progress(bytes as u64);
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.size_hint().exact() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        let later = self.later.as_ref().map_or(0, |(_, left)| *left);
        SizeHint::with_exact(self.rest.len() as u64 + later)
    }
}
