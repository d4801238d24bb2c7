//! The decision: every policy that has a say is asked, and their answers are weighed.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use keyway_proto::TenantId;

use super::Policy;
use super::action::Action;
use super::key::{Key, KeyRef};
use super::principal::{self, Caller, Naming};
use super::public::PublicAccessBlock;
use super::resource::Resource;
use super::statement::Verdict;
use super::value::{Context, Value};

/// A question: may this caller do this to that?
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Who asks.
    pub caller: &'a Caller,
    /// What for.
    pub action: Action,
    /// To what.
    pub resource: &'a Resource,
    /// The tenant that owns the bucket; none for actions on the caller's own tenant, and for
    /// a bucket that is to be created.
    pub owner: Option<TenantId>,
    /// When.
    pub now: Timestamp,
    /// What else is known.
    pub context: &'a Context<'a>,
}

impl<'a> Request<'a> {
    /// The values of a key, at least one; none where the request does not have it.
    pub(super) fn values(&self, key: &KeyRef) -> Option<Cow<'a, [Value<'a>]>> {
        if let Some(values) = self.context.find(key) {
            return Some(Cow::Borrowed(values));
        }
        let KeyRef::Known(key) = key else { return None };
        self.derived(*key).map(|value| Cow::Owned(vec![value]))
    }

    /// What follows from who asks, when, and whose bucket it is.
    fn derived(&self, key: Key) -> Option<Value<'a>> {
        let owner = || self.owner.map(|owner| principal::account(owner).into());
        match key {
            Key::CurrentTime | Key::EpochTime => Some(self.now.into()),
            Key::PrincipalAccount => self.caller.tenant().map(|t| principal::account(t).into()),
            Key::PrincipalArn => self.caller.arn().map(Value::from),
            Key::PrincipalIsAwsService | Key::ViaAwsService => Some(false.into()),
            Key::PrincipalType => Some(self.caller.type_name().into()),
            Key::UserId => Some(self.caller.id().into()),
            Key::Username => self.caller.user_name().map(Value::from),
            Key::ResourceAccount | Key::S3ResourceAccount => owner(),
            _ => None,
        }
    }
}

/// The policies that have a say about a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Policies<'p> {
    /// The caller's: of the user and its groups, or of the role.
    pub identity: &'p [Arc<Policy>],
    /// The session's; where there are any, one of them must allow as well.
    pub session: &'p [Arc<Policy>],
    /// The bucket's.
    pub bucket: Option<&'p Policy>,
    /// The block of the bucket and of its owner's tenant, together.
    pub block: PublicAccessBlock,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision<'p> {
    /// It may.
    Allow(AllowedBy<'p>),
    /// It may not.
    Deny(DeniedBy<'p>),
}

impl Decision<'_> {
    /// Whether it is an `Allow`.
    pub const fn is_allow(&self) -> bool {
        matches!(self, Self::Allow(_))
    }

    /// Whether it is a `Deny` that a statement spells out.
    pub const fn is_explicit_deny(&self) -> bool {
        matches!(self, Self::Deny(DeniedBy::Statement(_)))
    }
}

/// What allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllowedBy<'p> {
    /// The caller is the root of the tenant that owns it.
    Root,
    /// A statement.
    Statement(StatementRef<'p>),
    /// Nothing denies it, which is enough for an action that is only a gate.
    Gate,
}

/// What denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeniedBy<'p> {
    /// A `Deny`.
    Statement(StatementRef<'p>),
    /// No identity policy allows it.
    NoIdentityPolicy,
    /// The bucket's policy does not allow it to somebody who is not its owner's.
    NoBucketPolicy,
    /// The role's trust policy does not allow it.
    NoTrustPolicy,
    /// The tenant itself takes no roles.
    RootTakesNoRole,
    /// No session policy allows it.
    NoSessionPolicy,
    /// The bucket's policy is public, and the block keeps others out.
    PublicAccessBlock,
}

/// Where a policy came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The identity policy with this number, from 0.
    Identity(usize),
    /// The session policy with this number, from 0.
    Session(usize),
    /// The bucket's.
    Bucket,
    /// The role's trust policy.
    Trust,
}

/// A statement of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatementRef<'p> {
    /// Whose policy.
    pub source: Source,
    /// Which statement, from 0.
    pub number: usize,
    /// Its `Sid`, where it has one.
    pub sid: Option<&'p str>,
}

/// Decides. docs/policies.md says by what rules.
pub fn evaluate<'p>(request: &Request<'_>, policies: &Policies<'p>) -> Decision<'p> {
    let session = match ask(policies.session, Source::Session, request) {
        Ok(allowed) => allowed,
        Err(denied) => return Decision::Deny(DeniedBy::Statement(denied)),
    };
    let identity = match ask(policies.identity, Source::Identity, request) {
        Ok(allowed) => allowed,
        Err(denied) => return Decision::Deny(DeniedBy::Statement(denied)),
    };
    let caller = request.caller;
    let own = caller.tenant().is_some() && request.owner.is_none_or(|o| Some(o) == caller.tenant());
    let mut bucket = None;
    if let Some(policy) = policies.bucket {
        let verdict = Verdict::of(&policy.statements, request);
        let refer =
            |number| StatementRef { source: Source::Bucket, number, sid: policy.sid(number) };
        if let Some(number) = verdict.deny
            && !(own && caller.is_root() && mends_a_policy(request.action))
        {
            return Decision::Deny(DeniedBy::Statement(refer(number)));
        }
        bucket = verdict.allow.map(|(number, naming)| (refer(number), naming));
    }
    if request.action.is_gate() {
        return Decision::Allow(AllowedBy::Gate);
    }
    let shut = policies.block.restrict_public_buckets
        && policies.bucket.is_some_and(Policy::is_public)
        && !own;
    if shut {
        return Decision::Deny(DeniedBy::PublicAccessBlock);
    }
    let root = caller.is_root().then_some(AllowedBy::Root);
    let identity = root.or(identity.map(AllowedBy::Statement));
    let in_session = policies.session.is_empty() || session.is_some();
    if caller.tenant().is_none() {
        return match bucket {
            Some((statement, _)) => Decision::Allow(AllowedBy::Statement(statement)),
            None => Decision::Deny(DeniedBy::NoBucketPolicy),
        };
    }
    if !own {
        return match (identity, bucket) {
            (None, _) => Decision::Deny(DeniedBy::NoIdentityPolicy),
            (_, None) => Decision::Deny(DeniedBy::NoBucketPolicy),
            _ if !in_session => Decision::Deny(DeniedBy::NoSessionPolicy),
            (Some(_), Some((statement, _))) => Decision::Allow(AllowedBy::Statement(statement)),
        };
    }
    if let Some((statement, Naming::Session)) = bucket {
        return Decision::Allow(AllowedBy::Statement(statement));
    }
    // A bucket's policy that names a tenant leaves it to that tenant whom of its users to allow.
    let named = bucket.filter(|(_, naming)| *naming >= Naming::Direct);
    let named = named.map(|(statement, _)| AllowedBy::Statement(statement));
    match identity.or(named) {
        None => Decision::Deny(DeniedBy::NoIdentityPolicy),
        Some(_) if !in_session => Decision::Deny(DeniedBy::NoSessionPolicy),
        Some(by) => Decision::Allow(by),
    }
}

/// The first statement that allows; an error for one that denies.
pub(super) fn ask<'p>(
    policies: &'p [Arc<Policy>],
    source: fn(usize) -> Source,
    request: &Request<'_>,
) -> Result<Option<StatementRef<'p>>, StatementRef<'p>> {
    let mut allowed = None;
    for (at, policy) in policies.iter().enumerate() {
        let verdict = Verdict::of(&policy.statements, request);
        let refer = |number| StatementRef { source: source(at), number, sid: policy.sid(number) };
        if let Some(number) = verdict.deny {
            return Err(refer(number));
        }
        allowed = allowed.or(verdict.allow.map(|(number, _)| refer(number)));
    }
    Ok(allowed)
}

/// What the root of a bucket's owner can do whatever the bucket's policy says: else one `Deny`
/// too many could never be taken back.
fn mends_a_policy(action: Action) -> bool {
    matches!(action, Action::GetBucketPolicy | Action::PutBucketPolicy | Action::DeleteBucketPolicy)
}

impl fmt::Display for Decision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow(by) => write!(f, "allowed: {by}"),
            Self::Deny(by) => write!(f, "denied: {by}"),
        }
    }
}

impl fmt::Display for AllowedBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("the caller is the tenant's root"),
            Self::Statement(statement) => write!(f, "by {statement}"),
            Self::Gate => f.write_str("nothing denies it"),
        }
    }
}

impl fmt::Display for DeniedBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Statement(statement) => write!(f, "by {statement}"),
            Self::NoIdentityPolicy => f.write_str("no identity policy allows it"),
            Self::NoBucketPolicy => f.write_str("the bucket's policy does not allow it"),
            Self::NoTrustPolicy => f.write_str("the role's trust policy does not allow it"),
            Self::RootTakesNoRole => f.write_str("the root of a tenant takes no role"),
            Self::NoSessionPolicy => f.write_str("no session policy allows it"),
            Self::PublicAccessBlock => f.write_str(
                "the bucket's policy is public, and the public-access block keeps others out",
            ),
        }
    }
}

impl fmt::Display for StatementRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "statement {}", self.number + 1)?;
        if let Some(sid) = self.sid {
            write!(f, " ({sid})")?;
        }
        match self.source {
            Source::Identity(number) => write!(f, " of identity policy {}", number + 1),
            Source::Session(number) => write!(f, " of session policy {}", number + 1),
            Source::Bucket => f.write_str(" of the bucket's policy"),
            Source::Trust => f.write_str(" of the role's trust policy"),
        }
    }
}
