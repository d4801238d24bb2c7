//! A bucket as a sorted map: slow, small, and obviously right.

use std::collections::BTreeMap;

use md5::{Digest, Md5};

/// Smallest part but the last one.
pub(crate) const PART_MINIMUM: usize = 5 << 20;

/// The bucket.
#[derive(Default)]
pub(crate) struct Bucket {
    /// Sorted by the bytes of the key, as S3 lists.
    pub(crate) objects: BTreeMap<String, Object>,
    pub(crate) uploads: Vec<Upload>,
}

/// An object.
#[derive(Clone)]
pub(crate) struct Object {
    pub(crate) body: Vec<u8>,
    /// With its quotes.
    pub(crate) etag: String,
    /// User metadata `owner`.
    pub(crate) owner: Option<u8>,
}

/// An upload under way.
pub(crate) struct Upload {
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) parts: BTreeMap<u32, Vec<u8>>,
}

impl Object {
    pub(crate) fn new(body: Vec<u8>, owner: Option<u8>) -> Self {
        Self { etag: etag(&body), body, owner }
    }
}

impl Upload {
    /// The object that completing it with all parts makes, or why not.
    pub(crate) fn completed(&self) -> Result<Object, &'static str> {
        let Some(last) = self.parts.keys().next_back() else { return Err("MalformedXML") };
        let small = |(number, body): (&u32, &Vec<u8>)| number != last && body.len() < PART_MINIMUM;
        if self.parts.iter().any(small) {
            return Err("EntityTooSmall");
        }
        let digests: Vec<u8> =
            self.parts.values().flat_map(|body| Md5::digest(body).to_vec()).collect();
        let etag = format!("\"{}-{}\"", hex::encode(Md5::digest(&digests)), self.parts.len());
        let body = self.parts.values().flatten().copied().collect();
        Ok(Object { body, etag, owner: None })
    }
}

impl Bucket {
    /// What a listing shows, page boundaries aside: keys and rolled-up prefixes, in order.
    pub(crate) fn listing(&self, prefix: &str, delimiter: &str, after: Option<&str>) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        for key in self.objects.keys() {
            if !key.starts_with(prefix) || after.is_some_and(|after| key.as_str() <= after) {
                continue;
            }
            let rest = &key[prefix.len()..];
            let entry = match rest.find(delimiter).filter(|_| !delimiter.is_empty()) {
                Some(at) => Entry::Group(key[..prefix.len() + at + delimiter.len()].to_owned()),
                None => Entry::Key(key.clone()),
            };
            if entries.last() != Some(&entry) {
                entries.push(entry);
            }
        }
        entries
    }
}

/// A line of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Key(String),
    Group(String),
}

impl Entry {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Key(name) | Self::Group(name) => name,
        }
    }
}

/// The ETag of a single-part object.
pub(crate) fn etag(body: &[u8]) -> String {
    format!("\"{}\"", hex::encode(Md5::digest(body)))
}
