//! `keyway admin`.

use std::io::Write;
use std::path::PathBuf;

use clap::Subcommand;
use keyway_gateway::pki::{Authority, host_names};

use crate::{accounts, apply, audit, policy, providers, roles};

/// Says who may do what, and helps whoever runs gateways and nodes.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Makes, suspends and deletes tenants.
    Tenant(accounts::Tenants),
    User(accounts::Users),
    Role(roles::Roles),
    Provider(providers::Providers),
    Group(accounts::Groups),
    Key(accounts::Keys),
    Policy(policy::Args),
    Apply(apply::Args),
    Audit(audit::Args),
    /// Prints the OpenAPI document of the administration (docs/openapi.json).
    Openapi,
    Certs(Certs),
}

/// Makes a private authority, and certificates under it for mutual TLS.
///
/// The authority is made once per directory; its key, `authority.key`, need not leave it. Run
/// again with further names to add processes. On each machine, set `cluster.authority_file`,
/// `cluster.cert_file` and `cluster.key_file` to the files printed.
#[derive(clap::Args)]
struct Certs {
    /// Directory of the authority and the certificates; made if it does not exist.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// A process, and the host names and addresses that others reach it at; this host's own
    /// where none are given. May be repeated.
    #[arg(
        long = "for",
        value_name = "NAME[=HOST,...]",
        default_values = ["gateway", "node"],
        value_parser = process
    )]
    processes: Vec<Process>,
}

#[derive(Clone)]
struct Process {
    name: String,
    hosts: Vec<String>,
}

fn process(text: &str) -> Result<Process, &'static str> {
    let (name, hosts) = text.split_once('=').unwrap_or((text, ""));
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if name.is_empty() || name == "authority" || !name.chars().all(plain) {
        return Err("a name consists of letters, digits, - and _, and is not `authority`");
    }
    let hosts = hosts.split(',').filter(|host| !host.is_empty()).map(str::to_owned).collect();
    Ok(Process { name: name.to_owned(), hosts })
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Tenant(tenants) => tenants.run(),
            Command::User(users) => users.run(),
            Command::Role(roles) => roles.run(),
            Command::Provider(providers) => providers.run(),
            Command::Group(groups) => groups.run(),
            Command::Key(keys) => keys.run(),
            Command::Policy(policy) => policy.run(),
            Command::Apply(apply) => apply.run(),
            Command::Audit(audit) => audit.run(),
            Command::Openapi => {
                let document = keyway_gateway::control::admin::openapi::document();
                Ok(std::io::stdout().lock().write_all(document.as_bytes())?)
            }
            Command::Certs(certs) => certs.run(),
        }
    }
}

impl Certs {
    fn run(self) -> anyhow::Result<()> {
        let authority = Authority::open_or_create(&self.dir)?;
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "authority {}", authority.certificate().display())?;
        for Process { name, hosts } in self.processes {
            let hosts = if hosts.is_empty() {
                host_names(std::net::Ipv4Addr::UNSPECIFIED.into(), &[])
            } else {
                hosts
            };
            let identity = authority.issue(&name, &hosts)?;
            let (certificate, key) = (identity.certificate.display(), identity.key.display());
            writeln!(stdout, "{name} {certificate} {key} ({})", hosts.join(", "))?;
        }
        Ok(())
    }
}
