//! What native hardware this machine offers, for `keyway doctor`.

use std::error::Error;
use std::fmt;

use crate::cuda::{Cuda, CudaVersion};
use crate::library::NativeError;
use crate::verbs::Verbs;

/// What was found, and why not where nothing was.
#[derive(Debug)]
pub struct Probe {
    /// RDMA devices by name.
    pub rdma: Result<Vec<String>, NativeError>,
    /// The GPU driver and its devices.
    pub gpu: Result<GpuProbe, NativeError>,
}

/// A GPU driver that works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuProbe {
    /// The newest CUDA version that it serves.
    pub driver: CudaVersion,
    /// The GPUs by name, in the driver's order.
    pub devices: Vec<String>,
}

/// Looks for RDMA devices and GPUs. Takes up to seconds where a GPU driver starts; creates
/// no context on any GPU.
pub fn probe() -> Probe {
    Probe { rdma: Verbs::load().and_then(|verbs| verbs.device_names()), gpu: probe_gpu() }
}

fn probe_gpu() -> Result<GpuProbe, NativeError> {
    let cuda = Cuda::load()?;
    Ok(GpuProbe { driver: cuda.driver_version()?, devices: cuda.device_names()? })
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rdma {
            Ok(devices) if devices.is_empty() => writeln!(f, "rdma: no device")?,
            Ok(devices) => writeln!(f, "rdma: {}", devices.join(", "))?,
            Err(error) => writeln!(f, "rdma: not found: {}", reasons(error))?,
        }
        match &self.gpu {
            Ok(GpuProbe { driver, devices }) => {
                let (CudaVersion { major, minor }, devices) = (driver, devices.join(", "));
                write!(f, "gpu: CUDA {major}.{minor}: {devices}")
            }
            Err(error) => write!(f, "gpu: not found: {}", reasons(error)),
        }
    }
}

fn reasons(error: &NativeError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the machine has, the probe answers and says why where it found nothing.
    #[test]
    fn every_machine_gets_an_answer() {
        let probe = probe();
        let text = probe.to_string();
        println!("{text}");
        assert_eq!(text.lines().count(), 2);
        assert!(text.starts_with("rdma: ") && text.contains("\ngpu: "));
        if let Err(NativeError::Missing { library, .. }) = &probe.gpu {
            assert!(text.contains(*library));
        }
    }
}
