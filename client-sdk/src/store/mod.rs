//! The `ObjectStore` trait of the `object_store` crate, over one bucket.

mod error;
mod upload;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use keyway_proto::ByteRange;
use object_store::path::Path;
use object_store::{
    Attribute, AttributeValue, Attributes, CopyMode, CopyOptions, GetOptions, GetResult,
    GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use self::error::{Precondition, translate};
use self::upload::Upload;
use crate::http::Client;
use crate::ops::ListedObject;
use crate::transfer::{GetObject, ObjectInfo, PutObject};

/// Keys that one request deletes: S3's own limit.
const DELETE_BATCH: usize = 1000;

/// One bucket as an [`ObjectStore`].
///
/// Reads are those of [`Client::get_object`]: parallel, pinned, resumed, and verified where
/// the whole object is read. A body is read in full before it is given, so that nothing
/// unverified is.
#[derive(Clone)]
pub struct KeywayStore {
    client: Client,
    bucket: Arc<str>,
}

impl KeywayStore {
    /// The bucket of this name.
    pub fn new(client: Client, bucket: &str) -> Self {
        Self { client, bucket: bucket.into() }
    }

    fn put(&self, location: &Path, attributes: &Attributes) -> Result<PutObject> {
        let mut put = self.client.put_object(&self.bucket, location.as_ref());
        for (attribute, value) in attributes {
            let value = value.as_ref();
            let header = match attribute {
                Attribute::ContentType => http::header::CONTENT_TYPE,
                Attribute::CacheControl => http::header::CACHE_CONTROL,
                Attribute::ContentDisposition => http::header::CONTENT_DISPOSITION,
                Attribute::ContentEncoding => http::header::CONTENT_ENCODING,
                Attribute::ContentLanguage => http::header::CONTENT_LANGUAGE,
                Attribute::StorageClass => http::HeaderName::from_static("x-amz-storage-class"),
                Attribute::Metadata(name) => {
                    put = put.metadata(name, value).map_err(|e| translate(e, location))?;
                    continue;
                }
                other => {
                    return Err(object_store::Error::NotSupported {
                        source: format!("the attribute {other:?}").into(),
                    });
                }
            };
            put = put.header(header, value).map_err(|e| translate(e, location))?;
        }
        Ok(put)
    }

    fn get(&self, location: &Path, options: &GetOptions) -> GetObject {
        let mut get = self.client.get_object(&self.bucket, location.as_ref());
        if let Some(etag) = &options.if_match {
            get = get.if_match(etag);
        }
        if let Some(etag) = &options.if_none_match {
            get = get.if_none_match(etag);
        }
        if let Some(version) = &options.version {
            get = get.version(version);
        }
        get
    }
}

#[async_trait]
impl ObjectStore for KeywayStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let mut put = self.put(location, &options.attributes)?;
        let mut precondition = Precondition::None;
        match &options.mode {
            PutMode::Overwrite => {}
            PutMode::Create => {
                put = put.if_absent();
                precondition = Precondition::Absent;
            }
            PutMode::Update(version) => {
                let etag =
                    version.e_tag.as_deref().ok_or_else(|| object_store::Error::NotSupported {
                        source: "an update of an unknown ETag".into(),
                    })?;
                put = put.if_match(etag).map_err(|e| translate(e, location))?;
                precondition = Precondition::Unchanged;
            }
        }
        let done = put.body(Bytes::from(payload)).send().await;
        let done = done.map_err(|e| precondition.translate(e, location))?;
        Ok(PutResult { e_tag: done.etag, version: done.version, extensions: Default::default() })
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let put = self.put(location, &options.attributes)?;
        Ok(Box::new(Upload::begin(put, location).await?))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let failed = |error| Precondition::None.translate(error, location);
        let get = self.get(location, &options);
        // What S3 has no way to ask for is resolved with a HEAD: a suffix or an open range,
        // a bounded range that may leave the object, and conditions on times.
        let timed = options.if_modified_since.is_some() || options.if_unmodified_since.is_some();
        if options.range.is_none() && !options.head && !timed {
            let got = get.bytes().await.map_err(failed)?;
            return Ok(result(location, got.info, 0..got.bytes, got.target));
        }
        let info = get.describe().await.map_err(failed)?;
        let meta = meta(location, &info);
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            None => 0..info.size,
            Some(range) => range.as_range(info.size).map_err(|source| {
                object_store::Error::Generic { store: "keyway", source: source.into() }
            })?,
        };
        if options.head {
            return Ok(result(location, info, range, Bytes::new()));
        }
        let wanted = ByteRange::new(range.start, range.end - range.start);
        let wanted = wanted.ok_or_else(|| object_store::Error::Generic {
            store: "keyway",
            source: "a range beyond any object".into(),
        })?;
        let mut get = get;
        if let Some(etag) = &info.etag {
            get = get.if_match(etag);
        }
        let got = get.range(wanted).bytes().await.map_err(failed)?;
        Ok(result(location, info, range, got.target))
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        locations
            .try_chunks(DELETE_BATCH)
            .map_err(|error| error.1)
            .and_then(move |batch| {
                let store = store.clone();
                async move { store.delete_batch(batch).await }
            })
            .map_ok(stream::iter)
            .try_flatten()
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_after(prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_after(prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut listing = self.client.list_objects(&self.bucket).delimiter("/");
        if let Some(prefix) = directory(prefix) {
            listing = listing.prefix(prefix);
        }
        let root = Path::default();
        let mut result = ListResult {
            common_prefixes: Vec::new(),
            objects: Vec::new(),
            extensions: Default::default(),
        };
        let mut pages = std::pin::pin!(listing.pages());
        while let Some(page) = pages.try_next().await.map_err(|e| translate(e, &root))? {
            for prefix in &page.common_prefixes {
                result.common_prefixes.push(Path::parse(prefix)?);
            }
            for object in page.objects {
                result.objects.push(listed(object)?);
            }
        }
        Ok(result)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let mut copy =
            self.client.copy_object((&self.bucket, from.as_ref()), (&self.bucket, to.as_ref()));
        let mut precondition = Precondition::None;
        if options.mode == CopyMode::Create {
            copy = copy.if_absent();
            precondition = Precondition::Absent;
        }
        let copied = copy.await;
        // What is missing is the source, what exists is the target.
        copied.map(drop).map_err(|error| {
            let about = if error.is_not_found() { from } else { to };
            precondition.translate(error, about)
        })
    }
}

impl KeywayStore {
    fn list_after(
        &self,
        prefix: Option<&Path>,
        offset: Option<&Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let mut listing = self.client.list_objects(&self.bucket);
        if let Some(prefix) = directory(prefix) {
            listing = listing.prefix(prefix);
        }
        if let Some(offset) = offset {
            listing = listing.start_after(offset.as_ref());
        }
        let failed = |error| translate(error, &Path::default());
        let objects = listing.objects().map_err(failed);
        objects.and_then(|object| async move { listed(object) }).boxed()
    }

    async fn delete_batch(&self, batch: Vec<Path>) -> Result<Vec<Result<Path>>> {
        let keys: Vec<String> = batch.iter().map(ToString::to_string).collect();
        let failures = self.client.delete_objects(&self.bucket, keys).await;
        let failures = failures.map_err(|e| translate(e, &Path::default()))?;
        let outcome = |path: Path| match failures.iter().find(|f| f.key == path.as_ref()) {
            None => Ok(path),
            Some(failure) => Err(object_store::Error::Generic {
                store: "keyway",
                source: format!("{path}: {} {}", failure.code, failure.message).into(),
            }),
        };
        Ok(batch.into_iter().map(outcome).collect())
    }
}

impl fmt::Display for KeywayStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeywayStore({}/{})", self.client.endpoint(), self.bucket)
    }
}

impl fmt::Debug for KeywayStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The trait's prefixes are directories: `a/b` holds `a/b/c` and not `a/bc`.
fn directory(prefix: Option<&Path>) -> Option<String> {
    let prefix = prefix?.as_ref();
    (!prefix.is_empty()).then(|| format!("{prefix}/"))
}

fn listed(object: ListedObject) -> Result<ObjectMeta> {
    Ok(ObjectMeta {
        location: Path::parse(&object.key)?,
        last_modified: time(object.last_modified),
        size: object.size,
        e_tag: Some(object.etag),
        version: None,
    })
}

fn meta(location: &Path, info: &ObjectInfo) -> ObjectMeta {
    ObjectMeta {
        location: location.clone(),
        last_modified: time(info.last_modified),
        size: info.size,
        e_tag: info.etag.clone(),
        version: info.version.clone(),
    }
}

fn result(location: &Path, info: ObjectInfo, range: Range<u64>, bytes: Bytes) -> GetResult {
    GetResult {
        meta: meta(location, &info),
        range,
        attributes: attributes(info),
        payload: GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed()),
        extensions: Default::default(),
    }
}

fn attributes(info: ObjectInfo) -> Attributes {
    let metadata = info
        .metadata
        .into_iter()
        .map(|(name, value)| (Attribute::Metadata(name.into()), AttributeValue::from(value)));
    let headers = info.headers.into_iter().filter_map(|(name, value)| {
        let attribute = match name.as_str() {
            "cache-control" => Attribute::CacheControl,
            "content-disposition" => Attribute::ContentDisposition,
            "content-encoding" => Attribute::ContentEncoding,
            "content-language" => Attribute::ContentLanguage,
            _ => return None,
        };
        Some((attribute, value.into()))
    });
    let content_type = info.content_type.map(|value| (Attribute::ContentType, value.into()));
    metadata.chain(headers).chain(content_type).collect()
}

/// A service that tells no time gets the epoch: the trait has no way to say unknown.
fn time(time: Option<jiff::Timestamp>) -> DateTime<Utc> {
    time.and_then(|time| DateTime::from_timestamp(time.as_second(), 0)).unwrap_or_default()
}
