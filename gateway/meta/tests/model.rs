//! Goal: whatever sequence of operations runs, the catalog answers as a plain list of
//! objects would, for listings with every parameter too, and owns exactly the chunks that
//! its objects name. Method: proptest over random histories and adversarial keys, on both
//! engines, against a model that filters a vector.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::sync::Arc;

use common::*;
use keyway_meta::catalog::{CatalogError, ListPage, ListQuery, UploadPage, WriteCondition};
use keyway_meta::{Bucket, MemoryStore, Object, ObjectHeaders, UnixMs, Upload};
use keyway_proto::UploadId;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Put {
        key: String,
        chunks: usize,
        condition: Guess,
    },
    Copy {
        from: String,
        to: String,
    },
    Delete {
        key: String,
        condition: Guess,
    },
    List(ListQuery),
    /// Asks page after page until the end.
    ListAll(ListQuery),
    Begin {
        key: String,
    },
    ListUploads {
        query: ListQuery,
        after_one: bool,
    },
}

#[derive(Clone, Copy, Debug)]
enum Guess {
    None,
    Absent,
    Any,
    Right,
    Wrong,
}

fn text(most: usize) -> impl Strategy<Value = String> {
    const ALPHABET: [&str; 10] =
        ["a", "b", "/", "//", "-", "\0", "\u{1}", "é", "\u{FFFF}", "\u{10FFFF}"];
    proptest::collection::vec(proptest::sample::select(&ALPHABET[..]), 0..most)
        .prop_map(|parts| parts.concat())
}

fn name() -> impl Strategy<Value = String> {
    text(5).prop_filter("a key has a character", |key| !key.is_empty())
}

fn query() -> impl Strategy<Value = ListQuery> {
    let delimiter = prop_oneof![
        Just(String::new()),
        Just("/".to_owned()),
        Just("//".to_owned()),
        Just("é".to_owned()),
        Just("/-".to_owned()),
        text(3)
    ];
    (text(3), delimiter, text(5), 0_usize..6)
        .prop_map(|(prefix, delimiter, after, limit)| ListQuery { prefix, delimiter, after, limit })
}

fn guess() -> impl Strategy<Value = Guess> {
    use Guess::*;
    proptest::sample::select(&[None, None, None, Absent, Any, Right, Wrong][..])
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (name(), 0_usize..3, guess())
            .prop_map(|(key, chunks, condition)| Step::Put { key, chunks, condition }),
        1 => (name(), name()).prop_map(|(from, to)| Step::Copy { from, to }),
        1 => (name(), guess()).prop_map(|(key, condition)| Step::Delete { key, condition }),
        3 => query().prop_map(Step::List),
        1 => query().prop_map(Step::ListAll),
        2 => name().prop_map(|key| Step::Begin { key }),
        2 => (query(), any::<bool>())
            .prop_map(|(query, after_one)| Step::ListUploads { query, after_one }),
    ]
}

#[derive(Default)]
struct Model {
    objects: Vec<(String, Object)>,
    uploads: Vec<(String, UploadId)>,
}

impl Model {
    fn find(&self, key: &str) -> Option<&Object> {
        self.objects.iter().find(|(name, _)| name == key).map(|(_, object)| object)
    }

    fn condition(&self, key: &str, guess: Guess) -> WriteCondition {
        match guess {
            Guess::None => WriteCondition::None,
            Guess::Absent => WriteCondition::Absent,
            Guess::Any => WriteCondition::EtagIs("*".into()),
            Guess::Wrong => WriteCondition::EtagIs("wrong".into()),
            Guess::Right => WriteCondition::EtagIs(
                self.find(key).map_or_else(|| "none".into(), |object| object.etag.clone()),
            ),
        }
    }

    /// S3's code when the condition refuses the write.
    fn refusal(&self, key: &str, condition: &WriteCondition) -> Option<&'static str> {
        match (condition, self.find(key)) {
            (WriteCondition::None, _) | (WriteCondition::Absent, None) => None,
            (WriteCondition::Absent, Some(_)) => Some("PreconditionFailed"),
            (WriteCondition::EtagIs(_), None) => Some("NoSuchKey"),
            (WriteCondition::EtagIs(etag), Some(object)) => {
                (etag != "*" && *etag != object.etag).then_some("PreconditionFailed")
            }
            (WriteCondition::VersionIs(version), found) => {
                let is_it = found.is_some_and(|object| object.version == *version);
                (!is_it).then_some("PreconditionFailed")
            }
        }
    }

    fn put(&mut self, key: &str, object: Object) {
        self.delete(key);
        self.objects.push((key.to_owned(), object));
    }

    fn delete(&mut self, key: &str) -> bool {
        let before = self.objects.len();
        self.objects.retain(|(name, _)| name != key);
        self.objects.len() < before
    }
}

/// What a listing shows of sorted names: each name or its group, once, after the marker.
fn shown<T: Clone>(mut rows: Vec<(String, T)>, query: &ListQuery) -> Vec<(String, Option<T>)> {
    rows.sort_by(|left, right| left.0.cmp(&right.0));
    let mut shown: Vec<(String, Option<T>)> = Vec::new();
    for (name, row) in rows {
        let Some(rest) = name.strip_prefix(&query.prefix) else { continue };
        let cut = rest.find(&query.delimiter).filter(|_| !query.delimiter.is_empty());
        match cut {
            Some(at) => {
                let group = query.prefix.len() + at + query.delimiter.len();
                let group = name[..group].to_owned();
                if shown.last().map(|(last, _)| last) != Some(&group) {
                    shown.push((group, None));
                }
            }
            None => shown.push((name, Some(row))),
        }
    }
    shown
}

fn model_page(model: &Model, query: &ListQuery) -> ListPage {
    let mut items = shown(model.objects.clone(), query);
    items.retain(|(name, _)| *name > query.after);
    let more = items.len() > query.limit && query.limit > 0;
    items.truncate(query.limit);
    let mut page = ListPage {
        next: items.last().filter(|_| more).map(|(name, _)| name.clone()),
        ..ListPage::default()
    };
    for (name, object) in items {
        match object {
            Some(object) => page.objects.push((key(&name), summary(&object))),
            None => page.common_prefixes.push(name),
        }
    }
    page
}

fn summary(object: &Object) -> keyway_meta::catalog::ObjectSummary {
    keyway_meta::catalog::ObjectSummary {
        size: object.size,
        modified: object.modified,
        etag: object.etag.clone(),
        checksum: object.checksum.as_ref().map(|sum| (sum.value.kind(), sum.kind)),
        storage_class: object.headers.storage_class.clone(),
    }
}

/// Uploads shown, in order: key and id, or group and nothing.
fn upload_names(page: &UploadPage) -> Vec<(String, Option<UploadId>)> {
    let uploads = page.uploads.iter().map(|upload| (upload.key.to_string(), Some(upload.id)));
    let groups = page.common_prefixes.iter().map(|group| (group.clone(), None));
    let mut names: Vec<_> = uploads.chain(groups).collect();
    names.sort();
    names
}

fn code(error: &CatalogError) -> &'static str {
    match error {
        CatalogError::NoSuchKey => "NoSuchKey",
        CatalogError::PreconditionFailed => "PreconditionFailed",
        other => panic!("{other}"),
    }
}

async fn replay(setup: &Setup, bucket: &Bucket, steps: Vec<Step>) {
    let mut model = Model::default();
    let catalog = &setup.catalog;
    for step in steps {
        match step {
            Step::Put { key: name, chunks, condition } => {
                let condition = model.condition(&name, condition);
                let refusal = model.refusal(&name, &condition);
                let made = object(chunks);
                let result = catalog.publish(bucket, &key(&name), made.clone(), condition).await;
                assert_eq!(result.as_ref().err().map(code), refusal);
                if refusal.is_none() {
                    model.put(&name, made);
                }
            }
            Step::Copy { from, to } => {
                let source = model.find(&from).cloned();
                let made = source.as_ref().map_or_else(|| object(1), copy_of);
                let (from, target) = (key(&from), key(&to));
                let result = catalog
                    .publish_copy(
                        source_of(bucket, &from),
                        (bucket, &target),
                        made.clone(),
                        WriteCondition::None,
                    )
                    .await;
                let refusal = source.is_none().then_some("NoSuchKey");
                assert_eq!(result.as_ref().err().map(code), refusal);
                if refusal.is_none() {
                    model.put(&to, made);
                }
            }
            Step::Delete { key: name, condition } => {
                let condition = model.condition(&name, condition);
                let refusal = model.refusal(&name, &condition);
                let result = catalog.delete(bucket, &key(&name), condition, stamp()).await;
                match refusal {
                    Some(refusal) => assert_eq!(result.as_ref().map_err(code), Err(refusal)),
                    None => assert_eq!(result.unwrap().existed, model.delete(&name)),
                }
            }
            Step::List(query) => {
                let page = catalog.list(bucket, &query).await.unwrap();
                assert_eq!(page, model_page(&model, &query), "{query:?}");
            }
            Step::ListAll(query) => list_all(setup, bucket, &model, query).await,
            Step::Begin { key: name } => {
                let id = UploadId::from_bytes(object(0).version.to_bytes());
                let upload = Upload {
                    id,
                    key: key(&name),
                    initiated: UnixMs(id.unix_ms()),
                    headers: ObjectHeaders::default(),
                    checksum: None,
                };
                catalog.create_upload(bucket, upload).await.unwrap();
                model.uploads.push((name, id));
            }
            Step::ListUploads { query, after_one } => {
                check_uploads(setup, bucket, &model, query, after_one).await;
            }
        }
        check_chunks(setup, &model).await;
    }
}

async fn list_all(setup: &Setup, bucket: &Bucket, model: &Model, mut query: ListQuery) {
    let whole = model_page(model, &ListQuery { limit: usize::MAX, ..query.clone() });
    let mut joined = ListPage::default();
    query.limit += 1;
    loop {
        let page = setup.catalog.list(bucket, &query).await.unwrap();
        joined.objects.extend(page.objects);
        joined.common_prefixes.extend(page.common_prefixes);
        match page.next {
            Some(next) => query.after = next,
            None => break,
        }
    }
    assert_eq!(joined, whole);
}

async fn check_uploads(
    setup: &Setup,
    bucket: &Bucket,
    model: &Model,
    mut query: ListQuery,
    after_one: bool,
) {
    let mut after_id = None;
    if let Some((name, id)) = model.uploads.first().filter(|_| after_one) {
        (query.after, after_id) = (name.clone(), Some(*id));
    }
    let marker = (query.after.clone(), after_id);
    let mut uploads = model.uploads.clone();
    uploads.sort();
    let mut items = shown(uploads, &query);
    let within = items.iter().any(|(name, id)| id.is_none() && query.after.starts_with(name));
    items.retain(|(name, id)| match (id, after_id) {
        (Some(id), Some(after_id)) if !within => (name, *id) > (&marker.0, after_id),
        _ => *name > marker.0,
    });
    let more = items.len() > query.limit && query.limit > 0;
    items.truncate(query.limit);
    let next = items.last().filter(|_| more).cloned();
    let page = setup.catalog.uploads(bucket, &query, after_id).await.unwrap();
    assert_eq!(page.next, next, "{query:?}");
    items.sort();
    assert_eq!(upload_names(&page), items, "{query:?} {after_id:?}");
}

/// Every chunk of an object is owned and none is garbage; nothing else is owned.
async fn check_chunks(setup: &Setup, model: &Model) {
    let garbage = setup.garbage().await;
    for (_, object) in &model.objects {
        assert!(setup.owned(object).await.into_iter().all(|owned| owned));
        assert!(object.extents.iter().all(|extent| !garbage.contains(extent)));
    }
    let ids: Vec<_> = garbage.iter().map(|extent| extent.chunk.id).collect();
    assert!(setup.catalog.owned(&ids).await.unwrap().into_iter().all(|owned| !owned));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(768))]
    #[test]
    fn the_catalog_is_a_list_of_objects(steps in proptest::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let setup = Setup::over(Arc::new(MemoryStore::new()));
            // A neighbour on either side: nothing may show through.
            for name in ["before", "middle", "zafter"] {
                let bucket = setup.bucket(name).await;
                setup.publish(&bucket, "a/neighbour", &object(1)).await.unwrap();
                setup.catalog.delete(&bucket, &key("a/neighbour"), WriteCondition::None, stamp()).await.unwrap();
                if name != "middle" {
                    setup.publish(&bucket, "\u{10FFFF}", &object(0)).await.unwrap();
                    setup.publish(&bucket, "\0", &object(0)).await.unwrap();
                }
            }
            let bucket = setup.catalog
                .bucket(keyway_proto::TenantId::ROOT, &"middle".parse().unwrap()).await.unwrap();
            replay(&setup, &bucket, steps).await;
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn the_embedded_engine_makes_no_difference(steps in proptest::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let setup = Setup::new();
            let bucket = setup.bucket("middle").await;
            replay(&setup, &bucket, steps).await;
        });
    }
}
