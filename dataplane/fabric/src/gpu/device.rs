//! An opened GPU: the process's primary context on it.
//!
//! Invariant: `context` is the primary context of `device`, retained once by this `Gpu` and
//! released once when the last holder is gone. Everything made in it holds the `Gpu`. Nothing
//! is retained on a GPU that nobody named: looking one up by identifier reads attributes alone.

#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock, Weak};

use keyway_sys::cuda::abi::{self, Context, Device, DeviceAttribute};
use keyway_sys::cuda::{Cuda, CudaError};
use parking_lot::Mutex;

use super::GpuError;
use super::copy::Engine;
use super::kernels::Kernels;

/// A GPU that this process uses.
pub struct Gpu {
    cuda: &'static Cuda,
    ordinal: u32,
    device: Device,
    context: Context,
    uuid: GpuUuid,
    name: Box<str>,
    limits: GpuLimits,
    /// The copy engine, while anybody holds it.
    pub(super) engine: Mutex<Weak<Engine>>,
    pub(super) kernels: OnceLock<Result<Kernels, GpuError>>,
    /// Words of pinned memory that callers' streams wait for; those that no turn has.
    pub(super) words: Mutex<Vec<&'static AtomicU32>>,
}

// SAFETY: a context may be made current on any thread; all else is plain data.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver locks by itself.
unsafe impl Sync for Gpu {}

/// What identifies a GPU, or a part of a divided one, in every process of the host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuUuid(pub [u8; 16]);

/// What a GPU can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuLimits {
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Engines that copy beside the multiprocessors.
    pub copy_engines: u32,
    /// Whether adapters may reach its memory.
    pub rdma: bool,
    /// Whether its memory can be handed out as dma-buf.
    pub dma_buf: bool,
    /// Whether a write by an adapter is seen by this process's GPU work without a flush.
    pub writes_are_ordered: bool,
    /// Whether the host can flush such writes.
    pub host_can_flush: bool,
    /// Whether the GPU reaches pinned host memory at the host's own addresses.
    pub host_addresses: bool,
}

/// The driver, started once in this process.
static DRIVER: OnceLock<Result<Driver, GpuError>> = OnceLock::new();

struct Driver {
    cuda: Cuda,
    process: u32,
    opened: Mutex<Vec<Weak<Gpu>>>,
}

fn driver() -> Result<&'static Driver, GpuError> {
    let started = DRIVER.get_or_init(|| {
        let cuda = Cuda::load().map_err(|error| GpuError::NoGpu(Arc::new(error)))?;
        Ok(Driver { cuda, process: std::process::id(), opened: Mutex::default() })
    });
    match started {
        Ok(driver) if driver.process == std::process::id() => Ok(driver),
        Ok(_) => Err(GpuError::Forked),
        Err(error) => Err(error.clone()),
    }
}

impl Gpu {
    /// How many GPUs there are. Makes no context.
    ///
    /// # Errors
    /// [`GpuError::NoGpu`].
    pub fn count() -> Result<u32, GpuError> {
        Ok(driver()?.cuda.device_count()?)
    }

    /// Opens the GPU of this number, in the driver's order; another holder's is shared. The
    /// first opening takes a few hundred milliseconds and some of the GPU's memory.
    ///
    /// # Errors
    /// [`GpuError::NoGpu`], [`GpuError::NoSuchGpu`], [`GpuError::Call`].
    pub fn open(ordinal: u32) -> Result<Arc<Self>, GpuError> {
        let driver = driver()?;
        if ordinal >= driver.cuda.device_count()? {
            return Err(GpuError::NoSuchGpu(ordinal));
        }
        // Held while the context is made: two callers must not make two.
        let mut opened = driver.opened.lock();
        opened.retain(|gpu| gpu.strong_count() > 0);
        let found = opened.iter().filter_map(Weak::upgrade).find(|gpu| gpu.ordinal == ordinal);
        if let Some(gpu) = found {
            return Ok(gpu);
        }
        let gpu = Arc::new(Self::retain(&driver.cuda, ordinal)?);
        opened.push(Arc::downgrade(&gpu));
        Ok(gpu)
    }

    /// Opens the GPU with this identifier. No context is made on others.
    ///
    /// # Errors
    /// [`GpuError::NoGpu`], [`GpuError::NoSuchUuid`], [`GpuError::Call`].
    pub fn by_uuid(uuid: GpuUuid) -> Result<Arc<Self>, GpuError> {
        let cuda = &driver()?.cuda;
        for ordinal in 0..cuda.device_count()? {
            if cuda.device_uuid(cuda.device(ordinal)?)? == uuid.0 {
                return Self::open(ordinal);
            }
        }
        Err(GpuError::NoSuchUuid(uuid))
    }

    /// Opens the GPU whose memory this address is of.
    ///
    /// # Errors
    /// [`GpuError::NotDeviceMemory`], [`GpuError::Managed`], [`GpuError::Freed`], and what
    /// [`Gpu::open`] answers.
    pub fn of_pointer(address: u64) -> Result<Arc<Self>, GpuError> {
        Self::open(super::pointer::describe(&driver()?.cuda, address)?.ordinal)
    }

    /// Its number in the driver's order, which may differ between processes.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// What identifies it on this host.
    pub fn uuid(&self) -> GpuUuid {
        self.uuid
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it can do.
    pub fn limits(&self) -> GpuLimits {
        self.limits
    }

    /// Makes what adapters wrote into its memory visible to work that this process gives it
    /// from now on. Does nothing where the platform orders such writes by itself.
    ///
    /// # Errors
    /// [`GpuError::Call`] where it can neither order nor flush.
    pub fn flush_remote_writes(&self) -> Result<(), GpuError> {
        if self.limits.writes_are_ordered {
            return Ok(());
        }
        let _current = self.enter()?;
        // SAFETY: the context is current.
        unsafe {
            self.cuda
                .flush_gpu_direct_rdma_writes(abi::FLUSH_TARGET_CURRENT_CTX, abi::FLUSH_TO_OWNER)
        }?;
        Ok(())
    }

    /// Makes the context current on this thread until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, GpuError> {
        // SAFETY: the context is retained as long as `self` lives, and the guard borrows it.
        unsafe { self.cuda.ctx_push_current(self.context) }?;
        Ok(Entered { gpu: self, _of_this_thread: PhantomData })
    }

    pub(crate) fn cuda(&self) -> &'static Cuda {
        self.cuda
    }

    fn retain(cuda: &'static Cuda, ordinal: u32) -> Result<Self, GpuError> {
        let device = cuda.device(ordinal)?;
        let uuid = GpuUuid(cuda.device_uuid(device)?);
        let name = cuda.device_name(device)?.into();
        let limits = GpuLimits::of(cuda, device)?;
        let mut context: Context = std::ptr::null_mut();
        // SAFETY: the function writes a context's handle; `drop` releases it.
        unsafe { cuda.primary_ctx_retain(&raw mut context, device) }?;
        let (engine, kernels, words) = (Mutex::default(), OnceLock::new(), Mutex::default());
        Ok(Self { cuda, ordinal, device, context, uuid, name, limits, engine, kernels, words })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if let Some(Ok(kernels)) = self.kernels.take()
            && let Ok(_current) = self.enter()
        {
            // SAFETY: whoever could launch them held the GPU; its context is current.
            unsafe { kernels.unload(self.cuda) };
        }
        // SAFETY: all that was made in the context held this.
        if let Err(error) = unsafe { self.cuda.primary_ctx_release(self.device) } {
            released(error, "a GPU's context");
        }
    }
}

impl GpuLimits {
    fn of(cuda: &Cuda, device: Device) -> Result<Self, CudaError> {
        // An attribute that an old driver does not know is one that the GPU does not have.
        let attribute = |which: DeviceAttribute| cuda.device_attribute(device, which).unwrap_or(0);
        Ok(Self {
            memory_bytes: cuda.device_memory(device)?,
            multiprocessors: attribute(abi::DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).max(1) as u32,
            copy_engines: attribute(abi::DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT).max(0) as u32,
            rdma: attribute(abi::DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) != 0,
            dma_buf: attribute(abi::DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0,
            writes_are_ordered: attribute(abi::DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)
                >= abi::GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER,
            host_can_flush: attribute(abi::DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)
                & 1
                != 0,
            host_addresses: attribute(
                abi::DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
            ) != 0,
        })
    }
}

/// The context is current on this thread, above what was current before.
pub(crate) struct Entered<'gpu> {
    gpu: &'gpu Gpu,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut context: Context = std::ptr::null_mut();
        // SAFETY: the function writes the context that it takes off this thread's stack.
        if let Err(error) = unsafe { self.gpu.cuda.ctx_pop_current(&raw mut context) } {
            released(error, "this thread's current context");
        }
    }
}

/// Logs that something could not be given back. At the process's exit the driver goes first,
/// and has taken it with it.
pub(crate) fn released(error: CudaError, what: &'static str) {
    if error.code() == Some(abi::ERROR_DEINITIALIZED) {
        tracing::debug!(%error, what, "the driver is gone already");
    } else {
        tracing::error!(%error, what, "cannot give back");
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu")
            .field("ordinal", &self.ordinal)
            .field("uuid", &self.uuid)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for GpuUuid {
    /// As the driver's tools write it: `GPU-` and five groups.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_read_like_the_drivers() {
        let uuid = GpuUuid(std::array::from_fn(|at| at as u8 * 17));
        assert_eq!(uuid.to_string(), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }

    /// Whatever the machine has, the answer is a number or an error with its reason.
    #[test]
    fn a_machine_without_gpus_says_so() {
        match Gpu::count() {
            Ok(count) => assert!(matches!(
                Gpu::open(count),
                Err(GpuError::NoSuchGpu(ordinal)) if ordinal == count
            )),
            Err(error) => {
                assert!(matches!(error, GpuError::NoGpu(_)));
                assert!(matches!(Gpu::open(0), Err(GpuError::NoGpu(_))));
                assert!(matches!(Gpu::of_pointer(4096), Err(GpuError::NoGpu(_))));
            }
        }
    }
}
