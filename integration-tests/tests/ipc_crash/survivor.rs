//! A client under whose transfers somebody dies, and the buffers that it gets back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use keyway_client::{Client, ClientError};

use super::memory::{Buffer, Place};
use super::{BUCKET, PATIENCE};

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
    /// Through the door, or not at all.
    Strict,
    /// Over HTTP in the end, after retries that last longer than a restart.
    Patient,
    /// Gives up before that.
    Hasty(Duration),
}

/// One PUT of the object under a key of its own, or a GET of the large one; and the buffer, which
/// was given back.
pub(crate) async fn transfer(
    client: Client,
    place: Place,
    caller: Caller,
    put: Option<String>,
    object: Arc<Vec<u8>>,
) -> Result<(Buffer, Result<(), ClientError>)> {
    let deadline = if let Caller::Hasty(deadline) = caller { deadline } else { PATIENCE };
    match put {
        Some(key) => {
            let mut buffer = Buffer::holding(place, &object)?;
            let put = client.put_object(BUCKET, &key).body(buffer.body()?);
            let ended = put.deadline(deadline).send().await.map(drop);
            Ok((buffer, ended))
        }
        None => {
            let mut buffer = Buffer::new(place, object.len())?;
            let got = buffer.fill(client.get_object(BUCKET, "large").deadline(deadline)).await;
            if got.is_ok() {
                ensure!(buffer.content()? == *object, "wrong bytes, said to be right");
            }
            Ok((buffer, got.map(drop)))
        }
    }
}

/// Buffers that were given back, overwritten since, and must not change any more.
#[derive(Default)]
pub(crate) struct Watched(VecDeque<Buffer>);

impl Watched {
    /// Takes a buffer that a transfer gave back.
    pub(crate) fn add(&mut self, mut buffer: Buffer) -> Result<()> {
        let bytes = buffer.content().context("the buffer is back, but lent")?.len();
        buffer.write(&vec![CANARY; bytes]).context("the buffer is back, but lent")?;
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
