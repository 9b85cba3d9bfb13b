//! Whether the process that listens for the clients is the broker, or passes them on to it: a
//! relay (a proxy, a load balancer) has a connection to a listener of this machine for each client.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use super::host::children;
use super::owner::{Process, holders, ip_of, read};
use crate::faults::CONNECT;

/// Connections of a process to listeners of others on this machine, by the listener.
pub(super) type Dials = HashMap<SocketAddr, usize>;

/// Watches whether a process dials on for each client.
#[derive(Debug)]
pub(super) struct RelayWatch {
    pid: u32,
    before: Dials,
    looks: u32,
}

/// A process that dials on, and to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Relay {
    pub(super) process: Process,
    pub(super) address: SocketAddr,
    /// Who listens there, where that is to be seen.
    pub(super) broker: Option<Process>,
}

impl Relay {
    /// `process 12 (haproxy) passes clients on to process 34 (mosquitto), which listens on ...`.
    pub(super) fn words(&self) -> String {
        let to = self.broker.as_ref().map_or("a process".to_owned(), Process::words);
        format!(
            "{} passes clients on to {to}, which listens on {}",
            self.process.words(),
            self.address
        )
    }
}

impl RelayWatch {
    /// Before any client is there: connections of the broker's own (to a database, another node)
    /// are there already.
    pub(super) fn new(pid: u32) -> Self {
        Self { pid, before: dials(pid), looks: 0 }
    }

    /// Looks, with so many clients connected.
    pub(super) fn look(&mut self, clients: u64) -> Option<Relay> {
        if clients < CLIENTS_MIN || self.looks >= LOOKS_MAX {
            return None;
        }
        self.looks += 1;
        let grown = |(address, now): &(&SocketAddr, &usize)| {
            now.saturating_sub(self.before.get(*address).copied().unwrap_or(0)) as u64
        };
        let now = dials(self.pid);
        let most = now.iter().max_by_key(|one| grown(one))?;
        (grown(&most) * 2 >= clients).then(|| Relay {
            process: Process::of(self.pid),
            address: *most.0,
            broker: holders(&listeners_at(*most.0)).into_iter().next().map(Process::of),
        })
    }
}

/// Whether what is sent to `address`, where `owner` listens, comes to `pid`: a client that connects
/// has the owner connect to it.
pub(super) fn leads_to(address: &str, owner: u32, pid: u32) -> bool {
    let Some(target) = address.to_socket_addrs().ok().and_then(|mut all| all.next()) else {
        return false;
    };
    let own = inodes_of(pid);
    let listens = |at: &SocketAddr| listeners_at(*at).iter().any(|inode| own.contains(inode));
    let Ok(mut stream) = TcpStream::connect_timeout(&target, PROBE_TIME_MAX) else { return false };
    // Some dial when the first bytes are there.
    let _ = stream.write_all(&CONNECT);
    let started = Instant::now();
    loop {
        if dials(owner).keys().any(listens) {
            return true;
        }
        if started.elapsed() > PROBE_TIME_MAX {
            return false;
        }
        std::thread::sleep(PROBE_PAUSE);
    }
}

/// Where a process and its descendants have connected to.
fn dials(pid: u32) -> Dials {
    let own = inodes_of(pid);
    let sockets = sockets();
    let mut listeners: HashMap<u16, Vec<&Socket>> = HashMap::new();
    for socket in sockets.iter().filter(|socket| socket.state == LISTENING) {
        listeners.entry(socket.local.port()).or_default().push(socket);
    }
    let is_own_port = |port: u16| {
        listeners.get(&port).is_some_and(|all| all.iter().any(|one| own.contains(&one.inode)))
    };
    let mut found = Dials::new();
    for socket in &sockets {
        let is_outgoing = socket.state == ESTABLISHED
            && own.contains(&socket.inode)
            && !is_own_port(socket.local.port());
        let at = listeners.get(&socket.remote.port());
        let is_to_another = at.is_some_and(|all| {
            all.iter().any(|one| one.takes(socket.remote) && !own.contains(&one.inode))
        });
        if is_outgoing && is_to_another {
            *found.entry(socket.remote).or_default() += 1;
        }
    }
    found
}

/// Sockets that listen at an address.
fn listeners_at(address: SocketAddr) -> Vec<u64> {
    let is_there = |socket: &Socket| socket.state == LISTENING && socket.takes(address);
    sockets().into_iter().filter(is_there).map(|socket| socket.inode).collect()
}

/// Sockets of a process and its descendants.
fn inodes_of(root: u32) -> HashSet<u64> {
    let (mut found, mut pending) = (HashSet::new(), vec![root]);
    for _ in 0..PROCESSES_MAX {
        let Some(pid) = pending.pop() else { break };
        pending.extend(children(pid));
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for file in files.flatten() {
            let target = fs::read_link(file.path()).unwrap_or_default();
            let inode = target.to_str().and_then(|name| {
                name.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()
            });
            found.extend(inode);
        }
    }
    found
}

/// A line of the kernel's table of TCP sockets.
struct Socket {
    local: SocketAddr,
    remote: SocketAddr,
    state: u8,
    inode: u64,
}

impl Socket {
    fn of(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let address = |text: &str| {
            let (ip, port) = text.split_once(':')?;
            let port = u16::from_str_radix(port, 16).ok()?;
            Some(SocketAddr::new(ip_of(ip)?.to_canonical(), port))
        };
        Some(Self {
            local: address(fields.get(1)?)?,
            remote: address(fields.get(2)?)?,
            state: u8::from_str_radix(fields.get(3)?, 16).ok()?,
            inode: fields.get(9)?.parse().ok()?,
        })
    }

    /// Whether a listener takes connections to an address of this machine.
    fn takes(&self, address: SocketAddr) -> bool {
        self.local.port() == address.port()
            && (self.local.ip() == address.ip() || self.local.ip().is_unspecified())
    }
}

fn sockets() -> Vec<Socket> {
    let tables = [read("/proc/net/tcp"), read("/proc/net/tcp6")].concat();
    tables.lines().filter_map(Socket::of).collect()
}

const ESTABLISHED: u8 = 1;
const LISTENING: u8 = 10;
/// Of fewer, the connections of a broker to its own helpers cannot be told apart.
const CLIENTS_MIN: u64 = 2;
/// A look reads the names of all open files.
const LOOKS_MAX: u32 = 4;
const PROCESSES_MAX: usize = 256;
const PROBE_TIME_MAX: Duration = Duration::from_secs(1);
const PROBE_PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::io::{BufRead as _, BufReader};
    use std::net::TcpListener;
    use std::process::{Child, ChildStdout, Command, Stdio};

    use super::*;

    /// A process that passes connections on to an address, one for each client.
    struct Proxy {
        process: Child,
        address: SocketAddr,
        /// Open as long as the process.
        _lines: BufReader<ChildStdout>,
    }

    impl Proxy {
        fn to(broker: SocketAddr) -> Self {
            let script = "import socket, sys\n\
                one = socket.create_server(('127.0.0.1', 0))\n\
                print(one.getsockname()[1], flush=True)\n\
                kept = []\n\
                while True:\n\
                \x20   kept.append(one.accept())\n\
                \x20   kept.append(socket.create_connection(('127.0.0.1', int(sys.argv[1]))))\n";
            let mut process = Command::new("python3");
            process.args(["-c", script, &broker.port().to_string()]);
            process.stdout(Stdio::piped()).stderr(Stdio::null());
            let mut process = process.spawn().unwrap();
            let mut lines = BufReader::new(process.stdout.take().unwrap());
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            let address = format!("127.0.0.1:{}", line.trim()).parse().unwrap();
            Self { process, address, _lines: lines }
        }
    }

    impl Drop for Proxy {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    #[test]
    fn a_process_that_connects_for_each_client_is_a_relay() {
        let broker = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = broker.local_addr().unwrap();
        let proxy = Proxy::to(to);
        let (pid, address) = (proxy.process.id(), proxy.address);
        let mut watch = RelayWatch::new(pid);
        let text = address.to_string();
        assert!(leads_to(&text, pid, std::process::id()), "the listener behind it is ours");
        assert!(!leads_to(&text, pid, u32::MAX), "it leads to no other");
        let clients: Vec<TcpStream> =
            (0..4).map(|_| TcpStream::connect(address).unwrap()).collect();
        // Each has been dialled for once it has been accepted at the other end.
        let behind: Vec<TcpStream> = (0..6).map(|_| broker.accept().unwrap().0).collect();
        let found = watch.look(clients.len() as u64).unwrap();
        assert_eq!((found.process.pid, found.address), (pid, to));
        assert_eq!(found.broker.as_ref().map(|one| one.pid), Some(std::process::id()));
        assert!(found.words().contains("passes clients on to process"), "{}", found.words());
        assert_eq!(watch.look(100), None, "not for every client");
        assert_eq!(watch.look(1), None);
        drop((clients, behind));
    }

    #[test]
    fn a_broker_is_no_relay() {
        let broker = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = broker.local_addr().unwrap();
        let mut watch = RelayWatch::new(std::process::id());
        let clients: Vec<(TcpStream, _)> = (0..3)
            .map(|_| (TcpStream::connect(address).unwrap(), broker.accept().unwrap()))
            .collect();
        assert_eq!(watch.look(clients.len() as u64), None);
    }
}
