//! `keyway admin tenant`, `user`, `group`, `key`, and the stored policies of `keyway admin policy`.
//! Roles are in [`roles`](crate::roles).

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use anyhow::Context as _;
use clap::Subcommand;
use keyway_auth::root::generated_access_key;
use keyway_client::{Administer, Client, ClientError};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use crate::bounds::{LimitArgs, QuotaArgs, Verify, bounded, verify};
use crate::client::{Connection, block_on};

/// Tenants.
#[derive(clap::Args)]
pub(crate) struct Tenants {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: TenantCommand,
}

#[derive(Subcommand)]
enum TenantCommand {
    /// Lists the tenants.
    List,
    /// Shows a tenant.
    Show { tenant: String },
    /// Makes a tenant, if there is none of that name.
    Create { tenant: String },
    /// Refuses all keys of a tenant from now on, and ends its sessions.
    Suspend { tenant: String },
    /// Takes that back.
    Resume { tenant: String },
    /// Bounds what a tenant may take and store. What is not said stays as it is.
    Set {
        tenant: String,
        #[command(flatten)]
        limits: LimitArgs,
        #[command(flatten)]
        quota: QuotaArgs,
        /// When what is read of its buckets is compared with its checksums, where a bucket did not
        /// say: `before-delivery`, `inline` or `client`; or `none`, as the server has it.
        #[arg(long, value_name = "WHEN", value_parser = verify)]
        verify: Option<Verify>,
        /// Its share of what several tenants want at once: 1 to 10000, 100 unless said.
        #[arg(long, value_name = "NUMBER")]
        weight: Option<u32>,
    },
    /// Gives a tenant another name.
    Rename { tenant: String, name: String },
    /// Deletes a tenant that is suspended and has nothing any more.
    Delete { tenant: String },
}

/// Users of a tenant, and service accounts.
#[derive(clap::Args)]
pub(crate) struct Users {
    #[command(flatten)]
    of: Of,
    #[command(subcommand)]
    command: UserCommand,
}

#[derive(Subcommand)]
enum UserCommand {
    /// Lists the users.
    List,
    /// Shows a user.
    Show { user: String },
    /// Makes a user, or makes it be as said.
    Put {
        user: String,
        /// A policy that speaks to it. May be repeated.
        #[arg(long = "policy", value_name = "NAME")]
        policies: Vec<String>,
        /// A group that it is in. May be repeated.
        #[arg(long = "group", value_name = "NAME")]
        groups: Vec<String>,
        /// It is a program: a service account.
        #[arg(long)]
        service: bool,
        /// A tag, for conditions on aws:PrincipalTag. May be repeated.
        #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = pair)]
        tags: Vec<(String, String)>,
    },
    /// Bounds what a user may take and store, within what the tenant may. What is not said stays as
    /// it is.
    Set {
        user: String,
        #[command(flatten)]
        limits: LimitArgs,
        #[command(flatten)]
        quota: QuotaArgs,
    },
    /// Refuses all keys of a user from now on, and ends their sessions.
    Suspend { user: String },
    /// Takes that back.
    Resume { user: String },
    /// Ends all temporary credentials that a user has, also in roles; its keys stay.
    RevokeSessions { user: String },
    /// Deletes a user that has no keys any more.
    Delete { user: String },
}

/// Groups of a tenant's users.
#[derive(clap::Args)]
pub(crate) struct Groups {
    #[command(flatten)]
    of: Of,
    #[command(subcommand)]
    command: GroupCommand,
}

#[derive(Subcommand)]
enum GroupCommand {
    /// Lists the groups.
    List,
    /// Makes a group, or makes it be as said.
    Put {
        group: String,
        /// A policy that speaks to its users. May be repeated.
        #[arg(long = "policy", value_name = "NAME")]
        policies: Vec<String>,
    },
    /// Deletes a group that nobody is in any more.
    Delete { group: String },
}

/// Access keys.
#[derive(clap::Args)]
pub(crate) struct Keys {
    #[command(flatten)]
    of: Of,
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Subcommand)]
enum KeyCommand {
    /// Lists the keys, without their secrets.
    List,
    /// Makes a key and shows its secret, which is not shown again.
    Create {
        /// The user whose it is; the tenant itself unless one is named.
        #[arg(long)]
        user: Option<String>,
        /// When it is to end, such as 2027-01-01T00:00:00Z.
        #[arg(long, value_name = "TIME")]
        expires: Option<jiff::Timestamp>,
        /// A file with a policy that bounds what it may be used for.
        #[arg(long, value_name = "FILE")]
        policy: Option<std::path::PathBuf>,
        /// What it is for.
        #[arg(long, default_value = "")]
        description: String,
    },
    /// Makes another key for the same holder, and has the old one end after some hours.
    Rotate {
        id: String,
        /// How long the old key still opens what it did.
        #[arg(long, value_name = "HOURS", default_value_t = 24)]
        overlap_hours: u32,
    },
    /// Refuses a key from now on, and ends its sessions.
    Disable { id: String },
    /// Takes that back.
    Enable { id: String },
    /// Deletes a key.
    Delete { id: String },
}

/// Whose it is about.
#[derive(clap::Args)]
pub(crate) struct Of {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// The tenant, by name or number; the caller's own unless one is named.
    #[arg(long, global = true, default_value = "self")]
    pub(crate) tenant: String,
}

pub(crate) fn pair(text: &str) -> Result<(String, String), &'static str> {
    let (key, value) = text.split_once('=').ok_or("it has no =")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Calls, and shows the answers.
pub(crate) struct Admin(Client);

impl Admin {
    pub(crate) fn new(connection: &Connection) -> anyhow::Result<Self> {
        Ok(Self(connection.client()?))
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(&self.0.administer(Administer::Get, path).await?)?)
    }

    pub(crate) async fn put(&self, path: &str, document: &Value) -> anyhow::Result<Value> {
        let document = serde_json::to_vec(document)?;
        Ok(serde_json::from_slice(&self.0.administer(Administer::Put(document), path).await?)?)
    }

    pub(crate) async fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.0.administer(Administer::Delete, path).await?;
        Ok(())
    }

    /// Changes some fields of what is there, and leaves the others as they are.
    pub(crate) async fn patch(
        &self,
        path: &str,
        sent: &[&str],
        fields: Value,
    ) -> anyhow::Result<Value> {
        self.merge(self.get(path).await?, path, sent, fields).await
    }

    /// The same; what is not there is made.
    pub(crate) async fn make(
        &self,
        path: &str,
        sent: &[&str],
        fields: Value,
    ) -> anyhow::Result<Value> {
        let known = match self.get(path).await {
            Err(error) if is_missing(&error) => Value::Null,
            known => known?,
        };
        self.merge(known, path, sent, fields).await
    }

    async fn merge(
        &self,
        known: Value,
        path: &str,
        sent: &[&str],
        fields: Value,
    ) -> anyhow::Result<Value> {
        let mut document = Map::new();
        for name in sent {
            if let Some(value) = known.get(name) {
                document.insert((*name).to_owned(), value.clone());
            }
        }
        document.extend(fields.as_object().cloned().unwrap_or_default());
        self.put(path, &document.into()).await
    }
}

/// The fields of each kind that are sent, of those that are told.
const TENANT: [&str; 7] =
    ["name", "state", "public_access_block", "limits", "quota", "verify", "weight"];
const USER: [&str; 7] = ["kind", "state", "groups", "policies", "tags", "limits", "quota"];
const KEY: [&str; 5] = ["user", "state", "expires", "policy", "description"];
/// A time that lies ahead on every clock, which the server takes for its own now.
pub(crate) const AHEAD: &str = "9999-01-01T00:00:00Z";

fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(ClientError::is_not_found)
}

/// What is encoded in a part of a path: a signature covers it in this form alone.
const PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A part of a path.
pub(crate) fn part(text: &str) -> String {
    utf8_percent_encode(text, PART).to_string()
}

pub(crate) fn show(document: &Value) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    Ok(writeln!(stdout, "{}", serde_json::to_string_pretty(document)?)?)
}

impl Tenants {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let admin = Admin::new(&self.connection)?;
        let path = |tenant: &str| format!("tenants/{}", part(tenant));
        block_on(async {
            let fields = match &self.command {
                TenantCommand::List => return show(&admin.get("tenants").await?),
                TenantCommand::Show { tenant } => return show(&admin.get(&path(tenant)).await?),
                TenantCommand::Create { tenant } => {
                    return show(&admin.make(&path(tenant), &TENANT, json!({})).await?);
                }
                TenantCommand::Set { tenant, limits, quota, verify, weight } => {
                    let known = admin.get(&path(tenant)).await?;
                    let mut fields = json!({
                        "limits": bounded(&known, "limits", &limits.fields()),
                        "quota": bounded(&known, "quota", &quota.fields()),
                    });
                    if let Some(Verify(verify)) = verify {
                        fields["verify"] = json!(verify);
                    }
                    if let Some(weight) = weight {
                        fields["weight"] = json!(weight);
                    }
                    return show(&admin.merge(known, &path(tenant), &TENANT, fields).await?);
                }
                TenantCommand::Delete { tenant } => return admin.delete(&path(tenant)).await,
                TenantCommand::Suspend { tenant } => (tenant, json!({ "state": "suspended" })),
                TenantCommand::Resume { tenant } => (tenant, json!({ "state": "active" })),
                TenantCommand::Rename { tenant, name } => (tenant, json!({ "name": name })),
            };
            let (tenant, fields) = fields;
            show(&admin.patch(&path(tenant), &TENANT, fields).await?)
        })
    }
}

impl Users {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let admin = Admin::new(&self.of.connection)?;
        let all = format!("tenants/{}/users", part(&self.of.tenant));
        let path = |user: &str| format!("{all}/{}", part(user));
        block_on(async {
            match &self.command {
                UserCommand::List => show(&admin.get(&all).await?),
                UserCommand::Show { user } => show(&admin.get(&path(user)).await?),
                UserCommand::Put { user, policies, groups, service, tags } => {
                    let tags: BTreeMap<_, _> = tags.iter().cloned().collect();
                    let document = json!({
                        "kind": if *service { "service" } else { "person" },
                        "groups": groups.iter().collect::<BTreeSet<_>>(),
                        "policies": policies.iter().collect::<BTreeSet<_>>(),
                        "tags": tags,
                    });
                    show(&admin.make(&path(user), &USER, document).await?)
                }
                UserCommand::Set { user, limits, quota } => {
                    let known = admin.get(&path(user)).await?;
                    let fields = json!({
                        "limits": bounded(&known, "limits", &limits.fields()),
                        "quota": bounded(&known, "quota", &quota.fields()),
                    });
                    show(&admin.merge(known, &path(user), &USER, fields).await?)
                }
                UserCommand::Suspend { user } => {
                    let fields = json!({ "state": "suspended" });
                    show(&admin.patch(&path(user), &USER, fields).await?)
                }
                UserCommand::Resume { user } => {
                    let fields = json!({ "state": "active" });
                    show(&admin.patch(&path(user), &USER, fields).await?)
                }
                UserCommand::RevokeSessions { user } => {
                    let fields = json!({ "sessions_valid_from": AHEAD });
                    show(&admin.patch(&path(user), &USER, fields).await?)
                }
                UserCommand::Delete { user } => admin.delete(&path(user)).await,
            }
        })
    }
}

impl Groups {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let admin = Admin::new(&self.of.connection)?;
        let all = format!("tenants/{}/groups", part(&self.of.tenant));
        let path = |group: &str| format!("{all}/{}", part(group));
        block_on(async {
            match &self.command {
                GroupCommand::List => show(&admin.get(&all).await?),
                GroupCommand::Put { group, policies } => {
                    show(&admin.put(&path(group), &json!({ "policies": policies })).await?)
                }
                GroupCommand::Delete { group } => admin.delete(&path(group)).await,
            }
        })
    }
}

impl Keys {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let admin = Admin::new(&self.of.connection)?;
        let all = format!("tenants/{}/keys", part(&self.of.tenant));
        let path = |id: &str| format!("{all}/{}", part(id));
        block_on(async {
            match &self.command {
                KeyCommand::List => show(&admin.get(&all).await?),
                KeyCommand::Create { user, expires, policy, description } => {
                    let policy = policy
                        .as_ref()
                        .map(|file| {
                            let text = std::fs::read_to_string(file);
                            text.with_context(|| file.display().to_string())
                        })
                        .transpose()?;
                    let document = json!({
                        "user": user,
                        "expires": expires,
                        "policy": policy,
                        "description": description,
                    });
                    let id = generated_access_key();
                    show(&admin.put(&path(id.as_str()), &document).await?)
                }
                KeyCommand::Rotate { id, overlap_hours } => {
                    let known = admin.get(&path(id)).await?;
                    let document = json!({
                        "user": known["user"],
                        "policy": known["policy"],
                        "description": known["description"],
                    });
                    let new = generated_access_key();
                    let made = admin.put(&path(new.as_str()), &document).await?;
                    let overlap = jiff::SignedDuration::from_hours(i64::from(*overlap_hours));
                    let expires = jiff::Timestamp::now() + overlap;
                    admin.patch(&path(id), &KEY, json!({ "expires": expires })).await?;
                    show(&made)
                }
                KeyCommand::Disable { id } => {
                    show(&admin.patch(&path(id), &KEY, json!({ "state": "disabled" })).await?)
                }
                KeyCommand::Enable { id } => {
                    show(&admin.patch(&path(id), &KEY, json!({ "state": "active" })).await?)
                }
                KeyCommand::Delete { id } => admin.delete(&path(id)).await,
            }
        })
    }
}

/// Stored policies of a tenant.
#[derive(clap::Args)]
pub(crate) struct StoredPolicy {
    #[command(flatten)]
    of: Of,
    #[command(subcommand)]
    command: StoredCommand,
}

#[derive(Subcommand)]
enum StoredCommand {
    /// Lists the tenant's policies.
    List,
    /// Prints a policy's text.
    Show { policy: String },
    /// Makes a policy, or replaces its text.
    Put {
        policy: String,
        /// The policy.
        file: std::path::PathBuf,
    },
    /// Deletes a policy that nobody has any more.
    Delete { policy: String },
}

impl StoredPolicy {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let admin = Admin::new(&self.of.connection)?;
        let all = format!("tenants/{}/policies", part(&self.of.tenant));
        let path = |policy: &str| format!("{all}/{}", part(policy));
        block_on(async {
            match &self.command {
                StoredCommand::List => show(&admin.get(&all).await?),
                StoredCommand::Show { policy } => {
                    let found = admin.get(&path(policy)).await?;
                    let text = found["document"].as_str().unwrap_or_default();
                    Ok(writeln!(std::io::stdout().lock(), "{text}")?)
                }
                StoredCommand::Put { policy, file } => {
                    let text = std::fs::read_to_string(file);
                    let text = text.with_context(|| file.display().to_string())?;
                    show(&admin.put(&path(policy), &json!({ "document": text })).await?)
                }
                StoredCommand::Delete { policy } => admin.delete(&path(policy)).await,
            }
        })
    }
}
