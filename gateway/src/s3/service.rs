//! The HTTP service: how the S3 protocol layer is put together and mounted.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use keyway_proto::TenantId;
use keyway_proto::unit::{MIB, PART_BYTES_MAX};
use s3s::config::{S3Config as ProtocolConfig, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};

use super::access::{Gate, RuleBook, Secrets, Sessions};
use super::claim::Strangers;
use super::copy::PART_COPIES_MAX;
use super::cors::Cors;
use super::envelope::{self, Surroundings};
use super::host::BaseDomains;
use super::lenient::LenientReads;
use super::operations::Operations;
use super::routes::{ControlRoute, Routes};
use super::store::SignedChunks;
use super::sts::StsRoute;
use super::{Core, DirectCounts, S3Config, S3State, signed};
use crate::control::admin::Administration;
use crate::node::Grants;

/// Why a configuration cannot be served.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidConfig {
    /// A base domain that is no host name.
    #[error("invalid base domain {0:?}")]
    BaseDomain(String),
    /// A limit that is zero, or beyond S3's own.
    #[error("{field} is out of bounds")]
    Limit {
        /// The field's name.
        field: &'static str,
    },
}

/// The S3 service over `state`.
///
/// Requests may carry a [`RequestId`] in their extensions; without one the service makes
/// one. Every answer carries it as `x-amz-request-id`.
///
/// # Errors
/// [`InvalidConfig`] when a field of `config` is out of bounds.
pub fn service(state: S3State, config: &S3Config) -> Result<S3HttpService, InvalidConfig> {
    let limits = Limits::of(config)?;
    let domains = BaseDomains::new(&config.base_domains)?;
    let direct_counts = Arc::<DirectCounts>::default();
    let core = Arc::new(Core {
        catalog: state.catalog,
        grants: Grants::new(&state.nodes),
        nodes: state.nodes,
        direct_counts: Arc::clone(&direct_counts),
        clock: state.clock,
        region: config.region.clone(),
        default_etag: config.default_etag_policy.into(),
        verification: config.verify,
        maintenance: state.maintenance,
        credentials: Arc::clone(&state.credentials),
        audit: state.audit.clone(),
        notifier: state.notifier,
        limiter: Arc::clone(&state.limiter),
        public_tenant: TenantId(config.public_tenant),
        rules: RuleBook::default(),
        sessions: Sessions::default(),
        secrets: state.secrets,
        encrypts_by_default: config.encrypt_by_default,
        customer_keys_without_tls: config.customer_keys_without_tls,
        put_max_bytes: config.put_max_bytes,
        signed_chunks: SignedChunks::new(limits.signed_chunk, limits.signed_budget),
        part_copies: tokio::sync::Semaphore::new(PART_COPIES_MAX),
    });
    let gate = Gate::new(Arc::clone(&core));
    let accounts = state.administration.as_ref().map(Administration::accounts).cloned();
    let sts = StsRoute::new(gate.clone(), Arc::clone(&core), accounts, state.issuers);
    let control = ControlRoute::new(gate.clone(), Arc::clone(&core), state.administration);
    let mut builder = S3ServiceBuilder::new(Operations(core.clone()));
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(protocol(config, &limits)))));
    let cors = Cors {
        core: Arc::clone(&core),
        credentials: Arc::clone(&state.credentials),
        domains: domains.clone(),
    };
    let strangers = Strangers {
        limiter: state.limiter,
        credentials: Arc::clone(&state.credentials),
        audit: state.audit,
    };
    builder.set_auth(Secrets(state.credentials));
    builder.set_access(gate.clone());
    let forms = Arc::clone(&core);
    let lenient = LenientReads { core, gate, domains: domains.clone() };
    builder.set_route(Routes { control, sts, lenient });
    builder.set_host(domains.clone());
    let surroundings = Surroundings { domains, xml_max_bytes: limits.xml, cors, strangers, forms };
    Ok(S3HttpService { inner: builder.build(), surroundings, direct_counts })
}

/// The configured limits, in the machine's word size.
struct Limits {
    xml: usize,
    signed_chunk: usize,
    signed_budget: usize,
}

impl Limits {
    fn of(config: &S3Config) -> Result<Self, InvalidConfig> {
        let within = |field: &'static str, value: u64, max: u64| {
            usize::try_from(value)
                .ok()
                .filter(|_| (1..=max).contains(&value))
                .ok_or(InvalidConfig::Limit { field })
        };
        within("put_max_bytes", config.put_max_bytes, PART_BYTES_MAX)?;
        within("clock_skew_max_s", u64::from(config.clock_skew_max_s), 15 * 60)?;
        let budget = config.signed_chunk_budget_bytes;
        Ok(Self {
            xml: within("xml_max_bytes", config.xml_max_bytes, 64 * MIB)?,
            signed_budget: within("signed_chunk_budget_bytes", budget, 64 * 1024 * MIB)?,
            signed_chunk: within("signed_chunk_max_bytes", config.signed_chunk_max_bytes, budget)?,
        })
    }
}

fn protocol(config: &S3Config, limits: &Limits) -> ProtocolConfig {
    let mut protocol = ProtocolConfig::default();
    protocol.xml_max_body_size = limits.xml;
    protocol.put_object_max_size = Some(config.put_max_bytes);
    protocol.aws_chunked_stream_max_chunk_size = limits.signed_chunk;
    protocol.presigned_url_max_skew_time_secs = config.clock_skew_max_s;
    // Which of them a request must be signed for is decided before (`signed`) and where it is
    // answered.
    protocol.sig_v4_allowed_services = vec![signed::S3.to_owned(), signed::STS.to_owned()];
    // Forms are read before (`form`); what the protocol layer takes for one is none.
    protocol.allow_post_signature = false;
    protocol
}

/// The id of one request, as it appears in `x-amz-request-id` and in the logs.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// The id with this text; `None` unless it is 1 to 64 characters of `A-Z a-z 0-9 -`.
    pub fn new(text: &str) -> Option<Self> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        ((1..=64).contains(&text.len()) && text.bytes().all(allowed)).then(|| Self(text.into()))
    }

    /// A new, random id.
    pub fn generate() -> Self {
        Self(format!("{:016X}", fastrand::u64(..)).into())
    }

    /// The id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The S3 service: a tower service that never fails, to be mounted as a fallback.
#[derive(Clone)]
pub struct S3HttpService {
    inner: S3Service,
    surroundings: Surroundings,
    direct_counts: Arc<DirectCounts>,
}

impl S3HttpService {
    /// Counters of the direct transfers that it had executed.
    pub fn direct_counts(&self) -> &Arc<DirectCounts> {
        &self.direct_counts
    }
}

impl<B> tower::Service<Request<B>> for S3HttpService
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    type Response = Response<s3s::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        let request = request.map(s3s::Body::http_body_unsync);
        Box::pin(
            async move { Ok(envelope::call(&service.inner, request, &service.surroundings).await) },
        )
    }
}
