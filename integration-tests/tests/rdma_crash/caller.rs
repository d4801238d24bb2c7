//! Callers under whose transfers somebody dies, and the buffers that they get back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use keyway_client::{Client, ClientError, HostBuffer};

use super::{BUCKET, PATIENCE};

/// Buffers that are watched for late bytes after they were given back.
const WATCHED_MAX: usize = 15;
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
    /// By RDMA, or not at all.
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
    caller: Caller,
    put: Option<String>,
    object: Arc<Vec<u8>>,
) -> Result<(HostBuffer, Result<(), ClientError>)> {
    let mut buffer = HostBuffer::zeroed(object.len())?;
    let deadline = if let Caller::Hasty(deadline) = caller { deadline } else { PATIENCE };
    let ended = match put {
        Some(key) => {
            buffer.bytes_mut()?.copy_from_slice(&object);
            let put = client.put_object(BUCKET, &key).body(buffer.slice(..)?);
            put.deadline(deadline).send().await.map(drop)
        }
        None => {
            let get = client.get_object(BUCKET, "large").deadline(deadline);
            match get.into(buffer.slice_mut(..)?).await {
                Ok(got) => {
                    ensure!(got.target[..] == object[..], "wrong bytes, said to be right");
                    Ok(())
                }
                Err(failed) => Err(failed.error),
            }
        }
    };
    Ok((buffer, ended))
}

/// Buffers that were given back, overwritten since, and must not change any more.
#[derive(Default)]
pub(crate) struct Watched(VecDeque<HostBuffer>);

impl Watched {
    /// Takes a buffer that a transfer gave back.
    pub(crate) fn add(&mut self, mut buffer: HostBuffer) -> Result<()> {
        buffer.bytes_mut().context("the buffer is back, but lent")?.fill(CANARY);
        self.0.push_back(buffer);
        self.check()?;
        self.0.drain(..self.0.len().saturating_sub(WATCHED_MAX));
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<()> {
        for buffer in &self.0 {
            let late = buffer.bytes()?.iter().position(|byte| *byte != CANARY);
            ensure!(late.is_none(), "a byte landed at {late:?} after the buffer's release");
        }
        Ok(())
    }
}
