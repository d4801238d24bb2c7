//! What is answered past the protocol layer's own routing, but behind its signatures: reads
//! that it would refuse, the control endpoints, and the calls for temporary credentials.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE};
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Uri};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use keyway_auth::policy::Action;
use keyway_dataplane::node::BodyError;
use keyway_dataplane::{SessionError, TransferError};
use keyway_proto::ranges::RANGES_DOCUMENT_BYTES_MAX;
use keyway_proto::{SessionOwner, SessionSelector};
use s3s::route::S3Route;
use s3s::{Body, S3ErrorCode, S3Request, S3Response, S3Result};

use super::Core;
use super::access::{Caller, Gate, Seen, SessionKind, denied};
use super::durability;
use super::errors::Failure;
use super::gather;
use super::lenient::LenientReads;
use super::prefetch;
use super::service::RequestId;
use super::signed;
use super::sts::{self, StsRoute};
use crate::audit::Event;
use crate::control::admin::{
    ADMIN_DOCUMENT_BYTES_MAX, AdminAnswer, AdminCall, AdminError, Administration, Verb,
};
use crate::control::{self, Call, Control, DOCUMENT_BYTES_MAX};
use crate::limits::Opening;
use crate::server::RequestInfo;

const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
/// Sessions that a change of the administration closed.
const SESSIONS_CLOSED: HeaderName = HeaderName::from_static("x-keyway-sessions-closed");
/// Nodes that did not answer when they were to close sessions, and are asked again.
const NODES_UNREACHED: HeaderName = HeaderName::from_static("x-keyway-nodes-unreached");

/// All kinds of routes; the protocol layer takes one.
pub(super) struct Routes {
    pub(super) control: ControlRoute,
    pub(super) sts: StsRoute,
    pub(super) lenient: LenientReads,
}

#[async_trait::async_trait]
impl S3Route for Routes {
    fn is_match(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        extensions: &mut Extensions,
    ) -> bool {
        is_control(uri)
            || sts::is_meant(method, uri, headers)
            || self.lenient.is_match(method, uri, headers, extensions)
    }

    async fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        if is_control(&request.uri) {
            return self.control.check_access(request);
        }
        if sts::is_meant(&request.method, &request.uri, &request.headers) {
            return self.sts.check_access(request);
        }
        self.lenient.check_access(request).await
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        if is_control(&request.uri) {
            return self.control.call(request).await;
        }
        if sts::is_meant(&request.method, &request.uri, &request.headers) {
            return self.sts.call(request).await;
        }
        self.lenient.call(request).await
    }
}

/// No bucket's name begins with an underscore.
fn is_control(uri: &Uri) -> bool {
    uri.path().starts_with(crate::control::PREFIX)
}

/// The control endpoints, in S3's terms.
pub(super) struct ControlRoute {
    gate: Gate,
    core: Arc<Core>,
    control: Control,
    administration: Option<Administration>,
}

impl ControlRoute {
    pub(super) fn new(gate: Gate, core: Arc<Core>, administration: Option<Administration>) -> Self {
        let control = Control::new(core.nodes.clone());
        Self { gate, core, control, administration }
    }

    fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        let info = request.extensions.get::<RequestInfo>().cloned();
        if let Some(info) = &info {
            if AdminCall::is_meant(request.uri.path()) {
                info.set_operation("Administer");
            } else if let Ok(call) = Call::of(&request.method, request.uri.path()) {
                info.set_operation(call.name());
            }
        }
        if request.service.as_deref().is_some_and(|service| service != signed::S3) {
            return Err(denied().answer(&id_of(&request.extensions)));
        }
        let seen = Seen {
            credentials: request.credentials.as_ref(),
            method: &request.method,
            uri: &request.uri,
            headers: &request.headers,
            info: info.as_ref(),
            form: None,
        };
        let admitted = self.gate.admit_to_control(&seen, &mut request.extensions);
        admitted.map_err(|failure| failure.answer(&id_of(&request.extensions)))
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let id = id_of(&request.extensions);
        let answered = if AdminCall::is_meant(request.uri.path()) {
            self.administer(request).await
        } else {
            self.answer(request).await
        };
        answered.map_err(|failure| failure.answer(&id))
    }

    /// The administration. Its refusals are documents of its own.
    async fn administer(&self, request: S3Request<Body>) -> Result<S3Response<Body>, Failure> {
        let caller = request.extensions.get::<Arc<Caller>>().cloned();
        let (method, path) = (request.method.to_string(), request.uri.path().to_owned());
        let answered = self.administered(request).await?;
        if let Some(caller) = caller.filter(|_| method != "GET") {
            self.core.audit.tell(Event::Administered {
                caller: caller.name(),
                access_key: caller.access_key(),
                method,
                path,
                status: match &answered {
                    Ok(answer) => answer.status.as_u16(),
                    Err(error) => error.told().0.as_u16(),
                },
                sessions_closed: answered.as_ref().map_or(0, |answer| answer.cut.sessions),
                request: caller.request(),
            });
        }
        let answered = match answered {
            Ok(answer) => {
                let mut response = S3Response::with_status(Body::from(answer.json), answer.status);
                let closed = HeaderValue::from(answer.cut.sessions);
                response.headers.insert(SESSIONS_CLOSED, closed);
                let unreached = HeaderValue::from(answer.cut.nodes_unreached);
                response.headers.insert(NODES_UNREACHED, unreached);
                response
            }
            Err(error) => {
                let (status, _) = error.told();
                let mut response = S3Response::with_status(Body::from(error.document()), status);
                if let AdminError::MethodNotAllowed(methods) = error {
                    response.headers.insert(ALLOW, HeaderValue::from_static(methods));
                }
                response
            }
        };
        let mut response = answered;
        if response.status != Some(http::StatusCode::NO_CONTENT) {
            let json = HeaderValue::from_static("application/json");
            response.headers.insert(CONTENT_TYPE, json);
        }
        Ok(response)
    }

    async fn administered(
        &self,
        request: S3Request<Body>,
    ) -> Result<Result<AdminAnswer, AdminError>, Failure> {
        let caller = request.extensions.get::<Arc<Caller>>().cloned().ok_or_else(denied)?;
        let own = caller.own_tenant().ok_or_else(denied)?;
        let Some(administration) = &self.administration else {
            return Ok(Err(AdminError::NoSuchEndpoint));
        };
        let call = match AdminCall::of(&request.method, request.uri.path()) {
            Ok(call) => call,
            Err(error) => return Ok(Err(error)),
        };
        let action = if call.verb == Verb::Get { Action::AdminRead } else { Action::AdminWrite };
        if caller.may_in_tenant(action).is_err() {
            return Ok(Err(AdminError::Denied));
        }
        let document = match call.verb {
            Verb::Put => {
                document(&request.headers, request.input, ADMIN_DOCUMENT_BYTES_MAX).await?
            }
            Verb::Get | Verb::Delete => Bytes::new(),
        };
        Ok(administration.answer(own, call, &document).await)
    }

    /// Rails and sessions. A session is remembered for what it is, and ends at once when its key
    /// went away while the node opened it: whoever cut the key off did not know of it.
    async fn sessions(
        &self,
        caller: &Caller,
        call: Call,
        document: &[u8],
    ) -> Result<control::Answer, Failure> {
        let owner = caller.session_owner().ok_or_else(denied)?;
        let principal = caller.principal.as_ref().ok_or_else(denied)?;
        if !matches!(call, Call::CloseSession(_)) {
            caller.may_in_tenant(Action::OpenSession)?;
            // Before the node opens it: whoever cuts the key off then closes it.
            if !self.core.credentials.watch(principal) {
                return Err(control::ControlError::from(SessionError::TooMany).into());
            }
        }
        let opening = self.opening(caller, call).await?;
        let answer = self.control.answer(owner.clone(), call, document).await?;
        let session = match call {
            Call::CloseSession(session) => Some((session, "closed")),
            _ => answer.opened.map(|opened| (opened.session, "opened")),
        };
        if let Some((session, what)) = session {
            self.core.audit.tell(Event::Session {
                caller: caller.name(),
                access_key: caller.access_key(),
                session: session.to_string(),
                what,
                request: caller.request(),
            });
        }
        if let Some(opened) = &answer.opened {
            let kind = opened.strength.map_or(SessionKind::Local, SessionKind::Verbs);
            self.core.sessions.opened(opened.session, kind);
            if !self.core.credentials.stands(principal) {
                let close = Call::CloseSession(opened.session);
                self.control.answer(owner, close, &[]).await?;
                return Err(denied());
            }
        }
        drop(opening);
        Ok(answer)
    }

    /// Waits for the caller's turn to open a session, where it may have so many at once. A node
    /// that does not answer has none that are of use.
    async fn opening(&self, caller: &Caller, call: Call) -> Result<Opening, Failure> {
        if !matches!(call, Call::OpenSession | Call::OpenLocalSession) {
            return Ok(Opening::default());
        }
        let opening = caller.usage.opening().await;
        for (holder, most) in caller.usage.sessions() {
            let mut open = 0;
            match &holder.user {
                None => open += self.control.count(SessionSelector::Tenant(holder.tenant)).await,
                Some(user) => {
                    for key in self.core.credentials.keys_of(holder.tenant, user) {
                        let access_key = key.as_str().into();
                        let owner = SessionOwner { tenant: holder.tenant, access_key };
                        open += self.control.count(SessionSelector::Owner(owner)).await;
                    }
                }
            }
            if open >= most {
                return Err(caller.usage.too_many_sessions().into());
            }
        }
        Ok(opening)
    }

    async fn answer(&self, request: S3Request<Body>) -> Result<S3Response<Body>, Failure> {
        let caller = request.extensions.get::<Arc<Caller>>().cloned().ok_or_else(denied)?;
        let call = Call::of(&request.method, request.uri.path())?;
        let document = match call {
            Call::OpenSession | Call::OpenLocalSession | Call::Prefetch | Call::Flush => {
                document(&request.headers, request.input, DOCUMENT_BYTES_MAX).await?
            }
            Call::GetRanges => {
                let S3Request { headers, input, extensions, .. } = request;
                let document = document(&headers, input, RANGES_DOCUMENT_BYTES_MAX).await?;
                let headers =
                    gather::gather(&self.core, &caller, &headers, &extensions, &document).await?;
                return Ok(S3Response::with_headers(Body::empty(), headers));
            }
            Call::ListRails | Call::CloseSession(_) => Bytes::new(),
        };
        let answer = match call {
            Call::Prefetch => {
                let request = control::parsed(&document)?;
                control::ok(&prefetch::prefetch(&self.core, &caller, request).await?)
            }
            Call::Flush => {
                let request = control::parsed(&document)?;
                control::ok(&durability::flush(&self.core, &caller, request).await?)
            }
            call => self.sessions(&caller, call, &document).await?,
        };
        let mut response = S3Response::with_status(Body::from(answer.json), answer.status);
        if answer.status != http::StatusCode::NO_CONTENT {
            let json = HeaderValue::from_static("application/json");
            response.headers.insert(CONTENT_TYPE, json);
        }
        Ok(response)
    }
}

/// The request's id.
fn id_of(extensions: &Extensions) -> RequestId {
    extensions.get::<RequestId>().cloned().unwrap_or_else(RequestId::generate)
}

/// The request's document, whose bytes the signature covers. A presigned URL's does not: its
/// payload is unsigned, whatever a header says that is added later.
///
/// # Errors
/// `InvalidRequest` for one that is not signed, `EntityTooLarge`, and those of a body that
/// breaks or is not the one that was signed.
async fn document(headers: &HeaderMap, body: Body, bytes_max: usize) -> Result<Bytes, Failure> {
    let is_hash = |value: &HeaderValue| hex::decode(value.as_bytes()).is_ok_and(|h| h.len() == 32);
    let hashed = headers.get(CONTENT_SHA256).is_some_and(is_hash);
    if !hashed || !headers.contains_key(AUTHORIZATION) {
        return Err(Failure::refuse(
            S3ErrorCode::InvalidRequest,
            "The body must be signed: x-amz-content-sha256 must be its SHA-256.",
        ));
    }
    match Limited::new(body, bytes_max).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            Err(Failure::code(S3ErrorCode::EntityTooLarge))
        }
        Err(error) => Err(TransferError::Body(BodyError(Arc::from(error))).into()),
    }
}
