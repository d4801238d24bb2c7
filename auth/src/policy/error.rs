//! What is wrong with a policy, and where.

use std::fmt;

/// Why a policy was refused. S3's answer to it is `MalformedPolicy`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}{flaw}")]
pub struct PolicyError {
    /// Where the flaw is.
    pub place: Place,
    /// What it is.
    pub flaw: Flaw,
}

impl PolicyError {
    /// S3's error code for every flaw of a policy document.
    pub const CODE: &'static str = "MalformedPolicy";
}

/// A place in a policy document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The statement, counted from 1; none for the document's own elements.
    pub statement: Option<usize>,
    /// Its `Sid`, where it has one.
    pub sid: Option<String>,
    /// The element, such as `Action`.
    pub element: Option<&'static str>,
}

impl Place {
    /// The document itself.
    pub(super) const DOCUMENT: Self = Self { statement: None, sid: None, element: None };

    /// The same place, at this element.
    pub(super) fn at(&self, element: &'static str) -> Self {
        Self { element: Some(element), ..self.clone() }
    }

    /// The error that this place has this flaw.
    pub(super) fn error(&self, flaw: Flaw) -> PolicyError {
        PolicyError { place: self.clone(), flaw }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.statement, &self.sid) {
            (Some(number), Some(sid)) => write!(f, "statement {number} ({sid})")?,
            (Some(number), None) => write!(f, "statement {number}")?,
            (None, _) => f.write_str("the policy")?,
        }
        match self.element {
            Some(element) => write!(f, ", {element}: "),
            None => f.write_str(": "),
        }
    }
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// More text than a policy of this kind may have.
    #[error("{length} characters, where {limit} are the limit")]
    TooLong {
        /// Characters (of a bucket policy: bytes) that it has.
        length: usize,
        /// Characters that it may have.
        limit: usize,
    },
    /// Not JSON.
    #[error("not valid JSON: {0}")]
    Json(String),
    /// An element of another type than the grammar has it.
    #[error("it must be {0}")]
    Type(&'static str),
    /// The same element twice.
    #[error("{0:?} stands there twice")]
    Duplicate(String),
    /// An element that the grammar does not know.
    #[error("unknown element {0:?}")]
    UnknownElement(String),
    /// An element that must be there is not.
    #[error("it is missing")]
    Missing,
    /// An element that must hold something is empty.
    #[error("it is empty")]
    Empty,
    /// Both an element and its negation, or neither.
    #[error("exactly one of {0} and Not{0} must be there")]
    OneOf(&'static str),
    /// A version of the language that is none.
    #[error("{0:?} is no version: 2012-10-17 or 2008-10-17")]
    Version(String),
    /// Neither `Allow` nor `Deny`.
    #[error("{0:?} is neither Allow nor Deny")]
    Effect(String),
    /// A statement id with characters that an identity policy's may not have.
    #[error("{0:?} may hold only letters and digits")]
    Sid(String),
    /// Not of the form `service:Name`.
    #[error("{0:?} is not of the form service:Name")]
    Action(String),
    /// An action that does not exist, in a policy whose actions must.
    #[error("no action is called {0:?}")]
    UnknownAction(String),
    /// An action, none of the statement's resources is of its kind.
    #[error("{0:?} applies to none of the statement's resources")]
    Inapplicable(String),
    /// An action that a role's trust policy cannot be about.
    #[error(
        "a trust policy says who may do sts:AssumeRole and sts:AssumeRoleWithWebIdentity, and not {0:?}"
    )]
    NotOfRoles(String),
    /// Not a resource's name.
    #[error("{0:?} is not * and not an ARN")]
    Resource(String),
    /// A resource that does not lie in the policy's bucket.
    #[error("{0:?} does not lie in this bucket")]
    OtherBucket(String),
    /// A principal in a policy that belongs to one.
    #[error("only the policies of buckets and roles name principals")]
    NamesPrincipal,
    /// `NotPrincipal` in an `Allow`.
    #[error("NotPrincipal is for Deny only")]
    NotPrincipalAllows,
    /// A principal that is not well-formed.
    #[error(
        "{0:?} is no principal: *, an account, or the ARN of a user, role, session or provider"
    )]
    Principal(String),
    /// A kind of principal that Keyway does not have.
    #[error(
        "there are no principals of the kind {0:?} here: AWS, CanonicalUser and, in a trust policy, Federated are there"
    )]
    PrincipalKind(String),
    /// A condition operator that does not exist.
    #[error("no condition operator is called {0:?}")]
    Operator(String),
    /// A condition key that does not exist.
    #[error("no condition key is called {0:?}")]
    Key(String),
    /// A condition key in a statement, none of whose actions has it.
    #[error("the key {0:?} applies to none of the statement's actions")]
    InapplicableKey(String),
    /// A value that the operator cannot compare with.
    #[error("{value:?} is not {expected}")]
    Value {
        /// The value.
        value: String,
        /// What the operator compares with.
        expected: &'static str,
    },
    /// A policy variable that is not well-formed or names no single-valued key.
    #[error("{0:?} is no policy variable")]
    Variable(String),
}
