//! `keyway admin audit`.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Subcommand;
use keyway_gateway::audit::chain::{Verified, verify};

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
    /// Prints how many lines there are, the number of the first, and the last one's hash. That the
    /// end was cut off shows only where an earlier hash was noted: --expect.
    Verify {
        /// The log's files, the oldest first: audit.jsonl.2 audit.jsonl.1 audit.jsonl.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// A hash that some line must have.
        #[arg(long, value_name = "HASH")]
        expect: Option<String>,
    },
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Command::Verify { files, expect } = self.command;
        let mut stdout = std::io::stdout().lock();
        let mut whole: Option<Verified> = None;
        let mut is_expected = expect.is_none();
        for file in files {
            let context = || file.display().to_string();
            let text = std::fs::read(&file).with_context(context)?;
            let found = verify(&*text).with_context(context)?;
            if let Some(hash) = &expect {
                let noted = format!(",\"hash\":\"{hash}\"}}");
                let mut lines = text.split(|byte| *byte == b'\n');
                is_expected |= lines.any(|line| line.ends_with(noted.as_bytes()));
            }
            if found.unfinished > 0 {
                writeln!(
                    stdout,
                    "{}: {} bytes of an unfinished line",
                    context(),
                    found.unfinished
                )?;
            }
            whole = Some(match whole {
                Some(before) if found.lines > 0 && before.chain != found.first => {
                    bail!("{} does not go on from the file before it", context())
                }
                Some(before) if found.lines == 0 => before,
                Some(before) => {
                    let lines = before.lines + found.lines;
                    Verified { lines, first: before.first, ..found }
                }
                None => found,
            });
        }
        if let Some(hash) = expect.filter(|_| !is_expected) {
            bail!("no line has the hash {hash}: the end was cut off, or it is another log");
        }
        let whole = whole.unwrap_or_default();
        let (lines, first, last) = (whole.lines, whole.first.number(), whole.chain.last());
        writeln!(stdout, "{lines} lines from number {first} on, the last one's hash is {last}")?;
        Ok(())
    }
}
