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
    /// Whether it keeps versions now; `None` if it never did.
    pub(crate) keeps: Option<bool>,
    /// All versions of each key, newest first.
    pub(crate) versions: BTreeMap<String, Vec<Version>>,
}

/// A version.
pub(crate) struct Version {
    /// As the server named it; `null` for what has no name.
    pub(crate) name: String,
    /// `None` for a delete marker.
    pub(crate) object: Option<Object>,
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
    /// What a write does; `object` is none for a delete marker.
    pub(crate) fn add(&mut self, key: &str, name: &str, object: Option<Object>) {
        let versions = self.versions.entry(key.to_owned()).or_default();
        if name == "null" {
            versions.retain(|version| version.name != "null");
        }
        versions.insert(0, Version { name: name.to_owned(), object });
        self.look(key);
    }

    /// Removes a version for good; answers whether it was a delete marker.
    pub(crate) fn remove(&mut self, key: &str, name: &str) -> bool {
        let versions = self.versions.entry(key.to_owned()).or_default();
        let at = versions.iter().position(|version| version.name == name);
        let marker = at.is_some_and(|at| versions.remove(at).object.is_none());
        self.look(key);
        marker
    }

    /// What is current follows from the versions.
    fn look(&mut self, key: &str) {
        let current = self.versions.get(key).and_then(|versions| versions.first());
        match current.and_then(|version| version.object.clone()) {
            Some(object) => drop(self.objects.insert(key.to_owned(), object)),
            None => drop(self.objects.remove(key)),
        }
        self.versions.retain(|_, versions| !versions.is_empty());
    }

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
