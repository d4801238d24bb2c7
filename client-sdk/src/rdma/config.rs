//! What a caller says about RDMA.

use std::time::Duration;

use keyway_fabric::verbs::Marks;
use keyway_proto::KeyStrength;
use keyway_proto::session::SESSION_WINDOWS_MAX;

use super::slab::whole_pieces;

/// Names the ports to be used, where the configuration does not: `mlx5_0,mlx5_1/2`.
const DEVICES_VARIABLE: &str = "KEYWAY_RDMA_DEVICES";
const TRAFFIC_CLASS_VARIABLE: &str = "KEYWAY_RDMA_TRAFFIC_CLASS";
const SERVICE_LEVEL_VARIABLE: &str = "KEYWAY_RDMA_SERVICE_LEVEL";
const SERVICE_LEVEL_MAX: u8 = 15;

/// A number that packets cannot carry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is from 0 to {max}, and not {value:?}")]
pub struct InvalidMark {
    what: &'static str,
    max: u8,
    value: String,
}

/// How a client uses RDMA adapters.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RdmaConfig {
    /// The ports to be used: `mlx5_0` for all ports of a device, `mlx5_0/1` for one. Without a
    /// list, that in the environment's `KEYWAY_RDMA_DEVICES`, separated by commas; else all
    /// that are active.
    pub devices: Option<Vec<String>>,
    /// The traffic class of this end's packets, under RoCE DSCP and ECN. Without one, that in the
    /// environment's `KEYWAY_RDMA_TRAFFIC_CLASS`, else what the host says for the path.
    pub traffic_class: Option<u8>,
    /// The service level of this end's packets on InfiniBand, 0 to 15. Without one, that in the
    /// environment's `KEYWAY_RDMA_SERVICE_LEVEL`, else what the subnet manager says for the path.
    pub service_level: Option<u8>,
    /// Transfers that one session may have in flight, 1 to 256; the node may grant fewer.
    pub windows: u32,
    /// Smaller bodies travel over HTTP, which is quicker for them, unless RDMA is required.
    pub min_bytes: u64,
    /// The same for a GPU's memory and a node of this host: where two processes have work on a
    /// GPU they may have to take turns, a quarter of a millisecond each.
    pub local_gpu_min_bytes: u64,
    /// Keys weaker than this are not used.
    pub strength_min: KeyStrength,
    /// Keys stronger than this are not used over adapters: transfers then run as over an adapter
    /// that has no better ones.
    pub strength_max: KeyStrength,
    /// Bytes of a session's slab in each direction, where its keys are of strength `slab`: whole
    /// pieces of 16 MiB, 1 to 16. It bounds what such a session has in flight.
    pub slab_bytes: usize,
    /// How long the answer to a transfer may take. Longer than nodes give one, so that they are
    /// the ones to give up.
    pub answer_timeout: Duration,
    /// How long a rail rests after it failed.
    pub pause: Duration,
}

impl Default for RdmaConfig {
    fn default() -> Self {
        Self {
            devices: None,
            traffic_class: None,
            service_level: None,
            windows: 32,
            min_bytes: 4 << 10,
            local_gpu_min_bytes: 512 << 10,
            strength_min: KeyStrength::Slab,
            strength_max: KeyStrength::Window,
            slab_bytes: 64 << 20,
            answer_timeout: Duration::from_secs(75),
            pause: Duration::from_secs(30),
        }
    }
}

impl RdmaConfig {
    /// Uses these ports alone.
    #[must_use]
    pub fn devices(mut self, devices: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.devices = Some(devices.into_iter().map(Into::into).collect());
        self
    }

    /// Gives this end's packets this traffic class: under RoCE, DSCP and ECN.
    #[must_use]
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.traffic_class = Some(class);
        self
    }

    /// Gives this end's packets this service level on InfiniBand, 0 to 15; a client is not built
    /// with any other.
    #[must_use]
    pub fn service_level(mut self, level: u8) -> Self {
        self.service_level = Some(level);
        self
    }

    /// Asks for so many transfers in flight per session.
    #[must_use]
    pub fn windows(mut self, windows: u32) -> Self {
        self.windows = windows.clamp(1, SESSION_WINDOWS_MAX);
        self
    }

    /// Sends bodies of this size and above by RDMA.
    #[must_use]
    pub fn min_bytes(mut self, bytes: u64) -> Self {
        self.min_bytes = bytes.max(1);
        self
    }

    /// Has a node of this host move bodies of this size and above to and from GPUs.
    #[must_use]
    pub fn local_gpu_min_bytes(mut self, bytes: u64) -> Self {
        self.local_gpu_min_bytes = bytes;
        self
    }

    /// Uses no stronger keys than this over adapters: `WindowLocal` has this end invalidate its
    /// windows, `Registration` registers the memory for each transfer, `Slab` copies through memory
    /// of the client's own that stays registered. For adapters that are better at the weaker ones,
    /// and for trying what they do; nobody is safer for it.
    #[must_use]
    pub fn strength_max(mut self, strength: KeyStrength) -> Self {
        self.strength_max = strength;
        self
    }

    /// The same with what the environment says of packets where nothing else does.
    ///
    /// # Errors
    /// [`InvalidMark`].
    pub(crate) fn resolved(mut self) -> Result<Self, InvalidMark> {
        let variable = |name| std::env::var(name).ok();
        let (class, level) = (variable(TRAFFIC_CLASS_VARIABLE), variable(SERVICE_LEVEL_VARIABLE));
        self.traffic_class = mark(self.traffic_class, class, "RDMA's traffic class", u8::MAX)?;
        let level = mark(self.service_level, level, "RDMA's service level", SERVICE_LEVEL_MAX)?;
        self.service_level = level;
        Ok(self)
    }

    pub(super) fn marks(&self) -> Marks {
        Marks { traffic_class: self.traffic_class, service_level: self.service_level }
    }

    /// Has slabs of so many bytes, where keys are of that strength: 16 to 256 MiB.
    #[must_use]
    pub fn slab_bytes(mut self, bytes: usize) -> Self {
        self.slab_bytes = whole_pieces(bytes);
        self
    }

    /// The ports that are wanted; none for all.
    pub(super) fn wanted(&self) -> Vec<String> {
        match &self.devices {
            Some(devices) => devices.clone(),
            None => listed(&std::env::var(DEVICES_VARIABLE).unwrap_or_default()),
        }
    }
}

/// What is set in the environment, where nothing else is; an empty text is nothing.
fn mark(
    set: Option<u8>,
    variable: Option<String>,
    what: &'static str,
    max: u8,
) -> Result<Option<u8>, InvalidMark> {
    let text = match (set, variable) {
        (Some(value), _) => value.to_string(),
        (None, Some(text)) if !text.trim().is_empty() => text,
        (None, _) => return Ok(None),
    };
    let value = text.trim().parse().ok().filter(|value| *value <= max);
    value.map(Some).ok_or(InvalidMark { what, max, value: text })
}

fn listed(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(ToOwned::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_numbers_within_bounds() {
        let level = |set: Option<u8>, variable: Option<&str>| {
            mark(set, variable.map(ToOwned::to_owned), "a level", SERVICE_LEVEL_MAX)
        };
        assert_eq!(level(None, None), Ok(None));
        assert_eq!(level(None, Some(" ")), Ok(None));
        assert_eq!(level(None, Some("7 ")), Ok(Some(7)));
        assert_eq!(level(Some(3), Some("nonsense")), Ok(Some(3)));
        for (set, variable) in [(Some(16), None), (None, Some("16")), (None, Some("-1"))] {
            let said = level(set, variable).expect_err("out of bounds").to_string();
            assert!(said.starts_with("a level is from 0 to 15, and not"), "{said}");
        }
        let config = RdmaConfig::default().traffic_class(104).service_level(15).resolved();
        let marks = Marks { traffic_class: Some(104), service_level: Some(15) };
        assert_eq!(config.map(|config| config.marks()), Ok(marks));
        assert!(RdmaConfig::default().service_level(16).resolved().is_err());
    }

    #[test]
    fn ports_are_listed() {
        assert_eq!(listed(" rxe1, mlx5_0/1 ,,"), ["rxe1", "mlx5_0/1"]);
        assert!(listed("").is_empty());
        let both = RdmaConfig::default().devices(["rxe2"]).windows(0);
        assert_eq!((both.wanted(), both.windows), (vec!["rxe2".to_owned()], 1));
    }

    #[test]
    fn a_slab_is_made_of_whole_pieces() {
        let bytes = |wanted| RdmaConfig::default().slab_bytes(wanted).slab_bytes;
        let piece = keyway_fabric::memory::PIECE_BYTES_MAX;
        assert_eq!([0, 2 * piece + 1, usize::MAX].map(bytes), [piece, 2 * piece, 16 * piece]);
        assert_eq!(RdmaConfig::default().slab_bytes % piece, 0);
    }
}
