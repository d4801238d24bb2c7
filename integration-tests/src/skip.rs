//! Tests that cannot run here say so.

use std::io::Write;

/// Says that a test did not run, and why.
///
/// It writes past the test runner's capture, so that `skipped: why` is seen on a passing run;
/// `make test` counts these lines. The caller returns right after.
pub fn skipped(test: &str, why: &str) {
    // A closed standard error is no reason to fail a test that did nothing.
    let _ = writeln!(std::io::stderr(), "\nskipped: {test}: {why}");
}
