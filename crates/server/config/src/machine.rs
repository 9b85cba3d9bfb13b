//! What of the machine the defaults depend on.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// Facts about the machine, taken once at start, so that lowering a configuration is a pure
/// function of them.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub cores: u16,
    /// What the process may use: the machine's memory or its cgroup's limit, the smaller.
    pub memory_bytes: u64,
    pub has_ipv6: bool,
    /// To how many open files the process may raise its limit. None: to any number.
    pub open_files_max: Option<u64>,
    /// Bytes that a directory, which need not be there yet, may take on its file system, with what
    /// it has already. None: the system does not report it.
    pub disk_bytes: fn(&Path) -> Option<u64>,
    /// None: it has none, or one that is not UTF-8.
    pub host_name: fn() -> Option<String>,
}

impl Machine {
    /// A small one, of whose disk nothing is known.
    pub const UNKNOWN: Self = Self {
        cores: 1,
        memory_bytes: MEMORY_BYTES_FALLBACK,
        has_ipv6: false,
        open_files_max: None,
        disk_bytes: |_| None,
        host_name: || None,
    };

    /// Looks at this machine.
    pub fn here() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Self {
            cores: u16::try_from(cores).unwrap_or(u16::MAX),
            memory_bytes: memory_bytes(),
            has_ipv6: TcpListener::bind("[::1]:0").is_ok(),
            open_files_max: getrlimit(Resource::Nofile).maximum,
            disk_bytes,
            host_name,
        }
    }
}

fn host_name() -> Option<String> {
    let system = rustix::system::uname();
    system.nodename().to_str().ok().filter(|name| !name.is_empty()).map(Into::into)
}

fn memory_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| memory_total_bytes(&text));
    let own = read("/proc/self/cgroup").unwrap_or_default();
    let limits = cgroup_files(&own).into_iter().filter_map(|path| read(&path)?.trim().parse().ok());
    limits.chain(machine).min().unwrap_or(MEMORY_BYTES_FALLBACK)
}

fn disk_bytes(directory: &Path) -> Option<u64> {
    let there = directory.ancestors().find(|path| path.exists());
    let there = there.filter(|path| *path != Path::new("")).unwrap_or(Path::new("."));
    let free = rustix::fs::statvfs(there).ok()?;
    Some((free.f_bavail * free.f_frsize).saturating_add(bytes_of(directory)))
}

/// What the files of a directory take, and those in directories in it.
fn bytes_of(directory: &Path) -> u64 {
    const BLOCK_BYTES: u64 = 512;
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(file) if file.is_dir() => bytes_of(&entry.path()),
        Ok(file) => file.blocks() * BLOCK_BYTES,
        Err(_) => 0,
    });
    sizes.sum()
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

    #[test]
    fn what_lies_in_a_directory_counts_to_what_it_may_have() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("data");
        std::fs::create_dir_all(own.join("0")).unwrap();
        std::fs::write(own.join("0/1.log"), vec![7; 100_000]).unwrap();
        assert!((100_000..1_000_000).contains(&bytes_of(&own)));
        assert_eq!(bytes_of(&own.join("none")), 0);
        assert!(disk_bytes(&own.join("not/yet")).is_some_and(|bytes| bytes > 0));
    }
}
