//! Many ranges of one object in one request, into the client's memory.
//!
//! Sketch: one signature, one catalog read of bucket and object each, one plan, one grant, one key,
//! however many ranges; per range 16 bytes of the document. Who may get the object may get its
//! ranges. What bounds it: the node.

use http::{Extensions, HeaderMap, HeaderName, HeaderValue};
use keyway_auth::policy::Action;
use keyway_dataplane::TransferError;
use keyway_meta::Object;
use keyway_proto::{ByteRange, InvalidRanges, RangesRequest};
use s3s::S3ErrorCode;
use s3s::dto::ETagCondition;

use super::access::{self, Caller};
use super::answer::{self, Overrides};
use super::conditions::ReadConditions;
use super::errors::Failure;
use super::ranges::Selection;
use super::{Core, encryption, rdma, resolve, verification};

/// The object's size, whatever was read of it.
const SIZE: HeaderName = HeaderName::from_static("x-keyway-object-size");

/// Moves what the document asks for, and gives the answer's headers.
///
/// # Errors
/// `InvalidRequest` and `InvalidArgument` for a document that is none or breaks a rule, those of
/// GetObject, and those of a GET with a token.
pub(super) async fn gather(
    core: &Core,
    caller: &Caller,
    headers: &HeaderMap,
    extensions: &Extensions,
    document: &[u8],
) -> Result<HeaderMap, Failure> {
    let request = RangesRequest::parse(document).map_err(refused)?;
    let offered = rdma::offered_memory(core, headers, extensions, &request)?;
    let rules = caller.enter(core, request.bucket()).await?;
    let resource = access::object(request.bucket(), request.key());
    if caller.may_in(&rules, Action::RdmaGet, &resource).is_err() {
        return Err(rdma::declined_by_policy(core));
    }
    caller.may_in(&rules, Action::GetObject, &resource)?;
    let conditions = ReadConditions {
        if_match: request.etag().map(condition).transpose()?,
        ..ReadConditions::default()
    };
    let key = resolve::key(request.key())?;
    let find = async || -> Result<Object, Failure> {
        let found = core.catalog.object(&rules.bucket, &key).await;
        let object = found.map_err(|error| access::unlisted(caller, &rules, error.into()))?;
        conditions.check_read(&object)?;
        Ok(object)
    };
    let mut object = find().await?;
    let verified = verification::of(core, &rules.bucket);
    let customer = encryption::shown(core, headers, extensions)?;
    let move_ranges = async |object: &Object| {
        let (encryption, customer) = (object.headers.encryption.as_ref(), customer.as_ref());
        let data_key = encryption::opened(core, &rules.bucket, &key, encryption, customer)?;
        let opened = (object, data_key);
        rdma::gathered_into(core, caller, &offered, opened, &request, verified).await
    };
    let moved = move_ranges(&object).await;
    let moved = match moved {
        // Replaced meanwhile, as for a GET: once is enough.
        Err(Failure::Transfer(TransferError::NoSuchChunk(_))) if offered.is_quiet() => {
            object = find().await?;
            move_ranges(&object).await
        }
        other => other,
    }?;
    let whole = Selection { range: ByteRange::whole(object.size), partial: false, part: None };
    let mut headers = answer::headers(&object, &whole, false, true, Overrides::default());
    answer::tell_version(&rules.bucket, &object, &mut headers);
    let md5 = customer.as_ref().map(|customer| &customer.md5);
    encryption::tell(object.headers.encryption.as_ref(), md5, &mut headers);
    headers.insert(SIZE, HeaderValue::from(object.size));
    verification::tell(verified, &mut headers);
    moved.tell(200, &mut headers);
    Ok(headers)
}

fn refused(why: InvalidRanges) -> Failure {
    let code = match why {
        InvalidRanges::Malformed => S3ErrorCode::InvalidRequest,
        _ => S3ErrorCode::InvalidArgument,
    };
    Failure::refuse(code, why.to_string())
}

fn condition(etag: &str) -> Result<ETagCondition, Failure> {
    etag.parse().map_err(|_| Failure::refuse(S3ErrorCode::InvalidArgument, "The ETag is none."))
}
