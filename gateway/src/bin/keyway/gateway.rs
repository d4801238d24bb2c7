//! `keyway gateway`.

use keyway_gateway::serve_gateway;

use crate::run::{finish, run_s3};
use crate::settings::{ServerArgs, runtime};

/// Runs the S3 endpoint and the metadata over storage nodes of other processes.
///
/// The nodes are those of `cluster.nodes`; certificates for mutual TLS with them come from
/// `keyway admin certs`. Ready line and signals are those of `keyway serve`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let config = self.server.config("listen.address")?;
        finish(runtime(&config.runtime)?, run_s3(config, serve_gateway))
    }
}
