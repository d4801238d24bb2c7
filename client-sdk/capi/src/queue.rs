//! Requests that do not wait, and a queue of their completions.
//!
//! A request is a task of the runtime; what it gives is put into its queue and the queue's
//! eventfd counts it. Cost: one task, one lock and one write of 8 bytes per request.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use keyway_bindings::{Failure, Fetch, Place, Report, Source, Store, Target, runtime};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::abi::{self, KeywayCompletion, KeywayError, KeywayRequest};
use crate::border::{Fault, give, handle, read, small_call, take, zeroed};
use crate::client::{KeywayClient, place, some};
use crate::memory::{source, target};
use crate::transfer::{answer, durability, milliseconds, span, turn};

/// Requests in one submission.
const REQUESTS_MAX: usize = 1 << 24;

/// A queue of completions.
pub struct KeywayQueue(Arc<Shared>);

struct Shared {
    event: OwnedFd,
    state: Mutex<State>,
    /// Told when nothing is under way any more.
    idle: Condvar,
}

#[derive(Default)]
struct State {
    done: VecDeque<Done>,
    under_way: usize,
}

/// A completion.
pub(crate) struct Done {
    pub(crate) tag: u64,
    pub(crate) outcome: Result<Report, Fault>,
}

/// What a request does.
pub(crate) enum Work {
    Get(Fetch, Place, Target),
    Put(Store, Place, Source),
}

impl KeywayQueue {
    pub(crate) fn new() -> Result<Self, Fault> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = eventfd(0, flags)
            .map_err(|error| Fault::new(error.raw_os_error(), "no descriptor for a queue"))?;
        let shared = Shared { event, state: Mutex::default(), idle: Condvar::new() };
        Ok(Self(Arc::new(shared)))
    }

    /// Begins them.
    pub(crate) fn submit(
        &self,
        client: &keyway_client::Client,
        requests: Vec<(u64, Work)>,
    ) -> Result<(), Fault> {
        let runtime = runtime()?;
        self.0.state().under_way += requests.len();
        for (tag, work) in requests {
            let (ticket, client) = (Ticket { shared: Arc::clone(&self.0), tag }, client.clone());
            runtime.spawn(async move {
                let outcome = work.run(client).await.map_err(Fault::from);
                ticket.done(outcome);
            });
        }
        Ok(())
    }

    /// Takes up to `max` completions, when there is one or it has been long enough.
    pub(crate) fn wait(&self, max: usize, timeout: Option<Duration>) -> Result<Vec<Done>, Fault> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let found = self.0.take(max);
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if !found.is_empty() || max == 0 || left.is_some_and(|left| left.is_zero()) {
                return Ok(found);
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut wanted = [PollFd::from_borrowed_fd(self.0.event.as_fd(), PollFlags::IN)];
            match poll(&mut wanted, left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Fault::new(error.raw_os_error(), "poll failed")),
            }
        }
    }
}

impl Work {
    pub(crate) async fn run(self, client: keyway_client::Client) -> Result<Report, Failure> {
        match self {
            Self::Get(fetch, place, target) => fetch.into(client, place, target).await,
            Self::Put(store, place, source) => store.send(client, place, source).await,
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, max: usize) -> Vec<Done> {
        let mut state = self.state();
        let count = state.done.len().min(max);
        let found = state.done.drain(..count).collect();
        if state.done.is_empty() {
            // Under the lock: a completion that comes now counts anew. It is only ever read
            // here, and reading fails where nothing was counted.
            let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
        }
        found
    }
}

/// A request's place in its queue: it is completed once, whatever becomes of its task.
struct Ticket {
    shared: Arc<Shared>,
    tag: u64,
}

impl Ticket {
    fn done(self, outcome: Result<Report, Fault>) {
        self.complete(outcome);
        std::mem::forget(self);
    }

    fn complete(&self, outcome: Result<Report, Fault>) {
        let mut state = self.shared.state();
        state.done.push_back(Done { tag: self.tag, outcome });
        state.under_way -= 1;
        // The counter cannot be full: it would take 2^64 completions.
        let _ = rustix::io::write(&self.shared.event, &1_u64.to_ne_bytes());
        if state.under_way == 0 {
            self.shared.idle.notify_all();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.complete(Err(Fault::new(libc::EIO, "a bug in this library: a request was lost")));
    }
}

impl Drop for KeywayQueue {
    fn drop(&mut self) {
        let mut state = self.0.state();
        while state.under_way > 0 {
            state = self.0.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Makes a queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_queue_open(
    queue: *mut *mut KeywayQueue,
    error: *mut KeywayError,
) -> i32 {
    // SAFETY: the header asks for it.
    unsafe { small_call(error, || give(queue, KeywayQueue::new()?).map(|()| 0)) }
}

/// The descriptor that becomes readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_queue_fd(queue: *const KeywayQueue) -> i32 {
    let fd = || {
        // SAFETY: the header asks for it.
        let queue = unsafe { handle(queue) }?;
        Ok(queue.0.event.as_raw_fd())
    };
    // SAFETY: there is no error to be told.
    unsafe { small_call(std::ptr::null_mut(), fd) }
}

/// Begins requests.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_submit(
    client: *const KeywayClient,
    queue: *const KeywayQueue,
    requests: *const KeywayRequest,
    count: usize,
    error: *mut KeywayError,
) -> i32 {
    let work = || {
        // SAFETY: the header asks for it.
        let (client, queue) = unsafe { (handle(client)?, handle(queue)?) };
        // SAFETY: as above. They lie as far apart as the caller says that they are large.
        let begun = unsafe { spaced(requests, count) }?;
        // SAFETY: as above.
        let begun = begun.map(|request| unsafe { prepare(request) });
        queue.submit(&client.client()?, begun.collect::<Result<_, _>>()?)?;
        Ok(0)
    };
    // SAFETY: as above.
    unsafe { small_call(error, work) }
}

/// # Safety
/// As the header asks for.
unsafe fn spaced(
    first: *const KeywayRequest,
    count: usize,
) -> Result<impl Iterator<Item = *const KeywayRequest>, Fault> {
    if count > 0 && (first.is_null() || count > REQUESTS_MAX) {
        return Err(Fault::invalid("there is no such array"));
    }
    // SAFETY: upheld by the caller; the size is the first field.
    let apart = if count > 0 { unsafe { first.cast::<usize>().read_unaligned() } } else { 0 };
    Ok((0..count).map(move |index| first.wrapping_byte_add(index * apart)))
}

/// # Safety
/// As the header asks for.
unsafe fn prepare(request: *const KeywayRequest) -> Result<(u64, Work), Fault> {
    // SAFETY: upheld by the caller, for the structure and its text.
    let request = unsafe { read(request) }?;
    // SAFETY: as above.
    let place = unsafe { place(request.url) }?;
    let (deadline, stream) = (milliseconds(request.timeout_ms), some(request.stream as u64));
    let work = match request.operation {
        abi::GET => {
            let range = span(request.offset, request.length, request.bytes)?;
            // SAFETY: as above.
            let target = unsafe { target(request.memory, request.bytes) }?;
            // SAFETY: as above.
            let turn = unsafe { turn(target.gpu(), stream) }?;
            Work::Get(Fetch { range, deadline, turn, ..Fetch::default() }, place, target)
        }
        abi::PUT => {
            // SAFETY: as above.
            let source = unsafe { source(request.memory, request.bytes) }?;
            // SAFETY: as above.
            let turn = unsafe { turn(source.gpu(), stream) }?;
            let durability = durability(request.flags)?;
            let if_absent = request.flags & abi::IF_ABSENT != 0;
            let store = Store { deadline, turn, durability, if_absent, ..Store::default() };
            Work::Put(store, place, source)
        }
        _ => return Err(Fault::invalid("no such operation")),
    };
    Ok((request.tag, work))
}

/// Takes completions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_queue_wait(
    queue: *const KeywayQueue,
    completions: *mut KeywayCompletion,
    max: usize,
    timeout_ms: i32,
    error: *mut KeywayError,
) -> i32 {
    let work = || {
        // SAFETY: the header asks for it.
        let queue = unsafe { handle(queue) }?;
        if completions.is_null() && max > 0 {
            return Err(Fault::invalid("there is no room for completions"));
        }
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let max = max.min(i32::MAX as usize);
        let found = queue.wait(max, timeout)?;
        for (index, done) in found.iter().enumerate() {
            let mut completion =
                KeywayCompletion { tag: done.tag, status: 0, result: zeroed(), error: zeroed() };
            match &done.outcome {
                Ok(report) => {
                    completion.status = report.bytes as i64;
                    completion.result = answer(report);
                }
                Err(fault) => {
                    completion.status = -i64::from(fault.code());
                    completion.error = fault.to_abi();
                }
            }
            // SAFETY: as above: there is room for `max`, of which this is one.
            unsafe { completions.add(index).write(completion) };
        }
        Ok(found.len() as i32)
    };
    // SAFETY: as above.
    unsafe { small_call(error, work) }
}

/// Ends a queue when nothing is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keyway_queue_close(queue: *mut KeywayQueue) {
    // SAFETY: the header asks for it.
    unsafe { take(queue) };
}
