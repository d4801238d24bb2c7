//! XML documents in requests.

use keyway_integration_tests::wire::Request;

use super::case::{Case, World, refused};

pub(crate) fn cases() -> Vec<Case> {
    let documents: Vec<(&str, String)> = vec![
        ("empty", String::new()),
        ("not XML", "hello".to_owned()),
        ("not UTF-8", "\u{fffd}\u{0}\u{1}".to_owned()),
        ("never closed", "<Delete><Object><Key>a".to_owned()),
        ("closed twice", "<Delete></Delete></Delete>".to_owned()),
        ("crossed tags", "<Delete><Object><Key>a</Object></Key></Delete>".to_owned()),
        ("another root", "<Create><Object><Key>a</Key></Object></Create>".to_owned()),
        ("no objects", "<Delete></Delete>".to_owned()),
        ("an object without key", "<Delete><Object></Object></Delete>".to_owned()),
        ("billion laughs", laughs()),
        ("quadratic blow-up", quadratic()),
        ("an external entity", external("file:///etc/passwd")),
        ("an entity over HTTP", external("http://127.0.0.1:1/")),
        ("a parameter entity", parameter_entity()),
        ("nested 100,000 deep", format!("<Delete>{}", "<a>".repeat(100_000))),
        ("100,000 attributes", attributes()),
        ("an unknown entity", "<Delete><Object><Key>&who;</Key></Object></Delete>".to_owned()),
        ("a truncated entity", "<Delete><Object><Key>&#x;</Key></Object></Delete>".to_owned()),
        ("1,001 keys", keys(1_001)),
        ("a comment without end", "<Delete><!-- ".to_owned()),
        ("CDATA without end", "<Delete><Object><Key><![CDATA[a".to_owned()),
        ("two documents", format!("{0}{0}", keys(1))),
    ];
    let mut cases: Vec<Case> = documents
        .iter()
        .cloned()
        .map(|(name, document)| {
            let code = if name == "empty" { "MissingRequestBodyError" } else { "MalformedXML" };
            refused(format!("delete list: {name}"), 400, code, move |world| {
                delete(world, document.clone())
            })
        })
        .collect();
    let completions = [
        "empty",
        "not XML",
        "never closed",
        "another root",
        "billion laughs",
        "nested 100,000 deep",
        "an unknown entity",
    ];
    for (name, document) in documents.into_iter().filter(|(name, _)| completions.contains(name)) {
        cases.push(refused(format!("completion: {name}"), 400, "MalformedXML", move |world| {
            let request = world.object("POST", "upload").query("uploadId", &world.upload);
            world.signed(request.body(document.clone()))
        }));
    }
    cases.extend(configurations());
    cases.push(refused("delete list: 12 MiB", 400, "MaxMessageLengthExceeded", |world| {
        delete(world, format!("<Delete>{}</Delete>", " ".repeat(12 << 20)))
    }));
    cases.push(refused("delete list: no digest", 400, "InvalidRequest", |world| {
        let request = world.path("POST", "/malformed").query("delete", "").body(keys(1));
        world.signed(request)
    }));
    cases.push(refused("delete list: a wrong digest", 400, "BadDigest", |world| {
        let request = world.path("POST", "/malformed").query("delete", "").body(keys(1));
        world.signed(request.header("content-md5", "AAAAAAAAAAAAAAAAAAAAAA=="))
    }));
    cases.push(refused("location: another root", 400, "MalformedXML", |world| {
        world.signed(world.path("PUT", "/never-created").body("<Nowhere/>"))
    }));
    cases.push(refused("location: a bomb", 400, "MalformedXML", |world| {
        world.signed(world.path("PUT", "/never-created").body(laughs()))
    }));
    cases
}

/// Documents that configure buckets, and those of objects: each call meets each document.
fn configurations() -> Vec<Case> {
    let calls = [
        ("/malformed", "versioning"),
        ("/malformed", "tagging"),
        ("/malformed", "cors"),
        ("/malformed", "lifecycle"),
        ("/malformed", "object-lock"),
        ("/malformed", "requestPayment"),
        ("/malformed/whole", "tagging"),
        ("/malformed/whole", "retention"),
        ("/malformed/whole", "legal-hold"),
    ];
    let documents = [
        ("not XML", "hello".to_owned()),
        ("never closed", "<Tagging><TagSet>".to_owned()),
        ("another root", "<Nowhere/>".to_owned()),
        ("billion laughs", laughs()),
        ("an external entity", external("file:///etc/passwd")),
        ("nested 100,000 deep", "<a>".repeat(100_000)),
    ];
    let mut cases = Vec::new();
    for (path, call) in calls {
        for (name, document) in documents.clone() {
            cases.push(refused(format!("{call} of {path}: {name}"), 400, "MalformedXML", {
                move |world: &World| {
                    world.signed(world.path("PUT", path).query(call, "").body(document.clone()))
                }
            }));
        }
        cases.push(refused(format!("{call} of {path}: a wrong digest"), 400, "BadDigest", {
            move |world: &World| {
                let request = world.path("PUT", path).query(call, "").body("<a/>");
                world.signed(request.header("content-md5", "AAAAAAAAAAAAAAAAAAAAAA=="))
            }
        }));
    }
    let odd = [
        (
            "versioning",
            "<VersioningConfiguration><Status>Yes</Status></VersioningConfiguration>",
            400,
            "IllegalVersioningConfigurationException",
        ),
        (
            "tagging",
            "<Tagging><TagSet><Tag><Key>aws:x</Key><Value>y</Value></Tag></TagSet></Tagging>",
            400,
            "InvalidTag",
        ),
        (
            "tagging",
            "<Tagging><TagSet><Tag><Key>x</Key></Tag></TagSet></Tagging>",
            400,
            "MalformedXML",
        ),
        (
            "cors",
            "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin>\
            <AllowedMethod>STEAL</AllowedMethod></CORSRule></CORSConfiguration>",
            400,
            "InvalidRequest",
        ),
        (
            "lifecycle",
            "<LifecycleConfiguration><Rule><Status>Enabled</Status><Filter/>\
            <Expiration><Days>-1</Days></Expiration></Rule></LifecycleConfiguration>",
            400,
            "InvalidArgument",
        ),
        ("object-lock", "<ObjectLockConfiguration/>", 400, "MalformedXML"),
    ];
    for (call, document, status, code) in odd {
        cases.push(refused(format!("{call}: {document}"), status, code, move |world| {
            world.signed(world.path("PUT", "/malformed").query(call, "").body(document))
        }));
    }
    cases
}

fn delete(world: &World, document: String) -> Request {
    use base64::prelude::{BASE64_STANDARD, Engine as _};
    use md5::{Digest as _, Md5};
    let digest = BASE64_STANDARD.encode(Md5::digest(document.as_bytes()));
    let request = world.path("POST", "/malformed").query("delete", "").body(document);
    world.signed(request.header("content-md5", digest))
}

fn keys(count: usize) -> String {
    let objects: String =
        (0..count).map(|n| format!("<Object><Key>absent-{n}</Key></Object>")).collect();
    format!("<Delete>{objects}</Delete>")
}

fn laughs() -> String {
    let mut entities = String::from("<!ENTITY a0 \"ha\">");
    for level in 1..=9 {
        let inner = format!("&a{};", level - 1).repeat(10);
        entities.push_str(&format!("<!ENTITY a{level} \"{inner}\">"));
    }
    format!("<!DOCTYPE D [{entities}]><Delete><Object><Key>&a9;</Key></Object></Delete>")
}

fn quadratic() -> String {
    let entity = format!("<!ENTITY a \"{}\">", "x".repeat(50_000));
    let uses = "&a;".repeat(50_000);
    format!("<!DOCTYPE D [{entity}]><Delete><Object><Key>{uses}</Key></Object></Delete>")
}

fn external(system: &str) -> String {
    format!(
        "<!DOCTYPE D [<!ENTITY x SYSTEM \"{system}\">]>\
         <Delete><Object><Key>&x;</Key></Object></Delete>"
    )
}

fn parameter_entity() -> String {
    "<!DOCTYPE D [<!ENTITY % p SYSTEM \"http://127.0.0.1:1/\"> %p;]><Delete/>".to_owned()
}

fn attributes() -> String {
    let attributes: String = (0..100_000).map(|n| format!(" a{n}=\"\"")).collect();
    format!("<Delete{attributes}></Delete>")
}
