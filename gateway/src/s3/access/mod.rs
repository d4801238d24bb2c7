//! Who asks, and whether they may.
//!
//! The protocol layer verifies signatures, that every `x-amz-*` header is signed, and the clock
//! skew. What is added here: who it is, the refusal of what it would ignore, and the question to
//! policies (docs/policies.md), before a body is read.
//!
//! | step | where |
//! |---|---|
//! | the access key, with its session token if it is temporary, becomes a [`Caller`], or nobody | [`Gate`] |
//! | the bucket that is named: whose, its policy, its public-access block | [`rules`] |
//! | what the request needs, and what it tells of itself | [`request`], [`context`] |
//! | the way that the bytes take, where an RDMA token is there | [`way`] |
//! | the answer, and later ones: for each key of a request that names several | [`caller`](mod@caller) |
//!
//! Every question is put before the operation begins, but for what only the document names: the
//! keys of DeleteObjects, the region of CreateBucket, and what control endpoints are asked for.
//!
//! Cost of a GET's: one look-up of the key, three reads of rows in redb's last snapshot (the bucket's,
//! which the operation goes on with, its policy's and its public-access block's), the context (about
//! a dozen values), one pass over the statements.
//! `cargo bench -p keyway-gateway --bench access` tells.

mod caller;
mod context;
mod federated;
mod query;
mod request;
mod rules;
mod way;

use std::borrow::Cow;
use std::sync::Arc;

use http::header::HOST;
use http::{Extensions, HeaderMap, HeaderName, Method, Uri};
use jiff::Timestamp;
use keyway_auth::directory::Standing;
use keyway_auth::policy::{Operation, Resource};
use keyway_auth::{CredentialStore, Principal, Unauthenticated};
use keyway_proto::TenantId;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{Credentials, S3Auth, SecretKey};
use s3s::path::S3Path;
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::errors::Failure;
use super::form::Signed;
use super::signed::SignedNames;
use super::{Core, resolve};
use crate::audit;
use crate::limits::Usage;
use crate::server::RequestInfo;
use request::Request;

pub(super) use caller::{Caller, hidden, unlisted};
pub(super) use request::{needs, object};
pub(super) use rules::RuleBook;
pub(super) use way::{SessionKind, Sessions};

const OWN_PREFIX: &str = "x-keyway-";
const OWNER: HeaderName = HeaderName::from_static("x-amz-expected-bucket-owner");
const SOURCE_OWNER: HeaderName = HeaderName::from_static("x-amz-source-expected-bucket-owner");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
/// The same in the query, as presigned URLs have it.
const TOKEN_PARAMETER: &str = "X-Amz-Security-Token";

/// Looks secrets up, for signatures to be verified with.
pub(super) struct Secrets(pub(super) Arc<dyn CredentialStore>);

#[async_trait::async_trait]
impl S3Auth for Secrets {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match self.0.secret(access_key) {
            Some(secret) => Ok(SecretKey::from(secret.expose())),
            None => Err(S3Error::new(S3ErrorCode::InvalidAccessKeyId)),
        }
    }
}

/// What is seen of a request before its body.
pub(super) struct Seen<'a> {
    pub(super) credentials: Option<&'a Credentials>,
    pub(super) method: &'a Method,
    pub(super) uri: &'a Uri,
    pub(super) headers: &'a HeaderMap,
    pub(super) info: Option<&'a RequestInfo>,
    /// The form that the request stands for.
    pub(super) form: Option<&'a Signed>,
}

/// Lets in who may do what they ask for, with their [`Caller`] in the request's extensions.
#[derive(Clone)]
pub(super) struct Gate {
    core: Arc<Core>,
}

impl Gate {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Lets a request in if its operation is allowed on what its path names.
    ///
    /// # Errors
    /// `AccessDenied`, whatever the reason: without a signature where the bucket's policy does not
    /// allow it to everybody, for a signature that leaves out what it must cover, and where
    /// policies deny. `InvalidToken` and `ExpiredToken` where a session token says so,
    /// `InvalidAccessKeyId` where whom a token names was cut off, and `SlowDown` for who has made
    /// as many requests as it may.
    pub(super) async fn admit(
        &self,
        operation: &'static str,
        path: &S3Path,
        seen: &Seen<'_>,
        extensions: &mut Extensions,
    ) -> Result<(), Failure> {
        let mut caller = self.caller(seen)?;
        let request = Request::of(operation, path, seen)?;
        if let Some(info) = seen.info {
            info.set_operation(operation);
        }
        caller.look_around(&self.core, &request).await?;
        context::add_request(&mut caller, &request, seen, &self.core.region)?;
        caller.take_way(&self.core, &request);
        let admitted = caller.admit(&request);
        extensions.insert(Arc::new(caller));
        admitted
    }

    /// Lets somebody with a key in, to a control endpoint: which asks for itself.
    ///
    /// # Errors
    /// `AccessDenied` without a signature.
    pub(super) fn admit_to_control(
        &self,
        seen: &Seen<'_>,
        extensions: &mut Extensions,
    ) -> Result<(), Failure> {
        let mut caller = self.caller(seen)?;
        if caller.principal.is_none() {
            return Err(denied());
        }
        context::add_surroundings(&mut caller, seen, &self.core.region);
        if let Some(token) = way::token_of(seen.headers) {
            caller.ways = self.core.sessions.ways(token);
        }
        extensions.insert(Arc::new(caller));
        Ok(())
    }

    /// Lets a request in without a signature that brings another claim, to be verified by whoever
    /// answers it. It counts for no tenant yet.
    pub(super) fn admit_stranger(&self, seen: &Seen<'_>, extensions: &mut Extensions) {
        let tenant = self.core.public_tenant;
        let audit = self.core.audit.clone();
        let (now, request) = (self.now(), told_of(seen));
        let mut caller = Caller::new(None, tenant, tenant, now, audit, request);
        context::add_surroundings(&mut caller, seen, &self.core.region);
        extensions.insert(Arc::new(caller));
    }

    fn now(&self) -> Timestamp {
        let now = i64::try_from(self.core.clock.now().0).unwrap_or(i64::MAX);
        Timestamp::from_millisecond(now).unwrap_or(Timestamp::MAX)
    }

    /// Who asks.
    fn caller(&self, seen: &Seen<'_>) -> Result<Caller, Failure> {
        let token = match seen.form {
            Some(form) => form.token().map(Cow::Borrowed),
            None => session_token(seen.headers, seen.uri.query().unwrap_or_default())?,
        };
        let principal = match seen.credentials {
            // A token without a signature says nothing, and whoever sends one means something.
            None if token.is_some() => return Err(unauthenticated(Unauthenticated::InvalidToken)),
            None => None,
            Some(credentials) => Some(self.principal(credentials, token.as_deref(), seen)?),
        };
        if let (Some(info), Some(principal)) = (seen.info, &principal) {
            info.set_access_key(principal.access_key.clone());
        }
        let own = principal.as_ref().map_or(self.core.public_tenant, |principal| principal.tenant);
        let tenant = namespace(seen.headers, &OWNER, own)?;
        let source_tenant = namespace(seen.headers, &SOURCE_OWNER, own)?;
        for tenant in [tenant, source_tenant] {
            // The caller's own was looked at with its key.
            if self.core.credentials.terms(tenant).standing == Standing::Suspended {
                return Err(denied());
            }
        }
        let (now, request) = (self.now(), told_of(seen));
        let audit = self.core.audit.clone();
        let mut caller = Caller::new(principal, tenant, source_tenant, now, audit, request);
        caller.usage = self.usage(&caller);
        caller.usage.request()?;
        Ok(caller)
    }

    /// What the caller may take; of nobody's, what the owner of the bucket may.
    fn usage(&self, caller: &Caller) -> Usage {
        let principal = caller.principal.as_ref();
        let user = principal
            .filter(|principal| principal.identity.limits.are_of_use())
            .map(|principal| (&principal.user, principal.identity.limits));
        let account = caller.account();
        self.core.limiter.usage(account, self.core.credentials.terms(account).limits, user)
    }

    fn principal(
        &self,
        credentials: &Credentials,
        token: Option<&str>,
        seen: &Seen<'_>,
    ) -> Result<Principal, Failure> {
        let principal = self.core.credentials.principal(&credentials.access_key, token);
        let principal = principal.map_err(unauthenticated)?;
        // A form's policy covers all of its fields, and they are all that there is.
        if seen.form.is_none() && !covers_what_it_must(seen.headers, seen.uri) {
            return Err(Failure::refuse(
                S3ErrorCode::AccessDenied,
                "There were headers present in the request which were not signed",
            ));
        }
        self.core.credentials.used(&credentials.access_key);
        Ok(principal)
    }
}

#[async_trait::async_trait]
impl S3Access for Gate {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        let info = cx.extensions_mut().get::<RequestInfo>().cloned();
        let id = cx.extensions_mut().get::<super::RequestId>().cloned();
        let mut left = Extensions::new();
        let form = cx.extensions_mut().get::<Signed>().cloned();
        let seen = Seen {
            credentials: match &form {
                Some(form) => form.credentials.as_ref(),
                None => cx.credentials(),
            },
            method: cx.method(),
            uri: cx.uri(),
            headers: cx.headers(),
            info: info.as_ref(),
            form: form.as_ref(),
        };
        // One that the table does not have is one that no policy can speak of.
        let operation = Operation::find(cx.s3_op().name()).map_or("other", Operation::name);
        let admitted = self.admit(operation, cx.s3_path(), &seen, &mut left).await;
        cx.extensions_mut().extend(left);
        admitted.map_err(|failure| failure.answer(&id.unwrap_or_else(super::RequestId::generate)))
    }
}

/// What the audit log tells of a request.
fn told_of(seen: &Seen<'_>) -> audit::Request {
    audit::Request {
        request_id: seen.info.map(|info| info.id().to_string()),
        remote: seen.info.map(|info| info.remote().to_string()),
    }
}

/// The answer to whoever may not.
pub(super) fn denied() -> Failure {
    Failure::refuse(S3ErrorCode::AccessDenied, "Access Denied")
}

/// Whoever is not let in, in S3's words. A key that went away since its signature was verified
/// is one that is not there.
fn unauthenticated(why: Unauthenticated) -> Failure {
    Failure::code(match why {
        Unauthenticated::InvalidToken => S3ErrorCode::InvalidToken,
        Unauthenticated::ExpiredToken => S3ErrorCode::ExpiredToken,
        _ => S3ErrorCode::InvalidAccessKeyId,
    })
}

/// The session token that came with a request, in a header or in the query: the signature covers
/// both.
///
/// # Errors
/// `InvalidToken` for more than one, and for one that is no text.
pub(super) fn session_token<'a>(
    headers: &'a HeaderMap,
    query: &'a str,
) -> Result<Option<Cow<'a, str>>, Failure> {
    let invalid = || unauthenticated(Unauthenticated::InvalidToken);
    let mut values = headers.get_all(TOKEN).into_iter();
    let by_header = values.next();
    if values.next().is_some() {
        return Err(invalid());
    }
    let by_query = query::parameter(query, TOKEN_PARAMETER).map_err(|_| invalid())?;
    match (by_header, by_query) {
        (Some(_), Some(_)) => Err(invalid()),
        (Some(value), None) => Ok(Some(value.to_str().map_err(|_| invalid())?.into())),
        (None, by_query) => Ok(by_query),
    }
}

/// The tenant whose buckets are meant: the one that the header names, or else `own`.
///
/// # Errors
/// `AccessDenied` for a header that names no tenant, or is there twice.
fn namespace(headers: &HeaderMap, header: &HeaderName, own: TenantId) -> Result<TenantId, Failure> {
    let mut values = headers.get_all(header).into_iter();
    let Some(value) = values.next() else { return Ok(own) };
    let named = value.to_str().ok().and_then(resolve::tenant_of);
    named.filter(|_| values.next().is_none()).ok_or_else(denied)
}

/// Whether the signature covers the host, without which it would hold for every other server
/// that knows the key, and every `x-keyway-*` header: the protocol layer sees to `x-amz-*`
/// alone, and ours change what a request means just as well.
fn covers_what_it_must(headers: &HeaderMap, uri: &Uri) -> bool {
    let Some(signed) = SignedNames::of(headers, uri.query().unwrap_or_default()) else {
        return false;
    };
    let mut ours = headers.keys().filter(|name| name.as_str().starts_with(OWN_PREFIX));
    signed.contains(&HOST) && ours.all(|name| signed.contains(name))
}

/// The caller that [`Gate`] left with the request.
///
/// # Errors
/// `AccessDenied` when there is none.
pub(super) fn caller(extensions: &Extensions) -> Result<&Caller, Failure> {
    extensions.get::<Arc<Caller>>().map(|caller| &**caller).ok_or_else(denied)
}

/// The resource that a path names.
fn resource(path: &S3Path) -> Resource {
    match path {
        S3Path::Root => Resource::account(),
        S3Path::Bucket { bucket } => Resource::bucket(bucket),
        S3Path::Object { bucket, key } => Resource::object(bucket, key),
    }
}
