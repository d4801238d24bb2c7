//! The thread that gives a GPU its copies: nobody else does.
//!
//! Each direction has streams of its own: one for short copies and two for long ones, which
//! take turns, so that one stream's copy is set up while the other's moves. A batch is done when
//! the events behind its last copies are past; events of one stream are past in order, so the
//! thread looks at one per stream. It spins while copies are under way, and waits in the queue
//! when none are.
//!
//! A refused copy fails its batch alone, once what the batch had under way is done. An error
//! that breaks the context is kept: every batch from then on is answered with it.
//!
//! Invariant: what a batch owns is dropped, or given back, only after every stream that got work
//! of it came to the event behind that work, or after the context broke, when the driver has
//! ended all its work.

#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use keyway_sys::cuda::CudaError;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::Counters;
use super::batch::{CopyBatch, CopyDone, Held, Run, Way};
use super::engine::Command;
use super::plan::{Placed, plan};
use crate::gpu::GpuError;
use crate::gpu::device::Gpu;
use crate::gpu::pinned::{Pin, pin_of};
use crate::gpu::pointer::{self, Pointed};
use crate::gpu::stream::{Event, Stream};

/// Commands taken before completions are looked at again.
const COMMAND_BATCH: usize = 16;
/// Longest spin without work before the thread waits.
const SPIN: Duration = Duration::from_micros(50);
/// How often batches that wait for a caller's stream are looked at, when there is nothing else.
const LOOK: Duration = Duration::from_micros(20);
/// Copies from here on are long.
const LONG_BYTES: u64 = 1 << 20;
/// Streams for long copies, per direction.
const LONG_LANES: usize = 2;
/// Streams per direction: the long ones' and the short ones'.
const LANES: usize = LONG_LANES + 1;

pub(super) struct Worker {
    gpu: Arc<Gpu>,
    queue: Receiver<Command>,
    counters: Arc<Counters>,
    /// Into the device, then out of it.
    lanes: [Lane; 2 * LANES],
    /// Which long lane is next, per direction.
    turn: [usize; 2],
    flights: HashMap<u64, Flight>,
    next: u64,
    /// Batches whose callers' streams are not there yet.
    waiting: Vec<Waiting>,
    events: Vec<Event>,
    lost: Option<GpuError>,
}

struct Lane {
    stream: Stream,
    /// Events on the stream, in order, and the flights that wait for them.
    marks: VecDeque<(Event, u64)>,
}

/// Work that the GPU has.
struct Flight {
    /// Lanes that are not through with it.
    lanes: usize,
    outcome: Result<(), GpuError>,
    cargo: Cargo,
    _slot: OwnedSemaphorePermit,
}

struct Cargo {
    held: Held,
    pins: Vec<Arc<Pin>>,
    into_bytes: u64,
    from_bytes: u64,
    unpinned_bytes: u64,
    reply: oneshot::Sender<CopyDone>,
}

struct Waiting {
    batch: CopyBatch,
    reply: oneshot::Sender<CopyDone>,
    slot: OwnedSemaphorePermit,
}

impl Worker {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        queue: Receiver<Command>,
        counters: Arc<Counters>,
    ) -> Result<Self, GpuError> {
        let current = gpu.enter()?;
        let lanes = (0..2 * LANES)
            .map(|_| Ok(Lane { stream: Stream::new(gpu)?, marks: VecDeque::new() }))
            .collect::<Result<Vec<_>, GpuError>>()?;
        drop(current);
        let lanes = lanes.try_into().unwrap_or_else(|_| unreachable!("as many as asked for"));
        Ok(Self {
            gpu: Arc::clone(gpu),
            queue,
            counters,
            lanes,
            turn: [0; 2],
            flights: HashMap::new(),
            next: 0,
            waiting: Vec::new(),
            events: Vec::new(),
            lost: None,
        })
    }

    pub(super) fn run(mut self) {
        let gpu = Arc::clone(&self.gpu);
        // Where that fails, so does every copy, which tells.
        let _current = gpu.enter();
        let mut idle_since: Option<Instant> = None;
        loop {
            let (took, closed) = self.take_commands();
            self.begin_waiting(closed);
            self.look();
            if took || !self.flights.is_empty() {
                idle_since = None;
                std::hint::spin_loop();
            } else if closed {
                break;
            } else if idle_since.get_or_insert_with(Instant::now).elapsed() < SPIN {
                std::hint::spin_loop();
            } else {
                self.wait();
                idle_since = None;
            }
        }
    }

    /// Whether there were any, and whether no more will come.
    fn take_commands(&mut self) -> (bool, bool) {
        for taken in 0..COMMAND_BATCH {
            match self.queue.try_recv() {
                Ok(command) => self.command(command),
                Err(end) => return (taken > 0, end == TryRecvError::Disconnected),
            }
        }
        (true, false)
    }

    fn wait(&mut self) {
        let command = if self.waiting.is_empty() {
            self.queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            self.queue.recv_timeout(LOOK)
        };
        // The end is seen by the next look at the queue.
        if let Ok(command) = command {
            self.command(command);
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Copy { batch, reply, slot } if batch.after.is_empty() => {
                self.begin(batch, reply, slot);
            }
            Command::Copy { batch, reply, slot } => {
                self.waiting.push(Waiting { batch, reply, slot });
            }
            Command::Digest { reply, .. } => {
                let _ = reply.send(Err(GpuError::Unsupported("digests")));
            }
        }
    }

    /// Begins what waited for callers' streams that are there by now.
    fn begin_waiting(&mut self, closed: bool) {
        let mut at = 0;
        while at < self.waiting.len() {
            let mut ready: Result<bool, CudaError> = Ok(true);
            for event in &self.waiting[at].batch.after {
                ready = ready.and_then(|ready| Ok(ready && event.is_past()?));
            }
            match ready {
                Ok(false) if !closed => at += 1,
                Ok(ready) => {
                    let Waiting { batch, reply, slot } = self.waiting.swap_remove(at);
                    if ready {
                        self.begin(batch, reply, slot);
                    } else {
                        let cargo = Cargo::new(batch.held, reply);
                        self.finish(Err(GpuError::Closed), cargo);
                    }
                }
                Err(error) => {
                    let Waiting { batch, reply, .. } = self.waiting.swap_remove(at);
                    self.finish(Err(error.into()), Cargo::new(batch.held, reply));
                }
            }
        }
    }

    fn begin(
        &mut self,
        batch: CopyBatch,
        reply: oneshot::Sender<CopyDone>,
        slot: OwnedSemaphorePermit,
    ) {
        let CopyBatch { runs, held, .. } = batch;
        let mut cargo = Cargo::new(held, reply);
        let placed = match &self.lost {
            Some(lost) => Err(lost.clone()),
            None => self.place(&runs, &mut cargo),
        };
        let placed = match placed {
            Ok(placed) => placed,
            Err(error) => return self.finish(Err(error), cargo),
        };
        add(&self.counters.runs, runs.len() as u64);
        let plan = plan(&placed, false);
        let mut lanes = [false; 2 * LANES];
        let mut outcome = Ok(());
        for run in plan.copies {
            let lane = self.lane(&run);
            match self.copy(&run, lane) {
                Ok(()) => lanes[lane] = true,
                Err(error) => {
                    outcome = Err(error.into());
                    break;
                }
            }
        }
        let mut flight = Flight { lanes: 0, outcome, cargo, _slot: slot };
        let id = self.next;
        self.next += 1;
        for lane in (0..lanes.len()).filter(|lane| lanes[*lane]) {
            match self.mark(lane, id) {
                Ok(()) => flight.lanes += 1,
                Err(error) => flight.outcome = Err(error),
            }
        }
        if flight.lanes == 0 {
            return self.finish(flight.outcome, flight.cargo);
        }
        self.flights.insert(id, flight);
    }

    /// Looks up the pins of the host's sides and checks the GPU's.
    fn place(&self, runs: &[Run], cargo: &mut Cargo) -> Result<Vec<Placed>, GpuError> {
        let mut placed = Vec::with_capacity(runs.len());
        let mut around: Option<Pointed> = None;
        for run in runs {
            self.check(run, &mut around)?;
            let known = cargo.pins.iter().rposition(|pin| pin.covers(run.host, run.bytes));
            let pin = known.or_else(|| {
                let pin = pin_of(run.host, run.bytes)?;
                cargo.pins.push(pin);
                Some(cargo.pins.len() - 1)
            });
            // Somebody else may have pinned it; such memory is copied, not gathered.
            if pin.is_none() && !pointer::is_pinned_host(self.gpu.cuda(), run.host) {
                cargo.unpinned_bytes += run.bytes;
            }
            match run.way {
                Way::IntoDevice => cargo.into_bytes += run.bytes,
                Way::FromDevice => cargo.from_bytes += run.bytes,
            }
            placed.push((*run, pin));
        }
        Ok(placed)
    }

    /// Whether the device's side is memory of this GPU. `around` is the last allocation seen.
    fn check(&self, run: &Run, around: &mut Option<Pointed>) -> Result<(), GpuError> {
        let end = run.device.checked_add(run.bytes).ok_or(GpuError::Freed)?;
        let mut at = run.device;
        while at < end {
            let part = match *around {
                Some(part) if part.contains(at) => part,
                _ => pointer::describe(self.gpu.cuda(), at)?,
            };
            if part.ordinal != self.gpu.ordinal() {
                return Err(GpuError::WrongGpu { wanted: self.gpu.ordinal(), found: part.ordinal });
            }
            *around = Some(part);
            at = part.end().max(at + 1);
        }
        Ok(())
    }

    fn lane(&mut self, run: &Run) -> usize {
        let way = match run.way {
            Way::IntoDevice => 0,
            Way::FromDevice => 1,
        };
        if run.bytes < LONG_BYTES {
            return way * LANES;
        }
        self.turn[way] = (self.turn[way] + 1) % LONG_LANES;
        way * LANES + 1 + self.turn[way]
    }

    fn copy(&self, run: &Run, lane: usize) -> Result<(), CudaError> {
        let (cuda, stream) = (self.gpu.cuda(), self.lanes[lane].stream.raw());
        let (host, bytes) = (run.host as *mut c_void, run.bytes as usize);
        add(&self.counters.copies, 1);
        // SAFETY: the context is current; the host range is owned by the flight until the event
        // behind this copy is past, and the device range was just found to be allocated.
        unsafe {
            match run.way {
                Way::IntoDevice => cuda.memcpy_to_device_async(run.device, host, bytes, stream),
                Way::FromDevice => cuda.memcpy_from_device_async(host, run.device, bytes, stream),
            }
        }
    }

    /// Puts an event behind a flight's work on a lane. Where that cannot be, waits instead.
    fn mark(&mut self, lane: usize, flight: u64) -> Result<(), GpuError> {
        let event = match self.events.pop() {
            Some(event) => Ok(event),
            None => Event::new(&self.gpu),
        };
        let stream = self.lanes[lane].stream.raw();
        // SAFETY: the stream and the event are of this GPU's context.
        let recorded = event.and_then(|event| unsafe {
            event.record(stream)?;
            Ok(event)
        });
        match recorded {
            Ok(event) => self.lanes[lane].marks.push_back((event, flight)),
            Err(error) => {
                // Whatever this answers, the work is over.
                let _ = self.lanes[lane].stream.synchronize();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends the flights that all lanes are through with.
    fn look(&mut self) {
        for lane in 0..self.lanes.len() {
            while let Some((event, _)) = self.lanes[lane].marks.front() {
                match event.is_past() {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => return self.lose(error),
                }
                let Some((event, id)) = self.lanes[lane].marks.pop_front() else { break };
                self.events.push(event);
                let through = self.flights.get_mut(&id).is_some_and(|flight| {
                    flight.lanes -= 1;
                    flight.lanes == 0
                });
                if through && let Some(flight) = self.flights.remove(&id) {
                    self.finish(flight.outcome, flight.cargo);
                }
            }
        }
    }

    /// The context broke: nothing is under way any more, and nothing will be.
    fn lose(&mut self, error: CudaError) {
        tracing::error!(%error, gpu = self.gpu.ordinal(), "the GPU is lost to this process");
        let lost = GpuError::Lost(error);
        for lane in &mut self.lanes {
            // Comes back at once where the driver has ended the work, and when the work is done
            // where it has not.
            if let Err(error) = lane.stream.synchronize() {
                tracing::debug!(%error, "a stream of a lost GPU");
            }
            lane.marks.clear();
        }
        let flights = std::mem::take(&mut self.flights);
        for flight in flights.into_values() {
            self.finish(Err(lost.clone()), flight.cargo);
        }
        self.lost = Some(lost);
    }

    fn finish(&mut self, result: Result<(), GpuError>, cargo: Cargo) {
        if let Err(error) = &result
            && error.is_lost()
        {
            self.lost.get_or_insert_with(|| error.clone());
        }
        let Cargo { held, pins, into_bytes, from_bytes, unpinned_bytes, reply } = cargo;
        add(&self.counters.batches, 1);
        if result.is_ok() {
            add(&self.counters.into_device_bytes, into_bytes);
            add(&self.counters.from_device_bytes, from_bytes);
            add(&self.counters.unpinned_bytes, unpinned_bytes);
        } else {
            add(&self.counters.failed, 1);
        }
        drop(pins);
        // Nobody waits any more: what the batch held is dropped here.
        let _ = reply.send(CopyDone::new(result, held, unpinned_bytes));
    }
}

impl Cargo {
    fn new(held: Held, reply: oneshot::Sender<CopyDone>) -> Self {
        Self { held, pins: Vec::new(), into_bytes: 0, from_bytes: 0, unpinned_bytes: 0, reply }
    }
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}
