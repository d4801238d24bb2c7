//! Tests that need RDMA adapters, and where they find them.

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
