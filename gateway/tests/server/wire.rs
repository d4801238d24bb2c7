//! A client that speaks HTTP byte by byte.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than any limit under test: reaching it fails the test.
const PATIENCE: Duration = Duration::from_secs(20);

/// A response as it came.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// A connection.
pub(crate) struct Wire(pub(crate) TcpStream);

impl Wire {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    pub(crate) async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Sends a GET on a connection that stays open.
    pub(crate) async fn get(&mut self, path: &str) -> Response {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n")).await;
        self.response().await
    }

    /// Reads up to the end of the response's head, and answers it.
    pub(crate) async fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let byte = timeout(PATIENCE, self.0.read_u8()).await.expect("a response in time");
            head.push(byte.unwrap_or_else(|e| panic!("{e} after {head:?}")));
        }
        String::from_utf8(head).unwrap()
    }

    /// Reads a response whose length is announced.
    pub(crate) async fn response(&mut self) -> Response {
        let head = self.head().await;
        let status = head[9..12].parse().unwrap();
        let mut response = Response { status, head, body: Vec::new() };
        let length = response.header("content-length").map_or(0, |l| l.parse().unwrap());
        response.body = vec![0; length];
        timeout(PATIENCE, self.0.read_exact(&mut response.body)).await.unwrap().unwrap();
        response
    }

    /// Waits for the server to close; answers what came before.
    pub(crate) async fn closed(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let end = timeout(PATIENCE, self.0.read_to_end(&mut rest)).await;
        match end.expect("the server closes the connection") {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
        rest
    }
}
