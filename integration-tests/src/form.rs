//! Forms as browsers send them: `multipart/form-data` with a signed policy, each part of which can
//! be made to be wrong.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::sigv4::{Credentials, Signer};
use crate::wire::Request;

/// What stands between the parts.
const BOUNDARY: &str = "----WebKitFormBoundary7MA4YWxkTrZu0gW";

/// A form for a bucket.
#[derive(Clone, Debug)]
pub struct Form {
    /// Where it goes.
    pub bucket: String,
    /// When its policy ends, in seconds from now.
    pub expires_s: i64,
    /// The policy's conditions, as JSON each.
    pub conditions: Vec<String>,
    /// Its fields, in order.
    pub fields: Vec<(String, String)>,
    /// Whether each field that is added is covered by a condition.
    pub covered: bool,
    /// The file's name and bytes.
    pub file: (String, Vec<u8>),
    /// What stands behind the file, as it is sent: further parts, without their end.
    pub behind: Vec<u8>,
    /// Headers of the file's part.
    pub file_headers: String,
}

impl Form {
    /// A form of an object `key` with these bytes; the bucket and the key are its conditions.
    pub fn new(bucket: &str, key: &str, file: impl Into<Vec<u8>>) -> Self {
        let form = Self {
            bucket: bucket.to_owned(),
            expires_s: 600,
            conditions: vec![format!("{{\"bucket\": {bucket:?}}}")],
            fields: Vec::new(),
            covered: true,
            file: ("file.bin".to_owned(), file.into()),
            behind: Vec::new(),
            file_headers: "Content-Type: application/octet-stream\r\n".to_owned(),
        };
        form.field("key", key)
    }

    /// Adds a field, with a condition that it is as it is.
    #[must_use]
    pub fn field(mut self, name: &str, value: &str) -> Self {
        if self.covered {
            self.conditions.push(format!("[\"eq\", {:?}, {value:?}]", format!("${name}")));
        }
        self.uncovered(name, value)
    }

    /// Adds a field that no condition names.
    #[must_use]
    pub fn uncovered(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a condition, as JSON.
    #[must_use]
    pub fn condition(mut self, json: &str) -> Self {
        self.conditions.push(json.to_owned());
        self
    }

    /// Changes a field after it was signed.
    pub fn tamper(&mut self, name: &str, value: &str) {
        for (field, old) in &mut self.fields {
            if field == name {
                value.clone_into(old);
            }
        }
    }

    /// Adds policy and signature.
    #[must_use]
    pub fn signed(self, credentials: &Credentials) -> Self {
        self.signed_by(&Signer::new(credentials), None)
    }

    /// The same with a signer of the caller's, and the token of temporary credentials.
    #[must_use]
    pub fn signed_by(mut self, signer: &Signer, token: Option<&str>) -> Self {
        let credential = format!("{}/{}", signer.credentials.access_key, signer.scope());
        self = self
            .field("x-amz-algorithm", "AWS4-HMAC-SHA256")
            .field("x-amz-credential", &credential)
            .field("x-amz-date", &signer.time);
        if let Some(token) = token {
            self = self.field("x-amz-security-token", token);
        }
        let ends = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(self.expires_s);
        let policy = format!(
            "{{\"expiration\": \"{}\", \"conditions\": [{}]}}",
            ends.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
            self.conditions.join(", "),
        );
        self.signed_policy(signer, &policy)
    }

    /// Adds this policy, whatever it is, and its signature.
    #[must_use]
    pub fn signed_policy(self, signer: &Signer, policy: &str) -> Self {
        let policy = BASE64.encode(policy);
        let signature = signer.policy_signature(&policy);
        self.uncovered("policy", &policy).uncovered("x-amz-signature", &signature)
    }

    /// The form's body.
    pub fn body(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for (name, value) in &self.fields {
            body.extend_from_slice(part(name, value).as_bytes());
        }
        let (name, bytes) = &self.file;
        let head = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; \
             filename=\"{name}\"\r\n{}\r\n",
            self.file_headers
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\r\n");
        body.extend_from_slice(&self.behind);
        body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
        body
    }

    /// The request.
    pub fn request(&self) -> Request {
        Request::new("POST", format!("/{}", self.bucket))
            .header("content-type", content_type())
            .body(self.body())
    }
}

/// The header that says that a body is such a form.
pub fn content_type() -> String {
    format!("multipart/form-data; boundary={BOUNDARY}")
}

/// A field as it is sent.
pub fn part(name: &str, value: &str) -> String {
    format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}
