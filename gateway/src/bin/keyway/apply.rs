//! `keyway admin apply`: accounts as a file says.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::accounts::{Admin, part};
use crate::client::{Connection, block_on};

/// Makes tenants be as a file says (docs/tenants.md).
///
/// What the file does not name stays, unless --prune is given: then, in the tenants that it names,
/// keys, users, roles, providers, groups and policies that it does not name are deleted. To apply a file twice
/// changes nothing.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// The file: JSON, or TOML if its name ends so.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Delete what the file does not name.
    #[arg(long)]
    prune: bool,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Accounts {
    tenants: BTreeMap<String, Tenant>,
}

/// A tenant; the fields of its things are those of the HTTP calls.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Tenant {
    state: Option<String>,
    public_access_block: Option<Value>,
    limits: Option<Value>,
    quota: Option<Value>,
    verify: Option<Value>,
    weight: Option<Value>,
    /// Policies: their text, or the policy itself.
    policies: BTreeMap<String, Value>,
    groups: BTreeMap<String, Value>,
    users: BTreeMap<String, Value>,
    /// Roles. `trust` is the trust policy's text, or the policy itself.
    roles: BTreeMap<String, Value>,
    /// OpenID Connect providers. `ca_file` names a file for `ca_pem`.
    providers: BTreeMap<String, Value>,
    /// Keys, by id. `secret_env` names the variable that holds a new key's secret.
    keys: BTreeMap<String, Value>,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let context = || self.file.display().to_string();
        let text = std::fs::read_to_string(&self.file).with_context(context)?;
        let is_toml = self.file.extension().is_some_and(|extension| extension == "toml");
        let accounts: Accounts = if is_toml {
            toml::from_str(&text).with_context(context)?
        } else {
            serde_json::from_str(&text).with_context(context)?
        };
        let admin = Admin::new(&self.connection)?;
        block_on(async {
            for (name, tenant) in &accounts.tenants {
                self.apply(&admin, name, tenant).await?;
            }
            Ok(())
        })
    }

    async fn apply(&self, admin: &Admin, name: &str, tenant: &Tenant) -> anyhow::Result<()> {
        let base = format!("tenants/{}", part(name));
        if name != "root" && name != "self" {
            let mut settings = json!({});
            if let Some(state) = &tenant.state {
                settings["state"] = json!(state);
            }
            for (name, value) in [
                ("public_access_block", &tenant.public_access_block),
                ("limits", &tenant.limits),
                ("quota", &tenant.quota),
                ("verify", &tenant.verify),
                ("weight", &tenant.weight),
            ] {
                if let Some(value) = value {
                    settings[name] = value.clone();
                }
            }
            self.put(admin, &base, &settings).await?;
        }
        for (policy, document) in &tenant.policies {
            let path = format!("{base}/policies/{}", part(policy));
            self.put(admin, &path, &json!({ "document": text(document) })).await?;
        }
        for (kind, things) in [("groups", &tenant.groups), ("users", &tenant.users)] {
            for (thing, settings) in things {
                self.put(admin, &format!("{base}/{kind}/{}", part(thing)), settings).await?;
            }
        }
        for (role, settings) in &tenant.roles {
            let mut settings = settings.clone();
            if let Some(trust) = settings.get_mut("trust") {
                *trust = text(trust).into();
            }
            self.put(admin, &format!("{base}/roles/{}", part(role)), &settings).await?;
        }
        for (provider, settings) in &tenant.providers {
            let path = format!("{base}/providers/{}", part(provider));
            self.put(admin, &path, &with_authorities(provider, settings)?).await?;
        }
        for (id, settings) in &tenant.keys {
            let path = format!("{base}/keys/{}", part(id));
            self.put(admin, &path, &with_secret(id, settings)?).await?;
        }
        if self.prune {
            // In this order nothing is deleted that another thing names.
            let keys: Vec<&String> = tenant.keys.keys().collect();
            self.prune(admin, &base, ("keys", "id"), &keys).await?;
            for (kind, things) in [
                ("users", &tenant.users),
                ("roles", &tenant.roles),
                ("providers", &tenant.providers),
                ("groups", &tenant.groups),
                ("policies", &tenant.policies),
            ] {
                let named: Vec<&String> = things.keys().collect();
                self.prune(admin, &base, (kind, "name"), &named).await?;
            }
        }
        Ok(())
    }

    async fn prune(
        &self,
        admin: &Admin,
        base: &str,
        (kind, name): (&str, &str),
        named: &[&String],
    ) -> anyhow::Result<()> {
        let known = admin.get(&format!("{base}/{kind}")).await?;
        let known = known[kind].as_array().context("a strange answer")?;
        let known = known.iter().filter_map(|one| one[name].as_str());
        for gone in known.filter(|one| !named.iter().any(|name| name.as_str() == *one)) {
            let path = format!("{base}/{kind}/{}", part(gone));
            say("delete", &path)?;
            if !self.dry_run {
                admin.delete(&path).await?;
            }
        }
        Ok(())
    }

    async fn put(&self, admin: &Admin, path: &str, settings: &Value) -> anyhow::Result<()> {
        say("put", path)?;
        if !self.dry_run {
            admin.put(path, settings).await.with_context(|| path.to_owned())?;
        }
        Ok(())
    }
}

/// A policy's text.
fn text(document: &Value) -> String {
    match document {
        Value::String(text) => text.clone(),
        object => object.to_string(),
    }
}

/// A key's settings with the secret that the environment holds. A file that is kept with code
/// has none, and a key whose secret was drawn could not show it.
fn with_secret(id: &str, settings: &Value) -> anyhow::Result<Value> {
    let mut settings = settings.clone();
    let fields = settings.as_object_mut().with_context(|| format!("the key {id}"))?;
    if fields.contains_key("secret") {
        bail!("the key {id}: a file has no secrets; secret_env names a variable");
    }
    let Some(variable) = fields.remove("secret_env") else {
        bail!("the key {id}: secret_env must name the variable that holds its secret");
    };
    let variable = variable.as_str().unwrap_or_default().to_owned();
    let secret = std::env::var(&variable).with_context(|| format!("the variable {variable}"))?;
    fields.insert("secret".to_owned(), secret.into());
    Ok(settings)
}

/// A provider's settings with the text of the file that they name, if they name one.
fn with_authorities(provider: &str, settings: &Value) -> anyhow::Result<Value> {
    let mut settings = settings.clone();
    let fields = settings.as_object_mut().with_context(|| format!("the provider {provider}"))?;
    if let Some(file) = fields.remove("ca_file") {
        let file = file.as_str().with_context(|| format!("ca_file of the provider {provider}"))?;
        let text = std::fs::read_to_string(file).with_context(|| file.to_owned())?;
        fields.insert("ca_pem".to_owned(), text.into());
    }
    Ok(settings)
}

fn say(what: &str, path: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{what} {path}")?)
}
