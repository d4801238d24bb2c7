//! Objects brought into a Keyway service's memory before they are read.

use std::future::{Future, IntoFuture};
use std::pin::Pin;

use ::http::header::CONTENT_TYPE;
use ::http::{HeaderValue, Method};
use bytes::Bytes;
use keyway_proto::{PrefetchReply, PrefetchRequest};

use crate::error::{ClientError, Malformed};
use crate::http::{Call, Client};

/// Bytes of keys in one request: a service takes documents of 16 KiB.
const KEYS_BYTES_MAX: usize = 12 << 10;

impl Client {
    /// Has objects of a bucket brought into the memory of the nodes that hold them, so that
    /// they are read from there: all of them, unless said. Only Keyway's services can.
    pub fn prefetch(&self, bucket: &str) -> Prefetch {
        Prefetch { client: self.clone(), bucket: bucket.into(), what: What::Prefix(String::new()) }
    }
}

/// A prefetch; await it. It ends when what found room is in memory. Dropping it leaves what has
/// come by then.
#[derive(Debug)]
#[must_use = "a request is sent when it is awaited"]
pub struct Prefetch {
    client: Client,
    bucket: String,
    what: What,
}

#[derive(Debug)]
enum What {
    Prefix(String),
    Keys(Vec<String>),
}

impl Prefetch {
    /// All objects whose key begins with this.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.what = What::Prefix(prefix.into());
        self
    }

    /// These objects, in this order.
    pub fn keys<K: Into<String>>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        self.what = What::Keys(keys.into_iter().map(Into::into).collect());
        self
    }

    async fn send(self) -> Result<PrefetchReply, ClientError> {
        let Self { client, bucket, what } = self;
        let request = |keys, prefix| PrefetchRequest {
            bucket: bucket.clone(),
            keys,
            prefix,
            ..PrefetchRequest::default()
        };
        let requests = match what {
            What::Prefix(prefix) => vec![request(None, Some(prefix))],
            What::Keys(keys) => {
                pages(keys).into_iter().map(|keys| request(Some(keys), None)).collect()
            }
        };
        let mut sum = PrefetchReply::default();
        for mut request in requests {
            // Each call goes some seconds further.
            loop {
                let reply = ask(&client, &request).await?;
                sum.objects += reply.objects;
                sum.missing += reply.missing;
                sum.bytes += reply.bytes;
                sum.resident_bytes += reply.resident_bytes;
                if reply.next.is_none() {
                    break;
                }
                request.from = reply.next;
            }
        }
        Ok(sum)
    }
}

impl IntoFuture for Prefetch {
    type Output = Result<PrefetchReply, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

async fn ask(client: &Client, request: &PrefetchRequest) -> Result<PrefetchReply, ClientError> {
    let mut call = Call::control(Method::POST, "/_keyway/v1/prefetch");
    call.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let body = serde_json::to_vec(request).expect("types of ours have a JSON form");
    call.body = Bytes::from(body).into();
    let (document, _) = client.document(&call).await?;
    let reply = serde_json::from_slice(&document);
    reply.map_err(|error| Malformed::because("a strange answer to a prefetch", error).into())
}

/// Keys in pages that fit a document.
fn pages(keys: Vec<String>) -> Vec<Vec<String>> {
    let mut pages: Vec<Vec<String>> = Vec::new();
    let mut room = 0;
    for key in keys {
        // Quotes, a comma, and what JSON escapes.
        let bytes = serde_json::to_string(&key).map_or(key.len(), |text| text.len()) + 1;
        match pages.last_mut() {
            Some(page) if bytes <= room => {
                room -= bytes;
                page.push(key);
            }
            _ => {
                room = KEYS_BYTES_MAX.saturating_sub(bytes);
                pages.push(vec![key]);
            }
        }
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_fit_a_document() {
        let keys: Vec<String> =
            (0..5000).map(|n| format!("a/\"{n}\"/\u{1}{}", "x".repeat(n % 900))).collect();
        let pages = pages(keys.clone());
        for page in &pages {
            let request = PrefetchRequest { keys: Some(page.clone()), ..Default::default() };
            assert!(serde_json::to_vec(&request).expect("JSON").len() < 14 << 10);
        }
        assert_eq!(pages.concat(), keys);
    }
}
