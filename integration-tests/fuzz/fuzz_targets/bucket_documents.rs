//! The documents that a bucket or an object is given: the first byte chooses which. What was taken
//! is read back, and what decides by it is asked: CORS, policies, tags, locks.
#![no_main]

use std::cell::RefCell;

use keyway_fuzz::Gateway;
use keyway_fuzz::gateway::BUCKET;
use keyway_fuzz::wire::Request;
use libfuzzer_sys::fuzz_target;

/// Sub-resources that a document is put to: of the bucket, and of its object.
const OF_BUCKET: [&str; 11] = [
    "cors", "lifecycle", "tagging", "policy", "publicAccessBlock", "ownershipControls", "acl",
    "object-lock", "versioning", "encryption", "notification",
];
const OF_OBJECT: [&str; 4] = ["tagging", "acl", "retention", "legal-hold"];

thread_local! {
    static GATEWAY: RefCell<Gateway> = RefCell::new(Gateway::new());
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, body)) = bytes.split_first() else { return };
    let choice = usize::from(choice) % (OF_BUCKET.len() + OF_OBJECT.len());
    let at = |method: &str| match OF_BUCKET.get(choice) {
        Some(name) => Request::new(method, format!("/{BUCKET}")).query(name, ""),
        None => Request::object(method, BUCKET, "key").query(OF_OBJECT[choice - OF_BUCKET.len()], ""),
    };
    GATEWAY.with_borrow_mut(|gateway| {
        gateway.renew();
        let Some(taken) = called(gateway, at("PUT").body(body)) else { return };
        if taken != 200 && taken != 204 {
            return;
        }
        // Whatever the document allows: it can be told again, and decides.
        called(gateway, at("GET"));
        let preflight = Request::object("OPTIONS", BUCKET, "key")
            .header("host", "localhost")
            .header("origin", "https://app.example")
            .header("access-control-request-method", "PUT")
            .header("access-control-request-headers", "x-amz-meta-a,content-type");
        sound(gateway.call(&preflight));
        sound(gateway.call(&Request::object("GET", BUCKET, "key").header("host", "localhost")));
        called(gateway, Request::object("PUT", BUCKET, "other").body("value"));
        called(gateway, Request::object("DELETE", BUCKET, "other"));
        called(gateway, at("DELETE"));
    });
});

fn called(gateway: &mut Gateway, request: Request) -> Option<u16> {
    sound(gateway.call_signed(request))
}

/// The server may refuse, but not fail.
fn sound(answer: Option<(u16, Vec<u8>)>) -> Option<u16> {
    let (status, body) = answer?;
    assert!(status != 500, "a failure of the server's own: {}", String::from_utf8_lossy(&body));
    Some(status)
}
