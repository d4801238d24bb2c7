//! Closed loops: each worker asks, waits, checks, and asks again.
//!
//! Lean, because it shares the machine with the server: one thread unless told otherwise,
//! one connection and one buffer per worker, no allocation for an object's bytes. Bodies of
//! GETs are compared with the pattern that was stored, one in [`CHECKED_ONE_IN`]; the
//! checksum that the service tells is verified on all of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures::future::try_join_all;
use keyway_client::{Client, Durability};
use keyway_proto::{KeyStrength, TransferPath};

use super::histogram::Histogram;
use super::pattern;
use super::usage::{self, ProcessTime};
use crate::memory::{Buffer, Memory};

/// Of how many GETs one is compared byte by byte.
const CHECKED_ONE_IN: u64 = 16;
/// Objects that are stored ahead for GETs: this many bytes, within these counts.
const DATASET_BYTES: u64 = 256 << 20;
const OBJECTS: std::ops::RangeInclusive<u64> = 4..=256;
/// Keys that each PUT worker overwrites in turn.
const PUT_KEYS: u64 = 8;

/// A service under load.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) client: Client,
    /// Stores what is read.
    pub(super) filler: Client,
    pub(super) server_pid: Option<u32>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Operation {
    /// Read whole objects.
    Get,
    /// Write whole objects.
    Put,
    /// List 1,000 keys from a random place on.
    List,
}

/// One cell of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) operation: Operation,
    /// Bytes of an object; for listings, keys in the bucket.
    pub(super) size: u64,
    pub(super) workers: usize,
    /// Where clients hold objects.
    pub(super) memory: Memory,
    /// Bytes of one request; larger objects go in parts side by side.
    pub(super) part_size: u64,
    /// When PUTs are answered.
    pub(super) durability: Durability,
    pub(super) warm_up: Duration,
    pub(super) time: Duration,
}

/// How bytes travelled: the path, and what protected the client's memory.
#[derive(Clone, Copy)]
pub(super) struct Travelled {
    pub(super) path: TransferPath,
    pub(super) strength: KeyStrength,
}

impl Travelled {
    const HTTP: Self = Self { path: TransferPath::Http, strength: KeyStrength::Http };

    fn weaker(self, other: Self) -> Self {
        if other.strength < self.strength { other } else { self }
    }
}

/// What was measured.
pub(super) struct Measured {
    pub(super) cell: Cell,
    pub(super) target: String,
    pub(super) latencies: Histogram,
    pub(super) bytes: u64,
    /// Bytes whose checksum or pattern was verified.
    pub(super) verified_bytes: u64,
    /// Bytes of PUTs, those of the warm-up included, that were answered from memory.
    pub(super) memory_bytes: u64,
    pub(super) dataset_bytes: u64,
    /// The weakest that any operation took.
    pub(super) travelled: Travelled,
    pub(super) elapsed: Duration,
    pub(super) client_cpu: Duration,
    pub(super) server_cpu: Option<Duration>,
    pub(super) server_peak_bytes: Option<u64>,
}

/// Keys of a listing bucket.
pub(super) fn listed_key(at: u64) -> String {
    format!("key-{at:09}")
}

/// Where a listing of so many keys is.
pub(super) fn listing_bucket(bucket: &str, keys: u64) -> String {
    format!("{bucket}-list-{keys}")
}

/// Runs one cell against one service.
pub(super) async fn measure(target: &Target, bucket: &str, cell: Cell) -> anyhow::Result<Measured> {
    let objects = (DATASET_BYTES / cell.size.max(1)).clamp(*OBJECTS.start(), *OBJECTS.end());
    if cell.operation == Operation::Get {
        prepare(target, bucket, cell.size, objects).await?;
    }
    let workers = (0..cell.workers as u64)
        .map(|number| Worker::new(target, bucket, cell, number, objects))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let begin = Instant::now() + cell.warm_up;
    let end = begin + cell.time;
    // Costs are counted from the end of the warm-up until the last answer.
    let before = async {
        tokio::time::sleep_until(begin.into()).await;
        anyhow::Ok((ProcessTime::own()?, target.server_pid.map(ProcessTime::of).transpose()?))
    };
    let tasks = workers.into_iter().map(|worker| tokio::spawn(worker.run(begin, end)));
    let tasks = try_join_all(tasks.collect::<Vec<_>>());
    let (tallies, before) = tokio::join!(tasks, before);
    let (own, server) = before?;
    let elapsed = begin.elapsed();
    let client_cpu = ProcessTime::own()?.since(own);
    let server_cpu = match (target.server_pid, server) {
        (Some(pid), Some(before)) => Some(ProcessTime::of(pid)?.since(before)),
        _ => None,
    };
    let mut measured = Measured {
        cell,
        target: target.name.clone(),
        latencies: Histogram::new(),
        bytes: 0,
        verified_bytes: 0,
        memory_bytes: 0,
        dataset_bytes: match cell.operation {
            Operation::Get => objects * cell.size,
            Operation::Put => cell.workers as u64 * PUT_KEYS * cell.size,
            Operation::List => 0,
        },
        travelled: Travelled::HTTP,
        elapsed,
        client_cpu,
        server_cpu,
        server_peak_bytes: target.server_pid.map(usage::peak_memory_bytes).transpose()?,
    };
    let mut travelled = None;
    for tally in tallies? {
        let tally = tally.with_context(|| format!("{} failed", target.name))?;
        travelled = tally.travelled.into_iter().chain(travelled).reduce(Travelled::weaker);
        measured.latencies.merge(&tally.latencies);
        measured.bytes += tally.bytes;
        measured.verified_bytes += tally.verified_bytes;
        measured.memory_bytes += tally.memory_bytes;
    }
    measured.travelled = travelled.unwrap_or(Travelled::HTTP);
    ensure!(measured.latencies.count() > 0, "{}: no operation ended in time", target.name);
    Ok(measured)
}

/// Stores what GETs will read.
async fn prepare(target: &Target, bucket: &str, size: u64, objects: u64) -> anyhow::Result<()> {
    let mut body = vec![0; size as usize];
    for at in 0..objects {
        let key = format!("get/{size}/{at}");
        let stored = target.client.head_object(bucket, &key).await;
        if stored.is_ok_and(|info| info.size == size) {
            continue;
        }
        pattern::fill(&mut body, at);
        let body = Bytes::from(body.clone());
        target.filler.put_object(bucket, &key).body(body).send().await?;
    }
    Ok(())
}

struct Tally {
    latencies: Histogram,
    bytes: u64,
    verified_bytes: u64,
    memory_bytes: u64,
    travelled: Option<Travelled>,
}

struct Worker {
    client: Client,
    bucket: String,
    cell: Cell,
    number: u64,
    objects: u64,
    /// What a GET fills, or a PUT sends.
    buffer: Buffer,
    random: fastrand::Rng,
    tally: Tally,
}

impl Worker {
    fn new(
        target: &Target,
        bucket: &str,
        cell: Cell,
        number: u64,
        objects: u64,
    ) -> anyhow::Result<Self> {
        let mut buffer = cell.memory.buffer(match cell.operation {
            Operation::Get | Operation::Put => cell.size as usize,
            Operation::List => 0,
        })?;
        let mut bucket = bucket.to_owned();
        match cell.operation {
            Operation::Get => {
                // The kernel gives pages at their first touch: here, not while time is taken.
                buffer.fill(|bytes| bytes.fill(1))?;
            }
            Operation::Put => buffer.fill(|bytes| pattern::fill(bytes, number))?,
            Operation::List => bucket = listing_bucket(&bucket, cell.size),
        }
        Ok(Self {
            client: target.client.clone(),
            bucket,
            cell,
            number,
            objects,
            buffer,
            random: fastrand::Rng::with_seed(number),
            tally: Tally {
                latencies: Histogram::new(),
                bytes: 0,
                verified_bytes: 0,
                memory_bytes: 0,
                travelled: None,
            },
        })
    }

    /// An operation counts when it ended after the warm-up; none begins after the end, and the
    /// time is taken until the last has ended, however long it takes.
    async fn run(mut self, begin: Instant, end: Instant) -> anyhow::Result<Tally> {
        for turn in 0.. {
            let started = Instant::now();
            if started >= end {
                break;
            }
            let (bytes, verified_bytes, ended) = match self.cell.operation {
                Operation::Get => self.get(turn).await?,
                Operation::Put => self.put(turn).await?,
                Operation::List => self.list().await?,
            };
            if ended >= begin {
                self.tally.latencies.record(ended - started);
                self.tally.bytes += bytes;
                self.tally.verified_bytes += verified_bytes;
            }
        }
        Ok(self.tally)
    }

    async fn get(&mut self, turn: u64) -> anyhow::Result<(u64, u64, Instant)> {
        let at = self.random.u64(0..self.objects);
        let key = format!("get/{}/{at}", self.cell.size);
        let get = self.client.get_object(&self.bucket, &key).part_bytes(self.cell.part_size);
        let size = self.cell.size as usize;
        let got = self.buffer.get(get, size).await?;
        let ended = Instant::now();
        let travelled = Travelled { path: got.path, strength: got.strength };
        ensure!(got.bytes == self.cell.size, "{key} has {} bytes", got.bytes);
        let compared = turn.is_multiple_of(CHECKED_ONE_IN);
        if compared {
            let is_right =
                self.buffer.all(size, |bytes, offset| pattern::matches(bytes, at, offset))?;
            ensure!(is_right, "{key} holds other bytes than were stored");
        }
        let verified = got.verified.is_whole() || compared;
        self.took(travelled);
        Ok((got.bytes, if verified { got.bytes } else { 0 }, ended))
    }

    fn took(&mut self, travelled: Travelled) {
        let all = self.tally.travelled.into_iter().chain([travelled]);
        self.tally.travelled = all.reduce(Travelled::weaker);
    }

    async fn put(&mut self, turn: u64) -> anyhow::Result<(u64, u64, Instant)> {
        let key = format!("put/{}/{}-{}", self.cell.size, self.number, turn % PUT_KEYS);
        let put = self.client.put_object(&self.bucket, &key).part_bytes(self.cell.part_size);
        let put = put.durability(self.cell.durability).body(self.buffer.body()?).send().await?;
        if put.durability == Durability::Memory {
            self.tally.memory_bytes += put.bytes;
        }
        self.took(Travelled { path: put.path, strength: put.strength });
        let verified = if put.verified.is_whole() { put.bytes } else { 0 };
        Ok((put.bytes, verified, Instant::now()))
    }

    async fn list(&mut self) -> anyhow::Result<(u64, u64, Instant)> {
        let after = self.random.u64(0..self.cell.size.saturating_sub(1001).max(1));
        let listing = self.client.list_objects(&self.bucket).start_after(listed_key(after));
        let page = listing.page_keys(1000).page(None).await?;
        let ended = Instant::now();
        let expected = (self.cell.size - after - 1).min(1000);
        ensure!(page.objects.len() as u64 == expected, "a page of {} keys", page.objects.len());
        let first = page.objects.first().map(|object| object.key.as_str());
        ensure!(first == Some(&listed_key(after + 1)), "a page that begins elsewhere");
        Ok((0, 0, ended))
    }
}

/// Fills a bucket for listings, once: its last key tells that it is full.
pub(super) async fn load_keys(
    target: &Target,
    bucket: &str,
    keys: u64,
    loaded: impl Fn(u64),
) -> anyhow::Result<()> {
    const WORKERS: u64 = 64;
    let bucket: Arc<str> = listing_bucket(bucket, keys).into();
    super::ensure_bucket(&target.client, &bucket).await?;
    let marker = "loaded";
    if target.client.head_object(&bucket, marker).await.is_ok() {
        return Ok(());
    }
    let done = std::cell::Cell::new(0);
    let worker = |number: u64| {
        let (client, bucket, done, loaded) = (&target.client, &bucket, &done, &loaded);
        async move {
            for at in (number..keys).step_by(WORKERS as usize) {
                client.put_object(bucket, &listed_key(at)).send().await?;
                done.set(done.get() + 1);
                loaded(done.get());
            }
            anyhow::Ok(())
        }
    };
    try_join_all((0..WORKERS).map(worker)).await?;
    target.client.put_object(&bucket, marker).send().await?;
    Ok(())
}
