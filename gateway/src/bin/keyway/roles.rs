//! `keyway admin role`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use serde_json::json;

use crate::accounts::{AHEAD, Admin, Of, pair, part, show};
use crate::client::block_on;

/// Roles of a tenant: whom users and programs may be for a while, by temporary credentials.
#[derive(clap::Args)]
pub(crate) struct Roles {
    #[command(flatten)]
    of: Of,
    #[command(subcommand)]
    command: RoleCommand,
}

#[derive(Subcommand)]
enum RoleCommand {
    /// Lists the roles.
    List,
    /// Shows a role.
    #[command(alias = "show")]
    Get { role: String },
    /// Makes a role, or makes it be as said.
    Put {
        role: String,
        /// A file with the policy that says who may take it (sts:AssumeRole).
        #[arg(long, value_name = "FILE")]
        trust: PathBuf,
        /// A policy that speaks to its sessions. May be repeated.
        #[arg(long = "policy", value_name = "NAME")]
        policies: Vec<String>,
        /// How long a session may last, in seconds: from 3600 to 43200.
        #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
        session_max_s: u32,
        /// A tag, for conditions on aws:PrincipalTag. May be repeated.
        #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = pair)]
        tags: Vec<(String, String)>,
    },
    /// Refuses all sessions of a role from now on, and new ones.
    Suspend { role: String },
    /// Takes that back, also for sessions that were begun before.
    Resume { role: String },
    /// Ends all sessions that a role has; it may be taken again.
    RevokeSessions { role: String },
    /// Deletes a role, and with it its sessions.
    Delete { role: String },
}

/// The fields that are sent, of those that are told.
const ROLE: [&str; 5] = ["trust", "state", "policies", "session_max_s", "tags"];

impl Roles {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let admin = Admin::new(&self.of.connection)?;
        let all = format!("tenants/{}/roles", part(&self.of.tenant));
        let path = |role: &str| format!("{all}/{}", part(role));
        block_on(async {
            let (role, fields) = match &self.command {
                RoleCommand::List => return show(&admin.get(&all).await?),
                RoleCommand::Get { role } => return show(&admin.get(&path(role)).await?),
                RoleCommand::Delete { role } => return admin.delete(&path(role)).await,
                RoleCommand::Put { role, trust, policies, session_max_s, tags } => {
                    let text = std::fs::read_to_string(trust);
                    let text = text.with_context(|| trust.display().to_string())?;
                    let tags: BTreeMap<_, _> = tags.iter().cloned().collect();
                    let document = json!({
                        "trust": text,
                        "policies": policies.iter().collect::<BTreeSet<_>>(),
                        "session_max_s": session_max_s,
                        "tags": tags,
                    });
                    return show(&admin.make(&path(role), &ROLE, document).await?);
                }
                RoleCommand::Suspend { role } => (role, json!({ "state": "suspended" })),
                RoleCommand::Resume { role } => (role, json!({ "state": "active" })),
                RoleCommand::RevokeSessions { role } => {
                    (role, json!({ "sessions_valid_from": AHEAD }))
                }
            };
            show(&admin.patch(&path(role), &ROLE, fields).await?)
        })
    }
}
