//! The condition operators.

use std::cmp::Ordering;

/// How several values of one key count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quantifier {
    /// No prefix: for keys with one value.
    None,
    /// `ForAnyValue:`
    Any,
    /// `ForAllValues:`
    All,
}

/// What is compared, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// Texts; `fold` when upper and lower case are one, `like` when wildcards stand for others.
    Text {
        fold: bool,
        like: bool,
    },
    Number(Order),
    Date(Order),
    Bool,
    Binary,
    Ip,
    Arn,
    /// Whether the key is absent.
    Null,
}

/// Which order of the request's value and the policy's is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Order {
    pub(super) fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Equal => ordering.is_eq(),
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::Greater => ordering.is_gt(),
            Self::GreaterOrEqual => ordering.is_ge(),
        }
    }
}

/// A condition operator with its prefix and suffix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operator {
    pub(super) quantifier: Quantifier,
    pub(super) comparison: Comparison,
    /// The comparison must not hold.
    pub(super) negated: bool,
    /// An absent key is good enough.
    pub(super) if_exists: bool,
}

/// An operator's row: name, comparison, negated, what it compares.
type Row = (&'static str, Comparison, bool, &'static str);

const EXACT: Comparison = Comparison::Text { fold: false, like: false };
const FOLDED: Comparison = Comparison::Text { fold: true, like: false };
const LIKE: Comparison = Comparison::Text { fold: false, like: true };
const TEXT: &str = "text; variables";
const LIKE_TEXT: &str = "text; variables, `*` and `?`";
const NUMBER: &str = "decimal numbers";
const DATE: &str = "ISO 8601 dates and times, or seconds since 1970";
const ARN: &str = "ARNs, part by part; variables, `*` and `?`";
const IP: &str = "addresses and CIDR ranges, IPv4 and IPv6";

// Source: the reference of condition operators. ArnEquals and ArnLike are the same.
const ROWS: [Row; 27] = [
    ("StringEquals", EXACT, false, TEXT),
    ("StringNotEquals", EXACT, true, TEXT),
    ("StringEqualsIgnoreCase", FOLDED, false, TEXT),
    ("StringNotEqualsIgnoreCase", FOLDED, true, TEXT),
    ("StringLike", LIKE, false, LIKE_TEXT),
    ("StringNotLike", LIKE, true, LIKE_TEXT),
    ("NumericEquals", Comparison::Number(Order::Equal), false, NUMBER),
    ("NumericNotEquals", Comparison::Number(Order::Equal), true, NUMBER),
    ("NumericLessThan", Comparison::Number(Order::Less), false, NUMBER),
    ("NumericLessThanEquals", Comparison::Number(Order::LessOrEqual), false, NUMBER),
    ("NumericGreaterThan", Comparison::Number(Order::Greater), false, NUMBER),
    ("NumericGreaterThanEquals", Comparison::Number(Order::GreaterOrEqual), false, NUMBER),
    ("DateEquals", Comparison::Date(Order::Equal), false, DATE),
    ("DateNotEquals", Comparison::Date(Order::Equal), true, DATE),
    ("DateLessThan", Comparison::Date(Order::Less), false, DATE),
    ("DateLessThanEquals", Comparison::Date(Order::LessOrEqual), false, DATE),
    ("DateGreaterThan", Comparison::Date(Order::Greater), false, DATE),
    ("DateGreaterThanEquals", Comparison::Date(Order::GreaterOrEqual), false, DATE),
    ("Bool", Comparison::Bool, false, "`true` or `false`"),
    ("BinaryEquals", Comparison::Binary, false, "base64"),
    ("IpAddress", Comparison::Ip, false, IP),
    ("NotIpAddress", Comparison::Ip, true, IP),
    ("ArnEquals", Comparison::Arn, false, ARN),
    ("ArnNotEquals", Comparison::Arn, true, ARN),
    ("ArnLike", Comparison::Arn, false, ARN),
    ("ArnNotLike", Comparison::Arn, true, ARN),
    ("Null", Comparison::Null, false, "`true` for an absent key, `false` for a present one"),
];

impl Operator {
    /// The operator with this name: `ForAnyValue:` or `ForAllValues:` before it, and
    /// `IfExists` after it, go with all but `Null`.
    pub(super) fn find(name: &str) -> Option<Self> {
        let (quantifier, base) = match name.split_once(':') {
            None => (Quantifier::None, name),
            Some(("ForAnyValue", base)) => (Quantifier::Any, base),
            Some(("ForAllValues", base)) => (Quantifier::All, base),
            Some(_) => return None,
        };
        let (base, if_exists) = match base.strip_suffix("IfExists") {
            Some(base) => (base, true),
            None => (base, false),
        };
        let (_, comparison, negated, _) = *ROWS.iter().find(|row| row.0 == base)?;
        let plain = quantifier == Quantifier::None && !if_exists;
        let found = Self { quantifier, comparison, negated, if_exists };
        (comparison != Comparison::Null || plain).then_some(found)
    }
}

/// All operators' names, with what they compare.
pub(super) fn operators() -> impl Iterator<Item = (&'static str, &'static str)> {
    ROWS.iter().map(|(name, _, _, compares)| (*name, *compares))
}

impl Comparison {
    /// What a value in a policy must be.
    pub(super) const fn expected(self) -> &'static str {
        match self {
            Self::Text { .. } => "text",
            Self::Number(_) => "a decimal number",
            Self::Date(_) => "a date, a time or seconds since 1970",
            Self::Bool | Self::Null => "true or false",
            Self::Binary => "base64",
            Self::Ip => "an address or a CIDR range",
            Self::Arn => "* or an ARN",
        }
    }
}
