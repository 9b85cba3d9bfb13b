//! The broker's process under the lab's control: started, killed, stopped, paused, resumed,
//! restarted; and, of a cluster, each node and engine and the links between them.

mod ensemble;
mod link;
mod probe;

use std::io::{self, Read as _};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub use ensemble::{Ensemble, EnsembleSpec, LinkSpec, MemberSource, MemberSpec};
pub use link::Link;
pub(crate) use probe::CONNECT;

use flock_model::Which;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// A broker process that faults can be done to: one we started, or one that we were given the pid
/// of.
#[derive(Debug)]
pub struct BrokerProcess {
    /// Program and arguments; empty when only a pid is known, and then `restart` is refused.
    command: Vec<String>,
    /// `host:port` or path where it accepts connections when it is up.
    address: String,
    child: Option<Child>,
    pid: Option<Pid>,
    /// Prints the broker's own process, where the command only starts it (a container).
    inspect: Vec<String>,
}

/// Why a fault could not be done.
#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    #[error("the broker's process is unknown: use --pid or --broker-command")]
    NoProcess,
    #[error("no process has the ID {pid}: --pid needs that of a running broker")]
    NoSuchProcess { pid: u32 },
    #[error("the broker cannot be restarted without --broker-command")]
    NoCommand,
    #[error("cannot start the broker with `{command}`: {source}")]
    Start { command: String, source: io::Error },
    #[error("the broker did not accept connections at {address} within {0:?}", UP_MAX)]
    NotUp { address: String },
    #[error(
        "another program listens on {address}: stop it, or use another port in --broker and \
             --broker-command"
    )]
    Taken { address: String },
    #[error("the broker exited at once ({status}): {output}")]
    Ended { status: String, output: String },
    #[error("unknown node {at} of {nodes}: give each node with --node, in order")]
    NoNode { at: u32, nodes: usize },
    #[error("unknown engine {at} of {engines}: give each engine with --engine, in order")]
    NoEngine { at: u32, engines: usize },
    #[error("none of the nodes (--node) is {which}")]
    NoSuchRole { which: Which },
    #[error("`last` needs an earlier step that selects the active or standby node")]
    NoLast,
    #[error("no link to cut or to restore: give those of each node with --link")]
    NoLink,
    #[error("cannot listen on port {port} of loopback for a link: {source}")]
    Link { port: u16, source: io::Error },
    #[error("cannot find the process of the container with `{command}`: {detail}")]
    Inspect { command: String, detail: String },
    #[error("cannot signal the broker: {0}")]
    Signal(#[from] rustix::io::Errno),
    #[error("the broker still runs {0:?} after the signal", DOWN_MAX)]
    StillThere,
}

impl BrokerProcess {
    /// A broker that runs already.
    pub fn of_pid(pid: u32, address: &str) -> Result<Self, FaultError> {
        let found = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // Somebody else's process is there, too, though no fault can be done to it.
        let found = found.filter(|pid| test_kill_process(*pid) != Err(rustix::io::Errno::SRCH));
        if found.is_none() {
            return Err(FaultError::NoSuchProcess { pid });
        }
        let mut process = Self::idle(Vec::new(), address);
        process.pid = found;
        Ok(process)
    }

    /// Starts a broker and waits until it accepts connections. Its output goes to ours' error
    /// stream only if `FLOCK_BROKER_OUTPUT` is set. Refused where another broker would be measured
    /// in its place.
    pub fn start(command: Vec<String>, address: &str) -> Result<Self, FaultError> {
        Self::start_inside(command, address, Vec::new())
    }

    /// The same where the broker is another process than that of the command: `inspect` prints its
    /// id once it is up.
    pub fn start_inside(
        command: Vec<String>,
        address: &str,
        inspect: Vec<String>,
    ) -> Result<Self, FaultError> {
        if accepts(address) {
            return Err(FaultError::Taken { address: address.to_owned() });
        }
        let mut process = Self::idle(command, address);
        process.inspect = inspect;
        process.spawn()?;
        Ok(process)
    }

    fn idle(command: Vec<String>, address: &str) -> Self {
        let address = address.to_owned();
        Self { command, address, child: None, pid: None, inspect: Vec::new() }
    }

    pub fn pid(&self) -> Option<u32> {
        self.pid.map(|pid| pid.as_raw_nonzero().get() as u32)
    }

    /// `host:port` or path.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn command(&self) -> &[String] {
        &self.command
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<(), FaultError> {
        self.signal(Signal::KILL)?;
        self.await_end()
    }

    /// SIGTERM, and the wait for the end.
    pub fn stop(&mut self) -> Result<(), FaultError> {
        self.signal(Signal::TERM)?;
        self.await_end()
    }

    /// SIGSTOP.
    pub fn pause(&mut self) -> Result<(), FaultError> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub fn resume(&mut self) -> Result<(), FaultError> {
        self.signal(Signal::CONT)
    }

    /// Starts it again with the same command, ending it first if it runs.
    pub fn restart(&mut self) -> Result<(), FaultError> {
        if self.command.is_empty() {
            return Err(FaultError::NoCommand);
        }
        if self.pid.is_some() {
            self.stop()?;
        }
        self.spawn()
    }

    fn signal(&self, signal: Signal) -> Result<(), FaultError> {
        let pid = self.pid.ok_or(FaultError::NoProcess)?;
        Ok(kill_process(pid, signal)?)
    }

    fn await_end(&mut self) -> Result<(), FaultError> {
        let started = Instant::now();
        loop {
            let gone = match (&mut self.child, self.pid) {
                (Some(child), _) => child.try_wait().is_ok_and(|status| status.is_some()),
                (None, Some(pid)) => test_kill_process(pid).is_err(),
                (None, None) => true,
            };
            if gone {
                self.child = None;
                self.pid = None;
                return Ok(());
            }
            if started.elapsed() > DOWN_MAX {
                return Err(FaultError::StillThere);
            }
            std::thread::sleep(POLL);
        }
    }

    fn spawn(&mut self) -> Result<(), FaultError> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(FaultError::NoCommand);
        };
        let loud = std::env::var_os("FLOCK_BROKER_OUTPUT").is_some();
        let output = || if loud { Stdio::inherit() } else { Stdio::null() };
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output())
            .spawn()
            .map_err(|source| FaultError::Start { command: self.command.join(" "), source })?;
        self.pid = Pid::from_raw(child.id() as i32);
        self.child = Some(child);
        self.await_up()?;
        if let Some((program, arguments)) = self.inspect.split_first() {
            self.pid = Some(inner_pid(program, arguments)?);
        }
        Ok(())
    }

    /// The last lines that a broker prints which ends at once. It is started again for them: a pipe
    /// that flock has to read would slow down a broker that is measured.
    fn last_words(&self) -> String {
        let hint = "set FLOCK_BROKER_OUTPUT=1 to see its output";
        let Some((program, arguments)) = self.command.split_first() else { return hint.into() };
        let mut again = Command::new(program);
        again.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let Ok(mut child) = again.spawn() else { return hint.into() };
        let started = Instant::now();
        while matches!(child.try_wait(), Ok(None)) && started.elapsed() < WORDS_MAX {
            std::thread::sleep(POLL);
        }
        let _ = child.kill();
        let _ = child.wait();
        // A process that it left behind may keep the pipe open.
        let (mut bytes, flags) = (vec![0; 64 * 1024], OFlags::NONBLOCK);
        let pipe = child.stderr.take().filter(|pipe| fcntl_setfl(pipe, flags).is_ok());
        let read = pipe.and_then(|mut pipe| pipe.read(&mut bytes).ok()).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[..read]);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|it| !it.is_empty()).collect();
        match &lines[lines.len().saturating_sub(LINES_MAX)..] {
            [] => hint.to_owned(),
            last => last.join("; "),
        }
    }

    fn await_up(&mut self) -> Result<(), FaultError> {
        let started = Instant::now();
        loop {
            if let Some(child) = &mut self.child
                && let Ok(Some(status)) = child.try_wait()
            {
                (self.child, self.pid) = (None, None);
                let output = self.last_words();
                return Err(FaultError::Ended { status: status.to_string(), output });
            }
            if accepts(&self.address) {
                return Ok(());
            }
            if started.elapsed() > UP_MAX {
                return Err(FaultError::NotUp { address: self.address.clone() });
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for BrokerProcess {
    /// A broker that we started ends with us.
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            if let Some(pid) = self.pid {
                // It may be paused, and then would not hear SIGTERM.
                let _ = kill_process(pid, Signal::CONT);
                let _ = kill_process(pid, Signal::TERM);
            }
            if !self.inspect.is_empty()
                && let Some(pid) = Pid::from_raw(child.id() as i32)
            {
                // A container may belong to another user; its client passes the signal on.
                let _ = kill_process(pid, Signal::TERM);
            }
            let started = Instant::now();
            while started.elapsed() < DROP_MAX {
                if child.try_wait().is_ok_and(|status| status.is_some()) {
                    return;
                }
                std::thread::sleep(POLL);
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn inner_pid(program: &str, arguments: &[String]) -> Result<Pid, FaultError> {
    let failed = |detail: String| FaultError::Inspect {
        command: format!("{program} {}", arguments.join(" ")),
        detail,
    };
    let done = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8_lossy(&done.stdout);
    let pid = text.trim().parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw);
    pid.ok_or_else(|| {
        let errors = String::from_utf8_lossy(&done.stderr);
        failed(format!("got `{}{}`", text.trim(), errors.trim()))
    })
}

/// Whether something accepts connections at `host:port`, or at the path of a Unix socket.
pub fn accepts(address: &str) -> bool {
    if address.starts_with('/') {
        return UnixStream::connect(address).is_ok();
    }
    address.to_socket_addrs().is_ok_and(|mut found| {
        found.any(|address| {
            TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok_and(is_to_another)
        })
    })
}

/// A connection from a port to the same port reaches itself: nobody accepts there, but the kernel
/// happened to give this end the port that was asked for.
fn is_to_another(connection: TcpStream) -> bool {
    match (connection.local_addr(), connection.peer_addr()) {
        (Ok(local), Ok(peer)) => local != peer,
        _ => false,
    }
}

const POLL: Duration = Duration::from_millis(20);
const UP_MAX: Duration = Duration::from_secs(60);
const DOWN_MAX: Duration = Duration::from_secs(30);
const DROP_MAX: Duration = Duration::from_secs(5);
/// For a broker that is started only to say why it ends.
const WORDS_MAX: Duration = Duration::from_secs(5);
const LINES_MAX: usize = 3;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};

    use rustix::net::sockopt::set_socket_reuseaddr;
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

    use super::*;

    #[test]
    fn a_broker_that_exits_at_once_is_quoted() {
        let said = |script: &str| {
            let command = ["sh", "-c", script].map(str::to_owned).to_vec();
            let address = format!("127.0.0.1:{}", net::free_port().unwrap());
            BrokerProcess::start(command, &address).unwrap_err().to_string()
        };
        assert_eq!(
            said("for n in 1 2 3 4; do echo line $n >&2; done; echo; exit 3"),
            "the broker exited at once (exit status: 3): line 2; line 3; line 4"
        );
        let silent = said("exit 1");
        assert!(silent.ends_with("set FLOCK_BROKER_OUTPUT=1 to see its output"), "{silent}");
        // What it leaves behind keeps its error stream open.
        let left = said("echo busy >&2; sleep 30 & exit 2");
        assert!(left.ends_with("(exit status: 2): busy"), "{left}");
    }

    #[test]
    fn a_connection_to_itself_is_no_broker() {
        let here = SocketAddrV4::new(Ipv4Addr::LOCALHOST, net::free_port().unwrap());
        let own = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        set_socket_reuseaddr(&own, true).unwrap();
        bind(&own, &here).unwrap();
        connect(&own, &here).unwrap();
        assert!(!is_to_another(TcpStream::from(own)));

        let broker = TcpListener::bind("127.0.0.1:0").unwrap();
        let reaching = TcpStream::connect(broker.local_addr().unwrap()).unwrap();
        assert!(is_to_another(reaching));
    }
}
