//! `keyway doctor`.

use std::io::Write;
use std::path::PathBuf;

use keyway_gateway::config::Config;

use crate::settings::{ConfigArgs, Flags, runtime};

/// Says what this machine offers: kernel, disk access, limits, RDMA devices, GPUs, and the path
/// that clients of this host get.
///
/// Fails (exit code 1) where a server could not run. Leaves nothing behind.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory that a server would use.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let flags = Flags::default().path("data_dir", self.data_dir.as_deref());
        let config = Config::load(&self.config.sources(flags))?;
        let runtime = runtime(&config.runtime)?;
        let dc_key = config.node.rdma.dc_key.is_some();
        let report = runtime.block_on(keyway_gateway::doctor::examine(&config.data_dir, dc_key));
        let mut stdout = std::io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut stdout, &report)?;
            writeln!(stdout)?;
        } else {
            write!(stdout, "{report}")?;
        }
        anyhow::ensure!(report.is_usable(), "a server could not run here");
        Ok(())
    }
}
