//! Conditions: an operator, a key, and the values that it is compared with, of the operator's
//! type since the policy was read.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ipnet::IpNet;
use jiff::Timestamp;

use super::error::Flaw;
use super::evaluate::Request;
use super::key::{Key, KeyRef};
use super::operator::{Comparison, Operator, Order, Quantifier};
use super::pattern::{self, Glob, Pattern, Piece};
use super::value::{self, Value};

/// One key's condition.
#[derive(Debug, Clone)]
pub(super) struct Condition {
    operator: Operator,
    key: KeyRef,
    test: Test,
}

/// The values of a condition, of which one must fit.
#[derive(Debug, Clone)]
enum Test {
    Text(Vec<Pattern>),
    /// Upper and lower case are one: the values are in lower case.
    Folded(Vec<Pattern>),
    Number(Order, Vec<f64>),
    Date(Order, Vec<Timestamp>),
    Bool(Vec<bool>),
    Binary(Vec<Vec<u8>>),
    Ip(Vec<IpNet>),
    Arn(Vec<ArnPattern>),
    /// Whether the key may be absent.
    Absent(Vec<bool>),
}

impl Condition {
    /// From an operator, a key and values as they stand in a policy.
    pub(super) fn new(
        operator: Operator,
        key: KeyRef,
        values: &[String],
        variables: bool,
    ) -> Result<Self, Flaw> {
        let test = Test::new(operator.comparison, values, variables)?;
        Ok(Self { operator, key, test })
    }

    /// Whether it holds for a request.
    pub(super) fn holds(&self, request: &Request<'_>) -> bool {
        let Operator { quantifier, negated, if_exists, .. } = self.operator;
        let values = request.values(&self.key);
        if let Test::Absent(wanted) = &self.test {
            return wanted.contains(&values.is_none());
        }
        let Some(values) = values else {
            return match quantifier {
                Quantifier::None => if_exists || negated,
                // Of no values, none fits, whatever `IfExists` says of a single one.
                Quantifier::Any => false,
                Quantifier::All => true,
            };
        };
        let mut fits = values.iter().map(|value| self.test.fits(value, request) != negated);
        match quantifier {
            Quantifier::Any => fits.any(|fits| fits),
            Quantifier::All => fits.all(|fits| fits),
            // For keys with one value these are the same. With several, a positive operator
            // wants one that matches, a negated one none.
            Quantifier::None if negated => fits.all(|fits| fits),
            Quantifier::None => fits.any(|fits| fits),
        }
    }

    /// The key, and those that variables in its values name.
    pub(super) fn keys(&self) -> impl Iterator<Item = &KeyRef> {
        let (patterns, arns): (&[Pattern], &[ArnPattern]) = match &self.test {
            Test::Text(patterns) | Test::Folded(patterns) => (patterns, &[]),
            Test::Arn(arns) => (&[], arns),
            _ => (&[], &[]),
        };
        let of_patterns = patterns.iter().flat_map(Pattern::keys);
        let of_arns = arns.iter().flat_map(ArnPattern::keys);
        std::iter::once(&self.key).chain(of_patterns).chain(of_arns)
    }

    /// Whether it holds only for requests from somewhere, or of somebody, that the policy
    /// spells out: then an `Allow` for everybody is not public.
    ///
    /// Source: "The meaning of public" in S3's guide.
    pub(super) fn fixes_the_caller(&self) -> bool {
        let Operator { quantifier, negated, if_exists, .. } = self.operator;
        if negated || if_exists || quantifier == Quantifier::All {
            return false;
        }
        let KeyRef::Known(key) = self.key else { return false };
        match (key, &self.test) {
            (Key::SourceIp, Test::Ip(nets)) => nets.iter().all(is_narrow),
            (
                Key::DataAccessPointAccount
                | Key::DataAccessPointArn
                | Key::PrincipalAccount
                | Key::PrincipalArn
                | Key::PrincipalOrgId
                | Key::SourceAccount
                | Key::SourceArn
                | Key::SourceOrgId
                | Key::SourceOwner
                | Key::SourceVpc
                | Key::SourceVpce
                | Key::UserId
                | Key::XAmzSseKmsKeyId,
                test,
            ) => match test {
                Test::Text(patterns) | Test::Folded(patterns) => {
                    patterns.iter().all(Pattern::is_one_text)
                }
                Test::Arn(arns) => arns.iter().all(ArnPattern::is_one),
                _ => false,
            },
            _ => false,
        }
    }
}

impl Test {
    fn new(comparison: Comparison, values: &[String], variables: bool) -> Result<Self, Flaw> {
        fn all<T>(
            comparison: Comparison,
            values: &[String],
            read: impl Fn(&str) -> Option<T>,
        ) -> Result<Vec<T>, Flaw> {
            let refused = |value: &String| Flaw::Value {
                value: value.clone(),
                expected: comparison.expected(),
            };
            values.iter().map(|value| read(value).ok_or_else(|| refused(value))).collect()
        }
        let patterns = |like: bool, fold: bool| {
            let pattern = |value: &String| {
                let mut pieces = Piece::parse(value, like, variables)?;
                if fold {
                    pieces.iter_mut().for_each(Piece::lower);
                }
                Ok(Pattern::new(pieces))
            };
            values.iter().map(pattern).collect::<Result<Vec<_>, Flaw>>()
        };
        Ok(match comparison {
            Comparison::Text { like, fold: false } => Self::Text(patterns(like, false)?),
            Comparison::Text { like, fold: true } => Self::Folded(patterns(like, true)?),
            Comparison::Number(order) => {
                Self::Number(order, all(comparison, values, value::parse_number)?)
            }
            Comparison::Date(order) => {
                Self::Date(order, all(comparison, values, value::parse_time)?)
            }
            Comparison::Bool => Self::Bool(all(comparison, values, value::parse_bool)?),
            Comparison::Null => Self::Absent(all(comparison, values, value::parse_bool)?),
            Comparison::Binary => {
                Self::Binary(all(comparison, values, |text| BASE64.decode(text).ok())?)
            }
            Comparison::Ip => Self::Ip(all(comparison, values, parse_net)?),
            Comparison::Arn => {
                let arns = values.iter().map(|value| ArnPattern::parse(value, variables));
                Self::Arn(arns.collect::<Result<_, _>>()?)
            }
        })
    }

    /// Whether one of the policy's values fits the request's. A value of another type, such as
    /// text where a number is compared, fits nothing.
    fn fits(&self, value: &Value<'_>, request: &Request<'_>) -> bool {
        match self {
            Self::Text(patterns) => {
                let text = value.text();
                patterns.iter().any(|pattern| pattern.matches(&text, request))
            }
            Self::Folded(patterns) => {
                let text = value.text().to_lowercase();
                patterns.iter().any(|pattern| pattern.matches_folded(&text, request))
            }
            Self::Number(order, numbers) => value.number().is_some_and(|value| {
                let holds = |other: &f64| {
                    value.partial_cmp(other).is_some_and(|ordering| order.holds(ordering))
                };
                numbers.iter().any(holds)
            }),
            Self::Date(order, times) => value
                .time()
                .is_some_and(|value| times.iter().any(|other| order.holds(value.cmp(other)))),
            Self::Bool(bools) => value.bool().is_some_and(|value| bools.contains(&value)),
            Self::Binary(blobs) => {
                BASE64.decode(&*value.text()).is_ok_and(|value| blobs.contains(&value))
            }
            Self::Ip(nets) => {
                value.ip().is_some_and(|value| nets.iter().any(|net| net.contains(&value)))
            }
            Self::Arn(arns) => {
                let text = value.text();
                arns.iter().any(|arn| arn.matches(&text, request))
            }
            Self::Absent(_) => false,
        }
    }
}

/// An address, or a range of them in CIDR notation.
fn parse_net(text: &str) -> Option<IpNet> {
    let net = text.parse().ok().or_else(|| Some(IpNet::from(text.parse::<IpAddr>().ok()?)));
    net.map(|net| match net {
        // `::ffff:10.0.0.0/104` is `10.0.0.0/8`: requests' addresses are told in that form.
        IpNet::V6(v6) if v6.prefix_len() >= 96 => {
            let mapped = v6.addr().to_ipv4_mapped();
            let narrow = mapped.and_then(|v4| IpNet::new(v4.into(), v6.prefix_len() - 96).ok());
            narrow.unwrap_or(net)
        }
        net => net,
    })
}

/// Whether a range is small enough for its addresses to be somebody's: at most a /8 (IPv6: a
/// /32), or private anyway.
fn is_narrow(net: &IpNet) -> bool {
    match net {
        IpNet::V4(v4) => {
            v4.prefix_len() >= 8
                || (v4.prefix_len() > 0 && v4.network().is_private() && v4.broadcast().is_private())
        }
        IpNet::V6(v6) => v6.prefix_len() >= 32,
    }
}

/// The pattern of an ARN, whose six parts match one by one, so that no wildcard reaches from
/// one into the next.
#[derive(Debug, Clone)]
enum ArnPattern {
    Anything,
    Fixed(Box<[Glob; 6]>),
    Template(Vec<Piece>),
}

impl ArnPattern {
    fn parse(text: &str, variables: bool) -> Result<Self, Flaw> {
        if text == "*" {
            return Ok(Self::Anything);
        }
        let pieces = Piece::parse(text, true, variables)?;
        if pattern::variables_of(&pieces).next().is_some() {
            return Ok(Self::Template(pieces));
        }
        let expected = Comparison::Arn.expected();
        let globs = parts(&pieces).filter(|_| text.starts_with("arn:"));
        let globs = globs.ok_or_else(|| Flaw::Value { value: text.to_owned(), expected })?;
        Ok(Self::Fixed(Box::new(globs)))
    }

    fn matches(&self, text: &str, request: &Request<'_>) -> bool {
        let matches = |globs: &[Glob; 6]| {
            let mut values = text.splitn(6, ':');
            globs.iter().all(|glob| values.next().is_some_and(|value| glob.matches(value)))
        };
        match self {
            Self::Anything => true,
            Self::Fixed(globs) => matches(globs),
            Self::Template(pieces) => pattern::resolve(pieces, request)
                .and_then(|pieces| parts(&pieces))
                .is_some_and(|globs| matches(&globs)),
        }
    }

    fn is_one(&self) -> bool {
        match self {
            Self::Fixed(globs) => globs.iter().all(Glob::is_one_text),
            Self::Anything | Self::Template(_) => false,
        }
    }

    fn keys(&self) -> impl Iterator<Item = &KeyRef> {
        let pieces: &[Piece] = match self {
            Self::Template(pieces) => pieces,
            _ => &[],
        };
        pattern::variables_of(pieces)
    }
}

/// An ARN's six parts: what the first five colons separate.
fn parts(pieces: &[Piece]) -> Option<[Glob; 6]> {
    let mut parts: Vec<Vec<Piece>> = vec![Vec::new()];
    for piece in pieces {
        let Piece::Text(text) = piece else {
            parts.last_mut()?.push(piece.clone());
            continue;
        };
        let mut rest = text.as_str();
        while parts.len() < 6 {
            let Some((before, after)) = rest.split_once(':') else { break };
            if !before.is_empty() {
                parts.last_mut()?.push(Piece::Text(before.to_owned()));
            }
            parts.push(Vec::new());
            rest = after;
        }
        if !rest.is_empty() {
            parts.last_mut()?.push(Piece::Text(rest.to_owned()));
        }
    }
    let globs: Vec<Glob> = parts.iter().map(|part| Glob::new(part)).collect();
    globs.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        for good in ["10.0.0.0/8", "10.1.2.3", "2001:db8::/32", "::1", "192.0.2.5/24"] {
            assert!(parse_net(good).is_some(), "{good}");
        }
        for bad in ["", "10.0.0", "10.0.0.0/33", "10.*", "example.com"] {
            assert!(parse_net(bad).is_none(), "{bad}");
        }
        let mapped = parse_net("::ffff:10.0.0.0/104").expect("a range");
        assert_eq!(mapped, "10.0.0.0/8".parse().expect("a range"));
    }

    #[test]
    fn wide_ranges_are_anybodys() {
        let narrow = |text: &str| is_narrow(&parse_net(text).expect("a range"));
        for text in ["203.0.113.0/24", "9.0.0.0/8", "2001:db8::/32"] {
            assert!(narrow(text), "{text}");
        }
        for text in ["0.0.0.0/0", "128.0.0.0/1", "10.0.0.0/7", "::/0", "2000::/3"] {
            assert!(!narrow(text), "{text}");
        }
    }
}
