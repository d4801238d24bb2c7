//! One connection, and what it takes to have its socket to oneself.
//!
//! hyper speaks HTTP over it. A large body needs none of that: its length is known, and read
//! through hyper each byte is copied once more, out of hyper's buffer. So [`detach`] takes the
//! socket out from under hyper when the head of the answer has come; the body is received into
//! the memory that it is for; and the socket goes back under a new hyper, for the next request.
//!
//! [`detach`]: Connection::detach

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::uri::Authority;
use bytes::Bytes;
use hyper::client::conn::http1::{self, Parts, SendRequest};
use hyper::rt::{Read as _, ReadBuf};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::body::RequestBody;
use super::pool::Idle;
use crate::error::ClientError;

/// Bytes that hyper buffers while it reads a body.
const READ_BUFFER_BYTES: usize = 512 * 1024;

/// A connection's bytes, past TLS.
pub(super) type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// A connection that nobody uses.
pub(super) struct Kept {
    pub(super) sender: SendRequest<RequestBody>,
    /// Asks the task that drives hyper for the socket.
    detach: oneshot::Sender<oneshot::Sender<Parts<Stream>>>,
}

impl Kept {
    /// Puts hyper over a stream, and a task of its own under hyper.
    pub(super) async fn over(stream: Stream) -> Result<Self, ClientError> {
        let (sender, mut connection) = http1::Builder::new()
            .max_buf_size(READ_BUFFER_BYTES)
            .handshake::<_, RequestBody>(stream)
            .await
            .map_err(ClientError::Transport)?;
        let (detach, detached) = oneshot::channel::<oneshot::Sender<_>>();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                ended = &mut connection => {
                    // A broken connection shows at the request that uses it.
                    if let Err(error) = ended {
                        tracing::debug!(%error, "connection closed");
                    }
                }
                Ok(wanted) = detached => {
                    // Whoever asked and went away leaves a connection with half an answer on it.
                    let _ = wanted.send(connection.into_parts());
                }
                else => {}
            }
        });
        Ok(Self { sender, detach })
    }
}

/// A connection on loan to one request.
pub(crate) struct Connection {
    pub(super) kept: Kept,
    pub(super) place: Place,
}

/// Where a connection goes when its request is done.
pub(super) struct Place {
    pub(super) authority: Authority,
    pub(super) idle: Arc<Idle>,
    pub(super) permit: OwnedSemaphorePermit,
}

impl Connection {
    /// Gives the connection back after an answer that was read to its end.
    pub(crate) fn release(self) {
        self.place.idle.keep(self.place.authority, self.kept);
    }

    /// The socket, and what hyper has read of it beyond what it gave out; `None` where the
    /// connection has ended meanwhile.
    pub(super) async fn detach(self) -> Option<(Socket, Bytes)> {
        let (reply, parts) = oneshot::channel();
        self.kept.detach.send(reply).ok()?;
        let Parts { io, read_buf, .. } = parts.await.ok()?;
        Some((Socket { stream: io, place: self.place }, read_buf))
    }
}

/// A connection's socket without hyper.
pub(super) struct Socket {
    stream: Stream,
    place: Place,
}

impl Socket {
    /// Receives some bytes; 0 at the stream's end.
    pub(super) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<std::io::Result<usize>> {
        let mut buffer = ReadBuf::new(into);
        match Pin::new(&mut self.stream).poll_read(cx, buffer.unfilled()) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(buffer.filled().len())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Gives the connection back for the next request.
    pub(super) async fn release(self) {
        let Place { authority, idle, permit } = self.place;
        // hyper refuses no stream over HTTP/1.1; if it did, there would be one connection less.
        if let Ok(kept) = Kept::over(self.stream).await {
            idle.keep(authority, kept);
        }
        drop(permit);
    }
}
