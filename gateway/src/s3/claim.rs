//! Who a request says it is from, for the audit log and the limits of strangers, where that turns
//! out to be wrong.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{Method, Request, Response, StatusCode};
use keyway_auth::CredentialStore;
use s3s::Body;
use zeroize::Zeroizing;

use super::access::session_token;
use super::errors::Failure;
use super::service::RequestId;
use super::{signed, sts};
use crate::audit::{self, Audit, Event};
use crate::limits::{Attempt, CODES, Limiter, Penalty, WORDLESS};
use crate::server::RequestInfo;

/// Longest access key that is told, of a request that may name any text.
const ACCESS_KEY_CHARS_MAX: usize = 128;

/// What claims are held against.
#[derive(Clone)]
pub(super) struct Strangers {
    pub(super) limiter: Arc<Limiter>,
    pub(super) credentials: Arc<dyn CredentialStore>,
    pub(super) audit: Audit,
}

/// What is kept of a request until it is answered.
pub(super) struct Claim {
    access_key: Option<String>,
    /// The session token of a form; others have theirs in their headers.
    token: Option<Zeroizing<String>>,
    /// Whether there is a claim at all.
    made: bool,
    head_only: bool,
    info: Option<RequestInfo>,
    request: audit::Request,
}

impl Claim {
    pub(super) fn of(request: &Request<Body>, id: &RequestId) -> Self {
        let query = request.uri().query().unwrap_or_default();
        let access_key = signed::access_key(request.headers(), query);
        let access_key =
            access_key.map(|key| key.chars().take(ACCESS_KEY_CHARS_MAX).collect::<String>());
        // STS takes tokens from who does not sign: they are in the form, and a claim, too.
        let made = access_key.is_some()
            || request.headers().contains_key(AUTHORIZATION)
            || sts::is_meant(request.method(), request.uri(), request.headers());
        let info = request.extensions().get::<RequestInfo>().cloned();
        let remote = info.as_ref().map(|info| info.remote().to_string());
        let request_id = Some(id.to_string());
        let head_only = request.method() == Method::HEAD;
        let request = audit::Request { request_id, remote };
        Self { access_key, token: None, made, head_only, info, request }
    }

    /// Takes the claim from a form's fields.
    pub(super) fn is_of_form(&mut self, access_key: Option<&str>, token: Option<&str>) {
        let access_key = access_key.map(|key| key.chars().take(ACCESS_KEY_CHARS_MAX).collect());
        self.made = access_key.is_some();
        self.access_key = access_key;
        self.token = token.map(|token| Zeroizing::new(token.to_owned()));
    }

    /// Whence it comes; none where no server told.
    fn remote(&self) -> Option<IpAddr> {
        self.info.as_ref().map(|info| info.remote().ip())
    }

    /// Refuses a claim that is not to be verified: too many failed from there, or with that key.
    pub(super) fn refuse(&self, request: &Request<Body>, strangers: &Strangers) -> Option<Failure> {
        let remote = self.remote().filter(|_| self.made)?;
        let attempt = Attempt { remote, access_key: self.access_key.as_deref() };
        let is_key = || {
            let token = session_token(request.headers(), request.uri().query().unwrap_or_default());
            let named = self.access_key.as_ref().zip(token.ok());
            named.is_some_and(|(key, token)| {
                let of_form = self.token.as_ref().map(|token| token.as_str());
                let token = of_form.or(token.as_deref());
                strangers.credentials.principal(key, token).is_ok()
            })
        };
        strangers.limiter.may_try(&attempt, is_key).err().map(Failure::Penalised)
    }

    /// Tells of an answer that says that the claim is wrong.
    pub(super) fn judge(self, response: &Response<Body>, strangers: &Strangers) {
        let Some(code) = self.wrong(response) else { return };
        let penalties = match self.remote() {
            Some(remote) => {
                let attempt = Attempt { remote, access_key: self.access_key.as_deref() };
                strangers.limiter.failed(&attempt, &code)
            }
            None => Vec::new(),
        };
        for penalty in penalties {
            let (address, access_key) = match penalty {
                Penalty::Address(address) => (Some(address), None),
                Penalty::AccessKey => (None, self.access_key.clone()),
            };
            let request = self.request.clone();
            strangers.audit.tell(Event::Penalised { address, access_key, request });
        }
        let (access_key, request) = (self.access_key, self.request);
        strangers.audit.tell(Event::NotAuthenticated { code, access_key, request });
    }

    /// S3's code, if the answer is that the claim is wrong.
    fn wrong(&self, response: &Response<Body>) -> Option<String> {
        if self.head_only {
            // It has no words. Whom the gate has seen was verified.
            let verified = self.info.as_ref().is_none_or(RequestInfo::is_verified);
            let wrong = self.made && !verified && response.status() == StatusCode::FORBIDDEN;
            return wrong.then(|| WORDLESS.to_owned());
        }
        let xml = response.body().bytes()?;
        let text = String::from_utf8_lossy(&xml);
        let (_, rest) = text.split_once("<Code>")?;
        let (code, _) = rest.split_once("</Code>")?;
        CODES.contains(&code).then(|| code.to_owned())
    }
}
