//! Whether a body in `aws-chunked` coding came to its own end.
//!
//! The protocol layer takes the end of the connection's bytes for the end of the chunks: a
//! body that was cut between two chunks passes when the declared length is reached, though the
//! last, empty chunk, whose signature vouches for the end, never came. So the framing is
//! followed here, below it.
//!
//! Sketch: frames pass by reference; what is looked at is the size line of each chunk, some 90
//! bytes in 64 KiB; the data is stepped over.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderMap, HeaderName, Request};
use http_body::{Frame, SizeHint};
use s3s::{Body, StdError};

const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");

/// The line break behind a chunk's data.
const BREAK_BYTES: u64 = 2;

/// Has the body of `request` fail unless its chunks end as they must; other bodies pass
/// untouched.
pub(super) fn watch(request: Request<Body>) -> Request<Body> {
    if !is_chunked(request.headers()) {
        return request;
    }
    request.map(|body| Body::http_body_unsync(ChunkedBody { body, at: Position::START }))
}

fn is_chunked(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_SHA256).is_some_and(|value| value.as_bytes().starts_with(b"STREAMING-"))
}

/// The last chunk is missing.
#[derive(Debug, thiserror::Error)]
#[error("the body ended before its last chunk")]
struct Incomplete;

/// Where in the framing the next byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// Among the digits of a chunk's size.
    Size { value: u64, digits: u8 },
    /// Behind them, before the line's end.
    Line { size: u64 },
    /// Within data and the line break behind it.
    Data { left: u64 },
    /// Behind the line of the empty chunk: what follows are trailers.
    Last,
    /// Where no chunk is. The protocol layer has its own answer to that.
    Lost,
}

impl Position {
    const START: Self = Self::Size { value: 0, digits: 0 };

    fn advance(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            match *self {
                Self::Last | Self::Lost => return,
                Self::Data { left } => {
                    let step = left.min(bytes.len() as u64);
                    bytes = &bytes[step as usize..];
                    let left = left - step;
                    *self = if left == 0 { Self::START } else { Self::Data { left } };
                    continue;
                }
                Self::Size { value, digits } => *self = size(value, digits, *first),
                Self::Line { size: 0 } if *first == b'\n' => *self = Self::Last,
                Self::Line { size } if *first == b'\n' => {
                    *self = Self::Data { left: size.saturating_add(BREAK_BYTES) };
                }
                Self::Line { .. } => {}
            }
            bytes = rest;
        }
    }
}

fn size(value: u64, digits: u8, byte: u8) -> Position {
    match (byte as char).to_digit(16) {
        // A size that overflows is one that no body reaches.
        Some(digit) => Position::Size {
            value: value.saturating_mul(16).saturating_add(u64::from(digit)),
            digits: digits.saturating_add(1),
        },
        None if digits > 0 && matches!(byte, b';' | b'\r') => Position::Line { size: value },
        None => Position::Lost,
    }
}

/// A chunked body on its way in.
struct ChunkedBody {
    body: Body,
    at: Position,
}

impl http_body::Body for ChunkedBody {
    type Data = bytes::Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<bytes::Bytes>, StdError>>> {
        let polled = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &polled {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.at.advance(data);
                }
            }
            Some(Err(_)) => {}
            None if self.at == Position::Last => {}
            None => {
                // Once: whoever asks again is told the plain end.
                self.at = Position::Last;
                return Poll::Ready(Some(Err(Box::new(Incomplete))));
            }
        }
        Poll::Ready(polled)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }

    fn is_end_stream(&self) -> bool {
        self.at == Position::Last && self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end_of(body: &[u8], step: usize) -> Position {
        let mut at = Position::START;
        body.chunks(step).for_each(|part| at.advance(part));
        at
    }

    /// Goal: the end is found wherever the frames are cut, and only the true one.
    #[test]
    fn only_the_empty_chunk_ends_a_body() {
        let signed = b"5;chunk-signature=aa\r\n0\r\n\r\n\r\n0;chunk-signature=bb\r\n\r\n";
        let unsigned = b"A\r\n0\r\n\r\n0\r\n\r\n\r\n0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n";
        for step in [1, 2, 3, 7, 100] {
            assert_eq!(end_of(signed, step), Position::Last);
            assert_eq!(end_of(unsigned, step), Position::Last);
            let cut = signed.windows(2).rposition(|pair| pair == b"0;").expect("it is there");
            for length in 0..=cut + 20 {
                assert_ne!(end_of(&signed[..length], step), Position::Last, "{length}");
            }
        }
    }

    #[test]
    fn what_is_no_chunk_has_no_end() {
        for body in [&b""[..], b"\r\n", b";", b"zz\r\n", b" 0\r\n", b"0\n\n", b"5\r\nhello"] {
            assert_ne!(end_of(body, 1), Position::Last, "{body:?}");
        }
        assert!(matches!(end_of(b"fffffffffffffffff\r\nx", 1), Position::Data { .. }));
    }
}
