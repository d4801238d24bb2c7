//! Bucket names and object keys, valid by construction.

use std::fmt;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use crate::unit::KEY_BYTES_MAX;

/// Why a name was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidName {
    /// A bucket name outside S3's rules for general-purpose buckets.
    #[error("the bucket name breaks S3's naming rules")]
    Bucket,
    /// An empty object key.
    #[error("the object key is empty")]
    EmptyKey,
    /// An object key of more than 1,024 bytes of UTF-8.
    #[error("the object key has {0} bytes; 1,024 is the limit")]
    KeyTooLong(usize),
}

macro_rules! text_name {
    ($name:ident) => {
        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

/// The name of a general-purpose bucket: 3–63 characters of `a-z 0-9 . -`, beginning and
/// ending with a letter or digit, no `..`, not an IPv4 address.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketName(Arc<str>);

text_name!(BucketName);

impl FromStr for BucketName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let bytes = text.as_bytes();
        let edge =
            |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let allowed =
            |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(*b, b'.' | b'-');
        let valid = (3..=63).contains(&bytes.len())
            && bytes.iter().all(allowed)
            && edge(bytes.first())
            && edge(bytes.last())
            && !text.contains("..")
            && text.parse::<Ipv4Addr>().is_err();
        if valid { Ok(Self(text.into())) } else { Err(InvalidName::Bucket) }
    }
}

/// An object's key: 1 to 1,024 bytes of UTF-8, any characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Arc<str>);

text_name!(ObjectKey);

impl FromStr for ObjectKey {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        match text.len() {
            0 => Err(InvalidName::EmptyKey),
            n if n > KEY_BYTES_MAX => Err(InvalidName::KeyTooLong(n)),
            _ => Ok(Self(text.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_rules() {
        for good in ["abc", "my-bucket.v1", "0-0", &"a".repeat(63)] {
            assert!(good.parse::<BucketName>().is_ok(), "{good}");
        }
        for bad in
            ["", "ab", "Abc", "a_b", "-abc", "abc-", "a..b", "10.0.0.1", "_keyway", &"a".repeat(64)]
        {
            assert_eq!(bad.parse::<BucketName>(), Err(InvalidName::Bucket), "{bad}");
        }
    }

    #[test]
    fn key_rules() {
        assert!("é".repeat(512).parse::<ObjectKey>().is_ok());
        assert_eq!("é".repeat(513).parse::<ObjectKey>(), Err(InvalidName::KeyTooLong(1026)));
        assert_eq!("".parse::<ObjectKey>(), Err(InvalidName::EmptyKey));
    }
}
