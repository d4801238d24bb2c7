//! The repository's own files and crates, for the tests that keep it tidy.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The repository's root.
///
/// # Panics
/// Never: this crate lies one level below.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies below the root")
}

/// Files that belong to the repository, relative to its root: tracked ones, and new ones that
/// git does not ignore.
///
/// # Errors
/// When git cannot be run, for instance in an exported tree.
pub fn files() -> Result<Vec<PathBuf>> {
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .context("running git ls-files")?;
    ensure!(listing.status.success(), "git ls-files failed");
    let text = String::from_utf8(listing.stdout)?;
    let mut files: Vec<PathBuf> = text
        .split('\0')
        .filter(|path| !path.is_empty() && root().join(path).is_file())
        .map(PathBuf::from)
        .collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// A crate of the workspace, as `cargo metadata` tells it.
#[derive(Debug, Deserialize)]
pub struct Package {
    /// The crate's name.
    pub name: String,
    /// Where its manifest lies.
    pub manifest_path: PathBuf,
    /// What its manifest depends on.
    pub dependencies: Vec<Dependency>,
}

/// A line of a manifest.
#[derive(Debug, Deserialize)]
pub struct Dependency {
    /// The crate depended on.
    pub name: String,
    /// `None` for a normal dependency, else `dev` or `build`.
    pub kind: Option<String>,
}

/// The crates of the workspace.
///
/// # Errors
/// When `cargo metadata` fails.
pub fn packages() -> Result<Vec<Package>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .context("running cargo metadata")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice::<Metadata>(&output.stdout)?.packages)
}
