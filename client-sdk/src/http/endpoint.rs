//! Addresses: endpoint, bucket and key as a URI.

use std::fmt::{self, Write as _};

use ::http::HeaderValue;
use ::http::uri::{Authority, Scheme, Uri};
use keyway_proto::{BucketName, InvalidName, ObjectKey};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::builder::{Addressing, ConfigError};
use crate::error::ClientError;

/// RFC 3986's unreserved characters stand for themselves, the rest is encoded: so the
/// signature's canonical form and the bytes on the wire are the same.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const PATH: &AsciiSet = &VALUE.remove(b'/');

/// Where an S3 service answers.
pub(crate) struct Endpoint {
    scheme: Scheme,
    authority: Authority,
    host: HeaderValue,
    addressing: Addressing,
}

/// Where one request goes.
pub(crate) struct Target {
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
    pub(crate) host: HeaderValue,
    path: String,
}

/// A query string, encoded as it is built.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(String);

impl Query {
    pub(crate) fn flag(name: &str) -> Self {
        Self::default().with(name, "")
    }

    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        if !self.0.is_empty() {
            self.0.push('&');
        }
        let (name, value) = (utf8_percent_encode(name, VALUE), utf8_percent_encode(value, VALUE));
        let _ = write!(self.0, "{name}={value}");
        self
    }
}

impl Endpoint {
    pub(crate) fn parse(text: &str, addressing: Addressing) -> Result<Self, ConfigError> {
        let refused = || ConfigError::Endpoint(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| refused())?;
        let parts = uri.into_parts();
        let scheme = parts
            .scheme
            .filter(|s| *s == Scheme::HTTP || *s == Scheme::HTTPS)
            .ok_or_else(refused)?;
        let authority = parts.authority.ok_or_else(refused)?;
        let bare = parts.path_and_query.is_none_or(|path| path == "/");
        if !bare || authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(refused());
        }
        let host = host_header(&scheme, &authority).ok_or_else(refused)?;
        Ok(Self { scheme, authority, host, addressing })
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// The service's own path, which names no bucket. It is one of ours, and needs no escapes.
    pub(crate) fn control(&self, path: &str) -> Target {
        Target {
            scheme: self.scheme.clone(),
            authority: self.authority.clone(),
            host: self.host.clone(),
            path: path.to_owned(),
        }
    }

    pub(crate) fn target(
        &self,
        bucket: Option<&str>,
        key: Option<&str>,
    ) -> Result<Target, ClientError> {
        let mut path = String::with_capacity(128);
        let mut authority = self.authority.clone();
        let mut host = self.host.clone();
        if let Some(bucket) = bucket {
            match self.addressing {
                Addressing::Path if bucket.is_empty() => return Err(InvalidName::Bucket.into()),
                Addressing::Path => {
                    let _ = write!(path, "/{}", utf8_percent_encode(bucket, VALUE));
                }
                Addressing::VirtualHost => {
                    // A name that becomes part of a host must not name another one.
                    let bucket: BucketName = bucket.parse()?;
                    authority = format!("{bucket}.{}", self.authority)
                        .parse()
                        .map_err(::http::Error::from)?;
                    host = HeaderValue::from_str(&format!(
                        "{bucket}.{}",
                        self.host.to_str().unwrap_or_default()
                    ))
                    .map_err(::http::Error::from)?;
                }
            }
        }
        path.push('/');
        if let Some(key) = key {
            // An empty key would turn a request for an object into one for its bucket.
            let key: ObjectKey = key.parse()?;
            let _ = write!(path, "{}", utf8_percent_encode(&key, PATH));
        } else if path.len() > 1 {
            path.pop();
        }
        Ok(Target { scheme: self.scheme.clone(), authority, host, path })
    }
}

impl Target {
    /// The request's own URI: path and query alone, as HTTP/1.1 has it.
    pub(crate) fn uri(&self, query: &Query) -> Result<Uri, ClientError> {
        let uri = match query.0.as_str() {
            "" => self.path.parse(),
            query => format!("{}?{query}", self.path).parse(),
        };
        Ok(uri.map_err(::http::Error::from)?)
    }

    /// The URI with scheme and authority.
    pub(crate) fn absolute(&self, query: &Query) -> Result<Uri, ClientError> {
        let mut parts = self.uri(query)?.into_parts();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        Ok(Uri::from_parts(parts).map_err(::http::Error::from)?)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority)
    }
}

/// The port is left out where it is the scheme's own: servers sign what clients send.
fn host_header(scheme: &Scheme, authority: &Authority) -> Option<HeaderValue> {
    let own_port = if *scheme == Scheme::HTTPS { 443 } else { 80 };
    let text = match authority.port_u16() {
        Some(port) if port == own_port => authority.host(),
        _ => authority.as_str(),
    };
    HeaderValue::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(addressing: Addressing, bucket: Option<&str>, key: Option<&str>) -> (String, String) {
        let endpoint = Endpoint::parse("http://s3.local:9000", addressing).expect("an endpoint");
        let target = endpoint.target(bucket, key).expect("a target");
        let query = Query::flag("uploads").with("prefix", "a b&c/é");
        (
            target.uri(&query).expect("a uri").to_string(),
            target.host.to_str().expect("text").to_owned(),
        )
    }

    #[test]
    fn both_styles() {
        let query = "?uploads=&prefix=a%20b%26c%2F%C3%A9";
        let own = "s3.local:9000".to_owned();
        assert_eq!(uri(Addressing::Path, None, None), (format!("/{query}"), own.clone()));
        assert_eq!(uri(Addressing::Path, Some("bkt"), None), (format!("/bkt{query}"), own.clone()));
        assert_eq!(
            uri(Addressing::Path, Some("bkt"), Some("/a+b/../c d")),
            (format!("/bkt//a%2Bb/../c%20d{query}"), own)
        );
        assert_eq!(
            uri(Addressing::VirtualHost, Some("bkt"), Some("k")),
            (format!("/k{query}"), "bkt.s3.local:9000".to_owned())
        );
    }

    #[test]
    fn names_that_would_change_the_request_are_refused() {
        for (addressing, bucket, key) in [
            (Addressing::Path, "", None),
            (Addressing::Path, "bkt", Some("")),
            (Addressing::VirtualHost, "evil@", None),
            (Addressing::VirtualHost, "evil.com/", Some("k")),
        ] {
            let endpoint = Endpoint::parse("http://s3.local", addressing).expect("an endpoint");
            let refused = endpoint.target(Some(bucket), key);
            assert!(matches!(refused, Err(ClientError::Name(_))), "{bucket} {key:?}");
        }
    }

    #[test]
    fn a_scheme_s_own_port_is_not_said() {
        let host = |text| Endpoint::parse(text, Addressing::Path).expect("an endpoint").host;
        assert_eq!(host("https://h:443"), "h");
        assert_eq!(host("http://h:80/"), "h");
        assert_eq!(host("https://h:80"), "h:80");
    }
}
