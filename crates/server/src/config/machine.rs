//! What of the machine the defaults depend on.

use std::net::TcpListener;

/// Facts about the machine, taken once at start, so that lowering a configuration is a pure
/// function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    pub cores: u16,
    /// What the process may use: the machine's memory or its cgroup's limit, the smaller.
    pub memory_bytes: u64,
    pub has_ipv6: bool,
}

impl Machine {
    /// Looks at this machine.
    pub fn here() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Self {
            cores: u16::try_from(cores).unwrap_or(u16::MAX),
            memory_bytes: memory_bytes(),
            has_ipv6: TcpListener::bind("[::1]:0").is_ok(),
        }
    }
}

fn memory_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| memory_total_bytes(&text));
    let own = read("/proc/self/cgroup").unwrap_or_default();
    let limits = cgroup_files(&own).into_iter().filter_map(|path| read(&path)?.trim().parse().ok());
    limits.chain(machine).min().unwrap_or(MEMORY_BYTES_FALLBACK)
}

/// Where the limits of memory stand that hold for this process: its own cgroup's and those of all
/// above it, of the second version and the first. Inside of a container the root is the container.
fn cgroup_files(own: &str) -> Vec<String> {
    let mut files = Vec::new();
    let mut add = |root: &str, file: &str, path: &str| {
        let mut path = path.trim_end_matches('/');
        loop {
            files.push(format!("{root}{path}/{file}"));
            let Some((above, _)) = path.rsplit_once('/') else { break };
            path = above;
        }
    };
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        if controllers.is_empty() {
            add("/sys/fs/cgroup", "memory.max", path);
        } else if controllers.split(',').any(|controller| controller == "memory") {
            add("/sys/fs/cgroup/memory", "memory.limit_in_bytes", path);
        }
    }
    add("/sys/fs/cgroup", "memory.max", "");
    add("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "");
    files
}

fn memory_total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Where the system does not say how much memory there is.
const MEMORY_BYTES_FALLBACK: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:       24579436 kB\nMemFree:  1 kB\n";
        assert_eq!(memory_total_bytes(text), Some(24_579_436 * 1024));
        assert_eq!(memory_total_bytes(""), None);
    }

    #[test]
    fn limits_of_the_own_cgroup_and_of_those_above_hold() {
        let files = cgroup_files("4:cpu,memory:/a/b\n3:cpuset:/c\n0::/system.slice/quelea\n");
        let expected = [
            "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/system.slice/quelea/memory.max",
            "/sys/fs/cgroup/system.slice/memory.max",
            "/sys/fs/cgroup/memory.max",
        ];
        assert_eq!(files[..6], expected);
    }

    #[test]
    fn this_machine_has_something() {
        let machine = Machine::here();
        assert!(machine.cores >= 1 && machine.memory_bytes >= 1 << 20);
    }
}
