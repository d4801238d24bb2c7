//! RDMA ports: addresses, limits, and what a key can really do on each.

use keyway_dataplane::direct::{PathRecord, PortReport, ResolveError, examine};
use keyway_proto::KeyStrength;

use super::{Finding, PathChoice, chain};

const DEVICES: &str =
    "objects travel over HTTP; RDMA needs an adapter and rdma-core's libraries (libibverbs)";
const WEAKER: &str =
    "keys are weaker than windows; an adapter with type-2B memory windows gives more";
const NO_DYNAMIC: &str = "clients that send tokens of 81 characters get their bytes over HTTP";
const NO_DC_KEY: &str = "set node.rdma.dc_key to what such clients' targets are made with; until then \
     tokens of 81 characters are declined";
const LEFT_OUT: &str = "sessions use a port once it is up and has an address";
const NONE: &str = "the port failed its self-test: objects travel over HTTP";

/// What there is of RDMA.
pub(super) struct Found {
    /// The ports, tried.
    pub(super) ports: Vec<PortReport>,
    /// What is to be said of them, and of those that cannot be opened.
    pub(super) findings: Vec<Finding>,
    /// The path that a client of this host would get.
    pub(super) path: PathChoice,
}

impl Found {
    fn none(finding: Finding, path: PathChoice) -> Self {
        Self { ports: Vec::new(), findings: vec![finding], path }
    }
}

pub(super) async fn findings(dc_key: bool) -> Found {
    let (ports, left_out) = match examine().await {
        Ok(found) => found,
        Err(error) => {
            let why = chain(&error);
            let path = PathChoice { name: "http", because: format!("no RDMA: {why}") };
            return Found::none(Finding::fair("RDMA devices", why, DEVICES), path);
        }
    };
    if ports.is_empty() && left_out.is_empty() {
        let path = PathChoice { name: "http", because: "there is no RDMA device".to_owned() };
        return Found::none(Finding::fair("RDMA devices", "none", DEVICES), path);
    }
    let path = path(&ports);
    let tried = ports.iter().flat_map(|port| [finding(port), dynamic(port, dc_key)]);
    let unused = left_out.iter().map(|(name, why)| {
        let why = chain(why);
        Finding::fair("RDMA port", format!("{name} is left out: {why}"), LEFT_OUT)
    });
    Found { findings: tried.chain(unused).collect(), ports, path }
}

fn finding(port: &PortReport) -> Finding {
    let PortReport { name, firmware, info, has_windows, sessions_max, found, path, .. } = port;
    let firmware =
        if firmware.is_empty() { String::new() } else { format!(", firmware {firmware}") };
    let windows = if *has_windows { "type-2B windows" } else { "no windows" };
    let mut text = format!(
        "{name}: {:?} {:?}, GID {} (index {}), MTU {}, {windows}, {sessions_max} sessions at most\
         {firmware}; paths: {}; self-test: {found}",
        info.link,
        info.gid_kind,
        info.gid,
        info.gid_index,
        info.mtu.bytes(),
        paths(path.as_ref().map_err(|error| &**error)),
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

/// How the ways to peers are found.
fn paths(found: Result<&PathRecord, &ResolveError>) -> String {
    match found {
        Ok(record) => format!(
            "resolved by RDMA-CM (service level {}, traffic class {})",
            record.service_level, record.traffic_class
        ),
        Err(error) => format!("not resolved: {}", chain(error)),
    }
}

/// What clients with dynamically connected (DC) targets get.
fn dynamic(port: &PortReport, dc_key: bool) -> Finding {
    let (subject, name) = ("RDMA port, DC", &port.name);
    match &port.dynamic {
        Err(why) => Finding::fair(subject, format!("{name}: no DC: {why}"), NO_DYNAMIC),
        Ok(()) if dc_key => {
            Finding::good(subject, format!("{name}: DC holds, with keys of strength standing"))
        }
        Ok(()) => Finding::fair(subject, format!("{name}: DC holds, without a key"), NO_DC_KEY),
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
            let because = match ports {
                [] => "no RDMA port can be opened",
                _ => "no RDMA port passed its self-test",
            };
            PathChoice { name: "http", because: because.to_owned() }
        }
    }
}
