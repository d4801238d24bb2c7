//! A shared library and the symbols taken from it.
//!
//! Invariant: a symbol is used only while its library is loaded, since the tables own the
//! library beside the function pointers; the types of the functions are those that the
//! library's own header declares.

#![allow(unsafe_code)]

use libloading::Library;

/// Why a native library cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NativeError {
    /// The library is not on this machine, or cannot be loaded.
    #[error("{library} cannot be loaded")]
    Missing {
        /// The library's file name.
        library: &'static str,
        /// The loader's reason.
        #[source]
        source: libloading::Error,
    },
    /// The library has no such function: it is too old.
    #[error("{library} has no {symbol}")]
    NoSymbol {
        /// The library's file name.
        library: &'static str,
        /// The function.
        symbol: &'static str,
        /// The loader's reason.
        #[source]
        source: libloading::Error,
    },
    /// The driver does not offer this function: it is too old.
    #[error("{library} does not offer {symbol}")]
    NotOffered {
        /// The library's file name.
        library: &'static str,
        /// The function.
        symbol: &'static str,
    },
    /// A call failed.
    #[error("{call} failed with {code}{}", named(.name))]
    Call {
        /// The function.
        call: &'static str,
        /// Its error number.
        code: i64,
        /// The library's own name for it, where it has one.
        name: Option<String>,
    },
}

fn named(name: &Option<String>) -> String {
    name.as_ref().map_or_else(String::new, |name| format!(" ({name})"))
}

/// Loads a library of the system.
///
/// # Safety
/// `name` is a library whose initialisers may run in this process at any time.
pub(crate) unsafe fn load(name: &'static str) -> Result<Library, NativeError> {
    // SAFETY: upheld by the caller.
    unsafe { Library::new(name) }.map_err(|source| NativeError::Missing { library: name, source })
}

/// Takes a function's address out of a library.
///
/// # Safety
/// `T` is a function pointer of the type that the library's header declares for `symbol`,
/// and is called only while the library is loaded.
pub(crate) unsafe fn symbol<T: Copy>(
    loaded: &Library,
    library: &'static str,
    symbol: &'static str,
) -> Result<T, NativeError> {
    // SAFETY: upheld by the caller.
    unsafe { loaded.get::<T>(symbol.as_bytes()) }
        .map(|found| *found)
        .map_err(|source| NativeError::NoSymbol { library, symbol, source })
}
