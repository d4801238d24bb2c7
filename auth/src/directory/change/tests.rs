//! Goal: the rules of changes, and who may sign after them. Method: one small directory.

use jiff::Timestamp;

use super::*;
use crate::credential::Principal;
use crate::credential::SecretKey;
use crate::directory::{
    AUDIENCES_MAX, AccessKey, KeyState, Limits, ManagedPolicy, Quota, Refused, RoleRecord,
    Standing, UserKind,
};
use crate::policy::PublicAccessBlock;
use crate::session::{Assumed, Claims, Origin, Source, WebIdentity};

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
        verification: None,
        weight: keyway_proto::Weight::default(),
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
        sessions_valid_from: None,
        limits: Limits::default(),
        quota: Quota::default(),
    }
}

fn role(called: &str, policies: &[&str]) -> RoleRecord {
    RoleRecord {
        tenant: ONE,
        name: name(called),
        id: format!("KWR{called}"),
        state: Standing::Active,
        created: at(0),
        trust: r#"{"Statement": {"Effect": "Allow", "Action": "sts:AssumeRole",
            "Principal": {"AWS": "000000000001"}}}"#
            .to_owned(),
        policies: policies.iter().map(|policy| name(policy)).collect(),
        session_max_s: 3600,
        tags: [("of".to_owned(), "role".to_owned())].into(),
        sessions_valid_from: None,
    }
}

fn put_role(record: RoleRecord) -> Change {
    Change::PutRole(Role::read(record).expect("a trust policy"))
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

/// Claims of somebody who signs with KEYA, in this role, made at second 10.
fn claims(role: Option<(&str, &str)>) -> Arc<Claims> {
    let holder = "KWUanna".to_owned();
    let source = Origin::Key(Source { key: AccessKeyId::new("KEYA"), tenant: ONE, holder });
    let role = role.map(|(called, id)| Assumed {
        tenant: ONE,
        name: name(called),
        id: id.to_owned(),
        session: "job".to_owned(),
        policy: Some(ALL.to_owned()),
    });
    Arc::new(Claims { source, role, through: Vec::new(), issued: at(10), expires: at(1000) })
}

fn session(directory: &Directory, claims: &Arc<Claims>) -> Result<Principal, Refused> {
    let source = match claims.source.key() {
        Some(key) => Some(directory.find(key.as_str(), at(11))?.principal),
        None => None,
    };
    directory.session(AccessKeyId::new("TEMPORARY"), Arc::clone(claims), source.as_ref())
}

fn provider(called: &str, issuer: &str) -> Provider {
    Provider {
        tenant: ONE,
        name: name(called),
        id: format!("KWO{called}"),
        created: at(1),
        issuer: issuer.parse().expect("an issuer"),
        audiences: ["keyway".to_owned()].into(),
        ca_pem: None,
    }
}

#[test]
fn an_issuer_is_one_provider() {
    let directory = directory();
    let put = |directory: &Directory, provider| directory.with(Change::PutProvider(provider));
    let with = put(&directory, provider("hub", "https://idp.example.com/a")).expect("sound");
    assert!(with.provider_of(ONE, "https://idp.example.com/a").is_some());
    for other in ["https://idp.example.com/a/", "https://idp.example.com", "idp.example.com/a"] {
        assert!(with.provider_of(ONE, other).is_none(), "{other}");
    }
    assert!(with.provider_of(TenantId(9), "https://idp.example.com/a").is_none());
    for same in ["https://idp.example.com/a", "https://idp.example.com/A"] {
        let taken = put(&with, provider("other", same)).map(|_| ());
        assert!(matches!(taken, Err(DirectoryError::Taken { kind: Kind::Provider, .. })), "{same}");
    }
    assert!(put(&with, provider("hub", "https://idp.example.com/A")).is_ok(), "it is its own");
    let off = Tenant { state: Standing::Suspended, ..tenant(1, "acme") };
    let off = with.with(Change::PutTenant(off)).expect("sound");
    assert!(off.provider_of(ONE, "https://idp.example.com/a").is_none());
    let mut many = provider("hub", "https://idp.example.com/a");
    many.audiences = (0..=AUDIENCES_MAX).map(|number| number.to_string()).collect();
    assert!(matches!(put(&with, many), Err(DirectoryError::TooMany(_))));
    let gone = Change::DeleteProvider(ONE, name("hub"));
    assert!(with.with(gone.clone()).is_ok() && directory.with(gone).is_err());
}

/// Goal: a session of a web identity stands while its provider vouches for that audience, its role is
/// there, and it is in a role at all.
#[test]
fn sessions_of_web_identities_end_with_their_provider() {
    let start = directory()
        .with(put_role(role("reader", &["own"])))
        .and_then(|it| it.with(Change::PutProvider(provider("hub", "https://idp.example.com"))))
        .expect("sound");
    let identity = WebIdentity {
        tenant: ONE,
        provider: name("hub"),
        id: "KWOhub".to_owned(),
        subject: "somebody".to_owned(),
        audience: "keyway".to_owned(),
    };
    let of_key = claims(Some(("reader", "KWRreader")));
    let taken = Arc::new(Claims { source: Origin::Web(identity), ..(*of_key).clone() });
    let text = serde_json::to_vec(&*taken).expect("it has a JSON form");
    assert_eq!(serde_json::from_slice::<Claims>(&text).ok().as_ref(), Some(&*taken));
    let found = session(&start, &taken).expect("it stands");
    let arn = "arn:aws:sts::000000000001:assumed-role/reader/job";
    assert_eq!(found.identity.caller.to_string(), arn);
    let nobody = Arc::new(Claims { role: None, ..(*taken).clone() });
    assert_eq!(session(&start, &nobody).err(), Some(Refused::Unknown));
    let after = |change: Change| session(&start.with(change).expect("sound"), &taken).err();
    let anew = Provider { id: "KWOnew".to_owned(), ..provider("hub", "https://idp.example.com") };
    let mut deaf = provider("hub", "https://idp.example.com");
    deaf.audiences = ["other".to_owned()].into();
    let tenant_off = Tenant { state: Standing::Suspended, ..tenant(1, "acme") };
    let mut revoked = role("reader", &["own"]);
    revoked.sessions_valid_from = Some(at(10));
    for (change, expected) in [
        (Change::PutProvider(provider("hub", "https://idp.example.com")), None),
        (Change::DeleteProvider(ONE, name("hub")), Some(Refused::Unknown)),
        (Change::PutProvider(anew), Some(Refused::Unknown)),
        (Change::PutProvider(deaf), Some(Refused::Revoked)),
        (Change::PutTenant(tenant_off), Some(Refused::TenantSuspended)),
        (Change::DeleteRole(ONE, name("reader")), Some(Refused::Unknown)),
        (put_role(revoked), Some(Refused::Revoked)),
    ] {
        assert_eq!(after(change.clone()), expected, "{change:?}");
    }
}

#[test]
fn a_session_is_its_role_or_its_holder() {
    let directory = directory().with(put_role(role("reader", &["own"]))).expect("sound");
    let found = session(&directory, &claims(Some(("reader", "KWRreader")))).expect("it stands");
    let identity = &found.identity;
    let arn = "arn:aws:sts::000000000001:assumed-role/reader/job";
    assert_eq!(
        (identity.caller.to_string().as_str(), identity.caller.id()),
        (arn, "KWRreader:job")
    );
    assert_eq!((identity.policies.len(), identity.session.len()), (1, 1));
    assert_eq!(identity.tags.get("of").map(String::as_str), Some("role"));
    assert_eq!(found.access_key.as_str(), "TEMPORARY");
    let own = session(&directory, &claims(None)).expect("it stands");
    assert_eq!(own.identity.caller.to_string(), "arn:aws:iam::000000000001:user/anna");
    assert_eq!((own.identity.policies.len(), own.access_key.as_str()), (2, "TEMPORARY"));
    assert!(own.claims.is_some());
}

#[test]
fn sessions_end_with_whom_they_go_back_to() {
    let start = directory().with(put_role(role("reader", &["own"]))).expect("sound");
    let (taken, own) = (claims(Some(("reader", "KWRreader"))), claims(None));
    let after = |change: Change| {
        let directory = start.with(change).expect("sound");
        (session(&directory, &taken).err(), session(&directory, &own).err())
    };
    let both = |why: Refused| (Some(why), Some(why));
    let anna = || user("anna", &[], &[]);
    let tenant_off = Tenant { state: Standing::Suspended, ..tenant(1, "acme") };
    assert_eq!(after(Change::PutTenant(tenant_off)), both(Refused::TenantSuspended));
    let user_off = User { state: Standing::Suspended, ..anna() };
    assert_eq!(after(Change::PutUser(user_off)), both(Refused::UserSuspended));
    let disabled = AccessKey { state: KeyState::Disabled, ..access_key("KEYA", Some("anna")) };
    assert_eq!(after(key(disabled)), both(Refused::Disabled));
    assert_eq!(after(Change::DeleteKey(AccessKeyId::new("KEYA"))), both(Refused::Unknown));
    for (ended, expected) in [(9, (None, None)), (10, both(Refused::Revoked))] {
        let revoked = User { sessions_valid_from: Some(at(ended)), ..anna() };
        assert_eq!(after(Change::PutUser(revoked)), expected);
    }
    // The user of that name is another one by now.
    let again = User { id: "KWUother".to_owned(), ..anna() };
    assert_eq!(after(Change::PutUser(again)), both(Refused::Unknown));
    // What happens to the role ends its own alone.
    let reader = || role("reader", &[]);
    let suspended = RoleRecord { state: Standing::Suspended, ..reader() };
    assert_eq!(after(put_role(suspended)), (Some(Refused::RoleSuspended), None));
    let revoked = RoleRecord { sessions_valid_from: Some(at(10)), ..reader() };
    assert_eq!(after(put_role(revoked)), (Some(Refused::Revoked), None));
    assert_eq!(after(Change::DeleteRole(ONE, name("reader"))), (Some(Refused::Unknown), None));
    let again = RoleRecord { id: "KWRother".to_owned(), ..reader() };
    assert_eq!(after(put_role(again)), (Some(Refused::Unknown), None));
    assert_eq!(after(put_role(reader())), (None, None));
}

/// Who took a role in a session of another one is out with either.
#[test]
fn chains_end_with_each_of_their_roles() {
    let start = directory().with(put_role(role("first", &[]))).expect("sound");
    let start = start.with(put_role(role("second", &[]))).expect("sound");
    let first = claims(Some(("first", "KWRfirst")));
    let second = claims(Some(("second", "KWRsecond")));
    let chain = Arc::new(Claims { through: first.links(), issued: at(20), ..(*second).clone() });
    assert_eq!(session(&start, &chain).err(), None);
    for (called, ended, expected) in [
        ("first", 9, None),
        ("first", 10, Some(Refused::Revoked)),
        ("second", 19, None),
        ("second", 20, Some(Refused::Revoked)),
    ] {
        let revoked = RoleRecord { sessions_valid_from: Some(at(ended)), ..role(called, &[]) };
        let directory = start.with(put_role(revoked)).expect("sound");
        assert_eq!(session(&directory, &chain).err(), expected, "{called} {ended}");
    }
    let gone = start.with(Change::DeleteRole(ONE, name("first"))).expect("sound");
    assert_eq!(session(&gone, &chain).err(), Some(Refused::Unknown));
}

#[test]
fn roles_keep_rules() {
    let directory = directory().with(put_role(role("reader", &["own"]))).expect("sound");
    let refused = |change| directory.with(change).map(drop).expect_err("refused");
    assert_eq!(refused(put_role(role("other", &["none"]))), no_such(Kind::Policy, "none"));
    for session_max_s in [0, 3599, 43_201] {
        let odd = RoleRecord { session_max_s, ..role("other", &[]) };
        assert_eq!(refused(put_role(odd)), DirectoryError::SessionLength);
    }
    let none = Change::DeleteRole(ONE, name("other"));
    assert_eq!(refused(none), no_such(Kind::Role, "other"));
    let user = Change::PutUser(user("anna", &["team"], &["all"]));
    let unused = directory.with(user).expect("sound");
    let policy = unused.with(Change::DeletePolicy(ONE, name("own"))).map(drop);
    assert_eq!(policy, Err(in_use(Kind::Policy, "own", Kind::Role)));
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
