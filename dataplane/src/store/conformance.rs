//! What every blob store must do. Each engine's tests run [`all`] over a fresh store.

// A conformance suite fails by panicking.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

use std::sync::Arc;

use keyway_fabric::memory::{LeaseClass, LeasePool};
use keyway_proto::unit::{BLOCK_BYTES, CHUNK_BYTES_MAX, KIB, MIB};
use keyway_proto::{ByteRange, Checksum, ChecksumKind, ChunkId, ChunkSpec};

use super::{
    BlobStore, ChunkWriter, Frame, PIECE_BYTES_MAX, Piece, PinnedChunk, StagedChunk, StoreError,
    block_span, read_class,
};

/// Lengths around every boundary that a layout could have.
const LENGTHS: [u64; 14] = [
    1,
    4095,
    4 * KIB,
    4 * KIB + 1,
    BLOCK_BYTES - 1,
    BLOCK_BYTES,
    BLOCK_BYTES + 1,
    512 * KIB,
    512 * KIB + 1,
    MIB - 1,
    MIB,
    MIB + 1,
    5 * MIB + 12_345,
    CHUNK_BYTES_MAX,
];

/// Runs the whole suite. The store must be empty and have room for 64 MiB.
pub async fn all(store: &Arc<dyn BlobStore>, pool: &LeasePool) {
    what_was_written_is_read(store, pool).await;
    nothing_is_visible_before_publish(store, pool).await;
    ids_are_never_used_twice(store, pool).await;
    pins_outlive_release(store, pool).await;
    listing_is_ordered_and_pages(store, pool).await;
    space_comes_back(store, pool).await;
    a_full_store_says_so_and_recovers(store, pool).await;
}

/// `length` bytes that differ by chunk and by place.
pub fn content(id: ChunkId, length: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(u64::from_be_bytes(
        id.to_bytes()[8..].try_into().expect("eight bytes"),
    ));
    let mut bytes = vec![0; length as usize];
    random.fill(&mut bytes);
    bytes
}

/// Writes a chunk of [`content`] up to the point where it could be published.
pub async fn stage(
    store: &Arc<dyn BlobStore>,
    pool: &LeasePool,
    chunk: ChunkSpec,
) -> Result<Box<dyn StagedChunk>, StoreError> {
    let writer = store.writer(chunk).await?;
    fill(writer, pool, chunk).await
}

/// The same with a writer of the chunk.
pub async fn fill(
    mut writer: Box<dyn ChunkWriter>,
    pool: &LeasePool,
    chunk: ChunkSpec,
) -> Result<Box<dyn StagedChunk>, StoreError> {
    let bytes = content(chunk.id, chunk.length);
    for part in bytes.chunks(PIECE_BYTES_MAX) {
        let class = LeaseClass::fitting(part.len()).expect("a piece fits a lease");
        let mut piece = Piece::new(pool.lease(class).await, part.len());
        piece.append(part);
        writer.write(piece).await?;
    }
    writer.seal().await
}

/// Writes and publishes a chunk of [`content`].
pub async fn put(
    store: &Arc<dyn BlobStore>,
    pool: &LeasePool,
    length: u64,
) -> Result<ChunkSpec, StoreError> {
    let chunk = ChunkSpec { id: ChunkId::generate(), length };
    stage(store, pool, chunk).await?.publish()?;
    Ok(chunk)
}

/// Reads a range of a pinned chunk.
pub async fn read(pin: &dyn PinnedChunk, range: ByteRange) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::with_capacity(range.length() as usize);
    // Copied as it comes: frames hold buffers, and there are few.
    read_frames(pin, range, |frame| bytes.extend_from_slice(&frame)).await?;
    Ok(bytes)
}

/// The same a frame at a time: what is in memory from there, the rest piece by piece. Sums that
/// the store knows must be those of the bytes.
pub async fn read_frames(
    pin: &dyn PinnedChunk,
    range: ByteRange,
    mut take: impl FnMut(Frame),
) -> Result<(), StoreError> {
    let mut at = range.offset();
    let mut check = |frame: Frame| {
        assert!(!frame.is_empty());
        let hashed = || Checksum::of(ChecksumKind::Crc64Nvme, &frame);
        assert!(frame.crc64nvme().is_none_or(|known| known == hashed()));
        let bytes = frame.len() as u64;
        take(frame);
        bytes
    };
    while at < range.end() {
        let rest = ByteRange::new(at, range.end() - at).unwrap();
        if let Some(frame) = pin.held(rest) {
            at += check(frame);
            continue;
        }
        let end = (at / MIB + 1).saturating_mul(MIB).min(range.end());
        let mut piece = pin.read(ByteRange::new(at, end - at).unwrap(), None).await?;
        while let Some(frame) = piece.next_frame() {
            at += check(frame?);
        }
        assert_eq!(at, end, "a piece is as long as asked for");
    }
    assert_eq!(at, range.end(), "frames do not reach past the range");
    Ok(())
}

/// Checks that a chunk is here and whole.
pub async fn verify(store: &Arc<dyn BlobStore>, chunk: ChunkSpec) {
    let pin = store.pin(chunk.id).unwrap_or_else(|| panic!("{chunk:?} is gone"));
    assert_eq!(pin.length(), chunk.length);
    let bytes = read(&*pin, ByteRange::whole(chunk.length)).await.expect("readable");
    assert!(bytes == content(chunk.id, chunk.length), "{chunk:?} differs");
}

/// Whole blocks come in the very buffer that was given, which is the reader's own again.
async fn reads_into(pin: &dyn PinnedChunk, pool: &LeasePool, blocks: ByteRange, whole: &[u8]) {
    let lease = pool.lease(read_class(blocks, pin.length())).await;
    let base = lease.base();
    let fetched = pin.read_into(blocks, lease).await.expect("readable");
    let fetched = fetched.verified().expect("not damaged");
    let mut lease = fetched.into_lease().expect("the buffer that was given");
    assert_eq!(lease.base(), base);
    let expected = &whole[blocks.offset() as usize..blocks.end() as usize];
    assert!(lease[..expected.len()] == *expected, "{blocks}");
    // What is done to it is seen by nobody else.
    lease[..expected.len()].fill(0);
    drop(lease);
    let again = read(pin, blocks).await.expect("readable");
    assert!(again == expected, "{blocks}");
}

async fn what_was_written_is_read(store: &Arc<dyn BlobStore>, pool: &LeasePool) {
    for length in LENGTHS {
        let chunk = put(store, pool, length).await.expect("there is room");
        verify(store, chunk).await;
        let whole = content(chunk.id, length);
        let pin = store.pin(chunk.id).expect("published");
        for (offset, end) in [
            (0, 1),
            (length - 1, length),
            (length / 2, length),
            (length / 3, length / 2 + 1),
            (BLOCK_BYTES.min(length - 1), (BLOCK_BYTES + 1).min(length)),
        ] {
            let range = ByteRange::new(offset, end - offset).unwrap();
            let bytes = read(&*pin, range).await.expect("readable");
            assert!(bytes == whole[offset as usize..end as usize], "{length}: {range}");
            assert!(block_span(range, length).contains(range));
            let blocks = block_span(ByteRange::new(offset, 1).unwrap(), length);
            reads_into(&*pin, pool, blocks, &whole).await;
        }
        reads_into(&*pin, pool, ByteRange::whole(length.min(MIB)), &whole).await;
        store.release(&[chunk.id]);
    }
}

async fn nothing_is_visible_before_publish(store: &Arc<dyn BlobStore>, pool: &LeasePool) {
    for length in [10, 2 * MIB] {
        let free = store.usage().free_bytes;
        let chunk = ChunkSpec { id: ChunkId::generate(), length };
        let staged = stage(store, pool, chunk).await.expect("there is room");
        assert!(store.pin(chunk.id).is_none());
        assert!(store.chunks(None, usize::MAX).is_empty());
        drop(staged);
        assert!(store.pin(chunk.id).is_none());
        assert!(store.usage().free_bytes + MIB >= free, "a dropped chunk keeps its space");
        let mut writer = store.writer(chunk).await.expect("there is room");
        let mut piece = Piece::new(pool.lease(LeaseClass::Unit).await, length.min(MIB) as usize);
        piece.append(&content(chunk.id, length));
        writer.write(piece).await.expect("written");
        drop(writer);
        assert!(store.pin(chunk.id).is_none());
    }
}

async fn ids_are_never_used_twice(store: &Arc<dyn BlobStore>, pool: &LeasePool) {
    for length in [10, 2 * MIB] {
        let chunk = ChunkSpec { id: ChunkId::generate(), length };
        let first = stage(store, pool, chunk).await.expect("there is room");
        let second = stage(store, pool, chunk).await;
        first.publish().expect("the first wins");
        if let Ok(second) = second {
            assert!(matches!(second.publish(), Err(StoreError::ChunkExists(_))));
        }
        assert!(matches!(store.writer(chunk).await, Err(StoreError::ChunkExists(_))));
        verify(store, chunk).await;
        store.release(&[chunk.id]);
    }
}

async fn pins_outlive_release(store: &Arc<dyn BlobStore>, pool: &LeasePool) {
    for length in [100, 3 * MIB] {
        let chunk = put(store, pool, length).await.expect("there is room");
        let pin = store.pin(chunk.id).expect("published");
        store.release(&[chunk.id, chunk.id, ChunkId::generate()]);
        assert!(store.pin(chunk.id).is_none());
        // Other chunks may not take the space while it is pinned.
        let mut others = Vec::new();
        for _ in 0..6 {
            others.push(put(store, pool, length).await.expect("there is room"));
        }
        let bytes = read(&*pin, ByteRange::whole(length)).await.expect("pinned");
        assert!(bytes == content(chunk.id, length));
        drop(pin);
        store.release(&others.iter().map(|chunk| chunk.id).collect::<Vec<_>>());
    }
}

async fn listing_is_ordered_and_pages(store: &Arc<dyn BlobStore>, pool: &LeasePool) {
    let mut chunks = Vec::new();
    for length in [5, 600 * KIB, 7, 8, 900 * KIB] {
        chunks.push(put(store, pool, length).await.expect("there is room"));
    }
    chunks.sort_by_key(|chunk| chunk.id);
    assert_eq!(store.chunks(None, usize::MAX), chunks);
    assert_eq!(store.usage().chunks, 5);
    assert_eq!(store.chunks(None, 2), chunks[..2]);
    assert_eq!(store.chunks(Some(chunks[1].id), 2), chunks[2..4]);
    assert_eq!(store.chunks(Some(chunks[4].id), 2), []);
    store.release(&chunks.iter().map(|chunk| chunk.id).collect::<Vec<_>>());
    assert!(store.chunks(None, usize::MAX).is_empty());
}

async fn space_comes_back(store: &Arc<dyn BlobStore>, pool: &LeasePool) {
    let capacity = store.usage().capacity_bytes;
    let mut written = 0;
    while written < capacity.min(256 * MIB) * 2 {
        let chunk = put(store, pool, 7 * MIB).await.expect("the space was given back");
        written += chunk.length;
        store.release(&[chunk.id]);
    }
}

/// Only for stores small enough to be filled in a test.
async fn a_full_store_says_so_and_recovers(store: &Arc<dyn BlobStore>, pool: &LeasePool) {
    let capacity = store.usage().capacity_bytes;
    if capacity > 256 * MIB {
        return;
    }
    let mut chunks = Vec::new();
    let full = loop {
        match put(store, pool, 3 * MIB).await {
            Ok(chunk) => chunks.push(chunk),
            Err(error) => break error,
        }
        assert!(chunks.len() as u64 * 3 * MIB <= capacity, "more was stored than fits");
    };
    assert!(matches!(full, StoreError::Full), "{full}");
    for chunk in &chunks {
        verify(store, *chunk).await;
    }
    store.release(&[chunks.pop().expect("something was stored").id]);
    chunks.push(put(store, pool, 3 * MIB).await.expect("space was freed"));
    store.release(&chunks.iter().map(|chunk| chunk.id).collect::<Vec<_>>());
}
