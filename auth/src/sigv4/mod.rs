//! Signing of requests by AWS Signature Version 4, the client's side; and the signatures of POST
//! policies, which the protocol layer does not verify.
//!
//! Time is passed in and the transport is somebody else's: a [`Signer`] turns a request's
//! head into a signed one. The canonical forms are those of the `s3s-sigv4` crate, the same
//! that the server verifies with.
//!
//! Cost per signature: three SHA-256 runs over less than 1 KiB, four more once a day for
//! the signing key, and a handful of short allocations. `cargo bench -p keyway-auth` shows it.

mod canonical;
mod header;
mod post;
mod presign;

use std::fmt;
use std::sync::{Arc, RwLock};

use jiff::Timestamp;
use s3s_sigv4::AmzDate;
use secrecy::{ExposeSecret, SecretString};
use zeroize::Zeroizing;

use crate::credential::{AccessKeyId, SecretKey};

pub use header::Payload;
pub use post::{PostScope, is_signature_of_policy};
pub use presign::PRESIGN_EXPIRY_MAX;

/// Signs requests of one access key for one region and service.
pub struct Signer {
    access_key: AccessKeyId,
    secret: SecretKey,
    session_token: Option<SecretString>,
    region: Arc<str>,
    service: Arc<str>,
    day_key: RwLock<Option<Arc<DayKey>>>,
}

/// The key derived from the secret for one UTC day.
struct DayKey {
    day: String,
    key: Zeroizing<[u8; 32]>,
}

/// Why a request could not be signed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// There is nothing to sign with.
    #[error("signing needs credentials")]
    NoCredentials,
    /// The request names no host, neither in its URI nor in a header.
    #[error("the request names no host")]
    NoHost,
    /// A header that must be signed is not text.
    #[error("the header {0} is not valid UTF-8")]
    HeaderNotText(http::HeaderName),
    /// A value that belongs into a header cannot stand there.
    #[error("a value cannot stand in a header")]
    HeaderValue(#[from] http::header::InvalidHeaderValue),
    /// The signed address is not a URI.
    #[error("the presigned address is not a URI")]
    Uri(#[from] http::Error),
    /// The time has no four-digit year.
    #[error("the time {0} cannot be written in a signature")]
    Time(Timestamp),
    /// A presigned URL would live longer than S3's seven days, or not at all.
    #[error("a presigned URL lives between 1 s and 7 days")]
    Expiry,
}

impl Signer {
    /// A signer for `region` (such as `us-east-1`) and `service` (`s3`).
    pub fn new(access_key: AccessKeyId, secret: SecretKey, region: &str, service: &str) -> Self {
        Self {
            access_key,
            secret,
            session_token: None,
            region: region.into(),
            service: service.into(),
            day_key: RwLock::new(None),
        }
    }

    /// Adds the token of temporary credentials; it travels, signed, with every request.
    #[must_use]
    pub fn with_session_token(mut self, token: SecretString) -> Self {
        self.session_token = Some(token);
        self
    }

    /// The access key that signs.
    pub fn access_key(&self) -> &AccessKeyId {
        &self.access_key
    }

    /// The region that signatures are made for.
    pub fn region(&self) -> &str {
        &self.region
    }

    fn session_token(&self) -> Option<&str> {
        self.session_token.as_ref().map(ExposeSecret::expose_secret)
    }

    /// The signing key of `date`'s day, derived once a day.
    fn day_key(&self, date: &AmzDate) -> Arc<DayKey> {
        let day = date.fmt_date();
        // A poisoned lock holds a whole value all the same: it is only ever replaced.
        let cached = self.day_key.read().unwrap_or_else(|e| e.into_inner()).clone();
        if let Some(key) = cached.filter(|key| key.day == *day) {
            return key;
        }
        let key =
            s3s_sigv4::derive_signing_key(self.secret.expose(), date, &self.region, &self.service);
        let key = Arc::new(DayKey { day: day.as_str().to_owned(), key: Zeroizing::new(key) });
        *self.day_key.write().unwrap_or_else(|e| e.into_inner()) = Some(Arc::clone(&key));
        key
    }

    /// The signature, in hexadecimal, of a canonical request.
    fn signature(&self, canonical_request: &str, date: &AmzDate) -> String {
        let text =
            s3s_sigv4::create_string_to_sign(canonical_request, date, &self.region, &self.service);
        let key = self.day_key(date);
        hex::encode(s3s_sigv4::calculate_signature_with_key(&text, &key.key))
    }

    /// `key-id/day/region/service/aws4_request`.
    fn credential(&self, date: &AmzDate) -> String {
        let (id, day) = (&self.access_key, date.fmt_date());
        format!("{id}/{day}/{}/{}/aws4_request", self.region, self.service)
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer")
            .field("access_key", &self.access_key)
            .field("region", &self.region)
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}

/// The signature's form of a time, whole seconds of UTC.
fn amz_date(now: Timestamp) -> Result<AmzDate, SignError> {
    let utc = now.to_zoned(jiff::tz::TimeZone::UTC);
    let text = format!(
        "{:04}{:02}{:02}T{:02}{:02}{:02}Z",
        utc.year(),
        utc.month(),
        utc.day(),
        utc.hour(),
        utc.minute(),
        utc.second()
    );
    AmzDate::parse(&text).map_err(|_| SignError::Time(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_secret_is_printed() {
        let signer = Signer::new(
            AccessKeyId::new("AKID"),
            SecretKey::new("very-secret".to_owned()),
            "us-east-1",
            "s3",
        )
        .with_session_token("token-secret".to_owned().into());
        let shown = format!("{signer:?}");
        assert!(shown.contains("AKID") && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn the_signing_key_changes_with_the_day() {
        let signer = Signer::new(
            AccessKeyId::new("AKID"),
            SecretKey::new("secret".to_owned()),
            "us-east-1",
            "s3",
        );
        let date = |text: &str| amz_date(text.parse().expect("a time")).expect("in range");
        let morning = signer.day_key(&date("2026-11-20T00:00:00Z"));
        let evening = signer.day_key(&date("2026-11-20T23:59:59Z"));
        let tomorrow = signer.day_key(&date("2026-11-21T00:00:00Z"));
        assert!(Arc::ptr_eq(&morning, &evening), "derived once a day");
        assert_ne!(*morning.key, *tomorrow.key);
    }

    #[test]
    fn a_time_without_a_four_digit_year_is_refused() {
        let now: Timestamp = "-000044-03-15T00:00:00Z".parse().expect("a time");
        assert!(matches!(amz_date(now), Err(SignError::Time(_))));
    }
}
