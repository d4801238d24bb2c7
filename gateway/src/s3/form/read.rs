//! A form, read up to its file.
//!
//! Sketch: what stands before the file is held, at most [`FIELDS_BYTES_MAX`]; the file passes in
//! the network's frames, scanned once for the boundary. What stands behind it is not read.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use keyway_dataplane::TransferError;
use keyway_dataplane::node::BodyError;
use s3s::{Body, S3ErrorCode};
use s3s_multipart::{Boundary, Error, Multipart, PartDataStream, parse_content_disposition};

use crate::s3::errors::Failure;

/// Most bytes of a form before its file: S3's own limit.
pub(super) const FIELDS_BYTES_MAX: u64 = 20 << 10;
/// Most fields; the policy's conditions are compared with each.
const FIELDS_MAX: usize = 200;
/// Most bytes of one part's headers.
const HEADERS_BYTES_MAX: usize = 8 << 10;

type Source = Pin<Box<dyn Stream<Item = Result<Bytes, Error>> + Send>>;

/// The bytes of a form's file.
pub(super) type File = PartDataStream<Source>;

/// A form up to its file.
pub(super) struct Form {
    /// By name, in lowercase; `${filename}` is replaced.
    pub(super) fields: BTreeMap<String, String>,
    /// The file's bytes.
    pub(super) file: File,
    /// Bytes of the body that have come so far, the file's first ones perhaps among them.
    pub(super) received: u64,
}

/// The boundary, where the headers say that the body is a form.
pub(super) fn boundary(headers: &HeaderMap) -> Option<Result<Boundary, Failure>> {
    const FORM: &str = "multipart/form-data";
    let mut values = headers.get_all(CONTENT_TYPE).into_iter();
    let text = values.next()?.to_str().ok()?;
    let (kind, parameters) = text.split_once(';').unwrap_or((text, ""));
    if !kind.trim().eq_ignore_ascii_case(FORM) {
        return None;
    }
    let given = parameters.split(';').filter_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let value = value.trim();
        let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        name.trim().eq_ignore_ascii_case("boundary").then_some(quoted.unwrap_or(value))
    });
    let given: Vec<&str> = given.collect();
    let found = match given[..] {
        [one] if values.next().is_none() => Boundary::new(one.as_bytes()).ok(),
        _ => None,
    };
    Some(found.ok_or_else(malformed))
}

/// Reads a form up to its file.
///
/// # Errors
/// `MalformedPOSTRequest`, `MaxPostPreDataLengthExceededError`, `IncorrectNumberOfFilesInPostRequest`
/// for a form without a file, `InvalidArgument` for a field that is there twice, and those of a body
/// that breaks.
pub(super) async fn read(body: Body, boundary: &Boundary) -> Result<Form, Failure> {
    let received = Arc::new(AtomicU64::new(0));
    let source = counted(body, &received);
    let mut parts = Multipart::new(source, boundary, HEADERS_BYTES_MAX);
    let mut fields = BTreeMap::new();
    let too_long = || received.load(Ordering::Relaxed) > FIELDS_BYTES_MAX;
    let failed = |error| match error {
        Error::HeaderSizeExceeded { .. } => too_large(),
        // The source ends where more would have to be read than fields may have.
        Error::IncompleteStream | Error::IncompleteStreamPart if too_long() => too_large(),
        error => failure(error),
    };
    loop {
        let Some(mut part) = parts.next_part().await.map_err(failed)? else {
            return Err(wrong_number_of_files());
        };
        let mut disposition = None;
        while let Some(header) = part.next_header().await.map_err(failed)? {
            if !header.name.eq_ignore_ascii_case("content-disposition") {
                continue;
            }
            if disposition.replace(named(header.value)?).is_some() {
                return Err(malformed());
            }
        }
        let (name, file_name) = disposition.ok_or_else(malformed)?;
        if name == "file" {
            let file = part.take_data_stream().map_err(failed)?;
            if file.multipart_consumed() > FIELDS_BYTES_MAX {
                return Err(too_large());
            }
            substitute(&mut fields, &file_name.unwrap_or_default());
            let received = received.swap(u64::MAX, Ordering::Relaxed);
            return Ok(Form { fields, file, received });
        }
        let mut value = Vec::new();
        while let Some(bytes) = part.next_data().await.map_err(failed)? {
            value.extend_from_slice(&bytes);
        }
        let value = String::from_utf8(value).map_err(|_| malformed())?;
        if fields.len() >= FIELDS_MAX {
            return Err(too_large());
        }
        if fields.contains_key(&name) {
            let message = format!("POST requires exactly one value for the field {name}.");
            return Err(Failure::refuse(S3ErrorCode::InvalidArgument, message));
        }
        fields.insert(name, value);
    }
}

/// The body's frames, counted. Before the file is found it ends where more would have to be read
/// than fields may have: [`read`] then sets the count to what no body reaches.
fn counted(body: Body, received: &Arc<AtomicU64>) -> Source {
    let (counted, asked) = (Arc::clone(received), Arc::clone(received));
    let frames = body.into_data_stream().take_while(move |_| {
        let of = asked.load(Ordering::Relaxed);
        futures::future::ready(of == u64::MAX || of <= FIELDS_BYTES_MAX)
    });
    Box::pin(frames.map(move |frame| {
        let frame = frame.map_err(Error::stream_read_failed)?;
        let length = frame.len() as u64;
        let _ = counted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |of| {
            (of != u64::MAX).then(|| of.saturating_add(length))
        });
        Ok(frame)
    }))
}

/// A part's name, in lowercase, and its file's.
fn named(disposition: &[u8]) -> Result<(String, Option<String>), Failure> {
    let found = parse_content_disposition(disposition).ok_or_else(malformed)?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| malformed());
    let name = text(found.name.ok_or_else(malformed)?)?.to_ascii_lowercase();
    if name.is_empty() {
        return Err(malformed());
    }
    // Some browsers send the path: what follows its last slash is the name.
    let file_name = found.file_name.map(text).transpose()?;
    let file_name = file_name.map(|n| n.rsplit(['/', '\\']).next().unwrap_or_default().to_owned());
    Ok((name, file_name))
}

/// Puts the file's name where fields ask for it. What was signed, or signs, is left alone.
fn substitute(fields: &mut BTreeMap<String, String>, file_name: &str) {
    const VARIABLE: &str = "${filename}";
    let signing = ["policy", "x-amz-signature", "x-amz-credential", "x-amz-security-token"];
    for (name, value) in fields {
        if value.contains(VARIABLE) && !signing.contains(&name.as_str()) {
            *value = value.replace(VARIABLE, file_name);
        }
    }
}

/// Why a form, or its file, could not be read.
pub(super) fn failure(error: Error) -> Failure {
    match error {
        Error::StreamReadFailed(cause) => TransferError::Body(BodyError(Arc::from(cause))).into(),
        Error::IncompleteStream | Error::IncompleteStreamPart => {
            Failure::code(S3ErrorCode::IncompleteBody)
        }
        _ => malformed(),
    }
}

pub(super) fn malformed() -> Failure {
    Failure::refuse(
        S3ErrorCode::MalformedPOSTRequest,
        "The body of your POST request is not well-formed multipart/form-data.",
    )
}

fn too_large() -> Failure {
    Failure::refuse(
        S3ErrorCode::MaxPostPreDataLengthExceededError,
        "Your POST request fields preceding the upload file were too large.",
    )
}

fn wrong_number_of_files() -> Failure {
    Failure::refuse(
        S3ErrorCode::IncorrectNumberOfFilesInPostRequest,
        "POST requires exactly one file upload per request.",
    )
}

/// A file's failure on its way to the node: whatever it is, the body is not whole.
pub(super) fn carried(error: Error) -> s3s::StdError {
    match error {
        Error::StreamReadFailed(cause) => cause,
        error => Box::new(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str =
        "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"C:\\\\a/b.txt\"\r\n\r\n";

    fn field(name: &str, value: &str) -> String {
        format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    }

    async fn form(text: String) -> Result<Form, Failure> {
        read(Body::from(text.into_bytes()), &Boundary::new(b"B").expect("valid")).await
    }

    fn code(form: Result<Form, Failure>) -> String {
        match form {
            Err(Failure::Refused { code, .. }) => code.as_str().to_owned(),
            Err(other) => other.to_string(),
            Ok(_) => "none".to_owned(),
        }
    }

    #[tokio::test]
    async fn fields_and_the_file_are_told_apart() {
        let text = field("Key", "up/${filename}") + &field("acl", "private") + FILE;
        let text = text + "the\r\n--A file\r\n" + &field("acl", "public-read") + "--B--\r\n";
        let form = form(text).await.expect("sound");
        let fields: Vec<_> = form.fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(fields, [("acl", "private"), ("key", "up/b.txt")]);
        let file: Vec<Bytes> = form.file.map(|bytes| bytes.expect("whole")).collect().await;
        assert_eq!(file.concat(), b"the\r\n--A file");
    }

    #[tokio::test]
    async fn forms_that_could_be_read_in_two_ways_are_refused() {
        let twice = field("key", "a") + &field("KEY", "b") + FILE + "x\r\n--B--\r\n";
        assert_eq!(code(form(twice).await), "InvalidArgument");
        let none = field("key", "a") + "--B--\r\n";
        assert_eq!(code(form(none).await), "IncorrectNumberOfFilesInPostRequest");
        let double = "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\
             Content-Disposition: form-data; name=\"b\"\r\n\r\nx\r\n--B--\r\n";
        assert_eq!(code(form(double.to_owned()).await), "MalformedPOSTRequest");
        let nameless = "--B\r\nContent-Disposition: form-data\r\n\r\nx\r\n--B--\r\n";
        assert_eq!(code(form(nameless.to_owned()).await), "MalformedPOSTRequest");
        let large = field("a", &"x".repeat(30_000)) + FILE + "x\r\n--B--\r\n";
        assert_eq!(code(form(large).await), "MaxPostPreDataLengthExceededError");
        let cut = field("key", "a") + "--B\r\nContent-Disp";
        assert_eq!(code(form(cut).await), "IncompleteBody");
    }

    #[test]
    fn boundaries_are_named_once() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, http::HeaderValue::from_static(text));
            boundary(&headers).map(|found| found.is_ok())
        };
        assert_eq!(of("text/plain; boundary=a"), None);
        assert_eq!(of("Multipart/Form-Data; Boundary=\"a b\""), Some(true));
        assert_eq!(of("multipart/form-data; charset=utf-8; boundary=----a"), Some(true));
        assert_eq!(of("multipart/form-data"), Some(false));
        assert_eq!(of("multipart/form-data; boundary=a; boundary=b"), Some(false));
    }
}
