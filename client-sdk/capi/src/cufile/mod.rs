//! The client in the shape of cuFile: `keyway_cufile.h`.
//!
//! What differs from files: a handle is an object of the version that it had when it was
//! registered; a write is the whole object; memory is of the host as well.

#![allow(unsafe_code)]

mod batch;

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyway_bindings::{Connection, Fetch, Kind, Place, Store, head, runtime};
use keyway_client::Gpu;

use crate::abi::KeywayClientOptions;
use crate::border::{Fault, caught, give, handle, take, wait};
use crate::client::{place, settings};
use crate::memory::{keyway_memory_deregister, keyway_memory_register, source, target};
use crate::queue::Work;
use crate::transfer::turn;

pub use batch::{
    KwFileBatch, KwFileIoEvents, KwFileIoParams, kwFileBatchIODestroy, kwFileBatchIOGetStatus,
    kwFileBatchIOSetUp, kwFileBatchIOSubmit,
};

/// The client of the driver, between its opening and its closing.
static DRIVER: Mutex<Option<Arc<Connection>>> = Mutex::new(None);

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// `KWfileError_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the header says it")]
pub struct KwFileError {
    pub err: i32,
    pub cu_err: i32,
}

const SUCCESS: i32 = 0;
const NOT_INITIALIZED: i32 = 5001;
const INVALID_VALUE: i32 = 5022;
const ALREADY_REGISTERED: i32 = 5023;
const NOT_REGISTERED: i32 = 5024;
const PERMISSION_DENIED: i32 = 5025;
const ALREADY_OPEN: i32 = 5026;
const NOT_FOUND: i32 = 5028;
const BUSY: i32 = 5029;
const IO_ERROR: i32 = 5030;

/// `KW_FILE_HANDLE_TYPE_S3URL`.
const S3_URL: i32 = 16;

/// `KWfileDescr_t`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says it")]
pub struct KwFileDescr {
    pub kind: i32,
    pub handle: KwFileName,
    pub fs_ops: *const c_void,
}

/// What names the object.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says it")]
pub union KwFileName {
    pub fd: i32,
    pub handle: *const c_void,
}

/// An object.
pub struct KwFileHandle {
    connection: Arc<Connection>,
    place: Place,
    /// Its size and ETag, where it exists.
    found: Mutex<Option<(u64, Option<String>)>>,
}

/// Its memory and range.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says it")]
pub struct KwFileIo {
    pub base: *mut c_void,
    pub file_offset: i64,
    pub memory_offset: i64,
    pub size: usize,
}

const READ: i32 = 0;
const WRITE: i32 = 1;

/// Opens the driver, with the environment's client.
#[unsafe(no_mangle)]
pub extern "C" fn kwFileDriverOpen() -> KwFileError {
    // SAFETY: no options are null.
    unsafe { kwFileDriverOpenWith(ptr::null()) }
}

/// Opens the driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kwFileDriverOpenWith(options: *const KeywayClientOptions) -> KwFileError {
    status(|| {
        // SAFETY: the header asks for it.
        let connection = Connection::open(unsafe { settings(options) }?)?;
        let mut driver = driver();
        if driver.is_some() {
            return Err(Fault::new(libc::EALREADY, "the driver is open"));
        }
        *driver = Some(Arc::new(connection));
        Ok(())
    })
}

/// Closes the driver. Handles live on.
#[unsafe(no_mangle)]
pub extern "C" fn kwFileDriverClose() -> KwFileError {
    status(|| driver().take().map(drop).ok_or_else(not_open))
}

fn driver() -> MutexGuard<'static, Option<Arc<Connection>>> {
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_open() -> Fault {
    Fault::new(libc::ENXIO, "the driver is not open")
}

/// Registers an object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kwFileHandleRegister(
    fh: *mut *mut KwFileHandle,
    descr: *mut KwFileDescr,
) -> KwFileError {
    status(|| {
        // SAFETY: the header asks for it.
        let descr = unsafe { handle(descr) }?;
        if descr.kind != S3_URL {
            return Err(Fault::invalid("a handle is of an object: KW_FILE_HANDLE_TYPE_S3URL"));
        }
        // SAFETY: as above: this kind has a text.
        let place = unsafe { place(descr.handle.handle.cast()) }?;
        let connection = driver().clone().ok_or_else(not_open)?;
        let asked = wait(async {
            match head(connection.client()?, place.clone()).await {
                Ok(info) => Ok(Some((info.size, info.etag))),
                // It may be there to be written.
                Err(failure) if failure.kind() == Kind::NotFound => Ok(None),
                Err(failure) => Err(failure),
            }
        });
        let made = KwFileHandle { connection, place, found: Mutex::new(asked?) };
        // SAFETY: as above.
        unsafe { give(fh, made) }
    })
}

/// Deregisters it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kwFileHandleDeregister(fh: *mut KwFileHandle) {
    // SAFETY: the header asks for it.
    unsafe { take(fh) };
}

/// Registers memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kwFileBufRegister(
    base: *const c_void,
    size: usize,
    _flags: i32,
) -> KwFileError {
    // SAFETY: the header asks for it.
    of_errno(unsafe { keyway_memory_register(base.cast_mut(), size, ptr::null_mut()) })
}

/// Deregisters it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kwFileBufDeregister(base: *const c_void) -> KwFileError {
    // SAFETY: the header asks for it.
    let code = unsafe { keyway_memory_deregister(base.cast_mut(), ptr::null_mut()) };
    if code == -libc::EINVAL {
        remember(&Fault::invalid("no memory is registered there"));
        return KwFileError { err: NOT_REGISTERED, cu_err: 0 };
    }
    of_errno(code)
}

/// Reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kwFileRead(
    fh: *mut KwFileHandle,
    base: *mut c_void,
    size: usize,
    file_offset: i64,
    memory_offset: i64,
) -> isize {
    let io = KwFileIo { base, file_offset, memory_offset, size };
    // SAFETY: the header asks for it.
    counted(|| unsafe { transfer(fh, &io, READ) })
}

/// Writes the whole object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kwFileWrite(
    fh: *mut KwFileHandle,
    base: *const c_void,
    size: usize,
    file_offset: i64,
    memory_offset: i64,
) -> isize {
    let io = KwFileIo { base: base.cast_mut(), file_offset, memory_offset, size };
    // SAFETY: the header asks for it.
    counted(|| unsafe { transfer(fh, &io, WRITE) })
}

/// Reads in the order of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kwFileReadAsync(
    fh: *mut KwFileHandle,
    base: *mut c_void,
    size: *mut usize,
    file_offset: *mut i64,
    memory_offset: *mut i64,
    bytes_read: *mut isize,
    stream: *mut c_void,
) -> KwFileError {
    // SAFETY: the header asks for it.
    unsafe { in_stream(fh, base, (size, file_offset, memory_offset), bytes_read, stream, READ) }
}

/// Writes in the order of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kwFileWriteAsync(
    fh: *mut KwFileHandle,
    base: *mut c_void,
    size: *mut usize,
    file_offset: *mut i64,
    memory_offset: *mut i64,
    bytes_written: *mut isize,
    stream: *mut c_void,
) -> KwFileError {
    // SAFETY: the header asks for it.
    unsafe { in_stream(fh, base, (size, file_offset, memory_offset), bytes_written, stream, WRITE) }
}

/// # Safety
/// As the header asks for.
unsafe fn in_stream(
    fh: *mut KwFileHandle,
    base: *mut c_void,
    (size, file_offset, memory_offset): (*const usize, *const i64, *const i64),
    moved: *mut isize,
    stream: *mut c_void,
    opcode: i32,
) -> KwFileError {
    status(|| {
        // SAFETY: upheld by the caller.
        let (fh, size, file_offset, memory_offset) = unsafe {
            (handle(fh)?, *handle(size)?, *handle(file_offset)?, *handle(memory_offset)?)
        };
        let io = KwFileIo { base, file_offset, memory_offset, size };
        let moved = Moved(moved);
        let client = fh.connection.client()?;
        // SAFETY: as above.
        let (work, gpu) = unsafe { fh.work(&io, opcode, Some(stream as u64)) }?;
        // A second turn, behind the transfer's own: the stream goes on when the count is there.
        // SAFETY: as above.
        let told = unsafe { turn(gpu.as_ref(), Some(stream as u64)) }?;
        runtime()?.spawn(async move {
            let count = match work.run(client).await {
                Ok(report) => report.bytes as isize,
                Err(failure) => -(Fault::from(failure).code() as isize),
            };
            moved.tell(count);
            drop(told);
        });
        Ok(())
    })
}

/// Where a count goes.
struct Moved(*mut isize);

// SAFETY: the header asks for a place that stays until the stream has come so far.
unsafe impl Send for Moved {}

impl Moved {
    fn tell(self, count: isize) {
        if !self.0.is_null() {
            // SAFETY: as for `Send`; nobody else reads or writes it before.
            unsafe { self.0.write(count) };
        }
    }
}

/// This thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn kwFileLastError() -> *const c_char {
    LAST_ERROR.with(|last| last.borrow().as_ptr())
}

impl KwFileHandle {
    /// # Safety
    /// The memory is there, and stays until the work is done.
    unsafe fn work(
        &self,
        io: &KwFileIo,
        opcode: i32,
        stream: Option<u64>,
    ) -> Result<(Work, Option<Arc<Gpu>>), Fault> {
        let (Ok(offset), Ok(within)) =
            (u64::try_from(io.file_offset), isize::try_from(io.memory_offset))
        else {
            return Err(Fault::invalid("an offset is negative"));
        };
        let memory = io.base.wrapping_byte_offset(within);
        match opcode {
            READ => {
                let found = self.found();
                let Some((size, etag)) = found.clone() else {
                    return Err(Fault::new(libc::ENOENT, "there is no such object"));
                };
                let length = io.size.min(usize::try_from(size.saturating_sub(offset)).unwrap_or(0));
                let range = Some(Fetch::range(offset.min(size), length as u64)?);
                // SAFETY: upheld by the caller.
                let target = unsafe { target(memory, length) }?;
                let gpu = target.gpu().cloned();
                // SAFETY: as above.
                let turn = unsafe { turn(gpu.as_ref(), stream) }?;
                let fetch = Fetch { range, if_match: etag, turn, ..Fetch::default() };
                Ok((Work::Get(fetch, self.place.clone(), target), gpu))
            }
            WRITE if offset > 0 => {
                Err(Fault::new(libc::ESPIPE, "an object is written whole, from offset 0"))
            }
            WRITE => {
                // SAFETY: upheld by the caller.
                let source = unsafe { source(memory, io.size) }?;
                let gpu = source.gpu().cloned();
                // SAFETY: as above.
                let turn = unsafe { turn(gpu.as_ref(), stream) }?;
                let store = Store { turn, ..Store::default() };
                Ok((Work::Put(store, self.place.clone(), source), gpu))
            }
            _ => Err(Fault::invalid("no such operation")),
        }
    }

    fn found(&self) -> MutexGuard<'_, Option<(u64, Option<String>)>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// # Safety
/// As the header asks for.
unsafe fn transfer(fh: *const KwFileHandle, io: &KwFileIo, opcode: i32) -> Result<u64, Fault> {
    // SAFETY: upheld by the caller.
    let fh = unsafe { handle(fh) }?;
    let client = fh.connection.client()?;
    // SAFETY: as above.
    let (work, _) = unsafe { fh.work(io, opcode, None) }?;
    if matches!(&work, Work::Get(_, _, target) if target.is_empty()) {
        return Ok(0);
    }
    let report = wait(work.run(client))?;
    if opcode == WRITE {
        *fh.found() = Some((report.bytes, report.etag));
    }
    Ok(report.bytes)
}

/// Runs a call and tells how it went.
fn status(work: impl FnOnce() -> Result<(), Fault>) -> KwFileError {
    match caught(work) {
        Ok(()) => KwFileError { err: SUCCESS, cu_err: 0 },
        Err(fault) => {
            remember(&fault);
            of_errno(-fault.code())
        }
    }
}

/// Runs a call that counts bytes: -1 and errno where it failed.
fn counted(work: impl FnOnce() -> Result<u64, Fault>) -> isize {
    match caught(work) {
        Ok(bytes) => bytes as isize,
        Err(fault) => {
            remember(&fault);
            // SAFETY: errno is this thread's own.
            unsafe { *libc::__errno_location() = fault.code() };
            -1
        }
    }
}

fn remember(fault: &Fault) {
    let text = CString::new(fault.message().replace('\0', " ")).unwrap_or_default();
    LAST_ERROR.with(|last| *last.borrow_mut() = text);
}

fn of_errno(code: i32) -> KwFileError {
    let err = match -code {
        0 => SUCCESS,
        libc::EINVAL | libc::ESPIPE | libc::E2BIG => INVALID_VALUE,
        libc::EEXIST => ALREADY_REGISTERED,
        libc::EACCES => PERMISSION_DENIED,
        libc::EALREADY => ALREADY_OPEN,
        libc::ENXIO => NOT_INITIALIZED,
        libc::ENOENT => NOT_FOUND,
        libc::EBUSY => BUSY,
        _ => IO_ERROR,
    };
    KwFileError { err, cu_err: 0 }
}
