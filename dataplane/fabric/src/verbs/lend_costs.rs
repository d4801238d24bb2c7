//! What it costs to register memory for one transfer, beside a copy of it.
//!
//! A registration pins pages, and some adapters are told of them slowly. A slab is registered once,
//! and costs each transfer a copy. Both are measured over the same memory, and the best of few rounds
//! counts: what else the machine does makes either slower, and never quicker.

use std::fmt;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyway_proto::key::Direction;

use super::domain::Access;
use super::{Device, Domain, Registration, VerbsError};
use crate::memory::HostBuffer;

/// Bytes that are registered and copied.
const MEASURED_BYTES: usize = 1 << 20;
const ROUNDS: usize = 3;
/// How many times a copy's cost a registration's has to be before weaker keys are taken for it.
const MARGIN: u32 = 4;

/// What lending 1 MiB costs an adapter's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LendCosts {
    /// To register it for one transfer, and to deregister it.
    pub registration: Duration,
    /// To copy it.
    pub copy: Duration,
}

impl LendCosts {
    /// Whether to copy is so much quicker that keys of strength `slab` are worth it.
    pub fn favour_slab(&self) -> bool {
        self.registration > self.copy * MARGIN
    }
}

impl fmt::Display for LendCosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (registration, copy) = (self.registration.as_micros(), self.copy.as_micros());
        write!(f, "registering 1 MiB for a transfer takes {registration} µs, copying it {copy} µs")
    }
}

/// Measures; `None` where the adapter does not register the memory.
pub(super) async fn lend_costs(device: &Arc<Device>) -> Option<LendCosts> {
    let device = Arc::clone(device);
    let measured = tokio::task::spawn_blocking(move || measure(&device)).await;
    match measured {
        Ok(Ok(costs)) => Some(costs),
        Ok(Err(error)) => {
            tracing::debug!(%error, "what a registration costs is not known");
            None
        }
        // The runtime ends.
        Err(_) => None,
    }
}

fn measure(device: &Arc<Device>) -> Result<LendCosts, VerbsError> {
    let domain = Domain::new(device)?;
    let from = vec![0x5a; MEASURED_BYTES];
    // Touched, as memory is that was used before.
    let mut buffer = HostBuffer::from(vec![1; MEASURED_BYTES]);
    let mut costs = LendCosts { registration: Duration::MAX, copy: Duration::MAX };
    for _ in 0..ROUNDS {
        let slice = buffer.slice(..).expect("nothing of it is lent for writing");
        let (begun, anchor) = (Instant::now(), slice.exact_anchor());
        let registration = domain.register(anchor, Access::Remote(Direction::Write))?;
        Registration::end(registration).map_err(|(error, _)| error)?;
        costs.registration = costs.registration.min(begun.elapsed());
        drop(slice);
        let begun = Instant::now();
        let to = buffer.bytes_mut().expect("nothing of it is lent");
        to.copy_from_slice(black_box(&from));
        black_box(to);
        costs.copy = costs.copy.min(begun.elapsed());
    }
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weaker_keys_want_a_clear_margin() {
        let us = Duration::from_micros;
        let favour = |registration, copy| {
            LendCosts { registration: us(registration), copy: us(copy) }.favour_slab()
        };
        assert!(!favour(50, 100) && !favour(400, 100));
        assert!(favour(401, 100) && favour(3_000, 60));
    }
}
