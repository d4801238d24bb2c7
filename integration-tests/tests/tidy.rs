//! Goal: what a review should never have to say about form.
//!
//! Method: every file that belongs to the repository is read. What clippy sees better
//! (`unwrap`, `dbg!`, undocumented `unsafe`) is left to clippy. Existing breaches stand in
//! ratchets, which may only shrink.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may give up, and speak")]

use std::collections::BTreeSet;
use std::path::Path;

use keyway_integration_tests::tree::{files, root};

/// A source file longer than this is split.
const LINES_HARD: usize = 800;
/// A source file longer than this needs a place in the ratchet.
const LINES_SOFT: usize = 500;
/// Files over the soft limit, with the lines that they may have. Shrinks only.
const LONG_FILES: [(&str, usize); 0] = [];

/// Files that programs write.
const GENERATED: [&str; 2] = ["Cargo.lock", "go.sum"];

#[test]
fn files_are_short() {
    let mut ratchet: BTreeSet<&str> = LONG_FILES.iter().map(|(path, _)| *path).collect();
    let mut breaches = Vec::new();
    for (path, text) in texts() {
        if !path.ends_with(".rs") && !path.ends_with(".py") && !path.ends_with(".sh") {
            continue;
        }
        let lines = text.lines().count();
        let limit = LONG_FILES.iter().find(|(long, _)| *long == path).map_or(LINES_SOFT, |l| l.1);
        if lines > LINES_HARD.min(limit) {
            breaches.push(format!("{path} has {lines} lines, its limit is {limit}"));
        }
        if lines > LINES_SOFT {
            ratchet.remove(path.as_str());
        }
    }
    assert!(breaches.is_empty(), "{breaches:#?}");
    assert!(ratchet.is_empty(), "these are short now, take them off the ratchet: {ratchet:?}");
}

#[test]
fn text_is_clean() {
    // In pieces, so that this file does not find itself.
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:")];
    let mut breaches = Vec::new();
    for (path, text) in texts() {
        let tabs_allowed =
            path == "Makefile" || [".go", ".mod", ".patch"].iter().any(|end| path.ends_with(end));
        if !text.is_empty() && !text.ends_with('\n') {
            breaches.push(format!("{path}: no line break at the end"));
        }
        for (number, line) in (1..).zip(text.lines()) {
            if line.ends_with([' ', '\t', '\r']) {
                breaches.push(format!("{path}:{number}: trailing space"));
            }
            if line.contains('\t') && !tabs_allowed {
                breaches.push(format!("{path}:{number}: a tab"));
            }
            if let Some(mark) = marks.iter().find(|mark| line.contains(**mark)) {
                breaches.push(format!("{path}:{number}: {mark}"));
            }
        }
    }
    assert!(breaches.is_empty(), "{breaches:#?}");
}

#[test]
fn no_machine_is_named() {
    let places = [concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/ho", "me/")];
    let mut breaches = Vec::new();
    for (path, text) in texts() {
        if path == ".gitignore" {
            continue;
        }
        for (number, line) in (1..).zip(text.lines()) {
            // Within a longer path it is only a folder of that name.
            let absolute = |place: &&&str| {
                line.match_indices(**place).any(|(at, _)| {
                    let before = line[..at].chars().next_back();
                    before.is_none_or(|c| !c.is_alphanumeric() && !"}_.-*/".contains(c))
                })
            };
            if let Some(place) = places.iter().find(absolute) {
                breaches.push(format!("{path}:{number}: {place}"));
            }
        }
    }
    assert!(breaches.is_empty(), "{breaches:#?}");
}

#[test]
fn crates_come_from_the_public_registry() {
    let lock: toml::Table = read("Cargo.lock").parse().unwrap();
    for package in lock["package"].as_array().unwrap() {
        if let Some(source) = package.get("source").and_then(toml::Value::as_str) {
            let public = "registry+https://github.com/rust-lang/crates.io-index";
            assert_eq!(source, public, "{}", package["name"]);
        }
    }
}

#[test]
fn versions_stand_in_the_workspace_table_only() {
    let mut manifests = 0;
    for (path, text) in texts() {
        let ours = path.ends_with("/Cargo.toml") && !path.starts_with("integration-tests/fuzz/");
        if !ours {
            continue;
        }
        manifests += 1;
        let manifest: toml::Table = text.parse().unwrap();
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(table) = manifest.get(section).and_then(toml::Value::as_table) else {
                continue;
            };
            for (name, dependency) in table {
                let inherited = dependency.get("workspace").and_then(toml::Value::as_bool);
                assert_eq!(inherited, Some(true), "{path}: {name} names its own version");
            }
        }
    }
    assert!(manifests >= 9, "only {manifests} manifests were found");
}

#[test]
fn every_dependency_has_its_reason() {
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let table = manifest["workspace"]["dependencies"].as_table().unwrap();
    let used: BTreeSet<&str> =
        table.keys().map(String::as_str).filter(|name| !name.starts_with("keyway-")).collect();
    let document = read("docs/dependencies.md");
    let explained: BTreeSet<&str> = document
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split_once("` | ").map(|(name, _)| name))
        .collect();
    let missing: Vec<_> = used.difference(&explained).collect();
    assert!(missing.is_empty(), "docs/dependencies.md does not explain {missing:?}");
    let stale: Vec<_> = explained.difference(&used).collect();
    assert!(stale.is_empty(), "docs/dependencies.md explains what is not used: {stale:?}");
}

#[test]
fn links_in_documents_resolve() {
    let mut breaches = Vec::new();
    let mut links = 0;
    for (path, text) in texts() {
        if !path.ends_with(".md") {
            continue;
        }
        let folder = Path::new(&path).parent().unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap();
            if target.contains("://") || target.starts_with("mailto:") || file.is_empty() {
                continue;
            }
            links += 1;
            if !root().join(folder).join(file).exists() {
                breaches.push(format!("{path}: {target}"));
            }
        }
    }
    assert!(breaches.is_empty(), "these lead nowhere: {breaches:#?}");
    assert!(links > 0, "no document links to another");
}

#[test]
fn a_newcomer_finds_the_usual_files() {
    for path in [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "LICENSE",
        "docs/config.md",
        "docs/metrics.md",
        "docs/semantics.md",
        "docs/dependencies.md",
    ] {
        assert!(!read(path).trim().is_empty(), "{path} is empty");
    }
}

/// The repository's text files, as path and content.
fn texts() -> impl Iterator<Item = (String, String)> {
    let files = files().unwrap();
    assert!(files.len() > 20, "only {} files were found", files.len());
    files.into_iter().filter_map(|path| {
        let generated = GENERATED.iter().any(|name| path.ends_with(name));
        let seed = path.starts_with("integration-tests/fuzz/seeds");
        if generated || seed {
            return None;
        }
        // What is not UTF-8 is no text.
        let text = std::fs::read_to_string(root().join(&path)).ok()?;
        Some((path.to_string_lossy().into_owned(), text))
    })
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}
