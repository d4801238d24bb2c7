//! Text with wildcards and policy variables, and its match in bounded time.
//!
//! `*` is any run of characters, `?` any one character. What lies between two `*` has a fixed
//! number of characters, so the leftmost place where it fits is as good as any other: a match
//! never goes back. Runs without `?` are found by std's linear search. A run with `?` costs at
//! most its own length for every character of the text, and keys have at most 1,024 bytes.

use super::error::Flaw;
use super::evaluate::Request;
use super::key::KeyRef;

/// A part of a pattern.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Piece {
    /// These characters.
    Text(String),
    /// `*`.
    Many,
    /// `?`.
    One,
    /// A value of the request.
    Variable(Variable),
}

/// A policy variable, such as `${aws:username, 'nobody'}`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Variable {
    key: KeyRef,
    default: Option<String>,
}

impl Piece {
    /// Text in which `*` and `?` are wildcards, and `$` is nothing special.
    pub(super) fn wildcards(text: &str) -> Vec<Self> {
        let mut pieces = Vec::new();
        push_text(&mut pieces, text, true);
        pieces
    }

    /// Text, in which wildcards and variables may stand where they are allowed.
    ///
    /// # Errors
    /// For a variable that is not closed, or that names no single-valued key.
    pub(super) fn parse(text: &str, wildcards: bool, variables: bool) -> Result<Vec<Self>, Flaw> {
        let mut pieces = Vec::new();
        let mut rest = text;
        if variables {
            while let Some((before, after)) = rest.split_once("${") {
                push_text(&mut pieces, before, wildcards);
                rest = variable(&mut pieces, after)
                    .ok_or_else(|| Flaw::Variable(format!("${{{after}")))?;
            }
        }
        push_text(&mut pieces, rest, wildcards);
        Ok(pieces)
    }

    fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            _ => "",
        }
    }

    /// Its text in lower case.
    pub(super) fn lower(&mut self) {
        if let Self::Text(text) = self {
            *text = text.to_lowercase();
        }
    }
}

/// Adds text, next to text that is there.
fn push_text(pieces: &mut Vec<Piece>, text: &str, wildcards: bool) {
    for c in text.chars() {
        match c {
            '*' if wildcards => {
                // Two in a row are one.
                if pieces.last() != Some(&Piece::Many) {
                    pieces.push(Piece::Many);
                }
            }
            '?' if wildcards => pieces.push(Piece::One),
            c => match pieces.last_mut() {
                Some(Piece::Text(text)) => text.push(c),
                _ => pieces.push(Piece::Text(c.into())),
            },
        }
    }
}

/// Reads a variable from what follows its `${`; what follows the variable.
fn variable<'t>(pieces: &mut Vec<Piece>, text: &'t str) -> Option<&'t str> {
    for special in ["*}", "?}", "$}"] {
        if let Some(rest) = text.strip_prefix(special) {
            push_text(pieces, &special[..1], false);
            return Some(rest);
        }
    }
    let name_end = text.find([',', '}'])?;
    let key = KeyRef::find(text[..name_end].trim())?;
    if key.is_list() {
        return None;
    }
    let rest = &text[name_end..];
    let (default, rest) = match rest.strip_prefix(',') {
        Some(rest) => {
            let quoted = rest.trim_start().strip_prefix('\'')?;
            let (default, rest) = quoted.split_once('\'')?;
            (Some(default.to_owned()), rest.trim_start())
        }
        None => (None, rest),
    };
    pieces.push(Piece::Variable(Variable { key, default }));
    rest.strip_prefix('}')
}

/// A pattern as it is kept: ready, where no request has a part in it.
#[derive(Debug, Clone)]
pub(super) enum Pattern {
    Fixed(Glob),
    Template(Vec<Piece>),
}

impl Pattern {
    pub(super) fn new(pieces: Vec<Piece>) -> Self {
        if pieces.iter().any(|piece| matches!(piece, Piece::Variable(_))) {
            Self::Template(pieces)
        } else {
            Self::Fixed(Glob::new(&pieces))
        }
    }

    /// Whether the text matches. A variable that the request has no value for matches nothing.
    pub(super) fn matches(&self, text: &str, request: &Request<'_>) -> bool {
        match self {
            Self::Fixed(glob) => glob.matches(text),
            Self::Template(pieces) => {
                resolve(pieces, request).is_some_and(|pieces| Glob::new(&pieces).matches(text))
            }
        }
    }

    /// The same, for text and a pattern in lower case: variables' values are brought to it.
    pub(super) fn matches_folded(&self, text: &str, request: &Request<'_>) -> bool {
        match self {
            Self::Fixed(glob) => glob.matches(text),
            Self::Template(pieces) => resolve(pieces, request).is_some_and(|mut pieces| {
                pieces.iter_mut().for_each(Piece::lower);
                Glob::new(&pieces).matches(text)
            }),
        }
    }

    /// Whether it matches one text alone, whoever asks.
    pub(super) fn is_one_text(&self) -> bool {
        matches!(self, Self::Fixed(glob) if glob.is_one_text())
    }

    /// The text that everything begins with that matches, and whether that is all of it.
    pub(super) fn beginning(&self) -> (String, bool) {
        match self {
            Self::Template(pieces) => {
                let first = pieces.first();
                (first.map(Piece::text).unwrap_or_default().to_owned(), false)
            }
            Self::Fixed(Glob::Exact(segment)) => {
                (segment.beginning(), matches!(segment, Segment::Plain(_)))
            }
            Self::Fixed(Glob::Open { head, .. }) => (head.beginning(), false),
        }
    }

    /// The keys that its variables name.
    pub(super) fn keys(&self) -> impl Iterator<Item = &KeyRef> {
        let pieces: &[Piece] = match self {
            Self::Fixed(_) => &[],
            Self::Template(pieces) => pieces,
        };
        variables_of(pieces)
    }
}

pub(super) fn variables_of(pieces: &[Piece]) -> impl Iterator<Item = &KeyRef> {
    pieces.iter().filter_map(|piece| match piece {
        Piece::Variable(variable) => Some(&variable.key),
        _ => None,
    })
}

/// The pieces with the request's values in place of variables. Wildcards within values are
/// characters like others. `None` when a variable has neither a value nor a default.
pub(super) fn resolve(pieces: &[Piece], request: &Request<'_>) -> Option<Vec<Piece>> {
    let mut resolved = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match piece {
            Piece::Text(text) => push_text(&mut resolved, text, false),
            Piece::Variable(variable) => {
                let values = request.values(&variable.key);
                let value = values.as_deref().and_then(|values| values.first());
                match (value, &variable.default) {
                    (Some(value), _) => push_text(&mut resolved, &value.text(), false),
                    (None, Some(default)) => push_text(&mut resolved, default, false),
                    (None, None) => return None,
                }
            }
            wildcard => resolved.push(wildcard.clone()),
        }
    }
    Some(resolved)
}

/// A pattern without variables.
#[derive(Debug, Clone)]
pub(super) enum Glob {
    /// No `*`.
    Exact(Segment),
    /// Text that begins and ends so, with these segments between, each after a `*`.
    Open { head: Segment, middle: Vec<Segment>, tail: Segment },
}

/// What stands between two `*`.
#[derive(Debug, Clone)]
pub(super) enum Segment {
    Plain(Box<str>),
    /// Characters, and `None` for each `?`.
    Holes(Box<[Option<char>]>),
}

impl Glob {
    /// From pieces without variables.
    pub(super) fn new(pieces: &[Piece]) -> Self {
        let mut segments = pieces.split(|piece| *piece == Piece::Many).map(Segment::new);
        let head = segments.next().unwrap_or_else(|| Segment::new(&[]));
        let mut middle: Vec<Segment> = segments.collect();
        match middle.pop() {
            None => Self::Exact(head),
            Some(tail) => {
                middle.retain(|segment| !segment.is_empty());
                Self::Open { head, middle, tail }
            }
        }
    }

    /// Whether it matches one text alone.
    pub(super) fn is_one_text(&self) -> bool {
        matches!(self, Self::Exact(Segment::Plain(_)))
    }

    /// Whether the whole text matches.
    pub(super) fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(segment) => segment.strip_from(text) == Some(""),
            Self::Open { head, middle, tail } => {
                let Some(rest) = head.strip_from(text) else { return false };
                let Some(mut rest) = tail.strip_from_end(rest) else { return false };
                for segment in middle {
                    match segment.find_in(rest) {
                        Some(after) => rest = after,
                        None => return false,
                    }
                }
                true
            }
        }
    }
}

impl Segment {
    fn new(pieces: &[Piece]) -> Self {
        match pieces {
            [] => Self::Plain("".into()),
            [Piece::Text(text)] => Self::Plain(text.as_str().into()),
            _ => {
                let mut characters = Vec::new();
                for piece in pieces {
                    match piece {
                        Piece::Text(text) => characters.extend(text.chars().map(Some)),
                        _ => characters.push(None),
                    }
                }
                Self::Holes(characters.into())
            }
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Plain(text) if text.is_empty())
    }

    /// The characters before the first `?`.
    fn beginning(&self) -> String {
        match self {
            Self::Plain(text) => text.to_string(),
            Self::Holes(characters) => characters.iter().map_while(|c| *c).collect(),
        }
    }

    /// What follows it in a text that begins with it.
    fn strip_from<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self {
            Self::Plain(plain) => text.strip_prefix(&**plain),
            Self::Holes(characters) => {
                let mut rest = text.chars();
                for wanted in characters {
                    let c = rest.next()?;
                    if wanted.is_some_and(|wanted| wanted != c) {
                        return None;
                    }
                }
                Some(rest.as_str())
            }
        }
    }

    /// What precedes it in a text that ends with it.
    fn strip_from_end<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self {
            Self::Plain(plain) => text.strip_suffix(&**plain),
            Self::Holes(characters) => {
                let mut rest = text.chars();
                for wanted in characters.iter().rev() {
                    let c = rest.next_back()?;
                    if wanted.is_some_and(|wanted| wanted != c) {
                        return None;
                    }
                }
                Some(rest.as_str())
            }
        }
    }

    /// What follows its first occurrence.
    fn find_in<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self {
            Self::Plain(plain) => text.find(&**plain).map(|at| &text[at + plain.len()..]),
            Self::Holes(_) => text.char_indices().find_map(|(at, _)| self.strip_from(&text[at..])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Glob::new(&Piece::wildcards(pattern)).matches(text)
    }

    #[test]
    fn wildcards_match_as_documented() {
        for (pattern, text) in [
            ("", ""),
            ("*", ""),
            ("*", "a/b"),
            ("**", "x"),
            ("a*", "a"),
            ("a*c", "abcbc"),
            ("a*b*c", "aXbYc"),
            ("a?c", "abc"),
            ("?", "ä"),
            ("*?", "ab"),
            ("?*?", "ab"),
            ("*a?c*", "xxabcabc"),
            ("*aa?", "aaab"),
            ("a*a", "aa"),
            ("logs/*/2024-??-*", "logs/app/x/2024-01-02"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("a", ""),
            ("a", "A"),
            ("a*a", "a"),
            ("a?c", "ac"),
            ("?", "ab"),
            ("?*?", "a"),
            ("*ab", "abc"),
            ("ab*ba", "aba"),
            ("*a*b*", "ba"),
            ("a*b?", "ab"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    /// Goal: no pattern makes a match take long.
    #[test]
    fn hostile_patterns_end_soon() {
        let text = "a".repeat(1024);
        let begin = std::time::Instant::now();
        assert!(!matches(&format!("{}b", "*a".repeat(500)), &text));
        assert!(!matches(&format!("{}b*", "*a?a".repeat(200)), &text));
        assert!(!matches(&format!("*{}b?*", "a".repeat(500)), &text));
        assert!(begin.elapsed().as_millis() < 200, "took {:?}", begin.elapsed());
    }

    #[test]
    fn variables_are_read() {
        let parse = |text| Piece::parse(text, true, true);
        assert_eq!(parse("${*}${?}${$}"), Ok(vec![Piece::Text("*?$".into())]));
        assert_eq!(parse("$x{}"), Ok(vec![Piece::Text("$x{}".into())]));
        let pieces = parse("a${aws:username, 'no one'}*").expect("parses");
        assert!(matches!(&pieces[1], Piece::Variable(v) if v.default.as_deref() == Some("no one")));
        for bad in ["${", "${aws:username", "${aws:nothing}", "${aws:TagKeys}", "${aws:username,x}"]
        {
            assert!(matches!(parse(bad), Err(Flaw::Variable(_))), "{bad}");
        }
        assert_eq!(
            Piece::parse("${aws:username}", true, false),
            Ok(vec![Piece::Text("${aws:username}".into())])
        );
    }
}
