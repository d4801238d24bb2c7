//! The calls, each a translation: message to plan, the node's answer to frames.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use futures::{FutureExt as _, Stream};
use keyway_proto::{NodeId, Receipt, TenantId};
use keyway_rpc::convert::{self, Malformed};
use keyway_rpc::schema::get_frame::Frame as GetPart;
use keyway_rpc::schema::node_server::Node;
use keyway_rpc::schema::put_frame::Frame as PutPart;
use keyway_rpc::schema::{
    ChunksReply, ChunksRequest, CloseSessionsReply, CloseSessionsRequest, CountSessionsReply,
    DoorReply, DoorRequest, GetFrame, GetRequest, NodeStatus, OpenLocalSessionReply,
    OpenLocalSessionRequest, OpenSessionReply, OpenSessionRequest, Opened, PrefetchReply,
    PrefetchRequest, PutFrame, RailsReply, RailsRequest, ReleaseReply, ReleaseRequest,
    SealingKeyReply, SealingKeyRequest, SettleReply, SettleRequest, StatusRequest, TransferReply,
    TransferRequest,
};
use keyway_rpc::{CATALOG_HEADER, CHUNKS_PAGE_MAX, FRAME_BYTES_MAX, SETTLE_WAIT_MS_MAX};
use tonic::{Request, Response, Status, Streaming};
use tracing::Span;

use super::direct;
use super::failure::{ANOTHER_NODE, MALFORMED, RemoteCause, status};
use crate::node::{Body, BodyError, Delivery, Prefetched, StorageNode, TransferError};

/// A node behind the generated service.
pub struct NodeService<N: ?Sized> {
    node: Arc<N>,
}

impl<N: StorageNode + ?Sized> NodeService<N> {
    /// The service of `node`.
    pub fn new(node: Arc<N>) -> Self {
        Self { node }
    }

    /// A misrouted call must not store bytes where nobody looks for them.
    fn meant(&self, node: u32) -> Result<(), Status> {
        if NodeId(node) == self.node.id() {
            Ok(())
        } else {
            Err(status(&TransferError::InvalidPlan(ANOTHER_NODE)))
        }
    }

    /// The message of a call, where it comes from the gateway of this node's catalog.
    fn admitted<T>(&self, request: Request<T>) -> Result<T, Status> {
        let catalog = match request.metadata().get(CATALOG_HEADER) {
            None => None,
            Some(text) => {
                let id = text.to_str().ok().and_then(|text| text.parse().ok());
                Some(id.ok_or_else(|| malformed(Malformed("the catalog's id")))?)
            }
        };
        self.node.claim(catalog).map_err(|error| status(&error))?;
        Ok(request.into_inner())
    }
}

type Frames = Pin<Box<dyn Stream<Item = Result<GetFrame, Status>> + Send>>;

#[tonic::async_trait]
impl<N: StorageNode + ?Sized> Node for NodeService<N> {
    type GetStream = Frames;

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<Frames>, Status> {
        let request = self.admitted(request)?;
        self.meant(request.node)?;
        let plan = convert::get_plan(&request).map_err(malformed)?;
        let delivery = self.node.get(plan).await.map_err(|error| status(&error))?;
        Ok(Response::new(frames(delivery)))
    }

    async fn put(
        &self,
        request: Request<Streaming<PutFrame>>,
    ) -> Result<Response<keyway_rpc::schema::Receipt>, Status> {
        let mut frames = self.admitted(request)?;
        let Some(PutPart::Plan(plan)) = frames.message().await?.and_then(|frame| frame.frame)
        else {
            return Err(malformed(Malformed("the first frame is no plan")));
        };
        self.meant(plan.node)?;
        let plan = convert::put_plan(&plan).map_err(malformed)?;
        let stored = self.node.put(plan, body(frames)).await;
        let receipt = stored.map_err(|error| status(&error))?;
        receipt_message(&receipt).map(Response::new)
    }

    async fn release(
        &self,
        request: Request<ReleaseRequest>,
    ) -> Result<Response<ReleaseReply>, Status> {
        let request = self.admitted(request)?;
        self.meant(request.node)?;
        let chunks = convert::chunk_ids(&request.chunks).map_err(malformed)?;
        self.node.release(&chunks).await.map_err(|error| status(&error))?;
        Ok(Response::new(ReleaseReply {}))
    }

    async fn settle(
        &self,
        request: Request<SettleRequest>,
    ) -> Result<Response<SettleReply>, Status> {
        let request = self.admitted(request)?;
        self.meant(request.node)?;
        let chunks = convert::chunk_ids(&request.chunks).map_err(malformed)?;
        let wait = Duration::from_millis(request.wait_ms.min(SETTLE_WAIT_MS_MAX).into());
        let standings = self.node.settle(&chunks, wait).await.map_err(|error| status(&error))?;
        Ok(Response::new(SettleReply { standings: convert::pack_standings(&standings) }))
    }

    async fn prefetch(
        &self,
        request: Request<PrefetchRequest>,
    ) -> Result<Response<PrefetchReply>, Status> {
        let request = self.admitted(request)?;
        self.meant(request.node)?;
        let chunks = convert::chunk_ids(&request.chunks).map_err(malformed)?;
        let prefetched = self.node.prefetch(TenantId(request.tenant), &chunks).await;
        let Prefetched { chunks, bytes, missed } = prefetched.map_err(|error| status(&error))?;
        Ok(Response::new(PrefetchReply { chunks, bytes, missed }))
    }

    async fn chunks(
        &self,
        request: Request<ChunksRequest>,
    ) -> Result<Response<ChunksReply>, Status> {
        let request = self.admitted(request)?;
        self.meant(request.node)?;
        let after = if request.after.is_empty() {
            None
        } else {
            Some(convert::chunk_id(&request.after).map_err(malformed)?)
        };
        let limit = usize::try_from(request.limit).unwrap_or(usize::MAX).min(CHUNKS_PAGE_MAX);
        let chunks = self.node.chunks(after, limit).await.map_err(|error| status(&error))?;
        let chunks = chunks.iter().map(convert::chunk_message).collect();
        Ok(Response::new(ChunksReply { chunks }))
    }

    async fn status(
        &self,
        request: Request<StatusRequest>,
    ) -> Result<Response<NodeStatus>, Status> {
        self.meant(self.admitted(request)?.node)?;
        let found = self.node.status().await.map_err(|error| status(&error))?;
        Ok(Response::new(NodeStatus {
            node: found.node.0,
            store: found.store,
            access: found.access,
            capacity_bytes: found.capacity_bytes,
            free_bytes: found.free_bytes,
            chunks: found.chunks,
            transfers: found.transfers,
        }))
    }

    async fn rails(&self, request: Request<RailsRequest>) -> Result<Response<RailsReply>, Status> {
        self.meant(self.admitted(request)?.node)?;
        let rails = self.node.rails().await.map_err(|error| status(&error))?;
        // A rail whose strength this version has no word for is none to its callers.
        let rails = rails.iter().filter_map(convert::rail_message).collect();
        Ok(Response::new(RailsReply { rails }))
    }

    async fn open_session(
        &self,
        request: Request<OpenSessionRequest>,
    ) -> Result<Response<OpenSessionReply>, Status> {
        let request = self.admitted(request)?;
        self.meant(request.node)?;
        let reply = match convert::session_request(&request) {
            Ok((owner, request)) => {
                direct::open_session_reply(&self.node.open_session(owner, request).await)
            }
            Err(_) => direct::malformed_session(),
        };
        Ok(Response::new(reply))
    }

    async fn door(&self, request: Request<DoorRequest>) -> Result<Response<DoorReply>, Status> {
        self.meant(self.admitted(request)?.node)?;
        let door = self.node.door().await.map_err(|error| status(&error))?;
        let door = door.as_ref().map(convert::door_message);
        Ok(Response::new(DoorReply { door }))
    }

    async fn open_local_session(
        &self,
        request: Request<OpenLocalSessionRequest>,
    ) -> Result<Response<OpenLocalSessionReply>, Status> {
        let request = self.admitted(request)?;
        self.meant(request.node)?;
        let (owner, request) = convert::local_session_request(&request).map_err(malformed)?;
        let opened = self.node.open_local_session(owner, request).await;
        Ok(Response::new(direct::open_local_session_reply(&opened)))
    }

    async fn close_sessions(
        &self,
        request: Request<CloseSessionsRequest>,
    ) -> Result<Response<CloseSessionsReply>, Status> {
        let request = self.admitted(request)?;
        self.meant(request.node)?;
        let selector = convert::session_selector(&request).map_err(malformed)?;
        let closed = self.node.close_sessions(selector).await.map_err(|error| status(&error))?;
        Ok(Response::new(CloseSessionsReply { closed }))
    }

    async fn count_sessions(
        &self,
        request: Request<CloseSessionsRequest>,
    ) -> Result<Response<CountSessionsReply>, Status> {
        let request = self.admitted(request)?;
        self.meant(request.node)?;
        let selector = convert::session_selector(&request).map_err(malformed)?;
        let open = self.node.count_sessions(selector).await.map_err(|error| status(&error))?;
        Ok(Response::new(CountSessionsReply { open }))
    }

    /// Dropped when the caller resets the stream, and with it the node's transfer.
    async fn transfer(
        &self,
        request: Request<TransferRequest>,
    ) -> Result<Response<TransferReply>, Status> {
        let request = self.admitted(request)?;
        if NodeId(request.node) != self.node.id() {
            return Ok(Response::new(direct::another_node()));
        }
        let transferred = self.node.transfer(request.grant).await;
        Ok(Response::new(direct::transfer_reply(&transferred)))
    }

    async fn sealing_key(
        &self,
        request: Request<SealingKeyRequest>,
    ) -> Result<Response<SealingKeyReply>, Status> {
        self.meant(self.admitted(request)?.node)?;
        let key = self.node.sealing_key().await.map_err(|error| status(&error))?;
        Ok(Response::new(direct::sealing_key_reply(&key)))
    }
}

/// The delivery as frames: its length, its bytes, its receipt.
fn frames(delivery: Delivery) -> Frames {
    let Delivery { length, body, receipt } = delivery;
    let opened = stream::once(async move { Ok(frame(GetPart::Opened(Opened { length }))) });
    let data = body
        .map_ok(|bytes| stream::iter(split(bytes).map(|piece| Ok(frame(GetPart::Data(piece))))))
        .map_err(|error| status(&error))
        .try_flatten();
    let receipt = receipt.map(|receipt| match receipt {
        Ok(receipt) => receipt_message(&receipt).map(|message| frame(GetPart::Receipt(message))),
        Err(_) => Err(status(&TransferError::Store {
            reason: "the transfer ended without a receipt".into(),
            sticky: false,
        })),
    });
    // Held by the stream: the call's span ends with its last frame, not with its head.
    let span = Span::current();
    Box::pin(opened.chain(data).chain(receipt.into_stream()).inspect(move |_| {
        let _held = &span;
    }))
}

/// The frames as a body that ends where the sender says so, and fails anywhere else.
fn body(frames: Streaming<PutFrame>) -> Body {
    Box::pin(stream::try_unfold(frames, async |mut frames| match frames.message().await {
        Ok(Some(PutFrame { frame: Some(PutPart::Data(bytes)) })) => Ok(Some((bytes, frames))),
        Ok(Some(PutFrame { frame: Some(PutPart::End(_)) })) => Ok(None),
        Ok(Some(PutFrame { frame: Some(PutPart::Broken(_)) })) => {
            Err(broken("the sender's source failed"))
        }
        Ok(Some(PutFrame { frame: Some(PutPart::Plan(_)) | None })) => {
            Err(TransferError::InvalidPlan(MALFORMED))
        }
        Ok(None) => Err(broken("the sender went away")),
        Err(status) => Err(broken(&format!("the connection failed: {}", status.code()))),
    }))
}

fn broken(why: &str) -> TransferError {
    TransferError::Body(BodyError(Arc::new(RemoteCause(why.to_owned()))))
}

/// Pieces of at most [`FRAME_BYTES_MAX`], none empty.
fn split(mut bytes: Bytes) -> impl Iterator<Item = Bytes> {
    std::iter::from_fn(move || {
        let piece = bytes.split_to(bytes.len().min(FRAME_BYTES_MAX));
        (!piece.is_empty()).then_some(piece)
    })
}

fn frame(part: GetPart) -> GetFrame {
    GetFrame { frame: Some(part) }
}

fn receipt_message(receipt: &Receipt) -> Result<keyway_rpc::schema::Receipt, Status> {
    convert::receipt_message(receipt).ok_or_else(|| {
        Status::internal("the receipt names a path that this protocol version lacks")
    })
}

fn malformed(error: Malformed) -> Status {
    tracing::warn!(%error, "a peer sent what this node does not understand");
    status(&TransferError::InvalidPlan(MALFORMED))
}
