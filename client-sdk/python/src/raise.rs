//! Failures as exceptions. The classes are Python's own, in `keyway.errors`.

use keyway_bindings::{Failure, Kind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// The exception that a failure is.
#[expect(clippy::needless_pass_by_value, reason = "it stands in `map_err`")]
pub(crate) fn raise(failure: Failure) -> PyErr {
    Python::attach(|py| exception(py, &failure).unwrap_or_else(|error| error))
}

/// The exception that says that the bytes do not fit.
pub(crate) fn buffer_too_small(message: &str) -> PyErr {
    of_class("BufferTooSmall", message)
}

fn of_class(name: &str, message: &str) -> PyErr {
    Python::attach(|py| {
        let made = class(py, name).and_then(|class| class.call1((message,)));
        made.map_or_else(|error| error, PyErr::from_value)
    })
}

fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let errors =
        ERRORS.get_or_try_init(py, || PyModule::import(py, "keyway.errors").map(Bound::unbind))?;
    errors.bind(py).getattr(name)
}

fn exception(py: Python<'_>, failure: &Failure) -> PyResult<PyErr> {
    let made = class(py, class_name(failure.kind()))?.call1((failure.chain(),))?;
    if let Some(service) = failure.service() {
        made.setattr("code", &service.code)?;
        made.setattr("status", service.status.as_u16())?;
        made.setattr("request_id", service.request_id.as_deref())?;
    }
    Ok(PyErr::from_value(made))
}

fn class_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Invalid => "InvalidArgument",
        Kind::NotFound => "NotFound",
        Kind::AccessDenied => "AccessDenied",
        Kind::PreconditionFailed => "PreconditionFailed",
        Kind::Throttled => "Throttled",
        Kind::Service => "ServiceError",
        Kind::Connection => "ConnectionFailed",
        Kind::Deadline => "DeadlineExceeded",
        Kind::ChecksumMismatch => "ChecksumMismatch",
        Kind::Changed => "ObjectChanged",
        Kind::BufferTooSmall => "BufferTooSmall",
        Kind::OutOfRange => "OutOfRange",
        Kind::Busy => "BufferBusy",
        Kind::PathUnavailable => "PathUnavailable",
        Kind::NoGpu => "NoGpu",
        Kind::Gpu => "GpuError",
        Kind::Transfer => "TransferFailed",
        Kind::System => "SystemFailure",
        Kind::Malformed => "MalformedAnswer",
        _ => "KeywayError",
    }
}
