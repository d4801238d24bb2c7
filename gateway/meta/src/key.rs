//! Keys: how the catalog's rows sort. docs/metadata.md has the table.
//!
//! One byte names the keyspace; numbers are big-endian; an object key is escaped, so that a
//! terminator which sorts below every continuation can follow it: `00` becomes `00 ff`, and
//! the end is `00 01`. Escaping works byte by byte, hence the escaped form of a prefix is a
//! prefix of the escaped keys that begin with it, and the order is that of the raw bytes.

use bytes::{BufMut as _, Bytes, BytesMut};
use keyway_proto::{BucketId, ChunkId, NodeId, TenantId, UploadId, VersionId};

mod account;
mod outbox;
mod space;

pub(crate) use account::{account, accounts, parse_account, tenant_counter};
pub(crate) use outbox::{
    backlog, backlog_target, backlogs, event_counter, event_number, events, events_of,
};
pub(crate) use space::Space;

const COUNTER: u8 = b'#';
const ACCOUNT: u8 = b'a';
const BUCKET: u8 = b'b';
const BUCKET_ALIVE: u8 = b'i';
const CHUNK_OWNER: u8 = b'c';
const COMPLETED: u8 = b'd';
const COMPLETED_AT: u8 = b'e';
const GARBAGE: u8 = b'g';
const OBJECT: u8 = b'o';
const PART: u8 = b'p';
const UPLOAD: u8 = b'u';
const PENDING: u8 = b'w';
const USAGE: u8 = b'q';
const PENDING_PART: u8 = b'x';
const CONFIGURATION: u8 = b'f';
const NULL_VERSION: u8 = b'n';
const EVENT: u8 = b'y';
const BACKLOG: u8 = b'z';
/// Versions that are not current: `v`, bucket, escaped key, inverted milliseconds, version.
const NONCURRENT: u8 = b'v';

const ESCAPED_ZERO: [u8; 2] = [0x00, 0xff];
const TERMINATOR: [u8; 2] = [0x00, 0x01];
/// Sorts after the terminator and all that follows it, before every longer key.
const AFTER_TERMINATOR: [u8; 2] = [0x00, 0x02];

/// A range of keys: `start <= key < end`.
pub(crate) type Range = (Bytes, Bytes);

/// The counter of bucket ids.
pub(crate) fn bucket_counter() -> Bytes {
    Bytes::from_static(&[COUNTER, b'b'])
}

/// The catalog's own id.
pub(crate) fn catalog_id() -> Bytes {
    Bytes::from_static(&[COUNTER, b'i'])
}

/// Present once usage is counted.
pub(crate) fn usage_counted() -> Bytes {
    Bytes::from_static(&[COUNTER, b'q'])
}

/// What a tenant stores.
pub(crate) fn usage(tenant: TenantId) -> Bytes {
    build(USAGE, 8, |key| key.put_u64(tenant.0))
}

/// What one of its users stores.
pub(crate) fn usage_of(tenant: TenantId, user: &str) -> Bytes {
    build(USAGE, 8 + user.len(), |key| {
        key.put_u64(tenant.0);
        key.put_slice(user.as_bytes());
    })
}

/// Whether it is a key of what a tenant stores, or a user.
pub(crate) fn is_usage(key: &[u8]) -> bool {
    key.first() == Some(&USAGE)
}

/// What a row counts as in its tenant's usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// An object or another version, delete markers among them.
    Version,
    /// A part of an upload in progress.
    Part,
}

/// Whether the row under a key counts in its tenant's usage.
pub(crate) fn counted(key: &[u8]) -> Option<Counted> {
    match key.first() {
        Some(&OBJECT | &NONCURRENT) => Some(Counted::Version),
        Some(&PART) => Some(Counted::Part),
        _ => None,
    }
}

/// A bucket under its name.
pub(crate) fn bucket(tenant: TenantId, name: &str) -> Bytes {
    build(BUCKET, 8 + name.len(), |key| {
        key.put_u64(tenant.0);
        key.put_slice(name.as_bytes());
    })
}

/// The tenant's buckets whose names begin with `prefix` and sort after `after`.
pub(crate) fn buckets(tenant: TenantId, prefix: &str, after: &str) -> Range {
    let all = bucket(tenant, prefix);
    let start = if after.is_empty() { all.clone() } else { next(&bucket(tenant, after)) };
    (start.max(all.clone()), successor(&all))
}

/// All buckets, of all tenants, behind this one.
pub(crate) fn every_bucket(behind: Option<(TenantId, &str)>) -> Range {
    let start = match behind {
        Some((tenant, name)) => next(&bucket(tenant, name)),
        None => Bytes::from_static(&[BUCKET]),
    };
    (start, Bytes::from_static(&[BUCKET + 1]))
}

/// The tenant in a [`bucket`] key.
pub(crate) fn bucket_tenant(key: &[u8]) -> Option<TenantId> {
    let tenant = key.strip_prefix(&[BUCKET])?.first_chunk()?;
    Some(TenantId(u64::from_be_bytes(*tenant)))
}

/// The name in a [`bucket`] key.
pub(crate) fn bucket_name(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.get(9..)?).ok()
}

/// Present while the bucket exists: what every write into it requires.
pub(crate) fn bucket_alive(id: BucketId) -> Bytes {
    build(BUCKET_ALIVE, 8, |key| key.put_u64(id.0))
}

/// One of the documents that configure a bucket.
pub(crate) fn configuration(id: BucketId, kind: u8) -> Bytes {
    build(CONFIGURATION, 9, |key| {
        key.put_u64(id.0);
        key.put_u8(kind);
    })
}

/// The current object under a key.
pub(crate) fn object(bucket: BucketId, object: &str) -> Bytes {
    Space::objects(bucket).entry(object, &[])
}

/// An upload in progress.
pub(crate) fn upload(bucket: BucketId, object: &str, id: UploadId) -> Bytes {
    Space::uploads(bucket).entry(object, &id.to_bytes())
}

/// All uploads in progress, of all buckets.
pub(crate) fn every_upload() -> Range {
    (Bytes::from_static(&[UPLOAD]), Bytes::from_static(&[UPLOAD + 1]))
}

/// The bucket and the id in an [`upload`] key.
pub(crate) fn parse_upload(key: &[u8]) -> Option<(BucketId, UploadId)> {
    let bucket = key.strip_prefix(&[UPLOAD])?.first_chunk()?;
    let id = key.get(9..)?.last_chunk()?;
    Some((BucketId(u64::from_be_bytes(*bucket)), UploadId::from_bytes(*id)))
}

/// A part of an upload.
pub(crate) fn part(upload: UploadId, number: u16) -> Bytes {
    build(PART, 18, |key| {
        key.put_slice(&upload.to_bytes());
        key.put_u16(number);
    })
}

/// The upload's parts with numbers in `first..=last`.
pub(crate) fn parts(upload: UploadId, first: u16, last: u16) -> Range {
    (part(upload, first), next(&part(upload, last)))
}

/// Who owns chunks: the version that was put with them, or the upload they came with (and
/// the object made of it, so that completing rewrites no row per chunk).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Version(VersionId),
    Upload(UploadId),
}

/// That `owner` owns the chunk.
pub(crate) fn chunk_owner(chunk: ChunkId, owner: Owner) -> Bytes {
    build(CHUNK_OWNER, 33, |key| {
        key.put_slice(&chunk.to_bytes());
        match owner {
            Owner::Version(id) => {
                key.put_u8(b'v');
                key.put_slice(&id.to_bytes());
            }
            Owner::Upload(id) => {
                key.put_u8(b'u');
                key.put_slice(&id.to_bytes());
            }
        }
    })
}

/// All owners of a chunk.
pub(crate) fn chunk_owners(chunk: ChunkId) -> Range {
    let start = build(CHUNK_OWNER, 16, |key| key.put_slice(&chunk.to_bytes()));
    let end = successor(&start);
    (start, end)
}

/// A chunk that lost an owner.
pub(crate) fn garbage(chunk: ChunkId, node: NodeId) -> Bytes {
    build(GARBAGE, 20, |key| {
        key.put_slice(&chunk.to_bytes());
        key.put_u32(node.0);
    })
}

/// The whole garbage queue.
pub(crate) fn garbage_queue() -> Range {
    (Bytes::from_static(&[GARBAGE]), Bytes::from_static(&[GARBAGE + 1]))
}

/// Whether the key stands in the garbage queue.
pub(crate) fn is_garbage(key: &[u8]) -> bool {
    key.first() == Some(&GARBAGE)
}

/// What became of a completed upload.
pub(crate) fn completed(upload: UploadId) -> Bytes {
    build(COMPLETED, 16, |key| key.put_slice(&upload.to_bytes()))
}

/// The completion under its time, for sweeping.
pub(crate) fn completed_at(unix_ms: u64, upload: UploadId) -> Bytes {
    build(COMPLETED_AT, 24, |key| {
        key.put_u64(unix_ms);
        key.put_slice(&upload.to_bytes());
    })
}

/// Completions before `unix_ms`.
pub(crate) fn completed_before(unix_ms: u64) -> Range {
    let end = build(COMPLETED_AT, 8, |key| key.put_u64(unix_ms));
    (Bytes::from_static(&[COMPLETED_AT]), end)
}

/// The upload that a [`completed_at`] key names.
pub(crate) fn completed_upload(key: &[u8]) -> Option<UploadId> {
    let id: [u8; 16] = key.get(9..)?.try_into().ok()?;
    Some(UploadId::from_bytes(id))
}

/// A part whose bytes are not durable.
pub(crate) fn pending_part(upload: UploadId, number: u16) -> Bytes {
    build(PENDING_PART, 18, |key| {
        key.put_slice(&upload.to_bytes());
        key.put_u16(number);
    })
}

/// All parts whose bytes are not durable.
pub(crate) fn pending_parts() -> Range {
    (Bytes::from_static(&[PENDING_PART]), Bytes::from_static(&[PENDING_PART + 1]))
}

/// The upload's parts whose bytes are not durable, with numbers up to `last`.
pub(crate) fn pending_parts_of(upload: UploadId, last: u16) -> Range {
    (pending_part(upload, 0), next(&pending_part(upload, last)))
}

/// The part that a [`pending_part`] key names.
pub(crate) fn parse_pending_part(key: &[u8]) -> Option<(UploadId, u16)> {
    let (id, number) = key.strip_prefix(&[PENDING_PART])?.split_first_chunk::<16>()?;
    Some((UploadId::from_bytes(*id), u16::from_be_bytes(number.try_into().ok()?)))
}

/// The mark beside the object under this key, if its bytes are not durable.
pub(crate) fn pending_object(object: &[u8]) -> Bytes {
    build(PENDING, object.len() - 1, |key| key.put_slice(&object[1..]))
}

/// Whether the key is that of a mark.
pub(crate) fn is_pending(key: &[u8]) -> bool {
    matches!(key.first(), Some(&PENDING | &PENDING_PART))
}

/// All objects whose bytes are not durable, of all buckets.
pub(crate) fn pending_objects() -> Range {
    (Bytes::from_static(&[PENDING]), Bytes::from_static(&[PENDING + 1]))
}

/// The bucket and the object that a key of [`Space::pending`] names.
pub(crate) fn parse_pending_object(key: &[u8]) -> Option<(BucketId, String)> {
    let bucket = key.strip_prefix(&[PENDING])?.first_chunk()?;
    let bucket = BucketId(u64::from_be_bytes(*bucket));
    let (object, suffix) = Space::pending(bucket).parse(key)?;
    suffix.is_empty().then_some((bucket, object))
}

/// The least key greater than `key`.
pub(crate) fn next(key: &[u8]) -> Bytes {
    let mut longer = BytesMut::with_capacity(key.len() + 1);
    longer.put_slice(key);
    longer.put_u8(0);
    longer.freeze()
}

/// The least key greater than every key that begins with `prefix`.
fn successor(prefix: &[u8]) -> Bytes {
    let kept = prefix.iter().rposition(|byte| *byte != 0xff);
    let kept = kept.expect("every key begins with a keyspace byte, which is not ff");
    let mut bytes = BytesMut::from(&prefix[..=kept]);
    bytes[kept] += 1;
    bytes.freeze()
}

fn escape(text: &str, out: &mut BytesMut) {
    let mut runs = text.as_bytes().split(|byte| *byte == 0);
    out.put_slice(runs.next().unwrap_or_default());
    for run in runs {
        out.put_slice(&ESCAPED_ZERO);
        out.put_slice(run);
    }
}

fn build(kind: u8, capacity: usize, fill: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut key = BytesMut::with_capacity(1 + capacity);
    key.put_u8(kind);
    fill(&mut key);
    key.freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUCKET_ID: BucketId = BucketId(7);

    /// The bytes on disk, spelt out: changing one is a change of format.
    #[test]
    fn keys_are_pinned() {
        let upload_id = UploadId::from_bytes([0x11; 16]);
        let chunk = ChunkId::from_bytes([0x22; 16]);
        let version = VersionId::from_bytes([0x33; 16]);
        let bucket_7 = [0, 0, 0, 0, 0, 0, 0, 7];
        let join = |parts: &[&[u8]]| parts.concat();
        assert_eq!(&bucket_counter()[..], b"#b");
        assert_eq!(bucket(TenantId(1), "abc"), join(&[b"b", &[0, 0, 0, 0, 0, 0, 0, 1], b"abc"]));
        assert_eq!(configuration(BUCKET_ID, 1), join(&[b"f", &bucket_7, &[1]]));
        assert_eq!(bucket_alive(BUCKET_ID), join(&[b"i", &bucket_7]));
        assert_eq!(object(BUCKET_ID, "a\0b"), join(&[b"o", &bucket_7, b"a\0\xffb\0\x01"]));
        assert_eq!(
            Space::versions(BUCKET_ID).version("k", version),
            join(&[b"v", &bucket_7, b"k\0\x01", &[0xff, 0xff], &[!0x33; 6], &[0x33; 16]])
        );
        assert_eq!(
            Space::null_versions(BUCKET_ID).entry("k", &[]),
            join(&[b"n", &bucket_7, b"k\0\x01"])
        );
        assert_eq!(
            upload(BUCKET_ID, "k", upload_id),
            join(&[b"u", &bucket_7, b"k\0\x01", &[0x11; 16]])
        );
        assert_eq!(part(upload_id, 258), join(&[b"p", &[0x11; 16], &[1, 2]]));
        assert_eq!(
            chunk_owner(chunk, Owner::Version(version)),
            join(&[b"c", &[0x22; 16], b"v", &[0x33; 16]])
        );
        assert_eq!(
            chunk_owner(chunk, Owner::Upload(upload_id)),
            join(&[b"c", &[0x22; 16], b"u", &[0x11; 16]])
        );
        assert_eq!(garbage(chunk, NodeId(5)), join(&[b"g", &[0x22; 16], &[0, 0, 0, 5]]));
        assert_eq!(Space::pending(BUCKET_ID).entry("k", &[]), join(&[b"w", &bucket_7, b"k\0\x01"]));
        assert_eq!(pending_part(upload_id, 258), join(&[b"x", &[0x11; 16], &[1, 2]]));
        assert_eq!(usage(TenantId(1)), join(&[b"q", &[0, 0, 0, 0, 0, 0, 0, 1]]));
        let of_user = join(&[b"q", &[0, 0, 0, 0, 0, 0, 0, 1], b"anna"]);
        assert_eq!(usage_of(TenantId(1), "anna"), of_user);
        assert_eq!(&usage_counted()[..], b"#q");
        assert_eq!(&event_counter()[..], b"#n");
        assert_eq!(&events_of("t", 0).0[..], b"yt\0\0\0\0\0\0\0\0\x01");
        assert_eq!(&backlog("t")[..], b"zt");
        assert_eq!(parse_upload(&upload(BUCKET_ID, "k", upload_id)), Some((BUCKET_ID, upload_id)));
        assert_eq!(completed(upload_id), join(&[b"d", &[0x11; 16]]));
        assert_eq!(
            completed_at(9, upload_id),
            join(&[b"e", &[0, 0, 0, 0, 0, 0, 0, 9], &[0x11; 16]])
        );
        assert_eq!(completed_upload(&completed_at(9, upload_id)), Some(upload_id));
    }

    #[test]
    fn keyspaces_do_not_meet() {
        let mut kinds = [
            COUNTER,
            ACCOUNT,
            CONFIGURATION,
            BUCKET,
            BUCKET_ALIVE,
            CHUNK_OWNER,
            COMPLETED,
            COMPLETED_AT,
            GARBAGE,
            NULL_VERSION,
            OBJECT,
            PART,
            UPLOAD,
            PENDING,
            PENDING_PART,
            NONCURRENT,
            USAGE,
            EVENT,
            BACKLOG,
        ];
        kinds.sort_unstable();
        assert!(kinds.windows(2).all(|pair| pair[0] < pair[1]));
    }

    fn key() -> impl Strategy<Value = String> {
        proptest::collection::vec(
            prop_oneof![
                Just('\0'),
                Just('\u{1}'),
                Just('a'),
                Just('/'),
                Just('é'),
                Just('\u{10FFFF}'),
                any::<char>()
            ],
            0..8,
        )
        .prop_map(|chars| chars.into_iter().collect())
    }

    proptest! {
        #[test]
        fn order_is_that_of_the_keys(left in key(), right in key(), a: [u8; 3], b: [u8; 3]) {
            let space = Space::objects(BUCKET_ID);
            let order = (left.as_bytes(), a).cmp(&(right.as_bytes(), b));
            prop_assert_eq!(space.entry(&left, &a).cmp(&space.entry(&right, &b)), order);
        }

        #[test]
        fn keys_round_trip(key in key(), suffix: [u8; 3]) {
            let space = Space::uploads(BUCKET_ID);
            let entry = space.entry(&key, &suffix);
            prop_assert_eq!(space.parse(&entry), Some((key.clone(), &suffix[..])));
            let pending = Space::pending(BUCKET_ID).entry(&key, &[]);
            prop_assert_eq!(&pending_object(&object(BUCKET_ID, &key)), &pending);
            prop_assert_eq!(parse_pending_object(&pending), Some((BUCKET_ID, key)));
        }

        #[test]
        fn bounds_enclose_exactly_the_prefix(prefix in key(), other in key(), suffix: [u8; 2]) {
            let space = Space::objects(BUCKET_ID);
            let entry = space.entry(&other, &suffix);
            let inside = space.from(&prefix) <= entry && entry < space.past(&prefix);
            prop_assert_eq!(inside, other.starts_with(&prefix));
            let beyond = entry >= space.after(&prefix);
            prop_assert_eq!(beyond, other.as_bytes() > prefix.as_bytes());
        }

        #[test]
        fn foreign_rows_never_panic(row: Vec<u8>) {
            let _ = Space::objects(BUCKET_ID).parse(&row);
            let _ = completed_upload(&row);
            let _ = parse_pending_object(&row);
            let _ = parse_pending_part(&row);
            let _ = parse_upload(&row);
        }
    }
}
