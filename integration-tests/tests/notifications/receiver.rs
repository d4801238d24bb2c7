//! A small HTTP server that takes events, as well as it is told to.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

/// How long a test waits for events.
const PATIENCE: Duration = Duration::from_secs(60);

/// How it answers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mode {
    /// Events are taken.
    Takes,
    /// Events are taken, each after so long.
    Slow(Duration),
    /// All are answered with this status.
    Answers(u16),
    /// Those of keys that begin so are answered with this status.
    Refuses(&'static str, u16),
    /// Connections are closed unheard.
    HangsUp,
}

/// An event as it came.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) etag: String,
    pub(crate) sequencer: String,
    pub(crate) record: Value,
}

#[derive(Default)]
struct State {
    got: Vec<Got>,
    tests: Vec<Value>,
    tokens: Vec<String>,
    attempts: usize,
    mode: Option<Mode>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server; its threads end with the process.
#[derive(Clone)]
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

impl Receiver {
    pub(crate) fn start() -> Result<Self> {
        Self::at("127.0.0.1:0".parse()?)
    }

    /// One that listens there from now on.
    pub(crate) fn at(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::<Shared>::default();
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&serving);
                std::thread::spawn(move || drop(serve(&stream, &shared)));
            }
        });
        Ok(Self { address, shared })
    }

    /// An address where nobody listens.
    pub(crate) fn nowhere() -> Result<SocketAddr> {
        Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.shared.state().mode = Some(mode);
    }

    /// What came so far.
    pub(crate) fn got(&self) -> Vec<Got> {
        self.shared.state().got.clone()
    }

    pub(crate) fn tests(&self) -> Vec<Value> {
        self.shared.state().tests.clone()
    }

    pub(crate) fn tokens(&self) -> Vec<String> {
        self.shared.state().tokens.clone()
    }

    /// How often somebody tried.
    pub(crate) fn attempts(&self) -> usize {
        self.shared.state().attempts
    }

    /// Waits until enough has come.
    pub(crate) fn wait(&self, enough: impl Fn(&[Got]) -> bool) -> Result<Vec<Got>> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.shared.state();
        while !enough(&state.got) {
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "these alone came: {:#?}", state.got);
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state.got.clone())
    }

    /// Waits for so many different events: a server that was stopped may send some again.
    pub(crate) fn wait_for(&self, events: usize) -> Result<Vec<Got>> {
        self.wait(|got| {
            let different: BTreeSet<&str> = got.iter().map(|got| &*got.sequencer).collect();
            different.len() >= events
        })
    }

    /// Waits for so many attempts, whatever became of them.
    pub(crate) fn wait_for_attempts(&self, attempts: usize) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.shared.state();
        while state.attempts < attempts {
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "{} attempts alone", state.attempts);
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

fn serve(stream: &TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream.try_clone()?;
    loop {
        let (mut length, mut token) = (0, None);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap_or(0);
            } else if name.eq_ignore_ascii_case("authorization") {
                token = Some(value.trim().to_owned());
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        let got = of(&message);
        let mode = shared.state().mode.clone().unwrap_or(Mode::Takes);
        let status = match &mode {
            Mode::Takes => 200,
            Mode::Slow(time) => {
                std::thread::sleep(*time);
                200
            }
            Mode::Answers(status) => *status,
            Mode::Refuses(prefix, status) => {
                if got.as_ref().is_some_and(|got| got.key.starts_with(prefix)) {
                    *status
                } else {
                    204
                }
            }
            Mode::HangsUp => 0,
        };
        let mut state = shared.state();
        state.attempts += 1;
        if (200..300).contains(&status) {
            state.tokens.extend(token);
            match got {
                Some(got) => state.got.push(got),
                None => state.tests.push(message),
            }
        }
        drop(state);
        shared.changed.notify_all();
        if status == 0 {
            return Ok(());
        }
        write!(writer, "HTTP/1.1 {status} Said\r\ncontent-length: 0\r\n\r\n")?;
    }
}

fn of(message: &Value) -> Option<Got> {
    let record = message["Records"].get(0)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &record["s3"]["object"];
    Some(Got {
        name: text(&record["eventName"]),
        key: text(&object["key"]),
        etag: text(&object["eTag"]),
        sequencer: text(&object["sequencer"]),
        record: record.clone(),
    })
}
