//! How many direct transfers there were, and how they ended.

use std::sync::atomic::{AtomicU64, Ordering};

use keyway_proto::TransferPath;
use keyway_proto::key::Relinquished;

/// Why a token was met with HTTP instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::s3) enum Declined {
    /// It is of a form that this server understands and does not serve.
    Foreign,
    /// The bytes, or some of them, are not on the session's node.
    OtherNode,
    /// There is no byte to move.
    Empty,
    /// It came with a copy, which moves no bytes of the client's.
    Copy,
    /// A policy forbids it.
    Policy,
}

impl Declined {
    const ALL: [Self; 5] = [Self::Foreign, Self::OtherNode, Self::Empty, Self::Copy, Self::Policy];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Foreign => "foreign",
            Self::OtherNode => "other-node",
            Self::Empty => "empty",
            Self::Copy => "copy",
            Self::Policy => "policy",
        }
    }
}

const FATES: [Relinquished; 4] =
    [Relinquished::Invalidated, Relinquished::Quiet, Relinquished::Fenced, Relinquished::Unknown];
const PATHS: [Option<TransferPath>; 5] = [
    None,
    Some(TransferPath::VerbsHost),
    Some(TransferPath::VerbsGpu),
    Some(TransferPath::IpcHost),
    Some(TransferPath::IpcGpu),
];

/// Counters of a gateway's direct transfers since its start.
#[derive(Default)]
pub struct DirectCounts {
    transfers: [[AtomicU64; FATES.len()]; PATHS.len()],
    declined: [AtomicU64; Declined::ALL.len()],
}

/// A snapshot of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectStats {
    /// Transfers by path (`none` where nothing was moved) and by what became of the key.
    pub transfers: Vec<(&'static str, &'static str, u64)>,
    /// Tokens met with HTTP, by reason.
    pub declined: Vec<(&'static str, u64)>,
}

impl DirectCounts {
    /// A transfer ended, by `path` if it moved its bytes.
    pub(super) fn count_transfer(&self, path: Option<TransferPath>, key: Relinquished) {
        // A path that is not listed cannot come: HTTP knows no key.
        let path = PATHS.iter().position(|known| *known == path).unwrap_or(0);
        let fate = FATES.iter().position(|known| *known == key).unwrap_or(FATES.len() - 1);
        self.transfers[path][fate].fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::s3) fn count_declined(&self, why: Declined) {
        self.declined[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// What was counted.
    pub fn stats(&self) -> DirectStats {
        let paths = self.transfers.iter().zip(PATHS);
        let transfers = paths.flat_map(|(counts, path)| {
            let path = path.map_or("none", TransferPath::as_str);
            let fates = counts.iter().zip(FATES);
            fates.map(move |(count, key)| (path, key.as_str(), count.load(Ordering::Relaxed)))
        });
        let declined = self.declined.iter().zip(Declined::ALL);
        DirectStats {
            transfers: transfers.collect(),
            declined: declined
                .map(|(count, why)| (why.as_str(), count.load(Ordering::Relaxed)))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_counted_under_its_name() {
        let counts = DirectCounts::default();
        counts.count_transfer(Some(TransferPath::VerbsGpu), Relinquished::Fenced);
        counts.count_transfer(Some(TransferPath::IpcGpu), Relinquished::Quiet);
        counts.count_transfer(None, Relinquished::Quiet);
        for why in Declined::ALL {
            counts.count_declined(why);
        }
        counts.count_declined(Declined::OtherNode);
        let stats = counts.stats();
        assert!(stats.transfers.contains(&("verbs-gpu", "fenced", 1)));
        assert!(stats.transfers.contains(&("ipc-gpu", "quiet", 1)));
        assert!(stats.transfers.contains(&("none", "quiet", 1)));
        assert_eq!(stats.transfers.iter().map(|(_, _, count)| count).sum::<u64>(), 3);
        assert_eq!(
            stats.declined,
            [("foreign", 1), ("other-node", 2), ("empty", 1), ("copy", 1), ("policy", 1)]
        );
    }
}
