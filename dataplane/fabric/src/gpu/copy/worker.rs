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
use super::engine::{Command, Digest, DigestReply};
use super::plan::{GATHER_RUNS_MIN, Placed, Plan, plan};
use super::scratch::{Results, TABLE_RUNS, Table, Tables};
use crate::gpu::GpuError;
use crate::gpu::device::Gpu;
use crate::gpu::kernels::{self, Kernels};
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
/// The kernels' streams: runs into the device, runs out of it, digests.
const GATHER: usize = 2 * LANES;
const SCATTER: usize = GATHER + 1;
const DIGEST: usize = SCATTER + 1;
const ALL_LANES: usize = DIGEST + 1;

pub(super) struct Worker {
    gpu: Arc<Gpu>,
    queue: Receiver<Command>,
    counters: Arc<Counters>,
    /// Into the device, out of it, and the kernels'.
    lanes: [Lane; ALL_LANES],
    /// Which long lane is next, per direction.
    turn: [usize; 2],
    flights: HashMap<u64, Flight>,
    next: u64,
    /// Batches whose callers' streams are not there yet.
    waiting: Vec<Waiting>,
    tables: Tables,
    results: Option<Results>,
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

enum Cargo {
    Copy(CopyCargo),
    Digest { slot: Option<usize>, digest: Digest, reply: DigestReply },
}

struct CopyCargo {
    held: Held,
    pins: Vec<Arc<Pin>>,
    tables: Vec<Table>,
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
        let lanes = (0..ALL_LANES)
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
            tables: Tables::default(),
            results: None,
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
                    let Waiting { batch, reply, slot } = self.waiting.swap_remove(at);
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
        let mut lanes = [false; ALL_LANES];
        let outcome = self.give(plan(&placed, kernels), &mut cargo, &mut lanes);
        self.fly(outcome, Cargo::Copy(cargo), slot, lanes);
    }

    /// Gives the GPU a plan's work; tells which lanes got some, failed or not.
    fn give(
        &mut self,
        plan: Plan,
        cargo: &mut CopyCargo,
        lanes: &mut [bool; ALL_LANES],
    ) -> Result<(), GpuError> {
        for (runs, lane) in [(plan.gather, GATHER), (plan.scatter, SCATTER)] {
            for runs in runs.chunks(TABLE_RUNS) {
                self.gather(runs, lane, cargo, lanes)?;
            }
        }
        for run in plan.copies {
            let lane = self.lane(&run);
            self.copy(&run, lane)?;
            lanes[lane] = true;
        }
        Ok(())
    }

    /// Has a kernel move runs, as many as a table holds.
    fn gather(
        &mut self,
        runs: &[Run],
        lane: usize,
        cargo: &mut CopyCargo,
        lanes: &mut [bool; ALL_LANES],
    ) -> Result<(), GpuError> {
        let Some(mut table) = self.tables.take(&self.gpu) else {
            for run in runs {
                let lane = self.lane(run);
                self.copy(run, lane)?;
                lanes[lane] = true;
            }
            return Ok(());
        };
        let address = table.fill(runs.iter().map(Run::as_move));
        cargo.tables.push(table);
        let (cuda, stream) = (self.gpu.cuda(), self.lanes[lane].stream.raw());
        let kernels = Kernels::of(&self.gpu)?;
        // SAFETY: the context is current; the table, the pins of the host's sides and what owns
        // the bytes are the flight's, and the device's sides were just found to be allocated.
        unsafe { kernels.moves(cuda, address, runs.len() as u32, stream) }?;
        lanes[lane] = true;
        add(&self.counters.gathered, runs.len() as u64);
        Ok(())
    }

    /// Whether kernels may move runs on this GPU.
    fn has_kernels(&self) -> bool {
        self.gpu.limits().host_addresses && Kernels::of(&self.gpu).is_ok()
    }

    fn digest(&mut self, digest: Digest, reply: DigestReply, slot: OwnedSemaphorePermit) {
        let mut lanes = [false; ALL_LANES];
        let mut result = None;
        let outcome = self.begin_digest(&digest, &mut result, &mut lanes);
        let cargo = Cargo::Digest { slot: result, digest, reply };
        self.fly(outcome, cargo, slot, lanes);
    }

    fn begin_digest(
        &mut self,
        digest: &Digest,
        result: &mut Option<usize>,
        lanes: &mut [bool; ALL_LANES],
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
        let (address, stream) = (results.device_address(taken), self.lanes[DIGEST].stream.raw());
        lanes[DIGEST] = true;
        // SAFETY: the context is current; the range was just found to be allocated and is kept
        // by the flight; the result's place is this digest's alone until the flight ends.
        unsafe {
            self.gpu.cuda().memset_async(address, 0, size_of::<u64>(), stream)?;
            let range = (digest.address, digest.bytes);
            kernels.digest(&self.gpu, digest.kind, range, address, stream)?;
            results.fetch(taken, stream)
        }
    }

    /// Marks the lanes that got work, and keeps what they work on until they are through.
    fn fly(
        &mut self,
        outcome: Result<(), GpuError>,
        cargo: Cargo,
        slot: OwnedSemaphorePermit,
        lanes: [bool; ALL_LANES],
    ) {
        let mut flight = Flight { lanes: 0, outcome, cargo, _slot: slot };
        let id = self.next;
        self.next += 1;
        for lane in (0..ALL_LANES).filter(|lane| lanes[*lane]) {
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
        let end = address.checked_add(bytes).ok_or(GpuError::Freed)?;
        let mut at = address;
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

impl Cargo {
    fn copy(held: Held, reply: oneshot::Sender<CopyDone>) -> Self {
        Self::Copy(CopyCargo::new(held, reply))
    }
}

impl CopyCargo {
    fn new(held: Held, reply: oneshot::Sender<CopyDone>) -> Self {
        let (pins, tables) = (Vec::new(), Vec::new());
        Self { held, pins, tables, into_bytes: 0, from_bytes: 0, unpinned_bytes: 0, reply }
    }
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}
