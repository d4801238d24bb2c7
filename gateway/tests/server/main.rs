//! The server through real sockets on loopback.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod composed;
mod http;
mod telemetry;
mod wire;
