//! The cluster harness: real `keyway` processes, and clients that may misbehave.
//!
//! [`server`] starts, kills and restarts the binary; [`wire`] speaks HTTP/1.1 byte by byte;
//! [`sigv4`] signs, or signs wrongly; [`s3`] puts the three together into a small blocking
//! client that the crash test and the reference model use; [`form`] makes forms as browsers send
//! them; [`aws`] builds the AWS SDK's.
//! [`process`] has processes that are killed often, [`holdings`] what they hold meanwhile.
//!
//! What may not enter: Keyway's own gateway, storage or signature code. What judges a program
//! must not be made of it.

#![forbid(unsafe_code)]

pub mod aws;
pub mod form;
pub mod holdings;
pub mod process;
pub mod rdma;
pub mod s3;
pub mod seed;
pub mod server;
pub mod sigv4;
pub mod skip;
pub mod tree;
pub mod wire;

pub use s3::S3;
pub use server::{Server, Transport};
