//! Dynamically connected (DC) transport, which mlx5 adapters have: one initiator writes to and
//! reads from any target that it is told of, without a connection made before.
//!
//! A link over an initiator is served by the port's thread like any other, and like any other it
//! ends with its first failed completion: the queue pair is destroyed, and whoever needs another
//! makes one. One transfer uses an initiator at a time, so none ends another's.
//!
//! A batch costs what it costs over a connection: one message, one doorbell, one completion. Each
//! of its requests carries the target's address, 48 bytes more for the device to fetch.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use keyway_proto::{DcKey, DctAddress, LinkLayer};
use keyway_sys::NativeError;
use keyway_sys::verbs::abi::{
    self, AddressHandle, AhAttr, GlobalRoute, Qp, QpAttr, QpCap, SendWr, Sge, Srq,
};
use keyway_sys::verbs::last_error;
use keyway_sys::verbs::mlx5::{
    self, DcInitAttr, DvQpEx, DvQpInitAttr, Mlx5, QpEx, QpInitAttrEx, RxHashConf,
};

use super::link::{Batch, Landed, Link, Posted};
use super::port::{LinkShape, PortInfo};
use super::queue::{CompletionQueue, QueuePair, RNR_TIMER, mtu_code};
use super::route::{ACK_TIMEOUT, HOPS};
use super::{Device, Domain, LinkError, Marks, Port, VerbsError};

/// What a library without extended posting lacks.
const TOO_OLD: NativeError =
    NativeError::NotOffered { library: "libibverbs.so.1", symbol: "ibv_qp_to_qp_ex" };

/// An mlx5 device, and the functions that it has beside the common ones.
pub struct DcDevice {
    pub(super) device: Arc<Device>,
    mlx5: Mlx5,
    to_ex: unsafe extern "C" fn(*mut Qp) -> *mut QpEx,
}

impl DcDevice {
    /// Looks whether a device is one. What it can do, [`dynamic_test`](super::dynamic_test())
    /// tells.
    ///
    /// # Errors
    /// [`VerbsError::NotMlx5`]; [`VerbsError::Native`] where libmlx5 is missing or too old.
    pub fn open(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        let mlx5 = Mlx5::load()?;
        // SAFETY: an open context names its device, which lives as long as the library.
        let is_mlx5 = unsafe { (mlx5.is_supported)((*device.context().as_ptr()).device) };
        if !is_mlx5 {
            return Err(VerbsError::NotMlx5);
        }
        let to_ex = device.verbs().qp_to_qp_ex.ok_or(TOO_OLD)?;
        Ok(Arc::new(Self { device: Arc::clone(device), mlx5, to_ex }))
    }

    /// Makes a DC queue pair in the domain, still in its first state.
    pub(super) fn create(
        &self,
        domain: &Arc<Domain>,
        cq: &CompletionQueue,
        kind: Kind,
    ) -> Result<NonNull<Qp>, VerbsError> {
        assert!(Arc::ptr_eq(domain.device(), &self.device), "a domain of this device");
        let (sends, srq, dc_type, dct_access_key, operations) = match kind {
            Kind::Initiator { sends } => {
                let operations = mlx5::QP_EX_WITH_RDMA_WRITE | mlx5::QP_EX_WITH_RDMA_READ;
                (sends, null_mut(), mlx5::DV_DCTYPE_DCI, 0, operations)
            }
            Kind::Target { srq, key } => (0, srq, mlx5::DV_DCTYPE_DCT, key.0, 0),
        };
        // The provider refuses the mask of operations for a target.
        let posts = if operations == 0 { 0 } else { mlx5::QP_INIT_ATTR_SEND_OPS_FLAGS };
        let mut attributes = QpInitAttrEx {
            qp_context: null_mut(),
            // A target never sends, but a queue must be named.
            send_cq: cq.cq.as_ptr(),
            recv_cq: cq.cq.as_ptr(),
            srq,
            cap: QpCap {
                max_send_wr: sends,
                max_send_sge: u32::from(sends > 0),
                ..QpCap::default()
            },
            qp_type: mlx5::QPT_DRIVER,
            sq_sig_all: 0,
            comp_mask: mlx5::QP_INIT_ATTR_PD | posts,
            pd: domain.pd().as_ptr(),
            xrcd: null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: null_mut(),
            rx_hash_conf: RxHashConf { function: 0, key_len: 0, key: null_mut(), fields_mask: 0 },
            source_qpn: 0,
            send_ops_flags: operations,
        };
        let mut of_mlx5 = DvQpInitAttr {
            comp_mask: mlx5::DV_QP_INIT_ATTR_MASK_DC,
            create_flags: 0,
            dc_init_attr: DcInitAttr { dc_type, dct_access_key },
            send_ops_flags: 0,
        };
        let context = self.device.context().as_ptr();
        // SAFETY: the context is an mlx5 device's, as `open` saw; domain, queues and the shared
        // receive queue are of it, and the structures live during the call.
        let qp = unsafe { (self.mlx5.create_qp)(context, &raw mut attributes, &raw mut of_mlx5) };
        NonNull::new(qp).ok_or_else(|| last_error("mlx5dv_create_qp").into())
    }

    fn poster(self: &Arc<Self>, qp: NonNull<Qp>) -> Option<Poster> {
        // SAFETY: the queue pair was made with operations to post, so it has both extensions,
        // which are parts of it.
        let (ex, dv) = unsafe {
            let ex = NonNull::new((self.to_ex)(qp.as_ptr()))?;
            (ex, NonNull::new((self.mlx5.qp_ex_from_ibv_qp_ex)(ex.as_ptr()))?)
        };
        // SAFETY: the provider filled them in for the operations that were asked for.
        let (calls, of_mlx5) = unsafe { (ex.as_ref(), dv.as_ref()) };
        Some(Poster {
            _dc: Arc::clone(self),
            ex,
            dv,
            start: calls.wr_start?,
            write: calls.wr_rdma_write?,
            read: calls.wr_rdma_read?,
            set_sge: calls.wr_set_sge?,
            complete: calls.wr_complete?,
            set_target: of_mlx5.wr_set_dc_addr?,
        })
    }
}

impl fmt::Debug for DcDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DcDevice").field("device", &self.device).finish_non_exhaustive()
    }
}

/// Which end of the transport.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Initiator { sends: u32 },
    Target { srq: *mut Srq, key: DcKey },
}

/// How an initiator's queue pair posts: its extensions, and their functions.
///
/// Invariant: used by the owner of the queue pair, and not after it.
pub(super) struct Poster {
    /// Keeps the functions loaded.
    _dc: Arc<DcDevice>,
    ex: NonNull<QpEx>,
    dv: NonNull<DvQpEx>,
    start: unsafe extern "C" fn(*mut QpEx),
    write: unsafe extern "C" fn(*mut QpEx, u32, u64),
    read: unsafe extern "C" fn(*mut QpEx, u32, u64),
    set_sge: unsafe extern "C" fn(*mut QpEx, u32, u64, u32),
    complete: unsafe extern "C" fn(*mut QpEx) -> c_int,
    set_target: unsafe extern "C" fn(*mut DvQpEx, *mut AddressHandle, u32, u64),
}

impl Poster {
    /// Posts WRITEs and READs with one doorbell; the call's code.
    ///
    /// # Safety
    /// The queue pair lives and nobody else posts to it; the memory that the requests name, and
    /// the target, stay until their completion was polled or the queue pair is destroyed.
    pub(super) unsafe fn post(&self, requests: &[SendWr], to: &DcTarget) -> c_int {
        let moves =
            |request: &SendWr| matches!(request.opcode, abi::WR_RDMA_WRITE | abi::WR_RDMA_READ);
        // Before the first call: between it and the last one the provider holds a lock.
        assert!(requests.iter().all(moves), "an initiator writes and reads");
        let (ex, dv) = (self.ex.as_ptr(), self.dv.as_ptr());
        // SAFETY: the order is that of ibv_wr_post(3): start; then for each request its id and
        // flags, its operation, and both of its setters; then complete, which posts all or, with
        // an error, none. A request's scatter list has the one entry that it points to.
        unsafe {
            (self.start)(ex);
            for request in requests {
                (*ex).wr_id = request.wr_id;
                (*ex).wr_flags = request.send_flags;
                let operation = match request.opcode {
                    abi::WR_RDMA_READ => self.read,
                    _ => self.write,
                };
                operation(ex, request.rdma.rkey, request.rdma.remote_addr);
                (self.set_target)(dv, to.handle.ah.as_ptr(), to.number, to.key.0);
                let sge = if request.num_sge > 0 { *request.sg_list } else { Sge::default() };
                (self.set_sge)(ex, sge.lkey, sge.addr, sge.length);
            }
            (self.complete)(ex)
        }
    }
}

/// A route to a port, as the device keeps it.
///
/// Invariant: `ah` is of `domain`, and is given back once.
struct Handle {
    domain: Arc<Domain>,
    ah: NonNull<AddressHandle>,
}

// SAFETY: verbs objects may be used from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above; nothing changes it.
unsafe impl Sync for Handle {}

impl Handle {
    fn new(
        domain: &Arc<Domain>,
        port: &PortInfo,
        to: &DctAddress,
        marks: Marks,
    ) -> Result<Self, VerbsError> {
        let mut attributes = route(port, to, marks).ok_or(VerbsError::OtherNetwork)?;
        let verbs = domain.device().verbs();
        // SAFETY: the domain lives, and the structure during the call.
        let ah = unsafe { (verbs.create_ah)(domain.pd().as_ptr(), &raw mut attributes) };
        let ah = NonNull::new(ah).ok_or_else(|| last_error("ibv_create_ah"))?;
        Ok(Self { domain: Arc::clone(domain), ah })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: given back once; works that use it hold it.
        let code = unsafe { (self.domain.device().verbs().destroy_ah)(self.ah.as_ptr()) };
        if code != 0 {
            tracing::error!(code, "cannot give back an address handle");
        }
    }
}

/// The way from a port to a target; `None` where there is none.
fn route(port: &PortInfo, to: &DctAddress, marks: Marks) -> Option<AhAttr> {
    if !reaches(port, to) {
        return None;
    }
    // Whoever says a GID wants to be reached by it, also within a subnet: some ports demand it.
    let gid = to.gid;
    let mut address = AhAttr {
        grh: GlobalRoute {
            dgid: abi::Gid(gid.map_or([0; 16], |gid| gid.0)),
            flow_label: fastrand::u32(..1 << 20),
            sgid_index: port.gid_index,
            hop_limit: HOPS,
            traffic_class: 0,
        },
        dlid: to.lid,
        is_global: u8::from(gid.is_some()),
        port_num: port.number,
        ..AhAttr::default()
    };
    marks.put_on(&mut address, port.link);
    Some(address)
}

/// Whether a target may be reached from a port, by what its address is: under RoCE a GID of the
/// same protocol, under InfiniBand a local identifier.
pub fn reaches(port: &PortInfo, to: &DctAddress) -> bool {
    match port.link {
        LinkLayer::Ethernet => to.gid.is_some_and(|gid| gid.is_ipv4() == port.gid.is_ipv4()),
        LinkLayer::Infiniband => to.lid != 0,
    }
}

/// A target, as initiators of one domain reach it.
pub struct DcTarget {
    handle: Handle,
    number: u32,
    key: DcKey,
}

impl fmt::Debug for DcTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DcTarget(hidden)")
    }
}

/// An initiator: a link to whatever target a batch is for. Clones share it; the last one's drop
/// destroys it.
#[derive(Clone, Debug)]
pub struct Initiator {
    link: Link,
    info: Arc<PortInfo>,
}

impl Initiator {
    /// Makes one in a domain of the port's device. Blocks for system calls.
    ///
    /// # Errors
    /// [`VerbsError`].
    ///
    /// # Panics
    /// When port, domain and device do not belong together.
    pub fn new(port: &Port, dc: &Arc<DcDevice>, domain: &Arc<Domain>) -> Result<Self, VerbsError> {
        assert!(Arc::ptr_eq(port.device(), &dc.device), "a port of this device");
        let (shared, shape) = (port.shared(), LinkShape::NODE);
        let slot = shared.take_slot(shape)?;
        let raw = dc.create(domain, &shared.cq, Kind::Initiator { sends: shape.sends })?;
        let poster = dc.poster(raw);
        let lacks = poster.is_none();
        let qp = QueuePair::adopt(domain, &shared.cq, raw, poster);
        if lacks {
            // The queue pair goes as it came.
            return Err(TOO_OLD.into());
        }
        qp.modify(initial(port.info()), abi::QP_STATE | abi::QP_PKEY_INDEX | abi::QP_PORT)?;
        let receive = abi::QP_STATE | abi::QP_PATH_MTU | abi::QP_AV;
        qp.modify(receiving(port.info()), receive)?;
        qp.ready_to_send(ACK_TIMEOUT)?;
        let link = Link::over_initiator(shared, domain, shape, qp, slot)?;
        Ok(Self { link, info: Arc::new(port.info().clone()) })
    }

    /// The way to a target whose owner gave it this key, for packets marked so. Blocks for system
    /// calls, under RoCE until the network has said where the address is.
    ///
    /// # Errors
    /// [`VerbsError::OtherNetwork`], [`VerbsError::Native`].
    pub fn target(
        &self,
        at: &DctAddress,
        key: DcKey,
        marks: Marks,
    ) -> Result<Arc<DcTarget>, VerbsError> {
        let handle = Handle::new(self.link.domain(), &self.info, at, marks)?;
        Ok(Arc::new(DcTarget { handle, number: at.number, key }))
    }

    /// Posts a batch to a target, and answers as soon as there is room for it.
    ///
    /// # Errors
    /// [`LinkError`] when the initiator is gone.
    ///
    /// # Panics
    /// When the target is of another domain, or the batch is empty, longer than the send queue, or
    /// does anything but write and read.
    pub async fn begin(&self, to: &Arc<DcTarget>, batch: Batch) -> Result<Posted, LinkError> {
        assert!(Arc::ptr_eq(&to.handle.domain, self.link.domain()), "a target of this domain");
        assert!(batch.moves_alone(), "a target's key is ended by nobody");
        self.link.begin_to(Some(Arc::clone(to)), batch).await
    }

    /// Waits for the end of a batch of this initiator.
    ///
    /// # Errors
    /// [`LinkError`] once the queue pair is destroyed.
    pub async fn landed(&self, posted: Posted) -> Result<Landed, LinkError> {
        self.link.landed(posted).await
    }

    /// Destroys the queue pair, and waits until it is gone: this end's adapter sends nothing more.
    pub async fn fence(&self) -> LinkError {
        self.link.fence().await
    }

    /// Resolves, with the reason, when the queue pair no longer exists.
    pub async fn destroyed(&self) -> LinkError {
        self.link.destroyed().await
    }

    /// Whether the queue pair still exists, as far as is known here.
    pub fn is_alive(&self) -> bool {
        self.link.is_alive()
    }
}

pub(super) fn initial(port: &PortInfo) -> QpAttr {
    QpAttr { qp_state: abi::QPS_INIT, port_num: port.number, ..QpAttr::default() }
}

/// Ready to receive, from whom it may be.
pub(super) fn receiving(port: &PortInfo) -> QpAttr {
    QpAttr {
        qp_state: abi::QPS_RTR,
        path_mtu: mtu_code(port.mtu.bytes()),
        min_rnr_timer: RNR_TIMER,
        ah_attr: AhAttr {
            grh: GlobalRoute {
                sgid_index: port.gid_index,
                hop_limit: HOPS,
                ..GlobalRoute::default()
            },
            is_global: u8::from(port.link == LinkLayer::Ethernet),
            port_num: port.number,
            ..AhAttr::default()
        },
        ..QpAttr::default()
    }
}

#[cfg(test)]
mod tests {
    use keyway_proto::{Gid, PathMtu};

    use super::super::GidKind;
    use super::*;

    const MAPPED: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1]);
    const MARKS: Marks = Marks { traffic_class: Some(0x68), service_level: Some(3) };
    const SUBNET: Gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 1]);

    fn port(link: LinkLayer, gid: Gid) -> PortInfo {
        let (gid_kind, device) = (GidKind::RoceV2, "mlx5_0".into());
        let (gid_index, lid, mtu) = (3, 7, PathMtu::B4096);
        PortInfo { device, number: 2, link, gid, gid_kind, gid_index, lid, mtu }
    }

    fn target(gid: Option<Gid>, lid: u16) -> DctAddress {
        DctAddress { gid, lid, number: 9 }
    }

    #[test]
    fn roce_needs_a_gid_of_its_own_kind() {
        let port = port(LinkLayer::Ethernet, MAPPED);
        assert!(route(&port, &target(None, 5), MARKS).is_none());
        assert!(route(&port, &target(Some(SUBNET), 5), MARKS).is_none());
        let way = route(&port, &target(Some(MAPPED), 0), MARKS).expect("reachable");
        assert_eq!((way.is_global, way.port_num, way.grh.sgid_index), (1, 2, 3));
        assert_eq!((way.grh.traffic_class, way.sl), (0x68, 0));
        assert_eq!(way.grh.dgid.0, MAPPED.0);
    }

    #[test]
    fn infiniband_needs_a_lid_and_takes_a_gid() {
        let port = port(LinkLayer::Infiniband, SUBNET);
        assert!(route(&port, &target(Some(SUBNET), 0), MARKS).is_none());
        let way = route(&port, &target(None, 5), MARKS).expect("reachable");
        assert_eq!((way.is_global, way.dlid, way.sl), (0, 5, 3));
        let way = route(&port, &target(Some(SUBNET), 5), Marks::default()).expect("reachable");
        assert_eq!((way.grh.traffic_class, way.sl), (0, 0));
        assert_eq!((way.is_global, way.dlid, way.grh.dgid.0), (1, 5, SUBNET.0));
    }
}
