//! A node behind the network, and the certificates that both ends trust.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use keyway_dataplane::{LocalNode, StorageNode, rpc};
use keyway_gateway::node::RemoteNodeConfig;
use keyway_proto::NodeId;
use keyway_rpc::TlsPaths;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) const ID: NodeId = NodeId(3);
pub(crate) const NAME: &str = "node.keyway.test";

/// An authority and one certificate under it, as files.
pub(crate) struct Pki {
    dir: tempfile::TempDir,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca_key = rcgen::KeyPair::generate().unwrap();
        let ca = params.self_signed(&ca_key).unwrap();
        let issuer = rcgen::Issuer::new(params, ca_key);
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        let cert = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(dir.path().join("ca.pem"), ca.pem()).unwrap();
        std::fs::write(dir.path().join("cert.pem"), cert.pem()).unwrap();
        std::fs::write(dir.path().join("key.pem"), key.serialize_pem()).unwrap();
        Self { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn paths(&self) -> TlsPaths {
        TlsPaths {
            ca_path: self.path("ca.pem"),
            cert_path: self.path("cert.pem"),
            key_path: self.path("key.pem"),
        }
    }
}

pub(crate) struct Served<N = LocalNode> {
    pub(crate) node: Arc<N>,
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

impl<N: StorageNode> Served<N> {
    pub(crate) async fn start(pki: &Pki, node: Arc<N>, address: &str) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let (tls, served) = (pki.paths(), Arc::clone(&node));
        let server = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            rpc::serve(served, listener, &tls, stopped).await.unwrap();
        });
        Self { node, address, stop, server }
    }

    pub(crate) async fn stop(self) -> (Arc<N>, SocketAddr) {
        drop(self.stop);
        self.server.await.unwrap();
        (self.node, self.address)
    }
}

pub(crate) fn config(tls: TlsPaths, address: SocketAddr) -> RemoteNodeConfig {
    RemoteNodeConfig {
        id: ID,
        endpoint: format!("https://{address}"),
        server_name: NAME.into(),
        tls,
        connect_timeout_ms: 5_000,
        answer_timeout_ms: 20_000,
    }
}
