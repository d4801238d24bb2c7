//! `keyway demo`: the main job, end to end, with every check on.
//!
//! A checkpoint lies in memory; it is stored by a multipart upload from where it lies,
//! and pulled back by parallel ranged reads into memory that the caller owns. Then the
//! object's CRC64NVME and every tensor are held against what was sent.

mod safetensors;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use keyway_client::{ClientError, HostBuffer};
use keyway_proto::{Checksum, ChecksumKind};
use serde_json::json;

use self::safetensors::{Checkpoint, Table};
use crate::bench::usage::ProcessTime;
use crate::client::{Connection, block_on};
use crate::output::{self, Bar};

/// Stores a checkpoint, pulls it back into memory, and verifies every byte.
///
/// Without --checkpoint one is made: a transformer's tensors with their usual names and
/// sizes, 256 MiB and more.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// A checkpoint in the safetensors format.
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// MiB of the checkpoint that is made, at least.
    #[arg(long, value_name = "MIB", default_value_t = 256, conflicts_with = "checkpoint")]
    mib: u64,
    /// The bucket to use; it is created where there is none.
    #[arg(long, default_value = "keyway-demo")]
    bucket: String,
    /// Leave the object in the bucket.
    #[arg(long)]
    keep: bool,
    /// Parts in flight at a time.
    #[arg(long, default_value_t = 8)]
    concurrency: usize,
    /// Process id of the server, to tell its CPU time, too.
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// What one direction took.
struct Leg {
    elapsed: Duration,
    client_cpu: Duration,
    server_cpu: Option<Duration>,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        block_on(self.demo())
    }

    async fn demo(self) -> anyhow::Result<()> {
        let client = self.connection.builder()?.concurrency(self.concurrency).build()?;
        let (name, checkpoint) = match &self.checkpoint {
            Some(path) => {
                let bytes = std::fs::read(path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                let name = path.file_name().and_then(|name| name.to_str());
                (name.context("the checkpoint has no name")?.to_owned(), bytes)
            }
            None => ("demo.safetensors".to_owned(), Checkpoint::transformer(self.mib << 20)),
        };
        let sent = Table::read(&checkpoint).context("not a safetensors checkpoint")?;
        let whole = Checksum::of(ChecksumKind::Crc64Nvme, &checkpoint);
        let bytes = checkpoint.len() as u64;
        self.say(&format!(
            "checkpoint  {name}: {}, {} tensors, CRC64NVME {}",
            output::size(bytes),
            sent.tensors(),
            whole.to_hex()
        ));

        match client.create_bucket(&self.bucket).await {
            Err(ClientError::Service(e)) if e.code == "BucketAlreadyOwnedByYou" => {}
            result => result.context("cannot create the bucket")?,
        }
        let mut source = HostBuffer::from(checkpoint);
        let bar = Bar::new("storing", self.json);
        let put = client
            .put_object(&self.bucket, &name)
            .body(source.slice(..)?)
            .on_progress(bar.reporter());
        let (put, stored) = self.leg(Box::pin(put.send())).await;
        let put = put.context("cannot store the checkpoint")?;
        bar.finish();
        self.say(&format!(
            "stored      {} parts by {}, {} in {:.2} s, {} retries, {}{}",
            put.parts,
            put.path,
            output::rate(bytes, stored.elapsed),
            stored.elapsed.as_secs_f64(),
            put.retries,
            put.verified,
            stored.cpu(bytes)
        ));

        let mut memory = HostBuffer::zeroed(bytes as usize)?;
        let (touched, ready) = self.leg(async { touch(&mut memory) }).await;
        touched?;
        self.say(&format!(
            "memory      {} of the caller's own, new pages, in {:.2} s{}",
            output::size(bytes),
            ready.elapsed.as_secs_f64(),
            ready.cpu(bytes)
        ));
        let bar = Bar::new("pulling back", self.json);
        let get = client.get_object(&self.bucket, &name).on_progress(bar.reporter());
        let target = memory.slice_mut(..)?;
        let (got, pulled) = self.leg(Box::pin(get.into(target))).await;
        let got = got.context("cannot pull the checkpoint back")?;
        bar.finish();
        self.say(&format!(
            "pulled back by {}, key strength {}, {} in {:.2} s, {} retries, {}{}",
            got.path,
            got.strength,
            output::rate(bytes, pulled.elapsed),
            pulled.elapsed.as_secs_f64(),
            got.retries,
            got.verified,
            pulled.cpu(bytes)
        ));

        let found = Checksum::of(ChecksumKind::Crc64Nvme, &got.target);
        ensure!(found == whole, "the bytes in memory are not those that were stored");
        let table = Table::read(&got.target).context("what came back is no checkpoint")?;
        ensure!(table == sent, "the tensors that came back are not those that were stored");
        self.say(&format!(
            "verified    CRC64NVME of the memory, and {} tensors by name, type, shape and bytes",
            table.tensors()
        ));
        if !self.keep {
            client.delete_object(&self.bucket, &name).await?;
        }
        if self.json {
            output::line(
                &json!({
                    "checkpoint": name, "bytes": bytes, "tensors": table.tensors(),
                    "crc64nvme": whole.to_hex(),
                    "memory": ready.json(bytes),
                    "put": stored.json(bytes), "put_parts": put.parts,
                    "put_retries": put.retries, "put_verified": put.verified.is_whole(),
                    "get": pulled.json(bytes), "get_retries": got.retries,
                    "get_verified": got.verified.is_whole(),
                    "path": got.path.to_string(), "strength": got.strength.to_string(),
                })
                .to_string(),
            );
        }
        Ok(())
    }

    fn say(&self, text: &str) {
        if !self.json {
            output::line(text);
        }
    }

    async fn leg<T>(&self, work: impl Future<Output = T>) -> (T, Leg) {
        let server = || self.server_pid.and_then(|pid| ProcessTime::of(pid).ok());
        let (own_before, server_before) = (ProcessTime::own(), server());
        let started = Instant::now();
        let result = work.await;
        let elapsed = started.elapsed();
        let server_cpu = server().zip(server_before).map(|(after, before)| after.since(before));
        let client_cpu = ProcessTime::own()
            .ok()
            .zip(own_before.ok())
            .map(|(after, before)| after.since(before))
            .unwrap_or_default();
        (result, Leg { elapsed, client_cpu, server_cpu })
    }
}

/// Has the system find and clear the buffer's pages, as registering them with a device would.
/// Whoever reads more than once into the same memory pays for it once; on a virtual machine
/// whose host has yet to find the pages, it costs several times as much as the read.
fn touch(buffer: &mut HostBuffer) -> Result<(), keyway_client::LendError> {
    const PAGE_BYTES: usize = 4096;
    for page in buffer.bytes_mut()?.chunks_mut(PAGE_BYTES) {
        page[0] = 0;
    }
    Ok(())
}

impl Leg {
    fn cpu(&self, bytes: u64) -> String {
        let per_gib = |cpu: Duration| cpu.as_secs_f64() * (1u64 << 30) as f64 / bytes as f64;
        let server = self.server_cpu.map(|cpu| format!(", server {:.2}", per_gib(cpu)));
        format!("; CPU s/GiB: client {:.2}{}", per_gib(self.client_cpu), server.unwrap_or_default())
    }

    fn json(&self, bytes: u64) -> serde_json::Value {
        json!({
            "seconds": self.elapsed.as_secs_f64(),
            "gb_per_second": bytes as f64 / 1e9 / self.elapsed.as_secs_f64(),
            "client_cpu_seconds": self.client_cpu.as_secs_f64(),
            "server_cpu_seconds": self.server_cpu.map(|cpu| cpu.as_secs_f64()),
        })
    }
}
