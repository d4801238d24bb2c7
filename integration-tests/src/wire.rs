//! HTTP/1.1 byte by byte: requests that a well-behaved library would refuse to send.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// How long a peer may stay silent before the test calls it a hang.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest response head that is read.
const HEAD_LIMIT: usize = 256 * 1024;

/// A request as it goes on the wire; nothing is checked or added but `Content-Length`.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The path as sent: percent-encoded, or deliberately not.
    pub path: String,
    /// Query parameters, not encoded; encoded strictly when sent.
    pub query: Vec<(String, String)>,
    /// Header fields in order.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Request {
    /// A request with no headers and an empty body; `path` is sent as it is.
    pub fn new(method: &str, path: impl Into<String>) -> Self {
        Self {
            method: method.to_owned(),
            path: path.into(),
            query: Vec::new(),
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    /// A request for an object, its key percent-encoded.
    pub fn object(method: &str, bucket: &str, key: &str) -> Self {
        Self::new(method, format!("/{bucket}/{}", encode(key.as_bytes(), true)))
    }

    /// Adds a query parameter.
    #[must_use]
    pub fn query(mut self, name: &str, value: impl Into<String>) -> Self {
        self.query.push((name.to_owned(), value.into()));
        self
    }

    /// Adds a header field.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// The first value of a header field.
    pub fn value(&self, name: &str) -> Option<&[u8]> {
        let mut fields = self.headers.iter();
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| &value[..])
    }

    /// Replaces a header field, or adds it.
    pub fn set(&mut self, name: &str, value: impl AsRef<[u8]>) {
        self.remove(name);
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
    }

    /// Removes a header field.
    pub fn remove(&mut self, name: &str) {
        self.headers.retain(|(field, _)| !field.eq_ignore_ascii_case(name));
    }

    /// Path and query as sent.
    pub fn target(&self) -> String {
        if self.query.is_empty() {
            return self.path.clone();
        }
        let pairs = self.query.iter().map(|(name, value)| {
            format!("{}={}", encode(name.as_bytes(), false), encode(value.as_bytes(), false))
        });
        format!("{}?{}", self.path, pairs.collect::<Vec<_>>().join("&"))
    }

    /// The request line and header fields, with the blank line.
    pub fn head(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, self.target()).into_bytes();
        for (name, value) in &self.headers {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        bytes
    }

    /// The whole request. `Content-Length` is added when neither it nor `Transfer-Encoding`
    /// is there.
    pub fn bytes(&self) -> Vec<u8> {
        let mut request = self.clone();
        let framed = ["content-length", "transfer-encoding"];
        if framed.iter().all(|name| self.value(name).is_none()) {
            request.set("content-length", self.body.len().to_string());
        }
        let mut bytes = request.head();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// A response.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Header fields in order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body without its framing.
    pub body: Vec<u8>,
}

impl Response {
    /// The first value of a header field; `name` in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// The body as text, for messages and XML.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// S3's error code, from the XML body.
    pub fn code(&self) -> Option<String> {
        element(&self.text(), "Code").map(str::to_owned)
    }
}

/// The text of the first element of that name, entities not decoded.
pub fn element<'x>(xml: &'x str, name: &str) -> Option<&'x str> {
    let start = xml.find(&format!("<{name}>"))? + name.len() + 2;
    let length = xml[start..].find(&format!("</{name}>"))?;
    Some(&xml[start..start + length])
}

/// The texts of all elements of that name, in order, the five XML entities decoded.
pub fn elements(xml: &str, name: &str) -> Vec<String> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut found = Vec::new();
    let mut rest = xml;
    while let Some(start) = rest.find(&open) {
        let after = &rest[start + open.len()..];
        let Some(length) = after.find(&close) else { break };
        found.push(unescape(&after[..length]));
        rest = &after[length + close.len()..];
    }
    found
}

fn unescape(text: &str) -> String {
    // The ampersand goes last: what it yields is not decoded again.
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#34;", "\"")
        .replace("&apos;", "'")
        .replace("&#39;", "'")
        .replace("&amp;", "&")
}

/// Percent-encodes as SigV4 does: all but unreserved characters, and `/` where kept.
pub fn encode(bytes: &[u8], keep_slash: bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(byte));
            }
            b'/' if keep_slash => text.push('/'),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// A connection that stays open between requests.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, SILENCE_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_TIMEOUT))?;
        stream.set_write_timeout(Some(SILENCE_TIMEOUT))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends a request and reads its response: also one that came before the whole body was
    /// taken, as a refusal may.
    ///
    /// # Errors
    /// When the connection ends first, or the peer stays silent.
    pub fn exchange(&mut self, request: &Request) -> io::Result<Response> {
        let sent = self.write(&request.bytes());
        let answer = self.read_response(request.method == "HEAD");
        answer.map_err(|error| sent.err().unwrap_or(error))
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// When the peer has closed.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Ends the sending direction: the peer sees an early hang-up.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn hang_up(&mut self) -> io::Result<()> {
        self.stream.get_mut().shutdown(Shutdown::Write)
    }

    /// Reads one final response; interim ones are skipped.
    ///
    /// # Errors
    /// `UnexpectedEof` when the peer closed without one, `InvalidData` when it is not HTTP.
    pub fn read_response(&mut self, to_head: bool) -> io::Result<Response> {
        loop {
            let (status, headers) = self.read_head()?;
            if (100..200).contains(&status) {
                continue;
            }
            let mut response = Response { status, headers, body: Vec::new() };
            if !to_head && status != 204 && status != 304 {
                response.body = self.read_body(&response)?;
            }
            return Ok(response);
        }
    }

    fn read_head(&mut self) -> io::Result<(u16, Vec<(String, String)>)> {
        let status_line = self.read_line()?;
        let status = status_line
            .strip_prefix("HTTP/1.")
            .and_then(|rest| rest.split(' ').nth(1))
            .and_then(|code| code.parse().ok())
            .ok_or_else(|| invalid(&status_line))?;
        let mut headers = Vec::new();
        let mut read = 0;
        loop {
            let line = self.read_line()?;
            read += line.len();
            if read > HEAD_LIMIT {
                return Err(invalid("the response head is too long"));
            }
            if line.is_empty() {
                return Ok((status, headers));
            }
            let (name, value) = line.split_once(':').ok_or_else(|| invalid(&line))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    fn read_body(&mut self, response: &Response) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        if response.header("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            loop {
                let line = self.read_line()?;
                let size = usize::from_str_radix(&line, 16).map_err(|_| invalid(&line))?;
                let start = body.len();
                body.resize(start + size, 0);
                self.stream.read_exact(&mut body[start..])?;
                self.read_line()?;
                if size == 0 {
                    return Ok(body);
                }
            }
        }
        match response.header("content-length") {
            Some(length) => {
                body.resize(length.parse().map_err(|_| invalid(length))?, 0);
                self.stream.read_exact(&mut body)?;
            }
            None => {
                self.stream.read_to_end(&mut body)?;
            }
        }
        Ok(body)
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        String::from_utf8(line).map_err(|_| invalid("the response head is not UTF-8"))
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_encoded_as_signatures_want_them() {
        let request = Request::object("GET", "b", "a b/ü+~").query("prefix", "x/y z");
        assert_eq!(request.target(), "/b/a%20b/%C3%BC%2B~?prefix=x%2Fy%20z");
    }

    #[test]
    fn elements_are_found_and_decoded() {
        let xml = "<L><Key>a&amp;lt;b</Key><Key>c</Key></L>";
        assert_eq!(elements(xml, "Key"), ["a&lt;b", "c"]);
        assert_eq!(element(xml, "Missing"), None);
    }
}
