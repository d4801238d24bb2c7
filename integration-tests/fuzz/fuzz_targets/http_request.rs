//! Whole requests, as text: `METHOD TARGET`, header lines, a blank line, the body. Signed
//! unless `x-fuzz: unsigned` is among the headers, so that mutations get past the signature.
//! The server may refuse them all, with anything but a failure of its own.
#![no_main]

use std::cell::RefCell;

use keyway_fuzz::Gateway;
use keyway_fuzz::wire::Request;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static GATEWAY: RefCell<Gateway> = RefCell::new(Gateway::new());
}

fuzz_target!(|bytes: &[u8]| {
    let (head, body) = match bytes.windows(2).position(|pair| pair == b"\n\n") {
        Some(at) => (&bytes[..at], &bytes[at + 2..]),
        None => (bytes, &b""[..]),
    };
    let Ok(head) = std::str::from_utf8(head) else { return };
    let mut lines = head.lines();
    let Some((method, target)) = lines.next().and_then(|line| line.split_once(' ')) else { return };
    GATEWAY.with_borrow_mut(|gateway| {
        gateway.renew();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request = Request::new(method, path).body(body);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = if value == "UPLOAD" { gateway.upload.clone() } else { value.to_owned() };
            request = request.query(name, value);
        }
        for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
            request = request.header(name, value);
        }
        let unsigned = request.value("x-fuzz").is_some();
        let answer =
            if unsigned { gateway.call(&request) } else { gateway.call_signed(request) };
        if let Some((status, body)) = answer {
            let text = String::from_utf8_lossy(&body);
            assert!(status != 500, "a failure of the server's own: {text}");
        }
    });
});
