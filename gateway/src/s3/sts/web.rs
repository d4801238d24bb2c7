//! `AssumeRoleWithWebIdentity`: a role for somebody for whom an issuer vouches.
//!
//! The request needs no signature: the token that it brings is the claim. So nothing is looked up for
//! it but the provider until the token was verified; what fails before that counts for the
//! limits of strangers, and what comes after it for the tenant of the role.

use keyway_auth::SecretsError;
use keyway_auth::directory::Provider;
use keyway_auth::oidc::{Expected, InvalidToken, Token, Verified};
use keyway_auth::policy::{self, Policy, Resource};
use keyway_auth::session::WebIdentity;

use super::answer::StsError;
use super::form::AssumeRole;
use super::{StsRoute, Taken, session_of, within_role};
use crate::accounts::Accounts;
use crate::audit::Event;
use crate::s3::access::Caller;
use crate::s3::errors::Failure;

const CALL: &str = "AssumeRoleWithWebIdentity";

/// A role that was taken, and by whom.
pub(super) struct TakenByWeb {
    pub(super) taken: Taken,
    pub(super) subject: String,
    pub(super) audience: String,
    pub(super) issuer: String,
}

/// Takes a role with a token.
pub(super) async fn assume(
    route: &StsRoute,
    caller: &Caller,
    asked: AssumeRole,
    token: &str,
) -> Result<TakenByWeb, StsError> {
    let accounts = route.accounts.as_deref().ok_or(StsError::NoAccounts)?;
    let token = Token::read(token)?;
    let directory = accounts.directory();
    let provider = directory.provider_of(asked.tenant, token.issuer());
    let provider = provider.ok_or(StsError::NoProvider)?;
    let keys = route.issuers.keys(provider, &token).await?;
    let verified = token.verify(
        keys.set(),
        &Expected {
            issuer: &provider.issuer,
            audiences: &provider.audiences,
            now: accounts.now(),
            skew_s: route.issuers.clock_skew_s(),
        },
    )?;
    let identity = policy::Caller::federated(
        provider.tenant,
        &provider.issuer,
        &verified.audience,
        &verified.subject,
    );
    let (name, tenant) = (identity.id().to_owned(), asked.tenant);
    route.count_request(tenant).map_err(|failure| StsError::Limited(Box::new(failure)))?;
    let resource = Resource::role(tenant, asked.role.as_str());
    let session = asked.session.clone();
    let taken = take(accounts, caller, asked, &Vouched { provider, verified: &verified, identity });
    // What policies denied is told where they were asked.
    if !matches!(&taken, Err(StsError::Denied(_))) {
        route.core.audit.tell(Event::Sts {
            caller: name,
            access_key: caller.access_key(),
            call: CALL,
            role: Some(resource.to_string()),
            session: Some(session),
            issued: taken.as_ref().ok().map(|taken| taken.issued.id.to_string()),
            code: taken.as_ref().err().map(|error| error.told().1.to_owned()),
            request: caller.request(),
        });
    }
    let Verified { subject, audience, .. } = verified;
    Ok(TakenByWeb { taken: taken?, subject, audience, issuer: provider.issuer.to_string() })
}

/// Somebody who was verified.
struct Vouched<'a> {
    provider: &'a Provider,
    verified: &'a Verified,
    identity: policy::Caller,
}

fn take(
    accounts: &Accounts,
    caller: &Caller,
    asked: AssumeRole,
    vouched: &Vouched<'_>,
) -> Result<Taken, StsError> {
    let refused = || StsError::Denied(format!("Not authorized to perform sts:{CALL}"));
    let resource = Resource::role(asked.tenant, asked.role.as_str());
    // As it is now: the issuer may have taken its time, and the provider may be gone.
    let directory = accounts.directory();
    let (provider, verified) = (vouched.provider, vouched.verified);
    let known = directory.provider_of(provider.tenant, provider.issuer.as_str());
    if known.is_none_or(|known| known.id != provider.id) {
        return Err(StsError::NoProvider);
    }
    let role = directory.role(asked.tenant, &asked.role);
    let trust = role.map(|role| role.trust());
    let (issuer, session) = (&provider.issuer, &asked.session);
    let by = (&vouched.identity, issuer, verified);
    caller
        .may_assume_with_web_identity(&resource, asked.tenant, trust, session, by)
        .map_err(|_: Failure| refused())?;
    // A role that nobody has is trusted by nobody: it was refused.
    let record = &role.ok_or_else(refused)?.record;
    within_role(record, asked.seconds)?;
    if let Some(text) = &asked.policy {
        Policy::session(text)?;
    }
    let web = WebIdentity {
        tenant: provider.tenant,
        provider: provider.name.clone(),
        id: provider.id.clone(),
        subject: verified.subject.clone(),
        audience: verified.audience.clone(),
    };
    let (seconds, assumed) = (asked.seconds, session_of(record, asked));
    let issued = accounts.issue_to_web_identity(web, assumed.clone(), seconds);
    let issued = issued.map_err(|error: SecretsError| {
        tracing::error!(%error, "temporary credentials cannot be made");
        StsError::Internal
    })?;
    Ok(Taken::of(&assumed, issued))
}

/// A token that is refused, in STS's words.
impl From<InvalidToken> for StsError {
    fn from(error: InvalidToken) -> Self {
        match error {
            InvalidToken::Expired => Self::ExpiredIdentity,
            error => Self::Identity(error),
        }
    }
}
