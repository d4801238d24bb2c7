//! This machine's ports, opened and tried with the first transfer that may use them.

use std::collections::HashMap;
use std::sync::Arc;

use keyway_fabric::gpu::{Gpu, GpuUuid};
use keyway_fabric::verbs::{Port, SelfTest, device_memory_test, open_ports, self_test};
use keyway_proto::KeyStrength;
use keyway_proto::key::RevokeRace;

use super::RdmaConfig;
use super::fallback::Fallback;
use super::pairing::End;

/// A port that passed its self-test.
pub(super) struct LocalPort {
    port: Option<Port>,
    found: SelfTest,
    /// The strongest keys that it gives over host memory.
    pub(super) strength: KeyStrength,
    /// The GPUs whose memory was tried, and whether it is reached.
    gpus: tokio::sync::Mutex<HashMap<GpuUuid, bool>>,
}

/// Whose memory a session lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryKind {
    /// The host's.
    Host,
    /// A GPU's. The kernel binds no windows to it: its keys are registrations.
    Device,
}

impl LocalPort {
    pub(super) fn port(&self) -> &Port {
        self.port.as_ref().expect("the port is there until the drop")
    }

    pub(super) fn end(&self) -> End {
        let info = self.port().info();
        End { link: info.link, gid: info.gid }
    }

    /// For people: `mlx5_0/1`.
    pub(super) fn name(&self) -> String {
        let info = self.port().info();
        format!("{}/{}", info.device, info.number)
    }

    /// The strongest keys that it gives over memory of a kind, as far as they are wanted.
    pub(super) fn strongest(&self, memory: MemoryKind, config: &RdmaConfig) -> KeyStrength {
        let strongest = match memory {
            MemoryKind::Host => self.strength,
            MemoryKind::Device => self.strength.min(KeyStrength::Registration),
        };
        strongest.min(config.strength_max)
    }

    /// Whether memory of the host's goes by way of a slab.
    pub(super) fn goes_by_slab(&self, config: &RdmaConfig) -> bool {
        self.strengths(MemoryKind::Host, config) == [KeyStrength::Slab]
    }

    /// The kinds of keys that it gives over memory of a kind, and that are wanted.
    pub(super) fn strengths(&self, memory: MemoryKind, config: &RdmaConfig) -> Vec<KeyStrength> {
        let strongest = self.strongest(memory, config);
        let min = match memory {
            MemoryKind::Host => config.strength_min,
            // A GPU's memory has no slab: it goes by way of the host's, which has.
            MemoryKind::Device => config.strength_min.max(KeyStrength::Registration),
        };
        let is_slow = memory == MemoryKind::Host && self.found.prefers_slab();
        strengths(strongest, min, is_slow)
    }

    /// Whether it reaches a GPU's memory: tried with the first transfer that may need it.
    pub(super) async fn reaches(&self, gpu: &Arc<Gpu>) -> bool {
        // Of a registration that does not end, a GPU's memory has no use.
        if self.strength < KeyStrength::Registration {
            return false;
        }
        // Those who come meanwhile wait for the one test.
        let mut gpus = self.gpus.lock().await;
        if let Some(known) = gpus.get(&gpu.uuid()) {
            return *known;
        }
        let found = Box::pin(device_memory_test(self.port(), gpu)).await;
        tracing::debug!(port = self.name(), gpu = %gpu.uuid(), %found, "RDMA to GPU memory");
        let reached = found.strength.is_some();
        gpus.insert(gpu.uuid(), reached);
        reached
    }

    /// Whether a window keeps to its bounds inside a larger registration.
    pub(super) fn is_exact(&self) -> bool {
        self.found.exact
    }

    pub(super) fn race(&self) -> RevokeRace {
        if self.found.quirks.double_invalidation_kills {
            RevokeRace::Forbidden
        } else {
            RevokeRace::Harmless
        }
    }
}

impl Drop for LocalPort {
    fn drop(&mut self) {
        let port = self.port.take();
        // It waits until what is left of its links is destroyed. A runtime's end waits for that.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(port))),
            Err(_) => drop(port),
        }
    }
}

/// Opens and tries the wanted ports: milliseconds, on some drivers seconds.
///
/// # Errors
/// Why there is none.
pub(super) async fn open(config: &RdmaConfig) -> Result<Vec<Arc<LocalPort>>, Fallback> {
    let wanted = config.wanted();
    let opened = tokio::task::spawn_blocking(move || open_ports(&wanted)).await;
    // A runtime that shuts down has no use for the answer.
    let opened = opened.map_err(|_| Fallback::NoPort)?.map_err(|error| {
        tracing::debug!(%error, "no RDMA");
        Fallback::NoLibrary
    })?;
    for (port, error) in &opened.left_out {
        tracing::info!(port, %error, "an RDMA port is left out");
    }
    if !opened.has_devices {
        return Err(Fallback::NoDevice);
    }
    if opened.ports.is_empty() {
        return Err(Fallback::NoPort);
    }
    let mut ports = Vec::new();
    for port in opened.ports {
        let found = self_test(&port).await;
        let info = port.info();
        tracing::debug!(device = %info.device, port = info.number, gid = %info.gid, %found, "RDMA");
        if let Some(strength) = found.strength {
            let gpus = tokio::sync::Mutex::default();
            ports.push(LocalPort { port: Some(port), found, strength, gpus });
        }
    }
    if ports.is_empty() {
        return Err(Fallback::SelfTest);
    }
    ports.retain(|port| !port.strengths(MemoryKind::Host, config).is_empty());
    if ports.is_empty() {
        return Err(Fallback::TooWeak);
    }
    Ok(ports.into_iter().map(Arc::new).collect())
}

/// What an adapter can do that gives keys of this strength. A slab is for those that have no
/// windows; `is_slow` says that it is to be taken though they can register, where it may.
fn strengths(strongest: KeyStrength, min: KeyStrength, is_slow: bool) -> Vec<KeyStrength> {
    use KeyStrength::{Registration, Slab, Window, WindowLocal};
    let known: &[KeyStrength] = match strongest {
        Window | WindowLocal => &[Registration, WindowLocal, Window],
        Registration if is_slow && min <= Slab => &[Slab],
        _ => &[Slab, Registration],
    };
    known.iter().copied().filter(|strength| (min..=strongest).contains(strength)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weaker_keys_are_offered_unless_refused() {
        use KeyStrength::{Http, Ipc, Registration, Slab, Window, WindowLocal};
        let quick = |strongest, min| strengths(strongest, min, false);
        assert_eq!(quick(Window, Http), [Registration, WindowLocal, Window]);
        assert_eq!(quick(Window, Window), [Window]);
        assert_eq!(quick(Registration, Slab), [Slab, Registration]);
        assert_eq!(quick(Registration, Ipc), [Registration]);
        assert_eq!(quick(Slab, Slab), [Slab]);
        assert!(quick(Registration, WindowLocal).is_empty());
        assert!(quick(Slab, Ipc).is_empty());
        assert!(quick(Http, Http).is_empty());
    }

    #[test]
    fn a_slab_is_taken_where_registering_is_slow_and_nothing_stronger_is_demanded() {
        use KeyStrength::{Ipc, Registration, Slab, Window, WindowLocal};
        let slow = |strongest, min| strengths(strongest, min, true);
        assert_eq!(slow(Registration, Slab), [Slab]);
        assert_eq!(slow(Registration, Ipc), [Registration]);
        assert_eq!(slow(Registration, Registration), [Registration]);
        assert_eq!(slow(Window, Slab), [Registration, WindowLocal, Window]);
    }
}
