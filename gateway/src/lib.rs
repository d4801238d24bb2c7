//! The gateway: S3 in, plans out, one commit point.
//!
//! [`s3`] holds the S3 operations over the catalog and [`node`] the storage nodes that they
//! send their plans to.
//!
//! What may not enter: disks, devices, `unsafe`. Object bytes pass through here in frames
//! that nobody copies.

#![forbid(unsafe_code)]

pub mod node;
pub mod s3;
