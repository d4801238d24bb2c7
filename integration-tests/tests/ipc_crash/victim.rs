//! A client process that is to die: this test's own executable, called again. It says on its
//! standard output what it begins and what was acknowledged, so that whoever killed it knows
//! what must be there.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use fastrand::Rng;
use futures::future::try_join_all;
use keyway_client::{Client, RetryPolicy};
use keyway_integration_tests::seed::payload;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::memory::{Buffer, Place};
use super::survivor::Lent as _;
use super::{BUCKET, PATIENCE, SMALL_BYTES, builder};

/// What calls it: the endpoint, where it holds objects, its number, and its seed.
const CALLED: &str = "KEYWAY_TEST_VICTIM";
/// The test that it is called as.
const TEST: &str = "clients_that_are_killed_leave_nothing";
const READERS: u64 = 2;
const WRITERS: u64 = 2;
/// Keys that each writer overwrites in turn.
const KEYS: u64 = 3;
const PUT_BYTES_MAX: u64 = 8 << 20;

/// When a victim dies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moment {
    /// So long after its start: while it looks for the door, opens a session, shares memory.
    AfterStart(Duration),
    /// So long after its first transfer.
    AtWork(Duration),
}

pub(crate) fn moment(random: &mut Rng) -> Moment {
    match random.u8(..5) {
        0 => Moment::AfterStart(Duration::from_micros(random.u64(..80_000))),
        _ => Moment::AtWork(Duration::from_micros(random.u64(..250_000))),
    }
}

/// The process, as it knows itself.
pub(crate) struct Victim {
    url: String,
    place: Place,
    number: u64,
    seed: u64,
}

impl Victim {
    /// Whether this process is one.
    pub(crate) fn called() -> Result<Option<Self>> {
        let Ok(text) = std::env::var(CALLED) else { return Ok(None) };
        let words: Vec<&str> = text.split(' ').collect();
        let [url, place, number, seed] = words[..] else { bail!("a strange call: {text:?}") };
        let (url, place) = (url.to_owned(), Place::named(place)?);
        Ok(Some(Self { url, place, number: number.parse()?, seed: seed.parse()? }))
    }

    /// Starts one.
    pub(crate) fn start(
        dir: &Path,
        url: &str,
        place: Place,
        number: u64,
        seed: u64,
    ) -> Result<Doomed> {
        let log = File::options().create(true).append(true).open(dir.join("victims.log"))?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--exact", TEST, "--nocapture"])
            .env(CALLED, format!("{url} {} {number} {seed}", place.name()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("it is piped")?).lines();
        let (works, at_work) = oneshot::channel();
        let told = tokio::spawn(async move {
            let (mut told, mut works) = (Vec::new(), Some(works));
            while let Some(line) = lines.next_line().await? {
                let Some(line) = Line::parse(&line)? else { continue };
                if let Some(works) = works.take() {
                    // Whoever waits for the start alone does not listen.
                    let _ = works.send(());
                }
                told.push(line);
            }
            Ok(told)
        });
        Ok(Doomed { child, at_work, told })
    }

    /// Reads and writes until it is killed.
    pub(crate) async fn live(self) -> Result<()> {
        let client = builder(&self.url, self.place).retry(RetryPolicy::NONE).build()?;
        let writers = (0..WRITERS).map(|task| {
            let key = format!("victim-{}-{task}", self.number);
            let random = Rng::with_seed(self.seed.wrapping_add(task));
            tokio::spawn(write(client.clone(), self.place, key, random))
        });
        let readers = (0..READERS).map(|task| {
            let random = Rng::with_seed((!self.seed).wrapping_sub(task));
            tokio::spawn(read(client.clone(), self.place, random))
        });
        for ended in try_join_all(writers.chain(readers).collect::<Vec<_>>()).await? {
            ended?;
        }
        bail!("it was not killed")
    }
}

async fn write(client: Client, place: Place, key: String, mut random: Rng) -> Result<()> {
    for turn in 0.. {
        let (seed, bytes) = (random.u64(..), random.u64(1..PUT_BYTES_MAX));
        let key = format!("{key}-{}", turn % KEYS);
        // Memory of its own for each, so that regions come and go.
        let mut buffer = Buffer::holding(place, &payload(seed, bytes as usize))?;
        println!("\nput {key} {seed} {bytes}");
        let put = client.put_object(BUCKET, &key).body(buffer.body()?).send().await?;
        println!("\nstored {key}");
        ensure!(put.path == place.path(), "{}", put.path);
    }
    Ok(())
}

async fn read(client: Client, place: Place, mut random: Rng) -> Result<()> {
    let expected = payload(1, SMALL_BYTES);
    let mut kept = Buffer::new(place, SMALL_BYTES)?;
    loop {
        println!("\nget");
        let mut get = client.get_object(BUCKET, "small");
        if random.bool() {
            get = get.part_bytes(300_000);
        }
        if random.bool() {
            kept = Buffer::new(place, SMALL_BYTES)?;
        }
        kept.fetch(get).await?;
        ensure!(kept.content()? == expected, "other bytes");
        println!("\ngot");
    }
}

/// What a victim tells.
#[derive(Clone, Debug)]
enum Line {
    Put { key: String, seed: u64, bytes: u64 },
    Stored { key: String },
    Get,
    Got,
}

impl Line {
    /// `None` for what the test's harness says.
    fn parse(line: &str) -> Result<Option<Self>> {
        let words: Vec<&str> = line.split(' ').collect();
        Ok(Some(match words[..] {
            ["put", key, seed, bytes] => {
                Self::Put { key: key.to_owned(), seed: seed.parse()?, bytes: bytes.parse()? }
            }
            ["stored", key] => Self::Stored { key: key.to_owned() },
            ["get"] => Self::Get,
            ["got"] => Self::Got,
            _ => return Ok(None),
        }))
    }
}

/// The process, as its killer sees it.
pub(crate) struct Doomed {
    child: Child,
    at_work: oneshot::Receiver<()>,
    told: JoinHandle<Result<Vec<Line>>>,
}

impl Doomed {
    /// Kills it then, and hears what it had said.
    pub(crate) async fn dies(mut self, moment: Moment) -> Result<Ended> {
        let delay = match moment {
            Moment::AfterStart(delay) => delay,
            Moment::AtWork(delay) => {
                let at_work = tokio::time::timeout(PATIENCE, self.at_work).await;
                at_work
                    .context("it does not begin")?
                    .context("it ended before its first transfer")?;
                delay
            }
        };
        // This is the moment that the seed has chosen.
        tokio::time::sleep(delay).await;
        if let Some(status) = self.child.try_wait()? {
            bail!("it ended by itself: {status}");
        }
        self.child.kill().await?;
        Ok(Ended(self.told.await??))
    }
}

/// All that a victim said.
pub(crate) struct Ended(Vec<Line>);

impl Ended {
    /// Whether a transfer was under way.
    pub(crate) fn was_amid(&self) -> bool {
        let count = |is: fn(&Line) -> bool| self.0.iter().filter(|line| is(line)).count();
        let begun = count(|line| matches!(line, Line::Put { .. } | Line::Get));
        begun > count(|line| matches!(line, Line::Stored { .. } | Line::Got))
    }
}

/// What all victims together said of the objects.
#[derive(Default)]
pub(crate) struct Told {
    objects: BTreeMap<String, Versions>,
    puts: u64,
    gets: u64,
}

/// What an object may be: what was acknowledged, or what was begun after that.
#[derive(Default)]
struct Versions {
    stored: Option<(u64, u64)>,
    begun: Option<(u64, u64)>,
}

impl Told {
    pub(crate) fn add(&mut self, ended: Ended) {
        for line in ended.0 {
            match line {
                Line::Put { key, seed, bytes } => {
                    self.objects.entry(key).or_default().begun = Some((seed, bytes));
                }
                Line::Stored { key } => {
                    let versions = self.objects.entry(key).or_default();
                    versions.stored = versions.begun.take();
                    self.puts += 1;
                }
                Line::Got => self.gets += 1,
                Line::Get => {}
            }
        }
    }

    /// That every object is one of its versions, whole, and that none is lost.
    pub(crate) async fn holds(&self, client: &Client, place: Place) -> Result<()> {
        let (mut stored, mut begun, mut absent) = (0, 0, 0);
        let mut memory = Buffer::new(place, PUT_BYTES_MAX as usize)?;
        for (key, versions) in &self.objects {
            let found = match memory.fetch(client.get_object(BUCKET, key)).await {
                Ok(got) => Some(memory.content()?[..got.bytes as usize].to_vec()),
                Err(error) if error.is_not_found() => None,
                Err(error) => return Err(error).with_context(|| format!("reading {key}")),
            };
            let is = |version: Option<(u64, u64)>| match (&found, version) {
                (Some(found), Some((seed, bytes))) => {
                    found.len() as u64 == bytes && *found == payload(seed, bytes as usize)
                }
                (found, version) => found.is_none() && version.is_none(),
            };
            if found.is_none() && is(versions.stored) {
                absent += 1;
            } else if is(versions.stored) {
                stored += 1;
            } else if found.is_some() && is(versions.begun) {
                begun += 1;
            } else {
                let found = found.map(|found| found.len());
                bail!("{key} has {found:?} bytes, neither what was stored nor what was begun");
            }
        }
        println!(
            "objects: {stored} as they were acknowledged, {begun} as they were begun and not \
             acknowledged, {absent} begun and not there"
        );
        ensure!(stored > 0, "nothing was acknowledged to anybody");
        Ok(())
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "they had {} PUTs acknowledged and {} GETs", self.puts, self.gets)
    }
}
