//! What the driver knows of an address.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};

use keyway_sys::cuda::abi::{self, PointerAttribute};
use keyway_sys::cuda::{Cuda, CudaError};

use super::GpuError;

/// The memory around an address that has one handle: an allocation, or what is mapped of one
/// piece of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pointed {
    /// The GPU whose memory it is.
    pub(crate) ordinal: u32,
    /// First byte.
    pub(crate) base: u64,
    /// Bytes.
    pub(crate) bytes: u64,
    /// Its number in this process; never used again.
    pub(crate) id: u64,
    /// Whether the driver gives it a handle of the old kind.
    pub(crate) legacy: bool,
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

/// What the driver answers about an address, in one call; zeros where it knows nothing.
#[derive(Default)]
struct Answers {
    kind: c_uint,
    managed: c_uint,
    ordinal: c_int,
    base: u64,
    bytes: usize,
    id: u64,
    legacy: c_uint,
}

/// Tells numbers of physical memory from those of allocations.
const PHYSICAL: u64 = 1 << 63;

/// Describes device memory; refuses everything else by what it is. No context is needed.
pub(crate) fn describe(cuda: &Cuda, address: u64) -> Result<Pointed, GpuError> {
    let answers = ask(cuda, address)?;
    if answers.kind == 0 {
        // The driver knows neither host memory that is not pinned nor what is gone.
        let host = is_readable(address);
        return Err(if host { GpuError::NotDeviceMemory } else { GpuError::Freed });
    }
    // Managed memory may say of itself that it is of either kind.
    if answers.managed != 0 {
        return Err(GpuError::Managed);
    }
    if answers.kind != abi::MEMORYTYPE_DEVICE {
        return Err(GpuError::NotDeviceMemory);
    }
    let ordinal = u32::try_from(answers.ordinal).map_err(|_| GpuError::NotDeviceMemory)?;
    let (base, bytes, id) = (answers.base, answers.bytes as u64, answers.id);
    let found = Pointed { ordinal, base, bytes, id, legacy: answers.legacy != 0 };
    Ok(if found.legacy { found } else { found.mapped(cuda, address) })
}

impl Pointed {
    /// What of it is mapped as one piece. For mapped memory the driver gives the whole range of
    /// addresses that was reserved, whatever is mapped there.
    fn mapped(self, cuda: &Cuda, address: u64) -> Self {
        let (mut base, mut bytes, mut block): (u64, usize, u64) = (0, 0, 0);
        // SAFETY: the attributes are an address, a size and a 64-bit number.
        let known = unsafe {
            read(cuda, &mut base, abi::POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, address)
                .and_then(|()| read(cuda, &mut bytes, abi::POINTER_ATTRIBUTE_MAPPING_SIZE, address))
                .and_then(|()| {
                    read(cuda, &mut block, abi::POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, address)
                })
        };
        // A driver of before 12.0 knows no mappings.
        if known.is_err() {
            return self;
        }
        let end = base.saturating_add(bytes as u64).min(self.end());
        let base = base.max(self.base);
        if !(base..end).contains(&address) {
            return self;
        }
        Self { base, bytes: end - base, id: block | PHYSICAL, ..self }
    }
}

/// Whether all of a range is memory of this GPU. `around` is the last memory seen.
pub(crate) fn check(
    cuda: &Cuda,
    ordinal: u32,
    (address, bytes): (u64, u64),
    around: &mut Option<Pointed>,
) -> Result<(), GpuError> {
    let end = address.checked_add(bytes).ok_or(GpuError::Freed)?;
    let mut at = address;
    while at < end {
        let part = match *around {
            Some(part) if part.contains(at) => part,
            _ => describe(cuda, at)?,
        };
        if part.ordinal != ordinal {
            return Err(GpuError::WrongGpu { wanted: ordinal, found: part.ordinal });
        }
        *around = Some(part);
        // A range that does not go on would be looked at for ever.
        at = part.end().max(at + 1);
    }
    Ok(())
}

fn ask(cuda: &Cuda, address: u64) -> Result<Answers, GpuError> {
    let mut answers = Answers::default();
    let mut attributes = [
        abi::POINTER_ATTRIBUTE_MEMORY_TYPE,
        abi::POINTER_ATTRIBUTE_IS_MANAGED,
        abi::POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        abi::POINTER_ATTRIBUTE_RANGE_START_ADDR,
        abi::POINTER_ATTRIBUTE_RANGE_SIZE,
        abi::POINTER_ATTRIBUTE_BUFFER_ID,
        abi::POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
    ];
    let mut into = [
        (&raw mut answers.kind).cast::<c_void>(),
        (&raw mut answers.managed).cast(),
        (&raw mut answers.ordinal).cast(),
        (&raw mut answers.base).cast(),
        (&raw mut answers.bytes).cast(),
        (&raw mut answers.id).cast(),
        (&raw mut answers.legacy).cast(),
    ];
    // SAFETY: as many places as attributes, each of its attribute's size or longer: the driver
    // writes booleans as one byte or one integer.
    let known = unsafe {
        let (count, attributes) = (attributes.len() as c_uint, attributes.as_mut_ptr());
        cuda.pointer_get_attributes(count, attributes, into.as_mut_ptr(), address)
    };
    match known {
        Ok(()) => Ok(answers),
        Err(error)
            if matches!(
                error.code(),
                Some(abi::ERROR_INVALID_VALUE | abi::ERROR_INVALID_CONTEXT)
            ) =>
        {
            Ok(Answers::default())
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether the driver has this host address pinned, whoever asked for it.
pub(crate) fn is_pinned_host(cuda: &Cuda, address: u64) -> bool {
    let mut kind: c_uint = 0;
    // SAFETY: the attribute is a `c_uint`.
    let known = unsafe { read(cuda, &mut kind, abi::POINTER_ATTRIBUTE_MEMORY_TYPE, address) };
    known.is_ok() && kind == abi::MEMORYTYPE_HOST
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
