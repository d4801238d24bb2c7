//! Large bodies, which are received past hyper: the connection is used again where that is
//! right, and never where it is not.

mod common;

use common::{Reply, Server, pattern};
use keyway_client::{Client, HostBuffer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const ETAG: &str = "\"one\"";

async fn get(client: &Client, bytes: usize) -> Result<Vec<u8>, keyway_client::ClientError> {
    let mut memory = HostBuffer::zeroed(bytes).expect("memory");
    let target = memory.slice_mut(..).expect("free");
    let got = client.get_object("bkt", "k").part_bytes(1 << 30).into(target).await;
    got.map(|got| got.target.to_vec()).map_err(|failed| failed.error)
}

/// Sizes around the bound from which hyper is bypassed, one after the other on one connection,
/// with small and bodiless answers in between.
#[tokio::test]
async fn one_connection_carries_bodies_of_all_sizes() {
    let object = pattern(3_000_001);
    let stored = object.clone();
    let server = Server::start(move |_, seen| {
        let size: usize = seen.target.rsplit('/').next().and_then(|k| k.parse().ok()).unwrap_or(0);
        Reply::object(seen, &stored[..size], ETAG)
    })
    .await;
    let client = server.client();
    for size in [1, 262_143, 262_144, 262_145, 500_000, 0, 1 << 20, 7, 3_000_001, 3_000_000] {
        let mut memory = HostBuffer::zeroed(size).expect("memory");
        let target = memory.slice_mut(..).expect("free");
        let got = client.get_object("bkt", &size.to_string()).into(target).await;
        let got = got.unwrap_or_else(|failed| panic!("{size}: {failed}"));
        assert_eq!(got.target[..], object[..size], "{size}");
        assert!(got.verified.is_whole() && got.retries == 0, "{size}");
        client.head_object("bkt", &size.to_string()).await.expect("there");
    }
    assert_eq!(server.connections(), 1);
}

/// A server that says that it will close, or just does, gets a new connection for the next
/// request; nothing is asked twice.
#[tokio::test]
async fn a_connection_that_ends_is_not_used_again() {
    for says_so in [true, false] {
        let object = pattern(400_000);
        let stored = object.clone();
        let server = Server::start(move |_, seen| {
            let reply = Reply { close: true, ..Reply::object(seen, &stored, ETAG) };
            if says_so { reply.with("Connection", "Close") } else { reply }
        })
        .await;
        let client = server.client();
        for _ in 0..3 {
            assert_eq!(get(&client, 400_000).await.expect("arrives"), object);
        }
        assert_eq!((server.connections(), server.seen().len()), (3, 3));
    }
}

/// Bytes behind the body are nobody's answer.
#[tokio::test]
async fn more_than_was_announced_does_not_reach_the_next_answer() {
    let object = pattern(600_000);
    let stored = object.clone();
    let server = Server::start(move |before, seen| {
        let mut reply = Reply::object(seen, &stored, ETAG);
        if before == 0 {
            reply.body.extend_from_slice(b"HTTP/1.1 200 X\r\nContent-Length: 1\r\n\r\n!");
            reply.understated = reply.body.len() - 600_000;
        }
        reply
    })
    .await;
    let client = server.client();
    assert_eq!(get(&client, 600_000).await.expect("arrives"), object);
    assert_eq!(get(&client, 600_000).await.expect("arrives"), object);
}

/// A body of unknown length goes through hyper, whatever its size.
#[tokio::test]
async fn a_chunked_error_document_is_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let _ = stream.read(&mut [0; 4096]).await;
        let answer = "HTTP/1.1 404 X\r\nTransfer-Encoding: chunked\r\n\r\n\
                      2c\r\n<Error><Code>NoSuchKey</Code><Message>m</Mes\r\n\
                      f\r\nsage></Error>  \r\n0\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.expect("sent");
    });
    let client = Client::builder().endpoint(endpoint).build().expect("a client");
    let error = get(&client, 1 << 20).await.expect_err("refused");
    assert_eq!(error.code(), Some("NoSuchKey"));
}
