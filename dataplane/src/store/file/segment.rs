//! Small chunks, written together.
//!
//! Sketch: chunks that wait at the same time become one batch: one header page and their
//! data pages, one vectored write, one flush shared by all. While a batch is under way the
//! next collects, so that a flush's latency sets the batch's size and not the rate: at 64
//! PUTs of 4 KiB at once, a chunk costs 1/64 of a write and of a flush, and one wake-up.
//! One batch is under way at a time: a torn one is the segment's last.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use keyway_fabric::memory::{Lease, LeaseClass};
use keyway_proto::ChunkSpec;
use tokio::sync::{mpsc, oneshot};

use super::core::Core;
use super::index::{Record, Segment};
use super::layout::{Batch, Content, Header, PAGE, RECORD_BYTES_MAX, RecordHeader, SEGMENT_UNITS};
use super::space::Shape;
use crate::store::StoreError;

/// Data of one batch: enough to make the header and the flush cheap beside it, little
/// enough to keep its latency that of one write.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Chunks that may wait for the next batch. Each holds a lease, so the pool bounds them too.
pub(super) const APPENDS_MAX: usize = 1024;

/// A small chunk on its way into a segment.
pub(super) struct Append {
    pub(super) chunk: ChunkSpec,
    pub(super) lease: Lease,
    pub(super) sums: Vec<u32>,
    /// Units that must stay free for others when a new segment is needed.
    pub(super) spare: usize,
    pub(super) done: oneshot::Sender<Result<Record, StoreError>>,
}

/// Writes what comes through `appends` until all senders are gone.
pub(super) async fn write_batches(core: Arc<Core>, mut appends: mpsc::Receiver<Append>) {
    let mut writer = Writer { core, open: None };
    let mut waiting = Vec::new();
    while appends.recv_many(&mut waiting, APPENDS_MAX).await > 0 {
        // The scheduler runs this task before others that are ready, and among those are the
        // senders of the next chunks: one turn for them makes batches twice as large.
        tokio::task::yield_now().await;
        while let Ok(append) = appends.try_recv() {
            waiting.push(append);
        }
        while !waiting.is_empty() {
            writer.write_some(&mut waiting).await;
        }
    }
}

struct Writer {
    core: Arc<Core>,
    open: Option<Open>,
}

/// The segment that is being filled.
struct Open {
    segment: Arc<Segment>,
    /// The first page that is free.
    page: usize,
    /// [`Core::full_syncs`] before its header was written: the first batch's flush is also the
    /// header's.
    full_syncs: u64,
}

impl Writer {
    /// Writes one batch, or fails those that cannot be written.
    async fn write_some(&mut self, waiting: &mut Vec<Append>) {
        // Nobody wants what was cancelled.
        waiting.retain(|append| !append.done.is_closed());
        let Some(first) = waiting.first() else { return };
        let needed = 1 + RecordHeader::pages(first.chunk.length);
        let spare = first.spare;
        if let Err(error) = self.make_room(needed, spare).await {
            if matches!(error, StoreError::Full) {
                // Smaller ones may still fit.
                let append = waiting.remove(0);
                let _ = append.done.send(Err(error));
            } else {
                fail_all(waiting.drain(..), &error);
            }
            return;
        }
        let open = self.open.as_mut().expect("room was made");
        let fitting = count_fitting(waiting, open.segment.pages() - open.page);
        let batch: Vec<Append> = waiting.drain(..fitting).collect();
        if let Err(error) = write_batch(&self.core, open, batch).await {
            // What is on the disk from this page on is unknown: go on elsewhere.
            tracing::warn!(%error, "a batch was not written");
            self.close_open();
        }
    }

    /// Makes sure that the open segment has `pages` pages left.
    async fn make_room(&mut self, pages: usize, spare: usize) -> Result<(), StoreError> {
        self.core.check_writable()?;
        let full_syncs = self.core.full_syncs();
        if let Some(open) = &self.open
            && open.segment.pages() - open.page >= pages
            && open.full_syncs == full_syncs
        {
            return Ok(());
        }
        let units = self.core.space.reserve(Shape::Run(SEGMENT_UNITS), spare).await?;
        self.close_open();
        let segment = Arc::new(Segment {
            units,
            sequence: self.core.next_sequence(),
            live_pages: AtomicU32::new(0),
            sealed: AtomicBool::new(false),
        });
        let header = Header {
            sequence: segment.sequence,
            units: segment.units.numbers.to_vec(),
            content: Content::Segment,
        };
        // Before the first batch, whose flush makes both durable.
        let mut lease = self.core.headers.lease(LeaseClass::Page).await;
        lease.copy_from_slice(&header.encode());
        let (target, offset) = (&segment.units.volume.target, segment.units.header_offset());
        let keep = Arc::clone(&segment) as Arc<dyn Any + Send + Sync>;
        let written = self.core.disk.write(target, offset, vec![(lease, PAGE)], false, keep).await;
        written.map_err(|error| self.core.write_failed("writing a segment's header", error))?;
        self.core.segments.lock().push(Arc::downgrade(&segment));
        self.open = Some(Open { segment, page: 0, full_syncs });
        Ok(())
    }

    fn close_open(&mut self) {
        if let Some(open) = self.open.take() {
            open.segment.sealed.store(true, Ordering::Relaxed);
        }
    }
}

/// How many of those that wait fit into one batch, from the first on; at least one.
fn count_fitting(waiting: &[Append], pages_free: usize) -> usize {
    let (mut pages, mut header_bytes) = (1, 0);
    waiting
        .iter()
        .take_while(|append| {
            pages += RecordHeader::pages(append.chunk.length);
            header_bytes += RecordHeader::encoded_bytes(append.chunk.length);
            pages <= pages_free
                && header_bytes <= Batch::RECORDS_BYTES_MAX
                && (pages - 1) * PAGE <= BATCH_BYTES_MAX
        })
        .count()
}

/// Writes a batch at the segment's first free page and answers its chunks when durable.
async fn write_batch(core: &Core, open: &mut Open, batch: Vec<Append>) -> Result<(), StoreError> {
    let segment = &open.segment;
    let first_page = open.page;
    let mut header = Batch {
        segment: segment.sequence,
        page: first_page as u16,
        pages: 1,
        records: Vec::with_capacity(batch.len()),
    };
    let mut buffers = Vec::with_capacity(batch.len() + 1);
    buffers.push((core.headers.lease(LeaseClass::Page).await, PAGE));
    let mut answers = Vec::with_capacity(batch.len());
    for Append { chunk, mut lease, sums, done, .. } in batch {
        let pages = RecordHeader::pages(chunk.length);
        lease[chunk.length as usize..pages * PAGE].fill(0);
        buffers.push((lease, pages * PAGE));
        let record = Record {
            segment: Arc::clone(segment),
            length: chunk.length as u32,
            sum: if sums.len() == 1 { sums[0] } else { 0 },
            page: (first_page + usize::from(header.pages)) as u16,
            batch_page: first_page as u16,
        };
        answers.push((done, record));
        header.records.push(RecordHeader { chunk, page: header.pages, sums });
        header.pages += pages as u16;
    }
    buffers[0].0.copy_from_slice(&header.encode());
    open.page += usize::from(header.pages);
    let offset = segment.page_offset(first_page);
    let keep = Arc::clone(segment) as Arc<dyn Any + Send + Sync>;
    let written = core.disk.write(&segment.units.volume.target, offset, buffers, true, keep).await;
    let kept = written
        .map_err(|error| core.sync_failed("writing a batch", &error))
        .and_then(|()| core.check_kept(open.full_syncs));
    match kept {
        Ok(()) => {
            for (done, record) in answers {
                // A receiver that is gone leaves a dead record, reclaimed with its segment.
                let _ = done.send(Ok(record));
            }
            Ok(())
        }
        Err(error) => {
            for (done, _) in answers {
                let _ = done.send(Err(error.clone()));
            }
            Err(error)
        }
    }
}

fn fail_all(appends: impl Iterator<Item = Append>, error: &StoreError) {
    for append in appends {
        let _ = append.done.send(Err(error.clone()));
    }
}

const _: () = assert!(RECORD_BYTES_MAX as usize <= BATCH_BYTES_MAX);
