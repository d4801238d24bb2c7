//! OpenID Connect: what an issuer publishes is read, and what its tokens say is verified.
//!
//! | what | where |
//! |---|---|
//! | an issuer's address, and what follows from it | [`Issuer`] |
//! | where its keys are, and the keys | [`keys_url`], [`KeySet`] |
//! | a token before and after it is verified | [`Token`], [`Verified`] |
//! | signatures, by *ring* | `verify` |
//!
//! All of it comes from outside: tokens from whoever asks, the rest from hosts that tenants name.
//! Only keys that an issuer publishes verify its tokens, only with asymmetric algorithms, and a key
//! verifies nothing but the algorithms of its own kind: so no public key passes for a secret.
//!
//! What may not enter: sockets, clocks (the time is told), who trusts whom.

mod issuer;
mod keys;
mod token;
mod verify;

pub use issuer::{ISSUER_CHARS_MAX, InvalidIssuer, Issuer};
pub use keys::{InvalidKeys, KEYS_MAX, KeySet, keys_url};
pub use token::{Expected, InvalidToken, SUBJECT_CHARS_MAX, TOKEN_CHARS, Token, Verified};
