//! Configuration: one typed tree, parsed once.
//!
//! Sources, later ones winning: the defaults below, a TOML file, the environment
//! (`KEYWAY_LISTEN__ADDRESS` is `listen.address`), flags. Unknown names are refused in all of
//! them. docs/config.md is generated from these declarations.

mod cluster;
mod load;
mod notify;
mod reference;
mod secret;
pub(crate) mod settings;
mod tls;

use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

pub use load::{ConfigError, Sources};
pub use notify::{Target, Targets};
pub use reference::reference;
pub use secret::Secret;
pub use tls::{Tls, TlsVersion};

use keyway_dataplane::{AccessMode, TierAdmit, TierPages, TierVerify};
use keyway_proto::DcKey;
use settings::{section, values};

use crate::s3::S3Config;

/// Events from ourselves and what goes wrong below. Not the S3 protocol layer's: it logs every
/// mistake of a client as an error, and parts of requests with it.
const LOG_FILTER: &str = "info,s3s=off,opentelemetry=warn,opentelemetry_sdk=warn";

const KIB: usize = 1024;
const MIB: u64 = 1024 * 1024;

section! {
    /// Settings outside any section.
    pub struct Config {
        /// Directory of everything that `serve` and `node` keep. One process at a time.
        pub data_dir: PathBuf = PathBuf::from("keyway-data"),
        /// Where the server listens.
        pub listen: Listen = Listen::default(),
        /// What a client may demand of the server.
        pub limits: Limits = Limits::default(),
        /// Threads.
        pub runtime: Runtime = Runtime::default(),
        /// The S3 protocol.
        pub s3: S3Config = S3Config::default(),
        /// The metadata store.
        pub meta: Meta = Meta::default(),
        /// The storage node.
        pub node: Node = Node::default(),
        /// Gateways and nodes as processes of their own.
        pub cluster: Cluster = Cluster::default(),
        /// What runs beside the requests.
        pub maintenance: Maintenance = Maintenance::default(),
        /// Events of buckets, and where they are sent.
        pub notify: Notify = Notify::default(),
        /// The audit log.
        pub audit: Audit = Audit::default(),
        /// Those who fail to say who they are.
        pub auth: Auth = Auth::default(),
        /// Issuers of web identities' tokens.
        pub oidc: Oidc = Oidc::default(),
        /// The root tenant.
        pub root: Root = Root::default(),
        /// Logs, metrics and traces.
        pub telemetry: Telemetry = Telemetry::default(),
    }

    /// Where the server listens, and how a stop is drained.
    pub struct Listen {
        /// Address of the S3 endpoint. Port 0 takes a free one, told in the ready line.
        pub address: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, 9000)),
        /// Address of `/healthz`, `/readyz` and `/metrics`: plain HTTP without signatures, so
        /// keep it where only operators reach it. Unset: on loopback, at the port after the
        /// S3 endpoint's, or a free one when that is 0.
        pub admin_address: Option<SocketAddr> = None,
        /// How the S3 endpoint is secured: `mode = "auto"` (plaintext on a loopback address,
        /// a generated certificate elsewhere), `"generated"` (a development certificate under
        /// an authority of the data directory), `"files"` with `cert_file` and `key_file`
        /// (PEM, reloaded when they change), or `"plaintext"`.
        pub tls: Tls = Tls::Auto {},
        /// Lowest TLS version accepted: `"1.3"`, or `"1.2"` for old clients.
        pub tls_minimum_version: TlsVersion = TlsVersion::V1_3,
        /// Further names and addresses for the generated certificate. `localhost`, the
        /// loopback addresses, the listen address and the host's name are always in it.
        pub tls_names: Vec<String> = Vec::new(),
        /// TCP congestion control of the S3 endpoint's connections, of those that the system
        /// offers (`net.ipv4.tcp_available_congestion_control`). Unset: the system's default.
        /// Where that is `bbr` and clients are on this host, `"cubic"` saves a third or more of
        /// the CPU time of large reads: BBR sets a timer for each burst it paces.
        pub tcp_congestion: Option<String> = None,
        /// How long a stop waits for requests under way.
        pub drain_timeout_ms: u64 = 30_000,
    }

    /// What a client may demand of the server.
    pub struct Limits {
        /// Connections open at once, and at most three quarters of the file descriptors that the
        /// process may have. Beyond that, those that wait for a request make room for new ones,
        /// the most silent first; where all are busy, new ones wait.
        pub max_connections: NonZeroU32 = non_zero(8192),
        /// Requests under way at once. Further ones are answered with 503 `SlowDown`.
        pub max_concurrent_requests: NonZeroU32 = non_zero(1024),
        /// Bytes of a request's header section. S3 allows 8 KiB; presigned URLs and metadata
        /// make more than that on the wire.
        pub header_bytes: usize = 32 * KIB,
        /// Header fields in a request.
        pub header_fields: usize = 100,
        /// How long a connection may take to send a request's header, and to shake hands.
        pub header_timeout_ms: u64 = 10_000,
        /// How long a connection may stay open without a request.
        pub idle_timeout_ms: u64 = 75_000,
        /// How long a body may stall, in either direction: in so much time spent waiting for
        /// the client, `body_progress_bytes` must pass.
        pub body_stall_timeout_ms: u64 = 20_000,
        /// Bytes that must pass within the stall timeout.
        pub body_progress_bytes: usize = 16 * KIB,
        /// Concurrent HTTP/2 streams on a connection.
        pub http2_streams: NonZeroU32 = non_zero(64),
    }

    /// Threads.
    pub struct Runtime {
        /// Threads that run requests. Unset: one per core.
        pub worker_threads: Option<usize> = None,
    }

    /// The audit log: what was refused, changed and moved, in lines that hold each other.
    pub struct Audit {
        /// Whether it is written.
        pub enabled: bool = true,
        /// The file, which is verified at each start. Unset: `audit.jsonl` in the data directory.
        pub file: Option<PathBuf> = None,
        /// Bytes from which on the file is put aside, as `FILE.1`, and another one begun.
        pub file_bytes_max: u64 = 16 * MIB,
        /// Files that are kept so; the oldest goes.
        pub files_max: u32 = 8,
    }

    /// Those who fail to say who they are: unknown keys, wrong signatures, bad tokens
    /// (docs/tenants.md).
    pub struct Auth {
        /// Attempts that may fail at once, of one address (of IPv6, one network of 64 bits), and
        /// with one access key; 0 lets all of them be verified.
        pub failures_burst: u32 = 20,
        /// Attempts that may fail in a second, after those.
        pub failures_per_second: NonZeroU32 = NonZeroU32::MIN,
        /// How long the address or the key is under a penalty that fails more often: what it
        /// tries is answered with 503 `SlowDown`, unverified.
        pub penalty_ms: u64 = 10_000,
    }

    /// Issuers of web identities' tokens (docs/tenants.md), which are asked for their keys.
    pub struct Oidc {
        /// How long an issuer may take to tell its keys, in all.
        pub timeout_ms: u64 = 5_000,
        /// How old an issuer's keys may be. Older ones verify nothing until it tells them again.
        pub keys_max_age_s: u32 = 3600,
        /// How often an issuer is asked at most, whatever keys tokens name.
        pub refetch_interval_ms: u64 = 10_000,
        /// How far an issuer's clock may be off, in seconds.
        pub clock_skew_s: u32 = 60,
    }

    /// The embedded metadata store.
    pub struct Meta {
        /// Memory for cached pages, in bytes.
        pub cache_bytes: u64 = 16 * MIB,
        /// Space left free on the device, in bytes, or a sixteenth of it if that is less:
        /// below it, commits that need space are refused and those that give space up still
        /// go through. The journal holds a row for each 8 KiB of it before the tree is written.
        pub reserve_bytes: u64 = 8 * MIB,
    }

    /// The storage node.
    pub struct Node {
        /// The node's id, unique in its cluster.
        pub id: u32 = 1,
        /// Transfers under way at once.
        pub max_transfers: NonZeroUsize = non_zero_usize(256),
        /// Of these, the most of one tenant.
        pub max_transfers_per_tenant: NonZeroUsize = non_zero_usize(192),
        /// Transfers waiting for their turn. One more is answered with 503.
        pub max_waiting_transfers: usize = 4096,
        /// The blob store.
        pub store: Store = Store::default(),
        /// The memory tier: what the node keeps in memory of its store.
        pub tier: Tier = Tier::default(),
        /// RDMA: transfers into clients' own memory.
        pub rdma: Rdma = Rdma::default(),
        /// Clients of the node's own host: transfers into memory that they share.
        pub ipc: Ipc = Ipc::default(),
    }

    /// The memory tier of the node: hot extents in registered memory, from which reads take
    /// neither the disk nor a processor's pass over the bytes.
    pub struct Tier {
        /// Memory for hot extents, in bytes; 0 turns the tier off. It is taken as it fills, or
        /// at once where an RDMA adapter or a GPU registers it: then the limit of locked
        /// memory must allow it. The default is for small objects that are read again and
        /// again; chunks (of up to 16 MiB) larger than a quarter of it come in when they are
        /// prefetched, not by themselves.
        pub size_bytes: u64 = 16 * MIB,
        /// What comes in by itself: `"on-read"`, `"on-write"`, `"on-read-and-write"`, or
        /// `"on-prefetch"`, which is nothing. What is prefetched always comes in.
        pub admit: TierAdmit = TierAdmit::OnReadAndWrite,
        /// The pages that the memory is made of: `"transparent"` huge pages where the kernel
        /// finds them, `"reserved"` ones of 2 MiB (`vm.nr_hugepages`; without enough of them
        /// the node does not start), or `"off"`.
        pub huge_pages: TierPages = TierPages::Transparent,
        /// When bytes in the tier are compared with their CRC32C: `"at-fill"`, on their way
        /// in, or `"every-read"` as well, which costs the pass that the tier saves. Clients
        /// that check what they receive notice changed bytes in either case.
        pub verify: TierVerify = TierVerify::AtFill,
        /// Bytes per second of the tier that are compared in the background; 0 turns it off.
        pub scrub_bytes_per_second: u64 = 16 * MIB,
        /// Of the memory, the bytes that may be there and not on the device yet, because their
        /// writers asked not to wait (`x-keyway-durability: memory`); 0 makes every write
        /// durable before it is answered. Unset: half of it.
        pub dirty_bytes: Option<u64> = None,
    }

    /// RDMA of the node. The limits hold for sessions of clients of its own host, too.
    pub struct Rdma {
        /// Whether RDMA adapters are used: `"auto"` where one passes its self-test,
        /// `"require"`, or `"off"`.
        pub mode: AccessMode = AccessMode::Auto,
        /// Ports that take sessions, as `"mlx5_0"` (all its ports) or `"mlx5_0/1"`. Empty:
        /// all that are active.
        pub devices: Vec<String> = Vec::new(),
        /// The traffic class of the node's packets, 0 to 255: DSCP in the upper six bits and ECN
        /// in the lower two, under RoCE the IP header's. Unset: what the host says for the path
        /// (RDMA-CM), else 0. Clients have their own (`--rdma-traffic-class`).
        pub traffic_class: Option<u8> = None,
        /// The service level of the node's packets on InfiniBand, 0 to 15. Unset: what the subnet
        /// manager says for the path (RDMA-CM), else 0.
        pub service_level: Option<u8> = None,
        /// Sessions open at once.
        pub max_sessions: usize = 1024,
        /// Sessions open at once of one access key.
        pub max_sessions_per_key: usize = 256,
        /// Transfers that one session may have in flight.
        pub max_windows_per_session: NonZeroU32 = non_zero(64),
        /// How long a session may stay unused.
        pub idle_timeout_ms: u64 = 300_000,
        /// How long a transfer may take until it is given up, and its key ended.
        pub transfer_timeout_ms: u64 = 60_000,
        /// The access key of clients' dynamically connected targets (those that send tokens of 81
        /// characters), which they are made with and tokens do not carry: an integer, or `"0x"` and
        /// up to 16 hexadecimal digits. Unset: such tokens are declined. Their keys have the
        /// strength `standing`, which policies on `keyway:KeyStrength` may forbid.
        pub dc_key: Option<DcKey> = None,
    }

    /// Clients of the node's own host.
    pub struct Ipc {
        /// Whether there is a door for them: `"auto"` where its socket can be opened,
        /// `"require"`, or `"off"`.
        pub mode: AccessMode = AccessMode::Auto,
        /// The Unix socket, at most 107 bytes long. Unset: `door` in the data directory, which
        /// only the server's own user reaches.
        pub socket: Option<PathBuf> = None,
        /// User ids that may come in. Empty: whoever reaches the socket. A ticket is needed
        /// besides, and only signed requests get one.
        pub users: Vec<u32> = Vec::new(),
    }

    /// The blob store of the node.
    pub struct Store {
        /// Engine: `"file"`, or `"memory"`, which forgets everything at the end.
        pub engine: Engine = Engine::File,
        /// Where the volumes lie. Unset: `store` in the data directory.
        pub dir: Option<PathBuf> = None,
        /// Bytes that the store may use. Unset: of the file system all but a reserve of a
        /// twentieth (at least 16 MiB, at most 1 GiB); of memory 1 GiB.
        pub capacity_bytes: Option<u64> = None,
        /// Size of a new volume file. Smaller ones are made when less than twice as much is
        /// left.
        pub volume_bytes: u64 = 1024 * MIB,
        /// Memory for the buffers of all transfers: the bound of the data path's memory.
        pub buffer_bytes: usize = 32 * KIB * KIB,
        /// Whether I/O goes through an io_uring: `"auto"` where it works and the file system
        /// is not in memory, `"require"`, or `"off"`.
        pub io_uring: AccessMode = AccessMode::Auto,
        /// Whether I/O passes the page cache by (`O_DIRECT`): `"auto"` where it works,
        /// `"require"`, or `"off"`.
        pub direct_io: AccessMode = AccessMode::Auto,
        /// Bytes per second that the scrubber verifies; 0 turns it off.
        pub scrub_bytes_per_second: u64 = 4 * MIB,
    }

    /// Gateways and nodes as processes of their own, and mutual TLS between them. `keyway
    /// admin certs` makes the certificates.
    pub struct Cluster {
        /// Address that `keyway node` listens on for gateways.
        pub address: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, 9100)),
        /// Nodes that `keyway gateway` uses, each `ID=https://HOST:PORT`.
        pub nodes: Vec<String> = Vec::new(),
        /// The authority that both sides' certificates come from (PEM).
        pub authority_file: Option<PathBuf> = None,
        /// This process's certificate (PEM).
        pub cert_file: Option<PathBuf> = None,
        /// Its key (PEM).
        pub key_file: Option<PathBuf> = None,
        /// How long a connection to a node may take to be made.
        pub connect_timeout_ms: u64 = 5_000,
        /// How long a node may take to begin an answer, and between two frames of it.
        pub answer_timeout_ms: u64 = 30_000,
    }

    /// What runs beside the requests: chunks that nothing names are released.
    pub struct Maintenance {
        /// Between two looks at the garbage queue.
        pub reap_period_ms: u64 = 5_000,
        /// Between two sweeps for chunks that the catalog does not know.
        pub sweep_period_ms: u64 = 3_600_000,
        /// How long a chunk must have been stored without being published until it is swept.
        pub orphan_grace_ms: u64 = 3_600_000,
        /// How long completing a multipart upload again gets the first answer.
        pub completion_memory_ms: u64 = 86_400_000,
        /// Between two looks at what the buckets' lifecycle rules are due for.
        pub lifecycle_period_ms: u64 = 3_600_000,
        /// How long a day is to lifecycle rules. For tests of them: rules with another day delete
        /// sooner than their authors meant.
        pub lifecycle_day_ms: u64 = 86_400_000,
    }

    /// Events of buckets, and where they are sent (docs/decisions/0013-notifications.md).
    pub struct Notify {
        /// The targets, each a table `[notify.targets.NAME]` with its `kind`. `"webhook"` has a
        /// `url` and may have a `token_file` (sent as `Authorization: Bearer`); `"nats"` has a
        /// `url`, a `subject` that a JetStream stream takes, and may have a `credentials_file`.
        /// Both may have a `ca_file` (authorities in PEM; unset: the system's), a `timeout_ms`
        /// (5000), and `tenants`, the account numbers of those who may name it (unset: all).
        /// Files are read at the start. Tenants name a target as
        /// `arn:keyway:sqs::NAME:KIND`.
        pub targets: Targets = Targets::new(),
        /// Events that may wait for one target. More of them are dropped and counted.
        pub backlog_events_max: u64 = 100_000,
        /// The same in bytes of metadata.
        pub backlog_bytes_max: u64 = 256 * MIB,
        /// Events of different keys under way to one target at once.
        pub concurrency: NonZeroUsize = non_zero_usize(8),
        /// Longest pause between two attempts; the first one is 100 ms, each further one twice
        /// the one before.
        pub retry_max_ms: u64 = 30_000,
    }

    /// The root tenant. Without credentials, they are generated at the first start and shown
    /// once; with them, they replace those stored.
    pub struct Root {
        /// Access key id. Also `KEYWAY_ROOT_ACCESS_KEY`.
        pub access_key: Option<String> = None,
        /// Secret key. Also `KEYWAY_ROOT_SECRET_KEY`, which keeps it out of files.
        pub secret_key: Option<Secret> = None,
    }

    /// Logs, metrics and traces.
    pub struct Telemetry {
        /// Which log events are kept, in the syntax of `RUST_LOG`: `info`,
        /// `keyway_gateway=debug,warn`.
        pub log_filter: String = LOG_FILTER.to_owned(),
        /// Form of the log on standard error: `"pretty"` or `"json"`.
        pub log_format: LogFormat = LogFormat::Pretty,
        /// Which requests the access log tells (target `keyway::access`): `"off"`, `"errors"`
        /// (status 500 and up), or `"all"`.
        pub access_log: AccessLog = AccessLog::Errors,
        /// OTLP endpoint (gRPC, `http://` or `https://`) for traces, metrics and logs. Also
        /// `OTEL_EXPORTER_OTLP_ENDPOINT`. Unset: none are exported.
        pub otlp_endpoint: Option<String> = None,
        /// Authorities (PEM) that an `https` endpoint's certificate may come from. Also
        /// `OTEL_EXPORTER_OTLP_CERTIFICATE`. Unset: the system's.
        pub otlp_authority_file: Option<PathBuf> = None,
        /// Share of requests traced when the client does not decide it by `traceparent`.
        pub trace_ratio: f64 = 0.01,
        /// How often metrics are exported by OTLP.
        pub metrics_interval_ms: u64 = 15_000,
    }
}

/// An engine of the blob store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Files in the data directory.
    File,
    /// Memory of the process.
    Memory,
}

/// A form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Pretty,
    /// A JSON object a line.
    Json,
}

/// Which requests the access log tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessLog {
    /// None.
    Off,
    /// Those that the server failed.
    Errors,
    /// All.
    All,
}

values! {
    "`\"file\"` or `\"memory\"`": Engine;
    "`\"auto\"`, `\"require\"` or `\"off\"`": AccessMode;
    "`\"on-read\"`, `\"on-write\"`, `\"on-read-and-write\"` or `\"on-prefetch\"`": TierAdmit;
    "`\"transparent\"`, `\"reserved\"` or `\"off\"`": TierPages;
    "`\"at-fill\"` or `\"every-read\"`": TierVerify;
    "`\"pretty\"` or `\"json\"`": LogFormat;
    "`\"off\"`, `\"errors\"` or `\"all\"`": AccessLog;
    "table": Tls;
    "tables": Targets;
    "`\"1.3\"` or `\"1.2\"`": TlsVersion;
    "text, hidden": Option<Secret>;
    "integer or text, hidden": Option<DcKey>;
}

const fn non_zero(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).expect("defaults are not zero")
}

const fn non_zero_usize(value: usize) -> NonZeroUsize {
    NonZeroUsize::new(value).expect("defaults are not zero")
}
