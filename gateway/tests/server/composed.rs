//! Goal: what `keyway serve`, `gateway` and `node` compose works as one. Method: the
//! composition root in this process, over loopback, with the SDK as the client.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper_util::rt::{TokioExecutor, TokioIo};
use keyway_auth::AccessKeyId;
use keyway_auth::sigv4::{Payload, Signer};
use keyway_client::{Client, Credentials, HostBuffer};
use keyway_gateway::config::{Config, Engine, Secret, Tls};
use keyway_gateway::pki::{Authority, host_names};
use keyway_gateway::{Running, ServeError, serve, serve_gateway, serve_node};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;

use crate::wire::Wire;

const ACCESS_KEY: &str = "root";
const SECRET_KEY: &str = "0123456789abcdef";

fn config(dir: &Path) -> Config {
    let mut config = Config { data_dir: dir.join("data"), ..Config::default() };
    config.listen.address = "127.0.0.1:0".parse().unwrap();
    config.cluster.address = config.listen.address;
    config.node.store.engine = Engine::Memory;
    config.node.store.capacity_bytes = Some(256 << 20);
    config.root.access_key = Some(ACCESS_KEY.to_owned());
    config.root.secret_key = Some(Secret(keyway_auth::SecretKey::new(SECRET_KEY.to_owned())));
    config
}

fn client(running: &Running) -> Client {
    Client::builder()
        .endpoint(running.url())
        .credentials(Credentials::new(ACCESS_KEY, SECRET_KEY))
        .build()
        .unwrap()
}

/// Puts an object of several chunks and gets it back.
async fn round_trip(running: &Running) {
    let client = client(running);
    client.create_bucket("bucket").await.unwrap();
    let bytes: Vec<u8> = (0..20_000_000_u32).map(|at| (at % 251) as u8).collect();
    let mut source: HostBuffer = bytes.into();
    client.put_object("bucket", "key").body(source.slice(..).unwrap()).send().await.unwrap();
    let got = client.get_object("bucket", "key").bytes().await.unwrap();
    assert!(got.target[..] == source.bytes().unwrap()[..], "the bytes differ");
}

#[tokio::test]
async fn serve_stores_and_returns_objects_and_frees_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let running = serve(config(dir.path())).await.unwrap();
    round_trip(&running).await;
    let mut admin = Wire::connect(running.admin_address).await;
    assert_eq!(admin.get("/healthz").await.status, 200);
    assert_eq!(admin.get("/readyz").await.status, 200);
    let metrics = admin.get("/metrics").await;
    assert!(metrics.text().contains("keyway_operation=\"CreateBucket\""), "{}", metrics.text());
    for name in ["keyway_pool_capacity_bytes", "keyway_maintenance_swept_total"] {
        assert!(metrics.text().contains(name), "{}", metrics.text());
    }
    for name in ["keyway_meta_reads_total{", "keyway_meta_group_size_count{"] {
        let value =
            metrics.text().lines().find_map(|line| line.strip_prefix(name)?.rsplit(' ').next());
        assert!(value.is_some_and(|value| value != "0"), "{name}: {}", metrics.text());
    }
    let second = serve(config(dir.path())).await;
    assert!(matches!(second.map(|_| ()), Err(ServeError::DataDir(_))));
    assert!(running.stop().await);
    assert!(serve(config(dir.path())).await.unwrap().stop().await);
}

/// Goal: bytes that were given up are free soon, whatever gave them up, and not when the
/// period is over.
#[tokio::test]
async fn what_is_given_up_wakes_maintenance() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.maintenance.reap_period_ms = 3_600_000;
    let running = serve(config).await.unwrap();
    round_trip(&running).await;
    let client = client(&running);
    let mut admin = Wire::connect(running.admin_address).await;
    let put = async |key: &str, length: usize| {
        client.put_object("bucket", key).body(vec![7_u8; length]).send().await.unwrap();
    };

    put("key", 1000).await;
    until_released(&mut admin, 20_000_000).await;
    put("source", 300).await;
    client.copy_object(("bucket", "source"), ("bucket", "key")).await.unwrap();
    until_released(&mut admin, 20_001_000).await;
    client.delete_object("bucket", "key").await.unwrap();
    client.delete_object("bucket", "source").await.unwrap();
    until_released(&mut admin, 20_001_300).await;
    running.stop().await;
}

/// Waits until the server has given back exactly so many bytes since its start.
async fn until_released(admin: &mut Wire, wanted: u64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let metrics = admin.get("/metrics").await;
        let released = metrics.text().lines().find_map(|line| {
            let value = line.strip_prefix("keyway_maintenance_released_size_bytes_total{")?;
            value.rsplit(' ').next()?.parse::<f64>().ok()
        });
        if released == Some(wanted as f64) {
            return;
        }
        assert!(Instant::now() < deadline, "{released:?} of {wanted} bytes: {}", metrics.text());
        // Between two looks; the deadline above decides.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Goal: where HTTP/2 has no host header, its authority is the host that was signed.
#[tokio::test]
async fn over_http2_the_authority_is_signed() {
    let dir = tempfile::tempdir().unwrap();
    let running = serve(config(dir.path())).await.unwrap();
    let stream = TcpStream::connect(running.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let secret = keyway_auth::SecretKey::new(SECRET_KEY.to_owned());
    let signer = Signer::new(AccessKeyId::new(ACCESS_KEY), secret, "us-east-1", "s3");
    for (method, path, status) in
        [("PUT", "/bucket", 200), ("PUT", "/bucket/key", 200), ("GET", "/bucket/key", 200)]
    {
        let uri = format!("{}{path}", running.url());
        let request = http::Request::builder().method(method).uri(uri).body(()).unwrap();
        let (mut parts, ()) = request.into_parts();
        signer.sign(&mut parts, Payload::EMPTY, jiff::Timestamp::now()).unwrap();
        parts.headers.remove("host").expect("it was signed");
        let request = http::Request::from_parts(parts, axum::body::Body::empty());
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), status, "{method} {path}");
    }
    running.stop().await;
}

#[tokio::test]
async fn reserved_names_are_not_buckets() {
    let dir = tempfile::tempdir().unwrap();
    let running = serve(config(dir.path())).await.unwrap();
    let response = Wire::connect(running.address).await.get("/_keyway/v1/session").await;
    assert_eq!(response.status, 404);
    assert_eq!(response.header("content-type"), Some("application/json"));
    // Those that are there want a signature.
    for path in ["/_keyway/v1/rails", "/_keyway/v1/sessions", "/_keyway/v1/sessions/1"] {
        assert_eq!(Wire::connect(running.address).await.get(path).await.status, 403, "{path}");
    }
    let unsigned = Wire::connect(running.address).await.get("/bucket/key").await;
    assert_eq!(unsigned.status, 403);
    let id = unsigned.header("x-amz-request-id").unwrap();
    assert!(unsigned.text().contains(&format!("<RequestId>{id}</RequestId>")), "{unsigned:?}");
    running.stop().await;
}

#[tokio::test]
async fn generated_credentials_are_kept_and_given_ones_replace_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut bare = config(dir.path());
    (bare.root.access_key, bare.root.secret_key) = (None, None);
    let first = serve(bare.clone()).await.unwrap();
    let (generated, made) = (first.root.credentials.clone(), first.root.generated);
    assert!(made);
    first.stop().await;
    let second = serve(bare.clone()).await.unwrap();
    assert!(!second.root.generated && second.root.credentials.same_as(&generated));
    second.stop().await;
    serve(config(dir.path())).await.unwrap().stop().await;
    let fourth = serve(bare.clone()).await.unwrap();
    assert_eq!(fourth.root.credentials.access_key().as_str(), ACCESS_KEY);
    fourth.stop().await;
    let sealed = dir.path().join("data/root.sealed");
    let mut bytes = std::fs::read(&sealed).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&sealed, bytes).unwrap();
    assert!(matches!(serve(bare).await.map(|_| ()), Err(ServeError::Root(_))));
}

#[tokio::test]
async fn a_generated_certificate_satisfies_a_client_that_trusts_the_authority() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.listen.tls = Tls::Generated {};
    let running = serve(config).await.unwrap();
    assert!(running.url().starts_with("https://"));
    let authority = running.authority.clone().unwrap();
    let connected = handshake(&running, Some(&authority), &[&rustls::version::TLS13]).await;
    assert_eq!(connected.unwrap().as_deref(), Some(&b"h2"[..]));
    assert!(handshake(&running, None, &[&rustls::version::TLS13]).await.is_err());
    let old = handshake(&running, Some(&authority), &[&rustls::version::TLS12]).await;
    assert!(old.is_err(), "TLS 1.2 is off by default");
    // Plaintext gets no HTTP answer.
    let mut plain = Wire::connect(running.address).await;
    plain.send("GET / HTTP/1.1\r\nhost: test\r\n\r\n").await;
    assert!(!plain.closed().await.starts_with(b"HTTP/"));
    running.stop().await;
}

#[tokio::test]
async fn an_exchanged_certificate_is_served_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let old = Authority::open_or_create(&dir.path().join("old")).unwrap();
    let new = Authority::open_or_create(&dir.path().join("new")).unwrap();
    let hosts = host_names([127, 0, 0, 1].into(), &[]);
    let identity = old.issue("server", &hosts).unwrap();
    let mut config = config(dir.path());
    config.listen.tls =
        Tls::Files { cert_file: identity.certificate.clone(), key_file: identity.key.clone() };
    let running = serve(config).await.unwrap();
    let versions = [&rustls::version::TLS13];
    handshake(&running, Some(&old.certificate()), &versions).await.unwrap();
    let next = new.issue("server", &hosts).unwrap();
    std::fs::copy(&next.key, &identity.key).unwrap();
    std::fs::copy(&next.certificate, &identity.certificate).unwrap();
    assert!(running.reload_certificate().unwrap());
    assert!(!running.reload_certificate().unwrap());
    handshake(&running, Some(&new.certificate()), &versions).await.unwrap();
    std::fs::write(&identity.certificate, "none").unwrap();
    assert!(running.reload_certificate().is_err());
    handshake(&running, Some(&new.certificate()), &versions).await.unwrap();
    running.stop().await;
}

#[tokio::test]
async fn a_gateway_stores_and_returns_objects_over_a_node_process() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::open_or_create(&dir.path().join("pki")).unwrap();
    let secured = |name: &str| {
        let identity = authority.issue(name, &["127.0.0.1".to_owned()]).unwrap();
        let mut config = config(&dir.path().join(name));
        config.cluster.authority_file = Some(authority.certificate());
        config.cluster.cert_file = Some(identity.certificate);
        config.cluster.key_file = Some(identity.key);
        config
    };
    let mut node = secured("node");
    node.node.id = 7;
    let node = serve_node(node).await.unwrap();
    let mut gateway = secured("gateway");
    assert!(matches!(serve_gateway(gateway.clone()).await.map(|_| ()), Err(ServeError::NoNodes)));
    gateway.cluster.nodes = vec![format!("7=https://{}", node.address)];
    let gateway = serve_gateway(gateway).await.unwrap();
    round_trip(&gateway).await;
    let mut admin = Wire::connect(node.admin_address).await;
    let metrics = admin.get("/metrics").await;
    let chunks = metrics.text().lines().find(|l| l.starts_with("keyway_store_chunks{"));
    assert!(chunks.unwrap().contains("keyway_node_id=\"7\""), "{}", metrics.text());
    assert!(gateway.stop().await);
    assert!(node.stop().await);
}

/// Shakes hands and answers the protocol agreed on.
async fn handshake(
    running: &Running,
    authority: Option<&Path>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> std::io::Result<Option<Vec<u8>>> {
    let mut roots = rustls::RootCertStore::empty();
    if let Some(path) = authority {
        roots.add(CertificateDer::from_pem_file(path).unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = TcpStream::connect(running.address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream =
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    // With TLS 1.3 a server's refusal comes after the client is done: read to meet it.
    let agreed = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
    tokio::io::AsyncWriteExt::flush(&mut stream).await?;
    Ok(agreed)
}
