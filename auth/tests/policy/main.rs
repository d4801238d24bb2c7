//! Goal: policies decide as AWS documents it.
//!
//! Method: tables of cases by rule (`cases/*.toml`), each also put to a naive evaluator that was
//! written from the rules alone; tables of documents that must be refused (`refused.toml`), with
//! the message; and random policies and requests, on which both evaluators must agree.

#![allow(clippy::unwrap_used, reason = "a test may give up")]

mod naive;
mod property;
mod refused;
mod scene;
mod tables;

/// docs/policy-reference.md is what the tables in the code say.
#[test]
fn the_reference_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/policy-reference.md");
    let written = std::fs::read_to_string(path).unwrap();
    assert!(
        written == keyway_auth::policy::reference(),
        "docs/policy-reference.md is stale: run \
         `keyway admin policy reference > docs/policy-reference.md`"
    );
}
