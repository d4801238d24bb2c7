//! The `keyway` binary: every command of it, and how they end.
//!
//! Exit codes: 0 done, 1 failed (one line on standard error, then the chain of causes),
//! 2 the command line was wrong.

#![forbid(unsafe_code)]

mod accounts;
mod admin;
mod apply;
mod audit;
mod bench;
mod bounds;
mod client;
mod completions;
mod config;
mod demo;
mod doctor;
mod gateway;
mod get;
mod ls;
mod mb;
mod memory;
mod node;
mod output;
mod policy;
mod prefetch;
mod providers;
mod put;
mod rm;
mod roles;
mod run;
mod serve;
mod settings;
mod signals;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tikv_jemallocator::Jemalloc;

/// An eighth of a small PUT's time went to the system's allocator.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Keyway: an S3 object store whose reads land in memory that the caller owns.
///
/// `keyway serve` runs everything in one process and one directory. All other commands are
/// parts of it, clients, and tools.
#[derive(Parser)]
#[command(
    name = "keyway",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage.\n\
                  `keyway COMMAND --help` tells more; docs/config.md lists all settings."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Declares the subcommands: a variant per line, whose arguments know how to run.
macro_rules! commands {
    ($($variant:ident($args:ty),)+) => {
        #[derive(Subcommand)]
        enum Command {
            $($variant($args),)+
        }

        impl Command {
            fn run(self) -> anyhow::Result<()> {
                match self {
                    $(Self::$variant(args) => args.run(),)+
                }
            }
        }
    };
}

// A command is a module with a `clap::Args` type whose doc comment is the help text and whose
// `fn run(self) -> anyhow::Result<()>` does the work (with a runtime of its own where it
// needs one: `serve` takes its worker count from the configuration, `config` needs none).
commands! {
    Serve(serve::Args),
    Gateway(gateway::Args),
    Node(node::Args),
    Doctor(doctor::Args),
    Admin(admin::Args),
    Get(get::Args),
    Put(put::Args),
    Prefetch(prefetch::Args),
    Ls(ls::Args),
    Rm(rm::Args),
    Mb(mb::MakeArgs),
    Rb(mb::RemoveArgs),
    Bench(Box<bench::Args>),
    Demo(demo::Args),
    Config(config::Args),
    Completions(completions::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

/// One line for what failed, one for each cause.
#[expect(clippy::print_stderr, reason = "this is where errors reach the user")]
fn report(error: &anyhow::Error) {
    let mut last = error.to_string();
    eprintln!("keyway: {last}");
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // An error that wraps another may show nothing of its own.
        if cause != last {
            eprintln!("  because: {cause}");
        }
        last = cause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
