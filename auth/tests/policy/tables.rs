//! The tables of cases.

use serde::Deserialize;

use crate::naive::Outcome;
use crate::scene::{Documents, Question, Who};

/// A file of `cases/`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    group: Vec<Group>,
}

/// Questions to the same policies. A policy is a document, or its statements alone.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    rule: String,
    #[serde(default)]
    identity: Vec<String>,
    #[serde(default)]
    session: Vec<String>,
    bucket: Option<String>,
    /// Whether public buckets are restricted.
    #[serde(default)]
    restrict: bool,
    /// A line each: who | action | resource | key=value; key=value | answer.
    cases: String,
}

fn document(text: &str) -> String {
    if text.contains("\"Statement\"") {
        return text.to_owned();
    }
    format!(r#"{{"Version": "2012-10-17", "Statement": {text}}}"#)
}

impl Group {
    fn documents(&self) -> Documents {
        Documents {
            identity: self.identity.iter().map(|text| document(text)).collect(),
            session: self.session.iter().map(|text| document(text)).collect(),
            bucket: self.bucket.as_deref().map(document),
            restrict: self.restrict,
        }
    }
}

fn question(columns: &[&str]) -> Question {
    let action = match columns[1] {
        name if name.contains(':') => name.to_owned(),
        name => format!("s3:{name}"),
    };
    let pairs = columns[3].split("; ").filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap();
        (key.to_owned(), value.to_owned())
    };
    Question {
        who: Who::parse(columns[0]),
        action,
        resource: columns[2].to_owned(),
        context: pairs.map(pair).collect(),
    }
}

/// Every case is decided as its table says, by both evaluators.
#[test]
fn cases_are_decided_as_documented() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/policy/cases");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let mut count = 0;
    let mut wrong = Vec::new();
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let file: File = toml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        for group in file.group {
            let rule = &group.rule;
            let documents = group.documents();
            let parsed = documents.parse().unwrap_or_else(|e| panic!("{name}: {rule}: {e}"));
            for line in group.cases.lines().filter(|line| !line.trim().is_empty()) {
                count += 1;
                let columns: Vec<&str> = line.split('|').map(str::trim).collect();
                assert_eq!(columns.len(), 5, "{name}: {line}");
                let question = question(&columns);
                let (word, by) = columns[4].split_once(' ').unwrap_or((columns[4], ""));
                let expected = match word {
                    "allow" => Outcome::Allow,
                    "deny" => Outcome::Explicit,
                    "none" => Outcome::Implicit,
                    other => panic!("{name}: {other:?} is no answer"),
                };
                let answer = parsed.ask(&question);
                if answer.outcome != expected || !by.is_empty() && answer.by != by {
                    wrong.push(format!("{name}: {rule}: {line}: {answer:?}"));
                }
                let naive = documents.ask_naive(&question);
                if naive != expected {
                    wrong.push(format!("{name}: {rule}: {line}: naively {naive:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count >= 300, "only {count} cases");
}
