//! The part of `rdma/rdma_cma.h`, and of the headers that it includes, that Keyway uses, as C
//! lays it out.
//!
//! librdmacm keeps these layouts stable within `librdmacm.so.1` (symbol version `RDMACM_1.0`).
//! The test at the end compares sizes and offsets with the header where one is installed.
//!
//! Source: rdma/rdma_cma.h, infiniband/sa.h and infiniband/ib.h of rdma-core 44.

#![allow(missing_docs, reason = "the headers document their own names")]

use std::ffi::{c_int, c_void};

use crate::verbs::abi::{Context, Gid};

#[repr(C)]
pub struct EventChannel {
    pub fd: c_int,
}

/// `struct rdma_cm_id`, up to the fields that are read.
#[repr(C)]
pub struct Id {
    pub verbs: *mut Context,
    pub channel: *mut EventChannel,
    pub context: *mut c_void,
    pub qp: *mut c_void,
    pub route: Route,
    pub ps: c_int,
    pub port_num: u8,
}

/// `struct rdma_route`.
#[repr(C)]
pub struct Route {
    pub addr: Addr,
    pub path_rec: *mut PathRec,
    pub num_paths: c_int,
}

/// `struct rdma_addr`: two of `struct sockaddr_storage`, and what InfiniBand has for them.
#[repr(C)]
pub struct Addr {
    pub src: [u64; 16],
    pub dst: [u64; 16],
    pub ibaddr: IbAddr,
}

#[repr(C)]
pub struct IbAddr {
    pub sgid: Gid,
    pub dgid: Gid,
    pub pkey: u16,
}

/// `struct ibv_sa_path_rec`. LIDs, the flow label and the partition's key are big-endian.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PathRec {
    pub dgid: Gid,
    pub sgid: Gid,
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: c_int,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    pub pkey: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}

/// `struct rdma_cm_event`, up to the fields that are read.
#[repr(C)]
pub struct Event {
    pub id: *mut Id,
    pub listen_id: *mut Id,
    pub event: c_int,
    pub status: c_int,
}

pub const EVENT_ADDR_RESOLVED: c_int = 0;
pub const EVENT_ADDR_ERROR: c_int = 1;
pub const EVENT_ROUTE_RESOLVED: c_int = 2;
pub const EVENT_ROUTE_ERROR: c_int = 3;
pub const EVENT_UNREACHABLE: c_int = 7;

pub const PS_TCP: c_int = 0x0106;
pub const OPTION_ID: c_int = 0;
pub const OPTION_ID_TOS: c_int = 0;

/// `struct sockaddr_in`; port and address are big-endian.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct SockaddrIn {
    pub family: u16,
    pub port: u16,
    pub addr: [u8; 4],
    pub zero: [u8; 8],
}

/// `struct sockaddr_in6`; the port is big-endian. Aligned as the addresses in it are.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct SockaddrIn6 {
    pub family: u16,
    pub port: u16,
    pub flowinfo: u32,
    pub addr: [u8; 16],
    pub scope_id: u32,
}

/// `struct sockaddr_ib`; all but the family and the scope are big-endian.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct SockaddrIb {
    pub family: u16,
    pub pkey: u16,
    pub flowinfo: u32,
    pub addr: [u8; 16],
    pub sid: u64,
    pub sid_mask: u64,
    pub scope_id: u64,
}

pub const AF_INET: u16 = 2;
pub const AF_INET6: u16 = 10;
pub const AF_IB: u16 = 27;

/// The part of a service id that says that the rest is a port of TCP's.
pub const IB_IP_PS_TCP: u64 = 0x0000_0000_0106_0000;
/// The bits of a service id that name the port space.
pub const IB_IP_PS_MASK: u64 = 0xffff_ffff_ffff_0000;

#[cfg(test)]
mod tests;
