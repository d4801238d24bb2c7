//! `keyway admin policy`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Subcommand;
use keyway_auth::policy::{
    Action, Caller, Context, Policies, Policy, PublicAccessBlock, Request, Resource, evaluate,
    reference,
};
use keyway_proto::TenantId;

use crate::accounts;

/// Reads policies and says what they decide, and keeps those of a tenant.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Test(Box<Test>),
    /// The policies that a tenant's users and groups may have.
    Stored(Box<accounts::StoredPolicy>),
    /// Prints what policies may name (docs/policy-reference.md).
    Reference,
}

/// Says whether policies allow something, and which statement decides.
///
/// Fails if any of the actions is denied, or a policy is malformed. docs/policies.md has the
/// rules.
#[derive(clap::Args)]
struct Test {
    /// A policy of the caller. May be repeated.
    #[arg(long = "policy", value_name = "FILE")]
    identity: Vec<PathBuf>,
    /// A policy of the caller's session. May be repeated.
    #[arg(long = "session-policy", value_name = "FILE")]
    session: Vec<PathBuf>,
    /// The policy of the resource's bucket.
    #[arg(long = "bucket-policy", value_name = "FILE")]
    bucket: Option<PathBuf>,
    /// What is done, such as s3:GetObject. May be repeated.
    #[arg(long = "action", value_name = "ACTION", required = true, value_parser = action)]
    actions: Vec<Action>,
    /// What it is done to: an ARN, a bucket, bucket/key, or * for the tenant itself.
    #[arg(long, value_name = "RESOURCE", value_parser = resource)]
    resource: Resource,
    /// Who asks: root, anonymous, user/NAME or role/NAME/SESSION.
    #[arg(long = "as", value_name = "CALLER", default_value = "user/test")]
    caller: String,
    /// The caller's tenant.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    tenant: u64,
    /// The tenant that owns the bucket, where it is another.
    #[arg(long, value_name = "NUMBER")]
    owner: Option<u64>,
    /// A condition key's value. Repeated for one key, it has several.
    #[arg(long = "context", value_name = "KEY=VALUE", value_parser = pair)]
    context: Vec<(String, String)>,
    /// When it is asked; now where no time is given.
    #[arg(long, value_name = "TIME")]
    at: Option<jiff::Timestamp>,
    /// Restricts a public bucket to its owner's tenant.
    #[arg(long)]
    restrict_public: bool,
}

fn action(text: &str) -> Result<Action, String> {
    Action::find(text).ok_or_else(|| format!("no action is called {text:?}"))
}

fn resource(text: &str) -> Result<Resource, &'static str> {
    Resource::parse(text).ok_or("it is neither * nor an ARN of S3's nor a bucket's name")
}

fn pair(text: &str) -> Result<(String, String), &'static str> {
    let (key, value) = text.split_once('=').ok_or("it has no =")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Test(test) => test.run(),
            Command::Stored(stored) => stored.run(),
            Command::Reference => Ok(std::io::stdout().lock().write_all(reference().as_bytes())?),
        }
    }
}

impl Test {
    fn run(self) -> anyhow::Result<()> {
        let identity = read_all(&self.identity, Policy::identity)?;
        let session = read_all(&self.session, Policy::session)?;
        let account = self.resource == Resource::account();
        let bucket = match &self.bucket {
            Some(path) => {
                let name = self.resource.as_str().split('/').next().unwrap_or_default();
                let name = name.parse().with_context(|| format!("the bucket {name:?}"))?;
                Some(read(path, |text| Policy::bucket(text, &name))?)
            }
            None => None,
        };
        let mut context = Context::new();
        for (key, value) in self.context {
            context.add_named(&key, value)?;
        }
        let caller = caller(&self.caller, TenantId(self.tenant))?;
        let policies = Policies {
            identity: &identity,
            session: &session,
            bucket: bucket.as_ref(),
            block: PublicAccessBlock {
                restrict_public_buckets: self.restrict_public,
                ..PublicAccessBlock::default()
            },
        };
        let mut denied = 0;
        let mut stdout = std::io::stdout().lock();
        for action in &self.actions {
            let request = Request {
                caller: &caller,
                action: *action,
                resource: &self.resource,
                owner: (!account).then_some(TenantId(self.owner.unwrap_or(self.tenant))),
                now: self.at.unwrap_or_else(jiff::Timestamp::now),
                context: &context,
            };
            let decision = evaluate(&request, &policies);
            denied += usize::from(!decision.is_allow());
            writeln!(stdout, "{action} on {}: {decision}", self.resource)?;
        }
        if denied > 0 {
            bail!("{denied} of {} actions denied", self.actions.len());
        }
        Ok(())
    }
}

fn caller(text: &str, tenant: TenantId) -> anyhow::Result<Caller> {
    match (text, text.split_once('/')) {
        ("anonymous", _) => Ok(Caller::anonymous()),
        ("root", _) => Ok(Caller::root(tenant)),
        (_, Some(("user", path))) if !path.is_empty() => Ok(Caller::user(tenant, path, "AIDATEST")),
        (_, Some(("role", session))) => match session.split_once('/') {
            Some((role, name)) => Ok(Caller::session(tenant, role, name, "AROATEST")),
            None => bail!("{text:?} names no session: role/NAME/SESSION"),
        },
        _ => bail!("{text:?} is no caller: root, anonymous, user/NAME or role/NAME/SESSION"),
    }
}

fn read<E: std::error::Error + Send + Sync + 'static>(
    path: &Path,
    parse: impl Fn(&str) -> Result<Policy, E>,
) -> anyhow::Result<Policy> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    parse(&text).with_context(|| path.display().to_string())
}

fn read_all<E: std::error::Error + Send + Sync + 'static>(
    paths: &[PathBuf],
    parse: fn(&str) -> Result<Policy, E>,
) -> anyhow::Result<Vec<Arc<Policy>>> {
    paths.iter().map(|path| read(path, parse).map(Arc::new)).collect()
}
