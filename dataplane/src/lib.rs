//! The storage node: it takes plans, moves bytes, and answers with receipts.
//!
//! [`node`] is the seam to the gateway. Behind it the [`engine`] executes plans over a blob
//! [`store`], whose buffers come from `keyway_fabric`; [`direct`] moves the same bytes between
//! the store and clients' own memory, and `cipher` encrypts what a plan has a key for. [`rpc`] serves it all over the network.
//!
//! What may not enter: tenants' names, policies, S3. The node never decides who may do
//! what; it executes what the gateway planned.

mod cipher;
pub mod direct;
pub mod engine;
pub mod node;
pub mod rpc;
pub mod store;

pub use keyway_sys::{Probe, probe};

pub use direct::{
    DirectStats, DirectUnavailable, DoorUnavailable, IpcConfig, RdmaConfig, RdmaUnavailable,
};
pub use engine::{EngineConfig, LocalNode, NodeConfig, NodeMemory, NodeStats, OpenError};
pub use node::{
    Body, ChunkInfo, Delivery, DirectError, NodeStatus, Prefetched, SealingKey, SessionError,
    StorageNode, TransferError, Transferred,
};
pub use store::tier::{TierAdmit, TierConfig, TierPages, TierStats, TierVerify};
pub use store::{AccessMode, StoreConfig, StoreUsage};
