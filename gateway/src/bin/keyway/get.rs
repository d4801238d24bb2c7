//! `keyway get`.

use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use keyway_client::{Client, Fallbacks, ObjectInfo, Unverified, Verified};
use keyway_proto::{ByteRange, Checksum, KeyStrength, TransferPath};
use serde_json::json;

use crate::client::{self, Connection, S3Url, Transfer, block_on};
use crate::memory::Memory;
use crate::output::{self, Bar};

/// Bytes held in memory at a time: windows of a large object go to disk one after the other.
const WINDOW_BYTES: u64 = 256 << 20;

/// Reads an object into a file or to standard output.
///
/// The file appears under its name when it is whole and its checksum was verified.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    transfer: Transfer,
    /// The object: s3://bucket/key.
    #[arg(value_parser = S3Url::object)]
    source: S3Url,
    /// Where to; `-` for standard output. The key's last segment in this directory unless
    /// said.
    target: Option<PathBuf>,
    /// Read into this memory, and write the file from there: host, or gpu:0 for the first GPU.
    #[arg(long, default_value_t)]
    memory: Memory,
    /// Parts in flight at a time.
    #[arg(long, default_value_t = 8)]
    concurrency: usize,
    /// Print the result as JSON on standard error's place: standard output.
    #[arg(long)]
    json: bool,
}

struct Done {
    bytes: u64,
    path: TransferPath,
    strength: KeyStrength,
    fallbacks: Fallbacks,
    verified: Verified,
    retries: u32,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        block_on(self.get())
    }

    async fn get(self) -> anyhow::Result<()> {
        let builder = self.connection.builder()?.concurrency(self.concurrency);
        let client = self.transfer.apply(builder).build()?;
        let S3Url { bucket, key } = &self.source;
        let started = Instant::now();
        let info = client.head_object(bucket, key).await?;
        let source =
            Source { client: &client, url: &self.source, info: &info, memory: self.memory };
        let to_stdout = self.target.as_deref() == Some(Path::new("-"));
        let bar = Bar::new(key, self.json);
        let (done, name) = if to_stdout {
            let mut out = std::io::stdout().lock();
            let write = |bytes: &[u8], _| out.write_all(bytes);
            let done = source.windows(&bar, write).await?;
            out.flush()?;
            (done, "-".to_owned())
        } else {
            let path = match &self.target {
                Some(path) if path.is_dir() => path.join(file_name(key)?),
                Some(path) => path.clone(),
                None => file_name(key)?.into(),
            };
            let done = source.to_file(&bar, &path).await?;
            (done, path.display().to_string())
        };
        bar.finish();
        let elapsed = started.elapsed();
        if self.json && !to_stdout {
            output::line(
                &json!({
                    "bucket": bucket, "key": key, "file": name, "bytes": done.bytes,
                    "seconds": elapsed.as_secs_f64(), "path": done.path.to_string(),
                    "strength": done.strength.to_string(),
                    "fallbacks": client::fallbacks(&done.fallbacks),
                    "verified": done.verified.is_whole(),
                    "verification": done.verified.to_string(),
                    "retries": done.retries, "etag": info.etag, "version": info.version,
                })
                .to_string(),
            );
        } else if !to_stdout {
            output::line(&format!(
                "{name}: {} by {}, {}, {}",
                output::size(done.bytes),
                done.path,
                done.verified,
                output::rate(done.bytes, elapsed),
            ));
        }
        Ok(())
    }
}

fn file_name(key: &str) -> anyhow::Result<&str> {
    let name = key.rsplit('/').next().unwrap_or_default();
    let usable = !matches!(name, "" | "." | "..");
    usable.then_some(name).context("the key ends in no file name: say where to")
}

/// What is read, and through which memory.
struct Source<'a> {
    client: &'a Client,
    url: &'a S3Url,
    info: &'a ObjectInfo,
    memory: Memory,
}

impl Source<'_> {
    /// Writes beside the target and renames, so that a broken transfer leaves no file that looks
    /// whole.
    async fn to_file(&self, bar: &Bar, path: &Path) -> anyhow::Result<Done> {
        let mut part_name = path.file_name().context("the target names no file")?.to_owned();
        part_name.push(format!(".keyway-{:08x}", fastrand::u32(..)));
        let part = path.with_file_name(part_name);
        let file = std::fs::File::create_new(&part)
            .with_context(|| format!("cannot write {}", part.display()))?;
        let result = async {
            let write = |bytes: &[u8], offset| file.write_all_at(bytes, offset);
            let done = self.windows(bar, write).await?;
            std::fs::rename(&part, path)?;
            Ok(done)
        }
        .await;
        if result.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        result
    }

    /// Reads the object in windows of bounded memory, all of the same version, and verifies the
    /// whole where its checksum combines.
    async fn windows(
        &self,
        bar: &Bar,
        mut write: impl FnMut(&[u8], u64) -> std::io::Result<()>,
    ) -> anyhow::Result<Done> {
        let Self { client, url: S3Url { bucket, key }, info, memory } = self;
        let expected = info.checksums.first().copied();
        let mut done = Done {
            bytes: 0,
            path: TransferPath::Http,
            strength: KeyStrength::Http,
            fallbacks: Fallbacks::default(),
            verified: Verified::No(Unverified::NoneStored),
            retries: 0,
        };
        let mut buffer = memory.buffer(info.size.min(WINDOW_BYTES) as usize)?;
        let mut found = expected.map(|sum| keyway_proto::checksum::Hasher::new(sum.kind()));
        loop {
            let length = WINDOW_BYTES.min(info.size - done.bytes);
            let range = ByteRange::new(done.bytes, length).context("an impossible size")?;
            let base = done.bytes;
            let report = bar.reporter();
            let size = info.size;
            let mut get = client.get_object(bucket, key).on_progress(move |progress| {
                report(keyway_client::Progress { bytes: base + progress.bytes, total: size });
            });
            if length < info.size {
                get = get.range(range);
            }
            if let Some(etag) = &info.etag {
                get = get.if_match(etag);
            }
            let outcome = buffer.get(get, length as usize).await?;
            buffer.look(outcome.bytes as usize, |bytes| {
                if let Some(hasher) = found.as_mut().filter(|_| length < info.size) {
                    hasher.update(bytes);
                }
                write(bytes, done.bytes)
            })??;
            // The weakest of all windows counts.
            if done.bytes == 0 || outcome.strength < done.strength {
                (done.path, done.strength) = (outcome.path, outcome.strength);
            }
            done.fallbacks.merge(&outcome.fallbacks);
            done.bytes += outcome.bytes;
            done.retries += outcome.retries;
            if length == info.size {
                done.verified = outcome.verified;
                return Ok(done);
            }
            if done.bytes == info.size {
                break;
            }
        }
        done.verified = match (expected, found.map(keyway_proto::checksum::Hasher::finish)) {
            (Some(expected), Some(found)) => verify(expected, found)?,
            _ if info.composite_checksum => Verified::No(Unverified::Composite),
            _ => Verified::No(Unverified::NoneStored),
        };
        Ok(done)
    }
}

fn verify(expected: Checksum, found: Checksum) -> anyhow::Result<Verified> {
    if expected == found {
        Ok(Verified::Whole(found))
    } else {
        Err(keyway_client::ClientError::ChecksumMismatch { expected, found }.into())
    }
}
