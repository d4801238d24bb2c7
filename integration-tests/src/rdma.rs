//! Tests that need RDMA adapters, and where they find them.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::skip::skipped;

/// Whether there is no adapter to test with, which is said. In the soft-RoCE machine there
/// must be.
///
/// # Panics
/// In the machine, when its adapters are missing.
pub fn is_missing() -> bool {
    if std::env::var_os("KEYWAY_RXE").is_some() {
        let found = std::path::Path::new("/sys/class/infiniband/rxe1").exists();
        assert!(found, "the machine's adapters are missing");
        return false;
    }
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    skipped(test, "no soft-RoCE adapters here; make test-rdma runs this in its machine");
    true
}

/// Whether this is the machine with Debian's own module, on which less has to be shown again.
pub fn is_stock() -> bool {
    std::env::var_os("KEYWAY_RXE").is_some_and(|module| module == "stock")
}

/// Counts the RoCE packets of a traffic class that an interface of the machine receives.
pub struct TosCounter(&'static str);

impl TosCounter {
    /// Begins to count.
    ///
    /// # Errors
    /// When `tc` refuses.
    pub fn new(interface: &'static str, class: u8) -> Result<Self> {
        tc(&["qdisc", "replace", "dev", interface, "clsact"])?;
        let counter = Self(interface);
        let (on, class) = (["dev", interface, "ingress", "protocol", "ip"], format!("{class:#x}"));
        let matches = ["match", "ip", "tos", &class, "0xff", "match", "ip", "dport", "4791"];
        let filter = [&["filter", "add"], &on[..], &["u32"], &matches, &["0xffff"]].concat();
        tc(&[&filter[..], &["action", "pass"]].concat())?;
        Ok(counter)
    }

    /// Packets so far.
    ///
    /// # Errors
    /// When `tc` says something else.
    pub fn packets(&self) -> Result<u64> {
        let said = tc(&["-s", "filter", "show", "dev", self.0, "ingress"])?;
        let words: Vec<_> = said.split_whitespace().collect();
        let sent = words.windows(5).find(|words| words[0] == "Sent" && words[4] == "pkt");
        let sent = sent.with_context(|| format!("no counter in {said}"))?;
        Ok(sent[3].parse()?)
    }
}

impl Drop for TosCounter {
    fn drop(&mut self) {
        let removed = tc(&["qdisc", "del", "dev", self.0, "clsact"]);
        assert!(removed.is_ok() || std::thread::panicking(), "a counter stays: {removed:?}");
    }
}

/// Runs the machine's copy of `tc`, which an ordinary user may.
fn tc(arguments: &[&str]) -> Result<String> {
    let ran = Command::new("/run/keyway-vm/bin/tc").args(arguments).output()?;
    ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    Ok(String::from_utf8(ran.stdout)?)
}
