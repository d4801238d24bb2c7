//! Goal: who asked to be told of changes is told of all of them, of nothing else, and whatever is
//! down meanwhile: the target, or the server itself.
//!
//! Method: the real binary, and small HTTP servers that take events, refuse them, are slow or are
//! not there. What they got is compared with what was acknowledged.

#![allow(clippy::unwrap_used, reason = "a test may give up")]

#[path = "notifications/crash.rs"]
mod crash;
#[path = "notifications/events.rs"]
mod events;
#[path = "notifications/nats.rs"]
mod nats;
#[path = "notifications/outage.rs"]
mod outage;
#[path = "notifications/receiver.rs"]
mod receiver;
#[path = "notifications/refusals.rs"]
mod refusals;
#[path = "notifications/scene.rs"]
mod scene;
#[allow(dead_code, reason = "another test's, which uses all of it")]
#[path = "tenants/world.rs"]
mod world;
