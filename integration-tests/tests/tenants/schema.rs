//! Goal: the administration does what docs/openapi.json says of it.
//!
//! Method: schemathesis makes requests out of the document, sound ones and others, in order and
//! as scenarios, and holds the answers against it: no server errors, no undocumented status, type,
//! field or method, no use of what was deleted.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use keyway_integration_tests::skip::skipped;

use crate::world::World;

/// Cases for each operation.
const EXAMPLES: &str = "25";
/// What does not hold here. S3's answer to who is not let in is 403, and whether the signature's
/// headers are there is tested elsewhere. Policies, issuers and names in lists have a grammar that
/// the document tells in words alone, and a list is taken for an object whose fields it gives in
/// order: so what is sound there and what is not, a schema does not decide.
const EXCLUDED: &str = "ignored_auth,missing_required_header,positive_data_acceptance,\
                        negative_data_rejection";

#[test]
fn the_administration_is_as_documented() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let program = root.join("target/venv-schema/bin/schemathesis");
    if !program.exists() {
        skipped("the_administration_is_as_documented", "target/venv-schema is not there");
        return Ok(());
    }
    let world = World::start()?;
    let key = world.server.credentials();
    let scratch = tempfile::tempdir()?;
    let output = Command::new(program)
        .arg("run")
        .arg(root.join("docs/openapi.json"))
        .args(["--url", world.server.url(), "--max-examples", EXAMPLES, "--no-color"])
        .args(["--exclude-checks", EXCLUDED, "--continue-on-failure"])
        .env("SCHEMATHESIS_HOOKS", "schema_hooks")
        .env("PYTHONPATH", root.join("integration-tests/clients"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("AWS_ACCESS_KEY_ID", &key.access_key)
        .env("AWS_SECRET_ACCESS_KEY", &key.secret_key)
        .current_dir(scratch.path())
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    ensure!(said.contains("generated"), "nothing was tested: {said}");
    Ok(())
}
