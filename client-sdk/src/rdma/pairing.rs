//! Which port of ours talks to which rail of a node.
//!
//! Both must be on one network. Nobody tells the length of a subnet's prefix, so that a common
//! one of the usual length counts for more than none. Every port of ours that reaches a node is
//! used, and every rail of the node that is reached: a transfer's parts take turns.

use std::collections::BTreeMap;

use keyway_proto::{Gid, LinkLayer, NodeId, Rail};

/// Most pairs with one node.
pub(super) const PAIRS_PER_NODE_MAX: usize = 16;

/// What is known of a port of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) link: LinkLayer,
    pub(super) gid: Gid,
}

/// Pairs with one node: the port's place in the list of ours, and the rail.
pub(super) type Pairs = Vec<(usize, Rail)>;

/// The pairs with each node.
pub(super) fn pair(ports: &[End], rails: Vec<Rail>) -> BTreeMap<NodeId, Pairs> {
    let mut nodes: BTreeMap<NodeId, Vec<Rail>> = BTreeMap::new();
    for rail in rails {
        nodes.entry(rail.node).or_default().push(rail);
    }
    let paired = nodes.into_iter().map(|(node, rails)| (node, pair_node(ports, &rails)));
    paired.filter(|(_, pairs)| !pairs.is_empty()).collect()
}

fn pair_node(ports: &[End], rails: &[Rail]) -> Pairs {
    // Only the nearest of all pairs: one that goes through a router is no equal of one that
    // does not.
    let near = |port: &End| rails.iter().filter_map(|rail| nearness(port, rail)).max();
    let Some(nearest) = ports.iter().filter_map(near).max() else { return Vec::new() };
    let reached = |port: &End| -> Vec<&Rail> {
        rails.iter().filter(|rail| nearness(port, rail) == Some(nearest)).collect()
    };
    let mut pairs: Pairs = Vec::new();
    let mut turn = 0;
    for (at, port) in ports.iter().enumerate() {
        let reached = reached(port);
        if !reached.is_empty() {
            pairs.push((at, reached[turn % reached.len()].clone()));
            turn += 1;
        }
    }
    // More rails than ports: ports take several.
    for rail in rails {
        if pairs.iter().any(|(_, taken)| taken.rail == rail.rail) {
            continue;
        }
        let reaching = ports.iter().enumerate().filter(|(_, p)| nearness(p, rail) == Some(nearest));
        let least = reaching.min_by_key(|(at, _)| pairs.iter().filter(|(by, _)| by == at).count());
        if let Some((at, _)) = least {
            pairs.push((at, rail.clone()));
        }
    }
    pairs.truncate(PAIRS_PER_NODE_MAX);
    pairs
}

/// How near a rail is; `None` when it cannot be reached.
fn nearness(port: &End, rail: &Rail) -> Option<u8> {
    if port.link != rail.link {
        return None;
    }
    if port.link == LinkLayer::Infiniband {
        // The upper half of a GID is the subnet's.
        return Some(u8::from(port.gid.0[..8] == rail.gid.0[..8]));
    }
    let (ours, theirs) = (port.gid, rail.gid);
    if ours.is_ipv4() != theirs.is_ipv4() || ours.is_link_local() != theirs.is_link_local() {
        return None;
    }
    let prefix = if ours.is_ipv4() { 15 } else { 8 };
    Some(u8::from(ours.0[..prefix] == theirs.0[..prefix]))
}

#[cfg(test)]
mod tests {
    use keyway_proto::KeyStrength;

    use super::*;

    fn gid(text: &str) -> Gid {
        match text.parse::<std::net::IpAddr>().expect("an address") {
            std::net::IpAddr::V4(address) => Gid(address.to_ipv6_mapped().octets()),
            std::net::IpAddr::V6(address) => Gid(address.octets()),
        }
    }

    fn port(address: &str) -> End {
        End { link: LinkLayer::Ethernet, gid: gid(address) }
    }

    fn rail(node: u32, rail: u32, address: &str) -> Rail {
        Rail {
            node: NodeId(node),
            rail,
            name: format!("mlx5_{rail}/1"),
            link: LinkLayer::Ethernet,
            gid: gid(address),
            strength: KeyStrength::Window,
        }
    }

    fn pairs(ports: &[End], rails: Vec<Rail>) -> Vec<(u32, usize, u32)> {
        let flat = |(node, pairs): (NodeId, Pairs)| {
            pairs.into_iter().map(move |(at, rail)| (node.0, at, rail.rail))
        };
        pair(ports, rails).into_iter().flat_map(flat).collect()
    }

    #[test]
    fn neighbours_come_first() {
        let ports = [port("10.0.1.5"), port("10.0.2.5")];
        let rails = vec![rail(1, 0, "10.0.2.1"), rail(1, 1, "10.0.1.1")];
        assert_eq!(pairs(&ports, rails), [(1, 0, 1), (1, 1, 0)]);
        // Through a router when nothing is nearer, and then every port.
        let routed = vec![rail(1, 0, "10.9.2.1")];
        assert_eq!(pairs(&ports, routed), [(1, 0, 0), (1, 1, 0)]);
        let mixed = vec![rail(1, 0, "10.9.2.1"), rail(1, 1, "10.0.1.1")];
        assert_eq!(pairs(&ports, mixed), [(1, 0, 1)]);
    }

    #[test]
    fn all_ports_and_all_rails_are_used() {
        let ports = [port("10.0.1.5"), port("10.0.1.6")];
        let rails = (0..3).map(|at| rail(1, at, "10.0.1.1")).collect();
        assert_eq!(pairs(&ports, rails), [(1, 0, 0), (1, 1, 1), (1, 0, 2)]);
        let many = (0..99).map(|at| rail(1, at, "10.0.1.1")).collect();
        assert_eq!(pairs(&ports, many).len(), PAIRS_PER_NODE_MAX);
    }

    #[test]
    fn each_node_has_its_own() {
        let rails = vec![rail(2, 0, "10.0.1.2"), rail(1, 0, "10.0.1.1"), rail(3, 0, "fd00::1")];
        assert_eq!(pairs(&[port("10.0.1.5")], rails), [(1, 0, 0), (2, 0, 0)]);
    }

    #[test]
    fn other_networks_are_not_reached() {
        let infiniband = Rail { link: LinkLayer::Infiniband, ..rail(1, 0, "fe80::1") };
        assert!(pairs(&[port("fe80::5")], vec![infiniband]).is_empty());
        for (ours, theirs) in [("10.0.1.5", "fd00::1"), ("fd00::1", "fe80::1")] {
            assert!(pairs(&[port(ours)], vec![rail(1, 0, theirs)]).is_empty(), "{ours} {theirs}");
        }
        assert!(pairs(&[], vec![rail(1, 0, "10.0.1.1")]).is_empty());
    }
}
