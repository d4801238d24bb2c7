//! A call, read from its form.

use std::collections::BTreeMap;
use std::fmt;

use keyway_auth::directory::Name;
use keyway_auth::oidc::TOKEN_CHARS;
use keyway_auth::policy::SESSION_POLICY_CHARACTERS_MAX;
use keyway_auth::session::is_session_name;
use keyway_proto::TenantId;
use percent_encoding::percent_decode_str;
use zeroize::Zeroizing;

use super::answer::StsError;

const VERSION: &str = "2011-06-15";
/// Shortest session in seconds.
const SECONDS_MIN: u32 = 900;
/// Longest session of a role, whose own limit may be lower.
const ROLE_SECONDS_MAX: u32 = 43_200;
const ROLE_SECONDS: u32 = 3_600;
/// Longest session of a user.
const USER_SECONDS_MAX: u32 = 129_600;
const USER_SECONDS: u32 = 43_200;

/// What a form asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// A call of somebody who signs.
    Signed(Call),
    /// A role, for whom a token is: AssumeRoleWithWebIdentity.
    WithToken(Box<AssumeRole>, WebToken),
}

/// A web identity's token: whoever has it is that somebody.
#[derive(PartialEq, Eq)]
pub(super) struct WebToken(Zeroizing<String>);

impl WebToken {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for WebToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebToken(hidden)")
    }
}

/// A call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Call {
    AssumeRole(Box<AssumeRole>),
    GetSessionToken { seconds: u32 },
    GetCallerIdentity,
}

/// A role that is to be taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AssumeRole {
    pub(super) tenant: TenantId,
    pub(super) role: Name,
    /// The session's name.
    pub(super) session: String,
    pub(super) seconds: u32,
    /// A policy that bounds the session.
    pub(super) policy: Option<String>,
    pub(super) external_id: Option<String>,
}

impl Asked {
    /// Reads a form.
    ///
    /// # Errors
    /// [`StsError`], also for parameters that are not served: what they were to bound would not
    /// be bounded.
    pub(super) fn read(form: &[u8]) -> Result<Self, StsError> {
        let mut form = parameters(form)?;
        let action = form.remove("Action").ok_or(StsError::MissingAction)?;
        let version = form.remove("Version");
        if version.as_deref() != Some(VERSION) {
            let version = version.unwrap_or_default();
            return Err(StsError::NoSuchAction { action, version });
        }
        let call = match action.as_str() {
            "AssumeRole" => {
                let external_id = external_id(&mut form)?;
                let asked = AssumeRole { external_id, ..AssumeRole::take(&mut form)? };
                Self::Signed(Call::AssumeRole(Box::new(asked)))
            }
            "AssumeRoleWithWebIdentity" => {
                let token = WebToken(Zeroizing::new(required(&mut form, "WebIdentityToken")?));
                if !TOKEN_CHARS.contains(&token.as_str().chars().count()) {
                    return Err(constraint("WebIdentityToken", "have 4 to 20000 characters"));
                }
                Self::WithToken(Box::new(AssumeRole::take(&mut form)?), token)
            }
            "GetSessionToken" => {
                let seconds = seconds(&mut form, USER_SECONDS, USER_SECONDS_MAX)?;
                Self::Signed(Call::GetSessionToken { seconds })
            }
            "GetCallerIdentity" => Self::Signed(Call::GetCallerIdentity),
            _ => return Err(StsError::NoSuchAction { action, version: VERSION.to_owned() }),
        };
        match form.keys().next() {
            None => Ok(call),
            Some(name) => {
                Err(StsError::Invalid(format!("The parameter {name} is not served here.")))
            }
        }
    }
}

impl Call {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::AssumeRole(_) => "AssumeRole",
            Self::GetSessionToken { .. } => "GetSessionToken",
            Self::GetCallerIdentity => "GetCallerIdentity",
        }
    }
}

impl AssumeRole {
    fn take(form: &mut BTreeMap<String, String>) -> Result<Self, StsError> {
        let arn = required(form, "RoleArn")?;
        let (tenant, role) = role(&arn).ok_or_else(|| {
            constraint("RoleArn", "be arn:aws:iam::ACCOUNT:role/NAME, with twelve digits")
        })?;
        let session = required(form, "RoleSessionName")?;
        if !is_session_name(&session) {
            return Err(constraint("RoleSessionName", "have 2 to 64 letters, digits and _+=,.@-"));
        }
        let policy = form.remove("Policy");
        if policy.as_deref().is_some_and(|policy| !fits_a_token(policy)) {
            return Err(constraint("Policy", "have 1 to 2048 characters, none beyond U+00FF"));
        }
        let seconds = seconds(form, ROLE_SECONDS, ROLE_SECONDS_MAX)?;
        Ok(Self { tenant, role, session, seconds, policy, external_id: None })
    }
}

/// Whether a token with this policy can stand in a header.
fn fits_a_token(policy: &str) -> bool {
    let plain = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{ff}');
    (1..=SESSION_POLICY_CHARACTERS_MAX).contains(&policy.chars().count())
        && policy.chars().all(plain)
}

/// How much of the room for a session's policy this one takes.
pub(super) fn percent_of_policy(text: &str) -> usize {
    (text.chars().count() * 100).div_ceil(SESSION_POLICY_CHARACTERS_MAX)
}

/// The account and the name in a role's ARN. A path before the name, which AWS has, is not
/// told apart: policies know roles by their names.
fn role(arn: &str) -> Option<(TenantId, Name)> {
    let (account, name) = arn.strip_prefix("arn:aws:iam::")?.split_once(":role/")?;
    let number = Name::is_account(account).then(|| account.parse().ok())??;
    Some((TenantId(number), name.parse().ok()?))
}

fn external_id(form: &mut BTreeMap<String, String>) -> Result<Option<String>, StsError> {
    let id = form.remove("ExternalId");
    if id.as_deref().is_some_and(|id| !is_external_id(id)) {
        let rule = "have 2 to 1224 letters, digits and _+=,.@:/-";
        return Err(constraint("ExternalId", rule));
    }
    Ok(id)
}

fn is_external_id(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_+=,.@:/-".contains(&byte);
    (2..=1224).contains(&text.len()) && text.bytes().all(plain)
}

fn required(form: &mut BTreeMap<String, String>, name: &'static str) -> Result<String, StsError> {
    form.remove(name).ok_or_else(|| constraint(name, "be there"))
}

fn seconds(form: &mut BTreeMap<String, String>, default: u32, max: u32) -> Result<u32, StsError> {
    let Some(text) = form.remove("DurationSeconds") else { return Ok(default) };
    let seconds = text.parse().ok().filter(|seconds| (SECONDS_MIN..=max).contains(seconds));
    seconds.ok_or_else(|| {
        constraint("DurationSeconds", &format!("be a number from {SECONDS_MIN} to {max}"))
    })
}

fn constraint(name: &str, rule: &str) -> StsError {
    StsError::Invalid(format!("1 validation error detected: {name} must {rule}."))
}

/// The parameters of a form, each of them once.
fn parameters(form: &[u8]) -> Result<BTreeMap<String, String>, StsError> {
    let text = std::str::from_utf8(form).map_err(|_| StsError::BrokenForm)?;
    let decoded = |text: &str| {
        let spaced = text.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8();
        decoded.map(|text| text.into_owned()).map_err(|_| StsError::BrokenForm)
    };
    let mut all = BTreeMap::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if all.insert(decoded(name)?, decoded(value)?).is_some() {
            return Err(StsError::BrokenForm);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARN: &str = "RoleArn=arn%3Aaws%3Aiam%3A%3A000000000007%3Arole%2Freader";

    fn asked(rest: &str) -> Result<Asked, &'static str> {
        let form = format!("Version=2011-06-15&{rest}");
        Asked::read(form.as_bytes()).map_err(|error| error.told().1)
    }

    fn read(rest: &str) -> Result<Call, &'static str> {
        match asked(rest)? {
            Asked::Signed(call) => Ok(call),
            Asked::WithToken(..) => Err("a token"),
        }
    }

    #[test]
    fn tokens_are_brought_and_not_shown() {
        let action = format!("Action=AssumeRoleWithWebIdentity&RoleSessionName=job&{ARN}");
        let form = format!("{action}&WebIdentityToken=a.b.secret");
        let Ok(Asked::WithToken(role, token)) = asked(&form) else { panic!("{form}") };
        assert_eq!((role.tenant, role.seconds, token.as_str()), (TenantId(7), 3600, "a.b.secret"));
        assert!(!format!("{token:?}").contains("secret"));
        for more in
            ["", "&WebIdentityToken=abc", &format!("&WebIdentityToken={}", "x".repeat(20_001))]
        {
            assert_eq!(asked(&format!("{action}{more}")), Err("ValidationError"), "{more:.40}");
        }
        for more in ["ProviderId=www.amazon.com", "ExternalId=e-1", "PolicyArns.member.1.arn=x"] {
            assert_eq!(asked(&format!("{form}&{more}")), Err("ValidationError"), "{more}");
        }
    }

    #[test]
    fn forms_are_calls() {
        assert_eq!(read("Action=GetCallerIdentity"), Ok(Call::GetCallerIdentity));
        let token = |seconds| Ok(Call::GetSessionToken { seconds });
        assert_eq!(read("Action=GetSessionToken"), token(43_200));
        assert_eq!(read("Action=GetSessionToken&DurationSeconds=129600"), token(129_600));
        let more = "ExternalId=a%3Ab&Policy=%7B%7D+x&DurationSeconds=900";
        let call = read(&format!("Action=AssumeRole&RoleSessionName=job-1&{ARN}&{more}"));
        let asked = AssumeRole {
            tenant: TenantId(7),
            role: "reader".parse().expect("a name"),
            session: "job-1".to_owned(),
            seconds: 900,
            policy: Some("{} x".to_owned()),
            external_id: Some("a:b".to_owned()),
        };
        assert_eq!(call, Ok(Call::AssumeRole(Box::new(asked))));
    }

    #[test]
    fn odd_forms_are_refused() {
        let long = format!("Policy={}", "x".repeat(2049));
        for (more, code) in [
            ("", "ValidationError"),
            ("RoleSessionName=x", "ValidationError"),
            ("RoleSessionName=a%2Fb", "ValidationError"),
            ("RoleSessionName=job&DurationSeconds=899", "ValidationError"),
            ("RoleSessionName=job&DurationSeconds=43201", "ValidationError"),
            ("RoleSessionName=job&DurationSeconds=x", "ValidationError"),
            ("RoleSessionName=job&ExternalId=x", "ValidationError"),
            ("RoleSessionName=job&Policy=", "ValidationError"),
            ("RoleSessionName=job&Policy=%E2%82%AC", "ValidationError"),
            ("RoleSessionName=job&Policy=%01", "ValidationError"),
            (&format!("RoleSessionName=job&{long}"), "ValidationError"),
            ("RoleSessionName=job&SerialNumber=1", "ValidationError"),
            ("RoleSessionName=job&Tags.member.1.Key=a", "ValidationError"),
            ("RoleSessionName=job&RoleSessionName=job", "MalformedQueryString"),
            ("RoleSessionName=%ff", "MalformedQueryString"),
        ] {
            assert_eq!(read(&format!("Action=AssumeRole&{ARN}&{more}")), Err(code), "{more}");
        }
        for arn in [
            "",
            "reader",
            "arn:aws:iam::7:role/r",
            "arn:aws:iam::000000000007:user/r",
            "arn:aws:iam::000000000007:role/",
            "arn:aws:iam::000000000007:role/a/b",
            "arn:aws:sts::000000000007:assumed-role/r/s",
        ] {
            let form = format!("Action=AssumeRole&RoleSessionName=job&RoleArn={arn}");
            assert_eq!(read(&form), Err("ValidationError"), "{arn}");
        }
        assert_eq!(read("Action=GetSessionToken&DurationSeconds=129601"), Err("ValidationError"));
        assert_eq!(read("Action=AssumeRoot"), Err("InvalidAction"));
        assert_eq!(read("x=y"), Err("MissingAction"));
        let other = Asked::read(b"Action=GetCallerIdentity&Version=2012-01-01");
        assert_eq!(other.map_err(|error| error.told().1), Err("InvalidAction"));
    }
}
