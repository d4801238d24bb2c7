//! Memory that two processes of one host have mapped.
//!
//! Invariant: `base` is the start of a shared mapping of `bytes` bytes of a memory file that
//! cannot shrink (`F_SEAL_SHRINK`), so that touching it never faults, whatever the other
//! process does. What stands in it may change under a reader at any time: only atomics and
//! copies of bytes may look at it.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::region::{MemoryError, PAGE_BYTES};

const NAME: &CStr = c"keyway";
/// Mappings from this size on ask for huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A mapped memory file, unmapped on drop.
#[derive(Debug)]
pub struct SharedMemory {
    base: NonNull<u8>,
    bytes: usize,
    file: Arc<OwnedFd>,
}

// SAFETY: an address range without thread affinity; it hands out no references.
unsafe impl Send for SharedMemory {}
// SAFETY: `&SharedMemory` only tells address and length.
unsafe impl Sync for SharedMemory {}

/// Why another process's memory was not mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// The file can shrink, or is no memory file: touching it could fault.
    #[error("the memory is not sealed against shrinking")]
    Unsealed,
    /// The file is shorter than was said.
    #[error("the memory is shorter than was said")]
    TooShort,
    /// The kernel refused.
    #[error("the memory cannot be mapped")]
    Refused(#[source] io::Error),
}

impl SharedMemory {
    /// Zeroed memory of at least `bytes` bytes, as whole pages.
    ///
    /// # Errors
    /// [`MemoryError`] when the kernel refuses.
    pub fn create(bytes: usize) -> Result<Self, MemoryError> {
        if bytes == 0 {
            return Err(MemoryError::Empty);
        }
        let refused = |source| MemoryError::Map { bytes, source };
        let mapped =
            bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(refused(rustix::io::Errno::NOMEM))?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(NAME, flags).map_err(refused)?;
        ftruncate(&file, mapped as u64).map_err(refused)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(refused)?;
        Self::map(Arc::new(file), mapped).map_err(refused)
    }

    /// Maps the first `bytes` bytes of another process's memory file.
    ///
    /// # Errors
    /// [`ShareError`].
    pub fn open(file: OwnedFd, bytes: usize) -> Result<Self, ShareError> {
        let seals = fcntl_get_seals(&file).map_err(|_| ShareError::Unsealed)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(ShareError::Unsealed);
        }
        let size = fstat(&file).map_err(|error| ShareError::Refused(error.into()))?.st_size;
        if bytes == 0 || u64::try_from(size).unwrap_or(0) < bytes as u64 {
            return Err(ShareError::TooShort);
        }
        Self::map(Arc::new(file), bytes).map_err(|error| ShareError::Refused(error.into()))
    }

    fn map(file: Arc<OwnedFd>, bytes: usize) -> Result<Self, rustix::io::Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that
        // exists; the file is as long as the mapping and cannot shrink.
        let base = unsafe {
            mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file.as_fd(), 0)
        }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(rustix::io::Errno::FAULT)?;
        if bytes >= HUGE_PAGE_BYTES {
            // SAFETY: the range is the mapping made above; the advice changes no content, and
            // its refusal costs speed alone.
            let _ = unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        }
        Ok(Self { base, bytes, file })
    }

    /// The first byte's address, a multiple of [`PAGE_BYTES`].
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes mapped.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What another process maps it by.
    pub fn file(&self) -> &Arc<OwnedFd> {
        &self.file
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: by the invariant the range is ours and mapped; whoever uses it holds `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        if let Err(error) = unmapped {
            tracing::error!(%error, bytes = self.bytes, "cannot unmap shared memory");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_mappings_show_the_same_bytes() {
        let ours = SharedMemory::create(10_000).expect("memory");
        let file = ours.file().try_clone().expect("a descriptor");
        let theirs = SharedMemory::open(file, 10_000).expect("sealed");
        // SAFETY: both ranges are mapped, and no reference to either exists.
        unsafe {
            ours.base().as_ptr().add(9_999).write(7);
            assert_eq!(theirs.base().as_ptr().add(9_999).read(), 7);
        }
    }

    /// A file that could be cut short under us would make every touch a fault.
    #[test]
    fn what_can_shrink_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(NAME, flags).expect("a file");
        ftruncate(&file, 4096).expect("a size");
        assert!(matches!(SharedMemory::open(file, 4096), Err(ShareError::Unsealed)));
        let sealed = SharedMemory::create(4096).expect("memory");
        let file = sealed.file().try_clone().expect("a descriptor");
        assert!(matches!(SharedMemory::open(file, 4097), Err(ShareError::TooShort)));
        let other = std::fs::File::open("/dev/null").expect("a file");
        assert!(matches!(SharedMemory::open(other.into(), 1), Err(ShareError::Unsealed)));
    }
}
