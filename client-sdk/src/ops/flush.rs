//! Waiting until what was written to a Keyway service's memory is on its devices.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use ::http::header::CONTENT_TYPE;
use ::http::{HeaderValue, Method};
use bytes::Bytes;
use keyway_proto::{FlushReply, FlushRequest};

use crate::error::{ClientError, Malformed};
use crate::http::{Call, Client};

impl Client {
    /// Waits until all objects that were written with
    /// [`Durability::Memory`](keyway_proto::Durability) are durable: all of the caller's,
    /// unless said. Only Keyway's services have any.
    pub fn flush(&self) -> Flush {
        Flush { client: self.clone(), request: FlushRequest::default(), deadline: None }
    }
}

/// A wait for durability; await it. It tells how many objects became durable with it, and how
/// many were lost before they could.
#[derive(Debug)]
#[must_use = "a request is sent when it is awaited"]
pub struct Flush {
    client: Client,
    request: FlushRequest,
    deadline: Option<Duration>,
}

impl Flush {
    /// The objects of this bucket alone.
    pub fn bucket(mut self, bucket: impl Into<String>) -> Self {
        self.request.bucket = Some(bucket.into());
        self
    }

    /// This object alone.
    pub fn object(mut self, bucket: impl Into<String>, key: impl Into<String>) -> Self {
        self.request = FlushRequest { bucket: Some(bucket.into()), key: Some(key.into()) };
        self
    }

    /// Gives up after this long. What is under way goes on.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.deadline = Some(after);
        self
    }

    async fn send(self) -> Result<FlushReply, ClientError> {
        let Self { client, request, deadline } = self;
        let flushed = flushed(&client, &request);
        match deadline {
            None => flushed.await,
            Some(after) => {
                tokio::time::timeout(after, flushed).await.unwrap_or(Err(ClientError::Deadline))
            }
        }
    }
}

impl IntoFuture for Flush {
    type Output = Result<FlushReply, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// Asks until nothing is pending: each call waits some seconds at the service.
async fn flushed(client: &Client, request: &FlushRequest) -> Result<FlushReply, ClientError> {
    let mut sum = FlushReply::default();
    loop {
        let reply = ask(client, request).await?;
        sum.settled += reply.settled;
        sum.lost += reply.lost;
        if reply.pending == 0 {
            return Ok(sum);
        }
    }
}

async fn ask(client: &Client, request: &FlushRequest) -> Result<FlushReply, ClientError> {
    let mut call = Call::control(Method::POST, "/_keyway/v1/flush");
    call.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let body = serde_json::to_vec(request).expect("types of ours have a JSON form");
    call.body = Bytes::from(body).into();
    let (document, _) = client.document(&call).await?;
    let reply = serde_json::from_slice(&document);
    reply.map_err(|error| Malformed::because("a strange answer to a flush", error).into())
}
