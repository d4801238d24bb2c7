//! Bodies in `aws-chunked` coding, with and without signatures and trailers.

use keyway_integration_tests::sigv4::{STREAMING, STREAMING_TRAILER, Signer, UNSIGNED_TRAILER};
use keyway_integration_tests::wire::Request;

use super::case::{Case, Expect, Step, World, refused, scripted};

/// CRC32 of `hello`, in base64.
const HELLO_CRC32: &str = "NhCmhg==";

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = signed_chunks();
    cases.extend(unsigned_framing());
    cases.extend(trailers());
    cases.extend(decoded_length());
    cases
}

/// A request that announces chunks, signed; with the seed of the chunks' signatures.
fn announced(world: &World, payload: &str, decoded: &str) -> (Request, Signer, String) {
    let mut request = world
        .object("PUT", "chunked")
        .header("content-encoding", "aws-chunked")
        .header("x-amz-decoded-content-length", decoded);
    if payload.ends_with("-TRAILER") {
        request = request.header("x-amz-trailer", "x-amz-checksum-crc32");
    }
    let signer = world.signer();
    let seed = signer.sign_payload(&mut request, payload);
    (request, signer, seed)
}

/// Signed chunks of `parts` and the last, empty one.
fn chunks(signer: &Signer, seed: &str, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut previous = seed.to_owned();
    for part in parts.iter().chain([&&b""[..]]) {
        previous = signer.chunk_signature(&previous, part);
        bytes.extend_from_slice(
            format!("{:x};chunk-signature={previous}\r\n", part.len()).as_bytes(),
        );
        bytes.extend_from_slice(part);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn signed_chunks() -> Vec<Case> {
    type Edit = fn(&[u8]) -> Vec<u8>;
    let edits: [(&str, Edit, u16, &'static str); 9] = [
        (
            "first signature wrong",
            |b| edit(b, "chunk-signature=", 16),
            403,
            "SignatureDoesNotMatch",
        ),
        ("data changed", |b| swap(b, "hello", "hellO"), 403, "SignatureDoesNotMatch"),
        ("no signature", |b| swap(b, ";chunk-signature=", ";chunk-sig="), 400, "IncompleteBody"),
        ("size in words", |b| swap(b, "5;", "five;"), 400, "IncompleteBody"),
        ("size negative", |b| swap(b, "5;", "-5;"), 400, "IncompleteBody"),
        ("size beyond 64 bits", |b| swap(b, "5;", "fffffffffffffffff;"), 400, "EntityTooLarge"),
        ("a chunk of 8 EiB", |b| swap(b, "5;", "7fffffffffffffff;"), 400, "EntityTooLarge"),
        ("no line break after data", |b| swap(b, "hello\r\n", "hello"), 400, "IncompleteBody"),
        ("chunks exchanged", exchange, 403, "SignatureDoesNotMatch"),
    ];
    let mut cases: Vec<Case> = edits
        .into_iter()
        .map(|(name, edit, status, code)| {
            refused(format!("chunks: {name}"), status, code, move |world| {
                let (request, signer, seed) = announced(world, STREAMING, "10");
                request.body(edit(&chunks(&signer, &seed, &[b"hello", b"world"])))
            })
        })
        .collect();
    cases.push(scripted("chunks: a header line of 1 MiB", Expect::RefusedOrClosed, |world| {
        let (request, ..) = announced(world, STREAMING, "5");
        vec![Step::Send(request.body("5".repeat(1 << 20)).bytes())]
    }));
    cases.push(refused("chunks: the last one is missing", 400, "IncompleteBody", |world| {
        let (request, signer, seed) = announced(world, STREAMING, "10");
        let bytes = chunks(&signer, &seed, &[b"hello", b"world"]);
        let end = find(&bytes, "0;chunk-signature");
        request.body(&bytes[..end])
    }));
    cases.push(refused("chunks: signed with another key", 403, "SignatureDoesNotMatch", |world| {
        let (request, mut signer, seed) = announced(world, STREAMING, "5");
        signer.credentials.secret_key.push('x');
        request.body(chunks(&signer, &seed, &[b"hello"]))
    }));
    cases.push(refused("chunks: last signature wrong", 403, "SignatureDoesNotMatch", |world| {
        let (request, signer, seed) = announced(world, STREAMING, "5");
        let mut bytes = chunks(&signer, &seed, &[b"hello"]);
        let last = bytes.len() - 5;
        bytes[last] = if bytes[last] == b'0' { b'1' } else { b'0' };
        request.body(bytes)
    }));
    cases.push(refused("chunks: plain bytes instead", 400, "IncompleteBody", |world| {
        let (request, ..) = announced(world, STREAMING, "5");
        request.body("hello")
    }));
    cases.push(refused("chunks: an empty body", 400, "IncompleteBody", |world| {
        announced(world, STREAMING, "5").0
    }));
    cases
}

fn unsigned_framing() -> Vec<Case> {
    let bodies: [(&str, &str, &'static str); 8] = [
        (
            "size in words",
            "five\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n",
            "IncompleteBody",
        ),
        ("size empty", "\r\nhello\r\n0\r\n\r\n", "IncompleteBody"),
        ("size with spaces", " 5 \r\nhello\r\n0\r\n\r\n", "IncompleteBody"),
        ("bare line feeds", "5\nhello\n0\n\n", "IncompleteBody"),
        ("more data than size", "4\r\nhello\r\n0\r\n\r\n", "IncompleteBody"),
        ("less data than size", "6\r\nhello\r\n0\r\n\r\n", "IncompleteBody"),
        ("a chunk of 4 GiB", "100000000\r\nhello\r\n0\r\n\r\n", "IncompleteBody"),
        ("no last chunk", "5\r\nhello\r\n", "IncompleteBody"),
    ];
    bodies
        .into_iter()
        .map(|(name, body, code)| {
            refused(format!("unsigned chunks: {name}"), 400, code, move |world| {
                announced(world, UNSIGNED_TRAILER, "5").0.body(body)
            })
        })
        .collect()
}

fn trailers() -> Vec<Case> {
    let unsigned: [(&str, String, &'static str); 7] = [
        ("wrong checksum", "x-amz-checksum-crc32:AAAAAA==\r\n".to_owned(), "BadDigest"),
        ("checksum too short", "x-amz-checksum-crc32:AAAA\r\n".to_owned(), "InvalidRequest"),
        ("checksum not base64", "x-amz-checksum-crc32:????\r\n".to_owned(), "InvalidRequest"),
        ("announced and absent", String::new(), "MalformedTrailerError"),
        (
            "another than announced",
            "x-amz-checksum-sha1:AAAA\r\n".to_owned(),
            "MalformedTrailerError",
        ),
        ("no colon", "x-amz-checksum-crc32\r\n".to_owned(), "IncompleteBody"),
        (
            "a megabyte",
            format!("x-amz-checksum-crc32:{}\r\n", "A".repeat(1 << 20)),
            "IncompleteBody",
        ),
    ];
    let mut cases: Vec<Case> = unsigned
        .into_iter()
        .map(|(name, lines, code)| {
            refused(format!("trailer: {name}"), 400, code, move |world| {
                let body = format!("5\r\nhello\r\n0\r\n{lines}\r\n");
                announced(world, UNSIGNED_TRAILER, "5").0.body(body)
            })
        })
        .collect();
    for (name, corrupt, code) in [
        ("signed, checksum wrong", "AAAAAA==", "BadDigest"),
        ("signed, without its signature", "", "IncompleteBody"),
    ] {
        cases.push(refused(format!("trailer: {name}"), 400, code, move |world| {
            let checksum = if corrupt.is_empty() { HELLO_CRC32 } else { corrupt };
            signed_trailer(world, checksum, !corrupt.is_empty(), false)
        }));
    }
    cases.push(refused("trailer: signature wrong", 403, "SignatureDoesNotMatch", |world| {
        signed_trailer(world, HELLO_CRC32, true, true)
    }));
    cases
}

fn signed_trailer(world: &World, checksum: &str, with_signature: bool, corrupt: bool) -> Request {
    let (request, signer, seed) = announced(world, STREAMING_TRAILER, "5");
    let mut body = chunks(&signer, &seed, &[b"hello"]);
    body.truncate(body.len() - 2);
    let first = signer.chunk_signature(&seed, b"hello");
    let last = signer.chunk_signature(&first, b"");
    let mut signature =
        signer.trailer_signature(&last, &format!("x-amz-checksum-crc32:{checksum}\n"));
    if corrupt {
        signature = signature.chars().rev().collect();
    }
    body.extend_from_slice(format!("x-amz-checksum-crc32:{checksum}\r\n").as_bytes());
    if with_signature {
        body.extend_from_slice(format!("x-amz-trailer-signature:{signature}\r\n").as_bytes());
    }
    body.extend_from_slice(b"\r\n");
    request.body(body)
}

/// What was declared, against the five bytes that come.
fn decoded_length() -> Vec<Case> {
    let lengths: [(&str, u16, &'static str); 7] = [
        ("4", 400, "IncompleteBody"),
        ("6", 400, "IncompleteBody"),
        ("0", 400, "IncompleteBody"),
        ("-5", 400, "InvalidRequest"),
        ("five", 400, "InvalidRequest"),
        ("5497558138881", 400, "EntityTooLarge"),
        ("18446744073709551616", 400, "InvalidRequest"),
    ];
    let mut cases: Vec<Case> = lengths
        .into_iter()
        .map(|(length, status, code)| {
            refused(format!("decoded length {length} for 5"), status, code, move |world| {
                let (request, signer, seed) = announced(world, STREAMING, length);
                request.body(chunks(&signer, &seed, &[b"hello"]))
            })
        })
        .collect();
    cases.push(refused("decoded length absent", 411, "MissingContentLength", |world| {
        let mut request = world.object("PUT", "chunked").header("content-encoding", "aws-chunked");
        let signer = world.signer();
        let seed = signer.sign_payload(&mut request, STREAMING);
        request.body(chunks(&signer, &seed, &[b"hello"]))
    }));
    cases
}

fn find(bytes: &[u8], text: &str) -> usize {
    let mut windows = bytes.windows(text.len());
    windows.position(|window| window == text.as_bytes()).expect("the body contains it")
}

fn swap(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let at = find(bytes, from);
    [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat()
}

/// Changes the hexadecimal digit `skip` bytes after the start of `text`.
fn edit(bytes: &[u8], text: &str, skip: usize) -> Vec<u8> {
    let at = find(bytes, text) + skip;
    let mut bytes = bytes.to_vec();
    bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
    bytes
}

/// The second chunk before the first.
fn exchange(bytes: &[u8]) -> Vec<u8> {
    let second = find(bytes, "hello\r\n") + 7;
    let third = find(bytes, "world\r\n") + 7;
    [&bytes[second..third], &bytes[..second], &bytes[third..]].concat()
}
