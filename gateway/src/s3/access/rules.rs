//! A bucket's rules: whose it is, its policy, its public-access block.
//!
//! They are read with every request, from redb's last snapshot: so what was changed holds for
//! the next request, and no cache must be told. What is kept are policies that were parsed, each
//! with the text that it was parsed from.

use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use keyway_auth::policy::{Policy, PublicAccessBlock};
use keyway_meta::ConfigurationKind;
use keyway_meta::{Bucket, CatalogError, MetaError};
use keyway_proto::{BucketId, BucketName, TenantId};
use quick_cache::sync::Cache;

use crate::s3::Core;
use crate::s3::configuration::block_of;
use crate::s3::errors::Failure;

/// Parsed policies that are kept.
const POLICIES_MAX: usize = 1024;

/// What holds for a bucket.
#[derive(Clone)]
pub(in crate::s3) struct Rules {
    /// The bucket.
    pub(in crate::s3) bucket: Bucket,
    /// Its policy, if it has one.
    pub(in crate::s3) policy: Option<Arc<Policy>>,
    /// Its block and its tenant's together.
    pub(in crate::s3) block: PublicAccessBlock,
}

/// Reads rules.
pub(in crate::s3) struct RuleBook {
    parsed: Cache<BucketId, (Bytes, Arc<Policy>)>,
}

impl Default for RuleBook {
    fn default() -> Self {
        Self { parsed: Cache::new(POLICIES_MAX) }
    }
}

impl RuleBook {
    /// The rules of a tenant's bucket; none when it is not there, or no bucket can be called so.
    ///
    /// # Errors
    /// The catalog's. A policy that cannot be read any more lets nobody in.
    pub(in crate::s3) async fn of(
        &self,
        core: &Core,
        tenant: TenantId,
        name: &str,
    ) -> Result<Option<Rules>, Failure> {
        let Ok(name) = BucketName::from_str(name) else { return Ok(None) };
        let bucket = match core.catalog.bucket(tenant, &name).await {
            Ok(bucket) => bucket,
            Err(CatalogError::NoSuchBucket) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let text = core.catalog.configuration(&bucket, ConfigurationKind::Policy).await?;
        let policy = text.map(|text| self.parsed(&bucket, text)).transpose()?;
        let of_bucket = block_of(core, &bucket).await?.unwrap_or_default();
        let block = of_bucket.with(core.credentials.terms(tenant).block);
        Ok(Some(Rules { bucket, policy, block }))
    }

    fn parsed(&self, bucket: &Bucket, text: Bytes) -> Result<Arc<Policy>, Failure> {
        if let Some((known, policy)) = self.parsed.get(&bucket.id)
            && known == text
        {
            return Ok(policy);
        }
        let damaged = || Failure::from(CatalogError::from(MetaError::Damaged("bucket policy")));
        let words = std::str::from_utf8(&text).map_err(|_| damaged())?;
        let policy = Policy::bucket(words, &bucket.name).map_err(|error| {
            tracing::error!(bucket = %bucket.name, %error, "a stored policy cannot be read");
            damaged()
        })?;
        let policy = Arc::new(policy);
        self.parsed.insert(bucket.id, (text, Arc::clone(&policy)));
        Ok(policy)
    }
}
