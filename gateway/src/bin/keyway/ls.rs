//! `keyway ls`.

use std::pin::pin;

use futures::TryStreamExt as _;
use serde_json::json;

use crate::client::{Connection, S3Url, block_on};
use crate::output;

/// Lists buckets, or the objects of one.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// A bucket, or a prefix in it: s3://bucket/prefix. All buckets unless said.
    place: Option<S3Url>,
    /// List what lies below the prefix at any depth.
    #[arg(long, short)]
    recursive: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        block_on(async {
            match &self.place {
                None => self.buckets().await,
                Some(place) => self.objects(place).await,
            }
        })
    }

    async fn buckets(&self) -> anyhow::Result<()> {
        for bucket in self.connection.client()?.list_buckets().await? {
            let created = bucket.created.map(|time| time.to_string());
            output::line(&if self.json {
                json!({ "bucket": bucket.name, "created": created }).to_string()
            } else {
                format!("{:<24} s3://{}", created.as_deref().unwrap_or("-"), bucket.name)
            });
        }
        Ok(())
    }

    async fn objects(&self, place: &S3Url) -> anyhow::Result<()> {
        let mut listing = self.connection.client()?.list_objects(&place.bucket);
        if !place.key.is_empty() {
            listing = listing.prefix(&place.key);
        }
        if !self.recursive {
            listing = listing.delimiter("/");
        }
        let mut pages = pin!(listing.pages());
        while let Some(page) = pages.try_next().await? {
            for prefix in &page.common_prefixes {
                output::line(&if self.json {
                    json!({ "prefix": prefix }).to_string()
                } else {
                    format!("{:<24} {:>14} {prefix}", "", "")
                });
            }
            for object in &page.objects {
                let modified = object.last_modified.map(|time| time.to_string());
                output::line(&if self.json {
                    json!({
                        "key": object.key, "bytes": object.size, "etag": object.etag,
                        "modified": modified,
                    })
                    .to_string()
                } else {
                    let modified = modified.as_deref().unwrap_or("-");
                    format!("{modified:<24} {:>14} {}", object.size, object.key)
                });
            }
        }
        Ok(())
    }
}
