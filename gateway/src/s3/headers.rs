//! The headers that are stored with an object, and those that are refused.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName};
use keyway_meta::{ObjectHeaders, ObjectLock};
use s3s::S3ErrorCode;
use s3s::dto::{Metadata, StorageClass};

use super::errors::Failure;
use super::tagging;

/// User metadata's limit: names and values together, S3's own.
const USER_METADATA_BYTES_MAX: usize = 2048;

/// A declared ACL that changes nothing where the owner has full control anyway.
const HARMLESS_ACLS: [&str; 2] = ["private", "bucket-owner-full-control"];

/// Classes that are stored and reported as given. Archive classes are not among them: their
/// objects would have to be restored before they can be read.
const STORAGE_CLASSES: [&str; 6] = [
    "STANDARD",
    "REDUCED_REDUNDANCY",
    "STANDARD_IA",
    "ONEZONE_IA",
    "INTELLIGENT_TIERING",
    "GLACIER_IR",
];

/// Collects the stored headers of an input that has S3's fields for them. A macro, for the
/// protocol layer has one type per operation and no trait over them.
macro_rules! object_headers {
    ($core:expr, $input:expr) => {
        $crate::s3::headers::collect($crate::s3::headers::Fields {
            content_type: $input.content_type.take(),
            content_encoding: $input.content_encoding.take(),
            content_language: $input.content_language.take(),
            content_disposition: $input.content_disposition.take(),
            cache_control: $input.cache_control.take(),
            expires: $input.expires.take(),
            storage_class: $input.storage_class.take(),
            website_redirect_location: $input.website_redirect_location.take(),
            metadata: $input.metadata.take(),
            tagging: $input.tagging.take(),
            lock: $crate::s3::lock::of_headers(
                $core,
                $input.object_lock_mode.as_ref(),
                $input.object_lock_retain_until_date.as_ref(),
                $input.object_lock_legal_hold_status.as_ref(),
            )?,
        })
    };
}
pub(super) use object_headers;

/// The fields that [`object_headers!`] takes out of an input.
pub(super) struct Fields {
    pub(super) content_type: Option<String>,
    pub(super) content_encoding: Option<String>,
    pub(super) content_language: Option<String>,
    pub(super) content_disposition: Option<String>,
    pub(super) cache_control: Option<String>,
    pub(super) expires: Option<String>,
    pub(super) storage_class: Option<StorageClass>,
    pub(super) website_redirect_location: Option<String>,
    pub(super) metadata: Option<Metadata>,
    pub(super) tagging: Option<String>,
    pub(super) lock: ObjectLock,
}

/// Checks the fields and puts them into the form that the catalog keeps.
///
/// # Errors
/// `MetadataTooLarge`, `InvalidStorageClass`, and those of tags.
pub(super) fn collect(fields: Fields) -> Result<ObjectHeaders, Failure> {
    Ok(ObjectHeaders {
        content_type: fields.content_type,
        content_encoding: fields.content_encoding.and_then(without_aws_chunked),
        content_language: fields.content_language,
        content_disposition: fields.content_disposition,
        cache_control: fields.cache_control,
        expires: fields.expires,
        storage_class: storage_class(fields.storage_class.as_ref())?,
        website_redirect_location: fields.website_redirect_location,
        user: user_metadata(fields.metadata)?,
        tags: tagging::of_header(fields.tagging.as_deref())?,
        lock: fields.lock,
        encryption: None,
    })
}

/// Refuses the headers of features that this server does not have, rather than ignoring what
/// the client relies on.
///
/// # Errors
/// `NotImplemented`, and `AccessControlListNotSupported` for ACLs that would open an object.
pub(super) fn refuse_unsupported(headers: &HeaderMap) -> Result<(), Failure> {
    for name in headers.keys() {
        let Some(rest) = name.as_str().strip_prefix("x-amz-") else { continue };
        if rest == "write-offset-bytes" {
            return Err(Failure::not_implemented(
                "A header you provided implies functionality that is not implemented.",
            ));
        }
        let open_acl = rest == "acl" && !harmless_acl(headers, name);
        if open_acl || rest.starts_with("grant-") {
            return Err(Failure::code(S3ErrorCode::AccessControlListNotSupported));
        }
    }
    Ok(())
}

fn harmless_acl(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers
        .get_all(name)
        .into_iter()
        .all(|value| HARMLESS_ACLS.iter().any(|acl| value.as_bytes() == acl.as_bytes()))
}

/// `aws-chunked` tells how the body travelled; it is no property of the object.
fn without_aws_chunked(encoding: String) -> Option<String> {
    let is_chunked = |part: &str| part.trim().eq_ignore_ascii_case("aws-chunked");
    if !encoding.split(',').any(is_chunked) {
        return Some(encoding);
    }
    let rest: Vec<&str> =
        encoding.split(',').filter(|part| !is_chunked(part)).map(str::trim).collect();
    (!rest.is_empty()).then(|| rest.join(","))
}

fn storage_class(class: Option<&StorageClass>) -> Result<Option<String>, Failure> {
    match class.map(StorageClass::as_str) {
        None | Some("STANDARD") => Ok(None),
        Some(name) if STORAGE_CLASSES.contains(&name) => Ok(Some(name.to_owned())),
        Some(_) => Err(Failure::code(S3ErrorCode::InvalidStorageClass)),
    }
}

fn user_metadata(metadata: Option<Metadata>) -> Result<BTreeMap<String, String>, Failure> {
    let metadata = metadata.unwrap_or_default();
    let bytes: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > USER_METADATA_BYTES_MAX {
        return Err(Failure::code(S3ErrorCode::MetadataTooLarge));
    }
    Ok(metadata.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_transfers_encoding_is_not_stored() {
        for (given, stored) in [
            ("gzip", Some("gzip")),
            ("aws-chunked", None),
            ("aws-chunked,gzip", Some("gzip")),
            ("gzip, aws-chunked, br", Some("gzip,br")),
        ] {
            assert_eq!(without_aws_chunked(given.to_owned()).as_deref(), stored, "{given}");
        }
    }

    #[test]
    fn what_would_be_ignored_is_refused() {
        for (name, value, accepted) in [
            ("x-amz-acl", "private", true),
            ("x-amz-acl", "public-read", false),
            ("x-amz-grant-read", "id=1", false),
            ("x-amz-object-lock-mode", "GOVERNANCE", true),
            ("x-amz-tagging", "a=b", true),
            ("x-amz-meta-tagging", "a", true),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
            assert_eq!(refuse_unsupported(&headers).is_ok(), accepted, "{name}: {value}");
        }
    }

    #[test]
    fn metadata_is_bounded() {
        let fits = Metadata::from([("a".to_owned(), "b".repeat(USER_METADATA_BYTES_MAX - 1))]);
        let over = Metadata::from([("a".to_owned(), "b".repeat(USER_METADATA_BYTES_MAX))]);
        assert!(user_metadata(Some(fits)).is_ok());
        assert!(user_metadata(Some(over)).is_err());
    }
}
