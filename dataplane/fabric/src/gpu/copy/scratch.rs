//! Pinned and device memory of the engine's own: what kernels read their work from and leave
//! their results in.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use keyway_sys::cuda::abi;

use crate::gpu::device::Gpu;
use crate::gpu::kernels::{Kernels, Move};
use crate::gpu::{GpuError, Pinned};
use crate::memory::{DeviceBuffer, HostBuffer};

/// Runs that one table names.
pub(super) const TABLE_RUNS: usize = 4096;
/// Tables of an engine; what finds none is copied run by run.
const TABLES_MAX: usize = 32;
/// Digests that may be under way at once: as many as the queue lets in.
const RESULTS: usize = 1024;
/// Bytes of a result.
const RESULT_BYTES: usize = size_of::<u64>();

/// A table of runs, in pinned memory.
pub(super) struct Table {
    /// Before the memory: it lets go first.
    _pinned: Pinned,
    memory: HostBuffer,
}

impl Table {
    fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        let (memory, pinned) = pinned(gpu, TABLE_RUNS * size_of::<Move>())?;
        Ok(Self { _pinned: pinned, memory })
    }

    /// Fills the table, and gives its address.
    pub(super) fn fill(&mut self, moves: impl Iterator<Item = Move>) -> u64 {
        let Ok(bytes) = self.memory.bytes_mut() else { return 0 };
        for (entry, run) in bytes.chunks_exact_mut(size_of::<Move>()).zip(moves) {
            entry.copy_from_slice(&run.to_bytes());
        }
        bytes.as_ptr() as u64
    }
}

/// The tables that are free.
#[derive(Default)]
pub(super) struct Tables {
    free: Vec<Table>,
    made: usize,
}

impl Tables {
    pub(super) fn take(&mut self, gpu: &Arc<Gpu>) -> Option<Table> {
        if let Some(table) = self.free.pop() {
            return Some(table);
        }
        if self.made == TABLES_MAX {
            return None;
        }
        let table = Table::new(gpu).ok()?;
        self.made += 1;
        Some(table)
    }

    pub(super) fn give(&mut self, tables: Vec<Table>) {
        self.free.extend(tables);
    }
}

/// Where digests leave their results: in the device, and brought from there to pinned memory.
///
/// A kernel brings them where it can. The copy engines would do it between the long copies out of
/// the device, which cost these a twentieth of the bus (51.5 GB/s instead of 54.8 on an H200, with
/// eight bytes for each 16 MiB).
pub(super) struct Results {
    device: DeviceBuffer,
    _pinned: [Pinned; 2],
    host: HostBuffer,
    /// The way of each result, as a kernel takes it.
    moves: HostBuffer,
    free: Vec<usize>,
}

impl Results {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        let (host, host_pinned) = pinned(gpu, RESULTS * RESULT_BYTES)?;
        let (mut moves, moves_pinned) = pinned(gpu, RESULTS * size_of::<Move>())?;
        let device = DeviceBuffer::alloc(gpu, RESULTS * RESULT_BYTES)?;
        let to = host.bytes().map_err(|_| GpuError::Closed)?.as_ptr() as u64;
        let entries = moves.bytes_mut().map_err(|_| GpuError::Closed)?;
        for (slot, entry) in entries.chunks_exact_mut(size_of::<Move>()).enumerate() {
            let (at, bytes) = ((slot * RESULT_BYTES) as u64, RESULT_BYTES as u64);
            let way = Move { from: device.address() + at, to: to + at, bytes };
            entry.copy_from_slice(&way.to_bytes());
        }
        let free = (0..RESULTS).rev().collect();
        Ok(Self { device, _pinned: [host_pinned, moves_pinned], host, moves, free })
    }

    pub(super) fn take(&mut self) -> Option<usize> {
        self.free.pop()
    }

    pub(super) fn give(&mut self, slot: usize) {
        self.free.push(slot);
    }

    /// Where the kernel is to leave the result.
    pub(super) fn device_address(&self, slot: usize) -> u64 {
        self.device.address() + (slot * RESULT_BYTES) as u64
    }

    /// Lets a stream bring the result over.
    ///
    /// # Safety
    /// The context is current, and the stream and the kernels of it.
    pub(super) unsafe fn fetch(
        &self,
        kernels: &Kernels,
        slot: usize,
        stream: abi::Stream,
    ) -> Result<(), GpuError> {
        let gpu = self.device.gpu();
        if gpu.limits().host_addresses {
            let moves = self.moves.bytes().map_err(|_| GpuError::Closed)?;
            let way = moves[slot * size_of::<Move>()..].as_ptr() as u64;
            // SAFETY: one entry of a table that lives as long as the engine, as does what it names;
            // the rest is the caller's.
            unsafe { kernels.moves(gpu.cuda(), way, 1, stream) }?;
            return Ok(());
        }
        let host = self.host.bytes().map_err(|_| GpuError::Closed)?;
        let to = host[slot * RESULT_BYTES..].as_ptr().cast::<c_void>().cast_mut();
        let from = self.device_address(slot);
        // SAFETY: eight bytes on both sides, which live as long as the engine; nobody reads the
        // host's before the stream is through.
        unsafe { gpu.cuda().memcpy_from_device_async(to, from, RESULT_BYTES, stream) }?;
        Ok(())
    }

    /// The result that was brought over.
    pub(super) fn value(&self, slot: usize) -> u64 {
        let Ok(host) = self.host.bytes() else { return 0 };
        // SAFETY: eight bytes of the buffer's, aligned; volatile, since the GPU wrote them.
        unsafe { host[slot * RESULT_BYTES..].as_ptr().cast::<u64>().read_volatile() }
    }
}

fn pinned(gpu: &Arc<Gpu>, bytes: usize) -> Result<(HostBuffer, Pinned), GpuError> {
    let mut memory = HostBuffer::zeroed(bytes).map_err(GpuError::Memory)?;
    let slice = memory.slice(..).map_err(|_| GpuError::Closed)?;
    let pinned = Pinned::register(gpu, slice.anchor())?;
    drop(slice);
    Ok((memory, pinned))
}
