//! What long transfers are cut into, as the path has it.

use keyway_proto::TransferPath;

use super::{Rdma, slab};
use crate::builder::PathPolicy;

/// Bytes of one part of a long read, unless said.
const PART_BYTES: u64 = 8 << 20;
/// The same over an adapter, where two parts are under way: at 50 GB/s one takes the link for
/// 0.7 ms, and the next one's request, of 0.3 to 0.6 ms, is made meanwhile.
const ADAPTER_PART_BYTES: u64 = 32 << 20;

impl Rdma {
    /// Bytes of one request of a read of at most `bytes`, where `wanted` were asked for. The memory
    /// may be one that other processes of this host can map.
    pub(crate) async fn read_part_bytes(
        &self,
        bytes: u64,
        wanted: Option<u64>,
        is_shareable: bool,
    ) -> u64 {
        let wanted = match wanted {
            Some(wanted) => wanted,
            None if bytes <= PART_BYTES => PART_BYTES,
            None if self.goes_by_adapter(bytes, is_shareable).await => ADAPTER_PART_BYTES,
            None => PART_BYTES,
        };
        let most = self.part_bytes_max(bytes.min(wanted)).await;
        most.map_or(wanted, |most| most.min(wanted))
    }

    /// Most bytes of one request, where more of so many would have no room: what goes by way of a
    /// slab goes in parts that fit it.
    pub(crate) async fn part_bytes_max(&self, bytes: u64) -> Option<u64> {
        let room = slab::whole_pieces(self.config.slab_bytes) as u64;
        if bytes <= room || !self.may_go_by_adapter(bytes) {
            return None;
        }
        let ports = self.ports().await.ok()?;
        ports.iter().any(|port| port.goes_by_slab(&self.config)).then_some(room)
    }

    /// Whether adapters will move so many bytes, as far as is known before it is tried.
    async fn goes_by_adapter(&self, bytes: u64, is_shareable: bool) -> bool {
        if !self.may_go_by_adapter(bytes) || self.rails().await.is_err() {
            return false;
        }
        // What a node of this host can move, it does.
        let may_be_local = self.policy == PathPolicy::Auto && is_shareable;
        !may_be_local || self.doors().await.is_err()
    }

    fn may_go_by_adapter(&self, bytes: u64) -> bool {
        let may = match self.policy {
            PathPolicy::Auto => true,
            PathPolicy::Require(path) => {
                !matches!(path, TransferPath::Http | TransferPath::IpcHost | TransferPath::IpcGpu)
            }
        };
        may && self.is_wanted(bytes)
    }
}
