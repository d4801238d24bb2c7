//! What the system tells of this process.

use std::fs;

/// CPU time spent.
pub(super) struct CpuTime {
    pub(super) user_s: f64,
    pub(super) system_s: f64,
}

/// CPU time of all threads so far.
pub(super) fn cpu_time() -> Option<CpuTime> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The command's name may hold anything, so fields are counted from behind it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let seconds = |field: usize| Some(fields.get(field)?.parse::<f64>().ok()? / ticks);
    // Fields 14 and 15 of proc(5), the first behind the name being field 3.
    Some(CpuTime { user_s: seconds(11)?, system_s: seconds(12)? })
}

/// Resident memory.
pub(super) fn resident_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
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
        let time = cpu_time().unwrap();
        assert!(time.user_s >= 0.0 && time.system_s >= 0.0);
    }
}
