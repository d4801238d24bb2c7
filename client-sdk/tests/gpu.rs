//! Goal: bodies get into a GPU's memory and out of it whole, whatever the server does, and the
//! memory comes back every time.
//!
//! Method: the server that misbehaves, and the first GPU; what landed is copied out and compared,
//! with a margin on both sides that must not change. Without a GPU every test says so.

mod common;

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Reply, Server, pattern};
use keyway_client::{
    Client, ClientBuilder, ClientError, DeviceBuffer, Gpu, LendError, PathPolicy, Verified,
};
use keyway_proto::{ByteRange, Checksum, ChecksumKind, TransferPath};

const ETAG: &str = "\"one\"";
/// Bytes before and behind every target, which stay as they were.
const MARGIN: usize = 13;
const MARK: u8 = 0xa5;

fn gpu(test: &str) -> Option<Arc<Gpu>> {
    match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            let why = std::error::Error::source(&error).map(|e| format!(": {e}"));
            let _ = writeln!(
                std::io::stderr(),
                "\nskipped: {test}: {error}{}",
                why.unwrap_or_default()
            );
            None
        }
    }
}

/// Bodies alone: no node of this host is asked for.
fn over_http(server: &Server) -> ClientBuilder {
    server.builder().path(PathPolicy::Require(TransferPath::Http))
}

fn client(server: &Server) -> Client {
    over_http(server).build().expect("a client")
}

/// GPU memory between two margins.
struct Memory(DeviceBuffer);

impl Memory {
    fn new(gpu: &Arc<Gpu>, bytes: usize) -> Self {
        let mut buffer = DeviceBuffer::alloc(gpu, bytes + 2 * MARGIN).expect("GPU memory");
        buffer.write(0, &vec![MARK; bytes + 2 * MARGIN]).expect("written");
        Self(buffer)
    }

    fn holding(gpu: &Arc<Gpu>, bytes: &[u8]) -> Self {
        let mut memory = Self::new(gpu, bytes.len());
        memory.0.write(MARGIN, bytes).expect("written");
        memory
    }

    fn target(&mut self) -> keyway_client::DeviceSliceMut {
        let end = self.0.len() - MARGIN;
        self.0.slice_mut(MARGIN..end).expect("nothing is lent")
    }

    fn source(&mut self) -> keyway_client::DeviceSlice {
        let end = self.0.len() - MARGIN;
        self.0.slice(MARGIN..end).expect("nothing is lent")
    }

    /// What lies between the margins, which must be whole.
    fn content(&self) -> Vec<u8> {
        let mut all = vec![0; self.0.len()];
        self.0.read(0, &mut all).expect("read");
        let back = all.split_off(all.len() - MARGIN);
        let content = all.split_off(MARGIN);
        assert!(all.iter().chain(&back).all(|byte| *byte == MARK), "the margins are whole");
        content
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_every_size_land_whole() {
    let Some(gpu) = gpu("objects_of_every_size_land_whole") else { return };
    for bytes in [0, 1, 511, 4096, 262_144, (1 << 20) - 1, 1 << 20, 3_000_001, 20_000_003] {
        let object = pattern(bytes);
        let stored = object.clone();
        let server = Server::start(move |_, seen| Reply::object(seen, &stored, ETAG)).await;
        // Whole, in parts side by side, and into more memory than there are bytes.
        for (part_bytes, room) in [(1 << 30, bytes), (1_000_003, bytes), (1 << 30, bytes + 99)] {
            let mut memory = Memory::new(&gpu, room);
            let get = client(&server).get_object("bkt", "k").part_bytes(part_bytes);
            let got = get.into(memory.target()).await.expect("arrives");
            assert_eq!((got.bytes, got.target.len()), (bytes as u64, room));
            assert_eq!(got.path, TransferPath::Http);
            let whole = Checksum::of(ChecksumKind::Crc64Nvme, &object);
            assert_eq!(got.verified, Verified::Whole(whole));
            drop(got);
            let content = memory.content();
            assert!(content[..bytes] == object && content[bytes..].iter().all(|b| *b == MARK));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_land_where_they_are_wanted() {
    let Some(gpu) = gpu("ranges_land_where_they_are_wanted") else { return };
    let object = pattern(2_000_000);
    let stored = object.clone();
    let server = Server::start(move |_, seen| Reply::object(seen, &stored, ETAG)).await;
    let mut memory = Memory::new(&gpu, 1_000_000);
    let mut rest = memory.target();
    let mut get = client(&server).get_ranges("bkt", "k");
    let mut expected = Vec::new();
    for (offset, length) in [(7, 1), (1_999_990, 10), (0, 4096), (333_333, 900_001)] {
        get = get
            .range(ByteRange::new(offset, length).expect("fits"), rest.split_to(length as usize));
        expected.extend_from_slice(&object[offset as usize..(offset + length) as usize]);
    }
    let got = get.send().await.expect("arrive");
    assert!(got.iter().all(|got| got.target.len() as u64 == got.bytes));
    drop((got, rest));
    assert!(memory.content()[..expected.len()] == expected);
}

/// What had arrived is kept, in the ring too; the next attempt asks for the rest.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_breaks_midway_goes_on_where_it_broke() {
    let Some(gpu) = gpu("a_body_that_breaks_midway_goes_on_where_it_broke") else { return };
    let object = pattern(5_000_000);
    let stored = object.clone();
    let server = Server::start(move |before, seen| {
        let reply = Reply::object(seen, &stored, ETAG);
        if before < 2 { reply.cut_after(1_234_567) } else { reply }
    })
    .await;
    let mut memory = Memory::new(&gpu, object.len());
    let get = client(&server).get_object("bkt", "k").part_bytes(1 << 30);
    let got = get.into(memory.target()).await.expect("arrives");
    assert_eq!(got.retries, 2);
    assert!(got.verified.is_whole());
    drop(got);
    assert!(memory.content() == object);
    assert_eq!(server.seen()[2].range(), Some((2 * 1_234_567, 5_000_000)));
}

/// A ring of one lease per class: bodies wait for one another, and all arrive.
#[tokio::test(flavor = "multi_thread")]
async fn a_small_ring_makes_bodies_wait_and_no_more() {
    let Some(gpu) = gpu("a_small_ring_makes_bodies_wait_and_no_more") else { return };
    let object = pattern(30_000_000);
    let stored = object.clone();
    let server = Server::start(move |_, seen| Reply::object(seen, &stored, ETAG)).await;
    let client = over_http(&server).staging_bytes(0).build().expect("a client");
    let mut memory = Memory::new(&gpu, object.len());
    let get = client.get_object("bkt", "k").part_bytes(1_500_000).concurrency(20);
    let got = get.into(memory.target()).await.expect("arrives");
    assert!(got.verified.is_whole());
    drop(got);
    assert!(memory.content() == object);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_comes_back_from_failures() {
    let Some(gpu) = gpu("the_memory_comes_back_from_failures") else { return };
    let server = Server::start(|before, seen| {
        let object = pattern(2_000_000);
        match before {
            0 => Reply::error(404, "NoSuchKey"),
            // Another object under the first one's checksum.
            1 => {
                let mut reply = Reply::object(seen, &object, ETAG);
                reply.body[1_500_000] ^= 1;
                reply
            }
            _ => Reply { hang: true, ..Reply::default() },
        }
    })
    .await;
    let mut memory = Memory::new(&gpu, 2_000_000);
    let get = || client(&server).get_object("bkt", "k");
    let refused = get().into(memory.target()).await.expect_err("there is none");
    assert_eq!((refused.error.code(), refused.target.len()), (Some("NoSuchKey"), 2_000_000));
    drop(refused);
    let refused = get().into(memory.target()).await.expect_err("other bytes");
    assert!(matches!(refused.error, ClientError::ChecksumMismatch { .. }));
    drop(refused);
    let late = get().deadline(Duration::from_millis(50)).into(memory.target()).await;
    let late = late.expect_err("it hangs");
    assert!(matches!(late.error, ClientError::Deadline));
    assert_eq!(memory.0.slice(..).err(), Some(LendError::Lent));
    drop(late);
    assert!(memory.0.slice(..).is_ok());
}

/// Reads dropped at any time leave the memory lent until the GPU is done with it, and free
/// soon after.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_read_lets_go_of_the_memory() {
    let Some(gpu) = gpu("a_dropped_read_lets_go_of_the_memory") else { return };
    let object = pattern(8_000_000);
    let server = Server::start(move |_, seen| Reply::object(seen, &object, ETAG)).await;
    let client = client(&server);
    let mut memory = Memory::new(&gpu, 8_000_000);
    for turn in 0..30 {
        let target = memory.target();
        let get = client.get_object("bkt", "k").part_bytes(1_000_000).into(target);
        let _ = tokio::time::timeout(Duration::from_micros(turn * 700), get).await;
        let freed = async {
            while memory.0.slice(..).is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), freed).await.expect("the lend ends");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gpu_memory_is_sent_whole() {
    let Some(gpu) = gpu("gpu_memory_is_sent_whole") else { return };
    for bytes in [0, 1, 4096, 1 << 20, (1 << 20) + 1, 12_000_007] {
        let object = pattern(bytes);
        // The first attempt is refused after it was read; the body is fetched anew.
        let server = Server::start(|before, _| match before {
            0 => Reply::error(503, "SlowDown"),
            _ => Reply::new(200).with("ETag", ETAG),
        })
        .await;
        let mut memory = Memory::holding(&gpu, &object);
        let put = client(&server).put_object("bkt", "k").body(memory.source());
        let put = put.send().await.expect("stored");
        assert_eq!((put.bytes, put.retries, put.parts), (bytes as u64, 1, 1));
        assert_eq!(put.path, TransferPath::Http);
        let sum = Checksum::of(ChecksumKind::Crc64Nvme, &object).to_base64();
        for seen in server.seen() {
            assert!(seen.body == object, "{bytes}: other bytes");
            assert_eq!(seen.headers["x-amz-checksum-crc64nvme"], sum);
        }
        assert!(memory.0.slice_mut(..).is_ok(), "nothing is lent any more");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gpu_memory_is_sent_in_parts() {
    let Some(gpu) = gpu("gpu_memory_is_sent_in_parts") else { return };
    let object = pattern(23_000_003);
    let sent = AtomicUsize::new(0);
    let server = Server::start(move |_, seen| match seen.method.as_str() {
        "PUT" => {
            let number = sent.fetch_add(1, Ordering::Relaxed);
            Reply::new(200).with("ETag", format!("\"{number}\""))
        }
        _ if seen.target.contains("uploadId") => Reply::new(200).body(
            "<CompleteMultipartUploadResult><ETag>\"w\"</ETag></CompleteMultipartUploadResult>",
        ),
        _ => Reply::new(200).body(
            "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
        ),
    })
    .await;
    let mut memory = Memory::holding(&gpu, &object);
    let put = client(&server).put_object("bkt", "k").part_bytes(5 << 20).body(memory.source());
    let put = put.send().await.expect("stored");
    assert_eq!((put.bytes, put.parts), (23_000_003, 5));
    let seen = server.seen();
    let mut whole = Vec::new();
    for number in 1..=5 {
        let part = format!("partNumber={number}");
        let part = seen.iter().find(|seen| seen.is("PUT", &part)).expect("every part is sent");
        whole.extend_from_slice(&part.body);
    }
    assert!(whole == object);
}

/// Nothing is opened for those who name no GPU; who names one that is not there is told.
#[test]
fn a_gpu_that_is_not_there_is_an_error() {
    let error = Gpu::open(4096).expect_err("no machine has so many");
    assert!(!error.to_string().is_empty());
}
