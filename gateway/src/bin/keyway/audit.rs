//! `keyway admin audit`.

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Subcommand;
use keyway_gateway::audit::chain::verify;

/// Looks after the audit log.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Says whether no line of a log was changed, left out, put in or moved.
    ///
    /// Prints how many lines there are, and the last one's hash. That the end was cut off shows
    /// only where an earlier hash was noted: --expect.
    Verify {
        /// The log.
        file: PathBuf,
        /// A hash that some line must have.
        #[arg(long, value_name = "HASH")]
        expect: Option<String>,
    },
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Command::Verify { file, expect } = self.command;
        let context = || file.display().to_string();
        let log = File::open(&file).with_context(context)?;
        let found = verify(BufReader::new(log)).with_context(context)?;
        if let Some(hash) = expect {
            let text = std::fs::read_to_string(&file).with_context(context)?;
            let noted = format!(",\"hash\":\"{hash}\"}}");
            if !text.lines().any(|line| line.ends_with(&noted)) {
                bail!("no line has the hash {hash}: the end was cut off, or it is another log");
            }
        }
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{} lines, the last one's hash is {}", found.lines, found.chain.last())?;
        if found.unfinished > 0 {
            writeln!(stdout, "{} bytes of a line that was not finished", found.unfinished)?;
        }
        Ok(())
    }
}
