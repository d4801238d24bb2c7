//! Encrypted objects: who may read them, with what, and that their bytes are theirs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use keyway_dataplane::StorageNode as _;
use keyway_gateway::s3::S3Config;
use keyway_proto::seal::{SEALED_BYTES, SEALED_CHUNK_BYTES_MAX, stored_length};
use keyway_proto::unit::MIB;
use keyway_proto::{Checksum, ChecksumKind};

use crate::fixture::{Call, Reply, Server};

const SERVICE: &str = "x-amz-server-side-encryption";
pub(crate) const CUSTOMER: &str = "x-amz-server-side-encryption-customer-";
const SOURCE: &str = "x-amz-copy-source-server-side-encryption-customer-";
const NO_CONFIGURATION: &str = "ServerSideEncryptionConfigurationNotFoundError";

/// A customer's key: 32 times this byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) u8);

impl Key {
    fn bytes(self) -> [u8; 32] {
        [self.0; 32]
    }

    fn md5(self) -> String {
        Checksum::of(ChecksumKind::Md5, &self.bytes()).to_base64()
    }

    pub(crate) fn on<'a>(self, call: Call<'a>, prefix: &str) -> Call<'a> {
        call.header(&format!("{prefix}algorithm"), "AES256")
            .header(&format!("{prefix}key"), &BASE64.encode(self.bytes()))
            .header(&format!("{prefix}key-md5"), &self.md5())
    }
}

/// How something is asked to be encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Under {
    Nothing,
    Service,
    Customer(Key),
}

impl Under {
    /// On a request that makes an object.
    pub(crate) fn asked(self, call: Call<'_>) -> Call<'_> {
        match self {
            Self::Nothing => call,
            Self::Service => call.header(SERVICE, "AES256"),
            Self::Customer(key) => key.on(call, CUSTOMER),
        }
    }

    /// On a request about an object that is there.
    pub(crate) fn shown<'a>(self, call: Call<'a>, prefix: &str) -> Call<'a> {
        match self {
            Self::Nothing | Self::Service => call,
            Self::Customer(key) => key.on(call, prefix),
        }
    }

    /// The answer says so, and nothing else.
    pub(crate) fn is_told(self, reply: &Reply) {
        let md5 = format!("{CUSTOMER}key-md5");
        let algorithm = format!("{CUSTOMER}algorithm");
        let told = [SERVICE, &algorithm, &md5].map(|name| reply.header(name));
        match self {
            Self::Nothing => assert_eq!(told, [None; 3]),
            Self::Service => assert_eq!(told, [Some("AES256"), None, None]),
            Self::Customer(key) => {
                assert_eq!(told, [None, Some("AES256"), Some(&key.md5()[..])]);
            }
        }
        assert_eq!(reply.header(&format!("{CUSTOMER}key")), None);
    }
}

const ALL: [Under; 4] =
    [Under::Nothing, Under::Service, Under::Customer(Key(1)), Under::Customer(Key(2))];

/// A server that takes customers' keys over plaintext, as one behind a proxy does.
async fn server() -> Server {
    let config = S3Config { customer_keys_without_tls: true, ..S3Config::default() };
    let server = Server::with(config, 512 * MIB).await;
    server.put("/bucket").send().await.expect(200);
    server
}

fn bytes(length: u64) -> Vec<u8> {
    (0..length).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

/// Bytes that the node stores.
async fn stored(server: &Server) -> u64 {
    let chunks = server.node.chunks(None, 10_000).await.unwrap();
    chunks.iter().map(|chunk| chunk.length).sum()
}

#[tokio::test]
async fn what_is_put_encrypted_is_got() {
    let server = server().await;
    let (block, chunk) = (SEALED_BYTES, SEALED_CHUNK_BYTES_MAX);
    for under in [Under::Service, Under::Customer(Key(1))] {
        for length in [0, 1, block - 1, block, block + 1, MIB + 3, chunk + 1] {
            // Once is enough of what takes long.
            if length > chunk && under != Under::Service {
                continue;
            }
            let (path, body) = (format!("/bucket/{length}"), bytes(length));
            let before = stored(&server).await;
            let put = under.asked(server.put(&path)).body(body.clone()).send().await.expect(200);
            under.is_told(&put);
            let md5 = Checksum::of(ChecksumKind::Md5, &body).to_hex();
            assert_eq!(put.header("etag"), Some(&format!("\"{md5}\"")[..]));
            if under == Under::Service {
                let of_chunks =
                    stored_length(length.min(chunk)) + stored_length(length.saturating_sub(chunk));
                assert_eq!(stored(&server).await - before, of_chunks);
            }
            let got = under.shown(server.get(&path), CUSTOMER);
            let got = got.header("x-amz-checksum-mode", "ENABLED").send().await.expect(200);
            assert!(got.body == body, "{under:?}, {length}");
            under.is_told(&got);
            let crc = Checksum::of(ChecksumKind::Crc64Nvme, &body).to_base64();
            assert_eq!(got.header("x-amz-checksum-crc64nvme"), Some(&crc[..]));
            let head = under.shown(server.head(&path), CUSTOMER).send().await.expect(200);
            assert_eq!(head.header("content-length"), Some(&length.to_string()[..]));
            under.is_told(&head);
            for (first, last) in [(0, 0), (block - 1, block), (block + 5, 3 * block), (7, length)] {
                let last = last.min(length.saturating_sub(1));
                if first > last || length == 0 {
                    continue;
                }
                let range = format!("bytes={first}-{last}");
                let part = under.shown(server.get(&path), CUSTOMER).header("range", &range);
                let part = part.send().await.expect(206);
                assert!(part.body == body[first as usize..=last as usize], "{length}: {range}");
                under.is_told(&part);
            }
        }
    }
    assert_eq!(server.node.stats().pool.leased_bytes, 0);
}

#[tokio::test]
async fn a_customers_object_opens_with_its_key_alone() {
    let server = server().await;
    let own = Under::Customer(Key(1));
    own.asked(server.put("/bucket/own")).body("secret").send().await.expect(200);
    server.put("/bucket/plain").body("plain").send().await.expect(200);
    Under::Service.asked(server.put("/bucket/service")).body("kept").send().await.expect(200);
    for query in ["", "?attributes"] {
        let get = |key: &str| {
            let call = server.get(&format!("/bucket/{key}{query}"));
            call.header("x-amz-object-attributes", "ObjectSize")
        };
        own.shown(get("own"), CUSTOMER).send().await.expect(200);
        get("own").send().await.refused(400, "InvalidRequest");
        Key(2).on(get("own"), CUSTOMER).send().await.refused(403, "AccessDenied");
        Key(1).on(get("plain"), CUSTOMER).send().await.refused(400, "InvalidRequest");
        Key(1).on(get("service"), CUSTOMER).send().await.refused(400, "InvalidRequest");
        get("service").header(SERVICE, "AES256").send().await.refused(400, "InvalidArgument");
    }
    for (call, status) in [
        (server.head("/bucket/own"), 400),
        (Key(2).on(server.head("/bucket/own"), CUSTOMER), 403),
        (Key(1).on(server.head("/bucket/plain"), CUSTOMER), 400),
        // What the protocol layer would not take, is asked the same.
        (server.head("/bucket/own").header("range", "bytes=0-1"), 400),
        (Key(2).on(server.head("/bucket/own?partNumber=1"), CUSTOMER), 403),
    ] {
        call.send().await.expect(status);
    }
    let part = Key(1).on(server.head("/bucket/own"), CUSTOMER).header("range", "bytes=0-1");
    part.send().await.expect(206);
}

#[tokio::test]
async fn keys_that_are_none_are_refused() {
    let server = server().await;
    let key = BASE64.encode(Key(1).bytes());
    let (md5, other) = (Key(1).md5(), Key(2).md5());
    let with = |parts: [Option<&str>; 3]| {
        let names = ["algorithm", "key", "key-md5"];
        let call = server.put("/bucket/k").body("x");
        names.iter().zip(parts).fold(call, |call, (name, value)| match value {
            Some(value) => call.header(&format!("{CUSTOMER}{name}"), value),
            None => call,
        })
    };
    let (algorithm, key, md5) = (Some("AES256"), Some(&key[..]), Some(&md5[..]));
    for (parts, code) in [
        ([None, key, md5], "InvalidArgument"),
        ([algorithm, None, md5], "InvalidArgument"),
        ([algorithm, key, None], "InvalidArgument"),
        ([algorithm, key, Some(&other)], "InvalidArgument"),
        ([algorithm, Some("c2hvcnQ="), md5], "InvalidArgument"),
        ([Some("AES128"), key, md5], "InvalidEncryptionAlgorithmError"),
    ] {
        with(parts).send().await.refused(400, code);
    }
    let both = with([algorithm, key, md5]).header(SERVICE, "AES256");
    both.send().await.refused(400, "InvalidArgument");
    for method in ["aws:kms", "aws:kms:dsse"] {
        let kms = server.put("/bucket/k").header(SERVICE, method).body("x");
        kms.send().await.refused(501, "NotImplemented");
    }
    let unknown = server.put("/bucket/k").header(SERVICE, "AES").body("x");
    unknown.send().await.refused(400, "InvalidEncryptionAlgorithmError");
    let of_kms = Under::Service.asked(server.put("/bucket/k"));
    let of_kms = of_kms.header("x-amz-server-side-encryption-aws-kms-key-id", "1");
    of_kms.send().await.refused(501, "NotImplemented");
    server.get("/bucket/k").send().await.refused(404, "NoSuchKey");
}

#[tokio::test]
async fn customers_keys_do_not_come_over_plaintext() {
    let server = Server::with_bucket().await;
    server.put("/bucket/k").body("x").send().await.expect(200);
    for call in [
        server.put("/bucket/k").body("x"),
        server.get("/bucket/k"),
        server.post("/bucket/k?uploads"),
    ] {
        Key(1).on(call, CUSTOMER).send().await.refused(400, "InvalidRequest");
    }
    let copy = server.put("/bucket/l").header("x-amz-copy-source", "/bucket/k");
    Key(1).on(copy, SOURCE).send().await.refused(400, "InvalidRequest");
    // Nothing of the kind is asked of the service's own.
    Under::Service.asked(server.put("/bucket/k")).body("y").send().await.expect(200);
}

/// Goal: a copy has its source's bytes, whoever holds the key to either; chunks are shared where
/// the same holder has both, and only there; and what is encrypted does not cease to be.
#[tokio::test]
async fn copies_are_their_sources() {
    let server = server().await;
    let body = bytes(300_001);
    for from in ALL {
        from.asked(server.put("/bucket/from")).body(body.clone()).send().await.expect(200);
        for to in ALL {
            let before = server.chunks().await;
            let copy = server.put("/bucket/to").header("x-amz-copy-source", "/bucket/from");
            let copy = from.shown(to.asked(copy), SOURCE).send().await.expect(200);
            let becomes = match (from, to) {
                (Under::Nothing, Under::Nothing) => Under::Nothing,
                (_, Under::Nothing) => Under::Service,
                (_, to) => to,
            };
            becomes.is_told(&copy);
            let got = becomes.shown(server.get("/bucket/to"), CUSTOMER).send().await.expect(200);
            assert!(got.body == body, "{from:?} to {to:?}");
            becomes.is_told(&got);
            let shares = server.chunks().await == before;
            assert_eq!(shares, from == becomes, "{from:?} to {to:?}");
            let source = from.shown(server.get("/bucket/from"), CUSTOMER).send().await;
            assert!(source.expect(200).body == body, "{from:?} after {to:?}");
            // Before the next: what it replaces is on its way out until it is reaped.
            server.delete("/bucket/to").send().await.expect(204);
            let left = server.catalog.garbage(100).await.unwrap();
            let ids: Vec<_> = left.iter().map(|extent| extent.chunk.id).collect();
            server.node.release(&ids).await.unwrap();
        }
        let again = server.put("/bucket/from").header("x-amz-copy-source", "/bucket/from");
        let again = from.shown(Under::Customer(Key(3)).asked(again), SOURCE);
        again.send().await.expect(200);
        let got = Key(3).on(server.get("/bucket/from"), CUSTOMER).send().await.expect(200);
        assert!(got.body == body, "{from:?} onto itself");
    }
    let copy = |to| server.put(to).header("x-amz-copy-source", "/bucket/from");
    copy("/bucket/to").send().await.refused(400, "InvalidRequest");
    Key(1).on(copy("/bucket/to"), SOURCE).send().await.refused(403, "AccessDenied");
    server.put("/bucket/plain").body("x").send().await.expect(200);
    let plain = server.put("/bucket/to").header("x-amz-copy-source", "/bucket/plain");
    Key(1).on(plain, SOURCE).send().await.refused(400, "InvalidRequest");
}

#[tokio::test]
async fn uploads_are_encrypted_part_by_part() {
    let server = server().await;
    let (first, last) = (bytes(5 * MIB + 1), bytes(70_000));
    let body = [&first[..], &last[..]].concat();
    Under::Customer(Key(9))
        .asked(server.put("/bucket/source"))
        .body(body.clone())
        .send()
        .await
        .expect(200);
    for under in [Under::Service, Under::Customer(Key(1))] {
        let begun = under.asked(server.post("/bucket/big?uploads")).send().await.expect(200);
        under.is_told(&begun);
        let id = begun.tag("UploadId");
        let path = |number: u32| format!("/bucket/big?partNumber={number}&uploadId={id}");
        let part = under.shown(server.put(&path(1)), CUSTOMER).body(first.clone());
        let part = part.send().await.expect(200);
        under.is_told(&part);
        let range = format!("bytes={}-{}", first.len(), body.len() - 1);
        let copy = server.put(&path(2)).header("x-amz-copy-source", "/bucket/source");
        let copy = Key(9).on(copy.header("x-amz-copy-source-range", &range), SOURCE);
        let copy = under.shown(copy, CUSTOMER).send().await.expect(200);
        under.is_told(&copy);
        if under == Under::Service {
            let shown = Key(1).on(server.put(&path(3)), CUSTOMER).body("x").send().await;
            shown.refused(400, "InvalidRequest");
            let asked = server.put(&path(3)).header(SERVICE, "AES256").body("x").send().await;
            asked.refused(400, "InvalidArgument");
        } else {
            server.put(&path(3)).body("x").send().await.refused(400, "InvalidRequest");
            let other = Key(2).on(server.put(&path(3)), CUSTOMER).body("x").send().await;
            other.refused(400, "InvalidRequest");
        }
        let etags = [part.header("etag").unwrap().to_owned(), copy.tag("ETag")];
        let parts: String = (1..)
            .zip(&etags)
            .map(|(n, tag)| format!("<Part><PartNumber>{n}</PartNumber><ETag>{tag}</ETag></Part>"))
            .collect();
        let done = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        let done = server.post(&format!("/bucket/big?uploadId={id}")).body(done);
        let done = done.send().await.expect(200);
        assert_eq!(done.header(SERVICE), (under == Under::Service).then_some("AES256"));
        let get = |path| under.shown(server.get(path), CUSTOMER);
        assert!(get("/bucket/big").send().await.expect(200).body == body, "{under:?}");
        let second = get("/bucket/big?partNumber=2").send().await.expect(206);
        assert!(second.body == last, "{under:?}");
        let across = get("/bucket/big").header("range", "bytes=5242870-5242890").send().await;
        assert!(across.expect(206).body == body[5_242_870..=5_242_890]);
    }
}

#[tokio::test]
async fn versions_keep_keys_of_their_own() {
    let server = server().await;
    let enable = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    server.put("/bucket?versioning").body(enable).send().await.expect(200);
    let mut versions = Vec::new();
    for under in ALL {
        let body = format!("{under:?}");
        let put = under.asked(server.put("/bucket/k")).body(body.clone()).send().await.expect(200);
        versions.push((under, put.header("x-amz-version-id").unwrap().to_owned(), body));
    }
    for (under, id, body) in &versions {
        let path = format!("/bucket/k?versionId={id}");
        let got = under.shown(server.get(&path), CUSTOMER).send().await.expect(200);
        assert_eq!(got.body, body);
        under.is_told(&got);
    }
    let (under, id, body) = &versions[1];
    let back = server.put("/bucket/k");
    let back = back.header("x-amz-copy-source", &format!("/bucket/k?versionId={id}"));
    under.is_told(&back.send().await.expect(200));
    assert_eq!(server.get("/bucket/k").send().await.expect(200).body, body);
    // Tags and headers that are written later leave the key as it is.
    let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    server.put("/bucket/k?tagging").body(tags).send().await.expect(200);
    assert_eq!(server.get("/bucket/k").send().await.expect(200).body, body);
}

fn rule(inner: &str) -> String {
    format!(
        "<ServerSideEncryptionConfiguration><Rule>{inner}</Rule>\
         </ServerSideEncryptionConfiguration>"
    )
}

fn default_of(algorithm: &str) -> String {
    rule(&format!(
        "<ApplyServerSideEncryptionByDefault><SSEAlgorithm>{algorithm}</SSEAlgorithm>\
         </ApplyServerSideEncryptionByDefault>"
    ))
}

#[tokio::test]
async fn a_buckets_default_holds_for_what_does_not_say() {
    let server = server().await;
    server.get("/bucket?encryption").send().await.refused(404, NO_CONFIGURATION);
    server.put("/bucket/before").body("x").send().await.expect(200);
    let put = |document: String| {
        let md5 = Checksum::of(ChecksumKind::Md5, document.as_bytes()).to_base64();
        server.put("/bucket?encryption").header("content-md5", &md5).body(document)
    };
    put(default_of("AES256")).send().await.expect(200);
    let told = server.get("/bucket?encryption").send().await.expect(200);
    assert_eq!(told.tag("SSEAlgorithm"), "AES256");
    Under::Service.is_told(&server.put("/bucket/k").body("y").send().await.expect(200));
    Under::Service.is_told(&server.get("/bucket/k").send().await.expect(200));
    Under::Service.is_told(&server.post("/bucket/k?uploads").send().await.expect(200));
    Under::Nothing.is_told(&server.get("/bucket/before").send().await.expect(200));
    let copy = server.put("/bucket/copy").header("x-amz-copy-source", "/bucket/before");
    Under::Service.is_told(&copy.send().await.expect(200));
    let own = Under::Customer(Key(1));
    own.is_told(&own.asked(server.put("/bucket/own")).body("z").send().await.expect(200));
    for (document, status, code) in [
        (default_of("aws:kms"), 501, "NotImplemented"),
        (default_of("ROT13"), 400, "MalformedXML"),
        (rule(""), 400, "MalformedXML"),
        ("<ServerSideEncryptionConfiguration/>".to_owned(), 400, "MalformedXML"),
    ] {
        put(document).send().await.refused(status, code);
    }
    server.delete("/bucket?encryption").send().await.expect(204);
    server.get("/bucket?encryption").send().await.refused(404, NO_CONFIGURATION);
    Under::Nothing.is_told(&server.put("/bucket/l").body("y").send().await.expect(200));
    assert_eq!(server.get("/bucket/k").send().await.expect(200).body, "y");
}

#[tokio::test]
async fn an_operators_default_holds_for_all_buckets() {
    let config = S3Config { encrypt_by_default: true, ..S3Config::default() };
    let server = Server::with(config, 64 * MIB).await;
    server.put("/bucket").send().await.expect(200);
    let told = server.get("/bucket?encryption").send().await.expect(200);
    assert_eq!(told.tag("SSEAlgorithm"), "AES256");
    Under::Service.is_told(&server.put("/bucket/k").body("y").send().await.expect(200));
    assert_eq!(server.get("/bucket/k").send().await.expect(200).body, "y");
}

/// Goal: a bucket policy can demand encryption, and refuse customers' keys.
#[tokio::test]
async fn policies_demand_encryption() {
    let server = server().await;
    let policy = r#"{"Version": "2012-10-17", "Statement": [
        {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject",
         "Resource": "arn:aws:s3:::bucket/sealed/*",
         "Condition": {"StringNotEquals": {"s3:x-amz-server-side-encryption": "AES256"}}},
        {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject",
         "Resource": "arn:aws:s3:::bucket/ours/*",
         "Condition": {"Null": {"s3:x-amz-server-side-encryption-customer-algorithm": "false"}}}]}"#;
    server.put("/bucket?policy").body(policy).send().await.expect(204);
    server.put("/bucket/sealed/k").body("x").send().await.refused(403, "AccessDenied");
    let sealed = Under::Service.asked(server.put("/bucket/sealed/k")).body("x");
    sealed.send().await.expect(200);
    server.put("/bucket/ours/k").body("x").send().await.expect(200);
    let own = Under::Customer(Key(1)).asked(server.put("/bucket/ours/k")).body("x");
    own.send().await.refused(403, "AccessDenied");
}
