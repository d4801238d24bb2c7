//! Answers and refusals in STS's words.

use std::borrow::Cow;
use std::fmt::Write as _;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use keyway_auth::Principal;
use keyway_auth::oidc::InvalidToken;
use keyway_auth::policy::PolicyError;
use keyway_auth::session::Issued;
use s3s::{Body, S3Error, S3ErrorCode, S3Response};

use super::Taken;
use super::web::TakenByWeb;
use crate::oidc::IssuerError;
use crate::s3::errors::Failure;
use crate::s3::service::RequestId;

const NAMESPACE: &str = "https://sts.amazonaws.com/doc/2011-06-15/";
const XML: HeaderValue = HeaderValue::from_static("text/xml");

/// Why a call was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum StsError {
    /// The form cannot be read, or says something twice.
    #[error("The form is malformed, or has a parameter twice.")]
    BrokenForm,
    /// The form names no call.
    #[error("The request must contain the parameter Action.")]
    MissingAction,
    /// There is no such call.
    #[error("Could not find operation {action} for version {version}")]
    NoSuchAction {
        /// As it was named.
        action: String,
        /// As it was named.
        version: String,
    },
    /// A parameter that is missing, out of bounds, or not served.
    #[error("{0}")]
    Invalid(String),
    /// The session's policy is malformed.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Policies deny it.
    #[error("{0}")]
    Denied(String),
    /// The token that was brought says nothing that is believed.
    #[error("The web identity token that was passed cannot be validated: {0}.")]
    Identity(InvalidToken),
    /// Its issuer is no provider of the role's tenant.
    #[error("No OpenID Connect provider of the role's account has the token's issuer.")]
    NoProvider,
    /// Its time has passed.
    #[error("The web identity token that was passed has expired.")]
    ExpiredIdentity,
    /// Its issuer cannot be asked. The cause was logged.
    #[error("An error occurred when communicating with the identity provider.")]
    Provider(#[from] IssuerError),
    /// The call needs a signature.
    #[error("Request is missing Authentication Token")]
    Unsigned,
    /// The role's tenant has made as many requests as it may.
    #[error("Please reduce your request rate.")]
    Limited(Box<Failure>),
    /// Temporary credentials beget no others of their kind.
    #[error("Cannot call GetSessionToken with session credentials")]
    SessionCredentials,
    /// This server has no accounts.
    #[error("This server makes no temporary credentials.")]
    NoAccounts,
    /// The cause was logged.
    #[error("The request processing has failed because of an internal error.")]
    Internal,
}

impl StsError {
    /// The status and the code.
    pub(super) fn told(&self) -> (StatusCode, &'static str) {
        match self {
            Self::BrokenForm => (StatusCode::BAD_REQUEST, "MalformedQueryString"),
            Self::MissingAction => (StatusCode::BAD_REQUEST, "MissingAction"),
            Self::NoSuchAction { .. } => (StatusCode::BAD_REQUEST, "InvalidAction"),
            Self::Invalid(_) => (StatusCode::BAD_REQUEST, "ValidationError"),
            Self::Policy(_) => (StatusCode::BAD_REQUEST, "MalformedPolicyDocument"),
            Self::Identity(_) | Self::NoProvider => {
                (StatusCode::BAD_REQUEST, "InvalidIdentityToken")
            }
            Self::ExpiredIdentity => (StatusCode::BAD_REQUEST, "ExpiredTokenException"),
            Self::Provider(_) => (StatusCode::BAD_REQUEST, "IDPCommunicationError"),
            Self::Unsigned => (StatusCode::FORBIDDEN, "MissingAuthenticationToken"),
            Self::Limited(_) => (StatusCode::SERVICE_UNAVAILABLE, "SlowDown"),
            Self::Denied(_) | Self::SessionCredentials => (StatusCode::FORBIDDEN, "AccessDenied"),
            Self::NoAccounts => (StatusCode::NOT_IMPLEMENTED, "NotImplemented"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "InternalFailure"),
        }
    }

    pub(super) fn response(&self, id: &RequestId) -> S3Response<Body> {
        let (status, code) = self.told();
        let xml = error_xml(status, code, &escaped(&self.to_string()), id);
        let mut response = S3Response::with_status(Body::from(xml), status);
        response.headers.insert(CONTENT_TYPE, XML);
        response
    }
}

/// The answer to a request without a signature.
pub(super) fn missing_token() -> S3Error {
    let code = S3ErrorCode::Custom("MissingAuthenticationToken".into());
    let mut error = S3Error::with_message(code, "Request is missing Authentication Token");
    error.set_status_code(StatusCode::FORBIDDEN);
    error
}

/// The answer to a form that the signature does not cover.
pub(super) fn unsigned_form() -> S3Error {
    let code = S3ErrorCode::Custom("IncompleteSignature".into());
    let mut error = S3Error::with_message(code, "The signature must cover the form.");
    error.set_status_code(StatusCode::BAD_REQUEST);
    error
}

/// GetCallerIdentity's.
pub(super) fn caller_identity(principal: &Principal, id: &RequestId) -> S3Response<Body> {
    let caller = &principal.identity.caller;
    let arn = escaped(&caller.to_string()).into_owned();
    let (user, account) = (escaped(caller.id()), principal.tenant.0);
    let result = format!("<Arn>{arn}</Arn><UserId>{user}</UserId><Account>{account:012}</Account>");
    answer("GetCallerIdentity", &result, id)
}

/// GetSessionToken's.
pub(super) fn session_token(issued: &Issued, id: &RequestId) -> S3Response<Body> {
    answer("GetSessionToken", &credentials(issued), id)
}

/// AssumeRole's.
pub(super) fn assumed_role(taken: &Taken, id: &RequestId) -> S3Response<Body> {
    answer("AssumeRole", &role(taken), id)
}

/// AssumeRoleWithWebIdentity's.
pub(super) fn assumed_by_web_identity(by: &TakenByWeb, id: &RequestId) -> S3Response<Body> {
    let [subject, audience, issuer] =
        [&by.subject, &by.audience, &by.issuer].map(|text| escaped(text));
    let result = format!(
        "<SubjectFromWebIdentityToken>{subject}</SubjectFromWebIdentityToken>\
         <Audience>{audience}</Audience><Provider>{issuer}</Provider>{}",
        role(&by.taken)
    );
    answer("AssumeRoleWithWebIdentity", &result, id)
}

fn role(taken: &Taken) -> String {
    let (role_id, arn) = (escaped(&taken.id), escaped(&taken.arn));
    let mut result = format!(
        "<AssumedRoleUser><AssumedRoleId>{role_id}</AssumedRoleId><Arn>{arn}</Arn>\
         </AssumedRoleUser>{}",
        credentials(&taken.issued)
    );
    if let Some(percent) = taken.packed_percent {
        // Writing to a string does not fail.
        let _ = write!(result, "<PackedPolicySize>{percent}</PackedPolicySize>");
    }
    result
}

/// None of their characters needs to be escaped.
fn credentials(issued: &Issued) -> String {
    let (id, secret, token) = (&issued.id, issued.secret.expose(), issued.token());
    let expires = issued.expires.strftime("%Y-%m-%dT%H:%M:%SZ");
    format!(
        "<Credentials><AccessKeyId>{id}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>\
         <SessionToken>{token}</SessionToken><Expiration>{expires}</Expiration></Credentials>"
    )
}

fn answer(call: &str, result: &str, id: &RequestId) -> S3Response<Body> {
    let xml = format!(
        "<{call}Response xmlns=\"{NAMESPACE}\"><{call}Result>{result}</{call}Result>\
         <ResponseMetadata><RequestId>{id}</RequestId></ResponseMetadata></{call}Response>"
    );
    let mut response = S3Response::with_status(Body::from(xml), StatusCode::OK);
    response.headers.insert(CONTENT_TYPE, XML);
    response
}

/// `message` is escaped.
fn error_xml(status: StatusCode, code: &str, message: &str, id: &RequestId) -> String {
    let kind = if status.is_server_error() { "Receiver" } else { "Sender" };
    format!(
        "<ErrorResponse xmlns=\"{NAMESPACE}\"><Error><Type>{kind}</Type><Code>{code}</Code>\
         <Message>{message}</Message></Error><RequestId>{id}</RequestId></ErrorResponse>"
    )
}

/// A refusal that was made in S3's words, before a call was looked at, in STS's. Other answers
/// stay as they are.
pub(in crate::s3) fn translated(mut response: Response<Body>, id: &RequestId) -> Response<Body> {
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return response;
    }
    let bytes = response.body().bytes().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    if text.contains("<ErrorResponse") {
        return response;
    }
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
    };
    let found = element("Code").unwrap_or_else(|| "InternalError".to_owned());
    // It is XML already.
    let message = element("Message").unwrap_or_default();
    let (status, code) = match found.as_str() {
        "InvalidAccessKeyId" | "InvalidToken" => (StatusCode::FORBIDDEN, "InvalidClientTokenId"),
        "ExpiredToken" => (StatusCode::FORBIDDEN, "ExpiredToken"),
        "RequestTimeTooSkewed" => (StatusCode::FORBIDDEN, "SignatureDoesNotMatch"),
        "AuthorizationHeaderMalformed" => (StatusCode::BAD_REQUEST, "IncompleteSignature"),
        "InternalError" => (StatusCode::INTERNAL_SERVER_ERROR, "InternalFailure"),
        other => (status, other),
    };
    let xml = error_xml(status, code, &message, id);
    *response.status_mut() = status;
    response.headers_mut().remove(CONTENT_LENGTH);
    response.headers_mut().insert(CONTENT_TYPE, XML);
    *response.body_mut() = Body::from(xml);
    response
}

/// Text as XML has it.
pub(in crate::s3) fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(['<', '>', '&', '"', '\'']) && !text.chars().any(char::is_control) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            // XML has no form for most of these.
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated_text(status: u16, body: &'static str) -> (u16, String) {
        let mut response = Response::new(Body::from(body.to_owned()));
        *response.status_mut() = StatusCode::from_u16(status).expect("a status");
        let response = translated(response, &RequestId::new("ID").expect("an id"));
        let bytes = response.body().bytes().expect("it is whole");
        (response.status().as_u16(), String::from_utf8_lossy(&bytes).into_owned())
    }

    #[test]
    fn refusals_are_in_the_words_of_sts() {
        let s3 = "<?xml version=\"1.0\"?><Error><Code>InvalidToken</Code><Message>a &amp; b\
            </Message></Error>";
        let (status, xml) = translated_text(400, s3);
        assert_eq!(status, 403);
        for part in ["<Type>Sender</Type>", "<Code>InvalidClientTokenId</Code>", "a &amp; b", "ID"]
        {
            assert!(xml.contains(part), "{xml}");
        }
        let (status, xml) = translated_text(500, "");
        assert!(status == 500 && xml.contains("Receiver") && xml.contains("InternalFailure"));
        assert_eq!(translated_text(200, "<x/>"), (200, "<x/>".to_owned()));
        let error = StsError::Invalid("<b>\u{1}".to_owned());
        let id = RequestId::new("ID").expect("an id");
        let body = error.response(&id).output;
        let xml = String::from_utf8(body.bytes().expect("whole").to_vec()).expect("text");
        assert!(xml.contains("&lt;b&gt; ") && !xml.contains('\u{1}'), "{xml}");
    }
}
