//! Who signs.

use std::env;

use keyway_auth::{AccessKeyId, SecretKey};
use secrecy::SecretString;

/// An access key, its secret, and the token of temporary credentials.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub(crate) access_key: AccessKeyId,
    pub(crate) secret: SecretKey,
    pub(crate) session_token: Option<SecretString>,
}

/// Why no credentials were found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// Neither prefix has both halves.
    #[error(
        "no credentials: set KEYWAY_ACCESS_KEY and KEYWAY_SECRET_KEY, \
         or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )]
    Missing,
}

impl Credentials {
    /// Long-lived credentials.
    pub fn new(access_key: &str, secret: impl Into<String>) -> Self {
        Self {
            access_key: AccessKeyId::new(access_key),
            secret: SecretKey::new(secret.into()),
            session_token: None,
        }
    }

    /// Adds the token of temporary credentials.
    #[must_use]
    pub fn with_session_token(mut self, token: impl Into<String>) -> Self {
        self.session_token = Some(token.into().into());
        self
    }

    /// The credentials in the environment: `KEYWAY_ACCESS_KEY` and `KEYWAY_SECRET_KEY`, else
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and, if set, `AWS_SESSION_TOKEN`.
    ///
    /// # Errors
    /// [`CredentialsError::Missing`] when neither pair is complete.
    pub fn from_env() -> Result<Self, CredentialsError> {
        Self::from_vars(|name| env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self, CredentialsError> {
        if let (Some(id), Some(secret)) = (var("KEYWAY_ACCESS_KEY"), var("KEYWAY_SECRET_KEY")) {
            return Ok(Self::new(&id, secret));
        }
        match (var("AWS_ACCESS_KEY_ID"), var("AWS_SECRET_ACCESS_KEY")) {
            (Some(id), Some(secret)) => {
                let session_token = var("AWS_SESSION_TOKEN").map(SecretString::from);
                Ok(Self { session_token, ..Self::new(&id, secret) })
            }
            _ => Err(CredentialsError::Missing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_come_before_the_common_ones() {
        let both = |name: &str| Some(format!("value of {name}"));
        let found = Credentials::from_vars(both).expect("complete");
        assert_eq!(found.access_key.as_str(), "value of KEYWAY_ACCESS_KEY");
        assert!(found.session_token.is_none(), "a foreign token does not join our key");
        let common = |name: &str| name.starts_with("AWS_").then(|| name.to_owned());
        let found = Credentials::from_vars(common).expect("complete");
        assert_eq!(found.access_key.as_str(), "AWS_ACCESS_KEY_ID");
        assert!(found.session_token.is_some());
        assert!(Credentials::from_vars(|_| None).is_err());
    }

    #[test]
    fn nothing_secret_is_printed() {
        let shown = format!("{:?}", Credentials::new("id", "hush").with_session_token("hush"));
        assert!(!shown.contains("hush"), "{shown}");
    }
}
