//! ETags: MD5, or something that nobody takes for one.

use keyway_meta::EtagPolicy;
use keyway_proto::{Checksum, ChecksumKind, DigestSet, Digests};
use s3s::S3ErrorCode;

use super::errors::Failure;

/// The digests that every body needs under this policy, whatever the client declares:
/// CRC64NVME always, MD5 where the ETag is one.
pub(super) fn digests(policy: EtagPolicy) -> DigestSet {
    let always = DigestSet::NONE.with(ChecksumKind::Crc64Nvme);
    match policy {
        EtagPolicy::Md5 => always.with(ChecksumKind::Md5),
        EtagPolicy::Crc64Nvme => always,
    }
}

/// The ETag of `size` bytes with these digests.
///
/// Under [`EtagPolicy::Crc64Nvme`] it is CRC and size in hexadecimal and a dash: tools that
/// compare a single-part ETag with an MD5 leave those with a dash alone.
///
/// # Errors
/// [`Failure::MissingDigest`] when the node did not compute what the policy needs.
pub(super) fn etag(policy: EtagPolicy, digests: &Digests, size: u64) -> Result<String, Failure> {
    match policy {
        EtagPolicy::Md5 => Ok(required(digests, ChecksumKind::Md5)?.to_hex()),
        EtagPolicy::Crc64Nvme => {
            let crc = required(digests, ChecksumKind::Crc64Nvme)?.to_hex();
            Ok(format!("{crc}{size:016x}-c"))
        }
    }
}

/// The digest of this kind, which the plan asked for.
///
/// # Errors
/// [`Failure::MissingDigest`] when the receipt lacks it.
pub(super) fn required(digests: &Digests, kind: ChecksumKind) -> Result<Checksum, Failure> {
    digests.value(kind).copied().ok_or(Failure::MissingDigest(kind))
}

/// Parses the header `x-keyway-etag-policy`.
///
/// # Errors
/// `InvalidArgument` for a name that is no policy.
pub(super) fn parse_policy(text: &str) -> Result<EtagPolicy, Failure> {
    match text {
        "md5" => Ok(EtagPolicy::Md5),
        "crc64nvme" => Ok(EtagPolicy::Crc64Nvme),
        _ => Err(Failure::refuse(
            S3ErrorCode::InvalidArgument,
            "x-keyway-etag-policy must be md5 or crc64nvme",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crc_etag_is_no_md5() {
        let digests: Digests =
            [Checksum::of(ChecksumKind::Crc64Nvme, b"123456789")].into_iter().collect();
        let text = etag(EtagPolicy::Crc64Nvme, &digests, 9).expect("computed");
        assert_eq!(text, "ae8b14860a7998880000000000000009-c");
        assert!(etag(EtagPolicy::Md5, &digests, 9).is_err());
    }
}
