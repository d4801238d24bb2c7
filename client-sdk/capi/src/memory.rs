//! Memory by its address: registered once, or lent for one call.
//!
//! Registered memory is one buffer as long as it is registered: its registrations with adapters,
//! and its exports to other processes, are found again by every transfer into any part of it.
//! Other memory is a buffer of its own for one call.
//!
//! Invariant: what a buffer here covers stays allocated while it is used, which is what callers
//! promise in the header: until the call or the request is complete, or until the memory is
//! deregistered.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyway_bindings::{Failure, Memory, Source, Target};
use keyway_client::{DeviceBuffer, GpuError, HostBuffer};

use crate::abi::KeywayError;
use crate::border::{Fault, small_call};

static REGISTERED: Mutex<BTreeMap<u64, Memory>> = Mutex::new(BTreeMap::new());

fn registered() -> MutexGuard<'static, BTreeMap<u64, Memory>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_memory_register(
    memory: *mut c_void,
    bytes: usize,
    error: *mut KeywayError,
) -> i32 {
    let work = || {
        if memory.is_null() || bytes == 0 {
            return Err(Fault::invalid("there is nothing to register"));
        }
        let (begin, end) = bounds(memory, bytes)?;
        let mut registered = registered();
        let before = registered.range(..end).next_back();
        if before.is_some_and(|(base, other)| base + other.len() as u64 > begin) {
            return Err(Fault::new(libc::EEXIST, "some of the memory is registered already"));
        }
        // SAFETY: the header asks for memory that stays until it is deregistered.
        registered.insert(begin, unsafe { adopt(memory, bytes) }?);
        Ok(0)
    };
    // SAFETY: the header asks for it.
    unsafe { small_call(error, work) }
}

/// Deregisters it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_memory_deregister(
    memory: *mut c_void,
    error: *mut KeywayError,
) -> i32 {
    let work = || {
        let mut registered = registered();
        let found = registered.get_mut(&(memory as u64));
        let found = found.ok_or_else(|| Fault::invalid("no memory is registered there"))?;
        if !found.is_idle() {
            return Err(Fault::new(libc::EBUSY, "a transfer uses the memory"));
        }
        registered.remove(&(memory as u64));
        Ok(0)
    };
    // SAFETY: the header asks for it.
    unsafe { small_call(error, work) }
}

fn bounds(memory: *const c_void, bytes: usize) -> Result<(u64, u64), Fault> {
    let begin = memory as u64;
    let end = isize::try_from(bytes).ok().and_then(|bytes| begin.checked_add_signed(bytes as i64));
    Ok((begin, end.ok_or_else(|| Fault::invalid("the memory has no end"))?))
}

/// Lends memory to be filled.
///
/// # Safety
/// It stays allocated until the target is gone, and nobody else uses it meanwhile.
pub(crate) unsafe fn target(memory: *mut c_void, bytes: usize) -> Result<Target, Fault> {
    // SAFETY: upheld by the caller.
    Ok(unsafe { lend(memory, bytes, |memory, range| memory.target(range)) }??)
}

/// Lends memory to be sent.
///
/// # Safety
/// As [`target`], but that others may read it.
pub(crate) unsafe fn source(memory: *const c_void, bytes: usize) -> Result<Source, Fault> {
    // SAFETY: upheld by the caller; nothing is written through a source.
    Ok(unsafe { lend(memory.cast_mut(), bytes, |memory, range| memory.source(range)) }??)
}

/// # Safety
/// As [`target`].
unsafe fn lend<T>(
    memory: *mut c_void,
    bytes: usize,
    lend: impl FnOnce(&mut Memory, std::ops::Range<usize>) -> T,
) -> Result<T, Fault> {
    if memory.is_null() && bytes > 0 {
        return Err(Fault::invalid("the memory is null"));
    }
    let (begin, end) = bounds(memory, bytes)?;
    let mut registered = registered();
    let before = registered.range_mut(..=begin).next_back();
    if let Some((base, whole)) = before.filter(|(base, whole)| *base + whole.len() as u64 >= end) {
        return Ok(lend(whole, (begin - base) as usize..(end - base) as usize));
    }
    drop(registered);
    // SAFETY: upheld by the caller.
    let mut whole = unsafe { adopt(memory, bytes) }?;
    Ok(lend(&mut whole, 0..bytes))
}

/// # Safety
/// The memory stays allocated while the buffer and its slices live.
unsafe fn adopt(memory: *mut c_void, bytes: usize) -> Result<Memory, Fault> {
    if bytes > 0 && is_cuda_loaded() {
        // SAFETY: upheld by the caller.
        match unsafe { DeviceBuffer::foreign(memory as u64, bytes, Arc::new(())) } {
            Ok(buffer) => return Ok(Memory::Device(buffer)),
            // Host memory, which the driver may know, or know nothing of.
            Err(GpuError::NotDeviceMemory | GpuError::Freed | GpuError::NoGpu(_)) => {}
            Err(error) => return Err(Failure::from(error).into()),
        }
    }
    let base = NonNull::new(memory.cast::<u8>()).unwrap_or(NonNull::dangling());
    // SAFETY: upheld by the caller.
    let buffer = unsafe { HostBuffer::foreign(base, bytes, Arc::new(())) };
    Ok(Memory::Host(buffer))
}

/// Whether this process uses CUDA. Where it does not, no pointer is one of a GPU, and the driver
/// is not started to ask.
fn is_cuda_loaded() -> bool {
    let flags = libc::RTLD_NOLOAD | libc::RTLD_LAZY;
    // SAFETY: the name ends in a zero, and nothing is loaded.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), flags) };
    if library.is_null() {
        return false;
    }
    // SAFETY: the handle is the one that was just opened; the library stays, for others hold it.
    unsafe { libc::dlclose(library) };
    true
}
