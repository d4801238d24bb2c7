//! Who may connect when all seats are taken.
//!
//! While a seat is free, whoever comes gets it. When none is, room is made: of the connections
//! that wait for a request, those leave that never sent one, then those that have been silent
//! longest, some at a time. Whoever has a request under way stays, or an answer to
//! read, and a newcomer has [`GRACE`] to send its first one. So a crowd that holds connections and
//! does nothing keeps nobody out, and a client whose connection is ended while it is idle opens
//! another.
//!
//! Cost: a seat is a lock when a connection begins and one when it ends; a request stores two
//! numbers. Only where no seat is free are all connections looked at, once for every
//! [`LEAVING_SHARE`]th of the seats.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time;

use super::guard::ConnectionState;

/// The part of the seats that is made free at a time.
const LEAVING_SHARE: usize = 64;
/// How long a connection is let alone that has sent nothing, or is between two requests.
const GRACE: Duration = Duration::from_secs(1);
/// When to look again where all seats are in use.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The connections of a server.
pub(super) struct Crowd {
    seats_max: usize,
    seated: Mutex<Seated>,
    freed: Notify,
}

#[derive(Default)]
struct Seated {
    connections: HashMap<u64, Arc<ConnectionState>>,
    next: u64,
}

/// A connection's right to be there, given back on drop.
pub(super) struct Seat {
    crowd: Arc<Crowd>,
    number: u64,
    state: Arc<ConnectionState>,
}

impl Crowd {
    /// With so many seats, at least one.
    pub(super) fn new(seats_max: usize) -> Arc<Self> {
        let (seated, freed) = (Mutex::default(), Notify::new());
        Arc::new(Self { seats_max: seats_max.max(1), seated, freed })
    }

    /// Waits for a seat, and has others leave where there is none. Tells how many it sent away.
    /// One at a time may wait.
    pub(super) async fn seat(self: &Arc<Self>) -> (Seat, usize) {
        let mut sent_away = 0;
        loop {
            match self.try_seat() {
                Ok(seat) => return (seat, sent_away),
                Err(more) => sent_away += more,
            }
            // Who is busy now may be idle soon, of which nobody tells.
            let _ = time::timeout(LOOK_AGAIN, self.freed.notified()).await;
        }
    }

    /// A seat; or how many were told to leave.
    fn try_seat(self: &Arc<Self>) -> Result<Seat, usize> {
        let mut seated = self.seated.lock();
        if seated.connections.len() >= self.seats_max {
            return Err(self.make_room(&seated));
        }
        let (number, state) = (seated.next, Arc::<ConnectionState>::default());
        seated.next += 1;
        seated.connections.insert(number, Arc::clone(&state));
        Ok(Seat { crowd: Arc::clone(self), number, state })
    }

    fn make_room(&self, seated: &Seated) -> usize {
        let wanted = self.seats_max.div_ceil(LEAVING_SHARE);
        let leaving = seated.connections.values().filter(|state| state.is_leaving()).count();
        let mut idle: Vec<(bool, Duration, &Arc<ConnectionState>)> = seated
            .connections
            .values()
            .filter(|state| !state.is_leaving())
            .filter_map(|state| {
                let waits = state.waits().filter(|waits| *waits >= GRACE)?;
                Some((state.is_stranger(), waits, state))
            })
            .collect();
        let count = wanted.saturating_sub(leaving).min(idle.len());
        if count == 0 {
            return 0;
        }
        // Strangers first, then the most silent.
        idle.select_nth_unstable_by_key(count - 1, |(stranger, waits, _)| {
            std::cmp::Reverse((*stranger, *waits))
        });
        idle[..count].iter().for_each(|(.., state)| state.leave());
        count
    }
}

impl Seat {
    /// What the connection tells of itself.
    pub(super) fn state(&self) -> &Arc<ConnectionState> {
        &self.state
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.crowd.seated.lock().connections.remove(&self.number);
        self.crowd.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    async fn seats(crowd: &Arc<Crowd>, count: usize) -> Vec<Seat> {
        let mut seats = Vec::new();
        for _ in 0..count {
            seats.push(crowd.seat().await.0);
        }
        seats
    }

    fn leaving(seats: &[Seat]) -> Vec<usize> {
        (0..seats.len()).filter(|at| seats[*at].state().is_leaving()).collect()
    }

    fn request(seat: &Seat) {
        seat.state().begin(false);
        seat.state().end();
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_leave_first_then_the_most_silent() {
        let crowd = Crowd::new(3);
        let mut seats = seats(&crowd, 3).await;
        time::advance(GRACE).await;
        request(&seats[0]);
        time::advance(GRACE).await;
        request(&seats[2]);
        time::advance(GRACE).await;
        assert!(crowd.seat().now_or_never().is_none());
        assert_eq!(leaving(&seats), [1], "it never asked for anything");
        assert!(crowd.seat().now_or_never().is_none());
        assert_eq!(leaving(&seats), [1], "one is enough for one");
        drop(seats.remove(1));
        seats.push(crowd.seat().await.0);
        assert!(crowd.seat().now_or_never().is_none());
        assert_eq!(leaving(&seats), [0], "the newcomer has a while");
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_busy_stays_until_it_is_idle() {
        let crowd = Crowd::new(1);
        let (busy, _) = crowd.seat().await;
        busy.state().begin(false);
        time::advance(GRACE * 100).await;
        let next = tokio::spawn({
            let crowd = Arc::clone(&crowd);
            async move { crowd.seat().await }
        });
        time::sleep(GRACE).await;
        assert!(!busy.state().is_leaving() && !next.is_finished());
        // Its answer was handed over; the client reads it in its own time.
        busy.state().flushes(true);
        busy.state().end();
        time::sleep(GRACE * 2).await;
        assert!(!busy.state().is_leaving());
        busy.state().flushes(false);
        time::sleep(GRACE + LOOK_AGAIN * 2).await;
        assert!(busy.state().is_leaving());
        drop(busy);
        let (_, sent_away) = next.await.expect("it is seated");
        assert_eq!(sent_away, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_of_a_large_crowd_leaves_at_a_time() {
        let crowd = Crowd::new(640);
        let seats = seats(&crowd, 640).await;
        time::advance(GRACE).await;
        assert!(crowd.seat().now_or_never().is_none());
        assert_eq!(leaving(&seats).len(), 640 / LEAVING_SHARE);
    }
}
