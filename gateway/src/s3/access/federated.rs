//! The question whether somebody may take a role for whom an issuer vouches.

use keyway_auth::oidc::{Issuer, Verified};
use keyway_auth::policy::{
    self, Action, Decision, DeniedBy, Key, Policy, Resource, Value, may_assume_with_web_identity,
};
use keyway_proto::TenantId;

use super::caller::Caller;
use super::denied;
use super::way::Way;
use crate::audit::Event;
use crate::s3::errors::Failure;

impl Caller {
    /// Asks whether a role may be taken, for a session of this name, by whom `by` names: with
    /// their issuer, and what it said of them. Where there is no such role, nobody trusts them.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub(in crate::s3) fn may_assume_with_web_identity(
        &self,
        resource: &Resource,
        owner: TenantId,
        trust: Option<&Policy>,
        session_name: &str,
        by: (&policy::Caller, &Issuer, &Verified),
    ) -> Result<(), Failure> {
        let (caller, issuer, verified) = by;
        let mut context = self.context.clone();
        Way::HTTP.tell(&mut context);
        context
            .set(Key::RoleSessionName, session_name.to_owned())
            .set(Key::FederatedProvider, caller.to_string());
        let one = |text: &str| vec![Value::from(text.to_owned())];
        let all = |texts: &[String]| texts.iter().cloned().map(Value::from).collect();
        context
            .set_claim(issuer.name(), "sub", one(&verified.subject))
            .set_claim(issuer.name(), "aud", one(&verified.audience))
            .set_claim(issuer.name(), "oaud", all(&verified.audiences))
            .set_claim(issuer.name(), "amr", all(&verified.methods));
        let (action, now) = (Action::AssumeRoleWithWebIdentity, self.now());
        let owner = Some(owner);
        let request = policy::Request { caller, action, resource, owner, now, context: &context };
        let decision = match trust {
            Some(trust) => may_assume_with_web_identity(&request, trust),
            None => Decision::Deny(DeniedBy::NoTrustPolicy),
        };
        let Decision::Deny(by) = decision else { return Ok(()) };
        self.audit.tell(Event::Denied {
            caller: caller.id().to_owned(),
            access_key: self.access_key(),
            action: action.name(),
            resource: resource.to_string(),
            reason: by.to_string(),
            request: self.request(),
        });
        Err(denied())
    }
}
