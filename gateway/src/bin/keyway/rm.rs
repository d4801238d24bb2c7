//! `keyway rm`.

use std::pin::pin;

use anyhow::bail;
use futures::TryStreamExt as _;
use serde_json::json;

use crate::client::{Connection, S3Url, block_on};
use crate::output;

/// Deletes an object, or all below a prefix.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// The object, or with --recursive a prefix or bucket: s3://bucket/key.
    target: S3Url,
    /// Delete everything that begins with the key.
    #[arg(long, short)]
    recursive: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        block_on(self.remove())
    }

    async fn remove(self) -> anyhow::Result<()> {
        let client = self.connection.client()?;
        let S3Url { bucket, key } = &self.target;
        let mut deleted = 0;
        if self.recursive {
            let mut pages = pin!(client.list_objects(bucket).prefix(key).pages());
            while let Some(page) = pages.try_next().await? {
                let keys: Vec<&str> = page.objects.iter().map(|o| o.key.as_str()).collect();
                let failures = client.delete_objects(bucket, &keys).await?;
                if let Some(failure) = failures.first() {
                    bail!(
                        "{} objects stayed, among them {}: {} {}",
                        failures.len(),
                        failure.key,
                        failure.code,
                        failure.message
                    );
                }
                deleted += keys.len();
            }
        } else {
            if key.is_empty() {
                bail!("s3://{bucket} names no object: say which, or --recursive");
            }
            client.delete_object(bucket, key).await?;
            deleted = 1;
        }
        output::line(&if self.json {
            json!({ "bucket": bucket, "key": key, "deleted": deleted }).to_string()
        } else {
            format!("{deleted} deleted")
        });
        Ok(())
    }
}
