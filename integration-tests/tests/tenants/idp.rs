//! An issuer: a server that publishes its keys, and signs tokens with them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    RsaKeyPair,
};
use serde_json::{Value, json};

/// A key with its id.
pub(crate) struct Key {
    id: String,
    pair: Pair,
}

enum Pair {
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    Rsa(Box<RsaKeyPair>),
}

impl Key {
    pub(crate) fn p256(id: &str) -> Result<Self> {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let drawn = EcdsaKeyPair::generate_pkcs8(algorithm, &random);
        let drawn = drawn.ok().context("a key is drawn")?;
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, drawn.as_ref(), &random);
        Ok(Self { id: id.to_owned(), pair: Pair::P256(pair.ok().context("it is a key")?) })
    }

    pub(crate) fn ed25519(id: &str) -> Result<Self> {
        let drawn = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        let drawn = drawn.ok().context("a key is drawn")?;
        let pair = Ed25519KeyPair::from_pkcs8(drawn.as_ref()).ok().context("it is a key")?;
        Ok(Self { id: id.to_owned(), pair: Pair::Ed25519(pair) })
    }

    /// An RSA key, which the openssl command draws; none where there is no such command.
    pub(crate) fn rsa(id: &str) -> Result<Option<Self>> {
        let drawn = Command::new("openssl")
            .args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"])
            .args(["-outform", "DER"])
            .output();
        let Ok(drawn) = drawn else { return Ok(None) };
        ensure!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
        let pair = RsaKeyPair::from_pkcs8(&drawn.stdout);
        let pair = pair.or_else(|_| RsaKeyPair::from_der(&drawn.stdout));
        let pair = pair.ok().context("it is a key")?;
        Ok(Some(Self { id: id.to_owned(), pair: Pair::Rsa(Box::new(pair)) }))
    }

    pub(crate) fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::P256(_) => "ES256",
            Pair::Ed25519(_) => "EdDSA",
            Pair::Rsa(_) => "RS256",
        }
    }

    /// As an issuer publishes it.
    pub(crate) fn public(&self) -> Value {
        let mut key = match &self.pair {
            Pair::P256(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "x": BASE64.encode(x), "y": BASE64.encode(y) })
            }
            Pair::Ed25519(pair) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": BASE64.encode(pair.public_key()) })
            }
            Pair::Rsa(pair) => {
                let parts = PublicKeyComponents::<Vec<u8>>::from(pair.public());
                json!({ "kty": "RSA", "n": BASE64.encode(parts.n), "e": BASE64.encode(parts.e) })
            }
        };
        key["kid"] = self.id.clone().into();
        key["use"] = "sig".into();
        key["alg"] = self.algorithm().into();
        key
    }

    pub(crate) fn token(&self, claims: &Value) -> Result<String> {
        self.token_with(&json!({ "alg": self.algorithm(), "kid": self.id, "typ": "JWT" }), claims)
    }

    pub(crate) fn token_with(&self, header: &Value, claims: &Value) -> Result<String> {
        let message = message(header, claims);
        let signature = match &self.pair {
            Pair::P256(pair) => {
                let signed = pair.sign(&SystemRandom::new(), message.as_bytes());
                signed.ok().context("it signs")?.as_ref().to_vec()
            }
            Pair::Ed25519(pair) => pair.sign(message.as_bytes()).as_ref().to_vec(),
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                let random = SystemRandom::new();
                let signed =
                    pair.sign(&RSA_PKCS1_SHA256, &random, message.as_bytes(), &mut signature);
                signed.ok().context("it signs")?;
                signature
            }
        };
        Ok(format!("{message}.{}", BASE64.encode(signature)))
    }
}

/// What is signed of a token.
pub(crate) fn message(header: &Value, claims: &Value) -> String {
    format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()))
}

/// Seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// How an issuer answers.
#[derive(Default)]
pub(crate) struct Manner {
    pub(crate) keys: Vec<Value>,
    /// So long it takes for each answer.
    pub(crate) pause: Duration,
    /// Instead of what is asked for.
    pub(crate) instead: Option<Vec<u8>>,
    /// The description is of this issuer.
    pub(crate) describes: Option<String>,
    /// Where its keys are said to be.
    pub(crate) keys_at: Option<String>,
    /// Bytes of white space after its keys.
    pub(crate) padding: usize,
    /// How often its keys were asked for.
    pub(crate) asked: usize,
}

/// An issuer on loopback, until it is dropped.
pub(crate) struct Idp {
    address: SocketAddr,
    scheme: &'static str,
    manner: Arc<Mutex<Option<Manner>>>,
}

impl Idp {
    pub(crate) fn start(keys: &[&Key]) -> Result<Self> {
        Self::serve(keys, "http", |stream| Ok(Box::new(stream)))
    }

    /// One behind TLS.
    pub(crate) fn with_tls(keys: &[&Key], tls: rustls::ServerConfig) -> Result<Self> {
        let tls = Arc::new(tls);
        Self::serve(keys, "https", move |stream| {
            let session = rustls::ServerConnection::new(Arc::clone(&tls))?;
            Ok(Box::new(rustls::StreamOwned::new(session, stream)))
        })
    }

    fn serve(
        keys: &[&Key],
        scheme: &'static str,
        wrap: impl Fn(TcpStream) -> Result<Box<dyn Stream>> + Send + Sync + 'static,
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let keys = keys.iter().map(|key| key.public()).collect();
        let manner = Arc::new(Mutex::new(Some(Manner { keys, ..Manner::default() })));
        let idp = Self { address: listener.local_addr()?, scheme, manner };
        let (manner, issuer, wrap) = (Arc::clone(&idp.manner), idp.issuer(), Arc::new(wrap));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if lock(&manner).is_none() {
                    return;
                }
                let (manner, issuer, wrap) =
                    (Arc::clone(&manner), issuer.clone(), Arc::clone(&wrap));
                std::thread::spawn(move || {
                    let answered =
                        wrap(stream).and_then(|mut it| answer(&mut it, &manner, &issuer));
                    // Whoever hangs up meanwhile gets nothing.
                    drop(answered);
                });
            }
        });
        Ok(idp)
    }

    /// Its address, as its tokens have it.
    pub(crate) fn issuer(&self) -> String {
        let host = if self.scheme == "http" { "127.0.0.1" } else { "localhost" };
        format!("{}://{host}:{}/realm", self.scheme, self.address.port())
    }

    /// The same without the scheme.
    pub(crate) fn name(&self) -> String {
        self.issuer().split_once("://").map(|(_, name)| name.to_owned()).unwrap_or_default()
    }

    /// Has it answer in another way from now on.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Manner)) {
        if let Some(manner) = &mut *lock(&self.manner) {
            change(manner);
        }
    }

    pub(crate) fn asked(&self) -> usize {
        lock(&self.manner).as_ref().map_or(0, |manner| manner.asked)
    }

    /// What a good token says.
    pub(crate) fn claims(&self, subject: &str) -> Value {
        let now = now_s();
        json!({
            "iss": self.issuer(), "sub": subject, "aud": "keyway", "iat": now, "exp": now + 300,
        })
    }
}

impl Drop for Idp {
    fn drop(&mut self) {
        *lock(&self.manner) = None;
        // It wakes the listener, which then ends.
        drop(TcpStream::connect(self.address));
    }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers one request.
fn answer(stream: &mut dyn Stream, manner: &Mutex<Option<Manner>>, issuer: &str) -> Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && head.len() < 16_384 {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let (pause, response) = {
        let mut manner = lock(manner);
        let manner = manner.as_mut().context("it is down")?;
        let json = match path.as_str() {
            "/realm/.well-known/openid-configuration" => {
                let keys = format!("{issuer}/keys");
                json!({
                    "issuer": manner.describes.as_deref().unwrap_or(issuer),
                    "jwks_uri": manner.keys_at.as_deref().unwrap_or(&keys),
                })
            }
            _ => {
                manner.asked += 1;
                json!({ "keys": manner.keys })
            }
        };
        let padding = " ".repeat(if path.ends_with("/keys") { manner.padding } else { 0 });
        let body = format!("{json}{padding}");
        let whole = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n{body}",
            body.len()
        );
        (manner.pause, manner.instead.clone().unwrap_or_else(|| whole.into_bytes()))
    };
    std::thread::sleep(pause);
    stream.write_all(&response)?;
    Ok(stream.flush()?)
}
