//! What becomes of objects in time: the rules of a bucket, and what they say of a version. Pure:
//! [`crate::s3`] takes the rules from clients, [`crate::maintenance`] acts by them.

use keyway_meta::UnixMs;
use serde::{Deserialize, Serialize};

/// The rules of a bucket.
pub(crate) type Rules = Vec<Rule>;

/// One rule, as it was given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    pub(crate) id: String,
    pub(crate) enabled: bool,
    pub(crate) filter: Filter,
    /// Whether the prefix came outside of a filter, as it did once.
    pub(crate) bare_prefix: bool,
    pub(crate) expire: Option<Expire>,
    pub(crate) noncurrent: Option<Noncurrent>,
    /// Days from its beginning after which an upload is aborted.
    pub(crate) abort_days: Option<u32>,
}

/// What a rule is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Filter {
    pub(crate) prefix: String,
    pub(crate) tags: Vec<(String, String)>,
    pub(crate) larger_than: Option<u64>,
    pub(crate) smaller_than: Option<u64>,
}

/// When current objects go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Expire {
    /// Days after they were made. Delete markers that hide nothing go likewise.
    Days(u32),
    /// All at once, at a time.
    At(u64),
    /// Never, but delete markers that hide nothing go.
    LoneMarkers,
}

/// When other versions go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Noncurrent {
    /// Days after they ceased to be current.
    pub(crate) days: u32,
    /// So many of the newest of them stay.
    pub(crate) keep: u32,
}

/// The time, and how long a day is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calendar {
    pub(crate) now: UnixMs,
    pub(crate) day_ms: u64,
}

impl Calendar {
    /// Whether so many days have passed: they end at midnight, as S3's do.
    fn passed(self, since: UnixMs, days: u32) -> bool {
        let day = self.day_ms.max(1);
        let ends = since.0.saturating_add(u64::from(days).saturating_mul(day));
        ends.div_ceil(day).saturating_mul(day) <= self.now.0
    }
}

impl Filter {
    /// Whether it needs to know the tags of what it is asked about.
    pub(crate) fn asks_for_tags(&self) -> bool {
        !self.tags.is_empty()
    }

    /// Whether it is about objects of this key and size, as far as their tags allow.
    pub(crate) fn fits_but_tags(&self, key: &str, size: u64) -> bool {
        key.starts_with(&self.prefix)
            && self.larger_than.is_none_or(|least| size > least)
            && self.smaller_than.is_none_or(|most| size < most)
    }

    /// Whether it is about objects with these tags.
    pub(crate) fn fits_tags(&self, tags: &[(String, String)]) -> bool {
        self.tags.iter().all(|tag| tags.contains(tag))
    }

    /// Whether it is about delete markers of this key: they have neither size nor tags.
    pub(crate) fn fits_marker(&self, key: &str) -> bool {
        let asks =
            self.asks_for_tags() || self.larger_than.is_some() || self.smaller_than.is_some();
        !asks && key.starts_with(&self.prefix)
    }
}

impl Rule {
    /// Whether a current object of that time goes.
    pub(crate) fn expires(&self, modified: UnixMs, calendar: Calendar) -> bool {
        match self.expire {
            Some(Expire::Days(days)) => calendar.passed(modified, days),
            Some(Expire::At(at)) => at <= calendar.now.0,
            Some(Expire::LoneMarkers) | None => false,
        }
    }

    /// Whether a delete marker of that time, which hides nothing, goes.
    pub(crate) fn expires_lone_marker(&self, modified: UnixMs, calendar: Calendar) -> bool {
        match self.expire {
            Some(Expire::Days(days)) => calendar.passed(modified, days),
            Some(Expire::LoneMarkers) => true,
            Some(Expire::At(_)) | None => false,
        }
    }

    /// Whether a version goes that ceased to be current then, with `newer` ones between it and
    /// the current one.
    pub(crate) fn expires_noncurrent(&self, since: UnixMs, newer: u32, calendar: Calendar) -> bool {
        self.noncurrent.is_some_and(|rule| newer >= rule.keep && calendar.passed(since, rule.days))
    }

    /// Whether an upload is aborted that was begun then.
    pub(crate) fn aborts(&self, initiated: UnixMs, calendar: Calendar) -> bool {
        self.abort_days.is_some_and(|days| calendar.passed(initiated, days))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 1000;

    fn at(now: u64) -> Calendar {
        Calendar { now: UnixMs(now), day_ms: DAY }
    }

    #[test]
    fn days_end_at_midnight() {
        let rule = Rule { expire: Some(Expire::Days(2)), ..Rule::default() };
        assert!(!rule.expires(UnixMs(100), at(2_999)));
        assert!(rule.expires(UnixMs(100), at(3_000)));
        assert!(rule.expires(UnixMs(1_000), at(3_000)));
        let rule = Rule { expire: Some(Expire::At(5)), ..Rule::default() };
        assert!(!rule.expires(UnixMs(1), at(4)) && rule.expires(UnixMs(1), at(5)));
    }

    #[test]
    fn filters_ask_for_all_that_they_name() {
        let tag = |value: &str| ("k".to_owned(), value.to_owned());
        let filter = Filter {
            prefix: "a/".into(),
            tags: vec![tag("v")],
            larger_than: Some(10),
            smaller_than: Some(20),
        };
        for (key, size, fits) in
            [("a/b", 11, true), ("a/b", 10, false), ("a/b", 20, false), ("b/a", 11, false)]
        {
            assert_eq!(filter.fits_but_tags(key, size), fits, "{key} {size}");
        }
        assert!(filter.fits_tags(&[tag("x"), tag("v")]) && !filter.fits_tags(&[tag("x")]));
        assert!(!filter.fits_marker("a/b"));
        assert!(Filter { prefix: "a/".into(), ..Filter::default() }.fits_marker("a/b"));
    }

    #[test]
    fn some_versions_stay_however_old() {
        let noncurrent = Some(Noncurrent { days: 1, keep: 2 });
        let rule = Rule { noncurrent, ..Rule::default() };
        for (newer, now, goes) in [(1, 9_000, false), (2, 9_000, true), (2, 1_999, false)] {
            assert_eq!(rule.expires_noncurrent(UnixMs(1_000), newer, at(now)), goes);
        }
    }

    #[test]
    fn markers_that_hide_nothing_go_by_two_rules() {
        let of = |expire| Rule { expire: Some(expire), ..Rule::default() };
        assert!(of(Expire::LoneMarkers).expires_lone_marker(UnixMs(5), at(5)));
        assert!(!of(Expire::Days(1)).expires_lone_marker(UnixMs(5), at(5)));
        assert!(of(Expire::Days(1)).expires_lone_marker(UnixMs(5), at(2_000)));
        assert!(!of(Expire::At(1)).expires_lone_marker(UnixMs(5), at(9)));
    }
}
