//! Who asks, and whom the policies of buckets and roles name.

use std::fmt;

use keyway_proto::TenantId;

use super::error::Flaw;
use super::json::Json;
use crate::oidc::Issuer;

/// Who asks. A tenant is what AWS calls an account: its number has twelve digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    kind: Kind,
    /// Empty for the anonymous one.
    arn: Box<str>,
    /// `aws:userid`.
    id: Box<str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Anonymous,
    Root(TenantId),
    User { tenant: TenantId, path: Box<str> },
    Session { tenant: TenantId, role: Box<str>, name: Box<str> },
    Federated { tenant: TenantId, issuer: Box<str> },
}

impl Caller {
    /// Nobody: a request without a signature.
    pub fn anonymous() -> Self {
        Self { kind: Kind::Anonymous, arn: "".into(), id: "anonymous".into() }
    }

    /// The tenant itself, to whom all that it owns is open.
    pub fn root(tenant: TenantId) -> Self {
        let account = account(tenant);
        Self {
            arn: format!("arn:aws:iam::{account}:root").into(),
            id: account.into(),
            kind: Kind::Root(tenant),
        }
    }

    /// A user, by the name with the path before it where it has one (`team/anna`), and with
    /// its id, that no other user has had.
    pub fn user(tenant: TenantId, path: &str, id: &str) -> Self {
        Self {
            arn: format!("arn:aws:iam::{}:user/{path}", account(tenant)).into(),
            id: id.into(),
            kind: Kind::User { tenant, path: path.into() },
        }
    }

    /// Somebody who took a role for a session of this name.
    pub fn session(tenant: TenantId, role: &str, name: &str, role_id: &str) -> Self {
        let account = account(tenant);
        Self {
            arn: format!("arn:aws:sts::{account}:assumed-role/{role}/{name}").into(),
            id: format!("{role_id}:{name}").into(),
            kind: Kind::Session { tenant, role: role.into(), name: name.into() },
        }
    }

    /// Somebody for whom an issuer vouches that is a provider of this tenant's, before they took
    /// a role: for whom the token is, and who it is.
    pub fn federated(tenant: TenantId, issuer: &Issuer, audience: &str, subject: &str) -> Self {
        let name = issuer.name();
        Self {
            arn: issuer.arn(tenant).into(),
            id: format!("{name}:{audience}:{subject}").into(),
            kind: Kind::Federated { tenant, issuer: name.into() },
        }
    }

    /// Whose it is; the anonymous one is nobody's, and neither is one who took no role yet.
    pub fn tenant(&self) -> Option<TenantId> {
        match self.kind {
            Kind::Anonymous | Kind::Federated { .. } => None,
            Kind::Root(tenant) | Kind::User { tenant, .. } | Kind::Session { tenant, .. } => {
                Some(tenant)
            }
        }
    }

    /// Whether it is the tenant itself.
    pub fn is_root(&self) -> bool {
        matches!(self.kind, Kind::Root(_))
    }

    pub(super) fn arn(&self) -> Option<&str> {
        Some(&*self.arn).filter(|arn| !arn.is_empty())
    }

    /// `aws:userid`: never that of another.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether it is a user, who has not taken a role.
    pub fn is_user(&self) -> bool {
        matches!(self.kind, Kind::User { .. })
    }

    /// Whether it took a role.
    pub fn is_session(&self) -> bool {
        matches!(self.kind, Kind::Session { .. })
    }

    /// A user's name, without its path.
    pub(super) fn user_name(&self) -> Option<&str> {
        match &self.kind {
            Kind::User { path, .. } => path.rsplit('/').next(),
            _ => None,
        }
    }

    /// `aws:PrincipalType`.
    pub(super) fn type_name(&self) -> &'static str {
        match self.kind {
            // Neither has signed.
            Kind::Anonymous | Kind::Federated { .. } => "Anonymous",
            Kind::Root(_) => "Account",
            Kind::User { .. } => "User",
            Kind::Session { .. } => "AssumedRole",
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.arn().unwrap_or("anonymous"))
    }
}

/// A tenant's number, as ARNs have it.
pub(super) fn account(tenant: TenantId) -> String {
    format!("{:012}", tenant.0)
}

fn tenant(account_text: &str) -> Option<TenantId> {
    let digits = account_text.bytes().all(|byte| byte.is_ascii_digit());
    let tenant = TenantId(digits.then(|| account_text.parse().ok())??);
    (account(tenant) == account_text).then_some(tenant)
}

/// Somebody whom the policy of a bucket or a role names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PrincipalRef {
    /// `*`: everybody, signed or not.
    Everybody,
    /// A tenant.
    Account(TenantId),
    /// A user.
    User(TenantId, Box<str>),
    /// A role, in all its sessions.
    Role(TenantId, Box<str>),
    /// One session of a role.
    Session(TenantId, Box<str>, Box<str>),
    /// Everybody for whom this issuer vouches, by its name: a provider of the tenant's.
    Federated(TenantId, Box<str>),
}

/// How an `Allow` names a caller; the weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Naming {
    /// By its tenant, which may then allow it by policies of its own.
    Account,
    /// By itself, its role, or among everybody.
    Direct,
    /// By its session, which is more than a session policy can take away.
    Session,
}

impl PrincipalRef {
    /// Reads one of the values under `AWS`.
    fn parse(text: &str) -> Result<Self, Flaw> {
        let refused = || Flaw::Principal(text.to_owned());
        if text == "*" {
            return Ok(Self::Everybody);
        }
        if let Some(tenant) = tenant(text) {
            return Ok(Self::Account(tenant));
        }
        let parts: Vec<&str> = text.splitn(6, ':').collect();
        let [scheme, partition, service, region, account, name] = parts[..] else {
            return Err(refused());
        };
        let tenant = tenant(account).ok_or_else(refused)?;
        if scheme != "arn" || partition != "aws" || !region.is_empty() {
            return Err(refused());
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "_+=,.@-/".contains(c);
        if !name.chars().all(plain) || name.ends_with('/') || name.contains("//") {
            return Err(refused());
        }
        match (service, name.split_once('/')) {
            ("iam", None) if name == "root" => Ok(Self::Account(tenant)),
            ("iam", Some(("user", path))) => Ok(Self::User(tenant, path.into())),
            ("iam", Some(("role", path))) => {
                let role = path.rsplit('/').next().unwrap_or(path);
                Ok(Self::Role(tenant, role.into()))
            }
            ("sts", Some(("assumed-role", session))) => match session.split_once('/') {
                Some((role, name)) if !name.contains('/') => {
                    Ok(Self::Session(tenant, role.into(), name.into()))
                }
                _ => Err(refused()),
            },
            _ => Err(refused()),
        }
    }

    /// Reads one of the values under `Federated`: a provider's ARN.
    fn parse_federated(text: &str) -> Result<Self, Flaw> {
        let parts = text.strip_prefix("arn:aws:iam::").and_then(|rest| rest.split_once(':'));
        let named = parts.and_then(|(account, rest)| {
            let issuer =
                rest.strip_prefix("oidc-provider/").filter(|name| Issuer::is_name(name))?;
            Some(Self::Federated(tenant(account)?, issuer.into()))
        });
        named.ok_or_else(|| Flaw::Principal(text.to_owned()))
    }

    /// Reads one of the values under `CanonicalUser`: 64 hexadecimal digits.
    fn parse_canonical(text: &str) -> Result<Self, Flaw> {
        let digits = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = digits.then(|| text.trim_start_matches('0')).and_then(|text| match text {
            "" => Some(0),
            text => u64::from_str_radix(text, 16).ok(),
        });
        number
            .map(|number| Self::Account(TenantId(number)))
            .ok_or_else(|| Flaw::Principal(text.to_owned()))
    }

    /// How it names the caller, if it does.
    fn names(&self, caller: &Caller) -> Option<Naming> {
        let direct = |named: bool| named.then_some(Naming::Direct);
        match (self, &caller.kind) {
            (Self::Everybody, _) => Some(Naming::Direct),
            (Self::Account(tenant), Kind::Root(root)) => direct(tenant == root),
            (Self::Account(tenant), _) => {
                (Some(*tenant) == caller.tenant()).then_some(Naming::Account)
            }
            (Self::User(a, user), Kind::User { tenant, path }) => {
                direct(a == tenant && user == path)
            }
            (Self::Role(a, named), Kind::Session { tenant, role, .. }) => {
                direct(a == tenant && named == role)
            }
            (Self::Session(a, named, session), Kind::Session { tenant, role, name }) => {
                let same = a == tenant && named == role && session == name;
                same.then_some(Naming::Session)
            }
            (Self::Federated(a, named), Kind::Federated { tenant, issuer }) => {
                direct(a == tenant && named == issuer)
            }
            _ => None,
        }
    }
}

/// The element `Principal` or `NotPrincipal`.
#[derive(Debug, Clone)]
pub(super) enum Principals {
    /// Whoever holds the policy: it is no bucket's.
    Holder,
    These(Vec<PrincipalRef>),
    AllBut(Vec<PrincipalRef>),
}

impl Principals {
    /// Reads the element's value. `roles` says whether it is of a role's trust policy, where
    /// providers may be named.
    pub(super) fn parse(json: &Json, roles: bool) -> Result<Vec<PrincipalRef>, Flaw> {
        let kinds = match json {
            Json::Text(text) if text == "*" => return Ok(vec![PrincipalRef::Everybody]),
            Json::Text(text) => return Err(Flaw::Principal(text.clone())),
            Json::Object(kinds) => kinds,
            _ => return Err(Flaw::Type("\"*\" or an object")),
        };
        let mut named = Vec::new();
        for (at, (kind, values)) in kinds.iter().enumerate() {
            if kinds[..at].iter().any(|(other, _)| other == kind) {
                return Err(Flaw::Duplicate(kind.clone()));
            }
            let parse = match kind.as_str() {
                "AWS" => PrincipalRef::parse,
                "CanonicalUser" => PrincipalRef::parse_canonical,
                "Federated" if roles => PrincipalRef::parse_federated,
                _ => return Err(Flaw::PrincipalKind(kind.clone())),
            };
            for value in values.one_or_many() {
                let text = value.text().ok_or(Flaw::Type("a string or a list of strings"))?;
                named.push(parse(text)?);
            }
        }
        if named.is_empty() { Err(Flaw::Empty) } else { Ok(named) }
    }

    /// How an `Allow` with this element names the caller.
    pub(super) fn naming(&self, caller: &Caller) -> Option<Naming> {
        match self {
            Self::Holder => Some(Naming::Direct),
            // Nobody means the users of all providers who does not say so.
            Self::These(named) => {
                let federated = matches!(caller.kind, Kind::Federated { .. });
                let meant =
                    |one: &&PrincipalRef| !federated || matches!(one, PrincipalRef::Federated(..));
                named.iter().filter(meant).filter_map(|one| one.names(caller)).max()
            }
            // No `Allow` has it.
            Self::AllBut(_) => None,
        }
    }

    /// Whether a `Deny` with this element concerns the caller.
    ///
    /// `NotPrincipal` spares only whom it names at every level: a user and its tenant; a
    /// session, its role and its tenant. AWS may judge each of them by itself.
    pub(super) fn denies(&self, caller: &Caller) -> bool {
        match self {
            Self::Holder => true,
            Self::These(named) => named.iter().any(|one| one.names(caller).is_some()),
            Self::AllBut(spared) => {
                if spared.contains(&PrincipalRef::Everybody) {
                    return false;
                }
                let chain: Vec<PrincipalRef> = match &caller.kind {
                    Kind::Anonymous => return true,
                    Kind::Root(tenant) => vec![PrincipalRef::Account(*tenant)],
                    Kind::User { tenant, path } => vec![
                        PrincipalRef::Account(*tenant),
                        PrincipalRef::User(*tenant, path.clone()),
                    ],
                    Kind::Session { tenant, role, name } => vec![
                        PrincipalRef::Account(*tenant),
                        PrincipalRef::Role(*tenant, role.clone()),
                        PrincipalRef::Session(*tenant, role.clone(), name.clone()),
                    ],
                    Kind::Federated { tenant, issuer } => {
                        vec![PrincipalRef::Federated(*tenant, issuer.clone())]
                    }
                };
                !chain.iter().all(|link| spared.contains(link))
            }
        }
    }

    /// Those that the element names.
    pub(super) fn named(&self) -> &[PrincipalRef] {
        match self {
            Self::Holder => &[],
            Self::These(named) | Self::AllBut(named) => named,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn principals_are_read() {
        let one = TenantId(1);
        for (text, expected) in [
            ("*", PrincipalRef::Everybody),
            ("000000000001", PrincipalRef::Account(one)),
            ("arn:aws:iam::000000000001:root", PrincipalRef::Account(one)),
            ("arn:aws:iam::000000000001:user/a/b", PrincipalRef::User(one, "a/b".into())),
            ("arn:aws:iam::000000000001:role/x/y", PrincipalRef::Role(one, "y".into())),
            (
                "arn:aws:sts::000000000001:assumed-role/r/s",
                PrincipalRef::Session(one, "r".into(), "s".into()),
            ),
        ] {
            assert_eq!(PrincipalRef::parse(text), Ok(expected), "{text}");
        }
        for bad in [
            "",
            "anna",
            "1",
            "0000000000001",
            "00000000000x",
            "arn:aws:iam::1:root",
            "arn:aws:iam::000000000001:user/*",
            "arn:aws:iam::000000000001:user/",
            "arn:aws:iam::000000000001:group/g",
            "arn:aws:iam::*:root",
            "arn:aws:s3:::bucket",
            "arn:aws:sts::000000000001:assumed-role/r",
            "arn:aws:iam:eu:000000000001:root",
        ] {
            assert_eq!(PrincipalRef::parse(bad), Err(Flaw::Principal(bad.to_owned())));
        }
    }

    #[test]
    fn providers_are_named_by_their_arns() {
        let named = PrincipalRef::Federated(TenantId(1), "idp.example.com:8443/a/".into());
        let text = "arn:aws:iam::000000000001:oidc-provider/idp.example.com:8443/a/";
        assert_eq!(PrincipalRef::parse_federated(text), Ok(named));
        for bad in [
            "*",
            "idp.example.com",
            "arn:aws:iam::1:oidc-provider/idp.example.com",
            "arn:aws:iam::000000000001:oidc-provider/",
            "arn:aws:iam::000000000001:oidc-provider/*",
            "arn:aws:iam::000000000001:saml-provider/idp.example.com",
            "arn:aws:iam::000000000001:user/idp.example.com",
        ] {
            assert_eq!(PrincipalRef::parse_federated(bad), Err(Flaw::Principal(bad.to_owned())));
        }
    }

    #[test]
    fn canonical_users_are_tenants() {
        let id = format!("{:064x}", 18);
        assert_eq!(PrincipalRef::parse_canonical(&id), Ok(PrincipalRef::Account(TenantId(18))));
        assert!(PrincipalRef::parse_canonical("12").is_err());
        assert!(PrincipalRef::parse_canonical(&"f".repeat(64)).is_err());
    }
}
