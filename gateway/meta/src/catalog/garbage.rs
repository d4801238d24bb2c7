//! Chunks that nothing names any more.

use keyway_proto::ChunkId;

use super::{ATTEMPTS_MAX, Catalog, CatalogError, PAGE_MAX};
use crate::key;
use crate::record::Extent;
use crate::row;
use crate::store::{Batch, MetaError};

impl Catalog {
    /// Chunks that lost an owner and have none left: ready to be released by their node. At
    /// most `limit`, oldest first.
    pub async fn garbage(&self, limit: usize) -> Result<Vec<Extent>, CatalogError> {
        self.garbage_after(None, limit).await
    }

    /// The same from behind `after` on: to pass over chunks whose node does not answer.
    pub async fn garbage_after(
        &self,
        after: Option<&Extent>,
        limit: usize,
    ) -> Result<Vec<Extent>, CatalogError> {
        let (first, end) = key::garbage_queue();
        let behind = after.map(|extent| key::next(&key::garbage(extent.chunk.id, extent.node)));
        let mut start = behind.unwrap_or(first);
        let mut unowned = Vec::new();
        while unowned.len() < limit {
            let rows = self.store.scan(&start, &end, (limit - unowned.len()).min(PAGE_MAX)).await?;
            let Some((last, _)) = rows.last() else { break };
            start = key::next(last);
            for (row_key, row) in rows {
                let extent = row::decode_extent(&row)?;
                let (first, past) = key::chunk_owners(extent.chunk.id);
                match self.store.scan(&first, &past, 1).await?.pop() {
                    None => unowned.push(extent),
                    Some(owner) => {
                        // Shared with a copy. The row goes, or every call would meet it; it
                        // comes back with the commit that takes the next owner away. When
                        // that one was first, this commit conflicts and the row stays.
                        let mut batch = Batch { frees_space: true, ..Batch::default() };
                        batch.expect(owner.0, Some(owner.1));
                        batch.delete(row_key);
                        self.committed(batch).await?;
                    }
                }
            }
        }
        Ok(unowned)
    }

    /// Forgets chunks that their node has released.
    pub async fn forget_garbage(&self, chunks: &[Extent]) -> Result<(), CatalogError> {
        if chunks.is_empty() {
            return Ok(());
        }
        let mut batch = Batch { frees_space: true, ..Batch::default() };
        for extent in chunks {
            batch.delete(key::garbage(extent.chunk.id, extent.node));
        }
        Ok(self.store.commit(batch).await?)
    }

    /// Which of these chunks an object or a part owns: the node's sweeper asks before it
    /// frees what a crash left behind.
    pub async fn owned(&self, chunks: &[ChunkId]) -> Result<Vec<bool>, CatalogError> {
        let mut owned = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let (start, end) = key::chunk_owners(*chunk);
            owned.push(!self.store.scan(&start, &end, 1).await?.is_empty());
        }
        Ok(owned)
    }

    /// Puts chunks that no one owns into the garbage queue, in one commit; answers which of
    /// them. From then on publishing them fails with [`CatalogError::Swept`]: what was
    /// condemned can be released while puts go on.
    pub async fn condemn(&self, chunks: &[Extent]) -> Result<Vec<bool>, CatalogError> {
        let ids: Vec<ChunkId> = chunks.iter().map(|extent| extent.chunk.id).collect();
        for _ in 0..ATTEMPTS_MAX {
            let condemned: Vec<bool> =
                self.owned(&ids).await?.into_iter().map(|owned| !owned).collect();
            let mut batch = Batch { frees_space: true, ..Batch::default() };
            for (extent, _) in chunks.iter().zip(&condemned).filter(|(_, condemned)| **condemned) {
                let (start, end) = key::chunk_owners(extent.chunk.id);
                batch.expect_empty(start, end);
                let queued = key::garbage(extent.chunk.id, extent.node);
                batch.put(queued, row::encode_extent(extent));
            }
            if batch.writes.is_empty() || self.committed(batch).await? {
                return Ok(condemned);
            }
        }
        Err(MetaError::Conflict.into())
    }
}
