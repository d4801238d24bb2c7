//! One cell of the table: what is asked for, of which size, by how many.

use std::time::Duration;

use keyway_proto::{Durability, KeyStrength, TransferPath};
use serde::{Deserialize, Serialize};

use super::batch::Batch;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub(super) enum Operation {
    /// Read whole objects.
    Get,
    /// Write whole objects.
    Put,
    /// List 1,000 keys from a random place on.
    List,
}

impl Operation {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::List => "LIST",
        }
    }
}

/// One cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) operation: Operation,
    /// Bytes of an object, or of a range; for listings, keys in the bucket.
    pub(super) size: u64,
    /// What a GET asks for, where that is many ranges of an object.
    pub(super) batch: Option<Batch>,
    /// Requests in flight, of each process.
    pub(super) workers: usize,
    /// Client processes.
    pub(super) processes: usize,
    /// Bytes of one request; larger objects go in parts side by side.
    pub(super) part_size: u64,
    /// When PUTs are answered.
    pub(super) durability: Durability,
    pub(super) warm_up: Duration,
    pub(super) time: Duration,
}

impl Cell {
    /// Requests in flight, of all processes.
    pub(super) fn workers_total(&self) -> u64 {
        (self.workers * self.processes) as u64
    }
}

/// How bytes travelled: the path, and what protected the client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Travelled {
    pub(super) path: TransferPath,
    pub(super) strength: KeyStrength,
}

impl Travelled {
    pub(super) const HTTP: Self = Self { path: TransferPath::Http, strength: KeyStrength::Http };

    /// The weaker of two that may not be there.
    pub(super) fn weaker(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let weaker = |one: Self, other: Self| {
            if other.strength < one.strength { other } else { one }
        };
        one.into_iter().chain(other).reduce(weaker)
    }
}
