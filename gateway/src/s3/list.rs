//! ListObjects and ListObjectsV2.

use keyway_meta::Bucket;
use keyway_meta::catalog::{ListPage, ListQuery, ObjectSummary};
use keyway_proto::{ObjectKey, TenantId};
use s3s::dto::*;
use s3s::{S3Request, S3Response};

use super::access::caller;
use super::errors::Failure;
use super::page::{self, Encoding};
use super::{Core, checksums, conditions, resolve};

/// ListObjectsV2.
pub(super) async fn list_objects_v2(
    core: &Core,
    request: S3Request<ListObjectsV2Input>,
) -> Result<S3Response<ListObjectsV2Output>, Failure> {
    let caller = caller(&request.extensions)?;
    let input = &request.input;
    let encoding = Encoding::parse(input.encoding_type.as_ref())?;
    let start_after = input.start_after.as_deref();
    encoding.check(&[input.prefix.as_deref(), input.delimiter.as_deref(), start_after])?;
    let limit = page::limit("max-keys", input.max_keys)?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller, &input.bucket, owner).await?;
    let after = match &input.continuation_token {
        Some(token) => page::decode(bucket.id.0, token)?,
        None => start_after.unwrap_or_default().to_owned(),
    };
    let query = query(input.prefix.as_deref(), input.delimiter.as_deref(), after, limit);
    let page = list(core, &bucket, &query).await?;
    let owner = (input.fetch_owner == Some(true)).then_some(bucket.tenant);
    let count = page.objects.len() + page.common_prefixes.len();
    Ok(S3Response::new(ListObjectsV2Output {
        name: Some(bucket.name.to_string()),
        prefix: Some(encoding.text(&query.prefix)),
        delimiter: named(encoding, input.delimiter.as_deref()),
        start_after: start_after.map(|text| encoding.text(text)),
        continuation_token: input.continuation_token.clone(),
        max_keys: Some(page::told(limit)),
        key_count: Some(page::told(count)),
        is_truncated: Some(page.next.is_some()),
        next_continuation_token: page.next.as_ref().map(|next| page::encode(bucket.id.0, next)),
        common_prefixes: Some(prefixes(encoding, &page.common_prefixes)),
        contents: Some(contents(encoding, page.objects, owner)),
        encoding_type: encoding.name(),
        request_charged: None,
    }))
}

/// ListObjects: keys in place of tokens, and always with owners.
pub(super) async fn list_objects(
    core: &Core,
    request: S3Request<ListObjectsInput>,
) -> Result<S3Response<ListObjectsOutput>, Failure> {
    let caller = caller(&request.extensions)?;
    let input = &request.input;
    let encoding = Encoding::parse(input.encoding_type.as_ref())?;
    let marker = input.marker.as_deref();
    encoding.check(&[input.prefix.as_deref(), input.delimiter.as_deref(), marker])?;
    let limit = page::limit("max-keys", input.max_keys)?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller, &input.bucket, owner).await?;
    let after = marker.unwrap_or_default().to_owned();
    let query = query(input.prefix.as_deref(), input.delimiter.as_deref(), after, limit);
    let page = list(core, &bucket, &query).await?;
    // S3 names the next marker only where the last key would not do: with a delimiter.
    let next = page.next.as_deref().filter(|_| !query.delimiter.is_empty());
    Ok(S3Response::new(ListObjectsOutput {
        name: Some(bucket.name.to_string()),
        prefix: Some(encoding.text(&query.prefix)),
        delimiter: named(encoding, input.delimiter.as_deref()),
        marker: Some(encoding.text(&query.after)),
        next_marker: next.map(|next| encoding.text(next)),
        max_keys: Some(page::told(limit)),
        is_truncated: Some(page.next.is_some()),
        common_prefixes: Some(prefixes(encoding, &page.common_prefixes)),
        contents: Some(contents(encoding, page.objects, Some(bucket.tenant))),
        encoding_type: encoding.name(),
        request_charged: None,
    }))
}

/// The catalog's question for a listing's parameters.
pub(super) fn query(
    prefix: Option<&str>,
    delimiter: Option<&str>,
    after: String,
    limit: usize,
) -> ListQuery {
    ListQuery {
        prefix: prefix.unwrap_or_default().to_owned(),
        delimiter: delimiter.unwrap_or_default().to_owned(),
        after,
        limit,
    }
}

async fn list(core: &Core, bucket: &Bucket, query: &ListQuery) -> Result<ListPage, Failure> {
    // A page of nothing is complete, as S3 has it.
    if query.limit == 0 {
        return Ok(ListPage::default());
    }
    Ok(core.catalog.list(bucket, query).await?)
}

/// A delimiter as the answer repeats it; S3 leaves an empty one out.
pub(super) fn named(encoding: Encoding, text: Option<&str>) -> Option<String> {
    text.filter(|text| !text.is_empty()).map(|text| encoding.text(text))
}

/// Groups as the answer lists them.
pub(super) fn prefixes(encoding: Encoding, found: &[String]) -> Vec<CommonPrefix> {
    found.iter().map(|prefix| CommonPrefix { prefix: Some(encoding.text(prefix)) }).collect()
}

fn contents(
    encoding: Encoding,
    found: Vec<(ObjectKey, ObjectSummary)>,
    owner: Option<TenantId>,
) -> Vec<Object> {
    let owner =
        owner.map(|tenant| Owner { display_name: None, id: Some(resolve::owner_id(tenant)) });
    found.into_iter().map(|(key, summary)| listed(encoding, &key, summary, owner.clone())).collect()
}

fn listed(encoding: Encoding, key: &str, summary: ObjectSummary, owner: Option<Owner>) -> Object {
    let class = summary
        .storage_class
        .map_or(ObjectStorageClass::from_static("STANDARD"), ObjectStorageClass::from);
    Object {
        checksum_algorithm: summary.checksum.map(|(kind, _)| vec![checksums::algorithm_name(kind)]),
        checksum_type: summary.checksum.map(|(_, of)| checksums::type_name(of)),
        e_tag: Some(ETag::Strong(summary.etag)),
        key: Some(encoding.text(key)),
        last_modified: Some(conditions::timestamp(summary.modified)),
        owner,
        restore_status: None,
        size: Some(i64::try_from(summary.size).unwrap_or(i64::MAX)),
        storage_class: Some(class),
    }
}
