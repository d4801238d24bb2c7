//! `keyway node`.

use crate::run::{finish, run_node};
use crate::settings::{ServerArgs, runtime};

/// Runs a storage node that gateways reach over mutual TLS.
///
/// Certificates come from `keyway admin certs`. Prints one line on standard output when it
/// takes transfers: `keyway ready: URL admin=URL node=ID`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let config = self.server.config("cluster.address")?;
        finish(runtime(&config.runtime)?, run_node(config))
    }
}
