//! The server through real sockets on loopback.

mod composed;
mod http;
mod telemetry;
mod wire;
