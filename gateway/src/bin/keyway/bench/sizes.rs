//! Sizes as they stand on the command line and in tables.

/// Most bytes of one request: S3's limit.
const BYTES_MAX: u64 = 5 << 30;

/// A size such as `4096`, `4KiB` or `64MiB`.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        unit => return Err(format!("{unit} is none of B, KiB, MiB, GiB")),
    };
    let number: u64 = digits.trim().parse().map_err(|e| format!("{digits}: {e}"))?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if (1..=BYTES_MAX).contains(&bytes) => Ok(bytes),
        _ => Err("one request carries 1 byte to 5 GiB".to_owned()),
    }
}

/// Sizes from one to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sweep(pub(super) Vec<u64>);

/// `4KiB..1GiB`: from one to the other, both included, each four times the one before.
pub(super) fn sweep(text: &str) -> Result<Sweep, String> {
    let (from, to) = text.split_once("..").ok_or("a size, .., and a larger size")?;
    let (from, to) = (bytes(from)?, bytes(to)?);
    if from >= to {
        return Err(format!("{} is not less than {}", shown(from), shown(to)));
    }
    let steps = std::iter::successors(Some(from), |size| size.checked_mul(4));
    Ok(Sweep(steps.take_while(|size| *size < to).chain([to]).collect()))
}

/// A size as people read it.
pub(super) fn shown(bytes: u64) -> String {
    for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{} {name}", bytes / unit);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes("4KiB"), Ok(4096));
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("7"), Ok(7));
        for bad in ["", "4KB", "0", "6GiB", "-1", "99999999999999999999"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
        let kib = |sizes: &[u64]| Ok(Sweep(sizes.iter().map(|size| size << 10).collect()));
        assert_eq!(sweep("4KiB..64KiB"), kib(&[4, 16, 64]));
        assert_eq!(sweep("4KiB..100KiB"), kib(&[4, 16, 64, 100]));
        for bad in ["4KiB", "4KiB..4KiB", "8KiB..4KiB", "..4KiB", "1..6GiB"] {
            assert!(sweep(bad).is_err(), "{bad}");
        }
        for (size, text) in [(1, "1 B"), (4096, "4 KiB"), (5000, "5000 B"), (1 << 30, "1 GiB")] {
            assert_eq!(shown(size), text);
        }
    }
}
