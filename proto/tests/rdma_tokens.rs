//! Goal: the parsers agree with the vectors that docs/wire.md names, which every other
//! implementation of the wire can run as well.
#![allow(clippy::unwrap_used, reason = "test code")]

use keyway_proto::{RdmaToken, RemoteKey, SessionId, SessionToken};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vectors {
    #[serde(rename = "description")]
    _description: String,
    version: u32,
    session: Of<Session>,
    dct: Of<Dct>,
}

#[derive(Deserialize)]
struct Of<T> {
    accepted: Vec<T>,
    refused: Vec<Refused>,
}

#[derive(Deserialize)]
struct Refused {
    why: String,
    text: String,
}

#[derive(Deserialize)]
struct Session {
    why: String,
    text: String,
    session: SessionId,
    node: u32,
    length: u64,
    windows: Vec<Window>,
}

#[derive(Deserialize)]
struct Window {
    address: String,
    length: u32,
    key: String,
}

#[derive(Deserialize)]
struct Dct {
    why: String,
    text: String,
    address: String,
    length: u32,
    rkey: String,
    lid: u16,
    dct_number: u32,
    gid: Option<String>,
}

fn vectors() -> Vectors {
    let vectors: Vectors = serde_json::from_str(include_str!("vectors/rdma-tokens.json")).unwrap();
    assert_eq!(vectors.version, 1);
    vectors
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap()
}

#[test]
fn session_tokens() {
    let Of { accepted, refused } = vectors().session;
    for vector in accepted {
        let token: SessionToken =
            vector.text.parse().unwrap_or_else(|error| panic!("{}: {error}", vector.why));
        assert_eq!(token.session(), vector.session, "{}", vector.why);
        assert_eq!(token.session().node().0, vector.node, "{}", vector.why);
        assert_eq!(token.length(), vector.length, "{}", vector.why);
        assert_eq!(token.windows().len(), vector.windows.len(), "{}", vector.why);
        for (window, told) in token.windows().iter().zip(&vector.windows) {
            assert_eq!(window.address, hex(&told.address), "{}", vector.why);
            assert_eq!(window.length, told.length, "{}", vector.why);
            assert_eq!(window.key, RemoteKey(hex(&told.key) as u32), "{}", vector.why);
        }
        assert_eq!(token.encode(), vector.text, "{}", vector.why);
    }
    for Refused { why, text } in refused {
        assert!(text.parse::<SessionToken>().is_err(), "{why}");
    }
}

#[test]
fn tokens_of_81_characters() {
    let Of { accepted, refused } = vectors().dct;
    for vector in accepted {
        let token: RdmaToken =
            vector.text.parse().unwrap_or_else(|error| panic!("{}: {error}", vector.why));
        assert_eq!(token.address(), hex(&vector.address), "{}", vector.why);
        assert_eq!(token.length(), vector.length, "{}", vector.why);
        assert_eq!(u64::from(token.rkey()), hex(&vector.rkey), "{}", vector.why);
        assert_eq!(token.lid(), vector.lid, "{}", vector.why);
        assert_eq!(token.dct_number(), vector.dct_number, "{}", vector.why);
        let gid = token.gid().map(|gid| format!("{:032x}", u128::from_be_bytes(gid)));
        assert_eq!(gid, vector.gid, "{}", vector.why);
        assert_eq!(token.encode(), vector.text, "{}", vector.why);
    }
    for Refused { why, text } in refused {
        assert!(text.parse::<RdmaToken>().is_err(), "{why}");
    }
}
