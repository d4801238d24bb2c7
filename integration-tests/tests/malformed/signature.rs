//! Signatures in the `Authorization` header.

use keyway_integration_tests::sigv4::{Signer, signable};
use keyway_integration_tests::wire::Request;

use super::case::{Case, WHOLE, World, refused};

/// The code of a header that is a signature's, but not well-formed.
const MALFORMED: &str = "AuthorizationHeaderMalformed";

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = whole_header();
    cases.extend(edited_header());
    cases.extend(scope());
    cases.extend(time());
    cases.extend(signed_headers());
    cases.extend(payload_hash());
    cases
}

fn get(world: &World) -> Request {
    world.object("GET", WHOLE)
}

/// An `Authorization` header that is not a signature at all.
fn whole_header() -> Vec<Case> {
    let values: [(&str, &'static str, u16, &'static str); 8] = [
        ("signature version 2", "AWS AKID:c2lnbmF0dXJlAAAAAAAAAAAAAAAAAAA=", 400, "InvalidRequest"),
        ("basic authentication", "Basic dXNlcjpwYXNz", 400, "InvalidArgument"),
        ("a bearer token", "Bearer abc.def.ghi", 400, "InvalidArgument"),
        ("an unknown algorithm", "AWS4-HMAC-SHA512 Credential=a/b", 400, "InvalidArgument"),
        ("only the algorithm", "AWS4-HMAC-SHA256", 400, MALFORMED),
        ("an empty header", "", 400, "InvalidArgument"),
        (
            "parts without values",
            "AWS4-HMAC-SHA256 Credential,SignedHeaders,Signature",
            400,
            MALFORMED,
        ),
        ("commas", "AWS4-HMAC-SHA256 ,,,,,,", 400, MALFORMED),
    ];
    let mut cases: Vec<Case> = values
        .into_iter()
        .map(|(name, value, status, code)| {
            refused(format!("authorization: {name}"), status, code, move |world| {
                let mut request = world.signed(get(world));
                request.set("authorization", value);
                request
            })
        })
        .collect();
    cases.push(refused("authorization: none", 403, "AccessDenied", get));
    cases.push(refused("authorization: none on PUT", 403, "AccessDenied", |world| {
        world.object("PUT", "anonymous").body("x")
    }));
    cases.push(refused("authorization: none on DELETE", 403, "AccessDenied", |world| {
        world.object("DELETE", WHOLE)
    }));
    cases.push(refused("authorization: not UTF-8", 403, "AccessDenied", |world| {
        let mut request = world.signed(get(world));
        request.set("authorization", b"AWS4-HMAC-SHA256 Credential=\xff\xfe");
        request
    }));
    cases.push(refused("authorization: twice", 403, "AccessDenied", |world| {
        let request = world.signed(get(world));
        let again = request.value("authorization").expect("it is signed").to_vec();
        request.header("authorization", again)
    }));
    cases.push(refused("authorization: in header and query", 400, "InvalidArgument", |world| {
        let mut request = get(world);
        world.signer().presign(&mut request, 60);
        world.signed(request)
    }));
    cases
}

/// A valid header with one substring replaced.
fn edited_header() -> Vec<Case> {
    type Edit = fn(&str) -> String;
    let edits: [(&str, Edit, u16, &'static str); 14] = [
        ("last digit of the signature", |v| flip_last(v), 403, "SignatureDoesNotMatch"),
        ("signature cut short", |v| v[..v.len() - 1].to_owned(), 403, "SignatureDoesNotMatch"),
        ("signature too long", |v| format!("{v}0"), 403, "SignatureDoesNotMatch"),
        ("signature in capitals", |v| capitals(v), 403, "SignatureDoesNotMatch"),
        ("signature empty", |v| v[..v.len() - 64].to_owned(), 403, "SignatureDoesNotMatch"),
        (
            "signature not hexadecimal",
            |v| format!("{}{}", &v[..v.len() - 64], "z".repeat(64)),
            403,
            "SignatureDoesNotMatch",
        ),
        ("no signature part", |v| v[..v.len() - 75].to_owned(), 400, MALFORMED),
        ("no signed headers", |v| v.replace("SignedHeaders", "Signed"), 400, MALFORMED),
        ("no credential", |v| v.replace("Credential", "Cred"), 400, MALFORMED),
        ("scope without terminator", |v| v.replace("/aws4_request", ""), 400, MALFORMED),
        ("wrong terminator", |v| v.replace("aws4_request", "aws5_request"), 400, MALFORMED),
        ("scope date not a date", |v| replace_date(v, "2026XX01"), 400, MALFORMED),
        (
            "scope date of another day",
            |v| replace_date(v, "20200101"),
            403,
            "SignatureDoesNotMatch",
        ),
        (
            "ten thousand commas",
            |v| format!("{v}{}", ",".repeat(10_000)),
            403,
            "SignatureDoesNotMatch",
        ),
    ];
    edits
        .into_iter()
        .map(|(name, edit, status, code)| {
            refused(format!("authorization edited: {name}"), status, code, move |world| {
                let mut request = world.signed(get(world));
                let value = request.value("authorization").expect("it is signed").to_vec();
                let value = String::from_utf8(value).expect("our own header is ASCII");
                request.set("authorization", edit(&value));
                request
            })
        })
        .collect()
}

fn flip_last(value: &str) -> String {
    let last = if value.ends_with('0') { '1' } else { '0' };
    format!("{}{last}", &value[..value.len() - 1])
}

fn capitals(value: &str) -> String {
    let (head, signature) = value.split_at(value.len() - 64);
    // A digest without any letter is as rare as a collision.
    format!("{head}{}", signature.to_uppercase())
}

fn replace_date(value: &str, date: &str) -> String {
    let slash = value.find('/').expect("a credential has a scope");
    format!("{}{date}{}", &value[..=slash], &value[slash + 9..])
}

fn scope() -> Vec<Case> {
    type Edit = fn(&mut Signer);
    let edits: [(&str, Edit, u16, &'static str); 4] = [
        ("another secret", |s| s.credentials.secret_key.push('x'), 403, "SignatureDoesNotMatch"),
        (
            "an unknown access key",
            |s| s.credentials.access_key = "AKIDNOBODY".to_owned(),
            403,
            "InvalidAccessKeyId",
        ),
        ("an empty access key", |s| s.credentials.access_key.clear(), 403, "InvalidAccessKeyId"),
        ("another service", |s| s.service = "ec2".to_owned(), 400, MALFORMED),
    ];
    edits
        .into_iter()
        .map(|(name, edit, status, code)| {
            refused(format!("signed with {name}"), status, code, move |world| {
                let mut signer = world.signer();
                edit(&mut signer);
                let mut request = get(world);
                signer.sign(&mut request);
                request
            })
        })
        .collect()
}

fn time() -> Vec<Case> {
    let mut cases: Vec<Case> = [-86_400, -1_200, 1_200, 86_400, 3_153_600_000]
        .into_iter()
        .map(|skew_s| {
            refused(
                format!("a clock off by {skew_s} s"),
                403,
                "RequestTimeTooSkewed",
                move |world| {
                    let mut request = get(world);
                    Signer::skewed(&world.credentials, skew_s).sign(&mut request);
                    request
                },
            )
        })
        .collect();
    for (name, value, status, code) in [
        ("empty", "", 400, "InvalidRequest"),
        ("words", "yesterday", 400, "InvalidRequest"),
        ("month 13", "20261301T000000Z", 403, "SignatureDoesNotMatch"),
        ("no zone", "20261101T000000", 400, "InvalidRequest"),
        ("digits", "99999999999999999999", 400, "InvalidRequest"),
    ] {
        cases.push(refused(format!("x-amz-date: {name}"), status, code, move |world| {
            let mut request = world.signed(get(world));
            request.set("x-amz-date", value);
            request
        }));
    }
    cases.push(refused("no date at all", 400, "InvalidRequest", |world| {
        let mut request = world.signed(get(world));
        request.remove("x-amz-date");
        request
    }));
    cases
}

/// Fields that change meaning must be signed.
fn signed_headers() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, value) in [
        ("x-amz-copy-source", "/malformed/whole"),
        ("x-amz-meta-owner", "somebody"),
        ("x-amz-rdma-token", "AAAA"),
        ("x-amz-storage-class", "GLACIER"),
        ("x-amz-decoded-content-length", "1"),
        ("x-amz-checksum-crc32c", "AAAAAA=="),
    ] {
        cases.push(refused(format!("unsigned {name}"), 403, "AccessDenied", move |world| {
            world.signed(world.object("PUT", "unsigned")).header(name, value)
        }));
    }
    cases.push(refused("host not signed", 403, "AccessDenied", |world| {
        let mut request = world.signed(get(world));
        let hash = request.value("x-amz-content-sha256").expect("it is signed").to_vec();
        let names: Vec<String> = signable(&request).into_iter().filter(|n| n != "host").collect();
        let hash = String::from_utf8(hash).expect("hexadecimal");
        world.signer().authorize(&mut request, &names, &hash);
        request
    }));
    cases.push(refused("a signed header that is absent", 403, "SignatureDoesNotMatch", |world| {
        let mut request = world.signed(get(world).header("x-amz-meta-gone", "1"));
        request.remove("x-amz-meta-gone");
        request
    }));
    cases.push(refused(
        "a signed header with another value",
        403,
        "SignatureDoesNotMatch",
        |world| {
            let mut request = world.signed(get(world).header("range", "bytes=0-1"));
            request.set("range", "bytes=0-99");
            request
        },
    ));
    cases.push(refused("another method than signed", 403, "SignatureDoesNotMatch", |world| {
        let mut request = world.signed(get(world));
        request.method = "DELETE".to_owned();
        request
    }));
    cases.push(refused("another key than signed", 403, "SignatureDoesNotMatch", |world| {
        let mut request = world.signed(get(world));
        request.path.push('2');
        request
    }));
    cases.push(refused("another query than signed", 403, "SignatureDoesNotMatch", |world| {
        world.signed(get(world)).query("uploadId", "1")
    }));
    cases
}

fn payload_hash() -> Vec<Case> {
    let put = |world: &World, hash: &str| {
        let mut request = world.object("PUT", "hash").body("payload");
        world.signer().sign_payload(&mut request, hash);
        request
    };
    let other = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    vec![
        refused("content hash of other bytes", 400, "XAmzContentSHA256Mismatch", move |world| {
            put(world, other)
        }),
        refused("content hash cut short", 400, "InvalidArgument", move |world| {
            put(world, &other[..60])
        }),
        refused("content hash of words", 400, "InvalidArgument", move |world| {
            put(world, "TRUST-ME")
        }),
        refused("content hash absent", 400, "InvalidRequest", move |world| {
            let mut request = world.object("PUT", "hash").body("payload");
            request.set("x-amz-date", world.signer().time);
            let names = signable(&request);
            world.signer().authorize(&mut request, &names, other);
            request
        }),
    ]
}
