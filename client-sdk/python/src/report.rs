//! What operations give back.

use std::collections::BTreeMap;

use keyway_bindings::Listed;
use keyway_client::{ObjectInfo, Verified};
use pyo3::prelude::*;

/// A finished transfer.
#[pyclass(frozen, get_all, module = "keyway", name = "Result")]
pub(crate) struct Report {
    bytes: u64,
    path: String,
    strength: String,
    verified: bool,
    checksum: Option<String>,
    unverified: Option<String>,
    retries: u32,
    fallbacks: BTreeMap<String, u32>,
    etag: Option<String>,
    version: Option<String>,
    object_bytes: u64,
    durability: String,
}

impl From<keyway_bindings::Report> for Report {
    fn from(report: keyway_bindings::Report) -> Self {
        let (checksum, unverified) = match report.verified {
            Verified::Whole(sum) => (Some(format!("{}:{}", sum.kind(), sum.to_base64())), None),
            no @ Verified::No(_) => (None, Some(no.to_string())),
        };
        let fallbacks = report.fallbacks.iter();
        Self {
            bytes: report.bytes,
            path: report.path.to_string(),
            strength: report.strength.to_string(),
            verified: checksum.is_some(),
            checksum,
            unverified,
            retries: report.retries,
            fallbacks: fallbacks.map(|(why, times)| (why.to_string(), times)).collect(),
            etag: report.etag,
            version: report.version,
            object_bytes: report.object_bytes,
            durability: report.durability.to_string(),
        }
    }
}

#[pymethods]
impl Report {
    fn __repr__(&self) -> String {
        let Self { bytes, path, strength, retries, .. } = self;
        let checked = match (&self.checksum, &self.unverified) {
            (Some(sum), _) => format!("verified {sum}"),
            (None, why) => why.clone().unwrap_or_default(),
        };
        let fallbacks: u32 = self.fallbacks.values().sum();
        format!(
            "<keyway.Result {bytes} bytes by {path}, key strength {strength}, {checked}, \
             {retries} retries, {fallbacks} fallbacks>"
        )
    }
}

/// An object as the service describes it.
#[pyclass(frozen, get_all, module = "keyway", name = "ObjectInfo")]
pub(crate) struct ObjectInfoView {
    size: u64,
    etag: Option<String>,
    version: Option<String>,
    /// Seconds since 1970.
    modified: Option<f64>,
    content_type: Option<String>,
    metadata: BTreeMap<String, String>,
    checksums: BTreeMap<String, String>,
}

impl From<ObjectInfo> for ObjectInfoView {
    fn from(info: ObjectInfo) -> Self {
        let sums = info.checksums.iter();
        Self {
            size: info.size,
            etag: info.etag,
            version: info.version,
            modified: info.last_modified.map(|at| at.as_duration().as_secs_f64()),
            content_type: info.content_type,
            metadata: info.metadata,
            checksums: sums.map(|sum| (sum.kind().to_string(), sum.to_base64())).collect(),
        }
    }
}

#[pymethods]
impl ObjectInfoView {
    fn __repr__(&self) -> String {
        format!("<keyway.ObjectInfo of {} bytes, ETag {:?}>", self.size, self.etag)
    }
}

/// An entry of a listing.
#[pyclass(frozen, get_all, module = "keyway")]
pub(crate) struct ListedObject {
    key: String,
    size: Option<u64>,
    etag: Option<String>,
    /// Seconds since 1970.
    modified: Option<f64>,
    /// Whether it is no object but what the delimiter rolled up.
    is_prefix: bool,
}

impl From<Listed> for ListedObject {
    fn from(entry: Listed) -> Self {
        match entry {
            Listed::Object { key, bytes, etag, modified } => Self {
                key,
                size: Some(bytes),
                etag: Some(etag),
                modified: modified.map(|at| at.as_duration().as_secs_f64()),
                is_prefix: false,
            },
            Listed::Prefix(key) => {
                Self { key, size: None, etag: None, modified: None, is_prefix: true }
            }
        }
    }
}

#[pymethods]
impl ListedObject {
    fn __repr__(&self) -> String {
        match self.size {
            Some(size) => format!("<keyway.ListedObject {:?}, {size} bytes>", self.key),
            None => format!("<keyway.ListedObject {:?}, a prefix>", self.key),
        }
    }
}
