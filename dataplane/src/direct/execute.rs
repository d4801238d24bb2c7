//! Executes an accepted plan: moves the bytes, and ends the key however that went.
//!
//! The order of things is [`Worker`]'s; this drives it. Whatever happens (a damaged block, a
//! full disk, a cancelled request, a deadline, a dead client), the end is the same: the key is
//! given up with evidence of the adapter, and only then is there an answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

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

use super::session::Way;
use super::transport::Transport;
use super::{Accepted, Direct, gather, get, put};
use crate::engine::{Admission, Asking, Counters};
use crate::node::{DirectError, TransferError, Transferred};
use crate::store::BlobStore;
use crate::store::tier::MemoryTier;

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
    match &session.session.way {
        Way::Verbs(way) => {
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
        deadline: tokio::time::Instant,
        mut abandoned: oneshot::Receiver<()>,
    ) -> Transferred {
        let direction = direction_of(&plan.work);
        let mut worker = Worker::new(self.strength.revoker(), direction);
        worker.on(WorkerEvent::Start);
        let moved: Result<Moved<T::Batch>, DirectError> = tokio::select! {
            biased;
            moved = self.begin(needs, plan) => moved,
            _ = &mut abandoned => Err(DirectError::Cancelled),
            () = tokio::time::sleep_until(deadline) => Err(DirectError::TimedOut),
        };
        let ending = Ending { worker, way: self.way, target: &plan.target };
        let (key, outcome) = ending.run(moved, needs, abandoned).await;
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
}

impl<T: Transport> Ending<'_, T> {
    async fn run(
        mut self,
        moved: Result<Moved<T::Batch>, DirectError>,
        needs: &Needs,
        mut abandoned: oneshot::Receiver<()>,
    ) -> (Relinquished, Result<(Digests, Durability), DirectError>) {
        match moved {
            Ok(Moved::Written(tail)) => {
                let get::Tail { batch, digests, holds } = tail;
                let (moved, key) = self.relinquish(WorkerEvent::Moved, batch).await;
                drop(holds);
                (key, if moved { Ok((digests, Durability::default())) } else { Err(lost()) })
            }
            // The disk works while the key ends.
            Ok(Moved::Landed(staging)) => {
                let ended = self.relinquish(WorkerEvent::Moved, T::Batch::default());
                let ((moved, key), staged) = tokio::join!(ended, staging.seal());
                let outcome = match staged {
                    // What nobody asks for any more is given back at once.
                    Ok(_) if abandoned.try_recv() == Err(TryRecvError::Closed) => {
                        Err(DirectError::Cancelled)
                    }
                    Ok(staged) if moved => staged.publish(&*needs.store),
                    Ok(_) => Err(lost()),
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
        let mut tail = Some(tail);
        let mut action = self.worker.on(event);
        loop {
            let next = match action {
                Some(WorkerAction::Invalidate) => {
                    let mut batch = tail.take().unwrap_or_default();
                    for window in self.target.windows() {
                        self.way.end(&mut batch, window.key);
                    }
                    match self.way.post(batch).await {
                        Ok(()) => WorkerEvent::InvalidateCompleted,
                        Err(_) => WorkerEvent::QpFailed,
                    }
                }
                Some(WorkerAction::Drain) => match self.way.drain(self.target.windows()).await {
                    Ok(()) => WorkerEvent::Drained,
                    Err(_) => WorkerEvent::QpFailed,
                },
                Some(WorkerAction::DestroyQp) => {
                    self.way.fence().await;
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
}

fn lost() -> DirectError {
    DirectError::Link("the queue pair failed while the key ended".into())
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
