//! The border to Python's memory: any object that shows its bytes, as memory that can be lent.
//!
//! | object shows itself by | memory | how |
//! |---|---|---|
//! | our own [`Buffer`] | host, GPU | the same memory, registrations with adapters and all |
//! | the buffer protocol | host | `bytearray`, `memoryview`, NumPy, `mmap`, … |
//! | `__dlpack__` | host, GPU | PyTorch, CuPy, JAX, … |
//! | `__cuda_array_interface__` | GPU | Numba and older libraries |
//!
//! Invariant: a [`Storage`] over foreign memory holds what keeps it alive and in its place: a
//! Python buffer view, a DLPack tensor, or the object itself. What nobody can promise for Python
//! is that other threads leave the bytes alone during a call; its documentation asks for it, as
//! `readinto` does.
//!
//! No byte is copied here.

#![allow(unsafe_code)]

use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyway_bindings::{Memory, Source, Target, Turn};
use keyway_client::{DeviceBuffer, HostBuffer, StreamTurn};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMemoryView};

use crate::buffer::Buffer;
use crate::dlpack::{self, Imported};
use crate::raise::raise;

/// What a transfer does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Fill,
    Send,
}

/// Memory that can be lent, its own or another's.
pub(crate) struct Storage {
    memory: Mutex<Memory>,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    /// The GPU's ordinal, for memory of one.
    pub(crate) gpu: Option<u32>,
    pub(crate) is_readonly: bool,
}

/// A range of a storage.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) storage: Arc<Storage>,
    pub(crate) range: Range<usize>,
    /// The CUDA stream on which the memory becomes what it is.
    pub(crate) stream: Option<u64>,
    /// Whether the caller named it: then it waits for the transfer's end.
    pub(crate) is_callers: bool,
}

impl Storage {
    /// Adopts memory that nothing is lent of.
    pub(crate) fn own(mut memory: Memory) -> PyResult<Self> {
        let bytes = memory.len();
        let address = memory.address().map_err(raise)?;
        let gpu = memory.gpu().map(|gpu| gpu.ordinal());
        Ok(Self { memory: Mutex::new(memory), address, bytes, gpu, is_readonly: false })
    }

    /// # Safety
    /// While `owner` lives, the bytes stay allocated where they are, and nobody else writes to
    /// what is lent of them.
    unsafe fn host(
        address: u64,
        bytes: usize,
        is_readonly: bool,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let base = NonNull::new(address as *mut u8).unwrap_or(NonNull::dangling());
        // SAFETY: upheld by the caller. Read-only memory is only ever lent for reading.
        let buffer = unsafe { HostBuffer::foreign(base, bytes, owner) };
        let memory = Mutex::new(Memory::Host(buffer));
        Self { memory, address, bytes, gpu: None, is_readonly }
    }

    /// # Safety
    /// As [`host`](Self::host), of device memory.
    unsafe fn gpu(
        address: u64,
        bytes: usize,
        is_readonly: bool,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> PyResult<Self> {
        if bytes == 0 {
            // There is nothing that the driver could know of.
            // SAFETY: no byte is ever reached.
            return Ok(unsafe { Self::host(0, 0, is_readonly, owner) });
        }
        // SAFETY: upheld by the caller.
        let buffer = unsafe { DeviceBuffer::foreign(address, bytes, owner) };
        let buffer = buffer.map_err(|error| raise(error.into()))?;
        let gpu = Some(buffer.gpu().ordinal());
        let memory = Mutex::new(Memory::Device(buffer));
        Ok(Self { memory, address, bytes, gpu, is_readonly })
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    pub(crate) fn whole(storage: Arc<Storage>) -> Self {
        let range = 0..storage.bytes;
        Self { storage, range, stream: None, is_callers: false }
    }

    /// The memory that an object shows.
    pub(crate) fn of(
        object: &Bound<'_, PyAny>,
        access: Access,
        stream: Option<u64>,
    ) -> PyResult<Self> {
        let mut part = Self::found(object, stream)?;
        part.is_callers = stream.is_some();
        if access == Access::Fill && part.storage.is_readonly {
            let message = format!("{} is read-only", kind(object));
            return Err(PyBufferError::new_err(message));
        }
        Ok(part)
    }

    fn found(object: &Bound<'_, PyAny>, stream: Option<u64>) -> PyResult<Self> {
        if let Ok(buffer) = object.cast::<Buffer>() {
            return Ok(Self { stream, ..buffer.get().part().clone() });
        }
        let py = object.py();
        let shown = if object.hasattr(intern!(py, "__dlpack_device__"))? {
            from_dlpack(object, stream)
        } else if object.hasattr(intern!(py, "__cuda_array_interface__"))? {
            from_cuda_array(object, stream)
        } else {
            return from_buffer(object);
        };
        // NumPy shows read-only and exotic arrays by the one protocol and not by the other.
        match shown {
            Err(error) if error.is_instance_of::<PyBufferError>(py) => {
                from_buffer(object).map_err(|_| error)
            }
            shown => shown,
        }
    }

    /// Takes the transfer's turn on the stream, where there is one.
    pub(crate) fn turn(&self) -> PyResult<Option<Turn>> {
        let gpu = self.storage.memory().gpu().map(Arc::clone);
        let (Some(gpu), Some(stream)) = (gpu, self.stream) else { return Ok(None) };
        // SAFETY: the caller, or the memory's owner, says that this is a stream.
        let turn = unsafe { StreamTurn::take(&gpu, stream) };
        let turn = turn.map_err(|error| raise(error.into()))?;
        Ok(Some(if self.is_callers { Turn::Whole(turn) } else { Turn::After(turn) }))
    }

    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    /// # Errors
    /// When the part is lent already.
    pub(crate) fn target(&self) -> PyResult<Target> {
        self.storage.memory().target(self.range.clone()).map_err(raise)
    }

    /// # Errors
    /// As [`target`](Self::target).
    pub(crate) fn source(&self) -> PyResult<Source> {
        self.storage.memory().source(self.range.clone()).map_err(raise)
    }
}

fn kind(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "the object".to_owned(), |name| name.to_string())
}

fn from_buffer(object: &Bound<'_, PyAny>) -> PyResult<Part> {
    let view = PyUntypedBuffer::get(object).or_else(|_| {
        // A `memoryview` fills in what an object leaves out, as ctypes does its strides.
        let view = PyMemoryView::from(object)?;
        PyUntypedBuffer::get(view.as_any())
    });
    let view = view.map_err(|error| {
        if error.is_instance_of::<PyTypeError>(object.py()) {
            let kind = kind(object);
            PyTypeError::new_err(format!(
                "{kind} shows no memory: it has neither the buffer protocol, nor __dlpack__, \
                 nor __cuda_array_interface__"
            ))
        } else {
            error
        }
    })?;
    if !view.is_c_contiguous() {
        return Err(PyBufferError::new_err(format!("{} is not contiguous", kind(object))));
    }
    let (address, bytes) = (view.buf_ptr() as u64, view.len_bytes());
    let is_readonly = view.readonly();
    // SAFETY: the view keeps the memory alive and in its place until it is released.
    let storage = unsafe { Storage::host(address, bytes, is_readonly, Arc::new(view)) };
    Ok(Part::whole(Arc::new(storage)))
}

fn from_dlpack(object: &Bound<'_, PyAny>, stream: Option<u64>) -> PyResult<Part> {
    let py = object.py();
    let device = object.call_method0(intern!(py, "__dlpack_device__"))?;
    let (device, _): (i32, i32) = device.extract()?;
    let on_gpu = match device {
        dlpack::HOST | dlpack::CUDA_HOST => false,
        dlpack::CUDA => true,
        other => {
            let message = format!("{} is on a device of kind {other}", kind(object));
            return Err(PyValueError::new_err(message));
        }
    };
    // The producer makes this stream wait for its own; we then stand in this stream.
    let stream = on_gpu.then(|| stream.unwrap_or(LEGACY_STREAM));
    let asked = PyDict::new(py);
    asked.set_item(intern!(py, "stream"), stream)?;
    asked.set_item(intern!(py, "max_version"), (1, 0))?;
    let capsule = match object.call_method(intern!(py, "__dlpack__"), (), Some(&asked)) {
        // A producer from before DLPack 1.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            asked.del_item(intern!(py, "max_version"))?;
            object.call_method(intern!(py, "__dlpack__"), (), Some(&asked))
        }
        capsule => capsule,
    };
    let tensor = Imported::take(&capsule?)?;
    let (address, bytes, is_readonly) = (tensor.address, tensor.bytes, tensor.is_readonly);
    let storage = if on_gpu {
        // SAFETY: the tensor keeps its memory alive until its deleter is called.
        unsafe { Storage::gpu(address, bytes, is_readonly, Arc::new(tensor)) }?
    } else {
        // SAFETY: as above.
        unsafe { Storage::host(address, bytes, is_readonly, Arc::new(tensor)) }
    };
    Ok(Part { stream, ..Part::whole(Arc::new(storage)) })
}

/// CUDA's legacy default stream, as DLPack and the array interface name it.
const LEGACY_STREAM: u64 = 1;

fn from_cuda_array(object: &Bound<'_, PyAny>, stream: Option<u64>) -> PyResult<Part> {
    let py = object.py();
    let shown = object.getattr(intern!(py, "__cuda_array_interface__"))?;
    let (address, is_readonly): (u64, bool) = shown.get_item("data")?.extract()?;
    let shape: Vec<usize> = shown.get_item("shape")?.extract()?;
    let strides: Option<Vec<usize>> = optional(&shown, "strides")?;
    let text: String = shown.get_item("typestr")?.extract()?;
    let item = text.get(2..).and_then(|digits| digits.parse::<usize>().ok());
    let bytes =
        item.and_then(|item| shape.iter().try_fold(item, |all, side| all.checked_mul(*side)));
    let (Some(item), Some(bytes)) = (item, bytes) else {
        return Err(PyValueError::new_err("the array interface makes no sense"));
    };
    let mut expected = item;
    let contiguous = strides.is_none_or(|strides| {
        shape.iter().zip(&strides).rev().all(|(side, stride)| {
            let holds = *side == 1 || *stride == expected;
            expected *= side;
            holds
        })
    });
    if bytes > 0 && !contiguous {
        return Err(PyBufferError::new_err(format!("{} is not contiguous", kind(object))));
    }
    let stream = stream.or(optional(&shown, "stream")?);
    // SAFETY: the interface says that the memory lives as long as the object.
    let storage =
        unsafe { Storage::gpu(address, bytes, is_readonly, Arc::new(object.clone().unbind())) }?;
    Ok(Part { stream, ..Part::whole(Arc::new(storage)) })
}

fn optional<'py, T>(shown: &Bound<'py, PyAny>, name: &str) -> PyResult<Option<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let value = shown.call_method1("get", (name,))?;
    if value.is_none() { Ok(None) } else { value.extract().map(Some) }
}
