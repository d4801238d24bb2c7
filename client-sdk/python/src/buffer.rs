//! `keyway.Buffer`: memory that Python can look at, of our own or wrapped.
//!
//! The border of the buffer protocol. Invariant: a view that Python holds holds the `Buffer`
//! object, which holds the storage; the address and the length of a storage never change.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use keyway_bindings::Memory;
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyIndexError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PySlice, PyTuple};

use crate::dlpack::{self, Shown};
use crate::raise::raise;
use crate::report::Report;
use crate::storage::{Access, Part, Storage};

/// Bytes of host or GPU memory, for the buffer protocol, DLPack and CUDA's array interface.
#[pyclass(frozen, module = "keyway", weakref)]
pub(crate) struct Buffer {
    part: Part,
    result: Option<Py<Report>>,
}

impl Buffer {
    pub(crate) fn part(&self) -> &Part {
        &self.part
    }

    /// Memory of our own with what was read into its front.
    pub(crate) fn read(memory: Memory, bytes: usize, result: Py<Report>) -> PyResult<Self> {
        let mut part = Part::whole(Arc::new(Storage::own(memory)?));
        part.range = 0..bytes;
        Ok(Self { part, result: Some(result) })
    }

    fn address(&self) -> u64 {
        self.part.storage.address + self.part.range.start as u64
    }

    /// As DLPack names it.
    fn device(&self) -> (i32, i32) {
        match self.part.storage.gpu {
            None => (dlpack::HOST, 0),
            Some(ordinal) => (dlpack::CUDA, i32::try_from(ordinal).unwrap_or(i32::MAX)),
        }
    }
}

#[pymethods]
impl Buffer {
    /// Wraps the memory of `source`, so that transfers find it again, registrations and all.
    #[new]
    fn new(source: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { part: Part::of(source, Access::Send, None)?, result: None })
    }

    /// New memory: zeros on the host, and what was there on a GPU.
    #[staticmethod]
    #[pyo3(signature = (bytes, gpu = None))]
    fn allocate(bytes: usize, gpu: Option<u32>) -> PyResult<Self> {
        let memory = Memory::new(gpu, bytes).map_err(raise)?;
        let part = Part::whole(Arc::new(Storage::own(memory)?));
        Ok(Self { part, result: None })
    }

    /// How the bytes came, where a read made the buffer.
    #[getter]
    fn result(&self, py: Python<'_>) -> Option<Py<Report>> {
        self.result.as_ref().map(|result| result.clone_ref(py))
    }

    /// `cpu` or `cuda:N`.
    #[getter(device)]
    fn device_text(&self) -> String {
        self.part.storage.gpu.map_or_else(|| "cpu".to_owned(), |ordinal| format!("cuda:{ordinal}"))
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.part.len()
    }

    #[getter]
    fn readonly(&self) -> bool {
        self.part.storage.is_readonly
    }

    fn __len__(&self) -> usize {
        self.part.len()
    }

    fn __repr__(&self) -> String {
        format!("<keyway.Buffer of {} bytes on {}>", self.part.len(), self.device_text())
    }

    /// A part of the same memory.
    fn __getitem__(&self, index: &Bound<'_, PyAny>) -> PyResult<Self> {
        let slice = index.cast::<PySlice>().map_err(|_| {
            PyTypeError::new_err("a part of a buffer is a slice, such as buffer[0:4096]")
        })?;
        let length = isize::try_from(self.part.len()).unwrap_or(isize::MAX);
        let found = slice.indices(length)?;
        if found.step != 1 {
            return Err(PyIndexError::new_err("a part of a buffer has no step"));
        }
        let start = self.part.range.start + usize::try_from(found.start).unwrap_or(0);
        let part = Part { range: start..start + found.slicelength, ..self.part.clone() };
        Ok(Self { part, result: None })
    }

    /// A copy of the bytes, of host memory.
    fn __bytes__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyBytes>> {
        let view = pyo3::buffer::PyBuffer::<u8>::get(slf.as_any())?;
        let bytes = view.to_vec(slf.py())?;
        Ok(PyBytes::new(slf.py(), &bytes))
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        self.device()
    }

    /// The bytes as a tensor of `uint8`. All of them are there: no stream has to wait.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = stream;
        if copy == Some(true) || dl_device.is_some_and(|device| device != self.device()) {
            return Err(PyBufferError::new_err("the memory is shown where it lies"));
        }
        let shown = Shown {
            address: self.address(),
            bytes: self.part.len(),
            device: self.device(),
            is_readonly: self.part.storage.is_readonly,
            owner: Arc::clone(&self.part.storage) as _,
        };
        dlpack::export(py, shown, max_version.is_some_and(|(major, _)| major >= 1))
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.part.storage.gpu.is_none() {
            return Err(PyAttributeError::new_err("this is host memory"));
        }
        let shown = PyDict::new(py);
        shown.set_item("shape", PyTuple::new(py, [self.part.len()])?)?;
        shown.set_item("typestr", "|u1")?;
        shown.set_item("data", (self.address(), self.part.storage.is_readonly))?;
        shown.set_item("version", 3)?;
        Ok(shown)
    }

    /// # Safety
    /// Python calls it with a view to be filled, or null.
    #[expect(clippy::needless_pass_by_value, reason = "the slot has this shape")]
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let buffer = slf.get();
        if buffer.part.storage.gpu.is_some() {
            return Err(PyBufferError::new_err("GPU memory has no buffer protocol"));
        }
        let length = isize::try_from(buffer.part.len())?;
        let readonly = c_int::from(buffer.part.storage.is_readonly);
        let address = buffer.address() as *mut c_void;
        // SAFETY: the address is that of `length` bytes, which live as long as the object; the
        // view takes a reference to the object. A null view is answered with an error.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, length, readonly, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }

    /// # Safety
    /// Python calls it with a view that was filled above.
    #[expect(clippy::unused_self, reason = "the slot has this shape")]
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}
}
