//! The rules once more, straight from the documents' JSON: slow, and sharing nothing with the
//! evaluator that it judges.

use std::collections::BTreeMap;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::Value as Json;

use crate::scene::{Documents, NOW, OWNER, Question, Who};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Allow,
    Explicit,
    Implicit,
}

type Context = BTreeMap<String, Vec<String>>;

/// A character of a pattern.
#[derive(Clone, Copy)]
enum Mark {
    Is(char),
    Many,
    One,
}

pub(crate) fn evaluate(documents: &Documents, question: &Question) -> Outcome {
    let context = context(question);
    let parse = |text: &String| serde_json::from_str::<Json>(text).unwrap();
    let identity: Vec<Json> = documents.identity.iter().map(parse).collect();
    let session: Vec<Json> = documents.session.iter().map(parse).collect();
    let on_bucket = question.resource != "*";
    let bucket = documents.bucket.as_ref().filter(|_| on_bucket).map(parse);
    let tenant = match &question.who {
        Who::Anonymous => None,
        Who::Root(tenant) | Who::User(tenant, _) | Who::Session(tenant, _, _) => Some(*tenant),
    };
    let own = tenant.is_some() && (!on_bucket || tenant == Some(OWNER));
    let root = matches!(question.who, Who::Root(_));

    let says = |policy: &Json, effect: &str| {
        statements(policy).any(|s| s["Effect"] == effect && matches(policy, s, question, &context))
    };
    if identity.iter().chain(&session).any(|policy| says(policy, "Deny")) {
        return Outcome::Explicit;
    }
    let policy_action = ["s3:getbucketpolicy", "s3:putbucketpolicy", "s3:deletebucketpolicy"]
        .contains(&question.action.to_lowercase().as_str());
    if let Some(policy) = &bucket {
        let denied = statements(policy).any(|s| {
            s["Effect"] == "Deny"
                && denies(s, &question.who)
                && matches(policy, s, question, &context)
        });
        if denied && !(own && root && policy_action) {
            return Outcome::Explicit;
        }
    }
    if question.action.to_lowercase().starts_with("keyway:") {
        return Outcome::Allow;
    }
    // 0: not named; 1: by the account; 2: by itself; 3: by the session.
    let mut named = 0;
    if let Some(policy) = &bucket {
        for s in statements(policy) {
            if s["Effect"] == "Allow" && matches(policy, s, question, &context) {
                named = named.max(naming(&s["Principal"], &question.who));
            }
        }
        if documents.restrict && !own && statements(policy).any(|s| public(policy, s)) {
            return Outcome::Implicit;
        }
    }
    let by_identity = root || identity.iter().any(|policy| says(policy, "Allow"));
    let by_session = session.is_empty() || session.iter().any(|policy| says(policy, "Allow"));
    let allowed = match tenant {
        None => named >= 2,
        Some(_) if own => (by_identity || named >= 2) && by_session || named == 3,
        Some(_) => by_identity && named >= 1 && by_session,
    };
    if allowed { Outcome::Allow } else { Outcome::Implicit }
}

fn context(question: &Question) -> Context {
    let mut context = Context::new();
    let mut set = |key: &str, value: String| context.insert(key.to_owned(), vec![value]);
    set("aws:currenttime", NOW.to_owned());
    set("aws:epochtime", NOW.to_owned());
    set("aws:principalisawsservice", "false".into());
    set("aws:viaawsservice", "false".into());
    if question.resource != "*" {
        set("aws:resourceaccount", format!("{OWNER:012}"));
        set("s3:resourceaccount", format!("{OWNER:012}"));
    }
    let (kind, id) = match &question.who {
        Who::Anonymous => ("Anonymous", "anonymous".to_owned()),
        Who::Root(tenant) => ("Account", format!("{tenant:012}")),
        Who::User(_, path) => {
            set("aws:username", path.split('/').next_back().unwrap().to_owned());
            ("User", "AIDA1".to_owned())
        }
        Who::Session(_, _, name) => ("AssumedRole", format!("AROA1:{name}")),
    };
    set("aws:principaltype", kind.to_owned());
    set("aws:userid", id);
    match &question.who {
        Who::Anonymous => {}
        Who::Root(tenant) => {
            set("aws:principalaccount", format!("{tenant:012}"));
            set("aws:principalarn", format!("arn:aws:iam::{tenant:012}:root"));
        }
        Who::User(tenant, path) => {
            set("aws:principalaccount", format!("{tenant:012}"));
            set("aws:principalarn", format!("arn:aws:iam::{tenant:012}:user/{path}"));
        }
        Who::Session(tenant, role, name) => {
            set("aws:principalaccount", format!("{tenant:012}"));
            let arn = format!("arn:aws:sts::{tenant:012}:assumed-role/{role}/{name}");
            set("aws:principalarn", arn);
        }
    }
    let mut told = Context::new();
    for (key, value) in &question.context {
        told.entry(folded_key(key)).or_default().push(value.clone());
    }
    context.extend(told);
    context
}

/// A key's name in lower case, but for a tag's.
fn folded_key(key: &str) -> String {
    match key.split_once('/') {
        Some((family, tag)) => format!("{}/{tag}", family.to_lowercase()),
        None => key.to_lowercase(),
    }
}

fn list(json: &Json) -> Vec<&Json> {
    match json {
        Json::Array(list) => list.iter().collect(),
        one => vec![one],
    }
}

fn statements(policy: &Json) -> impl Iterator<Item = &Json> {
    list(&policy["Statement"]).into_iter()
}

fn has_variables(policy: &Json) -> bool {
    policy["Version"] == "2012-10-17"
}

fn matches(policy: &Json, statement: &Json, question: &Question, context: &Context) -> bool {
    let action = |json: &Json| {
        list(json).into_iter().any(|pattern| {
            let pattern = pattern.as_str().unwrap().to_lowercase();
            glob(&marks(&pattern), &chars(&question.action.to_lowercase()))
        })
    };
    let arn = match question.resource.as_str() {
        "*" => "arn:aws:s3:::*".to_owned(),
        name => format!("arn:aws:s3:::{name}"),
    };
    let resource = |json: &Json| {
        list(json).into_iter().any(|pattern| {
            let pattern = pattern.as_str().unwrap();
            let marks = match has_variables(policy) {
                true => substituted(pattern, true, context),
                false => Some(marks(pattern)),
            };
            pattern == "*" || marks.is_some_and(|marks| arn_glob(&marks, &arn))
        })
    };
    let acted = match statement.get("Action") {
        Some(json) => action(json),
        None => !action(&statement["NotAction"]),
    };
    let on = match statement.get("Resource") {
        Some(json) => resource(json),
        None => !resource(&statement["NotResource"]),
    };
    let no_conditions = serde_json::Map::new();
    let conditions = statement.get("Condition").map_or(&no_conditions, |c| c.as_object().unwrap());
    acted
        && on
        && conditions.iter().all(|(operator, keys)| {
            keys.as_object().unwrap().iter().all(|(key, values)| {
                condition(operator, key, &list(values), has_variables(policy), context)
            })
        })
}

/// Names of principals; a role's without its path, which its sessions' names do not have.
fn principals(json: &Json) -> Vec<String> {
    let kinds = match json {
        Json::String(text) => return vec![text.clone()],
        kinds => kinds.as_object().unwrap(),
    };
    let mut names = Vec::new();
    for (kind, values) in kinds {
        for value in list(values) {
            let text = value.as_str().unwrap();
            names.push(match (kind.as_str(), text.split_once(":role/")) {
                ("CanonicalUser", _) => format!("{:012}", u64::from_str_radix(text, 16).unwrap()),
                (_, Some((account, path))) => {
                    format!("{account}:role/{}", path.split('/').next_back().unwrap())
                }
                (_, None) => text.to_owned(),
            });
        }
    }
    names
}

/// The names of the caller, from its account to itself, as lists of equal ones.
fn chain(who: &Who) -> Vec<Vec<String>> {
    let account = |t: &u64| vec![format!("{t:012}"), format!("arn:aws:iam::{t:012}:root")];
    match who {
        Who::Anonymous => vec![],
        Who::Root(tenant) => vec![account(tenant)],
        Who::User(tenant, path) => {
            vec![account(tenant), vec![format!("arn:aws:iam::{tenant:012}:user/{path}")]]
        }
        Who::Session(tenant, role, name) => vec![
            account(tenant),
            vec![format!("arn:aws:iam::{tenant:012}:role/{role}")],
            vec![format!("arn:aws:sts::{tenant:012}:assumed-role/{role}/{name}")],
        ],
    }
}

fn naming(json: &Json, who: &Who) -> u8 {
    let named = principals(json);
    let chain = chain(who);
    let mut best = u8::from(named.iter().any(|name| name == "*")) * 2;
    for (level, names) in chain.iter().enumerate() {
        if names.iter().any(|name| named.contains(name)) {
            let rank = match (who, level) {
                (Who::Root(_), _) => 2,
                (_, 0) => 1,
                (_, 1) => 2,
                _ => 3,
            };
            best = best.max(rank);
        }
    }
    best
}

fn denies(statement: &Json, who: &Who) -> bool {
    match statement.get("Principal") {
        Some(json) => naming(json, who) > 0,
        None => {
            let spared = principals(&statement["NotPrincipal"]);
            if spared.iter().any(|name| name == "*") {
                return false;
            }
            let chain = chain(who);
            chain.is_empty()
                || !chain.iter().all(|names| names.iter().any(|name| spared.contains(name)))
        }
    }
}

/// Public, as far as the tables and the random policies go.
fn public(policy: &Json, statement: &Json) -> bool {
    let everybody = statement["Effect"] == "Allow"
        && principals(&statement["Principal"]).iter().any(|name| name == "*");
    let no_conditions = serde_json::Map::new();
    let conditions = statement["Condition"].as_object().unwrap_or(&no_conditions);
    let limited = conditions.iter().any(|(operator, keys)| {
        let operator = operator.strip_prefix("ForAnyValue:").unwrap_or(operator);
        keys.as_object().unwrap().iter().any(|(key, values)| {
            let values = list(values);
            let texts = || values.iter().map(|value| value.as_str().unwrap());
            match (operator, key.to_lowercase().as_str()) {
                ("IpAddress", "aws:sourceip") => !texts()
                    .any(|text| ["/0", "/1", "/2", "/3"].iter().any(|wide| text.ends_with(wide))),
                (
                    "StringEquals" | "StringLike" | "ArnEquals" | "ArnLike",
                    "aws:principalaccount" | "aws:principalarn",
                ) => !texts().any(|text| {
                    text.contains(['*', '?']) || has_variables(policy) && text.contains("${")
                }),
                _ => false,
            }
        })
    });
    everybody && !limited
}

fn condition(
    operator: &str,
    key: &str,
    values: &[&Json],
    variables: bool,
    context: &Context,
) -> bool {
    let texts: Vec<String> = values
        .iter()
        .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        .collect();
    let found = context.get(&folded_key(key));
    if operator == "Null" {
        return texts.iter().any(|text| text.eq_ignore_ascii_case("true") == found.is_none());
    }
    let (set, base) = operator.split_once(':').unwrap_or(("", operator));
    let (base, if_exists) = match base.strip_suffix("IfExists") {
        Some(base) => (base, true),
        None => (base, false),
    };
    let negated = base.contains("Not");
    let Some(found) = found else {
        return match set {
            "ForAnyValue" => false,
            "ForAllValues" => true,
            _ => if_exists || negated,
        };
    };
    let positive = base.replace("Not", "");
    let hit = |value: &String| {
        texts.iter().any(|text| compare(&positive, value, text, variables, context))
    };
    match (set, negated) {
        ("ForAnyValue", false) | ("", false) => found.iter().any(hit),
        ("ForAnyValue", true) => !found.iter().all(hit),
        ("ForAllValues", false) => found.iter().all(hit),
        (_, true) => !found.iter().any(hit),
        _ => unreachable!(),
    }
}

fn compare(operator: &str, value: &str, text: &str, variables: bool, context: &Context) -> bool {
    let pattern = |wild: bool| match variables {
        true => substituted(text, wild, context),
        false if wild => Some(marks(text)),
        false => Some(text.chars().map(Mark::Is).collect()),
    };
    let plain = || {
        let marks = pattern(false)?;
        let mut plain = String::new();
        for mark in marks {
            let Mark::Is(c) = mark else { unreachable!() };
            plain.push(c);
        }
        Some(plain)
    };
    match operator {
        "StringEquals" => plain().is_some_and(|text| text == value),
        "StringEqualsIgnoreCase" => {
            plain().is_some_and(|text| text.to_lowercase() == value.to_lowercase())
        }
        "StringLike" => pattern(true).is_some_and(|marks| glob(&marks, &chars(value))),
        "ArnEquals" | "ArnLike" => {
            text == "*" || pattern(true).is_some_and(|marks| arn_glob(&marks, value))
        }
        "Bool" => value.eq_ignore_ascii_case(text),
        "BinaryEquals" => STANDARD.decode(value).is_ok_and(|v| Ok(v) == STANDARD.decode(text)),
        "IpAddress" => in_range(value, text),
        numeric if numeric.starts_with("Numeric") => {
            let (Ok(value), Ok(text)) = (value.parse::<f64>(), text.parse::<f64>()) else {
                return false;
            };
            order(&numeric["Numeric".len()..], value - text)
        }
        date if date.starts_with("Date") => {
            let (Some(value), Some(text)) = (seconds(value), seconds(text)) else { return false };
            order(&date["Date".len()..], value - text)
        }
        other => panic!("the naive evaluator does not know {other}"),
    }
}

fn order(name: &str, difference: f64) -> bool {
    match name {
        "Equals" => difference == 0.0,
        "LessThan" => difference < 0.0,
        "LessThanEquals" => difference <= 0.0,
        "GreaterThan" => difference > 0.0,
        "GreaterThanEquals" => difference >= 0.0,
        other => panic!("no order {other}"),
    }
}

fn seconds(text: &str) -> Option<f64> {
    let dated = if text.len() == 10 && text.contains('-') {
        format!("{text}T00:00:00Z")
    } else {
        text.to_owned()
    };
    match text.parse::<f64>() {
        Ok(seconds) => Some(seconds),
        Err(_) => dated.parse::<Timestamp>().ok().map(|time| time.as_second() as f64),
    }
}

/// Whether an address is in a range, bit by bit.
fn in_range(address: &str, range: &str) -> bool {
    let bits = |text: &str| -> Option<Vec<bool>> {
        let bytes = match text.parse::<IpAddr>().ok()?.to_canonical() {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        Some(
            bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1 == 1)).collect(),
        )
    };
    let (base, length) = range.split_once('/').unwrap_or((range, "128"));
    let (Some(address), Some(base)) = (bits(address), bits(base)) else { return false };
    let length = length.parse::<usize>().unwrap().min(base.len());
    address.len() == base.len() && address[..length] == base[..length]
}

fn chars(text: &str) -> Vec<char> {
    text.chars().collect()
}

fn marks(text: &str) -> Vec<Mark> {
    let mark = |c| match c {
        '*' => Mark::Many,
        '?' => Mark::One,
        c => Mark::Is(c),
    };
    text.chars().map(mark).collect()
}

fn glob(pattern: &[Mark], text: &[char]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        ([Mark::Many, rest @ ..], _) => {
            glob(rest, text) || matches!(text, [_, after @ ..] if glob(pattern, after))
        }
        ([Mark::One, rest @ ..], [_, after @ ..]) => glob(rest, after),
        ([Mark::Is(wanted), rest @ ..], [c, after @ ..]) => wanted == c && glob(rest, after),
        _ => false,
    }
}

/// Six parts, each against its own.
fn arn_glob(pattern: &[Mark], text: &str) -> bool {
    let mut rest = pattern;
    let mut values = text.splitn(6, ':');
    for part in 0..6 {
        let colon = rest.iter().position(|mark| matches!(mark, Mark::Is(':')));
        let end = match colon {
            Some(at) if part < 5 => at,
            None if part < 5 => return false,
            _ => rest.len(),
        };
        let Some(value) = values.next() else { return false };
        if !glob(&rest[..end], &chars(value)) {
            return false;
        }
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    true
}

/// The pattern with values in place of variables; none if one has no value.
fn substituted(text: &str, wild: bool, context: &Context) -> Option<Vec<Mark>> {
    let mut result = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("${") {
            let (inside, after) = after.split_once('}').unwrap();
            let value = match inside {
                "*" | "?" | "$" => inside.to_owned(),
                inside => {
                    let (key, default) = match inside.split_once(',') {
                        Some((key, default)) => (key, Some(default.trim().trim_matches('\''))),
                        None => (inside, None),
                    };
                    let found = context.get(&folded_key(key.trim())).map(|values| &*values[0]);
                    found.or(default)?.to_owned()
                }
            };
            result.extend(value.chars().map(Mark::Is));
            rest = after;
            continue;
        }
        let c = rest.chars().next().unwrap();
        result.push(match c {
            '*' if wild => Mark::Many,
            '?' if wild => Mark::One,
            c => Mark::Is(c),
        });
        rest = &rest[c.len_utf8()..];
    }
    Some(result)
}
