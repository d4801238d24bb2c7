//! A proxy between clients and the gateway that notes the RDMA tokens which pass it: when a
//! transfer begins, and which keys it has.
//!
//! It copies bytes as they are, so that signatures hold; clients sign its own address.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use anyhow::Result;
use keyway_proto::SessionToken;
use tokio::sync::mpsc;

const HEADER: &[u8] = b"x-amz-rdma-token: ";
/// A header may arrive in two pieces: so much of the last piece is looked at again.
const TAIL_BYTES: usize = 4096;

/// The proxy. Its threads end with its clients and with the process.
pub(crate) struct Wiretap {
    pub(crate) url: String,
    tokens: Arc<Mutex<BTreeSet<String>>>,
    passed: mpsc::UnboundedReceiver<String>,
}

impl Wiretap {
    /// A proxy for the service at `http://…`.
    pub(crate) fn of(url: &str) -> Result<Self> {
        let upstream: SocketAddr = url.trim_start_matches("http://").parse()?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        let tokens: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let (passes, passed) = mpsc::unbounded_channel();
        let seen = Arc::clone(&tokens);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // A gateway that is down is, to the client, a connection that breaks.
                let Ok(service) = TcpStream::connect(upstream) else { continue };
                let Ok((back_from, back_to)) = both(&service, &client) else { continue };
                std::thread::spawn(move || copy(back_from, back_to, |_| {}));
                let (seen, passes) = (Arc::clone(&seen), passes.clone());
                let mut recent = Vec::new();
                let note = move |bytes: &[u8]| {
                    recent.extend_from_slice(bytes);
                    let mut seen = seen.lock().expect("nobody panics with the tokens");
                    for token in tokens_in(&recent) {
                        if seen.insert(token.clone()) {
                            let _ = passes.send(token);
                        }
                    }
                    recent.drain(..recent.len().saturating_sub(TAIL_BYTES));
                };
                std::thread::spawn(move || copy(client, service, note));
            }
        });
        Ok(Self { url, tokens, passed })
    }

    /// Forgets that tokens passed, though not which.
    pub(crate) fn clear(&mut self) {
        while self.passed.try_recv().is_ok() {}
    }

    /// Waits for the next token.
    pub(crate) async fn passes(&mut self) -> Option<String> {
        self.passed.recv().await
    }

    /// What must be in no log: the tokens, and their keys as anybody would write them.
    pub(crate) fn secrets(&self) -> BTreeSet<String> {
        let tokens = self.tokens.lock().expect("nobody panics with the tokens");
        let mut secrets = BTreeSet::new();
        for text in tokens.iter() {
            secrets.insert(text.clone());
            let token: SessionToken = text.parse().expect("it comes from our client");
            for window in token.windows() {
                let key = window.key.0;
                secrets.extend([format!("{key:08x}"), format!("{key:08X}"), format!("0x{key:x}")]);
                // Fewer digits stand in logs for other reasons.
                secrets.extend((key >= 100_000).then(|| key.to_string()));
            }
        }
        secrets
    }
}

fn both(one: &TcpStream, other: &TcpStream) -> std::io::Result<(TcpStream, TcpStream)> {
    Ok((one.try_clone()?, other.try_clone()?))
}

fn copy(mut from: TcpStream, mut to: TcpStream, mut note: impl FnMut(&[u8])) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        note(&bytes[..length]);
        if to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    // Whoever went, the other side learns of it.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// The tokens in a piece of HTTP/1.1 that end in it.
fn tokens_in(bytes: &[u8]) -> Vec<String> {
    let starts = bytes.windows(HEADER.len()).enumerate();
    let starts = starts.filter(|(_, window)| window.eq_ignore_ascii_case(HEADER));
    let tokens = starts.filter_map(|(at, _)| {
        let value = &bytes[at + HEADER.len()..];
        let end = value.iter().position(|byte| *byte == b'\r')?;
        String::from_utf8(value[..end].to_vec()).ok()
    });
    tokens.collect()
}
