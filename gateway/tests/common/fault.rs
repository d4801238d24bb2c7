//! What goes wrong with a direct transfer, where a test wants that.

use keyway_dataplane::{DirectError, TransferError};
use keyway_proto::ChunkId;
use keyway_proto::key::Relinquished;

/// What goes wrong with the next transfer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The grant arrives altered.
    Altered,
    /// The grant arrives twice; the second is answered.
    Replayed,
    /// It ends so, after the key was given up so.
    Fails(DirectError, Relinquished),
    /// The chunk of a GET is gone when it begins.
    LosesChunk,
    /// It never ends.
    Hangs,
    /// The node was started anew: it knows no session and none of its keys.
    Restarts,
    /// The receipt says that so many bytes fewer were moved.
    ShortReceipt(u64),
    /// The receipt is that of another transfer, of another tenant's perhaps.
    AnswersForAnother,
    /// A byte is flipped on its way out of the client's memory.
    Corrupts,
}

/// Fails where the chunk of a GET is to be gone.
pub(super) fn loses(fault: Option<&Fault>, chunk: ChunkId) -> Result<(), TransferError> {
    let lost = matches!(fault, Some(Fault::LosesChunk));
    if lost { Err(TransferError::NoSuchChunk(chunk)) } else { Ok(()) }
}
