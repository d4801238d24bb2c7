//! A bucket's documents: kept in the catalog as JSON of our own types, never as the client's XML,
//! so that what is acted upon is what was checked.

use keyway_meta::{Bucket, Catalog, CatalogError, ConfigurationKind, MetaError};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The bucket's document of this kind.
///
/// # Errors
/// The catalog's; a document that is not what was stored is damaged.
pub(crate) async fn get<T: DeserializeOwned>(
    catalog: &Catalog,
    bucket: &Bucket,
    kind: ConfigurationKind,
) -> Result<Option<T>, CatalogError> {
    let Some(document) = catalog.configuration(bucket, kind).await? else { return Ok(None) };
    let parsed = serde_json::from_slice(&document);
    Ok(Some(parsed.map_err(|_| MetaError::Damaged("bucket's configuration"))?))
}

/// Sets the bucket's document of this kind.
///
/// # Errors
/// The catalog's.
pub(crate) async fn set<T: Serialize + Sync>(
    catalog: &Catalog,
    bucket: &Bucket,
    kind: ConfigurationKind,
    document: &T,
) -> Result<(), CatalogError> {
    let document = serde_json::to_vec(document);
    let document = document.map_err(|_| MetaError::Damaged("bucket's configuration"))?;
    catalog.configure(bucket, kind, Some(&document)).await
}
