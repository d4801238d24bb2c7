//! Where events are sent: the operator's targets.

use std::collections::BTreeMap;
use std::path::PathBuf;

use http::Uri;
use serde::{Deserialize, Serialize};

use super::{ConfigError, Notify};

/// Targets by their names.
pub type Targets = BTreeMap<String, Target>;

/// Longest name of a target.
const NAME_BYTES_MAX: usize = 63;
/// How long a target may take to take an event.
const TIMEOUT_MS: u64 = 5_000;

/// A target, by its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Target {
    /// An HTTP server that takes each event as a POST.
    Webhook {
        /// Where to.
        url: String,
        /// A file with the token that is sent as `Authorization: Bearer`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token_file: Option<PathBuf>,
        /// Authorities (PEM) that its certificate may come from; the system's without it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ca_file: Option<PathBuf>,
        /// How long it may take to answer.
        #[serde(default = "timeout_ms")]
        timeout_ms: u64,
        /// Account numbers of the tenants that may name it; all of them without it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tenants: Option<Vec<u64>>,
    },
    /// A stream of a NATS server with JetStream.
    Nats {
        /// The server: `nats://` or `tls://`.
        url: String,
        /// The subject, which a stream must take.
        subject: String,
        /// A file of credentials (JWT and seed).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        credentials_file: Option<PathBuf>,
        /// As for a webhook.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ca_file: Option<PathBuf>,
        /// How long it may take to acknowledge.
        #[serde(default = "timeout_ms")]
        timeout_ms: u64,
        /// As for a webhook.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tenants: Option<Vec<u64>>,
    },
}

fn timeout_ms() -> u64 {
    TIMEOUT_MS
}

impl Notify {
    /// Looks at every target.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let refuse = |rule| Err(ConfigError::Value { name: "notify.targets", rule });
        if self.retry_max_ms == 0 {
            let rule = "must be at least 1";
            return Err(ConfigError::Value { name: "notify.retry_max_ms", rule });
        }
        for (name, target) in &self.targets {
            if !is_name(name) {
                return refuse("have names of 1 to 63 lowercase letters, digits and hyphens");
            }
            let (schemes, url, timeout_ms) = match target {
                Target::Webhook { url, timeout_ms, .. } => (["http", "https"], url, *timeout_ms),
                Target::Nats { url, timeout_ms, .. } => (["nats", "tls"], url, *timeout_ms),
            };
            if !is_url(url, schemes) {
                return refuse(
                    "have a url, http:// or https:// of a webhook, nats:// or tls:// of NATS, \
                     without user and password",
                );
            }
            if let Target::Nats { subject, .. } = target
                && !is_subject(subject)
            {
                return refuse("publish to a subject without spaces and wildcards");
            }
            if timeout_ms == 0 {
                return refuse("have a timeout_ms of at least 1");
            }
        }
        Ok(())
    }
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

fn is_url(url: &str, schemes: [&str; 2]) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    plain
        && uri.host().is_some_and(|host| !host.is_empty())
        && uri.scheme_str().is_some_and(|scheme| schemes.contains(&scheme))
}

fn is_subject(subject: &str) -> bool {
    let token = |token: &str| {
        let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>');
        !token.is_empty() && !token.contains(odd)
    };
    subject.split('.').all(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_checked() {
        let read = |text: &str| toml::from_str::<Notify>(text).map(|notify| notify.check());
        for good in [
            "[targets.a-1]\nkind = \"webhook\"\nurl = \"http://127.0.0.1:1/x\"\ntenants = [2]",
            "[targets.b]\nkind = \"nats\"\nurl = \"tls://h:4222\"\nsubject = \"a.b\"",
        ] {
            assert!(matches!(read(good), Ok(Ok(()))), "{good}");
        }
        for bad in [
            "[targets.A]\nkind = \"webhook\"\nurl = \"http://h\"",
            "[targets.\"\"]\nkind = \"webhook\"\nurl = \"http://h\"",
            "[targets.a]\nkind = \"webhook\"\nurl = \"/x\"",
            "[targets.a]\nkind = \"webhook\"\nurl = \"ftp://h\"",
            "[targets.a]\nkind = \"webhook\"\nurl = \"http://u:p@h\"",
            "[targets.a]\nkind = \"webhook\"\nurl = \"http://h\"\ntimeout_ms = 0",
            "[targets.a]\nkind = \"nats\"\nurl = \"nats://h\"\nsubject = \"a.>\"",
            "[targets.a]\nkind = \"nats\"\nurl = \"nats://h\"\nsubject = \"a..b\"",
            "[targets.a]\nkind = \"nats\"\nurl = \"http://h\"\nsubject = \"a\"",
            "retry_max_ms = 0",
        ] {
            assert!(matches!(read(bad), Ok(Err(ConfigError::Value { .. }))), "{bad}");
        }
        for unread in [
            "[targets.a]\nkind = \"webhook\"",
            "[targets.a]\nkind = \"kafka\"\nurl = \"http://h\"",
            "[targets.a]\nkind = \"webhook\"\nurl = \"http://h\"\nsubject = \"a\"",
        ] {
            assert!(read(unread).is_err(), "{unread}");
        }
    }
}
