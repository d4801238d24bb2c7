//! File descriptors: as many as the system lets this process have, and what connections get of
//! them.

use std::num::NonZeroU32;

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::config::Limits;

/// Raises the soft limit to the hard one, as many systems start programs with 1,024. Of what there
/// is, a quarter is kept for volumes, nodes and metadata: connections are bounded by the rest.
pub(super) fn provide(limits: &Limits) -> Limits {
    let mut limits = limits.clone();
    let mut now = getrlimit(Resource::Nofile);
    if now.current != now.maximum {
        now.current = now.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, now) {
            tracing::warn!(%error, "cannot raise the limit of file descriptors");
            now = getrlimit(Resource::Nofile);
        }
    }
    let Some(descriptors) = now.current else { return limits };
    let connections = u32::try_from(descriptors - descriptors / 4).unwrap_or(u32::MAX);
    let connections = NonZeroU32::new(connections).unwrap_or(NonZeroU32::MIN);
    if connections < limits.max_connections {
        let configured = limits.max_connections;
        tracing::warn!(
            descriptors,
            configured,
            connections,
            "fewer connections than limits.max_connections: raise the limit (LimitNOFILE=)"
        );
        limits.max_connections = connections;
    }
    limits
}
