//! A client's options as plain values, as other languages give them.

use std::fmt;
use std::time::Duration;

use keyway_client::{
    Addressing, Client, ClientBuilder, Credentials, PathPolicy, RdmaConfig, RetryPolicy, Tls,
};
use keyway_proto::{KeyStrength, TransferPath};

use crate::failure::Failure;

/// What a client is made of. What is `None` is as the Rust client has it.
#[derive(Clone, Default)]
pub struct Settings {
    /// `http://host:port` or `https://host`; else the environment's `KEYWAY_ENDPOINT` or
    /// `AWS_ENDPOINT_URL`.
    pub endpoint: Option<String>,
    /// The region that signatures name.
    pub region: Option<String>,
    /// The access key; without it, the environment's credentials, if there are any.
    pub access_key: Option<String>,
    /// Its secret.
    pub secret_key: Option<String>,
    /// The token of temporary credentials.
    pub session_token: Option<String>,
    /// Requests go unsigned, whatever the environment says.
    pub anonymous: bool,
    /// A PEM file with the authorities to be trusted.
    pub ca_file: Option<String>,
    /// `https://bucket.endpoint/key` instead of `https://endpoint/bucket/key`.
    pub virtual_host: bool,
    /// The bucket of keys that name none.
    pub bucket: Option<String>,
    /// `auto`, or the one path that may be taken.
    pub path: Option<String>,
    /// Keys weaker than this are not used.
    pub require_strength: Option<String>,
    /// The RDMA ports to be used.
    pub devices: Option<Vec<String>>,
    /// Bytes of one ranged read.
    pub get_part_bytes: Option<u64>,
    /// Bytes of one part of a large write.
    pub put_part_bytes: Option<u64>,
    /// Parts of one transfer in flight.
    pub concurrency: Option<usize>,
    /// Connections at a time.
    pub connections_max: Option<usize>,
    /// Attempts for one request, the first included.
    pub attempts_max: Option<u32>,
    /// How long a connection attempt may take.
    pub connect_timeout: Option<Duration>,
    /// How long an answer may be waited for.
    pub stall_timeout: Option<Duration>,
}

/// A value that names nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSetting {
    /// No such path.
    #[error("{0:?} is no path: auto, {paths}", paths = names(TransferPath::ALL.map(TransferPath::as_str)))]
    Path(String),
    /// No such key strength.
    #[error("{0:?} is no key strength: {all}", all = names(KeyStrength::ALL.map(KeyStrength::as_str)))]
    Strength(String),
    /// One half of a pair of credentials.
    #[error("an access key and a secret key come together")]
    HalfCredentials,
}

impl Settings {
    /// The client's builder with these settings.
    pub(crate) fn builder(&self) -> Result<ClientBuilder, Failure> {
        let mut builder = Client::builder();
        if let Some(endpoint) = self.endpoint.clone().or_else(environment_endpoint) {
            builder = builder.endpoint(endpoint);
        }
        if let Some(credentials) = self.credentials()? {
            builder = builder.credentials(credentials);
        }
        if let Some(region) = self.region.clone().or_else(environment_region) {
            builder = builder.region(region);
        }
        if let Some(file) = &self.ca_file {
            builder = builder.tls(Tls::CaFile(file.into()));
        }
        if self.virtual_host {
            builder = builder.addressing(Addressing::VirtualHost);
        }
        if let Some(devices) = &self.devices {
            builder = builder.rdma(RdmaConfig::default().devices(devices));
        }
        if let Some(path) = &self.path {
            builder = builder.path(path_policy(path)?);
        }
        if let Some(strength) = &self.require_strength {
            builder = builder.require_strength(key_strength(strength)?);
        }
        if let Some(attempts_max) = self.attempts_max {
            builder = builder.retry(RetryPolicy { attempts_max, ..RetryPolicy::default() });
        }
        Ok(self.bounds(builder))
    }

    fn bounds(&self, mut builder: ClientBuilder) -> ClientBuilder {
        if let Some(bytes) = self.get_part_bytes {
            builder = builder.get_part_bytes(bytes);
        }
        if let Some(bytes) = self.put_part_bytes {
            builder = builder.put_part_bytes(bytes);
        }
        if let Some(parts) = self.concurrency {
            builder = builder.concurrency(parts);
        }
        if let Some(connections) = self.connections_max {
            builder = builder.connections_max(connections);
        }
        if let Some(timeout) = self.connect_timeout {
            builder = builder.connect_timeout(timeout);
        }
        if let Some(timeout) = self.stall_timeout {
            builder = builder.stall_timeout(timeout);
        }
        builder
    }

    fn credentials(&self) -> Result<Option<Credentials>, Failure> {
        if self.anonymous {
            return Ok(None);
        }
        match (&self.access_key, &self.secret_key) {
            (Some(key), Some(secret)) => {
                let credentials = Credentials::new(key, secret.as_str());
                Ok(Some(match &self.session_token {
                    Some(token) => credentials.with_session_token(token.as_str()),
                    None => credentials,
                }))
            }
            (None, None) => Ok(Credentials::from_env().ok()),
            _ => Err(InvalidSetting::HalfCredentials.into()),
        }
    }
}

/// Shows nothing secret.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("endpoint", &self.endpoint)
            .field("bucket", &self.bucket)
            .field("path", &self.path)
            .field("require_strength", &self.require_strength)
            .finish_non_exhaustive()
    }
}

fn path_policy(text: &str) -> Result<PathPolicy, InvalidSetting> {
    if text == "auto" {
        return Ok(PathPolicy::Auto);
    }
    let path = TransferPath::ALL.into_iter().find(|path| path.as_str() == text);
    path.map(PathPolicy::Require).ok_or_else(|| InvalidSetting::Path(text.to_owned()))
}

fn key_strength(text: &str) -> Result<KeyStrength, InvalidSetting> {
    let strength = KeyStrength::ALL.into_iter().find(|strength| strength.as_str() == text);
    strength.ok_or_else(|| InvalidSetting::Strength(text.to_owned()))
}

fn names<const N: usize>(names: [&'static str; N]) -> String {
    names.join(", ")
}

fn environment_endpoint() -> Option<String> {
    first_of(["KEYWAY_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
}

fn environment_region() -> Option<String> {
    first_of(["AWS_REGION", "AWS_DEFAULT_REGION"])
}

fn first_of<const N: usize>(names: [&str; N]) -> Option<String> {
    names.into_iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn what_does_not_hold_is_said() {
        let local = || Settings {
            endpoint: Some("http://127.0.0.1:1".to_owned()),
            anonymous: true,
            ..Settings::default()
        };
        let built = |settings: Settings| settings.builder().map(drop).map_err(|f| f.kind());
        assert_eq!(built(local()), Ok(()));
        assert_eq!(built(Settings { path: Some("auto".to_owned()), ..local() }), Ok(()));
        let wrong = Settings { path: Some("carrier-pigeon".to_owned()), ..local() };
        assert_eq!(built(wrong), Err(Kind::Invalid));
        let wrong = Settings { require_strength: Some("strong".to_owned()), ..local() };
        let said = wrong.builder().map(drop).expect_err("no such strength").to_string();
        assert!(said.contains("window-local"), "{said}");
        let half = Settings { anonymous: false, access_key: Some("id".to_owned()), ..local() };
        assert_eq!(built(half), Err(Kind::Invalid));
    }

    #[test]
    fn nothing_secret_is_printed() {
        let settings = Settings { secret_key: Some("hush".to_owned()), ..Settings::default() };
        assert!(!format!("{settings:?}").contains("hush"));
    }
}
