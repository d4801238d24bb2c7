//! What is visible and not durable: followed until it is, or taken back.

use std::time::Duration;

use keyway_meta::catalog::PendingIn;

use super::{Maintenance, MaintenanceError, REST};
use crate::settle::{Settled, settle_all};

/// How long a node may keep a question about what is on its way.
const WAIT: Duration = Duration::from_secs(2);

/// What one look at all that is not durable came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettleReport {
    /// Objects and parts that are durable.
    pub durable: u64,
    /// Objects and parts whose bytes were lost: what they had replaced is back.
    pub lost: u64,
    /// Objects and parts that are on their way, or whose node does not answer.
    pub pending: u64,
}

impl Maintenance {
    /// Looks once at all that is not durable. Before the first request of a process that is
    /// alone with its nodes, that decides all: nothing is on its way then.
    ///
    /// # Errors
    /// [`MaintenanceError::Catalog`]; a node that does not answer is no error.
    pub async fn settle(&self, wait: Duration) -> Result<SettleReport, MaintenanceError> {
        let mut report = SettleReport::default();
        for among in [PendingIn::Objects, PendingIn::Parts] {
            let settled = settle_all(&self.catalog, &self.nodes, among, wait).await?;
            let Settled { durable, lost, pending } = settled;
            self.counters.settled.add(durable);
            self.counters.lost.add(lost);
            report.durable += durable;
            report.lost += lost;
            report.pending += pending;
        }
        Ok(report)
    }

    /// Settles for as long as it is polled.
    pub(super) async fn settle_behind(&self) {
        loop {
            let report = self.settle(WAIT).await;
            let goes_on = matches!(&report, Ok(report) if report.pending > 0);
            self.note("settling", report);
            if goes_on {
                tokio::time::sleep(REST).await;
                continue;
            }
            tokio::select! {
                () = self.catalog.pending_marked() => {}
                () = tokio::time::sleep(self.period()) => {}
            }
        }
    }
}
