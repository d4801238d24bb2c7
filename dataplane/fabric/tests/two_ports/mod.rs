//! The two ports of the soft-RoCE machine, which packets really travel between.

use std::io::Write as _;
use std::sync::Arc;

use keyway_fabric::verbs::{Device, Port};
use keyway_sys::verbs::Verbs;

/// The two ports of the machine.
pub(crate) fn ports() -> Option<(Port, Port)> {
    let (verbs, first, second) = devices()?;
    Some((open(&verbs, &first), open(&verbs, &second)))
}

/// Their devices.
pub(crate) fn devices() -> Option<(Arc<Verbs>, String, String)> {
    let verbs = match Verbs::load() {
        Ok(verbs) => Arc::new(verbs),
        Err(error) => return missing(&error.to_string()),
    };
    let names = verbs.device_names().unwrap_or_default();
    let [first, second, ..] = &names[..] else {
        return missing("no two RDMA devices here");
    };
    let (first, second) = (first.clone(), second.clone());
    Some((verbs, first, second))
}

/// A device's first port.
pub(crate) fn open(verbs: &Arc<Verbs>, name: &str) -> Port {
    Port::open(&Device::open(verbs, name).unwrap(), 1).unwrap()
}

/// Outside of the machine a test is skipped; in it, the adapters must be there.
fn missing<T>(why: &str) -> Option<T> {
    assert!(std::env::var_os("KEYWAY_RXE").is_none(), "{why}");
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // Past the runner's capture, so that it is seen and counted on a passing run.
    let said = format!("\nskipped: {test}: {why}; make test-rdma runs this in its machine\n");
    let _ = std::io::stderr().write_all(said.as_bytes());
    None
}
