//! Session tokens: whatever comes is opened or refused, and what is opened says the same when it
//! is sealed again. Sealing is left out, so that the fuzzer gets at the claims.
#![no_main]

use std::sync::Arc;

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
    let token = base64_url(bytes);
    let Ok(claims) = issuer.open(ID, &token, epoch) else { return };
    assert!(issuer.open(&text, &token, epoch).is_err() || is_temporary(&text));
    assert!(issuer.open(ID, &token, claims.expires).is_err(), "it has expired");
    let issued = issuer.issue(&claims).expect("claims are sealed");
    let again = issuer.open(issued.id.as_str(), issued.token(), epoch);
    assert_eq!(again.as_ref(), Ok(&claims));
});

/// RFC 4648's URL alphabet, without padding.
fn base64_url(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for place in 0..=chunk.len() {
            let letter = bits >> (18 - 6 * place) & 63;
            text.push(char::from(LETTERS[letter as usize]));
        }
    }
    text
}
