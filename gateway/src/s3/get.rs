//! GetObject and HeadObject.
//!
//! Sketch of a GET: two catalog reads (bucket, object), one plan, one answer. Bytes are
//! frames of the node's; headers are the only allocations of note. What bounds it: the
//! node for large objects, signature and header work (about 25 µs) for small ones.

use http::HeaderMap;
use keyway_dataplane::{Delivery, TransferError};
use keyway_meta::Object;
use keyway_proto::{
    ByteRange, DataKey, GetPlan, NodeId, ObjectKey, TenantId, TransferId, Verification,
};
use s3s::dto::{
    ChecksumMode, GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput, Range,
    StreamingBlob,
};
use s3s::{S3ErrorCode, S3Request, S3Response};

use super::access::{Caller, caller};
use super::answer::{self, Overrides};
use super::body::Outgoing;
use super::conditions::ReadConditions;
use super::encryption::{self, Customer};
use super::errors::Failure;
use super::ranges::{self, Selection};
use super::rdma::{self, Direct, OfferedRead};
use super::{Core, durability, resolve, verification};

/// What a GET or HEAD asks for.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) bucket: String,
    pub(super) key: String,
    pub(super) conditions: ReadConditions,
    pub(super) range: Option<Range>,
    pub(super) part_number: Option<i32>,
    pub(super) with_checksum: bool,
    pub(super) version_id: Option<String>,
    pub(super) expected_owner: Option<String>,
    pub(super) customer: Option<Customer>,
    pub(super) overrides: Overrides,
}

/// What a GET or HEAD answers.
pub(super) struct Found {
    pub(super) headers: HeaderMap,
    /// Whether it is a part of the object: status 206.
    pub(super) partial: bool,
    /// The bytes, for a GET whose bytes go over HTTP.
    pub(super) body: Option<Outgoing>,
}

/// Takes the fields of a read out of an input; GET's and HEAD's are two types.
macro_rules! read_of {
    ($core:expr, $request:expr) => {{
        let customer = encryption::shown($core, &$request.headers, &$request.extensions)?;
        let input = &mut $request.input;
        Read {
            bucket: std::mem::take(&mut input.bucket),
            key: std::mem::take(&mut input.key),
            conditions: ReadConditions {
                if_match: input.if_match.take(),
                if_none_match: input.if_none_match.take(),
                if_modified_since: input.if_modified_since.take(),
                if_unmodified_since: input.if_unmodified_since.take(),
            },
            range: input.range.take(),
            part_number: input.part_number,
            with_checksum: wants_checksum(input.checksum_mode.as_ref().map(ChecksumMode::as_str)),
            version_id: input.version_id.take(),
            expected_owner: input.expected_bucket_owner.take(),
            customer,
            overrides: Overrides::from_query($request.uri.query())?,
        }
    }};
}

/// GetObject.
pub(super) async fn get_object(
    core: &Core,
    mut request: S3Request<GetObjectInput>,
) -> Result<S3Response<GetObjectOutput>, Failure> {
    let read = read_of!(core, request);
    let offered = rdma::offered_read(&request.headers, &request.extensions)?;
    let found = get(core, caller(&request.extensions)?, read, offered.as_ref()).await?;
    let output = GetObjectOutput {
        body: found.body.map(StreamingBlob::new),
        // The protocol layer answers 206 when this field is there; the header is ours.
        content_range: found.partial.then(String::new),
        ..GetObjectOutput::default()
    };
    Ok(S3Response::with_headers(output, found.headers))
}

/// HeadObject.
pub(super) async fn head_object(
    core: &Core,
    mut request: S3Request<HeadObjectInput>,
) -> Result<S3Response<HeadObjectOutput>, Failure> {
    let read = read_of!(core, request);
    let found = head(core, caller(&request.extensions)?, read).await?;
    Ok(S3Response::with_headers(HeadObjectOutput::default(), found.headers))
}

/// Finds the object and starts delivering it; or moves it whole into the memory that the
/// client offers.
pub(super) async fn get(
    core: &Core,
    caller: &Caller,
    read: Read,
    offered: Option<&OfferedRead>,
) -> Result<Found, Failure> {
    let bucket =
        resolve::bucket(core, caller, &read.bucket, read.expected_owner.as_deref()).await?;
    let key = resolve::key(&read.key)?;
    let version = resolve::version(read.version_id.as_deref())?;
    let mut object = core.catalog.read(&bucket, &key, version).await?;
    let mut selection = select(&object, &read)?;
    let verified = verification::of(core, &bucket);
    let opened = async |object: &Object, range: ByteRange| {
        let (encryption, customer) = (object.headers.encryption.as_ref(), read.customer.as_ref());
        let data_key = encryption::opened(core, &bucket, &key, encryption, customer)?;
        start(core, caller, (object, data_key), range, verified, offered).await
    };
    let started = match opened(&object, selection.range).await {
        // The object was replaced after its metadata was read, and its chunks released: the
        // new one is there to be read. Once is enough, for its chunks are pinned first. A key
        // that a node may still use is not lent again.
        Err(Failure::Transfer(TransferError::NoSuchChunk(_)))
            if offered.is_none_or(OfferedRead::is_quiet) =>
        {
            // Or it was lost with its node's memory: what it had replaced is there.
            if let Some(pending) = core.catalog.pending_object(&bucket, &key).await? {
                durability::looked_at_one(core, pending).await?;
            }
            object = core.catalog.read(&bucket, &key, version).await?;
            selection = select(&object, &read)?;
            opened(&object, selection.range).await
        }
        other => other,
    };
    let Started { body, direct } = started?;
    let mut headers = answer::headers(
        &object,
        &selection,
        read.part_number.is_some(),
        read.with_checksum,
        read.overrides,
    );
    answer::tell_version(&bucket, &object, &mut headers);
    tell_encryption(&object, read.customer.as_ref(), &mut headers);
    verification::tell(verified, &mut headers);
    if let Some(direct) = direct {
        direct.tell(if selection.partial { 206 } else { 200 }, &mut headers);
    }
    Ok(Found { headers, partial: selection.partial, body })
}

/// A GET's bytes: on their way over HTTP, or arrived.
struct Started {
    body: Option<Outgoing>,
    /// How the request's token was met, if it carries one.
    direct: Option<Direct>,
}

async fn start(
    core: &Core,
    caller: &Caller,
    (object, key): (&Object, Option<DataKey>),
    range: ByteRange,
    verified: Verification,
    offered: Option<&OfferedRead>,
) -> Result<Started, Failure> {
    let opened = (object, key.as_ref());
    let direct = match offered {
        Some(offered) => {
            Some(rdma::moved_into(core, caller, offered, opened, range, verified).await?)
        }
        None => None,
    };
    if let Some(Direct::Moved(_)) = direct {
        return Ok(Started { body: None, direct });
    }
    if direct.is_some() {
        caller.may_over_http()?;
    }
    let mut deliveries = deliver(core, caller.account(), opened, range, verified).await?;
    let pace = caller.usage.pace();
    for delivery in &mut deliveries {
        pace.slow(&mut delivery.body);
    }
    Ok(Started { body: Some(Outgoing::new(deliveries)), direct })
}

/// Finds the object and describes it.
pub(super) async fn head(core: &Core, caller: &Caller, read: Read) -> Result<Found, Failure> {
    let bucket =
        resolve::bucket(core, caller, &read.bucket, read.expected_owner.as_deref()).await?;
    let key: ObjectKey = resolve::key(&read.key)?;
    let version = resolve::version(read.version_id.as_deref())?;
    let object = core.catalog.read(&bucket, &key, version).await?;
    let selection = select(&object, &read)?;
    let (encryption, customer) = (object.headers.encryption.as_ref(), read.customer.as_ref());
    // Who cannot read it is not told of it either.
    encryption::opened(core, &bucket, &key, encryption, customer)?;
    let mut headers = answer::headers(
        &object,
        &selection,
        read.part_number.is_some(),
        read.with_checksum,
        read.overrides,
    );
    answer::tell_version(&bucket, &object, &mut headers);
    tell_encryption(&object, read.customer.as_ref(), &mut headers);
    Ok(Found { headers, partial: selection.partial, body: None })
}

fn tell_encryption(object: &Object, customer: Option<&Customer>, headers: &mut HeaderMap) {
    let md5 = customer.map(|customer| &customer.md5);
    encryption::tell(object.headers.encryption.as_ref(), md5, headers);
}

fn select(object: &Object, read: &Read) -> Result<Selection, Failure> {
    read.conditions.check_read(object)?;
    Selection::of(object, read.range, read.part_number)
}

/// Starts the transfers that deliver these bytes of the object: one per run of chunks on one
/// node, all started, and so pinned, before the first byte is sent. The key is the object's, where
/// it is encrypted.
pub(super) async fn deliver(
    core: &Core,
    tenant: TenantId,
    (object, key): (&Object, Option<&DataKey>),
    range: ByteRange,
    verification: Verification,
) -> Result<Vec<Delivery>, Failure> {
    let weight = core.weight(tenant);
    let mut plans: Vec<(NodeId, GetPlan)> = Vec::with_capacity(1);
    for (index, piece) in ranges::pieces(object, range) {
        let node = object.extents[index].node;
        match plans.last_mut() {
            Some((last, plan)) if *last == node => plan.pieces.push(piece),
            _ => {
                let transfer = TransferId::generate();
                let (pieces, key) = (vec![piece], key.cloned());
                plans.push((node, GetPlan { transfer, tenant, weight, pieces, verification, key }));
            }
        }
    }
    let mut deliveries = Vec::with_capacity(plans.len());
    for (id, plan) in plans {
        let node = core.nodes.by_id(id).ok_or(Failure::UnknownNode(id))?;
        deliveries.push(node.get(plan).await?);
    }
    Ok(deliveries)
}

/// Whether `x-amz-checksum-mode` asks for checksums.
pub(super) fn wants_checksum(mode: Option<&str>) -> bool {
    mode.is_some_and(|mode| mode.eq_ignore_ascii_case("ENABLED"))
}

/// Refuses a part number that S3 does not know.
///
/// # Errors
/// `InvalidArgument`.
pub(super) fn check_part_number(number: i32) -> Result<u16, Failure> {
    u16::try_from(number)
        .ok()
        .filter(|number| (1..=keyway_proto::unit::PART_NUMBER_MAX).contains(number))
        .ok_or_else(|| {
            Failure::refuse(
                S3ErrorCode::InvalidArgument,
                "Part number must be an integer between 1 and 10000, inclusive",
            )
        })
}
