//! A connected socket: whole messages, each with a descriptor or none.
//!
//! Invariant: what is registered with the runtime is an `OwnedFd`, which is open and the same
//! for as long as it lives.

#![allow(unsafe_code)]

use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::IpcError;
use super::message::{BYTES, Message};

/// Room for the ancillary data of one descriptor.
const ANCILLARY_BYTES: usize = rustix::cmsg_space!(ScmRights(1));

/// Connections that wait at a door.
const BACKLOG: i32 = 128;

/// One end of a connection.
pub(super) struct Channel(AsyncFd<OwnedFd>);

/// A socket that takes connections.
pub(super) struct Listening(AsyncFd<OwnedFd>);

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// A descriptor that the runtime waits for. Must be called within one.
pub(super) fn registered(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open, and the same, until it is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, interest) }?)
}

impl Listening {
    /// Listens at `path`, where nothing may be.
    pub(super) fn bind(path: &Path) -> io::Result<Self> {
        let socket = socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        registered(socket, Interest::READABLE).map(Self)
    }

    pub(super) async fn accept(&self) -> io::Result<Channel> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accepted = self
            .0
            .async_io(Interest::READABLE, |socket| Ok(rustix::net::accept_with(socket, flags)?));
        registered(accepted.await?, Interest::READABLE | Interest::WRITABLE).map(Channel)
    }
}

impl Channel {
    /// Connects. A Unix socket connects at once or not at all.
    pub(super) fn connect(path: &Path) -> io::Result<Self> {
        let socket = socket()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        registered(socket, Interest::READABLE | Interest::WRITABLE).map(Self)
    }

    /// Sends a message, waiting for room.
    pub(super) async fn send(
        &self,
        message: &Message,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let bytes = message.encode();
        let attempt = |socket: &OwnedFd| {
            let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let descriptors = descriptor.map(|descriptor| [descriptor]);
            if let Some(descriptors) = &descriptors {
                let pushed = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
                debug_assert!(pushed, "there is room for one");
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags)?;
            Ok(())
        };
        self.0.async_io(Interest::WRITABLE, attempt).await
    }

    /// The next message; `None` when the other end is closed.
    pub(super) async fn receive(&self) -> Result<Option<(Message, Option<OwnedFd>)>, IpcError> {
        let attempt = |socket: &OwnedFd| {
            let mut bytes = [0; BYTES];
            let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let got = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?;
            let mut descriptor = None;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    // What is not kept is closed by its drop.
                    descriptor = descriptors.into_iter().next().or(descriptor);
                }
            }
            Ok((got.bytes, bytes, descriptor))
        };
        let received = match self.0.async_io(Interest::READABLE, attempt).await {
            // An end that closes with messages of ours unread: the kernel says so once, ahead of
            // what that end had sent before, which may be the word that nothing is mapped.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                self.0.async_io(Interest::READABLE, attempt).await
            }
            received => received,
        };
        match received {
            Ok((0, ..)) => Ok(None),
            Ok((length, bytes, descriptor)) => {
                let message = Message::decode(&bytes[..length]);
                let message = message.map_err(|_| IpcError::Protocol("a malformed message"))?;
                Ok(Some((message, descriptor)))
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(IpcError::Socket(error)),
        }
    }

    /// Who is at the other end: its process, and its user.
    pub(super) fn peer(&self) -> io::Result<rustix::net::UCred> {
        Ok(rustix::net::sockopt::socket_peercred(self.0.get_ref().as_fd())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends take their leave at once: each has sent its word, and one has closed without
    /// reading the other's. A word that is lost here leaves a client waiting for its node's death.
    #[tokio::test]
    async fn the_last_word_is_heard_of_an_end_that_did_not_listen() {
        let folder = tempfile::tempdir().expect("a folder");
        let listening = Listening::bind(&folder.path().join("door")).expect("a door");
        let ours = Channel::connect(&folder.path().join("door")).expect("a connection");
        let theirs = listening.accept().await.expect("a visitor");
        ours.send(&Message::Unregister { region: 3 }, None).await.expect("sent");
        theirs.send(&Message::Bye, None).await.expect("sent");
        drop(theirs);
        let heard = ours.receive().await.expect("a message");
        assert!(matches!(heard, Some((Message::Bye, None))));
        assert!(ours.receive().await.expect("the end").is_none());
    }
}
