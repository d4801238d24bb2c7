//! Which catalog it is.

use bytes::Bytes;
use keyway_proto::CatalogId;

use crate::key;
use crate::store::{Batch, MetaError, MetaStore};

/// The id of the catalog in `store`, drawn when it is first asked for: what nodes know it by.
///
/// # Errors
/// The store's, and [`MetaError::Damaged`].
pub async fn catalog_id(store: &dyn MetaStore) -> Result<CatalogId, MetaError> {
    loop {
        if let Some(row) = store.get(&key::catalog_id()).await? {
            let id: [u8; 16] =
                row[..].try_into().map_err(|_| MetaError::Damaged("the catalog's id"))?;
            return Ok(CatalogId::from_bytes(id));
        }
        // One row, which a full device must not refuse: the store could not be opened then.
        let mut batch = Batch { frees_space: true, ..Batch::default() };
        batch.expect(key::catalog_id(), None);
        batch.put(key::catalog_id(), Bytes::copy_from_slice(&CatalogId::generate().to_bytes()));
        match store.commit(batch).await {
            Ok(()) | Err(MetaError::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[tokio::test]
    async fn it_is_drawn_once() {
        let (one, another) = (MemoryStore::new(), MemoryStore::new());
        let id = catalog_id(&one).await.unwrap();
        assert_eq!(catalog_id(&one).await.unwrap(), id);
        assert_ne!(catalog_id(&another).await.unwrap(), id);
    }
}
