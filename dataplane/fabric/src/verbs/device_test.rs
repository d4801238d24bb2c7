//! What an adapter can really do with a GPU's memory, found out by trying.
//!
//! The bytes of a write must arrive in the GPU's memory, and must not once the registration is
//! given back. Windows are not tried: the kernel refuses to bind any to a dma-buf.

use std::sync::Arc;

use keyway_proto::KeyStrength;
use keyway_proto::key::Direction;

use super::self_test::{Bench, StepError, WINDOW_BYTES, tried};
use super::{Armed, LinkError, Port, SelfTest};
use crate::gpu::Gpu;
use crate::memory::DeviceBuffer;

/// Tries what a port can do with the memory of a GPU. Takes as long as
/// [`self_test`](super::self_test()), and opens the GPU's context.
pub async fn device_memory_test(port: &Port, gpu: &Arc<Gpu>) -> SelfTest {
    let mut steps = Vec::new();
    let holds = tried(&mut steps, "registration of a dma-buf", registration(port, gpu)).await;
    SelfTest {
        strength: holds.then_some(KeyStrength::Registration),
        exact: false,
        quirks: port.device().quirks(),
        costs: None,
        steps,
    }
}

/// A registration made for one transfer.
async fn registration(port: &Port, gpu: &Arc<Gpu>) -> Result<(), StepError> {
    let bench = Bench::new(port)?;
    let mut buffer = DeviceBuffer::alloc(gpu, 2 * WINDOW_BYTES)?;
    buffer.write(0, &[0; 2 * WINDOW_BYTES])?;
    // Off the page's beginning: the registration's bounds are its own, not the dma-buf's.
    let from = WINDOW_BYTES / 2;
    let slice = buffer.slice_mut(from..from + WINDOW_BYTES)?;
    let anchor = slice.exact_anchor()?;
    let (link, domain) = (bench.client.clone(), Arc::clone(bench.client.domain()));
    let lent = Armed::register(link, &domain, slice, anchor, Direction::Write);
    let mut armed = lent.map_err(|(error, _)| error)?;
    let window = armed.remote();
    bench.write(window, 0, 0x5a, None).await?;
    armed.revoke().await?;
    drop(armed);
    gpu.flush_remote_writes()?;
    let holds = |value: u8| -> Result<bool, StepError> {
        let mut found = [0; 2 * WINDOW_BYTES];
        buffer.read(0, &mut found)?;
        let (inside, outside): (Vec<_>, Vec<_>) =
            (0..found.len()).partition(|at| (from..from + WINDOW_BYTES).contains(at));
        Ok(inside.into_iter().all(|at| found[at] == value)
            && outside.into_iter().all(|at| found[at] == 0))
    };
    holds(0x5a)?.then_some(()).ok_or(StepError::NotWritten)?;
    match bench.write(window, 0, 0xa5, None).await {
        Err(LinkError::Access) if holds(0x5a)? => Ok(()),
        Err(LinkError::Access) | Ok(()) => Err(StepError::Undead),
        Err(error) => Err(error.into()),
    }
}
