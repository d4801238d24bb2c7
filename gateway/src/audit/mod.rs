//! The audit log: what was refused, what was changed, and what keys moved, in files that are only
//! added to. One that is long enough is put aside, `audit.jsonl.1` and so on, and the next goes on
//! from its last line; the oldest goes.
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
//!
//! What is written is told by OTLP too, as it stands in the file, where an endpoint is configured.
//! So the hashes are noted elsewhere, and an end that was cut off shows. What the endpoint does not
//! take in time is in the file alone.

pub mod chain;

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;

use crate::telemetry::AUDIT_TARGET;
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
    /// Too many of these failed: from this address, or with this access key. What is tried further
    /// is refused unverified for a while, and not told one by one.
    Penalised {
        /// The address, or the network, that they came from.
        address: Option<String>,
        /// The access key that they named.
        access_key: Option<String>,
        /// The last of them.
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
    /// Temporary credentials were made, or were to be; or somebody asked who they are.
    Sts {
        /// Who asked.
        caller: String,
        /// Its access key.
        access_key: Option<String>,
        /// The call.
        call: &'static str,
        /// The role that was to be taken.
        role: Option<String>,
        /// The session's name.
        session: Option<String>,
        /// The access key that was made.
        issued: Option<String>,
        /// The code of a refusal.
        code: Option<String>,
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

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes from which on a file is put aside.
    pub file_bytes: u64,
    /// Files that are kept beside the one that is written.
    pub files: u32,
}

impl Audit {
    /// Opens the log of this file, making it (mode 0600) where there is none. All of the file is
    /// verified first, and that it goes on from the one put aside last.
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn open(path: &Path, limits: Limits) -> Result<Self, AuditError> {
        let mut file = open(path)?;
        let mut read = chain::verify(BufReader::new(&mut file))?;
        match File::open(aside(path, 1)) {
            Ok(before) => {
                let before = chain::verify(BufReader::new(before))?;
                if read.lines == 0 {
                    read.chain = before.chain;
                } else if read.first != before.chain {
                    return Err(Flaw::Broken(1).into());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !read.first.is_beginning() {
                    tracing::warn!("what was before the audit log's first line is elsewhere");
                }
            }
            Err(error) => return Err(error.into()),
        }
        if read.unfinished > 0 {
            let whole = file.seek(SeekFrom::End(0))? - read.unfinished;
            file.set_len(whole)?;
        }
        let (waiting, events) = mpsc::sync_channel(WAITING_MAX);
        let lost = Arc::<AtomicU64>::default();
        let length = file.metadata()?.len();
        let writer = Writer {
            path: path.to_owned(),
            limits,
            file,
            length,
            chain: read.chain,
            lost: Arc::clone(&lost),
        };
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

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)
}

/// The name of a file that was put aside: the youngest has number 1.
fn aside(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

struct Writer {
    path: PathBuf,
    limits: Limits,
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
            Ok(()) => {
                self.length += lines.len() as u64;
                let lines = std::str::from_utf8(&lines).unwrap_or_default().lines();
                lines.for_each(|line| tracing::info!(target: AUDIT_TARGET, "{line}"));
                if self.length >= self.limits.file_bytes
                    && let Err(error) = self.put_aside()
                {
                    tracing::error!(%error, "the audit log cannot be put aside, and grows on");
                }
            }
            Err(error) => {
                tracing::error!(%error, "the audit log cannot be written");
                // A part may be there, which no line can follow.
                let _ = self.file.set_len(self.length);
                self.chain = before;
                self.lost.fetch_add(lost + told.len() as u64, Ordering::Relaxed);
            }
        }
    }

    /// Puts the file aside, and goes on in a new one.
    fn put_aside(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        if self.limits.files == 0 {
            std::fs::remove_file(&self.path)?;
        }
        for number in (0..self.limits.files).rev() {
            let from = if number == 0 { self.path.clone() } else { aside(&self.path, number) };
            match std::fs::rename(from, aside(&self.path, number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        (self.file, self.length) = (open(&self.path)?, 0);
        Ok(())
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

    const LIMITS: Limits = Limits { file_bytes: 1 << 20, files: 2 };

    #[test]
    fn long_files_are_put_aside_and_gone_on_from() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        // Every batch fills its file; each log is closed, so that none is larger than one event.
        for _ in 0..4 {
            drop(Audit::open(&path, Limits { file_bytes: 1, files: 2 }).unwrap());
        }
        let read = |path: &Path| chain::verify(&*std::fs::read(path).unwrap()).unwrap();
        let (older, younger) = (read(&aside(&path, 2)), read(&aside(&path, 1)));
        assert_eq!((older.lines, younger.lines), (1, 1));
        assert_eq!((older.first.number(), younger.first.clone()), (2, older.chain));
        assert!(!aside(&path, 3).exists() && std::fs::read(&path).unwrap().is_empty());
        drop(Audit::open(&path, LIMITS).unwrap());
        assert_eq!(read(&path).first, younger.chain);
        // A line between the two files is missing.
        std::fs::write(aside(&path, 1), std::fs::read(aside(&path, 2)).unwrap()).unwrap();
        assert!(matches!(Audit::open(&path, LIMITS), Err(AuditError::Chain(Flaw::Broken(1)))));
    }

    #[test]
    fn a_log_goes_on_where_it_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        for _ in 0..2 {
            let audit = Audit::open(&path, LIMITS).unwrap();
            audit.tell(lost(7));
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 4);
        // A crash left a part of a line.
        std::fs::write(&path, format!("{text}{{\"number\":4,\"at")).unwrap();
        drop(Audit::open(&path, LIMITS).unwrap());
        let read = chain::verify(&*std::fs::read(&path).unwrap()).unwrap();
        assert_eq!((read.lines, read.unfinished), (5, 0));
        // Somebody changed a word.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen("\"events\":7", "\"events\":8", 1)).unwrap();
        assert!(matches!(Audit::open(&path, LIMITS), Err(AuditError::Chain(_))));
    }
}
