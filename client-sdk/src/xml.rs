//! The documents of S3, as far as a client reads and writes them.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Malformed;

/// Parses a document. Entities beyond XML's own five are refused by the parser, so a
/// document grows by nothing that it does not spell out.
pub(crate) fn parse<T: DeserializeOwned>(document: &[u8]) -> Result<T, Malformed> {
    quick_xml::de::from_reader(document)
        .map_err(|error| Malformed::because("not the document expected", error))
}

/// Writes a document.
pub(crate) fn write<T: Serialize>(root: &T) -> Result<bytes::Bytes, Malformed> {
    quick_xml::se::to_string(root)
        .map(bytes::Bytes::from)
        .map_err(|error| Malformed::because("not to be written as XML", error))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ErrorDocument {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) request_id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListBucketResult {
    #[serde(default)]
    pub(crate) contents: Vec<ListedEntry>,
    #[serde(default)]
    pub(crate) common_prefixes: Vec<CommonPrefix>,
    pub(crate) encoding_type: Option<String>,
    #[serde(default)]
    pub(crate) is_truncated: bool,
    pub(crate) next_continuation_token: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListedEntry {
    pub(crate) key: String,
    #[serde(default)]
    pub(crate) size: u64,
    #[serde(rename = "ETag", default)]
    pub(crate) etag: String,
    pub(crate) last_modified: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct CommonPrefix {
    pub(crate) prefix: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListAllMyBucketsResult {
    #[serde(default)]
    pub(crate) buckets: Buckets,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Buckets {
    #[serde(default)]
    pub(crate) bucket: Vec<BucketEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BucketEntry {
    pub(crate) name: String,
    pub(crate) creation_date: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct InitiateMultipartUploadResult {
    pub(crate) upload_id: String,
}

#[derive(Debug, Serialize)]
#[serde(rename = "CompleteMultipartUpload")]
pub(crate) struct CompleteMultipartUpload {
    #[serde(rename = "Part")]
    pub(crate) parts: Vec<CompletedPart>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct CompletedPart {
    #[serde(rename = "PartNumber")]
    pub(crate) number: u16,
    #[serde(rename = "ETag")]
    pub(crate) etag: String,
    #[serde(rename = "ChecksumCRC64NVME", skip_serializing_if = "Option::is_none")]
    pub(crate) crc64nvme: Option<String>,
}

/// The answer to a completion: an error document may come with status 200.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CompletedUpload {
    #[serde(rename = "ETag")]
    pub(crate) etag: Option<String>,
    #[serde(rename = "ChecksumCRC64NVME")]
    pub(crate) crc64nvme: Option<String>,
    #[serde(rename = "Code")]
    pub(crate) code: Option<String>,
    #[serde(rename = "Message")]
    pub(crate) message: Option<String>,
    #[serde(rename = "RequestId")]
    pub(crate) request_id: Option<String>,
}

/// The answer to a copy: an error document may come with status 200.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CopyResult {
    #[serde(rename = "ETag")]
    pub(crate) etag: Option<String>,
    #[serde(rename = "Code")]
    pub(crate) code: Option<String>,
    #[serde(rename = "Message")]
    pub(crate) message: Option<String>,
    #[serde(rename = "RequestId")]
    pub(crate) request_id: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename = "Delete")]
pub(crate) struct Delete {
    #[serde(rename = "Quiet")]
    pub(crate) quiet: bool,
    #[serde(rename = "Object")]
    pub(crate) objects: Vec<DeleteEntry>,
}

#[derive(Debug, Serialize)]
pub(crate) struct DeleteEntry {
    #[serde(rename = "Key")]
    pub(crate) key: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DeleteResult {
    #[serde(rename = "Error")]
    pub(crate) errors: Vec<DeleteErrorEntry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct DeleteErrorEntry {
    pub(crate) key: String,
    pub(crate) code: String,
    pub(crate) message: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_listing_reads() {
        let page: ListBucketResult = parse(
            br#"<?xml version="1.0" encoding="UTF-8"?>
            <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
              <Name>b</Name><Prefix></Prefix><KeyCount>3</KeyCount><MaxKeys>2</MaxKeys>
              <EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>
              <Contents><Key>a%26b</Key><LastModified>2026-11-20T00:00:00.000Z</LastModified>
                <ETag>&quot;abc&quot;</ETag><Size>5</Size><StorageClass>STANDARD</StorageClass>
              </Contents>
              <CommonPrefixes><Prefix>d/</Prefix></CommonPrefixes>
              <Contents><Key>e</Key><Size>0</Size></Contents>
              <NextContinuationToken>tok</NextContinuationToken>
            </ListBucketResult>"#,
        )
        .expect("a listing");
        assert_eq!(page.contents.len(), 2);
        assert_eq!(page.contents[0].etag, "\"abc\"");
        assert_eq!(page.common_prefixes[0].prefix, "d/");
        assert!(page.is_truncated);
    }

    #[test]
    fn entities_are_not_expanded() {
        let bomb = br#"<!DOCTYPE e [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;">]>
            <Error><Code>&b;</Code></Error>"#;
        assert!(parse::<ErrorDocument>(bomb).is_err());
    }

    #[test]
    fn a_completion_writes() {
        let part = CompletedPart { number: 1, etag: "\"e\"".to_owned(), crc64nvme: None };
        let text = write(&CompleteMultipartUpload { parts: vec![part] }).expect("a document");
        assert_eq!(
            text,
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber>\
             <ETag>\"e\"</ETag></Part></CompleteMultipartUpload>"
        );
    }

    proptest! {
        #[test]
        fn foreign_documents_never_panic(text: String) {
            let _ = parse::<ListBucketResult>(text.as_bytes());
            let _ = parse::<CompletedUpload>(text.as_bytes());
            let _ = parse::<ErrorDocument>(format!("<Error>{text}</Error>").as_bytes());
        }
    }
}
