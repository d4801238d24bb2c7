//! The gateway-to-node protocol: the seam `plan → receipt`, over gRPC and mutual TLS.
//!
//! [`schema`] is generated from the `.proto` files, `node.proto` and what it imports; [`convert`]
//! turns its messages into `keyway_proto`'s types and refuses what is malformed; [`tls`] says who
//! may talk.
//! The server is in `keyway_dataplane::rpc`, the client in `keyway_gateway::node::remote`.
//!
//! What may not enter: transfers, retries, stores.

#![forbid(unsafe_code)]

pub mod convert;
pub mod tls;

/// Messages and stubs, generated from the files that document them.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod schema {
    tonic::include_proto!("keyway.node.v1");

    /// Shows the fields that are no secret.
    macro_rules! hidden {
        ($($message:ident: $($field:ident),*;)*) => {$(
            impl std::fmt::Debug for $message {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.debug_struct(stringify!($message))
                        $(.field(stringify!($field), &self.$field))*
                        .finish_non_exhaustive()
                }
            }
        )*};
    }

    hidden! {
        Window: length;
        TransferRequest: node;
        SealingKeyReply: id, fresh_for_ms, dynamic;
        GetRequest: node, transfer, tenant, pieces, verification, weight;
        PutPlan: node, transfer, tenant, chunks, digests, memory_first, weight;
        DirectGet: transfer, tenant, pieces, digests, verification, weight;
        DirectGather: transfer, tenant, chunks, digests, verification, weight;
    }
}

pub use convert::Malformed;
pub use tls::{TlsError, TlsPaths};

/// Largest message that either side accepts: a whole page of chunks fits, and a data frame
/// with its framing.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Most bytes of one data frame; longer pieces are sent as several.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

/// Bytes of one transfer that may be under way to a receiver that does not take them.
pub const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// Transfers at once on one connection.
pub const STREAMS_MAX: u32 = 64;

/// Bytes under way on one connection: all its transfers' windows, so that a receiver which
/// stalls holds up nobody else.
pub const CONNECTION_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES * STREAMS_MAX;

/// The call's metadata that names the gateway's catalog.
pub const CATALOG_HEADER: &str = "keyway-catalog";

/// Chunks in one page of [`schema::ChunksReply`].
pub const CHUNKS_PAGE_MAX: usize = 16 << 10;

/// Chunks in one prefetch: 1 GiB of large ones, which a drive reads within the time for an answer.
pub const PREFETCH_MAX: usize = 64;

/// Longest that a node waits before it answers a [`schema::SettleRequest`].
pub const SETTLE_WAIT_MS_MAX: u32 = 10_000;

/// Chunks named by one [`schema::ReleaseRequest`] or [`schema::SettleRequest`].
pub const RELEASE_MAX: usize = 64 << 10;

const _: () = assert!(FRAME_BYTES_MAX + 64 <= MESSAGE_BYTES_MAX);
const _: () = assert!(RELEASE_MAX * 16 + 64 <= MESSAGE_BYTES_MAX);
// An id, a length and the tags of both take at most 32 bytes.
const _: () = assert!(CHUNKS_PAGE_MAX * 32 + 64 <= MESSAGE_BYTES_MAX);
