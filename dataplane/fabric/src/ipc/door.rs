//! A node's door: a Unix socket, and who comes to it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use keyway_proto::DoorTicket;

use super::channel::{Channel, Listening};
use super::message::{Message, VERSION};
use super::node::NodeLink;
use super::table::Table;
use super::{IpcError, NodeGpus, Refusal};

/// Takes connections; the socket's file is removed on drop.
pub struct DoorListener {
    listening: Listening,
    path: PathBuf,
}

impl DoorListener {
    /// Opens a door at `path`. A socket that a dead process left there is replaced.
    ///
    /// # Errors
    /// When the path is taken by a living process or by something else, is too long for a
    /// socket, or its folder does not take it.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let listening = match Listening::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_abandoned(path) => {
                std::fs::remove_file(path)?;
                Listening::bind(path)?
            }
            listening => listening?,
        };
        Ok(Self { listening, path: path.to_owned() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next who comes.
    ///
    /// # Errors
    /// When no connection can be taken, for want of descriptors for example.
    pub async fn accept(&self) -> io::Result<Visitor> {
        let channel = self.listening.accept().await?;
        let peer = channel.peer()?;
        Ok(Visitor { channel, user: peer.uid.as_raw(), process: peer.pid.as_raw_nonzero().get() })
    }
}

impl Drop for DoorListener {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, "the door's socket was not removed");
        }
    }
}

/// Whether a socket is there that nobody listens to.
fn is_abandoned(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    is_socket
        && Channel::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Who has come and not shown a ticket yet.
pub struct Visitor {
    channel: Channel,
    /// The user, as the kernel says.
    pub user: u32,
    /// The process, as the kernel says.
    pub process: i32,
}

impl Visitor {
    /// What it shows. Wait for it with a time limit.
    ///
    /// # Errors
    /// [`IpcError`] when it shows nothing that is a ticket.
    pub async fn ticket(&self) -> Result<DoorTicket, IpcError> {
        match self.channel.receive().await? {
            Some((Message::Hello { version: VERSION, ticket }, None)) => Ok(ticket),
            Some((Message::Hello { .. }, _)) => Err(IpcError::Protocol("another version")),
            Some(_) => Err(IpcError::Protocol("no ticket")),
            None => Err(IpcError::Closed),
        }
    }

    /// Turns it away.
    pub async fn refuse(self) {
        let refusal = Message::Refused { region: 0, why: Refusal::Failed };
        // It may have left.
        let _ = self.channel.send(&refusal, None).await;
    }

    /// Lets it in: a link with room for `slots` keys, served by a task of the runtime. GPU
    /// memory is mapped by way of `gpus`.
    ///
    /// # Errors
    /// [`IpcError`] when it has left, or there is no memory for its keys.
    pub async fn admit(self, slots: usize, gpus: Arc<NodeGpus>) -> Result<NodeLink, IpcError> {
        use std::os::fd::AsFd as _;
        let table = Table::create(slots)?;
        let welcome = Message::Welcome { slots: slots as u32 };
        let file = table.memory().file().as_fd();
        self.channel.send(&welcome, Some(file)).await.map_err(IpcError::Socket)?;
        Ok(NodeLink::serve(self.channel, table, gpus))
    }
}
