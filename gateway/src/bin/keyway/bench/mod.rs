//! `keyway bench`: closed-loop load against any S3 service, peers side by side.
//!
//! | what | where |
//! |---|---|
//! | what is asked for | `cell`, `sizes` |
//! | what lies in the bucket | `dataset`, `pattern` |
//! | one cell, from the data set to the reading back | `measure` |
//! | a worker's loop; the workers of a process; several processes | `worker`, `crew`, `processes` |
//! | time and costs | `clock`, `usage` |
//! | what was counted, and how it is shown | `tally`, `histogram`, `report`, `plot` |

mod batch;
mod cell;
mod clock;
mod crew;
mod dataset;
mod histogram;
mod measure;
pub(crate) mod pattern;
mod plot;
mod processes;
mod report;
mod sizes;
mod tally;
pub(crate) mod usage;
mod worker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::builder::ArgPredicate;
use indicatif::{ProgressBar, ProgressDrawTarget};
use keyway_client::{Client, Durability, RetryPolicy};
use std::io::IsTerminal as _;

use self::cell::{Cell, Operation};
use self::dataset::Target;
use self::measure::Bench;
use self::processes::Processes;
use self::sizes::Sweep;
use self::tally::Measured;
use crate::client::{Connection, PathChoice, Transfer, durability};
use crate::memory::Memory;
use crate::output;

/// Measures an S3 service, and others beside it in the same run.
///
/// Each cell of the table is a closed loop: so many workers, each asking again as soon as it
/// was answered. After a warm-up all of them begin at one moment, with nothing under way, none
/// asks after the time is over, and the span ends with the last answer. Latencies are those of
/// the client's calls, throughput is what these moved in the span, and CPU time is what the
/// client's and the server's processes spent in it. The checksum of every GET is part of the
/// call: the client computes it over what landed (on the GPU, where that is) and holds it
/// against the service's.
///
/// Nothing else is verified while time is taken. When the clock has stopped, those checksums
/// are held against the ones of what was stored, the last object in each buffer is compared byte
/// by byte, and the whole data set, or all that was written, is read once more and compared byte
/// by byte. One wrong byte fails the run.
///
/// Prints gdsio's result line for each cell, and a table at the end.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    transfer: Transfer,
    /// Measure the service at --endpoint by each of these paths, instead of --path: a line of the
    /// table for each.
    #[arg(long, value_enum, value_name = "PATH", value_delimiter = ',', conflicts_with = "path")]
    paths: Vec<PathChoice>,
    /// What the service at --endpoint is called in the table.
    #[arg(long, default_value = "keyway")]
    name: String,
    /// Process id of the server at --endpoint, to tell its CPU time and memory.
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Another service to measure; may be repeated. The same credentials are used unless
    /// KEYWAY_PEER_NAME_ACCESS_KEY and KEYWAY_PEER_NAME_SECRET_KEY are set (NAME in capitals).
    #[arg(long, value_name = "NAME=URL", value_parser = pair)]
    peer: Vec<(String, String)>,
    /// Process id of a peer's server; may be repeated.
    #[arg(long, value_name = "NAME=PID", value_parser = pair)]
    peer_pid: Vec<(String, String)>,
    /// What to ask for; `get` alone with --sweep, unless said.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "get,put",
        default_value_if("sweep", ArgPredicate::IsPresent, "get")
    )]
    operations: Vec<Operation>,
    /// Sizes of objects.
    #[arg(long, value_delimiter = ',', value_parser = sizes::bytes, default_value = "4KiB,1MiB,64MiB")]
    sizes: Vec<u64>,
    /// Sizes from one to another instead, each four times the one before, such as 4KiB..1GiB.
    #[arg(long, value_name = "FROM..TO", value_parser = sizes::sweep, conflicts_with = "sizes")]
    sweep: Option<Sweep>,
    /// Where objects are read to and written from: host, shared (that a node of this host can
    /// map), or gpu:0 for the first GPU. Several, such as gpu:0,gpu:1: a process for each.
    #[arg(long, value_name = "PLACE", value_delimiter = ',', default_value = "host")]
    memory: Vec<Memory>,
    /// Client processes, which begin together and share the memories given in turn. One for
    /// each unless said.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    processes: Option<u16>,
    /// Bytes of one request: larger objects go in parts side by side. One request per object
    /// unless said.
    #[arg(long, value_name = "SIZE", value_parser = sizes::bytes)]
    part_size: Option<u64>,
    /// Ranges of one GET: each asks for so many of an object at random places, of the sizes given,
    /// packed into one piece of memory. Where client and server share a host that is one request.
    #[arg(long, value_name = "RANGES")]
    batch: Option<usize>,
    /// Bytes of the object that batches are of.
    #[arg(long, value_name = "SIZE", value_parser = sizes::bytes, default_value = "256MiB")]
    batch_object: u64,
    /// Requests in flight, of each process; 8 with --sweep, unless said.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,8,64",
        default_value_if("sweep", ArgPredicate::IsPresent, "8")
    )]
    concurrency: Vec<usize>,
    /// Keys in the buckets that are listed; each is filled once and kept.
    #[arg(long, value_delimiter = ',', default_value = "10000")]
    list_keys: Vec<u64>,
    /// When PUTs are answered: disk, or memory where a Keyway service has room for that.
    #[arg(long, value_name = "disk|memory", default_value = "disk", value_parser = durability)]
    durability: Durability,
    /// Seconds that each cell is measured.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Seconds of load before measuring.
    #[arg(long, default_value_t = 1.0)]
    warm_up_seconds: f64,
    /// Threads of each process; one is leanest.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// The bucket to use; it is created where there is none, and objects stay in it.
    #[arg(long, default_value = "keyway-bench")]
    bucket: String,
    /// Print one JSON object per cell instead of lines and table.
    #[arg(long)]
    json: bool,
    /// Write all results as JSON into this file, too.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Draw throughput, and CPU seconds per GiB, over the sizes into this SVG file: a line for
    /// each service, path, operation and concurrency. The figures go beside it as a table in
    /// Markdown, with the file's name ending in `.md`.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// This is a process of another one's run.
    #[arg(long, hide = true)]
    child: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a name, =, and a value")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut runtime = if self.threads <= 1 {
            tokio::runtime::Builder::new_current_thread()
        } else {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            runtime.worker_threads(self.threads);
            runtime
        };
        runtime.enable_all().build()?.block_on(self.bench())
    }

    async fn bench(self) -> anyhow::Result<()> {
        let targets = self.targets()?;
        if self.child {
            return processes::serve(targets).await;
        }
        let mut results = Vec::new();
        for target in &targets {
            dataset::ensure_bucket(&target.client, &self.bucket).await.with_context(|| {
                format!("cannot use {} at {}", target.name, target.client.endpoint())
            })?;
        }
        let count = self.count()?;
        let mut bench = Bench {
            processes: Processes::start(count, &targets)?,
            bucket: self.bucket.clone(),
            memory: self.memory.clone(),
            nonce: fastrand::u64(..),
            targets,
        };
        for cell in self.cells(count) {
            // Peers take turns within a cell, so that a machine that drifts drifts for all.
            for index in 0..bench.targets.len() {
                if cell.operation == Operation::List {
                    self.load_keys(&bench.targets[index], cell.size).await?;
                }
                let measured = bench.measure(index, cell).await?;
                self.show(&measured);
                results.push(measured);
            }
        }
        if !self.json {
            output::line(&format!("\n{}", report::table(&results)));
        }
        if let Some(path) = &self.report {
            let all: Vec<_> = results.iter().map(Measured::json).collect();
            std::fs::write(path, serde_json::to_vec_pretty(&all)?)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        if let Some(path) = &self.plot {
            let write = |path: &Path, text: String| {
                std::fs::write(path, text)
                    .with_context(|| format!("cannot write {}", path.display()))
            };
            write(path, plot::svg(&results)?)?;
            write(&path.with_extension("md"), report::markdown(&results))?;
        }
        Ok(())
    }

    fn targets(&self) -> anyhow::Result<Vec<Target>> {
        // What is measured is one attempt, and every connection stays open.
        let connections = self.concurrency.iter().copied().max().unwrap_or(1).max(64);
        let client = |connection: &Connection, transfer: &Transfer| -> anyhow::Result<Client> {
            let builder = connection.builder()?.retry(RetryPolicy::NONE);
            Ok(transfer.apply(builder).connections_max(connections).build()?)
        };
        // What a GET reads is not always held in memory that its path takes.
        let filler = |connection: &Connection| -> anyhow::Result<Client> {
            Ok(connection.builder()?.connections_max(connections).build()?)
        };
        let ours = |name: String, transfer: &Transfer| -> anyhow::Result<Target> {
            Ok(Target {
                name,
                client: client(&self.connection, transfer)?,
                filler: filler(&self.connection)?,
                server_pid: self.server_pid,
            })
        };
        let mut targets = Vec::new();
        if self.paths.is_empty() {
            targets.push(ours(self.name.clone(), &self.transfer)?);
        }
        for path in &self.paths {
            let name = format!("{} {}", self.name, path.name());
            targets.push(ours(name, &self.transfer.by(*path))?);
        }
        for (name, url) in &self.peer {
            let pid = self.peer_pid.iter().find(|(of, _)| of == name);
            let pid = pid.map(|(_, pid)| pid.parse().context("a process id is a number"));
            targets.push(Target {
                name: name.clone(),
                client: client(&self.connection.peer(name, url), &self.transfer)?,
                filler: filler(&self.connection.peer(name, url))?,
                server_pid: pid.transpose()?,
            });
        }
        Ok(targets)
    }

    /// How many processes measure.
    fn count(&self) -> anyhow::Result<usize> {
        let count = self.processes.map_or(self.memory.len(), usize::from);
        ensure!(
            count >= self.memory.len(),
            "{count} processes cannot use {} memories: each uses one",
            self.memory.len()
        );
        Ok(count)
    }

    fn cells(&self, processes: usize) -> Vec<Cell> {
        let mut cells = Vec::new();
        for operation in &self.operations {
            let sizes = match (operation, &self.sweep) {
                (Operation::List, _) => &self.list_keys,
                (_, Some(Sweep(sizes))) => sizes,
                (_, None) => &self.sizes,
            };
            for size in sizes {
                for workers in &self.concurrency {
                    let ranges = self.batch.filter(|_| *operation == Operation::Get);
                    let object = self.batch_object;
                    cells.push(Cell {
                        batch: ranges.map(|ranges| batch::Batch::new(ranges, *size, object)),
                        operation: *operation,
                        size: *size,
                        workers: (*workers).max(1),
                        processes,
                        part_size: self.part_size.unwrap_or(*size),
                        durability: self.durability,
                        warm_up: Duration::from_secs_f64(self.warm_up_seconds.clamp(0.0, 60.0)),
                        time: Duration::from_secs_f64(self.seconds.clamp(0.1, 600.0)),
                    });
                }
            }
        }
        cells
    }

    async fn load_keys(&self, target: &Target, keys: u64) -> anyhow::Result<()> {
        let visible = std::io::stderr().is_terminal() && !self.json;
        let draw =
            if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(keys), draw)
            .with_message(format!("storing {keys} keys in {}", target.name));
        dataset::load_keys(target, &self.bucket, keys, |done| bar.set_position(done)).await?;
        bar.finish_and_clear();
        Ok(())
    }

    fn show(&self, measured: &Measured) {
        if self.json {
            output::line(&measured.json().to_string());
        } else {
            output::line(&format!("{}: {}", measured.target, measured.gdsio()));
            measured.breakdown().for_each(|line| output::line(&line));
        }
    }
}
