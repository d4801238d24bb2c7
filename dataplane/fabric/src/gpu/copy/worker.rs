//! The thread that gives a GPU its copies: nobody else does.
//!
//! A batch is done when the events behind its last copies are past; events of one stream are past
//! in order, so the thread looks at one per stream. Around the time at which the next is expected
//! it spins; before that it sleeps, and whoever brings something new wakes it. Behind short work
//! it spins for a while, since more is likely; then it waits in the queue.
//!
//! A refused copy fails its batch alone, once what the batch had under way is done. An error
//! that breaks the context is kept: every batch from then on is answered with it.
//!
//! Invariant: what a batch owns is dropped, or given back, only after every stream that got work
//! of it came to the event behind that work, or after the context broke, when the driver has
//! ended all its work.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_void;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};
use keyway_sys::cuda::CudaError;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::Counters;
use super::batch::{CopyBatch, CopyDone, Run, Way};
use super::engine::{Command, Digest, DigestReply};
use super::flight::{Cargo, CopyCargo, Flight};
use super::lanes::{GATHER, LaneSet, Lanes, SCATTER};
use super::pace::Rest;
use super::plan::{GATHER_RUNS_MIN, Placed, Plan, plan};
use super::scratch::{Results, TABLE_RUNS, Tables};
use crate::gpu::GpuError;
use crate::gpu::device::Gpu;
use crate::gpu::kernels::{self, Kernels};
use crate::gpu::pinned::pin_of;
use crate::gpu::pointer::{self, Pointed};

/// Commands taken before completions are looked at again.
const COMMAND_BATCH: usize = 16;
/// Work up to here is short: whoever sent it waits for it, and likely sends the next.
pub(super) const SHORT_BYTES: u64 = 64 << 10;
/// Longest spin without work before the thread waits: behind short work, and behind other.
const SPIN_SHORT: Duration = Duration::from_micros(200);
const SPIN_LONG: Duration = Duration::from_micros(20);
/// How often batches that wait for a caller's stream are looked at, at most and at least.
const LOOK: Duration = Duration::from_micros(20);
const LOOK_LATE: Duration = Duration::from_micros(200);

pub(super) struct Worker {
    gpu: Arc<Gpu>,
    queue: Receiver<Command>,
    counters: Arc<Counters>,
    lanes: Lanes,
    flights: HashMap<u64, Flight>,
    next: u64,
    /// Batches whose callers' streams are not there yet.
    waiting: Vec<Waiting>,
    tables: Tables,
    results: Option<Results>,
    /// Flights that came to a mark: the look's own list, kept for its memory.
    past: Vec<u64>,
    /// Whether the last work that ended was short.
    short: bool,
    lost: Option<GpuError>,
}

struct Waiting {
    batch: CopyBatch,
    reply: oneshot::Sender<CopyDone>,
    slot: OwnedSemaphorePermit,
    since: Instant,
}

impl Worker {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        queue: Receiver<Command>,
        counters: Arc<Counters>,
    ) -> Result<Self, GpuError> {
        let current = gpu.enter()?;
        let lanes = Lanes::new(gpu)?;
        drop(current);
        Ok(Self {
            gpu: Arc::clone(gpu),
            queue,
            counters,
            lanes,
            flights: HashMap::new(),
            next: 0,
            waiting: Vec::new(),
            tables: Tables::default(),
            results: None,
            past: Vec::new(),
            short: false,
            lost: None,
        })
    }

    pub(super) fn run(mut self) {
        // Naps end within microseconds of what was asked for. Where that is refused, they are
        // 50 µs longer.
        if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
            tracing::debug!(%error, "the timer slack of a copy thread stays");
        }
        let gpu = Arc::clone(&self.gpu);
        // Where that fails, so does every copy, which tells.
        let _current = gpu.enter();
        let mut idle_since: Option<Instant> = None;
        let mut rested = false;
        loop {
            let (took, closed) = self.take_commands();
            self.begin_waiting(closed);
            self.look(rested);
            rested = false;
            if took {
                idle_since = None;
            } else if !self.flights.is_empty() {
                idle_since = None;
                match self.lanes.rest(Instant::now()) {
                    Rest::Look => std::hint::spin_loop(),
                    Rest::Nap(nap) => {
                        self.wait(Some(nap), closed);
                        rested = true;
                    }
                }
            } else if closed {
                break;
            } else if idle_since.get_or_insert_with(Instant::now).elapsed() < self.spin() {
                std::hint::spin_loop();
            } else {
                self.wait(None, closed);
                idle_since = None;
            }
        }
    }

    fn spin(&self) -> Duration {
        if self.short { SPIN_SHORT } else { SPIN_LONG }
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

    /// Waits for a command, no longer than given.
    fn wait(&mut self, nap: Option<Duration>, closed: bool) {
        // What began to wait a while ago will likely wait for some more.
        let look = self.waiting.iter().map(|waiting| waiting.since.elapsed() / 8).min();
        let look = look.map(|look| look.clamp(LOOK, LOOK_LATE));
        let longest = nap.into_iter().chain(look).min();
        // The end is seen by the next look at the queue.
        let command = match longest {
            Some(nap) if closed => {
                std::thread::sleep(nap);
                None
            }
            Some(nap) => self.queue.recv_timeout(nap).ok(),
            None => self.queue.recv().ok(),
        };
        if let Some(command) = command {
            self.command(command);
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Copy { batch, reply, slot } if batch.after.is_empty() => {
                self.begin(batch, reply, slot);
            }
            Command::Copy { batch, reply, slot } => {
                let since = Instant::now();
                self.waiting.push(Waiting { batch, reply, slot, since });
            }
            Command::Digest { digest, reply, slot } => self.digest(digest, reply, slot),
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
                    let Waiting { batch, reply, slot, .. } = self.waiting.swap_remove(at);
                    if ready {
                        self.begin(batch, reply, slot);
                    } else {
                        let cargo = Cargo::copy(batch.held, reply);
                        self.finish(Err(GpuError::Closed), cargo);
                    }
                }
                Err(error) => {
                    let Waiting { batch, reply, .. } = self.waiting.swap_remove(at);
                    self.finish(Err(error.into()), Cargo::copy(batch.held, reply));
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
        let mut cargo = CopyCargo::new(held, reply);
        let placed = match &self.lost {
            Some(lost) => Err(lost.clone()),
            None => self.place(&runs, &mut cargo),
        };
        let placed = match placed {
            Ok(placed) => placed,
            Err(error) => return self.finish(Err(error), Cargo::Copy(cargo)),
        };
        add(&self.counters.runs, runs.len() as u64);
        let kernels = placed.len() >= GATHER_RUNS_MIN && self.has_kernels();
        let mut lanes = LaneSet::default();
        let outcome = self.give(plan(&placed, kernels), &mut cargo, &mut lanes);
        self.fly(outcome, Cargo::Copy(cargo), slot, lanes);
    }

    /// Gives the GPU a plan's work; tells which lanes got some, failed or not.
    fn give(
        &mut self,
        plan: Plan,
        cargo: &mut CopyCargo,
        lanes: &mut LaneSet,
    ) -> Result<(), GpuError> {
        for (runs, lane) in [(plan.gather, GATHER), (plan.scatter, SCATTER)] {
            for runs in runs.chunks(TABLE_RUNS) {
                self.gather(runs, lane, cargo, lanes)?;
            }
        }
        for run in plan.copies {
            let lane = self.lanes.of_copy(&run);
            self.copy(&run, lane)?;
            load(lanes, lane, run.bytes);
        }
        Ok(())
    }

    /// Has a kernel move runs, as many as a table holds.
    fn gather(
        &mut self,
        runs: &[Run],
        lane: usize,
        cargo: &mut CopyCargo,
        lanes: &mut LaneSet,
    ) -> Result<(), GpuError> {
        let Some(mut table) = self.tables.take(&self.gpu) else {
            for run in runs {
                let lane = self.lanes.of_copy(run);
                self.copy(run, lane)?;
                load(lanes, lane, run.bytes);
            }
            return Ok(());
        };
        let address = table.fill(runs.iter().map(Run::as_move));
        cargo.tables.push(table);
        let (cuda, stream) = (self.gpu.cuda(), self.lanes.stream(lane));
        let kernels = Kernels::of(&self.gpu)?;
        // SAFETY: the context is current; the table, the pins of the host's sides and what owns
        // the bytes are the flight's, and the device's sides were just found to be allocated.
        unsafe { kernels.moves(cuda, address, runs.len() as u32, stream) }?;
        load(lanes, lane, runs.iter().map(|run| run.bytes).sum());
        add(&self.counters.gathered, runs.len() as u64);
        Ok(())
    }

    /// Whether kernels may move runs on this GPU.
    fn has_kernels(&self) -> bool {
        self.gpu.limits().host_addresses && Kernels::of(&self.gpu).is_ok()
    }

    fn digest(&mut self, digest: Digest, reply: DigestReply, slot: OwnedSemaphorePermit) {
        let mut lanes = LaneSet::default();
        let mut result = None;
        let outcome = self.begin_digest(&digest, &mut result, &mut lanes);
        let cargo = Cargo::Digest { slot: result, digest, reply };
        self.fly(outcome, cargo, slot, lanes);
    }

    fn begin_digest(
        &mut self,
        digest: &Digest,
        result: &mut Option<usize>,
        lanes: &mut LaneSet,
    ) -> Result<(), GpuError> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        if !kernels::digests(digest.kind) {
            return Err(GpuError::Unsupported("a checksum that is no CRC"));
        }
        self.check(digest.address, digest.bytes, &mut None)?;
        let kernels = Kernels::of(&self.gpu)?;
        let results = match self.results.take() {
            Some(results) => results,
            None => Results::new(&self.gpu)?,
        };
        let results = self.results.insert(results);
        let taken = results.take().ok_or(GpuError::Closed)?;
        *result = Some(taken);
        let lane = self.lanes.of_digest();
        let (address, stream) = (results.device_address(taken), self.lanes.stream(lane));
        load(lanes, lane, digest.bytes);
        // SAFETY: the context is current; the range was just found to be allocated and is kept
        // by the flight; the result's place is this digest's alone until the flight ends.
        unsafe {
            self.gpu.cuda().memset_async(address, 0, size_of::<u64>(), stream)?;
            let range = (digest.address, digest.bytes);
            kernels.digest(&self.gpu, digest.kind, range, address, stream)?;
            results.fetch(kernels, taken, stream)
        }
    }

    /// Marks the lanes that got work, and keeps what they work on until they are through.
    fn fly(
        &mut self,
        outcome: Result<(), GpuError>,
        cargo: Cargo,
        slot: OwnedSemaphorePermit,
        mut lanes: LaneSet,
    ) {
        let (id, mut outcome) = (self.next, outcome);
        self.next += 1;
        for (lane, load) in lanes.iter_mut().enumerate() {
            let Some(bytes) = *load else { continue };
            if let Err(error) = self.lanes.mark(lane, id, bytes) {
                *load = None;
                outcome = Err(error);
            }
        }
        let lanes = lanes.iter().flatten().count();
        if lanes == 0 {
            return self.finish(outcome, cargo);
        }
        self.flights.insert(id, Flight { lanes, outcome, cargo, slot });
    }

    /// Looks up the pins of the host's sides and checks the GPU's.
    fn place(&self, runs: &[Run], cargo: &mut CopyCargo) -> Result<Vec<Placed>, GpuError> {
        let mut placed = Vec::with_capacity(runs.len());
        let mut around: Option<Pointed> = None;
        for run in runs {
            self.check(run.device, run.bytes, &mut around)?;
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

    /// Whether a range is memory of this GPU. `around` is the last allocation seen.
    fn check(
        &self,
        address: u64,
        bytes: u64,
        around: &mut Option<Pointed>,
    ) -> Result<(), GpuError> {
        pointer::check(self.gpu.cuda(), self.gpu.ordinal(), (address, bytes), around)
    }

    fn copy(&self, run: &Run, lane: usize) -> Result<(), CudaError> {
        let (cuda, stream) = (self.gpu.cuda(), self.lanes.stream(lane));
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

    /// Ends the flights that all lanes are through with.
    fn look(&mut self, rested: bool) {
        let mut past = std::mem::take(&mut self.past);
        let looked = self.lanes.past(rested, &mut past);
        for id in past.drain(..) {
            let through = self.flights.get_mut(&id).is_some_and(|flight| {
                flight.lanes -= 1;
                flight.lanes == 0
            });
            if through && let Some(flight) = self.flights.remove(&id) {
                let Flight { outcome, cargo, slot, .. } = flight;
                self.short = cargo.bytes() <= SHORT_BYTES;
                // First, so that who waits for the answer finds the engine idle.
                drop(slot);
                self.finish(outcome, cargo);
            }
        }
        self.past = past;
        if let Err(error) = looked {
            self.lose(error);
        }
    }

    /// The context broke: nothing is under way any more, and nothing will be.
    fn lose(&mut self, error: CudaError) {
        tracing::error!(%error, gpu = self.gpu.ordinal(), "the GPU is lost to this process");
        let lost = GpuError::Lost(error);
        self.lanes.clear();
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
        add(&self.counters.batches, 1);
        if result.is_err() {
            add(&self.counters.failed, 1);
        }
        match cargo {
            Cargo::Copy(cargo) => {
                if result.is_ok() {
                    add(&self.counters.into_device_bytes, cargo.into_bytes);
                    add(&self.counters.from_device_bytes, cargo.from_bytes);
                    add(&self.counters.unpinned_bytes, cargo.unpinned_bytes);
                }
                self.tables.give(cargo.tables);
                drop(cargo.pins);
                // Nobody waits any more: what the batch held is dropped here.
                let done = CopyDone::new(result, cargo.held, cargo.unpinned_bytes);
                let _ = cargo.reply.send(done);
            }
            Cargo::Digest { slot, digest, reply } => {
                let answer = result.and_then(|()| {
                    add(&self.counters.digested_bytes, digest.bytes);
                    let value = slot.zip(self.results.as_ref());
                    let remainder = value.map_or(0, |(slot, results)| results.value(slot));
                    kernels::checksum(digest.kind, remainder, digest.bytes)
                        .ok_or(GpuError::Unsupported("a checksum that is no CRC"))
                });
                if let (Some(slot), Some(results)) = (slot, &mut self.results) {
                    results.give(slot);
                }
                drop(digest.keep);
                let _ = reply.send(answer);
            }
        }
    }
}

/// Notes that a lane was given work.
fn load(lanes: &mut LaneSet, lane: usize, bytes: u64) {
    let given = lanes[lane].get_or_insert(0);
    *given += bytes;
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}
