//! The documents that configure a bucket, each in a row of its own.
//!
//! The catalog keeps them as they are given: what they mean is known to those that act by them.

use bytes::Bytes;

use super::{Catalog, CatalogError};
use crate::key;
use crate::record::{Bucket, ConfigurationKind};
use crate::row;
use crate::store::Batch;

impl Catalog {
    /// The bucket's document of this kind.
    pub async fn configuration(
        &self,
        bucket: &Bucket,
        kind: ConfigurationKind,
    ) -> Result<Option<Bytes>, CatalogError> {
        let row = self.store.get(&key::configuration(bucket.id, kind.number())).await?;
        Ok(row.as_ref().map(row::decode_document).transpose()?)
    }

    /// Sets the bucket's document of this kind, or removes it.
    ///
    /// # Errors
    /// [`CatalogError::NoSuchBucket`] when the bucket is gone.
    pub async fn configure(
        &self,
        bucket: &Bucket,
        kind: ConfigurationKind,
        document: Option<&[u8]>,
    ) -> Result<(), CatalogError> {
        let row_key = key::configuration(bucket.id, kind.number());
        let row = document.map(row::encode_document);
        let write = |batch: &mut Batch| {
            batch.frees_space = row.is_none();
            batch.writes.push((row_key.clone(), row.clone()));
        };
        self.commit_into(bucket, write).await
    }
}
