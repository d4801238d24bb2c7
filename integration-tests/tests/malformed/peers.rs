//! Peers that are slow, leave early, or speak something else.

use std::time::Duration;

use keyway_integration_tests::sigv4::UNSIGNED;

use super::case::{Case, Expect, Step, WHOLE, World, scripted};

/// Between the bytes of a slow peer: far more bytes than fit into the server's patience.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = hang_ups();
    cases.extend(slow());
    cases.extend(foreign());
    cases
}

/// The head of a PUT that announces `length` bytes.
fn put_head(world: &World, key: &str, length: usize) -> Vec<u8> {
    let mut request = world.object("PUT", key);
    world.signer().sign_payload(&mut request, UNSIGNED);
    request.set("content-length", length.to_string());
    request.head()
}

fn hang_ups() -> Vec<Case> {
    let sizes = [(1, 0), (1_000, 999), (1 << 20, 4_096), (6 << 20, (6 << 20) - 1)];
    let mut cases: Vec<Case> = sizes
        .into_iter()
        .map(|(announced, sent)| {
            let name = format!("hang-up after {sent} of {announced} bytes");
            scripted(name, Expect::RefusedOrClosed, move |world| {
                let mut bytes = put_head(world, "half", announced);
                bytes.resize(bytes.len() + sent, b'x');
                vec![Step::Send(bytes), Step::HangUp]
            })
        })
        .collect();
    cases.push(scripted("hang-up within the head", Expect::RefusedOrClosed, |world| {
        let head = put_head(world, "half", 10);
        vec![Step::Send(head[..head.len() / 2].to_vec()), Step::HangUp]
    }));
    cases.push(scripted("hang-up within a part", Expect::RefusedOrClosed, |world| {
        let mut request =
            world.object("PUT", "upload").query("partNumber", "9").query("uploadId", &world.upload);
        world.signer().sign_payload(&mut request, UNSIGNED);
        request.set("content-length", "1000000");
        let mut bytes = request.head();
        bytes.resize(bytes.len() + 500_000, b'x');
        vec![Step::Send(bytes), Step::HangUp]
    }));
    cases.push(scripted("hang-up within an HTTP chunk", Expect::RefusedOrClosed, |world| {
        let mut request = world.object("PUT", "half").header("x-amz-decoded-content-length", "10");
        world.signer().sign_payload(&mut request, UNSIGNED);
        request.set("transfer-encoding", "chunked");
        let mut bytes = request.head();
        bytes.extend_from_slice(b"a\r\nhello");
        vec![Step::Send(bytes), Step::HangUp]
    }));
    cases.push(scripted("hang-up at once", Expect::RefusedOrClosed, |_| vec![Step::HangUp]));
    cases
}

fn slow() -> Vec<Case> {
    vec![
        scripted("a head, byte by byte", Expect::RefusedOrClosed, |world| {
            vec![Step::Dribble(put_head(world, "slow", 1)[..100].to_vec(), PAUSE)]
        }),
        scripted("a body, byte by byte", Expect::RefusedOrClosed, |world| {
            vec![Step::Send(put_head(world, "slow", 1_000)), Step::Dribble(vec![b'x'; 100], PAUSE)]
        }),
        scripted("a body that never comes", Expect::RefusedOrClosed, |world| {
            vec![Step::Send(put_head(world, "slow", 1_000))]
        }),
        scripted("a body that stops halfway", Expect::RefusedOrClosed, |world| {
            let mut bytes = put_head(world, "slow", 1_000_000);
            bytes.resize(bytes.len() + 500_000, b'x');
            vec![Step::Send(bytes)]
        }),
    ]
}

fn foreign() -> Vec<Case> {
    let preambles: [(&str, Vec<u8>); 7] = [
        (
            "a TLS hello on the plaintext port",
            vec![0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0, 13, 10, 13, 10],
        ),
        ("zeroes", vec![0; 4_096]),
        ("HTTP/0.9", b"GET /\r\n\r\n".to_vec()),
        ("HTTP/3.0", b"GET / HTTP/3.0\r\n\r\n".to_vec()),
        ("a line without end", vec![b'A'; 1 << 20]),
        ("half an HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nXX".to_vec()),
        (
            "an HTTP/2 preface and noise",
            [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0xff; 64]].concat(),
        ),
    ];
    let mut cases: Vec<Case> = preambles
        .into_iter()
        .map(|(name, bytes)| {
            scripted(name, Expect::RefusedOrClosed, move |_| {
                vec![Step::Send(bytes.clone()), Step::HangUp]
            })
        })
        .collect();
    cases.push(scripted("an expectation that is none", Expect::RefusedOrClosed, |world| {
        let request = world.signed(world.object("PUT", "expect")).header("expect", "miracles");
        vec![Step::Send(request.header("content-length", "5").head())]
    }));
    cases.push(scripted("a protocol upgrade with a body", Expect::RefusedOrClosed, |world| {
        let request = world.object("GET", WHOLE).header("connection", "upgrade");
        vec![Step::Send(request.header("upgrade", "websocket").bytes())]
    }));
    cases
}
