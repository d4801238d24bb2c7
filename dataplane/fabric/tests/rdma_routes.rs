//! Goal: paths as RDMA-CM resolves them, and what becomes of them in packets. Method: two ports
//! that packets really travel between; the kernel's RDMA-CM, ARP and routing; and counters of the
//! interfaces, which see the traffic class of what arrives.
//!
//! Both ports are one host's, which the machine's routing rules keep from being short-circuited:
//! the neighbour that is asked for is the other end of the wire.
//!
//! Runs in the soft-RoCE machine (`make test-rdma`); elsewhere each test says that it is
//! skipped.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may give up, and speak")]

mod two_ports;

use std::process::Command;
use std::time::{Duration, Instant};

use keyway_fabric::verbs::{
    Domain, Link, LinkShape, Marks, Port, RESOLVE_MAX, ResolveError, Route, VerbsError,
};
use keyway_proto::{Gid, LinkLayer};
use two_ports::ports;

/// An address of the ports' own network that nobody has.
fn nobody(port: &Port) -> Gid {
    let Gid(mut address) = port.info().gid;
    address[15] = 99;
    Gid(address)
}

/// A client's link and a node's, connected along these routes.
fn connected(client: &Port, node: &Port, forth: Route, back: Route) -> (Link, Link) {
    let domain = |port: &Port| Domain::new(port.device()).unwrap();
    let to = client.link(&domain(client), LinkShape::client(1)).unwrap().along(forth);
    let from = node.link(&domain(node), LinkShape::NODE).unwrap().along(back);
    let (to_client, to_node) = (to.address(), from.address());
    (to.connect(&to_node).unwrap(), from.connect(&to_client).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_neighbour_is_resolved_and_reached() {
    let Some((first, second)) = ports() else { return };
    for (from, to) in [(&first, &second), (&second, &first)] {
        let began = Instant::now();
        let record = from.resolve(to.info().gid).unwrap();
        println!("{record:?} in {:?}", began.elapsed());
        assert_eq!((record.source, record.peer), (from.info().gid, to.info().gid));
        assert_eq!(record.mtu, Some(from.info().mtu));
    }
    let route = |from: &Port, to: &Port| {
        from.route(LinkLayer::Ethernet, to.info().gid, Marks::default()).unwrap()
    };
    let (forth, back) = (route(&first, &second), route(&second, &first));
    assert!(forth.record.is_some() && back.record.is_some());
    let (client, node) = connected(&first, &second, forth, back);
    node.heartbeat().await.unwrap();
    client.heartbeat().await.unwrap();
}

/// What `keyway doctor` asks for.
#[test]
fn a_port_finds_itself() {
    let Some((first, second)) = ports() else { return };
    for port in [first, second] {
        let gid = port.info().gid;
        let record = port.resolve(gid).unwrap();
        assert_eq!((record.source, record.peer), (gid, gid));
    }
}

/// Goal: a peer that is not there is known before a queue pair tries it, and within bounds.
#[test]
fn an_address_that_nobody_has_is_certain_and_soon() {
    let Some((first, _)) = ports() else { return };
    let (began, peer) = (Instant::now(), nobody(&first));
    let refused = first.route(LinkLayer::Ethernet, peer, Marks::default()).map(drop);
    let took = began.elapsed();
    println!("{refused:?} after {took:?}");
    let Err(VerbsError::NoPath(error)) = refused else { panic!("{refused:?}") };
    assert!(error.is_certain());
    assert!(matches!(error, ResolveError::Unreachable { peer: said, .. } if said == peer));
    assert!(took < RESOLVE_MAX + Duration::from_secs(1), "{took:?}");
    let other = first.route(LinkLayer::Infiniband, peer, Marks::default());
    assert!(matches!(other, Err(VerbsError::OtherNetwork)));
}

/// Goal: resolving gives back what it took. Method: a hundred paths, four at a time; the process'
/// descriptors before and after. What the kernel holds, the machine looks at behind each test.
#[test]
fn many_paths_leave_nothing() {
    let Some((first, second)) = ports() else { return };
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let peer = second.info().gid;
    first.resolve(peer).unwrap();
    let before = descriptors();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    first.resolve(peer).unwrap();
                }
            });
        }
    });
    assert_eq!(descriptors(), before);
}

/// Goal: the traffic class of a route is that of the packets, in its direction alone.
/// Method: a counter where they arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packets_carry_the_traffic_class() {
    let Some((first, second)) = ports() else { return };
    let class = 0x68;
    let marks = Marks { traffic_class: Some(class), service_level: Some(3) };
    let (at_second, at_first) = (Counter::new("kwb", class), Counter::new("kwa", class));
    let route = first.route(LinkLayer::Ethernet, second.info().gid, marks).unwrap();
    // The kernel took it for the path as well.
    assert_eq!(route.record.map(|record| record.traffic_class), Some(class));
    let unresolved = Route { record: None, marks };
    for (forth, round) in [(route, 1), (unresolved, 2)] {
        let (client, node) = connected(&first, &second, forth, Route::default());
        for _ in 0..10 {
            client.heartbeat().await.unwrap();
        }
        node.heartbeat().await.unwrap();
        // Ten heartbeats there, and the acknowledgement of one; nothing back.
        assert!(at_second.packets() >= 11 * round, "{} in round {round}", at_second.packets());
        assert_eq!(at_first.packets(), 0, "round {round}");
    }
}

/// Counts RoCE packets of a traffic class that an interface receives.
struct Counter(&'static str);

impl Counter {
    fn new(interface: &'static str, class: u8) -> Self {
        let counter = Self(interface);
        counter.tc(&["qdisc", "replace", "dev", interface, "clsact"]);
        let class = format!("{class:#x}");
        counter.tc(&[
            "filter", "add", "dev", interface, "ingress", "protocol", "ip", "u32", //
            "match", "ip", "tos", &class, "0xff", "match", "ip", "dport", "4791", "0xffff", //
            "action", "pass",
        ]);
        counter
    }

    fn packets(&self) -> u64 {
        let said = self.tc(&["-s", "filter", "show", "dev", self.0, "ingress"]);
        let words: Vec<_> = said.split_whitespace().collect();
        let sent = words.windows(5).find(|words| words[0] == "Sent" && words[4] == "pkt");
        sent.unwrap_or_else(|| panic!("no counter in {said}"))[3].parse().unwrap()
    }

    fn tc(&self, arguments: &[&str]) -> String {
        let ran = Command::new("/run/keyway-vm/bin/tc").args(arguments).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.tc(&["qdisc", "del", "dev", self.0, "clsact"]);
    }
}
