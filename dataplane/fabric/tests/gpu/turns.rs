//! A turn comes after what a stream was given before, and before what it is given after.

use std::time::Duration;

use bytes::Bytes;
use keyway_fabric::gpu::StreamTurn;
use keyway_fabric::memory::{CopyBatch, CopyQueue, DeviceBuffer};

use crate::gpu;
use crate::raw::Raw;

const BYTES: usize = 64 << 20;

#[tokio::test]
async fn a_stream_waits_for_the_end_of_the_turn() {
    let Some(gpu) = gpu() else { return };
    let buffer = DeviceBuffer::alloc(&gpu, BYTES).unwrap();
    let (raw, address) = (Raw::of(&gpu), buffer.address());
    let stream = raw.stream();
    let fill = |value| {
        // SAFETY: the stream and the buffer live to the test's end.
        unsafe { raw.cuda.memset_async(address, value, BYTES, stream) }.unwrap();
    };
    for round in 0..100u8 {
        for _ in 0..4 {
            fill(round);
        }
        // SAFETY: the stream lives.
        let turn = unsafe { StreamTurn::take(&gpu, stream as u64) }.unwrap();
        fill(round.wrapping_add(100));
        turn.begun().await.unwrap();
        turn.begun().await.unwrap();
        let mut seen = [0; 4096];
        for at in [0, BYTES / 2, BYTES - seen.len()] {
            buffer.read(at, &mut seen).unwrap();
            assert!(seen.iter().all(|byte| *byte == round), "round {round}");
        }
        if round == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            // SAFETY: the stream lives.
            assert!(unsafe { raw.cuda.stream_query(stream) }.is_err(), "it waits");
        }
        drop(turn);
        // SAFETY: the stream lives.
        unsafe { raw.cuda.stream_synchronize(stream) }.unwrap();
        buffer.read(0, &mut seen).unwrap();
        assert!(seen.iter().all(|byte| *byte == round.wrapping_add(100)), "round {round}");
    }
    // SAFETY: made above; nothing is under way.
    unsafe { raw.cuda.stream_destroy(stream) }.unwrap();
}

/// More turns at a time than a page has words, on streams that each take some of them, ended in
/// any order. Few streams with few turns each: what waits on them all shares the driver's eight
/// queues, and one that is full holds up whoever asks for more.
#[tokio::test]
async fn turns_may_end_in_any_order() {
    let Some(gpu) = gpu() else { return };
    let raw = Raw::of(&gpu);
    let streams: Vec<_> = (0..6).map(|_| raw.stream()).collect();
    // SAFETY: the stream lives.
    let take = |turn: usize| unsafe { StreamTurn::take(&gpu, streams[turn % 6] as u64) }.unwrap();
    let mut turns: Vec<_> = (0..600).map(take).collect();
    turns.first().unwrap().begun().await.unwrap();
    fastrand::Rng::with_seed(4).shuffle(&mut turns);
    drop(turns);
    for stream in streams {
        // SAFETY: the stream lives.
        unsafe { raw.cuda.stream_synchronize(stream) }.unwrap();
        // SAFETY: made above; nothing is under way.
        unsafe { raw.cuda.stream_destroy(stream) }.unwrap();
    }
}

/// Freeing memory waits for all work of the context, an open turn included, and the driver holds
/// up copies of the process meanwhile. When the turn ends, both go on and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_and_copies_go_on_when_the_turn_ends() {
    let Some(gpu) = gpu() else { return };
    let queue = CopyQueue::open(&gpu).unwrap();
    let raw = Raw::of(&gpu);
    let (stream, other) = (raw.stream(), raw.alloc(BYTES));
    let mut target = DeviceBuffer::alloc(&gpu, BYTES).unwrap();
    // SAFETY: the stream lives.
    let turn = unsafe { StreamTurn::take(&gpu, stream as u64) }.unwrap();
    turn.begun().await.unwrap();
    let freeing = std::thread::spawn({
        let gpu = std::sync::Arc::clone(&gpu);
        move || Raw::of(&gpu).free(other)
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    println!("the free waits for the turn: {}", !freeing.is_finished());
    let mut batch = CopyBatch::new();
    let slice = target.slice_mut(..).unwrap();
    batch.into_device(Bytes::from(crate::noise(BYTES, 9)), slice.address());
    batch.keep(std::sync::Arc::new(slice));
    let mut copy = std::pin::pin!(queue.submit(batch));
    let early = tokio::time::timeout(Duration::from_secs(1), &mut copy).await;
    println!("a copy waits for the free: {}", early.is_err());
    drop(turn);
    tokio::task::spawn_blocking(move || freeing.join().unwrap()).await.unwrap();
    // What it keeps goes with it, so that the buffer can be read.
    let copied = match early {
        Ok(done) => done.result,
        Err(_) => copy.await.result,
    };
    copied.unwrap();
    let mut seen = [0; 4096];
    target.read(0, &mut seen).unwrap();
    assert_eq!(seen[..], crate::noise(BYTES, 9)[..seen.len()]);
    // SAFETY: the stream lives.
    unsafe { raw.cuda.stream_synchronize(stream) }.unwrap();
    // SAFETY: made above; nothing is under way.
    unsafe { raw.cuda.stream_destroy(stream) }.unwrap();
}
