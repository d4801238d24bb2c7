//! Sends each operation to the server, applies it to the model, and compares.

use std::io;

use keyway_integration_tests::S3;
use keyway_integration_tests::s3::copy_source;
use keyway_integration_tests::seed::payload;
use keyway_integration_tests::wire::{Request, Response, element, elements};
use proptest::test_runner::TestCaseError;

use super::operation::{Operation, Span, When};
use super::reference::{Bucket, Entry, Object, Upload, etag};

pub(crate) type Outcome = Result<(), TestCaseError>;

/// An ETag that no object has.
const ANOTHER: &str = "\"0123456789abcdef0123456789abcdef\"";

/// Runs a sequence in a new bucket, and compares everything once more at its end.
pub(crate) fn run(s3: &mut S3, bucket: &str, operations: &[Operation]) -> Outcome {
    let mut drive = Drive { s3, bucket, model: Bucket::default() };
    let created = drive.s3.create_bucket(bucket).map_err(broken)?;
    expect(&created, 200, "")?;
    for operation in operations {
        drive.step(operation)?;
    }
    let keys: Vec<String> = drive.model.objects.keys().cloned().collect();
    ensure(drive.s3.keys(bucket).map_err(broken)? == keys, || "the final listing".to_owned())?;
    for key in &keys {
        drive.get(key, Span::All, When::Always)?;
    }
    drive.list_versions("", 1_000)?;
    let history: Vec<(String, usize)> =
        drive.model.versions.iter().map(|(key, all)| (key.clone(), all.len())).collect();
    for (key, count) in history {
        for nth in 0..count {
            drive.version(&key, nth)?;
        }
    }
    Ok(())
}

pub(crate) struct Drive<'a> {
    pub(crate) s3: &'a mut S3,
    pub(crate) bucket: &'a str,
    pub(crate) model: Bucket,
}

impl Drive<'_> {
    fn step(&mut self, operation: &Operation) -> Outcome {
        match *operation {
            Operation::Put { key, length, seed, owner, when } => {
                self.put(key, payload(seed, length), owner, when)
            }
            Operation::Get { key, range, when } => self.get(key, range, when),
            Operation::Head { key } => self.head(key),
            Operation::Delete { key } => {
                let response = self.s3.delete(self.bucket, key).map_err(broken)?;
                expect(&response, 204, "")?;
                match response.header("x-amz-version-id") {
                    Some(marker) => self.model.add(key, marker, None),
                    None => drop(self.model.remove(key, "null")),
                }
                self.named(&response)
            }
            Operation::DeleteMany { ref keys } => self.delete_many(keys),
            Operation::Copy { from, to, replace } => self.copy(from, to, replace),
            Operation::List { version, prefix, delimiter, page, after } => {
                self.list(version, prefix, delimiter, page, after)
            }
            Operation::CreateUpload { key } => {
                let id = self.s3.create_upload(self.bucket, key).map_err(broken)?;
                self.model.uploads.push(Upload {
                    key: key.to_owned(),
                    id,
                    parts: Default::default(),
                });
                Ok(())
            }
            Operation::PutPart { upload, number, length, seed } => {
                self.put_part(upload, number, payload(seed, length))
            }
            Operation::Complete { upload } => self.complete(upload),
            Operation::Abort { upload } => self.abort(upload),
            Operation::ListParts { upload } => self.list_parts(upload),
            Operation::ListUploads => self.list_uploads(),
            Operation::Keep { enabled } => self.keep(enabled),
            Operation::GetVersion { key, nth } => self.version(key, nth),
            Operation::DeleteVersion { key, nth } => self.delete_version(key, nth),
            Operation::ListVersions { prefix, page } => self.list_versions(prefix, page),
        }
    }

    fn put(&mut self, key: &str, body: Vec<u8>, owner: Option<u8>, when: When) -> Outcome {
        let present = self.model.objects.get(key);
        let mut request = Request::object("PUT", self.bucket, key).body(body.clone());
        if let Some(owner) = owner {
            request = request.header("x-amz-meta-owner", owner.to_string());
        }
        // A write knows If-Match and If-None-Match: * only.
        let verdict = match (when, present) {
            (When::Matches | When::MatchesAnother, None) => Some((404, "NoSuchKey")),
            (When::MatchesAnother, Some(_)) | (When::NoneExists, Some(_)) => {
                Some((412, "PreconditionFailed"))
            }
            _ => None,
        };
        request = match when {
            When::Matches => request.header("if-match", present.map_or(ANOTHER, |o| &o.etag)),
            When::MatchesAnother => request.header("if-match", ANOTHER),
            When::NoneExists => request.header("if-none-match", "*"),
            When::Always | When::NoneMatches | When::NoneMatchesAnother => request,
        };
        let response = self.s3.send(request).map_err(broken)?;
        if let Some((status, code)) = verdict {
            return expect(&response, status, code);
        }
        expect(&response, 200, "")?;
        same("etag", response.header("etag"), Some(&etag(&body)))?;
        self.made(key, &response, Object::new(body, owner))
    }

    fn get(&mut self, key: &str, range: Span, when: When) -> Outcome {
        let mut request = Request::object("GET", self.bucket, key);
        request = match range {
            Span::All => request,
            Span::FromTo(from, to) => request.header("range", format!("bytes={from}-{to}")),
            Span::From(from) => request.header("range", format!("bytes={from}-")),
            Span::Last(count) => request.header("range", format!("bytes=-{count}")),
        };
        let present = self.model.objects.get(key);
        let own = present.map_or(ANOTHER, |object| &object.etag);
        request = match when {
            When::Always => request,
            When::Matches => request.header("if-match", own),
            When::MatchesAnother => request.header("if-match", ANOTHER),
            When::NoneMatches => request.header("if-none-match", own),
            When::NoneMatchesAnother => request.header("if-none-match", ANOTHER),
            When::NoneExists => request.header("if-none-match", "*"),
        };
        let response = self.s3.send(request).map_err(broken)?;
        let Some(object) = present else { return expect(&response, 404, "NoSuchKey") };
        match when {
            When::MatchesAnother => return expect(&response, 412, "PreconditionFailed"),
            When::NoneMatches | When::NoneExists => return expect(&response, 304, ""),
            When::Always | When::Matches | When::NoneMatchesAnother => {}
        }
        let length = object.body.len();
        let (from, to) = match range {
            Span::All => (0, length),
            Span::FromTo(from, to) => (from, length.min(to + 1)),
            Span::From(from) => (from, length),
            Span::Last(count) => (length - length.min(count), length),
        };
        let whole = matches!(range, Span::All);
        if !whole && from >= to {
            return expect(&response, 416, "InvalidRange");
        }
        expect(&response, if whole { 200 } else { 206 }, "")?;
        ensure(response.body == object.body[from..to], || format!("the bytes of {key}"))?;
        same("etag", response.header("etag"), Some(&object.etag))?;
        let owner = object.owner.map(|owner| owner.to_string());
        same("metadata", response.header("x-amz-meta-owner"), owner.as_deref())?;
        let extent = format!("bytes {from}-{}/{length}", to.saturating_sub(1));
        same(
            "content-range",
            response.header("content-range"),
            Some(&extent[..]).filter(|_| !whole),
        )
    }

    fn head(&mut self, key: &str) -> Outcome {
        let request = Request::object("HEAD", self.bucket, key);
        let response = self.s3.send(request).map_err(broken)?;
        let Some(object) = self.model.objects.get(key) else { return expect(&response, 404, "") };
        expect(&response, 200, "")?;
        let length = object.body.len().to_string();
        same("content-length", response.header("content-length"), Some(&length))?;
        same("etag", response.header("etag"), Some(&object.etag))
    }

    fn delete_many(&mut self, keys: &[&str]) -> Outcome {
        // The order in which one key is deleted twice at once is nobody's to know.
        let keys: std::collections::BTreeSet<&str> = keys.iter().copied().collect();
        let escape =
            |key: &str| key.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let objects: String =
            keys.iter().map(|key| format!("<Object><Key>{}</Key></Object>", escape(key))).collect();
        let body = format!("<Delete>{objects}</Delete>").into_bytes();
        let digest = {
            use base64::prelude::{BASE64_STANDARD, Engine as _};
            use md5::Digest as _;
            BASE64_STANDARD.encode(md5::Md5::digest(&body))
        };
        let request = Request::new("POST", format!("/{}", self.bucket))
            .query("delete", "")
            .header("content-md5", digest)
            .body(body);
        let response = self.s3.send(request).map_err(broken)?;
        expect(&response, 200, "")?;
        ensure(!response.text().contains("<Error>"), || response.text())?;
        let mut markers = elements(&response.text(), "DeleteMarkerVersionId").into_iter();
        for key in keys {
            match markers.next() {
                Some(marker) => self.model.add(key, &marker, None),
                None => drop(self.model.remove(key, "null")),
            }
        }
        Ok(())
    }

    fn copy(&mut self, from: &str, to: &str, replace: Option<u8>) -> Outcome {
        let mut request = Request::object("PUT", self.bucket, to)
            .header("x-amz-copy-source", copy_source(self.bucket, from));
        if let Some(owner) = replace {
            request = request
                .header("x-amz-metadata-directive", "REPLACE")
                .header("x-amz-meta-owner", owner.to_string());
        }
        let response = self.s3.send(request).map_err(broken)?;
        if from == to && replace.is_none() {
            return expect(&response, 400, "InvalidRequest");
        }
        let Some(source) = self.model.objects.get(from) else {
            return expect(&response, 404, "NoSuchKey");
        };
        expect(&response, 200, "")?;
        // A copy shares its source's bytes, and keeps the ETag of what was uploaded in parts.
        let object = Object { owner: replace.or(source.owner), ..source.clone() };
        let found = elements(&response.text(), "ETag").pop().unwrap_or_default();
        same("copy's etag", Some(&found), Some(&object.etag))?;
        self.made(to, &response, object)
    }

    fn list(
        &mut self,
        version: u8,
        prefix: &str,
        delimiter: &str,
        page: usize,
        after: Option<&str>,
    ) -> Outcome {
        let expected = self.model.listing(prefix, delimiter, after);
        let mut found: Vec<Entry> = Vec::new();
        let (first, next) = match version {
            1 => ("marker", "marker"),
            _ => ("start-after", "continuation-token"),
        };
        let mut position = after.map(|after| (first, after.to_owned()));
        loop {
            let mut request = Request::new("GET", format!("/{}", self.bucket))
                .query("prefix", prefix)
                .query("max-keys", page.to_string());
            if version == 2 {
                request = request.query("list-type", "2");
            }
            if !delimiter.is_empty() {
                request = request.query("delimiter", delimiter);
            }
            if let Some((name, value)) = &position {
                request = request.query(name, value);
            }
            let response = self.s3.send(request).map_err(broken)?;
            expect(&response, 200, "")?;
            let xml = response.text();
            let entries = entries(&xml);
            let left = expected.len().saturating_sub(found.len());
            same("entries of a page", Some(&entries.len()), Some(&left.min(page)))?;
            found.extend(entries);
            if element(&xml, "IsTruncated") != Some("true") {
                break;
            }
            ensure(found.len() < expected.len(), || "truncated without more to come".to_owned())?;
            let token = match version {
                1 => {
                    elements(&xml, "NextMarker").pop().or(found.last().map(|e| e.name().to_owned()))
                }
                _ => elements(&xml, "NextContinuationToken").pop(),
            };
            position = Some((next, token.ok_or_else(|| fail("no way to the next page"))?));
        }
        ensure(found == expected, || format!("listed {found:?}\nexpected {expected:?}"))
    }

    fn put_part(&mut self, upload: usize, number: u32, body: Vec<u8>) -> Outcome {
        let Some(upload) = self.model.uploads.get_mut(upload) else { return Ok(()) };
        let stored = self.s3.put_part(self.bucket, &upload.key, &upload.id, number, &body);
        same("part's etag", Some(&stored.map_err(broken)?), Some(&etag(&body)))?;
        upload.parts.insert(number, body);
        Ok(())
    }

    fn complete(&mut self, index: usize) -> Outcome {
        let Some(upload) = self.model.uploads.get(index) else { return Ok(()) };
        let parts: Vec<(u32, String)> =
            upload.parts.iter().map(|(number, body)| (*number, etag(body))).collect();
        let response = self
            .s3
            .complete_upload(self.bucket, &upload.key, &upload.id, &parts)
            .map_err(broken)?;
        match upload.completed() {
            Err(code) => expect(&response, 400, code),
            Ok(object) => {
                expect(&response, 200, "")?;
                let found = elements(&response.text(), "ETag").pop().unwrap_or_default();
                same("completed etag", Some(&found), Some(&object.etag))?;
                let upload = self.model.uploads.remove(index);
                self.made(&upload.key, &response, object)
            }
        }
    }

    fn abort(&mut self, index: usize) -> Outcome {
        if index >= self.model.uploads.len() {
            return Ok(());
        }
        let upload = self.model.uploads.remove(index);
        let request =
            Request::object("DELETE", self.bucket, &upload.key).query("uploadId", &upload.id);
        expect(&self.s3.send(request).map_err(broken)?, 204, "")
    }

    fn list_parts(&mut self, index: usize) -> Outcome {
        let Some(upload) = self.model.uploads.get(index) else { return Ok(()) };
        let request =
            Request::object("GET", self.bucket, &upload.key).query("uploadId", &upload.id);
        let response = self.s3.send(request).map_err(broken)?;
        expect(&response, 200, "")?;
        let found = elements(&response.text(), "PartNumber");
        let expected: Vec<String> = upload.parts.keys().map(u32::to_string).collect();
        ensure(found == expected, || format!("parts {found:?}, expected {expected:?}"))
    }

    fn list_uploads(&mut self) -> Outcome {
        let mut found = self.s3.uploads(self.bucket).map_err(broken)?;
        let mut expected: Vec<(String, String)> = self
            .model
            .uploads
            .iter()
            .map(|upload| (upload.key.clone(), upload.id.clone()))
            .collect();
        found.sort();
        expected.sort();
        ensure(found == expected, || format!("uploads {found:?}, expected {expected:?}"))
    }
}

/// Keys and groups of a page, merged into one order as S3 counts them.
fn entries(xml: &str) -> Vec<Entry> {
    let groups: String = xml.split("<CommonPrefixes>").skip(1).collect();
    let mut entries: Vec<Entry> = elements(xml, "Key").into_iter().map(Entry::Key).collect();
    entries.extend(elements(&groups, "Prefix").into_iter().map(Entry::Group));
    entries.sort_by(|a, b| a.name().cmp(b.name()));
    entries
}

pub(crate) fn expect(response: &Response, status: u16, code: &str) -> Outcome {
    let found = response.code().unwrap_or_default();
    ensure(response.status == status && (found == code || response.body.is_empty()), || {
        format!("expected {status} {code}, got {} {}", response.status, response.text())
    })
}

pub(crate) fn same<T: PartialEq + std::fmt::Debug + ?Sized>(
    what: &str,
    found: Option<&T>,
    expected: Option<&T>,
) -> Outcome {
    ensure(found == expected, || format!("{what}: {found:?}, expected {expected:?}"))
}

pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(fail(otherwise())) }
}

pub(crate) fn fail(why: impl Into<String>) -> TestCaseError {
    TestCaseError::fail(why.into())
}

#[allow(clippy::needless_pass_by_value, reason = "its form is that of `map_err`'s argument")]
pub(crate) fn broken(error: io::Error) -> TestCaseError {
    fail(format!("the server did not answer: {error}"))
}
