//! The ways that bytes may take: `keyway:Path` and `keyway:KeyStrength`, before they are taken.
//!
//! A token names a session, and this gateway remembers what the sessions are that were opened
//! through it. Of one that it does not know (it was started after the session was opened) both
//! keys say `unknown`: what demands a strength, denies. A session of one host reaches host memory
//! and a GPU's, and only the node knows which it will be: what is asked must be allowed for both.

use http::HeaderMap;
use keyway_auth::policy::{Context, Key};
use keyway_proto::{KeyStrength, RdmaToken, SessionId, SessionToken, TransferPath};
use quick_cache::sync::Cache;

use crate::s3::rdma::TOKEN;

/// Sessions that are remembered; the longest unused are forgotten first.
const SESSIONS_MAX: usize = 1 << 16;

const UNKNOWN: &str = "unknown";

/// A way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    path: &'static str,
    strength: &'static str,
}

impl Way {
    pub(super) const HTTP: Self =
        Self { path: TransferPath::Http.as_str(), strength: KeyStrength::Http.as_str() };

    pub(super) fn tell(&self, context: &mut Context<'static>) {
        context.set(Key::Path, self.path).set(Key::KeyStrength, self.strength);
    }
}

/// What a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::s3) enum SessionKind {
    /// Over RDMA, with keys of this strength.
    Verbs(KeyStrength),
    /// On one host.
    Local,
}

/// The sessions that were opened through this gateway.
pub(in crate::s3) struct Sessions(Cache<SessionId, SessionKind>);

impl Default for Sessions {
    fn default() -> Self {
        Self(Cache::new(SESSIONS_MAX))
    }
}

impl Sessions {
    /// A session was opened.
    pub(in crate::s3) fn opened(&self, session: SessionId, kind: SessionKind) {
        self.0.insert(session, kind);
    }

    /// The ways that the bytes of a transfer under this token may take.
    pub(super) fn ways(&self, token: TokenOf) -> Vec<Way> {
        let way = |path: TransferPath, strength: KeyStrength| Way {
            path: path.as_str(),
            strength: strength.as_str(),
        };
        let session = match token {
            TokenOf::Session(session) => session,
            TokenOf::Dynamic => return vec![way(TransferPath::VerbsHost, KeyStrength::Standing)],
        };
        match self.0.get(&session) {
            // The node writes to an address; whose memory it is, it does not learn.
            Some(SessionKind::Verbs(strength)) => vec![way(TransferPath::VerbsHost, strength)],
            Some(SessionKind::Local) => [TransferPath::IpcHost, TransferPath::IpcGpu]
                .map(|path| way(path, KeyStrength::Ipc))
                .into(),
            None => vec![Way { path: UNKNOWN, strength: UNKNOWN }],
        }
    }
}

/// What a request's token is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::s3) enum TokenOf {
    Session(SessionId),
    /// A dynamically connected target: its key is the client's own, of a long-lived registration.
    Dynamic,
}

/// What the request's token is of; nothing without one, or for one that is malformed.
pub(super) fn token_of(headers: &HeaderMap) -> Option<TokenOf> {
    let text = headers.get(TOKEN)?.to_str().ok()?;
    match text.parse::<SessionToken>() {
        Ok(token) => Some(TokenOf::Session(token.session())),
        Err(_) => text.parse::<RdmaToken>().ok().map(|_| TokenOf::Dynamic),
    }
}
