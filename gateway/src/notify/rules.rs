//! Who is told of what: the rules of a bucket. Pure: [`crate::s3`] takes them from clients.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The rules of a bucket.
pub(crate) type Rules = Vec<Rule>;

/// One rule, as it was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    pub(crate) id: String,
    pub(crate) arn: Arn,
    /// Events, with `s3:`.
    pub(crate) events: Vec<String>,
    pub(crate) prefix: Option<String>,
    pub(crate) suffix: Option<String>,
}

/// How clients name a target: `arn:keyway:sqs:REGION:NAME:KIND`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arn {
    /// Empty, or the server's.
    pub(crate) region: String,
    /// The target's name.
    pub(crate) target: String,
    /// The target's kind.
    pub(crate) kind: String,
}

/// A text that names no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidArn;

impl FromStr for Arn {
    type Err = InvalidArn;

    fn from_str(text: &str) -> Result<Self, InvalidArn> {
        let rest = text.strip_prefix("arn:keyway:sqs:").ok_or(InvalidArn)?;
        let parts: Vec<&str> = rest.split(':').collect();
        let [region, target, kind] = parts[..] else { return Err(InvalidArn) };
        if target.is_empty() || kind.is_empty() {
            return Err(InvalidArn);
        }
        Ok(Self { region: region.into(), target: target.into(), kind: kind.into() })
    }
}

impl fmt::Display for Arn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { region, target, kind } = self;
        write!(f, "arn:keyway:sqs:{region}:{target}:{kind}")
    }
}

/// All events that there are, without `s3:`.
pub(crate) const EVENTS: [&str; 10] = [
    "ObjectCreated:Put",
    "ObjectCreated:Post",
    "ObjectCreated:Copy",
    "ObjectCreated:CompleteMultipartUpload",
    "ObjectRemoved:Delete",
    "ObjectRemoved:DeleteMarkerCreated",
    "LifecycleExpiration:Delete",
    "LifecycleExpiration:DeleteMarkerCreated",
    "ObjectTagging:Put",
    "ObjectTagging:Delete",
];

/// Whether something asked for, with `s3:`, is an event or a group of them.
pub(crate) fn is_known(asked: &str) -> bool {
    EVENTS.iter().any(|event| covers(asked, event))
}

/// Whether who asks for this, with `s3:`, is told of the event.
fn covers(asked: &str, event: &str) -> bool {
    let Some(asked) = asked.strip_prefix("s3:") else { return false };
    match asked.strip_suffix(":*") {
        Some(group) => event.split_once(':').is_some_and(|(of, _)| of == group),
        None => asked == event,
    }
}

impl Rule {
    /// Whether it asks for this event of this key.
    pub(crate) fn fits(&self, event: &str, key: &str) -> bool {
        self.prefix.as_deref().is_none_or(|prefix| key.starts_with(prefix))
            && self.suffix.as_deref().is_none_or(|suffix| key.ends_with(suffix))
            && self.events.iter().any(|asked| covers(asked, event))
    }

    /// Whether an event of some key could fit both.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let both = |event: &str| {
            let asks = |rule: &Self| rule.events.iter().any(|asked| covers(asked, event));
            asks(self) && asks(other)
        };
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (prefix, other_prefix) = (text(&self.prefix), text(&other.prefix));
        let (suffix, other_suffix) = (text(&self.suffix), text(&other.suffix));
        (prefix.starts_with(&other_prefix) || other_prefix.starts_with(&prefix))
            && (suffix.ends_with(&other_suffix) || other_suffix.ends_with(&suffix))
            && EVENTS.iter().any(|event| both(event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(events: &[&str], prefix: &str, suffix: &str) -> Rule {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Rule {
            id: "r".into(),
            arn: "arn:keyway:sqs::t:webhook".parse().unwrap(),
            events: events.iter().map(|event| format!("s3:{event}")).collect(),
            prefix: some(prefix),
            suffix: some(suffix),
        }
    }

    #[test]
    fn names_of_targets() {
        for good in ["arn:keyway:sqs::hook:webhook", "arn:keyway:sqs:eu-1:hook:nats"] {
            assert_eq!(good.parse::<Arn>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "hook",
            "arn:aws:sqs::hook:webhook",
            "arn:keyway:sns::hook:webhook",
            "arn:keyway:sqs::hook",
            "arn:keyway:sqs:::webhook",
            "arn:keyway:sqs::hook:",
            "arn:keyway:sqs::hook:webhook:more",
        ] {
            assert_eq!(bad.parse::<Arn>(), Err(InvalidArn), "{bad}");
        }
    }

    #[test]
    fn rules_fit_their_events_and_keys() {
        let all = rule(&["ObjectCreated:*"], "", "");
        assert!(all.fits("ObjectCreated:Put", "a") && all.fits("ObjectCreated:Copy", "b"));
        assert!(!all.fits("ObjectRemoved:Delete", "a"));
        let some = rule(&["ObjectRemoved:Delete", "ObjectTagging:*"], "logs/", ".gz");
        assert!(some.fits("ObjectRemoved:Delete", "logs/a.gz"));
        assert!(some.fits("ObjectTagging:Put", "logs/.gz"));
        assert!(!some.fits("ObjectRemoved:DeleteMarkerCreated", "logs/a.gz"));
        assert!(!some.fits("ObjectRemoved:Delete", "log/a.gz"));
        assert!(!some.fits("ObjectRemoved:Delete", "logs/a.gzip"));
        for event in EVENTS {
            assert!(is_known(&format!("s3:{event}")) && !is_known(event), "{event}");
        }
        for odd in ["s3:*", "s3:ObjectCreated", "s3:ObjectCreated:", "s3:TestEvent", "s3:Object:*"]
        {
            assert!(!is_known(odd), "{odd}");
        }
    }

    #[test]
    fn rules_overlap_where_one_event_could_fit_both() {
        let of = |prefix, suffix| rule(&["ObjectCreated:*"], prefix, suffix);
        for (left, right, overlap) in [
            (of("", ""), of("", ""), true),
            (of("a", ""), of("", ""), true),
            (of("a", ""), of("ab", ""), true),
            (of("a", ""), of("b", ""), false),
            (of("a", ".x"), of("a", ".y"), false),
            (of("a", ".x"), of("ab", "y.x"), true),
            (of("", ".x"), of("a", ""), true),
            (of("a", ""), rule(&["ObjectCreated:Put"], "a", ""), true),
            (of("a", ""), rule(&["ObjectRemoved:*"], "a", ""), false),
        ] {
            assert_eq!(left.overlaps(&right), overlap, "{left:?} {right:?}");
            assert_eq!(right.overlaps(&left), overlap, "{right:?} {left:?}");
        }
    }
}
