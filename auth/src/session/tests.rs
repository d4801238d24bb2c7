//! Goal: a token opens with the id that it was made for, under its key, until its time, and
//! nothing else does. Method: every bit altered, ids swapped, another key, the clock told.

use proptest::prelude::*;

use super::*;
use crate::key_file::KeyFile;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

fn issuer() -> (tempfile::TempDir, Issuer) {
    let dir = tempfile::tempdir().expect("a directory");
    let key = KeyFile::open_or_create(&dir.path().join("key")).expect("a key");
    let issuer = Issuer::new(Arc::new(key)).expect("a key");
    (dir, issuer)
}

fn claims() -> Claims {
    let key = AccessKeyId::new("KEYA");
    Claims {
        source: Origin::Key(Source { key, tenant: TenantId(1), holder: "KWUA".to_owned() }),
        role: Some(Assumed {
            tenant: TenantId(2),
            name: "reader".parse().expect("a name"),
            id: "KWRA".to_owned(),
            session: "job-1".to_owned(),
            policy: Some("{}".to_owned()),
        }),
        through: vec![Link {
            tenant: TenantId(1),
            name: "first".parse().expect("a name"),
            id: "KWRB".to_owned(),
            issued: at(5),
        }],
        issued: at(10),
        expires: at(910),
    }
}

#[test]
fn a_token_opens_until_its_time() {
    let (_dir, issuer) = issuer();
    let issued = issuer.issue(&claims()).expect("made");
    let id = issued.id.as_str();
    assert!(is_temporary(id), "{id}");
    assert_eq!(issued.secret.expose().len(), 40);
    assert!(issuer.secret(id).expect("it has one").same_as(&issued.secret));
    assert_eq!(issuer.open(id, issued.token(), at(909)), Ok(claims()));
    assert_eq!(issuer.open(id, issued.token(), at(910)), Err(TokenError::Expired));
    let told = format!("{issued:?}");
    assert!(!told.contains(issued.token()) && !told.contains(issued.secret.expose()));
}

#[test]
fn a_token_is_of_one_id_and_one_deployment() {
    let (_dir, issuer) = issuer();
    let (one, two) =
        (issuer.issue(&claims()).expect("made"), issuer.issue(&claims()).expect("made"));
    assert_ne!(one.id, two.id);
    assert!(!one.secret.same_as(&two.secret));
    assert_eq!(issuer.open(two.id.as_str(), one.token(), at(11)), Err(TokenError::Invalid));
    let (_other_dir, other) = self::issuer();
    assert_eq!(other.open(one.id.as_str(), one.token(), at(11)), Err(TokenError::Invalid));
    let secret = other.secret(one.id.as_str()).expect("every id of the form has one");
    assert!(!secret.same_as(&one.secret), "secrets are the deployment's");
}

#[test]
fn every_altered_bit_is_noticed() {
    let (_dir, issuer) = issuer();
    let issued = issuer.issue(&claims()).expect("made");
    let sealed = BASE64_URL_SAFE_NO_PAD.decode(issued.token()).expect("base64");
    for bit in 0..sealed.len() * 8 {
        let mut altered = sealed.clone();
        altered[bit / 8] ^= 1 << (bit % 8);
        let token = BASE64_URL_SAFE_NO_PAD.encode(altered);
        let opened = issuer.open(issued.id.as_str(), &token, at(11));
        assert_eq!(opened, Err(TokenError::Invalid), "bit {bit}");
    }
    for token in ["", "x", &issued.token()[1..], &"A".repeat(TOKEN_CHARS_MAX + 1)] {
        let opened = issuer.open(issued.id.as_str(), token, at(11));
        assert_eq!(opened, Err(TokenError::Invalid));
    }
}

/// What is sealed for another use under the same key, even if it reads as claims, is no token.
#[test]
fn other_sealed_things_are_no_tokens() {
    let (dir, issuer) = issuer();
    let key = KeyFile::open_or_create(&dir.path().join("key")).expect("a key");
    let id = issuer.issue(&claims()).expect("made").id;
    let plain = serde_json::to_vec(&claims()).expect("JSON");
    for (context, good) in [
        (context(id.as_str()), true),
        (format!("keyway access key v1\n{id}\n1\nanna").into_bytes(), false),
        (id.as_str().as_bytes().to_vec(), false),
    ] {
        let sealed = BASE64_URL_SAFE_NO_PAD.encode(key.seal(&context, &plain).expect("sealed"));
        assert_eq!(issuer.open(id.as_str(), &sealed, at(11)).is_ok(), good);
    }
}

#[test]
fn links_are_the_roles_in_between() {
    let links = claims().links();
    assert_eq!((links.len(), links[0].id.as_str(), links[1].id.as_str()), (2, "KWRB", "KWRA"));
    assert_eq!(links[1].issued, at(10));
    let needs =
        |tenant, name: &str| claims().needs(TenantId(tenant), &name.parse().expect("a name"));
    assert!(needs(1, "first") && needs(2, "reader") && !needs(1, "reader") && !needs(2, "x"));
}

#[test]
fn forms() {
    assert!(is_temporary("KWT1ABCDEFGHIJKLMN27"));
    for other in [
        "",
        "KWT1",
        "KWT1ABCDEFGHIJKLMN2",
        "KWT1ABCDEFGHIJKLMN278",
        "KWT1abcdefghijklmn27",
        "KWT1ABCDEFGHIJKLMN18",
        "KWT2ABCDEFGHIJKLMN27",
        "AKIAIOSFODNN7EXAMPLE",
    ] {
        assert!(!is_temporary(other), "{other}");
    }
    for drawn in std::iter::repeat_with(crate::root::generated_access_key).take(100) {
        assert!(!is_temporary(drawn.as_str()), "{drawn}");
    }
    assert!(is_session_name("a.b@c=d") && is_session_name(&"x".repeat(64)));
    for bad in ["", "a", "a/b", "a b", "a:b", "ä-ä", &"x".repeat(65)] {
        assert!(!is_session_name(bad), "{bad}");
    }
}

proptest! {
    #[test]
    fn foreign_text_never_opens(token: String, id: String) {
        let (_dir, issuer) = issuer();
        prop_assert!(issuer.open(&id, &token, at(0)).is_err());
        prop_assert!(issuer.open("KWT1ABCDEFGHIJKLMN27", &token, at(0)).is_err());
    }
}
