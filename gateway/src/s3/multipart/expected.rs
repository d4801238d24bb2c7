//! What the client of a CompleteMultipartUpload says of the object. It is compared within the commit
//! that makes the object, so that completing once more is answered as the first time.

use keyway_meta::{ChecksumType, Part, Upload};
use keyway_proto::{Checksum, ChecksumKind};
use s3s::S3ErrorCode;
use s3s::dto::CompleteMultipartUploadInput;

use crate::s3::checksums;
use crate::s3::errors::Failure;

/// What the object is to be.
#[derive(Debug)]
pub(super) struct Expected {
    /// `x-amz-mp-object-size`.
    size: Option<i64>,
    /// `x-amz-checksum-type`.
    of: Option<s3s::dto::ChecksumType>,
    /// `x-amz-checksum-*`. Its value the catalog compares.
    pub(super) checksum: Option<Checksum>,
}

impl Expected {
    /// Of an object of so many parts.
    ///
    /// # Errors
    /// `InvalidRequest` for a malformed checksum or several, and `BadDigest` for one that says to be
    /// of another number of parts.
    pub(super) fn of(input: &CompleteMultipartUploadInput, parts: usize) -> Result<Self, Failure> {
        Ok(Self {
            size: input.mpu_object_size,
            of: input.checksum_type.clone(),
            checksum: claimed_checksum(input, parts)?,
        })
    }

    /// Compares with the upload and the parts chosen.
    ///
    /// # Errors
    /// `InvalidRequest`.
    pub(super) fn accept(&self, upload: &Upload, parts: &[&Part]) -> Result<(), Failure> {
        self.accept_size(parts)?;
        self.accept_type(upload)?;
        self.accept_algorithm(upload, parts)
    }

    fn accept_size(&self, parts: &[&Part]) -> Result<(), Failure> {
        let Some(expected) = self.size else { return Ok(()) };
        let size: u64 = parts.iter().map(|part| part.size).sum();
        if u64::try_from(expected) == Ok(size) {
            return Ok(());
        }
        Err(Failure::refuse(
            S3ErrorCode::InvalidRequest,
            format!(
                "The provided 'x-amz-mp-object-size' header value {expected} does not match what \
                 was computed: {size}"
            ),
        ))
    }

    fn accept_type(&self, upload: &Upload) -> Result<(), Failure> {
        let (_, of) =
            upload.checksum.unwrap_or((ChecksumKind::Crc64Nvme, ChecksumType::FullObject));
        if self.of.as_ref().is_none_or(|given| *given == checksums::type_name(of)) {
            return Ok(());
        }
        Err(Failure::refuse(
            S3ErrorCode::InvalidRequest,
            "The upload was created with another checksum type. The complete request must include \
             the same checksum type.",
        ))
    }

    /// A checksum that nothing can be compared with is refused: its client takes it for checked.
    fn accept_algorithm(&self, upload: &Upload, parts: &[&Part]) -> Result<(), Failure> {
        let Some(kind) = self.checksum.as_ref().map(Checksum::kind) else { return Ok(()) };
        let lacks = |part: &&Part| part.checksums.iter().all(|checksum| checksum.kind() != kind);
        let reason = match upload.checksum {
            Some((expected, _)) if expected != kind => format!(
                "The upload was created with the {expected} checksum algorithm. The complete \
                 request must include a checksum of the same algorithm, not of {kind}."
            ),
            None if !kind.combines() || parts.iter().any(lacks) => format!(
                "The upload was created without a checksum algorithm, and the {kind} of the object \
                 does not follow from its parts."
            ),
            _ => return Ok(()),
        };
        Err(Failure::refuse(S3ErrorCode::InvalidRequest, reason))
    }
}

/// The checksum that the client gives for the whole. A composite one may carry `-N`, as answers do;
/// some clients send the value alone.
fn claimed_checksum(
    input: &CompleteMultipartUploadInput,
    parts: usize,
) -> Result<Option<Checksum>, Failure> {
    let given = [
        (ChecksumKind::Crc32, &input.checksum_crc32),
        (ChecksumKind::Crc32c, &input.checksum_crc32c),
        (ChecksumKind::Crc64Nvme, &input.checksum_crc64nvme),
        (ChecksumKind::Sha1, &input.checksum_sha1),
        (ChecksumKind::Sha256, &input.checksum_sha256),
    ];
    let mut given = given.into_iter().filter_map(|(kind, text)| text.as_ref().map(|t| (kind, t)));
    let Some((kind, text)) = given.next() else { return Ok(None) };
    let invalid = || {
        let name = checksums::header_of(kind);
        let reason = format!("Value for {name} header is invalid.");
        Failure::refuse(S3ErrorCode::InvalidRequest, reason)
    };
    let (value, count) = match text.split_once('-') {
        Some((value, count)) => (value, Some(count.parse::<usize>().map_err(|_| invalid())?)),
        None => (text.as_str(), None),
    };
    let checksum = Checksum::from_base64(kind, value).ok_or_else(invalid)?;
    if given.next().is_some() {
        return Err(invalid());
    }
    if count.is_some_and(|count| count != parts) {
        return Err(Failure::code(S3ErrorCode::BadDigest));
    }
    Ok(Some(checksum))
}
