//! Secrets at rest: what seals them, and under what name.
//!
//! A [`KeyProvider`] holds a key and never shows it. [`KeyFile`](crate::KeyFile) is the one that
//! comes with Keyway; another may ask a key service once, at its start, for a data key. Every
//! secret is sealed with a context that names it, so that one cannot be put in the place of
//! another.

use zeroize::Zeroizing;

/// Seals and opens secrets that are kept by somebody who must not read them.
pub trait KeyProvider: Send + Sync + 'static {
    /// Seals `plain`, bound to `context`.
    ///
    /// # Errors
    /// [`SecretsError::Unavailable`] when the key cannot be used now.
    fn seal(&self, context: &[u8], plain: &[u8]) -> Result<Vec<u8>, SecretsError>;

    /// Opens what [`seal`](Self::seal) made with the same context.
    ///
    /// # Errors
    /// [`SecretsError::Tampered`] for anything else.
    fn open(&self, context: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SecretsError>;

    /// A key for `context` alone: the same at every call, and telling nothing of others.
    ///
    /// # Errors
    /// [`SecretsError::Unavailable`] when the key cannot be used now.
    fn derive(&self, context: &[u8]) -> Result<Zeroizing<[u8; 32]>, SecretsError>;
}

/// Why a secret was not sealed or opened. It says nothing of the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretsError {
    /// The key cannot be used now.
    #[error("the key of stored secrets is not available")]
    Unavailable,
    /// It is not what was sealed under this key in this context.
    #[error("a stored secret was tampered with, or was sealed under another key")]
    Tampered,
}
