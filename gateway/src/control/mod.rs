//! The control endpoints: rails and sessions, for clients that move bytes past HTTP.
//!
//! | call | answer |
//! |---|---|
//! | `GET /_keyway/v1/rails` | the ports of all nodes that take sessions, and their doors |
//! | `POST /_keyway/v1/sessions` | a queue pair of a node's, connected to the caller's |
//! | `POST /_keyway/v1/local-sessions` | a ticket to the door of a node of the caller's host |
//! | `POST /_keyway/v1/prefetch` | objects are in the nodes' memory (the S3 service does it) |
//! | `POST /_keyway/v1/ranges` | ranges of an object are in the caller's memory (the S3 service, too) |
//! | `POST /_keyway/v1/flush` | objects are on the nodes' devices (the S3 service does it) |
//! | `… /_keyway/v1/admin/…` | who there is: [`admin`] |
//! | `DELETE /_keyway/v1/sessions/{id}` | that session is no more, and no key of it lives |
//!
//! Requests are signed as S3's are, and bodies with them; the S3 service verifies that and
//! says who calls. A session is its opener's: the same tenant and access key.
//!
//! What may not enter: HTTP bodies, signatures, S3's error codes.

pub mod admin;

use std::time::Duration;

use futures::future::join_all;
use http::{Method, StatusCode};
use keyway_dataplane::{SessionError, TransferError};
use keyway_proto::session::{ACCESS_KEY_BYTES_MAX, SESSION_WINDOWS_MAX};
use keyway_proto::{
    Door, KeyStrength, LocalSessionRequest, Rail, SessionId, SessionOwner, SessionRequest,
    SessionSelector,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::node::Nodes;

/// What the paths of all control endpoints begin with.
pub const PREFIX: &str = "/_keyway/v1/";
/// The paths of all of them, as the server's router writes them.
pub const ROUTES: [&str; 8] = [
    "/_keyway/v1/rails",
    "/_keyway/v1/sessions",
    "/_keyway/v1/sessions/{id}",
    "/_keyway/v1/local-sessions",
    "/_keyway/v1/prefetch",
    RANGES_PATH,
    "/_keyway/v1/flush",
    ADMIN_ROUTE,
];
/// Those of the administration, which has a table of its own.
const ADMIN_ROUTE: &str = "/_keyway/v1/admin/{*rest}";
/// Where many ranges of an object are asked for.
pub const RANGES_PATH: &str = "/_keyway/v1/ranges";
/// Largest document in a request, in bytes, but for one of ranges.
pub const DOCUMENT_BYTES_MAX: usize = 16 << 10;

/// How long a node may take to count sessions.
const COUNT_TIMEOUT: Duration = Duration::from_secs(2);
const VERSION: u32 = 1;
const RAILS: &str = "rails";
const SESSIONS: &str = "sessions";
const LOCAL_SESSIONS: &str = "local-sessions";
const PREFETCH: &str = "prefetch";
const RANGES: &str = "ranges";
const FLUSH: &str = "flush";

/// A control endpoint, called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The rails of all nodes.
    ListRails,
    /// A session, as the document says.
    OpenSession,
    /// A session with a process of a node's host, as the document says.
    OpenLocalSession,
    /// No such session any more.
    CloseSession(SessionId),
    /// Objects in memory, as the document says. It names objects, so the S3 service does it.
    Prefetch,
    /// Ranges of an object in the caller's memory, as the document and the token say. The S3
    /// service does it.
    GetRanges,
    /// Objects that are in memory alone on the device, as the document says. Also the S3
    /// service's.
    Flush,
}

/// Why a call was not done.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// No endpoint has this path.
    #[error("no such endpoint")]
    NoSuchEndpoint,
    /// The endpoint has no such method.
    #[error("method not allowed")]
    MethodNotAllowed,
    /// The document is not the one that was to be sent.
    #[error("the document is malformed at line {}, column {}", .0.line, .0.column)]
    Malformed(Position),
    /// A field is beyond what may be asked for.
    #[error("{0} is out of bounds")]
    OutOfBounds(&'static str),
    /// The caller has no session of this id.
    #[error("no such session")]
    NoSuchSession,
    /// No node answered.
    #[error("no node could be reached: {0}")]
    NodesUnreachable(TransferError),
    /// The node refused or failed.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Where a document stops to make sense. What stands there is not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// From 1.
    pub line: usize,
    /// From 1.
    pub column: usize,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The document; empty where there is none.
    pub json: Vec<u8>,
    /// The session that was opened, if one was.
    pub opened: Option<Opened>,
}

/// A session that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its id.
    pub session: SessionId,
    /// How its keys die; none where both ends are on one host.
    pub strength: Option<KeyStrength>,
}

impl Call {
    /// The call that a method and a path make.
    ///
    /// # Errors
    /// [`ControlError::NoSuchEndpoint`] and [`ControlError::MethodNotAllowed`].
    pub fn of(method: &Method, path: &str) -> Result<Self, ControlError> {
        let rest = path.strip_prefix(PREFIX).ok_or(ControlError::NoSuchEndpoint)?;
        let (call, allowed) = match rest.split_once('/') {
            None if rest == RAILS => (Self::ListRails, Method::GET),
            None if rest == SESSIONS => (Self::OpenSession, Method::POST),
            None if rest == LOCAL_SESSIONS => (Self::OpenLocalSession, Method::POST),
            None if rest == PREFETCH => (Self::Prefetch, Method::POST),
            None if rest == RANGES => (Self::GetRanges, Method::POST),
            None if rest == FLUSH => (Self::Flush, Method::POST),
            Some((SESSIONS, id)) => {
                let id = id.parse().map_err(|_| ControlError::NoSuchSession)?;
                (Self::CloseSession(id), Method::DELETE)
            }
            _ => return Err(ControlError::NoSuchEndpoint),
        };
        if *method == allowed { Ok(call) } else { Err(ControlError::MethodNotAllowed) }
    }

    /// The operation's name, for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::ListRails => "ListRails",
            Self::OpenSession => "OpenSession",
            Self::OpenLocalSession => "OpenLocalSession",
            Self::CloseSession(_) => "CloseSession",
            Self::Prefetch => "Prefetch",
            Self::GetRanges => "GetRanges",
            Self::Flush => "Flush",
        }
    }
}

/// Answers the control endpoints.
pub struct Control {
    nodes: Nodes,
}

#[derive(Serialize)]
struct Rails {
    version: u32,
    rails: Vec<Rail>,
    doors: Vec<Door>,
}

impl Control {
    /// Over these nodes.
    pub fn new(nodes: Nodes) -> Self {
        Self { nodes }
    }

    /// Does what `owner` calls for. A call that is dropped may have been done.
    ///
    /// # Errors
    /// [`ControlError`]; an error of [`Call::OpenSession`] leaves no session, unless the node
    /// could not be reached: then it may be there until it was idle for its time.
    ///
    /// # Panics
    /// For [`Call::Prefetch`], [`Call::GetRanges`] and [`Call::Flush`].
    pub async fn answer(
        &self,
        owner: SessionOwner,
        call: Call,
        document: &[u8],
    ) -> Result<Answer, ControlError> {
        match call {
            Call::ListRails => Ok(ok(&self.rails().await?)),
            Call::OpenSession => {
                let request = request(&owner, document)?;
                let node = self.nodes.by_id(request.node).ok_or(SessionError::NoSuchRail)?;
                let offer = node.open_session(owner, request).await?;
                let opened = Opened { session: offer.session, strength: Some(offer.strength) };
                Ok(Answer { opened: Some(opened), ..ok(&offer) })
            }
            Call::OpenLocalSession => {
                let request: LocalSessionRequest = parsed(document)?;
                bounded(&owner, request.windows)?;
                let node = self.nodes.by_id(request.node).ok_or(SessionError::NoSuchRail)?;
                let offer = node.open_local_session(owner, request).await?;
                let opened = Opened { session: offer.session, strength: None };
                Ok(Answer { opened: Some(opened), ..ok(&offer) })
            }
            Call::Prefetch | Call::GetRanges | Call::Flush => {
                unreachable!("they name objects, which are not known here")
            }
            Call::CloseSession(session) => {
                let node = self.nodes.by_id(session.node()).ok_or(ControlError::NoSuchSession)?;
                let closed = node.close_sessions(SessionSelector::One(session, owner)).await;
                match closed.map_err(|error| SessionError::Unreachable(error.to_string().into()))? {
                    0 => Err(ControlError::NoSuchSession),
                    _ => Ok(Answer {
                        status: StatusCode::NO_CONTENT,
                        json: Vec::new(),
                        opened: None,
                    }),
                }
            }
        }
    }

    /// How many sessions are open at the nodes that answer in time.
    pub async fn count(&self, selector: SessionSelector) -> u64 {
        let ask = async |node: &std::sync::Arc<dyn keyway_dataplane::StorageNode>| {
            let counted = node.count_sessions(selector.clone());
            match tokio::time::timeout(COUNT_TIMEOUT, counted).await {
                Ok(Ok(open)) => open,
                _ => {
                    tracing::warn!(node = %node.id(), "a node did not tell its sessions");
                    0
                }
            }
        };
        join_all(self.nodes.iter().map(ask)).await.into_iter().sum()
    }

    /// The rails and doors of the nodes that answer.
    async fn rails(&self) -> Result<Rails, ControlError> {
        let ask = async |node: &std::sync::Arc<dyn keyway_dataplane::StorageNode>| {
            tokio::try_join!(node.rails(), node.door())
        };
        let asked = join_all(self.nodes.iter().map(ask)).await;
        let (mut rails, mut doors) = (Vec::new(), Vec::new());
        let mut unreachable = None;
        let mut reached = false;
        for (node, answer) in self.nodes.iter().zip(asked) {
            match answer {
                Ok((of_node, door)) => {
                    reached = true;
                    rails.extend(of_node);
                    doors.extend(door);
                }
                Err(error) => {
                    tracing::warn!(node = %node.id(), %error, "a node did not tell its rails");
                    unreachable = Some(error);
                }
            }
        }
        match unreachable {
            Some(error) if !reached => Err(ControlError::NodesUnreachable(error)),
            _ => Ok(Rails { version: VERSION, rails, doors }),
        }
    }
}

/// The request in a document.
fn request(owner: &SessionOwner, document: &[u8]) -> Result<SessionRequest, ControlError> {
    let request: SessionRequest = parsed(document)?;
    bounded(owner, request.windows)?;
    if !(1..=KeyStrength::ALL.len()).contains(&request.strengths.len()) {
        return Err(ControlError::OutOfBounds("strengths"));
    }
    request.client.checked().map_err(|_| ControlError::OutOfBounds("client"))?;
    Ok(request)
}

/// The type in a document.
///
/// # Errors
/// [`ControlError::Malformed`].
pub fn parsed<T: DeserializeOwned>(document: &[u8]) -> Result<T, ControlError> {
    serde_json::from_slice(document).map_err(|error| {
        ControlError::Malformed(Position { line: error.line(), column: error.column() })
    })
}

/// What holds for sessions of every kind.
fn bounded(owner: &SessionOwner, windows: u32) -> Result<(), ControlError> {
    if !(1..=SESSION_WINDOWS_MAX).contains(&windows) {
        return Err(ControlError::OutOfBounds("windows"));
    }
    if owner.access_key.len() > ACCESS_KEY_BYTES_MAX {
        return Err(ControlError::OutOfBounds("the access key's length"));
    }
    Ok(())
}

/// A document with status 200.
pub fn ok(document: &impl Serialize) -> Answer {
    let json = serde_json::to_vec(document).expect("types of ours have a JSON form");
    Answer { status: StatusCode::OK, json, opened: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the router lets through has a call, and every call has its path there.
    #[test]
    fn routes_are_calls() {
        let mut calls = Vec::new();
        for route in ROUTES.into_iter().filter(|route| *route != ADMIN_ROUTE) {
            let path = route.replace("{id}", "00000001000000ab");
            let methods = [Method::GET, Method::POST, Method::DELETE];
            let found = methods.iter().filter_map(|method| Call::of(method, &path).ok());
            let found: Vec<_> = found.collect();
            assert_eq!(found.len(), 1, "{route}");
            calls.extend(found);
        }
        for (at, call) in calls.iter().enumerate() {
            assert!(!calls[..at].contains(call));
            match call {
                Call::ListRails
                | Call::OpenSession
                | Call::OpenLocalSession
                | Call::CloseSession(_)
                | Call::Prefetch
                | Call::GetRanges
                | Call::Flush => {}
            }
        }
        assert_eq!(calls.len(), 7, "one for each call above");
    }

    #[test]
    fn paths_and_methods_make_calls() {
        let of = |method: &Method, path: &str| Call::of(method, path).map_err(|e| e.to_string());
        assert_eq!(of(&Method::GET, "/_keyway/v1/rails"), Ok(Call::ListRails));
        assert_eq!(of(&Method::POST, "/_keyway/v1/sessions"), Ok(Call::OpenSession));
        assert_eq!(of(&Method::POST, "/_keyway/v1/local-sessions"), Ok(Call::OpenLocalSession));
        let close = of(&Method::DELETE, "/_keyway/v1/sessions/00000001000000ab");
        assert_eq!(close, Ok(Call::CloseSession(SessionId(0x1_0000_00ab))));
        for (method, path, error) in [
            (Method::GET, "/_keyway/v1/", ControlError::NoSuchEndpoint),
            (Method::GET, "/_keyway/v2/rails", ControlError::NoSuchEndpoint),
            (Method::GET, "/_keyway/v1/rails/", ControlError::NoSuchEndpoint),
            (Method::POST, "/_keyway/v1/rails", ControlError::MethodNotAllowed),
            (Method::GET, "/_keyway/v1/sessions", ControlError::MethodNotAllowed),
            (Method::DELETE, "/_keyway/v1/sessions/", ControlError::NoSuchSession),
            (Method::DELETE, "/_keyway/v1/sessions/1", ControlError::NoSuchSession),
            (Method::GET, "/_keyway/v1/sessions/00000001000000ab", ControlError::MethodNotAllowed),
        ] {
            assert_eq!(of(&method, path), Err(error.to_string()), "{method} {path}");
        }
    }
}
