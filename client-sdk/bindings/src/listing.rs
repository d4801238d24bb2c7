//! Listings, page by page.

use jiff::Timestamp;
use keyway_client::{Client, ListObjects};

use crate::failure::Failure;
use crate::place::Place;

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// An object.
    Object {
        /// Its key.
        key: String,
        /// Its size.
        bytes: u64,
        /// Its ETag, quotes included.
        etag: String,
        /// When it was stored.
        modified: Option<Timestamp>,
    },
    /// What the delimiter rolled up.
    Prefix(String),
}

/// A listing that is requested page by page.
#[derive(Debug)]
pub struct Listing {
    list: ListObjects,
    next: Option<String>,
    over: bool,
}

impl Listing {
    /// A listing of the bucket's keys that begin with the place's.
    pub fn new(client: &Client, place: &Place, delimiter: Option<&str>) -> Self {
        let mut list = client.list_objects(&place.bucket);
        if !place.key.is_empty() {
            list = list.prefix(&place.key);
        }
        if let Some(delimiter) = delimiter {
            list = list.delimiter(delimiter);
        }
        Self { list, next: None, over: false }
    }

    /// Begins after this key.
    #[must_use]
    pub fn start_after(mut self, key: &str) -> Self {
        self.list = self.list.start_after(key);
        self
    }

    /// Keys per page, at most 1,000.
    #[must_use]
    pub fn page_keys(mut self, keys: u16) -> Self {
        self.list = self.list.page_keys(keys);
        self
    }

    /// The entries of the next page; none after the last.
    ///
    /// # Errors
    /// As the client's. A listing that failed can be asked again.
    pub async fn page(&mut self) -> Result<Vec<Listed>, Failure> {
        // A page may be empty and yet have a next.
        while !self.over {
            let page = self.list.page(self.next.as_deref()).await?;
            self.over = page.next.is_none() || page.next == self.next;
            self.next = page.next;
            let mut entries = Vec::with_capacity(page.objects.len() + page.common_prefixes.len());
            entries.extend(page.objects.into_iter().map(|object| Listed::Object {
                key: object.key,
                bytes: object.size,
                etag: object.etag,
                modified: object.last_modified,
            }));
            entries.extend(page.common_prefixes.into_iter().map(Listed::Prefix));
            if !entries.is_empty() {
                return Ok(entries);
            }
        }
        Ok(Vec::new())
    }
}
