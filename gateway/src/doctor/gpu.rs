//! GPUs: what they are, and how objects get into their memory.

use keyway_dataplane::direct::{Gpu, GpuError, GpuInfo, PortReport};
use keyway_proto::TransferPath;
use keyway_proto::unit::GIB;

use super::{Finding, PathChoice, chain};

const NONE: &str = "objects land in host memory; GPU memory needs NVIDIA's driver";
const NO_DMA_BUF: &str =
    "adapters cannot reach its memory: that needs NVIDIA's open kernel modules";

/// One finding per GPU, and the path that a client of this host would get into GPU memory.
pub(super) async fn findings(ports: &[PortReport]) -> (Vec<Finding>, Option<PathChoice>) {
    // Starting the driver takes up to seconds.
    let gpus = tokio::task::spawn_blocking(Gpu::list).await;
    let gpus = gpus.unwrap_or(Err(GpuError::Closed));
    match gpus {
        Ok(gpus) if gpus.is_empty() => (vec![Finding::fair("GPUs", "none", NONE)], None),
        Ok(gpus) => (gpus.iter().map(|gpu| finding(gpu, ports)).collect(), Some(path(ports))),
        Err(error) => (vec![Finding::fair("GPUs", chain(&error), NONE)], None),
    }
}

fn finding(gpu: &GpuInfo, ports: &[PortReport]) -> Finding {
    let GpuInfo { uuid, name, limits, .. } = gpu;
    let dma_buf = if limits.dma_buf { "dma-buf" } else { "no dma-buf" };
    let ordering = match (limits.writes_are_ordered, limits.host_can_flush) {
        (true, _) => "adapters' writes are ordered",
        (false, true) => "adapters' writes are flushed",
        (false, false) => "adapters' writes are neither ordered nor flushed",
    };
    let mut text =
        format!("{name}, {uuid}: {} GiB, {dma_buf}, {ordering}", limits.memory_bytes / GIB);
    for port in ports {
        for (_, found) in port.gpus.iter().filter(|(of, _)| of == uuid) {
            text.push_str(&format!("; {}: {found}", port.name));
        }
    }
    if limits.dma_buf {
        Finding::good("GPUs", text)
    } else {
        Finding::fair("GPUs", text, NO_DMA_BUF)
    }
}

/// Where no adapter reaches a GPU's memory.
fn by_way_of_the_host(ports: &[PortReport]) -> String {
    match ports.iter().find(|port| port.found.strength.is_some()) {
        Some(port) => format!(
            "by {} ({}) into host memory, which the client copies on",
            port.name,
            TransferPath::VerbsHost
        ),
        None if ports.is_empty() => "over HTTP, for there is no RDMA port".to_owned(),
        None => "over HTTP, for no port passed its self-test".to_owned(),
    }
}

/// A node of this host copies into a client's GPU memory itself; others need an adapter.
fn path(ports: &[PortReport]) -> PathChoice {
    let reaches = |port: &&PortReport| port.gpus.iter().any(|(_, found)| found.strength.is_some());
    let (name, others) = match ports.iter().find(reaches) {
        Some(port) => (TransferPath::VerbsGpu, format!("by {}", port.name)),
        None => (TransferPath::IpcGpu, by_way_of_the_host(ports)),
    };
    let because = format!(
        "GPU memory: a node of this host copies into it ({}), others send {others}",
        TransferPath::IpcGpu
    );
    PathChoice { name: name.as_str(), because }
}
