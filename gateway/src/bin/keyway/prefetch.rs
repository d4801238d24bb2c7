//! `keyway prefetch`.

use keyway_client::PrefetchReply;
use serde_json::json;

use crate::client::{Connection, S3Url, block_on};
use crate::output;

/// Bring objects into the memory of the storage nodes, so that they are read from there.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// All objects that begin with this: s3://bucket/prefix.
    target: S3Url,
    /// The key is one object's, and not a prefix.
    #[arg(long)]
    exact: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        block_on(self.prefetch())
    }

    async fn prefetch(self) -> anyhow::Result<()> {
        let S3Url { bucket, key } = &self.target;
        let prefetch = self.connection.client()?.prefetch(bucket);
        let prefetch = if self.exact { prefetch.keys([key]) } else { prefetch.prefix(key) };
        let PrefetchReply { objects, missing, bytes, resident_bytes, .. } = prefetch.await?;
        output::line(&if self.json {
            json!({ "objects": objects, "missing": missing, "bytes": bytes,
                    "resident_bytes": resident_bytes })
            .to_string()
        } else {
            format!("{objects} objects, {resident_bytes} of {bytes} bytes in memory")
        });
        Ok(())
    }
}
