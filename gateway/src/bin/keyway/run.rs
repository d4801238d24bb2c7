//! How a server process begins and ends.

use std::future::Future;
use std::io::Write;

use anyhow::Context;
use keyway_gateway::config::Config;
use keyway_gateway::telemetry::{self, Installed};
use keyway_gateway::{Running, ServeError, serve_node};
use tokio::runtime::Runtime;

use crate::signals::Signals;

/// Runs a server with an S3 endpoint until it is told to stop.
pub(crate) async fn run_s3<F, R>(config: Config, start: F) -> anyhow::Result<()>
where
    F: FnOnce(Config) -> R,
    R: Future<Output = Result<Running, ServeError>>,
{
    let telemetry = telemetry::install(&config.telemetry)?;
    let mut signals = Signals::new()?;
    let running = start(config).await?;
    announce(&running).context("cannot write the ready line")?;
    signals
        .until_stop(|| match running.reload_certificate() {
            Ok(true) => tracing::info!("the certificate was exchanged"),
            Ok(false) => tracing::info!("the certificate files have not changed"),
            Err(error) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the new certificate cannot be used"
            ),
        })
        .await;
    drain(running.stop(), &mut signals, telemetry).await
}

/// Runs a node until it is told to stop.
pub(crate) async fn run_node(config: Config) -> anyhow::Result<()> {
    let telemetry = telemetry::install(&config.telemetry)?;
    let mut signals = Signals::new()?;
    let id = config.node.id;
    let running = serve_node(config).await?;
    let (address, admin) = (running.address, running.admin_address);
    print(&format!("keyway ready: https://{address} admin=http://{admin} node={id}"))
        .context("cannot write the ready line")?;
    signals.until_stop(|| {}).await;
    drain(running.stop(), &mut signals, telemetry).await
}

/// Runs a server to its end on its threads.
pub(crate) fn finish(
    runtime: Runtime,
    server: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let outcome = runtime.block_on(server);
    // Blocking work that is stuck on a device must not keep the process.
    runtime.shutdown_background();
    outcome
}

async fn drain(
    stop: impl Future<Output = bool>,
    signals: &mut Signals,
    telemetry: Installed,
) -> anyhow::Result<()> {
    tracing::info!("draining: another signal, a second or more from now, ends at once");
    tokio::select! {
        drained = stop => {
            if !drained {
                tracing::warn!("some requests did not finish within the drain timeout");
            }
        }
        () = signals.second() => anyhow::bail!("ended before requests under way had finished"),
    }
    tokio::task::spawn_blocking(move || telemetry.shutdown()).await?;
    Ok(())
}

/// Says that the server takes requests, in one line for programs to read; and shows
/// credentials that were made by this start, which nobody will see again.
fn announce(running: &Running) -> std::io::Result<()> {
    let credentials = &running.root.credentials;
    if running.root.generated {
        let mut stderr = std::io::stderr().lock();
        writeln!(stderr, "┌ root credentials, made by this first start and not shown again")?;
        writeln!(stderr, "│ access key: {}", credentials.access_key())?;
        writeln!(stderr, "│ secret key: {}", credentials.secret().expose())?;
        writeln!(stderr, "└")?;
    }
    let mut line = format!(
        "keyway ready: {} admin=http://{} access-key={}",
        running.url(),
        running.admin_address,
        credentials.access_key()
    );
    if let Some(authority) = &running.authority {
        line.push_str(&format!(" authority={}", authority.display()));
    }
    print(&line)
}

fn print(line: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}
