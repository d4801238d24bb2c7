//! A caller's own memory, lent to transfers by the range.
//!
//! The caller keeps a [`HostBuffer`]; a transfer owns a [`HostSliceMut`] (to fill) or a
//! [`HostSlice`] (to send). A slice keeps the memory alive by itself, so a transfer that was
//! cancelled while a device still writes cannot write into freed memory: the buffer answers
//! [`LendError::Lent`] until the device's owner has dropped the slice.
//!
//! Invariant: by that of `lent`, a `HostSliceMut` is the only path to its bytes, and
//! `HostBuffer` reaches bytes only while no conflicting entry exists and its own borrow keeps
//! new ones away (lending needs `&mut`).

#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;

use super::lends::LendError;
use super::lent::{BufferLife, Exclusive, Shared, Whole};
use super::region::{MemoryError, Region};
use super::shared::SharedMemory;
use crate::ipc::Export;
use crate::verbs::Anchor;

/// Memory of the caller, whole. Dropping it while slices are out frees it with the last.
pub struct HostBuffer {
    whole: Arc<Whole<Memory>>,
}

impl HostBuffer {
    /// A page-aligned buffer of zeros, huge-page advised when it is big.
    ///
    /// # Errors
    /// [`MemoryError`] when the kernel refuses the memory.
    pub fn zeroed(bytes: usize) -> Result<Self, MemoryError> {
        if bytes == 0 {
            return Ok(Self::from(Vec::new()));
        }
        let region = Region::map(bytes)?;
        Ok(Self::over(region.base(), bytes, Backing::Region(region)))
    }

    /// A page-aligned buffer of zeros that a node of this host can map, so that it moves bytes
    /// in and out without a socket between.
    ///
    /// # Errors
    /// [`MemoryError`] when the kernel refuses the memory.
    pub fn shared(bytes: usize) -> Result<Self, MemoryError> {
        if bytes == 0 {
            return Self::zeroed(0);
        }
        let memory = SharedMemory::create(bytes)?;
        Ok(Self::over(memory.base(), bytes, Backing::Shared(memory)))
    }

    /// Memory that is another's, for callers whose language owns it: nothing is copied, and
    /// nothing of it is freed here.
    ///
    /// `owner` is let go when the buffer, all slices of it and all registrations of it with
    /// devices are gone.
    ///
    /// # Safety
    /// As long as `owner` lives, the `bytes` bytes from `base` on are initialised, stay where
    /// they are, and may be read and written. Nobody else writes them while a slice is out, nor
    /// reads them while an exclusive one is. `bytes` is at most `isize::MAX`.
    pub unsafe fn foreign(
        base: NonNull<u8>,
        bytes: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self::over(base, bytes, Backing::Foreign { _owner: owner })
    }

    fn over(base: NonNull<u8>, bytes: usize, backing: Backing) -> Self {
        Self { whole: Whole::new(Memory { base, bytes, backing: Arc::new(backing) }, bytes) }
    }

    /// Bytes in the buffer.
    pub fn len(&self) -> usize {
        self.whole.bytes()
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lends a range exclusively, to be filled by one transfer.
    ///
    /// # Errors
    /// [`LendError::OutOfRange`], or [`LendError::Lent`] when it overlaps a living slice.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<HostSliceMut, LendError> {
        Exclusive::lend(&self.whole, range).map(HostSliceMut)
    }

    /// Lends a range for reading; any number of readers may share it.
    ///
    /// # Errors
    /// [`LendError::OutOfRange`], or [`LendError::Lent`] when it overlaps an exclusive slice.
    pub fn slice(&mut self, range: impl RangeBounds<usize>) -> Result<HostSlice, LendError> {
        Shared::lend(&self.whole, range).map(HostSlice)
    }

    /// Cuts the whole buffer into exclusive slices of `piece_bytes` (the last may be
    /// shorter), for transfers side by side.
    ///
    /// # Errors
    /// [`LendError::Lent`] when any slice is out.
    ///
    /// # Panics
    /// When `piece_bytes` is 0.
    pub fn chunks_mut(&mut self, piece_bytes: usize) -> Result<Vec<HostSliceMut>, LendError> {
        assert!(piece_bytes > 0, "a piece holds at least one byte");
        let mut rest = self.slice_mut(..)?;
        let mut pieces = Vec::with_capacity(self.len().div_ceil(piece_bytes));
        while rest.len() > piece_bytes {
            pieces.push(rest.split_to(piece_bytes));
        }
        if !rest.is_empty() {
            pieces.push(rest);
        }
        Ok(pieces)
    }

    /// The bytes.
    ///
    /// # Errors
    /// [`LendError::Lent`] while an exclusive slice is out.
    pub fn bytes(&self) -> Result<&[u8], LendError> {
        if self.whole.is_readable() {
            // SAFETY: no exclusive slice lives, and none can begin while `&self` is
            // borrowed, since lending takes `&mut self`. Shared slices only read.
            Ok(unsafe { self.whole.memory.shared(0..self.len()) })
        } else {
            Err(LendError::Lent)
        }
    }

    /// The bytes, to be changed in place.
    ///
    /// # Errors
    /// [`LendError::Lent`] while any slice is out.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], LendError> {
        if self.whole.is_idle() {
            // SAFETY: no slice lives, and none can begin while `&mut self` is borrowed.
            Ok(unsafe { self.whole.memory.exclusive(0..self.len()) })
        } else {
            Err(LendError::Lent)
        }
    }

    /// The vector that the buffer was made from; its bytes are copied when it was made by
    /// [`HostBuffer::zeroed`] or of foreign memory, and while a device has them registered.
    ///
    /// # Errors
    /// The buffer itself while any slice is out.
    pub fn into_vec(self) -> Result<Vec<u8>, Self> {
        let whole = Arc::try_unwrap(self.whole).map_err(|whole| Self { whole })?;
        let Memory { base, bytes, backing } = whole.into_memory();
        // SAFETY: the backing has at least `bytes` bytes and lives when this is called, and no
        // slice does: so nobody writes, devices included.
        let copy = || unsafe { std::slice::from_raw_parts(base.as_ptr(), bytes).to_vec() };
        Ok(match Arc::try_unwrap(backing) {
            Ok(Backing::Vec(parts)) => parts.into_vec(bytes),
            Ok(Backing::Region(_region)) => copy(),
            Ok(Backing::Shared(_) | Backing::Foreign { .. }) => copy(),
            Err(_registered) => copy(),
        })
    }
}

impl From<Vec<u8>> for HostBuffer {
    /// Adopts the vector's memory without copying.
    fn from(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        let base = NonNull::new(bytes.as_mut_ptr()).expect("a vector's pointer is never null");
        let parts = VecParts { base, capacity: bytes.capacity() };
        Self::over(base, bytes.len(), Backing::Vec(parts))
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBuffer").field("bytes", &self.len()).finish_non_exhaustive()
    }
}

/// An exclusive range of a [`HostBuffer`], owned by the transfer that fills it.
pub struct HostSliceMut(Exclusive<Memory>);

impl HostSliceMut {
    /// Where the slice begins in its buffer, in bytes.
    pub fn offset(&self) -> usize {
        self.0.range().start
    }

    /// The slice's first byte's address, for a device.
    pub fn address(&self) -> u64 {
        self.0.memory().address(self.offset())
    }

    /// What a node of this host maps the buffer by, where it was made by
    /// [`HostBuffer::shared`].
    pub fn export(&self) -> Option<Export> {
        self.0.memory().export()
    }

    /// The whole buffer, for registration with a device. Registering gives no access to it
    /// by itself.
    pub fn anchor(&self) -> Anchor {
        self.0.memory().whole_anchor()
    }

    /// Tells, later, whether the buffer is still in use.
    pub fn life(&self) -> BufferLife {
        self.0.life()
    }

    /// This slice alone, for registration with a device.
    pub fn exact_anchor(&self) -> Anchor {
        self.0.memory().anchor(self.0.range().clone())
    }

    /// Cuts off and gives the first `bytes` bytes; `self` keeps the rest.
    ///
    /// # Panics
    /// When the slice is shorter than `bytes`.
    #[must_use]
    pub fn split_to(&mut self, bytes: usize) -> Self {
        Self(self.0.split_to(bytes))
    }

    /// Joins `next` back on, which begins in the same buffer where `self` ends.
    ///
    /// # Errors
    /// `next` itself when it is no such neighbour.
    pub fn unsplit(&mut self, next: Self) -> Result<(), Self> {
        self.0.unsplit(next.0).map_err(Self)
    }

    /// Ends the exclusive lend: the same bytes for reading.
    pub fn freeze(self) -> HostSlice {
        HostSlice(self.0.freeze())
    }
}

impl Deref for HostSliceMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: by the invariant this slice is the only path to the range.
        unsafe { self.0.memory().shared(self.0.range().clone()) }
    }
}

impl DerefMut for HostSliceMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: by the invariant this slice is the only path to the range, and `&mut self`
        // makes this the only reference through it.
        unsafe { self.0.memory().exclusive(self.0.range().clone()) }
    }
}

impl fmt::Debug for HostSliceMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HostSliceMut").field(self.0.range()).finish()
    }
}

/// A range of a [`HostBuffer`] lent for reading.
#[derive(Clone)]
pub struct HostSlice(Shared<Memory>);

impl HostSlice {
    /// Where the slice begins in its buffer, in bytes.
    pub fn offset(&self) -> usize {
        self.0.range().start
    }

    /// The slice's first byte's address, for a device.
    pub fn address(&self) -> u64 {
        self.0.memory().address(self.offset())
    }

    /// What a node of this host maps the buffer by, where it was made by
    /// [`HostBuffer::shared`].
    pub fn export(&self) -> Option<Export> {
        self.0.memory().export()
    }

    /// The whole buffer, for registration with a device. Registering gives no access to it
    /// by itself.
    pub fn anchor(&self) -> Anchor {
        self.0.memory().whole_anchor()
    }

    /// Tells, later, whether the buffer is still in use.
    pub fn life(&self) -> BufferLife {
        self.0.life()
    }

    /// This slice alone, for registration with a device.
    pub fn exact_anchor(&self) -> Anchor {
        self.0.memory().anchor(self.0.range().clone())
    }

    /// A part of this slice; `range` counts from the slice's first byte.
    ///
    /// # Panics
    /// When the range leaves the slice.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        Self(self.0.part(range))
    }

    /// The bytes as [`Bytes`], without a copy; the lend ends with the last of its clones.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Deref for HostSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a shared entry covers the range, so no exclusive slice does.
        unsafe { self.0.memory().shared(self.0.range().clone()) }
    }
}

impl AsRef<[u8]> for HostSlice {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for HostSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HostSlice").field(self.0.range()).finish()
    }
}

struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    /// Apart, for registrations hold it longer than the buffer lives.
    backing: Arc<Backing>,
}

enum Backing {
    Region(Region),
    Vec(VecParts),
    Shared(SharedMemory),
    Foreign { _owner: Arc<dyn Any + Send + Sync> },
}

// SAFETY: `base` points into memory owned by `backing`; access to it is arbitrated by the
// lends whichever thread asks.
unsafe impl Send for Memory {}
// SAFETY: as for `Send`; `&Memory` reaches bytes only through the unsafe functions below.
unsafe impl Sync for Memory {}

impl Memory {
    fn anchor(&self, range: Range<usize>) -> Anchor {
        let backing = Arc::clone(&self.backing);
        // SAFETY: the range lies in the backing, which stays mapped as long as its `Arc` lives.
        unsafe { Anchor::new(self.base.add(range.start), range.len(), backing) }
    }

    fn export(&self) -> Option<Export> {
        let Backing::Shared(memory) = &*self.backing else { return None };
        let (base, bytes) = (memory.base().as_ptr() as u64, memory.bytes() as u64);
        Some(Export::Host { file: Arc::clone(memory.file()), base, bytes })
    }

    fn whole_anchor(&self) -> Anchor {
        self.anchor(0..self.bytes)
    }

    fn address(&self, offset: usize) -> u64 {
        self.base.as_ptr() as u64 + offset as u64
    }

    /// # Safety
    /// The range lies in the memory, and nobody holds or makes a `&mut` to it meanwhile.
    unsafe fn shared(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: upheld by the caller; the memory lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(range.start), range.len()) }
    }

    /// # Safety
    /// The range lies in the memory, and nobody else holds or makes a reference to it.
    #[expect(clippy::mut_from_ref, reason = "exclusivity is the lend table's, not the borrow's")]
    unsafe fn exclusive(&self, range: Range<usize>) -> &mut [u8] {
        // SAFETY: upheld by the caller; the memory lives as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(range.start), range.len()) }
    }
}

/// A vector's memory without the vector.
struct VecParts {
    base: NonNull<u8>,
    capacity: usize,
}

// SAFETY: an address range of the global allocator's; it hands out no references.
unsafe impl Send for VecParts {}
// SAFETY: as above.
unsafe impl Sync for VecParts {}

impl VecParts {
    fn into_vec(self, bytes: usize) -> Vec<u8> {
        let parts = ManuallyDrop::new(self);
        // SAFETY: the parts are those of the vector taken apart in `HostBuffer::from`, whose
        // length was `bytes`; `ManuallyDrop` keeps them from being given back twice.
        unsafe { Vec::from_raw_parts(parts.base.as_ptr(), bytes, parts.capacity) }
    }
}

impl Drop for VecParts {
    fn drop(&mut self) {
        // SAFETY: as in `into_vec`; bytes need no drop, so length 0 frees them all.
        drop(unsafe { Vec::from_raw_parts(self.base.as_ptr(), 0, self.capacity) });
    }
}

#[cfg(test)]
mod tests;
