//! The kernels that come with the library.
//!
//! Invariant: the module was loaded into the context of the `Gpu` that owns this, and is unloaded
//! before that context is released.

#![allow(unsafe_code)]

use keyway_sys::cuda::{Cuda, abi};

use super::device::released;

/// The kernels of one GPU.
pub(super) struct Kernels {
    module: abi::Module,
}

// SAFETY: a module's handle may be used from any thread.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Gives the module back.
    ///
    /// # Safety
    /// No kernel of it is under way or is launched again; its context is current.
    pub(super) unsafe fn unload(&self, cuda: &Cuda) {
        // SAFETY: upheld by the caller.
        if let Err(error) = unsafe { cuda.module_unload(self.module) } {
            released(error, "a GPU's kernels");
        }
    }
}
