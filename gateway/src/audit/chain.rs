//! Lines that hold each other: each has the hash of the one before it.
//!
//! ```text
//! {"number":N,…what it tells…,"previous":"64 hex digits","hash":"64 hex digits"}
//! ```
//!
//! The hash is SHA-256 over the line's bytes up to `,"hash":`; the first line's `previous` is 64
//! zeros. So lines are verified as they stand, whatever wrote them. A file that goes on from another
//! one begins with the number and the hash that follow there.

use std::io::{self, BufRead};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Longest line that is read.
const LINE_BYTES_MAX: usize = 1 << 20;
const HASH: &str = ",\"hash\":\"";
const END: &str = "\"}";

/// Where a log ends: what the next line goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    number: u64,
    last: String,
}

impl Default for Chain {
    fn default() -> Self {
        Self { number: 0, last: "0".repeat(64) }
    }
}

/// What was found to be whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Whole lines.
    pub lines: u64,
    /// Bytes of a last line that was not finished.
    pub unfinished: u64,
    /// What its first line goes on from.
    pub first: Chain,
    /// Where the log ends.
    pub chain: Chain,
}

/// Where a log is not what was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// The file cannot be read.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
    /// A line that no log has.
    #[error("line {0} is none of an audit log's")]
    Malformed(u64),
    /// A line that was changed.
    #[error("line {0} was changed")]
    Changed(u64),
    /// A line that does not follow the one before it.
    #[error("line {0} does not follow the one before it: lines were left out, put in or moved")]
    Broken(u64),
}

#[derive(Serialize)]
struct Line<'a, T> {
    number: u64,
    #[serde(flatten)]
    told: &'a T,
    previous: &'a str,
}

#[derive(Deserialize)]
struct Links {
    number: u64,
    previous: String,
    hash: String,
}

impl Chain {
    /// The next line, with its end.
    pub(super) fn line(&mut self, told: &impl Serialize) -> Vec<u8> {
        let line = Line { number: self.number, told, previous: &self.last };
        let mut text = serde_json::to_string(&line).expect("events have a JSON form");
        text.pop();
        let hash = hex::encode(Sha256::digest(&text));
        text.extend([HASH, &hash, END, "\n"]);
        self.number += 1;
        self.last = hash;
        text.into_bytes()
    }

    /// Whether this is before all lines.
    pub fn is_beginning(&self) -> bool {
        *self == Self::default()
    }

    /// The number of the next line.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The hash of the last line: noted elsewhere, it shows whether the end was cut off.
    pub fn last(&self) -> &str {
        &self.last
    }
}

/// Verifies a file of a log. Whether it goes on from the right one, [`Verified::first`] tells.
///
/// # Errors
/// The first [`Flaw`].
pub fn verify(mut log: impl BufRead) -> Result<Verified, Flaw> {
    let mut verified = Verified::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = io::Read::take(&mut log, LINE_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(verified);
        }
        let number = verified.lines + 1;
        if line.pop() != Some(b'\n') {
            if read == LINE_BYTES_MAX {
                return Err(Flaw::Malformed(number));
            }
            verified.unfinished = read as u64;
            return Ok(verified);
        }
        let malformed = || Flaw::Malformed(number);
        let text = std::str::from_utf8(&line).map_err(|_| malformed())?;
        let links: Links = serde_json::from_str(text).map_err(|_| malformed())?;
        let (said, _) = text.rsplit_once(HASH).ok_or_else(malformed)?;
        let whole = text.len() == said.len() + HASH.len() + 64 + END.len();
        if !whole || hex::encode(Sha256::digest(said)) != links.hash {
            return Err(Flaw::Changed(number));
        }
        if verified.lines == 0 {
            verified.first = Chain { number: links.number, last: links.previous.clone() };
            verified.chain = verified.first.clone();
        }
        let chain = &mut verified.chain;
        if links.number != chain.number || links.previous != chain.last {
            return Err(Flaw::Broken(number));
        }
        chain.number += 1;
        chain.last = links.hash;
        verified.lines += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn log(lines: usize) -> Vec<Vec<u8>> {
        let mut chain = Chain::default();
        (0..lines).map(|n| chain.line(&json!({ "event": "x", "value": n }))).collect()
    }

    #[test]
    fn lines_cannot_be_left_out_put_in_or_moved() {
        let lines = log(4);
        assert_eq!(verify(&*lines.concat()).expect("whole").lines, 4);
        let without = |at: usize| {
            let mut rest = lines.clone();
            rest.remove(at);
            verify(&*rest.concat()).map(|found| (found.lines, found.first.number()))
        };
        assert!(matches!(without(0), Ok((3, 1))), "it goes on from a line that is elsewhere");
        assert!(matches!(without(2), Err(Flaw::Broken(3))));
        assert!(matches!(without(3), Ok((3, 0))), "the end alone can be cut off");
        let mut moved = lines.clone();
        moved.swap(1, 2);
        assert!(matches!(verify(&*moved.concat()), Err(Flaw::Broken(2))));
        let twice = [&lines[0], &lines[1], &lines[1]].map(|line| &line[..]).concat();
        assert!(matches!(verify(&*twice), Err(Flaw::Broken(3))));
    }

    proptest! {
        /// Goal: no byte of a whole log can be changed unseen.
        #[test]
        fn every_changed_byte_shows(at: prop::sample::Index, flip in 1_u8..) {
            let mut whole = log(3).concat();
            let good = verify(&*whole).expect("whole");
            let at = at.index(whole.len());
            whole[at] ^= flip;
            match verify(&*whole) {
                Err(_) => {}
                // Without its line break the last line is not finished.
                Ok(found) => prop_assert!(found != good && at == whole.len() - 1),
            }
        }
    }
}
