//! A writer that remembers what it was told.

use std::collections::BTreeMap;
use std::io;

use fastrand::Rng;
use keyway_integration_tests::S3;
use keyway_integration_tests::s3::completion;
use keyway_integration_tests::seed::payload;
use keyway_integration_tests::wire::{Request, Response};

use super::BUCKET;

/// What a write asks for, and its answer tells.
const DURABILITY: &str = "x-keyway-durability";
/// Keys of one actor.
const KEYS: u64 = 6;
/// Uploads that an actor leaves open at most.
const UPLOADS_OPEN: usize = 3;
/// Smallest part but the last one.
const PART_MINIMUM: usize = 5 << 20;
/// Lengths that a server with room for them answers from memory, between and beyond chunks.
const MEMORY_LENGTHS: [usize; 4] = [300_000, 1_048_577, 5_000_001, 17_000_000];
/// Lengths on both sides of the boundaries between small and large objects and of blocks.
const LENGTHS: [usize; 11] =
    [0, 1, 4_000, 4_096, 4_097, 65_535, 65_537, 131_072, 262_145, 700_000, 1_048_577];

/// Content, by what it is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    seed: u64,
    length: usize,
}

impl Version {
    pub(crate) fn bytes(self) -> Vec<u8> {
        payload(self.seed, self.length)
    }
}

/// What is known of a key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    /// The last durable state that the server acknowledged; `None` is absence.
    pub(crate) acknowledged: Option<Version>,
    /// The states that it acknowledged from memory since then. Any of them may have become
    /// durable, and be what a later one falls back to; the last may be there still.
    pub(crate) in_memory: Vec<Version>,
    /// The state that the request under way would make.
    pub(crate) under_way: Option<Option<Version>>,
}

/// An upload that the server has acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Upload {
    pub(crate) key: String,
    pub(crate) id: String,
    /// Numbers and ETags of acknowledged parts.
    pub(crate) parts: Vec<(u32, String)>,
    /// Whether a completion or an abort is under way: it may be gone.
    pub(crate) ending: bool,
    /// Whether its parts were acknowledged from memory: they may be gone.
    pub(crate) in_memory: bool,
}

/// A writer with keys of its own.
pub(crate) struct Actor {
    random: Rng,
    pub(crate) name: String,
    pub(crate) entries: BTreeMap<String, Entry>,
    pub(crate) uploads: Vec<Upload>,
    /// Uploads whose completion was acknowledged from memory: a crash may undo it, and they are
    /// open again. Until the next durable answer: a synced commit has all before it.
    pub(crate) ended_in_memory: Vec<String>,
    /// Whether the server may know an upload that this actor does not.
    pub(crate) creating_upload: bool,
    /// Writes that were acknowledged.
    pub(crate) acknowledged: u64,
    /// Whether it asks for answers from memory.
    asks_memory: bool,
    /// Writes that were acknowledged from memory.
    pub(crate) from_memory: u64,
}

impl Actor {
    pub(crate) fn new(number: u64, random: Rng, asks_memory: bool) -> Self {
        let name = format!("actor-{number}/");
        let entries = (0..KEYS).map(|key| (format!("{name}{key}"), Entry::default())).collect();
        Self {
            random,
            name,
            entries,
            uploads: Vec::new(),
            ended_in_memory: Vec::new(),
            creating_upload: false,
            acknowledged: 0,
            asks_memory,
            from_memory: 0,
        }
    }

    /// Writes until the server dies.
    ///
    /// # Panics
    /// When the server refuses a request: all of them are good.
    pub(crate) fn work(&mut self, mut s3: S3) {
        while self.write(&mut s3).is_ok() {
            self.acknowledged += 1;
        }
    }

    fn write(&mut self, s3: &mut S3) -> io::Result<()> {
        let key = format!("{}{}", self.name, self.random.u64(..KEYS));
        match self.random.u8(..20) {
            0..=5 if self.asks_memory => self.put_in_memory(s3, &key),
            6 if self.asks_memory => self.flush(s3, &key),
            0..=11 => self.put(s3, &key),
            12..=14 => self.delete(s3, &key),
            15..=17 => self.upload(s3, &key),
            18 => self.leave_upload(s3, &key),
            _ => self.abort(s3),
        }
    }

    fn put(&mut self, s3: &mut S3, key: &str) -> io::Result<()> {
        let length = LENGTHS[self.random.usize(..LENGTHS.len())];
        let version = Version { seed: self.random.u64(..), length };
        self.begin(key, Some(version));
        let response = s3.put(BUCKET, key, &version.bytes())?;
        self.end(key, &response, 200);
        Ok(())
    }

    fn put_in_memory(&mut self, s3: &mut S3, key: &str) -> io::Result<()> {
        let length = MEMORY_LENGTHS[self.random.usize(..MEMORY_LENGTHS.len())];
        let version = Version { seed: self.random.u64(..), length };
        self.begin(key, Some(version));
        let request = Request::object("PUT", BUCKET, key).header(DURABILITY, "memory");
        let response = s3.send(request.body(version.bytes()))?;
        self.end(key, &response, 200);
        Ok(())
    }

    /// Waits for the device: what was in memory must not be lost from here on.
    fn flush(&mut self, s3: &mut S3, key: &str) -> io::Result<()> {
        let Some(version) = self.entry(key).in_memory.last().copied() else { return Ok(()) };
        let document = format!(r#"{{"bucket":"{BUCKET}","key":"{key}"}}"#);
        loop {
            let request = Request::new("POST", "/_keyway/v1/flush").body(document.as_str());
            let response = s3.send(request)?;
            assert_eq!(response.status, 200, "{key}: {}", response.text());
            let text = response.text();
            assert!(text.contains(r#""lost":0"#), "{key}: {text}");
            if text.contains(r#""pending":0"#) {
                break;
            }
        }
        let entry = self.entry(key);
        (entry.acknowledged, entry.in_memory) = (Some(version), Vec::new());
        self.ended_in_memory.clear();
        Ok(())
    }

    fn delete(&mut self, s3: &mut S3, key: &str) -> io::Result<()> {
        self.begin(key, None);
        let response = s3.delete(BUCKET, key)?;
        self.end(key, &response, 204);
        Ok(())
    }

    fn upload(&mut self, s3: &mut S3, key: &str) -> io::Result<()> {
        // Two parts cost 5 MiB; one part takes the same path through the completion.
        let head = if self.random.u8(..8) == 0 { PART_MINIMUM } else { 0 };
        let tail = LENGTHS[self.random.usize(1..LENGTHS.len())];
        let version = Version { seed: self.random.u64(..), length: head + tail };
        let index = self.create(s3, key)?;
        let bytes = version.bytes();
        let halves = [(1, &bytes[..head]), (2, &bytes[head..])];
        let memory = self.asks_memory && self.random.bool();
        self.uploads[index].in_memory = memory;
        for (number, half) in halves.into_iter().filter(|(_, half)| !half.is_empty()) {
            let part = Request::object("PUT", BUCKET, key)
                .query("partNumber", number.to_string())
                .query("uploadId", &self.uploads[index].id)
                .header(DURABILITY, if memory { "memory" } else { "disk" });
            let response = s3.send(part.body(half))?;
            assert_eq!(response.status, 200, "{key}: {}", response.text());
            let etag = response.header("etag").expect("a part has an ETag").to_owned();
            self.uploads[index].parts.push((number, etag));
        }
        self.begin(key, Some(version));
        self.uploads[index].ending = true;
        let upload = &self.uploads[index];
        // Parts in memory make an object in memory, or one that is waited for.
        let durability = if memory && self.random.bool() { "memory" } else { "disk" };
        let completion = Request::object("POST", BUCKET, key)
            .query("uploadId", &upload.id)
            .header(DURABILITY, durability)
            .body(completion(&upload.parts));
        let response = s3.send(completion)?;
        let from_memory = self.end(key, &response, 200);
        let ended = self.uploads.remove(index);
        if from_memory {
            self.ended_in_memory.push(ended.id);
        }
        Ok(())
    }

    fn leave_upload(&mut self, s3: &mut S3, key: &str) -> io::Result<()> {
        if self.uploads.len() >= UPLOADS_OPEN {
            return self.abort(s3);
        }
        let index = self.create(s3, key)?;
        let body = payload(self.random.u64(..), 10_000);
        let etag = s3.put_part(BUCKET, key, &self.uploads[index].id, 1, &body)?;
        self.uploads[index].parts.push((1, etag));
        Ok(())
    }

    fn abort(&mut self, s3: &mut S3) -> io::Result<()> {
        let Some(upload) = self.uploads.first_mut() else { return Ok(()) };
        upload.ending = true;
        let request = Request::object("DELETE", BUCKET, &upload.key).query("uploadId", &upload.id);
        let response = s3.send(request)?;
        assert_eq!(response.status, 204, "{}", response.text());
        self.uploads.remove(0);
        self.ended_in_memory.clear();
        Ok(())
    }

    fn create(&mut self, s3: &mut S3, key: &str) -> io::Result<usize> {
        self.creating_upload = true;
        let id = s3.create_upload(BUCKET, key)?;
        self.creating_upload = false;
        self.ended_in_memory.clear();
        let (key, parts) = (key.to_owned(), Vec::new());
        self.uploads.push(Upload { key, id, parts, ending: false, in_memory: false });
        Ok(self.uploads.len() - 1)
    }

    fn begin(&mut self, key: &str, state: Option<Version>) {
        self.entry(key).under_way = Some(state);
    }

    /// Notes an answer; whether it was given from memory.
    fn end(&mut self, key: &str, response: &Response, status: u16) -> bool {
        assert_eq!(response.status, status, "{key}: {}", response.text());
        let from_memory = response.header(DURABILITY) == Some("memory");
        self.from_memory += u64::from(from_memory);
        let entry = self.entry(key);
        let state = entry.under_way.take().expect("a request was under way");
        if from_memory {
            entry.in_memory.extend(state);
        } else {
            (entry.acknowledged, entry.in_memory) = (state, Vec::new());
            self.ended_in_memory.clear();
        }
        from_memory
    }

    fn entry(&mut self, key: &str) -> &mut Entry {
        self.entries.get_mut(key).expect("actors write to their own keys")
    }
}
