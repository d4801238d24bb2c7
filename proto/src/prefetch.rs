//! Asking for objects to be in the nodes' memory before they are read: the control endpoint's
//! documents.

use serde::{Deserialize, Serialize};

/// What is to be in memory: objects of one bucket, by their keys or by a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefetchRequest {
    /// The bucket.
    pub bucket: String,
    /// These objects, in this order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<Vec<String>>,
    /// Or all whose key begins with this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Where to go on: the `next` of the answer before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<PrefetchPosition>,
}

/// A place in a request's objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefetchPosition {
    /// The object.
    pub key: String,
    /// How many of its chunks are done.
    pub chunk: usize,
}

/// What one call came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefetchReply {
    /// Objects that are done.
    pub objects: u64,
    /// Keys that name no object.
    pub missing: u64,
    /// Bytes that were to be brought in.
    pub bytes: u64,
    /// Of these, those that are in memory.
    pub resident_bytes: u64,
    /// Where to go on, if there is more: a call takes some seconds and no longer.
    pub next: Option<PrefetchPosition>,
}
