//! `keyway gateway`.

use std::net::SocketAddr;
use std::path::PathBuf;

use keyway_gateway::config::Config;
use keyway_gateway::serve_gateway;

use crate::run::{finish, run_s3};
use crate::settings::{ConfigArgs, Flags, runtime};

/// Runs the S3 endpoint and the metadata over storage nodes of other processes.
///
/// The nodes are those of `cluster.nodes`; certificates for mutual TLS with them come from
/// `keyway admin certs`. Ready line and signals are those of `keyway serve`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory of the metadata; made if it does not exist.
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
            .path("data_dir", self.data_dir.as_deref())
            .text("listen.address", self.listen)
            .text("listen.admin_address", self.admin_listen);
        let config = Config::load(&self.config.sources(flags))?;
        finish(runtime(&config.runtime)?, run_s3(config, serve_gateway))
    }
}
