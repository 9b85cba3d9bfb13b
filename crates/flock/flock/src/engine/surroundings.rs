//! What stands round a process and bears on its figures: frequency governor, NUMA nodes, virtual
//! machine, container and its limits, and how far away the broker is.

use std::fs;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flock_measure::{Limits, RoundTrip, Surroundings};

/// Those of this machine, as this process sees it.
pub fn here() -> Surroundings {
    surroundings(Path::new("/"))
}

fn surroundings(root: &Path) -> Surroundings {
    let read = |path: &str| {
        let text = fs::read_to_string(root.join(path)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    };
    let governor = read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let numa_nodes = read("sys/devices/system/node/online").map(|list| members(&list));
    let cpu_info = read("proc/cpuinfo").unwrap_or_default();
    let mut flags = cpu_info.lines().filter(|line| line.starts_with("flags"));
    let is_virtual = flags.next().is_some_and(|line| line.contains(" hypervisor"));
    let product = [read("sys/class/dmi/id/sys_vendor"), read("sys/class/dmi/id/product_name")]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ");
    let container = [(".dockerenv", "docker"), ("run/.containerenv", "podman")]
        .into_iter()
        .find(|(mark, _)| root.join(mark).exists())
        .map(|(_, name)| name.to_owned())
        .or_else(|| {
            root.join("var/run/secrets/kubernetes.io").exists().then(|| "kubernetes".to_owned())
        });
    Surroundings {
        governor,
        numa_nodes,
        virtual_machine: is_virtual.then(|| match product.as_str() {
            "" => "yes".to_owned(),
            product => product.to_owned(),
        }),
        container,
        limits: limits(root, "self"),
    }
}

/// How much CPU and memory the control groups of a process leave it (version 2 of them).
pub fn limits_of(pid: u32) -> Limits {
    limits(Path::new("/"), &pid.to_string())
}

fn limits(root: &Path, process: &str) -> Limits {
    let groups =
        fs::read_to_string(root.join(format!("proc/{process}/cgroup"))).unwrap_or_default();
    let Some(group) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return Limits::default();
    };
    let base = root.join("sys/fs/cgroup");
    let own = base.join(group.trim());
    let mut limits = Limits::default();
    // What a group above allows holds for all below it.
    for folder in own.ancestors().take_while(|folder| folder.starts_with(&base)) {
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let cpu = read("cpu.max");
        let mut words = cpu.split_whitespace().map(str::parse::<f64>);
        if let (Some(Ok(quota)), Some(Ok(period))) = (words.next(), words.next()) {
            let cores = quota / period;
            limits.cpu_cores = Some(limits.cpu_cores.map_or(cores, |known: f64| known.min(cores)));
        }
        if let Ok(bytes) = read("memory.max").trim().parse::<u64>() {
            limits.memory_bytes = Some(limits.memory_bytes.map_or(bytes, |known| known.min(bytes)));
        }
    }
    limits
}

/// Cores of the machine that are switched on.
pub fn cores_online() -> Option<u32> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    Some(members(list.trim())).filter(|cores| *cores > 0)
}

/// How many a list such as `0-1,3` names.
fn members(list: &str) -> u32 {
    let one = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let bounds = from.trim().parse::<u32>().ok().zip(to.trim().parse::<u32>().ok());
        bounds.map_or(0, |(from, to)| to.saturating_sub(from) + 1)
    };
    list.split(',').map(one).sum()
}

/// What a packet needs to the broker's machine and back: the kernels shake hands for a TCP
/// connection without asking the programs. `None` for a Unix socket, and where nobody is.
pub fn round_trip(address: &str) -> Option<RoundTrip> {
    let address: SocketAddr = address.to_socket_addrs().ok()?.next()?;
    let mut all = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let started = Instant::now();
        drop(TcpStream::connect_timeout(&address, ROUND_TRIP_MAX).ok()?);
        all.push(started.elapsed().as_nanos() as f64 / 1e3);
    }
    all.sort_by(f64::total_cmp);
    let (min_us, median_us) = (*all.first()?, *all.get(all.len() / 2)?);
    Some(RoundTrip { min_us, median_us, samples: all.len() as u32 })
}

/// The command line of a process.
pub fn command_of(pid: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words =
        bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    words.filter(|word| !word.is_empty()).collect()
}

/// The configuration that a command names: the text files among its arguments, each below its
/// path. Values that look like secrets are left out, because reports are shared.
pub fn config_of(command: &[String], folder: Option<&Path>) -> String {
    let mut config = String::new();
    for word in command.iter().skip(1) {
        // `--config=file` and `file`.
        let named = word.rsplit_once('=').map_or(word.as_str(), |(_, value)| value);
        let path = folder.map_or_else(|| PathBuf::from(named), |folder| folder.join(named));
        if let Some(text) = config_file(&path) {
            config.push_str(&format!("# {named}\n{text}\n"));
        }
    }
    config
}

/// The text of a file that may be a configuration, without its secrets.
pub fn config_file(path: &Path) -> Option<String> {
    let about = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    if about.len() > CONFIG_BYTES_MAX {
        return None;
    }
    let text = fs::read_to_string(path).ok()?;
    // A program in a scripting language is no configuration, a key is nobody's business.
    if text.starts_with("#!") || text.contains("PRIVATE KEY") {
        return None;
    }
    Some(text.lines().map(without_secret).collect::<Vec<_>>().join("\n"))
}

/// The folder that a process works in: what its arguments are relative to.
pub fn folder_of(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/cwd")).ok()
}

fn without_secret(line: &str) -> String {
    let lower = line.to_lowercase();
    let Some(at) = SECRETS.iter().filter_map(|word| lower.find(word)).min() else {
        return line.to_owned();
    };
    // The key stays, so that a reader sees that there is one.
    let rest = &line[at..];
    match rest.find([':', '=', ' ', '\t']) {
        Some(end) if !rest[end + 1..].trim().is_empty() => {
            format!("{}{LEFT_OUT}", &line[..at + end + 1])
        }
        _ => line.to_owned(),
    }
}

/// A command line without the passwords in it.
pub fn without_passwords(command: &[String]) -> Vec<String> {
    let mut is_next = false;
    let word = |word: &String| {
        if std::mem::take(&mut is_next) {
            return LEFT_OUT.to_owned();
        }
        let name = word.split('=').next().unwrap_or_default();
        let is_secret = |name: &str| {
            let lower = name.to_lowercase();
            name.starts_with('-') && SECRETS.iter().any(|secret| lower.contains(secret))
        };
        if word == "-P" || (is_secret(name) && !word.contains('=')) {
            is_next = true;
        } else if is_secret(name) {
            return format!("{name}={LEFT_OUT}");
        }
        word.clone()
    };
    command.iter().map(word).collect()
}

/// In lower case, wherever in a key.
const SECRETS: [&str; 5] = ["password", "passwd", "secret", "token", "private_key"];
const LEFT_OUT: &str = "(left out)";
const ROUND_TRIPS: usize = 7;
const ROUND_TRIP_MAX: Duration = Duration::from_secs(1);
const CONFIG_BYTES_MAX: u64 = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn root(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("flock-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        root
    }

    #[test]
    fn what_is_round_a_process_is_read_and_what_is_not_there_is_unknown() {
        let root = root("round");
        write(&root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
        write(&root, "sys/devices/system/node/online", "0-1\n");
        write(&root, "proc/cpuinfo", "processor: 0\nflags\t: fpu hypervisor lahf\n");
        write(&root, "sys/class/dmi/id/sys_vendor", "Amazon EC2\n");
        write(&root, "sys/class/dmi/id/product_name", "c6i.xlarge\n");
        write(&root, "run/.containerenv", "");
        write(&root, "proc/self/cgroup", "0::/a/b\n");
        write(&root, "sys/fs/cgroup/a/cpu.max", "150000 100000\n");
        write(&root, "sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
        write(&root, "sys/fs/cgroup/a/memory.max", "4096\n");
        write(&root, "sys/fs/cgroup/a/b/memory.max", "1024\n");
        let found = surroundings(&root);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found.governor.as_deref(), Some("powersave"));
        assert_eq!(found.numa_nodes, Some(2));
        assert_eq!(found.virtual_machine.as_deref(), Some("Amazon EC2 c6i.xlarge"));
        assert_eq!(found.container.as_deref(), Some("podman"));
        let limits = Limits { cpu_cores: Some(1.5), memory_bytes: Some(1024) };
        assert_eq!(found.limits, limits, "the tightest of all groups above");
        assert_eq!(surroundings(Path::new("/no/such/root")), Surroundings::default());
    }

    #[test]
    fn the_configuration_is_what_the_command_names_without_its_secrets() {
        let root = root("config");
        write(&root, "b.conf", "listener 1883\npassword = hunter2\nauth: {token: abc}\nend");
        write(&root, "key.pem", "-----BEGIN PRIVATE KEY-----\n");
        write(&root, "run.sh", "#!/bin/sh\n");
        let words = ["b", "--config=b.conf", "-k", "key.pem", "run.sh", "serve"];
        let config = config_of(&words.map(str::to_owned), Some(&root));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            config,
            "# b.conf\nlistener 1883\npassword (left out)\nauth: {token:(left out)\nend\n"
        );
    }

    #[test]
    fn passwords_stay_out_of_a_command_line() {
        let words =
            ["flock", "pub", "-P", "hunter2", "--password=x", "--api-token", "y", "-t", "a"];
        assert_eq!(
            without_passwords(&words.map(str::to_owned)).join(" "),
            "flock pub -P (left out) --password=(left out) --api-token (left out) -t a"
        );
    }

    #[test]
    fn cores_are_those_of_the_machine() {
        // Some of them may be out of this process's reach, and none are more.
        assert!(cores_online().is_none_or(|cores| cores as usize >= crate::engine::host::cores()));
        assert_eq!(members("0-2,5"), 4);
    }

    #[test]
    fn a_round_trip_is_of_who_listens() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let found = round_trip(&listener.local_addr().unwrap().to_string()).unwrap();
        assert_eq!(found.samples as usize, ROUND_TRIPS);
        assert!(found.min_us > 0.0 && found.min_us <= found.median_us);
        assert_eq!(round_trip("/run/no.sock"), None);
    }
}
