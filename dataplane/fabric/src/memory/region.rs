//! A run of pages from the kernel.
//!
//! Invariant: `base` is the start of a private anonymous mapping of `mapped` bytes that
//! nothing else unmaps, readable and writable until the `Region` drops. Who may touch which
//! byte is decided one level up (`pool`, `host`); a region alone gives out raw addresses.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The page size that regions, leases and direct I/O are aligned to.
pub const PAGE_BYTES: usize = 4096;

/// Regions from this size on ask for huge pages: fewer TLB misses, fewer entries in a
/// device's translation table.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Which pages a region is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Huge ones where the kernel finds them as the memory is touched.
    #[default]
    Transparent,
    /// Huge ones, taken now from those that the operator has reserved (`vm.nr_hugepages`).
    Reserved,
    /// Small ones.
    Off,
}

/// Why memory was not given.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The kernel refused to map the pages.
    #[error("cannot map {bytes} bytes of memory")]
    Map {
        /// Bytes asked for.
        bytes: usize,
        /// The kernel's answer.
        #[source]
        source: rustix::io::Errno,
    },
    /// A region of no bytes has no address.
    #[error("a region needs at least one byte")]
    Empty,
}

/// Page-aligned, zeroed memory, unmapped on drop. Pages take up memory once touched.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    bytes: usize,
    mapped: usize,
}

// SAFETY: a region is an address range without thread affinity; it hands out no references.
unsafe impl Send for Region {}
// SAFETY: `&Region` only tells address and length.
unsafe impl Sync for Region {}

impl Region {
    /// Maps at least `bytes` bytes, transparent huge pages where they fit.
    ///
    /// # Errors
    /// [`MemoryError::Map`] when the kernel refuses, [`MemoryError::Empty`] for no bytes.
    pub fn map(bytes: usize) -> Result<Self, MemoryError> {
        Self::map_with(bytes, HugePages::Transparent)
    }

    /// Maps at least `bytes` bytes of the pages that are wanted.
    ///
    /// # Errors
    /// As [`map`](Self::map); `Reserved` also when there are not enough reserved pages.
    pub fn map_with(bytes: usize, huge_pages: HugePages) -> Result<Self, MemoryError> {
        if bytes == 0 {
            return Err(MemoryError::Empty);
        }
        let refused = |source| MemoryError::Map { bytes, source };
        let (flags, unit) = match huge_pages {
            HugePages::Reserved => (MapFlags::HUGETLB | MapFlags::HUGE_2MB, HUGE_PAGE_BYTES),
            HugePages::Transparent | HugePages::Off => (MapFlags::NORESERVE, PAGE_BYTES),
        };
        let mapped =
            bytes.checked_next_multiple_of(unit).ok_or(refused(rustix::io::Errno::NOMEM))?;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no
        // memory that exists.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | flags,
            )
        }
        .map_err(refused)?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(refused(rustix::io::Errno::FAULT))?;
        if huge_pages == HugePages::Transparent && mapped >= HUGE_PAGE_BYTES {
            // SAFETY: the range is the mapping made above; the advice changes no content.
            // Refusal costs speed alone (kernels without huge pages), so it is no error.
            let _ = unsafe { madvise(base.as_ptr().cast(), mapped, Advice::LinuxHugepage) };
        }
        Ok(Self { base, bytes, mapped })
    }

    /// The first byte's address, a multiple of [`PAGE_BYTES`].
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: by the invariant the range is ours and mapped; owners of slices hold the
        // region alive, so nothing points into it any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.mapped) };
        if let Err(error) = unmapped {
            tracing::error!(%error, bytes = self.mapped, "cannot unmap a memory region");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_aligned_and_zeroed() {
        let region = Region::map(3 * HUGE_PAGE_BYTES + 1).expect("memory");
        assert_eq!(region.base().as_ptr() as usize % PAGE_BYTES, 0);
        // SAFETY: the region lives and nobody else knows its address.
        let bytes = unsafe { std::slice::from_raw_parts(region.base().as_ptr(), region.bytes()) };
        assert!(bytes.iter().step_by(PAGE_BYTES).all(|byte| *byte == 0));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert!(matches!(Region::map(0), Err(MemoryError::Empty)));
        assert!(matches!(Region::map(usize::MAX), Err(MemoryError::Map { .. })));
        assert!(matches!(Region::map(1 << 60), Err(MemoryError::Map { .. })));
        let reserved = Region::map_with(1 << 50, HugePages::Reserved);
        assert!(matches!(reserved, Err(MemoryError::Map { .. })));
    }
}
