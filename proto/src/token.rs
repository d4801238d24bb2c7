//! The RDMA token of `x-amz-rdma-token`: a client's memory, as its server may reach it.
//!
//! 81 characters, lowercase hexadecimal: `addr:size:rkey:lid:dctn:has_gid:gid` in fields of
//! 16, 8, 8, 4, 6, 1 and 32 digits. Whoever holds a token can write the memory, so its type
//! has no `Debug` that shows it.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::direct::{RemoteKey, RemoteWindow};
use crate::session::Gid;

/// Characters of a token.
pub const RDMA_TOKEN_CHARS: usize = 81;

/// A parsed token.
#[derive(Clone, PartialEq, Eq)]
pub struct RdmaToken {
    window: RemoteWindow,
    target: DctAddress,
}

/// Where a dynamically connected target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DctAddress {
    /// Its port's GID, where it has one.
    pub gid: Option<Gid>,
    /// Its port's local identifier on an InfiniBand subnet.
    pub lid: u16,
    /// Its number, 24 bits.
    pub number: u32,
}

/// The access key that dynamically connected targets are made with. Tokens do not carry it: both
/// ends are configured. It is no secret of a tenant's, and is still never shown: it serializes
/// as `(hidden)`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DcKey(pub u64);

impl fmt::Debug for DcKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DcKey(hidden)")
    }
}

impl Serialize for DcKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("(hidden)")
    }
}

/// A number, or a text of `0x` and 1 to 16 hexadecimal digits. Errors do not repeat it.
impl<'de> Deserialize<'de> for DcKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Key;
        impl Visitor<'_> for Key {
            type Value = DcKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer from 0 on, or \"0x\" and up to 16 hexadecimal digits")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<DcKey, E> {
                Ok(DcKey(number))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<DcKey, E> {
                u64::try_from(number).map(DcKey).map_err(|_| refused(&self))
            }

            fn visit_f64<E: de::Error>(self, _: f64) -> Result<DcKey, E> {
                Err(refused(&self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<DcKey, E> {
                let digits =
                    text.strip_prefix("0x").filter(|digits| (1..=16).contains(&digits.len()));
                let digits = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
                let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
                number.map(DcKey).ok_or_else(|| refused(&self))
            }
        }

        fn refused<E: de::Error>(key: &Key) -> E {
            E::invalid_type(de::Unexpected::Other("another value"), key)
        }
        deserializer.deserialize_any(Key)
    }
}

/// A text that is no token. It does not repeat the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed RDMA token")]
pub struct InvalidRdmaToken;

impl RdmaToken {
    /// The token of `length` bytes at `address`; `None` when it covers no byte, wraps around
    /// the address space, or `dct_number` has more than 24 bits.
    pub fn new(
        address: u64,
        length: u32,
        rkey: u32,
        lid: u16,
        dct_number: u32,
        gid: Option<[u8; 16]>,
    ) -> Option<Self> {
        let ends = address.checked_add(u64::from(length)).is_some();
        (ends && length > 0 && dct_number >> 24 == 0).then_some(Self {
            window: RemoteWindow { address, length, key: RemoteKey(rkey) },
            target: DctAddress { gid: gid.map(Gid), lid, number: dct_number },
        })
    }

    /// The memory, and the key to it.
    pub fn window(&self) -> &RemoteWindow {
        &self.window
    }

    /// Where it is reached.
    pub fn target(&self) -> DctAddress {
        self.target
    }

    /// The first byte's address in the client's memory.
    pub fn address(&self) -> u64 {
        self.window.address
    }

    /// Bytes that may be reached.
    pub fn length(&self) -> u32 {
        self.window.length
    }

    /// The key.
    pub fn rkey(&self) -> u32 {
        self.window.key.0
    }

    /// The client's local identifier on an InfiniBand subnet.
    pub fn lid(&self) -> u16 {
        self.target.lid
    }

    /// The number of the client's dynamically connected target, 24 bits.
    pub fn dct_number(&self) -> u32 {
        self.target.number
    }

    /// The client's global identifier, where it has one.
    pub fn gid(&self) -> Option<[u8; 16]> {
        self.target.gid.map(|gid| gid.0)
    }

    /// The text form, for the header alone.
    pub fn encode(&self) -> String {
        let gid = u128::from_be_bytes(self.gid().unwrap_or_default());
        format!(
            "{:016x}:{:08x}:{:08x}:{:04x}:{:06x}:{:x}:{gid:032x}",
            self.address(),
            self.length(),
            self.rkey(),
            self.lid(),
            self.dct_number(),
            u8::from(self.gid().is_some()),
        )
    }
}

impl fmt::Debug for RdmaToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RdmaToken(hidden)")
    }
}

impl FromStr for RdmaToken {
    type Err = InvalidRdmaToken;

    fn from_str(text: &str) -> Result<Self, InvalidRdmaToken> {
        if text.len() != RDMA_TOKEN_CHARS {
            return Err(InvalidRdmaToken);
        }
        let mut fields = text.split(':');
        let mut field = |digits: usize| hex(fields.next(), digits);
        let (address, length, rkey) = (field(16)?, field(8)?, field(8)?);
        let (lid, dct_number, has_gid, gid) = (field(4)?, field(6)?, field(1)?, field(32)?);
        let gid = match has_gid {
            0 if gid == 0 => None,
            1 => Some(gid.to_be_bytes()),
            _ => return Err(InvalidRdmaToken),
        };
        if fields.next().is_some() {
            return Err(InvalidRdmaToken);
        }
        Self::new(
            narrow(address)?,
            narrow(length)?,
            narrow(rkey)?,
            narrow(lid)?,
            narrow(dct_number)?,
            gid,
        )
        .ok_or(InvalidRdmaToken)
    }
}

/// Exactly `digits` lowercase hexadecimal digits: no sign, no capitals, which `from_str_radix`
/// would let pass.
fn hex(field: Option<&str>, digits: usize) -> Result<u128, InvalidRdmaToken> {
    let field = field.filter(|field| field.len() == digits).ok_or(InvalidRdmaToken)?;
    let lowercase = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if !field.bytes().all(lowercase) {
        return Err(InvalidRdmaToken);
    }
    u128::from_str_radix(field, 16).map_err(|_| InvalidRdmaToken)
}

fn narrow<T: TryFrom<u128>>(value: u128) -> Result<T, InvalidRdmaToken> {
    T::try_from(value).map_err(|_| InvalidRdmaToken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str =
        "00007f0012340000:00100000:0001a2b3:0011:00beef:1:fe80000000000000506b4b0300a1b2c3";

    #[test]
    fn the_known_form_parses() {
        let token: RdmaToken = GOOD.parse().expect("well-formed");
        assert_eq!(token.address(), 0x7f00_1234_0000);
        assert_eq!(token.length(), 1 << 20);
        assert_eq!((token.rkey(), token.lid(), token.dct_number()), (0x1a2b3, 0x11, 0xbeef));
        assert_eq!(token.encode(), GOOD);
        assert_eq!(format!("{token:?}"), "RdmaToken(hidden)");
    }

    #[test]
    fn everything_else_is_refused() {
        let zero_length = GOOD.replacen("00100000", "00000000", 1);
        let wraps = GOOD.replacen("00007f0012340000", "ffffffffffffffff", 1);
        for bad in [
            "",
            "0",
            &GOOD[1..],
            &format!("{GOOD}0"),
            &GOOD.to_uppercase(),
            &GOOD.replacen(":1:", ":2:", 1),
            &GOOD.replacen(":1:", ":0:", 1),
            &GOOD.replacen("00007f", "+0007f", 1),
            &GOOD.replacen("00100000:", "0010000:0", 1),
            &GOOD.replacen(':', "0", 1),
            &zero_length,
            &wraps,
            "rc:1:00007f0012340000:00100000:0001a2b3",
        ] {
            assert_eq!(bad.parse::<RdmaToken>(), Err(InvalidRdmaToken), "{bad}");
        }
    }

    #[test]
    fn access_keys_are_numbers_or_hexadecimal_and_hidden() {
        let read = |text: &str| serde_json::from_str::<DcKey>(text);
        for (text, number) in [
            ("0", 0),
            ("18446744073709551615", u64::MAX),
            ("\"0x1234\"", 0x1234),
            ("\"0xFFFFffffffffffff\"", u64::MAX),
        ] {
            assert_eq!(read(text).expect(text), DcKey(number));
        }
        for bad in [
            "-77777777",
            "77777777.5",
            "18446744073709551616",
            "\"77777777\"",
            "\"0x\"",
            "\"0x+7777777\"",
            "\"0x17777777777777777\"",
            "null",
            "[77777777]",
        ] {
            let error = read(bad).expect_err(bad).to_string();
            assert!(!error.contains("7777777"), "{error}");
        }
        let shown = format!("{:?} {}", DcKey(4242), serde_json::to_string(&DcKey(4242)).unwrap());
        assert!(!shown.contains("4242") && shown.contains("(hidden)"), "{shown}");
    }

    proptest! {
        #[test]
        fn round_trip(
            address: u64, length: u32, rkey: u32, lid: u16, dct in 0u32..1 << 24,
            gid: Option<[u8; 16]>,
        ) {
            if let Some(token) = RdmaToken::new(address, length, rkey, lid, dct, gid) {
                let text = token.encode();
                prop_assert_eq!(text.len(), RDMA_TOKEN_CHARS);
                prop_assert_eq!(text.parse(), Ok(token));
            }
        }

        #[test]
        fn foreign_text_never_panics(text: String, tail in "[0-9a-f:]{81}") {
            let _ = text.parse::<RdmaToken>();
            let _ = tail.parse::<RdmaToken>();
        }
    }
}
