//! What a copy fills.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::{Lease, OpenExtent};

/// Memory of a node that a copy fills, and that goes with the copy until it is made.
#[derive(Debug)]
pub enum Destination {
    /// A buffer on its way to the store.
    Lease(Lease),
    /// Where the bytes stay.
    Extent(OpenExtent),
}

impl Destination {
    /// The first byte's address, for a device. What the device does there is bound by this
    /// value's life: keep it until the device has let go.
    pub fn base(&self) -> NonNull<u8> {
        match self {
            Self::Lease(lease) => lease.base(),
            Self::Extent(extent) => extent.base(),
        }
    }

    /// The lease, if it is one.
    pub fn into_lease(self) -> Option<Lease> {
        match self {
            Self::Lease(lease) => Some(lease),
            Self::Extent(_) => None,
        }
    }

    /// The extent, if it is one.
    pub fn into_extent(self) -> Option<OpenExtent> {
        match self {
            Self::Lease(_) => None,
            Self::Extent(extent) => Some(extent),
        }
    }
}

impl Deref for Destination {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Lease(lease) => lease,
            Self::Extent(extent) => extent,
        }
    }
}

impl DerefMut for Destination {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Lease(lease) => lease,
            Self::Extent(extent) => extent,
        }
    }
}

impl From<Lease> for Destination {
    fn from(lease: Lease) -> Self {
        Self::Lease(lease)
    }
}

impl From<OpenExtent> for Destination {
    fn from(extent: OpenExtent) -> Self {
        Self::Extent(extent)
    }
}
