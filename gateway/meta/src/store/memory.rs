//! The engine in a map: for tests, and as the reference for the others.

use std::collections::BTreeMap;
use std::ops::Bound;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::RwLock;

use super::{Batch, MetaError, MetaStore, Tally};

/// A store that lives as long as its process.
#[derive(Default)]
pub struct MemoryStore {
    entries: RwLock<BTreeMap<Bytes, Bytes>>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }
}

#[async_trait]
impl MetaStore for MemoryStore {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError> {
        Ok(self.entries.read().get(key).cloned())
    }

    async fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, MetaError> {
        if start >= end {
            return Ok(Vec::new());
        }
        let range = (Bound::Included(start), Bound::Excluded(end));
        let entries = self.entries.read();
        let page = entries.range::<[u8], _>(range).take(limit);
        Ok(page.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    async fn commit(&self, batch: Batch) -> Result<(), MetaError> {
        let mut entries = self.entries.write();
        let exact = batch.expect.iter().all(|(key, value)| entries.get(key) == value.as_ref());
        let empty = batch.expect_empty.iter().all(|(start, end)| {
            start >= end || entries.range(start.clone()..end.clone()).next().is_none()
        });
        if !(exact && empty) {
            return Err(MetaError::Conflict);
        }
        let tallied = |tally: &Tally| {
            let now = entries.get(&tally.key).map(|row| &row[..]);
            Ok((tally.key.clone(), tally.moved(now)?))
        };
        let tallied: Vec<_> =
            batch.tallies.iter().map(tallied).collect::<Result<_, MetaError>>()?;
        let mut numbered: Vec<(Bytes, Option<Bytes>)> = Vec::new();
        for append in &batch.appends {
            let before = numbered.iter().rfind(|(key, _)| *key == append.counter);
            let now = match before {
                Some((_, row)) => row.as_ref(),
                None => entries.get(&append.counter),
            };
            let rows = append.numbered(now.map(|row| &row[..]))?;
            numbered.extend(rows);
        }
        for (key, value) in batch.writes.into_iter().chain(tallied).chain(numbered) {
            match value {
                Some(value) => entries.insert(key, value),
                None => entries.remove(&key),
            };
        }
        Ok(())
    }
}
