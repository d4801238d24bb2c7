//! Records as rows: JSON, for fields to be added; secrets sealed under the key provider.

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use keyway_auth::directory::{
    AccessKey, Change, Group, Key, ManagedPolicy, NamedPolicy, Provider, Role, RoleRecord, Tenant,
    User,
};
use keyway_auth::{Directory, KeyProvider, SecretKey};
use keyway_meta::{Account, UnixMs};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::AccountsError;
use super::used::Used;

/// A key's row.
#[derive(Serialize, Deserialize)]
struct StoredKey {
    #[serde(flatten)]
    record: AccessKey,
    /// The sealed secret, in base64.
    sealed: String,
}

/// Adds a stored record to the directory.
pub(super) fn read(
    directory: &mut Directory,
    used: &Used,
    secrets: &dyn KeyProvider,
    account: &Account,
    document: &[u8],
) -> Result<(), AccountsError> {
    let damaged = |why: String| AccountsError::Damaged { record: named(account), why };
    let change = match account {
        Account::Tenant(_) => Change::PutTenant(decode::<Tenant>(document).map_err(damaged)?),
        Account::User(..) => Change::PutUser(decode::<User>(document).map_err(damaged)?),
        Account::Role(..) => {
            let record = decode::<RoleRecord>(document).map_err(damaged)?;
            let role = Role::read(record).map_err(|error| damaged(error.to_string()))?;
            Change::PutRole(role)
        }
        Account::Group(..) => Change::PutGroup(decode::<Group>(document).map_err(damaged)?),
        Account::Policy(..) => {
            let record = decode::<ManagedPolicy>(document).map_err(damaged)?;
            let policy = NamedPolicy::read(record).map_err(|error| damaged(error.to_string()))?;
            Change::PutPolicy(policy)
        }
        Account::Provider(..) => {
            Change::PutProvider(decode::<Provider>(document).map_err(damaged)?)
        }
        Account::Key(_) => {
            let StoredKey { record, sealed } = decode(document).map_err(damaged)?;
            let secret = open(secrets, &record, &sealed).map_err(|why| damaged(why.to_string()))?;
            let key = Key::read(record, secret).map_err(|error| damaged(error.to_string()))?;
            Change::PutKey(key)
        }
        Account::Used(id) => {
            let at = document.try_into().map(u64::from_be_bytes);
            used.stored(id, UnixMs(at.map_err(|_| damaged("it is no time".to_owned()))?));
            return Ok(());
        }
    };
    // The name stands in the key; a record under another one was put there by somebody else.
    if written_name(&change) != *account {
        return Err(damaged("it names another one".to_owned()));
    }
    directory.apply(change).map_err(|error| damaged(error.to_string()))
}

/// The row that a change writes, or that it removes.
pub(super) fn written(
    change: &Change,
    secrets: &dyn KeyProvider,
) -> Result<(Account, Option<Vec<u8>>), AccountsError> {
    let document = match change {
        Change::PutTenant(tenant) => Some(encode(tenant)),
        Change::PutUser(user) => Some(encode(user)),
        Change::PutRole(role) => Some(encode(&role.record)),
        Change::PutGroup(group) => Some(encode(group)),
        Change::PutPolicy(policy) => Some(encode(&policy.record)),
        Change::PutProvider(provider) => Some(encode(provider)),
        Change::PutKey(key) => {
            let context = context(&key.record);
            let sealed = secrets.seal(&context, key.secret().expose().as_bytes())?;
            let sealed = BASE64_STANDARD_NO_PAD.encode(sealed);
            Some(encode(&StoredKey { record: key.record.clone(), sealed }))
        }
        _ => None,
    };
    Ok((written_name(change), document))
}

/// A record's document.
pub(super) fn encode(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("records have a JSON form")
}

/// Says what is wrong without repeating what stands there.
fn decode<T: DeserializeOwned>(document: &[u8]) -> Result<T, String> {
    serde_json::from_slice(document)
        .map_err(|error| format!("{:?} at column {}", error.classify(), error.column()))
}

fn written_name(change: &Change) -> Account {
    match change {
        Change::PutTenant(tenant) => Account::Tenant(tenant.number),
        Change::DeleteTenant(number) => Account::Tenant(*number),
        Change::PutUser(user) => Account::User(user.tenant, user.name.to_string()),
        Change::DeleteUser(tenant, name) => Account::User(*tenant, name.to_string()),
        Change::PutRole(role) => Account::Role(role.record.tenant, role.record.name.to_string()),
        Change::DeleteRole(tenant, name) => Account::Role(*tenant, name.to_string()),
        Change::PutGroup(group) => Account::Group(group.tenant, group.name.to_string()),
        Change::DeleteGroup(tenant, name) => Account::Group(*tenant, name.to_string()),
        Change::PutPolicy(policy) => {
            Account::Policy(policy.record.tenant, policy.record.name.to_string())
        }
        Change::DeletePolicy(tenant, name) => Account::Policy(*tenant, name.to_string()),
        Change::PutProvider(provider) => {
            Account::Provider(provider.tenant, provider.name.to_string())
        }
        Change::DeleteProvider(tenant, name) => Account::Provider(*tenant, name.to_string()),
        Change::PutKey(key) => Account::Key(key.record.id.to_string()),
        Change::DeleteKey(id) => Account::Key(id.to_string()),
        _ => unreachable!("all changes are listed"),
    }
}

/// For people.
fn named(account: &Account) -> String {
    match account {
        Account::Tenant(number) => format!("tenant {number}"),
        Account::Policy(tenant, name) => format!("policy {name:?} of tenant {tenant}"),
        Account::Group(tenant, name) => format!("group {name:?} of tenant {tenant}"),
        Account::User(tenant, name) => format!("user {name:?} of tenant {tenant}"),
        Account::Role(tenant, name) => format!("role {name:?} of tenant {tenant}"),
        Account::Provider(tenant, name) => format!("provider {name:?} of tenant {tenant}"),
        Account::Key(id) => format!("access key {id:?}"),
        Account::Used(id) => format!("time of use of access key {id:?}"),
    }
}

/// What a secret is sealed for: it opens in the row of this key, of this holder, alone.
fn context(record: &AccessKey) -> Vec<u8> {
    let user = record.user.as_ref().map_or("/", |name| name.as_str());
    format!("keyway access key v1\n{}\n{}\n{user}", record.id, record.tenant).into_bytes()
}

fn open(
    secrets: &dyn KeyProvider,
    record: &AccessKey,
    sealed: &str,
) -> Result<SecretKey, keyway_auth::SecretsError> {
    let tampered = keyway_auth::SecretsError::Tampered;
    let sealed = BASE64_STANDARD_NO_PAD.decode(sealed).map_err(|_| tampered)?;
    let plain = secrets.open(&context(record), &sealed)?;
    let text = Zeroizing::new(String::from_utf8(plain.to_vec()).map_err(|_| tampered)?);
    Ok(SecretKey::new(text.to_string()))
}
