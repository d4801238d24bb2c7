//! `keyway config`.

use std::io::Write;

use keyway_gateway::config::{Config, reference};
use keyway_gateway::telemetry::metrics_reference;

use crate::settings::{ConfigArgs, Flags};

/// Prints the effective configuration as TOML, secrets hidden.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print the reference of all settings instead (docs/config.md).
    #[arg(long, conflicts_with = "metrics")]
    reference: bool,
    /// Print the reference of all metrics instead (docs/metrics.md).
    #[arg(long)]
    metrics: bool,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let text = if self.reference {
            reference()
        } else if self.metrics {
            metrics_reference()
        } else {
            Config::load(&self.config.sources(Flags::default()))?.to_toml()
        };
        Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
    }
}
