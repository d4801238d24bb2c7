//! What all client commands share: how the endpoint is reached, and how objects are named.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context as _;
use keyway_client::{
    Addressing, Client, ClientBuilder, Credentials, Durability, Fallbacks, PathPolicy, RdmaConfig,
    Tls,
};
use keyway_proto::{KeyStrength, TransferPath};

/// How the S3 service is reached.
#[derive(clap::Args, Clone)]
pub(crate) struct Connection {
    /// Where the S3 service answers; AWS_ENDPOINT_URL is used too.
    #[arg(long, env = "KEYWAY_ENDPOINT", value_name = "URL")]
    endpoint: Option<String>,
    /// The region that signatures name; AWS_REGION is used too.
    #[arg(long, env = "KEYWAY_REGION", value_name = "NAME")]
    region: Option<String>,
    /// The access key; its secret is read from KEYWAY_SECRET_KEY or AWS_SECRET_ACCESS_KEY.
    #[arg(long, env = "KEYWAY_ACCESS_KEY", value_name = "ID")]
    access_key: Option<String>,
    /// Trust the certificate authorities in this PEM file, and no others.
    #[arg(long, env = "KEYWAY_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Name buckets in the host instead of the path.
    #[arg(long)]
    virtual_host: bool,
    /// Set by [`Connection::peer`].
    #[arg(skip)]
    peer: Option<Credentials>,
}

/// How objects' bytes travel.
#[derive(clap::Args, Clone)]
pub(crate) struct Transfer {
    /// By which path: `auto` takes the best that both ends have; the others fail where they
    /// cannot be had.
    #[arg(long, value_enum, default_value_t = PathChoice::Auto)]
    path: PathChoice,
    /// RDMA ports to use, such as mlx5_0 or mlx5_0/1; all active ones unless said.
    #[arg(long, env = "KEYWAY_RDMA_DEVICES", value_name = "PORT", value_delimiter = ',')]
    rdma_devices: Vec<String>,
    /// Traffic class of this end's RDMA packets: under RoCE, DSCP and ECN.
    #[arg(long, env = "KEYWAY_RDMA_TRAFFIC_CLASS", value_name = "0-255")]
    rdma_traffic_class: Option<u8>,
    /// Service level of this end's packets on InfiniBand; the subnet manager's unless said.
    #[arg(
        long,
        env = "KEYWAY_RDMA_SERVICE_LEVEL",
        value_name = "0-15",
        value_parser = clap::value_parser!(u8).range(0..=15)
    )]
    rdma_service_level: Option<u8>,
    /// Refuse weaker keys to this process's memory.
    #[arg(long, value_enum, value_name = "STRENGTH")]
    require_strength: Option<StrengthChoice>,
    /// Use no stronger keys over adapters than these, as an adapter would that has no better ones.
    #[arg(long, value_enum, value_name = "STRENGTH", default_value = "window")]
    strength_max: StrengthChoice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PathChoice {
    /// The door of a node of this host, else RDMA, else HTTP.
    Auto,
    /// The bodies of requests and answers.
    Http,
    /// RDMA into this process's memory.
    VerbsHost,
    /// Memory shared with a node of this host.
    IpcHost,
    /// GPU memory exported to a node of this host.
    IpcGpu,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum StrengthChoice {
    /// A slab of this process's own, registered for long, that transfers are copied out of and into.
    Slab,
    /// An entry in the table of a node of this host.
    Ipc,
    /// Memory registered for one transfer.
    Registration,
    /// A window that this end invalidates.
    WindowLocal,
    /// A window that the storage node invalidates.
    Window,
}

impl From<StrengthChoice> for KeyStrength {
    fn from(choice: StrengthChoice) -> Self {
        match choice {
            StrengthChoice::Slab => Self::Slab,
            StrengthChoice::Ipc => Self::Ipc,
            StrengthChoice::Registration => Self::Registration,
            StrengthChoice::WindowLocal => Self::WindowLocal,
            StrengthChoice::Window => Self::Window,
        }
    }
}

impl PathChoice {
    /// Its name on the command line.
    pub(crate) fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self);
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

impl Transfer {
    /// The same by another path.
    pub(crate) fn by(&self, path: PathChoice) -> Self {
        Self { path, ..self.clone() }
    }

    /// Adds these settings to a client's.
    pub(crate) fn apply(&self, builder: ClientBuilder) -> ClientBuilder {
        let mut rdma = RdmaConfig::default().strength_max(self.strength_max.into());
        rdma.traffic_class = self.rdma_traffic_class;
        rdma.service_level = self.rdma_service_level;
        if !self.rdma_devices.is_empty() {
            rdma = rdma.devices(&self.rdma_devices);
        }
        let builder = builder.rdma(rdma).path(match self.path {
            PathChoice::Auto => PathPolicy::Auto,
            PathChoice::Http => PathPolicy::Require(TransferPath::Http),
            PathChoice::VerbsHost => PathPolicy::Require(TransferPath::VerbsHost),
            PathChoice::IpcHost => PathPolicy::Require(TransferPath::IpcHost),
            PathChoice::IpcGpu => PathPolicy::Require(TransferPath::IpcGpu),
        });
        match self.require_strength {
            None => builder,
            Some(strength) => builder.require_strength(strength.into()),
        }
    }
}

/// Reasons and counts, for JSON.
pub(crate) fn fallbacks(fallbacks: &Fallbacks) -> serde_json::Value {
    let counted = fallbacks
        .iter()
        .map(|(reason, count)| (reason.to_string(), serde_json::Value::from(count)));
    counted.collect::<serde_json::Map<_, _>>().into()
}

/// The endpoint of `keyway serve` as it comes.
const ENDPOINT_DEFAULT: &str = "http://127.0.0.1:9000";

impl Connection {
    /// A client with these settings.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Ok(self.builder()?.build()?)
    }

    /// The same with room for more settings.
    pub(crate) fn builder(&self) -> anyhow::Result<ClientBuilder> {
        let endpoint = self
            .endpoint
            .clone()
            .or_else(|| variable("AWS_ENDPOINT_URL_S3"))
            .or_else(|| variable("AWS_ENDPOINT_URL"))
            .unwrap_or_else(|| ENDPOINT_DEFAULT.to_owned());
        let region = self
            .region
            .clone()
            .or_else(|| variable("AWS_REGION"))
            .or_else(|| variable("AWS_DEFAULT_REGION"))
            .unwrap_or_else(|| "us-east-1".to_owned());
        let addressing = if self.virtual_host { Addressing::VirtualHost } else { Addressing::Path };
        let ca_file = self.ca_file.clone().or_else(|| variable("AWS_CA_BUNDLE").map(Into::into));
        Ok(Client::builder()
            .endpoint(endpoint)
            .region(region)
            .credentials(self.credentials()?)
            .addressing(addressing)
            .tls(ca_file.map_or(Tls::SystemRoots, Tls::CaFile)))
    }

    /// The same for another service, with credentials of its own where they are set.
    pub(crate) fn peer(&self, name: &str, url: &str) -> Self {
        let prefix = format!("KEYWAY_PEER_{}", name.to_uppercase().replace('-', "_"));
        let own = variable(&format!("{prefix}_ACCESS_KEY"))
            .zip(variable(&format!("{prefix}_SECRET_KEY")))
            .map(|(id, secret)| Credentials::new(&id, secret));
        Self { endpoint: Some(url.to_owned()), peer: own, ..self.clone() }
    }

    fn credentials(&self) -> anyhow::Result<Credentials> {
        if let Some(peer) = &self.peer {
            return Ok(peer.clone());
        }
        let Some(id) = &self.access_key else { return Ok(Credentials::from_env()?) };
        let secret = variable("KEYWAY_SECRET_KEY")
            .or_else(|| variable("AWS_SECRET_ACCESS_KEY"))
            .context("set KEYWAY_SECRET_KEY to the access key's secret")?;
        Ok(Credentials::new(id, secret))
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// `s3://bucket/key`, where the key may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct S3Url {
    /// The bucket.
    pub(crate) bucket: String,
    /// The key, or a prefix of keys.
    pub(crate) key: String,
}

impl FromStr for S3Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("s3://").ok_or("it begins with s3://")?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err("it names no bucket".to_owned());
        }
        Ok(Self { bucket: bucket.to_owned(), key: key.to_owned() })
    }
}

impl S3Url {
    /// An address that must name an object.
    pub(crate) fn object(text: &str) -> Result<Self, String> {
        let url: Self = text.parse()?;
        if url.key.is_empty() { Err("it names no object".to_owned()) } else { Ok(url) }
    }

    /// An address that must name a bucket and nothing in it.
    pub(crate) fn bucket(text: &str) -> Result<Self, String> {
        let url: Self = text.parse()?;
        if url.key.is_empty() { Ok(url) } else { Err("it names more than a bucket".to_owned()) }
    }
}

/// Runs a command's asynchronous part.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}

/// A durability by its name.
pub(crate) fn durability(text: &str) -> Result<Durability, String> {
    Durability::named(text).ok_or_else(|| "disk or memory".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let url = |bucket: &str, key: &str| S3Url { bucket: bucket.into(), key: key.into() };
        assert_eq!("s3://b/k/l".parse(), Ok(url("b", "k/l")));
        assert_eq!("s3://b".parse(), Ok(url("b", "")));
        assert_eq!("s3://b//k".parse(), Ok(url("b", "/k")));
        for bad in ["b/k", "s3://", "s3:///k", "http://b/k"] {
            assert!(bad.parse::<S3Url>().is_err(), "{bad}");
        }
        assert!(S3Url::object("s3://b/").is_err());
        assert!(S3Url::bucket("s3://b/k").is_err());
    }
}
