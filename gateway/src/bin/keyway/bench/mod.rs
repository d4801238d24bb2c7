//! `keyway bench`: closed-loop load against any S3 service, peers side by side.

mod histogram;
mod load;
pub(crate) mod pattern;
mod report;
pub(crate) mod usage;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressDrawTarget};
use keyway_client::{Client, Durability, RetryPolicy};
use std::io::IsTerminal as _;

use self::load::{Cell, Measured, Operation, Target};
use crate::client::{Connection, Transfer, durability};
use crate::memory::Memory;
use crate::output;

/// Measures an S3 service, and others beside it in the same run.
///
/// Each cell of the table is a closed loop: so many workers, each asking again as soon as it
/// was answered, after a warm-up and for a bounded time. The checksum that a service tells is
/// verified on every GET, and one GET in 16 is compared byte by byte with what was stored.
/// Prints gdsio's result line for each cell, and a table at the end.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    transfer: Transfer,
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
    /// What to ask for.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "get,put")]
    operations: Vec<Operation>,
    /// Sizes of objects.
    #[arg(long, value_delimiter = ',', value_parser = bytes, default_value = "4KiB,1MiB,64MiB")]
    sizes: Vec<u64>,
    /// Where objects are read to and written from: host, or gpu:0 for the first GPU.
    #[arg(long, default_value_t)]
    memory: Memory,
    /// Bytes of one request: larger objects go in parts side by side. One request per object
    /// unless said.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    part_size: Option<u64>,
    /// Requests in flight.
    #[arg(long, value_delimiter = ',', default_value = "1,8,64")]
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
    /// Threads of the load generator; one is leanest.
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
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a name, =, and a value")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A size such as `4096`, `4KiB` or `64MiB`.
fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        unit => return Err(format!("{unit} is none of B, KiB, MiB, GiB")),
    };
    let number: u64 = digits.trim().parse().map_err(|e| format!("{digits}: {e}"))?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if (1..=5 << 30).contains(&bytes) => Ok(bytes),
        _ => Err("one request carries 1 byte to 5 GiB".to_owned()),
    }
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
        let mut results = Vec::new();
        for target in &targets {
            ensure_bucket(&target.client, &self.bucket).await.with_context(|| {
                format!("cannot use {} at {}", target.name, target.client.endpoint())
            })?;
        }
        for cell in self.cells() {
            // Peers take turns within a cell, so that a machine that drifts drifts for all.
            for target in &targets {
                if cell.operation == Operation::List {
                    self.load_keys(target, cell.size).await?;
                }
                let measured = load::measure(target, &self.bucket, cell).await?;
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
        Ok(())
    }

    fn targets(&self) -> anyhow::Result<Vec<Target>> {
        // What is measured is one attempt, and every connection stays open.
        let connections = self.concurrency.iter().copied().max().unwrap_or(1).max(64);
        let client = |connection: &Connection| -> anyhow::Result<Client> {
            let builder = connection.builder()?.retry(RetryPolicy::NONE);
            Ok(self.transfer.apply(builder).connections_max(connections).build()?)
        };
        // What a GET reads is not always held in memory that its path takes.
        let filler = |connection: &Connection| -> anyhow::Result<Client> {
            Ok(connection.builder()?.connections_max(connections).build()?)
        };
        let mut targets = vec![Target {
            name: self.name.clone(),
            client: client(&self.connection)?,
            filler: filler(&self.connection)?,
            server_pid: self.server_pid,
        }];
        for (name, url) in &self.peer {
            let pid = self.peer_pid.iter().find(|(of, _)| of == name);
            let pid = pid.map(|(_, pid)| pid.parse().context("a process id is a number"));
            targets.push(Target {
                name: name.clone(),
                client: client(&self.connection.peer(name, url))?,
                filler: filler(&self.connection.peer(name, url))?,
                server_pid: pid.transpose()?,
            });
        }
        Ok(targets)
    }

    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for operation in &self.operations {
            let sizes = match operation {
                Operation::Get | Operation::Put => &self.sizes,
                Operation::List => &self.list_keys,
            };
            for size in sizes {
                for workers in &self.concurrency {
                    cells.push(Cell {
                        operation: *operation,
                        size: *size,
                        workers: (*workers).max(1),
                        memory: self.memory,
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
        load::load_keys(target, &self.bucket, keys, |done| bar.set_position(done)).await?;
        bar.finish_and_clear();
        Ok(())
    }

    fn show(&self, measured: &Measured) {
        if self.json {
            output::line(&measured.json().to_string());
        } else {
            output::line(&format!("{}: {}", measured.target, measured.gdsio()));
        }
    }
}

/// The bucket, made where there is none.
async fn ensure_bucket(client: &Client, bucket: &str) -> anyhow::Result<()> {
    match client.head_bucket(bucket).await {
        Err(error) if error.is_not_found() => Ok(client.create_bucket(bucket).await?),
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes("4KiB"), Ok(4096));
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("7"), Ok(7));
        for bad in ["", "4KB", "0", "6GiB", "-1", "99999999999999999999"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }
}
