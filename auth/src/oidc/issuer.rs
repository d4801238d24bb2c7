//! Issuers, by their addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use http::Uri;
use keyway_proto::TenantId;
use serde::{Deserialize, Serialize};

/// Longest issuer: its characters stand in ARNs and in names of condition keys.
pub const ISSUER_CHARS_MAX: usize = 255;

/// Where an issuer's description lies, after its address.
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// An issuer's address, as its tokens have it: `https://host[:port][/path]`, and `http://` for a
/// host that is this machine itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Issuer(Arc<str>);

/// A text that is no issuer's address. It does not repeat the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "an issuer is https://host[:port][/path] in at most {ISSUER_CHARS_MAX} plain characters, the \
     host in lower case; http:// only on a loopback address"
)]
pub struct InvalidIssuer;

impl Issuer {
    /// As tokens have it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Without the scheme: its name in ARNs and condition keys.
    pub fn name(&self) -> &str {
        self.0.split_once("://").map_or(&self.0, |(_, rest)| rest)
    }

    /// Its ARN as a provider of this tenant's.
    pub fn arn(&self, tenant: TenantId) -> String {
        format!("arn:aws:iam::{:012}:oidc-provider/{}", tenant.0, self.name())
    }

    /// Where its description is.
    pub fn discovery_url(&self) -> String {
        format!("{}{DISCOVERY}", self.0.trim_end_matches('/'))
    }

    /// Whether this machine itself may be asked without TLS, on its behalf.
    fn is_plain(&self) -> bool {
        self.0.starts_with("http://")
    }

    /// The address, if it is one that this issuer may have its keys at: behind TLS, or on this
    /// machine if it is there itself.
    pub(super) fn keys_at(&self, url: &str) -> Option<Uri> {
        let uri: Uri = url.parse().ok()?;
        let authority = uri.authority()?;
        let named = !authority.as_str().contains('@') && !authority.host().is_empty();
        let safe = match uri.scheme_str()? {
            "https" => true,
            "http" => self.is_plain() && is_loopback(authority.host()),
            _ => false,
        };
        (named && safe).then_some(uri)
    }

    /// Whether a name could be an issuer's, in an ARN.
    pub(crate) fn is_name(name: &str) -> bool {
        format!("https://{name}").parse::<Self>().is_ok()
    }
}

impl FromStr for Issuer {
    type Err = InvalidIssuer;

    fn from_str(text: &str) -> Result<Self, InvalidIssuer> {
        let (scheme, name) = text.split_once("://").ok_or(InvalidIssuer)?;
        let (authority, path) = name.split_once('/').unwrap_or((name, ""));
        let (host, port) = authority.split_once(':').unwrap_or((authority, "443"));
        let of_host = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-')
        };
        let of_path = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+=,@".contains(&byte);
        // The last one may be empty: some issuers end in a slash.
        let mut segments = path.trim_end_matches('/').split('/');
        let sound = text.len() <= ISSUER_CHARS_MAX
            && !host.is_empty()
            && host.bytes().all(of_host)
            && port.parse::<u16>().is_ok_and(|number| number.to_string() == port)
            && !path.ends_with("//")
            && (path.is_empty()
                || segments.all(|part| {
                    let plain = part.bytes().all(of_path);
                    plain && !part.is_empty() && part != "." && part != ".."
                }))
            && match scheme {
                "https" => true,
                "http" => is_loopback(host),
                _ => false,
            };
        if sound { Ok(Self(text.into())) } else { Err(InvalidIssuer) }
    }
}

/// Whether a host is this machine itself, whatever a name server says.
fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl TryFrom<String> for Issuer {
    type Error = InvalidIssuer;

    fn try_from(text: String) -> Result<Self, InvalidIssuer> {
        text.parse()
    }
}

impl From<Issuer> for String {
    fn from(issuer: Issuer) -> Self {
        issuer.as_str().to_owned()
    }
}

impl fmt::Display for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_issuers() {
        for (text, name) in [
            ("https://idp.example.com", "idp.example.com"),
            ("https://idp.example.com/", "idp.example.com/"),
            ("https://idp.example.com:8443/realms/a", "idp.example.com:8443/realms/a"),
            (
                "https://oidc.eks.eu-west-1.amazonaws.com/id/AB12",
                "oidc.eks.eu-west-1.amazonaws.com/id/AB12",
            ),
            ("http://127.0.0.1:5556/dex", "127.0.0.1:5556/dex"),
            ("http://localhost:1", "localhost:1"),
        ] {
            let issuer: Issuer = text.parse().expect(text);
            assert_eq!(issuer.name(), name);
            assert!(Issuer::is_name(name), "{name}");
            assert!(issuer.discovery_url().ends_with(DISCOVERY));
            assert!(!issuer.discovery_url()["https://".len()..].contains("//"), "{text}");
        }
        for bad in [
            "",
            "idp.example.com",
            "https://",
            "https:///a",
            "ftp://idp.example.com",
            "http://idp.example.com",
            "http://127.0.0.1.example.com",
            "http://10.0.0.1",
            "https://IDP.example.com",
            "https://user@idp.example.com",
            "https://idp.example.com:0443",
            "https://idp.example.com:x",
            "https://idp.example.com?x",
            "https://idp.example.com/a?b",
            "https://idp.example.com/a#b",
            "https://idp.example.com//a",
            "https://idp.example.com/a//",
            "https://idp.example.com/../a",
            "https://idp.example.com/a b",
            "https://idp.example.com/*",
            "https://idp.example.com/${aws:username}",
            "https://idp.example.com/ä",
            &format!("https://idp.example.com/{}", "x".repeat(ISSUER_CHARS_MAX)),
        ] {
            assert_eq!(bad.parse::<Issuer>(), Err(InvalidIssuer), "{bad:?}");
        }
    }

    #[test]
    fn keys_are_behind_tls_unless_the_issuer_is_not() {
        let far: Issuer = "https://idp.example.com".parse().expect("an issuer");
        let near: Issuer = "http://127.0.0.1:5556".parse().expect("an issuer");
        for url in ["https://idp.example.com/keys", "https://keys.example.net/a?b=c"] {
            assert!(far.keys_at(url).is_some() && near.keys_at(url).is_some(), "{url}");
        }
        for url in ["http://127.0.0.1:5556/keys", "http://localhost/keys"] {
            assert!(far.keys_at(url).is_none() && near.keys_at(url).is_some(), "{url}");
        }
        for url in ["http://10.0.0.1/keys", "file:///etc/passwd", "/keys", "https://a@b/keys", ""] {
            assert!(far.keys_at(url).is_none() && near.keys_at(url).is_none(), "{url}");
        }
    }
}
