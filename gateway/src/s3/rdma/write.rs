//! PutObject and UploadPart: the object's bytes out of the client's memory.

use http::header::CONTENT_ENCODING;
use http::{Extensions, HeaderMap, HeaderName};
use keyway_dataplane::DirectError;
use keyway_proto::{DataKey, DigestSet, DirectTarget, DirectWork, Durability, NodeId};
use s3s::S3ErrorCode;

use super::counts::Declined;
use super::token::{Token, token};
use super::{ALWAYS, Lent, Moved, Offered, transfer};
use crate::s3::Core;
use crate::s3::access::{Caller, caller};
use crate::s3::errors::Failure;
use crate::s3::store::{self, Stored};

const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
/// What speaks of a body, where there is none.
const OF_BODIES: [HeaderName; 3] = [
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("x-amz-trailer"),
    HeaderName::from_static("x-amz-decoded-content-length"),
];

/// What a PUT offers, if it carries a token: memory that holds the whole of what is to be
/// stored. Nothing is stored yet.
///
/// # Errors
/// `InvalidRDMAToken` for a malformed token, [`Failure::RdmaDeclined`] for one that no node
/// reaches, or whose use a policy forbids, `InvalidRequest` for a request that has a body
/// besides, or speaks of one, and `EntityTooLarge`.
pub(in crate::s3) async fn offered_write(
    core: &Core,
    headers: &HeaderMap,
    extensions: &Extensions,
    content_length: Option<i64>,
) -> Result<Option<Offered>, Failure> {
    let Some(token) = token(headers)? else { return Ok(None) };
    if caller(extensions)?.direct_is_forbidden() {
        return Err(declined_by_policy(core));
    }
    let target: DirectTarget = match token {
        Token::Session(token) => token.into(),
        Token::Dynamic(token) => match dynamic_node(core).await {
            Some(node) => DirectTarget::Dynamic(node, token),
            None => {
                core.direct_counts.count_declined(Declined::Foreign);
                return Err(Failure::RdmaDeclined);
            }
        },
    };
    if content_length != Some(0) {
        return Err(invalid("A request with an RDMA token must have a Content-Length of 0."));
    }
    if headers.get(&CONTENT_SHA256).is_none_or(|hash| hash != "UNSIGNED-PAYLOAD") {
        return Err(invalid(
            "A request with an RDMA token must have an x-amz-content-sha256 of UNSIGNED-PAYLOAD.",
        ));
    }
    let chunked = headers.get_all(CONTENT_ENCODING).into_iter().any(|encoding| {
        encoding.as_bytes().to_ascii_lowercase().windows(11).any(|part| part == b"aws-chunked")
    });
    if chunked || OF_BODIES.iter().any(|name| headers.contains_key(name)) {
        return Err(invalid(
            "Content-MD5, trailers and aws-chunked cannot be used with an RDMA token.",
        ));
    }
    if target.length() > core.put_max_bytes {
        return Err(Failure::code(S3ErrorCode::EntityTooLarge));
    }
    let lent = Lent::of(extensions).ok_or(Failure::Unwatched)?;
    Ok(Some(Offered { target, lent }))
}

/// A node that reaches dynamically connected targets: the one that is next in turn, or after it.
async fn dynamic_node(core: &Core) -> Option<NodeId> {
    let first = core.nodes.place(fastrand::u64(..)).id();
    let ids = || core.nodes.iter().map(|node| node.id());
    for node in ids().skip_while(|id| *id != first).chain(ids().take_while(|id| *id != first)) {
        if core.grants.reaches_dynamic(node).await {
            return Some(node);
        }
    }
    None
}

/// Declines a token that comes with a copy: its bytes are not the client's.
///
/// # Errors
/// As [`offered_write`]'s, and `RDMANotSupported` for every well-formed token.
pub(in crate::s3) fn refuse_copy(core: &Core, headers: &HeaderMap) -> Result<(), Failure> {
    if token(headers)?.is_none() {
        return Ok(());
    }
    core.direct_counts.count_declined(Declined::Copy);
    Err(Failure::RdmaDeclined)
}

/// Declines a token that a policy forbids to use.
pub(in crate::s3) fn declined_by_policy(core: &Core) -> Failure {
    core.direct_counts.count_declined(Declined::Policy);
    Failure::RdmaDeclined
}

impl Offered {
    /// Bytes that the memory holds.
    pub(in crate::s3) fn length(&self) -> u64 {
        self.target.length()
    }
}

/// Stores the bytes of the memory on the session's node and computes their digests.
///
/// # Errors
/// As [`transfer`]; nothing is kept then.
pub(in crate::s3) async fn store(
    core: &Core,
    caller: &Caller,
    offered: &Offered,
    digests: DigestSet,
    durability: Durability,
    key: Option<&DataKey>,
) -> Result<(Stored, Option<Moved>), Failure> {
    let node = core.nodes.by_id(offered.target.session().node());
    let node = node.ok_or(DirectError::NoSuchSession)?.clone();
    let digests = digests.union(ALWAYS);
    let plan = store::planned(core, caller.account(), offered.length(), digests, durability, key);
    let chunks = plan.chunks.clone();
    let (moved, receipt) = match transfer(core, caller, offered, DirectWork::Put(plan)).await {
        Err(Failure::Direct(DirectError::NotServed)) if offered.lent.is_quiet() => {
            core.direct_counts.count_declined(Declined::Foreign);
            return Err(Failure::RdmaDeclined);
        }
        transferred => transferred?,
    };
    let stored = Stored::new(node, chunks, receipt.digests, receipt.durability);
    Ok((stored, Some(moved)))
}

/// What a PUT's answer says of its token; nothing without one.
pub(in crate::s3) fn written(moved: Option<Moved>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(moved) = moved {
        moved.tell(200, &mut headers);
    }
    headers
}

fn invalid(message: &'static str) -> Failure {
    Failure::refuse(S3ErrorCode::InvalidRequest, message)
}
