//! Request bodies: bytes that are already in memory.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// Pieces handed to the connection at a time: enough for one vectored write, small enough
/// for a progress report that moves.
const FRAME_BYTES: usize = 512 * 1024;

/// Told the bytes of each piece when the connection takes it.
pub(crate) type BodyProgress = Arc<dyn Fn(u64) + Send + Sync>;

/// A body of known length.
pub(crate) struct RequestBody {
    rest: Bytes,
    progress: Option<BodyProgress>,
}

impl RequestBody {
    pub(crate) fn new(bytes: Bytes, progress: Option<BodyProgress>) -> Self {
        Self { rest: bytes, progress }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let bytes = self.rest.len().min(FRAME_BYTES);
        let piece = self.rest.split_to(bytes);
        if let Some(progress) = &self.progress {
            progress(bytes as u64);
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
