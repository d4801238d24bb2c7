//! The workers of one process, and what they are told: to get warm, to run, to read back.

use std::collections::HashMap;

use anyhow::{Context as _, ensure};
use futures::future::try_join_all;
use keyway_client::Client;
use serde::{Deserialize, Serialize};

use super::cell::{Cell, Operation};
use super::clock::{Moment, own_cpu};
use super::dataset::Target;
use super::pattern;
use super::tally::{Spent, Tally};
use super::worker::{Post, Worker};
use crate::memory::Memory;

/// What a process is told to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// To take its buffers and connections, and to run until it is warm.
    Prepare(Job),
    /// To begin at this moment, and to measure for the cell's time.
    Run(Moment),
    /// To compare what was stored and read.
    ReadBack,
}

/// A process' share of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    /// Which of the services.
    pub(super) target: usize,
    pub(super) bucket: String,
    pub(super) cell: Cell,
    pub(super) memory: Memory,
    /// The number of its first worker among all.
    pub(super) first_worker: u64,
    /// The run's own.
    pub(super) nonce: u64,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It is warm, and nothing is under way.
    Warm,
    /// The span is over.
    Ran(Tally),
    /// So many bytes are right; it has no workers any more.
    Compared(u64),
}

/// The workers of one process.
pub(super) struct Crew {
    targets: Vec<Target>,
    cell: Option<Cell>,
    client: Option<Client>,
    workers: Vec<Worker>,
}

impl Crew {
    pub(super) fn new(targets: Vec<Target>) -> Self {
        Self { targets, cell: None, client: None, workers: Vec::new() }
    }

    pub(super) async fn carry_out(&mut self, order: Order) -> anyhow::Result<Answer> {
        match order {
            Order::Prepare(job) => self.prepare(job).await.map(|()| Answer::Warm),
            Order::Run(begin) => self.run(begin).await.map(Answer::Ran),
            Order::ReadBack => self.read_back().await.map(Answer::Compared),
        }
    }

    async fn prepare(&mut self, job: Job) -> anyhow::Result<()> {
        let target = self.targets.get(job.target).context("no such service")?;
        let Job { bucket, cell, memory, first_worker, nonce, .. } = job;
        let workers = (first_worker..).take(cell.workers).map(|number| {
            let (client, bucket) = (target.client.clone(), bucket.clone());
            Worker::new(Post { client, bucket, cell, number, memory, nonce })
        });
        self.workers = workers.collect::<anyhow::Result<_>>()?;
        self.cell = Some(cell);
        self.client = Some(target.client.clone());
        let now = Moment::now();
        self.all_run(now, now.after(cell.warm_up)).await.map(drop)
    }

    async fn run(&mut self, begin: Moment) -> anyhow::Result<Tally> {
        let cell = self.cell.context("no cell was prepared")?;
        let client = self.client.clone().context("no cell was prepared")?;
        begin.arrives().await;
        let phases = || (client.rdma_stats().phases, client.body_phases());
        let (cpu, (transfers, bodies)) = (own_cpu(), phases());
        let mut tally = self.all_run(begin, begin.after(cell.time)).await?;
        tally.cpu = own_cpu().saturating_sub(cpu);
        let now = phases();
        tally.transfers = Spent::past_http(&now.0.since(&transfers));
        tally.bodies = Spent::of_bodies(&now.1.since(&bodies));
        Ok(tally)
    }

    async fn all_run(&mut self, begin: Moment, end: Moment) -> anyhow::Result<Tally> {
        let tasks = std::mem::take(&mut self.workers).into_iter().map(|mut worker| {
            tokio::spawn(async move {
                let tally = worker.run(begin, end).await?;
                anyhow::Ok((worker, tally))
            })
        });
        let mut all = Tally::new(begin);
        for ended in try_join_all(tasks.collect::<Vec<_>>()).await? {
            let (worker, tally) = ended?;
            all.merge(&tally);
            self.workers.push(worker);
        }
        Ok(all)
    }

    async fn read_back(&mut self) -> anyhow::Result<u64> {
        let cell = self.cell.take().context("no cell was prepared")?;
        let mut workers = std::mem::take(&mut self.workers);
        if cell.operation == Operation::Get {
            checksums_are_right(&workers, cell.size)?;
        }
        let compared = try_join_all(workers.iter_mut().map(Worker::read_back)).await?;
        Ok(compared.into_iter().sum())
    }
}

/// Holds the checksums that GETs found against those of what was stored.
fn checksums_are_right(workers: &[Worker], size: u64) -> anyhow::Result<()> {
    let mut known = HashMap::new();
    for (at, found) in workers.iter().flat_map(Worker::found) {
        let kind = found.kind();
        let stored = *known.entry((at, kind)).or_insert_with(|| pattern::checksum(kind, at, size));
        ensure!(found == stored, "object {at} has the {kind} {found:?}, stored was {stored:?}");
    }
    Ok(())
}
