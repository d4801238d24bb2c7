//! S3's semantics through real HTTP: the service on a loopback listener, over a catalog and
//! a node in memory, asked by signed requests.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod access;
mod buckets;
mod checksums;
mod conditions;
mod copies;
mod cors;
mod direct;
#[path = "../common/direct_node.rs"]
mod direct_node;
mod durability;
mod encryption;
mod faults;
mod fixture;
mod framing;
mod lifecycle;
mod listing;
mod lock;
mod multipart;
mod objects;
mod prefetch;
mod ranges;
mod rdma;
mod signing;
mod tagging;
mod temporary;
mod versions;
