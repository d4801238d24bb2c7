//! What a service is given to check bytes with.
//!
//! Their CRC64NVME, until the service shows that it does not know it: that one is cheap, and those
//! of parts give that of the whole. A service that refuses it, or takes no notice of it, is given
//! the MD5 of each body, which S3 has always known; it costs a pass over the bytes of about
//! 0.6 GB/s.

use futures::TryStreamExt as _;
use keyway_proto::checksum::Hasher;
use keyway_proto::{Checksum, ChecksumKind};
use parking_lot::Mutex;

use crate::error::ClientError;
use crate::http::CallBody;

/// Bytes that are hashed before others get their turn: 2 ms.
const HASHED_AT_ONCE_BYTES: usize = 1 << 20;

/// What a client has learned of its service.
#[derive(Debug, Default)]
pub(crate) struct Checks(Mutex<Known>);

/// What a service does with a CRC64NVME.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Known {
    #[default]
    Untold,
    /// Repeats it, and so has checked it.
    Repeats,
    /// Stores the bytes, and says nothing of it.
    Ignores,
    /// Stores the bytes only without it.
    Refuses,
}

impl Checks {
    /// Whether requests carry a CRC64NVME.
    pub(super) fn send_crc64nvme(&self) -> bool {
        *self.0.lock() != Known::Refuses
    }

    /// Whether requests carry an MD5.
    pub(super) fn send_md5(&self) -> bool {
        matches!(*self.0.lock(), Known::Ignores | Known::Refuses)
    }

    /// Takes in a success: whether the request carried a CRC64NVME, and whether the answer
    /// repeated it.
    pub(super) fn answered(&self, carried: bool, repeated: bool) {
        let mut known = self.0.lock();
        *known = match (carried, repeated, *known) {
            (false, ..) => Known::Refuses,
            (true, true, _) => Known::Repeats,
            (true, false, Known::Untold) => Known::Ignores,
            (true, false, known) => known,
        };
    }

    /// Whether a request that was refused for this reason may be taken without a CRC64NVME. The
    /// codes say little, and services differ: only the request's success without it tells.
    pub(super) fn may_blame(&self, error: &ClientError) -> bool {
        if *self.0.lock() == Known::Repeats {
            return false;
        }
        let status = error.status().map(|status| status.as_u16());
        match (status, error.code()) {
            (Some(501), _) => true,
            // The last is an answer without a document.
            (Some(400), Some(code)) => matches!(
                code,
                "InvalidRequest" | "InvalidArgument" | "NotImplemented" | "Bad Request"
            ),
            _ => false,
        }
    }
}

/// The MD5 of a body.
///
/// # Errors
/// When the GPU that it lies in fails.
pub(super) async fn md5(body: &CallBody) -> Result<Checksum, ClientError> {
    let mut hasher = Hasher::new(ChecksumKind::Md5);
    match body {
        CallBody::Bytes(bytes) => {
            for piece in bytes.chunks(HASHED_AT_ONCE_BYTES) {
                hasher.update(piece);
                tokio::task::yield_now().await;
            }
        }
        CallBody::Fetched(fetched) => {
            let mut pieces = fetched.pieces();
            while let Some(piece) = pieces.try_next().await? {
                hasher.update(&piece);
            }
        }
    }
    Ok(hasher.finish())
}

/// Whether an ETag is this MD5. One that is not may be none: encryption has others.
pub(super) fn is_etag(md5: &Checksum, etag: &str) -> bool {
    let hex: String = md5.value().iter().map(|byte| format!("{byte:02x}")).collect();
    etag.trim_matches('"').eq_ignore_ascii_case(&hex)
}

#[cfg(test)]
mod tests {
    use ::http::StatusCode;

    use super::*;
    use crate::error::ServiceError;

    fn refusal(status: u16, code: &str) -> ClientError {
        ClientError::Service(Box::new(ServiceError {
            status: StatusCode::from_u16(status).expect("a status"),
            code: code.to_owned(),
            message: String::new(),
            request_id: None,
        }))
    }

    #[test]
    fn only_a_service_that_never_repeated_it_is_asked_without() {
        let checks = Checks::default();
        for (status, code, may) in [
            (501, "NotImplemented", true),
            (501, "Not Implemented", true),
            (400, "InvalidRequest", true),
            (400, "InvalidArgument", true),
            (400, "Bad Request", true),
            (400, "BadDigest", false),
            (403, "AccessDenied", false),
            (500, "InternalError", false),
        ] {
            assert_eq!(checks.may_blame(&refusal(status, code)), may, "{status} {code}");
        }
        checks.answered(true, true);
        assert!(!checks.may_blame(&refusal(400, "InvalidRequest")));
        assert!(checks.send_crc64nvme() && !checks.send_md5());
    }

    #[test]
    fn what_was_learned_stays() {
        let checks = Checks::default();
        checks.answered(true, false);
        assert!(checks.send_crc64nvme() && checks.send_md5(), "ignored");
        checks.answered(false, false);
        assert!(!checks.send_crc64nvme() && checks.send_md5(), "refused");
        checks.answered(true, false);
        assert!(!checks.send_crc64nvme(), "an answer that says nothing takes nothing back");
        let known = Checks::default();
        known.answered(true, true);
        known.answered(true, false);
        assert!(!known.send_md5());
    }

    #[tokio::test]
    async fn an_etag_is_an_md5_or_not() {
        let body = CallBody::Bytes(bytes::Bytes::from_static(b"abc"));
        let md5 = md5(&body).await.expect("in memory");
        assert!(is_etag(&md5, "\"900150983cd24fb0d6963f7d28e17f72\""));
        assert!(!is_etag(&md5, "\"900150983cd24fb0d6963f7d28e17f72-1\""));
        assert!(!is_etag(&md5, ""));
    }
}
