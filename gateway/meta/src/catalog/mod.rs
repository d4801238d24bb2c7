//! S3's semantics over any [`MetaStore`].
//!
//! **One commit point.** Every change is one [`Batch`]: it requires the rows that the decision
//! was taken on, and is decided anew when they have changed ([`ATTEMPTS_MAX`] times; writers
//! to one key within this process wait in line instead of meeting there, see [`turns`]).
//!
//! **Buckets.** Every write into a bucket requires the row under the bucket's never reused id,
//! which changes only when the bucket begins or ceases to keep versions, and is removed with the
//! bucket: reading it makes no writer wait for another. Removing it requires in the same commit
//! that the bucket's ranges are empty. So no order of the two leaves an object in a bucket that
//! is gone, and none has a write overwrite what was to be kept.
//!
//! **Versions.** [`current`] says where they stand.
//!
//! **Chunks.** A chunk is named by owner rows, written with the object or part that refers to
//! it and removed with it, in the same commit that puts the chunk into the garbage queue. A
//! chunk without an owner can never gain one: a put names chunks that were never named before
//! and requires that the sweeper has not queued them; a copy requires that its source stands
//! unchanged, and as long as the source stands, its own owner rows do. Hence what
//! [`Catalog::garbage`] finds unowned stays so, and may be released without a lock.
//!
//! **Usage.** What a tenant stores is counted in the commit that changes it, and bounded there:
//! [`usage`].
//!
//! **Events.** What somebody asked to be told of is written in the commit that makes it happen:
//! [`outbox`].
//!
//! **Durability.** Chunks are durable before they are published, but for those of writes whose
//! clients waived that: [`pending`] keeps what such a write replaced until they are.

use std::sync::Arc;

use keyway_proto::BucketId;
use tokio::sync::{Notify, watch};

use crate::key;
use crate::record::Versioning;
use crate::row;
use crate::store::{Batch, MetaError, MetaStore};

mod assemble;
mod bucket;
mod complete;
mod configuration;
mod current;
mod garbage;
mod list;
mod object;
mod outbox;
mod pending;
mod remove;
mod turns;
mod types;
mod upload;
mod usage;
mod version;
mod versions;
mod walk;

use turns::Turns;

pub use complete::Completing;
pub use object::{CopyFrom, Stamp};
pub use outbox::{Backlog, Change, Notice, Site, Teller, Waiting};
pub use pending::{Pending, PendingIn, PendingOf};
pub use remove::{Clearance, Deleted};
pub use types::*;

/// How often a change is decided anew after another one came first.
pub const ATTEMPTS_MAX: usize = 32;

/// Most entries of one page of any listing, as S3 has it.
pub const PAGE_MAX: usize = 1000;

/// The catalog.
pub struct Catalog {
    store: Arc<dyn MetaStore>,
    turns: Turns,
    garbage_queued: Notify,
    pending_marked: Notify,
    events_written: watch::Sender<u64>,
    quotas: usage::Quotas,
}

impl Catalog {
    /// A catalog over `store`.
    pub fn new(store: Arc<dyn MetaStore>) -> Self {
        let (garbage_queued, pending_marked) = (Notify::new(), Notify::new());
        let quotas = usage::Quotas::default();
        let (turns, events_written) = (Turns::new(), watch::Sender::new(0));
        Self { store, turns, garbage_queued, pending_marked, events_written, quotas }
    }

    /// Resolves when chunks were given up since it last resolved: overwritten, deleted, aborted
    /// or condemned through this catalog. For one waiter, which then looks at
    /// [`garbage`](Self::garbage); cancelling it loses nothing.
    pub async fn garbage_queued(&self) {
        self.garbage_queued.notified().await;
    }

    /// Commits what leaves everybody's usage as it is; `false` when a precondition did not hold
    /// and the change is to be decided anew.
    async fn committed(&self, batch: Batch) -> Result<bool, CatalogError> {
        let counts = batch.tallies.iter().any(|tally| key::is_usage(&tally.key));
        debug_assert!(counts || usage::leaves_it(&batch), "nobody is counted");
        let puts = |is: fn(&[u8]) -> bool| {
            batch.writes.iter().any(|(key, value)| value.is_some() && is(key))
        };
        let (gives_up, marks) = (puts(key::is_garbage), puts(key::is_pending));
        let tells = !batch.appends.is_empty();
        match self.store.commit(batch).await {
            Ok(()) => {
                if gives_up {
                    self.garbage_queued.notify_one();
                }
                if marks {
                    self.pending_marked.notify_one();
                }
                if tells {
                    self.events_written.send_modify(|count| *count = count.wrapping_add(1));
                }
                Ok(true)
            }
            Err(MetaError::Conflict) => Ok(false),
            Err(MetaError::Exceeded) => Err(CatalogError::QuotaExceeded),
            Err(error) => Err(error.into()),
        }
    }
}

/// Requires that the bucket stands when the batch is applied, and keeps versions as believed.
fn require_bucket(batch: &mut Batch, bucket: BucketId, versioning: Versioning) {
    batch.expect(key::bucket_alive(bucket), Some(row::alive(versioning)));
}
