//! The kernel, and what it allows this process.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, getrlimit};

use super::Finding;

/// Memory that must be lockable for the store's buffers to be registered with io_uring and
/// later with a network adapter.
const LOCKED_BYTES_WANTED: u64 = 64 << 20;
/// Descriptors for some thousand connections and the store's files.
const DESCRIPTORS_WANTED: u64 = 16_384;
/// A clock before this moment (2025-01-01) was never set.
const EARLIEST_UNIX_S: u64 = 1_735_689_600;

pub(super) fn kernel() -> Finding {
    let name = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    let release = text(name.release());
    let found = format!("{} {release} {}", text(name.sysname()), text(name.machine()));
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (5, 11) {
        Finding::good("kernel", found)
    } else {
        Finding::fair("kernel", found, "from Linux 5.11 on, the store can use io_uring well")
    }
}

pub(super) fn cores() -> Finding {
    match std::thread::available_parallelism() {
        Ok(count) => Finding::good("cores", count.to_string()),
        Err(error) => Finding::fair("cores", error.to_string(), "set runtime.worker_threads"),
    }
}

pub(super) fn locked_memory() -> Finding {
    let limit = getrlimit(Resource::Memlock).current;
    let found = limit.map_or("unlimited".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
    match limit {
        Some(bytes) if bytes < LOCKED_BYTES_WANTED => Finding::fair(
            "locked memory",
            found,
            "raise it (ulimit -l, LimitMEMLOCK=) so that buffers can be registered",
        ),
        _ => Finding::good("locked memory", found),
    }
}

/// What a memory tier would be made of.
pub(super) fn memory_tier() -> Finding {
    let subject = "memory tier";
    let available = available_bytes()
        .map_or("unknown".to_owned(), |bytes| format!("{} MiB available", bytes >> 20));
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let setting = setting.unwrap_or_default();
    // The one in force stands in brackets: `always [madvise] never`.
    let in_force = setting.split(['[', ']']).nth(1).unwrap_or("never");
    let found =
        format!("16 MiB unless node.tier.size_bytes says more; {available}, huge pages {in_force}");
    if in_force == "never" {
        let advice = "allow transparent huge pages (madvise), or reserve some (vm.nr_hugepages)";
        return Finding::fair(subject, found, advice);
    }
    Finding::good(subject, found)
}

fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib << 10)
}

pub(super) fn descriptors() -> Finding {
    let limit = getrlimit(Resource::Nofile).current;
    let found = limit.map_or("unlimited".to_owned(), |count| count.to_string());
    match limit {
        Some(count) if count < DESCRIPTORS_WANTED => Finding::fair(
            "descriptors",
            found,
            "raise it (ulimit -n, LimitNOFILE=), or lower limits.max_connections",
        ),
        _ => Finding::good("descriptors", found),
    }
}

pub(super) fn clock() -> Finding {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let found = jiff::Timestamp::now().to_string();
    if now.as_secs() < EARLIEST_UNIX_S {
        return Finding::bad("clock", found, "set it: signatures are checked against the time");
    }
    Finding::good("clock", found)
}
