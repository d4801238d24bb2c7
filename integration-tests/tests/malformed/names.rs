//! Names of buckets and keys, methods, and listing parameters.

use super::case::{Case, Expect, Step, WHOLE, refused, scripted};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = buckets();
    cases.extend(keys());
    cases.extend(methods());
    cases.extend(listings());
    cases
}

fn buckets() -> Vec<Case> {
    let names = [
        "ab",
        "UPPER",
        "under_score",
        "-dash",
        "dash-",
        ".dot",
        "dot.",
        "two..dots",
        "192.168.0.1",
        "_keyway",
        "sp%20ace",
        "n%00ul",
        "xn--puny",
        "%2e%2e",
    ];
    let mut cases: Vec<Case> = names
        .into_iter()
        .map(|name| {
            refused(format!("bucket name {name}"), 400, "InvalidBucketName", move |world| {
                world.signed(world.path("PUT", &format!("/{name}")))
            })
        })
        .collect();
    cases.push(refused("bucket name of 64 letters", 400, "InvalidBucketName", |world| {
        world.signed(world.path("PUT", &format!("/{}", "b".repeat(64))))
    }));
    for (verb, method) in [("listed", "GET"), ("deleted", "DELETE")] {
        cases.push(refused(format!("no such bucket, {verb}"), 404, "NoSuchBucket", move |world| {
            world.signed(world.path(method, "/nosuch-bucket"))
        }));
    }
    cases.push(refused("no such bucket, written to", 404, "NoSuchBucket", |world| {
        world.signed(world.path("PUT", "/nosuch-bucket/key").body("x"))
    }));
    cases.push(refused("a bucket that is not empty, deleted", 409, "BucketNotEmpty", |world| {
        world.signed(world.path("DELETE", "/malformed"))
    }));
    cases
}

fn keys() -> Vec<Case> {
    let mut cases = vec![
        refused("a key of 1,025 bytes", 400, "KeyTooLongError", |world| {
            world.signed(world.object("PUT", &"k".repeat(1_025)).body("x"))
        }),
        refused("a key of 1,025 bytes in fewer letters", 400, "KeyTooLongError", |world| {
            world.signed(world.object("PUT", &format!("{}k", "ü".repeat(512))).body("x"))
        }),
        // A key of exactly 1,024 bytes is fine, and it is not there.
        refused("a key of 1,024 bytes, absent", 404, "NoSuchKey", |world| {
            world.signed(world.object("GET", &"k".repeat(1_024)))
        }),
    ];
    for escape in ["%ff", "a%c3%28", "%fe%fe%ff", "%c0%af", "%ed%a0%80"] {
        cases.push(refused(
            format!("a key that is not UTF-8: {escape}"),
            400,
            "InvalidURI",
            move |world| world.signed(world.path("PUT", &format!("/malformed/{escape}")).body("x")),
        ));
    }
    // Signed as it stands, which no other reading of it is.
    for escape in ["%", "%2", "%zz"] {
        let name = format!("a broken escape: {escape}");
        cases.push(refused(name, 403, "SignatureDoesNotMatch", move |world| {
            world.signed(world.path("PUT", &format!("/malformed/{escape}")).body("x"))
        }));
    }
    // Path tricks: keys are names, not paths. They are not there, and nothing else is either.
    for key in
        ["../whole", "./whole", "a/../whole", "/whole", "//", "..", "%252e%252e/whole", "whole/"]
    {
        cases.push(refused(format!("a key as a path: {key}"), 404, "NoSuchKey", move |world| {
            world.signed(world.object("GET", key))
        }));
    }
    cases.push(scripted("a target that is no path", Expect::RefusedOrClosed, |world| {
        let head = format!("GET whole HTTP/1.1\r\nhost: {}\r\n\r\n", world.address);
        vec![Step::Send(head.into_bytes())]
    }));
    cases
}

fn methods() -> Vec<Case> {
    let mut cases: Vec<Case> = ["PATCH", "TRACE", "CONNECT", "PROPFIND", "BREW", "get"]
        .into_iter()
        .map(|method| {
            refused(format!("method {method}"), 405, "MethodNotAllowed", move |world| {
                world.signed(world.object(method, WHOLE))
            })
        })
        .collect();
    cases.push(refused("POST on an object", 501, "NotImplemented", |world| {
        world.signed(world.object("POST", WHOLE).body("x"))
    }));
    cases.push(refused("PUT on the root", 501, "NotImplemented", |world| {
        world.signed(world.path("PUT", "/"))
    }));
    cases.push(refused("an operation that is not there yet", 501, "NotImplemented", |world| {
        world.signed(world.path("GET", "/malformed").query("inventory", "").query("id", "1"))
    }));
    cases
}

fn listings() -> Vec<Case> {
    let parameters: [(&str, &str); 7] = [
        ("max-keys", "all"),
        ("max-keys", "-1"),
        ("max-keys", "99999999999999999999"),
        ("encoding-type", "rot13"),
        ("continuation-token", "not a token"),
        ("continuation-token", "AAAAAAAA"),
        ("continuation-token", ""),
    ];
    parameters
        .into_iter()
        .map(|(name, value)| {
            refused(format!("listing with {name}={value}"), 400, "InvalidArgument", move |world| {
                let request = world.path("GET", "/malformed").query("list-type", "2");
                world.signed(request.query(name, value))
            })
        })
        .collect()
}
