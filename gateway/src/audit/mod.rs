//! The audit log: what was refused, what was changed, and what keys moved, in a file that only
//! grows.
//!
//! A line is a JSON object. Each has its number, the hash of the line before it, and its own hash
//! over both and all that it says: so a line that is changed, left out, put in or moved shows
//! ([`chain`]). What cannot show is that the end was cut off, unless somebody noted the last hash
//! elsewhere. No line has a secret, a token or a signature in it.
//!
//! Cost for whoever tells: one allocation and a send into a bounded queue. A thread of its own
//! writes what waits, at once, and syncs it within a second. When the queue is full the event is
//! counted instead of written, and a line tells how many were lost: a service that waited for its
//! audit log could be stopped by whoever makes it write.

pub mod chain;

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;

use chain::{Chain, Flaw};

/// Events that wait for the writer.
const WAITING_MAX: usize = 8192;
/// Between two syncs.
const SYNC: Duration = Duration::from_secs(1);

/// Something that happened.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Event {
    /// The log was opened: a server starts.
    Opened {
        /// Bytes of an unfinished line that a crash left, and that were cut off.
        cut_bytes: u64,
    },
    /// Events that found the queue full.
    Lost {
        /// How many.
        events: u64,
    },
    /// Somebody was not who they said, or said nothing where that does not do.
    NotAuthenticated {
        /// S3's code for it.
        code: String,
        /// The access key that the request named, as it named it.
        access_key: Option<String>,
        /// Whence it came, and what for.
        #[serde(flatten)]
        request: Request,
    },
    /// Policies denied something.
    Denied {
        /// Who asked.
        caller: String,
        /// Its access key; none for nobody.
        access_key: Option<String>,
        /// The action.
        action: &'static str,
        /// To what.
        resource: String,
        /// What denied it.
        reason: String,
        /// Whence it came, and what for.
        #[serde(flatten)]
        request: Request,
    },
    /// An account was changed, or was to be.
    Administered {
        /// Who asked.
        caller: String,
        /// Its access key.
        access_key: Option<String>,
        /// `PUT` or `DELETE`.
        method: String,
        /// The path, which names what was to be changed.
        path: String,
        /// The answer's status.
        status: u16,
        /// Sessions that were closed with it.
        sessions_closed: u64,
        /// Whence it came, and what for.
        #[serde(flatten)]
        request: Request,
    },
    /// A session for direct transfers was opened or closed.
    Session {
        /// Who asked.
        caller: String,
        /// Its access key.
        access_key: Option<String>,
        /// The session's id.
        session: String,
        /// `opened` or `closed`.
        what: &'static str,
        /// Whence it came, and what for.
        #[serde(flatten)]
        request: Request,
    },
    /// A key to a client's memory was lent to a node, used or not, and given up.
    Key {
        /// Whose.
        caller: String,
        /// The access key.
        access_key: Option<String>,
        /// The session.
        session: String,
        /// `get`, `put` or `ranges`.
        work: &'static str,
        /// The path that the bytes took; none where none moved.
        path: Option<&'static str>,
        /// Bytes moved.
        bytes: u64,
        /// What became of the key.
        key: &'static str,
        /// Whence it came, and what for.
        #[serde(flatten)]
        request: Request,
    },
}

/// A request, as far as the log tells of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Request {
    /// Its id, as its answer has it.
    pub request_id: Option<String>,
    /// The client's address.
    pub remote: Option<String>,
}

/// A line before it is chained.
#[derive(Serialize)]
struct Told {
    at: Timestamp,
    #[serde(flatten)]
    event: Event,
}

/// The log; clones write to the same one. Without a file it forgets everything.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<Inner>>);

struct Inner {
    waiting: SyncSender<Told>,
    lost: Arc<AtomicU64>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// Why a log cannot be written on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// The file cannot be read or written.
    #[error("cannot use the audit log")]
    Io(#[from] io::Error),
    /// It is not the file that was written: nothing is added to it.
    #[error("the audit log was tampered with")]
    Chain(#[from] Flaw),
}

impl Audit {
    /// Opens the log of this file, making it (mode 0600) where there is none. All of it is
    /// verified first.
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn open(path: &Path) -> Result<Self, AuditError> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).mode(0o600).open(path)?;
        let read = chain::verify(BufReader::new(&mut file))?;
        if read.unfinished > 0 {
            let whole = file.seek(SeekFrom::End(0))? - read.unfinished;
            file.set_len(whole)?;
        }
        let (waiting, events) = mpsc::sync_channel(WAITING_MAX);
        let lost = Arc::<AtomicU64>::default();
        let length = file.metadata()?.len();
        let writer = Writer { file, length, chain: read.chain, lost: Arc::clone(&lost) };
        let writer = std::thread::Builder::new()
            .name("keyway-audit".to_owned())
            .spawn(move || writer.run(&events))?;
        let writer = Mutex::new(Some(writer));
        let audit = Self(Some(Arc::new(Inner { waiting, lost, writer })));
        audit.tell(Event::Opened { cut_bytes: read.unfinished });
        Ok(audit)
    }

    /// Adds an event, now.
    pub fn tell(&self, event: Event) {
        let Some(inner) = &self.0 else { return };
        let told = Told { at: Timestamp::now(), event };
        if inner.waiting.try_send(told).is_err() {
            inner.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Inner {
    /// Everything that waits is written.
    fn drop(&mut self) {
        let (closed, _) = mpsc::sync_channel(1);
        drop(std::mem::replace(&mut self.waiting, closed));
        if let Some(writer) = self.writer.lock().take() {
            let _ = writer.join();
        }
    }
}

struct Writer {
    file: File,
    /// Bytes of whole lines.
    length: u64,
    chain: Chain,
    lost: Arc<AtomicU64>,
}

impl Writer {
    fn run(mut self, events: &Receiver<Told>) {
        let mut synced = Instant::now();
        let mut dirty = false;
        loop {
            match events.recv_timeout(SYNC) {
                Ok(told) => {
                    let more = events.try_iter().take(WAITING_MAX);
                    let told: Vec<Told> = std::iter::once(told).chain(more).collect();
                    self.write(&told);
                    dirty = true;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if dirty && synced.elapsed() >= SYNC {
                self.sync();
                (dirty, synced) = (false, Instant::now());
            }
        }
        self.sync();
    }

    fn write(&mut self, told: &[Told]) {
        let before = self.chain.clone();
        let mut lines = Vec::new();
        for told in told {
            lines.extend(self.chain.line(told));
        }
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let event = Event::Lost { events: lost };
            lines.extend(self.chain.line(&Told { at: Timestamp::now(), event }));
        }
        match self.file.write_all(&lines) {
            Ok(()) => self.length += lines.len() as u64,
            Err(error) => {
                tracing::error!(%error, "the audit log cannot be written");
                // A part may be there, which no line can follow.
                let _ = self.file.set_len(self.length);
                self.chain = before;
                self.lost.fetch_add(lost + told.len() as u64, Ordering::Relaxed);
            }
        }
    }

    fn sync(&self) {
        if let Err(error) = self.file.sync_data() {
            tracing::error!(%error, "the audit log cannot be synced");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(events: u64) -> Event {
        Event::Lost { events }
    }

    #[test]
    fn a_log_goes_on_where_it_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        for _ in 0..2 {
            let audit = Audit::open(&path).unwrap();
            audit.tell(lost(7));
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 4);
        // A crash left a part of a line.
        std::fs::write(&path, format!("{text}{{\"number\":4,\"at")).unwrap();
        drop(Audit::open(&path).unwrap());
        let read = chain::verify(&*std::fs::read(&path).unwrap()).unwrap();
        assert_eq!((read.lines, read.unfinished), (5, 0));
        // Somebody changed a word.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen("\"events\":7", "\"events\":8", 1)).unwrap();
        assert!(matches!(Audit::open(&path), Err(AuditError::Chain(_))));
    }
}
