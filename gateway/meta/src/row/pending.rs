//! The row beside an object whose bytes are not durable: what it replaced.

use bytes::Bytes;
use prost::Message;

use super::object::{StoredObject, decode_object};
use super::{decode, encode};
use crate::store::MetaError;

#[derive(Clone, PartialEq, Message)]
struct PendingRow {
    /// The row of the durable object that comes back if this one's bytes are lost; unset: there
    /// was none.
    #[prost(bytes = "bytes", optional, tag = "1")]
    replaced: Option<Bytes>,
}

/// `replaced` is the row of an object.
pub(crate) fn encode_pending(replaced: Option<Bytes>) -> Bytes {
    encode(&PendingRow { replaced })
}

/// The object that was replaced, and its row.
pub(crate) fn decode_pending(row: &Bytes) -> Result<Option<(Bytes, StoredObject)>, MetaError> {
    let row: PendingRow = decode(row, "pending")?;
    let Some(replaced) = row.replaced else { return Ok(None) };
    let stored = decode_object(&replaced)?;
    Ok(Some((replaced, stored)))
}
