//! POST policies: what a form may upload, as whoever signed it has said.
//!
//! Source: "POST Policy" in Amazon's S3 API reference. Names of fields have no case; a condition is
//! about the value that a field has once `${filename}` is replaced; every field must be covered by
//! one, but for those that no policy can speak of.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

/// Why a form is not what its policy allows, or a policy is none. The texts are S3's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PolicyError {
    /// The document.
    #[error("Invalid Policy: {0}")]
    Malformed(String),
    /// The form.
    #[error("Invalid according to Policy: {0}")]
    NotMet(String),
}

/// A policy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PostPolicy {
    expiration: Timestamp,
    conditions: Vec<Condition>,
    /// The least and the most bytes of the file.
    pub(super) range: Option<(u64, u64)>,
}

#[derive(Debug, PartialEq, Eq)]
struct Condition {
    exact: bool,
    /// In lowercase, without the `$`.
    field: String,
    value: String,
}

impl PostPolicy {
    /// Reads a policy's JSON.
    ///
    /// # Errors
    /// [`PolicyError::Malformed`]; also for what is said twice, and could be read in two ways.
    pub(super) fn parse(json: &[u8]) -> Result<Self, PolicyError> {
        let malformed = |why: &str| PolicyError::Malformed(why.to_owned());
        let Ok(Value::Object(policy)) = serde_json::from_slice::<Value>(json) else {
            return Err(malformed("Invalid JSON."));
        };
        let member = |name: &str| {
            let mut found = policy.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
            found.next().map(|(_, value)| value).filter(|_| found.next().is_none())
        };
        let known = ["expiration", "conditions"];
        if let Some(name) = policy.keys().find(|k| known.iter().all(|n| !k.eq_ignore_ascii_case(n)))
        {
            return Err(malformed(&format!("Unexpected: '{name}'.")));
        }
        let expiration =
            member("expiration").ok_or_else(|| malformed("Policy missing expiration."))?;
        let expiration: Timestamp = expiration
            .as_str()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| malformed(&format!("Invalid 'expiration' value: '{expiration}'")))?;
        let Some(Value::Array(given)) = member("conditions") else {
            return Err(malformed("Policy missing conditions."));
        };
        let (mut conditions, mut range) = (Vec::with_capacity(given.len()), None);
        for condition in given {
            let invalid = || PolicyError::Malformed(format!("Invalid Condition: {condition}"));
            match condition {
                Value::Object(pairs) if !pairs.is_empty() => {
                    for (field, value) in pairs {
                        let value = value.as_str().ok_or_else(invalid)?;
                        conditions.push(Condition::of(true, field, value));
                    }
                }
                Value::Array(parts) => {
                    let [Value::String(kind), first, second] = &parts[..] else {
                        return Err(invalid());
                    };
                    if kind.eq_ignore_ascii_case("content-length-range") {
                        let (least, most) =
                            number(first).zip(number(second)).ok_or_else(invalid)?;
                        let (low, high) = range.unwrap_or((0, u64::MAX));
                        range = Some((least.max(low), most.min(high)));
                        continue;
                    }
                    let exact = kind.eq_ignore_ascii_case("eq");
                    let field = first.as_str().and_then(|field| field.strip_prefix('$'));
                    let (Some(field), Some(value)) = (field, second.as_str()) else {
                        return Err(invalid());
                    };
                    if !exact && !kind.eq_ignore_ascii_case("starts-with") {
                        return Err(invalid());
                    }
                    conditions.push(Condition::of(exact, field, value));
                }
                _ => return Err(invalid()),
            }
        }
        Ok(Self { expiration, conditions, range })
    }

    /// Holds a form against it: `fields` with names in lowercase, the bucket's among them.
    ///
    /// # Errors
    /// [`PolicyError::NotMet`].
    pub(super) fn check(
        &self,
        fields: &BTreeMap<String, String>,
        now: Timestamp,
    ) -> Result<(), PolicyError> {
        if self.expiration <= now {
            return Err(PolicyError::NotMet("Policy expired.".to_owned()));
        }
        for condition in &self.conditions {
            if !condition.holds(fields.get(&condition.field).map(String::as_str)) {
                return Err(PolicyError::NotMet(condition.failed()));
            }
        }
        let covered = |name: &str| self.conditions.iter().any(|c| c.field == name);
        let extra: Vec<&str> =
            fields.keys().map(String::as_str).filter(|n| !is_exempt(n) && !covered(n)).collect();
        if extra.is_empty() {
            return Ok(());
        }
        Err(PolicyError::NotMet(format!("Extra input fields: {}", extra.join(", "))))
    }
}

impl Condition {
    fn of(exact: bool, field: &str, value: &str) -> Self {
        Self { exact, field: field.to_ascii_lowercase(), value: value.to_owned() }
    }

    fn holds(&self, value: Option<&str>) -> bool {
        match value {
            Some(value) if self.exact => value == self.value,
            None if self.exact => false,
            // A list: each of its types must begin so.
            Some(value) if self.field == "content-type" => {
                value.split(',').all(|one| one.trim_start().starts_with(&self.value))
            }
            value => value.unwrap_or_default().starts_with(&self.value),
        }
    }

    fn failed(&self) -> String {
        let kind = if self.exact { "eq" } else { "starts-with" };
        let condition = Value::from(vec![kind, &format!("${}", self.field), &self.value]);
        format!("Policy Condition failed: {condition}")
    }
}

/// Numbers come as such, or as text.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn is_exempt(name: &str) -> bool {
    matches!(name, "x-amz-signature" | "policy" | "file") || name.starts_with("x-ignore-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn policy(conditions: &str) -> PostPolicy {
        let json =
            format!(r#"{{"expiration": "2030-01-01T00:00:00.000Z", "conditions": {conditions}}}"#);
        PostPolicy::parse(json.as_bytes()).expect("sound")
    }

    fn checked(conditions: &str, form: &[(&str, &str)]) -> Result<(), String> {
        let now = "2029-01-01T00:00:00Z".parse().expect("a time");
        policy(conditions).check(&fields(form), now).map_err(|error| error.to_string())
    }

    #[test]
    fn conditions_hold_or_are_named() {
        let conditions = r#"[{"bucket": "b"}, ["starts-with", "$Key", "user/"],
            ["starts-with", "$Content-Type", "image/"]]"#;
        let form = |key, kind| [("bucket", "b"), ("key", key), ("content-type", kind)];
        assert_eq!(checked(conditions, &form("user/a", "image/png, image/gif")), Ok(()));
        let refused = checked(conditions, &form("users/a", "image/png"));
        let said = r#"Invalid according to Policy: Policy Condition failed: ["starts-with","$key","user/"]"#;
        assert_eq!(refused, Err(said.to_owned()));
        assert!(checked(conditions, &form("user/a", "image/png, text/html")).is_err());
        assert!(checked(conditions, &[("bucket", "c"), ("key", "user/a")]).is_err());
        assert!(checked(r#"[["eq", "$acl", ""]]"#, &[]).is_err(), "a field that is not there");
    }

    #[test]
    fn every_field_is_covered() {
        let form = [("key", "a"), ("x-ignore-b", "c"), ("policy", "p"), ("x-amz-signature", "s")];
        assert_eq!(checked(r#"[{"key": "a"}]"#, &form), Ok(()));
        let extra = [("key", "a"), ("acl", "x"), ("x-amz-meta-a", "y")];
        let said = "Invalid according to Policy: Extra input fields: acl, x-amz-meta-a";
        assert_eq!(checked(r#"[{"key": "a"}]"#, &extra), Err(said.to_owned()));
    }

    #[test]
    fn policies_end() {
        let late = "2030-01-01T00:00:00Z".parse().expect("a time");
        let refused = policy("[]").check(&BTreeMap::new(), late).map_err(|e| e.to_string());
        assert_eq!(refused, Err("Invalid according to Policy: Policy expired.".to_owned()));
    }

    #[test]
    fn ranges_narrow() {
        let range = r#"[["content-length-range", 1, "100"], ["content-length-range", 10, 1000]]"#;
        assert_eq!(policy(range).range, Some((10, 100)));
        assert_eq!(policy("[]").range, None);
    }

    #[test]
    fn what_is_no_policy_is_refused() {
        let dated = |rest: &str| format!(r#"{{"expiration": "2030-01-01T00:00:00Z", {rest}}}"#);
        for json in [
            "".to_owned(),
            "[]".to_owned(),
            "{}".to_owned(),
            r#"{"expiration": 7, "conditions": []}"#.to_owned(),
            r#"{"expiration": "tomorrow", "conditions": []}"#.to_owned(),
            dated(r#""conditions": {}"#),
            dated(r#""conditions": [], "Conditions": []"#),
            dated(r#""conditions": [], "other": 1"#),
            dated(r#""conditions": ["a"]"#),
            dated(r#""conditions": [{}]"#),
            dated(r#""conditions": [{"a": 1}]"#),
            dated(r#""conditions": [["eq", "key", "a"]]"#),
            dated(r#""conditions": [["eq", "$key"]]"#),
            dated(r#""conditions": [["like", "$key", "a"]]"#),
            dated(r#""conditions": [["content-length-range", -1, 5]]"#),
            dated(r#""conditions": [["content-length-range", 1.5, 5]]"#),
        ] {
            let refused = PostPolicy::parse(json.as_bytes());
            assert!(matches!(refused, Err(PolicyError::Malformed(_))), "{json}");
        }
    }
}
