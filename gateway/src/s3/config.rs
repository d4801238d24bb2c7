//! What an operator may choose about S3.

use keyway_meta::EtagPolicy;
use keyway_proto::Verification;
use keyway_proto::unit::{MIB, PART_BYTES_MAX};
use serde::{Deserialize, Serialize};

use crate::config::settings::{section, values};

section! {
    /// The S3 protocol.
    pub struct S3Config {
        /// The region that this server stands for. Any region is accepted in signatures.
        pub region: String = "us-east-1".to_owned(),
        /// Host names under which buckets are subdomains (`bucket.s3.example.com`). Requests
        /// to any other host name carry the bucket in their path.
        pub base_domains: Vec<String> = Vec::new(),
        /// How ETags are made in buckets that did not choose: `"md5"`, which some clients
        /// compare with the bytes, or `"crc64nvme"`, which saves the MD5's CPU time.
        pub default_etag_policy: DefaultEtagPolicy = DefaultEtagPolicy::Md5,
        /// When what a node reads from its device is compared with its checksums, where neither
        /// bucket nor tenant chose: `"before-delivery"`, all of it before the first byte leaves,
        /// so that what is longer than 256 KiB is read twice; `"inline"`, each block before its own
        /// bytes leave; or `"client"`, which leaves it to the reader, and saves the CPU a pass.
        pub verify: Verification = Verification::Inline,
        /// Whether objects are encrypted (SSE-S3) in buckets that did not choose, where their
        /// requests do not say. What is there already stays as it is.
        pub encrypt_by_default: bool = false,
        /// Whether customers' keys (SSE-C) are taken from requests over plaintext. Only where
        /// something before this server ends TLS, on a network that nobody else reads.
        pub customer_keys_without_tls: bool = false,
        /// Largest body of one PUT or one part, in bytes; at most S3's own 5 GiB.
        pub put_max_bytes: u64 = PART_BYTES_MAX,
        /// Largest signed chunk of an `aws-chunked` body, in bytes: it is held in memory until
        /// its signature has been verified.
        pub signed_chunk_max_bytes: u64 = 4 * MIB,
        /// Memory for signed chunks of all requests together, in bytes. Requests beyond it
        /// wait.
        pub signed_chunk_budget_bytes: u64 = 32 * MIB,
        /// Largest XML document in a request, in bytes.
        pub xml_max_bytes: u64 = 8 * MIB,
        /// Number of the tenant whose buckets are meant by a request that is not signed and does
        /// not name their owner in `x-amz-expected-bucket-owner`. Its buckets' policies decide
        /// whether such a request is let in.
        pub public_tenant: u64 = 0,
        /// How far a request's clock may be off, in seconds.
        pub clock_skew_max_s: u32 = 15 * 60,
    }
}

values! {
    "`\"md5\"` or `\"crc64nvme\"`": DefaultEtagPolicy;
    "`\"before-delivery\"`, `\"inline\"` or `\"client\"`": Verification;
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
