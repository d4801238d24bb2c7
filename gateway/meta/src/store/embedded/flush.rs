//! Flushes of the store's files, and what one that fails means.
//!
//! The kernel tells of a failed flush once, and may have marked as clean what it did not write: the
//! next flush succeeds, and what is read back need not be on the device. So a failed flush is sticky:
//! no commit is taken until the store is opened by another process. A device that is full is the
//! exception, for there is a way back from it. In both cases what was to be flushed is in doubt.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError, StorageBackend};
use rustix::fs::{Advice, fadvise};

use super::is_full;
use crate::store::MetaError;

/// What is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    Tree,
    /// It, and its name.
    Journal,
}

type Flush = dyn Fn(Flushed, &File) -> io::Result<()> + Send + Sync;

/// The flushes of one store.
pub(super) struct Flushes {
    flush: Box<Flush>,
    /// Why one failed.
    failed: OnceLock<Arc<str>>,
}

/// A flush failed. Its kind is that of its cause.
#[derive(Debug, thiserror::Error)]
#[error("a flush failed: {0}")]
struct FlushError(#[source] io::Error);

impl Flushes {
    /// `flush` makes a file's bytes durable.
    pub(super) fn new(
        flush: impl Fn(Flushed, &File) -> io::Result<()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { flush: Box::new(flush), failed: OnceLock::new() })
    }

    /// The kernel's own.
    pub(super) fn real() -> Arc<Self> {
        Self::new(|_, file| file.sync_data())
    }

    /// Makes the file's bytes durable.
    ///
    /// # Errors
    /// The device's, which [`is_flush_error`] knows.
    pub(super) fn run(&self, what: Flushed, file: &File) -> io::Result<()> {
        (self.flush)(what, file).map_err(|error| {
            // What is clean in memory alone must not be read as if it were on the device.
            if let Err(error) = fadvise(file, 0, None, Advice::DontNeed) {
                tracing::warn!(%error, ?what, "the cached pages of a file were not given up");
            }
            if !is_full(&error) && self.failed.set(error.to_string().into()).is_ok() {
                tracing::error!(%error, ?what, "a flush failed: the metadata store refuses commits");
            }
            io::Error::new(error.kind(), FlushError(error))
        })
    }

    /// Whether commits may be taken.
    ///
    /// # Errors
    /// [`MetaError::Engine`] from the first failed flush on.
    pub(super) fn check(&self) -> Result<(), MetaError> {
        let Some(error) = self.failed.get() else { return Ok(()) };
        let reason =
            format!("an earlier flush failed, no commit is taken until a restart: {error}");
        Err(MetaError::Engine(reason.into()))
    }
}

/// Whether the error is that of a flush.
pub(super) fn is_flush_error(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<FlushError>())
}

/// redb's file, with flushes that are seen.
pub(super) struct TreeFile {
    backend: FileBackend,
    file: File,
    flushes: Arc<Flushes>,
}

impl TreeFile {
    pub(super) fn new(file: File, flushes: &Arc<Flushes>) -> Result<Self, DatabaseError> {
        let backend = FileBackend::new(file.try_clone()?)?;
        Ok(Self { backend, file, flushes: Arc::clone(flushes) })
    }
}

impl fmt::Debug for TreeFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeFile").field("file", &self.file).finish_non_exhaustive()
    }
}

/// [`FileBackend`]'s, but for the flush.
impl StorageBackend for TreeFile {
    fn sync_data(&self) -> io::Result<()> {
        self.flushes.run(Flushed::Tree, &self.file)
    }

    fn len(&self) -> io::Result<u64> {
        self.backend.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.backend.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.backend.set_len(len)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.backend.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.backend.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.backend.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.backend.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.backend.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.backend.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.backend.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.backend.query_lock_range(start, end)
    }
}
