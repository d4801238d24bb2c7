//! The checksums that a client declares, and those that it is told.

use http::{HeaderMap, HeaderName};
use keyway_meta::{ChecksumType, ObjectChecksum};
use keyway_proto::{Checksum, ChecksumKind, DigestSet, Digests};
use s3s::{S3ErrorCode, TrailingHeaders, dto};

use super::errors::Failure;

/// The kinds that S3 knows as `x-amz-checksum-*`, with their headers.
pub(super) const KINDS: [(ChecksumKind, HeaderName); 5] = [
    (ChecksumKind::Crc32, HeaderName::from_static("x-amz-checksum-crc32")),
    (ChecksumKind::Crc32c, HeaderName::from_static("x-amz-checksum-crc32c")),
    (ChecksumKind::Crc64Nvme, HeaderName::from_static("x-amz-checksum-crc64nvme")),
    (ChecksumKind::Sha1, HeaderName::from_static("x-amz-checksum-sha1")),
    (ChecksumKind::Sha256, HeaderName::from_static("x-amz-checksum-sha256")),
];

const PREFIX: &str = "x-amz-checksum-";
const TRAILER: HeaderName = HeaderName::from_static("x-amz-trailer");
const SDK_ALGORITHM: HeaderName = HeaderName::from_static("x-amz-sdk-checksum-algorithm");
const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");

/// What a client says of the bytes that it sends.
#[derive(Debug, Default)]
pub(super) struct Declared {
    md5: Option<Checksum>,
    checksum: Option<(ChecksumKind, Given)>,
}

/// Where a declared checksum's value is.
#[derive(Debug, Clone, Copy)]
enum Given {
    Header(Checksum),
    Trailer,
}

impl Declared {
    /// Reads the declarations out of a request's headers.
    ///
    /// # Errors
    /// `InvalidDigest` for a malformed Content-MD5, and `InvalidRequest` for malformed,
    /// unknown, contradicting or several checksums.
    pub(super) fn from_headers(headers: &HeaderMap) -> Result<Self, Failure> {
        let mut checksum = None;
        for name in headers.keys() {
            let Some(algorithm) = name.as_str().strip_prefix(PREFIX) else { continue };
            if matches!(algorithm, "algorithm" | "type" | "mode") {
                continue;
            }
            let kind = kind_of_header(name.as_str())?;
            let value = unique_text(headers, name)
                .and_then(|text| Checksum::from_base64(kind, text))
                .ok_or_else(|| invalid_value(name.as_str()))?;
            if checksum.replace((kind, Given::Header(value))).is_some() {
                return Err(several());
            }
        }
        for name in trailer_names(headers) {
            let kind = kind_of_header(name)?;
            if checksum.replace((kind, Given::Trailer)).is_some() {
                return Err(several());
            }
        }
        let declared = Self { md5: content_md5(headers)?, checksum };
        declared.agrees_with_sdk(headers)?;
        Ok(declared)
    }

    /// Whether nothing was declared.
    pub(super) fn is_empty(&self) -> bool {
        self.md5.is_none() && self.checksum.is_none()
    }

    /// The kind that the client chose, if any.
    pub(super) fn kind(&self) -> Option<ChecksumKind> {
        self.checksum.map(|(kind, _)| kind)
    }

    /// The kinds that must be computed to check the declarations.
    pub(super) fn digests(&self) -> DigestSet {
        self.md5.iter().map(Checksum::kind).chain(self.kind()).collect()
    }

    /// Compares what was declared with what was computed. Call it when the body has ended:
    /// trailers are known only then.
    ///
    /// # Errors
    /// `BadDigest` for bytes that are not the declared ones, and `MalformedTrailerError` for a
    /// trailer that was announced and did not come, or came without being announced.
    pub(super) fn verify(
        &self,
        digests: &Digests,
        trailers: Option<&TrailingHeaders>,
    ) -> Result<(), Failure> {
        let trailers = trailers.and_then(TrailingHeaders::take).unwrap_or_default();
        self.trailers_as_announced(&trailers)?;
        if let Some(md5) = &self.md5
            && digests.value(ChecksumKind::Md5) != Some(md5)
        {
            return Err(Failure::code(S3ErrorCode::BadDigest));
        }
        let Some((kind, given)) = self.checksum else { return Ok(()) };
        let expected = match given {
            Given::Header(value) => value,
            Given::Trailer => {
                let name = header_of(kind);
                unique_text(&trailers, &name)
                    .and_then(|text| Checksum::from_base64(kind, text))
                    .ok_or_else(|| invalid_value(name.as_str()))?
            }
        };
        if digests.value(kind) == Some(&expected) {
            return Ok(());
        }
        Err(Failure::refuse(
            S3ErrorCode::BadDigest,
            format!("The {kind} you specified did not match the calculated checksum."),
        ))
    }

    fn trailers_as_announced(&self, trailers: &HeaderMap) -> Result<(), Failure> {
        let announced = match self.checksum {
            Some((kind, Given::Trailer)) => Some(header_of(kind)),
            _ => None,
        };
        let unannounced = trailers
            .keys()
            .any(|name| name.as_str().starts_with(PREFIX) && Some(name) != announced.as_ref());
        let missing = announced.as_ref().is_some_and(|name| !trailers.contains_key(name));
        if unannounced || missing {
            return Err(malformed_trailer());
        }
        Ok(())
    }

    fn agrees_with_sdk(&self, headers: &HeaderMap) -> Result<(), Failure> {
        let Some(value) = headers.get(&SDK_ALGORITHM) else { return Ok(()) };
        let named = value.to_str().ok().and_then(kind_by_name).ok_or_else(unknown_algorithm)?;
        match self.kind() {
            Some(kind) if kind == named => Ok(()),
            Some(_) => Err(invalid_value(SDK_ALGORITHM.as_str())),
            None => Err(Failure::refuse(
                S3ErrorCode::InvalidRequest,
                "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* \
                 or x-amz-trailer headers were found.",
            )),
        }
    }
}

/// The kind with S3's name, in any case; `None` for a name that is not supported.
pub(super) fn kind_by_name(name: &str) -> Option<ChecksumKind> {
    KINDS.iter().map(|(kind, _)| *kind).find(|kind| kind.to_string().eq_ignore_ascii_case(name))
}

/// The refusal of an algorithm that is not one of [`KINDS`].
pub(super) fn unknown_algorithm() -> Failure {
    Failure::refuse(
        S3ErrorCode::InvalidRequest,
        "Checksum algorithm provided is unsupported. Please try again with any of the valid \
         types: [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]",
    )
}

/// The header of one of [`KINDS`].
pub(super) fn header_of(kind: ChecksumKind) -> HeaderName {
    let found = KINDS.into_iter().find(|(known, _)| *known == kind);
    found.map_or(CONTENT_MD5, |(_, name)| name)
}

/// The text form of an object's or a part's checksum, as the fields of an answer.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) crc32: Option<String>,
    pub(super) crc32c: Option<String>,
    pub(super) crc64nvme: Option<String>,
    pub(super) sha1: Option<String>,
    pub(super) sha256: Option<String>,
    pub(super) kind: Option<dto::ChecksumType>,
}

impl Told {
    /// An object's checksum; `parts` is the number after the dash of a composite one.
    pub(super) fn object(checksum: Option<&ObjectChecksum>, parts: usize) -> Self {
        let Some(checksum) = checksum else { return Self::default() };
        let mut text = checksum.value.to_base64();
        if checksum.kind == ChecksumType::Composite {
            text = format!("{text}-{parts}");
        }
        Self::one(checksum.value.kind(), text, Some(type_name(checksum.kind)))
    }

    /// A part's checksum.
    pub(super) fn part(checksum: Option<&Checksum>) -> Self {
        checksum
            .map_or_else(Self::default, |value| Self::one(value.kind(), value.to_base64(), None))
    }

    fn one(kind: ChecksumKind, text: String, of: Option<dto::ChecksumType>) -> Self {
        let mut told = Self { kind: of, ..Self::default() };
        let field = match kind {
            ChecksumKind::Crc32 => &mut told.crc32,
            ChecksumKind::Crc32c => &mut told.crc32c,
            ChecksumKind::Crc64Nvme => &mut told.crc64nvme,
            ChecksumKind::Sha1 => &mut told.sha1,
            ChecksumKind::Sha256 => &mut told.sha256,
            ChecksumKind::Md5 => return Self::default(),
        };
        *field = Some(text);
        told
    }
}

/// S3's name of a checksum's type.
pub(super) fn type_name(kind: ChecksumType) -> dto::ChecksumType {
    dto::ChecksumType::from_static(match kind {
        ChecksumType::FullObject => dto::ChecksumType::FULL_OBJECT,
        ChecksumType::Composite => dto::ChecksumType::COMPOSITE,
    })
}

/// S3's name of a checksum's algorithm.
pub(super) fn algorithm_name(kind: ChecksumKind) -> dto::ChecksumAlgorithm {
    dto::ChecksumAlgorithm::from_static(match kind {
        ChecksumKind::Crc32 => dto::ChecksumAlgorithm::CRC32,
        ChecksumKind::Crc32c => dto::ChecksumAlgorithm::CRC32C,
        ChecksumKind::Crc64Nvme => dto::ChecksumAlgorithm::CRC64NVME,
        ChecksumKind::Sha1 => dto::ChecksumAlgorithm::SHA1,
        ChecksumKind::Sha256 => dto::ChecksumAlgorithm::SHA256,
        ChecksumKind::Md5 => dto::ChecksumAlgorithm::MD5,
    })
}

fn kind_of_header(name: &str) -> Result<ChecksumKind, Failure> {
    KINDS
        .iter()
        .find(|(_, known)| known.as_str().eq_ignore_ascii_case(name))
        .map(|(kind, _)| *kind)
        .ok_or_else(|| {
            Failure::refuse(
                S3ErrorCode::InvalidRequest,
                "The algorithm type you specified in x-amz-checksum- header is invalid.",
            )
        })
}

fn trailer_names(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(TRAILER)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|name| !name.is_empty())
}

fn content_md5(headers: &HeaderMap) -> Result<Option<Checksum>, Failure> {
    if !headers.contains_key(CONTENT_MD5) {
        return Ok(None);
    }
    unique_text(headers, &CONTENT_MD5)
        .and_then(|text| Checksum::from_base64(ChecksumKind::Md5, text))
        .map(Some)
        .ok_or_else(|| Failure::code(S3ErrorCode::InvalidDigest))
}

fn unique_text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).into_iter();
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    value.to_str().ok()
}

fn invalid_value(name: &str) -> Failure {
    Failure::refuse(S3ErrorCode::InvalidRequest, format!("Value for {name} header is invalid."))
}

fn several() -> Failure {
    Failure::refuse(
        S3ErrorCode::InvalidRequest,
        "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
    )
}

fn malformed_trailer() -> Failure {
    Failure::refuse(
        S3ErrorCode::Custom("MalformedTrailerError".into()),
        "The request contained trailing data that was not well-formed or did not conform to \
         our published schema.",
    )
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    fn refused(pairs: &[(&'static str, &'static str)]) -> String {
        match Declared::from_headers(&headers(pairs)) {
            Err(Failure::Refused { code, .. }) => code.as_str().to_owned(),
            other => panic!("{pairs:?} gave {other:?}"),
        }
    }

    #[test]
    fn malformed_declarations_are_refused() {
        assert_eq!(refused(&[("content-md5", "AAAA")]), "InvalidDigest");
        assert_eq!(refused(&[("content-md5", "not base64")]), "InvalidDigest");
        assert_eq!(refused(&[("x-amz-checksum-crc32", "AAAA")]), "InvalidRequest");
        assert_eq!(refused(&[("x-amz-checksum-sha512", "AAAA")]), "InvalidRequest");
        assert_eq!(refused(&[("x-amz-trailer", "x-amz-meta-a")]), "InvalidRequest");
        assert_eq!(refused(&[("x-amz-sdk-checksum-algorithm", "CRC32")]), "InvalidRequest");
        assert_eq!(
            refused(&[
                ("x-amz-sdk-checksum-algorithm", "SHA1"),
                ("x-amz-checksum-crc32", "AAAAAA==")
            ]),
            "InvalidRequest"
        );
        assert_eq!(
            refused(&[
                ("x-amz-trailer", "x-amz-checksum-crc32c"),
                ("x-amz-checksum-crc32", "AAAAAA==")
            ]),
            "InvalidRequest"
        );
    }

    /// Goal: an announced trailer that never came is no success.
    #[test]
    fn a_missing_trailer_is_refused() {
        let declared =
            Declared::from_headers(&headers(&[("x-amz-trailer", "x-amz-checksum-crc32")]))
                .expect("well-formed");
        let digests = [Checksum::of(ChecksumKind::Crc32, b"")].into_iter().collect();
        assert!(declared.verify(&digests, None).is_err());
    }

    #[test]
    fn declared_and_computed_must_agree() {
        let value = Checksum::of(ChecksumKind::Sha256, b"abc");
        let mut map = HeaderMap::new();
        map.insert(
            header_of(ChecksumKind::Sha256),
            HeaderValue::try_from(value.to_base64()).expect("ascii"),
        );
        let declared = Declared::from_headers(&map).expect("well-formed");
        let right = [value].into_iter().collect();
        let wrong = [Checksum::of(ChecksumKind::Sha256, b"abd")].into_iter().collect();
        assert!(declared.verify(&right, None).is_ok());
        assert!(declared.verify(&wrong, None).is_err());
        assert!(declared.verify(&Digests::default(), None).is_err(), "nothing computed");
    }
}
