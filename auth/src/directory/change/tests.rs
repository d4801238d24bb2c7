//! Goal: the rules of changes, and who may sign after them. Method: one small directory.

use jiff::Timestamp;

use super::*;
use crate::credential::SecretKey;
use crate::directory::{
    AccessKey, KeyState, Limits, ManagedPolicy, Quota, Refused, Standing, UserKind,
};
use crate::policy::PublicAccessBlock;

const ONE: TenantId = TenantId(1);
const ALL: &str = r#"{"Version": "2012-10-17",
    "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}"#;

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

fn tenant(number: u64, called: &str) -> Tenant {
    Tenant {
        number: TenantId(number),
        name: name(called),
        state: Standing::Active,
        created: at(0),
        public_access_block: PublicAccessBlock::default(),
        limits: Limits::default(),
        quota: Quota::default(),
    }
}

fn user(called: &str, groups: &[&str], policies: &[&str]) -> User {
    User {
        tenant: ONE,
        name: name(called),
        id: format!("KWU{called}"),
        kind: UserKind::Person,
        state: Standing::Active,
        created: at(0),
        groups: groups.iter().map(|group| name(group)).collect(),
        policies: policies.iter().map(|policy| name(policy)).collect(),
        tags: [("team".to_owned(), "vision".to_owned())].into(),
        limits: Limits::default(),
    }
}

fn policy(called: &str) -> Change {
    let record =
        ManagedPolicy { tenant: ONE, name: name(called), created: at(0), document: ALL.to_owned() };
    Change::PutPolicy(NamedPolicy::read(record).expect("a policy"))
}

fn group(called: &str, policies: &[&str]) -> Change {
    let policies = policies.iter().map(|policy| name(policy)).collect();
    Change::PutGroup(Group { tenant: ONE, name: name(called), created: at(0), policies })
}

fn access_key(id: &str, user: Option<&str>) -> AccessKey {
    AccessKey {
        id: AccessKeyId::new(id),
        tenant: ONE,
        user: user.map(name),
        state: KeyState::Active,
        created: at(0),
        expires: None,
        policy: None,
        description: String::new(),
    }
}

fn key(record: AccessKey) -> Change {
    let secret = SecretKey::new("0123456789abcdef".to_owned());
    Change::PutKey(Key::read(record, secret).expect("no policy, or a sound one"))
}

/// A tenant with a policy, a group of it, and a user with a key.
fn directory() -> Directory {
    let mut directory = Directory::default();
    for change in [
        Change::PutTenant(tenant(1, "acme")),
        policy("all"),
        policy("own"),
        group("team", &["all"]),
        Change::PutUser(user("anna", &["team"], &["own", "all"])),
        key(access_key("KEYA", Some("anna"))),
        key(access_key("KEYROOT", None)),
    ] {
        directory.apply(change).expect("sound");
    }
    directory
}

#[test]
fn a_key_leads_to_its_user_and_all_its_policies() {
    let directory = directory();
    let found = directory.find("KEYA", at(1)).expect("usable");
    assert_eq!((found.principal.tenant, &*found.principal.user), (ONE, "anna"));
    let identity = &found.principal.identity;
    assert_eq!(identity.policies.len(), 2, "the one named twice counts once");
    assert_eq!(identity.caller.to_string(), "arn:aws:iam::000000000001:user/anna");
    assert_eq!(identity.tags["team"], "vision");
    let root = directory.find("KEYROOT", at(1)).expect("usable");
    assert!(root.principal.identity.caller.is_root());
    assert_eq!(directory.find("KEYB", at(1)).map(drop), Err(Refused::Unknown));
    assert_eq!(directory.tenant_number("acme"), Some(ONE));
    assert_eq!(directory.tenant_number("000000000001"), Some(ONE));
    assert_eq!(directory.tenant_number("000000000002"), None);
    assert_eq!(directory.tenant_number("root"), Some(TenantId::ROOT));
}

#[test]
fn who_is_cut_off_cannot_sign() {
    let refused = |change: Change, now: i64| {
        let directory = directory().with(change).expect("sound");
        directory.find("KEYA", at(now)).map(drop).expect_err("refused")
    };
    let suspended = Tenant { state: Standing::Suspended, ..tenant(1, "acme") };
    assert_eq!(refused(Change::PutTenant(suspended), 1), Refused::TenantSuspended);
    let suspended = User { state: Standing::Suspended, ..user("anna", &[], &[]) };
    assert_eq!(refused(Change::PutUser(suspended), 1), Refused::UserSuspended);
    let disabled = AccessKey { state: KeyState::Disabled, ..access_key("KEYA", Some("anna")) };
    assert_eq!(refused(key(disabled), 1), Refused::Disabled);
    let expiring = AccessKey { expires: Some(at(10)), ..access_key("KEYA", Some("anna")) };
    assert_eq!(refused(key(expiring.clone()), 10), Refused::Expired);
    assert!(directory().with(key(expiring)).expect("sound").find("KEYA", at(9)).is_ok());
    assert_eq!(refused(Change::DeleteKey(AccessKeyId::new("KEYA")), 1), Refused::Unknown);
}

#[test]
fn what_is_named_stays() {
    let directory = directory();
    let refused = |change| directory.with(change).map(drop).expect_err("refused");
    assert_eq!(refused(Change::DeleteTenant(ONE)), in_use(Kind::Tenant, "acme", Kind::User));
    assert_eq!(
        refused(Change::DeleteUser(ONE, name("anna"))),
        in_use(Kind::User, "anna", Kind::Key)
    );
    assert_eq!(
        refused(Change::DeleteGroup(ONE, name("team"))),
        in_use(Kind::Group, "team", Kind::User)
    );
    assert_eq!(
        refused(Change::DeletePolicy(ONE, name("own"))),
        in_use(Kind::Policy, "own", Kind::User)
    );
    assert_eq!(
        refused(Change::PutUser(user("ben", &["nobody"], &[]))),
        no_such(Kind::Group, "nobody")
    );
    assert_eq!(refused(group("other", &["none"])), no_such(Kind::Policy, "none"));
    assert_eq!(refused(key(access_key("KEYB", Some("ben")))), no_such(Kind::User, "ben"));
}

#[test]
fn names_and_ids_have_one_holder() {
    let mut directory = directory();
    let refused = |change| directory.with(change).map(drop).expect_err("refused");
    assert_eq!(refused(Change::PutTenant(tenant(2, "acme"))), taken(Kind::Tenant, "acme"));
    assert_eq!(refused(Change::PutTenant(tenant(0, "zero"))), DirectoryError::Root);
    assert_eq!(refused(Change::PutTenant(tenant(2, "000000000002"))), DirectoryError::TenantNumber);
    let stolen = AccessKey { tenant: TenantId::ROOT, ..access_key("KEYA", None) };
    assert_eq!(refused(key(stolen)), taken(Kind::Key, "KEYA"));
    assert_eq!(refused(key(access_key("KEYA", None))), taken(Kind::Key, "KEYA"));
    for number in 1..KEYS_PER_USER_MAX {
        directory.apply(key(access_key(&format!("KEY{number}"), Some("anna")))).expect("room");
    }
    let more = directory.with(key(access_key("KEYMORE", Some("anna"))));
    assert_eq!(more.map(drop), Err(DirectoryError::TooMany("a user's keys")));
    assert!(directory.apply(key(access_key("KEYA", Some("anna")))).is_ok(), "it has one already");
}
