//! `keyway put`.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use keyway_client::{Durability, PutBody};
use serde_json::json;

use crate::client::{self, Connection, S3Url, Transfer, block_on};
use crate::memory::Memory;
use crate::output::{self, Bar};

/// Bytes taken from standard input at most: it is read whole, because its end is not known.
const STDIN_BYTES_MAX: u64 = 4 << 30;

/// Writes a file or standard input as an object.
///
/// The object appears when it is whole and the service has verified its checksum.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    transfer: Transfer,
    /// The file; `-` for standard input.
    source: PathBuf,
    /// The object: s3://bucket/key; the file's name is added to a key that is empty or ends
    /// in a slash.
    target: S3Url,
    /// The object's media type.
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// Metadata to keep with the object; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
    /// Fail where the object exists.
    #[arg(long)]
    if_absent: bool,
    /// Read the source into this memory, and send it from there: host, or gpu:0 for the first
    /// GPU. Files go from host memory part by part, from a GPU's whole.
    #[arg(long, default_value_t)]
    memory: Memory,
    /// Parts in flight at a time.
    #[arg(long, default_value_t = 8)]
    concurrency: usize,
    /// When it is done: when the object is on the service's disk, or when it is in the memory
    /// of a service that has room for it, and goes to its disk behind.
    #[arg(long, value_name = "disk|memory", default_value = "disk", value_parser = client::durability)]
    durability: Durability,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a name, =, and a value")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        block_on(self.put())
    }

    async fn put(self) -> anyhow::Result<()> {
        let builder = self.connection.builder()?.concurrency(self.concurrency);
        let client = self.transfer.apply(builder).build()?;
        let from_stdin = self.source == Path::new("-");
        let bucket = &self.target.bucket;
        let mut key = self.target.key.clone();
        if key.is_empty() || key.ends_with('/') {
            let name = self.source.file_name().filter(|_| !from_stdin);
            let name = name.and_then(|name| name.to_str()).context("the object needs a key")?;
            key.push_str(name);
        }
        let mut buffer;
        let body = match self.memory {
            Memory::Host if from_stdin => stdin()?.into(),
            Memory::Host => PutBody::File(self.source.clone()),
            gpu => {
                let bytes = if from_stdin { stdin()? } else { std::fs::read(&self.source)? };
                buffer = gpu.buffer(bytes.len())?;
                buffer.fill(|memory| memory.copy_from_slice(&bytes))?;
                buffer.body()?
            }
        };
        let bar = Bar::new(&key, self.json);
        let mut put = client.put_object(bucket, &key).body(body).on_progress(bar.reporter());
        put = put.durability(self.durability);
        if let Some(content_type) = &self.content_type {
            put = put.content_type(content_type)?;
        }
        for (name, value) in &self.metadata {
            put = put.metadata(name, value)?;
        }
        if self.if_absent {
            put = put.if_absent();
        }
        let started = Instant::now();
        let done = put.send().await?;
        let elapsed = started.elapsed();
        bar.finish();
        output::line(&if self.json {
            json!({
                "bucket": bucket, "key": key, "bytes": done.bytes, "parts": done.parts,
                "seconds": elapsed.as_secs_f64(), "path": done.path.to_string(),
                "strength": done.strength.to_string(),
                "fallbacks": client::fallbacks(&done.fallbacks), "verified": done.verified.is_whole(),
                "verification": done.verified.to_string(), "retries": done.retries,
                "etag": done.etag, "version": done.version,
                "durability": done.durability.as_str(),
            })
            .to_string()
        } else {
            format!(
                "s3://{bucket}/{key}: {} by {}, {}, {}{}",
                output::size(done.bytes),
                done.path,
                done.verified,
                output::rate(done.bytes, elapsed),
                if done.durability == Durability::Memory { ", in memory" } else { "" },
            )
        });
        Ok(())
    }
}

fn stdin() -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(STDIN_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    anyhow::ensure!(
        read as u64 <= STDIN_BYTES_MAX,
        "more than 4 GiB on standard input: store it in a file first"
    );
    Ok(bytes)
}
