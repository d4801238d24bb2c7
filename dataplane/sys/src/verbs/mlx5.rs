//! libmlx5: what NVIDIA's adapters have beyond libibverbs, of which dynamically connected (DC)
//! transport is used.
//!
//! A DC initiator posts through function pointers of its own (`ibv_qp_ex`), which the header's
//! inline functions call, and so do we. The same invariant as beside: the types are those of
//! `infiniband/verbs.h` and `infiniband/mlx5dv.h`, which a test compares.
//!
//! Source: infiniband/mlx5dv.h of rdma-core 44.

#![allow(missing_docs, reason = "the headers document their own names")]

use std::ffi::{c_int, c_uint, c_void};

use libloading::Library;

use super::abi::{AddressHandle, Context, Cq, Device, Pd, Qp, QpCap, Srq};
use crate::library::{NativeError, load, symbol};

const LIBRARY: &str = "libmlx5.so.1";

type CreateQp = unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx, *mut DvQpInitAttr) -> *mut Qp;

/// The functions of libmlx5 that are used, under the header's names without `mlx5dv_`.
pub struct Mlx5 {
    pub is_supported: unsafe extern "C" fn(*mut Device) -> bool,
    pub create_qp: CreateQp,
    pub qp_ex_from_ibv_qp_ex: unsafe extern "C" fn(*mut QpEx) -> *mut DvQpEx,
    _library: Library,
}

impl Mlx5 {
    /// Loads the library. It is libibverbs' own provider, so both are of one release.
    ///
    /// # Errors
    /// [`NativeError::Missing`] and [`NativeError::NoSymbol`].
    pub fn load() -> Result<Self, NativeError> {
        // SAFETY: libibverbs loads it as well, at any time; the types are those of the header,
        // and the library is kept beside the pointers.
        unsafe {
            let library = load(LIBRARY)?;
            Ok(Self {
                is_supported: symbol(&library, LIBRARY, "mlx5dv_is_supported")?,
                create_qp: symbol(&library, LIBRARY, "mlx5dv_create_qp")?,
                qp_ex_from_ibv_qp_ex: symbol(&library, LIBRARY, "mlx5dv_qp_ex_from_ibv_qp_ex")?,
                _library: library,
            })
        }
    }
}

pub const QPT_DRIVER: c_int = 0xff;
pub const QP_INIT_ATTR_PD: u32 = 1;
pub const QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;
pub const QP_EX_WITH_RDMA_WRITE: u64 = 1;
pub const QP_EX_WITH_RDMA_READ: u64 = 1 << 4;
pub const DV_QP_INIT_ATTR_MASK_DC: u64 = 1 << 1;
pub const DV_DCTYPE_DCT: c_int = 1;
pub const DV_DCTYPE_DCI: c_int = 2;

/// `struct ibv_qp_init_attr_ex`.
#[repr(C)]
pub struct QpInitAttrEx {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut Pd,
    pub xrcd: *mut c_void,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_conf: RxHashConf,
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

#[repr(C)]
pub struct RxHashConf {
    pub function: u8,
    pub key_len: u8,
    pub key: *mut u8,
    pub fields_mask: u64,
}

/// `struct mlx5dv_qp_init_attr`, with its `dc_init_attr` spread out.
#[repr(C)]
pub struct DvQpInitAttr {
    pub comp_mask: u64,
    pub create_flags: u32,
    pub dc_init_attr: DcInitAttr,
    pub send_ops_flags: u64,
}

/// `struct mlx5dv_dc_init_attr`, with the member of its union that is used.
#[repr(C)]
pub struct DcInitAttr {
    pub dc_type: c_int,
    /// Of a target.
    pub dct_access_key: u64,
}

/// Words of the C library's `pthread_mutex_t`, and of its `pthread_cond_t`.
const MUTEX_WORDS: usize = if cfg!(target_arch = "aarch64") { 6 } else { 5 };
const CONDITION_WORDS: usize = 6;

/// `struct ibv_qp`, whole.
#[repr(C)]
pub struct QpBase {
    pub qp: Qp,
    pub state: c_int,
    pub qp_type: c_int,
    _mutex: [u64; MUTEX_WORDS],
    _condition: [u64; CONDITION_WORDS],
    pub events_completed: u32,
}

type Ex = *mut QpEx;

/// `struct ibv_qp_ex`, up to the members that are used.
#[repr(C)]
pub struct QpEx {
    // The C structure's own alignment is that of its pointers.
    pub qp_base: QpBase,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    _atomic: [*mut c_void; 2],
    _bind_mw: *mut c_void,
    _local_inv: *mut c_void,
    pub wr_rdma_read: Option<unsafe extern "C" fn(Ex, u32, u64)>,
    pub wr_rdma_write: Option<unsafe extern "C" fn(Ex, u32, u64)>,
    _write_imm: *mut c_void,
    _send: [*mut c_void; 4],
    _ud_addr: *mut c_void,
    _xrc_srqn: *mut c_void,
    _inline: [*mut c_void; 2],
    pub wr_set_sge: Option<unsafe extern "C" fn(Ex, u32, u64, u32)>,
    _sge_list: *mut c_void,
    pub wr_start: Option<unsafe extern "C" fn(Ex)>,
    pub wr_complete: Option<unsafe extern "C" fn(Ex) -> c_int>,
    pub wr_abort: Option<unsafe extern "C" fn(Ex)>,
}

/// `struct mlx5dv_qp_ex`, up to the member that is used.
#[repr(C)]
pub struct DvQpEx {
    pub comp_mask: u64,
    pub wr_set_dc_addr: Option<unsafe extern "C" fn(*mut Self, *mut AddressHandle, u32, u64)>,
}
