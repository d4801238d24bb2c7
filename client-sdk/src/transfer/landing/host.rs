//! Host memory: bytes are received where they belong.

use std::sync::Arc;

use keyway_fabric::gpu::StreamTurn;
use keyway_fabric::memory::HostSliceMut;

use super::{GetTarget, Land, Landing};
use crate::error::ClientError;
use crate::staging::Staging;
use crate::transfer::Failed;
use crate::transfer::fetch::{Fetch, Fetched};

impl GetTarget for HostSliceMut {}

impl Land for HostSliceMut {
    type Landing = HostLanding;

    async fn land(
        self,
        _: &Staging,
        offset: usize,
        _: Option<Arc<StreamTurn>>,
    ) -> Result<HostLanding, Failed<Self>> {
        Ok(HostLanding { target: self, reached: offset })
    }

    async fn fetch(self, fetch: Fetch) -> Result<Fetched<Self>, Failed<Self>> {
        fetch.run(self).await
    }

    fn split_to(&mut self, bytes: usize) -> Self {
        Self::split_to(self, bytes)
    }

    fn unsplit(&mut self, next: Self) -> Result<(), Self> {
        Self::unsplit(self, next)
    }
}

/// Host memory that bytes are received into.
pub struct HostLanding {
    target: HostSliceMut,
    reached: usize,
}

impl Landing for HostLanding {
    type Target = HostSliceMut;

    async fn room(&mut self, most: usize) -> Result<&mut [u8], ClientError> {
        Ok(&mut self.target[self.reached..][..most])
    }

    fn filled(&mut self, bytes: usize) {
        self.reached += bytes;
    }

    async fn end(self) -> (HostSliceMut, Result<(), ClientError>) {
        (self.target, Ok(()))
    }
}
