//! Session tokens: whatever comes is opened or refused, and what is opened says the same when it
//! is sealed again. Sealing is left out, so that the fuzzer gets at the claims.
#![no_main]

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use jiff::Timestamp;
use keyway_auth::session::{Issuer, is_session_name, is_temporary};
use keyway_auth::{KeyProvider, SecretsError};
use libfuzzer_sys::fuzz_target;
use zeroize::Zeroizing;

/// Seals nothing.
struct Open;

impl KeyProvider for Open {
    fn seal(&self, _: &[u8], plain: &[u8]) -> Result<Vec<u8>, SecretsError> {
        Ok(plain.to_vec())
    }

    fn open(&self, _: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SecretsError> {
        Ok(Zeroizing::new(sealed.to_vec()))
    }

    fn derive(&self, _: &[u8]) -> Result<Zeroizing<[u8; 32]>, SecretsError> {
        Ok(Zeroizing::new([7; 32]))
    }
}

fuzz_target!(|bytes: &[u8]| {
    const ID: &str = "KWT1ABCDEFGHIJKLMN27";
    let issuer = Issuer::new(Arc::new(Open)).expect("it has a key");
    let text = String::from_utf8_lossy(bytes);
    let _ = is_session_name(&text);
    assert_eq!(issuer.secret(&text).is_some(), is_temporary(&text));
    let epoch = Timestamp::UNIX_EPOCH;
    // As a token, and as what is in one.
    let _ = issuer.open(ID, &text, epoch);
    let token = BASE64.encode(bytes);
    let Ok(claims) = issuer.open(ID, &token, epoch) else { return };
    assert!(issuer.open(&text, &token, epoch).is_err() || is_temporary(&text));
    assert!(issuer.open(ID, &token, claims.expires).is_err(), "it has expired");
    let issued = issuer.issue(&claims).expect("claims are sealed");
    let again = issuer.open(issued.id.as_str(), issued.token(), epoch);
    assert_eq!(again.as_ref(), Ok(&claims));
});
