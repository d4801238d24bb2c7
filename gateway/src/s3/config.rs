//! What an operator may choose about S3.

use keyway_meta::EtagPolicy;
use keyway_proto::unit::{MIB, PART_BYTES_MAX};
use serde::{Deserialize, Serialize};

/// The `[s3]` table of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct S3Config {
    /// The region that this server stands for. Any region is accepted in signatures.
    pub region: String,
    /// Host names under which buckets are subdomains (`bucket.s3.example.com`). Requests to
    /// any other host name carry the bucket in their path.
    pub base_domains: Vec<String>,
    /// How ETags are made in buckets that did not choose.
    pub default_etag_policy: DefaultEtagPolicy,
    /// Largest body of one PUT or one part, in bytes; at most S3's own 5 GiB.
    pub put_max_bytes: u64,
    /// Largest signed chunk of an `aws-chunked` body, in bytes: it is held in memory until
    /// its signature has been verified.
    pub signed_chunk_max_bytes: u64,
    /// Memory for signed chunks of all requests together, in bytes. Requests beyond it wait.
    pub signed_chunk_budget_bytes: u64,
    /// Largest XML document in a request, in bytes.
    pub xml_max_bytes: u64,
    /// How far a request's clock may be off, in seconds.
    pub clock_skew_max_s: u32,
}

impl Default for S3Config {
    fn default() -> Self {
        Self {
            region: "us-east-1".to_owned(),
            base_domains: Vec::new(),
            default_etag_policy: DefaultEtagPolicy::Md5,
            put_max_bytes: PART_BYTES_MAX,
            signed_chunk_max_bytes: 4 * MIB,
            signed_chunk_budget_bytes: 32 * MIB,
            xml_max_bytes: 8 * MIB,
            clock_skew_max_s: 15 * 60,
        }
    }
}

/// How ETags are made; the names of `keyway_meta::EtagPolicy` in configuration files and in
/// the header `x-keyway-etag-policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DefaultEtagPolicy {
    /// The MD5 of the bytes: what older tools compare with.
    Md5,
    /// Derived from the CRC64NVME: saves the MD5's CPU time.
    Crc64nvme,
}

impl From<DefaultEtagPolicy> for EtagPolicy {
    fn from(policy: DefaultEtagPolicy) -> Self {
        match policy {
            DefaultEtagPolicy::Md5 => Self::Md5,
            DefaultEtagPolicy::Crc64nvme => Self::Crc64Nvme,
        }
    }
}
