//! The kernel and the limits of the process.

use std::fs;
use std::path::Path;

use super::Finding;
use config::{Address, Config, Machine};

/// The machine, as its files below `root` describe it.
pub(super) struct System<'a> {
    pub(super) root: &'a Path,
    /// The process of the broker, if it runs.
    pub(super) broker: Option<i32>,
}

impl System<'_> {
    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.trim().parse().ok()
    }

    /// The limit of the running broker counts; else that of this process, which a service manager
    /// may change.
    pub(super) fn descriptors(&self, config: &Config, machine: &Machine, found: &mut Vec<Finding>) {
        let area = "descriptors";
        let wanted = u64::from(config.limits.connections_max);
        let own = self.broker.and_then(|pid| self.open_files_of(pid));
        let (whose, limit) = match own {
            Some(limit) => ("the running broker", Some(limit)),
            None => ("this shell", machine.open_files_max),
        };
        let Some(limit) = limit else {
            found.push(Finding::ok(area, format!("{whose} may open any number of files")));
            return;
        };
        let fix = "in the unit: LimitNOFILE=1048576; in a shell: ulimit -n 1048576";
        found.push(match limit {
            ..FEW_FILES => {
                let text = format!(
                    "{whose} may open {limit} files; each connection needs one \
                    (connections_max: {wanted})"
                );
                Finding::warn(area, text, fix)
            }
            _ => Finding::ok(area, format!("{whose} may open {limit} files")),
        });
        let key = "proc/sys/fs/file-max";
        if let Some(all) = self.number(key).filter(|all| *all < limit) {
            let text = format!("the kernel allows {all} open files in all, the limit is {limit}");
            found.push(Finding::warn(area, text, format!("sysctl -w fs.file-max={limit}")));
        }
    }

    fn open_files_of(&self, pid: i32) -> Option<u64> {
        let limits = self.read(&format!("proc/{pid}/limits"))?;
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }

    pub(super) fn kernel(&self, config: &Config, found: &mut Vec<Finding>) {
        self.accept_queue(found);
        self.port_range(config, found);
        self.connection_tracking(config, found);
        self.swap(found);
        if self.read("sys/kernel/mm/transparent_hugepage/enabled").is_some() {
            let text = "transparent huge pages are off for the broker, which asks for that itself";
            found.push(Finding::ok("memory", text));
        }
    }

    fn accept_queue(&self, found: &mut Vec<Finding>) {
        let area = "accept queue";
        for (path, key) in [
            ("proc/sys/net/core/somaxconn", "net.core.somaxconn"),
            ("proc/sys/net/ipv4/tcp_max_syn_backlog", "net.ipv4.tcp_max_syn_backlog"),
        ] {
            let Some(value) = self.number(path) else { continue };
            let queue_min = if key.ends_with("somaxconn") { ACCEPT_QUEUE } else { SYN_QUEUE_MIN };
            found.push(match value < queue_min {
                true => {
                    let text =
                        format!("{key} is {value}: a storm of connections may overflow the queue");
                    Finding::warn(area, text, format!("sysctl -w {key}={ACCEPT_QUEUE}"))
                }
                false => Finding::ok(area, format!("{key} is {value}")),
            });
        }
    }

    /// A port in the range may be taken by a connection that another program opens.
    fn port_range(&self, config: &Config, found: &mut Vec<Finding>) {
        let Some(range) = self.read("proc/sys/net/ipv4/ip_local_port_range") else { return };
        let mut bounds = range.split_whitespace().filter_map(|text| text.parse::<u16>().ok());
        let (Some(first), Some(last)) = (bounds.next(), bounds.next()) else { return };
        let reserved = self.read("proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default();
        let reserved = reserved.trim();
        let is_at_risk =
            |port: &u16| *port != 0 && (first..=last).contains(port) && !is_listed(reserved, *port);
        let ports: Vec<u16> = ports_of(config).into_iter().filter(is_at_risk).collect();
        let shown: Vec<String> = ports.iter().map(u16::to_string).collect();
        let shown = shown.join(",");
        found.push(match ports.is_empty() {
            true => Finding::ok("ports", format!("none is in the ephemeral range {first}-{last}")),
            false => {
                let text = format!(
                    "{shown}: in the ephemeral range {first}-{last}, so outgoing connections of \
                    other programs may take them before the broker starts"
                );
                let all = [reserved, &shown];
                let all: Vec<&str> = all.into_iter().filter(|text| !text.is_empty()).collect();
                let list = all.join(",");
                let fix = format!("sysctl -w net.ipv4.ip_local_reserved_ports={list}");
                Finding::warn("ports", text, fix)
            }
        });
    }

    fn connection_tracking(&self, config: &Config, found: &mut Vec<Finding>) {
        let area = "connection tracking";
        let Some(max) = self.number("proc/sys/net/netfilter/nf_conntrack_max") else { return };
        let count = self.number("proc/sys/net/netfilter/nf_conntrack_count").unwrap_or(0);
        let wanted = u64::from(config.limits.connections_max);
        let is_nearly_full = count > max / 10 * 8;
        found.push(if is_nearly_full || max < wanted {
            let text = format!(
                "the firewall tracks {count} of at most {max} connections, and the broker may \
                have {wanted}; above the limit packets are dropped"
            );
            let max = (wanted * 2).max(max * 2);
            Finding::warn(area, text, format!("sysctl -w net.netfilter.nf_conntrack_max={max}"))
        } else {
            Finding::ok(area, format!("{count} of at most {max} connections"))
        });
    }

    fn swap(&self, found: &mut Vec<Finding>) {
        let has_swap = self.read("proc/swaps").is_some_and(|text| text.lines().count() > 1);
        let Some(swappiness) = self.number("proc/sys/vm/swappiness").filter(|_| has_swap) else {
            return;
        };
        found.push(match swappiness {
            ..=SWAPPINESS_MAX => Finding::ok("memory", format!("vm.swappiness is {swappiness}")),
            _ => {
                let text = format!(
                    "vm.swappiness is {swappiness}: memory of idle sessions may be swapped out, \
                    and their next message then waits for the disk"
                );
                let fix = format!("sysctl -w vm.swappiness={SWAPPINESS_MAX}");
                Finding::warn("memory", text, fix)
            }
        });
    }

    pub(super) fn memory(&self, config: &Config, machine: &Machine, found: &mut Vec<Finding>) {
        let (limit, there) = (config.limits.memory_bytes_max, machine.memory_bytes);
        let shown = |bytes: u64| format!("{} MiB", bytes >> 20);
        found.push(if limit > there / 100 * MEMORY_PERCENT_MAX {
            let text = format!(
                "limits.memory_bytes_max is {}, and the machine or cgroup has {}: the kernel may \
                kill the broker before its own limit acts",
                shown(limit),
                shown(there)
            );
            Finding::warn("memory", text, "omit limits.memory_bytes_max, or raise MemoryMax")
        } else {
            let text = format!("the broker may use {} of {}", shown(limit), shown(there));
            Finding::ok("memory", text)
        });
    }

    pub(super) fn clock(&self, now_secs: u64, found: &mut Vec<Finding>) {
        let area = "clock";
        if now_secs < CLOCK_SECS_MIN {
            let text = format!("the clock shows {}", base::moment::text_of(now_secs));
            found.push(Finding::fail(area, text, "timedatectl set-ntp true"));
            return;
        }
        let is_synchronized = self.root.join("run/systemd/timesync/synchronized").exists();
        let others = ["run/chrony/chronyd.pid", "run/ntpd.pid", "var/run/ntpd.pid"];
        let other = others.iter().find(|path| self.root.join(path).exists());
        found.push(match (is_synchronized, other) {
            (true, _) => Finding::ok(area, "systemd-timesyncd has synchronized it"),
            (false, Some(path)) => Finding::ok(area, format!("a time service runs (/{path})")),
            (false, None) => {
                let text = "no sign of a time service: tokens, certificates and session expiry \
                    need the right time";
                Finding::warn(area, text, "timedatectl set-ntp true, or check the host's clock")
            }
        });
    }
}

/// Ports on which the broker listens.
fn ports_of(config: &Config) -> Vec<u16> {
    let listeners = config.listeners.iter().filter_map(|listener| match &listener.address {
        Address::Ip(address) => Some(address.port()),
        Address::Unix(_) => None,
    });
    listeners.chain(config.http.map(|address| address.port())).collect()
}

/// A list such as `8080,9000-9010`.
fn is_listed(list: &str, port: u16) -> bool {
    list.split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let bounds = (first.trim().parse::<u16>(), last.trim().parse::<u16>());
        matches!(bounds, (Ok(first), Ok(last)) if (first..=last).contains(&port))
    })
}

/// Fewer open files than a service has without any configuration.
const FEW_FILES: u64 = 4096;

/// Connections that wait to be accepted, as the broker asks for them.
const ACCEPT_QUEUE: u64 = 4096;

/// Half-open ones are answered within a round trip.
const SYN_QUEUE_MIN: u64 = 1024;

const SWAPPINESS_MAX: u64 = 10;

/// What is left is for the page cache and for the heap's own needs.
const MEMORY_PERCENT_MAX: u64 = 90;

/// 2026-01-01: a clock before that was never set.
const CLOCK_SECS_MIN: u64 = 1_767_225_600;

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn machine_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn kernel(files: &[(&str, &str)], config: &Config) -> Vec<Finding> {
        let root = machine_with(files);
        let mut found = Vec::new();
        System { root: root.path(), broker: None }.kernel(config, &mut found);
        found
    }

    fn config(text: &str) -> Config {
        let file = config::SourceFile { path: "quelea.toml".into(), text: text.into() };
        let sources = config::Sources { file: Some(file), ..config::Sources::default() };
        config::load(&sources, &Machine::UNKNOWN).unwrap().config
    }

    #[test]
    fn each_setting_of_the_kernel_has_its_limit() {
        let config = config("");
        for (path, bad, good, fix) in [
            ("proc/sys/net/core/somaxconn", "128", "4096", "net.core.somaxconn=4096"),
            (
                "proc/sys/net/netfilter/nf_conntrack_max",
                "65536",
                "4000000",
                "nf_conntrack_max=2000000",
            ),
        ] {
            let found = kernel(&[(path, bad)], &config);
            assert_eq!((found.len(), found[0].level), (1, Level::Warn), "{path}");
            assert!(found[0].fix.as_ref().unwrap().ends_with(fix), "{found:?}");
            assert_eq!(kernel(&[(path, good)], &config)[0].level, Level::Ok, "{path}");
        }
        assert!(kernel(&[], &config).is_empty(), "what cannot be read is not judged");
        let swaps = ("proc/swaps", "Filename Type\n/swap file\n");
        let found = kernel(&[swaps, ("proc/sys/vm/swappiness", "60\n")], &config);
        assert_eq!(found[0].level, Level::Warn);
        let without = kernel(&[("proc/sys/vm/swappiness", "60\n")], &config);
        assert!(without.is_empty(), "without swap it does not matter");
    }

    #[test]
    fn a_port_in_the_ephemeral_range_is_to_be_reserved() {
        let range = ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
        let key = "proc/sys/net/ipv4/ip_local_reserved_ports";
        let usual = kernel(&[range], &config(""));
        assert_eq!(usual[0].level, Level::Ok);
        let config = config("[[listeners]]\nurl = \"tcp://127.0.0.1:41883\"");
        let found = kernel(&[range, (key, "40000\n")], &config);
        assert_eq!(found[0].level, Level::Warn);
        let fix = found[0].fix.as_deref();
        assert_eq!(fix, Some("sysctl -w net.ipv4.ip_local_reserved_ports=40000,41883"));
        assert_eq!(kernel(&[range, (key, "41000-42000\n")], &config)[0].level, Level::Ok);
    }

    #[test]
    fn the_limits_of_the_running_broker_count() {
        let limits = "Limit Soft Hard Units\nMax open files            1024    2048    files\n";
        let root = machine_with(&[("proc/7/limits", limits)]);
        let machine = Machine { open_files_max: Some(1_000_000), ..Machine::UNKNOWN };
        let levels = |broker| {
            let mut found = Vec::new();
            let system = System { root: root.path(), broker };
            system.descriptors(&config(""), &machine, &mut found);
            (found[0].level, found[0].text.clone())
        };
        let (level, text) = levels(Some(7));
        assert!(level == Level::Warn && text.contains("2048"), "{text}");
        assert_eq!(levels(None).0, Level::Ok);
    }

    #[test]
    fn memory_and_clock_have_their_bounds() {
        let machine = Machine { memory_bytes: 1 << 30, ..Machine::UNKNOWN };
        let root = machine_with(&[("run/systemd/timesync/synchronized", "")]);
        let system = System { root: root.path(), broker: None };
        let mut found = Vec::new();
        system.memory(&config("limits.memory_bytes_max = \"1GiB\""), &machine, &mut found);
        system.memory(&config("limits.memory_bytes_max = \"512MiB\""), &machine, &mut found);
        system.clock(86_400, &mut found);
        system.clock(CLOCK_SECS_MIN, &mut found);
        let bare = machine_with(&[]);
        System { root: bare.path(), broker: None }.clock(CLOCK_SECS_MIN, &mut found);
        let levels: Vec<_> = found.iter().map(|found| found.level).collect();
        assert_eq!(levels, [Level::Warn, Level::Ok, Level::Fail, Level::Ok, Level::Warn]);
    }
}
