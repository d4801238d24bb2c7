//! Names of tenants, users, groups, policies and providers.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Longest name.
pub const NAME_CHARS_MAX: usize = 64;

/// The tenant itself, among its users; and one's own tenant, in paths.
const RESERVED: [&str; 2] = [crate::Principal::ROOT, "self"];

/// A name: 1 to 64 letters, digits and `_+=,.@-`, as IAM has them. It can stand in an ARN, a path
/// and a policy's variable as it is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

/// A text that is no name. It does not repeat the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a name has 1 to {NAME_CHARS_MAX} letters, digits and _+=,.@-, not dots alone, and is not root or self"
)]
pub struct InvalidName;

impl Name {
    /// The name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    /// What sorts before every name, and is none.
    pub(super) fn before_all() -> Self {
        Self(Arc::from(""))
    }

    /// Whether a text is an account number, which no tenant may be called.
    pub fn is_account(text: &str) -> bool {
        text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_digit())
    }
}

impl FromStr for Name {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_+=,.@-".contains(&byte);
        let sound = (1..=NAME_CHARS_MAX).contains(&text.len())
            && text.bytes().all(plain)
            // Paths with such a part mean another one.
            && !text.bytes().all(|byte| byte == b'.')
            && !RESERVED.contains(&text);
        if sound { Ok(Self(text.into())) } else { Err(InvalidName) }
    }
}

impl TryFrom<String> for Name {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.as_str().to_owned()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["a", "Anna.B+c=d,e@f-g_1", &"x".repeat(64), "...a", "000000000007"] {
            assert_eq!(good.parse::<Name>().map(String::from).as_deref(), Ok(good));
        }
        for bad in ["", ".", "..", "root", "self", "a/b", "a b", "ä", "a*", "a:b", &"x".repeat(65)]
        {
            assert_eq!(bad.parse::<Name>(), Err(InvalidName), "{bad:?}");
        }
    }
}
