//! The Keyway client: objects into and out of memory that the caller owns.
//!
//! A [`Client`] speaks S3 to one endpoint. Reads land in a
//! [`HostSliceMut`] or [`DeviceSliceMut`] that moves in and comes back, in
//! parallel ranges pinned to one version of the object; writes go out as parallel parts;
//! both carry checksums of the whole, and every outcome says which path the bytes took.
//!
//! ```no_run
//! use keyway_client::{Client, Credentials, HostBuffer};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder()
//!     .endpoint("http://127.0.0.1:9000")
//!     .credentials(Credentials::from_env()?)
//!     .build()?;
//! client.put_object("models", "hello").body("object bytes").send().await?;
//!
//! let mut buffer = HostBuffer::zeroed(1 << 20)?;
//! let got = client.get_object("models", "hello").into(buffer.slice_mut(..)?).await?;
//! println!("{} bytes by {}, {}", got.bytes, got.path, got.verified);
//! assert_eq!(&got.target[..12], b"object bytes");
//! # Ok(())
//! # }
//! ```
//!
//! The memory may be a GPU's, whoever allocated it:
//!
//! ```no_run
//! use keyway_client::{Client, DeviceBuffer, Gpu};
//!
//! # async fn example(client: Client) -> Result<(), Box<dyn std::error::Error>> {
//! let gpu = Gpu::open(0)?;
//! let mut buffer = DeviceBuffer::alloc(&gpu, 1 << 20)?;
//! let got = client.get_object("models", "hello").into(buffer.slice_mut(..)?).await?;
//! println!("{} bytes by {}, {}", got.bytes, got.path, got.verified);
//! drop(got);
//! client.put_object("models", "copy").body(buffer.slice(..12)?).send().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Where both ends have RDMA adapters the bytes do not pass through HTTP at all: the node moves
//! them into or out of the caller's memory, under a key made for that transfer alone. See
//! [`RdmaConfig`], [`PathPolicy`], and what an outcome says of `path`, `strength` and
//! `fallbacks`.
//!
//! What may not enter: the server's crates. The client depends on the vocabulary, on
//! signatures and on memory, and works against any S3 server.

#![forbid(unsafe_code)]

/// The README's Rust is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

mod builder;
mod credentials;
mod error;
mod http;
mod ops;
mod phases;
mod rdma;
mod retry;
mod staging;
#[cfg(feature = "object_store")]
mod store;
mod transfer;
mod xml;

pub use builder::{Addressing, ClientBuilder, ConfigError, PathPolicy, Tls};
pub use credentials::{Credentials, CredentialsError};
pub use error::{ClientError, Malformed, RetryClass, ServiceError};
pub use http::Client;
pub use keyway_fabric::gpu::{Gpu, GpuError, GpuUuid, StreamTurn};
pub use keyway_fabric::memory::{
    DeviceBuffer, DeviceSlice, DeviceSliceMut, HostBuffer, HostSlice, HostSliceMut, LendError,
    MemoryError,
};
pub use keyway_proto::{Durability, FlushReply, PrefetchReply};
pub use ops::{
    Administer, CopyObject, DeleteFailure, DeleteObject, Flush, HeadObject, ListBuckets,
    ListObjects, ListPage, ListedBucket, ListedObject, Prefetch, Presign,
};
pub use phases::{BodyPhases, Phases};
pub use rdma::{
    Fallback, Fallbacks, InvalidMark, RailReport, RdmaConfig, RdmaError, RdmaStats, SessionError,
};
pub use retry::RetryPolicy;
#[cfg(feature = "object_store")]
pub use store::KeywayStore;
pub use transfer::{
    Failed, Gather, GatherOutcome, GetObject, GetOutcome, GetRanges, GetTarget, ObjectInfo,
    Progress, PutBody, PutObject, PutOutcome, Unverified, Verified,
};
