//! A connection's byte stream that ends itself when the client stalls.
//!
//! Three clocks, one timer: the header's (from a request's first byte to its last header),
//! the idle one (between requests), and the writer's (a client that does not read its
//! answer). The request body's clock is in [`super::body`], where it can answer S3's
//! `RequestTimeout`. The timer is set when the stream starts to wait and is only looked at
//! when it fires, so that a busy connection never touches it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{self, Sleep};

use crate::config::Limits;

/// How long a client may go on sending what nobody reads after it got its answer.
const LINGER_TIME: Duration = Duration::from_secs(1);
/// How much: two parts of the size that most clients choose.
const LINGER_BYTES_MAX: usize = 16 << 20;
/// How much of it at a time.
const LINGER_READ_BYTES: usize = 8 * 1024;

/// What HTTP knows of a connection and the byte stream below has to.
#[derive(Debug)]
pub(super) struct ConnectionState {
    /// Requests under way: from the parsed header to the end of the response's body.
    in_flight: AtomicU32,
    /// Requests begun.
    begun: AtomicU64,
    /// Whether requests come by HTTP/2, whose frames between requests are no header.
    http2: AtomicBool,
    /// Whether the client may still be sending a body that nobody reads.
    lingers: AtomicBool,
    /// Since when no request is under way.
    waits_since: Mutex<time::Instant>,
    /// Whether it is to end as soon as no request is under way, and who is to see that.
    leaves: AtomicBool,
    reader: AtomicWaker,
    /// Whether the client has yet to read what was handed over.
    flushes: AtomicBool,
}

impl Default for ConnectionState {
    fn default() -> Self {
        Self {
            in_flight: AtomicU32::new(0),
            begun: AtomicU64::new(0),
            http2: AtomicBool::new(false),
            lingers: AtomicBool::new(false),
            waits_since: Mutex::new(time::Instant::now()),
            leaves: AtomicBool::new(false),
            reader: AtomicWaker::new(),
            flushes: AtomicBool::new(false),
        }
    }
}

impl ConnectionState {
    /// How long it has waited for a request; `None` with one under way, or an answer that the
    /// client has not read yet.
    pub(super) fn waits(&self) -> Option<Duration> {
        let busy = self.in_flight.load(Ordering::Relaxed) > 0;
        let idle = !busy && !self.flushes.load(Ordering::Relaxed);
        idle.then(|| self.waits_since.lock().elapsed())
    }

    /// Whether a write waits for the client.
    pub(super) fn flushes(&self, flushes: bool) {
        self.flushes.store(flushes, Ordering::Relaxed);
    }

    /// Whether no request ever came.
    pub(super) fn is_stranger(&self) -> bool {
        self.begun.load(Ordering::Relaxed) == 0
    }

    /// Has the connection end as soon as no request is under way.
    pub(super) fn leave(&self) {
        self.leaves.store(true, Ordering::Release);
        self.reader.wake();
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaves.load(Ordering::Acquire)
    }

    /// Whether a read that waits is to end. Wakes whoever waits when that changes.
    fn must_end(&self, cx: &Context<'_>) -> bool {
        self.reader.register(cx.waker());
        self.is_leaving() && self.waits().is_some()
    }

    /// A request's header is parsed.
    pub(super) fn begin(&self, http2: bool) {
        self.http2.store(http2, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the latest request came by HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }

    /// Has the connection end slowly: the client may still be sending what nobody reads.
    pub(super) fn linger(&self) {
        self.lingers.store(true, Ordering::Relaxed);
    }

    /// A response has been handed over whole, or given up.
    pub(super) fn end(&self) {
        *self.waits_since.lock() = time::Instant::now();
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Time spent waiting for a peer, and what came of it.
#[derive(Debug)]
pub(super) struct Progress {
    limit: Duration,
    enough_bytes: usize,
    waiting_since: Option<Instant>,
    waited: Duration,
    bytes: usize,
}

impl Progress {
    /// A watch that asks for `body_progress_bytes` in every stall timeout waited.
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            limit: Duration::from_millis(limits.body_stall_timeout_ms),
            enough_bytes: limits.body_progress_bytes,
            waiting_since: None,
            waited: Duration::ZERO,
            bytes: 0,
        }
    }

    /// Bytes passed.
    pub(super) fn advance(&mut self, bytes: usize) {
        if let Some(since) = self.waiting_since.take() {
            self.waited += since.elapsed();
        }
        self.bytes += bytes;
        if self.bytes >= self.enough_bytes {
            self.waited = Duration::ZERO;
            self.bytes = 0;
        }
    }

    /// The peer has to be waited for: how long it has left, none when that is used up.
    pub(super) fn wait(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let since = *self.waiting_since.get_or_insert(now);
        let waited = self.waited + now.duration_since(since);
        self.limit.checked_sub(waited).filter(|left| !left.is_zero())
    }
}

/// A timer that is made when first needed, and afterwards only moved.
#[derive(Default)]
pub(super) struct LazyTimer(Option<Pin<Box<Sleep>>>);

impl LazyTimer {
    /// Arranges to be woken at the latest after `left`. Fires early rather than being moved
    /// forward: whoever waits looks at its own clock again.
    pub(super) fn arm(&mut self, left: Duration, cx: &mut Context<'_>) {
        let sleep = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep(left)));
        let deadline = tokio::time::Instant::now() + left;
        if sleep.is_elapsed() || sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            sleep.as_mut().reset(tokio::time::Instant::now() + left);
        }
    }
}

/// A stream under the connection's clocks.
pub(super) struct Guarded<S> {
    stream: S,
    state: Arc<ConnectionState>,
    header_timeout: Duration,
    idle_timeout: Duration,
    /// Requests begun when the clock below was started.
    seen: u64,
    /// When the first byte came that belongs to no request yet.
    header_since: Option<Instant>,
    idle_since: Instant,
    reader: LazyTimer,
    writing: Progress,
    writer: LazyTimer,
    /// When our direction was shut down, and the bytes forgotten since.
    lingering: Option<(Instant, usize)>,
}

impl<S> Guarded<S> {
    pub(super) fn new(stream: S, state: Arc<ConnectionState>, limits: &Limits) -> Self {
        Self {
            stream,
            state,
            header_timeout: Duration::from_millis(limits.header_timeout_ms),
            idle_timeout: Duration::from_millis(limits.idle_timeout_ms),
            seen: 0,
            header_since: None,
            idle_since: Instant::now(),
            reader: LazyTimer::default(),
            writing: Progress::new(limits),
            writer: LazyTimer::default(),
            lingering: None,
        }
    }

    /// No request is under way.
    fn is_idle(&self) -> bool {
        self.state.in_flight.load(Ordering::Relaxed) == 0
    }

    /// Bytes came in.
    fn received(&mut self) {
        if self.is_idle() {
            self.notice_requests();
            let now = Instant::now();
            self.idle_since = now;
            // HTTP/2 sends frames of its own between requests: only the idle clock counts.
            if !self.state.http2.load(Ordering::Relaxed) {
                self.header_since.get_or_insert(now);
            }
        }
    }

    /// Restarts the clocks when a request came and went since they were started.
    fn notice_requests(&mut self) {
        let begun = self.state.begun.load(Ordering::Relaxed);
        if begun != self.seen {
            self.seen = begun;
            self.header_since = None;
            self.idle_since = Instant::now();
        }
    }

    /// How long the client may stay silent; none when its time is up.
    fn patience(&mut self) -> Option<Duration> {
        self.notice_requests();
        if !self.is_idle() {
            // Nothing to complain of: look again later.
            self.idle_since = Instant::now();
            return Some(self.idle_timeout.min(self.header_timeout));
        }
        let (since, limit) = match self.header_since {
            Some(since) => (since, self.header_timeout),
            None => (self.idle_since, self.idle_timeout),
        };
        limit.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }

    /// Follows up on the outcome of a write.
    fn written(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        self.state.flushes(outcome.is_pending());
        match &outcome {
            Poll::Ready(Ok(bytes)) => self.writing.advance(*bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => match self.writing.wait() {
                Some(left) => self.writer.arm(left, cx),
                None => return Poll::Ready(Err(timed_out("the client does not read"))),
            },
        }
        outcome
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_read(cx, buffer);
        match &outcome {
            Poll::Ready(Ok(())) => this.received(),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => match this.patience() {
                Some(_) if this.state.must_end(cx) => {
                    return Poll::Ready(Err(timed_out("others need the connection")));
                }
                Some(left) => this.reader.arm(left, cx),
                None => return Poll::Ready(Err(timed_out("the client is silent"))),
            },
        }
        outcome
    }
}

impl<S: AsyncRead + Unpin> Guarded<S> {
    /// Reads and forgets until the client has ended its direction too, or its time is up. To
    /// close while it still sends is to reset the connection, and that takes the answer from
    /// a client that reads it only when it has sent everything.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (since, forgotten) = self.lingering.get_or_insert_with(|| (Instant::now(), 0));
        let mut scratch = [0; LINGER_READ_BYTES];
        loop {
            let left = LINGER_TIME.checked_sub(since.elapsed()).filter(|left| !left.is_zero());
            let Some(left) = left.filter(|_| *forgotten < LINGER_BYTES_MAX) else {
                return Poll::Ready(Ok(()));
            };
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    *forgotten += buffer.filled().len();
                }
                // The client's end, or its reset: either way it has gone.
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    self.reader.arm(left, cx);
                    return Poll::Pending;
                }
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.written(cx, outcome)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.written(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            if !this.state.lingers.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        this.poll_linger(cx)
    }
}

fn timed_out(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So long that no pause of the machine matters.
    fn limits() -> Limits {
        Limits { body_stall_timeout_ms: 1_000_000, body_progress_bytes: 100, ..Limits::default() }
    }

    #[test]
    fn waiting_counts_only_while_the_peer_is_waited_for() {
        let mut progress = Progress::new(&limits());
        assert!(progress.wait().is_some());
        progress.waiting_since = Instant::now().checked_sub(Duration::from_secs(600));
        progress.advance(10);
        assert!(progress.waited >= Duration::from_secs(600));
        // A handler that takes its time between two reads is not the client's fault.
        assert!(progress.wait().unwrap() <= Duration::from_secs(400));
        progress.waiting_since = Instant::now().checked_sub(Duration::from_secs(600));
        assert!(progress.wait().is_none(), "10 bytes in 1200 s are not enough");
    }

    #[test]
    fn enough_bytes_start_the_clock_anew() {
        let mut progress = Progress::new(&limits());
        progress.waiting_since = Instant::now().checked_sub(Duration::from_secs(900));
        progress.advance(100);
        assert_eq!(progress.waited, Duration::ZERO);
        assert!(progress.wait().unwrap() > Duration::from_secs(900));
    }
}
