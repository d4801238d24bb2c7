//! Walking a space in S3's order, a group at a time.
//!
//! A delimiter listing seeks: when a key falls into a group, the group is noted and the walk
//! goes on behind its last possible key. What a page costs depends on what it shows, not on
//! how much lies under its groups: one seek for each group, and the rows shown.

use bytes::Bytes;

use super::{CatalogError, ListQuery};
use crate::key::{self, Space};
use crate::store::{MetaError, MetaStore};

/// Rows asked of the store at once.
const SCAN_MAX: usize = 256;

/// What a walk meets.
pub(super) enum Found {
    Row { key: String, row_key: Bytes, row: Bytes },
    Group(String),
}

/// Where a walk begins: strictly after `query.after`, and after its whole group when it lies
/// within one. `behind` is the row that `after` stands for, where keys have several.
pub(super) fn start(space: Space, query: &ListQuery, behind: Option<Bytes>) -> Bytes {
    if query.after.is_empty() {
        return space.from(&query.prefix);
    }
    match group(&query.after, query) {
        Some(group) => space.past(group),
        None => {
            let after = behind.map_or_else(|| space.after(&query.after), |row| key::next(&row));
            after.max(space.from(&query.prefix))
        }
    }
}

/// The next `wanted` rows and groups from `cursor` on.
pub(super) async fn walk(
    store: &dyn MetaStore,
    space: Space,
    query: &ListQuery,
    mut cursor: Bytes,
    wanted: usize,
) -> Result<Vec<Found>, CatalogError> {
    let end = space.past(&query.prefix);
    let mut found = Vec::new();
    // With a delimiter the next row may begin a group whose rows are not wanted: ask for
    // more only as rows turn out to be.
    let first_ask = if query.delimiter.is_empty() { SCAN_MAX } else { 1 };
    let mut ask = first_ask;
    'seek: while found.len() < wanted {
        let asked = ask.min(wanted - found.len());
        let rows = store.scan(&cursor, &end, asked).await?;
        let at_end = rows.len() < asked;
        for (row_key, row) in rows {
            let (key, _) = space.parse(&row_key).ok_or(MetaError::Damaged("row key"))?;
            if let Some(group) = group(&key, query) {
                cursor = space.past(group);
                found.push(Found::Group(group.to_owned()));
                ask = first_ask;
                continue 'seek;
            }
            cursor = key::next(&row_key);
            found.push(Found::Row { key, row_key, row });
        }
        if at_end {
            break;
        }
        ask = (ask * 2).min(SCAN_MAX);
    }
    Ok(found)
}

/// The group that `key` falls into: up to the first delimiter after the prefix.
fn group<'k>(key: &'k str, query: &ListQuery) -> Option<&'k str> {
    if query.delimiter.is_empty() {
        return None;
    }
    let rest = key.strip_prefix(query.prefix.as_str())?;
    let at = rest.find(&query.delimiter)?;
    Some(&key[..query.prefix.len() + at + query.delimiter.len()])
}
