//! One question with its policies, as both evaluators are asked it.

use std::sync::Arc;

use jiff::Timestamp;
use keyway_auth::policy::{
    Action, AllowedBy, Caller, Context, Decision, DeniedBy, Policies, Policy, PolicyError,
    PublicAccessBlock, Request, Resource, evaluate,
};
use keyway_proto::TenantId;

use crate::naive;

/// The bucket of all questions; tenant 1 owns it.
pub(crate) const BUCKET: &str = "photos";
pub(crate) const OWNER: u64 = 1;
/// When all questions are asked.
pub(crate) const NOW: &str = "2024-06-01T12:00:00Z";

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Who {
    Anonymous,
    Root(u64),
    User(u64, String),
    Session(u64, String, String),
}

impl Who {
    /// Reads `nobody`, `root`, `anna`, `role/session`, each with `@2` for tenant 2.
    pub(crate) fn parse(text: &str) -> Self {
        let (name, tenant) = text.split_once('@').unwrap_or((text, "1"));
        let tenant = tenant.parse().unwrap();
        match (name, name.split_once('/')) {
            ("nobody", _) => Self::Anonymous,
            ("root", _) => Self::Root(tenant),
            (_, Some(("user", path))) => Self::User(tenant, path.to_owned()),
            (_, Some((role, session))) => Self::Session(tenant, role.into(), session.into()),
            (name, None) => Self::User(tenant, name.to_owned()),
        }
    }

    fn caller(&self) -> Caller {
        match self {
            Self::Anonymous => Caller::anonymous(),
            Self::Root(tenant) => Caller::root(TenantId(*tenant)),
            Self::User(tenant, path) => Caller::user(TenantId(*tenant), path, "AIDA1"),
            Self::Session(tenant, role, name) => {
                Caller::session(TenantId(*tenant), role, name, "AROA1")
            }
        }
    }
}

/// A question.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) who: Who,
    pub(crate) action: String,
    /// `*`, `bucket` or `bucket/key`.
    pub(crate) resource: String,
    pub(crate) context: Vec<(String, String)>,
}

/// The policies' documents.
#[derive(Debug, Clone, Default)]
pub(crate) struct Documents {
    pub(crate) identity: Vec<String>,
    pub(crate) session: Vec<String>,
    pub(crate) bucket: Option<String>,
    pub(crate) restrict: bool,
}

/// What is decided, and by what, in a word or two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) outcome: naive::Outcome,
    pub(crate) by: String,
}

pub(crate) struct Parsed {
    identity: Vec<Arc<Policy>>,
    session: Vec<Arc<Policy>>,
    bucket: Option<Policy>,
    restrict: bool,
}

impl Documents {
    pub(crate) fn parse(&self) -> Result<Parsed, PolicyError> {
        let all = |texts: &[String], read: fn(&str) -> Result<Policy, PolicyError>| {
            texts.iter().map(|text| read(text).map(Arc::new)).collect::<Result<Vec<_>, _>>()
        };
        let bucket = |text: &String| Policy::bucket(text, &BUCKET.parse().unwrap());
        Ok(Parsed {
            identity: all(&self.identity, Policy::identity)?,
            session: all(&self.session, Policy::session)?,
            bucket: self.bucket.as_ref().map(bucket).transpose()?,
            restrict: self.restrict,
        })
    }

    pub(crate) fn ask_naive(&self, question: &Question) -> naive::Outcome {
        naive::evaluate(self, question)
    }
}

impl Parsed {
    pub(crate) fn ask(&self, question: &Question) -> Answer {
        let mut context = Context::new();
        for (key, value) in &question.context {
            context.add_named(key, value.clone()).unwrap();
        }
        let caller = question.who.caller();
        let resource = match question.resource.as_str() {
            "*" => Resource::account(),
            name => Resource::parse(name).unwrap(),
        };
        let request = Request {
            caller: &caller,
            action: Action::find(&question.action)
                .unwrap_or_else(|| panic!("there is no action {}", question.action)),
            resource: &resource,
            owner: (question.resource != "*").then_some(TenantId(OWNER)),
            now: NOW.parse::<Timestamp>().unwrap(),
            context: &context,
        };
        let policies = Policies {
            identity: &self.identity,
            session: &self.session,
            bucket: self.bucket.as_ref().filter(|_| question.resource != "*"),
            block: PublicAccessBlock {
                restrict_public_buckets: self.restrict,
                ..PublicAccessBlock::default()
            },
        };
        let decision = evaluate(&request, &policies);
        let (outcome, by) = match decision {
            Decision::Allow(AllowedBy::Root) => (naive::Outcome::Allow, "root"),
            Decision::Allow(AllowedBy::Gate) => (naive::Outcome::Allow, "gate"),
            Decision::Allow(AllowedBy::Statement(by)) => {
                (naive::Outcome::Allow, by.sid.unwrap_or_default())
            }
            Decision::Deny(DeniedBy::Statement(by)) => {
                (naive::Outcome::Explicit, by.sid.unwrap_or_default())
            }
            Decision::Deny(DeniedBy::NoIdentityPolicy) => (naive::Outcome::Implicit, "identity"),
            Decision::Deny(DeniedBy::NoBucketPolicy) => (naive::Outcome::Implicit, "bucket"),
            Decision::Deny(DeniedBy::NoSessionPolicy) => (naive::Outcome::Implicit, "session"),
            Decision::Deny(DeniedBy::PublicAccessBlock) => (naive::Outcome::Implicit, "block"),
            other => panic!("an answer without a word: {other:?}"),
        };
        Answer { outcome, by: by.to_owned() }
    }
}
