//! Encryption of objects: who holds the key to an object's bytes, and when it is opened.
//!
//! Each object, and each upload for all of its parts, has a data key of its own, under which its
//! node encrypts. Its row keeps that key sealed: by the service (SSE-S3), or by a key that came with
//! the request and that nobody keeps (SSE-C). The seal is bound to bucket and object key, which a
//! row never changes. docs/encryption.md says what holds for clients,
//! docs/decisions/0014-server-side-encryption.md why it is built this way.
//!
//! | what | where |
//! |---|---|
//! | what a request's headers ask for, and the key that they bring | [`mod@asked`] |
//! | what a bucket is encrypted with where nothing is asked | [`defaults`] |
//!
//! Cost of a PUT or GET: one XChaCha20-Poly1305 over 32 bytes here; the bytes are the node's.

mod asked;
mod defaults;

use http::{HeaderMap, HeaderName, HeaderValue};
use keyway_auth::data_key;
use keyway_meta::{Bucket, Encryption, KeyHolder, Object};
use keyway_proto::{DataKey, ObjectKey};
use s3s::S3ErrorCode;

use super::Core;
use super::errors::Failure;

pub(super) use asked::{Asked, Customer, asked, shown, shown_for_source};
pub(super) use defaults::{delete_bucket_encryption, get_bucket_encryption, put_bucket_encryption};

const ALGORITHM: &str = "AES256";
const BY_SERVICE: HeaderName = HeaderName::from_static("x-amz-server-side-encryption");
const CUSTOMER_ALGORITHM: HeaderName =
    HeaderName::from_static("x-amz-server-side-encryption-customer-algorithm");
const CUSTOMER_KEY_MD5: HeaderName =
    HeaderName::from_static("x-amz-server-side-encryption-customer-key-md5");

/// What is written under: nothing, or a data key and its seal.
#[derive(Clone, Default)]
pub(super) struct Cover {
    pub(super) encryption: Option<Encryption>,
    pub(super) key: Option<DataKey>,
    /// Of the customer's key, as the request told it.
    md5: Option<HeaderValue>,
}

impl Cover {
    /// What a new object, or upload, is written under: as asked, else as its bucket has it.
    ///
    /// # Errors
    /// The key provider's.
    pub(super) fn fresh(
        core: &Core,
        bucket: &Bucket,
        key: &ObjectKey,
        asked: Asked,
    ) -> Result<Self, Failure> {
        let asked = match asked {
            Asked::Nothing => defaults::of(core, bucket),
            asked => asked,
        };
        match asked {
            Asked::Nothing => Ok(Self::default()),
            asked => Self::sealed(core, bucket, key, asked, data_key::fresh()),
        }
    }

    /// What a copy is written under. What is encrypted stays so: where nothing is asked and the
    /// bucket says nothing, the service holds the key.
    ///
    /// # Errors
    /// As [`fresh`](Self::fresh).
    pub(super) fn of_copy(
        core: &Core,
        bucket: &Bucket,
        key: &ObjectKey,
        asked: Asked,
        source: &Opened<'_>,
    ) -> Result<(Self, Chunks), Failure> {
        let asked = match asked {
            Asked::Nothing => match defaults::of(core, bucket) {
                Asked::Nothing if source.key.is_some() => Asked::Service,
                asked => asked,
            },
            asked => asked,
        };
        let holder = source.object.headers.encryption.as_ref().map(|encryption| encryption.holder);
        let shares = match (&asked, holder) {
            (Asked::Nothing, None) | (Asked::Service, Some(KeyHolder::Service)) => true,
            (Asked::Customer(own), Some(KeyHolder::Customer)) => {
                source.customer.is_some_and(|other| other.key == own.key)
            }
            _ => false,
        };
        let data_key = match &source.key {
            Some(key) if shares => key.clone(),
            _ => data_key::fresh(),
        };
        let cover = match asked {
            Asked::Nothing => Self::default(),
            asked => Self::sealed(core, bucket, key, asked, data_key)?,
        };
        Ok((cover, if shares { Chunks::Shared } else { Chunks::Written }))
    }

    /// What a part is written under: its upload's key, opened.
    ///
    /// # Errors
    /// `InvalidRequest` for a request whose customer's key is missing, another, or of no use.
    pub(super) fn of_part(
        core: &Core,
        bucket: &Bucket,
        key: &ObjectKey,
        upload: Option<&Encryption>,
        shown: Option<&Customer>,
    ) -> Result<Self, Failure> {
        let key = opened(core, bucket, key, upload, shown).map_err(|failure| match failure {
            // In S3's words for uploads.
            Failure::Refused { code: S3ErrorCode::AccessDenied, .. } => Failure::refuse(
                S3ErrorCode::InvalidRequest,
                "The provided encryption parameters did not match the ones used originally.",
            ),
            Failure::Refused { .. } if shown.is_none() => Failure::refuse(
                S3ErrorCode::InvalidRequest,
                "The multipart upload initiate requested encryption. Subsequent part requests \
                 must include the appropriate encryption parameters.",
            ),
            failure => failure,
        })?;
        let md5 = shown.map(|customer| customer.md5.clone());
        Ok(Self { encryption: upload.cloned(), key, md5 })
    }

    fn sealed(
        core: &Core,
        bucket: &Bucket,
        key: &ObjectKey,
        asked: Asked,
        data_key: DataKey,
    ) -> Result<Self, Failure> {
        let context = context(bucket, key);
        let (holder, sealed, md5) = match asked {
            Asked::Customer(Customer { key, md5 }) => {
                (KeyHolder::Customer, key.seal(&context, &data_key), Some(md5))
            }
            Asked::Service | Asked::Nothing => {
                let sealed = data_key::seal(&*core.secrets, &context, &data_key);
                (KeyHolder::Service, sealed.map_err(Failure::Key)?, None)
            }
        };
        let encryption = Encryption { holder, sealed_key: sealed.into() };
        Ok(Self { encryption: Some(encryption), key: Some(data_key), md5 })
    }

    /// Tells in an answer how it was written.
    pub(super) fn tell(&self, headers: &mut HeaderMap) {
        tell(self.encryption.as_ref(), self.md5.as_ref(), headers);
    }
}

/// What becomes of the chunks of a copy's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunks {
    /// Both objects own them: the same key opens them for the same holder.
    Shared,
    /// Their bytes are read, and written anew under a key of the copy's own.
    Written,
}

/// The source of a copy, with the key to its bytes where they are encrypted.
pub(super) struct Opened<'a> {
    pub(super) object: &'a Object,
    pub(super) key: Option<DataKey>,
    pub(super) customer: Option<&'a Customer>,
}

/// The key to an object's bytes; none where they are not encrypted.
///
/// # Errors
/// `InvalidRequest` where a customer's key is needed and not there, or there and of no use,
/// `AccessDenied` where it is another, and the key provider's.
pub(super) fn opened(
    core: &Core,
    bucket: &Bucket,
    key: &ObjectKey,
    encryption: Option<&Encryption>,
    shown: Option<&Customer>,
) -> Result<Option<DataKey>, Failure> {
    let context = || context(bucket, key);
    match (encryption, shown) {
        (None, None) => Ok(None),
        (Some(Encryption { holder: KeyHolder::Service, sealed_key }), None) => {
            data_key::open(&*core.secrets, &context(), sealed_key).map(Some).map_err(Failure::Key)
        }
        (Some(Encryption { holder: KeyHolder::Customer, sealed_key }), Some(customer)) => {
            let opened = customer.key.open(&context(), sealed_key);
            opened.map(Some).map_err(|_| {
                Failure::refuse(
                    S3ErrorCode::AccessDenied,
                    "Requests specifying Server Side Encryption with Customer provided keys must \
                     provide the correct secret key.",
                )
            })
        }
        (Some(Encryption { holder: KeyHolder::Customer, .. }), None) => Err(Failure::refuse(
            S3ErrorCode::InvalidRequest,
            "The object was stored using a form of Server Side Encryption. The correct parameters \
             must be provided to retrieve the object.",
        )),
        (None | Some(Encryption { holder: KeyHolder::Service, .. }), Some(_)) => {
            Err(Failure::refuse(
                S3ErrorCode::InvalidRequest,
                "The encryption parameters are not applicable to this object.",
            ))
        }
    }
}

/// Tells how what an answer is about is encrypted. `md5` is of the customer's key, as the request
/// told it.
pub(super) fn tell(
    encryption: Option<&Encryption>,
    md5: Option<&HeaderValue>,
    headers: &mut HeaderMap,
) {
    let algorithm = HeaderValue::from_static(ALGORITHM);
    match (encryption.map(|encryption| encryption.holder), md5) {
        (None, _) => {}
        (Some(KeyHolder::Service), _) => {
            headers.insert(BY_SERVICE, algorithm);
        }
        (Some(KeyHolder::Customer), md5) => {
            headers.insert(CUSTOMER_ALGORITHM, algorithm);
            if let Some(md5) = md5 {
                headers.insert(CUSTOMER_KEY_MD5, md5.clone());
            }
        }
    }
}

/// What a seal is bound to. Ids of buckets are never used again, and a row is of one key for good.
fn context(bucket: &Bucket, key: &ObjectKey) -> Vec<u8> {
    [&bucket.id.0.to_be_bytes()[..], key.as_bytes()].concat()
}
