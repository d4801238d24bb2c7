//! `keyway completions`.

use clap::CommandFactory;
use clap_complete::Shell;

/// Prints a completion script for a shell.
///
/// For example: `keyway completions bash > /etc/bash_completion.d/keyway`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        clap_complete::generate(
            self.shell,
            &mut crate::Cli::command(),
            "keyway",
            &mut std::io::stdout(),
        );
        Ok(())
    }
}
