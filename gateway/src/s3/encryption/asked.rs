//! What a request's headers say of encryption.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue};
use keyway_auth::CustomerKey;
use keyway_proto::{Checksum, ChecksumKind};
use s3s::S3ErrorCode;
use zeroize::Zeroizing;

use super::{ALGORITHM, BY_SERVICE, CUSTOMER_ALGORITHM, CUSTOMER_KEY_MD5};
use crate::s3::Core;
use crate::s3::errors::Failure;
use crate::server::RequestInfo;

const CUSTOMER_KEY: HeaderName =
    HeaderName::from_static("x-amz-server-side-encryption-customer-key");
const SOURCE_ALGORITHM: HeaderName =
    HeaderName::from_static("x-amz-copy-source-server-side-encryption-customer-algorithm");
const SOURCE_KEY: HeaderName =
    HeaderName::from_static("x-amz-copy-source-server-side-encryption-customer-key");
const SOURCE_KEY_MD5: HeaderName =
    HeaderName::from_static("x-amz-copy-source-server-side-encryption-customer-key-md5");
const OF_KMS: [HeaderName; 2] = [
    HeaderName::from_static("x-amz-server-side-encryption-aws-kms-key-id"),
    HeaderName::from_static("x-amz-server-side-encryption-context"),
];
const BUCKET_KEY: HeaderName =
    HeaderName::from_static("x-amz-server-side-encryption-bucket-key-enabled");

/// How a write is to be encrypted.
#[derive(Clone, Debug)]
pub(in crate::s3) enum Asked {
    /// As the bucket has it.
    Nothing,
    /// The service holds the key.
    Service,
    /// The customer holds it.
    Customer(Customer),
}

/// The key that a customer brought.
#[derive(Clone, Debug)]
pub(in crate::s3) struct Customer {
    pub(in crate::s3) key: CustomerKey,
    /// The key's MD5, as the request told it: its answer repeats it.
    pub(in crate::s3) md5: HeaderValue,
}

/// What a request for a new object asks for.
///
/// # Errors
/// `NotImplemented` for keys of a key service, `InvalidEncryptionAlgorithmError` for other methods,
/// `InvalidArgument` for both methods at once, and those of [`shown`].
pub(in crate::s3) fn asked(
    core: &Core,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<Asked, Failure> {
    let method = once(headers, &BY_SERVICE)?;
    let customer = customer(core, headers, extensions, &OF_OBJECT)?;
    match method {
        None => {}
        Some(method) if method == ALGORITHM => {}
        Some(method) if method.as_bytes().starts_with(b"aws:kms") => return Err(no_key_service()),
        Some(_) => {
            return Err(Failure::refuse(
                S3ErrorCode::InvalidEncryptionAlgorithmError,
                "The encryption request that you specified is not valid. Supported value: AES256.",
            ));
        }
    }
    let bucket_key = once(headers, &BUCKET_KEY)?;
    let wants_bucket_key = bucket_key.is_some_and(|value| value != "false");
    if wants_bucket_key || OF_KMS.iter().any(|name| headers.contains_key(name)) {
        return Err(no_key_service());
    }
    match (method, customer) {
        (None, None) => Ok(Asked::Nothing),
        (Some(_), None) => Ok(Asked::Service),
        (None, Some(customer)) => Ok(Asked::Customer(customer)),
        (Some(_), Some(_)) => Err(invalid(
            "Server Side Encryption with Customer provided key is incompatible with the \
             encryption method specified.",
        )),
    }
}

/// The customer's key in a request about an object, or an upload, that is there.
///
/// # Errors
/// `InvalidArgument` for a key that is none, or not the one whose MD5 is told, and for what only
/// new objects can ask for; `InvalidEncryptionAlgorithmError`; and `InvalidRequest` for a key that
/// came over plaintext.
pub(in crate::s3) fn shown(
    core: &Core,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<Option<Customer>, Failure> {
    if headers.contains_key(&BY_SERVICE) {
        return Err(invalid(
            "x-amz-server-side-encryption header is not supported for this operation.",
        ));
    }
    customer(core, headers, extensions, &OF_OBJECT)
}

/// The customer's key to the source of a copy.
///
/// # Errors
/// As [`shown`].
pub(in crate::s3) fn shown_for_source(
    core: &Core,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<Option<Customer>, Failure> {
    customer(core, headers, extensions, &OF_SOURCE)
}

/// The headers of a customer's key.
struct Names {
    algorithm: HeaderName,
    key: HeaderName,
    md5: HeaderName,
}

const OF_OBJECT: Names =
    Names { algorithm: CUSTOMER_ALGORITHM, key: CUSTOMER_KEY, md5: CUSTOMER_KEY_MD5 };
const OF_SOURCE: Names =
    Names { algorithm: SOURCE_ALGORITHM, key: SOURCE_KEY, md5: SOURCE_KEY_MD5 };

fn customer(
    core: &Core,
    headers: &HeaderMap,
    extensions: &Extensions,
    names: &Names,
) -> Result<Option<Customer>, Failure> {
    let (algorithm, key, md5) =
        (once(headers, &names.algorithm)?, once(headers, &names.key)?, once(headers, &names.md5)?);
    if algorithm.is_none() && key.is_none() && md5.is_none() {
        return Ok(None);
    }
    let over_tls = extensions.get::<RequestInfo>().is_some_and(|info| info.tls().is_some());
    if !over_tls && !core.customer_keys_without_tls {
        return Err(Failure::refuse(
            S3ErrorCode::InvalidRequest,
            "Requests specifying Server Side Encryption with Customer provided keys must be made \
             over a secure connection.",
        ));
    }
    customer_of(algorithm, key, md5).map(Some)
}

fn customer_of(
    algorithm: Option<&HeaderValue>,
    key: Option<&HeaderValue>,
    md5: Option<&HeaderValue>,
) -> Result<Customer, Failure> {
    let algorithm = algorithm.ok_or_else(|| {
        invalid(
            "Requests specifying Server Side Encryption with Customer provided keys must provide a \
             valid encryption algorithm.",
        )
    })?;
    if algorithm != ALGORITHM {
        return Err(Failure::refuse(
            S3ErrorCode::InvalidEncryptionAlgorithmError,
            "The encryption request that you specified is not valid. Supported value: AES256.",
        ));
    }
    let key = key.ok_or_else(|| {
        invalid(
            "Requests specifying Server Side Encryption with Customer provided keys must provide an \
             appropriate secret key.",
        )
    })?;
    let md5 = md5.ok_or_else(|| {
        invalid(
            "Requests specifying Server Side Encryption with Customer provided keys must provide \
             the client calculated MD5 of the secret key.",
        )
    })?;
    let bytes = BASE64.decode(key.as_bytes()).map(Zeroizing::new);
    let bytes = bytes.ok().filter(|bytes| bytes.len() == CustomerKey::BYTES);
    let bytes =
        bytes.ok_or_else(|| invalid("The secret key was invalid for the specified algorithm."))?;
    let computed = Checksum::of(ChecksumKind::Md5, &bytes).to_base64();
    if md5.as_bytes() != computed.as_bytes() {
        return Err(invalid(
            "The calculated MD5 hash of the key did not match the hash that was provided.",
        ));
    }
    let key = CustomerKey::from_slice(&bytes).expect("it has the length");
    Ok(Customer { key, md5: md5.clone() })
}

/// The value of a header that must be there once at most.
fn once<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, Failure> {
    let mut values = headers.get_all(name).into_iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(Failure::refuse(
            S3ErrorCode::InvalidArgument,
            format!("The header {name} must be there once."),
        )),
    }
}

fn invalid(message: &'static str) -> Failure {
    Failure::refuse(S3ErrorCode::InvalidArgument, message)
}

pub(super) fn no_key_service() -> Failure {
    Failure::not_implemented("This server has no key service: aws:kms is not implemented.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> HeaderValue {
        HeaderValue::from_str(text).expect("a header's")
    }

    fn code(given: Result<Customer, Failure>) -> String {
        match given {
            Ok(_) => "taken".to_owned(),
            Err(Failure::Refused { code, .. }) => code.as_str().to_owned(),
            Err(other) => other.to_string(),
        }
    }

    #[test]
    fn a_customers_key_must_be_one() {
        let key = BASE64.encode([7; 32]);
        let md5 = Checksum::of(ChecksumKind::Md5, &[7; 32]).to_base64();
        let short = BASE64.encode([7; 31]);
        let md5_of_short = Checksum::of(ChecksumKind::Md5, &[7; 31]).to_base64();
        for (algorithm, key, md5, expected) in [
            (Some("AES256"), Some(&key[..]), Some(&md5[..]), "taken"),
            (None, Some(&key), Some(&md5), "InvalidArgument"),
            (Some("aes256"), Some(&key), Some(&md5), "InvalidEncryptionAlgorithmError"),
            (Some("AES128"), Some(&key), Some(&md5), "InvalidEncryptionAlgorithmError"),
            (Some("AES256"), None, Some(&md5), "InvalidArgument"),
            (Some("AES256"), Some(&key), None, "InvalidArgument"),
            (Some("AES256"), Some(&key), Some(&md5_of_short), "InvalidArgument"),
            (Some("AES256"), Some(&short), Some(&md5_of_short), "InvalidArgument"),
            (Some("AES256"), Some("no base 64"), Some(&md5), "InvalidArgument"),
        ] {
            let [algorithm, key, md5] = [algorithm, key, md5].map(|text| text.map(value));
            let given = customer_of(algorithm.as_ref(), key.as_ref(), md5.as_ref());
            assert_eq!(code(given), expected, "{algorithm:?}");
        }
    }
}
