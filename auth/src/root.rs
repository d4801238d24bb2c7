//! The root tenant's credentials: given by the operator, or generated once and kept sealed.

use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use keyway_proto::TenantId;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

use crate::credential::{AccessKeyId, Credential, CredentialStore, Principal, SecretKey};
use crate::key_file::{KeyFile, KeyFileError, Purpose, random_bytes};

/// Shortest access key id.
pub const ACCESS_KEY_CHARS_MIN: usize = 3;
/// Longest access key id.
pub const ACCESS_KEY_CHARS_MAX: usize = 128;
/// Shortest secret: at 64 symbols, 96 bits.
pub const SECRET_CHARS_MIN: usize = 16;
/// Longest secret.
pub const SECRET_CHARS_MAX: usize = 256;

/// Why credentials were refused. Tells nothing of the secret but its length's bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCredentials {
    /// The id's length is out of bounds.
    #[error(
        "an access key id has {ACCESS_KEY_CHARS_MIN} to {ACCESS_KEY_CHARS_MAX} characters, this one {0}"
    )]
    AccessKeyLength(usize),
    /// The id would not survive in a credential scope.
    #[error("an access key id consists of letters, digits, and `-`, `_`, `.`")]
    AccessKeyCharacters,
    /// The id would be taken for that of temporary credentials.
    #[error("access key ids of this form are those of temporary credentials")]
    Reserved,
    /// The secret is too short to resist guessing, or absurdly long.
    #[error("a secret key has {SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} characters")]
    SecretLength,
    /// The secret has characters that clients cannot pass on.
    #[error("a secret key consists of printable ASCII without spaces")]
    SecretCharacters,
}

/// Why the stored credentials could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RootError {
    /// The key file or the sealed file was refused.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// The sealed file opened, but does not hold credentials of this version.
    #[error("the stored root credentials cannot be read by this version")]
    Format,
}

/// The root tenant's one access key. As a [`CredentialStore`] it knows nothing else.
#[derive(Clone, Debug)]
pub struct RootCredentials {
    credential: Credential,
}

/// What is sealed.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    access_key_id: String,
    secret_key: String,
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.secret_key.zeroize();
    }
}

impl RootCredentials {
    /// Checks and takes over credentials that the operator gives.
    pub fn given(access_key: &str, secret: SecretKey) -> Result<Self, InvalidCredentials> {
        check_access_key(access_key)?;
        check_secret(&secret)?;
        Ok(Self::new(access_key, secret))
    }

    /// Draws new ones: 90 bits in the id, 240 in the secret.
    pub fn generate() -> Self {
        Self::new(generated_access_key().as_str(), generated_secret())
    }

    /// Those stored at `path`; `None` when there are none.
    ///
    /// # Errors
    /// [`KeyFileError::Tampered`] and its neighbours when the file is not what
    /// [`store`](Self::store) wrote under the same key.
    pub fn load(path: &Path, key: &KeyFile) -> Result<Option<Self>, RootError> {
        let Some(plain) = key.open_from(path, Purpose::RootCredentials)? else {
            return Ok(None);
        };
        let text = std::str::from_utf8(&plain).map_err(|_| RootError::Format)?;
        // The parser's own error would quote the text, which holds the secret.
        let stored: Stored = toml::from_str(text).map_err(|_| RootError::Format)?;
        let secret = SecretKey::new(stored.secret_key.clone());
        Ok(Some(Self::new(&stored.access_key_id, secret)))
    }

    /// Seals them to `path`.
    pub fn store(&self, path: &Path, key: &KeyFile) -> Result<(), RootError> {
        let stored = Stored {
            access_key_id: self.access_key().to_string(),
            secret_key: self.secret().expose().to_owned(),
        };
        let text = Zeroizing::new(toml::to_string(&stored).map_err(|_| RootError::Format)?);
        Ok(key.seal_to(path, Purpose::RootCredentials, text.as_bytes())?)
    }

    /// The access key's id.
    pub fn access_key(&self) -> &AccessKeyId {
        &self.credential.principal.access_key
    }

    /// The secret.
    pub fn secret(&self) -> &SecretKey {
        &self.credential.secret
    }

    /// Whether both are the same, in time that does not depend on where they differ.
    pub fn same_as(&self, other: &Self) -> bool {
        let id = self.access_key().as_str().as_bytes();
        let secret = self.secret().expose().as_bytes();
        let same = id.ct_eq(other.access_key().as_str().as_bytes())
            & secret.ct_eq(other.secret().expose().as_bytes());
        same.into()
    }

    fn new(access_key: &str, secret: SecretKey) -> Self {
        let principal = Principal::root(TenantId::ROOT, AccessKeyId::new(access_key));
        Self { credential: Credential { principal, secret } }
    }
}

/// Refuses ids that no client could pass on.
///
/// # Errors
/// [`InvalidCredentials`] says which rule the id breaks.
pub fn check_access_key(id: &str) -> Result<(), InvalidCredentials> {
    let length = id.chars().count();
    if !(ACCESS_KEY_CHARS_MIN..=ACCESS_KEY_CHARS_MAX).contains(&length) {
        return Err(InvalidCredentials::AccessKeyLength(length));
    }
    if !id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
        return Err(InvalidCredentials::AccessKeyCharacters);
    }
    if crate::session::is_temporary(id) {
        return Err(InvalidCredentials::Reserved);
    }
    Ok(())
}

/// Refuses secrets that are weak, or that no client could pass on.
///
/// # Errors
/// [`InvalidCredentials`] says which rule the secret breaks, and nothing of it.
pub fn check_secret(secret: &SecretKey) -> Result<(), InvalidCredentials> {
    if !(SECRET_CHARS_MIN..=SECRET_CHARS_MAX).contains(&secret.expose().len()) {
        return Err(InvalidCredentials::SecretLength);
    }
    if !secret.expose().bytes().all(|b| b.is_ascii_graphic()) {
        return Err(InvalidCredentials::SecretCharacters);
    }
    Ok(())
}

/// A new id of 20 characters, 90 of its bits random.
pub fn generated_access_key() -> AccessKeyId {
    let letters = random_letters();
    AccessKeyId::new(&format!("KW{letters}"))
}

/// A new secret of 40 characters, 240 bits.
pub fn generated_secret() -> SecretKey {
    SecretKey::new(BASE64_URL_SAFE_NO_PAD.encode(&random_bytes()[..30]))
}

/// 18 random letters and digits: 90 bits.
pub(crate) fn random_letters() -> String {
    const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let bytes = random_bytes();
    bytes[..18].iter().map(|byte| char::from(LETTERS[usize::from(byte % 32)])).collect()
}

impl CredentialStore for RootCredentials {
    fn find(&self, id: &str) -> Option<Credential> {
        // An id is no secret, yet how much of it was guessed need not show in the time.
        let same: bool = id.as_bytes().ct_eq(self.access_key().as_str().as_bytes()).into();
        same.then(|| self.credential.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> SecretKey {
        SecretKey::new(text.to_owned())
    }

    #[test]
    fn weak_or_unusable_credentials_are_refused() {
        let good = "0123456789abcdef";
        let refused = |id: &str, text: &str| RootCredentials::given(id, secret(text)).unwrap_err();
        assert_eq!(refused("ab", good), InvalidCredentials::AccessKeyLength(2));
        assert_eq!(refused("a/b", good), InvalidCredentials::AccessKeyCharacters);
        assert_eq!(refused("KWT1ABCDEFGHIJKLMN23", good), InvalidCredentials::Reserved);
        assert_eq!(refused("root", &good[1..]), InvalidCredentials::SecretLength);
        assert_eq!(refused("root", &"x".repeat(257)), InvalidCredentials::SecretLength);
        assert_eq!(refused("root", "0123456789 abcdef"), InvalidCredentials::SecretCharacters);
        assert!(RootCredentials::given("root", secret(good)).is_ok());
    }

    #[test]
    fn generated_credentials_pass_the_check_and_differ() {
        let (one, two) = (RootCredentials::generate(), RootCredentials::generate());
        assert!(RootCredentials::given(one.access_key().as_str(), one.secret().clone()).is_ok());
        assert!(!one.same_as(&two));
        assert_eq!(one.access_key().as_str().len(), 20);
        assert_eq!(one.secret().expose().len(), 40);
    }

    #[test]
    fn the_store_finds_the_root_key_and_nothing_else() {
        let root = RootCredentials::given("root", secret("0123456789abcdef")).unwrap();
        assert_eq!(root.find("root").unwrap().principal.tenant, TenantId::ROOT);
        for id in ["", "roo", "root2", "Root"] {
            assert!(root.find(id).is_none(), "{id:?}");
        }
    }

    #[test]
    fn stored_credentials_return_and_never_show() {
        let dir = tempfile::tempdir().unwrap();
        let key = KeyFile::open_or_create(&dir.path().join("key")).unwrap();
        let path = dir.path().join("root");
        assert!(RootCredentials::load(&path, &key).unwrap().is_none());
        let root = RootCredentials::generate();
        root.store(&path, &key).unwrap();
        let again = RootCredentials::load(&path, &key).unwrap().unwrap();
        assert!(again.same_as(&root));
        assert!(!format!("{again:?}").contains(root.secret().expose()));
    }

    #[test]
    fn sealed_text_of_another_version_is_refused_without_quoting_it() {
        let dir = tempfile::tempdir().unwrap();
        let key = KeyFile::open_or_create(&dir.path().join("key")).unwrap();
        let path = dir.path().join("root");
        let text = b"access_key_id = \"root\"\nsecret_key = \"hush-hush\"\nsalt = 1\n";
        key.seal_to(&path, Purpose::RootCredentials, text).unwrap();
        let error = RootCredentials::load(&path, &key).unwrap_err();
        assert!(matches!(error, RootError::Format));
        assert!(!format!("{error:?} {error}").contains("hush"));
    }
}
