//! The border: C's pointers in, errors and texts out.
//!
//! Invariant: nothing of C's is kept beyond the call: structures and texts are copied in,
//! answers are copied out. A panic ends here, as `-EIO`.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use keyway_bindings::{Failure, InvalidPlace, Kind, runtime};

use crate::abi;

/// Largest structure that a caller of another version may say to have.
const SIZE_MAX: usize = 1 << 16;

/// Why a call fails.
#[derive(Debug)]
pub(crate) struct Fault {
    code: i32,
    message: String,
    http_status: i32,
    s3_code: String,
    request_id: String,
}

impl Fault {
    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        let (s3_code, request_id) = (String::new(), String::new());
        Self { code, message: message.into(), http_status: 0, s3_code, request_id }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, message)
    }

    pub(crate) fn code(&self) -> i32 {
        self.code
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// As C has it.
    pub(crate) fn to_abi(&self) -> abi::KeywayError {
        abi::KeywayError {
            size: size_of::<abi::KeywayError>(),
            code: self.code,
            http_status: self.http_status,
            s3_code: chars(&self.s3_code),
            request_id: chars(&self.request_id),
            message: chars(&self.message),
        }
    }
}

impl From<InvalidPlace> for Fault {
    fn from(error: InvalidPlace) -> Self {
        Failure::from(error).into()
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        let mut fault = Self::new(errno(failure.kind()), failure.chain());
        if let Some(service) = failure.service() {
            fault.http_status = i32::from(service.status.as_u16());
            fault.s3_code.clone_from(&service.code);
            fault.request_id = service.request_id.clone().unwrap_or_default();
        }
        fault
    }
}

/// The one place that maps failures to errnos. docs/c.md has the same table.
fn errno(kind: Kind) -> i32 {
    match kind {
        Kind::Invalid | Kind::OutOfRange => libc::EINVAL,
        Kind::NotFound => libc::ENOENT,
        Kind::AccessDenied => libc::EACCES,
        Kind::PreconditionFailed | Kind::Changed => libc::ESTALE,
        Kind::Throttled => libc::EAGAIN,
        Kind::Connection => libc::ECONNABORTED,
        Kind::Deadline => libc::ETIMEDOUT,
        Kind::ChecksumMismatch => libc::EBADMSG,
        Kind::BufferTooSmall => libc::ENOSPC,
        Kind::Busy => libc::EBUSY,
        Kind::PathUnavailable => libc::ENETUNREACH,
        Kind::NoGpu => libc::ENODEV,
        Kind::Malformed => libc::EPROTO,
        Kind::System => libc::ENOMEM,
        _ => libc::EIO,
    }
}

/// A structure of the headers that begins with its size.
///
/// # Safety
/// It begins with a `usize`, and all zeros are a value of it.
pub(crate) unsafe trait Sized: Copy {}

// SAFETY: integers, pointers and arrays of them, the size first.
unsafe impl Sized for abi::KeywayError {}
// SAFETY: as above.
unsafe impl Sized for abi::KeywayClientOptions {}
// SAFETY: as above.
unsafe impl Sized for abi::KeywayResult {}
// SAFETY: as above.
unsafe impl Sized for abi::KeywayGetOptions {}
// SAFETY: as above.
unsafe impl Sized for abi::KeywayPutOptions {}
// SAFETY: as above.
unsafe impl Sized for abi::KeywayObject {}
// SAFETY: as above.
unsafe impl Sized for abi::KeywayEntry {}
// SAFETY: as above.
unsafe impl Sized for abi::KeywayRequest {}

/// All zeros.
pub(crate) fn zeroed<T: Sized>() -> T {
    // SAFETY: the trait says that this is a value.
    unsafe { std::mem::zeroed() }
}

/// Copies a structure in; zeros for null, and for fields that the caller does not have.
///
/// # Errors
/// When its size makes no sense, or it has fields that this version does not know, and set.
///
/// # Safety
/// It is null, or has as many bytes as it says.
pub(crate) unsafe fn read<T: Sized>(from: *const T) -> Result<T, Fault> {
    let mut value = zeroed::<T>();
    if from.is_null() {
        return Ok(value);
    }
    // SAFETY: upheld by the caller; the size is the first field.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=SIZE_MAX).contains(&size) {
        return Err(Fault::invalid("a structure's size is not set"));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: upheld by the caller: `size` bytes are there, and `value` has `known`.
    let rest = unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast(), known);
        std::slice::from_raw_parts(from.cast::<u8>().add(known), size - known)
    };
    if rest.iter().any(|byte| *byte != 0) {
        return Err(Fault::new(libc::E2BIG, "an option is newer than this library"));
    }
    Ok(value)
}

/// Copies a structure out, as much of it as the caller has room for. Null takes nothing.
///
/// # Safety
/// It is null, or has room for as many bytes as it says.
pub(crate) unsafe fn write<T: Sized>(to: *mut T, value: &T) {
    if to.is_null() {
        return;
    }
    let head = size_of::<usize>();
    // SAFETY: upheld by the caller; the size is the first field, and stays the caller's.
    unsafe {
        let room = to.cast::<usize>().read_unaligned().min(size_of::<T>());
        let from = std::ptr::from_ref(value).cast::<u8>();
        if room > head {
            std::ptr::copy_nonoverlapping(from.add(head), to.cast::<u8>().add(head), room - head);
        }
    }
}

/// Copies a text in; `None` for null.
///
/// # Errors
/// When it is not UTF-8.
///
/// # Safety
/// It is null, or ends in a zero.
pub(crate) unsafe fn text(from: *const c_char) -> Result<Option<String>, Fault> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: upheld by the caller.
    let text = unsafe { CStr::from_ptr(from) }.to_str();
    text.map(|text| Some(text.to_owned())).map_err(|_| Fault::invalid("a text is not UTF-8"))
}

/// A text as C has it, cut to fit.
pub(crate) fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    let mut end = text.len().min(N - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (to, from) in chars.iter_mut().zip(&text.as_bytes()[..end]) {
        *to = *from as c_char;
    }
    chars
}

/// Runs a call: what it gives, or a negative errno, and the error told.
///
/// # Safety
/// `error` is null, or has room for as many bytes as it says.
pub(crate) unsafe fn call(
    error: *mut abi::KeywayError,
    work: impl FnOnce() -> Result<i64, Fault>,
) -> i64 {
    match caught(work) {
        Ok(value) => value,
        Err(fault) => {
            // SAFETY: upheld by the caller.
            unsafe { write(error, &fault.to_abi()) };
            -i64::from(fault.code)
        }
    }
}

/// The same, of a call that gives 0 or a small count.
///
/// # Safety
/// As [`call`].
pub(crate) unsafe fn small_call(
    error: *mut abi::KeywayError,
    work: impl FnOnce() -> Result<i32, Fault>,
) -> i32 {
    // SAFETY: upheld by the caller.
    let value = unsafe { call(error, || work().map(i64::from)) };
    i32::try_from(value).unwrap_or(-libc::EIO)
}

/// Runs what may not unwind any further.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().map(ToString::to_string);
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
        let said = said.unwrap_or_else(|| "no reason given".to_owned());
        Err(Fault::new(libc::EIO, format!("a bug in this library: {said}")))
    })
}

/// Runs a future on the calling thread.
pub(crate) fn wait<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Fault> {
    Ok(runtime()?.block_on(work)?)
}

/// A reference to a handle.
///
/// # Errors
/// When it is null.
///
/// # Safety
/// It is null, or came from its `open` and was not closed.
pub(crate) unsafe fn handle<'a, T>(pointer: *const T) -> Result<&'a T, Fault> {
    // SAFETY: upheld by the caller.
    unsafe { pointer.as_ref() }.ok_or_else(|| Fault::invalid("a handle is null"))
}

/// Gives a handle out.
///
/// # Errors
/// When there is no place for it.
///
/// # Safety
/// `out` is null, or has room for a pointer.
pub(crate) unsafe fn give<T>(out: *mut *mut T, value: T) -> Result<(), Fault> {
    if out.is_null() {
        return Err(Fault::invalid("there is no place for the handle"));
    }
    // SAFETY: upheld by the caller.
    unsafe { out.write(Box::into_raw(Box::new(value))) };
    Ok(())
}

/// Takes a handle back; null is nothing.
///
/// # Safety
/// It is null, or came from [`give`] and was not taken back.
pub(crate) unsafe fn take<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: upheld by the caller.
        let value = unsafe { Box::from_raw(handle) };
        // What a destructor has to say to a caller of C, nobody hears.
        let _ = caught(move || {
            drop(value);
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_of_other_versions_are_read() {
        let mut options = zeroed::<abi::KeywayGetOptions>();
        (options.size, options.offset, options.length) = (16, 7, 9);
        // SAFETY: it has more bytes than it says.
        let short = unsafe { read(&raw const options) }.expect("an old caller");
        assert_eq!((short.offset, short.length), (7, 0));
        let mut newer = [0_u8; size_of::<abi::KeywayGetOptions>() + 8];
        let size = newer.len();
        newer[..8].copy_from_slice(&size.to_ne_bytes());
        let as_options = newer.as_ptr().cast::<abi::KeywayGetOptions>();
        // SAFETY: it has as many bytes as it says.
        assert!(unsafe { read(as_options) }.is_ok(), "a new caller who sets nothing new");
        newer[size - 1] = 1;
        // SAFETY: as above.
        let refused = unsafe { read(newer.as_ptr().cast::<abi::KeywayGetOptions>()) };
        assert_eq!(refused.err().map(|fault| fault.code()), Some(libc::E2BIG));
    }

    #[test]
    fn panics_end_here() {
        let mut error = zeroed::<abi::KeywayError>();
        error.size = size_of::<abi::KeywayError>();
        // SAFETY: the error has as many bytes as it says.
        let code = unsafe { small_call(&raw mut error, || panic!("on purpose")) };
        assert_eq!((code, error.code), (-libc::EIO, libc::EIO));
        // SAFETY: the text ends in a zero.
        let said = unsafe { text(error.message.as_ptr()) };
        assert!(said.is_ok_and(|said| said.is_some_and(|said| said.contains("on purpose"))));
    }

    #[test]
    fn texts_are_cut_between_characters() {
        let cut: [c_char; 4] = chars("aéé");
        assert_eq!(cut.map(|c| c as u8), [b'a', 0xc3, 0xa9, 0]);
    }
}
