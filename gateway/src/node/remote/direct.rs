//! Sessions and direct transfers of a remote node.
//!
//! What is lost on the way is never taken for an answer: a transfer whose reply did not arrive
//! may still be under way, and so its key's fate is unknown. Dropping the future resets the
//! call's stream; the node then gives the transfer up.

use std::time::Duration;

use bytes::Bytes;
use keyway_dataplane::rpc::direct::{lost, opened, opened_local, sealing_key, transferred};
use keyway_dataplane::rpc::failure::{error, unreachable};
use keyway_dataplane::{SealingKey, SessionError, TransferError, Transferred};
use keyway_proto::{
    Door, LocalSessionOffer, LocalSessionRequest, Rail, SessionOffer, SessionOwner, SessionRequest,
    SessionSelector,
};
use keyway_rpc::convert;
use keyway_rpc::schema::{DoorRequest, RailsRequest, SealingKeyRequest, TransferRequest};

use super::{RemoteNode, not_understood};

/// How long a node may take over a direct transfer: longer than its own deadline, and so only
/// met where the node does not keep it. 5 GiB in this time are 9 MB/s.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(600);

impl RemoteNode {
    pub(super) async fn ask_rails(&self) -> Result<Vec<Rail>, TransferError> {
        let request = RailsRequest { node: self.id.0 };
        let reply = self.answer(self.control.clone().rails(request)).await?.into_inner();
        // A rail that this version does not understand is none to it.
        Ok(reply.rails.iter().filter_map(|rail| convert::rail(self.id, rail).ok()).collect())
    }

    pub(super) async fn ask_session(
        &self,
        owner: &SessionOwner,
        request: &SessionRequest,
    ) -> Result<SessionOffer, SessionError> {
        if request.node != self.id {
            return Err(SessionError::NoSuchRail);
        }
        let message = convert::open_session_request(owner, request)
            .ok_or(SessionError::Incompatible("no key strength in common"))?;
        let reply = self.answer(self.control.clone().open_session(message)).await;
        let reply = reply.map_err(|error| SessionError::Unreachable(error.to_string().into()))?;
        opened(self.id, reply.get_ref())
    }

    pub(super) async fn ask_door(&self) -> Result<Option<Door>, TransferError> {
        let request = DoorRequest { node: self.id.0 };
        let reply = self.answer(self.control.clone().door(request)).await?.into_inner();
        // A door that this version does not understand is none to it.
        Ok(reply.door.and_then(|door| convert::door(self.id, &door).ok()))
    }

    pub(super) async fn ask_local_session(
        &self,
        owner: &SessionOwner,
        request: LocalSessionRequest,
    ) -> Result<LocalSessionOffer, SessionError> {
        if request.node != self.id {
            return Err(SessionError::NoSuchRail);
        }
        let message = convert::open_local_session_request(owner, request);
        let reply = self.answer(self.control.clone().open_local_session(message)).await;
        let reply = reply.map_err(|error| SessionError::Unreachable(error.to_string().into()))?;
        opened_local(self.id, reply.get_ref())
    }

    pub(super) async fn ask_to_close(
        &self,
        selector: &SessionSelector,
    ) -> Result<u64, TransferError> {
        let request = convert::close_sessions_request(self.id, selector);
        let reply = self.answer(self.control.clone().close_sessions(request)).await?;
        Ok(reply.into_inner().closed)
    }

    pub(super) async fn ask_to_count(
        &self,
        selector: &SessionSelector,
    ) -> Result<u64, TransferError> {
        let request = convert::close_sessions_request(self.id, selector);
        let reply = self.answer(self.control.clone().count_sessions(request)).await?;
        Ok(reply.into_inner().open)
    }

    pub(super) async fn ask_transfer(&self, grant: Bytes) -> Transferred {
        let request = TransferRequest { node: self.id.0, grant };
        let mut client = self.data();
        match tokio::time::timeout(TRANSFER_TIMEOUT, client.transfer(request)).await {
            Ok(Ok(reply)) => transferred(reply.get_ref()),
            Ok(Err(status)) => lost(error(&status)),
            Err(_) => lost(unreachable("no answer in time")),
        }
    }

    pub(super) async fn ask_sealing_key(&self) -> Result<SealingKey, TransferError> {
        let request = SealingKeyRequest { node: self.id.0 };
        let reply = self.answer(self.control.clone().sealing_key(request)).await?;
        sealing_key(reply.get_ref()).map_err(not_understood)
    }
}
