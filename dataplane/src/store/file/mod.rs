//! Chunks in preallocated files: the default store.
//!
//! | file | holds |
//! |---|---|
//! | [`layout`] | the bytes on disk, encoded and decoded |
//! | [`space`], [`bitmap`] | volumes and which units are taken |
//! | [`index`] | where each chunk lies |
//! | [`disk`], [`access`] | the disk's reactor, its fallback, and the choice between them |
//! | [`extent`], [`record`], [`segment`] | writing large and small chunks |
//! | [`reader`] | reading and verifying |
//! | [`recover`] | rebuilding the index at start |
//! | [`upkeep`] | compaction and scrubbing |
//!
//! Order of a PUT: data and header written → one flush → the index shows the chunk → the
//! gateway commits its metadata. docs/decisions/0003-file-store-layout.md gives the reasons.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use keyway_fabric::memory::{LeasePool, MemoryError};
use keyway_proto::{ChunkId, ChunkSpec, NodeId};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{BlobStore, ChunkWriter, PinnedChunk, StoreConfig, StoreError, StoreUsage};

mod access;
mod bitmap;
mod core;
#[cfg(test)]
mod crash_tests;
mod disk;
mod extent;
#[cfg(test)]
mod full_tests;
mod identity;
mod index;
mod layout;
#[cfg(test)]
mod model_tests;
mod reader;
mod record;
mod recover;
mod segment;
mod space;
#[cfg(test)]
mod tests;
mod upkeep;

use self::access::Access;
use self::core::Core;
use self::extent::ExtentWriter;
use self::identity::Identity;
use self::reader::Pin;
use self::record::RecordWriter;
use self::segment::{APPENDS_MAX, Append};
use self::space::Space;

/// Why a file store did not open. Nothing was changed then, but for a directory made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenStoreError {
    /// The directory cannot be used.
    #[error("cannot use the store's directory {path}")]
    Dir {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Another process has the store open.
    #[error("the store in {path} is open in another process")]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// `store.toml` is not one of ours.
    #[error("{path} does not describe a store of this version")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The store belongs to another node.
    #[error("the store in {path} belongs to {found}, not to {expected}")]
    OtherNode {
        /// The directory.
        path: PathBuf,
        /// The node in `store.toml`.
        found: NodeId,
        /// The node that opens it.
        expected: NodeId,
    },
    /// A volume cannot be read.
    #[error("cannot read the volume {path}")]
    Volume {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A volume's superblock is damaged or names another store.
    #[error("{path} is not a volume of this store")]
    ForeignVolume {
        /// The file.
        path: PathBuf,
    },
    /// The configuration requires what the machine refuses.
    #[error("{feature} is required, but refused")]
    Required {
        /// What was required.
        feature: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The threads for I/O could not be started.
    #[error("cannot start the threads for I/O")]
    Threads(#[source] io::Error),
    /// The kernel refused the memory for the buffers.
    #[error("cannot make the buffers for headers")]
    Memory(#[from] MemoryError),
}

/// A store in files.
pub struct FileStore {
    core: Arc<Core>,
    appends: mpsc::Sender<Append>,
    described: String,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    _lock: File,
}

impl FileStore {
    /// Opens the store in `config.dir`, or makes one there. Blocks while the index is
    /// rebuilt; must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`OpenStoreError`].
    pub fn open(
        node: NodeId,
        config: &StoreConfig,
        pool: LeasePool,
    ) -> Result<Self, OpenStoreError> {
        prepare_dir(&config.dir)?;
        let access = access::choose(config, &pool)?;
        Self::open_with(node, config, pool, access)
    }

    fn open_with(
        node: NodeId,
        config: &StoreConfig,
        pool: LeasePool,
        access: Access,
    ) -> Result<Self, OpenStoreError> {
        let (identity, lock) = Identity::open_or_make(&config.dir, node)?;
        let store = identity.store_id;
        let space = Arc::new(Space::new(
            &config.dir,
            store,
            config.capacity_bytes,
            config.volume_bytes,
            access.direct,
        ));
        let core = Arc::new(Core::new(space, access.disk, pool)?);
        recover::recover(&core, &config.dir, store, access.direct)?;
        let (appends, waiting) = mpsc::channel(APPENDS_MAX);
        let tasks = vec![
            tokio::spawn(segment::write_batches(Arc::clone(&core), waiting)),
            tokio::spawn(upkeep::compact(Arc::clone(&core), appends.downgrade())),
            tokio::spawn(upkeep::scrub(Arc::clone(&core), config.scrub_bytes_per_second)),
        ];
        tracing::info!(
            dir = %config.dir.display(),
            access = access.described,
            chunks = core.index.len(),
            "opened the store"
        );
        let described = access.described;
        Ok(Self { core, appends, described, tasks: Mutex::new(tasks), _lock: lock })
    }
}

/// Of a directory that is made, as [`access::FILE_MODE`].
const DIR_MODE: u32 = 0o700;

/// What all other users of the machine may do.
const OTHERS_MODE: u32 = 0o007;

/// Makes the directory where it is missing. The mode of one that is there is its owner's choice.
fn prepare_dir(dir: &Path) -> Result<(), OpenStoreError> {
    let failed = |source| OpenStoreError::Dir { path: dir.to_owned(), source };
    DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir).map_err(failed)?;
    let mode = std::fs::metadata(dir).map_err(failed)?.mode();
    if mode & OTHERS_MODE != 0 {
        // Volumes of an earlier release are readable by everyone who reaches them.
        tracing::warn!(
            dir = %dir.display(),
            mode = %format_args!("{:o}", mode & 0o7777),
            "the store's directory is open to other users of this machine: chmod 700 closes it"
        );
    }
    Ok(())
}

#[async_trait]
impl BlobStore for FileStore {
    fn engine(&self) -> &'static str {
        "file"
    }

    fn access(&self) -> String {
        self.described.clone()
    }

    fn pin(&self, chunk: ChunkId) -> Option<Box<dyn PinnedChunk>> {
        let location = self.core.index.find(chunk)?;
        Some(Box::new(Pin { core: Arc::clone(&self.core), chunk, location }))
    }

    async fn writer(&self, chunk: ChunkSpec) -> Result<Box<dyn ChunkWriter>, StoreError> {
        self.core.check_writable()?;
        if self.core.index.contains(chunk.id) {
            return Err(StoreError::ChunkExists(chunk.id));
        }
        if chunk.length <= layout::RECORD_BYTES_MAX {
            return Ok(Box::new(RecordWriter::begin(&self.core, self.appends.clone(), chunk)));
        }
        Ok(Box::new(ExtentWriter::begin(&self.core, chunk).await?))
    }

    fn release(&self, chunks: &[ChunkId]) {
        self.core.index.remove(chunks);
    }

    fn chunks(&self, after: Option<ChunkId>, limit: usize) -> Vec<ChunkSpec> {
        self.core.index.list(after, limit)
    }

    fn usage(&self) -> StoreUsage {
        let (allocated, growth, free) = self.core.space.usage();
        let disk = self.core.disk.counters();
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        StoreUsage {
            capacity_bytes: allocated + growth,
            free_bytes: free + growth,
            chunks: self.core.index.len() as u64,
            read_bytes: count(&disk.read_bytes),
            written_bytes: count(&disk.written_bytes),
            syncs: count(&disk.syncs),
            damaged_blocks: count(&self.core.damaged_blocks),
            scrubbed_bytes: count(&self.core.scrubbed_bytes),
            compacted_bytes: count(&self.core.compacted_bytes),
        }
    }

    async fn close(&self) {
        self.core.close();
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in &tasks {
            task.abort();
        }
        for task in tasks {
            // Aborted or ended: over in either case.
            let _ = task.await;
        }
        self.core.disk.close().await;
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
    }
}
