//! The vocabulary that every room of Keyway shares.
//!
//! Ids, byte ranges, checksums, and the seam between the two planes: the
//! [`plan`] a gateway hands to a storage node and the [`receipt`] it gets back.
//!
//! What may not enter: sockets, files, clocks, threads, `unsafe`. Time and
//! randomness are passed in, so that everything here can be replayed.

#![forbid(unsafe_code)]

pub mod checksum;
pub mod data_key;
pub mod direct;
pub mod durability;
pub mod gather;
pub mod id;
pub mod key;
pub mod local;
pub mod name;
pub mod plan;
pub mod prefetch;
pub mod range;
pub mod ranges;
pub mod receipt;
pub mod seal;
pub mod session;
pub mod session_token;
pub mod token;
pub mod unit;
pub mod verification;
pub mod weight;

pub use checksum::{Checksum, ChecksumKind, DigestSet, Digests};
pub use data_key::DataKey;
pub use direct::{DirectPlan, DirectTarget, DirectWork, RemoteKey, RemoteWindow};
pub use durability::{Durability, FlushReply, FlushRequest, Standing};
pub use gather::{GatherPiece, GatherPlan};
pub use id::{
    BucketId, CatalogId, ChunkId, NodeId, SessionId, TenantId, TransferId, UploadId, VersionId,
};
pub use local::{Door, DoorTicket, HostId, LocalSessionOffer, LocalSessionRequest};
pub use name::{BucketName, InvalidName, ObjectKey};
pub use plan::{ChunkSpec, GetPlan, Piece, PutPlan};
pub use prefetch::{PrefetchPosition, PrefetchReply, PrefetchRequest};
pub use range::ByteRange;
pub use ranges::{InvalidRanges, PlacedRange, RangesRequest};
pub use receipt::{KeyFate, KeyStrength, Receipt, TransferPath};
pub use session::{
    Gid, LinkLayer, PathMtu, QpAddress, Rail, SessionOffer, SessionOwner, SessionRequest,
    SessionSelector,
};
pub use session_token::{InvalidSessionToken, SessionToken};
pub use token::{DcKey, DctAddress, InvalidRdmaToken, RdmaToken};
pub use verification::Verification;
pub use weight::{InvalidWeight, Weight};
