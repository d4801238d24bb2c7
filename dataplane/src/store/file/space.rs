//! Volumes and their units: which are taken, and where new ones come from.
//!
//! A unit is taken by exactly one [`Units`] and free again when that drops: a chunk that is
//! still read, or a write that a device has not finished, holds its `Units` alive.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use keyway_proto::unit::{GIB, MIB};
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;

use super::access::{FILE_MODE, open_volume};
use super::bitmap::Bitmap;
use super::disk::Target;
use super::layout::{Geometry, Superblock, UNIT};
use crate::store::StoreError;

/// Smallest volume that is worth making.
const VOLUME_BYTES_MIN: u64 = 4 * MIB;

/// What is left to others on the file system when no capacity is given: at least and at most.
/// Among the others is the metadata, which stops taking new objects when 8 MiB are left.
const RESERVE_BYTES_MIN: u64 = 16 * MIB;
const RESERVE_BYTES_MAX: u64 = GIB;

/// Up to here a volume takes all there is; beyond, half of it. Enough for several of the
/// largest chunks, each of which must lie within one volume.
const GREEDY_BYTES_MAX: u64 = 64 * MIB;

/// A volume file.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) number: u32,
    pub(super) geometry: Geometry,
    pub(super) target: Arc<Target>,
}

/// Units of one volume, the owner's until dropped.
pub(super) struct Units {
    space: Arc<Space>,
    pub(super) volume: Arc<Volume>,
    pub(super) numbers: Box<[u16]>,
}

impl Units {
    /// Where byte `offset` of what these units hold lies in the volume's file.
    pub(super) fn file_offset(&self, offset: u64) -> u64 {
        let unit = self.numbers[(offset / UNIT) as usize];
        self.volume.geometry.unit_offset(unit) + offset % UNIT
    }

    /// Where the header page lies.
    pub(super) fn header_offset(&self) -> u64 {
        self.volume.geometry.header_offset(self.numbers[0])
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        let mut volumes = self.space.volumes.lock();
        if let Some(held) = volumes.get_mut(&self.volume.number) {
            self.numbers.iter().for_each(|unit| held.used.clear(usize::from(*unit)));
        }
    }
}

/// How units must lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Together if possible, else wherever there is room in one volume.
    Any(usize),
    /// One run, as long as possible up to this.
    Run(usize),
}

/// All volumes of a store.
pub(super) struct Space {
    dir: PathBuf,
    store: [u8; 16],
    capacity_bytes: Option<u64>,
    volume_bytes: u64,
    direct: bool,
    volumes: Mutex<BTreeMap<u32, Held>>,
    /// Held while a volume is made, so that one is made at a time.
    growing: tokio::sync::Mutex<()>,
}

struct Held {
    volume: Arc<Volume>,
    used: Bitmap,
}

impl Space {
    pub(super) fn new(
        dir: &Path,
        store: [u8; 16],
        capacity_bytes: Option<u64>,
        volume_bytes: u64,
        direct: bool,
    ) -> Self {
        Self {
            dir: dir.to_owned(),
            store,
            capacity_bytes,
            volume_bytes,
            direct,
            volumes: Mutex::default(),
            growing: tokio::sync::Mutex::default(),
        }
    }

    /// Where a volume's file is.
    pub(super) fn path_of(&self, number: u32) -> PathBuf {
        volume_path(&self.dir, number)
    }

    /// Takes a volume that exists into the store, all its units free.
    pub(super) fn adopt(&self, volume: Arc<Volume>) {
        let used = Bitmap::new(volume.geometry.units as usize);
        self.volumes.lock().insert(volume.number, Held { volume, used });
    }

    /// Takes certain units; `None` when one is taken already or not there.
    pub(super) fn claim(self: &Arc<Self>, volume: u32, numbers: &[u16]) -> Option<Units> {
        let mut volumes = self.volumes.lock();
        let held = volumes.get_mut(&volume)?;
        if numbers.iter().any(|unit| held.used.is_set(usize::from(*unit))) {
            return None;
        }
        numbers.iter().for_each(|unit| held.used.set(usize::from(*unit)));
        Some(Units {
            space: Arc::clone(self),
            volume: Arc::clone(&held.volume),
            numbers: numbers.into(),
        })
    }

    /// Takes free units and makes a volume when there are none. `spare` units must remain
    /// free in the store for others.
    ///
    /// # Errors
    /// [`StoreError::Full`]; nothing has changed then, and freeing space makes the next
    /// call succeed.
    pub(super) async fn reserve(
        self: &Arc<Self>,
        shape: Shape,
        spare: usize,
    ) -> Result<Units, StoreError> {
        loop {
            if let Some(units) = self.try_reserve(shape, spare) {
                return Ok(units);
            }
            let _growing = self.growing.lock().await;
            if let Some(units) = self.try_reserve(shape, spare) {
                return Ok(units);
            }
            let space = Arc::clone(self);
            tokio::task::spawn_blocking(move || space.grow())
                .await
                .map_err(|_| StoreError::Closed)??;
        }
    }

    /// Bytes of the volumes, bytes that more volumes could add, bytes of free units.
    pub(super) fn usage(&self) -> (u64, u64, u64) {
        let (mut allocated, mut free) = (0, 0);
        for held in self.volumes.lock().values() {
            allocated += held.volume.geometry.file_bytes();
            free += held.used.free() as u64 * UNIT;
        }
        let growth = Geometry::fitting(self.headroom(allocated))
            .map_or(0, |more| u64::from(more.units) * UNIT);
        (allocated, growth, free)
    }

    fn try_reserve(self: &Arc<Self>, shape: Shape, spare: usize) -> Option<Units> {
        let mut volumes = self.volumes.lock();
        let free: usize = volumes.values().map(|held| held.used.free()).sum();
        let wanted = match shape {
            Shape::Any(count) => count,
            Shape::Run(_) => 1,
        };
        if free < wanted + spare {
            return None;
        }
        volumes.values_mut().find_map(|held| {
            let numbers = match shape {
                Shape::Any(count) => held.used.take(count)?,
                Shape::Run(longest) => (1..=longest.min(free - spare))
                    .rev()
                    .find_map(|count| held.used.take_run(count))?,
            };
            Some(Units {
                space: Arc::clone(self),
                volume: Arc::clone(&held.volume),
                numbers: numbers.into(),
            })
        })
    }

    /// Makes one more volume, smaller than usual when little is left.
    fn grow(&self) -> Result<(), StoreError> {
        let (number, allocated) = {
            let volumes = self.volumes.lock();
            let number = volumes.last_key_value().map_or(0, |(last, _)| last + 1);
            let bytes = |held: &Held| held.volume.geometry.file_bytes();
            (number, volumes.values().map(bytes).sum())
        };
        let mut bytes = volume_bytes(self.volume_bytes, self.headroom(allocated));
        while bytes >= VOLUME_BYTES_MIN.min(self.volume_bytes) {
            let Some(geometry) = Geometry::fitting(bytes) else { break };
            match self.make_volume(number, geometry) {
                Ok(volume) => {
                    tracing::info!(volume = number, bytes = geometry.file_bytes(), "made a volume");
                    self.adopt(Arc::new(volume));
                    return Ok(());
                }
                Err(error) if is_no_space(&error) => bytes /= 2,
                Err(error) => {
                    let source = Arc::new(error);
                    return Err(StoreError::Device {
                        operation: "making a volume",
                        sticky: false,
                        source,
                    });
                }
            }
        }
        Err(StoreError::Full)
    }

    /// Bytes that new volumes may take up.
    fn headroom(&self, allocated: u64) -> u64 {
        let available = rustix::fs::statvfs(&self.dir).map_or(0, |system| {
            let available = system.f_bavail.saturating_mul(system.f_frsize);
            let reserve = match self.capacity_bytes {
                None => reserve_bytes(system.f_blocks.saturating_mul(system.f_frsize)),
                Some(_) => 0,
            };
            available.saturating_sub(reserve)
        });
        match self.capacity_bytes {
            Some(capacity) => available.min(capacity.saturating_sub(allocated)),
            None => available,
        }
    }

    /// Under another name until it is whole, so that a crash leaves no half volume.
    fn make_volume(&self, number: u32, geometry: Geometry) -> io::Result<Volume> {
        let path = volume_path(&self.dir, number);
        let unfinished = path.with_extension("new");
        let made = self.fill_volume(&unfinished, number, geometry);
        if made.is_err() {
            // The failed file takes up the space that was missing.
            let _ = std::fs::remove_file(&unfinished);
        }
        made?;
        std::fs::rename(&unfinished, &path)?;
        File::open(&self.dir)?.sync_all()?;
        let file = open_volume(&path, self.direct)?;
        let target = Arc::new(Target { file, slot: number });
        Ok(Volume { number, geometry, target })
    }

    fn fill_volume(&self, path: &Path, number: u32, geometry: Geometry) -> io::Result<()> {
        use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(true).mode(FILE_MODE).open(path)?;
        let bytes = geometry.file_bytes();
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            // A file system that cannot: the space comes as it is written to.
            Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes)?,
            outcome => outcome?,
        }
        let superblock = Superblock { store: self.store, volume: number, units: geometry.units };
        file.write_all_at(&superblock.encode(), 0)?;
        file.sync_all()
    }
}

/// What is left to others on a file system of this size. The metadata must be able to grow:
/// deleting needs space, too.
fn reserve_bytes(total: u64) -> u64 {
    // Of a very small one a quarter: something must be left to store in.
    (total / 20).clamp(RESERVE_BYTES_MIN.min(total / 4), RESERVE_BYTES_MAX)
}

/// The size of the next volume: as asked for, but no more than half of a headroom that others
/// on the file system may want to share.
fn volume_bytes(wanted: u64, headroom: u64) -> u64 {
    wanted.min(headroom).min((headroom / 2).max(GREEDY_BYTES_MAX))
}

/// The name of a volume's file.
pub(super) fn volume_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("volume-{number:06}.kwv"))
}

/// Whether an error means that the device is full.
pub(super) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_file_systems_leave_room_for_the_metadata() {
        for (total, reserve) in [
            (16 * MIB, 4 * MIB),
            (64 * MIB, 16 * MIB),
            (320 * MIB, 16 * MIB),
            (10 * GIB, GIB / 2),
            (100 * GIB, GIB),
        ] {
            assert_eq!(reserve_bytes(total), reserve, "{total}");
        }
    }

    #[test]
    fn volumes_take_no_more_than_half_of_much() {
        for (headroom, bytes) in [
            (3 * MIB, 3 * MIB),
            (64 * MIB, 64 * MIB),
            (100 * MIB, 64 * MIB),
            (GIB, GIB / 2),
            (100 * GIB, GIB),
        ] {
            assert_eq!(volume_bytes(GIB, headroom), bytes, "{headroom}");
        }
    }
}
