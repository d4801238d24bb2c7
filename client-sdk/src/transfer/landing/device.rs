//! A GPU's memory: bytes are received into pinned host memory, and the copy engine takes them
//! on from there.
//!
//! The slice is shared with the copies under way: whoever goes away leaves it to them, and the
//! buffer stays lent until the GPU is done with it.

use std::sync::Arc;

use keyway_fabric::gpu::{CopyBatch, GpuError, StreamTurn};
use keyway_fabric::memory::{DeviceSliceMut, Lease, LeaseClass};
use tokio::task::{JoinError, JoinSet};

use super::{GetTarget, Land, Landing};
use crate::error::ClientError;
use crate::staging::{COPIES_MAX, Ring, Staging, sole};
use crate::transfer::Failed;
use crate::transfer::fetch::{Fetch, Fetched};
use crate::transfer::staged;

impl GetTarget for DeviceSliceMut {}

impl Land for DeviceSliceMut {
    type Landing = DeviceLanding;

    async fn land(
        self,
        staging: &Staging,
        offset: usize,
        turn: Option<Arc<StreamTurn>>,
    ) -> Result<DeviceLanding, Failed<Self>> {
        match staging.ring(self.gpu()).await {
            Ok(ring) => Ok(DeviceLanding {
                target: Arc::new(self),
                ring,
                turn,
                given: offset,
                open: None,
                copies: JoinSet::new(),
                failure: None,
            }),
            Err(error) => Err(Failed { error, target: self }),
        }
    }

    async fn fetch(self, fetch: Fetch) -> Result<Fetched<Self>, Failed<Self>> {
        staged::fetch(fetch, self).await
    }

    fn split_to(&mut self, bytes: usize) -> Self {
        Self::split_to(self, bytes)
    }

    fn unsplit(&mut self, next: Self) -> Result<(), Self> {
        Self::unsplit(self, next)
    }
}

/// GPU memory that bytes are on their way to.
pub struct DeviceLanding {
    target: Arc<DeviceSliceMut>,
    ring: Arc<Ring>,
    turn: Option<Arc<StreamTurn>>,
    /// Bytes given to the copy engine, and those before them.
    given: usize,
    /// What is being filled, and how far it is.
    open: Option<(Lease, usize)>,
    /// Tasks of their own: a lease goes back as soon as it was copied from, although this body
    /// may be waiting for its sender.
    copies: JoinSet<Result<(), GpuError>>,
    /// A copy that failed; none is made after it.
    failure: Option<GpuError>,
}

impl DeviceLanding {
    /// Gives the open lease to the copy engine.
    fn flush(&mut self) {
        let Some((lease, filled)) = self.open.take() else { return };
        if filled == 0 {
            return;
        }
        let mut batch = CopyBatch::new();
        batch.into_device(lease.into_bytes(0..filled), self.target.address() + self.given as u64);
        batch.keep(Arc::clone(&self.target) as Arc<_>);
        if let Some(turn) = &self.turn {
            batch.keep(Arc::clone(turn) as Arc<_>);
        }
        self.given += filled;
        let copy = self.ring.queue.submit(batch);
        self.copies.spawn(async move { copy.await.result });
    }

    fn note(&mut self, copied: Result<Result<(), GpuError>, JoinError>) {
        // A task without a result went down with its runtime.
        if let Err(error) = copied.unwrap_or(Err(GpuError::Closed)) {
            self.failure.get_or_insert(error);
        }
    }
}

impl Landing for DeviceLanding {
    type Target = DeviceSliceMut;

    async fn room(&mut self, most: usize) -> Result<&mut [u8], ClientError> {
        while let Some(copied) = self.copies.try_join_next() {
            self.note(copied);
        }
        while self.copies.len() >= COPIES_MAX
            && let Some(copied) = self.copies.join_next().await
        {
            self.note(copied);
        }
        if let Some(failure) = &self.failure {
            return Err(failure.clone().into());
        }
        if self.open.is_none() {
            let class = LeaseClass::fitting(most).unwrap_or(LeaseClass::Unit);
            self.open = Some((self.ring.pool.lease(class).await, 0));
        }
        let (lease, filled) = self.open.as_mut().expect("there is one now");
        let end = lease.len().min(*filled + most);
        Ok(&mut lease[*filled..end])
    }

    fn filled(&mut self, bytes: usize) {
        let Some((lease, filled)) = &mut self.open else { return };
        *filled += bytes;
        if *filled == lease.len() {
            self.flush();
        }
    }

    async fn end(mut self) -> (DeviceSliceMut, Result<(), ClientError>) {
        self.flush();
        while let Some(copied) = self.copies.join_next().await {
            self.note(copied);
        }
        let Self { target, failure, .. } = self;
        (sole(target).await, failure.map_or(Ok(()), |error| Err(error.into())))
    }
}
