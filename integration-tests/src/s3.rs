//! A small blocking S3 client on one connection, for the crash test and the reference model.
//!
//! Blocking on purpose: a thread per actor makes "the request was under way when the server
//! died" a plain fact instead of a state of an executor.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use crate::server::Server;
use crate::sigv4::{Credentials, Signer};
use crate::wire::{Connection, Request, Response, element, elements, encode};

/// A client of one server. Clones share nothing but the credentials.
pub struct S3 {
    address: SocketAddr,
    credentials: Credentials,
    connection: Option<Connection>,
}

impl S3 {
    /// A client of that server.
    pub fn of(server: &Server) -> Self {
        Self::at(server.address(), server.credentials())
    }

    /// A client of the server at that address.
    pub fn at(address: SocketAddr, credentials: &Credentials) -> Self {
        Self { address, credentials: credentials.clone(), connection: None }
    }

    /// The credentials it signs with.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Signs and sends a request. An idle connection that the server has closed is replaced
    /// once, for requests that may be repeated.
    ///
    /// # Errors
    /// When the server cannot be reached, or dies before it answers.
    pub fn send(&mut self, mut request: Request) -> io::Result<Response> {
        request.set("host", self.address.to_string());
        Signer::new(&self.credentials).sign(&mut request);
        let idle = self.connection.take();
        let reused = idle.is_some();
        let mut connection = match idle {
            Some(connection) => connection,
            None => Connection::open(self.address)?,
        };
        let response = match connection.exchange(&request) {
            Err(_) if reused && matches!(request.method.as_str(), "GET" | "HEAD") => {
                connection = Connection::open(self.address)?;
                connection.exchange(&request)?
            }
            outcome => outcome?,
        };
        // A server that refused may have left the body unread, and close unannounced.
        if response.status < 400 && response.header("connection") != Some("close") {
            self.connection = Some(connection);
        }
        Ok(response)
    }

    /// Creates a bucket.
    ///
    /// # Errors
    /// As [`S3::send`].
    pub fn create_bucket(&mut self, bucket: &str) -> io::Result<Response> {
        self.send(Request::new("PUT", format!("/{bucket}")))
    }

    /// Stores an object.
    ///
    /// # Errors
    /// As [`S3::send`].
    pub fn put(&mut self, bucket: &str, key: &str, body: &[u8]) -> io::Result<Response> {
        self.send(Request::object("PUT", bucket, key).body(body))
    }

    /// Reads an object.
    ///
    /// # Errors
    /// As [`S3::send`].
    pub fn get(&mut self, bucket: &str, key: &str) -> io::Result<Response> {
        self.send(Request::object("GET", bucket, key))
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// As [`S3::send`].
    pub fn delete(&mut self, bucket: &str, key: &str) -> io::Result<Response> {
        self.send(Request::object("DELETE", bucket, key))
    }

    /// Starts a multipart upload and answers its id.
    ///
    /// # Errors
    /// As [`S3::send`], and when the answer names no upload.
    pub fn create_upload(&mut self, bucket: &str, key: &str) -> io::Result<String> {
        let response = self.send(Request::object("POST", bucket, key).query("uploads", ""))?;
        let upload = element(&response.text(), "UploadId").map(str::to_owned);
        upload.ok_or_else(|| refused(&response))
    }

    /// Uploads a part and answers its ETag.
    ///
    /// # Errors
    /// As [`S3::send`], and when the part is refused.
    pub fn put_part(
        &mut self,
        bucket: &str,
        key: &str,
        upload: &str,
        number: u32,
        body: &[u8],
    ) -> io::Result<String> {
        let request = Request::object("PUT", bucket, key)
            .query("partNumber", number.to_string())
            .query("uploadId", upload)
            .body(body);
        let response = self.send(request)?;
        let etag = response.header("etag").map(str::to_owned);
        etag.filter(|_| response.status == 200).ok_or_else(|| refused(&response))
    }

    /// Completes a multipart upload from parts given as number and ETag.
    ///
    /// # Errors
    /// As [`S3::send`].
    pub fn complete_upload(
        &mut self,
        bucket: &str,
        key: &str,
        upload: &str,
        parts: &[(u32, String)],
    ) -> io::Result<Response> {
        let request =
            Request::object("POST", bucket, key).query("uploadId", upload).body(completion(parts));
        self.send(request)
    }

    /// All keys of a bucket in listing order, over all pages.
    ///
    /// # Errors
    /// As [`S3::send`], and when a page is refused.
    pub fn keys(&mut self, bucket: &str) -> io::Result<Vec<String>> {
        let mut keys = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let mut request = Request::new("GET", format!("/{bucket}")).query("list-type", "2");
            if let Some(token) = &token {
                request = request.query("continuation-token", token);
            }
            let response = self.send(request)?;
            if response.status != 200 {
                return Err(refused(&response));
            }
            let xml = response.text();
            keys.extend(elements(&xml, "Key"));
            token = element(&xml, "NextContinuationToken").map(str::to_owned);
            if token.is_none() {
                return Ok(keys);
            }
        }
    }

    /// Uploads under way in a bucket, as key and id.
    ///
    /// # Errors
    /// As [`S3::send`], and when the listing is refused.
    pub fn uploads(&mut self, bucket: &str) -> io::Result<Vec<(String, String)>> {
        let request = Request::new("GET", format!("/{bucket}")).query("uploads", "");
        let response = self.send(request)?;
        if response.status != 200 {
            return Err(refused(&response));
        }
        let xml = response.text();
        Ok(elements(&xml, "Key").into_iter().zip(elements(&xml, "UploadId")).collect())
    }
}

impl fmt::Debug for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The body of `CompleteMultipartUpload`.
pub fn completion(parts: &[(u32, String)]) -> String {
    let parts: String = parts
        .iter()
        .map(|(number, etag)| {
            format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
        })
        .collect();
    format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>")
}

/// `bucket/key`, encoded, as `x-amz-copy-source` wants it.
pub fn copy_source(bucket: &str, key: &str) -> String {
    format!("{bucket}/{}", encode(key.as_bytes(), true))
}

fn refused(response: &Response) -> io::Error {
    io::Error::other(format!("status {}: {}", response.status, response.text()))
}
