//! Keyway's own form of `x-amz-rdma-token`: a session, and windows of the client's memory.
//!
//! ```text
//! kw1:SESSION:ADDRESS:LENGTH:RKEY[,ADDRESS:LENGTH:RKEY …]
//! ```
//!
//! Lowercase hexadecimal in fields of 16, 16, 8 and 8 digits, at most [`TOKEN_WINDOWS_MAX`]
//! windows. Unlike the 81-character form it names no queue: the session's own is meant, and
//! the keys are worth nothing on any other.

use std::fmt;
use std::str::FromStr;

use crate::direct::{RemoteKey, RemoteWindow};
use crate::id::SessionId;

/// Most windows in one token.
pub const TOKEN_WINDOWS_MAX: usize = 16;

const PREFIX: &str = "kw1:";

/// A parsed token. Whoever holds one on its session's queue pair can reach the memory, so it
/// has no `Debug` that shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionToken {
    session: SessionId,
    windows: Vec<RemoteWindow>,
}

/// A text that is no token. It does not repeat the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed session token")]
pub struct InvalidSessionToken;

impl SessionToken {
    /// The token of these windows; `None` when there are none or too many, or one covers no
    /// byte or wraps around the address space.
    pub fn new(session: SessionId, windows: Vec<RemoteWindow>) -> Option<Self> {
        let sound = |window: &RemoteWindow| {
            window.length > 0 && window.address.checked_add(u64::from(window.length)).is_some()
        };
        let count = (1..=TOKEN_WINDOWS_MAX).contains(&windows.len());
        (count && windows.iter().all(sound)).then_some(Self { session, windows })
    }

    /// Whether a text is meant to be a token of this form.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    /// The session.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The windows, in the order of the bytes.
    pub fn windows(&self) -> &[RemoteWindow] {
        &self.windows
    }

    /// Bytes in all windows.
    pub fn length(&self) -> u64 {
        self.windows.iter().map(|window| u64::from(window.length)).sum()
    }

    /// The text form, for the header alone.
    pub fn encode(&self) -> String {
        let windows = self.windows.iter().map(|window| {
            format!("{:016x}:{:08x}:{:08x}", window.address, window.length, window.key.0)
        });
        format!("{PREFIX}{}:{}", self.session, windows.collect::<Vec<_>>().join(","))
    }
}

impl fmt::Debug for SessionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionToken(session {}, hidden)", self.session)
    }
}

impl FromStr for SessionToken {
    type Err = InvalidSessionToken;

    fn from_str(text: &str) -> Result<Self, InvalidSessionToken> {
        let rest = text.strip_prefix(PREFIX).ok_or(InvalidSessionToken)?;
        let (session, windows) = rest.split_once(':').ok_or(InvalidSessionToken)?;
        let session = session.parse().map_err(|_| InvalidSessionToken)?;
        let windows = windows.split(',').take(TOKEN_WINDOWS_MAX + 1).map(window);
        Self::new(session, windows.collect::<Result<_, _>>()?).ok_or(InvalidSessionToken)
    }
}

fn window(text: &str) -> Result<RemoteWindow, InvalidSessionToken> {
    let mut fields = text.split(':');
    let mut field = |digits: usize| hex(fields.next(), digits);
    let (address, length, key) = (field(16)?, field(8)?, field(8)?);
    if fields.next().is_some() {
        return Err(InvalidSessionToken);
    }
    let narrow = |value: u64| u32::try_from(value).map_err(|_| InvalidSessionToken);
    Ok(RemoteWindow { address, length: narrow(length)?, key: RemoteKey(narrow(key)?) })
}

/// Exactly `digits` lowercase hexadecimal digits: no sign, no capitals.
fn hex(field: Option<&str>, digits: usize) -> Result<u64, InvalidSessionToken> {
    let lowercase = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let field = field
        .filter(|field| field.len() == digits && field.bytes().all(lowercase))
        .ok_or(InvalidSessionToken)?;
    u64::from_str_radix(field, 16).map_err(|_| InvalidSessionToken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ONE: &str = "kw1:00000000000000ab:00007f0012340000:00100000:0001a2b3";

    #[test]
    fn the_form_parses() {
        let token: SessionToken = ONE.parse().expect("well-formed");
        assert_eq!((token.session(), token.length()), (SessionId(0xab), 1 << 20));
        assert_eq!(token.encode(), ONE);
        assert!(!format!("{token:?}").contains("1a2b3"));
        let two = format!("{ONE},0000000000001000:00000001:00000002");
        assert_eq!(two.parse::<SessionToken>().map(|token| token.windows().len()), Ok(2));
    }

    #[test]
    fn everything_else_is_refused() {
        let window = &ONE[21..];
        let many = format!("{}{}", ONE, format!(",{window}").repeat(TOKEN_WINDOWS_MAX));
        for bad in [
            "",
            "kw1:",
            &ONE[1..],
            &format!("{ONE}0"),
            &format!("{ONE},"),
            &format!("{ONE}:0"),
            &ONE.to_uppercase(),
            &ONE.replacen("00100000", "00000000", 1),
            &ONE.replacen("00007f0012340000", "ffffffffffffffff", 1),
            &many,
        ] {
            assert_eq!(bad.parse::<SessionToken>(), Err(InvalidSessionToken), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn round_trip(
            session: u64,
            windows in prop::collection::vec((any::<u64>(), any::<u32>(), any::<u32>()), 0..20),
        ) {
            let windows = windows.into_iter().map(|(address, length, key)| RemoteWindow {
                address, length, key: RemoteKey(key),
            });
            if let Some(token) = SessionToken::new(SessionId(session), windows.collect()) {
                prop_assert_eq!(token.encode().parse(), Ok(token));
            }
        }

        #[test]
        fn foreign_text_never_panics(text: String, tail in "kw1:[0-9a-f:,]{0,99}") {
            let _ = text.parse::<SessionToken>();
            let _ = tail.parse::<SessionToken>();
        }
    }
}
