//! Which bucket a host name stands for.

use s3s::S3Result;
use s3s::host::{S3Host, VirtualHost};

use super::service::InvalidConfig;

/// Host names under which buckets are subdomains. Every other host is path style: a server
/// is reached under names that nobody told it, and none of them is a bucket.
#[derive(Clone, Debug, Default)]
pub(super) struct BaseDomains(std::sync::Arc<[Box<str>]>);

impl BaseDomains {
    /// Checks the names.
    ///
    /// # Errors
    /// [`InvalidConfig::BaseDomain`] for what is no host name without a port.
    pub(super) fn new(names: &[String]) -> Result<Self, InvalidConfig> {
        let label = |label: &str| {
            !label.is_empty()
                && label.len() <= 63
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        let mut domains = Vec::with_capacity(names.len());
        for name in names {
            if name.len() > 253 || !name.split('.').all(label) {
                return Err(InvalidConfig::BaseDomain(name.clone()));
            }
            domains.push(name.to_ascii_lowercase().into_boxed_str());
        }
        // The longest first, so that the most specific domain decides.
        domains.sort_by_key(|domain| std::cmp::Reverse(domain.len()));
        Ok(Self(domains.into()))
    }

    /// The bucket that is a subdomain of one of the base domains, in lowercase.
    pub(super) fn bucket(&self, host: &str) -> Option<String> {
        let host = without_port(host);
        self.0.iter().find_map(|domain| {
            let at = host.len().checked_sub(domain.len())?;
            let (bucket, base) = host.split_at_checked(at)?;
            let bucket = bucket.strip_suffix('.')?;
            (base.eq_ignore_ascii_case(domain) && !bucket.is_empty())
                .then(|| bucket.to_ascii_lowercase())
        })
    }
}

impl S3Host for BaseDomains {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let found = VirtualHost::new(host);
        Ok(match self.bucket(host) {
            Some(bucket) => found.with_bucket(bucket),
            None => found,
        })
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_subdomains_are_buckets() {
        let names = ["s3.example.com".to_owned(), "eu.s3.example.com".to_owned()];
        let domains = BaseDomains::new(&names).expect("valid");
        for (host, bucket) in [
            ("s3.example.com", None),
            ("s3.example.com:9000", None),
            ("b.s3.example.com", Some("b")),
            ("B.S3.Example.com:9000", Some("b")),
            ("my.bucket.s3.example.com", Some("my.bucket")),
            ("b.eu.s3.example.com", Some("b")),
            ("xs3.example.com", None),
            (".s3.example.com", None),
            ("localhost", None),
            ("127.0.0.1:9000", None),
            ("[::1]:9000", None),
            ("", None),
        ] {
            assert_eq!(domains.bucket(host).as_deref(), bucket, "{host}");
        }
        assert!(BaseDomains::new(&["a..b".to_owned()]).is_err());
        assert!(BaseDomains::new(&["a:80".to_owned()]).is_err());
    }
}
