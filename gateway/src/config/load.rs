//! From the sources to a valid [`Config`].

use std::path::PathBuf;

use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use figment::value::{Dict, Value};
use keyway_auth::{InvalidCredentials, RootCredentials};

use super::{Config, Tls};

/// Prefix of environment variables.
const PREFIX: &str = "KEYWAY_";
/// Half of what a gateway waits for a remote node's transfer: the node is to give up first.
const TRANSFER_TIMEOUT_MS_MAX: u64 = 300_000;
/// Sessions are looked at this often, and no more.
const IDLE_TIMEOUT_MS_MIN: u64 = 100;
/// Separates sections in environment variables.
const NESTING: &str = "__";
/// The two that have a second, shorter name, and are text even when they look like numbers.
const ROOT_VARIABLES: [(&str, &str); 4] = [
    ("KEYWAY_ROOT__ACCESS_KEY", "root.access_key"),
    ("KEYWAY_ROOT__SECRET_KEY", "root.secret_key"),
    ("KEYWAY_ROOT_ACCESS_KEY", "root.access_key"),
    ("KEYWAY_ROOT_SECRET_KEY", "root.secret_key"),
];
/// OpenTelemetry's own variables for settings of ours.
const OTLP_VARIABLES: [(&str, &str); 2] = [
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "telemetry.otlp_endpoint"),
    ("OTEL_EXPORTER_OTLP_CERTIFICATE", "telemetry.otlp_authority_file"),
];

/// Where the configuration comes from, beside the defaults and the environment.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// A TOML file; it must exist.
    pub file: Option<PathBuf>,
    /// Names and values from flags, for example `limits.max_connections` and `100`; values
    /// read as TOML, and as text where they are none.
    pub flags: Vec<(String, String)>,
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file does not exist or cannot be read.
    #[error("cannot read the configuration {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A source does not fit the tree: unknown name, wrong type.
    #[error("invalid configuration")]
    Tree(#[source] Box<figment::Error>),
    /// A variable that looks like a setting but names none.
    #[error("unknown environment variable {name}: sections are separated by two underscores")]
    Variable {
        /// The variable.
        name: String,
    },
    /// Root credentials half given.
    #[error(
        "root.access_key and root.secret_key (KEYWAY_ROOT_ACCESS_KEY and \
         KEYWAY_ROOT_SECRET_KEY) are given together or not at all"
    )]
    HalfCredentials,
    /// Gateways and nodes cannot recognise each other.
    #[error("cluster.authority_file, cluster.cert_file and cluster.key_file are needed")]
    ClusterTls,
    /// Root credentials that cannot be used.
    #[error("invalid root credentials")]
    Credentials(#[source] InvalidCredentials),
    /// A value that is well-formed but makes no sense.
    #[error("{name} {rule}")]
    Value {
        /// The setting.
        name: &'static str,
        /// What must hold of it.
        rule: &'static str,
    },
}

impl Config {
    /// Reads all sources and checks the whole.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting and the source.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        check_variables()?;
        let mut figment = Figment::from(Serialized::defaults(Self::default()));
        if let Some(path) = &sources.file {
            let text = std::fs::read_to_string(path)
                .map_err(|source| ConfigError::File { path: path.clone(), source })?;
            figment = figment.merge(Toml::string(&text));
        }
        for (variable, name) in OTLP_VARIABLES {
            if let Ok(value) = std::env::var(variable) {
                figment = figment.merge(text(name, value));
            }
        }
        figment = figment.merge(variables());
        for (variable, name) in ROOT_VARIABLES {
            if let Ok(value) = std::env::var(variable) {
                figment = figment.merge(text(name, value));
            }
        }
        for (name, value) in &sources.flags {
            figment = figment.merge(flag(name, value));
        }
        let config: Self = figment.extract().map_err(|error| ConfigError::Tree(Box::new(error)))?;
        config.check()?;
        Ok(config)
    }

    /// The root credentials, when they are configured.
    ///
    /// # Errors
    /// Those that [`load`](Self::load) would have found.
    pub fn root_credentials(&self) -> Result<Option<RootCredentials>, ConfigError> {
        match (&self.root.access_key, &self.root.secret_key) {
            (None, None) => Ok(None),
            (Some(id), Some(secret)) => RootCredentials::given(id, secret.0.clone())
                .map(Some)
                .map_err(ConfigError::Credentials),
            _ => Err(ConfigError::HalfCredentials),
        }
    }

    /// The effective configuration as TOML, secrets hidden.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("the tree has nothing that TOML lacks")
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.root_credentials()?;
        let refuse = |name, rule| Err(ConfigError::Value { name, rule });
        let limits = &self.limits;
        if !(8 * 1024..=1024 * 1024).contains(&limits.header_bytes) {
            return refuse("limits.header_bytes", "must be from 8 KiB to 1 MiB");
        }
        if !(16..=1000).contains(&limits.header_fields) {
            return refuse("limits.header_fields", "must be from 16 to 1000");
        }
        if [limits.header_timeout_ms, limits.idle_timeout_ms, limits.body_stall_timeout_ms]
            .contains(&0)
        {
            return refuse("limits", "has timeouts, and none of them can be 0");
        }
        if self.runtime.worker_threads == Some(0) {
            return refuse("runtime.worker_threads", "must be at least 1");
        }
        if !(0.0..=1.0).contains(&self.telemetry.trace_ratio) {
            return refuse("telemetry.trace_ratio", "must be from 0 to 1");
        }
        if self.telemetry.metrics_interval_ms == 0 {
            return refuse("telemetry.metrics_interval_ms", "must be at least 1");
        }
        let rdma = &self.node.rdma;
        if !(1..=TRANSFER_TIMEOUT_MS_MAX).contains(&rdma.transfer_timeout_ms) {
            return refuse("node.rdma.transfer_timeout_ms", "must be from 1 to 300000");
        }
        if rdma.idle_timeout_ms < IDLE_TIMEOUT_MS_MIN {
            return refuse("node.rdma.idle_timeout_ms", "must be at least 100");
        }
        if rdma.service_level.is_some_and(|level| level > 15) {
            return refuse("node.rdma.service_level", "must be from 0 to 15");
        }
        self.cluster.nodes()?;
        self.notify.check()?;
        if let Tls::Files { cert_file, key_file } = &self.listen.tls
            && (cert_file.as_os_str().is_empty() || key_file.as_os_str().is_empty())
        {
            return refuse("listen.tls", "needs both a certificate and a key");
        }
        Ok(())
    }
}

/// The settings in the environment.
fn variables() -> Env {
    let top = ["data_dir"];
    Env::prefixed(PREFIX)
        .filter(move |name| {
            let name = name.as_str().to_ascii_lowercase();
            // Credentials are read as text instead, under both of their names.
            let credential = ROOT_VARIABLES
                .iter()
                .any(|(variable, _)| variable[PREFIX.len()..].eq_ignore_ascii_case(&name));
            (name.contains(NESTING) && !credential) || top.contains(&&*name)
        })
        .split(NESTING)
}

/// Refuses variables that begin like a section but nest with one underscore: ignoring a
/// misspelt setting is worse than refusing to start.
fn check_variables() -> Result<(), ConfigError> {
    let sections: Vec<String> = toml::Table::try_from(Config::default())
        .expect("the tree has nothing that TOML lacks")
        .into_iter()
        .filter_map(|(name, value)| value.is_table().then(|| name.to_ascii_uppercase()))
        .collect();
    for (name, _) in std::env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        if ROOT_VARIABLES.iter().any(|(known, _)| *known == name) {
            continue;
        }
        let misspelt = sections.iter().any(|section| {
            rest.strip_prefix(section.as_str())
                .is_some_and(|rest| rest.starts_with('_') && !rest.starts_with(NESTING))
        });
        if misspelt {
            return Err(ConfigError::Variable { name: name.to_owned() });
        }
    }
    Ok(())
}

/// A layer with one setting, whose value is text.
fn text(name: &str, value: String) -> Figment {
    layer(name, Value::from(value))
}

/// A layer with one setting from a flag.
fn flag(name: &str, value: &str) -> Figment {
    // Figment reads values of environment variables leniently: numbers, booleans, lists, and
    // text where it is none of them. Flags follow the same rules.
    let value = value.parse::<Value>().unwrap_or_else(|never| match never {});
    layer(name, value)
}

fn layer(name: &str, value: Value) -> Figment {
    let nested = name
        .rsplit('.')
        .fold(value, |inner, part| Value::from(Dict::from([(part.to_owned(), inner)])));
    let dict = nested.into_dict().unwrap_or_default();
    Figment::from(Serialized::globals(dict))
}

#[cfg(test)]
mod tests {
    use figment::Jail;
    use keyway_proto::DcKey;

    use super::*;

    fn load() -> Result<Config, ConfigError> {
        let sources = Sources { file: Some("keyway.toml".into()), ..Sources::default() };
        Config::load(&sources)
    }

    #[test]
    #[expect(clippy::result_large_err, reason = "figment's own error type")]
    fn later_sources_win() {
        Jail::expect_with(|jail| {
            jail.create_file(
                "keyway.toml",
                "[limits]\nmax_connections = 10\nheader_fields = 20\nidle_timeout_ms = 30",
            )?;
            jail.set_env("KEYWAY_LIMITS__HEADER_FIELDS", "21");
            jail.set_env("KEYWAY_LIMITS__IDLE_TIMEOUT_MS", "31");
            jail.set_env("KEYWAY_DATA_DIR", "/data");
            let sources = Sources {
                file: Some("keyway.toml".into()),
                flags: vec![("limits.idle_timeout_ms".into(), "32".into())],
            };
            let config = Config::load(&sources).unwrap();
            assert_eq!(config.limits.max_connections.get(), 10);
            assert_eq!(config.limits.header_fields, 21);
            assert_eq!(config.limits.idle_timeout_ms, 32);
            assert_eq!(config.data_dir.to_str(), Some("/data"));
            assert_eq!(config.limits.header_timeout_ms, Config::default().limits.header_timeout_ms);
            Ok(())
        });
    }

    #[test]
    #[expect(clippy::result_large_err, reason = "figment's own error type")]
    fn unknown_names_are_refused_in_every_source() {
        Jail::expect_with(|jail| {
            for text in ["x = 1", "[listen]\naddres = \"[::]:1\"", "[nodes]", "[s3.deep]\nx = 1"] {
                jail.create_file("keyway.toml", text)?;
                assert!(matches!(load(), Err(ConfigError::Tree(_))), "{text}");
            }
            jail.create_file("keyway.toml", "[listen.tls]\nmode = \"auto\"\nkey_file = \"k\"")?;
            assert!(matches!(load(), Err(ConfigError::Tree(_))));
            jail.create_file("keyway.toml", "")?;
            let flags = vec![("listen.port".into(), "1".into())];
            let flagged = Config::load(&Sources { file: None, flags });
            assert!(matches!(flagged, Err(ConfigError::Tree(_))));
            jail.set_env("KEYWAY_LISTEN__PORT", "1");
            assert!(matches!(load(), Err(ConfigError::Tree(_))));
            Ok(())
        });
    }

    /// Goal: the access key of dynamically connected targets is read from every source, in both of
    /// its forms, and shown by none.
    #[test]
    #[expect(clippy::result_large_err, reason = "figment's own error type")]
    fn the_key_of_dynamic_targets_is_read_and_hidden() {
        Jail::expect_with(|jail| {
            jail.create_file("keyway.toml", "")?;
            assert_eq!(load().unwrap().node.rdma.dc_key, None);
            for (value, key) in [("4242", 4242), ("\"0x0123456789abcdef\"", 0x0123_4567_89ab_cdef)]
            {
                jail.create_file("keyway.toml", &format!("[node.rdma]\ndc_key = {value}"))?;
                let config = load().unwrap();
                assert_eq!(config.node.rdma.dc_key, Some(DcKey(key)));
                let shown = format!("{config:?} {}", config.to_toml());
                assert!(!shown.contains("4242") && !shown.contains("abcdef"), "{shown}");
            }
            for bad in ["-4242", "\"4242\"", "\"0xg\"", "\"\"", "42.42", "true"] {
                jail.create_file("keyway.toml", &format!("[node.rdma]\ndc_key = {bad}"))?;
                let error = format!("{:?}", load().unwrap_err());
                assert!(!error.contains("4242"), "{error}");
            }
            jail.create_file("keyway.toml", "")?;
            jail.set_env("KEYWAY_NODE__RDMA__DC_KEY", "0xfeed");
            assert_eq!(load().unwrap().node.rdma.dc_key, Some(DcKey(0xfeed)));
            jail.set_env("KEYWAY_NODE__RDMA__DC_KEY", "4242");
            assert_eq!(load().unwrap().node.rdma.dc_key, Some(DcKey(4242)));
            Ok(())
        });
    }

    #[test]
    #[expect(clippy::result_large_err, reason = "figment's own error type")]
    fn a_variable_nested_with_one_underscore_is_refused() {
        Jail::expect_with(|jail| {
            jail.create_file("keyway.toml", "")?;
            jail.set_env("KEYWAY_LISTEN_ADDRESS", "[::]:1");
            match load() {
                Err(ConfigError::Variable { name }) => assert_eq!(name, "KEYWAY_LISTEN_ADDRESS"),
                other => panic!("{other:?}"),
            }
            Ok(())
        });
    }

    #[test]
    #[expect(clippy::result_large_err, reason = "figment's own error type")]
    fn root_credentials_come_whole_and_stay_hidden() {
        Jail::expect_with(|jail| {
            jail.create_file("keyway.toml", "")?;
            jail.set_env("KEYWAY_ROOT_ACCESS_KEY", "12345");
            assert!(matches!(load(), Err(ConfigError::HalfCredentials)));
            jail.set_env("KEYWAY_ROOT_SECRET_KEY", "123");
            assert!(matches!(load(), Err(ConfigError::Credentials(_))));
            // All digits: text, not a number.
            jail.set_env("KEYWAY_ROOT_SECRET_KEY", "12345678901234567890");
            let config = load().unwrap();
            let root = config.root_credentials().unwrap().unwrap();
            assert_eq!(root.access_key().as_str(), "12345");
            assert_eq!(root.secret().expose(), "12345678901234567890");
            for shown in [config.to_toml(), format!("{config:?}")] {
                assert!(!shown.contains("12345678901234567890"), "{shown}");
            }
            Ok(())
        });
    }

    #[test]
    #[expect(clippy::result_large_err, reason = "figment's own error type")]
    fn the_printed_configuration_is_one() {
        Jail::expect_with(|jail| {
            let tls = "[listen.tls]\nmode = \"files\"\ncert_file = \"c\"\nkey_file = \"k\"";
            jail.create_file("keyway.toml", tls)?;
            let config = load().unwrap();
            jail.create_file("keyway.toml", &config.to_toml())?;
            assert_eq!(load().unwrap().to_toml(), config.to_toml());
            Ok(())
        });
    }

    #[test]
    #[expect(clippy::result_large_err, reason = "figment's own error type")]
    fn senseless_values_are_refused_by_name() {
        Jail::expect_with(|jail| {
            for (text, setting) in [
                ("[limits]\nheader_bytes = 10", "limits.header_bytes"),
                ("[limits]\nidle_timeout_ms = 0", "limits"),
                ("[runtime]\nworker_threads = 0", "runtime.worker_threads"),
                ("[telemetry]\ntrace_ratio = 1.5", "telemetry.trace_ratio"),
                ("[node.rdma]\ntransfer_timeout_ms = 600000", "node.rdma.transfer_timeout_ms"),
                ("[node.rdma]\nidle_timeout_ms = 0", "node.rdma.idle_timeout_ms"),
                ("[node.rdma]\nservice_level = 16", "node.rdma.service_level"),
            ] {
                jail.create_file("keyway.toml", text)?;
                match load() {
                    Err(ConfigError::Value { name, .. }) => assert_eq!(name, setting),
                    other => panic!("{text}: {other:?}"),
                }
            }
            Ok(())
        });
    }
}
