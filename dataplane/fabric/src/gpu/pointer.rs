//! What the driver knows of an address.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};

use keyway_sys::cuda::abi::{self, PointerAttribute};
use keyway_sys::cuda::{Cuda, CudaError};

use super::GpuError;

/// The allocation, or the mapped part of one, around an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pointed {
    /// The GPU whose memory it is.
    pub(crate) ordinal: u32,
    /// First byte of the allocation.
    pub(crate) base: u64,
    /// Bytes of the allocation.
    pub(crate) bytes: u64,
    /// The allocation's number in this process; never used again.
    pub(crate) id: u64,
}

impl Pointed {
    pub(crate) fn contains(&self, address: u64) -> bool {
        (self.base..self.end()).contains(&address)
    }

    /// The address behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.base.saturating_add(self.bytes)
    }
}

/// Describes device memory; refuses everything else by what it is. No context is needed.
pub(crate) fn describe(cuda: &Cuda, address: u64) -> Result<Pointed, GpuError> {
    let mut kind: c_uint = 0;
    // SAFETY: the attribute is a `c_uint`.
    let known = unsafe { read(cuda, &mut kind, abi::POINTER_ATTRIBUTE_MEMORY_TYPE, address) };
    match known {
        Ok(()) => {}
        Err(error) if error.code() == Some(abi::ERROR_INVALID_VALUE) => {
            // The driver knows neither host memory that is not pinned nor what is gone.
            let host = is_readable(address);
            return Err(if host { GpuError::NotDeviceMemory } else { GpuError::Freed });
        }
        Err(error) => return Err(error.into()),
    }
    // Managed memory may say of itself that it is of either kind.
    let mut managed: c_uint = 0;
    // SAFETY: the attribute is a boolean, which the driver writes as one byte or one integer.
    unsafe { read(cuda, &mut managed, abi::POINTER_ATTRIBUTE_IS_MANAGED, address) }?;
    if managed != 0 {
        return Err(GpuError::Managed);
    }
    if kind != abi::MEMORYTYPE_DEVICE {
        return Err(GpuError::NotDeviceMemory);
    }
    let (mut ordinal, mut base, mut bytes, mut id): (c_int, u64, usize, u64) = (0, 0, 0, 0);
    // SAFETY: the attributes are an `int`, an address, a size and a 64-bit number.
    unsafe {
        read(cuda, &mut ordinal, abi::POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)?;
        read(cuda, &mut base, abi::POINTER_ATTRIBUTE_RANGE_START_ADDR, address)?;
        read(cuda, &mut bytes, abi::POINTER_ATTRIBUTE_RANGE_SIZE, address)?;
        read(cuda, &mut id, abi::POINTER_ATTRIBUTE_BUFFER_ID, address)?;
    }
    let ordinal = u32::try_from(ordinal).map_err(|_| GpuError::NotDeviceMemory)?;
    Ok(Pointed { ordinal, base, bytes: bytes as u64, id })
}

/// Whether the driver has this host address pinned, whoever asked for it.
pub(crate) fn is_pinned_host(cuda: &Cuda, address: u64) -> bool {
    let mut kind: c_uint = 0;
    // SAFETY: the attribute is a `c_uint`.
    let known = unsafe { read(cuda, &mut kind, abi::POINTER_ATTRIBUTE_MEMORY_TYPE, address) };
    known.is_ok() && kind == abi::MEMORYTYPE_HOST
}

/// A yes-or-no attribute; no where the driver does not know it.
pub(crate) fn flag(cuda: &Cuda, attribute: PointerAttribute, address: u64) -> bool {
    let mut value: c_uint = 0;
    // SAFETY: the attribute is a boolean, which the driver writes as one byte or one integer.
    unsafe { read(cuda, &mut value, attribute, address) }.is_ok() && value != 0
}

/// # Safety
/// The attribute's type is `T`, or a smaller one that leaves the rest of `T` alone.
unsafe fn read<T>(
    cuda: &Cuda,
    into: &mut T,
    attribute: PointerAttribute,
    address: u64,
) -> Result<(), CudaError> {
    let into: *mut T = into;
    // SAFETY: upheld by the caller; the address is looked up, not followed.
    unsafe { cuda.pointer_get_attribute(into.cast::<c_void>(), attribute, address) }
}

/// Whether this process may read at an address. For a failure's reason alone: it reads the
/// kernel's list of mappings.
fn is_readable(address: u64) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    maps.lines().any(|line| {
        let mut words = line.split(' ');
        let (Some(range), Some(rights)) = (words.next(), words.next()) else { return false };
        let Some((start, end)) = range.split_once('-') else { return false };
        let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        rights.starts_with('r') && (number(start)..number(end)).contains(&address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_is_told_from_nothing() {
        let here = 7u8;
        assert!(is_readable(&raw const here as u64));
        assert!(!is_readable(64));
        assert!(!is_readable(u64::MAX));
    }
}
