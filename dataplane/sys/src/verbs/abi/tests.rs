use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::process::Command;

use super::*;
use crate::verbs::mlx5::*;

macro_rules! layout {
    ($out:ident, $rust:ty, $c:literal, size; $($field:ident $(. $sub:ident)* = $member:literal),*) => {
        writeln!($out, "{} sizeof {}", $c, size_of::<$rust>()).unwrap();
        layout!($out, $rust, $c; $($field $(. $sub)* = $member),*);
    };
    ($out:ident, $rust:ty, $c:literal; $($field:ident $(. $sub:ident)* = $member:literal),*) => {
        $(writeln!($out, "{} {} {}", $c, $member, offset_of!($rust, $field $(. $sub)*)).unwrap();)*
    };
}

pub(crate) use layout;

/// Every size and offset that the tables rely on: `type member offset` a line.
fn ours() -> String {
    let mut out = String::new();
    layout!(out, DeviceAttr, "struct ibv_device_attr", size; max_mr_size = "max_mr_size",
        device_cap_flags = "device_cap_flags", max_mw = "max_mw", phys_port_cnt = "phys_port_cnt");
    layout!(out, PortAttr, "struct ibv_port_attr", size; lid = "lid", link_layer = "link_layer");
    layout!(out, GidEntry, "struct ibv_gid_entry", size; gid_type = "gid_type");
    layout!(out, Context, "struct ibv_context"; ops.alloc_mw = "ops.alloc_mw",
        ops.dealloc_mw = "ops.dealloc_mw", ops.poll_cq = "ops.poll_cq",
        ops.req_notify_cq = "ops.req_notify_cq", ops.post_send = "ops.post_send",
        ops.post_recv = "ops.post_recv", async_fd = "async_fd");
    layout!(out, Mr, "struct ibv_mr", size; lkey = "lkey", rkey = "rkey");
    layout!(out, Mw, "struct ibv_mw", size; rkey = "rkey");
    layout!(out, CompChannel, "struct ibv_comp_channel", size; fd = "fd");
    layout!(out, Cq, "struct ibv_cq"; cqe = "cqe");
    layout!(out, Qp, "struct ibv_qp"; qp_num = "qp_num");
    layout!(out, QpInitAttr, "struct ibv_qp_init_attr", size; cap = "cap", qp_type = "qp_type");
    layout!(out, QpAttr, "struct ibv_qp_attr", size; ah_attr = "ah_attr",
        ah_attr.dlid = "ah_attr.dlid", pkey_index = "pkey_index", port_num = "port_num",
        rnr_retry = "rnr_retry");
    layout!(out, SendWr, "struct ibv_send_wr", size; opcode = "opcode",
        invalidate_rkey = "invalidate_rkey", rdma.remote_addr = "wr.rdma.remote_addr",
        rdma.rkey = "wr.rdma.rkey", bind_mw.mw = "bind_mw.mw", bind_mw.rkey = "bind_mw.rkey",
        bind_mw.mr = "bind_mw.bind_info.mr", bind_mw.addr = "bind_mw.bind_info.addr",
        bind_mw.length = "bind_mw.bind_info.length",
        bind_mw.access = "bind_mw.bind_info.mw_access_flags");
    layout!(out, RecvWr, "struct ibv_recv_wr", size; num_sge = "num_sge");
    layout!(out, Sge, "struct ibv_sge", size; lkey = "lkey");
    layout!(out, Wc, "struct ibv_wc", size; invalidated_rkey = "invalidated_rkey",
        wc_flags = "wc_flags", sl = "sl");
    layout!(out, AsyncEvent, "struct ibv_async_event", size; event_type = "event_type");
    layout!(out, SrqInitAttr, "struct ibv_srq_init_attr", size; max_wr = "attr.max_wr",
        max_sge = "attr.max_sge", srq_limit = "attr.srq_limit");
    layout!(out, QpInitAttrEx, "struct ibv_qp_init_attr_ex", size; srq = "srq", cap = "cap",
        qp_type = "qp_type", comp_mask = "comp_mask", pd = "pd", rx_hash_conf = "rx_hash_conf",
        rx_hash_conf.fields_mask = "rx_hash_conf.rx_hash_fields_mask",
        send_ops_flags = "send_ops_flags");
    layout!(out, QpBase, "struct ibv_qp", size; state = "state", qp_type = "qp_type",
        events_completed = "events_completed");
    layout!(out, QpEx, "struct ibv_qp_ex"; comp_mask = "comp_mask", wr_id = "wr_id",
        wr_flags = "wr_flags", wr_rdma_read = "wr_rdma_read", wr_rdma_write = "wr_rdma_write",
        wr_set_sge = "wr_set_sge", wr_start = "wr_start", wr_complete = "wr_complete",
        wr_abort = "wr_abort");
    layout!(out, DvQpInitAttr, "struct mlx5dv_qp_init_attr", size; create_flags = "create_flags",
        dc_init_attr.dc_type = "dc_init_attr.dc_type",
        dc_init_attr.dct_access_key = "dc_init_attr.dct_access_key",
        send_ops_flags = "send_ops_flags");
    layout!(out, DcInitAttr, "struct mlx5dv_dc_init_attr", size;);
    layout!(out, DvQpEx, "struct mlx5dv_qp_ex"; comp_mask = "comp_mask",
        wr_set_dc_addr = "wr_set_dc_addr");
    for (name, value) in CONSTANTS {
        writeln!(out, "constant {name} {value}").unwrap();
    }
    out
}

/// The header's constants under its own names.
const CONSTANTS: [(&str, i64); 54] = [
    ("IBV_DEVICE_MEM_WINDOW_TYPE_2A", DEVICE_MEM_WINDOW_TYPE_2A as i64),
    ("IBV_DEVICE_MEM_WINDOW_TYPE_2B", DEVICE_MEM_WINDOW_TYPE_2B as i64),
    ("IBV_PORT_ACTIVE", PORT_ACTIVE as i64),
    ("IBV_LINK_LAYER_INFINIBAND", LINK_LAYER_INFINIBAND as i64),
    ("IBV_LINK_LAYER_ETHERNET", LINK_LAYER_ETHERNET as i64),
    ("IBV_GID_TYPE_IB", GID_TYPE_IB as i64),
    ("IBV_GID_TYPE_ROCE_V1", GID_TYPE_ROCE_V1 as i64),
    ("IBV_GID_TYPE_ROCE_V2", GID_TYPE_ROCE_V2 as i64),
    ("IBV_MW_TYPE_2", MW_TYPE_2 as i64),
    ("IBV_ACCESS_LOCAL_WRITE", ACCESS_LOCAL_WRITE as i64),
    ("IBV_ACCESS_REMOTE_WRITE", ACCESS_REMOTE_WRITE as i64),
    ("IBV_ACCESS_REMOTE_READ", ACCESS_REMOTE_READ as i64),
    ("IBV_ACCESS_MW_BIND", ACCESS_MW_BIND as i64),
    ("IBV_QPT_RC", QPT_RC as i64),
    ("IBV_QPS_INIT", QPS_INIT as i64),
    ("IBV_QPS_RTR", QPS_RTR as i64),
    ("IBV_QPS_RTS", QPS_RTS as i64),
    ("IBV_QPS_ERR", QPS_ERR as i64),
    ("IBV_QP_STATE", QP_STATE as i64),
    ("IBV_QP_ACCESS_FLAGS", QP_ACCESS_FLAGS as i64),
    ("IBV_QP_PKEY_INDEX", QP_PKEY_INDEX as i64),
    ("IBV_QP_PORT", QP_PORT as i64),
    ("IBV_QP_AV", QP_AV as i64),
    ("IBV_QP_PATH_MTU", QP_PATH_MTU as i64),
    ("IBV_QP_TIMEOUT", QP_TIMEOUT as i64),
    ("IBV_QP_RETRY_CNT", QP_RETRY_CNT as i64),
    ("IBV_QP_RNR_RETRY", QP_RNR_RETRY as i64),
    ("IBV_QP_RQ_PSN", QP_RQ_PSN as i64),
    ("IBV_QP_MAX_QP_RD_ATOMIC", QP_MAX_QP_RD_ATOMIC as i64),
    ("IBV_QP_MIN_RNR_TIMER", QP_MIN_RNR_TIMER as i64),
    ("IBV_QP_SQ_PSN", QP_SQ_PSN as i64),
    ("IBV_QP_MAX_DEST_RD_ATOMIC", QP_MAX_DEST_RD_ATOMIC as i64),
    ("IBV_QP_DEST_QPN", QP_DEST_QPN as i64),
    ("IBV_WR_RDMA_WRITE", WR_RDMA_WRITE as i64),
    ("IBV_WR_RDMA_READ", WR_RDMA_READ as i64),
    ("IBV_WR_LOCAL_INV", WR_LOCAL_INV as i64),
    ("IBV_WR_BIND_MW", WR_BIND_MW as i64),
    ("IBV_WR_SEND_WITH_INV", WR_SEND_WITH_INV as i64),
    ("IBV_SEND_SIGNALED", SEND_SIGNALED as i64),
    ("IBV_SEND_INLINE", SEND_INLINE as i64),
    ("IBV_WC_LOC_ACCESS_ERR", WC_LOC_ACCESS_ERR as i64),
    ("IBV_WC_REM_ACCESS_ERR", WC_REM_ACCESS_ERR as i64),
    ("IBV_WC_RETRY_EXC_ERR", WC_RETRY_EXC_ERR as i64),
    ("IBV_WC_RNR_RETRY_EXC_ERR", WC_RNR_RETRY_EXC_ERR as i64),
    ("IBV_WC_WITH_INV", WC_WITH_INV as i64),
    ("IBV_EVENT_QP_ACCESS_ERR", EVENT_QP_ACCESS_ERR as i64),
    ("IBV_QPT_DRIVER", QPT_DRIVER as i64),
    ("IBV_QP_INIT_ATTR_PD", QP_INIT_ATTR_PD as i64),
    ("IBV_QP_INIT_ATTR_SEND_OPS_FLAGS", QP_INIT_ATTR_SEND_OPS_FLAGS as i64),
    ("IBV_QP_EX_WITH_RDMA_WRITE", QP_EX_WITH_RDMA_WRITE as i64),
    ("IBV_QP_EX_WITH_RDMA_READ", QP_EX_WITH_RDMA_READ as i64),
    ("MLX5DV_QP_INIT_ATTR_MASK_DC", DV_QP_INIT_ATTR_MASK_DC as i64),
    ("MLX5DV_DCTYPE_DCT", DV_DCTYPE_DCT as i64),
    ("MLX5DV_DCTYPE_DCI", DV_DCTYPE_DCI as i64),
];

/// Functions that are called by pointer, and the types that the tables give them.
const SIGNATURES: [(&str, &str); 16] = [
    ("&mlx5dv_is_supported", "bool (*)(struct ibv_device *)"),
    (
        "&mlx5dv_create_qp",
        "struct ibv_qp *(*)(struct ibv_context *, struct ibv_qp_init_attr_ex *, \
         struct mlx5dv_qp_init_attr *)",
    ),
    ("&mlx5dv_qp_ex_from_ibv_qp_ex", "struct mlx5dv_qp_ex *(*)(struct ibv_qp_ex *)"),
    ("&ibv_qp_to_qp_ex", "struct ibv_qp_ex *(*)(struct ibv_qp *)"),
    ("&ibv_create_ah", "struct ibv_ah *(*)(struct ibv_pd *, struct ibv_ah_attr *)"),
    ("&ibv_destroy_ah", "int (*)(struct ibv_ah *)"),
    ("&ibv_create_srq", "struct ibv_srq *(*)(struct ibv_pd *, struct ibv_srq_init_attr *)"),
    ("&ibv_destroy_srq", "int (*)(struct ibv_srq *)"),
    ("((struct ibv_qp_ex *)0)->wr_start", "void (*)(struct ibv_qp_ex *)"),
    ("((struct ibv_qp_ex *)0)->wr_abort", "void (*)(struct ibv_qp_ex *)"),
    ("((struct ibv_qp_ex *)0)->wr_complete", "int (*)(struct ibv_qp_ex *)"),
    ("((struct ibv_qp_ex *)0)->wr_rdma_write", "void (*)(struct ibv_qp_ex *, uint32_t, uint64_t)"),
    ("((struct ibv_qp_ex *)0)->wr_rdma_read", "void (*)(struct ibv_qp_ex *, uint32_t, uint64_t)"),
    (
        "((struct ibv_qp_ex *)0)->wr_set_sge",
        "void (*)(struct ibv_qp_ex *, uint32_t, uint64_t, uint32_t)",
    ),
    (
        "((struct mlx5dv_qp_ex *)0)->wr_set_dc_addr",
        "void (*)(struct mlx5dv_qp_ex *, struct ibv_ah *, uint32_t, uint64_t)",
    ),
    ("((struct mlx5dv_dc_init_attr *)0)->dct_access_key", "uint64_t"),
];

/// Goal: our layouts are the header's. Method: the C compiler prints its own.
#[test]
fn layouts_are_those_of_the_header() {
    let register = "_Static_assert(__builtin_types_compatible_p(__typeof__(&ibv_reg_dmabuf_mr), \
         struct ibv_mr *(*)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int)), \
         \"ibv_reg_dmabuf_mr\");\n";
    let mut prologue = format!("#include <infiniband/mlx5dv.h>\n{register}");
    for (what, kind) in SIGNATURES {
        writeln!(
            prologue,
            "_Static_assert(__builtin_types_compatible_p(__typeof__({what}), {kind}), \"\");"
        )
        .unwrap();
    }
    compare(&ours(), "infiniband/verbs.h", &prologue);
}

/// Compares `type member offset` lines of ours with what a C program prints that includes the
/// header and begins with `prologue`. Says so where there is no header or no compiler.
pub(crate) fn compare(ours: &str, header: &str, prologue: &str) {
    let mut program = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <{header}>\n{prologue}\
         int main(void) {{\n"
    );
    for line in ours.lines() {
        let (rest, _) = line.rsplit_once(' ').unwrap();
        let (kind, member) = rest.rsplit_once(' ').unwrap();
        let value = match member {
            constant if kind == "constant" => constant.to_owned(),
            "sizeof" => format!("sizeof({kind})"),
            member => format!("offsetof({kind}, {member})"),
        };
        writeln!(program, "printf(\"%s %zu\\n\", \"{rest}\", (size_t){value});").unwrap();
    }
    program.push_str("return 0; }\n");
    let name = header.replace(['/', '.'], "-");
    let folder = std::env::temp_dir().join(format!("keyway-layout-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(&binary).output();
    let theirs = match compiled {
        Ok(output) if output.status.success() => {
            String::from_utf8(Command::new(&binary).output().unwrap().stdout).unwrap()
        }
        Ok(output) if misses(&output.stderr, header) => {
            println!("skipped: {header} is not installed");
            ours.to_owned()
        }
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            println!("skipped: no C compiler: {error}");
            ours.to_owned()
        }
    };
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(ours, theirs);
}

/// Whether it is the header, or one that it includes, that the compiler does not find.
fn misses(said: &[u8], header: &str) -> bool {
    let said = String::from_utf8_lossy(said);
    said.lines().any(|line| line.contains("No such file") && line.contains(header))
}
