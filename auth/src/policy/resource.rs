//! What an action is done to, and the patterns that policies name it with.

use std::fmt;

use super::action::Level;
use super::error::Flaw;
use super::evaluate::Request;
use super::key::KeyRef;
use super::pattern::{Glob, Pattern, Piece};

const BEGIN: &str = "arn:aws:s3:::";

/// A resource: all of a tenant's, a bucket, or an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Resource(Box<str>);

impl Resource {
    /// What actions on a tenant as a whole are done to: only a pattern that matches every
    /// resource matches it.
    pub fn account() -> Self {
        Self("*".into())
    }

    /// A bucket.
    pub fn bucket(bucket: &str) -> Self {
        Self(bucket.into())
    }

    /// An object.
    pub fn object(bucket: &str, key: &str) -> Self {
        Self(format!("{bucket}/{key}").into())
    }

    /// Reads `*`, an ARN, or `bucket` and `bucket/key`. `None` for another service's ARN.
    pub fn parse(text: &str) -> Option<Self> {
        if text.starts_with("arn:") {
            let name = text.strip_prefix(BEGIN).filter(|name| !name.is_empty())?;
            return Some(Self(name.into()));
        }
        (!text.is_empty()).then(|| Self(text.into()))
    }

    /// Without the ARN's beginning.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            "*" => f.write_str("*"),
            name => write!(f, "{BEGIN}{name}"),
        }
    }
}

/// An element of `Resource` or `NotResource`.
#[derive(Debug, Clone)]
pub(super) enum ResourcePattern {
    /// `*`.
    Everything,
    /// S3's resources whose names match.
    Named(Pattern),
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
        let pattern = Pattern::new(Piece::parse(name, true, variables)?);
        let matches =
            |pattern: &str, text: &str| Glob::new(&Piece::wildcards(pattern)).matches(text);
        let ours = matches(partition, "aws")
            && matches(service, "s3")
            && matches(region, "")
            && matches(account, "");
        Ok(if ours { Self::Named(pattern) } else { Self::Foreign })
    }

    pub(super) fn matches(&self, request: &Request<'_>) -> bool {
        match self {
            Self::Everything => true,
            Self::Named(pattern) => pattern.matches(request.resource.as_str(), request),
            Self::Foreign => false,
        }
    }

    /// Whether it can match the bucket or an object in it.
    pub(super) fn may_be_in(&self, bucket: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Named(pattern) => {
                let folder = format!("{bucket}/");
                match pattern.beginning() {
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
            Self::Named(pattern) => match (level, pattern.beginning()) {
                (Level::Object, (text, true)) => text.len() > bucket.len() + 1,
                (Level::Object, (_, false)) => true,
                (_, (text, _)) => !text.contains('/'),
            },
            Self::Foreign => false,
        }
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &KeyRef> {
        match self {
            Self::Named(pattern) => Some(pattern.keys()),
            Self::Everything | Self::Foreign => None,
        }
        .into_iter()
        .flatten()
    }
}

#[cfg(test)]
mod tests {
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
