//! Seeds that are printed and can be given back.

use std::io::Write;

/// The run's seed: `KEYWAY_TEST_SEED` when it is set, else random. Printed either way.
///
/// # Panics
/// When the variable is not a number.
pub fn seed(test: &str) -> u64 {
    let seed = match std::env::var("KEYWAY_TEST_SEED") {
        Ok(text) => text.parse().expect("KEYWAY_TEST_SEED is a decimal number"),
        Err(_) => fastrand::u64(..),
    };
    let _ = writeln!(std::io::stderr(), "{test}: replay with KEYWAY_TEST_SEED={seed}");
    seed
}

/// A number from the environment, or the default.
///
/// # Panics
/// When the variable is set and not a number.
pub fn knob(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}

/// Bytes that differ from object to object and from block to block, without storing them.
pub fn payload(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}
