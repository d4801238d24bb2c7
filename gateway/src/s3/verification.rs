//! When what is read is compared with its checksums: a bucket's choice, else its owner's, else the
//! operator's.
//!
//! What is copied within the service is compared always: a copy gets checksums of its own, and
//! damage must not become content.

use http::{HeaderMap, HeaderName, HeaderValue};
use keyway_meta::Bucket;
use keyway_proto::Verification;
use s3s::S3ErrorCode;

use super::Core;
use super::errors::Failure;

const HEADER: HeaderName = HeaderName::from_static("x-keyway-verify");

/// What the request for a new bucket asks for.
///
/// # Errors
/// `InvalidArgument` for a name that is none.
pub(super) fn asked(headers: &HeaderMap) -> Result<Option<Verification>, Failure> {
    let Some(value) = headers.get(HEADER) else { return Ok(None) };
    match Verification::named(value.to_str().unwrap_or_default()) {
        Some(verification) => Ok(Some(verification)),
        None => Err(Failure::refuse(
            S3ErrorCode::InvalidArgument,
            "x-keyway-verify must be before-delivery, inline or client",
        )),
    }
}

/// What holds for reads of the bucket.
pub(super) fn of(core: &Core, bucket: &Bucket) -> Verification {
    let of_owner = || core.credentials.terms(bucket.tenant).verification;
    bucket.settings.verification.or_else(of_owner).unwrap_or(core.verification)
}

/// Tells a reader that the bytes are its own to compare.
pub(super) fn tell(verification: Verification, headers: &mut HeaderMap) {
    if verification == Verification::Client {
        headers.insert(HEADER, HeaderValue::from_static(Verification::Client.as_str()));
    }
}
