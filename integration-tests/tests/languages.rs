//! Goal: the client's other languages work against a real server: C by its headers and library,
//! Python by its package.
//!
//! Method: C programs in `c/` are compiled here against the library of this build and run.
//! Python's own tests run with the module of this build, each file by itself; `make test` makes
//! the environment that they need, without torch.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may give up, and speak")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use keyway_integration_tests::S3;
use keyway_integration_tests::server::{Options, Server, binary};
use keyway_integration_tests::skip::skipped;
use keyway_integration_tests::tree::root;

/// Where this build's libraries are: beside the server.
fn libraries() -> PathBuf {
    binary().unwrap().parent().unwrap().to_owned()
}

#[test]
fn c_client() {
    run_c("client.c", None);
}

#[test]
fn c_cufile() {
    run_c("cufile.c", Some("cufile"));
}

fn run_c(source: &str, bucket: Option<&str>) {
    let libraries = libraries();
    if !libraries.join("libkeyway.so").exists() {
        skipped(source, "libkeyway.so was not built");
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let program = work.path().join("program");
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg("-I")
        .arg(root().join("client-sdk/capi/include"))
        .arg(root().join("integration-tests/c").join(source))
        .arg("-L")
        .arg(&libraries)
        .arg("-lkeyway")
        .output()
        .unwrap();
    succeeded(source, &compiled);
    let config = "node.tier.size_bytes = 67108864\n".to_owned();
    let server = Server::with(Options { config, ..Options::default() }).unwrap();
    if let Some(bucket) = bucket {
        S3::of(&server).create_bucket(bucket).unwrap();
    }
    let credentials = server.credentials();
    let ran = plain(&program)
        .env("LD_LIBRARY_PATH", &libraries)
        .env("ENDPOINT", server.url())
        .env("AWS_ENDPOINT_URL", server.url())
        .env("AWS_ACCESS_KEY_ID", &credentials.access_key)
        .env("AWS_SECRET_ACCESS_KEY", &credentials.secret_key)
        .output()
        .unwrap();
    succeeded(source, &ran);
}

/// A program that the machine's own settings do not reach.
fn plain(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("AWS_") || text.starts_with("KEYWAY_") || text.starts_with("PYTHON") {
            command.env_remove(&name);
        }
    }
    command
}

fn succeeded(what: &str, output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}\n{said}\n{errors}", output.status);
    println!("{what}:\n{said}");
}

macro_rules! python {
    ($($name:ident: $file:literal;)+) => {$(
        #[test]
        fn $name() {
            run_python($file);
        }
    )+};
}

python! {
    python_client: "test_client.py";
    python_asyncio: "test_asyncio.py";
    python_fork: "test_fork.py";
    python_safetensors: "test_safetensors.py";
    python_fsspec: "test_fsspec.py";
    python_torch: "test_torch.py";
    python_gpu: "test_gpu.py";
}

/// What pytest answers where every test was skipped as a whole.
const NOTHING_RAN: i32 = 5;

fn run_python(file: &str) {
    let interpreter = root().join("target/venv-keyway/bin/python");
    if !interpreter.exists() {
        skipped(file, "target/venv-keyway is not there");
        return;
    }
    let module = libraries().join("lib_keyway.so");
    if !module.exists() {
        skipped(file, "lib_keyway.so was not built");
        return;
    }
    // The package as a wheel has it, of links.
    let work = tempfile::tempdir().unwrap();
    let package = work.path().join("keyway");
    std::fs::create_dir(&package).unwrap();
    let sources = root().join("client-sdk/python/python/keyway");
    for entry in std::fs::read_dir(&sources).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::os::unix::fs::symlink(entry.path(), package.join(entry.file_name())).unwrap();
        }
    }
    std::os::unix::fs::symlink(&module, package.join("_keyway.abi3.so")).unwrap();
    let ran = plain(&interpreter)
        .args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--rootdir"])
        .arg(root().join("client-sdk/python"))
        .arg(root().join("client-sdk/python/tests").join(file))
        .env("PYTHONPATH", work.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("KEYWAY_BINARY", binary().unwrap())
        .output()
        .unwrap();
    if ran.status.code() == Some(NOTHING_RAN) {
        let said = String::from_utf8_lossy(&ran.stdout);
        let why = said.lines().find_map(|line| line.split("Skipped: ").nth(1));
        let why =
            why.or_else(|| said.lines().find_map(|line| line.rsplit_once("py: ").map(|w| w.1)));
        skipped(file, why.unwrap_or("pytest ran nothing"));
        return;
    }
    succeeded(file, &ran);
}
