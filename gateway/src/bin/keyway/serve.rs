//! `keyway serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use keyway_gateway::config::Config;
use keyway_gateway::serve;

use crate::run::{finish, run_s3};
use crate::settings::{ConfigArgs, Flags, runtime};

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
            .path("data_dir", self.data_dir.as_deref())
            .text("listen.address", self.listen)
            .text("listen.admin_address", self.admin_listen);
        let config = Config::load(&self.config.sources(flags))?;
        let runtime = runtime(&config.runtime)?;
        finish(runtime, run_s3(config, serve))
    }
}
