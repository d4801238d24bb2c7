//! What the system tells of this process.

use std::fs;

/// CPU seconds of all threads so far, to the nanosecond; `/proc/self/stat` would tell user and
/// system apart, in steps of 10 ms.
pub(super) fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Resident memory.
pub(super) fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Open file descriptors.
pub(super) fn descriptors() -> Option<u64> {
    Some(fs::read_dir("/proc/self/fd").ok()?.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_has_used_memory_time_and_descriptors() {
        assert!(resident_bytes().unwrap() > 1 << 20);
        assert!(descriptors().unwrap() >= 3);
        assert!(cpu_seconds() > 0.0);
    }
}
