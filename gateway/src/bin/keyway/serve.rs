//! `keyway serve`.

use keyway_gateway::serve;

use crate::run::{finish, run_s3};
use crate::settings::{ServerArgs, runtime};

/// Runs everything in one process: S3 endpoint, storage node, metadata.
///
/// Prints one line on standard output when it takes requests:
/// `keyway ready: URL admin=URL access-key=ID [authority=FILE]`. Logs go to standard error.
/// SIGTERM and Ctrl-C let requests under way finish; another one, a second or more after the
/// first, ends at once. SIGHUP reads the certificate files again.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let config = self.server.config("listen.address")?;
        finish(runtime(&config.runtime)?, run_s3(config, serve))
    }
}
