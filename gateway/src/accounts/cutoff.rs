//! Cutting off: the sessions of whom a change shuts out, and with them every key in flight.
//!
//! A request that begins after a change asks the new snapshot and is refused there. What is left
//! are sessions with nodes: each is closed, which fences its keys ([`StorageNode::close_sessions`]
//! answers when they are dead). A session that was being opened meanwhile is looked at again by
//! whoever opens it, after the node has answered. A node that does not answer is asked again.
//!
//! [`StorageNode::close_sessions`]: keyway_dataplane::StorageNode::close_sessions

use std::collections::VecDeque;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use keyway_auth::Directory;
use keyway_auth::directory::{Change, Key, Name, Provider, Role, Standing, User};
use keyway_proto::{NodeId, SessionOwner, SessionSelector, TenantId};
use parking_lot::Mutex;

use super::temporary::Watched;
use crate::node::Nodes;

/// How long a node may take to close sessions before it is asked again behind the answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
/// Most requests to nodes that are remembered; beyond it the oldest is given up, with a warning.
const PENDING_MAX: usize = 4096;

/// What a change cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Sessions that were closed.
    pub sessions: u64,
    /// Nodes that did not answer in time; they are asked again until they do.
    pub nodes_unreached: usize,
}

/// What was there before a change and is there after it.
pub(super) struct Sides<'a> {
    pub(super) before: &'a Directory,
    pub(super) after: &'a Directory,
    pub(super) now: Timestamp,
}

/// Whose sessions end with this change.
pub(super) fn shut_out(
    sides: &Sides<'_>,
    watched: &Watched,
    change: &Change,
) -> Vec<SessionSelector> {
    let whole = |id: &str, own: SessionSelector| {
        let mut all = watched.of_key(id);
        all.push(own);
        all
    };
    match change {
        Change::PutTenant(tenant) if tenant.state == Standing::Suspended => {
            of_tenant(watched, tenant.number)
        }
        Change::DeleteTenant(number) => of_tenant(watched, *number),
        Change::PutUser(user) if user.state == Standing::Suspended => {
            let keys = keys_of(sides.before, user.tenant, &user.name);
            keys.flat_map(|key| whole(key.record.id.as_str(), of_key(key))).collect()
        }
        Change::PutUser(user) if ends_sessions_of_user(sides.before, user) => {
            let keys = keys_of(sides.before, user.tenant, &user.name);
            keys.flat_map(|key| watched.of_key(key.record.id.as_str())).collect()
        }
        Change::DeleteUser(tenant, name) => {
            let keys = keys_of(sides.before, *tenant, name);
            keys.flat_map(|key| whole(key.record.id.as_str(), of_key(key))).collect()
        }
        Change::PutRole(role) if shuts_out_sessions(sides.before, role) => {
            watched.of_role(role.record.tenant, &role.record.name)
        }
        Change::DeleteRole(tenant, name) => watched.of_role(*tenant, name),
        Change::PutProvider(provider) if hears_less(sides.before, provider) => {
            watched.of_provider(provider.tenant, &provider.name)
        }
        Change::DeleteProvider(tenant, name) => watched.of_provider(*tenant, name),
        Change::PutKey(key) if sides.after.usable(key, sides.now).is_err() => {
            whole(key.record.id.as_str(), of_key(key))
        }
        Change::DeleteKey(id) => {
            let known = sides.before.key(id.as_str());
            known.map_or_else(Vec::new, |key| whole(id.as_str(), of_key(key)))
        }
        _ => Vec::new(),
    }
}

/// Those in the tenant, its guests' too, and those of its users as guests elsewhere.
fn of_tenant(watched: &Watched, tenant: TenantId) -> Vec<SessionSelector> {
    let mut all = watched.of_tenant(tenant);
    all.push(SessionSelector::Tenant(tenant));
    all
}

fn ends_sessions_of_user(before: &Directory, user: &User) -> bool {
    let known = before.user(user.tenant, &user.name);
    known.and_then(|known| known.sessions_valid_from) != user.sessions_valid_from
}

fn shuts_out_sessions(before: &Directory, role: &Role) -> bool {
    let record = &role.record;
    let known = before.role(record.tenant, &record.name);
    let known = known.and_then(|known| known.record.sessions_valid_from);
    record.state == Standing::Suspended || known != record.sessions_valid_from
}

/// Whether a provider is another one, or its tokens are not taken for whom they were.
fn hears_less(before: &Directory, provider: &Provider) -> bool {
    let known = before.provider(provider.tenant, &provider.name);
    known.is_some_and(|known| {
        known.id != provider.id || !known.audiences.is_subset(&provider.audiences)
    })
}

fn keys_of<'a>(
    directory: &'a Directory,
    tenant: TenantId,
    name: &'a Name,
) -> impl Iterator<Item = &'a Key> {
    directory
        .keys()
        .map(|key| &**key)
        .filter(move |key| key.record.tenant == tenant && key.record.user.as_ref() == Some(name))
}

/// A key's sessions.
pub(super) fn of_key(key: &Key) -> SessionSelector {
    let access_key = key.record.id.as_str().into();
    SessionSelector::Owner(SessionOwner { tenant: key.record.tenant, access_key })
}

/// What nodes have still to be told.
#[derive(Default)]
pub(super) struct Pending {
    left: Mutex<VecDeque<(NodeId, SessionSelector)>>,
}

impl Pending {
    /// Closes these sessions on all nodes, at the same time.
    pub(super) async fn off(&self, nodes: &Nodes, shut: Vec<SessionSelector>) -> Cut {
        let all = shut
            .iter()
            .flat_map(|selector| nodes.iter().map(move |node| (node.id(), selector.clone())));
        self.ask(nodes, all.collect()).await
    }

    /// Asks again what did not answer.
    pub(super) async fn again(&self, nodes: &Nodes) -> Cut {
        let left = std::mem::take(&mut *self.left.lock());
        self.ask(nodes, left.into()).await
    }

    async fn ask(&self, nodes: &Nodes, all: Vec<(NodeId, SessionSelector)>) -> Cut {
        let asked = all.into_iter().map(async |(id, selector)| {
            // A node that left the configuration has no sessions of ours to use.
            let Some(node) = nodes.by_id(id) else { return Ok(0) };
            let closing = node.close_sessions(selector.clone());
            match tokio::time::timeout(NODE_TIMEOUT, closing).await {
                Ok(Ok(closed)) => Ok(closed),
                Ok(Err(error)) => {
                    tracing::warn!(node = %id, %error, "sessions are not closed yet");
                    Err((id, selector))
                }
                Err(_) => {
                    tracing::warn!(node = %id, "sessions are not closed yet: no answer");
                    Err((id, selector))
                }
            }
        });
        let mut cut = Cut::default();
        let mut unreached = Vec::new();
        for answer in join_all(asked).await {
            match answer {
                Ok(closed) => cut.sessions += closed,
                Err(left) => {
                    if !unreached.contains(&left.0) {
                        unreached.push(left.0);
                    }
                    self.remember(left);
                }
            }
        }
        cut.nodes_unreached = unreached.len();
        cut
    }

    fn remember(&self, one: (NodeId, SessionSelector)) {
        let mut left = self.left.lock();
        if left.len() == PENDING_MAX {
            left.pop_front();
            tracing::error!("sessions of somebody who was shut out may live on at a lost node");
        }
        left.push_back(one);
    }
}
