//! How bytes of a body get into the memory that a read fills.
//!
//! Host memory is received into as it is. A GPU's is reached through its copy engine: bytes are
//! received into a ring of pinned host memory, hashed there while they are in cache, and copied
//! on while the next ones arrive. So no byte is copied by the CPU but by the kernel, out of the
//! socket.

mod device;
mod host;

use std::sync::Arc;

use keyway_fabric::gpu::StreamTurn;

use crate::error::ClientError;
use crate::rdma::Target;
use crate::staging::Staging;

use super::Failed;
use super::fetch::{Fetch, Fetched};

/// Memory that reads fill: [`HostSliceMut`](crate::HostSliceMut) and
/// [`DeviceSliceMut`](crate::DeviceSliceMut).
///
/// It moves into a read and comes back with the outcome, or with the error. The trait is sealed.
pub trait GetTarget: Land {}

/// What transfers need of memory that they fill.
pub trait Land: Target + Sized {
    /// The memory while bodies land in it.
    type Landing: Landing<Target = Self>;

    /// Begins to fill it from `offset` on. The turn is held until nothing writes there any more.
    ///
    /// # Errors
    /// With the memory, where what the way there needs is not to be had.
    fn land(
        self,
        staging: &Staging,
        offset: usize,
        turn: Option<Arc<StreamTurn>>,
    ) -> impl Future<Output = Result<Self::Landing, Failed<Self>>> + Send;

    /// Fills the front of it with what is fetched, by the way that suits memory of its kind.
    ///
    /// # Errors
    /// With the memory, when retrying could not help or was not allowed any more.
    fn fetch(
        self,
        fetch: Fetch,
    ) -> impl Future<Output = Result<Fetched<Self>, Failed<Self>>> + Send;

    /// Cuts off and gives the first `bytes` bytes; `self` keeps the rest.
    #[must_use]
    fn split_to(&mut self, bytes: usize) -> Self;

    /// Joins `next` back on.
    ///
    /// # Errors
    /// `next` itself where it is no neighbour.
    fn unsplit(&mut self, next: Self) -> Result<(), Self>;
}

/// Memory in which the bytes of a body land, one after the other.
pub trait Landing: Send {
    /// What it is.
    type Target;

    /// Host memory for the next bytes: at least one byte, at most `most`. Giving up waiting for
    /// it loses nothing.
    fn room(&mut self, most: usize) -> impl Future<Output = Result<&mut [u8], ClientError>> + Send;

    /// The front of the room holds the next bytes.
    fn filled(&mut self, bytes: usize);

    /// The memory, when all that was filled is in it, or it is certain that no more will come.
    fn end(self) -> impl Future<Output = (Self::Target, Result<(), ClientError>)> + Send;
}
