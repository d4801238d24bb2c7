//! From memory to durable: what the catalog marks as pending is settled with its nodes.
//!
//! Sketch, for a page of marks: one question to each node, one commit for each object. Whoever
//! looks first may settle: the background, a flush, a reader that misses a chunk. Two who look
//! at once do no harm, since a commit requires the row that it judged.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use keyway_meta::catalog::{Pending, PendingIn, PendingOf};
use keyway_meta::{Catalog, CatalogError};
use keyway_proto::{ChunkId, NodeId, Standing};

use crate::node::Nodes;

/// Objects and parts looked at together.
const PAGE: usize = 256;

/// Commits under way at once; the metadata store makes them durable together.
const COMMITS_UNDER_WAY: usize = 32;

/// What became of what was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Objects and parts that are durable.
    pub(crate) durable: u64,
    /// Objects and parts that lost their bytes, and were taken back.
    pub(crate) lost: u64,
    /// Those on their way, or on a node that does not answer.
    pub(crate) pending: u64,
}

impl Settled {
    fn add(&mut self, other: Self) {
        self.durable += other.durable;
        self.lost += other.lost;
        self.pending += other.pending;
    }
}

/// Looks once at all that is pending among these. Each page of it is waited for as long as
/// `wait`.
///
/// # Errors
/// The catalog's; a node that does not answer is none.
pub(crate) async fn settle_all(
    catalog: &Catalog,
    nodes: &Nodes,
    among: PendingIn,
    wait: Duration,
) -> Result<Settled, CatalogError> {
    let mut settled = Settled::default();
    let mut after: Option<Pending> = None;
    loop {
        let page = catalog.pending(among, after.as_ref(), PAGE).await?;
        let Some(last) = page.last() else { return Ok(settled) };
        after = Some(last.clone());
        settled.add(settle(catalog, nodes, &page, wait).await?);
    }
}

/// Asks the nodes about these once, waits no longer than `wait` for what is on its way, and
/// notes in the catalog what is certain.
///
/// # Errors
/// As [`settle_all`].
pub(crate) async fn settle(
    catalog: &Catalog,
    nodes: &Nodes,
    among: &[Pending],
    wait: Duration,
) -> Result<Settled, CatalogError> {
    let standings = standings(nodes, among, wait).await;
    let noting = among.iter().map(|pending| {
        let standing = |chunk: ChunkId, node: NodeId| {
            standings.get(&(node, chunk)).copied().unwrap_or(Standing::Pending)
        };
        let of_chunks = pending.extents.iter().map(|at| standing(at.chunk.id, at.node));
        let worst = of_chunks.fold(Standing::Durable, worse);
        note(catalog, pending, worst).boxed()
    });
    // Collected and boxed: the compiler does not see that the closures' futures are `Send`.
    let noting: Vec<BoxFuture<'_, Result<Settled, CatalogError>>> = noting.collect();
    let noted: Vec<Settled> =
        stream::iter(noting).buffer_unordered(COMMITS_UNDER_WAY).try_collect().await?;
    let mut settled = Settled::default();
    noted.into_iter().for_each(|one| settled.add(one));
    Ok(settled)
}

/// A lost chunk decides, then one that is on its way.
fn worse(left: Standing, right: Standing) -> Standing {
    match (left, right) {
        (Standing::Missing, _) | (_, Standing::Missing) => Standing::Missing,
        (Standing::Pending, _) | (_, Standing::Pending) => Standing::Pending,
        (Standing::Durable, Standing::Durable) => Standing::Durable,
    }
}

async fn note(
    catalog: &Catalog,
    pending: &Pending,
    standing: Standing,
) -> Result<Settled, CatalogError> {
    let mut settled = Settled::default();
    match standing {
        Standing::Pending => settled.pending = 1,
        Standing::Durable => settled.durable = u64::from(catalog.settle(pending).await?),
        Standing::Missing => {
            settled.lost = u64::from(catalog.withdraw(pending).await?);
            if settled.lost == 1 {
                tell_loss(pending);
            }
        }
    }
    Ok(settled)
}

fn tell_loss(pending: &Pending) {
    match &pending.of {
        PendingOf::Object { bucket, key } => tracing::error!(
            bucket = bucket.0,
            key = &**key,
            "an object was lost with its node's memory: what it had replaced is back"
        ),
        PendingOf::Part { upload, number } => {
            tracing::error!(%upload, number, "a part was lost with its node's memory");
        }
    }
}

/// Where the chunks stand, as far as their nodes tell.
async fn standings(
    nodes: &Nodes,
    among: &[Pending],
    wait: Duration,
) -> BTreeMap<(NodeId, ChunkId), Standing> {
    let mut by_node: BTreeMap<NodeId, Vec<ChunkId>> = BTreeMap::new();
    for extent in among.iter().flat_map(|pending| &pending.extents) {
        by_node.entry(extent.node).or_default().push(extent.chunk.id);
    }
    let asking = by_node.into_iter().map(|(id, chunks)| ask(nodes, id, chunks, wait).boxed());
    let asking: Vec<BoxFuture<'_, Told>> = asking.collect();
    join_all(asking).await.into_iter().flatten().collect()
}

/// What a node says of chunks.
type Told = Vec<((NodeId, ChunkId), Standing)>;

async fn ask(nodes: &Nodes, id: NodeId, chunks: Vec<ChunkId>, wait: Duration) -> Told {
    let Some(node) = nodes.by_id(id) else {
        tracing::warn!(node = %id, "something waits for a node that is not known");
        return Vec::new();
    };
    match node.settle(&chunks, wait).await {
        Ok(told) => chunks.into_iter().map(|chunk| (id, chunk)).zip(told).collect(),
        Err(error) => {
            tracing::warn!(node = %id, %error, "a node does not tell what is durable");
            Vec::new()
        }
    }
}
