//! Clients under whose transfers somebody dies: how their transfers end, and the buffers that
//! they get back.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use keyway_client::ClientError;

/// Buffers that are watched for late bytes after they were given back.
const WATCHED_MAX: usize = 8;
const CANARY: u8 = 0xc5;

/// How transfers ended under which somebody died.
#[derive(Default, Debug)]
pub(crate) struct Ends {
    succeeded: u64,
    timed_out: u64,
    failed: u64,
}

impl Ends {
    /// Counts an end; that it is one which a caller can make sense of.
    pub(crate) fn count(&mut self, ended: &Result<(), ClientError>) -> Result<()> {
        match ended {
            Ok(()) => self.succeeded += 1,
            Err(ClientError::Deadline) => self.timed_out += 1,
            Err(
                ClientError::PathUnavailable { .. }
                | ClientError::Rdma(_)
                | ClientError::Connect { .. }
                | ClientError::Transport(_),
            ) => self.failed += 1,
            // The gateway lives, its node does not.
            Err(ClientError::Service(refused)) if refused.status.is_server_error() => {
                self.failed += 1;
            }
            Err(error) => bail!("a death is told as {error:?}"),
        }
        Ok(())
    }
}

/// Whom a transfer is made by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// By the path under test, or not at all.
    Strict,
    /// Over HTTP in the end, after retries that last longer than a restart.
    Patient,
    /// Gives up before that.
    Hasty(Duration),
}

impl Caller {
    /// How long it waits, where nobody waits longer than `patience`.
    pub(crate) fn deadline(self, patience: Duration) -> Duration {
        match self {
            Self::Hasty(deadline) => deadline,
            Self::Strict | Self::Patient => patience,
        }
    }
}

/// Memory that is lent to transfers.
pub(crate) trait Lent {
    /// Sets every byte; fails while a transfer has it.
    fn fill(&mut self, byte: u8) -> Result<()>;

    fn content(&self) -> Result<Cow<'_, [u8]>>;
}

/// Buffers that were given back, overwritten since, and must not change any more.
pub(crate) struct Watched<B>(VecDeque<B>);

impl<B: Lent> Watched<B> {
    pub(crate) fn none() -> Self {
        Self(VecDeque::new())
    }

    /// Takes a buffer that a transfer gave back.
    pub(crate) fn add(&mut self, mut buffer: B) -> Result<()> {
        buffer.fill(CANARY).context("the buffer is back, but lent")?;
        self.0.push_back(buffer);
        self.check()?;
        self.0.drain(..self.0.len().saturating_sub(WATCHED_MAX));
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<()> {
        for buffer in &self.0 {
            let late = buffer.content()?.iter().position(|byte| *byte != CANARY);
            ensure!(late.is_none(), "a byte landed at {late:?} after the buffer's release");
        }
        Ok(())
    }
}

/// How long transfers of an object take here, with a session at hand and nobody in the way.
pub(crate) struct Pace {
    put: Duration,
    get: Duration,
}

impl Pace {
    /// Of a `transfer` that stores the object, or reads what it stored.
    pub(crate) async fn of(mut transfer: impl AsyncFnMut(bool) -> Result<()>) -> Result<Self> {
        // The first time opens the session.
        transfer(true).await?;
        transfer(false).await?;
        let begun = Instant::now();
        transfer(true).await?;
        let put = begun.elapsed();
        transfer(false).await?;
        Ok(Self { put, get: begun.elapsed() - put })
    }

    pub(crate) fn length(&self, is_put: bool) -> Duration {
        if is_put { self.put } else { self.get }
    }
}
