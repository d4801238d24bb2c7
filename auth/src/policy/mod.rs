//! Policies: who may do what to which resource, in IAM's language.
//!
//! A [`Policy`] is read once, strictly, and kept in the form that it is asked in: actions as a
//! set of bits, resources as patterns that never go back, condition values as addresses, times
//! and numbers. [`evaluate`] asks all policies that have a say about a [`Request`] and tells
//! the [`Decision`] with the statement that made it. docs/policies.md has the rules,
//! docs/policy-reference.md what may be named; the latter is [`reference`]'s output.
//!
//! Whoever serves a request asks once for each [`Need`] of its [`Operation`], with the resource
//! that the need is [`On`], and serves it if all are allowed. The context is told as
//! docs/policy-reference.md lists the keys: one that is left out is absent to conditions. The
//! decision's text is for logs and tools; a caller is told that access is denied.
//!
//! What may not enter: look-ups, clocks, HTTP. The request's time and the tags of what is
//! stored are told; [`Policy::asks_for`] says whether a look-up for tags is worth it.
//!
//! Cost of a question: one pass over the statements, a bit test for those of other actions;
//! no allocation unless a variable or a value of another type must become text.
//! `cargo bench -p keyway-auth --bench policy` tells.

mod acl;
mod action;
mod condition;
mod error;
mod evaluate;
mod json;
mod key;
mod operation;
mod operator;
mod parse;
mod pattern;
mod principal;
mod public;
mod reference;
mod resource;
mod statement;
mod trust;
mod value;

use std::fmt;

use keyway_proto::BucketName;

pub use acl::{AclError, AclRequest, CannedAcl, Grant, Grantee, Permission};
pub use action::{Action, ActionSet, Level};
pub use error::{Flaw, Place, PolicyError};
pub use evaluate::{
    AllowedBy, Decision, DeniedBy, Policies, Request, Source, StatementRef, evaluate,
};
pub use key::{Key, KeyRef, KeyType, TagKey};
pub use operation::{Need, On, Operation, Traits};
pub use principal::{Caller, PrincipalRef};
pub use public::PublicAccessBlock;
pub use reference::reference;
pub use resource::Resource;
pub use trust::{may_assume, may_assume_with_web_identity};
pub use value::{Context, UnknownKey, Value};

/// Most bytes of a bucket policy.
pub const BUCKET_POLICY_BYTES_MAX: usize = 20_480;
/// Most characters of an identity policy, white space not counted.
pub const IDENTITY_POLICY_CHARACTERS_MAX: usize = 6_144;
/// Most characters of a session policy, white space not counted.
pub const SESSION_POLICY_CHARACTERS_MAX: usize = 2_048;
/// Most characters of a role's trust policy, white space not counted.
pub const TRUST_POLICY_CHARACTERS_MAX: usize = 4_096;

/// A policy that was found well-formed.
#[derive(Clone)]
pub struct Policy {
    text: Box<str>,
    statements: Vec<statement::Statement>,
    public: bool,
    /// A bit for each family of tag keys that a condition or a variable names.
    tags: u8,
}

/// Whose policy it is, which decides what may stand in it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Identity,
    Session,
    Trust,
    Bucket(BucketName),
}

impl Kind {
    const fn limit(&self) -> usize {
        match self {
            Self::Identity => IDENTITY_POLICY_CHARACTERS_MAX,
            Self::Session => SESSION_POLICY_CHARACTERS_MAX,
            Self::Trust => TRUST_POLICY_CHARACTERS_MAX,
            Self::Bucket(_) => BUCKET_POLICY_BYTES_MAX,
        }
    }

    /// Whether it belongs to something, and says to whom it is open.
    const fn names_principals(&self) -> bool {
        matches!(self, Self::Trust | Self::Bucket(_))
    }
}

impl Policy {
    /// A user's, group's or role's policy.
    ///
    /// # Errors
    /// When it is malformed; where and how.
    pub fn identity(text: &str) -> Result<Self, PolicyError> {
        Self::read(text, &Kind::Identity)
    }

    /// A policy that bounds what a session may do.
    ///
    /// # Errors
    /// When it is malformed; where and how.
    pub fn session(text: &str) -> Result<Self, PolicyError> {
        Self::read(text, &Kind::Session)
    }

    /// A policy that says who may take a role.
    ///
    /// # Errors
    /// When it is malformed, or is about anything else; where and how.
    pub fn trust(text: &str) -> Result<Self, PolicyError> {
        Self::read(text, &Kind::Trust)
    }

    /// A bucket's policy.
    ///
    /// # Errors
    /// When it is malformed, names actions or keys that do not exist, or resources that are
    /// not in this bucket; where and how.
    pub fn bucket(text: &str, bucket: &BucketName) -> Result<Self, PolicyError> {
        Self::read(text, &Kind::Bucket(bucket.clone()))
    }

    fn read(text: &str, kind: &Kind) -> Result<Self, PolicyError> {
        let statements = parse::statements(text, kind)?;
        let mut tags = 0;
        for statement in &statements {
            let of_conditions = statement.conditions.iter().flat_map(condition::Condition::keys);
            let patterns = statement.resources.patterns();
            let of_resources = patterns.iter().flat_map(resource::ResourcePattern::keys);
            for key in of_conditions.chain(of_resources) {
                if let KeyRef::Tag(family, _) = key {
                    tags |= 1 << (*family as u8);
                }
            }
        }
        let public = statements.iter().any(statement::Statement::is_public);
        Ok(Self { text: text.into(), statements, public, tags })
    }

    /// The text, as it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a bucket policy allows something to the public, as S3 means it: to everybody,
    /// without a condition that says from where or who.
    pub fn is_public(&self) -> bool {
        self.public
    }

    /// Whether tags of this family can decide something.
    pub fn asks_for(&self, family: TagKey) -> bool {
        self.tags >> (family as u8) & 1 == 1
    }

    /// Everybody whom a bucket policy names, for whoever can tell whether they exist.
    pub fn principals(&self) -> impl Iterator<Item = &PrincipalRef> {
        self.statements.iter().flat_map(|statement| statement.principals.named())
    }

    fn sid(&self, number: usize) -> Option<&str> {
        self.statements.get(number)?.sid.as_deref().filter(|sid| !sid.is_empty())
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Policy").field(&self.text).finish()
    }
}
