//! What `[cluster]` means.

use http::Uri;
use keyway_proto::NodeId;
use keyway_rpc::TlsPaths;

use super::{Cluster, ConfigError};
use crate::node::RemoteNodeConfig;

impl Cluster {
    /// The nodes, as their clients want them.
    ///
    /// # Errors
    /// [`ConfigError::Value`] when one is not `ID=https://HOST:PORT`, and
    /// [`ConfigError::ClusterTls`] when there are nodes but no certificates.
    pub fn nodes(&self) -> Result<Vec<RemoteNodeConfig>, ConfigError> {
        self.nodes.iter().map(|text| self.node(text)).collect()
    }

    /// Authority, certificate and key.
    ///
    /// # Errors
    /// [`ConfigError::ClusterTls`] when one is missing.
    pub fn tls(&self) -> Result<TlsPaths, ConfigError> {
        match (&self.authority_file, &self.cert_file, &self.key_file) {
            (Some(authority), Some(certificate), Some(key)) => Ok(TlsPaths {
                ca_path: authority.clone(),
                cert_path: certificate.clone(),
                key_path: key.clone(),
            }),
            _ => Err(ConfigError::ClusterTls),
        }
    }

    fn node(&self, text: &str) -> Result<RemoteNodeConfig, ConfigError> {
        let refused = ConfigError::Value {
            name: "cluster.nodes",
            rule: "must list nodes as ID=https://HOST:PORT",
        };
        let parsed = text.split_once('=').and_then(|(id, endpoint)| {
            let id = id.trim().parse().ok()?;
            let uri: Uri = endpoint.trim().parse().ok()?;
            let host = uri.host()?.trim_matches(['[', ']']).to_owned();
            (uri.scheme_str() == Some("https") && uri.port().is_some()).then_some((id, uri, host))
        });
        let (id, uri, server_name) = parsed.ok_or(refused)?;
        Ok(RemoteNodeConfig {
            id: NodeId(id),
            endpoint: uri.to_string(),
            server_name,
            tls: self.tls()?,
            connect_timeout_ms: self.connect_timeout_ms,
            answer_timeout_ms: self.answer_timeout_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(node: &str) -> Cluster {
        let file = Some("x.pem".into());
        Cluster {
            nodes: vec![node.to_owned()],
            authority_file: file.clone(),
            cert_file: file.clone(),
            key_file: file,
            ..Cluster::default()
        }
    }

    #[test]
    fn a_node_is_an_id_and_an_https_url_with_a_port() {
        let nodes = cluster("7=https://node-a.example:9100").nodes().unwrap();
        assert_eq!((nodes[0].id, &*nodes[0].server_name), (NodeId(7), "node-a.example"));
        let bad = ["https://a:1", "x=https://a:1", "1=http://a:1", "1=https://a", "1=", "1=:::"];
        for text in bad {
            let refused = cluster(text).nodes();
            assert!(matches!(refused, Err(ConfigError::Value { .. })), "{text}: {refused:?}");
        }
    }

    #[test]
    fn nodes_without_certificates_are_refused() {
        let bare = Cluster { nodes: vec!["1=https://a:1".to_owned()], ..Cluster::default() };
        assert!(matches!(bare.nodes(), Err(ConfigError::ClusterTls)));
    }
}
