//! Temporary credentials, as AWS STS gives them: `POST /` with a form, signed for `sts`.
//!
//! | call | gives |
//! |---|---|
//! | `AssumeRole` | credentials that stand for a role, whose trust policy lets the caller take it |
//! | `AssumeRoleWithWebIdentity` | the same to whom an issuer vouches for, without a signature ([`web`]) |
//! | `GetSessionToken` | credentials that stand for the caller |
//! | `GetCallerIdentity` | who the caller is |
//!
//! They are on S3's own address: no operation of S3 is a POST to the root without a query.
//! The protocol layer verifies signatures, as everywhere, and its refusals are put into STS's
//! words on their way out ([`answer::translated`]).

mod answer;
mod form;
mod web;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Uri};
use http_body_util::{BodyExt, Limited};
use keyway_auth::directory::RoleRecord;
use keyway_auth::policy::{Action, Policy, Resource};
use keyway_auth::session::{Assumed, Issued, LINKS_MAX};
use keyway_auth::{Principal, SecretsError};
use keyway_proto::TenantId;
use s3s::{Body, S3Request, S3Response, S3Result};

use super::Core;
use super::access::{Caller, Gate, Seen, denied};
use super::errors::Failure;
use super::service::RequestId;
use super::signed;
use crate::accounts::Accounts;
use crate::audit::Event;
use crate::oidc::Issuers;
use crate::server::RequestInfo;
use answer::StsError;
use form::{Asked, AssumeRole, Call};

pub(super) use answer::{escaped, translated};

const FORM: &[u8] = b"application/x-www-form-urlencoded";
/// Largest form: a policy of the most characters, all of them escaped, and a token.
const FORM_BYTES_MAX: usize = 40 << 10;
/// Longest session of somebody who took the role in a session of another.
const CHAINED_S_MAX: u32 = 3600;
/// Longest session of a tenant's root.
const ROOT_S_MAX: u32 = 3600;

/// Whether a request is one of these calls.
pub(super) fn is_meant(method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    let is_form = |value: &HeaderValue| {
        let value = value.as_bytes();
        value.get(..FORM.len()).is_some_and(|start| start.eq_ignore_ascii_case(FORM))
    };
    *method == Method::POST
        && uri.path() == "/"
        && uri.query().unwrap_or_default().is_empty()
        && headers.get(CONTENT_TYPE).is_some_and(is_form)
}

/// Answers these calls.
pub(super) struct StsRoute {
    gate: Gate,
    core: Arc<Core>,
    /// None where the service was given keys and no accounts: nobody gets credentials there.
    accounts: Option<Arc<Accounts>>,
    issuers: Arc<Issuers>,
}

/// What was done, for the audit log.
#[derive(Default)]
struct Done {
    /// The role's ARN.
    role: Option<String>,
    session: Option<String>,
    /// The temporary access key that was made.
    issued: Option<String>,
}

impl StsRoute {
    pub(super) fn new(
        gate: Gate,
        core: Arc<Core>,
        accounts: Option<Arc<Accounts>>,
        issuers: Arc<Issuers>,
    ) -> Self {
        Self { gate, core, accounts, issuers }
    }

    pub(super) fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        let info = request.extensions.get::<RequestInfo>().cloned();
        let id = request.extensions.get::<RequestId>().cloned();
        let failed =
            |failure: Failure| failure.answer(&id.clone().unwrap_or_else(RequestId::generate));
        if let Some(info) = &info {
            info.set_operation("Sts");
        }
        let signed = request.credentials.is_some();
        if !signed && request.headers.contains_key(AUTHORIZATION) {
            return Err(answer::missing_token());
        }
        if signed && request.service.as_deref() != Some(signed::STS) {
            return Err(failed(denied()));
        }
        if signed && !signed::covers_body(&request.headers) {
            return Err(answer::unsigned_form());
        }
        let seen = Seen {
            credentials: request.credentials.as_ref(),
            method: &request.method,
            uri: &request.uri,
            headers: &request.headers,
            info: info.as_ref(),
            form: None,
        };
        if !signed {
            // Whether it brings a token, the form says.
            self.gate.admit_stranger(&seen, &mut request.extensions);
            return Ok(());
        }
        self.gate.admit_to_control(&seen, &mut request.extensions).map_err(failed)
    }

    /// Counts a request for a tenant that it names itself.
    fn count_request(&self, tenant: TenantId) -> Result<(), Failure> {
        let limits = self.core.credentials.terms(tenant).limits;
        Ok(self.core.limiter.usage(tenant, limits, None).request()?)
    }

    pub(super) async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let id = request.extensions.get::<RequestId>().cloned();
        let id = id.unwrap_or_else(RequestId::generate);
        let answered = match request.extensions.get::<Arc<Caller>>().cloned() {
            Some(caller) => self.answer(&caller, request, &id).await,
            None => Err(StsError::Denied("Access Denied".to_owned())),
        };
        match answered {
            Err(StsError::Unsigned) => Err(answer::missing_token()),
            Err(StsError::Limited(failure)) => Err(failure.answer(&id)),
            answered => Ok(answered.unwrap_or_else(|error| error.response(&id))),
        }
    }

    async fn answer(
        &self,
        caller: &Caller,
        request: S3Request<Body>,
        id: &RequestId,
    ) -> Result<S3Response<Body>, StsError> {
        let form = form(request.input).await?;
        let call = match Asked::read(&form) {
            Ok(Asked::WithToken(asked, token)) => {
                let taken = web::assume(self, caller, *asked, token.as_str()).await?;
                return Ok(answer::assumed_by_web_identity(&taken, id));
            }
            // The mistakes of strangers are told to them, and not written down.
            Err(error) if caller.principal.is_none() => return Err(error),
            Ok(_) if caller.principal.is_none() => return Err(StsError::Unsigned),
            Ok(Asked::Signed(call)) => Ok(call),
            Err(error) => Err(error),
        };
        let name = call.as_ref().map_or("unknown", Call::name);
        let mut done = Done::default();
        let answered = call.and_then(|call| self.done(caller, call, &mut done, id));
        // What policies denied is told where they were asked.
        if !matches!(&answered, Err(StsError::Denied(_))) {
            self.core.audit.tell(Event::Sts {
                caller: caller.name(),
                access_key: caller.access_key(),
                call: name,
                role: done.role,
                session: done.session,
                issued: done.issued,
                code: answered.as_ref().err().map(|error| error.told().1.to_owned()),
                request: caller.request(),
            });
        }
        answered
    }

    fn done(
        &self,
        caller: &Caller,
        call: Call,
        done: &mut Done,
        id: &RequestId,
    ) -> Result<S3Response<Body>, StsError> {
        let accounts = self.accounts.as_deref().ok_or(StsError::NoAccounts)?;
        let principal =
            caller.principal.as_ref().ok_or_else(|| refused(caller, call.name(), None))?;
        match call {
            Call::GetCallerIdentity => Ok(answer::caller_identity(principal, id)),
            Call::GetSessionToken { seconds } => {
                if principal.claims.is_some() {
                    return Err(StsError::SessionCredentials);
                }
                caller
                    .may_in_tenant(Action::GetSessionToken)
                    .map_err(|_| refused(caller, "GetSessionToken", None))?;
                let root = principal.identity.caller.is_root();
                let seconds = if root { seconds.min(ROOT_S_MAX) } else { seconds };
                let issued = issue(accounts, principal, None, seconds)?;
                done.issued = Some(issued.id.to_string());
                Ok(answer::session_token(&issued, id))
            }
            Call::AssumeRole(asked) => assume(accounts, caller, principal, *asked, done)
                .map(|assumed| answer::assumed_role(&assumed, id)),
        }
    }
}

/// A role that was taken.
struct Taken {
    issued: Issued,
    /// The session's `aws:userid`.
    id: String,
    /// The session's ARN.
    arn: String,
    /// How much of the room for a policy it takes, in percent.
    packed_percent: Option<usize>,
}

impl Taken {
    fn of(assumed: &Assumed, issued: Issued) -> Self {
        let Assumed { tenant, name, id, session, policy } = assumed;
        Self {
            issued,
            id: format!("{id}:{session}"),
            arn: format!("arn:aws:sts::{:012}:assumed-role/{name}/{session}", tenant.0),
            packed_percent: policy.as_ref().map(|text| form::percent_of_policy(text)),
        }
    }
}

/// Whether a role's sessions may last so long.
fn within_role(role: &RoleRecord, seconds: u32) -> Result<(), StsError> {
    if seconds <= role.session_max_s {
        return Ok(());
    }
    Err(StsError::Invalid(
        "The requested DurationSeconds exceeds the MaxSessionDuration set for this role."
            .to_owned(),
    ))
}

/// The session that is asked for.
fn session_of(role: &RoleRecord, asked: AssumeRole) -> Assumed {
    Assumed {
        tenant: role.tenant,
        name: role.name.clone(),
        id: role.id.clone(),
        session: asked.session,
        policy: asked.policy,
    }
}

fn assume(
    accounts: &Accounts,
    caller: &Caller,
    principal: &Principal,
    asked: AssumeRole,
    done: &mut Done,
) -> Result<Taken, StsError> {
    let resource = Resource::role(asked.tenant, asked.role.as_str());
    done.role = Some(resource.to_string());
    done.session = Some(asked.session.clone());
    let directory = accounts.directory();
    let role = directory.role(asked.tenant, &asked.role);
    let trust = role.map(|role| role.trust());
    caller
        .may_assume(&resource, asked.tenant, trust, &asked.session, asked.external_id.as_deref())
        .map_err(|_| refused(caller, "AssumeRole", Some(&resource)))?;
    // A role that nobody has is trusted by nobody: it was refused.
    let Some(role) = role else { return Err(refused(caller, "AssumeRole", Some(&resource))) };
    let record = &role.record;
    let chained = principal.identity.caller.is_session();
    within_role(record, asked.seconds)?;
    if chained && asked.seconds > CHAINED_S_MAX {
        return Err(StsError::Invalid(
            "The requested DurationSeconds exceeds the 1 hour session limit for roles assumed \
             by role chaining."
                .to_owned(),
        ));
    }
    if principal.claims.as_ref().is_some_and(|claims| claims.links().len() > LINKS_MAX) {
        return Err(StsError::Invalid(format!(
            "The caller has taken {LINKS_MAX} roles in sessions of others already."
        )));
    }
    if let Some(text) = &asked.policy {
        Policy::session(text)?;
    }
    let (seconds, assumed) = (asked.seconds, session_of(record, asked));
    let issued = issue(accounts, principal, Some(assumed.clone()), seconds)?;
    // What was made for a role that was suspended meanwhile opens nothing: that is asked then.
    done.issued = Some(issued.id.to_string());
    Ok(Taken::of(&assumed, issued))
}

fn issue(
    accounts: &Accounts,
    principal: &Principal,
    role: Option<Assumed>,
    seconds: u32,
) -> Result<Issued, StsError> {
    accounts.issue(principal, role, seconds).map_err(|error: SecretsError| {
        tracing::error!(%error, "temporary credentials cannot be made");
        StsError::Internal
    })
}

/// STS's words for who may not.
fn refused(caller: &Caller, call: &str, resource: Option<&Resource>) -> StsError {
    let on = resource.map(|resource| format!(" on resource: {resource}")).unwrap_or_default();
    let who = caller.name();
    StsError::Denied(format!("User: {who} is not authorized to perform: sts:{call}{on}"))
}

async fn form(body: Body) -> Result<Bytes, StsError> {
    match Limited::new(body, FORM_BYTES_MAX).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(StsError::Invalid("The form is too long.".to_owned()))
        }
        Err(_) => Err(StsError::BrokenForm),
    }
}
