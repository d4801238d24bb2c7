//! Calls that wait.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

use keyway_bindings::{Failure, Fetch, Place, Report, Store, Turn};
use keyway_client::{Durability, Gpu, StreamTurn, Verified};

use crate::abi::{
    self, KeywayError, KeywayGetOptions, KeywayPutOptions, KeywayRange, KeywayResult,
};
use crate::border::{Fault, call, chars, handle, read, text, wait, write};
use crate::client::{KeywayClient, place, some};
use crate::memory::{source, target};

/// Reads an object or a range of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_get(
    client: *const KeywayClient,
    url: *const c_char,
    memory: *mut c_void,
    bytes: usize,
    options: *const KeywayGetOptions,
    result: *mut KeywayResult,
    error: *mut KeywayError,
) -> i64 {
    let work = || {
        // SAFETY: the header asks for it.
        let (client, place, target) =
            unsafe { (handle(client)?, place(url)?, target(memory, bytes)?) };
        // SAFETY: as above.
        let fetch = unsafe { fetch(options, bytes, target.gpu()) }?;
        let report = wait(fetch.into(client.client()?, place, target))?;
        // SAFETY: as above.
        unsafe { write(result, &answer(&report)) };
        Ok(report.bytes as i64)
    };
    // SAFETY: as above.
    unsafe { call(error, work) }
}

/// Reads several ranges of one version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_get_ranges(
    client: *const KeywayClient,
    url: *const c_char,
    ranges: *const KeywayRange,
    count: usize,
    options: *const KeywayGetOptions,
    result: *mut KeywayResult,
    error: *mut KeywayError,
) -> i64 {
    let work = || {
        // SAFETY: the header asks for it.
        let (client, place) = unsafe { (handle(client)?, place(url)?) };
        // SAFETY: as above.
        let ranges = unsafe { array(ranges, count) }?;
        let mut wanted = Vec::with_capacity(count);
        for range in ranges {
            // SAFETY: as above.
            let target = unsafe { target(range.memory, range.bytes) }?;
            wanted.push((Fetch::range(range.offset, range.bytes as u64)?, target));
        }
        let gpu = wanted.iter().find_map(|(_, target)| target.gpu()).cloned();
        // SAFETY: as above.
        let fetch = unsafe { fetch(options, 0, gpu.as_ref()) }?;
        let reports = wait(fetch.ranges(client.client()?, place, wanted))?;
        let Some(all) = Report::all(reports) else { return Ok(0) };
        // SAFETY: as above.
        unsafe { write(result, &answer(&all)) };
        Ok(all.bytes as i64)
    };
    // SAFETY: as above.
    unsafe { call(error, work) }
}

/// Writes an object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_put(
    client: *const KeywayClient,
    url: *const c_char,
    memory: *const c_void,
    bytes: usize,
    options: *const KeywayPutOptions,
    result: *mut KeywayResult,
    error: *mut KeywayError,
) -> i64 {
    let work = || {
        // SAFETY: the header asks for it.
        let (client, place, source) =
            unsafe { (handle(client)?, place(url)?, source(memory, bytes)?) };
        // SAFETY: as above.
        let store = unsafe { store(options, source.gpu()) }?;
        let report = wait(store.send(client.client()?, place, source))?;
        // SAFETY: as above.
        unsafe { write(result, &answer(&report)) };
        Ok(report.bytes as i64)
    };
    // SAFETY: as above.
    unsafe { call(error, work) }
}

/// Waits until what was written to memory is durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_flush(
    client: *const KeywayClient,
    url: *const c_char,
    timeout_ms: u32,
    lost: *mut u64,
    error: *mut KeywayError,
) -> i64 {
    let work = || {
        // SAFETY: the header asks for it.
        let (client, url) = unsafe { (handle(client)?, text(url)?) };
        let url = url.ok_or_else(|| Fault::invalid("there is no address"))?;
        let place = Place::parse(&url, None)?;
        let flush = keyway_bindings::flush(client.client()?, place, milliseconds(timeout_ms));
        let reply = wait(flush)?;
        // SAFETY: as above.
        if let Some(lost) = unsafe { lost.as_mut() } {
            *lost = reply.lost;
        }
        Ok(reply.settled as i64)
    };
    // SAFETY: as above.
    unsafe { call(error, work) }
}

/// # Safety
/// There are as many elements.
pub(crate) unsafe fn array<'a, T>(from: *const T, count: usize) -> Result<&'a [T], Fault> {
    if count == 0 {
        return Ok(&[]);
    }
    if from.is_null() || count > 1 << 24 {
        return Err(Fault::invalid("there is no such array"));
    }
    // SAFETY: upheld by the caller.
    Ok(unsafe { std::slice::from_raw_parts(from, count) })
}

/// # Safety
/// As the header asks for.
unsafe fn fetch(
    options: *const KeywayGetOptions,
    bytes: usize,
    gpu: Option<&Arc<Gpu>>,
) -> Result<Fetch, Fault> {
    // SAFETY: upheld by the caller, for the structure and its texts.
    let options = unsafe { read(options) }?;
    Ok(Fetch {
        range: span(options.offset, options.length, bytes)?,
        // SAFETY: as above.
        version: unsafe { text(options.version) }?,
        // SAFETY: as above.
        if_match: unsafe { text(options.if_match) }?,
        part_bytes: some(options.part_bytes),
        concurrency: some(options.concurrency as usize),
        deadline: milliseconds(options.timeout_ms),
        // SAFETY: as above.
        turn: unsafe { turn(gpu, some(options.stream as u64)) }?,
    })
}

/// The range that offset and length mean for memory of so many bytes.
pub(crate) fn span(
    offset: u64,
    length: u64,
    bytes: usize,
) -> Result<Option<keyway_proto::ByteRange>, Fault> {
    Ok(match (offset, length) {
        (0, 0) => None,
        (offset, 0) => Some(Fetch::range(offset, bytes as u64)?),
        (offset, length) => Some(Fetch::range(offset, length)?),
    })
}

/// What the flags of a PUT say of it.
pub(crate) fn durability(flags: u32) -> Result<Durability, Fault> {
    match flags & !(abi::IF_ABSENT | abi::MEMORY_FIRST) {
        0 if flags & abi::MEMORY_FIRST != 0 => Ok(Durability::Memory),
        0 => Ok(Durability::Disk),
        _ => Err(Fault::invalid("there is no such flag")),
    }
}

pub(crate) fn milliseconds(value: u32) -> Option<Duration> {
    (value > 0).then(|| Duration::from_millis(value.into()))
}

/// # Safety
/// As the header asks for.
unsafe fn store(options: *const KeywayPutOptions, gpu: Option<&Arc<Gpu>>) -> Result<Store, Fault> {
    // SAFETY: upheld by the caller, for the structure and its texts.
    let options = unsafe { read(options) }?;
    Ok(Store {
        // SAFETY: as above.
        content_type: unsafe { text(options.content_type) }?,
        metadata: Vec::new(),
        if_absent: options.flags & abi::IF_ABSENT != 0,
        durability: durability(options.flags)?,
        // SAFETY: as above.
        if_match: unsafe { text(options.if_match) }?,
        part_bytes: some(options.part_bytes),
        concurrency: some(options.concurrency as usize),
        deadline: milliseconds(options.timeout_ms),
        // SAFETY: as above.
        turn: unsafe { turn(gpu, some(options.stream as u64)) }?,
    })
}

/// Takes the turn on a stream, of memory of a GPU.
///
/// # Safety
/// The stream exists.
pub(crate) unsafe fn turn(
    gpu: Option<&Arc<Gpu>>,
    stream: Option<u64>,
) -> Result<Option<Turn>, Fault> {
    let (Some(gpu), Some(stream)) = (gpu, stream) else { return Ok(None) };
    // SAFETY: upheld by the caller.
    let turn = unsafe { StreamTurn::take(gpu, stream) }.map_err(Failure::from)?;
    Ok(Some(Turn::Whole(turn)))
}

/// A report as C has it.
pub(crate) fn answer(report: &Report) -> KeywayResult {
    let checksum = match report.verified {
        Verified::Whole(sum) => format!("{}:{}", sum.kind(), sum.to_base64()),
        Verified::No(_) => String::new(),
    };
    KeywayResult {
        size: size_of::<KeywayResult>(),
        bytes: report.bytes,
        object_bytes: report.object_bytes,
        verified: u32::from(report.verified.is_whole()),
        retries: report.retries,
        fallbacks: report.fallbacks.total(),
        durability: u32::from(report.durability == Durability::Memory),
        path: chars(report.path.as_str()),
        strength: chars(report.strength.as_str()),
        checksum: chars(&checksum),
        etag: chars(report.etag.as_deref().unwrap_or_default()),
        fallback: chars(&report.fallbacks.to_string()),
    }
}
