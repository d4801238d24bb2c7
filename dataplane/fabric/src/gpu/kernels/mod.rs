//! The kernels that come with the library, as PTX: the driver finishes them for its GPU when
//! they are first used, in some 100 ms, and keeps the result on disk.
//!
//! Invariant: the module was loaded into the context of the `Gpu` that owns this, and is unloaded
//! before that context is released. `cuda/kernels.cu` declares the kernels' parameters; the
//! structures here are laid out as those.

#![allow(unsafe_code)]

mod modulus;

use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;

use keyway_proto::{Checksum, ChecksumKind};
use keyway_sys::cuda::{Cuda, CudaError, abi};

use super::GpuError;
use super::device::{Gpu, released};
use modulus::{Modulus, of_kind};

/// `cuda/kernels.cu`, compiled by `make kernels`.
const PTX: &str = include_str!("../../../cuda/kernels.ptx");
/// Threads of a block, of both kernels.
const THREADS: u32 = 256;
/// Blocks of the digest that a multiprocessor holds at once: as many as there is work for.
const DIGEST_BLOCKS: u64 = 6;
/// A block that has less to do takes longer to add up its words than to read them.
const DIGEST_ROWS_MIN: u64 = 4;
/// Blocks that move runs: enough to fill the bus, and no more of the GPU than that.
const MOVE_BLOCKS: u32 = 64;
/// Warps of a block.
const WARPS: u32 = THREADS / 32;

/// The kernels of one GPU.
pub(super) struct Kernels {
    module: abi::Module,
    digest: abi::Function,
    moves: abi::Function,
}

// SAFETY: a module's handles may be used from any thread.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

/// What a kernel moves: `struct Run` of kernels.cu.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Move {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) bytes: u64,
}

impl Move {
    pub(super) fn to_bytes(self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        for (into, word) in bytes.chunks_mut(8).zip([self.from, self.to, self.bytes]) {
            into.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

impl Kernels {
    /// A GPU's kernels, loaded when first asked for. The context is current.
    pub(super) fn of(gpu: &Arc<Gpu>) -> Result<&Self, GpuError> {
        let kernels = gpu.kernels.get_or_init(|| Self::load(gpu.cuda()).map_err(GpuError::from));
        kernels.as_ref().map_err(Clone::clone)
    }

    fn load(cuda: &Cuda) -> Result<Self, CudaError> {
        let image = CString::new(PTX).unwrap_or_default();
        let mut module: abi::Module = std::ptr::null_mut();
        // SAFETY: the context is current; PTX is text that ends with a zero.
        unsafe { cuda.module_load_data(&raw mut module, image.as_ptr().cast::<c_void>()) }?;
        let find = |name: &CStr| {
            let mut function: abi::Function = std::ptr::null_mut();
            // SAFETY: the module was just loaded.
            unsafe { cuda.module_get_function(&raw mut function, module, name.as_ptr()) }?;
            Ok(function)
        };
        let found = find(c"keyway_digest").and_then(|digest| Ok((digest, find(c"keyway_move")?)));
        match found {
            Ok((digest, moves)) => Ok(Self { module, digest, moves }),
            Err(error) => {
                // SAFETY: nothing of it was launched.
                unsafe { Self::unload_module(cuda, module) };
                Err(error)
            }
        }
    }

    /// Adds the checksum of a range, as a bare remainder, to the number at `result`.
    ///
    /// # Safety
    /// The context is current and the stream of it; the range and the eight bytes at `result`
    /// stay allocated device memory until the kernel is done.
    pub(super) unsafe fn digest(
        &self,
        gpu: &Gpu,
        kind: ChecksumKind,
        range: (u64, u64),
        result: u64,
        stream: abi::Stream,
    ) -> Result<(), CudaError> {
        let Some(modulus) = of_kind(kind) else { return Ok(()) };
        let (address, bytes) = range;
        let rows = ((address % 16 + bytes) / 16).div_ceil(u64::from(THREADS));
        let blocks_max = u64::from(gpu.limits().multiprocessors) * DIGEST_BLOCKS;
        let rows_per_block = rows.div_ceil(blocks_max).max(DIGEST_ROWS_MIN);
        let blocks = rows.div_ceil(rows_per_block).max(1) as u32;
        let mut parameters = [
            (&raw const address).cast::<c_void>().cast_mut(),
            (&raw const bytes).cast::<c_void>().cast_mut(),
            (&raw const rows_per_block).cast::<c_void>().cast_mut(),
            std::ptr::from_ref::<Modulus>(modulus).cast::<c_void>().cast_mut(),
            (&raw const result).cast::<c_void>().cast_mut(),
        ];
        // SAFETY: five parameters of the kernel's types, read before the call returns; the rest
        // is the caller's.
        unsafe { self.launch(gpu.cuda(), self.digest, blocks, &mut parameters, stream) }
    }

    /// Moves the runs that a table of [`Move`]s names.
    ///
    /// # Safety
    /// The context is current and the stream of it; the GPU reaches the table at this address,
    /// and the table and what it names stay until the kernel is done.
    pub(super) unsafe fn moves(
        &self,
        cuda: &Cuda,
        table: u64,
        count: u32,
        stream: abi::Stream,
    ) -> Result<(), CudaError> {
        let blocks = count.div_ceil(WARPS).clamp(1, MOVE_BLOCKS);
        let mut parameters = [
            (&raw const table).cast::<c_void>().cast_mut(),
            (&raw const count).cast::<c_void>().cast_mut(),
        ];
        // SAFETY: two parameters of the kernel's types; the rest is the caller's.
        unsafe { self.launch(cuda, self.moves, blocks, &mut parameters, stream) }
    }

    /// # Safety
    /// The parameters are those of the kernel, and what they name stays until it is done.
    unsafe fn launch(
        &self,
        cuda: &Cuda,
        function: abi::Function,
        blocks: u32,
        parameters: &mut [*mut c_void],
        stream: abi::Stream,
    ) -> Result<(), CudaError> {
        let none = std::ptr::null_mut();
        let parameters = parameters.as_mut_ptr();
        // SAFETY: upheld by the caller.
        unsafe {
            cuda.launch_kernel(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, parameters, none)
        }
    }

    /// Gives the module back.
    ///
    /// # Safety
    /// No kernel of it is under way or is launched again; its context is current.
    pub(super) unsafe fn unload(&self, cuda: &Cuda) {
        // SAFETY: upheld by the caller.
        unsafe { Self::unload_module(cuda, self.module) };
    }

    /// # Safety
    /// As [`Kernels::unload`].
    unsafe fn unload_module(cuda: &Cuda, module: abi::Module) {
        // SAFETY: upheld by the caller.
        if let Err(error) = unsafe { cuda.module_unload(module) } {
            released(error, "a GPU's kernels");
        }
    }
}

/// Whether kernels digest this kind.
pub(super) fn digests(kind: ChecksumKind) -> bool {
    of_kind(kind).is_some()
}

/// The checksum that a kernel's remainder of `bytes` bytes stands for.
pub(super) fn checksum(kind: ChecksumKind, remainder: u64, bytes: u64) -> Option<Checksum> {
    let value = of_kind(kind)?.finish(kind, remainder, bytes);
    Checksum::new(kind, &value.to_be_bytes()[8 - kind.bytes()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the PTX is that of the source. Method: its first line names the source's hash.
    #[test]
    fn the_kernels_were_compiled_since_they_changed() {
        let source = include_bytes!("../../../cuda/kernels.cu");
        let hash = Checksum::of(ChecksumKind::Sha256, source).to_hex();
        let said = PTX.lines().next().and_then(|line| line.strip_prefix("// source sha256 "));
        assert_eq!(said, Some(hash.as_str()), "make kernels");
        assert!(!PTX.contains('\0'));
    }
}
