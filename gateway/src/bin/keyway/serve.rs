//! `keyway serve`.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use keyway_gateway::config::Config;
use keyway_gateway::{Running, serve};

use crate::settings::{ConfigArgs, Flags, runtime};
use crate::signals::Signals;

/// Runs everything in one process: S3 endpoint, storage node, metadata.
///
/// Prints one line on standard output when it takes requests:
/// `keyway ready: URL admin=URL access-key=ID [authority=FILE]`. Logs go to standard error.
/// SIGTERM and Ctrl-C let requests under way finish; a second one ends at once. SIGHUP reads
/// the certificate files again.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory of everything that is kept; made if it does not exist.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Address of the S3 endpoint; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Address of the admin listener (health, metrics).
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin_listen: Option<SocketAddr>,
    #[command(flatten)]
    config: ConfigArgs,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let flags = Flags::default()
            .path("data_dir", self.data_dir)
            .text("listen.address", self.listen)
            .text("listen.admin_address", self.admin_listen);
        let config = Config::load(&self.config.sources(flags))?;
        let runtime = runtime(&config.runtime)?;
        let outcome = runtime.block_on(run(config));
        // Blocking work that is stuck on a device must not keep the process.
        runtime.shutdown_background();
        outcome
    }
}

async fn run(config: Config) -> anyhow::Result<()> {
    let telemetry = keyway_gateway::telemetry::install(&config.telemetry)?;
    let mut signals = Signals::new()?;
    let running = serve(config).await?;
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
    tracing::info!("draining: a second signal ends at once");
    tokio::select! {
        drained = running.stop() => {
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
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}
