use std::fmt::Write as _;
use std::mem::{offset_of, size_of};

use super::*;
use crate::verbs::abi::tests::{compare, layout};

/// What the program needs beside `rdma/rdma_cma.h`; and that the functions are of the types that
/// the table gives them.
const PROLOGUE: &str = r#"
#include <netinet/in.h>
#include <sys/socket.h>
#include <infiniband/ib.h>
#define SAME(function, ...) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&function), __VA_ARGS__), #function)
SAME(rdma_create_event_channel, struct rdma_event_channel *(*)(void));
SAME(rdma_destroy_event_channel, void (*)(struct rdma_event_channel *));
SAME(rdma_create_id, int (*)(struct rdma_event_channel *, struct rdma_cm_id **, void *,
    enum rdma_port_space));
SAME(rdma_destroy_id, int (*)(struct rdma_cm_id *));
SAME(rdma_set_option, int (*)(struct rdma_cm_id *, int, int, void *, size_t));
SAME(rdma_bind_addr, int (*)(struct rdma_cm_id *, struct sockaddr *));
SAME(rdma_resolve_addr, int (*)(struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int));
SAME(rdma_resolve_route, int (*)(struct rdma_cm_id *, int));
SAME(rdma_get_cm_event, int (*)(struct rdma_event_channel *, struct rdma_cm_event **));
SAME(rdma_ack_cm_event, int (*)(struct rdma_cm_event *));
_Static_assert(sizeof(enum rdma_port_space) == sizeof(int), "an enum is an int");
"#;

fn ours() -> String {
    let mut out = String::new();
    layout!(out, EventChannel, "struct rdma_event_channel", size; fd = "fd");
    layout!(out, Id, "struct rdma_cm_id"; verbs = "verbs", channel = "channel", route = "route",
        ps = "ps", port_num = "port_num");
    layout!(out, Route, "struct rdma_route", size; path_rec = "path_rec",
        num_paths = "num_paths");
    layout!(out, Addr, "struct rdma_addr", size; src = "src_addr", dst = "dst_addr",
        ibaddr = "addr.ibaddr");
    layout!(out, IbAddr, "struct rdma_ib_addr", size; sgid = "sgid", dgid = "dgid", pkey = "pkey");
    layout!(out, PathRec, "struct ibv_sa_path_rec", size; dgid = "dgid", sgid = "sgid",
        dlid = "dlid", slid = "slid", flow_label = "flow_label", hop_limit = "hop_limit",
        traffic_class = "traffic_class", pkey = "pkey", sl = "sl", mtu = "mtu", rate = "rate",
        packet_life_time = "packet_life_time", preference = "preference");
    layout!(out, Event, "struct rdma_cm_event"; id = "id", event = "event", status = "status");
    layout!(out, SockaddrIn, "struct sockaddr_in", size; family = "sin_family", port = "sin_port",
        addr = "sin_addr");
    layout!(out, SockaddrIn6, "struct sockaddr_in6", size; family = "sin6_family",
        addr = "sin6_addr", scope_id = "sin6_scope_id");
    layout!(out, SockaddrIb, "struct sockaddr_ib", size; family = "sib_family",
        pkey = "sib_pkey", addr = "sib_addr", sid = "sib_sid", sid_mask = "sib_sid_mask",
        scope_id = "sib_scope_id");
    let constants: [(&str, u64); 13] = [
        ("RDMA_CM_EVENT_ADDR_RESOLVED", EVENT_ADDR_RESOLVED as u64),
        ("RDMA_CM_EVENT_ADDR_ERROR", EVENT_ADDR_ERROR as u64),
        ("RDMA_CM_EVENT_ROUTE_RESOLVED", EVENT_ROUTE_RESOLVED as u64),
        ("RDMA_CM_EVENT_ROUTE_ERROR", EVENT_ROUTE_ERROR as u64),
        ("RDMA_CM_EVENT_UNREACHABLE", EVENT_UNREACHABLE as u64),
        ("RDMA_PS_TCP", PS_TCP as u64),
        ("RDMA_OPTION_ID", OPTION_ID as u64),
        ("RDMA_OPTION_ID_TOS", OPTION_ID_TOS as u64),
        ("AF_INET", AF_INET.into()),
        ("AF_INET6", AF_INET6.into()),
        ("AF_IB", AF_IB.into()),
        ("RDMA_IB_IP_PS_TCP", IB_IP_PS_TCP),
        ("RDMA_IB_IP_PS_MASK", IB_IP_PS_MASK),
    ];
    for (name, value) in constants {
        writeln!(out, "constant {name} {value}").unwrap();
    }
    out
}

/// Goal: our layouts are the header's. Method: the C compiler prints its own.
#[test]
fn layouts_are_those_of_the_header() {
    compare(&ours(), "rdma/rdma_cma.h", PROLOGUE);
}
