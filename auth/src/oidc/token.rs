//! Tokens: JWTs that an issuer signed for somebody.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use jiff::Timestamp;
use jsonwebtoken::{Algorithm, Validation, dangerous, decode, decode_header};
use serde::Deserialize;

use super::issuer::{ISSUER_CHARS_MAX, Issuer};
use super::keys::{KeySet, is_asymmetric};
use super::verify;

/// Shortest and longest token, as AWS has them.
pub const TOKEN_CHARS: RangeInclusive<usize> = 4..=20_000;
/// Longest name of somebody, and longest audience.
pub const SUBJECT_CHARS_MAX: usize = 255;
/// Most audiences, and most ways in which somebody said who they are, that a token may have.
const VALUES_MAX: usize = 16;
/// Longest id of a key.
const KEY_ID_CHARS_MAX: usize = 255;
/// Latest time that is one: the end of the year 9999.
const TIME_MAX_S: f64 = 253_402_300_799.0;

/// Why a token is refused. It repeats nothing of the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidToken {
    /// It is no token.
    #[error("the token is malformed")]
    Malformed,
    /// It is not signed with a public key's algorithm.
    #[error("the token is not signed with an algorithm that is accepted")]
    Algorithm,
    /// No key of its issuer's has the id that it names.
    #[error("the token names no key of its issuer")]
    UnknownKey,
    /// It was not signed with that key.
    #[error("the token's signature is wrong")]
    Signature,
    /// It is another issuer's.
    #[error("the token is another issuer's")]
    Issuer,
    /// It is for somebody else.
    #[error("the token's audience is not one of the provider's")]
    Audience,
    /// Its time has passed.
    #[error("the token has expired")]
    Expired,
    /// Its time has not come.
    #[error("the token is not valid yet")]
    NotYet,
    /// A claim is missing or out of bounds.
    #[error("the token's claim {0} is missing or not valid")]
    Claim(&'static str),
}

/// A token that was not verified: nothing that it says is true.
pub struct Token<'a> {
    text: &'a str,
    algorithm: Algorithm,
    key_id: Option<String>,
    issuer: String,
}

/// What a token must be.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// Whose.
    pub issuer: &'a Issuer,
    /// For whom: one of these.
    pub audiences: &'a BTreeSet<String>,
    /// The time.
    pub now: Timestamp,
    /// How far the issuer's clock may be off, in seconds.
    pub skew_s: u32,
}

/// What a token says that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Who it is: `sub`.
    pub subject: String,
    /// For whom it is: `azp`, or `aud` where there is none.
    pub audience: String,
    /// `aud`, where `azp` says for whom it is.
    pub audiences: Vec<String>,
    /// How they said who they are: `amr`.
    pub methods: Vec<String>,
}

impl<'a> Token<'a> {
    /// Reads a token's form.
    ///
    /// # Errors
    /// [`InvalidToken`]: also for algorithms that are none (`none`), and for those with shared secrets.
    pub fn read(text: &'a str) -> Result<Self, InvalidToken> {
        #[derive(Deserialize)]
        struct Named {
            iss: String,
        }
        if !TOKEN_CHARS.contains(&text.len()) {
            return Err(InvalidToken::Malformed);
        }
        let header = decode_header(text).map_err(|_| InvalidToken::Malformed)?;
        if !is_asymmetric(header.alg) {
            return Err(InvalidToken::Algorithm);
        }
        // What must be understood and is not, and what is not a token in the clear.
        if header.crit.is_some() || header.enc.is_some() || header.zip.is_some() {
            return Err(InvalidToken::Malformed);
        }
        if header.kid.as_ref().is_some_and(|id| id.len() > KEY_ID_CHARS_MAX) {
            return Err(InvalidToken::UnknownKey);
        }
        let named = dangerous::insecure_decode::<Named>(text);
        let named = named.map_err(|_| InvalidToken::Malformed)?.claims;
        if named.iss.len() > ISSUER_CHARS_MAX {
            return Err(InvalidToken::Issuer);
        }
        Ok(Self { text, algorithm: header.alg, key_id: header.kid, issuer: named.iss })
    }

    /// Whose it says it is.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Whether one of the keys may be the one that it was signed with.
    pub fn names_one_of(&self, keys: &KeySet) -> bool {
        !keys.candidates(self.key_id.as_deref(), self.algorithm).is_empty()
    }

    /// Verifies it, and reads what it says.
    ///
    /// # Errors
    /// [`InvalidToken`].
    pub fn verify(&self, keys: &KeySet, expected: &Expected<'_>) -> Result<Verified, InvalidToken> {
        verify::install();
        let candidates = keys.candidates(self.key_id.as_deref(), self.algorithm);
        if candidates.is_empty() {
            return Err(InvalidToken::UnknownKey);
        }
        // What it says is judged here, by the time that is told.
        let mut only_signature = Validation::new(self.algorithm);
        only_signature.required_spec_claims.clear();
        only_signature.validate_exp = false;
        only_signature.validate_aud = false;
        let signed_with = |key: &&super::keys::Key| {
            decode::<serde_json::Value>(self.text, &key.key, &only_signature).ok()
        };
        let signed = candidates.iter().find_map(signed_with).ok_or(InvalidToken::Signature)?;
        let claims: Claims =
            serde_json::from_value(signed.claims).map_err(|_| InvalidToken::Malformed)?;
        claims.judge(expected)
    }
}

impl fmt::Debug for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: Option<String>,
    aud: Option<OneOrMany>,
    azp: Option<String>,
    exp: Option<f64>,
    iat: Option<f64>,
    nbf: Option<f64>,
    amr: Option<OneOrMany>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    /// The values, if they are plain and not too many.
    fn values(self) -> Option<Vec<String>> {
        let values = match self {
            Self::One(value) => vec![value],
            Self::Many(values) => values,
        };
        let sound = values.len() <= VALUES_MAX && values.iter().all(|value| is_plain(value));
        sound.then_some(values)
    }
}

impl Claims {
    fn judge(self, expected: &Expected<'_>) -> Result<Verified, InvalidToken> {
        if self.iss != expected.issuer.as_str() {
            return Err(InvalidToken::Issuer);
        }
        let subject = self.sub.filter(|subject| is_plain(subject));
        let subject = subject.ok_or(InvalidToken::Claim("sub"))?;
        let audiences = self.aud.and_then(OneOrMany::values).filter(|all| !all.is_empty());
        let audiences = audiences.ok_or(InvalidToken::Claim("aud"))?;
        let methods = match self.amr {
            None => Vec::new(),
            Some(methods) => methods.values().ok_or(InvalidToken::Claim("amr"))?,
        };
        if !audiences.iter().any(|audience| expected.audiences.contains(audience)) {
            return Err(InvalidToken::Audience);
        }
        let (audience, audiences) = match self.azp {
            Some(party) if expected.audiences.contains(&party) => (party, audiences),
            Some(_) => return Err(InvalidToken::Audience),
            // Of several, one must be said to be the one that asked for it.
            None => match <[String; 1]>::try_from(audiences) {
                Ok([audience]) => (audience, Vec::new()),
                Err(_) => return Err(InvalidToken::Claim("azp")),
            },
        };
        let time = |claim: &'static str, value: f64| {
            let sound = value.is_finite() && (0.0..=TIME_MAX_S).contains(&value);
            if sound { Ok(value) } else { Err(InvalidToken::Claim(claim)) }
        };
        let required =
            |claim, value: Option<f64>| time(claim, value.ok_or(InvalidToken::Claim(claim))?);
        let (expires, issued) = (required("exp", self.exp)?, required("iat", self.iat)?);
        let begins = self.nbf.map(|value| time("nbf", value)).transpose()?;
        #[expect(clippy::cast_precision_loss, reason = "seconds stay below 2^53")]
        let now = expected.now.as_second() as f64;
        let skew = f64::from(expected.skew_s);
        if expires + skew <= now {
            return Err(InvalidToken::Expired);
        }
        if issued > now + skew || begins.is_some_and(|begins| begins > now + skew) {
            return Err(InvalidToken::NotYet);
        }
        Ok(Verified { subject, audience, audiences, methods })
    }
}

/// Whether a text can stand in answers, logs and policies.
fn is_plain(text: &str) -> bool {
    let length = text.chars().count();
    (1..=SUBJECT_CHARS_MAX).contains(&length) && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests;
