//! Listings, page by page.

use std::sync::Arc;

use ::http::Method;
use futures::stream::{self, Stream, TryStreamExt as _};
use jiff::Timestamp;
use percent_encoding::percent_decode_str;

use super::document_time;
use crate::error::{ClientError, Malformed};
use crate::http::{Call, Client, Query};
use crate::xml;

impl Client {
    /// Lists a bucket's objects in the order of their keys.
    pub fn list_objects(&self, bucket: &str) -> ListObjects {
        ListObjects {
            client: self.clone(),
            bucket: bucket.into(),
            prefix: None,
            delimiter: None,
            start_after: None,
            page_keys: None,
        }
    }
}

/// A listing of objects: [`pages`](Self::pages) or [`objects`](Self::objects).
#[derive(Clone, Debug)]
#[must_use = "a listing is requested page by page, when its stream is polled"]
pub struct ListObjects {
    client: Client,
    bucket: Arc<str>,
    prefix: Option<String>,
    delimiter: Option<String>,
    start_after: Option<String>,
    page_keys: Option<u16>,
}

/// One page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// The objects.
    pub objects: Vec<ListedObject>,
    /// What the delimiter rolled up, each ending in it.
    pub common_prefixes: Vec<String>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<String>,
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// Its key.
    pub key: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its ETag, quotes included.
    pub etag: String,
    /// When it was stored, if the service says so.
    pub last_modified: Option<Timestamp>,
}

impl ListObjects {
    /// Lists keys that begin with this alone.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Rolls keys up that share what lies between the prefix and this.
    pub fn delimiter(mut self, delimiter: impl Into<String>) -> Self {
        self.delimiter = Some(delimiter.into());
        self
    }

    /// Lists keys after this one alone.
    pub fn start_after(mut self, key: impl Into<String>) -> Self {
        self.start_after = Some(key.into());
        self
    }

    /// Keys per page, at most 1,000.
    pub fn page_keys(mut self, keys: u16) -> Self {
        self.page_keys = Some(keys);
        self
    }

    /// One page: the first, or the one that begins at a former page's
    /// [`next`](ListPage::next).
    ///
    /// # Errors
    /// `NoSuchBucket` and the like.
    pub async fn page(&self, continuation: Option<&str>) -> Result<ListPage, ClientError> {
        let mut query = Query::default().with("list-type", "2").with("encoding-type", "url");
        let page_keys = self.page_keys.map(|keys| keys.to_string());
        for (name, value) in [
            ("continuation-token", continuation),
            ("delimiter", self.delimiter.as_deref()),
            ("max-keys", page_keys.as_deref()),
            ("prefix", self.prefix.as_deref()),
            ("start-after", self.start_after.as_deref()),
        ] {
            if let Some(value) = value {
                query = query.with(name, value);
            }
        }
        let mut call = Call::bucket(Method::GET, &self.bucket);
        call.query = query;
        let (document, _) = self.client.document(&call).await?;
        page(xml::parse(&document)?)
    }

    /// All pages, in order. Each is requested when the stream is polled for it.
    pub fn pages(self) -> impl Stream<Item = Result<ListPage, ClientError>> + Send + 'static {
        // The state is where the next page begins; `None` when there is none.
        stream::try_unfold((self, Some(None::<String>)), |(listing, at)| async move {
            let Some(at) = at else { return Ok(None) };
            let page = listing.page(at.as_deref()).await?;
            if page.next.is_some() && page.next == at {
                return Err(Malformed::new("a listing that goes in a circle").into());
            }
            let next = page.next.clone().map(Some);
            Ok(Some((page, (listing, next))))
        })
    }

    /// All objects, in order, without what the delimiter rolled up.
    pub fn objects(self) -> impl Stream<Item = Result<ListedObject, ClientError>> + Send + 'static {
        self.pages().map_ok(|page| stream::iter(page.objects.into_iter().map(Ok))).try_flatten()
    }
}

fn page(listing: xml::ListBucketResult) -> Result<ListPage, ClientError> {
    let encoded = listing.encoding_type.as_deref() == Some("url");
    let plain = |text: String| -> Result<String, ClientError> {
        if !encoded {
            return Ok(text);
        }
        // S3 writes spaces as plus signs here, and plus signs as %2B.
        let text = text.replace('+', " ");
        let decoded = percent_decode_str(&text).decode_utf8();
        Ok(decoded.map_err(|e| Malformed::because("a key that is not UTF-8", e))?.into_owned())
    };
    let objects = listing.contents.into_iter().map(|entry| {
        Ok(ListedObject {
            key: plain(entry.key)?,
            size: entry.size,
            etag: entry.etag,
            last_modified: document_time(entry.last_modified.as_deref()),
        })
    });
    let prefixes = listing.common_prefixes.into_iter().map(|entry| plain(entry.prefix));
    let next = match (listing.is_truncated, listing.next_continuation_token) {
        (false, _) => None,
        (true, Some(token)) => Some(token),
        (true, None) => return Err(Malformed::new("a truncated page without a next one").into()),
    };
    Ok(ListPage {
        objects: objects.collect::<Result<_, ClientError>>()?,
        common_prefixes: prefixes.collect::<Result<_, _>>()?,
        next,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<ListPage, ClientError> {
        page(xml::parse(format!("<ListBucketResult>{body}</ListBucketResult>").as_bytes())?)
    }

    #[test]
    fn keys_are_decoded_where_they_were_encoded() {
        let entry = "<Contents><Key>a+b%2B%C3%A9</Key><Size>1</Size></Contents>";
        let plain = read(entry).expect("a page");
        assert_eq!(plain.objects[0].key, "a+b%2B%C3%A9");
        let encoded = read(&format!("<EncodingType>url</EncodingType>{entry}")).expect("a page");
        assert_eq!(encoded.objects[0].key, "a b+é");
    }

    #[test]
    fn a_page_that_leads_nowhere_is_refused() {
        let refused = read("<IsTruncated>true</IsTruncated>");
        assert!(matches!(refused, Err(ClientError::Malformed(_))));
        let last = "<NextContinuationToken>t</NextContinuationToken>";
        assert_eq!(read(last).expect("a page").next, None);
    }
}
