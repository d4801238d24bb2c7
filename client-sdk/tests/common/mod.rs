//! A server that answers as a test tells it, down to the byte after which it hangs up.

#![allow(dead_code, reason = "each suite uses a part of it")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keyway_client::{Client, ClientBuilder, Credentials, RetryPolicy};
use keyway_proto::{Checksum, ChecksumKind};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    pub(crate) fn is(&self, method: &str, part_of_target: &str) -> bool {
        self.method == method && self.target.contains(part_of_target)
    }

    /// First byte and the byte after the last that a `Range` header asks for.
    pub(crate) fn range(&self) -> Option<(usize, usize)> {
        let (first, last) = self.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse::<usize>().ok()? + 1))
    }
}

/// What a test answers.
#[derive(Clone, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// Hang up after so many bytes of the body.
    pub(crate) cut_after: Option<usize>,
    /// Hang up after the answer without having said so.
    pub(crate) close: bool,
    /// Say that so many bytes fewer come than do.
    pub(crate) understated: usize,
    /// Never answer.
    pub(crate) hang: bool,
}

impl Reply {
    pub(crate) fn new(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn cut_after(mut self, bytes: usize) -> Self {
        self.cut_after = Some(bytes);
        self
    }

    pub(crate) fn error(status: u16, code: &str) -> Self {
        Self::new(status).body(format!(
            "<Error><Code>{code}</Code><Message>m</Message><RequestId>r1</RequestId></Error>"
        ))
    }

    /// An honest answer to a GET or HEAD of `object`.
    pub(crate) fn object(seen: &Seen, object: &[u8], etag: &str) -> Self {
        let sum = Checksum::of(ChecksumKind::Crc64Nvme, object).to_base64();
        let reply = |status| Self::new(status).with("ETag", etag);
        match seen.range() {
            Some((_, end)) if end > object.len() => Self::error(416, "InvalidRange"),
            Some((start, end)) => reply(206)
                .with("Content-Range", format!("bytes {start}-{}/{}", end - 1, object.len()))
                .body(&object[start..end]),
            None => reply(200)
                .with("x-amz-checksum-crc64nvme", sum)
                .with("x-amz-checksum-type", "FULL_OBJECT")
                .body(object),
        }
    }
}

/// The server and what it has seen.
pub(crate) struct Server {
    pub(crate) endpoint: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// Answers every request with what `answer` says; it is told how many came before.
    pub(crate) async fn start(
        answer: impl Fn(usize, &Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let answer = Arc::new(answer);
        let record = Arc::clone(&seen);
        let connections: Arc<AtomicUsize> = Arc::default();
        let accepted = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(stream, Arc::clone(&answer), Arc::clone(&record)));
            }
        });
        Self { endpoint, seen, connections }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no panic while held").clone()
    }

    /// Connections accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn builder(&self) -> ClientBuilder {
        Client::builder()
            .endpoint(&self.endpoint)
            .credentials(Credentials::new("id", "secret"))
            .retry(RetryPolicy {
                attempts_max: 4,
                backoff_base: Duration::from_millis(1),
                backoff_max: Duration::from_millis(2),
            })
    }

    pub(crate) fn client(&self) -> Client {
        self.builder().build().expect("a client")
    }
}

async fn serve(
    stream: TcpStream,
    answer: Arc<impl Fn(usize, &Seen) -> Reply>,
    record: Arc<Mutex<Vec<Seen>>>,
) {
    let mut stream = BufReader::new(stream);
    while let Some(seen) = read(&mut stream).await {
        let before = {
            let mut record = record.lock().expect("no panic while held");
            record.push(seen.clone());
            record.len() - 1
        };
        let reply = answer(before, &seen);
        if reply.hang {
            return std::future::pending().await;
        }
        let length = reply.body.len() - reply.understated;
        let mut head = format!("HTTP/1.1 {} X\r\nContent-Length: {length}\r\n", reply.status);
        for (name, value) in &reply.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let body = match seen.method.as_str() {
            "HEAD" => &[][..],
            _ => &reply.body[..reply.cut_after.unwrap_or(reply.body.len())],
        };
        let sent = async {
            stream.get_mut().write_all(head.as_bytes()).await?;
            stream.get_mut().write_all(body).await?;
            stream.get_mut().flush().await
        };
        if sent.await.is_err() || reply.cut_after.is_some() || reply.close {
            let _ = stream.get_mut().shutdown().await;
            return;
        }
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Seen> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|bytes| *bytes > 0)?;
    let mut words = line.split_whitespace().map(ToOwned::to_owned);
    let (method, target) = (words.next()?, words.next()?);
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(0, |text| text.parse().unwrap_or(0));
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Seen { method, target, headers, body })
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(bytes as u64);
    std::iter::repeat_with(|| random.u8(..)).take(bytes).collect()
}
