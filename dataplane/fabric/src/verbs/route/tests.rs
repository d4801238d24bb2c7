use super::*;
use crate::verbs::GidKind;

fn port(link: LinkLayer, gid: Gid) -> PortInfo {
    PortInfo {
        device: "mlx5_0".into(),
        number: 2,
        link,
        gid,
        gid_kind: GidKind::Infiniband,
        gid_index: 3,
        lid: 0x20,
        mtu: PathMtu::B4096,
    }
}

fn gid(subnet: u8, host: u8) -> Gid {
    Gid([0xfe, 0x80, 0, 0, 0, 0, 0, subnet, 0, 0, 0, 0, 0, 0, 0, host])
}

fn peer(gid: Gid) -> QpAddress {
    let link = LinkLayer::Infiniband;
    QpAddress { link, gid, lid: 0x31, qp: 5, psn: 6, mtu: PathMtu::B4096 }
}

/// A record as the kernel gives it.
fn raw(dgid: Gid) -> abi::PathRec {
    abi::PathRec {
        dgid: RawGid(dgid.0),
        sgid: RawGid(gid(0, 1).0),
        dlid: 0x44_u16.to_be(),
        slid: 0x23_u16.to_be(),
        flow_label: 0x1_2345_u32.to_be(),
        hop_limit: 0,
        traffic_class: 7,
        sl: 5,
        mtu: 4,
        rate: 6,
        packet_life_time: 16,
        ..abi::PathRec::default()
    }
}

fn route(record: abi::PathRec, marks: Marks) -> Route {
    Route { record: Some(PathRecord::read(&record)), marks }
}

#[test]
fn a_record_is_read_as_the_kernel_writes_it() {
    let record = PathRecord::read(&raw(gid(0, 9)));
    let expected = PathRecord {
        source: gid(0, 1),
        peer: gid(0, 9),
        service_level: 5,
        dlid: 0x44,
        slid: 0x23,
        mtu: Some(PathMtu::B2048),
        rate: 6,
        hop_limit: 0,
        traffic_class: 7,
        flow_label: 0x1_2345,
        life_time: 16,
    };
    assert_eq!(record, expected);
    // Numbers that name nothing, and selectors beside them.
    let strange = abi::PathRec { mtu: 0x80 | 3, rate: 0x80 | 2, ..raw(gid(0, 9)) };
    let strange = PathRecord::read(&strange);
    assert_eq!((strange.mtu, strange.rate), (Some(PathMtu::B1024), 2));
    for mtu in [0, 6, 63] {
        assert_eq!(PathRecord::read(&abi::PathRec { mtu, ..raw(gid(0, 9)) }).mtu, None);
    }
}

#[test]
fn the_subnet_managers_word_counts_on_infiniband() {
    let port = port(LinkLayer::Infiniband, gid(0, 1));
    let route = route(raw(gid(0, 9)), Marks::default());
    assert_eq!(route.mtu(&port), PathMtu::B2048);
    let vector = route.vector(&port, route.mtu(&port), &peer(gid(0, 9)));
    let address = vector.address;
    assert_eq!((address.sl, address.dlid, address.static_rate), (5, 0x44, 6));
    assert_eq!((address.src_path_bits, address.is_global, address.port_num), (3, 0, 2));
    assert_eq!((vector.mtu, vector.ack_timeout), (PathMtu::B2048, 17));
    // The peer may have been told of less.
    let small = QpAddress { mtu: PathMtu::B512, ..peer(gid(0, 9)) };
    assert_eq!(route.vector(&port, PathMtu::B2048, &small).mtu, PathMtu::B512);
}

#[test]
fn another_subnet_is_reached_by_way_of_its_router() {
    let port = port(LinkLayer::Infiniband, gid(0, 1));
    let far = abi::PathRec { hop_limit: 8, ..raw(gid(7, 9)) };
    let address = route(far, Marks::default()).vector(&port, PathMtu::B4096, &peer(gid(7, 9)));
    let address = address.address;
    assert_eq!((address.dlid, address.is_global, address.grh.hop_limit), (0x44, 1, 8));
    assert_eq!((address.grh.flow_label, address.grh.traffic_class), (0x1_2345, 7));
    assert_eq!((address.grh.dgid.0, address.grh.sgid_index), (gid(7, 9).0, 3));
}

#[test]
fn without_a_record_the_address_counts() {
    let port = port(LinkLayer::Infiniband, gid(0, 1));
    // None, and one of the way to somebody else.
    for route in [Route::default(), route(raw(gid(0, 8)), Marks::default())] {
        let vector = route.vector(&port, PathMtu::B4096, &peer(gid(0, 9)));
        let address = vector.address;
        assert_eq!((address.sl, address.dlid, address.static_rate), (0, 0x31, 0));
        assert_eq!((address.is_global, address.src_path_bits), (0, 0));
        assert_eq!((vector.mtu, vector.ack_timeout), (PathMtu::B4096, ACK_TIMEOUT));
    }
}

#[test]
fn under_roce_the_record_gives_priority_and_hops() {
    let port = port(LinkLayer::Ethernet, gid(0, 1));
    let record = abi::PathRec { hop_limit: 3, packet_life_time: 20, ..raw(gid(0, 9)) };
    let vector = route(record, Marks::default()).vector(&port, PathMtu::B4096, &peer(gid(0, 9)));
    let address = vector.address;
    assert_eq!((address.sl, address.grh.traffic_class, address.grh.hop_limit), (5, 7, 3));
    // What the kernel makes up there is not believed.
    assert_eq!((address.dlid, address.static_rate, address.src_path_bits), (0x31, 0, 0));
    assert_eq!((address.is_global, vector.ack_timeout), (1, ACK_TIMEOUT));
    let unsaid = abi::PathRec { hop_limit: 0, ..record };
    let vector = route(unsaid, Marks::default()).vector(&port, PathMtu::B4096, &peer(gid(0, 9)));
    assert_eq!(vector.address.grh.hop_limit, HOPS);
}

#[test]
fn the_operator_has_the_last_word() {
    let marks = Marks { traffic_class: Some(104), service_level: Some(2) };
    for (link, level) in [(LinkLayer::Infiniband, 2), (LinkLayer::Ethernet, 5)] {
        let port = port(link, gid(0, 1));
        let vector = route(raw(gid(0, 9)), marks).vector(&port, port.mtu, &peer(gid(0, 9)));
        assert_eq!((vector.address.grh.traffic_class, vector.address.sl), (104, level));
    }
    let port = port(LinkLayer::Ethernet, gid(0, 1));
    let unresolved = Route { record: None, marks };
    let address = unresolved.vector(&port, port.mtu, &peer(gid(0, 9))).address;
    assert_eq!((address.grh.traffic_class, address.sl), (104, 0));
}

#[test]
fn a_packets_life_time_is_bounded() {
    let port = port(LinkLayer::Infiniband, gid(0, 1));
    for (life_time, timeout) in [(0, 16), (15, 16), (16, 17), (18, 18), (63, 18)] {
        let record = abi::PathRec { packet_life_time: life_time, ..raw(gid(0, 9)) };
        let vector = route(record, Marks::default()).vector(&port, port.mtu, &peer(gid(0, 9)));
        assert_eq!(vector.ack_timeout, timeout, "{life_time}");
    }
}

#[test]
fn so_many_are_resolved_at_a_time() {
    let resolving = Arc::new(AtomicU32::new(0));
    let mut turns: Vec<_> = (0..RESOLVING_MAX).map(|_| Turn::take(&resolving).unwrap()).collect();
    assert!(Turn::take(&resolving).is_none());
    turns.pop();
    assert!(Turn::take(&resolving).is_some());
}

#[test]
fn only_certainty_stops_a_session() {
    let unreachable = ResolveError::Unreachable { peer: gid(0, 9), why: "no route".to_owned() };
    let far = ResolveError::OtherSubnet(Box::new(ResolveError::Late));
    assert!(unreachable.is_certain() && far.is_certain());
    let event = ResolveError::Event { event: 1, status: -19 };
    for error in [ResolveError::Late, ResolveError::Busy, ResolveError::OtherPort, event] {
        assert!(!error.is_certain(), "{error}");
    }
}
