//! Bodies in `aws-chunked` coding that end too soon.

use http_body_util::Full;
use keyway_auth::sigv4::Payload;

use crate::fixture::{Reply, Server};
use crate::signing::{chunk, sign_only};

async fn put(server: &Server, trailer: &str, wire: &str) -> Reply {
    server
        .put("/bucket/k")
        .header("content-encoding", "aws-chunked")
        .header("x-amz-decoded-content-length", "5")
        .header("x-amz-trailer", trailer)
        .payload(Payload::StreamingUnsignedTrailer)
        .body(wire.to_owned())
        .send()
        .await
}

/// Goal: the declared length alone does not end a body; its last chunk does.
#[tokio::test]
async fn a_body_without_its_last_chunk_is_incomplete() {
    let server = Server::with_bucket().await;
    let before = server.chunks().await;
    for trailer in ["", "x-amz-checksum-crc32"] {
        for wire in ["5\r\nhello\r\n", "5\r\nhello\r\n0", "5\r\nhello\r\n0\r", "5\r\nhello\r\n00"] {
            put(&server, trailer, wire).await.refused(400, "IncompleteBody");
        }
    }
    server.get("/bucket/k").send().await.refused(404, "NoSuchKey");
    assert_eq!(server.chunks().await, before, "a refused body left a chunk");
    put(&server, "", "5\r\nhello\r\n0\r\n\r\n").await.expect(200);
    assert_eq!(server.get("/bucket/k").send().await.expect(200).text(), "hello");
}

/// Goal: as above, where every chunk that did come is signed. Method: the body as it should
/// be, cut at every byte from the end of the data on.
#[tokio::test]
async fn signed_chunks_without_the_last_are_incomplete() {
    let server = Server::with_bucket().await;
    let put = async |cut: Option<usize>| {
        let mut request = server
            .put("/bucket/k")
            .header("content-encoding", "aws-chunked")
            .header("x-amz-decoded-content-length", "10")
            .request();
        let mode = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
        request.headers_mut().insert("x-amz-content-sha256", mode.parse().unwrap());
        let names = [
            "content-encoding",
            "host",
            "x-amz-content-sha256",
            "x-amz-date",
            "x-amz-decoded-content-length",
        ];
        let seed = sign_only(&mut request, &names, s3s_sigv4::Payload::MultipleChunks);
        let date = request.headers()["x-amz-date"].to_str().unwrap().to_owned();
        let (first, signature) = chunk(&date, &seed, "hello");
        let (second, signature) = chunk(&date, &signature, "world");
        let (last, _) = chunk(&date, &signature, "");
        let mut wire = first + &second;
        wire.push_str(&last[..cut.unwrap_or(last.len())]);
        *request.body_mut() = Full::new(wire.into());
        server.send(request).await
    };
    // Up to the line break behind the last chunk's signature.
    for cut in 0..=83 {
        put(Some(cut)).await.refused(400, "IncompleteBody");
    }
    server.get("/bucket/k").send().await.refused(404, "NoSuchKey");
    put(None).await.expect(200);
    assert_eq!(server.get("/bucket/k").send().await.expect(200).text(), "helloworld");
}
