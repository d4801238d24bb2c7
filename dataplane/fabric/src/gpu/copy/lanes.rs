//! The streams that a GPU's work goes to, and when each will be through with it.
//!
//! Per direction one stream for short copies and two for long ones, which take turns, so that one
//! stream's copy is set up while the other's moves; one for each direction's kernel; and several
//! for digests, each of which alone fills the GPU badly.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyway_sys::cuda::{CudaError, abi};

use super::batch::{Run, Way};
use super::pace::{Pace, Rest};
use crate::gpu::GpuError;
use crate::gpu::device::Gpu;
use crate::gpu::stream::{Event, Stream};

/// Copies from here on are long.
const LONG_BYTES: u64 = 1 << 20;
/// Streams for long copies, per direction.
const LONG_LANES: usize = 2;
/// Streams for copies, per direction: the short ones' and the long ones'.
const COPY_LANES: usize = 1 + LONG_LANES;
/// The kernels' streams: runs into the device, runs out of it.
pub(super) const GATHER: usize = 2 * COPY_LANES;
pub(super) const SCATTER: usize = GATHER + 1;
/// The digests' streams.
const DIGEST: usize = SCATTER + 1;
const DIGEST_LANES: usize = 4;
const LANES: usize = DIGEST + DIGEST_LANES;
/// What shares a speed: each direction of the bus, and the digests.
const PACES: usize = 3;

/// Bytes of one flight that each lane was given; none where it was given no work.
pub(super) type LaneSet = [Option<u64>; LANES];

pub(super) struct Lanes {
    gpu: Arc<Gpu>,
    lanes: Vec<Lane>,
    paces: [Pace; PACES],
    /// Which long lane is next per direction, and which digests' lane.
    turns: [usize; PACES],
    events: Vec<Event>,
}

struct Lane {
    stream: Stream,
    /// Marks behind its work, in order.
    marks: VecDeque<Mark>,
}

/// The end of a flight's work on a lane.
struct Mark {
    event: Event,
    flight: u64,
    bytes: u64,
    given: Instant,
}

impl Lanes {
    /// The context is current.
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        let lanes = (0..LANES)
            .map(|_| Ok(Lane { stream: Stream::new(gpu)?, marks: VecDeque::new() }))
            .collect::<Result<_, GpuError>>()?;
        let paces = [Pace::of_the_bus(), Pace::of_the_bus(), Pace::of_digests()];
        let (turns, events) = ([0; PACES], Vec::new());
        Ok(Self { gpu: Arc::clone(gpu), lanes, paces, turns, events })
    }

    pub(super) fn stream(&self, lane: usize) -> abi::Stream {
        self.lanes[lane].stream.raw()
    }

    /// The lane that a copy goes to.
    pub(super) fn of_copy(&mut self, run: &Run) -> usize {
        let way = match run.way {
            Way::IntoDevice => 0,
            Way::FromDevice => 1,
        };
        if run.bytes < LONG_BYTES {
            return way * COPY_LANES;
        }
        self.turns[way] = (self.turns[way] + 1) % LONG_LANES;
        way * COPY_LANES + 1 + self.turns[way]
    }

    /// The lane that a digest goes to.
    pub(super) fn of_digest(&mut self) -> usize {
        let turn = &mut self.turns[PACES - 1];
        *turn = (*turn + 1) % DIGEST_LANES;
        DIGEST + *turn
    }

    /// Puts an event behind a flight's work on a lane. Where that cannot be, waits instead.
    pub(super) fn mark(&mut self, lane: usize, flight: u64, bytes: u64) -> Result<(), GpuError> {
        let event = match self.events.pop() {
            Some(event) => Ok(event),
            None => Event::new(&self.gpu),
        };
        let stream = &self.lanes[lane].stream;
        // SAFETY: the stream and the event are of this GPU's context.
        let recorded = event.and_then(|event| unsafe {
            event.record(stream.raw())?;
            Ok(event)
        });
        match recorded {
            Ok(event) => {
                let given = Instant::now();
                self.lanes[lane].marks.push_back(Mark { event, flight, bytes, given });
                Ok(())
            }
            Err(error) => {
                // Whatever this answers, the work is over.
                let _ = stream.synchronize();
                Err(error)
            }
        }
    }

    /// The flights whose next mark on some lane is past; one flight may be there several times.
    /// `rested` says that nobody looked for a while.
    pub(super) fn past(&mut self, rested: bool, past: &mut Vec<u64>) -> Result<(), CudaError> {
        for (lane, Lane { marks, .. }) in self.lanes.iter_mut().enumerate() {
            while let Some(mark) = marks.front() {
                if !mark.event.is_past()? {
                    break;
                }
                let Some(Mark { event, flight, bytes, given }) = marks.pop_front() else { break };
                self.events.push(event);
                self.paces[pace_of(lane)].seen(bytes, given, Instant::now(), rested);
                past.push(flight);
            }
        }
        Ok(())
    }

    /// What to do until the next mark may be past.
    pub(super) fn rest(&self, now: Instant) -> Rest {
        let mut rest: Option<Duration> = None;
        for (lane, Lane { marks, .. }) in self.lanes.iter().enumerate() {
            let Some(mark) = marks.front() else { continue };
            match self.paces[pace_of(lane)].rest(mark.bytes, mark.given, now) {
                Rest::Look => return Rest::Look,
                Rest::Nap(nap) => rest = Some(rest.map_or(nap, |least| least.min(nap))),
            }
        }
        rest.map_or(Rest::Look, Rest::Nap)
    }

    /// Waits until no stream has work, or the driver has ended it, and forgets all marks.
    pub(super) fn clear(&mut self) {
        for Lane { stream, marks } in &mut self.lanes {
            // Comes back at once where the driver has ended the work, and when the work is done
            // where it has not.
            if let Err(error) = stream.synchronize() {
                tracing::debug!(%error, "a stream of a lost GPU");
            }
            marks.clear();
        }
    }
}

/// Which speed is a lane's.
fn pace_of(lane: usize) -> usize {
    match lane {
        lane if lane < COPY_LANES => 0,
        lane if lane < GATHER => 1,
        GATHER => 0,
        SCATTER => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_one_direction_share_its_speed() {
        let paces: Vec<usize> = (0..LANES).map(pace_of).collect();
        assert_eq!(paces, [0, 0, 0, 1, 1, 1, 0, 1, 2, 2, 2, 2]);
    }
}
