//! A statement, ready to be asked.

use super::action::ActionSet;
use super::condition::Condition;
use super::evaluate::Request;
use super::principal::{Naming, PrincipalRef, Principals};
use super::resource::ResourcePattern;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Allow,
    Deny,
}

/// The element `Resource` or `NotResource`.
#[derive(Debug, Clone)]
pub(super) enum Resources {
    These(Vec<ResourcePattern>),
    AllBut(Vec<ResourcePattern>),
}

impl Resources {
    fn concern(&self, request: &Request<'_>) -> bool {
        match self {
            Self::These(patterns) => patterns.iter().any(|pattern| pattern.matches(request)),
            Self::AllBut(patterns) => !patterns.iter().any(|pattern| pattern.matches(request)),
        }
    }

    pub(super) fn patterns(&self) -> &[ResourcePattern] {
        match self {
            Self::These(patterns) | Self::AllBut(patterns) => patterns,
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Statement {
    pub(super) sid: Option<String>,
    pub(super) effect: Effect,
    pub(super) principals: Principals,
    pub(super) actions: ActionSet,
    pub(super) resources: Resources,
    pub(super) conditions: Vec<Condition>,
}

/// What a policy's statements say to a request. Numbers count statements from 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The first that denies.
    pub(super) deny: Option<usize>,
    /// The first of those that allow by the strongest naming.
    pub(super) allow: Option<(usize, Naming)>,
}

impl Verdict {
    /// Asks the statements in their order; the first `Deny` ends it.
    pub(super) fn of(statements: &[Statement], request: &Request<'_>) -> Self {
        let mut verdict = Self::default();
        for (number, statement) in statements.iter().enumerate() {
            // The cheapest question first: most statements are about other actions.
            if !statement.actions.contains(request.action) {
                continue;
            }
            match statement.effect {
                Effect::Deny => {
                    if statement.principals.denies(request.caller) && statement.concerns(request) {
                        return Self { deny: Some(number), ..verdict };
                    }
                }
                Effect::Allow => {
                    let naming = statement.principals.naming(request.caller);
                    let Some(naming) = naming else { continue };
                    let stronger = verdict.allow.is_none_or(|(_, known)| naming > known);
                    if stronger && statement.concerns(request) {
                        verdict.allow = Some((number, naming));
                    }
                }
            }
        }
        verdict
    }
}

impl Statement {
    fn concerns(&self, request: &Request<'_>) -> bool {
        self.resources.concern(request)
            && self.conditions.iter().all(|condition| condition.holds(request))
    }

    /// Whether it allows something to anybody.
    pub(super) fn is_public(&self) -> bool {
        self.effect == Effect::Allow
            && self.principals.named().contains(&PrincipalRef::Everybody)
            && !self.conditions.iter().any(Condition::fixes_the_caller)
    }
}
