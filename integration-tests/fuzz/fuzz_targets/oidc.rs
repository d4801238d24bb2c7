//! OpenID Connect: whatever an issuer publishes and whoever brings a token, it is read or refused; and
//! a token is taken only if it was signed with a key of its issuer's and says what it must.
//!
//! The input is lines: a token's header, its claims, an issuer's answer, and a token as it comes. Header
//! and claims are signed here with a key of the issuer's, so that the fuzzer gets at the claims.
#![no_main]

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use jiff::Timestamp;
use keyway_auth::oidc::{Expected, Issuer, KEYS_MAX, KeySet, Token, keys_url};
use libfuzzer_sys::fuzz_target;
use ring::signature::{Ed25519KeyPair, KeyPair};

const NOW: i64 = 1_800_000_000;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.splitn(4, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (header, claims, answer, brought) = (line(), line(), line(), line());
    let brought = brought.trim_end_matches('\n');

    if let Ok(issuer) = brought.parse::<Issuer>() {
        assert_eq!(issuer.as_str(), brought);
        assert!(issuer.discovery_url().parse::<http::Uri>().is_ok(), "{issuer}");
        assert!(brought.ends_with(issuer.name()));
    }
    let issuer: Issuer = "https://idp.example.com".parse().expect("an issuer");
    if let Ok(url) = keys_url(&issuer, answer.as_bytes()) {
        assert_eq!(url.scheme_str(), Some("https"));
    }
    let told = KeySet::read(answer.as_bytes());
    assert!(told.as_ref().is_ok_and(|set| set.len() <= KEYS_MAX) || told.is_err());

    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a key");
    let x = BASE64.encode(pair.public_key().as_ref());
    let keys =
        format!(r#"{{"keys": [{{"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": "{x}"}}]}}"#);
    let keys = KeySet::read(keys.as_bytes()).expect("a key");
    let audiences = BTreeSet::from(["keyway".to_owned()]);
    let now = Timestamp::from_second(NOW).expect("a time");
    let expected = Expected { issuer: &issuer, audiences: &audiences, now, skew_s: 60 };

    // One that comes from elsewhere is not signed with that key.
    if let Ok(token) = Token::read(brought) {
        assert!(token.verify(&keys, &expected).is_err());
        if let Ok(told) = &told {
            let _ = token.verify(told, &expected);
        }
    }
    let message =
        format!("{}.{}", BASE64.encode(header.as_bytes()), BASE64.encode(claims.as_bytes()));
    let signature = BASE64.encode(pair.sign(message.as_bytes()).as_ref());
    let whole = format!("{message}.{signature}");
    let Ok(token) = Token::read(&whole) else { return };
    let Ok(verified) = token.verify(&keys, &expected) else { return };
    assert!(token.names_one_of(&keys) && token.issuer() == issuer.as_str());
    assert!(audiences.contains(&verified.audience));
    assert!(!verified.subject.is_empty() && !verified.subject.chars().any(char::is_control));
    let altered = format!("{message}.{}", BASE64.encode(&[0; 64]));
    let altered = Token::read(&altered).expect("its form is the same");
    assert!(altered.verify(&keys, &expected).is_err(), "nobody signed that");
});
