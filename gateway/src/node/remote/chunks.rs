//! What a remote node tells of its chunks, page by page.

use std::time::Duration;

use keyway_dataplane::rpc::failure::unreachable;
use keyway_dataplane::{ChunkInfo, Prefetched, TransferError};
use keyway_proto::{ChunkId, Standing, TenantId};
use keyway_rpc::schema::{ChunksRequest, PrefetchRequest, SettleRequest};
use keyway_rpc::{CHUNKS_PAGE_MAX, PREFETCH_MAX, RELEASE_MAX, SETTLE_WAIT_MS_MAX, convert};
use tokio::time::Instant;

use super::{RemoteNode, not_understood};

impl RemoteNode {
    /// The node waits no longer than half of what an answer may take.
    pub(super) async fn ask_to_settle(
        &self,
        chunks: &[ChunkId],
        wait: Duration,
    ) -> Result<Vec<Standing>, TransferError> {
        let deadline = Instant::now() + wait.min(self.answer_timeout / 2);
        let mut standings = Vec::with_capacity(chunks.len());
        for chunks in chunks.chunks(RELEASE_MAX) {
            let left = deadline.saturating_duration_since(Instant::now());
            let request = SettleRequest {
                node: self.id.0,
                chunks: convert::pack_chunk_ids(chunks),
                wait_ms: u32::try_from(left.as_millis()).unwrap_or(SETTLE_WAIT_MS_MAX),
            };
            let reply = self.answer(self.control.clone().settle(request)).await?.into_inner();
            let told = convert::standings(&reply.standings).map_err(not_understood)?;
            if told.len() != chunks.len() {
                return Err(unreachable("the answer is not about the chunks that were asked for"));
            }
            standings.extend(told);
        }
        Ok(standings)
    }

    pub(super) async fn ask_chunks(
        &self,
        after: Option<ChunkId>,
        limit: usize,
    ) -> Result<Vec<ChunkInfo>, TransferError> {
        let mut chunks: Vec<ChunkInfo> = Vec::new();
        while chunks.len() < limit {
            let after = chunks.last().map(|chunk| chunk.id).or(after);
            let asked = (limit - chunks.len()).min(CHUNKS_PAGE_MAX);
            let request = ChunksRequest {
                node: self.id.0,
                after: after.map(convert::chunk_bytes).unwrap_or_default(),
                limit: u32::try_from(asked).unwrap_or(u32::MAX),
            };
            let page = self.answer(self.control.clone().chunks(request)).await?.into_inner();
            let page = page.chunks.iter().map(convert::chunk_spec);
            let page = page.collect::<Result<Vec<_>, _>>().map_err(not_understood)?;
            let last = page.len() < asked;
            // A page that does not ascend would be asked for again without end.
            let ascends = page.first().is_none_or(|first| after.is_none_or(|at| first.id > at))
                && page.windows(2).all(|pair| pair[0].id < pair[1].id);
            if !ascends || page.len() > asked {
                return Err(unreachable("the page of chunks is not what was asked for"));
            }
            chunks.extend(page);
            if last {
                break;
            }
        }
        Ok(chunks)
    }

    /// Few chunks a call: their reading must fit the time for an answer.
    pub(super) async fn ask_to_prefetch(
        &self,
        tenant: TenantId,
        chunks: &[ChunkId],
    ) -> Result<Prefetched, TransferError> {
        let mut sum = Prefetched::default();
        for chunks in chunks.chunks(PREFETCH_MAX) {
            let chunks = convert::pack_chunk_ids(chunks);
            let request = PrefetchRequest { node: self.id.0, tenant: tenant.0, chunks };
            let reply = self.answer(self.control.clone().prefetch(request)).await?.into_inner();
            sum.chunks += reply.chunks;
            sum.bytes += reply.bytes;
            sum.missed += reply.missed;
        }
        Ok(sum)
    }
}
