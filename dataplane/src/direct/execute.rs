//! Executes an accepted plan: moves the bytes, and ends the key however that went.
//!
//! The order of things is [`Worker`]'s; this drives it. Whatever happens (a damaged block, a
//! full disk, a cancelled request, a deadline, a dead client), the end is the same: the key is
//! given up with evidence of the adapter, and only then is there an answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use keyway_fabric::memory::LeasePool;
use keyway_fabric::verbs::{Batch, LinkError};
use keyway_proto::key::{Direction, Relinquished, Worker, WorkerAction, WorkerEvent};
use keyway_proto::{Digests, DirectWork, KeyFate, Receipt, TransferId, TransferPath};
use tokio::sync::oneshot;

use super::session::Session;
use super::{Accepted, Direct, get, put};
use crate::engine::{Admission, Counters};
use crate::node::{DirectError, TransferError, Transferred};
use crate::store::BlobStore;

/// What a transfer needs of its node.
#[derive(Clone)]
pub(crate) struct Needs {
    pub(crate) store: Arc<dyn BlobStore>,
    pub(crate) pool: LeasePool,
    pub(crate) admission: Admission,
    pub(crate) counters: Arc<Counters>,
    pub(crate) direct: Arc<Direct>,
}

/// Bytes on their way, as far as the mover got without ending the key.
pub(super) enum Moved {
    /// GET: the last WRITEs, to be posted with the invalidation.
    Written(get::Tail),
    /// PUT: all READs have landed; the disk is at work.
    Landed(put::Staging),
}

/// Executes a plan. `abandoned` resolves when nobody waits for it any more.
pub(crate) async fn execute(
    needs: Needs,
    accepted: Accepted,
    mut abandoned: oneshot::Receiver<()>,
) -> Transferred {
    let Accepted { plan, session, deadline } = accepted;
    let direction = match plan.work {
        DirectWork::Get(..) => Direction::Write,
        DirectWork::Put(..) => Direction::Read,
    };
    let mut worker = Worker::new(session.0.strength.revoker(), direction);
    worker.on(WorkerEvent::Start);
    let moving = async {
        let turn = needs.admission.admit(plan.owner.tenant).await?;
        match &plan.work {
            DirectWork::Get(get, digests) => {
                let tail = get::run(get, *digests, &plan.target, &session.0, &needs, turn).await?;
                Ok(Moved::Written(tail))
            }
            DirectWork::Put(put) => {
                let staging = put::run(put, &plan.target, &session.0, &needs, turn).await?;
                Ok(Moved::Landed(staging))
            }
        }
    };
    let moved: Result<Moved, DirectError> = tokio::select! {
        biased;
        moved = moving => moved,
        _ = &mut abandoned => Err(DirectError::Cancelled),
        () = tokio::time::sleep_until(deadline) => Err(DirectError::TimedOut),
    };
    let (transfer, bytes) = (transfer_of(&plan.work), plan.length());
    let ending = Ending { worker, session: &session.0, plan_keys: &plan.target };
    let (key, outcome) = ending.run(moved, &needs).await;
    needs.direct.count(key);
    let moved = outcome.map(|digests| {
        let counter = match direction {
            Direction::Write => &needs.counters.delivered_bytes,
            Direction::Read => &needs.counters.stored_bytes,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
        Receipt {
            transfer,
            bytes,
            digests,
            path: TransferPath::VerbsHost,
            strength: session.0.strength,
            key: KeyFate::Relinquished(key),
        }
    });
    if moved.is_err() {
        needs.counters.count_failure();
    }
    Transferred { moved, key }
}

fn transfer_of(work: &DirectWork) -> TransferId {
    match work {
        DirectWork::Get(plan, _) => plan.transfer,
        DirectWork::Put(plan) => plan.transfer,
    }
}

/// The end of a transfer.
struct Ending<'a> {
    worker: Worker,
    session: &'a Session,
    plan_keys: &'a keyway_proto::SessionToken,
}

impl Ending<'_> {
    async fn run(
        mut self,
        moved: Result<Moved, DirectError>,
        needs: &Needs,
    ) -> (Relinquished, Result<Digests, DirectError>) {
        match moved {
            Ok(Moved::Written(tail)) => {
                let get::Tail { batch, digests, delivery } = tail;
                let (moved, key) = self.relinquish(WorkerEvent::Moved, batch).await;
                drop(delivery);
                (key, if moved { Ok(digests) } else { Err(lost()) })
            }
            // The disk works while the key ends.
            Ok(Moved::Landed(staging)) => {
                let ended = self.relinquish(WorkerEvent::Moved, Batch::default());
                let ((moved, key), staged) = tokio::join!(ended, staging.seal());
                let outcome = match staged {
                    Ok(staged) if moved => staged.publish(&*needs.store),
                    Ok(_) => Err(lost()),
                    Err(error) => Err(error),
                };
                (key, outcome)
            }
            Err(DirectError::Link(why)) => {
                let (_, key) = self.relinquish(WorkerEvent::QpFailed, Batch::default()).await;
                (key, Err(DirectError::Link(why)))
            }
            Err(error) => {
                // How many requests are still under way is not counted: draining a queue that
                // is empty costs one empty request.
                let give_up = WorkerEvent::GiveUp { in_flight: 1 };
                let (_, key) = self.relinquish(give_up, Batch::default()).await;
                (key, Err(error))
            }
        }
    }

    /// Follows the machine to its end. `tail` goes before the invalidation, with one doorbell.
    async fn relinquish(&mut self, event: WorkerEvent, tail: Batch) -> (bool, Relinquished) {
        let mut tail = Some(tail);
        let mut action = self.worker.on(event);
        loop {
            let next = match action {
                Some(WorkerAction::Invalidate) => {
                    let mut batch = tail.take().unwrap_or_default();
                    for window in self.plan_keys.windows() {
                        batch.invalidate(window.key);
                    }
                    match self.session.link.post(batch).await {
                        Ok(_) => WorkerEvent::InvalidateCompleted,
                        Err(_) => WorkerEvent::QpFailed,
                    }
                }
                // A queue pair completes in order: what follows all tells of all.
                Some(WorkerAction::Drain) => match self.session.link.heartbeat().await {
                    Ok(()) => WorkerEvent::Drained,
                    Err(_) => WorkerEvent::QpFailed,
                },
                Some(WorkerAction::DestroyQp) => {
                    self.session.link.fence().await;
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
