//! Goal: arrows point one way. sys → fabric → dataplane → gateway; proto under all but sys;
//! auth → gateway and client, its grants → dataplane; the client knows neither gateway nor dataplane.
//!
//! Method: the crate graph that cargo sees is compared with the one that ARCHITECTURE.md
//! draws, and sources are searched where a crate has more than one room.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may give up, and speak")]

use std::collections::BTreeMap;

use keyway_integration_tests::tree::{files, packages, root};

/// What each crate may depend on, of ours.
const ARROWS: [(&str, &[&str]); 12] = [
    ("keyway-sys", &[]),
    ("keyway-proto", &[]),
    ("keyway-rpc", &["keyway-proto"]),
    ("keyway-auth", &["keyway-proto"]),
    ("keyway-meta", &["keyway-proto"]),
    ("keyway-fabric", &["keyway-proto", "keyway-sys"]),
    (
        "keyway-dataplane",
        // Of auth, the node knows grants alone (below).
        &["keyway-proto", "keyway-rpc", "keyway-auth", "keyway-sys", "keyway-fabric"],
    ),
    ("keyway-client", &["keyway-proto", "keyway-auth", "keyway-fabric"]),
    // The client's other languages.
    ("keyway-bindings", &["keyway-proto", "keyway-client"]),
    ("keyway-capi", &["keyway-proto", "keyway-client", "keyway-bindings"]),
    ("keyway-python", &["keyway-proto", "keyway-client", "keyway-bindings"]),
    (
        "keyway-gateway",
        &[
            "keyway-proto",
            "keyway-rpc",
            "keyway-auth",
            "keyway-meta",
            "keyway-dataplane",
            // For the binary's own client commands; the library may not (below).
            "keyway-client",
        ],
    ),
];

/// The judge may look at everything; nothing may look at the judge.
const JUDGE: &str = "keyway-integration-tests";

/// Crates that hold logic only.
const SAFE: [&str; 7] = [
    "proto",
    "auth",
    "gateway/meta",
    "gateway",
    "client-sdk",
    "client-sdk/bindings",
    "integration-tests",
];

/// Rooms whose leaf modules may opt in to `unsafe`.
const UNSAFE_ROOMS: [&str; 5] = [
    "dataplane/sys/",
    "dataplane/fabric/",
    "dataplane/src/",
    "client-sdk/capi/src/",
    "client-sdk/python/src/",
];

#[test]
fn crates_depend_only_along_the_arrows() {
    let arrows: BTreeMap<&str, &[&str]> = ARROWS.into_iter().collect();
    let mut seen = 0;
    for package in packages().unwrap() {
        if package.name == JUDGE {
            continue;
        }
        let allowed = arrows.get(package.name.as_str());
        let allowed = allowed.unwrap_or_else(|| panic!("{} has no place yet", package.name));
        seen += 1;
        for dependency in package.dependencies {
            let ours = dependency.name.starts_with("keyway-");
            assert!(
                !ours || allowed.contains(&dependency.name.as_str()),
                "{} must not depend on {}",
                package.name,
                dependency.name,
            );
        }
    }
    assert_eq!(seen, ARROWS.len(), "a crate that has a place is gone");
}

#[test]
fn the_node_knows_grants_and_nobodys_credentials() {
    for (path, text) in sources("dataplane/src/") {
        for (at, _) in text.match_indices("keyway_auth::") {
            let rest = &text[at..];
            assert!(rest.starts_with("keyway_auth::grant"), "{path} must know grants alone");
        }
    }
}

#[test]
fn the_gateways_library_stays_out_of_other_rooms() {
    for (path, text) in sources("gateway/src/") {
        if path.starts_with("gateway/src/bin/") {
            continue;
        }
        for crate_name in ["keyway_client", "keyway_fabric", "keyway_sys"] {
            assert!(!text.contains(crate_name), "{path} must not know {crate_name}");
        }
    }
}

#[test]
fn the_harness_is_not_made_of_what_it_judges() {
    for (path, text) in sources("integration-tests/src/") {
        for crate_name in ["keyway_gateway", "keyway_dataplane", "keyway_meta", "keyway_auth"] {
            assert!(!text.contains(&format!("{crate_name}::")), "{path} must not use {crate_name}");
        }
    }
}

#[test]
fn logic_forbids_unsafe_code() {
    for room in SAFE {
        let path = root().join(room).join("src/lib.rs");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("#![forbid(unsafe_code)]"), "{} allows unsafe", path.display());
    }
}

#[test]
fn unsafe_modules_lie_in_their_rooms_and_say_why() {
    let opt_in = concat!("allow(", "unsafe_code)");
    for (path, text) in sources("") {
        if !text.contains(opt_in) {
            continue;
        }
        let may = UNSAFE_ROOMS.iter().any(|room| path.starts_with(room));
        assert!(may, "{path} opts in to unsafe outside of {UNSAFE_ROOMS:?}");
        assert!(text.starts_with("//!"), "{path} opts in to unsafe without a header");
    }
}

/// Rust sources below a folder, as path and text.
fn sources(folder: &str) -> Vec<(String, String)> {
    let found: Vec<(String, String)> = files()
        .unwrap()
        .into_iter()
        .map(|path| path.to_string_lossy().into_owned())
        .filter(|path| path.starts_with(folder) && path.ends_with(".rs"))
        .map(|path| (path.clone(), std::fs::read_to_string(root().join(&path)).unwrap()))
        .collect();
    assert!(!found.is_empty(), "no sources below {folder:?}");
    found
}
