//! The commander's side: agents as a pool.

use std::io::{self, BufRead as _, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::drift::{ClockWatch, Reading};
use super::wire::{
    FromAgent, Mismatch, Offer, SILENCE_MAX, ToAgent, check_greeting, greet, notice_silence,
    receive, send,
};
use crate::engine::clock::{Clock, monotonic_ns};
use crate::engine::host;
use crate::engine::judge::Part;
use crate::engine::pool::{Pool, PoolNews, PoolOrder};
use crate::engine::tally::Tick;
use flock_measure::AgentInfo;
use flock_measure::ledger::SentTable;
use flock_model::Scenario;

/// Agents that carry out a run together.
pub struct RemotePool {
    agents: Vec<Agent>,
    news: Receiver<Heard>,
    pinged_at: Instant,
    /// Child processes, ended with the pool.
    children: Vec<Child>,
}

/// Who said it, when our monotonic clock showed what, and what.
type Heard = (usize, i64, io::Result<FromAgent>);

struct Agent {
    stream: TcpStream,
    info: AgentInfo,
    threads: usize,
    alive: bool,
    /// When its last message came.
    heard_at: Instant,
    /// Its monotonic clock minus ours.
    offset_ns: i64,
    /// Absent where both read the same clock.
    watch: Option<ClockWatch>,
    /// Of its machine.
    boot_id: String,
}

/// Why a run with agents cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("cannot reach agent {address}: {source} (is `flock agent` running there?)")]
    Unreachable { address: String, source: io::Error },
    #[error("cannot resolve agents {name}: {source}")]
    Unknown { name: String, source: io::Error },
    #[error("{address} is not a flock agent: {source}")]
    NoAgent { address: String, source: io::Error },
    #[error("agent {address}: {mismatch} (run the same version of flock on both)")]
    Protocol { address: String, mismatch: String },
    #[error("agent {address} is version {theirs}, this is {ours}: run the same version")]
    Version { address: String, theirs: String, ours: String },
    #[error("no agent can run its part of the load:{0}")]
    AllRefused(String),
    #[error("cannot start a local agent process: {0}")]
    Spawn(#[source] io::Error),
}

impl RemotePool {
    /// Connects to agents, measures their clocks, shares the work out and starts their threads.
    pub fn connect(
        scenario: &Scenario,
        addresses: &[String],
        clock: Clock,
        tag: u16,
        threads: Option<usize>,
    ) -> Result<Self, AgentError> {
        let mut agents = Vec::new();
        for address in addresses {
            agents.push(meet(address)?);
        }
        let offers =
            |part: u64, parts: u64| Offer { scenario: scenario.part(part, parts), tag, threads };
        share_out(&mut agents, offers)?;
        for agent in &mut agents {
            start(agent, clock)?;
        }
        let (to, news) = channel();
        for (at, agent) in agents.iter().enumerate() {
            let stream = agent.stream.try_clone().map_err(|source| AgentError::NoAgent {
                address: agent.info.address.clone(),
                source,
            })?;
            listen(at, stream, to.clone());
        }
        for agent in &mut agents {
            agent.heard_at = Instant::now();
        }
        Ok(Self { agents, news, pinged_at: Instant::now(), children: Vec::new() })
    }

    /// Starts `processes` agents of this very program on this machine.
    pub fn spawn(
        scenario: &Scenario,
        processes: usize,
        clock: Clock,
        tag: u16,
        threads: usize,
    ) -> Result<Self, AgentError> {
        let program = match std::env::var_os("FLOCK_PROGRAM") {
            Some(program) => program.into(),
            None => std::env::current_exe().map_err(AgentError::Spawn)?,
        };
        let (mut children, mut addresses) = (Children(Vec::new()), Vec::new());
        for _ in 0..processes {
            let child = Command::new(&program)
                .args(["agent", "--listen", "127.0.0.1:0", "--once"])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn();
            children.0.push(child.map_err(AgentError::Spawn)?);
            let out = children.0.last_mut().and_then(|child| child.stdout.take());
            let mut line = String::new();
            if let Some(out) = out {
                BufReader::new(out).read_line(&mut line).map_err(AgentError::Spawn)?;
            }
            let address = line.trim().strip_prefix("listening ").ok_or_else(|| {
                AgentError::Spawn(io::Error::other("the agent process did not report its address"))
            })?;
            addresses.push(address.to_owned());
        }
        let mut pool = Self::connect(scenario, &addresses, clock, tag, Some(threads))?;
        pool.children = std::mem::take(&mut children.0);
        Ok(pool)
    }

    fn tell(&mut self, message: &ToAgent) {
        for agent in self.agents.iter_mut().filter(|agent| agent.alive) {
            // A broken connection shows at the reader, which tells of the death.
            let _ = send(&mut agent.stream, message);
        }
    }

    /// Asks the time of those who have a clock of their own.
    fn ping(&mut self) {
        if self.pinged_at.elapsed() < PING_PAUSE {
            return;
        }
        self.pinged_at = Instant::now();
        for agent in self.agents.iter_mut().filter(|agent| agent.alive && agent.watch.is_some()) {
            let _ = send(&mut agent.stream, &ToAgent::Ping { sent_ns: monotonic_ns() });
        }
    }

    fn bury(&mut self, at: usize, why: String) -> PoolNews {
        let agent = &mut self.agents[at];
        agent.alive = false;
        agent.info.died = Some(why.clone());
        PoolNews::Lost {
            threads: agent.threads,
            why: format!("agent {}: {why}", agent.info.address),
        }
    }

    /// An agent that lives and has said nothing for too long: its process hangs, or its host.
    fn silent_one(&self) -> Option<usize> {
        self.agents.iter().position(|agent| agent.alive && agent.heard_at.elapsed() > SILENCE_MAX)
    }

    /// Waits for one message of `wanted` kind from every agent that lives.
    fn gather(&mut self, mut wanted: impl FnMut(usize, FromAgent) -> bool) {
        let mut missing: Vec<bool> = self.agents.iter().map(|agent| agent.alive).collect();
        let deadline = Instant::now() + GATHER_MAX;
        while missing.contains(&true) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.news.recv_timeout(left) {
                Ok((at, _, Ok(message))) => missing[at] &= !wanted(at, message),
                Ok((at, _, Err(error))) => {
                    // Who hangs up when all is said is not dead.
                    if std::mem::take(&mut missing[at]) && self.agents[at].alive {
                        self.bury(at, error.to_string());
                    }
                }
                Err(_) => {
                    for at in (0..missing.len()).filter(|at| missing[*at]) {
                        self.bury(at, format!("no answer within {GATHER_MAX:?}"));
                    }
                    return;
                }
            }
        }
    }
}

impl Pool for RemotePool {
    fn order(&mut self, order: &PoolOrder) {
        self.tell(&ToAgent::Order(order.clone()));
    }

    fn next(&mut self, timeout: Duration) -> Option<PoolNews> {
        self.ping();
        let received = match self.news.try_recv() {
            Ok(received) => received,
            Err(_) => {
                // All is heard that has come: who has nothing there is silent indeed.
                if let Some(at) = self.silent_one() {
                    return Some(self.bury(at, format!("silent for {SILENCE_MAX:?}")));
                }
                self.news.recv_timeout(timeout).ok()?
            }
        };
        match received {
            (at, back_ns, Ok(message)) => {
                let agent = &mut self.agents[at];
                // Pings are answered also where the load hangs.
                if !matches!(message, FromAgent::Clock { .. }) {
                    agent.heard_at = Instant::now();
                }
                match message {
                    // What comes late from somebody who was given up no longer counts.
                    FromAgent::News(news) if agent.alive => Some(news),
                    FromAgent::Clock { monotonic_ns, sent_ns } => {
                        let reading = Reading::of(sent_ns, monotonic_ns, back_ns);
                        agent.watch.iter_mut().for_each(|watch| watch.add(reading));
                        None
                    }
                    _ => None,
                }
            }
            (at, _, Err(error)) if self.agents[at].alive => Some(self.bury(at, error.to_string())),
            (_, _, Err(_)) => None,
        }
    }

    fn threads(&self) -> usize {
        self.agents.iter().map(|agent| agent.threads).sum()
    }

    fn finish(&mut self) -> (SentTable, Vec<Tick>) {
        self.tell(&ToAgent::Finish);
        let (mut all, mut all_ticks) = (SentTable::default(), Vec::new());
        self.gather(|_, message| match message {
            FromAgent::Sent { sent, ticks } => {
                all.merge(sent);
                all_ticks.extend(ticks);
                true
            }
            FromAgent::News(PoolNews::Tick(tick)) => {
                all_ticks.push(*tick);
                false
            }
            _ => false,
        });
        all.sort();
        (all, all_ticks)
    }

    fn judge(&mut self, sent: &SentTable) -> Part {
        self.tell(&ToAgent::Judge(sent.clone()));
        let mut whole = Part::default();
        let mut machines = Vec::new();
        self.gather(|at, message| match message {
            FromAgent::Part(part) => {
                machines.push((at, part.contention));
                whole.merge(*part);
                true
            }
            _ => false,
        });
        for (at, mut contention) in machines {
            let of_machine = |agent: &&Agent| agent.boot_id == self.agents[at].boot_id;
            if self.agents.iter().filter(of_machine).count() > 1 {
                // They take each other for strangers.
                contention.others_percent = None;
            }
            let agent = &mut self.agents[at];
            // Of our own machine we know more ourselves.
            if agent.watch.is_some() {
                agent.info.contention = Some(contention);
            }
        }
        whole
    }

    fn agents(&self) -> Vec<AgentInfo> {
        let told = self.agents.iter().map(|agent| {
            let mut info = agent.info.clone();
            agent.watch.iter().for_each(|watch| watch.tell(&mut info));
            info
        });
        told.collect()
    }
}

impl Drop for RemotePool {
    fn drop(&mut self) {
        for agent in &self.agents {
            let _ = agent.stream.shutdown(std::net::Shutdown::Both);
        }
        drop(Children(std::mem::take(&mut self.children)));
    }
}

/// Child processes that do not outlive their parent's interest.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Makes an agent's acquaintance: version, machine, clock.
fn meet(address: &str) -> Result<Agent, AgentError> {
    let stream = TcpStream::connect(address)
        .map_err(|source| AgentError::Unreachable { address: address.to_owned(), source })?;
    let no_agent = |source| AgentError::NoAgent { address: address.to_owned(), source };
    let mut agent = Agent {
        stream,
        info: AgentInfo { address: address.to_owned(), ..AgentInfo::default() },
        threads: 0,
        alive: true,
        heard_at: Instant::now(),
        offset_ns: 0,
        watch: None,
        boot_id: String::new(),
    };
    agent.stream.set_nodelay(true).map_err(no_agent)?;
    notice_silence(&agent.stream).map_err(no_agent)?;
    agent.stream.set_read_timeout(Some(ANSWER_MAX)).map_err(no_agent)?;
    greet(&mut agent.stream).map_err(no_agent)?;
    check_greeting(&mut agent.stream).map_err(|mismatch| match mismatch {
        Mismatch::Io(source) => no_agent(source),
        mismatch => {
            AgentError::Protocol { address: address.to_owned(), mismatch: mismatch.to_string() }
        }
    })?;
    let FromAgent::Hello { version, machine, boot_id } = ask(&mut agent, None).map_err(no_agent)?
    else {
        return Err(no_agent(io::Error::other("no greeting")));
    };
    let ours = env!("CARGO_PKG_VERSION");
    if version != ours {
        let address = address.to_owned();
        return Err(AgentError::Version { address, theirs: version, ours: ours.into() });
    }
    agent.info.machine = *machine;
    let is_here = Some(&boot_id) == host::sysctl("kernel.random.boot_id").as_ref();
    agent.boot_id = boot_id;
    if !is_here {
        measure_clock(&mut agent).map_err(no_agent)?;
    }
    Ok(agent)
}

/// The offset by the quickest of several round trips, which is wrong by half of it at most.
fn measure_clock(agent: &mut Agent) -> io::Result<()> {
    let mut readings = Vec::new();
    for _ in 0..PINGS {
        let sent_ns = monotonic_ns();
        let answer = ask(agent, Some(&ToAgent::Ping { sent_ns }))?;
        let FromAgent::Clock { monotonic_ns: theirs_ns, .. } = answer else {
            return Err(io::Error::other("no answer to a ping"));
        };
        readings.push(Reading::of(sent_ns, theirs_ns, monotonic_ns()));
    }
    agent.offset_ns = agent.watch.insert(ClockWatch::default()).begin(readings.into_iter());
    Ok(())
}

/// Offers each agent its part; those that refuse are left out and the work is cut again.
fn share_out(agents: &mut Vec<Agent>, offer: impl Fn(u64, u64) -> Offer) -> Result<(), AgentError> {
    let mut refusals = String::new();
    while !agents.is_empty() {
        let parts = agents.len() as u64;
        let mut willing = Vec::new();
        for (part, mut agent) in agents.drain(..).enumerate() {
            let package = ToAgent::Offer(Box::new(offer(part as u64, parts)));
            let address = agent.info.address.clone();
            let answer = ask(&mut agent, Some(&package))
                .map_err(|source| AgentError::NoAgent { address: address.clone(), source })?;
            match answer {
                FromAgent::Accepted { clients, threads } => {
                    agent.info.clients = clients;
                    agent.threads = threads;
                    willing.push(agent);
                }
                FromAgent::Refused { why } => refusals.push_str(&format!("\n  {address}: {why}")),
                _ => refusals.push_str(&format!("\n  {address}: unexpected answer")),
            }
        }
        *agents = willing;
        if agents.len() as u64 == parts {
            return Ok(());
        }
    }
    Err(AgentError::AllRefused(refusals))
}

fn start(agent: &mut Agent, clock: Clock) -> Result<(), AgentError> {
    let epoch_ns = clock.epoch_ns() + agent.offset_ns;
    let address = agent.info.address.clone();
    let answer = ask(agent, Some(&ToAgent::Start { epoch_ns, wall_ns: clock.wall_ns() }));
    match answer.and_then(|answer| agent.stream.set_read_timeout(None).map(|()| answer)) {
        Ok(FromAgent::Started) => Ok(()),
        Ok(_) => {
            let source = io::Error::other("unexpected answer");
            Err(AgentError::NoAgent { address, source })
        }
        Err(source) => Err(AgentError::NoAgent { address, source }),
    }
}

fn ask(agent: &mut Agent, question: Option<&ToAgent>) -> io::Result<FromAgent> {
    if let Some(question) = question {
        send(&mut agent.stream, question)?;
    }
    receive(&mut agent.stream)?.ok_or_else(|| io::Error::other("the agent closed the connection"))
}

fn listen(at: usize, stream: TcpStream, to: Sender<Heard>) {
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        loop {
            let message = receive(&mut stream)
                .and_then(|message| message.ok_or_else(|| io::Error::other("hung up")));
            let ended = message.is_err();
            if to.send((at, monotonic_ns(), message)).is_err() || ended {
                return;
            }
        }
    });
}

const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Judging millions of pairs takes its time.
const GATHER_MAX: Duration = Duration::from_secs(120);
const PINGS: u32 = 16;
/// During a run.
const PING_PAUSE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;

    use super::*;
    use flock_measure::MachineInfo;
    use flock_model::scenario::Choice;

    fn scenario() -> Scenario {
        flock_model::catalogue::find("MB-B1", &Choice::default()).unwrap().scenario
    }

    fn connect(address: &str) -> Result<RemotePool, AgentError> {
        RemotePool::connect(&scenario(), &[address.to_owned()], Clock::start(), 7, Some(1))
    }

    /// An agent on another machine, as it says, whose clock is an hour ahead and gains a
    /// millisecond with every answer.
    fn gaining_agent(listener: &TcpListener) {
        let mut stream = listener.accept().unwrap().0;
        greet(&mut stream).unwrap();
        check_greeting(&mut stream).unwrap();
        let hello = FromAgent::Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: Box::new(MachineInfo::default()),
            boot_id: "elsewhere".to_owned(),
        };
        send(&mut stream, &hello).unwrap();
        let mut gained_ns = 3_600_000_000_000;
        while let Ok(Some(message)) = receive::<ToAgent>(&mut stream) {
            let answer = match message {
                ToAgent::Ping { sent_ns } => {
                    gained_ns += 1_000_000;
                    FromAgent::Clock { monotonic_ns: monotonic_ns() + gained_ns, sent_ns }
                }
                ToAgent::Offer(_) => FromAgent::Accepted { clients: 1, threads: 1 },
                ToAgent::Start { .. } => FromAgent::Started,
                _ => return,
            };
            if send(&mut stream, &answer).is_err() {
                return;
            }
        }
    }

    #[test]
    fn a_clock_is_watched_while_the_run_goes_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let agent = std::thread::spawn(move || gaining_agent(&listener));
        let mut pool = connect(&address).unwrap();
        let told = pool.agents().remove(0);
        assert!(told.clock_offset_us >= 3.6e9 && told.clock_readings == 0, "{told:?}");
        while pool.agents()[0].clock_readings < 2 {
            // Its answers are no news of the run.
            assert!(pool.next(Duration::from_millis(10)).is_none());
        }
        let told = pool.agents().remove(0);
        // Between the quickest before and the quickest during the run are some answers.
        let least_us = 1_000.0 - told.clock_drift_error_us;
        assert!(told.clock_drift_us >= least_us && told.clock_drift_error_us > 0.0, "{told:?}");
        drop(pool);
        agent.join().unwrap();
    }

    #[test]
    fn an_agent_of_another_protocol_is_refused_in_words() {
        for (first, words) in [
            (&b"flock-agents\0\0\x01\0"[..], "version 256 of the agent protocol"),
            (b"\0\0\0\x10{\"Hello\":{\"ver", "one of an older version"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let agent = std::thread::spawn(move || {
                let mut stream = listener.accept().unwrap().0;
                stream.write_all(first).unwrap();
                // Until the commander has heard enough.
                let _ = check_greeting(&mut stream);
            });
            let told = connect(&address).err().unwrap().to_string();
            assert!(told.contains(words) && told.contains("same version"), "{told}");
            agent.join().unwrap();
        }
    }
}
