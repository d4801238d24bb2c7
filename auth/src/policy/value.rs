//! The values that requests have for condition keys.

use std::borrow::Cow;
use std::net::IpAddr;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::key::{Key, KeyRef, TagKey};

/// One value.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// Text, and what has no type of its own, such as ARNs.
    Text(Cow<'a, str>),
    /// A number.
    Number(f64),
    /// True or false.
    Bool(bool),
    /// A time.
    Time(Timestamp),
    /// An address.
    Ip(IpAddr),
}

impl Value<'_> {
    /// The value as text: what string operators compare, and variables stand for.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Number(number) => Cow::Owned(number.to_string()),
            Self::Bool(true) => Cow::Borrowed("true"),
            Self::Bool(false) => Cow::Borrowed("false"),
            Self::Time(time) => Cow::Owned(time.to_string()),
            Self::Ip(ip) => Cow::Owned(ip.to_string()),
        }
    }

    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => parse_number(text),
            #[expect(clippy::cast_precision_loss, reason = "seconds stay below 2^53")]
            Self::Time(time) => Some(time.as_second() as f64),
            Self::Bool(_) | Self::Ip(_) => None,
        }
    }

    pub(super) fn bool(&self) -> Option<bool> {
        match self {
            Self::Bool(bool) => Some(*bool),
            Self::Text(text) => parse_bool(text),
            _ => None,
        }
    }

    pub(super) fn time(&self) -> Option<Timestamp> {
        match self {
            Self::Time(time) => Some(*time),
            other => parse_time(&other.text()),
        }
    }

    pub(super) fn ip(&self) -> Option<IpAddr> {
        match self {
            // An IPv4 client of a dual-stack socket is an IPv4 client.
            Self::Ip(ip) => Some(ip.to_canonical()),
            Self::Text(text) => text.parse().ok().map(|ip: IpAddr| ip.to_canonical()),
            _ => None,
        }
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<bool> for Value<'_> {
    fn from(bool: bool) -> Self {
        Self::Bool(bool)
    }
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<f64> for Value<'_> {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<Timestamp> for Value<'_> {
    fn from(time: Timestamp) -> Self {
        Self::Time(time)
    }
}

impl From<IpAddr> for Value<'_> {
    fn from(ip: IpAddr) -> Self {
        Self::Ip(ip)
    }
}

/// A finite decimal number.
pub(super) fn parse_number(text: &str) -> Option<f64> {
    let plain = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
    let number: f64 = text.chars().all(plain).then(|| text.parse().ok())??;
    number.is_finite().then_some(number)
}

pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        _ if text.eq_ignore_ascii_case("true") => Some(true),
        _ if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}

/// A time in ISO 8601 (a date alone is its midnight, UTC), or in seconds since 1970.
pub(super) fn parse_time(text: &str) -> Option<Timestamp> {
    if let Ok(seconds) = text.parse() {
        return Timestamp::from_second(seconds).ok();
    }
    if let Ok(time) = text.parse() {
        return Some(time);
    }
    // "2024-01-02" has ten characters; jiff would read a longer text's beginning.
    let date: Date = (text.len() == 10).then(|| text.parse().ok())??;
    Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// What a request tells besides who, what and to which resource.
///
/// What follows from these (`aws:username`, `aws:PrincipalArn`, `aws:ResourceAccount` and
/// so on) need not be told: [`Request`](super::Request) answers for it.
#[derive(Debug, Clone, Default)]
pub struct Context<'a> {
    values: Vec<(Key, Values<'a>)>,
    tags: Vec<(TagKey, Cow<'a, str>, Value<'a>)>,
    claims: Vec<(Box<str>, Vec<Value<'a>>)>,
}

impl<'a> Context<'a> {
    /// A context without any value.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key's value.
    pub fn set(&mut self, key: Key, value: impl Into<Value<'a>>) -> &mut Self {
        self.set_values(key, Values::One(value.into()))
    }

    /// Sets a key's values. None is the same as to leave the key out.
    pub fn set_all(&mut self, key: Key, values: Vec<Value<'a>>) -> &mut Self {
        self.set_values(key, Values::Many(values))
    }

    fn set_values(&mut self, key: Key, values: Values<'a>) -> &mut Self {
        self.values.retain(|(known, _)| *known != key);
        if !values.as_slice().is_empty() {
            self.values.push((key, values));
        }
        self
    }

    /// Sets a tag's value.
    pub fn set_tag(
        &mut self,
        family: TagKey,
        tag: impl Into<Cow<'a, str>>,
        value: impl Into<Value<'a>>,
    ) -> &mut Self {
        let tag = tag.into();
        self.tags.retain(|(known, name, _)| *known != family || *name != tag);
        self.tags.push((family, tag, value.into()));
        self
    }

    /// Sets what the token of a web identity says: `sub`, `aud` and so on, after its issuer's name.
    /// No value is the same as to leave it out.
    pub fn set_claim(&mut self, issuer: &str, claim: &str, values: Vec<Value<'a>>) -> &mut Self {
        let name = format!("{issuer}:{claim}").into_boxed_str();
        self.claims.retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
        if !values.is_empty() {
            self.claims.push((name, values));
        }
        self
    }

    /// Adds a value under a key's name, as tools take it from people.
    ///
    /// # Errors
    /// The name, when no key is called so.
    pub fn add_named(&mut self, name: &str, value: String) -> Result<&mut Self, UnknownKey> {
        match KeyRef::find(name) {
            Some(KeyRef::Known(key)) => {
                let mut values = self.find(&KeyRef::Known(key)).unwrap_or_default().to_vec();
                values.push(value.into());
                Ok(self.set_all(key, values))
            }
            Some(KeyRef::Tag(family, tag)) => Ok(self.set_tag(family, String::from(tag), value)),
            Some(key @ KeyRef::Foreign(_)) if key.is_claim() => {
                let known =
                    self.claims.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(name));
                match known {
                    Some((_, values)) => values.push(value.into()),
                    None => self.claims.push((name.into(), vec![value.into()])),
                }
                Ok(self)
            }
            Some(KeyRef::Foreign(_)) | None => Err(UnknownKey(name.to_owned())),
        }
    }

    pub(super) fn find(&self, key: &KeyRef) -> Option<&[Value<'a>]> {
        match key {
            KeyRef::Known(key) => {
                let found = self.values.iter().find(|(known, _)| known == key);
                found.map(|(_, values)| values.as_slice())
            }
            KeyRef::Tag(family, tag) => {
                let found =
                    self.tags.iter().find(|(known, name, _)| known == family && *name == **tag);
                found.map(|(_, _, value)| std::slice::from_ref(value))
            }
            KeyRef::Foreign(name) => {
                let found = self.claims.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
                found.map(|(_, values)| &**values)
            }
        }
    }
}

/// What a key has: nearly always one value, which then needs no memory of its own.
#[derive(Debug, Clone)]
enum Values<'a> {
    One(Value<'a>),
    Many(Vec<Value<'a>>),
}

impl<'a> Values<'a> {
    fn as_slice(&self) -> &[Value<'a>] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Many(values) => values,
        }
    }
}

/// No condition key has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no condition key is called {0:?}")]
pub struct UnknownKey(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let midnight = Timestamp::from_second(1_704_153_600).expect("a time");
        for text in
            ["2024-01-02T00:00:00Z", "2024-01-02", "1704153600", "2024-01-02T01:00:00+01:00"]
        {
            assert_eq!(parse_time(text), Some(midnight), "{text}");
        }
        for text in ["", "soon", "2024-13-02", "2024-01-02T00:00:00", "2024-01"] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_are_decimal_and_finite() {
        assert_eq!(parse_number("10"), Some(10.0));
        assert_eq!(parse_number("-1.5"), Some(-1.5));
        for text in ["", "ten", "inf", "NaN", "0x10", "1e999", " 1"] {
            assert_eq!(parse_number(text), None, "{text}");
        }
    }
}
