//! Goal: a multipart upload makes exactly the object that S3's rules give, in one step, and
//! leaves nothing behind on any way out.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use common::*;
use keyway_meta::catalog::{CatalogError, Completing, ListQuery, NamedPart, WriteCondition};
use keyway_meta::{Bucket, ChecksumType, ObjectHeaders, Part, UnixMs, Upload};
use keyway_proto::unit::PART_BYTES_MIN;
use keyway_proto::{Checksum, ChecksumKind, Durability, UploadId};

struct Upper {
    setup: Setup,
    bucket: Bucket,
    id: UploadId,
}

const NOW: UnixMs = UnixMs(1_700_000_000_000);

impl Upper {
    async fn new(checksum: Option<(ChecksumKind, ChecksumType)>) -> Self {
        let setup = Setup::new();
        let bucket = setup.bucket("bucket").await;
        let id = UploadId::new(5, [7; 10]);
        let headers =
            ObjectHeaders { content_type: Some("text/plain".into()), ..Default::default() };
        let upload = Upload { id, key: key("k"), initiated: UnixMs(5), headers, checksum };
        setup.catalog.create_upload(&bucket, upload).await.unwrap();
        Self { setup, bucket, id }
    }

    /// Stores a part as if its bytes were `fill`, repeated.
    async fn part(&self, number: u16, size: u64, fill: u8) -> Part {
        let bytes = vec![fill; usize::try_from(size).unwrap()];
        let kinds = [
            ChecksumKind::Crc32,
            ChecksumKind::Crc32c,
            ChecksumKind::Crc64Nvme,
            ChecksumKind::Sha1,
            ChecksumKind::Sha256,
        ];
        let part = Part {
            number,
            size,
            etag: Checksum::of(ChecksumKind::Md5, &bytes).to_hex(),
            modified: UnixMs(6),
            checksums: kinds.map(|kind| Checksum::of(kind, &bytes)).to_vec(),
            extents: vec![extent()],
            durability: Durability::Disk,
            stored_by: None,
        };
        self.store(part.clone()).await.unwrap();
        part
    }

    async fn store(&self, part: Part) -> Result<(), CatalogError> {
        self.setup.catalog.publish_part(&self.bucket, &key("k"), self.id, part).await
    }

    async fn complete(
        &self,
        parts: &[&Part],
        checksum: Option<Checksum>,
    ) -> Result<keyway_meta::Object, CatalogError> {
        let named: Vec<NamedPart> = parts
            .iter()
            .map(|part| NamedPart { number: part.number, etag: part.etag.clone(), checksum: None })
            .collect();
        self.complete_named(&named, checksum).await
    }

    async fn complete_named(
        &self,
        named: &[NamedPart],
        checksum: Option<Checksum>,
    ) -> Result<keyway_meta::Object, CatalogError> {
        let completing = Completing {
            parts: named,
            checksum,
            condition: WriteCondition::None,
            durability: Durability::Disk,
            stored_by: None,
            retention: None,
            now: NOW,
        };
        self.setup.catalog.complete_upload(&self.bucket, &key("k"), self.id, completing).await
    }
}

fn whole(kind: ChecksumKind, parts: &[(u64, u8)]) -> Checksum {
    let mut hasher = keyway_proto::checksum::Hasher::new(kind);
    for (size, fill) in parts {
        hasher.update(&vec![*fill; usize::try_from(*size).unwrap()]);
    }
    hasher.finish()
}

#[tokio::test]
async fn parts_become_one_object() {
    let upper = Upper::new(None).await;
    let first = upper.part(2, PART_BYTES_MIN, 1).await;
    let replaced = upper.part(7, 10, 2).await;
    let second = upper.part(7, 20, 3).await;
    let unused = upper.part(9, 5, 4).await;
    assert_eq!(upper.setup.garbage().await, replaced.extents, "a part stored anew");
    let object = upper.complete(&[&first, &second], None).await.unwrap();
    assert_eq!(object.size, PART_BYTES_MIN + 20);
    assert_eq!(object.modified, NOW);
    assert_eq!(object.headers.content_type.as_deref(), Some("text/plain"));
    assert_eq!(object.extents, [first.extents[0], second.extents[0]]);
    let digests: Vec<u8> = [&first, &second]
        .iter()
        .flat_map(|part| u128::from_str_radix(&part.etag, 16).unwrap().to_be_bytes())
        .collect();
    let etag = format!("{}-2", Checksum::of(ChecksumKind::Md5, &digests).to_hex());
    assert_eq!(object.etag, etag);
    let checksum = object.checksum.clone().unwrap();
    assert_eq!(checksum.kind, ChecksumType::FullObject);
    let expected = whole(ChecksumKind::Crc64Nvme, &[(PART_BYTES_MIN, 1), (20, 3)]);
    assert_eq!(checksum.value, expected);
    assert_eq!(object.parts.iter().map(|part| part.number).collect::<Vec<_>>(), [2, 7]);
    assert_eq!(upper.setup.catalog.object(&upper.bucket, &key("k")).await.unwrap(), object);
    let garbage = upper.setup.garbage().await;
    assert_eq!(garbage, [replaced.extents[0], unused.extents[0]]);
    assert_eq!(upper.setup.owned(&object).await, [true, true]);
    assert_eq!(
        upper.complete(&[&first, &second], None).await.unwrap(),
        object,
        "asked again, answered again"
    );
    assert!(matches!(upper.complete(&[&first], None).await, Err(CatalogError::NoSuchUpload)));
    assert!(matches!(upper.store(first.clone()).await, Err(CatalogError::NoSuchUpload)));
    upper
        .setup
        .catalog
        .delete(&upper.bucket, &key("k"), WriteCondition::None, stamp())
        .await
        .unwrap();
    assert_eq!(upper.setup.garbage().await.len(), 4, "the object owned its parts' chunks");
    assert_eq!(upper.setup.catalog.forget_completions(NOW, 9).await.unwrap(), 0);
    assert_eq!(upper.setup.catalog.forget_completions(UnixMs(NOW.0 + 1), 9).await.unwrap(), 1);
    let gone = upper.complete(&[&first, &second], None).await;
    assert!(matches!(gone, Err(CatalogError::NoSuchUpload)));
}

#[tokio::test]
async fn what_the_client_names_must_be_what_was_stored() {
    let upper = Upper::new(None).await;
    let first = upper.part(1, PART_BYTES_MIN, 1).await;
    let small = upper.part(2, 10, 2).await;
    let last = upper.part(3, 10, 3).await;
    let wrong = Part { etag: "0".repeat(32), ..last.clone() };
    let missing = Part { number: 4, ..last.clone() };
    let refused = |result: Result<_, CatalogError>| result.map(|_: keyway_meta::Object| ());
    let result = refused(upper.complete(&[&last, &first], None).await);
    assert!(matches!(result, Err(CatalogError::InvalidPartOrder)));
    let result = refused(upper.complete(&[&first, &first], None).await);
    assert!(matches!(result, Err(CatalogError::InvalidPartOrder)));
    let result = refused(upper.complete(&[&first, &wrong], None).await);
    assert!(matches!(result, Err(CatalogError::InvalidPart(3))));
    let result = refused(upper.complete(&[&first, &missing], None).await);
    assert!(matches!(result, Err(CatalogError::InvalidPart(4))));
    let result = refused(upper.complete(&[&first, &small, &last], None).await);
    assert!(matches!(result, Err(CatalogError::PartTooSmall(2))));
    let result = refused(upper.complete(&[], None).await);
    assert!(matches!(result, Err(CatalogError::InvalidPart(0))));
    let mut named = NamedPart { number: 1, etag: first.etag.clone(), checksum: None };
    named.checksum = Some(Checksum::of(ChecksumKind::Sha1, b"other"));
    let result = refused(upper.complete_named(&[named], None).await);
    assert!(matches!(result, Err(CatalogError::InvalidPart(1))));
    let claimed = Checksum::of(ChecksumKind::Crc32, b"other");
    let result = refused(upper.complete(&[&first, &last], Some(claimed)).await);
    assert!(matches!(result, Err(CatalogError::ChecksumMismatch)));
    assert_eq!(upper.setup.garbage().await, [], "a refusal changes nothing");
    let claimed = whole(ChecksumKind::Crc32, &[(PART_BYTES_MIN, 1), (10, 3)]);
    upper.complete(&[&first, &last], Some(claimed)).await.unwrap();
}

#[tokio::test]
async fn checksums_follow_from_the_parts() {
    use ChecksumKind::*;
    use ChecksumType::*;
    let parts = [(PART_BYTES_MIN, 1), (10, 3)];
    for (kind, of) in [
        (Crc32, FullObject),
        (Crc32c, FullObject),
        (Crc64Nvme, FullObject),
        (Crc32, Composite),
        (Crc32c, Composite),
        (Sha1, Composite),
        (Sha256, Composite),
    ] {
        let upper = Upper::new(Some((kind, of))).await;
        let first = upper.part(1, parts[0].0, parts[0].1).await;
        let last = upper.part(2, parts[1].0, parts[1].1).await;
        let expected = match of {
            FullObject => whole(kind, &parts),
            Composite => {
                let values = [&first, &last].map(|part| {
                    let value = part.checksums.iter().find(|value| value.kind() == kind);
                    value.unwrap().value().to_vec()
                });
                Checksum::of(kind, &values.concat())
            }
        };
        let wrong = Checksum::of(kind, b"wrong");
        let result = upper.complete(&[&first, &last], Some(wrong)).await;
        assert!(matches!(result, Err(CatalogError::ChecksumMismatch)), "{kind}");
        let object = upper.complete(&[&first, &last], Some(expected)).await.unwrap();
        let checksum = object.checksum.unwrap();
        assert_eq!((checksum.value, checksum.kind), (expected, of));
    }
}

#[tokio::test]
async fn aborting_gives_every_part_up() {
    let upper = Upper::new(None).await;
    let parts = [upper.part(1, 10, 1).await, upper.part(10_000, 10, 2).await];
    let name = key("k");
    let abort = || upper.setup.catalog.abort_upload(&upper.bucket, &name, upper.id);
    abort().await.unwrap();
    assert!(matches!(abort().await, Err(CatalogError::NoSuchUpload)));
    assert_eq!(upper.setup.garbage().await, parts.map(|part| part.extents[0]));
}

#[tokio::test]
async fn deleting_the_bucket_aborts_its_uploads() {
    let upper = Upper::new(None).await;
    let part = upper.part(1, 10, 1).await;
    upper.setup.catalog.delete_bucket(upper.bucket.tenant, &upper.bucket.name).await.unwrap();
    assert_eq!(upper.setup.garbage().await, part.extents);
    let query = ListQuery { limit: 9, ..Default::default() };
    let page = upper.setup.catalog.uploads(&upper.bucket, &query, None).await.unwrap();
    assert_eq!(page.uploads, []);
    let late = Upload {
        id: upper.id,
        key: key("k"),
        initiated: UnixMs(0),
        headers: ObjectHeaders::default(),
        checksum: None,
    };
    let late = upper.setup.catalog.create_upload(&upper.bucket, late).await;
    assert!(matches!(late, Err(CatalogError::NoSuchBucket)));
}

#[tokio::test]
async fn parts_are_listed_page_by_page() {
    let upper = Upper::new(None).await;
    for number in [1, 5, 6, 10_000] {
        upper.part(number, u64::from(number), 1).await;
    }
    let page = async |after, limit| {
        let catalog = &upper.setup.catalog;
        let page = catalog.parts(&upper.bucket, &key("k"), upper.id, after, limit).await.unwrap();
        (page.parts.iter().map(|part| part.number).collect::<Vec<_>>(), page.next)
    };
    assert_eq!(page(0, 3).await, (vec![1, 5, 6], Some(6)));
    assert_eq!(page(6, 3).await, (vec![10_000], None));
    assert_eq!(page(0, 4).await, (vec![1, 5, 6, 10_000], None));
    assert_eq!(page(10_000, 4).await, (vec![], None));
    assert_eq!(page(u16::MAX, 4).await, (vec![], None));
    assert_eq!(page(0, 0).await, (vec![], None));
}

/// Parts stored while the upload completes are either in the object or given up: never
/// owned by nothing that is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parts_racing_with_the_end_are_not_lost() {
    for _ in 0..8 {
        let upper = std::sync::Arc::new(Upper::new(None).await);
        let first = upper.part(1, PART_BYTES_MIN, 1).await;
        let racers: Vec<_> = (2..10)
            .map(|number| {
                let upper = std::sync::Arc::clone(&upper);
                let part = Part { number, extents: vec![extent()], ..first.clone() };
                tokio::spawn(async move { upper.store(part.clone()).await.map(|()| part) })
            })
            .collect();
        let object = upper.complete(&[&first], None).await.unwrap();
        let mut given_up = Vec::new();
        for racer in racers {
            match racer.await.unwrap() {
                Ok(part) => given_up.extend(part.extents),
                Err(CatalogError::NoSuchUpload) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(upper.setup.garbage().await, given_up);
        assert_eq!(upper.setup.owned(&object).await, [true]);
    }
}

/// The largest number of parts, in one commit.
#[tokio::test]
async fn ten_thousand_parts_complete_at_once() {
    let upper = Upper::new(None).await;
    let template = upper.part(1, PART_BYTES_MIN, 1).await;
    let parts: Vec<Part> = (1..=10_000)
        .map(|number| Part { number, extents: vec![extent()], ..template.clone() })
        .collect();
    let stores = parts
        .chunks(256)
        .map(|group| futures::future::join_all(group.iter().map(|part| upper.store(part.clone()))));
    for store in stores {
        store.await.into_iter().collect::<Result<(), _>>().unwrap();
    }
    let named: Vec<&Part> = parts.iter().collect();
    let object = upper.complete(&named, None).await.unwrap();
    assert_eq!(object.size, PART_BYTES_MIN * 10_000);
    assert_eq!(object.extents.len(), 10_000);
    assert_eq!(upper.setup.garbage().await, template.extents);
}
