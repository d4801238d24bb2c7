//! Brings events to their targets, at least once each.
//!
//! Sketch. Each target has a task of its own: none holds up another. A round walks through all that
//! waits, in pages, in the order of the commits. Events of one key are sent one after the other;
//! those of different keys side by side. What was acknowledged is taken away with one commit for
//! the page.
//!
//! A target that cannot be reached, or says so of itself, ends the round, and the next one waits for
//! longer and longer. An event that the target refuses holds up its own key alone, which is tried
//! again as slowly, while all others go on. Nothing is given up that was written.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use keyway_meta::catalog::Waiting;
use keyway_meta::{Catalog, CatalogError};
use keyway_proto::BucketId;

use super::Notifier;
use super::record::{Message, Record, sequencer};
use super::stats::Counters;
use super::target::{DeliveryError, Target};
use crate::s3::{Clock as _, SystemClock};

/// Events read together.
const PAGE: usize = 256;
/// First pause after a failure.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// Rounds are at least this far apart, so that their commits take several events.
const REST: Duration = Duration::from_millis(5);
/// Between two looks when nothing is written.
const LOOK: Duration = Duration::from_secs(30);
/// Between two looks at how much waits.
const GAUGE: Duration = Duration::from_secs(1);

/// A key of a bucket.
type Lane = (BucketId, String);

/// When a key may be tried again, and how long the pause was.
#[derive(Clone, Copy)]
struct Penalty {
    until: Instant,
    pause: Duration,
}

/// Keys whose next event was refused.
type Held = HashMap<Lane, Penalty>;

/// How the events of a key went, in their order.
struct Sent {
    lane: Lane,
    delivered: Vec<Waiting>,
    refused: bool,
}

impl Notifier {
    /// Delivers until `stop` resolves. What was on its way then is sent again after the next start.
    pub async fn run(&self, catalog: &Catalog, stop: impl Future<Output = ()>) {
        self.tell_lost_targets(catalog).await;
        if self.targets.is_empty() {
            return stop.await;
        }
        let delivering = join_all(self.targets.values().map(|target| self.serve(target, catalog)));
        tokio::select! {
            () = stop => {}
            _ = async { tokio::join!(delivering, self.gauge(catalog)) } => {}
        }
    }

    /// Says what waits for targets that are not configured any more.
    async fn tell_lost_targets(&self, catalog: &Catalog) {
        match catalog.backlogs().await {
            Ok(backlogs) => {
                for (target, backlog) in backlogs {
                    if !self.targets.contains_key(&target) {
                        let events = backlog.events;
                        tracing::warn!(target, events, "events wait for a target that is gone");
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "cannot read what waits for targets"),
        }
    }

    async fn gauge(&self, catalog: &Catalog) {
        loop {
            for target in self.targets.values() {
                let (backlog, first) =
                    (catalog.backlog(&target.name).await, catalog.events(&target.name, 0, 1).await);
                let (Ok(backlog), Ok(first)) = (backlog, first) else { continue };
                let now = SystemClock.now();
                let age = first.first().map_or(0, |event| now.0.saturating_sub(event.at.0));
                target.counters.backlog.store(backlog.events, Ordering::Relaxed);
                target.counters.oldest_s.store(age / 1000, Ordering::Relaxed);
            }
            tokio::time::sleep(GAUGE).await;
        }
    }

    /// Serves one target for as long as it is polled.
    async fn serve(&self, target: &Arc<Target>, catalog: &Catalog) {
        let mut written = catalog.events_written();
        let mut held = Held::new();
        let mut pause = RETRY_MIN;
        loop {
            written.mark_unchanged();
            match self.round(target, catalog, &mut held).await {
                Ok(None) => {
                    pause = RETRY_MIN;
                    let next = held.values().map(|penalty| penalty.until).min();
                    let wait =
                        next.map_or(LOOK, |next| next.saturating_duration_since(Instant::now()));
                    tokio::select! {
                        _ = written.changed() => {}
                        () = tokio::time::sleep(wait.min(LOOK)) => {}
                    }
                    tokio::time::sleep(REST).await;
                    continue;
                }
                Ok(Some(error)) if pause == RETRY_MIN => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(target = %target.name, error, "a target takes no events");
                }
                Ok(Some(_)) => {}
                Err(error) => {
                    tracing::warn!(target = %target.name, %error, "cannot read what waits");
                }
            }
            tokio::time::sleep(jittered(pause)).await;
            pause = self.longer(pause);
        }
    }

    fn longer(&self, pause: Duration) -> Duration {
        pause.saturating_mul(2).min(self.retry_max)
    }

    /// Walks through all that waits; tells why, when the target does not take anything.
    async fn round(
        &self,
        target: &Target,
        catalog: &Catalog,
        held: &mut Held,
    ) -> Result<Option<DeliveryError>, CatalogError> {
        let began = Instant::now();
        let mut behind = 0;
        loop {
            let page = catalog.events(&target.name, behind, PAGE).await?;
            let Some(last) = page.last() else { break };
            behind = last.number;
            let lanes = lanes(page, held, began);
            let down = OnceLock::new();
            let sending = lanes.into_iter().map(|(lane, events)| send(target, &down, lane, events));
            let sent: Vec<Sent> =
                stream::iter(sending).buffer_unordered(self.concurrency.get()).collect().await;
            let mut delivered = Vec::new();
            for one in sent {
                if one.refused {
                    let before = held.get(&one.lane).map(|penalty| penalty.pause);
                    // What came through since was another event.
                    let before = before.filter(|_| one.delivered.is_empty());
                    let pause = before.map_or(RETRY_MIN, |pause| self.longer(pause));
                    held.insert(
                        one.lane,
                        Penalty { until: Instant::now() + jittered(pause), pause },
                    );
                } else if !one.delivered.is_empty() {
                    held.remove(&one.lane);
                }
                delivered.extend(one.delivered);
            }
            catalog.forget_events(&target.name, &delivered).await?;
            if let Some(error) = down.into_inner() {
                return Ok(Some(error));
            }
        }
        Ok(None)
    }
}

/// The events by their keys, each key's in order; without keys whose turn has not come again.
fn lanes(page: Vec<Waiting>, held: &Held, now: Instant) -> Vec<(Lane, Vec<Waiting>)> {
    let mut places: HashMap<Lane, usize> = HashMap::new();
    let mut lanes: Vec<(Lane, Vec<Waiting>)> = Vec::new();
    for event in page {
        let lane = (event.bucket, event.key.clone());
        if held.get(&lane).is_some_and(|penalty| penalty.until > now) {
            continue;
        }
        let place = *places.entry(lane.clone()).or_insert_with(|| {
            lanes.push((lane, Vec::new()));
            lanes.len() - 1
        });
        lanes[place].1.push(event);
    }
    lanes
}

/// Sends the events of one key until one is not taken, or the target takes none.
async fn send(
    target: &Target,
    down: &OnceLock<DeliveryError>,
    lane: Lane,
    events: Vec<Waiting>,
) -> Sent {
    let mut sent = Sent { lane, delivered: Vec::new(), refused: false };
    for event in events {
        if down.get().is_some() {
            break;
        }
        let Some((message, id)) = message(&event) else {
            // A row that nobody can read is nothing that could be told.
            tracing::error!(number = event.number, "an event cannot be read and is dropped");
            Counters::add(&target.counters.dropped);
            sent.delivered.push(event);
            continue;
        };
        match target.send(message.into(), &id).await {
            Ok(()) => {
                Counters::add(&target.counters.delivered);
                sent.delivered.push(event);
            }
            Err(error) => {
                Counters::add(&target.counters.failed);
                let name = &target.name;
                tracing::debug!(target = %name, %error, number = event.number, "not delivered");
                match error {
                    DeliveryError::Refused(_) => sent.refused = true,
                    // The first one is as good as all of them.
                    error => drop(down.set(error)),
                }
                break;
            }
        }
    }
    sent
}

/// The message, and an id that is the same whenever it is sent.
fn message(event: &Waiting) -> Option<(Vec<u8>, String)> {
    let record: Record = serde_json::from_slice(&event.document).ok()?;
    let record = record.numbered(event.number);
    let message = serde_json::to_vec(&Message { records: [&record] }).ok()?;
    Some((message, format!("{}-{}", sequencer(event.number), event.at.0)))
}

/// Up to a quarter longer, so that targets which failed together are not tried together.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(1.0 + fastrand::f64() / 4.0)
}
