//! Configuration: any TOML is refused or taken, and what is taken prints as itself.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use keyway_gateway::Config;
use keyway_gateway::config::Sources;
use libfuzzer_sys::fuzz_target;

static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("keyway-fuzz-{}.toml", std::process::id())));

fuzz_target!(|text: &str| {
    let sources = Sources { file: Some(FILE.clone()), flags: Vec::new() };
    fs::write(&*FILE, text).expect("the temporary directory takes a file");
    let Ok(config) = Config::load(&sources) else { return };
    let _ = config.root_credentials();
    let printed = config.to_toml();
    if config.root.secret_key.is_some() {
        // It is not printed, so the printed form is not the same configuration.
        return;
    }
    fs::write(&*FILE, &printed).expect("the temporary directory takes a file");
    let again = Config::load(&sources).expect("a printed configuration is valid");
    assert_eq!(again.to_toml(), printed);
});
