//! Where an object is, as text.

use std::fmt;

/// An object's bucket and key, or a bucket and a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The bucket.
    pub bucket: String,
    /// The key; empty for the bucket itself.
    pub key: String,
}

/// A text that is no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPlace {
    /// No bucket is named, and the client has none of its own.
    #[error("{0:?} names no bucket: say s3://bucket/key, or give the client a bucket")]
    NoBucket(String),
    /// A bucket without a key.
    #[error("{0:?} names a bucket and no object")]
    NoKey(String),
    /// Another scheme than `s3` or `keyway`.
    #[error("{0:?} is neither s3:// nor keyway://")]
    Scheme(String),
}

impl Place {
    /// Reads `s3://bucket/key` or `keyway://bucket/key`; a text without a scheme is a key in
    /// `bucket`.
    ///
    /// # Errors
    /// [`InvalidPlace`].
    pub fn parse(text: &str, bucket: Option<&str>) -> Result<Self, InvalidPlace> {
        let Some((scheme, rest)) = text.split_once("://") else {
            let bucket = bucket.ok_or_else(|| InvalidPlace::NoBucket(text.to_owned()))?;
            return Ok(Self { bucket: bucket.to_owned(), key: text.to_owned() });
        };
        if scheme != "s3" && scheme != "keyway" {
            return Err(InvalidPlace::Scheme(text.to_owned()));
        }
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(InvalidPlace::NoBucket(text.to_owned()));
        }
        Ok(Self { bucket: bucket.to_owned(), key: key.to_owned() })
    }

    /// The same, of an object: its key is not empty.
    ///
    /// # Errors
    /// [`InvalidPlace`].
    pub fn object(text: &str, bucket: Option<&str>) -> Result<Self, InvalidPlace> {
        let place = Self::parse(text, bucket)?;
        if place.key.is_empty() {
            return Err(InvalidPlace::NoKey(text.to_owned()));
        }
        Ok(place)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        let object = |text| Place::object(text, Some("own")).map(|place| place.to_string());
        assert_eq!(object("s3://b/k/l").as_deref(), Ok("s3://b/k/l"));
        assert_eq!(object("keyway://b/k").as_deref(), Ok("s3://b/k"));
        assert_eq!(object("k/l").as_deref(), Ok("s3://own/k/l"));
        assert!(matches!(object("s3://b/"), Err(InvalidPlace::NoKey(_))));
        assert!(matches!(object("s3:///k"), Err(InvalidPlace::NoBucket(_))));
        assert!(matches!(object("http://b/k"), Err(InvalidPlace::Scheme(_))));
        assert!(matches!(Place::object("k", None), Err(InvalidPlace::NoBucket(_))));
        assert_eq!(Place::parse("s3://b", None).expect("a bucket").key, "");
    }
}
