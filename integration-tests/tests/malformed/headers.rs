//! Header fields of otherwise good requests: digests, lengths, conditions, ranges, floods.

use super::case::{Case, Expect, Step, WHOLE, WHOLE_BYTES, World, refused, scripted};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = digests();
    cases.extend(ranges());
    cases.extend(values());
    cases.extend(lengths());
    cases.extend(floods());
    cases
}

/// Digests in headers that do not fit the body `payload`, or are none.
fn digests() -> Vec<Case> {
    let fields: [(&str, &str, &'static str); 17] = [
        ("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==", "BadDigest"),
        ("content-md5", "AAAA", "InvalidDigest"),
        ("content-md5", "not base64!", "InvalidDigest"),
        ("content-md5", "", "InvalidDigest"),
        ("x-amz-checksum-crc32", "AAAAAA==", "BadDigest"),
        ("x-amz-checksum-crc32c", "AAAAAA==", "BadDigest"),
        ("x-amz-checksum-crc64nvme", "AAAAAAAAAAA=", "BadDigest"),
        ("x-amz-checksum-sha1", "AAAAAAAAAAAAAAAAAAAAAAAAAAA=", "BadDigest"),
        ("x-amz-checksum-sha256", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "BadDigest"),
        ("x-amz-checksum-crc32", "AAAA", "InvalidRequest"),
        ("x-amz-checksum-crc32c", "AAAAAAAAAAA=", "InvalidRequest"),
        ("x-amz-checksum-crc64nvme", "AAAAAA==", "InvalidRequest"),
        ("x-amz-checksum-sha1", "xyz", "InvalidRequest"),
        ("x-amz-checksum-sha256", "AAAAAA==", "InvalidRequest"),
        ("x-amz-checksum-sha256", "", "InvalidRequest"),
        ("x-amz-sdk-checksum-algorithm", "CRC99", "InvalidRequest"),
        ("x-amz-sdk-checksum-algorithm", "SHA256", "InvalidRequest"),
    ];
    let mut cases: Vec<Case> = fields
        .into_iter()
        .map(|(name, value, code)| {
            refused(format!("digest: {name}: {value}"), 400, code, move |world| {
                world.signed(world.object("PUT", "digest").header(name, value).body("payload"))
            })
        })
        .collect();
    cases.push(refused("digest: two of them, one wrong", 400, "InvalidRequest", |world| {
        let request = world
            .object("PUT", "digest")
            .header("x-amz-checksum-crc32", "PzoCVA==")
            .header("x-amz-checksum-crc32c", "AAAAAA==")
            .body("payload");
        world.signed(request)
    }));
    cases
}

fn ranges() -> Vec<Case> {
    let beyond = format!("bytes={WHOLE_BYTES}-");
    let mut cases: Vec<Case> =
        [beyond.as_str(), "bytes=100001-100002", "bytes=-0", "bytes=4611686018427387904-"]
            .map(|range| {
                let range = range.to_owned();
                refused(format!("range: {range}"), 416, "InvalidRange", move |world| {
                    world.signed(world.object("GET", WHOLE).header("range", &range))
                })
            })
            .into();
    cases.push(refused("range: HEAD beyond the end", 416, "", |world| {
        world.signed(world.object("HEAD", WHOLE).header("range", "bytes=200000-"))
    }));
    for range in ["bytes=5-1", "bytes=a-b", "bytes 0-1", "bytes=0-1 2-3", "bytes=--1"] {
        // S3 ignores a range that does not parse; a copy's range is refused.
        cases.push(refused(format!("copy range: {range}"), 400, "InvalidArgument", move |world| {
            let request = world
                .object("PUT", "upload")
                .query("partNumber", "3")
                .query("uploadId", &world.upload)
                .header("x-amz-copy-source", "malformed/whole")
                .header("x-amz-copy-source-range", range);
            world.signed(request)
        }));
    }
    cases.push(refused("copy range: beyond the source", 416, "InvalidRange", |world| {
        let request = world
            .object("PUT", "upload")
            .query("partNumber", "3")
            .query("uploadId", &world.upload)
            .header("x-amz-copy-source", "malformed/whole")
            .header("x-amz-copy-source-range", "bytes=0-100000");
        world.signed(request)
    }));
    cases
}

fn values() -> Vec<Case> {
    let fields: [(&str, &str, &str, u16, &'static str); 12] = [
        ("copy source without key", "x-amz-copy-source", "malformed", 400, "InvalidArgument"),
        ("copy source empty", "x-amz-copy-source", "", 400, "InvalidArgument"),
        ("copy source with bad escapes", "x-amz-copy-source", "malformed/%zz%f", 404, "NoSuchKey"),
        ("copy source of no bucket", "x-amz-copy-source", "nosuch-bucket/key", 404, "NoSuchBucket"),
        ("copy source of no key", "x-amz-copy-source", "malformed/nothing", 404, "NoSuchKey"),
        (
            "copy source climbing out",
            "x-amz-copy-source",
            "../../etc/passwd",
            400,
            "InvalidArgument",
        ),
        (
            "metadata directive of words",
            "x-amz-metadata-directive",
            "MAYBE",
            400,
            "InvalidArgument",
        ),
        ("storage class of words", "x-amz-storage-class", "ATTIC", 400, "InvalidStorageClass"),
        ("if-match on nothing", "if-match", "\"0123\"", 404, "NoSuchKey"),
        ("write offset", "x-amz-write-offset-bytes", "10", 501, "NotImplemented"),
        (
            "customer key without key",
            "x-amz-server-side-encryption-customer-algorithm",
            "AES256",
            400,
            "InvalidRequest",
        ),
        ("an acl of words", "x-amz-acl", "everyone", 400, "AccessControlListNotSupported"),
    ];
    let mut cases: Vec<Case> = fields
        .into_iter()
        .map(|(name, field, value, status, code)| {
            refused(name, status, code, move |world| {
                let mut request = world.object("PUT", "values").header(field, value);
                if field == "x-amz-metadata-directive" {
                    request = request.header("x-amz-copy-source", "malformed/whole");
                }
                world.signed(request)
            })
        })
        .collect();
    cases.push(refused("copy onto itself without change", 400, "InvalidRequest", |world| {
        world.signed(world.object("PUT", WHOLE).header("x-amz-copy-source", "malformed/whole"))
    }));
    cases.push(refused("if-none-match * on an object", 412, "PreconditionFailed", |world| {
        world.signed(world.object("PUT", WHOLE).header("if-none-match", "*").body("x"))
    }));
    cases.push(refused("if-match of another etag", 412, "PreconditionFailed", |world| {
        world.signed(world.object("PUT", WHOLE).header("if-match", "\"0123\"").body("x"))
    }));
    cases
}

fn lengths() -> Vec<Case> {
    let mut cases = vec![
        scripted(
            "length: larger than an object may be",
            Expect::Refused(400, "EntityTooLarge"),
            |world| {
                let mut request = world.object("PUT", "length");
                world.signer().sign_payload(&mut request, "UNSIGNED-PAYLOAD");
                request.set("content-length", (5_u64 << 40).to_string());
                vec![Step::Send(request.head())]
            },
        ),
        scripted(
            "length: PUT without any",
            Expect::Refused(411, "MissingContentLength"),
            |world| {
                let mut request = world.object("PUT", "length");
                world.signer().sign_payload(&mut request, "UNSIGNED-PAYLOAD");
                request.set("transfer-encoding", "chunked");
                let mut bytes = request.head();
                bytes.extend_from_slice(b"5\r\nhello\r\n0\r\n\r\n");
                vec![Step::Send(bytes)]
            },
        ),
    ];
    for (name, value) in [
        ("negative", "-1"),
        ("words", "many"),
        ("hexadecimal", "0x10"),
        ("beyond 64 bits", "99999999999999999999999"),
        ("a list", "5, 6"),
        ("a sign", "+5"),
    ] {
        cases.push(refused(format!("length: {name}"), 400, "", move |world| {
            world.signed(world.object("PUT", "length")).header("content-length", value)
        }));
    }
    cases.push(refused("length: two that differ", 400, "", |world| {
        let request = world.signed(world.object("PUT", "length").body("hello"));
        request.header("content-length", "5").header("content-length", "6")
    }));
    cases.push(scripted(
        "smuggling: length and chunked coding",
        Expect::RefusedOrClosed,
        |world| smuggled(world, "chunked"),
    ));
    cases.push(scripted("smuggling: a coding in disguise", Expect::RefusedOrClosed, |world| {
        smuggled(world, "xchunked")
    }));
    cases.push(scripted("smuggling: chunked is not last", Expect::RefusedOrClosed, |world| {
        smuggled(world, "chunked, identity")
    }));
    cases
}

/// A body whose two framings disagree on where the second request begins.
fn smuggled(world: &World, coding: &str) -> Vec<Step> {
    let hidden = world.signed(world.object("PUT", "smuggled").body("x")).bytes();
    let mut body = b"0\r\n\r\n".to_vec();
    body.extend_from_slice(&hidden);
    let mut request = world.object("PUT", "carrier");
    world.signer().sign_payload(&mut request, "UNSIGNED-PAYLOAD");
    request.set("transfer-encoding", coding);
    request.set("content-length", body.len().to_string());
    let mut bytes = request.head();
    bytes.extend_from_slice(&body);
    vec![Step::Send(bytes)]
}

fn floods() -> Vec<Case> {
    vec![
        refused("flood: five thousand fields", 431, "", |world| {
            let mut request = world.object("GET", WHOLE);
            for number in 0..5_000 {
                request = request.header(&format!("x-amz-meta-{number}"), "x");
            }
            world.signed(request)
        }),
        refused("flood: a field of 1 MiB", 431, "", |world| {
            world.signed(world.object("GET", WHOLE).header("x-amz-meta-a", "x".repeat(1 << 20)))
        }),
        refused("flood: a target of 1 MiB", 431, "", |world| {
            world.signed(world.object("GET", &"k".repeat(1 << 20)))
        }),
        refused("flood: metadata over 2 KiB", 400, "MetadataTooLarge", |world| {
            let mut request = world.object("PUT", "metadata");
            for number in 0..3 {
                request = request.header(&format!("x-amz-meta-{number}"), "x".repeat(1_000));
            }
            world.signed(request)
        }),
        scripted("flood: a field name of 64 KiB", Expect::RefusedOrClosed, |world| {
            let request = world.object("GET", WHOLE).header(&"n".repeat(65_536), "x");
            vec![Step::Send(request.bytes())]
        }),
        scripted("a field without a colon", Expect::Refused(400, ""), |world| {
            let head = format!("GET / HTTP/1.1\r\nhost: {}\r\nnonsense\r\n\r\n", world.address);
            vec![Step::Send(head.into_bytes())]
        }),
        scripted("a field with a NUL", Expect::Refused(400, ""), |world| {
            let head = format!("GET / HTTP/1.1\r\nhost: {}\r\na: b\0c\r\n\r\n", world.address);
            vec![Step::Send(head.into_bytes())]
        }),
        scripted("a folded field", Expect::Refused(400, ""), |world| {
            let head = format!("GET / HTTP/1.1\r\nhost: {}\r\na: b\r\n c\r\n\r\n", world.address);
            vec![Step::Send(head.into_bytes())]
        }),
        scripted("no host", Expect::RefusedOrClosed, |_| {
            vec![Step::Send(b"GET /malformed/whole HTTP/1.1\r\n\r\n".to_vec())]
        }),
    ]
}
