//! Executes an accepted plan: moves the bytes, and ends the key however that went.
//!
//! The order of things is [`Worker`]'s; this drives it. Whatever happens (a damaged block, a
//! full disk, a cancelled request, a deadline, a dead client), the end is the same: the key is
//! given up with evidence of the adapter, and only then is there an answer. A client whose adapter
//! takes longer with that than [`ENDING_MAX`] loses its queue pair: the buffers are others' turn.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use keyway_fabric::LinkError;
use keyway_fabric::ipc::MemoryKind;
use keyway_fabric::memory::LeasePool;
use keyway_proto::key::{Direction, Relinquished, Worker, WorkerAction, WorkerEvent};
use keyway_proto::{
    Digests, DirectPlan, DirectTarget, DirectWork, Durability, KeyFate, KeyStrength, Receipt,
    TransferPath,
};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::Instant;

use super::session::Way;
use super::transport::Transport;
use super::{Accepted, Direct, gather, get, put};
use crate::engine::{Admission, Asking, Counters};
use crate::node::{DirectError, TransferError, Transferred};
use crate::store::BlobStore;
use crate::store::tier::MemoryTier;

/// How long the end of a transfer may take from the moment that its time has passed, or that it is
/// given up: some rounds of lost packets and their ACK timeouts. What is under way then, at most a
/// few MiB, would take a link of 1 MB/s as long.
const ENDING_MAX: Duration = Duration::from_secs(5);

/// What a transfer needs of its node.
#[derive(Clone)]
pub(crate) struct Needs {
    pub(crate) store: Arc<dyn BlobStore>,
    /// The same store, where it is a tier.
    pub(crate) tier: Option<Arc<MemoryTier>>,
    pub(crate) pool: LeasePool,
    pub(crate) admission: Admission,
    pub(crate) counters: Arc<Counters>,
    pub(crate) direct: Arc<Direct>,
}

/// Bytes on their way, as far as the mover got without ending the key.
enum Moved<B> {
    /// GET: the last writes, to be begun with the end of the key.
    Written(get::Tail<B>),
    /// PUT: all reads have landed; the disk is at work.
    Landed(put::Staging),
}

/// Executes a plan. `abandoned` resolves when nobody waits for it any more.
pub(crate) async fn execute(
    needs: Needs,
    accepted: Accepted,
    abandoned: oneshot::Receiver<()>,
) -> Transferred {
    let Accepted { plan, session, deadline } = accepted;
    let strength = session.session.strength;
    let Some(_lent) = session.session.lend(plan.target.windows()) else {
        // Not quiet: the client would end a key that the other transfer is at work under.
        let moved = Err(DirectError::InvalidPlan("a key is another transfer's"));
        return Transferred { moved, key: Relinquished::Unknown };
    };
    match &session.session.way {
        Way::Verbs(way) => {
            let way = &way.unused();
            let over = Over { way, path: TransferPath::VerbsHost, strength };
            over.execute(&needs, &plan, deadline, abandoned).await
        }
        Way::Ipc(way) => {
            // Nothing is begun under a key that does not open what the plan says.
            let path = match way.claim(plan.target.windows(), direction_of(&plan.work)) {
                Ok(MemoryKind::Host) => TransferPath::IpcHost,
                Ok(MemoryKind::Gpu) => TransferPath::IpcGpu,
                Err(error) => return Transferred::refused(error),
            };
            let over = Over { way, path, strength };
            over.execute(&needs, &plan, deadline, abandoned).await
        }
        Way::Dynamic(way) => {
            let over = Over { way, path: TransferPath::VerbsHost, strength };
            let transferred = over.execute(&needs, &plan, deadline, abandoned).await;
            if transferred.key == Relinquished::Quiet {
                way.settle();
            }
            transferred
        }
    }
}

/// A transfer over one kind of link.
struct Over<'a, T> {
    way: &'a T,
    path: TransferPath,
    strength: KeyStrength,
}

impl<T: Transport> Over<'_, T> {
    async fn execute(
        &self,
        needs: &Needs,
        plan: &DirectPlan,
        deadline: Instant,
        mut abandoned: oneshot::Receiver<()>,
    ) -> Transferred {
        let direction = direction_of(&plan.work);
        let moved: Result<Moved<T::Batch>, DirectError> = tokio::select! {
            biased;
            moved = self.begin(needs, plan) => moved,
            _ = &mut abandoned => Err(DirectError::Cancelled),
            () = tokio::time::sleep_until(deadline) => Err(DirectError::TimedOut),
        };
        let mut worker = Worker::new(self.strength.revoker(), direction);
        if moved.is_ok() || self.way.was_used() {
            worker.on(WorkerEvent::Start);
        }
        let patience = match &moved {
            Ok(_) => Patience { until: deadline + ENDING_MAX, abandoned: Some(abandoned) },
            Err(_) => Patience { until: Instant::now() + ENDING_MAX, abandoned: None },
        };
        let target = &plan.target;
        let ending = Ending { worker, way: self.way, target, patience, was_late: false };
        let (key, outcome) = ending.run(moved, needs).await;
        needs.direct.count(key);
        let bytes = plan.length();
        let moved = outcome.map(|(digests, durability)| {
            match plan.work {
                // Counted as the engine verified them.
                DirectWork::Get(..) => {}
                DirectWork::Gather(..) => {
                    needs.counters.delivered_bytes.fetch_add(bytes, Ordering::Relaxed);
                }
                DirectWork::Put(..) => {
                    needs.counters.stored_bytes.fetch_add(bytes, Ordering::Relaxed);
                }
            }
            Receipt {
                transfer: plan.work.transfer(),
                bytes,
                digests,
                path: self.path,
                strength: self.strength,
                key: KeyFate::Relinquished(key),
                durability,
            }
        });
        if moved.is_err() {
            needs.counters.count_failure();
        }
        Transferred { moved, key }
    }

    async fn begin(
        &self,
        needs: &Needs,
        plan: &DirectPlan,
    ) -> Result<Moved<T::Batch>, DirectError> {
        let (tenant, weight) = (plan.owner.tenant, plan.work.weight());
        let asking = Asking { tenant, weight, bytes: plan.length() };
        let turn = needs.admission.admit(asking).await?;
        let (way, target) = (self.way, &plan.target);
        match &plan.work {
            DirectWork::Get(get, digests) => {
                let revoker = self.strength.revoker();
                let tail = get::run(get, *digests, target, way, revoker, needs, turn).await?;
                Ok(Moved::Written(tail))
            }
            DirectWork::Gather(pieces, digests) => {
                let revoker = self.strength.revoker();
                let tail = gather::run(pieces, *digests, target, way, revoker, needs, turn).await?;
                Ok(Moved::Written(tail))
            }
            DirectWork::Put(put) => {
                Ok(Moved::Landed(put::run(put, target, way, needs, turn).await?))
            }
        }
    }
}

fn direction_of(work: &DirectWork) -> Direction {
    match work {
        DirectWork::Get(..) | DirectWork::Gather(..) => Direction::Write,
        DirectWork::Put(..) => Direction::Read,
    }
}

/// The end of a transfer.
struct Ending<'a, T> {
    worker: Worker,
    way: &'a T,
    target: &'a DirectTarget,
    patience: Patience,
    /// The end took longer than that.
    was_late: bool,
}

/// How long the end is waited for.
struct Patience {
    until: Instant,
    /// Resolves when nobody waits for the transfer any more.
    abandoned: Option<oneshot::Receiver<()>>,
}

impl Patience {
    /// Resolves when it is at its end. May be dropped, and asked for again.
    async fn ended(&mut self) {
        if let Some(abandoned) = &mut self.abandoned {
            tokio::select! {
                _ = abandoned => {}
                () = tokio::time::sleep_until(self.until) => return,
            }
            self.abandoned = None;
            self.until = self.until.min(Instant::now() + ENDING_MAX);
        }
        tokio::time::sleep_until(self.until).await;
    }

    fn is_abandoned(&mut self) -> bool {
        let is_gone = |it: &mut oneshot::Receiver<()>| it.try_recv() == Err(TryRecvError::Closed);
        self.abandoned.as_mut().is_none_or(is_gone)
    }
}

impl<T: Transport> Ending<'_, T> {
    async fn run(
        mut self,
        moved: Result<Moved<T::Batch>, DirectError>,
        needs: &Needs,
    ) -> (Relinquished, Result<(Digests, Durability), DirectError>) {
        match moved {
            Ok(Moved::Written(tail)) => {
                let get::Tail { batch, digests, holds } = tail;
                let (moved, key) = self.relinquish(WorkerEvent::Moved, batch).await;
                drop(holds);
                (key, if moved { Ok((digests, Durability::default())) } else { Err(self.lost()) })
            }
            // The disk works while the key ends.
            Ok(Moved::Landed(staging)) => {
                let sealed = tokio::time::timeout_at(self.patience.until, staging.seal());
                let ended = self.relinquish(WorkerEvent::Moved, T::Batch::default());
                let ((moved, key), staged) = tokio::join!(ended, sealed);
                let outcome = match staged.unwrap_or(Err(DirectError::TimedOut)) {
                    // What nobody asks for any more is given back at once.
                    Ok(_) if self.patience.is_abandoned() => Err(DirectError::Cancelled),
                    Ok(staged) if moved => staged.publish(&*needs.store),
                    Ok(_) => Err(self.lost()),
                    Err(error) => Err(error),
                };
                (key, outcome)
            }
            Err(DirectError::Link(why)) => {
                let (_, key) = self.relinquish(WorkerEvent::QpFailed, T::Batch::default()).await;
                (key, Err(DirectError::Link(why)))
            }
            Err(error) => {
                // How many requests are still under way is not counted: draining a queue that
                // is empty costs one empty request.
                let give_up = WorkerEvent::GiveUp { in_flight: 1 };
                let (_, key) = self.relinquish(give_up, T::Batch::default()).await;
                (key, Err(error))
            }
        }
    }

    /// Follows the machine to its end. `tail` goes before the invalidation, with one doorbell.
    async fn relinquish(&mut self, event: WorkerEvent, tail: T::Batch) -> (bool, Relinquished) {
        let (way, windows) = (self.way, self.target.windows());
        let mut tail = Some(tail);
        let mut action = self.worker.on(event);
        loop {
            let next = match action {
                Some(WorkerAction::Invalidate) => {
                    let mut batch = tail.take().unwrap_or_default();
                    for window in windows {
                        way.end(&mut batch, window.key);
                    }
                    match self.in_time(way.post(batch)).await {
                        Some(Ok(())) => WorkerEvent::InvalidateCompleted,
                        _ => WorkerEvent::QpFailed,
                    }
                }
                Some(WorkerAction::Drain) => match self.in_time(way.drain(windows)).await {
                    Some(Ok(())) => WorkerEvent::Drained,
                    _ => WorkerEvent::QpFailed,
                },
                Some(WorkerAction::DestroyQp) => {
                    way.fence().await;
                    WorkerEvent::QpDestroyed
                }
                Some(WorkerAction::Finish { moved, key }) => return (moved, key),
                Some(WorkerAction::Move) | None => {
                    unreachable!("a transfer that has begun ends by one of the above")
                }
            };
            action = self.worker.on(next);
        }
    }

    /// Waits for it as long as it may take. Buffers stay with what is under way.
    async fn in_time<R>(&mut self, ending: impl Future<Output = R>) -> Option<R> {
        tokio::select! {
            biased;
            ended = ending => Some(ended),
            () = self.patience.ended() => {
                self.was_late = true;
                None
            }
        }
    }

    /// Why the key did not end as it should.
    fn lost(&self) -> DirectError {
        match self.was_late {
            true => DirectError::TimedOut,
            false => DirectError::Link("the queue pair failed while the key ended".into()),
        }
    }
}

impl From<LinkError> for DirectError {
    fn from(error: LinkError) -> Self {
        Self::Link(error.to_string().into())
    }
}

impl From<crate::store::StoreError> for DirectError {
    fn from(error: crate::store::StoreError) -> Self {
        Self::Transfer(TransferError::from(error))
    }
}
