//! Keys of accounts: a letter for the kind, the tenant's number where it is a tenant's, the name.

use bytes::{BufMut as _, Bytes};
use keyway_proto::TenantId;

use super::{ACCOUNT, COUNTER, Range, build};
use crate::accounts::Account;

const TENANT: u8 = b't';
const POLICY: u8 = b'p';
const GROUP: u8 = b'g';
const USER: u8 = b'u';
const ROLE: u8 = b'r';
const PROVIDER: u8 = b'o';
const KEY: u8 = b'k';
const USED: u8 = b'l';

/// The counter of tenants' numbers.
pub(crate) fn tenant_counter() -> Bytes {
    Bytes::from_static(&[COUNTER, b't'])
}

/// A record.
pub(crate) fn account(account: &Account) -> Bytes {
    match account {
        Account::Tenant(tenant) => of_tenant(TENANT, *tenant, ""),
        Account::Policy(tenant, name) => of_tenant(POLICY, *tenant, name),
        Account::Group(tenant, name) => of_tenant(GROUP, *tenant, name),
        Account::User(tenant, name) => of_tenant(USER, *tenant, name),
        Account::Role(tenant, name) => of_tenant(ROLE, *tenant, name),
        Account::Provider(tenant, name) => of_tenant(PROVIDER, *tenant, name),
        Account::Key(id) => of_all(KEY, id),
        Account::Used(id) => of_all(USED, id),
    }
}

/// All records.
pub(crate) fn accounts() -> Range {
    (Bytes::from_static(&[ACCOUNT]), Bytes::from_static(&[ACCOUNT + 1]))
}

/// The record that a key names.
pub(crate) fn parse_account(key: &[u8]) -> Option<Account> {
    let (kind, rest) = key.strip_prefix(&[ACCOUNT])?.split_first()?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    if matches!(*kind, KEY | USED) {
        let id = text(rest)?;
        return Some(if *kind == KEY { Account::Key(id) } else { Account::Used(id) });
    }
    let (number, name) = rest.split_first_chunk()?;
    let (tenant, name) = (TenantId(u64::from_be_bytes(*number)), text(name)?);
    match *kind {
        TENANT => name.is_empty().then_some(Account::Tenant(tenant)),
        POLICY => Some(Account::Policy(tenant, name)),
        GROUP => Some(Account::Group(tenant, name)),
        USER => Some(Account::User(tenant, name)),
        ROLE => Some(Account::Role(tenant, name)),
        PROVIDER => Some(Account::Provider(tenant, name)),
        _ => None,
    }
}

fn of_tenant(kind: u8, tenant: TenantId, name: &str) -> Bytes {
    build(ACCOUNT, 9 + name.len(), |key| {
        key.put_u8(kind);
        key.put_u64(tenant.0);
        key.put_slice(name.as_bytes());
    })
}

fn of_all(kind: u8, id: &str) -> Bytes {
    build(ACCOUNT, 1 + id.len(), |key| {
        key.put_u8(kind);
        key.put_slice(id.as_bytes());
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_pinned_and_round_trip() {
        let seven = [0, 0, 0, 0, 0, 0, 0, 7];
        let tenant = TenantId(7);
        let name = || "x".to_owned();
        assert_eq!(&tenant_counter()[..], b"#t");
        for (record, head, tail) in [
            (Account::Tenant(tenant), b"at", &[][..]),
            (Account::Policy(tenant, name()), b"ap", &b"x"[..]),
            (Account::Group(tenant, name()), b"ag", &b"x"[..]),
            (Account::User(tenant, name()), b"au", &b"x"[..]),
            (Account::Role(tenant, name()), b"ar", &b"x"[..]),
            (Account::Provider(tenant, name()), b"ao", &b"x"[..]),
        ] {
            assert_eq!(account(&record), [&head[..], &seven, tail].concat());
            assert_eq!(parse_account(&account(&record)), Some(record));
        }
        for (record, bytes) in [(Account::Key(name()), b"akx"), (Account::Used(name()), b"alx")] {
            assert_eq!(&account(&record)[..], bytes);
            assert_eq!(parse_account(&account(&record)), Some(record));
        }
        for strange in [&b"a"[..], b"at", b"at\0\0\0\0\0\0\0\x07x", b"az\0\0\0\0\0\0\0\x07"] {
            assert_eq!(parse_account(strange), None);
        }
    }
}
