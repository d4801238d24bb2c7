//! Prefetching: objects come into the memory of the nodes that hold them.
//!
//! Sketch, per object: one catalog read, and one id of 16 bytes to its node for each 16 MiB. Who
//! may get an object may have it prefetched. What bounds it: the nodes' devices; a call ends
//! after some seconds and says where to go on, so that no connection waits for terabytes.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use keyway_auth::policy::Action;
use keyway_dataplane::Prefetched;
use keyway_meta::catalog::ListQuery;
use keyway_meta::{Bucket, CatalogError};
use keyway_proto::{
    ChunkId, NodeId, ObjectKey, PrefetchPosition, PrefetchReply, PrefetchRequest, TenantId,
};

use super::access::{self, Caller};
use super::errors::Failure;
use super::{Core, resolve};
use crate::control::ControlError;

/// After this long a call ends, when the chunks under way have come.
const CALL: Duration = Duration::from_secs(5);

/// Chunks under way at once, on all nodes together.
const CHUNKS_UNDER_WAY: usize = 64;

/// Keys listed at once.
const PAGE: usize = 256;

/// Brings in what the request names, as far as one call goes.
///
/// # Errors
/// `InvalidArgument` unless it names keys or a prefix and not both; those of GetObject but
/// `NoSuchKey`: such keys are counted.
pub(super) async fn prefetch(
    core: &Core,
    caller: &Caller,
    request: PrefetchRequest,
) -> Result<PrefetchReply, Failure> {
    let PrefetchRequest { bucket, keys, prefix, from } = request;
    let rules = caller.enter(core, &bucket).await?;
    let (bucket, named) = (&rules.bucket, keys.is_some());
    let mut keys = match (keys, prefix) {
        (Some(keys), None) => Keys::named(&keys, from.as_ref())?,
        (None, Some(prefix)) => {
            caller.may_list_in(&rules, &prefix)?;
            Keys::listed(prefix, from.as_ref())?
        }
        _ => return Err(ControlError::OutOfBounds("keys or prefix").into()),
    };
    let mut skip = from.map_or(0, |from| from.chunk);
    let mut call = Call { core, tenant: caller.account(), batch: Batch::default() };
    let mut reply = PrefetchReply::default();
    let begun = Instant::now();
    while let Some(key) = keys.next(core, bucket).await? {
        match caller.may_in(&rules, Action::GetObject, &access::object(&bucket.name, &key)) {
            Ok(()) => {}
            Err(denied) if named => return Err(denied),
            // Listed, and not to be read: for this caller it is not there.
            Err(_) => {
                reply.missing += 1;
                continue;
            }
        }
        let first = std::mem::take(&mut skip);
        if begun.elapsed() >= CALL {
            call.flush(&mut reply).await?;
            reply.next = Some(PrefetchPosition { key: key.to_string(), chunk: first });
            return Ok(reply);
        }
        let object = match core.catalog.object(bucket, &key).await {
            Ok(object) => object,
            Err(CatalogError::NoSuchKey) => {
                reply.missing += 1;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for (chunk, extent) in object.extents.iter().enumerate().skip(first) {
            if call.batch.chunks == CHUNKS_UNDER_WAY {
                call.flush(&mut reply).await?;
                if begun.elapsed() >= CALL {
                    reply.next = Some(PrefetchPosition { key: key.to_string(), chunk });
                    return Ok(reply);
                }
            }
            call.batch.add(extent.node, extent.chunk.id);
            reply.bytes += extent.chunk.length;
        }
        reply.objects += 1;
    }
    call.flush(&mut reply).await?;
    Ok(reply)
}

/// A request's keys, one after the other.
struct Keys {
    /// Those known so far.
    ahead: VecDeque<ObjectKey>,
    /// The prefix, and the key after which the next page begins.
    listing: Option<(String, String)>,
}

impl Keys {
    fn named(keys: &[String], from: Option<&PrefetchPosition>) -> Result<Self, Failure> {
        let keys = keys.iter().skip_while(|key| from.is_some_and(|from| from.key != **key));
        let ahead = keys.map(|key| resolve::key(key)).collect::<Result<_, _>>()?;
        Ok(Self { ahead, listing: None })
    }

    fn listed(prefix: String, from: Option<&PrefetchPosition>) -> Result<Self, Failure> {
        let Some(from) = from else {
            return Ok(Self { ahead: VecDeque::new(), listing: Some((prefix, String::new())) });
        };
        if !from.key.starts_with(&prefix) {
            return Err(ControlError::OutOfBounds("from").into());
        }
        let key = resolve::key(&from.key)?;
        Ok(Self { ahead: [key].into(), listing: Some((prefix, from.key.clone())) })
    }

    async fn next(&mut self, core: &Core, bucket: &Bucket) -> Result<Option<ObjectKey>, Failure> {
        if self.ahead.is_empty()
            && let Some((prefix, after)) = self.listing.take()
        {
            let (delimiter, limit) = (String::new(), PAGE);
            let query = ListQuery { prefix, delimiter, after, limit };
            let page = core.catalog.list(bucket, &query).await?;
            self.ahead = page.objects.into_iter().map(|(key, _)| key).collect();
            self.listing = page.next.map(|next| (query.prefix, next));
        }
        Ok(self.ahead.pop_front())
    }
}

/// Chunks that are asked for together.
#[derive(Default)]
struct Batch {
    nodes: BTreeMap<NodeId, Vec<ChunkId>>,
    chunks: usize,
}

impl Batch {
    fn add(&mut self, node: NodeId, chunk: ChunkId) {
        self.nodes.entry(node).or_default().push(chunk);
        self.chunks += 1;
    }
}

struct Call<'a> {
    core: &'a Core,
    tenant: TenantId,
    batch: Batch,
}

impl Call<'_> {
    /// Has the nodes bring the batch in, all at once.
    async fn flush(&mut self, reply: &mut PrefetchReply) -> Result<(), Failure> {
        let (core, tenant) = (self.core, self.tenant);
        let asked = std::mem::take(&mut self.batch).nodes.into_iter().map(async |(id, chunks)| {
            let node = core.nodes.by_id(id).ok_or(Failure::UnknownNode(id))?;
            Ok::<Prefetched, Failure>(node.prefetch(tenant, &chunks).await?)
        });
        let answers = try_join_all(asked).await?;
        reply.resident_bytes += answers.iter().map(|answer| answer.bytes).sum::<u64>();
        Ok(())
    }
}
