//! Keys of objects: drawn, sealed for those who may open them, and opened again.
//!
//! A data key is sealed by the service, under the key of its secrets, or under a key that a
//! customer brings with each request and that nobody keeps. Either way the seal is bound to a
//! context, which names the object's place, so that one row's key cannot be put into another's. A
//! customer's key is recognised by the seal alone: no hash of it is stored.

use std::fmt;

use chacha20poly1305::aead::{Aead, Generate, Key, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use keyway_proto::DataKey;
use ring::hkdf::{HKDF_SHA256, Salt};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::key_file::random_bytes;
use crate::secrets::{KeyProvider, SecretsError};

/// What stands before a context, so that no other secret of the service has the same.
const SERVICE: &[u8] = b"keyway data key v1\n";
/// What keys are derived from customers' for.
const CUSTOMER: &[u8] = b"keyway customer key v1";
/// First byte of what is sealed under a customer's key: the format's version.
const FORMAT: u8 = 1;
const NONCE_BYTES: usize = 24;

/// A new key.
///
/// # Panics
/// Never: 32 bytes are drawn.
pub fn fresh() -> DataKey {
    DataKey::from_slice(&*random_bytes()).expect("as many bytes as a key has")
}

/// Seals a key for the service.
///
/// # Errors
/// [`SecretsError::Unavailable`] when the service's key cannot be used now.
pub fn seal(
    provider: &dyn KeyProvider,
    context: &[u8],
    key: &DataKey,
) -> Result<Vec<u8>, SecretsError> {
    provider.seal(&[SERVICE, context].concat(), key.expose())
}

/// Opens what [`seal`] made with the same context.
///
/// # Errors
/// [`SecretsError::Tampered`] for anything else.
pub fn open(
    provider: &dyn KeyProvider,
    context: &[u8],
    sealed: &[u8],
) -> Result<DataKey, SecretsError> {
    let opened = provider.open(&[SERVICE, context].concat(), sealed)?;
    DataKey::from_slice(&opened).ok_or(SecretsError::Tampered)
}

/// A customer's own key, for as long as its request takes.
#[derive(Clone)]
pub struct CustomerKey(Box<Zeroizing<[u8; Self::BYTES]>>);

impl CustomerKey {
    /// Bytes of a key.
    pub const BYTES: usize = 32;

    /// The key of these bytes; `None` when they are not as many.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        let mut key = Box::new(Zeroizing::new([0; Self::BYTES]));
        if bytes.len() != Self::BYTES {
            return None;
        }
        key.copy_from_slice(bytes);
        Some(Self(key))
    }

    /// Seals the key of an object.
    ///
    /// # Panics
    /// Never: a key is far below the cipher's limit.
    pub fn seal(&self, context: &[u8], key: &DataKey) -> Vec<u8> {
        let nonce = XNonce::generate();
        let payload = Payload { msg: key.expose(), aad: context };
        let sealed = self.cipher(context).encrypt(&nonce, payload).expect("a key is short");
        [&[FORMAT], &nonce[..], &sealed].concat()
    }

    /// Opens what [`seal`](Self::seal) made with the same context.
    ///
    /// # Errors
    /// [`SecretsError::Tampered`] for anything else, and what another key has sealed.
    pub fn open(&self, context: &[u8], sealed: &[u8]) -> Result<DataKey, SecretsError> {
        let parts = sealed.strip_prefix(&[FORMAT]);
        let (nonce, sealed) = parts
            .and_then(<[u8]>::split_first_chunk::<NONCE_BYTES>)
            .ok_or(SecretsError::Tampered)?;
        let payload = Payload { msg: sealed, aad: context };
        let opened = self.cipher(context).decrypt(&XNonce::from(*nonce), payload);
        let opened = opened.map(Zeroizing::new).map_err(|_| SecretsError::Tampered)?;
        DataKey::from_slice(&opened).ok_or(SecretsError::Tampered)
    }

    /// Under a key for this context alone.
    fn cipher(&self, context: &[u8]) -> XChaCha20Poly1305 {
        let derived = Salt::new(HKDF_SHA256, CUSTOMER).extract(&self.0[..]);
        let info = [context];
        let derived = derived.expand(&info, HKDF_SHA256).expect("a hash's length");
        let mut key = Zeroizing::new([0; 32]);
        derived.fill(&mut *key).expect("as many bytes as were asked for");
        XChaCha20Poly1305::new(&Key::<XChaCha20Poly1305>::from(*key))
    }
}

impl PartialEq for CustomerKey {
    fn eq(&self, other: &Self) -> bool {
        self.0[..].ct_eq(&other.0[..]).into()
    }
}

impl Eq for CustomerKey {}

impl fmt::Debug for CustomerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomerKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyFile;

    fn customer(byte: u8) -> CustomerKey {
        CustomerKey::from_slice(&[byte; 32]).unwrap()
    }

    #[test]
    fn a_data_key_opens_for_its_holder_in_its_place_alone() {
        let dir = tempfile::tempdir().unwrap();
        let provider = KeyFile::open_or_create(&dir.path().join("key")).unwrap();
        let other = KeyFile::open_or_create(&dir.path().join("other")).unwrap();
        let key = fresh();
        assert_ne!(key, fresh());
        let sealed = seal(&provider, b"here", &key).unwrap();
        assert_eq!(open(&provider, b"here", &sealed), Ok(key.clone()));
        assert_eq!(open(&provider, b"there", &sealed), Err(SecretsError::Tampered));
        assert_eq!(open(&other, b"here", &sealed), Err(SecretsError::Tampered));
        // Another secret of the service's is no data key.
        let secret = provider.seal(b"here", key.expose()).unwrap();
        assert_eq!(open(&provider, b"here", &secret), Err(SecretsError::Tampered));

        let sealed = customer(1).seal(b"here", &key);
        assert_ne!(sealed, customer(1).seal(b"here", &key), "a nonce of its own each time");
        assert_eq!(customer(1).open(b"here", &sealed), Ok(key));
        assert_eq!(customer(1).open(b"there", &sealed), Err(SecretsError::Tampered));
        assert_eq!(customer(2).open(b"here", &sealed), Err(SecretsError::Tampered));
        for position in 0..sealed.len() {
            let mut bent = sealed.clone();
            bent[position] ^= 1;
            assert_eq!(customer(1).open(b"here", &bent), Err(SecretsError::Tampered));
            assert_eq!(customer(1).open(b"here", &sealed[..position]), Err(SecretsError::Tampered));
        }
    }

    #[test]
    fn customers_keys_are_their_bytes_and_do_not_show_them() {
        assert_eq!(customer(1), customer(1));
        assert_ne!(customer(1), customer(2));
        assert!(CustomerKey::from_slice(&[0; 31]).is_none());
        assert_eq!(format!("{:?}", customer(7)), "CustomerKey(hidden)");
    }
}
