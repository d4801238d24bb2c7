//! The border to DLPack: other libraries' tensors as addresses, and our memory as a tensor of
//! bytes.
//!
//! Source: `dlpack.h`, versions 0.8 and 1.1. A capsule `dltensor` carries a `DLManagedTensor`,
//! one named `dltensor_versioned` a `DLManagedTensorVersioned`; the consumer renames the capsule
//! to `used_…` and calls the deleter when it is done.
//!
//! Invariant: an [`Imported`] owns exactly one managed tensor, which it took out of its capsule
//! by renaming it, and calls its deleter once. An exported tensor's `manager_ctx` is a `Box` of
//! [`Exported`], freed once: by the consumer's deleter, or by the capsule that nobody consumed.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// `kDLCPU`.
pub(crate) const HOST: i32 = 1;
/// `kDLCUDA`.
pub(crate) const CUDA: i32 = 2;
/// `kDLCUDAHost`: host memory that CUDA has pinned.
pub(crate) const CUDA_HOST: i32 = 3;

const READ_ONLY: u64 = 1;
/// `kDLUInt`.
const UNSIGNED: u8 = 1;

const PLAIN: &CStr = c"dltensor";
const PLAIN_USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";

#[repr(C)]
struct Device {
    kind: i32,
    ordinal: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    kind: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct ManagedVersioned {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// A tensor of another library, kept alive.
pub(crate) struct Imported {
    handle: Handle,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(crate) device: (i32, i32),
    pub(crate) is_readonly: bool,
}

enum Handle {
    Plain(NonNull<Managed>),
    Versioned(NonNull<ManagedVersioned>),
}

// SAFETY: DLPack's deleters may be called from any thread; those of libraries that hold Python
// objects take the GIL themselves. The rest is plain values.
unsafe impl Send for Imported {}
// SAFETY: as above; `&Imported` reads plain values alone.
unsafe impl Sync for Imported {}

impl Imported {
    /// Takes the tensor out of a capsule.
    pub(crate) fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Self> {
        let capsule = capsule.cast::<PyCapsule>()?;
        if capsule.is_valid_checked(Some(VERSIONED)) {
            let managed = capsule.pointer_checked(Some(VERSIONED))?.cast::<ManagedVersioned>();
            // SAFETY: a capsule of this name holds such a tensor, whose first two fields have
            // been the same in every version.
            let major = unsafe { managed.as_ref() }.version.major;
            if major != 1 {
                return Err(PyBufferError::new_err(format!("DLPack {major} is not known here")));
            }
            rename(capsule, VERSIONED_USED)?;
            // SAFETY: as above, and its version is one whose layout this is.
            let (tensor, flags) = unsafe { (&managed.as_ref().tensor, managed.as_ref().flags) };
            let found = layout(tensor);
            let handle = Handle::Versioned(managed);
            return Self::over(handle, found, flags & READ_ONLY != 0);
        }
        let managed = capsule.pointer_checked(Some(PLAIN))?.cast::<Managed>();
        rename(capsule, PLAIN_USED)?;
        // SAFETY: a capsule of this name holds such a tensor.
        let found = layout(unsafe { &managed.as_ref().tensor });
        Self::over(Handle::Plain(managed), found, false)
    }

    fn over(handle: Handle, found: PyResult<Layout>, is_readonly: bool) -> PyResult<Self> {
        let mut imported = Self { handle, address: 0, bytes: 0, device: (0, 0), is_readonly };
        // Whatever is found, the tensor is ours by now and goes back by `Drop`.
        (imported.address, imported.bytes, imported.device) = found?;
        Ok(imported)
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        // SAFETY: by the invariant the tensor is ours and has not been given back.
        unsafe {
            match self.handle {
                Handle::Plain(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
                Handle::Versioned(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
            }
        }
    }
}

fn rename(capsule: &Bound<'_, PyCapsule>, name: &'static CStr) -> PyResult<()> {
    // SAFETY: the capsule is alive and the name is static.
    if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), name.as_ptr()) } == 0 {
        Ok(())
    } else {
        Err(PyErr::fetch(capsule.py()))
    }
}

/// Address, bytes, and kind and ordinal of the device.
type Layout = (u64, usize, (i32, i32));

fn layout(tensor: &Tensor) -> PyResult<Layout> {
    let dimensions = usize::try_from(tensor.dimensions).unwrap_or(0);
    let read = |pointer: *const i64| {
        if dimensions == 0 || pointer.is_null() {
            return &[][..];
        }
        // SAFETY: DLPack says that shape and strides have as many entries as dimensions.
        unsafe { std::slice::from_raw_parts(pointer, dimensions) }
    };
    let (shape, strides) = (read(tensor.shape), read(tensor.strides));
    let item_bits = u64::from(tensor.kind.bits) * u64::from(tensor.kind.lanes);
    let items = shape.iter().try_fold(1_u64, |items, side| {
        u64::try_from(*side).ok().and_then(|side| items.checked_mul(side))
    });
    let bits = items.and_then(|items| items.checked_mul(item_bits));
    let bytes = bits.filter(|bits| bits % 8 == 0).and_then(|bits| usize::try_from(bits / 8).ok());
    let bytes = bytes.ok_or_else(|| PyBufferError::new_err("the tensor's shape makes no sense"))?;
    if bytes > 0 && !is_contiguous(shape, strides) {
        return Err(PyBufferError::new_err("the tensor is not contiguous"));
    }
    let address = tensor.data as u64 + tensor.byte_offset;
    Ok((address, bytes, (tensor.device.kind, tensor.device.ordinal)))
}

/// Whether items lie in C order without gaps. No strides mean that they do.
fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    strides.is_empty()
        || shape.iter().zip(strides).rev().all(|(side, stride)| {
            let holds = *side == 1 || *stride == expected;
            expected *= side;
            holds
        })
}

/// Memory that is shown as a tensor of bytes.
pub(crate) struct Shown {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(crate) device: (i32, i32),
    pub(crate) is_readonly: bool,
    /// What keeps it alive.
    pub(crate) owner: Arc<dyn Any + Send + Sync>,
}

/// What an exported tensor points to.
struct Exported<M> {
    managed: M,
    side: i64,
    stride: i64,
    _owner: Arc<dyn Any + Send + Sync>,
}

/// A capsule of bytes, versioned or not.
pub(crate) fn export(py: Python<'_>, shown: Shown, versioned: bool) -> PyResult<Bound<'_, PyAny>> {
    if versioned { export_versioned(py, shown) } else { export_plain(py, shown) }
}

fn export_plain(py: Python<'_>, shown: Shown) -> PyResult<Bound<'_, PyAny>> {
    if shown.is_readonly {
        return Err(PyBufferError::new_err("read-only memory needs DLPack 1"));
    }
    let managed = Managed {
        tensor: tensor(&shown),
        context: std::ptr::null_mut(),
        deleter: Some(plain_done),
    };
    let exported =
        Box::new(Exported { managed, side: shown.bytes as i64, stride: 1, _owner: shown.owner });
    let exported = NonNull::from(Box::leak(exported));
    // SAFETY: the box was leaked above; its fields stay where they are until it is freed.
    let pointer = unsafe {
        let whole = exported.as_ptr();
        (*whole).managed.context = whole.cast();
        (*whole).managed.tensor.shape = &raw mut (*whole).side;
        (*whole).managed.tensor.strides = &raw mut (*whole).stride;
        NonNull::new_unchecked(&raw mut (*whole).managed)
    };
    // SAFETY: the pointer is what a capsule of this name holds, and the destructor frees it
    // unless a consumer has taken it.
    let capsule = unsafe {
        PyCapsule::new_with_pointer_and_destructor(py, pointer.cast(), PLAIN, Some(plain_unused))
    };
    Ok(capsule?.into_any())
}

fn export_versioned(py: Python<'_>, shown: Shown) -> PyResult<Bound<'_, PyAny>> {
    let managed = ManagedVersioned {
        version: Version { major: 1, minor: 0 },
        context: std::ptr::null_mut(),
        deleter: Some(versioned_done),
        flags: if shown.is_readonly { READ_ONLY } else { 0 },
        tensor: tensor(&shown),
    };
    let exported =
        Box::new(Exported { managed, side: shown.bytes as i64, stride: 1, _owner: shown.owner });
    let exported = NonNull::from(Box::leak(exported));
    // SAFETY: as in `export_plain`.
    let pointer = unsafe {
        let whole = exported.as_ptr();
        (*whole).managed.context = whole.cast();
        (*whole).managed.tensor.shape = &raw mut (*whole).side;
        (*whole).managed.tensor.strides = &raw mut (*whole).stride;
        NonNull::new_unchecked(&raw mut (*whole).managed)
    };
    let unused = Some(versioned_unused as ffi::PyCapsule_Destructor);
    // SAFETY: as in `export_plain`.
    let capsule = unsafe {
        PyCapsule::new_with_pointer_and_destructor(py, pointer.cast(), VERSIONED, unused)
    };
    Ok(capsule?.into_any())
}

fn tensor(shown: &Shown) -> Tensor {
    Tensor {
        data: shown.address as *mut c_void,
        device: Device { kind: shown.device.0, ordinal: shown.device.1 },
        dimensions: 1,
        kind: DataType { code: UNSIGNED, bits: 8, lanes: 1 },
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    }
}

unsafe extern "C" fn plain_done(managed: *mut Managed) {
    // SAFETY: called once, with the tensor of `export_plain`, whose context is its box.
    drop(unsafe { Box::from_raw((*managed).context.cast::<Exported<Managed>>()) });
}

unsafe extern "C" fn versioned_done(managed: *mut ManagedVersioned) {
    // SAFETY: called once, with the tensor of `export_versioned`, whose context is its box.
    drop(unsafe { Box::from_raw((*managed).context.cast::<Exported<ManagedVersioned>>()) });
}

unsafe extern "C" fn plain_unused(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule of `export_plain`, alive; one that was consumed
    // has another name by now.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
            plain_done(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        }
    }
}

unsafe extern "C" fn versioned_unused(capsule: *mut ffi::PyObject) {
    // SAFETY: as in `plain_unused`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            versioned_done(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}
