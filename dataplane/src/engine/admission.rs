//! Who may start a transfer, and when.
//!
//! A node has so many turns, and a tenant so many of them at most. While all are taken,
//! tenants are served in turn, each first come first served: one that queues a thousand
//! transfers delays another's next one by a single transfer, not by a thousand.
//!
//! Cost: one lock when a transfer begins and one when it ends.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use keyway_proto::TenantId;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::EngineConfig;
use crate::node::TransferError;

/// Gives out turns. Clones share them.
#[derive(Clone)]
pub(crate) struct Admission {
    state: Arc<Mutex<State>>,
}

/// A transfer's right to run, given back on drop.
pub(crate) struct Turn {
    tenant: TenantId,
    state: Arc<Mutex<State>>,
}

struct State {
    transfers_max: usize,
    tenant_max: usize,
    waiting_max: usize,
    running: usize,
    waiting: usize,
    /// Tenants that run or wait.
    tenants: HashMap<TenantId, Tenant>,
    /// Those that wait, in the order of their service.
    ring: VecDeque<TenantId>,
}

#[derive(Default)]
struct Tenant {
    running: usize,
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

impl Admission {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        let transfers_max = config.transfers_max.max(1);
        let state = State {
            transfers_max,
            tenant_max: config.transfers_per_tenant_max.clamp(1, transfers_max),
            waiting_max: config.transfers_waiting_max,
            running: 0,
            waiting: 0,
            tenants: HashMap::new(),
            ring: VecDeque::new(),
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Waits for a turn. Dropping the future gives up the place.
    pub(crate) async fn admit(&self, tenant: TenantId) -> Result<Turn, TransferError> {
        let place = {
            let mut state = self.state.lock();
            if state.may_run(tenant) {
                state.begin(tenant);
                return Ok(Turn { tenant, state: Arc::clone(&self.state) });
            }
            state.queue(tenant)?
        };
        // The sender lives in the queue until it is served or this end is dropped.
        place.await.map_err(|_| TransferError::Busy)
    }

    /// Transfers under way.
    pub(crate) fn transfers(&self) -> usize {
        self.state.lock().running
    }

    /// Transfers that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().waiting()
    }
}

impl State {
    /// A turn is free, and nobody of the tenant's waits for it.
    fn may_run(&self, tenant: TenantId) -> bool {
        let of_tenant = self.tenants.get(&tenant);
        self.running < self.transfers_max
            && of_tenant.is_none_or(|it| it.running < self.tenant_max && it.waiting.is_empty())
    }

    fn begin(&mut self, tenant: TenantId) {
        self.running += 1;
        self.tenants.entry(tenant).or_default().running += 1;
    }

    fn queue(&mut self, tenant: TenantId) -> Result<oneshot::Receiver<Turn>, TransferError> {
        if self.waiting >= self.waiting_max && self.waiting() >= self.waiting_max {
            return Err(TransferError::Busy);
        }
        let (sender, place) = oneshot::channel();
        let queue = &mut self.tenants.entry(tenant).or_default().waiting;
        if queue.is_empty() {
            self.ring.push_back(tenant);
        }
        queue.push_back(sender);
        self.waiting += 1;
        Ok(place)
    }

    /// Those that still wait: the others have given up, and are counted out here.
    fn waiting(&mut self) -> usize {
        for tenant in self.tenants.values_mut() {
            let before = tenant.waiting.len();
            tenant.waiting.retain(|place| !place.is_closed());
            self.waiting -= before - tenant.waiting.len();
        }
        self.waiting
    }

    fn end(&mut self, tenant: TenantId) {
        self.running -= 1;
        if let Some(it) = self.tenants.get_mut(&tenant) {
            it.running -= 1;
            if it.running == 0 && it.waiting.is_empty() {
                self.tenants.remove(&tenant);
            }
        }
    }

    /// The next that may run: of the first tenant in the ring that has a turn left.
    fn next(&mut self) -> Option<(TenantId, oneshot::Sender<Turn>)> {
        if self.running >= self.transfers_max {
            return None;
        }
        for _ in 0..self.ring.len() {
            let id = self.ring.pop_front()?;
            let Some(tenant) = self.tenants.get_mut(&id) else { continue };
            let mut place = None;
            if tenant.running < self.tenant_max {
                while let Some(next) = tenant.waiting.pop_front() {
                    self.waiting -= 1;
                    if !next.is_closed() {
                        place = Some(next);
                        break;
                    }
                }
            }
            if !tenant.waiting.is_empty() {
                self.ring.push_back(id);
            }
            if let Some(place) = place {
                self.begin(id);
                return Some((id, place));
            }
        }
        None
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = {
            let mut state = self.state.lock();
            state.end(self.tenant);
            state.next()
        };
        if let Some((tenant, place)) = next {
            // One that gave up at this moment passes the turn on, by the same way.
            drop(place.send(Turn { tenant, state: Arc::clone(&self.state) }));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::future::BoxFuture;

    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    fn admission(transfers: usize, of_tenant: usize, waiting: usize) -> Admission {
        Admission::new(&EngineConfig {
            transfers_max: transfers,
            transfers_per_tenant_max: of_tenant,
            transfers_waiting_max: waiting,
        })
    }

    type Asking<'a> = BoxFuture<'a, Result<Turn, TransferError>>;

    fn ask(admission: &Admission, tenant: TenantId) -> (Option<Turn>, Asking<'_>) {
        let mut asking = admission.admit(tenant).boxed();
        let turn = asking.as_mut().now_or_never().map(|turn| turn.expect("a place"));
        (turn, asking)
    }

    #[test]
    fn only_a_full_queue_is_busy() {
        let admission = admission(1, 1, 1);
        let (running, _) = ask(&admission, A);
        let (none, mut waiting) = ask(&admission, A);
        assert!(running.is_some() && none.is_none());
        let refused = admission.admit(B).now_or_never().expect("answers at once");
        assert!(matches!(refused, Err(TransferError::Busy)));
        assert_eq!((admission.transfers(), admission.waiting()), (1, 1));
        drop(running);
        let turn = waiting.as_mut().now_or_never().expect("served").expect("a turn");
        assert_eq!((admission.transfers(), admission.waiting()), (1, 0));
        drop(turn);
        assert_eq!((admission.transfers(), admission.waiting()), (0, 0));
        assert!(admission.state.lock().tenants.is_empty());
    }

    /// A tenant with a long queue delays another's next transfer by one.
    #[test]
    fn tenants_are_served_in_turn() {
        let admission = admission(1, 1, 100);
        let (running, _) = ask(&admission, A);
        let mut of_a: Vec<_> = (0..10).map(|_| ask(&admission, A).1).collect();
        let mut of_b = ask(&admission, B).1;
        drop(running);
        let first = of_a[0].as_mut().now_or_never().expect("A came first");
        assert!(of_b.as_mut().now_or_never().is_none());
        drop(first);
        assert!(of_b.as_mut().now_or_never().is_some(), "then it is B's turn");
        assert!(of_a[1].as_mut().now_or_never().is_some(), "and A's again");
    }

    /// A tenant never has more than its bound, and what it leaves free others take.
    #[test]
    fn a_tenant_is_bounded() {
        let admission = admission(4, 3, 100);
        let held: Vec<_> = (0..3).map(|_| ask(&admission, A).0.expect("free")).collect();
        let (none, mut fourth) = ask(&admission, A);
        assert!(none.is_none());
        let (other, _) = ask(&admission, B);
        assert!(other.is_some());
        drop(other);
        assert!(fourth.as_mut().now_or_never().is_none());
        drop(held);
        assert!(fourth.as_mut().now_or_never().is_some());
    }

    /// One that gives up its place leaves no hole, wherever it stood.
    #[test]
    fn giving_up_passes_the_turn_on() {
        let admission = admission(1, 1, 100);
        let (running, _) = ask(&admission, A);
        let quitters: Vec<_> = (0..50).map(|_| ask(&admission, A).1).collect();
        let (_, mut patient) = ask(&admission, B);
        let served_then_dropped = ask(&admission, A).1;
        drop(quitters);
        assert_eq!(admission.waiting(), 2);
        drop(served_then_dropped);
        drop(running);
        assert!(patient.as_mut().now_or_never().is_some());
    }
}
