//! A large body, received straight into the memory that it is for.
//!
//! Sketch, per piece: one `recv` that copies from the socket's buffer to where the bytes are
//! wanted. What hyper had read along with the head, some 8 KiB, is copied once more.

use std::future::poll_fn;

use ::http::{HeaderMap, Version, header, response};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::connection::{Connection, Socket};

/// Bodies from here on are worth the two changes of hands.
const BULK_BYTES_MIN: u64 = 256 * 1024;

/// The rest of a body of known length.
pub(super) struct Bulk {
    socket: Option<Socket>,
    /// What was read before.
    ahead: Vec<Bytes>,
    /// Bytes that are still to come from the socket.
    left: u64,
    /// Whether the connection can be used again.
    reusable: bool,
}

/// The length of a body that is worth it, and whether another request may follow it.
pub(super) fn length(head: &response::Parts) -> Option<(u64, bool)> {
    let headers = &head.headers;
    if head.version != Version::HTTP_11 || headers.contains_key(header::TRANSFER_ENCODING) {
        return None;
    }
    let length = headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()?;
    (length >= BULK_BYTES_MIN).then(|| (length, !closes(headers)))
}

fn closes(headers: &HeaderMap) -> bool {
    let options = headers.get_all(header::CONNECTION).iter().filter_map(|v| v.to_str().ok());
    options.flat_map(|v| v.split(',')).any(|v| v.trim().eq_ignore_ascii_case("close"))
}

impl Bulk {
    /// Takes over a body of which nothing was read; `None` where the connection has ended, so
    /// that nothing changes for whoever reads `body`.
    pub(super) async fn take(
        connection: Connection,
        body: &mut Incoming,
        (length, reusable): (u64, bool),
    ) -> Option<Self> {
        let (socket, read_ahead) = connection.detach().await?;
        let mut ahead = Vec::new();
        // The rest of hyper gives out what it had given to the body; then it says that the body
        // is incomplete, which it is for hyper.
        while let Some(Ok(frame)) = body.frame().await {
            ahead.extend(frame.into_data().ok());
        }
        ahead.push(read_ahead);
        let before: u64 = ahead.iter().map(|piece| piece.len() as u64).sum();
        let mut bulk = Self { socket: Some(socket), ahead, left: 0, reusable };
        match length.checked_sub(before) {
            Some(left) => bulk.left = left,
            None => bulk.cut(length),
        }
        bulk.ahead.retain(|piece| !piece.is_empty());
        bulk.ahead.reverse();
        Some(bulk)
    }

    /// There came more than the body: nobody asked for it, so the connection is no good.
    fn cut(&mut self, mut length: u64) {
        self.reusable = false;
        for piece in &mut self.ahead {
            piece.truncate(length.try_into().unwrap_or(usize::MAX));
            length -= piece.len() as u64;
        }
    }

    /// The next bytes; 0 when no more will come.
    pub(super) async fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let bytes = match self.ahead.last_mut() {
            Some(piece) => {
                let bytes = piece.len().min(into.len());
                into[..bytes].copy_from_slice(&piece.split_to(bytes));
                if piece.is_empty() {
                    self.ahead.pop();
                }
                bytes
            }
            None => self.receive(into).await?,
        };
        if self.ahead.is_empty()
            && self.left == 0
            && self.reusable
            && let Some(socket) = self.socket.take()
        {
            Box::pin(socket.release()).await;
        }
        Ok(bytes)
    }

    async fn receive(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let room = into.len().min(self.left.try_into().unwrap_or(usize::MAX));
        let Some(socket) = self.socket.as_mut().filter(|_| room > 0) else { return Ok(0) };
        let bytes = poll_fn(|cx| socket.poll_receive(cx, &mut into[..room])).await?;
        self.left -= bytes as u64;
        Ok(bytes)
    }
}
