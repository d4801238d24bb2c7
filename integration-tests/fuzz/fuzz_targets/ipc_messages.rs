//! What peers say at the door of a host: whatever is understood is the same when said again.
#![no_main]

use libfuzzer_sys::fuzz_target;

use message::{BYTES, Message};

// Private to its crate, and compiled here once more.
#[allow(dead_code)]
#[path = "../../../dataplane/fabric/src/ipc/message.rs"]
mod message;

fuzz_target!(|bytes: &[u8]| {
    let _ = Message::decode(bytes);
    let mut whole = [0; BYTES];
    let length = bytes.len().min(BYTES);
    whole[..length].copy_from_slice(&bytes[..length]);
    if let Ok(message) = Message::decode(&whole) {
        assert_eq!(Message::decode(&message.encode()), Ok(message));
    }
});
