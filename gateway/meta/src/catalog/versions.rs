//! Listing versions.
//!
//! Current objects and all other versions stand in two spaces: each is walked as a listing of
//! objects is, and the two are merged. A version may move from one to the other in between, so
//! that it is met twice, or not at all: a walk during which the current objects changed is taken
//! anew.

use bytes::Bytes;

use super::current::Place;
use super::walk::{Found, start, walk};
use super::{Catalog, CatalogError, ListQuery, PAGE_MAX, VersionEntry, VersionPage};
use crate::key::Space;
use crate::record::{Bucket, VersionName, Versioning};
use crate::row::{self, Kind};
use crate::store::MetaError;

/// How often a walk is taken anew; the last one is told whatever changed.
const WALKS_MAX: usize = 4;

/// A row or a group, as the two walks meet it.
struct Met {
    /// Key or group.
    name: String,
    /// Behind its key, among the versions: newer ones first.
    place: Bytes,
    is_current: bool,
    /// `None` for a group.
    row: Option<Bytes>,
}

impl Catalog {
    /// Lists versions and delete markers; `query.after` is the key marker, and `after_version`
    /// the version marker: with it, older versions of the marker's key are listed too.
    pub async fn versions(
        &self,
        bucket: &Bucket,
        query: &ListQuery,
        after_version: Option<VersionName>,
    ) -> Result<VersionPage, CatalogError> {
        let limit = query.limit.min(PAGE_MAX);
        let mut page = VersionPage::default();
        if limit == 0 {
            return Ok(page);
        }
        let resumed = match after_version {
            Some(name) => Resumed::At(self.place_of(bucket, query, name).await?),
            None => Resumed::No,
        };
        let mut met = self.meet(bucket, query, &resumed, limit + 1).await?;
        let more = met.len() > limit;
        met.truncate(limit);
        let mut last_key = match resumed {
            Resumed::No => None,
            Resumed::At(_) => Some(query.after.clone()),
        };
        for Met { name, is_current, row, .. } in met {
            let Some(row) = row else {
                page.next = more.then(|| (name.clone(), None));
                page.common_prefixes.push(name);
                continue;
            };
            let kind = row::decode_kind(&row)?;
            page.next = more.then(|| (name.clone(), Some(kind.name())));
            let is_latest = is_current || last_key.as_ref() != Some(&name);
            let (modified, object) = match &kind {
                Kind::Marker(marker) => (marker.modified, None),
                Kind::Object { .. } => {
                    let summary = row::decode_summary(&row)?;
                    (summary.modified, Some(summary))
                }
            };
            let key = name.parse().map_err(|_| MetaError::Damaged("object key"))?;
            last_key = Some(name);
            let (version, name) = (kind.version(), kind.name());
            page.versions.push(VersionEntry { key, version, name, is_latest, modified, object });
        }
        Ok(page)
    }

    /// The first `wanted` of both walks together.
    async fn meet(
        &self,
        bucket: &Bucket,
        query: &ListQuery,
        resumed: &Resumed,
        wanted: usize,
    ) -> Result<Vec<Met>, CatalogError> {
        let mut current = self.current_met(bucket, query, resumed, wanted).await?;
        if bucket.settings.versioning == Versioning::Unversioned {
            return Ok(current);
        }
        let versions = Space::versions(bucket.id);
        for walked in 1.. {
            let behind = match resumed {
                Resumed::At(Some(place)) => Some(place.clone()),
                Resumed::At(None) => Some(versions.before(&query.after)),
                Resumed::No => None,
            };
            let start = start(versions, query, behind);
            let found = walk(&*self.store, versions, query, start, wanted).await?;
            let again = self.current_met(bucket, query, resumed, wanted).await?;
            let stood = same(&current, &again);
            current = again;
            if stood || walked == WALKS_MAX {
                let others = found.into_iter().map(|found| met(bucket, found, false));
                let others: Result<Vec<Met>, MetaError> = others.collect();
                return Ok(merged(current, others?, wanted));
            }
        }
        unreachable!("the last walk is told")
    }

    /// The current objects of the page; where it goes on within a key, that key's object too, if
    /// it is behind the marker.
    async fn current_met(
        &self,
        bucket: &Bucket,
        query: &ListQuery,
        resumed: &Resumed,
        wanted: usize,
    ) -> Result<Vec<Met>, CatalogError> {
        let space = Space::objects(bucket.id);
        let behind = match resumed {
            Resumed::At(_) => Some(space.before(&query.after)),
            Resumed::No => None,
        };
        let start = start(space, query, behind);
        let found = walk(&*self.store, space, query, start, wanted + 1).await?;
        let met = found.into_iter().map(|found| met(bucket, found, true));
        let mut met = met.collect::<Result<Vec<Met>, MetaError>>()?;
        if let Resumed::At(Some(place)) = resumed {
            met.retain(|met| met.row.is_none() || met.name != query.after || met.place > *place);
        }
        met.truncate(wanted);
        Ok(met)
    }

    /// Where a version marker stands, whether the version does or not.
    async fn place_of(
        &self,
        bucket: &Bucket,
        query: &ListQuery,
        name: VersionName,
    ) -> Result<Option<Bytes>, CatalogError> {
        let Ok(key) = query.after.parse() else { return Ok(None) };
        let at = Place::new(bucket.id, &key);
        if let VersionName::Id(id) = name {
            return Ok(Some(at.version(id)));
        }
        // A null version that is gone stood nobody knows where. Its key is listed from its
        // beginning: those who delete what they have listed have left nothing there.
        Ok(self.locate(&at, name).await?.map(|found| at.version(found.kind.version())))
    }
}

/// Whether a page goes on within a key.
enum Resumed {
    No,
    /// Behind this row among the versions; from the key's beginning without it.
    At(Option<Bytes>),
}

fn met(bucket: &Bucket, found: Found, is_current: bool) -> Result<Met, MetaError> {
    Ok(match found {
        Found::Group(name) => Met { name, place: Bytes::new(), is_current, row: None },
        Found::Row { key, row_key, row } => {
            let place = if is_current {
                let version = row::decode_kind(&row)?.version();
                Space::versions(bucket.id).version(&key, version)
            } else {
                row_key
            };
            Met { name: key, place, is_current, row: Some(row) }
        }
    })
}

fn same(left: &[Met], right: &[Met]) -> bool {
    left.len() == right.len()
        && left.iter().zip(right).all(|(left, right)| {
            (&left.name, &left.place, &left.row) == (&right.name, &right.place, &right.row)
        })
}

/// Both in one order, and once what both have met: a group, or a version that has moved.
fn merged(current: Vec<Met>, others: Vec<Met>, wanted: usize) -> Vec<Met> {
    let mut all = current;
    all.extend(others);
    // Stable: what is current comes first.
    all.sort_by(|left, right| (&left.name, &left.place).cmp(&(&right.name, &right.place)));
    all.dedup_by(|later, earlier| (&later.name, &later.place) == (&earlier.name, &earlier.place));
    all.truncate(wanted);
    all
}
