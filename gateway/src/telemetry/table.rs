//! Every metric of the server, defined once: instruments and docs/metrics.md come from here.

use std::fmt::Write;

/// What kind of instrument a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down, sums over instances.
    UpDownCounter,
    /// A distribution.
    Histogram,
}

/// A metric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Definition {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// UCUM, as OpenTelemetry writes it.
    pub(crate) unit: &'static str,
    pub(crate) description: &'static str,
    pub(crate) attributes: &'static [&'static str],
    /// Upper bounds of a histogram's buckets.
    pub(crate) bounds: &'static [f64],
}

macro_rules! metrics {
    ($(
        $constant:ident = $kind:ident $name:literal [$unit:literal]
            $description:literal, by [$($attribute:expr),*] $(, in $bounds:expr)?;
    )+) => {
        $(
            pub(crate) const $constant: Definition = Definition {
                name: $name,
                kind: Kind::$kind,
                unit: $unit,
                description: $description,
                attributes: &[$($attribute),*],
                bounds: metrics!(@bounds $($bounds)?),
            };
        )+

        /// All of them, as documented.
        pub(crate) const ALL: &[Definition] = &[$($constant),+];
    };
    (@bounds) => { &[] };
    (@bounds $bounds:expr) => { $bounds };
}

/// Attribute: HTTP method, `_OTHER` where it is none of HTTP's own.
pub(crate) const METHOD: &str = "http.request.method";
/// Attribute: status code.
pub(crate) const STATUS: &str = "http.response.status_code";
/// Attribute: S3 operation, `unknown` where the request never got that far.
pub(crate) const OPERATION: &str = "keyway.operation";
/// Attribute: why a request ended without a whole response: `cancelled` (the client went
/// away before the head) or `broken` (the body broke off).
pub(crate) const ERROR: &str = "error.type";
/// Attribute: storage node.
pub(crate) const NODE: &str = "keyway.node.id";

/// Attribute: the name of a target of events.
pub(crate) const TARGET: &str = "keyway.notify.target";
/// Attribute: how a direct transfer's bytes travelled, `none` where none did.
pub(crate) const PATH: &str = "keyway.transfer.path";
/// Attribute: what became of a direct transfer's key.
pub(crate) const KEY: &str = "keyway.key.fate";
/// Attribute: why a token was met with HTTP, or a request refused.
pub(crate) const REASON: &str = "keyway.reason";
/// Attribute: what became of a commit: `committed`, `conflict` (decided anew), `full` or `failed`.
pub(crate) const OUTCOME: &str = "keyway.outcome";

/// OpenTelemetry's advice for request durations, with finer steps below 5 ms.
const SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 30.0,
];
/// Powers of four from 256 B to 4 GiB, with 0 apart.
const BYTES: &[f64] = &[
    0.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
    268_435_456.0,
    1_073_741_824.0,
    4_294_967_296.0,
];

/// Powers of two up to the most batches of one commit.
const BATCHES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

metrics! {
    REQUEST_DURATION = Histogram "http.server.request.duration" ["s"]
        "Time from a request's parsed header to the end of its response's body.",
        by [METHOD, STATUS, OPERATION, ERROR], in SECONDS;
    REQUEST_BODY = Histogram "http.server.request.body.size" ["By"]
        "Bytes of request bodies received.", by [METHOD, STATUS, OPERATION, ERROR], in BYTES;
    RESPONSE_BODY = Histogram "http.server.response.body.size" ["By"]
        "Bytes of response bodies handed to the connection.",
        by [METHOD, STATUS, OPERATION, ERROR], in BYTES;
    ACTIVE_REQUESTS = UpDownCounter "http.server.active_requests" ["{request}"]
        "Requests under way.", by [];
    CONNECTIONS = UpDownCounter "keyway.server.connections" ["{connection}"]
        "Open connections to the S3 endpoint.", by [];
    CONNECTIONS_SENT_AWAY = Counter "keyway.server.connections.sent_away" ["{connection}"]
        "Idle connections that were ended because new ones had no room.", by [];
    PANICS = Counter "keyway.server.panics" ["{panic}"]
        "Handlers that panicked. Each is a bug.", by [];
    NODE_TRANSFERS = UpDownCounter "keyway.node.transfers" ["{transfer}"]
        "Transfers under way on a storage node.", by [NODE];
    NODE_WAITING = UpDownCounter "keyway.node.waiting" ["{transfer}"]
        "Transfers waiting for their turn on the node in this process.", by [NODE];
    NODE_FAILED = Counter "keyway.node.failed" ["{transfer}"]
        "Transfers that failed on the node in this process; cancelled ones are not counted.",
        by [NODE];
    NODE_UP = UpDownCounter "keyway.node.up" ["{node}"]
        "Whether the storage node answered when last asked.", by [NODE];
    STORE_CAPACITY = UpDownCounter "keyway.store.capacity" ["By"]
        "Bytes that a node's store may use.", by [NODE];
    STORE_FREE = UpDownCounter "keyway.store.free" ["By"]
        "Bytes free for new chunks.", by [NODE];
    STORE_CHUNKS = UpDownCounter "keyway.store.chunks" ["{chunk}"]
        "Chunks stored.", by [NODE];
    STORE_DAMAGED = Counter "keyway.store.damaged" ["{block}"]
        "Blocks found damaged, by readers or the scrubber.", by [NODE];
    TIER_CAPACITY = UpDownCounter "keyway.tier.capacity" ["By"]
        "Bytes of the memory tier of the node in this process; 0 where it is off.", by [NODE];
    TIER_USED = UpDownCounter "keyway.tier.used" ["By"]
        "Bytes of it that are taken.", by [NODE];
    TIER_CHUNKS = UpDownCounter "keyway.tier.chunks" ["{chunk}"]
        "Chunks in the tier, whole or in part.", by [NODE];
    TIER_HITS = Counter "keyway.tier.hits" ["{read}"]
        "Reads answered from the tier: one for each contiguous run.", by [NODE];
    TIER_HIT_BYTES = Counter "keyway.tier.hits.size" ["By"]
        "Their bytes.", by [NODE];
    TIER_MISSES = Counter "keyway.tier.misses" ["{read}"]
        "Reads that went to the store, or waited for one that did: at most 1 MiB each.",
        by [NODE];
    TIER_MISS_BYTES = Counter "keyway.tier.misses.size" ["By"]
        "Their bytes.", by [NODE];
    TIER_FILLED = Counter "keyway.tier.filled" ["By"]
        "Bytes that reads, writes and prefetches left in the tier.", by [NODE];
    TIER_EVICTIONS = Counter "keyway.tier.evictions" ["{chunk}"]
        "Chunks thrown out of the tier for others.", by [NODE];
    TIER_EVICTED = Counter "keyway.tier.evictions.size" ["By"]
        "Their bytes.", by [NODE];
    TIER_REFUSED = Counter "keyway.tier.refused" ["{chunk}"]
        "Times that a chunk found no room in the tier: all was being read.", by [NODE];
    TIER_DAMAGED = Counter "keyway.tier.damaged" ["{chunk}"]
        "Chunks thrown out because bytes of theirs had changed in memory.", by [NODE];
    TIER_DIRTY = UpDownCounter "keyway.tier.dirty" ["By"]
        "Bytes that were answered from memory and are not on the device yet.", by [NODE];
    TIER_FLUSHED = Counter "keyway.tier.flushed" ["By"]
        "Bytes that were answered from memory and came to the device.", by [NODE];
    TIER_FLUSH_FAILURES = Counter "keyway.tier.flush.failures" ["{attempt}"]
        "Attempts to bring a chunk from memory to the device that failed; they are repeated.          While the last one failed, all writes wait for the device.", by [NODE];
    TIER_LOST = Counter "keyway.tier.lost" ["{chunk}"]
        "Chunks whose bytes changed in memory before they came to the device.", by [NODE];
    POOL_CAPACITY = UpDownCounter "keyway.pool.capacity" ["By"]
        "Bytes of the transfers' buffers.", by [NODE];
    POOL_LEASED = UpDownCounter "keyway.pool.leased" ["By"]
        "Bytes of buffers in use.", by [NODE];
    SESSIONS = UpDownCounter "keyway.session.open" ["{session}"]
        "RDMA sessions open on the node in this process.", by [NODE];
    RAILS = UpDownCounter "keyway.session.rails" ["{port}"]
        "RDMA ports of the node in this process that take sessions.", by [NODE];
    GRANTS_REFUSED = Counter "keyway.grant.refused" ["{grant}"]
        "Grants, and the plans in them, that the node in this process refused.", by [NODE];
    KEYS_ENDED = Counter "keyway.key.ended" ["{key}"]
        "Keys to clients' memory that the node in this process gave up.", by [NODE, KEY];
    META_READS = Counter "keyway.meta.reads" ["{read}"]
        "Single keys read from the metadata store.", by [];
    META_SCANS = Counter "keyway.meta.scans" ["{scan}"]
        "Ranges of keys read.", by [];
    META_SCANNED = Counter "keyway.meta.scanned" ["{entry}"]
        "Entries that those ranges had.", by [];
    META_COMMITS = Counter "keyway.meta.commits" ["{commit}"]
        "Changes to the metadata, by what became of them.", by [OUTCOME];
    META_GROUP_SIZE = Histogram "keyway.meta.group.size" ["{commit}"]
        "Changes that one commit made together.", by [], in BATCHES;
    META_GROUP_DURATION = Histogram "keyway.meta.group.duration" ["s"]
        "Time of a commit, its checks and writes included; the wait before it is not.",
        by [], in SECONDS;
    CHUNKS_RELEASED = Counter "keyway.maintenance.released" ["{chunk}"]
        "Chunks that nothing names any more, released by their nodes.", by [];
    BYTES_RELEASED = Counter "keyway.maintenance.released.size" ["By"]
        "Their bytes.", by [];
    CHUNKS_DEFERRED = Counter "keyway.maintenance.deferred" ["{chunk}"]
        "Times that a chunk had to wait because its node did not answer.", by [];
    CHUNKS_SWEPT = Counter "keyway.maintenance.swept" ["{chunk}"]
        "Chunks looked at by the sweeper.", by [];
    CHUNKS_CONDEMNED = Counter "keyway.maintenance.condemned" ["{chunk}"]
        "Chunks that the sweeper found unowned.", by [];
    UPLOADS_FORGOTTEN = Counter "keyway.maintenance.forgotten" ["{upload}"]
        "Completed uploads whose answer is remembered no more.", by [];
    SETTLED = Counter "keyway.maintenance.settled" ["{object}"]
        "Objects and parts that were answered from memory, and were found to be durable.", by [];
    LOST = Counter "keyway.maintenance.lost" ["{object}"]
        "Objects and parts that were answered from memory and lost with it. What they had          replaced is back.", by [];
    EXPIRED = Counter "keyway.maintenance.expired" ["{version}"]
        "Objects, other versions and delete markers that went by lifecycle rules.", by [];
    UPLOADS_ABORTED = Counter "keyway.maintenance.aborted" ["{upload}"]
        "Uploads that were aborted by lifecycle rules.", by [];
    NOTIFY_DELIVERED = Counter "keyway.notify.delivered" ["{event}"]
        "Events of buckets that their target acknowledged.", by [TARGET];
    NOTIFY_FAILED = Counter "keyway.notify.failed" ["{attempt}"]
        "Attempts to deliver an event that failed. It is tried again.", by [TARGET];
    NOTIFY_DROPPED = Counter "keyway.notify.dropped" ["{event}"]
        "Events that were given up, since too many wait for their target.", by [TARGET];
    NOTIFY_STRAYS = Counter "keyway.notify.strays" ["{event}"]
        "Events for targets that are not there any more, or not for the bucket's tenant.", by [];
    NOTIFY_BACKLOG = UpDownCounter "keyway.notify.backlog" ["{event}"]
        "Events that wait for their target.", by [TARGET];
    NOTIFY_OLDEST = UpDownCounter "keyway.notify.oldest" ["s"]
        "How long the oldest of them has waited.", by [TARGET];
    MAINTENANCE_FAILURES = Counter "keyway.maintenance.failures" ["{round}"]
        "Rounds that were cut short.", by [];
    DIRECT_TRANSFERS = Counter "keyway.direct.transfers" ["{transfer}"]
        "Transfers between a node and a client's own memory, by path and by what became of the \
         key.", by [PATH, KEY];
    DIRECT_DECLINED = Counter "keyway.direct.declined" ["{request}"]
        "Requests with an RDMA token whose bytes went, or were to go, over HTTP.", by [REASON];
    AUTH_FAILURES = Counter "keyway.auth.failures" ["{request}"]
        "Requests whose signer was not who they said, by S3's code; `Forbidden` for a HEAD, which \
         has none.", by [REASON];
    AUTH_UNVERIFIED = Counter "keyway.auth.unverified" ["{request}"]
        "Requests that were refused without a look at their signature, because too many had failed \
         from their address or with their key.", by [];
    AUTH_PENALTIES = Counter "keyway.auth.penalties" ["{penalty}"]
        "Times that an address or an access key came under a penalty.", by [];
    LIMITED = Counter "keyway.limits.refused" ["{request}"]
        "Requests over a limit of their tenant or user, by what is limited.", by [REASON];
    CPU_TIME = Counter "process.cpu.time" ["s"]
        "CPU time of the process.", by [];
    MEMORY = UpDownCounter "process.memory.usage" ["By"]
        "Resident memory of the process.", by [];
    DESCRIPTORS = UpDownCounter "process.unix.file_descriptor.count" ["{file_descriptor}"]
        "Open file descriptors of the process.", by [];
}

const HEAD: &str = "\
# Metrics

<!-- Generated by `keyway config --metrics`; a test says when it is stale. -->

Names and units are OpenTelemetry's. They leave by OTLP where `telemetry.otlp_endpoint` is set,
and stand at `/metrics` of the admin listener in Prometheus' form: dots become underscores, the
unit becomes a suffix, counters end in `_total`. Buckets and keys are never attributes.

| metric | kind | unit | attributes | meaning |
|---|---|---|---|---|
";

/// The text of docs/metrics.md.
pub fn metrics_reference() -> String {
    let mut text = HEAD.to_owned();
    for metric in ALL {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::UpDownCounter => "up-down counter",
            Kind::Histogram => "histogram",
        };
        let attributes: Vec<String> =
            metric.attributes.iter().map(|name| format!("`{name}`")).collect();
        let Definition { name, unit, description, .. } = metric;
        let attributes = attributes.join(", ");
        let _ = writeln!(text, "| `{name}` | {kind} | `{unit}` | {attributes} | {description} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_checked_in_reference_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
        let checked_in = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            checked_in == metrics_reference(),
            "docs/metrics.md is stale: run `keyway config --metrics > docs/metrics.md`"
        );
    }

    #[test]
    fn names_are_unique_and_histograms_have_ascending_bounds() {
        let names: HashSet<&str> = ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len());
        for metric in ALL {
            assert_eq!(metric.kind == Kind::Histogram, !metric.bounds.is_empty(), "{metric:?}");
            assert!(metric.bounds.windows(2).all(|pair| pair[0] < pair[1]), "{metric:?}");
        }
    }
}
