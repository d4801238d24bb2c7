//! Goal: a token is taken that its issuer signed, for whom and when it is meant, and no other one.
//! Method: keys drawn here; every claim, algorithm and key beside the right one.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
};
use serde_json::{Value, json};

use super::*;

const NOW: i64 = 1_800_000_000;

struct Key {
    id: &'static str,
    pair: Pair,
}

enum Pair {
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Key {
    fn p256(id: &'static str) -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let text = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, text.as_ref(), &random).expect("a key");
        Self { id, pair: Pair::P256(pair) }
    }

    fn ed25519(id: &'static str) -> Self {
        let text = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        let pair = Ed25519KeyPair::from_pkcs8(text.as_ref()).expect("a key");
        Self { id, pair: Pair::Ed25519(pair) }
    }

    fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::P256(_) => "ES256",
            Pair::Ed25519(_) => "EdDSA",
        }
    }

    fn public(&self) -> Value {
        match &self.pair {
            Pair::P256(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                let (x, y) = (BASE64.encode(x), BASE64.encode(y));
                json!({ "kty": "EC", "crv": "P-256", "kid": self.id, "x": x, "y": y })
            }
            Pair::Ed25519(pair) => {
                let x = BASE64.encode(pair.public_key());
                json!({ "kty": "OKP", "crv": "Ed25519", "kid": self.id, "x": x, "use": "sig" })
            }
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        match &self.pair {
            Pair::P256(pair) => {
                pair.sign(&SystemRandom::new(), message).expect("it signs").as_ref().to_vec()
            }
            Pair::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({ "alg": self.algorithm(), "kid": self.id }), claims)
    }

    fn token_with(&self, header: &Value, claims: &Value) -> String {
        let part = |json: &Value| BASE64.encode(json.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let signature = BASE64.encode(self.sign(message.as_bytes()));
        format!("{message}.{signature}")
    }
}

fn set(keys: &[&Key]) -> KeySet {
    let keys: Vec<Value> = keys.iter().map(|key| key.public()).collect();
    KeySet::read(json!({ "keys": keys }).to_string().as_bytes()).expect("a set")
}

fn claims() -> Value {
    json!({
        "iss": "https://idp.example.com", "sub": "repo:acme/train", "aud": "keyway",
        "exp": NOW + 600, "iat": NOW - 10, "nbf": NOW - 10,
    })
}

fn verify(text: &str, keys: &KeySet) -> Result<Verified, InvalidToken> {
    let issuer: Issuer = "https://idp.example.com".parse().expect("an issuer");
    let audiences = ["keyway", "other"].map(str::to_owned).into();
    let now = Timestamp::from_second(NOW).expect("a time");
    let expected = Expected { issuer: &issuer, audiences: &audiences, now, skew_s: 60 };
    Token::read(text)?.verify(keys, &expected)
}

#[test]
fn what_an_issuer_signed_is_taken() {
    for key in [Key::p256("a"), Key::ed25519("a")] {
        let (keys, other) = (set(&[&key, &Key::p256("b")]), Key::p256("a"));
        let verified = verify(&key.token(&claims()), &keys).expect("it is signed");
        assert_eq!(verified.subject, "repo:acme/train");
        assert_eq!((verified.audience.as_str(), verified.audiences.len()), ("keyway", 0));
        // Another key of the same name, and each bit of the signature.
        let wrong = verify(&other.token(&claims()), &keys);
        assert!(matches!(wrong, Err(InvalidToken::Signature | InvalidToken::UnknownKey)));
        let good = key.token(&claims());
        let (message, signature) = good.rsplit_once('.').expect("three parts");
        let bytes = BASE64.decode(signature).expect("base64");
        for bit in 0..bytes.len() * 8 {
            let mut altered = bytes.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            let altered = format!("{message}.{}", BASE64.encode(altered));
            assert_eq!(verify(&altered, &keys), Err(InvalidToken::Signature), "bit {bit}");
        }
        let unknown = key.token_with(&json!({ "alg": key.algorithm(), "kid": "c" }), &claims());
        assert_eq!(verify(&unknown, &keys), Err(InvalidToken::UnknownKey));
        assert!(!Token::read(&unknown).expect("a form").names_one_of(&keys));
        let nameless = key.token_with(&json!({ "alg": key.algorithm() }), &claims());
        assert!(verify(&nameless, &set(&[&key])).is_ok(), "there is one key");
        let twice = set(&[
            &key,
            &match key.pair {
                Pair::P256(_) => Key::p256("b"),
                Pair::Ed25519(_) => Key::ed25519("b"),
            },
        ]);
        assert_eq!(verify(&nameless, &twice), Err(InvalidToken::UnknownKey), "there are two");
    }
}

#[test]
fn no_key_verifies_another_ones_algorithm() {
    let key = Key::p256("a");
    let keys = set(&[&key]);
    let with = |header: Value| verify(&key.token_with(&header, &claims()), &keys);
    for (header, expected) in [
        (json!({ "alg": "none", "kid": "a" }), InvalidToken::Malformed),
        (json!({ "alg": "HS256", "kid": "a" }), InvalidToken::Algorithm),
        (json!({ "alg": "HS512" }), InvalidToken::Algorithm),
        (json!({ "alg": "RS256", "kid": "a" }), InvalidToken::UnknownKey),
        (json!({ "alg": "ES384", "kid": "a" }), InvalidToken::UnknownKey),
        (json!({ "alg": "EdDSA", "kid": "a" }), InvalidToken::UnknownKey),
        (
            json!({ "alg": "ES256", "kid": "a", "crit": ["b64"], "b64": false }),
            InvalidToken::Malformed,
        ),
        (json!({ "kid": "a" }), InvalidToken::Malformed),
    ] {
        assert_eq!(with(header.clone()), Err(expected), "{header}");
    }
    // A key that comes with the token is nobody's.
    let own = Key::p256("own");
    let header = json!({ "alg": "ES256", "kid": "own", "jwk": own.public(), "jku": "https://x" });
    assert_eq!(verify(&own.token_with(&header, &claims()), &keys), Err(InvalidToken::UnknownKey));
    let mut only = key.public();
    only["alg"] = "ES384".into();
    let only = KeySet::read(json!({ "keys": [only] }).to_string().as_bytes()).expect("a set");
    assert_eq!(verify(&key.token(&claims()), &only), Err(InvalidToken::UnknownKey));
    for text in ["", "a", "a.b", "a.b.c.d", "....", &"x".repeat(30_000), &"é".repeat(50)] {
        assert_eq!(verify(text, &keys), Err(InvalidToken::Malformed), "{text:.20}");
    }
}

#[test]
fn what_a_token_says_must_be_meant_for_here_and_now() {
    let key = Key::ed25519("a");
    let keys = set(&[&key]);
    let with = |changes: &[(&str, Value)]| {
        let mut claims = claims();
        for (name, value) in changes {
            claims[*name] = value.clone();
        }
        verify(&key.token(&claims), &keys)
    };
    for (changes, expected) in [
        (&[("iss", json!("https://idp.example.com/"))][..], InvalidToken::Issuer),
        (&[("iss", Value::Null)], InvalidToken::Malformed),
        (&[("sub", Value::Null)], InvalidToken::Claim("sub")),
        (&[("sub", json!(""))], InvalidToken::Claim("sub")),
        (&[("sub", json!("a\nb"))], InvalidToken::Claim("sub")),
        (&[("sub", json!("x".repeat(256)))], InvalidToken::Claim("sub")),
        (&[("sub", json!(7))], InvalidToken::Malformed),
        (&[("aud", json!("else"))], InvalidToken::Audience),
        (&[("aud", Value::Null)], InvalidToken::Claim("aud")),
        (&[("aud", json!([]))], InvalidToken::Claim("aud")),
        (&[("aud", json!(["keyway", "else"]))], InvalidToken::Claim("azp")),
        (&[("azp", json!("else"))], InvalidToken::Audience),
        (&[("aud", json!("else")), ("azp", json!("keyway"))], InvalidToken::Audience),
        (&[("exp", Value::Null)], InvalidToken::Claim("exp")),
        (&[("exp", json!(-1))], InvalidToken::Claim("exp")),
        (&[("exp", json!(1e300))], InvalidToken::Claim("exp")),
        (&[("exp", json!("soon"))], InvalidToken::Malformed),
        (&[("exp", json!(NOW - 60))], InvalidToken::Expired),
        (&[("iat", Value::Null)], InvalidToken::Claim("iat")),
        (&[("iat", json!(NOW + 61))], InvalidToken::NotYet),
        (&[("nbf", json!(NOW + 61))], InvalidToken::NotYet),
        (&[("amr", json!(vec!["pwd"; 17]))], InvalidToken::Claim("amr")),
    ] {
        assert_eq!(with(changes), Err(expected), "{changes:?}");
    }
    for changes in [
        &[("exp", json!(NOW - 59))][..],
        &[("exp", json!(f64::from(i32::MAX) + 0.5))],
        &[("iat", json!(NOW + 60)), ("nbf", Value::Null)],
        &[("aud", json!(["keyway"]))],
        &[("sub", json!("é".repeat(255)))],
    ] {
        assert!(with(changes).is_ok(), "{changes:?}");
    }
    let party = with(&[("aud", json!(["keyway", "else"])), ("azp", json!("other"))]);
    let party = party.expect("both are known");
    assert_eq!((party.audience.as_str(), party.audiences.len()), ("other", 2));
    let methods = with(&[("amr", json!(["pwd", "otp"]))]).expect("it says how").methods;
    assert_eq!(methods, ["pwd", "otp"]);
}
