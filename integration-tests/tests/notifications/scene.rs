//! A server with targets, and buckets that name them.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use keyway_integration_tests::server::Options;
use keyway_integration_tests::wire::{Request, Response};
use keyway_integration_tests::{S3, Server};

use crate::world::{World, expect};

/// Configuration with webhooks of these names, and this besides.
pub(crate) fn config(more: &str, hooks: &[(&str, SocketAddr)]) -> String {
    let mut config = format!("[auth]\nfailures_burst = 0\n{more}\n");
    for (name, address) in hooks {
        let _ = write!(
            config,
            "[notify.targets.{name}]\nkind = \"webhook\"\nurl = \"http://{address}/events\"\n\
             timeout_ms = 2000\n"
        );
    }
    config
}

pub(crate) fn world(config: String) -> Result<World> {
    Ok(World { server: Server::with(Options { config, ..Options::default() })? })
}

/// A rule: its target, its events without `s3:`, and a prefix.
pub(crate) fn rule(target: &str, events: &[&str], prefix: &str) -> String {
    let events: String = events.iter().map(|event| format!("<Event>s3:{event}</Event>")).collect();
    let filter = match prefix {
        "" => String::new(),
        prefix => format!(
            "<Filter><S3Key><FilterRule><Name>prefix</Name><Value>{prefix}</Value></FilterRule>\
             </S3Key></Filter>"
        ),
    };
    format!(
        "<QueueConfiguration><Id>{target}-{prefix}</Id>\
         <Queue>arn:keyway:sqs::{target}:webhook</Queue>{events}{filter}</QueueConfiguration>"
    )
}

pub(crate) fn document(rules: &[String]) -> String {
    format!("<NotificationConfiguration>{}</NotificationConfiguration>", rules.concat())
}

/// Sets a bucket's rules, without a test event.
pub(crate) fn put_rules(s3: &mut S3, bucket: &str, rules: &[String]) -> Result<()> {
    let request = Request::new("PUT", format!("/{bucket}")).query("notification", "");
    let request = request.header("x-amz-skip-destination-validation", "true");
    expect(&s3.send(request.body(document(rules)))?, 200)
}

/// The same as clients do, with its answer.
pub(crate) fn put_document(s3: &mut S3, bucket: &str, document: &str) -> Result<Response> {
    let request = Request::new("PUT", format!("/{bucket}")).query("notification", "");
    Ok(s3.send(request.body(document))?)
}

/// The ETag of an answer, without quotes.
pub(crate) fn etag(response: &Response) -> Result<String> {
    expect(response, 200)?;
    Ok(response.header("etag").unwrap_or_default().trim_matches('"').to_owned())
}

/// The number of a metric of a target.
pub(crate) fn metric(server: &Server, name: &str, target: &str) -> Result<u64> {
    let text = server.metrics()?;
    let attribute = format!("keyway_notify_target=\"{target}\"");
    let line = |line: &&str| line.starts_with(name) && line.contains(&attribute);
    let found = text.lines().find(line).and_then(|line| line.rsplit(' ').next());
    ensure!(found.is_some(), "no {name} of {target} in\n{text}");
    Ok(found.unwrap_or_default().parse()?)
}

/// Waits until the number of a metric is as it should be: it follows what it counts.
pub(crate) fn wait_metric(
    server: &Server,
    name: &str,
    target: &str,
    right: impl Fn(u64) -> bool,
) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let found = metric(server, name, target)?;
        if right(found) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{name} of {target} stays {found}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
