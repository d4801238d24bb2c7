//! Accounts: the rows of tenants, users, roles, groups, policies, providers and access keys.
//!
//! What a record says is its keeper's: here it is a document with a name. Whoever keeps them
//! holds all of them in memory, reads them once and writes one at a time; so there is no
//! question to these rows but for all of them.

use std::sync::Arc;

use bytes::Bytes;
use keyway_proto::TenantId;

use crate::key;
use crate::row;
use crate::store::{Batch, MetaError, MetaStore};

/// Rows read at once.
const PAGE: usize = 1000;
/// How often a write is decided anew after another one came first.
const ATTEMPTS_MAX: usize = 32;

/// A record's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Account {
    /// A tenant.
    Tenant(TenantId),
    /// A tenant's policy of this name.
    Policy(TenantId, String),
    /// A tenant's group of this name.
    Group(TenantId, String),
    /// A tenant's user of this name.
    User(TenantId, String),
    /// A tenant's role of this name.
    Role(TenantId, String),
    /// A tenant's OpenID Connect provider of this name.
    Provider(TenantId, String),
    /// The access key of this id.
    Key(String),
    /// When the access key of this id was last used.
    Used(String),
}

/// The records.
#[derive(Clone)]
pub struct Accounts {
    store: Arc<dyn MetaStore>,
}

impl Accounts {
    /// Those in `store`.
    pub fn new(store: Arc<dyn MetaStore>) -> Self {
        Self { store }
    }

    /// All records. What a record names by the rules of its keeper comes before it: tenants, then
    /// policies, groups, users, roles, keys.
    ///
    /// # Errors
    /// The store's, and [`MetaError::Damaged`].
    pub async fn all(&self) -> Result<Vec<(Account, Bytes)>, MetaError> {
        let (mut start, end) = key::accounts();
        let mut all = Vec::new();
        loop {
            let page = self.store.scan(&start, &end, PAGE).await?;
            let Some((last, _)) = page.last() else { break };
            start = key::next(last);
            for (key, value) in &page {
                let account = key::parse_account(key).ok_or(MetaError::Damaged("account key"))?;
                all.push((account, row::decode_document(value)?));
            }
        }
        all.sort_by(|(left, _), (right, _)| left.cmp(right));
        Ok(all)
    }

    /// Writes a record, or removes it.
    ///
    /// # Errors
    /// The store's.
    pub async fn write(&self, account: &Account, document: Option<&[u8]>) -> Result<(), MetaError> {
        let mut batch = Batch { frees_space: document.is_none(), ..Batch::default() };
        batch.writes.push((key::account(account), document.map(row::encode_document)));
        if let (Account::Key(id), None) = (account, document) {
            batch.delete(key::account(&Account::Used(id.clone())));
        }
        self.store.commit(batch).await
    }

    /// Writes a tenant under the first number that no tenant ever had.
    ///
    /// # Errors
    /// The store's.
    pub async fn add_tenant(
        &self,
        document: impl Fn(TenantId) -> Vec<u8> + Send + Sync,
    ) -> Result<TenantId, MetaError> {
        for _ in 0..ATTEMPTS_MAX {
            let counter = self.store.get(&key::tenant_counter()).await?;
            let last = counter.as_deref().map_or(Ok(0), row::decode_counter)?;
            let number = TenantId(last + 1);
            let name = key::account(&Account::Tenant(number));
            let mut batch = Batch::default();
            batch.expect(key::tenant_counter(), counter);
            batch.expect(name.clone(), None);
            batch.put(key::tenant_counter(), row::encode_counter(number.0));
            batch.put(name, row::encode_document(&document(number)));
            match self.store.commit(batch).await {
                Ok(()) => return Ok(number),
                Err(MetaError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        Err(MetaError::Conflict)
    }

    /// Keeps when access keys were last used, in milliseconds since 1970.
    ///
    /// # Errors
    /// The store's.
    pub async fn used(&self, keys: impl Iterator<Item = (&str, u64)>) -> Result<(), MetaError> {
        let mut batch = Batch::default();
        for (id, unix_ms) in keys {
            let name = key::account(&Account::Used(id.to_owned()));
            batch.put(name, row::encode_document(&unix_ms.to_be_bytes()));
        }
        self.store.commit(batch).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[tokio::test]
    async fn records_come_back_in_an_order_that_names_nothing_unknown() {
        let accounts = Accounts::new(Arc::new(MemoryStore::new()));
        let one = accounts.add_tenant(|number| number.0.to_string().into()).await.unwrap();
        assert_eq!(one, TenantId(1));
        let anna = || "anna".to_owned();
        let all = [
            Account::Key("KEY".to_owned()),
            Account::Role(one, anna()),
            Account::Provider(one, anna()),
            Account::User(one, anna()),
            Account::Group(one, anna()),
            Account::Policy(one, anna()),
            Account::Policy(TenantId(0), anna()),
        ];
        for account in &all {
            accounts.write(account, Some(b"{}")).await.unwrap();
        }
        accounts.used([("KEY", 7)].into_iter()).await.unwrap();
        let read = accounts.all().await.unwrap();
        let kinds: Vec<_> = read.iter().map(|(account, _)| account.clone()).collect();
        let mut expected = vec![Account::Tenant(one), Account::Used("KEY".to_owned())];
        expected.extend(all);
        expected.sort();
        assert_eq!(kinds, expected);
        assert_eq!(read[0].1, "1");
        assert_eq!(
            read.last().map(|(_, used)| used[..].to_vec()),
            Some(7_u64.to_be_bytes().into())
        );

        accounts.write(&Account::Key("KEY".to_owned()), None).await.unwrap();
        accounts.write(&Account::Tenant(one), None).await.unwrap();
        let left = accounts.all().await.unwrap();
        assert_eq!(left.len(), 6, "the time of use goes with the key");
        let two = accounts.add_tenant(|_| Vec::new()).await.unwrap();
        assert_eq!(two, TenantId(2), "numbers are never used twice");
    }
}
