//! Memory of all kinds: what is taken, what is refused, and the rules of lending.

use std::sync::Arc;

use keyway_fabric::memory::{
    DeviceBuffer, ExportHandle, Gpu, GpuError, HostBuffer, LendError, Pinned,
};

use crate::raw::Raw;
use crate::{gpu, noise, skipped};

#[test]
fn a_gpu_is_opened_once_and_found_by_its_identifier() {
    let Some(gpu) = gpu() else { return };
    assert!(Arc::ptr_eq(&gpu, &Gpu::open(0).unwrap()));
    assert!(Arc::ptr_eq(&gpu, &Gpu::by_uuid(gpu.uuid()).unwrap()));
    println!("{} {} {:?}", gpu.name(), gpu.uuid(), gpu.limits());
    assert!(gpu.limits().memory_bytes > 1 << 30);
    gpu.flush_remote_writes().unwrap();
}

#[test]
fn bytes_go_in_and_out() {
    let Some(gpu) = gpu() else { return };
    let mut buffer = DeviceBuffer::alloc(&gpu, 1 << 20).unwrap();
    let bytes = noise(70_001, 1);
    buffer.write(13, &bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    buffer.read(13, &mut back).unwrap();
    assert_eq!(back, bytes);
    assert!(matches!(buffer.read(1 << 20, &mut [0]), Err(GpuError::OutOfRange { .. })));
    assert!(DeviceBuffer::alloc(&gpu, 0).unwrap().is_empty());
    let Err(full) = DeviceBuffer::alloc(&gpu, 1 << 50) else { panic!("no GPU has that") };
    assert!(matches!(full, GpuError::OutOfMemory(_)), "{full:?}");
}

/// The same rules as for host memory, which has the fuller test of them.
#[test]
fn ranges_are_lent_exclusively() {
    let Some(gpu) = gpu() else { return };
    let mut buffer = DeviceBuffer::alloc(&gpu, 1000).unwrap();
    let base = buffer.address();
    let mut all = buffer.slice_mut(..).unwrap();
    let front = all.split_to(400);
    assert_eq!((front.address(), front.len(), all.offset()), (base, 400, 400));
    assert_eq!(buffer.slice(0..1).err(), Some(LendError::Lent));
    let life = front.life();
    let front = front.freeze();
    assert_eq!(buffer.slice(0..400).unwrap().part(100..200).address(), base + 100);
    drop((front, all));
    assert!(buffer.slice_mut(..).is_ok());
    assert!(!life.is_over());
    let slice = buffer.slice(..).unwrap();
    drop(buffer);
    assert!(!life.is_over());
    drop(slice);
    assert!(life.is_over());
}

/// A caller's memory: an allocation, a part of one, mapped physical memory in several pieces.
#[test]
fn foreign_memory_is_adopted() {
    let Some(gpu) = gpu() else { return };
    let raw = Raw::of(&gpu);
    let address = raw.alloc(1 << 20);
    // SAFETY: the memory is freed below, after the buffer.
    let part = unsafe { DeviceBuffer::foreign(address + 5, 1000, Arc::new(())) }.unwrap();
    assert!(Arc::ptr_eq(part.gpu(), &gpu));
    let (mapped, piece) = raw.mapped(3, true);
    let bytes = 3 * piece - 10;
    // SAFETY: as above.
    let mut buffer = unsafe { DeviceBuffer::foreign(mapped + 10, bytes, Arc::new(())) }.unwrap();
    buffer.write(piece - 20, &noise(100, 2)).unwrap();
    let scattered = buffer.slice(piece - 20..piece + 20).unwrap().export();
    assert!(matches!(scattered, Err(GpuError::Scattered)), "{scattered:?}");
    let export = buffer.slice(piece..piece + 20).unwrap().export().unwrap();
    assert_eq!(
        (export.allocation.base, export.allocation.bytes),
        (mapped + piece as u64, piece as u64)
    );
    assert!(matches!(export.handle, ExportHandle::Vmm(_)));
    drop((part, buffer));
    raw.free(address);
    raw.unmap(mapped, 3 * piece);
}

#[test]
fn what_is_no_device_memory_is_refused_by_what_it_is() {
    let Some(gpu) = gpu() else { return };
    let raw = Raw::of(&gpu);
    let adopt = |address: u64, bytes: usize| {
        // SAFETY: dropped at once, and not used.
        unsafe { DeviceBuffer::foreign(address, bytes, Arc::new(())) }.map(drop)
    };
    let managed = raw.alloc_managed(1 << 20);
    assert!(matches!(adopt(managed, 10), Err(GpuError::Managed)));
    raw.free(managed);

    let freed = raw.alloc(64 << 20);
    raw.free(freed);
    let answer = adopt(freed, 10);
    assert!(matches!(answer, Err(GpuError::Freed)), "{answer:?}");

    let vector = vec![0u8; 1000];
    let answer = adopt(vector.as_ptr() as u64, 10);
    assert!(matches!(answer, Err(GpuError::NotDeviceMemory)), "{answer:?}");

    let mut host = HostBuffer::zeroed(1 << 20).unwrap();
    let pinned = Pinned::register(&gpu, host.slice(..).unwrap().anchor()).unwrap();
    let address = host.slice(..).unwrap().address();
    let answer = adopt(address, 10);
    assert!(matches!(answer, Err(GpuError::NotDeviceMemory)), "{answer:?}");
    let twice = Pinned::register(&gpu, host.slice(..).unwrap().anchor());
    assert!(matches!(twice, Err(GpuError::AlreadyPinned)), "{twice:?}");
    drop(pinned);
    Pinned::register(&gpu, host.slice(..).unwrap().anchor()).unwrap();

    let last = raw.alloc(2 << 20);
    let answer = adopt(last, 1 << 40);
    assert!(answer.is_err(), "the range goes on behind the allocation");
    raw.free(last);
    assert!(adopt(64, 10).is_err());
}

/// Looking an address up needs no context on the thread that does it.
#[test]
fn any_thread_may_ask() {
    let Some(gpu) = gpu() else { return };
    let buffer = DeviceBuffer::alloc(&gpu, 4096).unwrap();
    let address = buffer.address();
    let found = std::thread::spawn(move || Gpu::of_pointer(address + 1)).join().unwrap();
    assert!(Arc::ptr_eq(&found.unwrap(), &gpu));
}

/// Adapters register exactly what is lent, wherever it lies in its pages.
#[test]
fn any_range_has_a_dma_buf() {
    let Some(gpu) = gpu() else { return };
    if !gpu.limits().dma_buf {
        return skipped("this GPU's driver makes no dma-buf");
    }
    let mut buffer = DeviceBuffer::alloc(&gpu, 8 << 20).unwrap();
    for range in [0..4096, 1..2, 4095..4097, 1000..(3 << 20) + 7, (8 << 20) - 1..8 << 20] {
        let slice = buffer.slice_mut(range.clone()).unwrap();
        let anchor = slice.exact_anchor().unwrap();
        assert!(anchor.is_of_device());
        assert_eq!((anchor.address(), anchor.bytes()), (slice.address(), range.len()));
        let pinned = Pinned::register(&gpu, anchor);
        assert!(matches!(pinned, Err(GpuError::Unsupported(_))), "{pinned:?}");
    }
    // Short allocations share a page with others.
    let mut short = DeviceBuffer::alloc(&gpu, 100).unwrap();
    println!("{:?}", short.slice(10..20).unwrap().exact_anchor().map(|anchor| anchor.bytes()));
}

/// Memory that nobody made for sharing says so.
#[test]
fn private_physical_memory_cannot_be_exported() {
    let Some(gpu) = gpu() else { return };
    let raw = Raw::of(&gpu);
    let (mapped, piece) = raw.mapped(1, false);
    // SAFETY: unmapped below, after the buffer.
    let mut buffer = unsafe { DeviceBuffer::foreign(mapped, piece, Arc::new(())) }.unwrap();
    let export = buffer.slice(..).unwrap().export();
    assert!(matches!(export, Err(GpuError::NotExportable(_))), "{export:?}");
    drop(buffer);
    raw.unmap(mapped, piece);
}
