//! What became of the key that a request's token lends.
//!
//! The request and its answer's envelope share one cell: however a request ends, its answer
//! says what the cell holds. A key that no node was told of is quiet; from the moment that a
//! grant leaves until the node's word is there, nobody knows.

use std::sync::Arc;
use std::time::Instant;

use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request};
use keyway_proto::key::Relinquished;
use parking_lot::Mutex;

use super::token::TOKEN;
use crate::control::RANGES_PATH;

/// The header that tells.
const KEY: HeaderName = HeaderName::from_static("x-keyway-rdma-key");

/// What became of a request's key.
#[derive(Clone)]
pub(in crate::s3) struct Lent {
    key: Arc<Mutex<Relinquished>>,
    /// When the request came.
    since: Instant,
}

impl Lent {
    /// Begins to watch over a request that carries a token; `None` for all others. From here on
    /// the token does not show in `Debug` output.
    pub(in crate::s3) fn begin<B>(request: &mut Request<B>) -> Option<Self> {
        let gathers = *request.method() == Method::POST && request.uri().path() == RANGES_PATH;
        if !gathers && !matches!(*request.method(), Method::GET | Method::PUT) {
            return None;
        }
        // `get_mut` finds the first of several alone; several are refused, but hidden as well.
        let mut values = request.headers_mut().iter_mut().filter(|(name, _)| **name == TOKEN);
        if values.by_ref().map(|(_, value)| value.set_sensitive(true)).count() == 0 {
            return None;
        }
        let key = Arc::new(Mutex::new(Relinquished::Quiet));
        let lent = Self { key, since: Instant::now() };
        request.extensions_mut().insert(lent.clone());
        Some(lent)
    }

    /// The one that [`begin`](Self::begin) left with the request.
    pub(super) fn of(extensions: &Extensions) -> Option<Self> {
        extensions.get().cloned()
    }

    /// A grant is about to leave.
    pub(super) fn lend(&self) {
        *self.key.lock() = Relinquished::Unknown;
    }

    /// When the request came.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// The node's word.
    pub(super) fn settle(&self, key: Relinquished) {
        *self.key.lock() = key;
    }

    /// Whether the key may be lent again: no node knows it, or none will use it.
    pub(in crate::s3) fn is_quiet(&self) -> bool {
        *self.key.lock() == Relinquished::Quiet
    }

    /// Tells it in an answer.
    pub(in crate::s3) fn tell(&self, headers: &mut HeaderMap) {
        headers.insert(KEY, HeaderValue::from_static(self.key.lock().as_str()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, tokens: &[&'static str]) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = method;
        for token in tokens {
            request.headers_mut().append(TOKEN, HeaderValue::from_static(token));
        }
        request
    }

    #[test]
    fn tokens_do_not_show_from_the_first_step_on() {
        let mut several = request(Method::PUT, &["kw1:planted", "kw1:planted"]);
        assert!(Lent::begin(&mut several).is_some());
        assert!(!format!("{several:?}").contains("planted"));
    }

    #[test]
    fn reads_of_metadata_and_plain_requests_lend_nothing() {
        assert!(Lent::begin(&mut request(Method::HEAD, &["kw1:planted"])).is_none());
        assert!(Lent::begin(&mut request(Method::GET, &[])).is_none());
        assert!(Lent::begin(&mut request(Method::POST, &["kw1:planted"])).is_none());
    }

    #[test]
    fn requests_for_ranges_lend_a_key() {
        let mut request = request(Method::POST, &["kw1:planted"]);
        *request.uri_mut() = RANGES_PATH.parse().expect("a path");
        assert!(Lent::begin(&mut request).is_some());
        assert!(!format!("{request:?}").contains("planted"));
    }

    #[test]
    fn a_key_is_unknown_while_a_node_has_it() {
        let mut request = request(Method::GET, &["kw1:planted"]);
        let told = Lent::begin(&mut request).expect("it carries a token");
        let told = || {
            let mut headers = HeaderMap::new();
            told.tell(&mut headers);
            headers[KEY].to_str().expect("ascii").to_owned()
        };
        let lent = Lent::of(request.extensions()).expect("it was left there");
        assert_eq!(told(), "quiet");
        lent.lend();
        assert_eq!(told(), "unknown");
        lent.settle(Relinquished::Invalidated);
        assert_eq!(told(), "invalidated");
    }
}
