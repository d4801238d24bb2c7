//! Batches: many requests at a time, and what has become of them.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{KwFileError, KwFileHandle, KwFileIo, status};
use crate::border::{Fault, give, handle, take};
use crate::queue::{Done, KeywayQueue};
use crate::transfer::array;

/// `KWfileIOParams_t`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says it")]
pub struct KwFileIoParams {
    pub mode: i32,
    pub batch: KwFileIo,
    pub fh: *mut KwFileHandle,
    pub opcode: i32,
    pub cookie: *mut c_void,
}

/// `KWfileIOEvents_t`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says it")]
pub struct KwFileIoEvents {
    pub cookie: *mut c_void,
    pub status: i32,
    pub ret: usize,
}

const COMPLETE: i32 = 0x10;
const FAILED: i32 = 0x40;

/// A batch: a queue, and how many requests it takes.
pub struct KwFileBatch {
    queue: KeywayQueue,
    max: usize,
    under_way: Mutex<usize>,
}

/// Makes a batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kwFileBatchIOSetUp(batch: *mut *mut KwFileBatch, max: u32) -> KwFileError {
    status(|| {
        let queue = KeywayQueue::new()?;
        let made = KwFileBatch { queue, max: max as usize, under_way: Mutex::new(0) };
        // SAFETY: the header asks for it.
        unsafe { give(batch, made) }
    })
}

/// Begins requests: all of them, or none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kwFileBatchIOSubmit(
    batch: *mut KwFileBatch,
    count: u32,
    requests: *mut KwFileIoParams,
    _flags: u32,
) -> KwFileError {
    status(|| {
        // SAFETY: the header asks for it.
        let (batch, requests) = unsafe { (handle(batch)?, array(requests, count as usize)?) };
        let mut under_way = batch.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if *under_way + requests.len() > batch.max {
            return Err(Fault::new(libc::EBUSY, "more requests than the batch was set up for"));
        }
        let mut client = None;
        let mut works = Vec::with_capacity(requests.len());
        for request in requests {
            // SAFETY: as above.
            let fh = unsafe { handle(request.fh) }?;
            client.get_or_insert(fh.connection.client()?);
            // SAFETY: as above.
            let (work, _) = unsafe { fh.work(&request.batch, request.opcode, None) }?;
            works.push((request.cookie as u64, work));
        }
        if let Some(client) = client {
            *under_way += works.len();
            batch.queue.submit(&client, works)?;
        }
        Ok(())
    })
}

/// Takes what is complete: at least `min` of it, unless the time passes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kwFileBatchIOGetStatus(
    batch: *mut KwFileBatch,
    min: u32,
    count: *mut u32,
    events: *mut KwFileIoEvents,
    timeout: *const libc::timespec,
) -> KwFileError {
    status(|| {
        if count.is_null() || events.is_null() {
            return Err(Fault::invalid("there is no room for events"));
        }
        // SAFETY: the header asks for it.
        let (batch, max) = unsafe { (handle(batch)?, *count as usize) };
        // SAFETY: as above.
        let timeout = unsafe { timeout.as_ref() }.map(|time| {
            let (seconds, nanoseconds) = (time.tv_sec.max(0), time.tv_nsec.clamp(0, 999_999_999));
            Duration::new(seconds as u64, nanoseconds as u32)
        });
        let min = (min as usize).min(max);
        let mut found: Vec<Done> = Vec::new();
        loop {
            let enough = found.len() >= min;
            let patience = if enough { Some(Duration::ZERO) } else { timeout };
            let more = batch.queue.wait(max - found.len(), patience)?;
            let over = enough || more.is_empty();
            found.extend(more);
            if over {
                break;
            }
        }
        *batch.under_way.lock().unwrap_or_else(PoisonError::into_inner) -= found.len();
        for (index, done) in found.iter().enumerate() {
            let (status, ret) = match &done.outcome {
                Ok(report) => (COMPLETE, report.bytes as usize),
                Err(fault) => (FAILED, (fault.code() as usize).wrapping_neg()),
            };
            let event = KwFileIoEvents { cookie: done.tag as *mut c_void, status, ret };
            // SAFETY: as above: there is room for as many as were asked for.
            unsafe { events.add(index).write(event) };
        }
        // SAFETY: as above.
        unsafe { count.write(found.len() as u32) };
        Ok(())
    })
}

/// Ends a batch when nothing of it is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kwFileBatchIODestroy(batch: *mut KwFileBatch) {
    // SAFETY: the header asks for it.
    unsafe { take(batch) };
}
