//! Whose process listens at an address: found by its socket, as far as the kernel lets us see.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Who listens at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nobody on this machine: the address is another's.
    Remote,
    /// This process.
    Ours,
    /// Those that no other of them started.
    Processes(Vec<Process>),
    /// On this machine, and not to be found. Why, in words.
    Unknown(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub name: String,
}

impl Process {
    pub(super) fn of(pid: u32) -> Self {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Self { pid, name: name.trim_end().to_owned() }
    }

    /// `process 1234 (mosquitto)`.
    pub fn words(&self) -> String {
        format!("process {} ({})", self.pid, self.name)
    }

    /// Whether its CPU cannot be told from ours.
    pub fn is_above_us(&self) -> bool {
        is_within(std::process::id(), self.pid)
    }

    /// Whether it only passes connections on to the broker, which runs elsewhere.
    pub fn is_proxy(&self) -> bool {
        PROXIES.contains(&self.name.as_str())
    }
}

/// Who listens at `host:port`, or at the path of a Unix socket.
pub fn owner(address: &str) -> Owner {
    let inodes = match address.starts_with('/') {
        true => unix_inodes(&read("/proc/net/unix"), address),
        false => {
            let Ok(found) = address.to_socket_addrs() else { return Owner::Remote };
            let local: Vec<SocketAddr> = found.filter(|address| is_here(address.ip())).collect();
            if local.is_empty() {
                return Owner::Remote;
            }
            let tables = [read("/proc/net/tcp"), read("/proc/net/tcp6")].concat();
            tcp_inodes(&tables, &local)
        }
    };
    if inodes.is_empty() {
        return Owner::Unknown(format!(
            "no process of this network namespace listens on {address}: the broker may be in a container"
        ));
    }
    let pids = holders(&inodes);
    if pids.contains(&std::process::id()) {
        return Owner::Ours;
    }
    let is_first = |pid: &&u32| !pids.iter().any(|other| other != *pid && is_within(**pid, *other));
    let firsts: Vec<Process> = pids.iter().filter(is_first).map(|pid| Process::of(*pid)).collect();
    match firsts.is_empty() {
        false => Owner::Processes(firsts),
        true => Owner::Unknown(format!(
            "the process that listens on {address} belongs to another user or container"
        )),
    }
}

/// Whether `pid` is `root`, or one of its descendants.
pub fn is_within(pid: u32, root: u32) -> bool {
    let mut at = Some(pid);
    for _ in 0..GENERATIONS_MAX {
        match at {
            Some(pid) if pid == root => return true,
            Some(pid) => at = parent(pid),
            None => return false,
        }
    }
    false
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in brackets and may contain anything.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok().filter(|pid| *pid > 0)
}

/// Whether the address is one of this machine's: others cannot be bound.
fn is_here(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

pub(super) fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Sockets that listen at one of these addresses, in tables of the kernel.
fn tcp_inodes(tables: &str, addresses: &[SocketAddr]) -> Vec<u64> {
    let listens = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let (ip, port) = local.split_once(':')?;
        let (ip, port) = (ip_of(ip)?.to_canonical(), u16::from_str_radix(port, 16).ok()?);
        let is_at = |address: &SocketAddr| {
            let wanted = address.ip().to_canonical();
            address.port() == port && (ip == wanted || ip.is_unspecified())
        };
        let is_wanted = *state == LISTENING && addresses.iter().any(is_at);
        inode.parse::<u64>().ok().filter(|_| is_wanted)
    };
    tables.lines().filter_map(listens).collect()
}

/// Words of four bytes, each as this machine has them in memory.
pub(super) fn ip_of(hex: &str) -> Option<IpAddr> {
    let mut bytes = Vec::new();
    for at in (0..hex.len()).step_by(8) {
        let word = u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        _ => None,
    }
}

fn unix_inodes(table: &str, path: &str) -> Vec<u64> {
    let listens = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_wanted = *fields.get(3)? == ACCEPTING && *fields.get(7)? == path;
        fields.get(6)?.parse::<u64>().ok().filter(|_| is_wanted)
    };
    table.lines().filter_map(listens).collect()
}

/// Processes that have one of these sockets open.
pub(super) fn holders(inodes: &[u64]) -> Vec<u32> {
    let names: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        files.flatten().any(|file| {
            let target = fs::read_link(file.path()).unwrap_or_default();
            names.iter().any(|name| target.as_os_str() == name.as_str())
        })
    };
    pids.filter(holds).collect()
}

/// TCP_LISTEN.
const LISTENING: &str = "0A";
/// `__SO_ACCEPTCON`.
const ACCEPTING: &str = "00010000";
/// What forwards ports of containers, or from other machines.
const PROXIES: [&str; 7] =
    ["docker-proxy", "rootlessport", "slirp4netns", "pasta", "kubectl", "ssh", "socat"];
const GENERATIONS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::io::{BufRead as _, BufReader};
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn tables_of_the_kernel_are_read() {
        let v4 = "  sl  local_address rem_address   st ...\n   \
            0: 0100007F:075B 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 41 1\n   \
            1: 00000000:075C 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 42 1\n   \
            2: 0100007F:075B 0100007F:9C40 01 00000000:00000000 00:00000000 00000000 0 0 43 1\n";
        let v6 = "   0: 00000000000000000000000000000000:075D \
            00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 \
            44 1\n   1: 00000000000000000000000001000000:075B \
            00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 \
            45 1\n";
        let tables = [v4, v6].concat();
        let found = |address: &str| tcp_inodes(&tables, &[address.parse().unwrap()]);
        assert_eq!(found("127.0.0.1:1883"), [41]);
        assert_eq!(found("10.0.0.5:1883"), [0; 0]);
        assert_eq!(found("10.0.0.5:1884"), [42], "all addresses");
        assert_eq!(found("127.0.0.1:1885"), [44], "all addresses of both families");
        assert_eq!(found("[::1]:1883"), [45]);
        let unix = "Num RefCount Protocol Flags Type St Inode Path\n\
            0: 00000002 00000000 00010000 0001 01 51 /run/b.sock\n\
            0: 00000003 00000000 00000000 0001 03 52 /run/b.sock\n";
        assert_eq!(unix_inodes(unix, "/run/b.sock"), [51]);
    }

    #[test]
    fn our_own_sockets_are_ours_and_others_have_no_owner_here() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(owner(&listener.local_addr().unwrap().to_string()), Owner::Ours);
        let path = std::env::temp_dir().join(format!("flock-owner-{}", std::process::id()));
        let unix = UnixListener::bind(&path).unwrap();
        assert_eq!(owner(&path.display().to_string()), Owner::Ours);
        drop(unix);
        fs::remove_file(&path).unwrap();
        // A network for documentation.
        assert_eq!(owner("192.0.2.1:1883"), Owner::Remote);
        let free = format!("127.0.0.1:{}", net::free_port().unwrap());
        let unknown = owner(&free);
        assert!(matches!(unknown, Owner::Unknown(why) if why.contains("network namespace")));
    }

    #[test]
    fn the_owner_is_the_first_of_the_processes_that_have_the_socket() {
        let script = "import os, socket, sys\n\
            one = socket.create_server(('127.0.0.1', 0))\n\
            print(one.getsockname()[1], flush=True)\n\
            os.fork()\n\
            os.write(1, b'forked\\n')\n\
            sys.stdin.read()\n";
        let mut broker = Command::new("python3");
        broker.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut broker = broker.spawn().unwrap();
        let mut lines = BufReader::new(broker.stdout.take().unwrap()).lines();
        let port = lines.next().unwrap().unwrap();
        for _ in 0..2 {
            assert_eq!(lines.next().unwrap().unwrap(), "forked");
        }
        let found = owner(&format!("127.0.0.1:{port}"));
        drop(broker.stdin.take());
        broker.wait().unwrap();
        let Owner::Processes(found) = found else { panic!("{found:?}") };
        assert_eq!(found.iter().map(|one| one.pid).collect::<Vec<_>>(), [broker.id()]);
        assert!(found[0].name.starts_with("python3") && !found[0].is_proxy(), "{found:?}");
        assert!(Process { pid: 1, name: "docker-proxy".into() }.is_proxy());
        assert!(!found[0].is_above_us() && Process::of(std::process::id()).is_above_us());
    }

    #[test]
    fn a_process_is_within_its_ancestors() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let own = std::process::id();
        assert!(is_within(child.id(), own) && is_within(own, own) && !is_within(own, child.id()));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
