//! The structures of `keyway.h`.

use std::ffi::{c_char, c_void};

/// What failed.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says it")]
pub struct KeywayError {
    pub size: usize,
    pub code: i32,
    pub http_status: i32,
    pub s3_code: [c_char; 64],
    pub request_id: [c_char; 64],
    pub message: [c_char; 512],
}

/// What a client is made of.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says it")]
pub struct KeywayClientOptions {
    pub size: usize,
    pub endpoint: *const c_char,
    pub region: *const c_char,
    pub access_key: *const c_char,
    pub secret_key: *const c_char,
    pub session_token: *const c_char,
    pub ca_file: *const c_char,
    pub path: *const c_char,
    pub require_strength: *const c_char,
    pub get_part_bytes: u64,
    pub put_part_bytes: u64,
    pub concurrency: u32,
    pub connections_max: u32,
    pub attempts_max: u32,
    pub connect_timeout_ms: u32,
    pub stall_timeout_ms: u32,
    pub flags: u32,
}

/// `KEYWAY_ANONYMOUS`.
pub const ANONYMOUS: u32 = 1;
/// `KEYWAY_VIRTUAL_HOST`.
pub const VIRTUAL_HOST: u32 = 2;

/// How a transfer went.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says it")]
pub struct KeywayResult {
    pub size: usize,
    pub bytes: u64,
    pub object_bytes: u64,
    pub verified: u32,
    pub retries: u32,
    pub fallbacks: u32,
    pub durability: u32,
    pub path: [c_char; 16],
    pub strength: [c_char; 16],
    pub checksum: [c_char; 96],
    pub etag: [c_char; 128],
    pub fallback: [c_char; 128],
}

/// How an object is read.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says it")]
pub struct KeywayGetOptions {
    pub size: usize,
    pub offset: u64,
    pub length: u64,
    pub version: *const c_char,
    pub if_match: *const c_char,
    pub part_bytes: u64,
    pub concurrency: u32,
    pub timeout_ms: u32,
    pub stream: *mut c_void,
}

/// How an object is written.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says it")]
pub struct KeywayPutOptions {
    pub size: usize,
    pub content_type: *const c_char,
    pub if_match: *const c_char,
    pub part_bytes: u64,
    pub concurrency: u32,
    pub timeout_ms: u32,
    pub stream: *mut c_void,
    pub flags: u32,
    pub reserved: u32,
}

/// `KEYWAY_IF_ABSENT`.
pub const IF_ABSENT: u32 = 1;
/// `KEYWAY_MEMORY_FIRST`.
pub const MEMORY_FIRST: u32 = 2;

/// A part of an object, and the memory for it.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says it")]
pub struct KeywayRange {
    pub offset: u64,
    pub memory: *mut c_void,
    pub bytes: usize,
}

/// What an object is.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says it")]
pub struct KeywayObject {
    pub size: usize,
    pub bytes: u64,
    pub modified_ms: i64,
    pub etag: [c_char; 128],
    pub version: [c_char; 128],
    pub content_type: [c_char; 128],
    pub crc64nvme: [c_char; 16],
}

/// An entry of a listing.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says it")]
pub struct KeywayEntry {
    pub size: usize,
    pub key: *const c_char,
    pub bytes: u64,
    pub modified_ms: i64,
    pub is_prefix: u32,
    pub reserved: u32,
    pub etag: [c_char; 128],
}

/// A request that does not wait.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says it")]
pub struct KeywayRequest {
    pub size: usize,
    pub tag: u64,
    pub url: *const c_char,
    pub memory: *mut c_void,
    pub bytes: usize,
    pub offset: u64,
    pub length: u64,
    pub stream: *mut c_void,
    pub operation: u32,
    pub timeout_ms: u32,
    pub flags: u32,
    pub reserved: u32,
}

/// `KEYWAY_GET`.
pub const GET: u32 = 0;
/// `KEYWAY_PUT`.
pub const PUT: u32 = 1;

/// What became of it.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says it")]
pub struct KeywayCompletion {
    pub tag: u64,
    pub status: i64,
    pub result: KeywayResult,
    pub error: KeywayError,
}
