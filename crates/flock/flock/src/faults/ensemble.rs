//! Nodes, engines and the links between them, by number: what a cluster's faults are done to.

use std::time::Duration;

use super::probe::serves;
use super::{BrokerProcess, FaultError, Link};
use flock_model::{Directions, Party, Which};

/// How a process of the cluster is had: `host:port=pid:NUMBER` or `host:port=COMMAND`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSpec {
    pub address: String,
    pub source: MemberSource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberSource {
    Pid(u32),
    Command(Vec<String>),
}

impl MemberSpec {
    pub fn parse(text: &str) -> Result<Self, String> {
        let usage = "use HOST:PORT=pid:NUMBER or HOST:PORT=COMMAND";
        let (address, source) = text.split_once('=').ok_or_else(|| usage.to_owned())?;
        if !address.contains(':') {
            return Err(format!("invalid address `{address}`: {usage}"));
        }
        let source = match source.strip_prefix("pid:") {
            Some(pid) => MemberSource::Pid(
                pid.parse().map_err(|_| format!("invalid process id `{pid}`: {usage}"))?,
            ),
            None => {
                let words: Vec<String> = source.split_whitespace().map(str::to_owned).collect();
                if words.is_empty() {
                    return Err(format!("the command is empty: {usage}"));
                }
                MemberSource::Command(words)
            }
        };
        Ok(Self { address: address.to_owned(), source })
    }

    fn have(&self) -> Result<BrokerProcess, FaultError> {
        match &self.source {
            MemberSource::Pid(pid) => BrokerProcess::of_pid(*pid, &self.address),
            MemberSource::Command(command) => BrokerProcess::start(command.clone(), &self.address),
        }
    }
}

/// A link that faults can cut: `NODE:LISTEN_PORT=HOST:PORT`. The node is given the address on this
/// side, on loopback, as that of its engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    pub node: usize,
    pub listen_port: u16,
    pub target: String,
}

impl LinkSpec {
    pub fn parse(text: &str) -> Result<Self, String> {
        let usage = || format!("must be NODE:LISTEN_PORT=HOST:PORT, got `{text}`");
        let (here, target) = text.split_once('=').ok_or_else(usage)?;
        let (node, port) = here.split_once(':').ok_or_else(usage)?;
        let (node, listen_port) =
            (node.parse().map_err(|_| usage())?, port.parse().map_err(|_| usage())?);
        if !target.contains(':') {
            return Err(usage());
        }
        Ok(Self { node, listen_port, target: target.to_owned() })
    }
}

/// What the command line says of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnsembleSpec {
    pub nodes: Vec<MemberSpec>,
    pub engines: Vec<MemberSpec>,
    pub links: Vec<LinkSpec>,
}

/// The processes and links of a cluster. What was started here ends with it.
#[derive(Debug, Default)]
pub struct Ensemble {
    // Nodes end before their engines do.
    nodes: Vec<BrokerProcess>,
    engines: Vec<BrokerProcess>,
    links: Vec<(usize, Link)>,
    /// The node that `active` or `standby` last stood for.
    last: Option<usize>,
}

impl Ensemble {
    /// Processes that it has at the moment.
    pub fn pids(&self) -> Vec<u32> {
        self.nodes.iter().chain(&self.engines).filter_map(BrokerProcess::pid).collect()
    }

    /// Links first, then engines, then nodes: each needs the one before.
    pub fn start(spec: &EnsembleSpec) -> Result<Self, FaultError> {
        let mut ensemble = Self::default();
        for link in &spec.links {
            let started = Link::start(link.listen_port, &link.target)
                .map_err(|source| FaultError::Link { port: link.listen_port, source })?;
            ensemble.links.push((link.node, started));
        }
        for engine in &spec.engines {
            ensemble.engines.push(engine.have()?);
        }
        for node in &spec.nodes {
            ensemble.nodes.push(node.have()?);
        }
        Ok(ensemble)
    }

    /// Does `act` to one process.
    pub fn on(
        &mut self,
        party: Party,
        act: fn(&mut BrokerProcess) -> Result<(), FaultError>,
    ) -> Result<(), FaultError> {
        match party {
            Party::Broker(_) => Err(FaultError::NoProcess),
            Party::Node(which) => {
                let at = self.find(which)?;
                act(&mut self.nodes[at])
            }
            Party::Engine(at) => {
                let engines = self.engines.len();
                let engine = self.engines.get_mut(at as usize);
                act(engine.ok_or(FaultError::NoEngine { at, engines })?)
            }
        }
    }

    /// Cuts all links of a node to its engines, or one to which an engine is the target.
    pub fn cut(&mut self, party: Party, directions: Directions) -> Result<(), FaultError> {
        self.each_link(party, |link| link.cut(directions))
    }

    pub fn mend(&mut self, party: Party) -> Result<(), FaultError> {
        self.each_link(party, Link::mend)
    }

    fn each_link(&mut self, party: Party, act: impl Fn(&Link)) -> Result<(), FaultError> {
        let mut found = false;
        match party {
            Party::Broker(_) => return Err(FaultError::NoLink),
            Party::Node(which) => {
                let node = self.find(which)?;
                for (_, link) in self.links.iter().filter(|(of, _)| *of == node) {
                    act(link);
                    found = true;
                }
            }
            Party::Engine(at) => {
                let engines = self.engines.len();
                let engine = self.engines.get(at as usize);
                let engine = engine.ok_or(FaultError::NoEngine { at, engines })?;
                for (_, link) in &self.links {
                    if link.target() == engine.address() {
                        act(link);
                        found = true;
                    }
                }
            }
        }
        if found { Ok(()) } else { Err(FaultError::NoLink) }
    }

    /// Position of a node. Who serves is asked of the nodes themselves.
    fn find(&mut self, which: Which) -> Result<usize, FaultError> {
        let nodes = self.nodes.len();
        let found = match which {
            Which::Number(at) if (at as usize) < nodes => return Ok(at as usize),
            Which::Number(at) => return Err(FaultError::NoNode { at, nodes }),
            Which::Last => return self.last.ok_or(FaultError::NoLast),
            Which::Active => self.nodes.iter().position(|node| serves(node.address(), ASK_MAX)),
            Which::Standby => {
                let standby =
                    |node: &BrokerProcess| node.pid().is_some() && !serves(node.address(), ASK_MAX);
                self.nodes.iter().position(standby)
            }
        };
        self.last = found;
        found.ok_or(FaultError::NoSuchRole { which })
    }
}

/// How long a node may take to say whether it serves.
const ASK_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn members_and_links_are_read_or_refused_with_what_is_valid() {
        let member = MemberSpec::parse("127.0.0.1:1883=quelea serve --config a=b.toml").unwrap();
        assert_eq!(member.address, "127.0.0.1:1883");
        let words = ["quelea", "serve", "--config", "a=b.toml"].map(String::from).to_vec();
        assert_eq!(member.source, MemberSource::Command(words));
        assert_eq!(MemberSpec::parse("h:1=pid:7").unwrap().source, MemberSource::Pid(7));
        for bad in ["h:1", "h=x", "h:1=", "h:1=pid:x"] {
            assert!(MemberSpec::parse(bad).unwrap_err().contains("HOST:PORT="), "{bad}");
        }
        let link = LinkSpec::parse("2:4301=127.0.0.1:4222").unwrap();
        assert_eq!((link.node, link.listen_port), (2, 4301));
        assert_eq!(link.target, "127.0.0.1:4222");
        for bad in ["2", "2:4301", "x:4301=h:1", "2:70000=h:1", "2:1=h"] {
            assert!(LinkSpec::parse(bad).unwrap_err().contains("NODE:LISTEN_PORT="), "{bad}");
        }
    }

    #[test]
    fn who_is_not_there_is_named() {
        let mut ensemble = Ensemble::default();
        let mut told = |party| ensemble.on(party, BrokerProcess::kill).unwrap_err().to_string();
        assert!(told(Party::Node(Which::Number(1))).contains("--node"));
        assert!(told(Party::Engine(0)).contains("--engine"));
        assert!(told(Party::Node(Which::Active)).contains("active"));
        assert!(told(Party::Node(Which::Last)).contains("last"));
        let cut = ensemble.cut(Party::Node(Which::Number(0)), Directions::Both);
        assert!(cut.is_err());
    }
}
