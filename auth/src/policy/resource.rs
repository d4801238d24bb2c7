//! What an action is done to, and the patterns that policies name it with.

use std::fmt;

use keyway_proto::TenantId;

use super::action::Level;
use super::error::Flaw;
use super::evaluate::Request;
use super::key::KeyRef;
use super::pattern::{Glob, Pattern, Piece};
use super::principal::account;

const BEGIN: &str = "arn:aws:s3:::";

/// A resource: all of a tenant's, a bucket, an object, or a role.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Resource {
    /// The tenant whose role it is; none for what is S3's.
    role_of: Option<TenantId>,
    name: Box<str>,
}

impl Resource {
    /// What actions on a tenant as a whole are done to: only a pattern that matches every
    /// resource matches it.
    pub fn account() -> Self {
        Self::named("*".into())
    }

    /// A bucket.
    pub fn bucket(bucket: &str) -> Self {
        Self::named(bucket.into())
    }

    /// An object.
    pub fn object(bucket: &str, key: &str) -> Self {
        Self::named(format!("{bucket}/{key}").into())
    }

    /// A role.
    pub fn role(tenant: TenantId, name: &str) -> Self {
        Self { role_of: Some(tenant), name: format!("role/{name}").into() }
    }

    fn named(name: Box<str>) -> Self {
        Self { role_of: None, name }
    }

    /// Reads `*`, an ARN, or `bucket` and `bucket/key`. `None` for another service's ARN.
    pub fn parse(text: &str) -> Option<Self> {
        if text.starts_with("arn:") {
            let name = text.strip_prefix(BEGIN).filter(|name| !name.is_empty())?;
            return Some(Self::named(name.into()));
        }
        (!text.is_empty()).then(|| Self::named(text.into()))
    }

    /// Without the ARN's beginning.
    pub fn as_str(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.role_of, &*self.name) {
            (Some(tenant), name) => write!(f, "arn:aws:iam::{}:{name}", account(tenant)),
            (None, "*") => f.write_str("*"),
            (None, name) => write!(f, "{BEGIN}{name}"),
        }
    }
}

/// An element of `Resource` or `NotResource`.
#[derive(Debug, Clone)]
pub(super) enum ResourcePattern {
    /// `*`.
    Everything,
    /// Resources whose names match.
    Named {
        name: Pattern,
        /// Whether S3's can.
        of_s3: bool,
        /// The accounts whose roles can.
        roles_of: Option<Glob>,
    },
    /// Another service's.
    Foreign,
}

impl ResourcePattern {
    /// Reads `*` or an ARN; what is before the name has wildcards too, but no variables.
    pub(super) fn parse(text: &str, variables: bool) -> Result<Self, Flaw> {
        if text == "*" {
            return Ok(Self::Everything);
        }
        let mut parts = text.splitn(6, ':');
        let mut part = || parts.next().ok_or_else(|| Flaw::Resource(text.to_owned()));
        let (scheme, partition, service) = (part()?, part()?, part()?);
        let (region, account, name) = (part()?, part()?, part()?);
        let header = [partition, service, region, account];
        let plain = |c: char| c.is_ascii_alphanumeric() || "-*?".contains(c);
        let well_formed = header.iter().all(|part| part.chars().all(plain));
        let named = !partition.is_empty() && !service.is_empty() && !name.is_empty();
        if scheme != "arn" || !well_formed || !named {
            return Err(Flaw::Resource(text.to_owned()));
        }
        let name = Pattern::new(Piece::parse(name, true, variables)?);
        let glob = |pattern: &str| Glob::new(&Piece::wildcards(pattern));
        let ours = glob(partition).matches("aws") && glob(region).matches("");
        let of_s3 = ours && glob(service).matches("s3") && glob(account).matches("");
        let roles_of = (ours && glob(service).matches("iam")).then(|| glob(account));
        let foreign = !of_s3 && roles_of.is_none();
        Ok(if foreign { Self::Foreign } else { Self::Named { name, of_s3, roles_of } })
    }

    pub(super) fn matches(&self, request: &Request<'_>) -> bool {
        match self {
            Self::Everything => true,
            Self::Named { name, of_s3, roles_of } => {
                let here = match request.resource.role_of {
                    None => *of_s3,
                    Some(tenant) => {
                        roles_of.as_ref().is_some_and(|glob| glob.matches(&account(tenant)))
                    }
                };
                here && name.matches(request.resource.as_str(), request)
            }
            Self::Foreign => false,
        }
    }

    /// Whether it can match the bucket or an object in it.
    pub(super) fn may_be_in(&self, bucket: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Named { of_s3: false, .. } => false,
            Self::Named { name, .. } => {
                let folder = format!("{bucket}/");
                match name.beginning() {
                    (text, true) => text == bucket || text.starts_with(&folder),
                    (text, false) => folder.starts_with(&*text) || text.starts_with(&folder),
                }
            }
            Self::Foreign => false,
        }
    }

    /// Whether it can match something in the bucket that actions of this level are done to.
    pub(super) fn may_be(&self, level: Level, bucket: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Named { of_s3: false, .. } => false,
            Self::Named { name, .. } => match (level, name.beginning()) {
                (Level::Object, (text, true)) => text.len() > bucket.len() + 1,
                (Level::Object, (_, false)) => true,
                (_, (text, _)) => !text.contains('/'),
            },
            Self::Foreign => false,
        }
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &KeyRef> {
        match self {
            Self::Named { name, .. } => Some(name.keys()),
            Self::Everything | Self::Foreign => None,
        }
        .into_iter()
        .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::super::action::Action;
    use super::super::principal::Caller;
    use super::super::value::Context;
    use super::*;

    #[test]
    fn a_bucket_policy_stays_in_its_bucket() {
        let may =
            |text: &str| ResourcePattern::parse(text, true).expect("parses").may_be_in("photos");
        for inside in [
            "*",
            "arn:aws:s3:::*",
            "arn:aws:s3:::photos",
            "arn:aws:s3:::photos/*",
            "arn:aws:s3:::photos*",
            "arn:aws:s3:::pho*/a",
            "arn:aws:s3:::photos/a:b",
            "arn:*:s3:*:*:photos/x",
            "arn:aws:s3:::photos/${aws:username}/*",
        ] {
            assert!(may(inside), "{inside}");
        }
        for outside in [
            "arn:aws:s3:::videos",
            "arn:aws:s3:::photos2/*",
            "arn:aws:s3:::phot",
            "arn:aws:s3:::videos*",
            "arn:aws:sqs:::photos",
            "arn:aws:s3:eu-west-1::photos",
        ] {
            assert!(!may(outside), "{outside}");
        }
    }

    #[test]
    fn roles_are_no_buckets() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let (caller, context) = (Caller::root(TenantId(7)), Context::new());
        let fits = |pattern: &str, resource: &Resource| {
            let action = Action::AssumeRole;
            let (caller, context) = (&caller, &context);
            let request = Request { caller, action, resource, owner: None, now, context };
            ResourcePattern::parse(pattern, true).expect("parses").matches(&request)
        };
        let role = Resource::role(TenantId(7), "reader");
        assert_eq!(role.to_string(), "arn:aws:iam::000000000007:role/reader");
        for pattern in [
            "*",
            "arn:aws:iam::000000000007:role/reader",
            "arn:aws:iam::*:role/*",
            "arn:aws:iam::000000000007:role/read?r",
            "arn:aws:*:*:*:*",
        ] {
            assert!(fits(pattern, &role), "{pattern}");
        }
        for pattern in [
            "arn:aws:iam::000000000008:role/reader",
            "arn:aws:iam::000000000007:user/reader",
            "arn:aws:iam:eu::role/reader",
            "arn:aws:s3:::*",
            "arn:aws:s3:::role/reader",
            "arn:aws:s3:::arn:aws:iam::000000000007:role/reader",
        ] {
            assert!(!fits(pattern, &role), "{pattern}");
        }
        // An object whose name reads like a role's is none.
        for object in [Resource::object("role", "reader"), Resource::bucket(&role.to_string())] {
            assert!(!fits("arn:aws:iam::000000000007:role/reader", &object), "{object}");
        }
    }

    #[test]
    fn what_is_no_arn_is_refused() {
        for bad in [
            "",
            "photos",
            "photos/*",
            "arn:aws:s3",
            "arn:aws:s3:::",
            "arn::s3:::photos",
            "ARN:aws:s3:::photos",
            "arn:aws:s3:${aws:username}::photos",
        ] {
            assert!(matches!(ResourcePattern::parse(bad, true), Err(Flaw::Resource(_))), "{bad}");
        }
    }
}
