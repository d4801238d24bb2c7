//! Bodies in `aws-chunked` coding. The first byte chooses the form of signature and what is
//! declared; `#` in the body stands for the next correct chunk signature of what follows.
#![no_main]

use std::cell::RefCell;

use keyway_fuzz::Gateway;
use keyway_fuzz::gateway::BUCKET;
use keyway_fuzz::sigv4::{STREAMING, STREAMING_TRAILER, Signer, UNSIGNED_TRAILER};
use keyway_fuzz::wire::Request;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static GATEWAY: RefCell<Gateway> = RefCell::new(Gateway::new());
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, body)) = bytes.split_first() else { return };
    let form = [STREAMING, STREAMING_TRAILER, UNSIGNED_TRAILER][usize::from(choice % 3)];
    let declared = u64::from(choice / 3);
    GATEWAY.with_borrow_mut(|gateway| {
        gateway.renew();
        let mut request = Request::object("PUT", BUCKET, "chunked")
            .header("host", "localhost")
            .header("content-encoding", "aws-chunked")
            .header("x-amz-decoded-content-length", declared.to_string());
        if form != STREAMING {
            request = request.header("x-amz-trailer", "x-amz-checksum-crc32");
        }
        let signer = Signer::new(&gateway.credentials);
        let seed = signer.sign_payload(&mut request, form);
        request.body = signed(&signer, &seed, body);
        request.set("content-length", request.body.len().to_string());
        if let Some((status, answer)) = gateway.call(&request) {
            let text = String::from_utf8_lossy(&answer);
            assert!(status != 500, "a failure of the server's own: {text}");
        }
    });
});

/// Replaces each `#` by the signature of the line after its own.
fn signed(signer: &Signer, seed: &str, body: &[u8]) -> Vec<u8> {
    let mut previous = seed.to_owned();
    let mut out = Vec::new();
    for (at, &byte) in body.iter().enumerate() {
        if byte != b'#' {
            out.push(byte);
            continue;
        }
        let mut lines = body[at + 1..].split(|byte| *byte == b'\n').skip(1);
        let line = lines.next().unwrap_or_default();
        let data = line.strip_suffix(b"\r").unwrap_or(line);
        previous = signer.chunk_signature(&previous, data);
        out.extend_from_slice(previous.as_bytes());
    }
    out
}
