//! RDMA ports: addresses, limits, and what a key can really do on each.

use keyway_dataplane::direct::{PortReport, examine};
use keyway_proto::KeyStrength;

use super::{Finding, PathChoice, chain};

const DEVICES: &str =
    "objects travel over HTTP; RDMA needs an adapter and rdma-core's libraries (libibverbs)";
const WEAKER: &str =
    "keys are weaker than windows; an adapter with type-2B memory windows gives more";
const NONE: &str = "the port failed its self-test: objects travel over HTTP";

/// What there is of RDMA.
pub(super) struct Found {
    /// The ports, tried.
    pub(super) ports: Vec<PortReport>,
    /// One for each of them.
    pub(super) findings: Vec<Finding>,
    /// The path that a client of this host would get.
    pub(super) path: PathChoice,
}

impl Found {
    fn none(finding: Finding, path: PathChoice) -> Self {
        Self { ports: Vec::new(), findings: vec![finding], path }
    }
}

pub(super) async fn findings() -> Found {
    let ports = match examine().await {
        Ok(ports) => ports,
        Err(error) => {
            let why = chain(&error);
            let path = PathChoice { name: "http", because: format!("no RDMA: {why}") };
            return Found::none(Finding::fair("RDMA devices", why, DEVICES), path);
        }
    };
    if ports.is_empty() {
        let path = PathChoice { name: "http", because: "there is no active RDMA port".to_owned() };
        return Found::none(Finding::fair("RDMA devices", "no active port", DEVICES), path);
    }
    let path = path(&ports);
    Found { findings: ports.iter().map(finding).collect(), ports, path }
}

fn finding(port: &PortReport) -> Finding {
    let PortReport { name, firmware, info, has_windows, found, .. } = port;
    let firmware =
        if firmware.is_empty() { String::new() } else { format!(", firmware {firmware}") };
    let windows = if *has_windows { "type-2B windows" } else { "no windows" };
    let mut text = format!(
        "{name}: {:?} {:?}, GID {} (index {}), MTU {}, {windows}{firmware}; self-test: {found}",
        info.link,
        info.gid_kind,
        info.gid,
        info.gid_index,
        info.mtu.bytes(),
    );
    if found.strength == Some(KeyStrength::Window) && !found.exact {
        text.push_str("; each window gets a registration of its own");
    }
    if found.prefers_slab() {
        text.push_str("; clients copy through a slab: keys of strength slab");
    }
    match found.strength {
        Some(KeyStrength::Window) => Finding::good("RDMA port", text),
        Some(_) => Finding::fair("RDMA port", text, WEAKER),
        None => Finding::fair("RDMA port", text, NONE),
    }
}

fn path(ports: &[PortReport]) -> PathChoice {
    let taken = |port: &PortReport| match port.found.prefers_slab() {
        true => Some(KeyStrength::Slab),
        false => port.found.strength,
    };
    let best = ports.iter().filter_map(|port| Some((taken(port)?, &port.name))).max();
    match best {
        Some((strength, name)) => PathChoice {
            name: "verbs-host",
            because: format!("{name} gives keys of strength {strength} over host memory"),
        },
        None => {
            PathChoice { name: "http", because: "no RDMA port passed its self-test".to_owned() }
        }
    }
}
