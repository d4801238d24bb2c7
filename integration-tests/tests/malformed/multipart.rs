//! Multipart uploads: parts that do not fit together, and uploads that are none.

use keyway_integration_tests::s3::completion;
use keyway_integration_tests::wire::Request;

use super::case::{Case, World, refused};

/// The ETag of no part of the upload.
const FOREIGN: &str = "\"00000000000000000000000000000000\"";

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = completions();
    cases.extend(numbers());
    cases.extend(unknown());
    cases
}

fn complete(world: &World, parts: &[(u32, String)]) -> Request {
    let request = world.object("POST", "upload").query("uploadId", &world.upload);
    world.signed(request.body(completion(parts)))
}

fn completions() -> Vec<Case> {
    type Parts = fn(&World) -> Vec<(u32, String)>;
    let lists: [(&str, Parts, &'static str); 10] = [
        (
            "parts exchanged",
            |w| vec![(2, w.parts[1].clone()), (1, w.parts[0].clone())],
            "InvalidPartOrder",
        ),
        (
            "a part twice",
            |w| vec![(1, w.parts[0].clone()), (1, w.parts[0].clone())],
            "InvalidPartOrder",
        ),
        (
            "a part never uploaded",
            |w| vec![(1, w.parts[0].clone()), (3, w.parts[1].clone())],
            "InvalidPart",
        ),
        ("a foreign etag", |_| vec![(1, FOREIGN.to_owned())], "InvalidPart"),
        (
            "etags exchanged",
            |w| vec![(1, w.parts[1].clone()), (2, w.parts[0].clone())],
            "InvalidPart",
        ),
        ("an empty etag", |_| vec![(1, String::new())], "InvalidPart"),
        ("no parts", |_| vec![], "MalformedXML"),
        ("part 0", |w| vec![(0, w.parts[0].clone())], "InvalidArgument"),
        ("part 10,001", |w| vec![(10_001, w.parts[0].clone())], "InvalidArgument"),
        (
            "10,001 parts",
            |w| (1..=10_001).map(|n| (n, w.parts[0].clone())).collect(),
            "MalformedXML",
        ),
    ];
    let mut cases: Vec<Case> = lists
        .into_iter()
        .map(|(name, parts, code)| {
            refused(format!("completion of {name}"), 400, code, move |world| {
                complete(world, &parts(world))
            })
        })
        .collect();
    cases.push(refused("completion with a part number in words", 400, "MalformedXML", |world| {
        let request = world.object("POST", "upload").query("uploadId", &world.upload);
        let part =
            format!("<Part><PartNumber>one</PartNumber><ETag>{}</ETag></Part>", world.parts[0]);
        let document = format!("<CompleteMultipartUpload>{part}</CompleteMultipartUpload>");
        world.signed(request.body(document))
    }));
    cases.push(refused(
        "completion with a small part in the middle",
        400,
        "EntityTooSmall",
        |world| {
            // Part 2 has 1 KiB; a third after it makes it one in the middle. The listing of
            // uploads at the table's end shows the same upload: only a part was added.
            let part = world.object("PUT", "upload").query("partNumber", "3");
            let part = world.signed(part.query("uploadId", &world.upload).body("end"));
            let response = keyway_integration_tests::wire::Connection::open(world.address)
                .and_then(|mut connection| connection.exchange(&part))
                .expect("the part is stored");
            let etag = response.header("etag").expect("a stored part has an ETag").to_owned();
            complete(world, &[(1, world.parts[0].clone()), (2, world.parts[1].clone()), (3, etag)])
        },
    ));
    cases
}

fn numbers() -> Vec<Case> {
    let mut cases: Vec<Case> = ["0", "10001", "-1", "one", "", "99999999999999999999"]
        .into_iter()
        .map(|number| {
            refused(format!("part number {number:?}"), 400, "InvalidArgument", move |world| {
                let request = world.object("PUT", "upload").query("partNumber", number);
                world.signed(request.query("uploadId", &world.upload).body("x"))
            })
        })
        .collect();
    for (name, parameter, value) in [
        ("max-parts in words", "max-parts", "all"),
        ("max-parts negative", "max-parts", "-1"),
        ("part marker in words", "part-number-marker", "first"),
    ] {
        cases.push(refused(name, 400, "InvalidArgument", move |world| {
            let request = world.object("GET", "upload").query("uploadId", &world.upload);
            world.signed(request.query(parameter, value))
        }));
    }
    cases
}

fn unknown() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, upload) in [
        ("never made", "00000000-0000-7000-8000-000000000000"),
        ("of another shape", "../../etc/passwd"),
        ("of 10,000 letters", "u"),
        ("empty", ""),
    ] {
        let upload =
            if name.starts_with("of 10,000") { upload.repeat(10_000) } else { upload.to_owned() };
        for (verb, method) in [("completed", "POST"), ("aborted", "DELETE"), ("listed", "GET")] {
            let upload = upload.clone();
            cases.push(refused(
                format!("an upload {name}, {verb}"),
                404,
                "NoSuchUpload",
                move |world| {
                    let body = if method == "POST" {
                        completion(&[(1, FOREIGN.to_owned())])
                    } else {
                        String::new()
                    };
                    world.signed(
                        world.object(method, "upload").query("uploadId", &upload).body(body),
                    )
                },
            ));
        }
        cases.push(refused(
            format!("a part of an upload {name}"),
            404,
            "NoSuchUpload",
            move |world| {
                let request = world.object("PUT", "upload").query("partNumber", "1");
                world.signed(request.query("uploadId", &upload).body("x"))
            },
        ));
    }
    cases.push(refused("an upload of another key", 404, "NoSuchUpload", |world| {
        let request = world.object("POST", "other-key").query("uploadId", &world.upload);
        world.signed(request.body(completion(&[(1, world.parts[0].clone())])))
    }));
    cases
}
