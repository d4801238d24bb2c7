//! `keyway mb` and `keyway rb`.

use crate::client::{Connection, S3Url, block_on};

/// Creates a bucket.
#[derive(clap::Args)]
pub(crate) struct MakeArgs {
    #[command(flatten)]
    connection: Connection,
    /// The bucket: s3://bucket.
    #[arg(value_parser = S3Url::bucket)]
    bucket: S3Url,
    /// Succeed where it exists already and is one's own.
    #[arg(long)]
    exist_ok: bool,
}

impl MakeArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        block_on(async {
            match self.connection.client()?.create_bucket(&self.bucket.bucket).await {
                Err(e) if self.exist_ok && e.code() == Some("BucketAlreadyOwnedByYou") => Ok(()),
                result => Ok(result?),
            }
        })
    }
}

/// Deletes an empty bucket.
#[derive(clap::Args)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    connection: Connection,
    /// The bucket: s3://bucket.
    #[arg(value_parser = S3Url::bucket)]
    bucket: S3Url,
}

impl RemoveArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        block_on(async { Ok(self.connection.client()?.delete_bucket(&self.bucket.bucket).await?) })
    }
}
