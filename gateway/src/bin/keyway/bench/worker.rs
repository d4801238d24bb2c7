//! A closed loop: a worker asks, waits, and asks again.
//!
//! Lean, because it shares the machine with the server: one connection and one buffer per
//! worker, no allocation for an object's bytes. While time is taken nothing is compared: what
//! the client verifies by itself is part of its call, and everything else is left to
//! [`Worker::read_back`], when the clock has stopped.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use keyway_client::{Client, Durability, Verified};
use keyway_proto::{ByteRange, Checksum};

use super::batch::{self, Batch};
use super::cell::{Cell, Operation, Travelled};
use super::clock::Moment;
use super::dataset::{self, get_key, listed_key};
use super::pattern;
use super::tally::Tally;
use crate::memory::{Buffer, Memory};

/// What a worker is to do, beside its cell.
#[derive(Clone)]
pub(super) struct Post {
    pub(super) client: Client,
    pub(super) bucket: String,
    pub(super) cell: Cell,
    /// Its number among all workers of all processes.
    pub(super) number: u64,
    pub(super) memory: Memory,
    /// What PUTs of this run begin their seeds with, so that no object of an earlier one looks
    /// like them.
    pub(super) nonce: u64,
}

pub(super) struct Worker {
    post: Post,
    objects: u64,
    /// What a GET fills, or a PUT sends.
    buffer: Buffer,
    random: fastrand::Rng,
    turn: u64,
    /// The object that the last GET read.
    last_read: Option<u64>,
    /// The ranges that the last batch read.
    last_ranges: Option<Arc<[ByteRange]>>,
    /// The checksum that was found of each object.
    found: HashMap<u64, Checksum>,
}

/// One operation that has ended.
struct Done {
    latency: Duration,
    bytes: u64,
    verified: Verified,
    travelled: Option<Travelled>,
    /// Bytes that were answered from memory.
    memory_bytes: u64,
}

impl Worker {
    pub(super) fn new(post: Post) -> anyhow::Result<Self> {
        let cell = post.cell;
        let mut buffer = post.memory.buffer(match cell.operation {
            Operation::Get => cell.batch.map_or(1, |batch| batch.ranges) * cell.size as usize,
            Operation::Put => cell.size as usize,
            Operation::List => 0,
        })?;
        match cell.operation {
            // The kernel gives pages at their first touch: here, not while time is taken.
            Operation::Get => buffer.fill(|bytes| bytes.fill(POISON))?,
            Operation::Put => buffer.fill(|bytes| pattern::fill(bytes, post.put_seed()))?,
            Operation::List => {}
        }
        Ok(Self {
            objects: dataset::objects(&cell),
            buffer,
            random: fastrand::Rng::with_seed(post.number),
            turn: 0,
            last_read: None,
            last_ranges: None,
            found: HashMap::new(),
            post,
        })
    }

    /// Asks from `begin` on. No operation begins after `end`, and the last one is waited for,
    /// however long it takes: all that is counted begins and ends within the span that is told.
    pub(super) async fn run(&mut self, begin: Moment, end: Moment) -> anyhow::Result<Tally> {
        begin.arrives().await;
        let mut tally = Tally::new(begin);
        while Moment::now() < end {
            let done = match self.post.cell.operation {
                Operation::Get => match self.post.cell.batch {
                    Some(batch) => self.gather(batch).await?,
                    None => self.get().await?,
                },
                Operation::Put => self.put().await?,
                Operation::List => self.list().await?,
            };
            tally.ended = Moment::now();
            tally.latencies.record(done.latency);
            tally.bytes += done.bytes;
            tally.verified_bytes += if done.verified.is_whole() { done.bytes } else { 0 };
            tally.memory_bytes += done.memory_bytes;
            tally.travelled = Travelled::weaker(tally.travelled, done.travelled);
            self.turn += 1;
        }
        Ok(tally)
    }

    async fn get(&mut self) -> anyhow::Result<Done> {
        let at = self.random.u64(0..self.objects);
        let done = self.read(&get_key(self.post.cell.size, at)).await?;
        self.last_read = Some(at);
        if let Verified::Whole(checksum) = done.verified {
            match self.found.entry(at) {
                Entry::Vacant(entry) => _ = entry.insert(checksum),
                Entry::Occupied(known) => {
                    ensure!(*known.get() == checksum, "object {at} has two checksums");
                }
            }
        }
        Ok(done)
    }

    async fn read(&mut self, key: &str) -> anyhow::Result<Done> {
        let Post { client, bucket, cell, .. } = &self.post;
        let get = client.get_object(bucket, key).part_bytes(cell.part_size);
        let started = Instant::now();
        let got = self.buffer.get(get, cell.size as usize).await?;
        let latency = started.elapsed();
        ensure!(got.bytes == cell.size, "{key} has {} bytes", got.bytes);
        let travelled = Some(Travelled { path: got.path, strength: got.strength });
        Ok(Done { latency, bytes: got.bytes, verified: got.verified, travelled, memory_bytes: 0 })
    }

    async fn gather(&mut self, batch: Batch) -> anyhow::Result<Done> {
        let ranges = batch.random(&mut self.random);
        let Post { client, bucket, .. } = &self.post;
        let started = Instant::now();
        // Apart, for it is large.
        let got = batch::gather(client, bucket, &mut self.buffer, batch, &ranges);
        let got = Box::pin(got).await?;
        let latency = started.elapsed();
        ensure!(got.bytes == batch.bytes(), "{} bytes of {}", got.bytes, batch.bytes());
        self.last_ranges = Some(ranges);
        let travelled = Some(Travelled { path: got.path, strength: got.strength });
        let verified = Verified::No(keyway_client::Unverified::NoneStored);
        Ok(Done { latency, bytes: got.bytes, verified, travelled, memory_bytes: 0 })
    }

    async fn put(&mut self) -> anyhow::Result<Done> {
        let Post { client, bucket, cell, .. } = &self.post;
        let key = self.post.put_key(self.turn % dataset::put_keys(cell));
        let put = client.put_object(bucket, &key).part_bytes(cell.part_size);
        let put = put.durability(cell.durability).body(self.buffer.body()?);
        let started = Instant::now();
        let put = put.send().await?;
        let latency = started.elapsed();
        let travelled = Some(Travelled { path: put.path, strength: put.strength });
        let memory_bytes = if put.durability == Durability::Memory { put.bytes } else { 0 };
        Ok(Done { latency, bytes: put.bytes, verified: put.verified, travelled, memory_bytes })
    }

    async fn list(&mut self) -> anyhow::Result<Done> {
        let Post { client, bucket, cell, .. } = &self.post;
        let after = self.random.u64(0..cell.size.saturating_sub(1001).max(1));
        let bucket = dataset::listing_bucket(bucket, cell.size);
        let listing = client.list_objects(&bucket).start_after(listed_key(after)).page_keys(1000);
        let started = Instant::now();
        let page = listing.page(None).await?;
        let latency = started.elapsed();
        let expected = (cell.size - after - 1).min(1000);
        ensure!(page.objects.len() as u64 == expected, "a page of {} keys", page.objects.len());
        let first = page.objects.first().map(|object| object.key.as_str());
        ensure!(first == Some(&listed_key(after + 1)), "a page that begins elsewhere");
        let verified = Verified::No(keyway_client::Unverified::NoneStored);
        Ok(Done { latency, bytes: 0, verified, travelled: None, memory_bytes: 0 })
    }

    /// The checksums that GETs found, for whoever knows what they must be.
    pub(super) fn found(&self) -> impl Iterator<Item = (u64, Checksum)> {
        self.found.iter().map(|(at, checksum)| (*at, *checksum))
    }

    /// After the clock: compares bytes with what was stored. Of batches those of the last one,
    /// and of some more; of GETs those of the last one, and this worker's share of the data set, read again; of PUTs all keys that it wrote.
    /// Tells how many bytes it compared.
    pub(super) async fn read_back(&mut self) -> anyhow::Result<u64> {
        let cell = self.post.cell;
        let mut compared = 0;
        match cell.operation {
            Operation::Get if let Some(batch) = cell.batch => {
                for _ in 0..=BATCHES_READ_AGAIN {
                    if let Some(ranges) = self.last_ranges.take() {
                        batch::compare(&self.buffer, batch, &ranges)?;
                        compared += batch.bytes();
                    }
                    self.buffer.fill(|bytes| bytes.fill(POISON))?;
                    self.gather(batch).await?;
                }
            }
            Operation::Get => {
                if let Some(at) = self.last_read {
                    compared += self.compare(&get_key(cell.size, at), at)?;
                }
                let step = cell.workers_total() as usize;
                for at in (self.post.number..self.objects).step_by(step) {
                    compared += self.read_again(&get_key(cell.size, at), at).await?;
                }
            }
            Operation::Put => {
                for at in 0..dataset::put_keys(&cell).min(self.turn) {
                    let (key, seed) = (self.post.put_key(at), self.post.put_seed());
                    compared += self.read_again(&key, seed).await?;
                }
            }
            Operation::List => {}
        }
        Ok(compared)
    }

    async fn read_again(&mut self, key: &str, seed: u64) -> anyhow::Result<u64> {
        // So that nothing passes for read which lay there before.
        self.buffer.fill(|bytes| bytes.fill(POISON))?;
        self.read(key).await?;
        self.compare(key, seed)
    }

    fn compare(&self, key: &str, seed: u64) -> anyhow::Result<u64> {
        let size = self.post.cell.size as usize;
        let is_right =
            self.buffer.all(size, |bytes, offset| pattern::matches(bytes, seed, offset))?;
        ensure!(is_right, "{key} holds other bytes than were stored");
        Ok(self.post.cell.size)
    }
}

/// Batches that are read and compared after the clock, besides the last one before.
const BATCHES_READ_AGAIN: usize = 8;

/// What a buffer is filled with that must be overwritten.
const POISON: u8 = 0xa5;

impl Post {
    fn put_key(&self, at: u64) -> String {
        format!("put/{}/{}-{at}", self.cell.size, self.number)
    }

    fn put_seed(&self) -> u64 {
        self.nonce.wrapping_add(self.number)
    }
}
