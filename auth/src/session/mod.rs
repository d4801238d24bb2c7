//! Temporary credentials: an access key id, its secret and a token, none of which is kept.
//!
//! The secret follows from the id alone, by an HMAC under a key of the deployment: whoever
//! verifies a signature asks for a secret by its id and has nothing else. All the rest is in the
//! token, which comes with every request: [`Claims`], sealed under the deployment's key and bound
//! to the id. Whom they name is looked up at each request
//! ([`Directory::session`](crate::Directory::session)), so whoever is cut off is out at once.
//!
//! What may not enter: clocks (the time is told), HTTP, what the claims lead to.
//!
//! Cost of a request: one HMAC for the secret, one XChaCha20-Poly1305 over the token (some 300
//! bytes, and the session's policy), reading its JSON and the policy.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use keyway_proto::TenantId;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::credential::{AccessKeyId, SecretKey};
use crate::directory::{Name, id_of_text, id_text};
use crate::root::random_letters;
use crate::secrets::{KeyProvider, SecretsError};

/// Longest token that is looked at.
pub const TOKEN_CHARS_MAX: usize = 16 * 1024;
/// Shortest and longest name of a session.
pub const SESSION_NAME_CHARS: std::ops::RangeInclusive<usize> = 2..=64;

/// Most sessions of roles in which another role is taken, each in the one before.
pub const LINKS_MAX: usize = 4;

/// What ids of temporary credentials begin with: no drawn key has a `1`.
const PREFIX: &str = "KWT1";
/// Letters after it: 80 bits.
const LETTERS: usize = 16;
/// What the key of the secrets is derived for.
const SECRETS: &[u8] = b"keyway temporary secrets v1";
/// Bytes of a secret: 40 characters.
const SECRET_BYTES: usize = 30;

/// Whether an access key id is one of temporary credentials, by its form. No other key has it.
pub fn is_temporary(id: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_uppercase() || (b'2'..=b'7').contains(&byte);
    id.strip_prefix(PREFIX).is_some_and(|rest| rest.len() == LETTERS && rest.bytes().all(letter))
}

/// Whether a text can be a session's name: it stands in ARNs.
pub fn is_session_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_+=,.@-".contains(&byte);
    SESSION_NAME_CHARS.contains(&text.len()) && text.bytes().all(plain)
}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// What the credentials go back to: they are good for as long as it is.
    pub source: Origin,
    /// The role that was taken; none where the credentials stand for the key's own holder.
    pub role: Option<Assumed>,
    /// The sessions of other roles in which it was taken: all of them must still stand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub through: Vec<Link>,
    /// When they were made.
    pub issued: Timestamp,
    /// They open nothing from then on.
    pub expires: Timestamp,
}

/// What credentials go back to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Origin {
    /// An access key.
    Key(Source),
    /// Somebody for whom an issuer vouched.
    Web(WebIdentity),
}

impl Origin {
    /// The tenant that has the access key, or the provider.
    pub fn tenant(&self) -> TenantId {
        match self {
            Self::Key(source) => source.tenant,
            Self::Web(identity) => identity.tenant,
        }
    }

    /// The access key, if it is one.
    pub fn key(&self) -> Option<&AccessKeyId> {
        match self {
            Self::Key(source) => Some(&source.key),
            Self::Web(_) => None,
        }
    }

    /// The web identity, if it is one.
    pub fn web(&self) -> Option<&WebIdentity> {
        match self {
            Self::Key(_) => None,
            Self::Web(identity) => Some(identity),
        }
    }
}

/// Somebody for whom an issuer vouched, as its token had it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebIdentity {
    /// The provider's tenant.
    pub tenant: TenantId,
    /// The provider's name.
    pub provider: Name,
    /// The provider's id, that no other provider has, even of the same name.
    pub id: String,
    /// Who it is: `sub`.
    pub subject: String,
    /// For whom the token was.
    pub audience: String,
}

/// The access key that credentials were asked for with, directly or by others that were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Its id.
    #[serde(serialize_with = "id_text", deserialize_with = "id_of_text")]
    pub key: AccessKeyId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its holder's `aws:userid`: another holder of an id that was given anew is another.
    pub holder: String,
}

/// A role that was taken for a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assumed {
    /// The role's tenant.
    pub tenant: TenantId,
    /// The role's name.
    pub name: Name,
    /// The role's id, that no other role has, even of the same name.
    pub id: String,
    /// The session's name.
    pub session: String,
    /// A policy that bounds what the session may do.
    pub policy: Option<String>,
}

/// A session of a role in which another role was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The role's tenant.
    pub tenant: TenantId,
    /// The role's name.
    pub name: Name,
    /// The role's id.
    pub id: String,
    /// When the session was begun.
    pub issued: Timestamp,
}

impl Claims {
    /// What sessions of roles that are taken with these credentials go through.
    pub fn links(&self) -> Vec<Link> {
        let mut links = self.through.clone();
        links.extend(self.role.as_ref().map(|role| Link {
            tenant: role.tenant,
            name: role.name.clone(),
            id: role.id.clone(),
            issued: self.issued,
        }));
        links
    }

    /// Whether they end with a role's sessions.
    pub fn needs(&self, tenant: TenantId, name: &Name) -> bool {
        self.links().iter().any(|link| link.tenant == tenant && link.name == *name)
    }
}

/// Credentials that were just made.
pub struct Issued {
    /// The access key id.
    pub id: AccessKeyId,
    /// The secret.
    pub secret: SecretKey,
    /// When they end.
    pub expires: Timestamp,
    token: SecretString,
}

impl Issued {
    /// The session token, for its holder alone.
    pub fn token(&self) -> &str {
        self.token.expose_secret()
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Why a token was refused. It says nothing of what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It is no token, was altered, or was made for another access key.
    #[error("the session token is not one of this access key")]
    Invalid,
    /// Its time has passed.
    #[error("the session token has expired")]
    Expired,
}

/// Makes temporary credentials, and knows them again.
#[derive(Clone)]
pub struct Issuer {
    provider: Arc<dyn KeyProvider>,
    /// It has taken the key of the secrets in.
    secrets: Hmac<Sha256>,
}

impl Issuer {
    /// Under the deployment's key.
    ///
    /// # Errors
    /// [`SecretsError::Unavailable`] when the key cannot be used now.
    pub fn new(provider: Arc<dyn KeyProvider>) -> Result<Self, SecretsError> {
        let key = provider.derive(SECRETS)?;
        let secrets = Hmac::new_from_slice(&*key).expect("HMAC takes keys of any length");
        Ok(Self { provider, secrets })
    }

    /// The secret that belongs to an id of temporary credentials, whether they were ever made
    /// or not; `None` for other ids.
    pub fn secret(&self, id: &str) -> Option<SecretKey> {
        if !is_temporary(id) {
            return None;
        }
        let mut mac = self.secrets.clone();
        mac.update(id.as_bytes());
        let bytes = Zeroizing::new(<[u8; 32]>::from(mac.finalize().into_bytes()));
        Some(SecretKey::new(BASE64_URL_SAFE_NO_PAD.encode(&bytes[..SECRET_BYTES])))
    }

    /// Makes credentials of these claims.
    ///
    /// # Errors
    /// [`SecretsError::Unavailable`] when the key cannot be used now.
    pub fn issue(&self, claims: &Claims) -> Result<Issued, SecretsError> {
        let id = format!("{PREFIX}{}", &random_letters()[..LETTERS]);
        let plain = Zeroizing::new(serde_json::to_vec(claims).expect("claims have a JSON form"));
        let sealed = self.provider.seal(&context(&id), &plain)?;
        let secret = self.secret(&id).ok_or(SecretsError::Unavailable)?;
        let token = BASE64_URL_SAFE_NO_PAD.encode(sealed).into();
        Ok(Issued { id: AccessKeyId::new(&id), secret, expires: claims.expires, token })
    }

    /// Opens the token that came with an id.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn open(&self, id: &str, token: &str, now: Timestamp) -> Result<Claims, TokenError> {
        if !is_temporary(id) || token.len() > TOKEN_CHARS_MAX {
            return Err(TokenError::Invalid);
        }
        let sealed = BASE64_URL_SAFE_NO_PAD.decode(token).map_err(|_| TokenError::Invalid)?;
        let plain = self.provider.open(&context(id), &sealed).map_err(|_| TokenError::Invalid)?;
        let claims: Claims = serde_json::from_slice(&plain).map_err(|_| TokenError::Invalid)?;
        if claims.expires <= now { Err(TokenError::Expired) } else { Ok(claims) }
    }
}

/// What a token is sealed for: it opens with this id alone, and as nothing else.
fn context(id: &str) -> Vec<u8> {
    format!("keyway session token v1\n{id}").into_bytes()
}

#[cfg(test)]
mod tests;
