//! Transfers by RDMA under which somebody dies.

use std::borrow::Cow;
use std::sync::Arc;

use anyhow::{Result, ensure};
use keyway_client::{Client, ClientError, HostBuffer};

use super::survivor::{Caller, Lent};
use super::{BUCKET, PATIENCE};

/// One PUT of the object under a key of its own, or a GET of the large one; and the buffer, which
/// was given back.
pub(crate) async fn transfer(
    client: Client,
    caller: Caller,
    put: Option<String>,
    object: Arc<Vec<u8>>,
) -> Result<(HostBuffer, Result<(), ClientError>)> {
    let mut buffer = HostBuffer::zeroed(object.len())?;
    let deadline = caller.deadline(PATIENCE);
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

impl Lent for HostBuffer {
    fn fill(&mut self, byte: u8) -> Result<()> {
        self.bytes_mut()?.fill(byte);
        Ok(())
    }

    fn content(&self) -> Result<Cow<'_, [u8]>> {
        Ok(self.bytes()?.into())
    }
}
