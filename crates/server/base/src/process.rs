//! What the system knows of this process, for the metrics that Prometheus' own clients show, too.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use rustix::process::{Resource, getrlimit};

/// From `/proc`; None where the system does not report it.
#[derive(Debug)]
pub struct Process {
    /// In user and kernel mode, all threads.
    pub cpu_secs: f64,
    /// Since 1970.
    pub started_secs: f64,
    pub virtual_bytes: u64,
    pub resident_bytes: u64,
    pub open_files: u64,
    /// None: no limit.
    pub open_files_max: Option<u64>,
}

impl Process {
    pub fn now() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The name in parentheses may have spaces; the third field comes behind it.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        Some(Self {
            cpu_secs: (field(14)? + field(15)?) as f64 / ticks,
            started_secs: booted_secs()? as f64 + field(22)? as f64 / ticks,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * rustix::param::page_size() as u64,
            open_files: open_files()?,
            open_files_max: getrlimit(Resource::Nofile).current,
        })
    }
}

/// Resident memory of this process; None where the system does not report it.
pub fn resident_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

fn booted_secs() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

/// Since Linux 6.2 the size of the directory; counting a million entries would take a second.
fn open_files() -> Option<u64> {
    let directory = "/proc/self/fd";
    match fs::metadata(directory).ok()?.size() {
        0 => Some(fs::read_dir(directory).ok()?.count() as u64),
        count => Some(count),
    }
}

/// Does the work, and ends the process if that panics. Others would wait for answers that never
/// come, or keep promises of which nobody knows. The panic hook has reported it by then.
pub fn ending_the_process<T>(work: impl FnOnce() -> T) -> T {
    let abort = AbortOnUnwind;
    let result = work();
    std::mem::forget(abort);
    result
}

struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_itself() {
        let before = Process::now().unwrap();
        let files: Vec<_> = (0..10).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let after = Process::now().unwrap();
        // Other tests of this process open and close files meanwhile.
        assert!(after.open_files >= files.len() as u64);
        assert!(after.cpu_secs >= before.cpu_secs && after.started_secs == before.started_secs);
        let now = std::time::SystemTime::now();
        let secs = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        assert!(after.started_secs > 1.0e9 && after.started_secs <= secs + 1.0);
        assert!(after.virtual_bytes >= after.resident_bytes && after.resident_bytes > 0);
    }
}
