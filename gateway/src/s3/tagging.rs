//! Tags of objects and of buckets.

use keyway_meta::{ConfigurationKind, VersionName};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response};

use super::access::caller;
use super::errors::Failure;
use super::{Core, notification, resolve};
use crate::configuration;
use crate::notify::{Act, Reporter};

/// Most tags of an object: S3's own limit.
const OBJECT_TAGS_MAX: usize = 10;
/// Most tags of a bucket: S3's own limit.
const BUCKET_TAGS_MAX: usize = 50;
/// Longest key of a tag, in UTF-16 code units, as S3 counts.
const KEY_CHARS_MAX: usize = 128;
/// Longest value of a tag, counted likewise.
const VALUE_CHARS_MAX: usize = 256;

/// Tags, in the client's order.
pub(super) type Tags = Vec<(String, String)>;

/// The tags that `x-amz-tagging` gives, as the query of a URL.
///
/// # Errors
/// `InvalidArgument` for what is no such query, else those of [`of_set`].
pub(super) fn of_header(text: Option<&str>) -> Result<Tags, Failure> {
    let text = text.unwrap_or_default();
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let tags: Option<Tags> = pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decoded(key)?, decoded(value)?))
        })
        .collect();
    let tags = tags.ok_or_else(|| {
        Failure::refuse(
            S3ErrorCode::InvalidArgument,
            "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query \
             parameters without tag name duplicates.",
        )
    })?;
    checked(tags, OBJECT_TAGS_MAX)
}

fn decoded(text: &str) -> Option<String> {
    let text = text.replace('+', " ");
    percent_encoding::percent_decode_str(&text).decode_utf8().ok().map(String::from)
}

/// The tags of a document.
///
/// # Errors
/// `MalformedXML` for a tag without key or value, `InvalidTag` for one that breaks S3's rules,
/// `BadRequest` for too many of them.
fn of_set(set: &[Tag], most: usize) -> Result<Tags, Failure> {
    let tags: Option<Tags> =
        set.iter().map(|tag| Some((tag.key.clone()?, tag.value.clone()?))).collect();
    checked(tags.ok_or_else(|| Failure::code(S3ErrorCode::MalformedXML))?, most)
}

fn checked(tags: Tags, most: usize) -> Result<Tags, Failure> {
    let invalid = |why: &'static str| Failure::refuse(S3ErrorCode::InvalidTag, why);
    if tags.len() > most {
        let code = S3ErrorCode::Custom("BadRequest".into());
        return Err(Failure::refuse(code, format!("Tag count cannot be greater than {most}")));
    }
    for (at, (key, value)) in tags.iter().enumerate() {
        if key.is_empty() || utf16(key) > KEY_CHARS_MAX || !key.chars().all(allowed) {
            return Err(invalid("The TagKey you have provided is invalid"));
        }
        if utf16(value) > VALUE_CHARS_MAX || !value.chars().all(allowed) {
            return Err(invalid("The TagValue you have provided is invalid"));
        }
        if key.starts_with("aws:") {
            return Err(invalid("System tags cannot be added/updated by requester"));
        }
        if tags[..at].iter().any(|(other, _)| other == key) {
            return Err(invalid("Cannot provide multiple Tags with the same key"));
        }
    }
    Ok(tags)
}

fn utf16(text: &str) -> usize {
    text.encode_utf16().count()
}

/// Letters, numbers and spaces of all scripts, and these marks.
fn allowed(c: char) -> bool {
    c.is_alphanumeric() || c.is_whitespace() || "+-=._:/@".contains(c)
}

fn set_of(tags: &Tags) -> Vec<Tag> {
    tags.iter()
        .map(|(key, value)| Tag { key: Some(key.clone()), value: Some(value.clone()) })
        .collect()
}

/// PutObjectTagging.
pub(super) async fn put_object_tagging(
    core: &Core,
    request: S3Request<PutObjectTaggingInput>,
) -> Result<S3Response<PutObjectTaggingOutput>, Failure> {
    let input = &request.input;
    let tags = of_set(&input.tagging.tag_set, OBJECT_TAGS_MAX)?;
    let owner = input.expected_bucket_owner.as_deref();
    let named = (&*input.bucket, &*input.key, input.version_id.as_deref(), owner);
    let version_id = tag(core, &request, named, tags, Act::PutTags).await?;
    Ok(S3Response::new(PutObjectTaggingOutput { version_id }))
}

/// DeleteObjectTagging.
pub(super) async fn delete_object_tagging(
    core: &Core,
    request: S3Request<DeleteObjectTaggingInput>,
) -> Result<S3Response<DeleteObjectTaggingOutput>, Failure> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let named = (&*input.bucket, &*input.key, input.version_id.as_deref(), owner);
    let version_id = tag(core, &request, named, Tags::new(), Act::DeleteTags).await?;
    Ok(S3Response::new(DeleteObjectTaggingOutput { version_id }))
}

/// Gives the version these tags in place of its own; answers its name.
async fn tag<T>(
    core: &Core,
    request: &S3Request<T>,
    (bucket, key, version, owner): (&str, &str, Option<&str>, Option<&str>),
    tags: Tags,
    act: Act,
) -> Result<Option<String>, Failure> {
    let key = resolve::key(key)?;
    let version: Option<VersionName> = resolve::version(version)?;
    let caller = caller(&request.extensions)?;
    let bucket = resolve::bucket(core, caller, bucket, owner).await?;
    let reporter = notification::reporter(core, caller, &bucket, act).await?;
    let site = Reporter::site(&bucket, reporter.as_ref());
    let amended = core.catalog.amend(site, &key, version, |object| {
        object.headers.tags.clone_from(&tags);
        Ok(())
    });
    Ok(resolve::told_version(&bucket, amended.await?.name()))
}

/// GetObjectTagging.
pub(super) async fn get_object_tagging(
    core: &Core,
    request: S3Request<GetObjectTaggingInput>,
) -> Result<S3Response<GetObjectTaggingOutput>, Failure> {
    let input = &request.input;
    let key = resolve::key(&input.key)?;
    let version = resolve::version(input.version_id.as_deref())?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    let object = core.catalog.read(&bucket, &key, version).await?;
    Ok(S3Response::new(GetObjectTaggingOutput {
        tag_set: set_of(&object.headers.tags),
        version_id: resolve::told_version(&bucket, object.name()),
    }))
}

/// PutBucketTagging.
pub(super) async fn put_bucket_tagging(
    core: &Core,
    request: S3Request<PutBucketTaggingInput>,
) -> Result<S3Response<PutBucketTaggingOutput>, Failure> {
    let input = &request.input;
    let tags = of_set(&input.tagging.tag_set, BUCKET_TAGS_MAX)?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    configuration::set(&core.catalog, &bucket, ConfigurationKind::Tagging, &tags).await?;
    Ok(S3Response::new(PutBucketTaggingOutput::default()))
}

/// GetBucketTagging.
pub(super) async fn get_bucket_tagging(
    core: &Core,
    request: S3Request<GetBucketTaggingInput>,
) -> Result<S3Response<GetBucketTaggingOutput>, Failure> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    let tags: Option<Tags> =
        configuration::get(&core.catalog, &bucket, ConfigurationKind::Tagging).await?;
    let tags = tags.ok_or_else(|| Failure::code(S3ErrorCode::NoSuchTagSet))?;
    Ok(S3Response::new(GetBucketTaggingOutput { tag_set: set_of(&tags) }))
}

/// DeleteBucketTagging.
pub(super) async fn delete_bucket_tagging(
    core: &Core,
    request: S3Request<DeleteBucketTaggingInput>,
) -> Result<S3Response<DeleteBucketTaggingOutput>, Failure> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    core.catalog.configure(&bucket, ConfigurationKind::Tagging, None).await?;
    Ok(S3Response::new(DeleteBucketTaggingOutput::default()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_header_is_taken_or_refused(text: String) {
            if let Ok(tags) = of_header(Some(&text)) {
                prop_assert!(tags.len() <= OBJECT_TAGS_MAX);
                prop_assert!(tags.iter().all(|(key, _)| !key.is_empty()));
            }
        }
    }

    #[test]
    fn headers_are_queries() {
        let tags = of_header(Some("a=b&c&%C3%A9+x=%26%3D")).err();
        assert!(tags.is_some(), "an ampersand is no character of a value");
        let tags = of_header(Some("a=b&c&%C3%A9+x=%3D")).ok();
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(tags, Some(vec![pair("a", "b"), pair("c", ""), pair("é x", "=")]));
        assert_eq!(of_header(None).ok(), Some(Vec::new()));
        let eleven: Vec<String> = (0..11).map(|n| format!("k{n}=v")).collect();
        for bad in ["a=b&a=c", "=b", "aws:x=y", "a=%ff", "a=<", &eleven.join("&")] {
            assert!(of_header(Some(bad)).is_err(), "{bad}");
        }
        let key = "k".repeat(KEY_CHARS_MAX);
        let value = "v".repeat(VALUE_CHARS_MAX);
        assert!(of_header(Some(&format!("{key}={value}"))).is_ok());
        assert!(of_header(Some(&format!("{key}k=v"))).is_err());
        assert!(of_header(Some(&format!("k={value}v"))).is_err());
    }
}
