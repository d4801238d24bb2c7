//! `keyway admin provider`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use serde_json::json;

use crate::accounts::{Admin, Of, part, show};
use crate::client::block_on;

/// OpenID Connect providers of a tenant: issuers whose word is taken for who somebody is.
#[derive(clap::Args)]
pub(crate) struct Providers {
    #[command(flatten)]
    of: Of,
    #[command(subcommand)]
    command: ProviderCommand,
}

#[derive(Subcommand)]
enum ProviderCommand {
    /// Lists the providers.
    List,
    /// Shows a provider.
    #[command(alias = "show")]
    Get { provider: String },
    /// Makes a provider, or makes it be as said.
    Put {
        provider: String,
        /// The issuer, as its tokens have it.
        #[arg(long, value_name = "URL")]
        issuer: String,
        /// For whom its tokens must be: one of these. May be repeated.
        #[arg(long = "audience", value_name = "TEXT", required = true)]
        audiences: Vec<String>,
        /// A file with the authorities that the issuer's certificate must go back to, in PEM; the
        /// system's unless given.
        #[arg(long, value_name = "FILE")]
        ca_file: Option<PathBuf>,
    },
    /// Deletes a provider, and ends what was taken by its word.
    Delete { provider: String },
}

impl Providers {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let admin = Admin::new(&self.of.connection)?;
        let all = format!("tenants/{}/providers", part(&self.of.tenant));
        let path = |provider: &str| format!("{all}/{}", part(provider));
        block_on(async {
            match &self.command {
                ProviderCommand::List => show(&admin.get(&all).await?),
                ProviderCommand::Get { provider } => show(&admin.get(&path(provider)).await?),
                ProviderCommand::Delete { provider } => admin.delete(&path(provider)).await,
                ProviderCommand::Put { provider, issuer, audiences, ca_file } => {
                    let ca_pem = match ca_file {
                        None => None,
                        Some(file) => {
                            let text = std::fs::read_to_string(file);
                            Some(text.with_context(|| file.display().to_string())?)
                        }
                    };
                    let document = json!({
                        "issuer": issuer,
                        "audiences": audiences.iter().collect::<BTreeSet<_>>(),
                        "ca_pem": ca_pem,
                    });
                    show(&admin.put(&path(provider), &document).await?)
                }
            }
        })
    }
}
