//! Documents that configure a bucket, each in a row of its own.

use bytes::Bytes;

use super::{ATTEMPTS_MAX, Catalog, CatalogError, require_bucket};
use crate::key;
use crate::record::Bucket;
use crate::row;
use crate::store::{Batch, MetaError};

/// What a document is about. The numbers are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Configuration {
    /// The bucket's policy, as its owner wrote it.
    Policy = b'p',
    /// The public-access block.
    PublicAccessBlock = b'b',
    /// Who owns objects.
    Ownership = b'o',
}

impl Configuration {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Policy, Self::PublicAccessBlock, Self::Ownership];
}

impl Catalog {
    /// The bucket's document of this kind.
    ///
    /// # Errors
    /// The store's.
    pub async fn configuration(
        &self,
        bucket: &Bucket,
        kind: Configuration,
    ) -> Result<Option<Bytes>, CatalogError> {
        let row = self.store.get(&key::configuration(bucket.id, kind as u8)).await?;
        Ok(row.map(|row| row::decode_document(&row)).transpose()?)
    }

    /// Writes the bucket's document of this kind, or removes it.
    ///
    /// # Errors
    /// [`CatalogError::NoSuchBucket`] when the bucket is gone.
    pub async fn configure(
        &self,
        bucket: &Bucket,
        kind: Configuration,
        document: Option<&[u8]>,
    ) -> Result<(), CatalogError> {
        for _ in 0..ATTEMPTS_MAX {
            let mut batch = Batch { frees_space: document.is_none(), ..Batch::default() };
            require_bucket(&mut batch, bucket.id);
            let name = key::configuration(bucket.id, kind as u8);
            batch.writes.push((name, document.map(row::encode_document)));
            if self.committed(batch).await? {
                return Ok(());
            }
            self.bucket_stands(bucket.id).await?;
        }
        Err(MetaError::Conflict.into())
    }

    /// Adds to the commit that deletes a bucket that its documents go with it.
    pub(super) async fn delete_configuration(
        &self,
        batch: &mut Batch,
        bucket: keyway_proto::BucketId,
    ) -> Result<(), CatalogError> {
        for kind in Configuration::ALL {
            let name = key::configuration(bucket, kind as u8);
            let row = self.store.get(&name).await?;
            if row.is_some() {
                batch.delete(name.clone());
            }
            batch.expect(name, row);
        }
        Ok(())
    }
}
