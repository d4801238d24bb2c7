//! Rows of the metadata store, damaged: requests fail or not, nothing panics, and no row is
//! read as something that was never written outside of its own object.
#![no_main]

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use keyway_fuzz::Gateway;
use keyway_fuzz::gateway::BUCKET;
use keyway_fuzz::wire::Request;
use keyway_meta::{Batch, MetaStore};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let mut gateway = Gateway::new();
    let store = gateway.metadata.clone();
    let rows = now(store.scan(&[], &[0xff; 8], 100)).expect("memory does not fail");
    let (key, value) = &rows[usize::from(choice) % rows.len()];
    let damaged: Vec<u8> = if choice < 128 {
        bytes.to_vec()
    } else {
        // Flips single bits of a valid row: damage that leaves the outer form intact.
        let flips = bytes.iter().chain(std::iter::repeat(&0));
        value.iter().zip(flips).map(|(byte, flip)| byte ^ flip).collect()
    };
    let mut batch = Batch::default();
    batch.put(key.clone(), Bytes::from(damaged));
    now(store.commit(batch)).expect("memory does not fail");

    let upload = gateway.upload.clone();
    for request in [
        Request::object("GET", BUCKET, "key"),
        Request::object("HEAD", BUCKET, "key"),
        Request::new("GET", format!("/{BUCKET}")).query("list-type", "2"),
        Request::new("GET", format!("/{BUCKET}")).query("uploads", ""),
        Request::new("GET", "/"),
        Request::object("GET", BUCKET, "key").query("uploadId", &upload),
        Request::object("PUT", BUCKET, "key").body("again"),
        Request::object("DELETE", BUCKET, "key").query("uploadId", &upload),
        Request::object("DELETE", BUCKET, "key"),
        Request::new("DELETE", format!("/{BUCKET}")),
    ] {
        let _ = gateway.call_signed(request);
    }
});

/// The result of a future that does not wait: memory answers at once.
fn now<F: Future>(future: F) -> F::Output {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the store in memory waited"),
    }
}
