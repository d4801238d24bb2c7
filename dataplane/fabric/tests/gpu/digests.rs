//! The GPU's checksums are the CPU's.

use std::sync::Arc;

use keyway_fabric::memory::{CopyQueue, DeviceBuffer, GpuError};
use keyway_proto::{Checksum, ChecksumKind};

use crate::{gpu, noise};

const KINDS: [ChecksumKind; 3] =
    [ChecksumKind::Crc32, ChecksumKind::Crc32c, ChecksumKind::Crc64Nvme];

#[tokio::test]
async fn checksums_equal_the_cpus() {
    let Some(gpu) = gpu() else { return };
    let queue = CopyQueue::open(&gpu).unwrap();
    let bytes = noise(70 << 20, 8);
    let mut device = DeviceBuffer::alloc(&gpu, bytes.len()).unwrap();
    device.write(0, &bytes).unwrap();
    let mut random = fastrand::Rng::with_seed(9);
    let mut ranges: Vec<(usize, usize)> = (0..40).map(|length| (length % 19, length)).collect();
    for length in [4095, 4096, 4097, 65_536, 1 << 20, (1 << 20) + 1, 64 << 20, (66 << 20) + 13] {
        ranges.extend([(0, length), (random.usize(1..4096), length)]);
    }
    ranges.extend((0..40).map(|_| (random.usize(..1 << 20), random.usize(..4 << 20))));
    for (offset, length) in ranges {
        for kind in KINDS {
            let slice = device.slice(offset..offset + length).unwrap();
            let address = slice.address();
            let found = queue.digest(kind, address, length as u64, Arc::new(slice)).await.unwrap();
            let expected = Checksum::of(kind, &bytes[offset..offset + length]);
            assert_eq!(found, expected, "{kind} of {length} bytes at {offset}");
        }
    }
}

#[tokio::test]
async fn only_checksums_that_combine_are_had() {
    let Some(gpu) = gpu() else { return };
    let queue = CopyQueue::open(&gpu).unwrap();
    let device = DeviceBuffer::alloc(&gpu, 4096).unwrap();
    let address = device.address();
    let md5 = queue.digest(ChecksumKind::Md5, address, 10, Arc::new(())).await;
    assert!(matches!(md5, Err(GpuError::Unsupported(_))), "{md5:?}");
    let outside = queue.digest(ChecksumKind::Crc32c, address, 1 << 40, Arc::new(())).await;
    assert!(outside.is_err_and(|error| !error.is_lost()));
    let host = [0u8; 100];
    let address = host.as_ptr() as u64;
    let foreign = queue.digest(ChecksumKind::Crc32c, address, 100, Arc::new(())).await;
    assert!(matches!(foreign, Err(GpuError::NotDeviceMemory)), "{foreign:?}");
}

/// What was written is there for the GPU's other work, which knows nothing of that write.
#[tokio::test]
async fn written_bytes_are_there_at_once() {
    let Some(gpu) = gpu() else { return };
    let queue = CopyQueue::open(&gpu).unwrap();
    let kind = ChecksumKind::Crc64Nvme;
    let mut device = DeviceBuffer::alloc(&gpu, 64 << 10).unwrap();
    for turn in 0..500 {
        let bytes = noise(device.len(), turn);
        device.write(0, &bytes).unwrap();
        let slice = device.slice(..).unwrap();
        let (address, length) = (slice.address(), bytes.len() as u64);
        let found = queue.digest(kind, address, length, Arc::new(slice)).await.unwrap();
        assert_eq!(found, Checksum::of(kind, &bytes), "turn {turn}");
    }
}
