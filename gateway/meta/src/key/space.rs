//! The rows of one kind in one bucket that sort by object key.

use bytes::{BufMut as _, Bytes};
use keyway_proto::{BucketId, VersionId};

use super::{
    AFTER_TERMINATOR, ESCAPED_ZERO, NONCURRENT, NULL_VERSION, OBJECT, PENDING, Range, TERMINATOR,
    UPLOAD, build, escape, successor,
};

/// The rows of one kind in one bucket that sort by object key.
#[derive(Clone, Copy)]
pub(crate) struct Space {
    kind: u8,
    bucket: BucketId,
}

impl Space {
    /// Length of what precedes the escaped key.
    const HEAD: usize = 9;

    pub(crate) fn objects(bucket: BucketId) -> Self {
        Self { kind: OBJECT, bucket }
    }

    pub(crate) fn uploads(bucket: BucketId) -> Self {
        Self { kind: UPLOAD, bucket }
    }

    /// Versions that are not current, each key's newest first.
    pub(crate) fn versions(bucket: BucketId) -> Self {
        Self { kind: NONCURRENT, bucket }
    }

    /// Which of the versions that are not current is its key's null version.
    pub(crate) fn null_versions(bucket: BucketId) -> Self {
        Self { kind: NULL_VERSION, bucket }
    }

    /// Objects whose bytes are not durable, beside their rows.
    pub(crate) fn pending(bucket: BucketId) -> Self {
        Self { kind: PENDING, bucket }
    }

    /// The whole space.
    pub(crate) fn all(self) -> Range {
        let start = self.key("", &[]);
        let end = successor(&start);
        (start, end)
    }

    /// The row of `key`, told apart by `suffix`.
    pub(crate) fn entry(self, key: &str, suffix: &[u8]) -> Bytes {
        build(self.kind, 8 + key.len() + TERMINATOR.len() + suffix.len(), |out| {
            out.put_u64(self.bucket.0);
            escape(key, out);
            out.put_slice(&TERMINATOR);
            out.put_slice(suffix);
        })
    }

    /// All rows of `key`.
    pub(crate) fn of(self, key: &str) -> Range {
        (self.entry(key, &[]), self.after(key))
    }

    /// The row of a version in [`versions`](Self::versions).
    pub(crate) fn version(self, key: &str, version: VersionId) -> Bytes {
        self.entry(key, &version_suffix(version))
    }

    /// Where keys that begin with `prefix` start.
    pub(crate) fn from(self, prefix: &str) -> Bytes {
        self.key(prefix, &[])
    }

    /// Just before every row of `key`: all that comes next is one of them, or behind them.
    pub(crate) fn before(self, key: &str) -> Bytes {
        self.key(key, &[0])
    }

    /// Just after every row of `key`.
    pub(crate) fn after(self, key: &str) -> Bytes {
        self.key(key, &AFTER_TERMINATOR)
    }

    /// Just after every row whose key begins with `prefix`.
    pub(crate) fn past(self, prefix: &str) -> Bytes {
        successor(&self.key(prefix, &[]))
    }

    /// The object key and the suffix of a row's key; `None` when it is not one of this space.
    pub(crate) fn parse(self, row: &[u8]) -> Option<(String, &[u8])> {
        let mut rest = row.get(Self::HEAD..)?;
        let mut key = Vec::with_capacity(rest.len());
        loop {
            let zero = rest.iter().position(|byte| *byte == 0)?;
            key.extend_from_slice(&rest[..zero]);
            let mark = rest.get(zero..zero + 2)?;
            rest = &rest[zero + 2..];
            if mark == TERMINATOR {
                return Some((String::from_utf8(key).ok()?, rest));
            }
            if mark != ESCAPED_ZERO {
                return None;
            }
            key.push(0);
        }
    }

    fn key(self, text: &str, end: &[u8]) -> Bytes {
        build(self.kind, 8 + text.len() + end.len(), |out| {
            out.put_u64(self.bucket.0);
            escape(text, out);
            out.put_slice(end);
        })
    }
}

/// What tells versions of one key apart: milliseconds, inverted so that the newest comes first,
/// then the id. The milliseconds are those in the id, so that whoever has it finds the row.
fn version_suffix(version: VersionId) -> [u8; 24] {
    let id = version.to_bytes();
    let mut ms = [0; 8];
    ms[2..].copy_from_slice(&id[..6]);
    let mut suffix = [0; 24];
    suffix[..8].copy_from_slice(&(!u64::from_be_bytes(ms)).to_be_bytes());
    suffix[8..].copy_from_slice(&id);
    suffix
}
