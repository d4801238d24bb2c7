//! The audit log of the real binary: what it tells, what it does not, and that it holds.

use std::process::Command;

use anyhow::{Result, ensure};
use keyway_client::{Client, HostBuffer, PathPolicy};
use keyway_integration_tests::seed::payload;
use keyway_integration_tests::server::binary;
use keyway_integration_tests::sigv4::Credentials;
use keyway_integration_tests::wire::Request;
use keyway_proto::TransferPath;
use serde_json::Value;

use crate::world::{World, denied, expect, refused, statement};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happens_is_told_and_cannot_be_changed() -> Result<()> {
    let mut world = World::start()?;
    world.tenant("one")?;
    let owner = world.key("one", None)?;
    expect(&world.s3(&owner).create_bucket("data")?, 200)?;
    expect(&world.s3(&owner).put("data", "a", &payload(1, 1 << 20))?, 200)?;
    let anna = world.user("one", "anna", &[statement("Allow", &["s3:GetObject"], &["data/*"])])?;
    denied(&world.s3(&anna).put("data", "b", b"x")?)?;
    denied(&world.anonymous(Request::new("GET", "/data/a"))?)?;
    let mixed = Credentials { secret_key: owner.secret_key.clone(), ..anna.clone() };
    refused(&world.s3(&mixed).get("data", "a")?, 403, "SignatureDoesNotMatch")?;
    refused(&world.s3(&Credentials::random()).get("data", "a")?, 403, "InvalidAccessKeyId")?;
    let client = Client::builder()
        .endpoint(world.server.url())
        .credentials(keyway_client::Credentials::new(&anna.access_key, &*anna.secret_key))
        .path(PathPolicy::Require(TransferPath::IpcHost))
        .build()?;
    let mut memory = HostBuffer::shared(1 << 20)?;
    client.get_object("data", "a").into(memory.slice_mut(..)?).await?;
    drop(client);
    world.server.terminate()?;

    let path = world.server.data_dir().join("audit.jsonl");
    let text = std::fs::read_to_string(&path)?;
    for secret in [&owner.secret_key, &anna.secret_key] {
        ensure!(!text.contains(secret.as_str()), "a secret is in the log");
    }
    ensure!(!text.contains("kw1:") && !text.contains("Signature="), "a token is in the log");
    let events: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let of = |event: &str| events.iter().filter(|line| line["event"] == event).collect::<Vec<_>>();
    let denials = of("denied");
    ensure!(denials.len() == 2, "{denials:?}");
    ensure!(denials[0]["action"] == "s3:PutObject" && denials[0]["resource"] == "data/b");
    ensure!(denials[0]["access_key"] == *anna.access_key && denials[1]["caller"] == "anonymous");
    let strangers = of("not-authenticated");
    let codes: Vec<_> = strangers.iter().map(|line| &line["code"]).collect();
    ensure!(codes == ["SignatureDoesNotMatch", "InvalidAccessKeyId"], "{codes:?}");
    ensure!(of("administered").iter().any(|line| line["path"] == "/_keyway/v1/admin/tenants/one"));
    ensure!(of("session").iter().any(|line| line["what"] == "opened"));
    let keys = of("key");
    ensure!(keys.len() == 1 && keys[0]["bytes"] == 1 << 20, "{keys:?}");
    ensure!(keys[0]["key"] == "invalidated" && keys[0]["path"] == "ipc-host", "{keys:?}");

    let verify = |more: &[&str]| -> Result<bool> {
        let output = Command::new(binary()?)
            .args(["admin", "audit", "verify"])
            .arg(&path)
            .args(more)
            .output()?;
        Ok(output.status.success())
    };
    ensure!(verify(&[])?);
    let last = events.last().and_then(|line| line["hash"].as_str()).unwrap_or_default();
    ensure!(verify(&["--expect", last])?);
    // It goes on after a restart, and not after somebody changed it.
    world.server.restart()?;
    world.server.terminate()?;
    ensure!(verify(&["--expect", last])?);
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, text.replacen("s3:PutObject", "s3:GetObject", 1))?;
    ensure!(!verify(&[])?);
    ensure!(world.server.restart().is_err(), "a server goes on with a log that was changed");
    Ok(())
}
