//! Bounds of tenants and users, as they stand on the command line.

use keyway_proto::Verification;
use serde_json::{Value, json};

/// What somebody may take. Each is a number, or `none` for no bound.
#[derive(clap::Args)]
pub(crate) struct LimitArgs {
    /// Requests in a second.
    #[arg(long, value_name = "NUMBER", value_parser = bound)]
    requests_per_second: Option<Bound>,
    /// Bytes of objects in a second, in both directions together, such as 100MiB.
    #[arg(long, value_name = "BYTES", value_parser = bound)]
    bytes_per_second: Option<Bound>,
    /// Sessions for direct transfers.
    #[arg(long, value_name = "NUMBER", value_parser = bound)]
    sessions: Option<Bound>,
    /// Direct transfers under way.
    #[arg(long, value_name = "NUMBER", value_parser = bound)]
    keys_in_flight: Option<Bound>,
}

impl LimitArgs {
    /// The fields of the documents, and what is said of each.
    pub(crate) fn fields(&self) -> [(&'static str, Option<Bound>); 4] {
        [
            ("requests_per_second", self.requests_per_second),
            ("bytes_per_second", self.bytes_per_second),
            ("sessions", self.sessions),
            ("keys_in_flight", self.keys_in_flight),
        ]
    }
}

/// What somebody may store.
#[derive(clap::Args)]
pub(crate) struct QuotaArgs {
    /// Bytes to store, as a number such as 500GiB, or `none`.
    #[arg(long, value_name = "BYTES", value_parser = bound)]
    bytes: Option<Bound>,
    /// Objects to store, versions and parts among them, or `none`.
    #[arg(long, value_name = "NUMBER", value_parser = bound)]
    objects: Option<Bound>,
}

impl QuotaArgs {
    /// The fields of the documents, and what is said of each.
    pub(crate) fn fields(&self) -> [(&'static str, Option<Bound>); 2] {
        [("bytes", self.bytes), ("objects", self.objects)]
    }
}

/// A bound, or none.
#[derive(Clone, Copy)]
pub(crate) struct Bound(Option<u64>);

/// `none`, or a number such as `500` or `500GiB`.
fn bound(text: &str) -> Result<Bound, String> {
    if text == "none" {
        return Ok(Bound(None));
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        unit => return Err(format!("{unit} is none of KiB, MiB, GiB, TiB")),
    };
    let number: u64 = digits.parse().map_err(|error| format!("{digits}: {error}"))?;
    let number = number.checked_mul(1 << shift).ok_or("too much")?;
    Ok(Bound(Some(number)))
}

/// The object under this name in what is known, with the fields that are said.
pub(crate) fn bounded(known: &Value, name: &str, said: &[(&'static str, Option<Bound>)]) -> Value {
    let mut fields = known[name].as_object().cloned().unwrap_or_default();
    for (field, bound) in said {
        if let Some(Bound(bound)) = bound {
            fields.insert((*field).to_owned(), json!(bound));
        }
    }
    fields.into()
}

/// When what is read is compared with its checksums; none where the server is to say.
#[derive(Clone, Copy)]
pub(crate) struct Verify(pub(crate) Option<Verification>);

/// `none`, or the name of one.
pub(crate) fn verify(text: &str) -> Result<Verify, String> {
    if text == "none" {
        return Ok(Verify(None));
    }
    let known = Verification::named(text).ok_or("before-delivery, inline, client or none")?;
    Ok(Verify(Some(known)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_numbers_or_none() {
        let of = |text| bound(text).map(|Bound(bound)| bound);
        assert_eq!(of("none"), Ok(None));
        assert_eq!(of("7"), Ok(Some(7)));
        assert_eq!(of("2TiB"), Ok(Some(2 << 40)));
        for bad in ["", "-1", "1.5", "1KB", "KiB", "99999999TiB"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_of_comparing_have_names() {
        let of = |text| verify(text).map(|Verify(verify)| verify);
        assert_eq!(of("none"), Ok(None));
        assert_eq!(of("client"), Ok(Some(Verification::Client)));
        assert!(of("never").is_err() && of("").is_err());
    }

    #[test]
    fn what_is_not_said_stays() {
        let known = json!({ "limits": { "sessions": 3, "keys_in_flight": 4 } });
        let said = [("sessions", Some(Bound(None))), ("bytes_per_second", Some(Bound(Some(9))))];
        let limits = bounded(&known, "limits", &said);
        let expected = json!({ "sessions": null, "keys_in_flight": 4, "bytes_per_second": 9 });
        assert_eq!(limits, expected);
    }
}
