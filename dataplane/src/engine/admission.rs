//! Who may start a transfer, and when.
//!
//! A node has so many turns, and a tenant so many of them at most. While all are taken,
//! tenants share what becomes free by their weights, each first come first served: one that queues
//! a thousand transfers delays another's next one by a single transfer, not by a thousand, and
//! large ones count for more than small ones.
//!
//! Start-time fair queueing: each transfer has a *tag*, the point in virtual time at which it would
//! begin if its tenant had a part of the node in proportion to its weight: no earlier than the clock
//! stood when it came, and no earlier than the end of its tenant's last one. The smallest tag goes
//! first, and sets the clock. So a tenant that was away has saved nothing up, and one that was
//! ahead stays behind until the others have caught up. One that gives up a place is charged nothing.
//!
//! Cost: one lock when a transfer begins and one when it ends; a look at each tenant that waits.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use keyway_proto::{TenantId, Weight};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::EngineConfig;
use crate::node::TransferError;

/// What is counted in: the smallest transfer has its costs, too, however few bytes it moves.
const UNIT_BYTES: u64 = 64 << 10;

/// Gives out turns. Clones share them.
#[derive(Clone)]
pub(crate) struct Admission {
    state: Arc<Mutex<State>>,
}

/// A transfer that asks for a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    pub(crate) tenant: TenantId,
    /// The tenant's share.
    pub(crate) weight: Weight,
    /// What it will move.
    pub(crate) bytes: u64,
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
    /// Virtual time: the largest tag of those that have begun.
    clock: u64,
    /// Tenants that run or wait, or are ahead of the clock.
    tenants: HashMap<TenantId, Tenant>,
}

#[derive(Default)]
struct Tenant {
    running: usize,
    /// Where the last transfer ends in virtual time.
    end: u64,
    waiting: VecDeque<Place>,
}

/// A place among a tenant's transfers that wait.
struct Place {
    asking: Asking,
    /// The clock when it came.
    came: u64,
    turn: oneshot::Sender<Turn>,
}

impl Asking {
    /// How long it takes in virtual time.
    fn length(self) -> u64 {
        let units = self.bytes.div_ceil(UNIT_BYTES).max(1);
        units.saturating_mul(u64::from(Weight::MAX.get())) / u64::from(self.weight.get())
    }
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
            clock: 0,
            tenants: HashMap::new(),
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Waits for a turn. Dropping the future gives up the place.
    pub(crate) async fn admit(&self, asking: Asking) -> Result<Turn, TransferError> {
        let place = {
            let mut state = self.state.lock();
            if state.may_run(asking.tenant) {
                let now = state.clock;
                state.begin(asking, now);
                return Ok(Turn { tenant: asking.tenant, state: Arc::clone(&self.state) });
            }
            state.queue(asking)?
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

    /// Begins one that came when the clock stood at `came`.
    fn begin(&mut self, asking: Asking, came: u64) {
        let tenant = self.tenants.entry(asking.tenant).or_default();
        let tag = tenant.end.max(came);
        tenant.end = tag.saturating_add(asking.length());
        tenant.running += 1;
        self.running += 1;
        self.clock = self.clock.max(tag);
    }

    fn queue(&mut self, asking: Asking) -> Result<oneshot::Receiver<Turn>, TransferError> {
        if self.waiting >= self.waiting_max && self.waiting() >= self.waiting_max {
            return Err(TransferError::Busy);
        }
        let (turn, place) = oneshot::channel();
        let tenant = self.tenants.entry(asking.tenant).or_default();
        tenant.waiting.push_back(Place { asking, came: self.clock, turn });
        self.waiting += 1;
        Ok(place)
    }

    /// Those that still wait: the others have given up, and are counted out here.
    fn waiting(&mut self) -> usize {
        for tenant in self.tenants.values_mut() {
            let before = tenant.waiting.len();
            tenant.waiting.retain(|place| !place.turn.is_closed());
            self.waiting -= before - tenant.waiting.len();
        }
        self.waiting
    }

    fn end(&mut self, tenant: TenantId) {
        self.running -= 1;
        if let Some(it) = self.tenants.get_mut(&tenant) {
            it.running -= 1;
        }
    }

    /// The next that may run: the smallest tag among the first of each tenant that has a turn
    /// left.
    fn next(&mut self) -> Option<(TenantId, oneshot::Sender<Turn>)> {
        let mut first: Option<(u64, TenantId)> = None;
        self.tenants.retain(|id, tenant| {
            while tenant.waiting.front().is_some_and(|place| place.turn.is_closed()) {
                tenant.waiting.pop_front();
                self.waiting -= 1;
            }
            let Some(place) = tenant.waiting.front() else {
                return tenant.running > 0 || tenant.end > self.clock;
            };
            let tag = tenant.end.max(place.came);
            if tenant.running < self.tenant_max && first.is_none_or(|first| (tag, *id) < first) {
                first = Some((tag, *id));
            }
            true
        });
        if self.running == 0 && self.waiting == 0 {
            // Nobody is ahead of anybody.
            self.tenants.clear();
            self.clock = 0;
        }
        if self.running >= self.transfers_max {
            return None;
        }
        let (_, id) = first?;
        let Place { asking, came, turn } = self.tenants.get_mut(&id)?.waiting.pop_front()?;
        self.waiting -= 1;
        self.begin(asking, came);
        Some((id, turn))
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

    type Waiting<'a> = BoxFuture<'a, Result<Turn, TransferError>>;

    fn asking(tenant: TenantId) -> Asking {
        Asking { tenant, weight: Weight::default(), bytes: 0 }
    }

    fn ask(admission: &Admission, tenant: TenantId) -> (Option<Turn>, Waiting<'_>) {
        ask_for(admission, asking(tenant))
    }

    fn ask_for(admission: &Admission, asking: Asking) -> (Option<Turn>, Waiting<'_>) {
        let mut asking = admission.admit(asking).boxed();
        let turn = asking.as_mut().now_or_never().map(|turn| turn.expect("a place"));
        (turn, asking)
    }

    #[test]
    fn only_a_full_queue_is_busy() {
        let admission = admission(1, 1, 1);
        let (running, _) = ask(&admission, A);
        let (none, mut waiting) = ask(&admission, A);
        assert!(running.is_some() && none.is_none());
        let refused = admission.admit(asking(B)).now_or_never().expect("answers at once");
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
        let first = of_b.as_mut().now_or_never().expect("B has had nothing yet");
        assert!(of_a[0].as_mut().now_or_never().is_none());
        drop(first);
        assert!(of_a[0].as_mut().now_or_never().is_some(), "then it is A's turn");
    }

    /// How many of 110 turns A got, where both want all they can get.
    fn turns_of_a(a: Asking, b: Asking) -> usize {
        let admission = admission(1, 1, 1000);
        let mut running = ask(&admission, TenantId(9)).0;
        let mut waiting: Vec<(bool, Waiting<'_>)> = (0..200)
            .flat_map(|_| [(true, ask_for(&admission, a).1), (false, ask_for(&admission, b).1)])
            .collect();
        let mut of_a = 0;
        for _ in 0..110 {
            drop(running.take());
            let served = waiting.iter_mut().enumerate().find_map(|(at, (_, waiting))| {
                Some((at, waiting.as_mut().now_or_never()?.expect("a turn")))
            });
            let (at, turn) = served.expect("somebody is served");
            running = Some(turn);
            of_a += usize::from(waiting.remove(at).0);
        }
        of_a
    }

    /// Ten times the weight, ten times the turns; twice the bytes, half of them.
    #[test]
    fn tenants_share_by_weight_and_bytes() {
        let of = |tenant, weight, bytes| {
            let weight = Weight::new(weight).expect("a weight");
            Asking { tenant, weight, bytes }
        };
        assert_eq!(turns_of_a(of(A, 100, 1), of(B, 100, 4096)), 55);
        assert_eq!(turns_of_a(of(A, 1000, 1), of(B, 100, 1)), 100);
        assert_eq!(turns_of_a(of(A, 10, 1), of(B, 100, 1)), 10);
        let share = turns_of_a(of(A, 100, 2 << 20), of(B, 100, 1 << 20));
        assert!((36..=37).contains(&share), "{share}");
    }

    /// A tenant that comes and goes does not escape what it was charged, nor what it did not get.
    #[test]
    fn what_was_had_is_remembered_while_others_wait() {
        let admission = admission(1, 1, 100);
        let large = Asking { tenant: A, weight: Weight::default(), bytes: 1 << 30 };
        let (running, _) = ask_for(&admission, large);
        let mut of_b: Vec<_> = (0..3).map(|_| ask(&admission, B).1).collect();
        drop(running);
        let (_, mut again) = ask_for(&admission, large);
        for waiting in &mut of_b {
            let turn = waiting.as_mut().now_or_never().expect("B's are small").expect("a turn");
            assert!(again.as_mut().now_or_never().is_none());
            drop(turn);
        }
        let turn = again.as_mut().now_or_never().expect("nobody else waits");
        drop(turn);
        assert!(admission.state.lock().tenants.is_empty());
        assert_eq!(admission.state.lock().clock, 0);
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
