//! What the fuzz targets share: a gateway in this process, and requests to it.

#[path = "../../src/form.rs"]
pub mod form;
#[path = "../../src/sigv4.rs"]
pub mod sigv4;
#[path = "../../src/wire.rs"]
pub mod wire;

#[cfg(feature = "gateway")]
pub mod gateway;

#[cfg(feature = "gateway")]
pub use gateway::Gateway;
