//! Goal: neither tokens nor the keys and addresses in them are in any log, at any level.
//! Method: everything that the process logs at `TRACE` while transfers succeed, are declined,
//! are refused and fail, on one thread, whose subscriber keeps it.

use std::io::Write;
use std::sync::Arc;

use keyway_auth::sigv4::Payload;
use keyway_dataplane::DirectError;
use keyway_proto::key::Relinquished;
use parking_lot::Mutex;
use tracing_subscriber::fmt::MakeWriter;

use super::Direct;
use crate::direct_node::Fault;

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Kept {
    type Writer = Self;

    fn make_writer(&'w self) -> Self {
        self.clone()
    }
}

#[tokio::test(flavor = "current_thread")]
async fn tokens_and_keys_are_not_logged() {
    let kept = Kept::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(kept.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    tracing::trace!("the subscriber keeps what is logged");

    let direct = Direct::start().await;
    direct.server.put("/bucket/key").body("abc").send().await.expect(200);
    let mut planted = Vec::new();
    for fault in [
        None,
        Some(Fault::Fails(DirectError::Link("it broke".into()), Relinquished::Fenced)),
        Some(Fault::Altered),
        Some(Fault::Restarts),
    ] {
        for write in [false, true] {
            let (token, _) = direct.node.arm(direct.session, &[3]);
            if let Some(fault) = fault.clone() {
                direct.node.fail_next(fault);
            }
            let call = if write {
                direct.put("/bucket/other", &token)
            } else {
                direct.get("/bucket/key", &token)
            };
            call.send().await;
            planted.push(token);
        }
    }
    let (token, _) = direct.node.arm(direct.session, &[3]);
    let text = token.encode();
    for bad in [format!("{text}0"), text.to_uppercase()] {
        let call = direct.server.put("/bucket/key").payload(Payload::Unsigned);
        call.header("x-amz-rdma-token", &bad).send().await.refused(400, "InvalidRDMAToken");
    }
    let unsigned = direct.server.get("/bucket/key").unsigned_header("x-amz-rdma-token", &text);
    unsigned.send().await.refused(403, "AccessDenied");
    planted.push(token);

    let log = String::from_utf8_lossy(&kept.0.lock()).into_owned();
    assert!(log.contains("the subscriber keeps what is logged"));
    assert!(log.contains("it broke"), "failures are logged: {log}");
    for token in planted {
        let window = token.windows()[0];
        let (key, address) = (window.key.0, window.address);
        let shown = [
            token.encode(),
            format!("{key:08x}"),
            key.to_string(),
            format!("{address:016x}"),
            address.to_string(),
        ];
        for secret in shown {
            assert!(!log.contains(&secret), "{secret} was logged");
            assert!(!log.contains(&secret.to_uppercase()), "{secret} was logged");
        }
    }
}
