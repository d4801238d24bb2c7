//! What is set for the nodes of these tests, and what the kernel holds of an adapter.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use keyway_integration_tests::process::{self, Process};

/// What is set for every node of these tests.
pub(crate) fn node_settings() -> Vec<String> {
    [
        "--set=node.rdma={ mode = \"require\", devices = [\"rxe0\"] }",
        "--set=node.store.volume_bytes=134217728",
    ]
    .map(String::from)
    .into()
}

/// `keyway serve`: gateway, node and metadata in one process.
pub(crate) fn serve(dir: &Path, log_filter: &str) -> Result<Process> {
    let mut settings = node_settings();
    settings.push(format!("--set=telemetry.log_filter={log_filter}"));
    process::serve(dir, &settings)
}

/// What the kernel holds of an adapter, as `rdma resource` counts it.
pub(crate) fn kernel_holds(device: &str) -> Result<String> {
    let output = Command::new("resources").output().context("resources")?;
    let text = String::from_utf8(output.stdout)?;
    let line = text.lines().find(|line| line.starts_with(device));
    Ok(line.with_context(|| format!("no {device} in {text:?}"))?.to_owned())
}

/// Waits until the kernel holds what it held when the machine had started, but for what resolving
/// paths leaves with this process.
pub(crate) fn kernel_is_idle() -> Result<()> {
    let output =
        Command::new("resources").args(["idle", "40", "resolver"]).output().context("resources")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
