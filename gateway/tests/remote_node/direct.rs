//! Sessions and direct transfers: what the node says arrives, and what does not arrive is
//! never taken for its word.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use keyway_auth::grant::GrantError;
use keyway_dataplane::{DirectError, SessionError, StorageNode, TransferError, Transferred};
use keyway_gateway::node::{Grants, Nodes, RemoteNode, RemoteNodeConfig};
use keyway_proto::key::Relinquished;
use keyway_proto::{
    ChecksumKind, DigestSet, DirectPlan, DirectWork, NodeId, SessionId, SessionOwner,
    SessionSelector, SessionToken, TenantId,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::direct_node::{DirectNode, Fault, NOW_MS, session_request};
use crate::served::{ID, Pki, Served, config};
use crate::{bytes, get_plan, put_plan};

pub(crate) fn owner() -> SessionOwner {
    SessionOwner { tenant: TenantId::ROOT, access_key: "AKID".into() }
}

struct Direct {
    pki: Pki,
    node: Arc<DirectNode>,
    remote: Arc<RemoteNode>,
    grants: Grants,
    session: SessionId,
    line: JoinHandle<()>,
    /// Serves for as long as it is there.
    _served: Served<DirectNode>,
}

/// A node behind the network, and a line to it that can be cut.
async fn direct() -> Direct {
    let pki = Pki::new();
    let node = DirectNode::new(ID);
    let served = Served::start(&pki, Arc::clone(&node), "127.0.0.1:0").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let far = served.address;
    let line = tokio::spawn(async move {
        let mut streams = tokio::task::JoinSet::new();
        while let Ok((mut near, _)) = listener.accept().await {
            let mut other = TcpStream::connect(far).await.unwrap();
            streams.spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut near, &mut other).await;
            });
        }
    });
    let remote = Arc::new(RemoteNode::new(&config(pki.paths(), address)).unwrap());
    let nodes = Nodes::single(Arc::clone(&remote) as Arc<dyn StorageNode>);
    let offer = remote.open_session(owner(), session_request(ID)).await.unwrap();
    let session = offer.session;
    Direct { pki, node, remote, grants: Grants::new(&nodes), session, line, _served: served }
}

impl Direct {
    async fn transfer(&self, target: &SessionToken, work: DirectWork) -> Transferred {
        let plan = DirectPlan { owner: owner(), target: target.clone().into(), work };
        self.grants.transfer(&plan, NOW_MS).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_go_there_and_come_back() {
    let direct = direct().await;
    let length = (17 << 20) + 3;
    let sent = bytes(length);
    let put = put_plan(length as u64);
    let (token, buffer) = direct.node.arm(direct.session, &[17 << 20, 3]);
    direct.node.fill(&buffer, &sent);
    let stored = direct.transfer(&token, DirectWork::Put(put.clone())).await;
    assert_eq!(stored.key, Relinquished::Invalidated);
    let receipt = stored.moved.unwrap();
    assert_eq!((receipt.transfer, receipt.bytes), (put.transfer, length as u64));
    let (token, buffer) = direct.node.arm(direct.session, &[18 << 20]);
    let digests = DigestSet::NONE.with(ChecksumKind::Crc64Nvme);
    let read = direct.transfer(&token, DirectWork::Get(get_plan(&put), digests)).await;
    assert_eq!(read.key, Relinquished::Invalidated);
    assert_eq!(
        read.moved.unwrap().digests.value(ChecksumKind::Crc64Nvme),
        receipt.digests.value(ChecksumKind::Crc64Nvme),
    );
    assert!(direct.node.read(&buffer)[..length] == sent[..]);
    assert_eq!(direct.node.asked.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rails_and_sessions_are_as_the_node_has_them() {
    let direct = direct().await;
    let here = direct.node.rails().await.unwrap();
    assert_eq!(direct.remote.rails().await.unwrap(), here);
    let mut request = session_request(ID);
    request.rail = 9;
    let refused = direct.remote.open_session(owner(), request).await;
    assert!(matches!(refused, Err(SessionError::NoSuchRail)), "{refused:?}");
    let elsewhere = direct.remote.open_session(owner(), session_request(NodeId(9))).await;
    assert!(matches!(elsewhere, Err(SessionError::NoSuchRail)), "{elsewhere:?}");
    let stranger = SessionOwner { access_key: "OTHER".into(), ..owner() };
    let close = async |owner| {
        let selector = SessionSelector::One(direct.session, owner);
        direct.remote.close_sessions(selector).await.unwrap()
    };
    let of_tenant = SessionSelector::Tenant(owner().tenant);
    assert_eq!(direct.remote.count_sessions(of_tenant.clone()).await.unwrap(), 1);
    assert_eq!(close(stranger).await, 0);
    assert_eq!(direct.node.sessions(), 1);
    assert_eq!(close(owner()).await, 1);
    assert_eq!(direct.remote.count_sessions(of_tenant).await.unwrap(), 0);
    assert_eq!(direct.node.sessions(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_the_nodes_own() {
    let direct = direct().await;
    let (token, _) = direct.node.arm(direct.session, &[3]);
    let refused = DirectError::Grant(GrantError::Replayed);
    direct.node.fail_next(Fault::Replayed);
    let replayed = direct.transfer(&token, DirectWork::Put(put_plan(3))).await;
    assert_eq!(format!("{:?}", replayed.moved.unwrap_err()), format!("{refused:?}"));
    assert_eq!(replayed.key, Relinquished::Quiet);
    let too_long = direct.transfer(&token, DirectWork::Put(put_plan(4))).await;
    assert!(matches!(too_long.moved, Err(DirectError::InvalidPlan(_))));
    // A call that was meant for another node is refused by the one it reaches.
    let served = Served::start(&direct.pki, Arc::clone(&direct.node), "127.0.0.1:0").await;
    let misrouted = config(direct.pki.paths(), served.address);
    let misrouted = RemoteNodeConfig { id: NodeId(4), ..misrouted };
    let misrouted = RemoteNode::new(&misrouted).unwrap().transfer(bytes(9)).await;
    assert!(matches!(misrouted.moved, Err(DirectError::Grant(GrantError::OtherNode))));
    assert_eq!(misrouted.key, Relinquished::Quiet);
}

/// Goal: what is lost on the way leaves the key's fate unknown, whatever the node did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_breaks_leaves_the_key_unknown() {
    let direct = direct().await;
    let (token, _) = direct.node.arm(direct.session, &[3]);
    direct.node.fail_next(Fault::Hangs);
    let transfer = direct.transfer(&token, DirectWork::Put(put_plan(3)));
    let cut = async {
        direct.node.hanging.notified().await;
        direct.line.abort();
    };
    let (lost, ()) = tokio::join!(transfer, cut);
    assert_eq!(lost.key, Relinquished::Unknown);
    let unreachable =
        matches!(lost.moved, Err(DirectError::Transfer(TransferError::Unreachable(_))));
    assert!(unreachable, "{lost:?}");
    tokio::time::timeout(Duration::from_secs(20), direct.node.given_up.notified())
        .await
        .expect("the node notices");
    // Nobody listens there any more.
    let nobody = direct.transfer(&token, DirectWork::Put(put_plan(3))).await;
    assert_eq!(nobody.key, Relinquished::Unknown);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_transfer_is_given_up_by_the_node() {
    let direct = direct().await;
    let (token, _) = direct.node.arm(direct.session, &[3]);
    direct.node.fail_next(Fault::Hangs);
    tokio::select! {
        ended = direct.transfer(&token, DirectWork::Put(put_plan(3))) => panic!("{ended:?}"),
        () = direct.node.hanging.notified() => {}
    }
    tokio::time::timeout(Duration::from_secs(20), direct.node.given_up.notified())
        .await
        .expect("the node is told");
}
