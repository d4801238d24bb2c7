//! A second process: maps what the first exported, and breaks what the first must not see break.

use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use keyway_fabric::memory::{
    CopyBatch, CopyQueue, DeviceBuffer, DeviceMapping, ExportHandle, Gpu, GpuError, GpuUuid,
    LeaseClass, LeasePool,
};

use crate::raw::Raw;
use crate::{gpu, noise, skipped};

/// What the second process is to do, as `what:uuid:bytes:offset:handle`.
const ORDER: &str = "KEYWAY_GPU_TEST_ORDER";

/// How the second process ends when the platform cannot do what it was told.
const UNSUPPORTED: i32 = 77;

/// Starts this binary again with an order, which it must do. Tells whether the platform could.
fn second(order: &str, input: Stdio) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::second_process", "--nocapture"]);
    let output = command.env(ORDER, order).stdin(input).output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    print!("{}", String::from_utf8_lossy(&output.stderr));
    let could = output.status.code() != Some(UNSUPPORTED);
    assert!(output.status.success() || !could, "{order}");
    could
}

/// Not a test by itself: what the others have a second process do.
#[test]
fn second_process() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let words: Vec<_> = order.split(':').collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    match words[0] {
        "map" => runtime.block_on(map(&words)),
        "break" => runtime.block_on(break_context()),
        other => panic!("{other}"),
    }
}

/// Reads what the first process wrote, and writes the same bytes backwards behind them.
async fn map(words: &[&str]) {
    let uuid = GpuUuid(unhex(words[1]).try_into().unwrap());
    let (bytes, offset) = (words[2].parse().unwrap(), words[3].parse::<u64>().unwrap());
    let handle = match words.get(4) {
        Some(handle) => ExportHandle::Ipc(unhex(handle).try_into().unwrap()),
        None => {
            use std::os::fd::AsFd as _;
            ExportHandle::Vmm(std::io::stdin().as_fd().try_clone_to_owned().unwrap())
        }
    };
    let gpu = Gpu::by_uuid(uuid).unwrap();
    let begun = std::time::Instant::now();
    let mapping = match DeviceMapping::open(&gpu, &handle, bytes) {
        Ok(mapping) => mapping,
        Err(GpuError::Unsupported(what)) => {
            println!("{what} is refused");
            std::process::exit(UNSUPPORTED);
        }
        Err(error) => panic!("{error:?}"),
    };
    println!("mapped {bytes} of {} bytes in {:?}", mapping.len(), begun.elapsed());
    if words.len() > 4 {
        let again = DeviceMapping::open(&gpu, &handle, bytes).unwrap();
        assert!(Arc::ptr_eq(&mapping, &again));
        let longer = DeviceMapping::open(&gpu, &handle, mapping.len() + 1);
        assert!(matches!(longer, Err(GpuError::OutOfRange { .. })), "{longer:?}");
    }
    assert!(mapping.range(bytes, 1).is_err() || mapping.len() > bytes);
    let queue = CopyQueue::open(&gpu).unwrap();
    let pool = LeasePool::new(4 << 20).unwrap();
    let mut batch = CopyBatch::new();
    let from = mapping.range(offset, 10_000).unwrap();
    batch.from_device(from, pool.lease(LeaseClass::Block).await, 10_000);
    batch.keep(Arc::clone(&mapping) as _);
    let done = queue.submit(batch).await;
    done.result.unwrap();
    assert!(done.destinations[0][..10_000] == noise(10_000, 9));
    let mut backwards = noise(10_000, 9);
    backwards.reverse();
    let mut batch = CopyBatch::new();
    batch.into_device(Bytes::from(backwards), from + 10_000);
    batch.keep(Arc::clone(&mapping) as _);
    queue.submit(batch).await.result.unwrap();
}

async fn break_context() {
    let gpu = Gpu::open(0).unwrap();
    let queue = CopyQueue::open(&gpu).unwrap();
    let pool = LeasePool::new(4 << 20).unwrap();
    let device = DeviceBuffer::alloc(&gpu, 4096).unwrap();
    let mut batch = CopyBatch::new();
    batch.from_device(device.address(), pool.lease(LeaseClass::Page).await, 4096);
    queue.submit(batch).await.result.unwrap();
    let broken = Raw::of(&gpu).break_context();
    println!("{broken:?}");
    for _ in 0..3 {
        let mut batch = CopyBatch::new();
        batch.from_device(device.address(), pool.lease(LeaseClass::Page).await, 4096);
        let done = queue.submit(batch).await;
        let error = done.result.unwrap_err();
        assert!(error.is_lost(), "{error:?}");
        assert_eq!(done.destinations.len(), 1);
    }
    assert_eq!(pool.stats().leased_bytes, 0);
}

/// Another process maps memory of both kinds, reads and writes it.
#[test]
fn another_process_reads_and_writes_what_was_exported() {
    let Some(gpu) = gpu() else { return };
    let raw = Raw::of(&gpu);
    let (mapped, piece) = raw.mapped(2, true);
    let plain = DeviceBuffer::alloc(&gpu, 3 << 20).unwrap();
    // SAFETY: unmapped below, after the buffer.
    let physical = unsafe { DeviceBuffer::foreign(mapped, 2 * piece, Arc::new(())) }.unwrap();
    for (mut buffer, offset) in [(plain, 1000), (physical, piece + 1000)] {
        buffer.write(offset, &noise(10_000, 9)).unwrap();
        let slice = buffer.slice(offset..offset + 20_000).unwrap();
        let export = slice.export().unwrap();
        let within = slice.address() - export.allocation.base;
        assert_eq!(within, 1000, "each piece of physical memory has an export of its own");
        let mut order =
            format!("map:{}:{}:{within}", hex(&export.allocation.gpu.0), export.allocation.bytes);
        let input = match export.handle {
            ExportHandle::Ipc(handle) => {
                order += &format!(":{}", hex(&handle));
                Stdio::null()
            }
            ExportHandle::Vmm(fd) => Stdio::from(fd),
        };
        if !second(&order, input) {
            skipped("this platform maps no physical memory of another process");
            continue;
        }
        let mut found = vec![0; 10_000];
        buffer.read(offset + 10_000, &mut found).unwrap();
        found.reverse();
        assert!(found == noise(10_000, 9));
    }
    raw.unmap(mapped, 2 * piece);
}

/// A handle of this process itself opens nothing here, and says so.
#[test]
fn the_exporter_cannot_map_its_own() {
    let Some(gpu) = gpu() else { return };
    let mut buffer = DeviceBuffer::alloc(&gpu, 4096).unwrap();
    let export = buffer.slice(..).unwrap().export().unwrap();
    let opened = DeviceMapping::open(&gpu, &export.handle, export.allocation.bytes);
    println!("{opened:?}");
    assert!(opened.is_err_and(|error| !error.is_lost()));
}

/// Once the context broke, every copy is answered with that, and memory comes back.
#[test]
fn a_lost_gpu_stays_lost() {
    if gpu().is_some() {
        second("break", Stdio::null());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}
