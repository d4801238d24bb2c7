//! The copy engine: bytes of all sizes land, memory lives as long as it must.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use keyway_fabric::memory::{
    CopyBatch, CopyQueue, DeviceBuffer, GpuError, HostBuffer, LeaseClass, LeasePool, Pinned,
};
use keyway_sys::cuda::abi;

use crate::raw::Raw;
use crate::{gpu, noise};

/// Sizes around every limit that the engine knows.
const SIZES: [usize; 14] = [
    1,
    3,
    4095,
    4096,
    4097,
    65_536,
    65_537,
    (1 << 20) - 1,
    1 << 20,
    (4 << 20) + 7,
    16 << 20,
    (16 << 20) + 1,
    40 << 20,
    (64 << 20) + 4097,
];

#[tokio::test]
async fn bytes_of_all_sizes_land_both_ways() {
    let Some(gpu) = gpu() else { return };
    let queue = CopyQueue::open(&gpu).unwrap();
    let most = SIZES[SIZES.len() - 1];
    let mut device = DeviceBuffer::alloc(&gpu, most + 64).unwrap();
    for pinned in [true, false] {
        let before = queue.stats();
        for (round, bytes) in SIZES.into_iter().enumerate() {
            let (host_at, device_at) = (round * 7 % 32, round * 5 % 64);
            let mut source = HostBuffer::from(noise(bytes + 32, round as u64));
            let mut target = HostBuffer::zeroed(bytes + 32).unwrap();
            let pins = pinned.then(|| {
                [&mut source, &mut target].map(|buffer| {
                    Pinned::register(&gpu, buffer.slice(..).unwrap().anchor()).unwrap()
                })
            });
            device.write(0, &vec![0xee; bytes + 64]).unwrap();
            let mut batch = CopyBatch::new();
            let range = host_at..host_at + bytes;
            let from = source.slice(range.clone()).unwrap().into_bytes();
            let slice = device.slice_mut(device_at..device_at + bytes).unwrap();
            let at = slice.address();
            batch.into_device(from, at);
            batch.keep(Arc::new(slice));
            assert_eq!(batch.bytes(), bytes as u64);
            queue.submit(batch).await.result.unwrap();

            let mut batch = CopyBatch::new();
            batch.from_device_into(at, target.slice_mut(range.clone()).unwrap());
            let done = queue.submit(batch).await;
            done.result.unwrap();
            assert_eq!(done.unpinned_bytes, if pinned { 0 } else { bytes as u64 });
            drop(done.slices);
            assert!(target.bytes().unwrap()[range.clone()] == source.bytes().unwrap()[range]);
            let mut edges = vec![0; bytes + 64];
            device.read(0, &mut edges).unwrap();
            assert!(edges[..device_at].iter().all(|byte| *byte == 0xee));
            assert!(edges[device_at + bytes..].iter().all(|byte| *byte == 0xee));
            drop(pins);
        }
        let moved = queue.stats().into_device_bytes - before.into_device_bytes;
        assert_eq!(moved, SIZES.iter().sum::<usize>() as u64);
    }
}

/// Many small runs, which kernels move, and their neighbours, which they must leave alone.
#[tokio::test]
async fn small_runs_land_each_in_its_place() {
    let Some(gpu) = gpu() else { return };
    let queue = CopyQueue::open(&gpu).unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    let mut device = DeviceBuffer::alloc(&gpu, 64 << 20).unwrap();
    device.write(0, &vec![0; 64 << 20]).unwrap();
    let mut source = HostBuffer::from(noise(32 << 20, 4));
    let mut target = HostBuffer::zeroed(64 << 20).unwrap();
    let _pins = [&mut source, &mut target]
        .map(|buffer| Pinned::register(&gpu, buffer.slice(..).unwrap().anchor()).unwrap());
    let source = source.slice(..).unwrap().into_bytes();
    let mut expected = vec![0u8; 64 << 20];
    for aligned in [true, false] {
        let mut batch = CopyBatch::new();
        let mut at = 0;
        let before = queue.stats();
        for _ in 0..1024 {
            let (bytes, from, gap) = if aligned {
                (4096, random.usize(..8000) * 4096, 4096)
            } else {
                (random.usize(1..20_000), random.usize(..30 << 20), random.usize(1..5000))
            };
            at += gap;
            batch.into_device(source.slice(from..from + bytes), device.address() + at as u64);
            expected[at..at + bytes].copy_from_slice(&source[from..from + bytes]);
            at += bytes;
        }
        queue.submit(batch).await.result.unwrap();
        let stats = queue.stats();
        println!("gathered {}, copies {}", stats.gathered - before.gathered, stats.copies);
        let mut found = vec![0; 64 << 20];
        device.read(0, &mut found).unwrap();
        assert!(found == expected, "aligned: {aligned}");
    }
    // And out again, in other pieces.
    let mut batch = CopyBatch::new();
    let mut rest = target.slice_mut(..).unwrap();
    let mut from = device.address();
    while !rest.is_empty() {
        let bytes = random.usize(1..60_000).min(rest.len());
        let piece = rest.split_to(bytes);
        // Every second one, so that no two are neighbours.
        if random.bool() {
            batch.from_device_into(from, piece);
        } else {
            drop(piece);
        }
        from += bytes as u64;
    }
    drop(rest);
    let done = queue.submit(batch).await;
    done.result.unwrap();
    let mut seen = 0;
    for slice in &done.slices {
        assert!(slice[..] == expected[slice.offset()..slice.offset() + slice.len()]);
        seen += slice.len();
    }
    assert!(seen > 16 << 20);
}

#[tokio::test]
async fn leases_come_back_filled() {
    let Some(gpu) = gpu() else { return };
    let queue = CopyQueue::open(&gpu).unwrap();
    let pool = LeasePool::new(16 << 20).unwrap();
    let _pinned = Pinned::register_pool(&gpu, &pool).unwrap();
    let mut device = DeviceBuffer::alloc(&gpu, 4 << 20).unwrap();
    let bytes = noise(4 << 20, 5);
    device.write(0, &bytes).unwrap();
    let mut batch = CopyBatch::new();
    batch.from_device(device.address() + 1, pool.lease(LeaseClass::Unit).await, 1000);
    let two = batch.lend(pool.lease(LeaseClass::Unit).await);
    batch.fill(device.address() + 100, two, 10, 20);
    batch.fill(device.address() + 500, two, 30, 40);
    let done = queue.submit(batch).await;
    done.result.clone().unwrap();
    assert_eq!(done.unpinned_bytes, 0);
    assert_eq!(done.destinations[0][..1000], bytes[1..1001]);
    assert_eq!(done.destinations[1][10..30], bytes[100..120]);
    assert_eq!(done.destinations[1][30..70], bytes[500..540]);
    drop(done);
    assert_eq!(pool.stats().leased_bytes, 0);
}

/// A refused copy fails its batch, and nothing else.
#[tokio::test]
async fn bad_addresses_fail_their_batch_alone() {
    let Some(gpu) = gpu() else { return };
    let queue = CopyQueue::open(&gpu).unwrap();
    let mut device = DeviceBuffer::alloc(&gpu, 4096).unwrap();
    let host = HostBuffer::zeroed(4096).unwrap().slice(..).unwrap().address();
    for address in [64, host, device.address() + (1 << 40)] {
        let mut batch = CopyBatch::new();
        batch.into_device(Bytes::from(vec![1; 16]), address);
        let result = queue.submit(batch).await.result;
        assert!(result.as_ref().is_err_and(|error| !error.is_lost()), "{result:?}");
    }
    device.write(0, &[0; 4096]).unwrap();
    let mut batch = CopyBatch::new();
    batch.into_device(Bytes::from(vec![7; 4096]), device.address());
    queue.submit(batch).await.result.unwrap();
    let empty = queue.submit(CopyBatch::new()).await;
    empty.result.unwrap();
}

/// Memory that tells when it is dropped.
struct Watched(Vec<u8>, Arc<AtomicBool>);

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

/// Dropping the future gives up the answer; the copy goes on, and its memory lives until then.
#[tokio::test]
async fn a_dropped_future_frees_nothing_too_early() {
    let Some(gpu) = gpu() else { return };
    let raw = Raw::of(&gpu);
    let queue = CopyQueue::open(&gpu).unwrap();
    let device = DeviceBuffer::alloc(&gpu, 1 << 20).unwrap();
    let flag = Flag::new(&gpu);
    let stream = raw.stream();
    flag.hold(&raw, stream);
    let dropped = Arc::new(AtomicBool::new(false));
    let bytes = noise(1 << 20, 6);
    let mut batch = CopyBatch::new();
    let watched = Watched(bytes.clone(), Arc::clone(&dropped));
    batch.into_device(Bytes::from_owner(watched), device.address());
    // SAFETY: the stream lives until the process ends.
    unsafe { batch.after(&gpu, stream as u64) }.unwrap();
    let answer = queue.submit(batch);
    drop(answer);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!dropped.load(Ordering::SeqCst), "the caller's stream is not there yet");
    flag.release();
    while !dropped.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    let mut found = vec![0; 1 << 20];
    device.read(0, &mut found).unwrap();
    assert!(found == bytes);
}

/// Copies wait for the caller's stream, and others do not wait for them.
#[tokio::test]
async fn copies_begin_after_the_callers_stream() {
    let Some(gpu) = gpu() else { return };
    let raw = Raw::of(&gpu);
    let queue = CopyQueue::open(&gpu).unwrap();
    let device = DeviceBuffer::alloc(&gpu, 8192).unwrap();
    let flag = Flag::new(&gpu);
    let stream = raw.stream();
    flag.hold(&raw, stream);
    let mut late = CopyBatch::new();
    late.into_device(Bytes::from(vec![1; 4096]), device.address());
    // SAFETY: the stream lives until the process ends.
    unsafe { late.after(&gpu, stream as u64) }.unwrap();
    let mut late = Box::pin(queue.submit(late));
    let mut early = CopyBatch::new();
    early.into_device(Bytes::from(vec![2; 4096]), device.address() + 4096);
    queue.submit(early).await.result.unwrap();
    let waited = tokio::time::timeout(Duration::from_millis(50), &mut late).await;
    assert!(waited.is_err(), "it overtook the caller's stream");
    flag.release();
    late.await.result.unwrap();
}

/// More batches than the queue holds, from many tasks: all end, and all memory comes back.
#[tokio::test]
async fn many_tasks_share_the_queue() {
    let Some(gpu) = gpu() else { return };
    let queue = CopyQueue::open(&gpu).unwrap();
    let pool = LeasePool::new(64 << 20).unwrap();
    let _pinned = Pinned::register_pool(&gpu, &pool).unwrap();
    let device = Arc::new(DeviceBuffer::alloc(&gpu, 3000 * 4096).unwrap());
    let mut tasks = Vec::new();
    for task in 0..3000u64 {
        let (queue, pool, device) = (queue.clone(), pool.clone(), Arc::clone(&device));
        tasks.push(tokio::spawn(async move {
            let at = device.address() + task * 4096;
            let mut lease = pool.lease(LeaseClass::Page).await;
            lease.fill(task as u8);
            let mut batch = CopyBatch::new();
            batch.into_device(lease.into_bytes(0..4096), at);
            queue.submit(batch).await.result.unwrap();
            let mut batch = CopyBatch::new();
            batch.from_device(at, pool.lease(LeaseClass::Page).await, 4096);
            let done = queue.submit(batch).await;
            done.result.unwrap();
            assert!(done.destinations[0].iter().all(|byte| *byte == task as u8));
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(pool.stats().leased_bytes, 0);
}

/// A closed engine can be opened again, and the next one works.
#[tokio::test]
async fn an_engine_ends_with_its_last_holder() {
    let Some(gpu) = gpu() else { return };
    let device = DeviceBuffer::alloc(&gpu, 4096).unwrap();
    for _ in 0..3 {
        let queue = CopyQueue::open(&gpu).unwrap();
        let mut batch = CopyBatch::new();
        batch.into_device(Bytes::from(vec![1; 4096]), device.address());
        let answer = queue.submit(batch);
        drop(queue);
        let result = answer.await.result;
        assert!(matches!(result, Ok(()) | Err(GpuError::Closed)), "{result:?}");
    }
}

/// A number in pinned memory that a stream waits for.
struct Flag {
    memory: HostBuffer,
    _pinned: Pinned,
}

impl Flag {
    fn new(gpu: &Arc<keyway_fabric::memory::Gpu>) -> Self {
        let mut memory = HostBuffer::zeroed(4096).unwrap();
        let pinned = Pinned::register(gpu, memory.slice(..).unwrap().anchor()).unwrap();
        Self { memory, _pinned: pinned }
    }

    fn address(&self) -> u64 {
        self.memory.bytes().unwrap().as_ptr() as u64
    }

    fn hold(&self, raw: &Raw, stream: abi::Stream) {
        // SAFETY: the number lives until the test ends, and the wait has ended by then.
        unsafe {
            raw.cuda.stream_wait_value32(stream, self.address(), 1, abi::STREAM_WAIT_VALUE_GEQ)
        }
        .unwrap();
    }

    fn release(&self) {
        // SAFETY: four aligned bytes of the buffer's, which only the GPU reads meanwhile.
        unsafe { AtomicU32::from_ptr(self.address() as *mut u32) }.store(1, Ordering::SeqCst);
    }
}
