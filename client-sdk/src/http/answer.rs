//! Answers, read piece by piece.

use std::time::Duration;

use ::http::{HeaderMap, Method, Response, StatusCode};
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::bulk::{self, Bulk};
use super::connection::Connection;
use crate::error::{ClientError, Malformed, ServiceError};
use crate::xml;

/// The longest document that is read into memory: a page of 1,000 keys of 1,024 bytes, each
/// byte written as a reference, with room to spare.
const DOCUMENT_BYTES_MAX: usize = 16 << 20;
/// The longest error document.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// An answer whose body may still be on its way.
pub(crate) struct Answer {
    head: ::http::response::Parts,
    body: Incoming,
    connection: Option<Connection>,
    stall_timeout: Duration,
    /// Whether [`read`](Self::read) was called.
    is_begun: bool,
    bulk: Option<Bulk>,
    /// What is left of a piece that did not fit where it was read to.
    rest: Bytes,
}

impl Answer {
    pub(crate) fn new(
        response: Response<Incoming>,
        connection: Connection,
        stall_timeout: Duration,
    ) -> Self {
        let (head, body) = response.into_parts();
        let mut answer = Self {
            head,
            body,
            connection: Some(connection),
            stall_timeout,
            is_begun: false,
            bulk: None,
            rest: Bytes::new(),
        };
        if answer.body.is_end_stream() {
            answer.release();
        }
        answer
    }

    /// The answer itself if it is one of success.
    ///
    /// # Errors
    /// What a refusing answer means.
    pub(crate) async fn successful(mut self, method: &Method) -> Result<Self, ClientError> {
        if self.status().is_success() { Ok(self) } else { Err(self.read_error(method).await) }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.head.status
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// A header that is text.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }

    /// The next piece of the body; `None` at its end, when the connection goes back to the
    /// pool. Dropping the answer earlier closes the connection.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            let frame = timeout(self.stall_timeout, self.body.frame()).await;
            match frame.map_err(|_| ClientError::Stalled(self.stall_timeout))? {
                Some(Ok(frame)) => {
                    // Trailers carry nothing that is asked for.
                    if let Ok(bytes) = frame.into_data() {
                        if self.body.is_end_stream() {
                            self.release();
                        }
                        return Ok(Some(bytes));
                    }
                }
                Some(Err(error)) => return Err(ClientError::Transport(error)),
                None => {
                    self.release();
                    return Ok(None);
                }
            }
        }
    }

    /// Reads the next bytes of the body to where they are wanted; 0 at its end, or where it
    /// breaks. Not to be mixed with [`chunk`](Self::chunk).
    pub(crate) async fn read(&mut self, into: &mut [u8]) -> Result<usize, ClientError> {
        if !std::mem::replace(&mut self.is_begun, true) {
            Box::pin(self.begin()).await;
        }
        if let Some(bulk) = &mut self.bulk {
            let read = timeout(self.stall_timeout, bulk.read(into)).await;
            let read = read.map_err(|_| ClientError::Stalled(self.stall_timeout))?;
            return read.map_err(ClientError::Socket);
        }
        while self.rest.is_empty() {
            match self.chunk().await? {
                Some(piece) => self.rest = piece,
                None => return Ok(0),
            }
        }
        let bytes = self.rest.len().min(into.len());
        into[..bytes].copy_from_slice(&self.rest.split_to(bytes));
        Ok(bytes)
    }

    /// Has the socket to itself where the body is large.
    async fn begin(&mut self) {
        let Some(bulk) = bulk::length(&self.head).filter(|_| !self.body.is_end_stream()) else {
            return;
        };
        if let Some(connection) = self.connection.take() {
            self.bulk = Bulk::take(connection, &mut self.body, bulk).await;
        }
    }

    /// The whole body of an answer that is a document.
    pub(crate) async fn document(mut self) -> Result<Bytes, ClientError> {
        let mut whole = BytesMut::new();
        while let Some(piece) = self.chunk().await? {
            if whole.len() + piece.len() > DOCUMENT_BYTES_MAX {
                return Err(Malformed::new("a document without end").into());
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }

    /// The error that a refusing answer means. What cannot be read is left out: the status
    /// says enough.
    pub(crate) async fn read_error(&mut self, method: &Method) -> ClientError {
        let mut text = BytesMut::new();
        if method != Method::HEAD {
            while let Ok(Some(piece)) = self.chunk().await {
                text.extend_from_slice(&piece);
                if text.len() > ERROR_BYTES_MAX {
                    break;
                }
            }
        }
        let status = self.status();
        let said = xml::parse::<xml::ErrorDocument>(&text).ok();
        let said = said.map(|e| (e.code, e.message, e.request_id));
        let (code, message, request_id) = said.or_else(|| json_error(&text)).unwrap_or_default();
        let in_words = || status.canonical_reason().unwrap_or("unknown status").to_owned();
        ClientError::Service(Box::new(ServiceError {
            status,
            code: if code.is_empty() { in_words() } else { code },
            message,
            request_id: request_id.or_else(|| self.text("x-amz-request-id").map(ToOwned::to_owned)),
        }))
    }

    fn release(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.release();
        }
    }
}

/// The code and the message of an error of the administration.
fn json_error(text: &[u8]) -> Option<(String, String, Option<String>)> {
    let document: serde_json::Value = serde_json::from_slice(text).ok()?;
    let word = |name: &str| document["error"][name].as_str().map(str::to_owned);
    Some((word("code")?, word("message").unwrap_or_default(), None))
}
