//! Who is asking, and what they may do: credentials, signatures, the principal they stand for,
//! and the policies that decide.
//!
//! What may not enter: HTTP servers, storage, `unsafe`. Secrets live in types that wipe
//! themselves and have no `Debug` that shows them.

#![forbid(unsafe_code)]

pub mod credential;
pub mod data_key;
pub mod directory;
pub mod grant;
pub mod key_file;
pub mod oidc;
pub mod policy;
pub mod root;
pub mod secrets;
pub mod session;
pub mod sigv4;

pub use credential::{
    AccessKeyId, Credential, CredentialStore, Identity, Principal, SecretKey, Terms,
    Unauthenticated,
};
pub use data_key::CustomerKey;
pub use directory::{Directory, DirectoryError, Name};
pub use key_file::{KeyFile, KeyFileError};
pub use root::{InvalidCredentials, RootCredentials, RootError};
pub use secrets::{KeyProvider, SecretsError};
