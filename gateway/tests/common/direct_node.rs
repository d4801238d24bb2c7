//! A node that executes direct transfers without an adapter: the clients' memory is in this
//! process. A second implementation of the seam: it verifies grants, checks whose session it
//! is, looks keys up as an adapter would, and moves bytes between that memory and a real node.

#![allow(dead_code, reason = "each suite uses a part of it")]
#[path = "fault.rs"]
mod fault;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};
use keyway_auth::grant::{GrantKey, GrantKeyId, Verifier};
use keyway_dataplane::{
    Body, ChunkInfo, Delivery, DirectError, LocalNode, NodeStatus, Prefetched, SealingKey,
    SessionError, StorageNode, TransferError, Transferred,
};
use keyway_proto::checksum::MultiHasher;
use keyway_proto::key::Relinquished;
use keyway_proto::{
    CatalogId, ChunkId, Digests, DirectPlan, DirectTarget, DirectWork, Door, Durability,
    GatherPlan, GetPlan, Gid, KeyFate, KeyStrength, LinkLayer, LocalSessionOffer,
    LocalSessionRequest, NodeId, PathMtu, Piece, PutPlan, QpAddress, Rail, Receipt, RemoteKey,
    RemoteWindow, SessionId, SessionOffer, SessionOwner, SessionRequest, SessionSelector,
    SessionToken, Standing, TenantId, TransferId, TransferPath,
};
use keyway_rpc::convert::direct_plan;
use parking_lot::Mutex;
use tokio::sync::Notify;

pub(crate) use fault::Fault;
use fault::loses;

/// The time at which gateways under test stand still.
pub(crate) const NOW_MS: u64 = 1_767_225_600_000;
/// Most sessions of the node.
pub(crate) const SESSIONS_MAX: usize = 3;

/// Of a transfer that went well.
fn receipt_of(transfer: TransferId, bytes: u64, digests: Digests) -> Receipt {
    Receipt {
        transfer,
        bytes,
        digests,
        path: TransferPath::VerbsHost,
        strength: KeyStrength::Window,
        key: KeyFate::Relinquished(Relinquished::Invalidated),
        durability: Durability::default(),
    }
}

/// The node, and the memory of all its clients.
pub(crate) struct DirectNode {
    inner: Arc<LocalNode>,
    state: Mutex<State>,
    serials: AtomicU64,
    /// Whether it reaches dynamically connected targets: those of this number.
    pub(crate) dynamic: Mutex<Option<u32>>,
    /// Times that the sealing key was asked for, and how long it may be used.
    pub(crate) asked: AtomicUsize,
    pub(crate) fresh_for: Mutex<Duration>,
    /// Grants that arrived.
    pub(crate) grants: AtomicUsize,
    /// The last plan that was accepted.
    pub(crate) last: Mutex<Option<DirectPlan>>,
    /// A hanging transfer has begun.
    pub(crate) hanging: Notify,
    /// A transfer was given up by its gateway.
    pub(crate) given_up: Notify,
}

struct State {
    key: GrantKey,
    verifier: Verifier,
    sessions: HashMap<SessionId, SessionOwner>,
    /// Live keys, and the memory that each opens.
    keys: HashMap<u32, RemoteWindow>,
    memory: HashMap<u64, Vec<u8>>,
    fault: Option<Fault>,
    next_key: u32,
}

impl DirectNode {
    pub(crate) fn new(id: NodeId) -> Arc<Self> {
        let inner = LocalNode::in_memory(id, 256 << 20, 64 << 20).unwrap();
        let key = GrantKey::generate(GrantKeyId(100));
        let verifier = Verifier::new(id, std::slice::from_ref(&key));
        Arc::new(Self {
            inner,
            state: Mutex::new(State {
                key,
                verifier,
                sessions: HashMap::new(),
                keys: HashMap::new(),
                memory: HashMap::new(),
                fault: None,
                next_key: 0x5ec4_e701,
            }),
            serials: AtomicU64::new(7),
            dynamic: Mutex::new(None),
            asked: AtomicUsize::new(0),
            fresh_for: Mutex::new(Duration::from_secs(900)),
            grants: AtomicUsize::new(0),
            last: Mutex::new(None),
            hanging: Notify::new(),
            given_up: Notify::new(),
        })
    }

    pub(crate) fn local(&self) -> Arc<LocalNode> {
        Arc::clone(&self.inner)
    }

    pub(crate) fn fail_next(&self, fault: Fault) {
        self.state.lock().fault = Some(fault);
    }

    /// As a client does: registers memory, and arms a window over each run of `lengths`.
    pub(crate) fn arm(&self, session: SessionId, lengths: &[u32]) -> (SessionToken, Buffer) {
        let mut state = self.state.lock();
        let base = 0x7f00_0000_0000 + u64::from(state.next_key) * 0x1_0000_0000;
        let total: usize = lengths.iter().map(|length| *length as usize).sum();
        state.memory.insert(base, vec![0xee; total]);
        let mut address = base;
        let mut windows = Vec::new();
        for length in lengths {
            let key = state.next_key;
            state.next_key += 1;
            let window = RemoteWindow { address, length: *length, key: RemoteKey(key) };
            state.keys.insert(key, window);
            windows.push(window);
            address += u64::from(*length);
        }
        (SessionToken::new(session, windows).unwrap(), Buffer { base })
    }

    pub(crate) fn read(&self, buffer: &Buffer) -> Vec<u8> {
        self.state.lock().memory[&buffer.base].clone()
    }

    pub(crate) fn fill(&self, buffer: &Buffer, bytes: &[u8]) {
        let mut state = self.state.lock();
        state.memory.get_mut(&buffer.base).unwrap()[..bytes.len()].copy_from_slice(bytes);
    }

    /// Keys that still open memory.
    pub(crate) fn live_keys(&self) -> usize {
        self.state.lock().keys.len()
    }

    pub(crate) fn sessions(&self) -> usize {
        self.state.lock().sessions.len()
    }

    async fn execute(&self, grant: &[u8]) -> Transferred {
        let fault = self.state.lock().fault.take();
        let mut grant = grant.to_vec();
        if let Some(Fault::Altered) = fault {
            let middle = grant.len() / 2;
            grant[middle] ^= 1;
        }
        let accepted = self.accept(&grant, fault.as_ref());
        let plan = match accepted {
            Ok(plan) => plan,
            Err(error) => return Transferred::refused(error),
        };
        *self.last.lock() = Some(plan.clone());
        match fault {
            Some(Fault::Fails(error, key)) => {
                if key != Relinquished::Quiet {
                    self.revoke(&plan);
                }
                return Transferred { moved: Err(error), key };
            }
            Some(Fault::Hangs) => {
                struct GivenUp<'n>(&'n Notify);
                impl Drop for GivenUp<'_> {
                    fn drop(&mut self) {
                        self.0.notify_one();
                    }
                }
                let _told = GivenUp(&self.given_up);
                self.hanging.notify_one();
                return std::future::pending().await;
            }
            _ => {}
        }
        let moved = self.carry_out(&plan, fault.as_ref()).await;
        let key = match &moved {
            // The client's own: nobody ends it.
            Ok(_) if matches!(plan.target, DirectTarget::Dynamic(..)) => Relinquished::Quiet,
            Ok(_) => {
                self.revoke(&plan);
                Relinquished::Invalidated
            }
            Err(_) => Relinquished::Quiet,
        };
        Transferred { moved, key }
    }

    fn accept(&self, sealed: &[u8], fault: Option<&Fault>) -> Result<DirectPlan, DirectError> {
        let mut state = self.state.lock();
        if let Some(Fault::Restarts) = fault {
            let next = GrantKey::generate(GrantKeyId(state.key.id().0 + 1));
            state.verifier = Verifier::new(self.inner.id(), std::slice::from_ref(&next));
            state.key = next;
            state.sessions.clear();
        }
        if let Some(Fault::Replayed) = fault {
            state.verifier.accept(sealed, NOW_MS)?;
        }
        let grant = state.verifier.accept(sealed, NOW_MS)?;
        let (session, tenant) = (grant.session, grant.tenant);
        let plan = direct_plan(grant.plan).map_err(|error| DirectError::InvalidPlan(error.0))?;
        if plan.session() != session || plan.owner.tenant != tenant {
            return Err(DirectError::InvalidPlan("the plan is for another session"));
        }
        match &plan.target {
            DirectTarget::Dynamic(_, token) if *self.dynamic.lock() == Some(token.dct_number()) => {
            }
            DirectTarget::Dynamic(..) => return Err(DirectError::NotServed),
            DirectTarget::Session(_) if state.sessions.get(&session) != Some(&plan.owner) => {
                return Err(DirectError::NoSuchSession);
            }
            DirectTarget::Session(_) => {}
        }
        if !plan.fits() {
            return Err(DirectError::InvalidPlan("the plan does not fit the windows"));
        }
        Ok(plan)
    }

    async fn carry_out(
        &self,
        plan: &DirectPlan,
        fault: Option<&Fault>,
    ) -> Result<Receipt, DirectError> {
        let mut receipt = match &plan.work {
            DirectWork::Get(get, digests) => {
                loses(fault, get.pieces[0].chunk)?;
                let mut body = self.inner.get(get.clone()).await?.body;
                let mut bytes = BytesMut::new();
                while let Some(frame) = body.next().await {
                    bytes.extend_from_slice(&frame?);
                }
                self.write(plan, &bytes)?;
                let mut hasher = MultiHasher::new(*digests);
                hasher.update(&bytes);
                receipt_of(get.transfer, bytes.len() as u64, hasher.finish())
            }
            DirectWork::Gather(gather, digests) => {
                loses(fault, gather.chunks[0])?;
                let (mut memory, mut hasher) = (self.fetch(plan)?, MultiHasher::new(*digests));
                for piece in &gather.pieces {
                    let &GatherPlan { transfer, tenant, weight, verification, .. } = gather;
                    let (chunk, range) = (gather.chunks[piece.chunk as usize], piece.range());
                    let (pieces, key) = (vec![Piece { chunk, range }], gather.key.clone());
                    let plan = GetPlan { transfer, tenant, weight, pieces, verification, key };
                    let (mut body, mut at) = (self.inner.get(plan).await?.body, piece.at as usize);
                    while let Some(frame) = body.next().await {
                        let frame = frame?;
                        hasher.update(&frame);
                        memory[at..at + frame.len()].copy_from_slice(&frame);
                        at += frame.len();
                    }
                }
                self.write(plan, &memory)?;
                receipt_of(gather.transfer, gather.length(), hasher.finish())
            }
            DirectWork::Put(put) => {
                let mut bytes = self.fetch(plan)?;
                bytes.truncate(put.length() as usize);
                if let Some(Fault::Corrupts) = fault {
                    bytes[0] ^= 1;
                }
                let body: Body = Box::pin(stream::iter([Ok(Bytes::from(bytes))]));
                let receipt = self.inner.put(put.clone(), body).await?;
                Receipt {
                    path: TransferPath::VerbsHost,
                    strength: KeyStrength::Window,
                    key: KeyFate::Relinquished(Relinquished::Invalidated),
                    ..receipt
                }
            }
        };
        if let DirectTarget::Dynamic(..) = plan.target {
            receipt.strength = KeyStrength::Standing;
            receipt.key = KeyFate::Relinquished(Relinquished::Quiet);
        }
        match fault {
            Some(Fault::ShortReceipt(missing)) => receipt.bytes -= missing,
            Some(Fault::AnswersForAnother) => receipt.transfer = TransferId::generate(),
            _ => {}
        }
        Ok(receipt)
    }

    /// Each window with the memory behind it, as its key says.
    fn windows(&self, plan: &DirectPlan) -> Result<Vec<(u64, usize, usize)>, DirectError> {
        let state = self.state.lock();
        let mut found = Vec::new();
        for window in plan.target.windows() {
            if state.keys.get(&window.key.0) != Some(window) {
                return Err(DirectError::Link("remote access error".into()));
            }
            let length = window.length as usize;
            let base = state.memory.iter().find(|(base, bytes)| {
                (**base..**base + bytes.len() as u64).contains(&window.address)
            });
            let base = *base.expect("armed over memory").0;
            found.push((base, (window.address - base) as usize, length));
        }
        Ok(found)
    }

    fn write(&self, plan: &DirectPlan, mut bytes: &[u8]) -> Result<(), DirectError> {
        for (base, at, length) in self.windows(plan)? {
            let (now, rest) = bytes.split_at(length.min(bytes.len()));
            let mut state = self.state.lock();
            state.memory.get_mut(&base).unwrap()[at..at + now.len()].copy_from_slice(now);
            bytes = rest;
        }
        Ok(())
    }

    fn fetch(&self, plan: &DirectPlan) -> Result<Vec<u8>, DirectError> {
        let mut bytes = Vec::new();
        for (base, at, length) in self.windows(plan)? {
            bytes.extend_from_slice(&self.state.lock().memory[&base][at..at + length]);
        }
        Ok(bytes)
    }

    fn revoke(&self, plan: &DirectPlan) {
        let mut state = self.state.lock();
        for window in plan.target.windows() {
            state.keys.remove(&window.key.0);
        }
    }
}

/// Memory of a client's.
pub(crate) struct Buffer {
    base: u64,
}

pub(crate) fn address() -> QpAddress {
    QpAddress {
        link: LinkLayer::Ethernet,
        gid: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1]),
        lid: 0,
        qp: 17,
        psn: 0x00ab_cdef,
        mtu: PathMtu::B4096,
    }
}

pub(crate) fn session_request(node: NodeId) -> SessionRequest {
    SessionRequest {
        node,
        rail: 0,
        client: address(),
        windows: 4,
        strengths: vec![KeyStrength::WindowLocal, KeyStrength::Window],
    }
}

#[async_trait]
impl StorageNode for DirectNode {
    fn id(&self) -> NodeId {
        self.inner.id()
    }

    fn claim(&self, catalog: Option<CatalogId>) -> Result<(), TransferError> {
        self.inner.claim(catalog)
    }

    async fn get(&self, plan: GetPlan) -> Result<Delivery, TransferError> {
        self.inner.get(plan).await
    }

    async fn put(&self, plan: PutPlan, body: Body) -> Result<Receipt, TransferError> {
        self.inner.put(plan, body).await
    }

    async fn release(&self, chunks: &[ChunkId]) -> Result<(), TransferError> {
        self.inner.release(chunks).await
    }

    async fn settle(
        &self,
        chunks: &[ChunkId],
        wait: Duration,
    ) -> Result<Vec<Standing>, TransferError> {
        self.inner.settle(chunks, wait).await
    }

    async fn prefetch(
        &self,
        tenant: TenantId,
        chunks: &[ChunkId],
    ) -> Result<Prefetched, TransferError> {
        self.inner.prefetch(tenant, chunks).await
    }

    async fn chunks(
        &self,
        after: Option<ChunkId>,
        limit: usize,
    ) -> Result<Vec<ChunkInfo>, TransferError> {
        self.inner.chunks(after, limit).await
    }

    async fn status(&self) -> Result<NodeStatus, TransferError> {
        self.inner.status().await
    }

    async fn rails(&self) -> Result<Vec<Rail>, TransferError> {
        let QpAddress { link, gid, .. } = address();
        let strength = KeyStrength::Window;
        Ok(vec![Rail { node: self.id(), rail: 0, name: "test_0/1".into(), link, gid, strength }])
    }

    async fn open_session(
        &self,
        owner: SessionOwner,
        request: SessionRequest,
    ) -> Result<SessionOffer, SessionError> {
        if request.rail != 0 {
            return Err(SessionError::NoSuchRail);
        }
        if request.client.link != LinkLayer::Ethernet {
            return Err(SessionError::Incompatible("the link layers differ"));
        }
        let mut state = self.state.lock();
        if state.sessions.len() == SESSIONS_MAX {
            return Err(SessionError::TooMany);
        }
        let serial = self.serials.fetch_add(1, Ordering::SeqCst) as u32;
        let session = SessionId::new(self.id(), serial);
        state.sessions.insert(session, owner);
        let strongest = request.strengths.iter().max().copied();
        Ok(SessionOffer {
            session,
            node: self.id(),
            server: QpAddress { qp: 18, ..address() },
            strength: strongest.unwrap_or(KeyStrength::Registration),
            windows: request.windows,
            idle_timeout_ms: 60_000,
        })
    }

    async fn door(&self) -> Result<Option<Door>, TransferError> {
        Ok(None)
    }

    async fn open_local_session(
        &self,
        _: SessionOwner,
        _: LocalSessionRequest,
    ) -> Result<LocalSessionOffer, SessionError> {
        Err(SessionError::NoSuchRail)
    }

    async fn close_sessions(&self, selector: SessionSelector) -> Result<u64, TransferError> {
        let mut state = self.state.lock();
        let closed = state.sessions.extract_if(|id, owner| selects(&selector, id, owner));
        Ok(closed.count() as u64)
    }

    async fn count_sessions(&self, selector: SessionSelector) -> Result<u64, TransferError> {
        let state = self.state.lock();
        let open = state.sessions.iter().filter(|(id, owner)| selects(&selector, id, owner));
        Ok(open.count() as u64)
    }

    async fn transfer(&self, grant: Bytes) -> Transferred {
        self.grants.fetch_add(1, Ordering::SeqCst);
        self.execute(&grant).await
    }

    async fn sealing_key(&self) -> Result<SealingKey, TransferError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let key = self.state.lock().key.clone();
        let dynamic = self.dynamic.lock().is_some();
        Ok(SealingKey { key, fresh_for: *self.fresh_for.lock(), dynamic })
    }
}

fn selects(selector: &SessionSelector, session: &SessionId, owner: &SessionOwner) -> bool {
    match selector {
        SessionSelector::One(one, of) => session == one && owner == of,
        SessionSelector::Owner(of) => owner == of,
        SessionSelector::Tenant(tenant) => owner.tenant == *tenant,
    }
}
