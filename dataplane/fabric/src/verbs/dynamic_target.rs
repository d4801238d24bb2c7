//! A target of dynamically connected transport: the client's end.

#![allow(unsafe_code)]

use std::ffi::c_uint;
use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use keyway_proto::{DcKey, DctAddress};
use keyway_sys::verbs::abi::{self, QpAttr, Srq, SrqInitAttr};
use keyway_sys::verbs::last_error;

use super::dynamic::{DcDevice, Kind, initial, receiving};
use super::port::PortInfo;
use super::queue::QueuePair;
use super::{Domain, Port, VerbsError};

/// Receives that a target has room for. None is ever posted: nothing but WRITEs and READs is
/// answered.
const RECEIVES: u32 = 1;

/// A shared receive queue, without which there is no target.
///
/// Invariant: `srq` is of `domain`, and is given back once, after the target.
struct SharedReceives {
    domain: Arc<Domain>,
    srq: NonNull<Srq>,
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // SAFETY: the target that used it is gone.
        let code = unsafe { (self.domain.device().verbs().destroy_srq)(self.srq.as_ptr()) };
        if code != 0 {
            tracing::error!(code, "cannot give back a shared receive queue");
        }
    }
}

/// A target: what a client of dynamically connected transport has. Nodes have none but in their
/// self-test.
pub struct ListeningTarget {
    // Before the receives: it uses them.
    qp: QueuePair,
    _receives: SharedReceives,
    info: PortInfo,
}

// SAFETY: verbs objects may be used from any thread.
unsafe impl Send for ListeningTarget {}

impl ListeningTarget {
    /// Makes one, which initiators reach with this key. Blocks for system calls.
    ///
    /// # Errors
    /// [`VerbsError`].
    ///
    /// # Panics
    /// When port, domain and device do not belong together.
    pub fn new(
        port: &Port,
        dc: &DcDevice,
        domain: &Arc<Domain>,
        key: DcKey,
    ) -> Result<Self, VerbsError> {
        assert!(Arc::ptr_eq(port.device(), &dc.device), "a port of this device");
        let (cq, verbs) = (&port.shared().cq, domain.device().verbs());
        let mut attributes =
            SrqInitAttr { srq_context: null_mut(), max_wr: RECEIVES, max_sge: 1, srq_limit: 0 };
        // SAFETY: the domain lives, and the structure during the call.
        let srq = unsafe { (verbs.create_srq)(domain.pd().as_ptr(), &raw mut attributes) };
        let srq = NonNull::new(srq).ok_or_else(|| last_error("ibv_create_srq"))?;
        let receives = SharedReceives { domain: Arc::clone(domain), srq };
        let raw = dc.create(domain, cq, Kind::Target { srq: srq.as_ptr(), key })?;
        let qp = QueuePair::adopt(domain, cq, raw, None);
        // From here on the target goes before its receives, also on the way out.
        let target = Self { qp, _receives: receives, info: port.info().clone() };
        let access = abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ;
        let initial = QpAttr { qp_access_flags: access as c_uint, ..initial(port.info()) };
        let mask = abi::QP_STATE | abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_ACCESS_FLAGS;
        target.qp.modify(initial, mask)?;
        let mask = abi::QP_STATE | abi::QP_PATH_MTU | abi::QP_MIN_RNR_TIMER | abi::QP_AV;
        target.qp.modify(receiving(port.info()), mask)?;
        Ok(target)
    }

    /// What initiators must know of it.
    pub fn address(&self) -> DctAddress {
        // The device gave it its number when it became ready.
        DctAddress { gid: Some(self.info.gid), lid: self.info.lid, number: self.qp.number() }
    }
}

impl fmt::Debug for ListeningTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListeningTarget").field("port", &self.info).finish_non_exhaustive()
    }
}
