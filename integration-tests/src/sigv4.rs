//! AWS Signature Version 4, written from its specification so that each step can be made to
//! go wrong: the tests that send broken signatures need a hand on every part.
//!
//! Source: "Authenticating Requests (AWS Signature Version 4)" in Amazon's S3 API reference.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::wire::{Request, encode};

/// `x-amz-content-sha256` of a body that is not signed.
pub const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
/// The same for signed chunks.
pub const STREAMING: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
/// The same for signed chunks that end with a signed trailer.
pub const STREAMING_TRAILER: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";
/// The same for unsigned chunks that end with a trailer.
pub const UNSIGNED_TRAILER: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";

/// An access key with its secret.
#[derive(Clone)]
pub struct Credentials {
    /// The access key id.
    pub access_key: String,
    /// The secret. Of a test's own server: not secret from the test.
    pub secret_key: String,
}

impl Credentials {
    /// Credentials that no other server accepts.
    pub fn random() -> Self {
        let text = |length| (0..length).map(|_| fastrand::alphanumeric()).collect::<String>();
        Self { access_key: text(20).to_uppercase(), secret_key: text(40) }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// Signs requests; every part of the scope can be set.
#[derive(Clone, Debug)]
pub struct Signer {
    /// Whose signature.
    pub credentials: Credentials,
    /// The scope's region.
    pub region: String,
    /// The scope's service.
    pub service: String,
    /// `YYYYMMDDTHHMMSSZ`.
    pub time: String,
}

impl Signer {
    /// A signer for now, `us-east-1` and `s3`.
    pub fn new(credentials: &Credentials) -> Self {
        Self {
            credentials: credentials.clone(),
            region: "us-east-1".to_owned(),
            service: "s3".to_owned(),
            time: amz_time(0),
        }
    }

    /// A signer whose clock is off by so many seconds.
    pub fn skewed(credentials: &Credentials, seconds: i64) -> Self {
        Self { time: amz_time(seconds), ..Self::new(credentials) }
    }

    /// The credential scope.
    pub fn scope(&self) -> String {
        format!("{}/{}/{}/aws4_request", &self.time[..8], self.region, self.service)
    }

    /// Signs with the body's SHA-256: sets `x-amz-date`, `x-amz-content-sha256` and
    /// `authorization`.
    pub fn sign(&self, request: &mut Request) {
        let hash = sha256_hex(&request.body);
        self.sign_payload(request, &hash);
    }

    /// Signs with a given `x-amz-content-sha256`; answers the signature, the seed of chunk
    /// signatures.
    pub fn sign_payload(&self, request: &mut Request, payload: &str) -> String {
        request.set("x-amz-date", &self.time);
        request.set("x-amz-content-sha256", payload);
        let names = signable(request);
        self.authorize(request, &names, payload)
    }

    /// Sets `authorization` over the named header fields only.
    pub fn authorize(&self, request: &mut Request, names: &[String], payload: &str) -> String {
        let signature = self.signature(&canonical(request, names, payload));
        let value = format!(
            "AWS4-HMAC-SHA256 Credential={}/{},SignedHeaders={},Signature={signature}",
            self.credentials.access_key,
            self.scope(),
            names.join(";"),
        );
        request.set("authorization", value);
        signature
    }

    /// Turns the request into a presigned one, valid for `expires_s` seconds, that signs the
    /// header fields present.
    pub fn presign(&self, request: &mut Request, expires_s: i64) {
        let names = signable(request);
        let query = [
            ("X-Amz-Algorithm", "AWS4-HMAC-SHA256".to_owned()),
            ("X-Amz-Credential", format!("{}/{}", self.credentials.access_key, self.scope())),
            ("X-Amz-Date", self.time.clone()),
            ("X-Amz-Expires", expires_s.to_string()),
            ("X-Amz-SignedHeaders", names.join(";")),
        ];
        request.query.extend(query.map(|(name, value)| (name.to_owned(), value)));
        let signature = self.signature(&canonical(request, &names, UNSIGNED));
        request.query.push(("X-Amz-Signature".to_owned(), signature));
    }

    /// The signature of a chunk that follows the one with signature `previous`.
    pub fn chunk_signature(&self, previous: &str, data: &[u8]) -> String {
        let empty = sha256_hex(b"");
        self.string_signature(&format!(
            "AWS4-HMAC-SHA256-PAYLOAD\n{}\n{}\n{previous}\n{empty}\n{}",
            self.time,
            self.scope(),
            sha256_hex(data),
        ))
    }

    /// The signature of trailing header lines (`name:value\n` each).
    pub fn trailer_signature(&self, previous: &str, lines: &str) -> String {
        self.string_signature(&format!(
            "AWS4-HMAC-SHA256-TRAILER\n{}\n{}\n{previous}\n{}",
            self.time,
            self.scope(),
            sha256_hex(lines.as_bytes()),
        ))
    }

    /// The signature of a POST policy, as it stands in its form.
    pub fn policy_signature(&self, policy: &str) -> String {
        self.string_signature(policy)
    }

    fn signature(&self, canonical: &str) -> String {
        self.string_signature(&format!(
            "AWS4-HMAC-SHA256\n{}\n{}\n{}",
            self.time,
            self.scope(),
            sha256_hex(canonical.as_bytes()),
        ))
    }

    fn string_signature(&self, string_to_sign: &str) -> String {
        let secret = format!("AWS4{}", self.credentials.secret_key);
        let mut key = hmac(secret.as_bytes(), &self.time[..8]);
        for part in [&self.region, &self.service, "aws4_request"] {
            key = hmac(&key, part);
        }
        hex::encode(hmac(&key, string_to_sign))
    }
}

/// The header fields a client signs: all but those that proxies may touch.
pub fn signable(request: &Request) -> Vec<String> {
    let unsigned = ["authorization", "content-length", "transfer-encoding", "expect", "connection"];
    let mut names: Vec<String> = request
        .headers
        .iter()
        .map(|(name, _)| name.to_ascii_lowercase())
        .filter(|name| !unsigned.contains(&name.as_str()))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// `YYYYMMDDTHHMMSSZ`, so many seconds from now.
pub fn amz_time(offset_s: i64) -> String {
    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(offset_s);
    time.strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// SHA-256 in hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn canonical(request: &Request, names: &[String], payload: &str) -> String {
    let mut query: Vec<(String, String)> = request
        .query
        .iter()
        .map(|(name, value)| (encode(name.as_bytes(), false), encode(value.as_bytes(), false)))
        .collect();
    query.sort();
    let query: Vec<String> =
        query.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    let fields: String = names
        .iter()
        .map(|name| {
            let values: Vec<String> = request
                .headers
                .iter()
                .filter(|(field, _)| field.eq_ignore_ascii_case(name))
                .map(|(_, value)| String::from_utf8_lossy(value).trim().to_owned())
                .collect();
            format!("{name}:{}\n", values.join(","))
        })
        .collect();
    format!(
        "{}\n{}\n{}\n{fields}\n{}\n{payload}",
        request.method,
        request.path,
        query.join("&"),
        names.join(";"),
    )
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The specification's own example of a signed GET with a range.
    #[test]
    fn the_published_example_comes_out() {
        let signer = Signer {
            credentials: Credentials {
                access_key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
                secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            },
            time: "20130524T000000Z".to_owned(),
            region: "us-east-1".to_owned(),
            service: "s3".to_owned(),
        };
        let mut request = Request::new("GET", "/test.txt")
            .header("host", "examplebucket.s3.amazonaws.com")
            .header("range", "bytes=0-9");
        let signature = {
            signer.sign(&mut request);
            String::from_utf8(request.value("authorization").unwrap().to_vec()).unwrap()
        };
        let expected = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
        assert!(signature.ends_with(expected), "{signature}");
    }
}
