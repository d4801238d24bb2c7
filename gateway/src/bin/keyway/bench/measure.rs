//! One cell against one service: the data set, the warm-up, the span, and the reading back.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

use super::batch;
use super::cell::{Cell, Operation};
use super::clock::Moment;
use super::crew::{Answer, Job, Order};
use super::dataset::{self, Target};
use super::processes::Processes;
use super::tally::{Measured, Tally};
use super::usage::{self, ProcessTime};
use crate::memory::Memory;

/// From the order to begin until the beginning: every process has read it by then.
const LEAD: Duration = Duration::from_millis(20);

/// What all cells of a run share.
pub(super) struct Bench {
    pub(super) targets: Vec<Target>,
    pub(super) bucket: String,
    /// Where processes hold objects: each in one of these, in turn.
    pub(super) memory: Vec<Memory>,
    pub(super) processes: Processes,
    /// The run's own number, in what PUTs write.
    pub(super) nonce: u64,
}

impl Bench {
    /// Measures one cell of one service. All processes begin at the same moment, with nothing
    /// under way; what they do not do in the span does not count, and what they compare they
    /// compare after it.
    pub(super) async fn measure(&mut self, index: usize, cell: Cell) -> anyhow::Result<Measured> {
        let target = self.targets.get(index).context("no such service")?.clone();
        match cell.batch {
            Some(batch) => batch::prepare(&target, &self.bucket, batch).await?,
            None if cell.operation == Operation::Get => {
                dataset::prepare(&target, &self.bucket, &cell).await?;
            }
            None => {}
        }
        let failed = || format!("{} failed", target.name);
        let (memory, bucket, nonce) = (&self.memory, &self.bucket, self.nonce);
        let job = |process: usize| Job {
            target: index,
            bucket: bucket.clone(),
            cell,
            memory: memory[process % memory.len()],
            first_worker: (process * cell.workers) as u64,
            nonce,
        };
        let processes = &mut self.processes;
        processes.all(|process| Order::Prepare(job(process))).await.with_context(failed)?;

        let begin = Moment::now().after(LEAD);
        let server_cpu = async {
            begin.arrives().await;
            target.server_pid.map(ProcessTime::of).transpose()
        };
        let (answers, before) = tokio::join!(processes.all(|_| Order::Run(begin)), server_cpu);
        let server_cpu = match (target.server_pid, before?) {
            (Some(pid), Some(before)) => Some(ProcessTime::of(pid)?.since(before)),
            _ => None,
        };
        let (mut tally, mut shares) = (Tally::new(begin), Vec::new());
        for answer in answers.with_context(failed)? {
            let Answer::Ran(one) = answer else { bail!("{answer:?} is no tally") };
            shares.push(one.bytes_per_second(begin));
            tally.merge(&one);
        }
        ensure!(tally.latencies.count() > 0, "{}: no operation began in time", target.name);

        let mut compared_bytes = 0;
        for answer in processes.all(|_| Order::ReadBack).await.with_context(failed)? {
            let Answer::Compared(bytes) = answer else { bail!("{answer:?} compares nothing") };
            compared_bytes += bytes;
        }
        Ok(Measured {
            cell,
            target: target.name,
            memory: self.memory.clone(),
            elapsed: tally.ended.since(begin),
            tally,
            shares,
            dataset_bytes: dataset::bytes(&cell),
            compared_bytes,
            server_cpu,
            server_peak_bytes: target.server_pid.map(usage::peak_memory_bytes).transpose()?,
        })
    }
}
