//! What processes cost, from `/proc`.

use std::time::Duration;

use anyhow::Context as _;

/// Ticks per second in `/proc`: fixed at 100 for user space on every Linux.
const TICKS_PER_SECOND: u64 = 100;

/// CPU time of a process: user and system, all its threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessTime(Duration);

impl ProcessTime {
    /// Of the process with this id, up to now.
    pub(crate) fn of(pid: u32) -> anyhow::Result<Self> {
        Self::read(&pid.to_string())
    }

    /// Of this process.
    pub(crate) fn own() -> anyhow::Result<Self> {
        Self::read("self")
    }

    /// The time spent since `before`.
    pub(crate) fn since(self, before: Self) -> Duration {
        self.0.saturating_sub(before.0)
    }

    fn read(process: &str) -> anyhow::Result<Self> {
        let path = format!("/proc/{process}/stat");
        let stat = std::fs::read_to_string(&path).with_context(|| format!("no {path}"))?;
        parse_stat(&stat).with_context(|| format!("cannot read {path}")).map(Self)
    }
}

/// The most memory that a process had resident, in bytes.
pub(crate) fn peak_memory_bytes(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("no {path}"))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("no VmHWM in {path}"))? * 1024)
}

/// Fields 14 and 15; the name in field 2 may hold anything, so counting begins behind it.
fn parse_stat(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * (1000 / TICKS_PER_SECOND)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_misleads_nobody() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 120 30 0 0 20 0 1 0 1 1 1";
        assert_eq!(parse_stat(stat), Some(Duration::from_millis(1500)));
        assert_eq!(parse_stat("7 (cut) S 1"), None);
    }

    #[test]
    fn this_process_has_both() {
        assert!(ProcessTime::own().is_ok());
        assert!(peak_memory_bytes(std::process::id()).expect("our own") > 0);
    }
}
