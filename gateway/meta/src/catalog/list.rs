//! Listing objects.

use super::walk::{Found, start, walk};
use super::{Catalog, CatalogError, ListPage, ListQuery, PAGE_MAX};
use crate::key::Space;
use crate::record::Bucket;
use crate::row;
use crate::store::MetaError;

impl Catalog {
    /// Lists current objects: at most `query.limit` and [`PAGE_MAX`] keys and groups. A limit
    /// of 0 gives an empty page without a next one.
    ///
    /// Each page shows a consistent state of the rows it read at once, not of the whole.
    pub async fn list(&self, bucket: &Bucket, query: &ListQuery) -> Result<ListPage, CatalogError> {
        let limit = query.limit.min(PAGE_MAX);
        let mut page = ListPage::default();
        if limit == 0 {
            return Ok(page);
        }
        let space = Space::objects(bucket.id);
        let start = start(space, query, None);
        let mut found = walk(&*self.store, space, query, start, limit + 1).await?;
        if found.len() > limit {
            found.truncate(limit);
            page.next = found.last().map(|last| match last {
                Found::Row { key, .. } => key.clone(),
                Found::Group(group) => group.clone(),
            });
        }
        for found in found {
            match found {
                Found::Row { key, row, .. } => {
                    let key = key.parse().map_err(|_| MetaError::Damaged("object key"))?;
                    page.objects.push((key, row::decode_summary(&row)?));
                }
                Found::Group(group) => page.common_prefixes.push(group),
            }
        }
        Ok(page)
    }
}
