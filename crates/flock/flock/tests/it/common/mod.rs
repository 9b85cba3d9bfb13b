//! A mosquitto on a free port, and scenarios from a few lines of TOML.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use flock::engine::{BrokerAccess, Options, run};
use flock::faults::{BrokerProcess, FaultError};
use flock::standin::{Mischief, StandIn};
use flock_measure::{IntegrityCount, Outcome, Results};
use flock_model::Scenario;
use flock_model::scenario::{Choice, parse};

const PORTS_TRIED_MAX: u32 = 5;

/// A broker process with its own directory, ended and removed on drop.
pub(crate) struct Mosquitto {
    process: Option<BrokerProcess>,
    pub(crate) command: Vec<String>,
    pub(crate) address: String,
    directory: PathBuf,
}

impl Mosquitto {
    pub(crate) fn start() -> Self {
        Self::start_with("persistence false\n")
    }

    pub(crate) fn start_with(settings: &str) -> Self {
        for _ in 0..PORTS_TRIED_MAX {
            let mut broker = Self::prepare(settings);
            match BrokerProcess::start(broker.command.clone(), &broker.address) {
                // Another program took the port meanwhile.
                Err(FaultError::Taken { .. }) => {}
                started => {
                    let installed = "mosquitto is installed (apt-get install mosquitto)";
                    broker.process = Some(started.expect(installed));
                    return broker;
                }
            }
        }
        panic!("{PORTS_TRIED_MAX} ports were taken right after they were free");
    }

    /// Everything but the start.
    pub(crate) fn prepare(settings: &str) -> Self {
        let port = net::free_port().unwrap();
        let directory = std::env::temp_dir().join(format!("flock-mosquitto-{port}"));
        std::fs::create_dir_all(&directory).unwrap();
        let config = directory.join("mosquitto.conf");
        let mut file = std::fs::File::create(&config).unwrap();
        let place = directory.display();
        let user = if rustix::process::getuid().is_root() { "user root\n" } else { "" };
        write!(
            file,
            "listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n\
             max_inflight_messages 0\npersistence_location {place}/\n{user}{settings}"
        )
        .unwrap();
        let program = ["/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto"]
            .into_iter()
            .find(|path| std::path::Path::new(path).exists())
            .unwrap_or("mosquitto");
        let command = vec![program.to_owned(), "-c".to_owned(), config.display().to_string()];
        Self { process: None, command, address: format!("127.0.0.1:{port}"), directory }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().and_then(BrokerProcess::pid).expect("it was started")
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        self.process = None;
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// An agent process on a free port, killed on drop.
pub(crate) struct Agent {
    pub(crate) process: Child,
    pub(crate) address: String,
}

impl Agent {
    pub(crate) fn start() -> Self {
        Self::start_at("127.0.0.1")
    }

    pub(crate) fn start_at(host: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_flock"))
            .args(["agent", "--listen", &format!("{host}:0")])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening ").unwrap().to_owned();
        Self { process, address }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The scenario of a TOML text, against the broker at `address`.
pub(crate) fn scenario(text: &str, address: &str) -> Scenario {
    let none = |name: &str| Err(format!("no file {name}"));
    let mut scenario = match parse("test.toml", text, &Choice::default(), &none) {
        Ok(loaded) => loaded.scenario,
        Err(error) => panic!("{error}"),
    };
    for broker in &mut scenario.brokers {
        broker.addresses = vec![address.to_owned()];
    }
    scenario
}

/// Runs a scenario with two load threads.
pub(crate) fn run_on(text: &str, address: &str, broker: BrokerAccess) -> Results {
    let options = Options { threads: Some(2), broker, ..Options::default() };
    run(&scenario(text, address), options).unwrap()
}

/// Runs a scenario against a stand-in that does this wrong.
pub(crate) fn run_with(mischief: Mischief, text: &str) -> Results {
    let broker = StandIn::start(mischief).unwrap();
    run_on(text, &broker.address, BrokerAccess::None)
}

/// The same, to the end of the plan.
pub(crate) fn completed_with(mischief: Mischief, text: &str) -> Results {
    let results = run_with(mischief, text);
    assert_eq!(results.run.outcome, Outcome::Completed, "{:?}", results.errors);
    results
}

pub(crate) fn total(results: &Results) -> IntegrityCount {
    results.integrity.total()
}

/// As many subscribers as publishers and a topic for each, and stages that are added one by one.
pub(crate) struct Draft {
    text: String,
}

impl Draft {
    /// `connect` has the keys of `[connect]`.
    pub(crate) fn new(connect: &str, clients: u64) -> Self {
        let text = format!(
            "id = \"t\"\ntitle = \"t\"\n{DRAIN}\n[connect]\n{connect}\n\
             [clients.sub]\ncount = {clients}\n[clients.pub]\ncount = {clients}\n\
             [topics.pairs]\nnames = \"pairs/{{i}}\"\ncount = {clients}\n\
             [subscriptions.pairs]\ntopics = \"pairs\"\n"
        );
        Self { text }
    }

    /// Another subscription than `pairs`.
    pub(crate) fn subscription(mut self, name: &str, filter: &str) -> Self {
        self.text += &format!("[subscriptions.{name}]\nfilter = \"{filter}\"\n");
        self
    }

    pub(crate) fn drain(mut self, time: &str) -> Self {
        self.text = drained_for(self.text, time);
        self
    }

    /// A stage with the steps of each group; the group `""` is the conductor.
    pub(crate) fn stage(mut self, name: &str, cycles: &[(&str, &str)]) -> Self {
        self.text += &format!("[[stage]]\nname = \"{name}\"\n");
        for (clients, steps) in cycles {
            let who = match clients.is_empty() {
                true => String::new(),
                false => format!("clients = \"{clients}\"\n"),
            };
            self.text += &format!("[[stage.do]]\n{who}steps = [{steps}]\n");
        }
        self
    }

    /// A stage of this length in which nobody does anything.
    pub(crate) fn hold(mut self, time: &str) -> Self {
        self.text += &format!("[[stage]]\nname = \"hold\"\nduration = \"{time}\"\n");
        self
    }

    /// All connect, and the subscribers subscribe to `to`.
    pub(crate) fn connected(self, to: &str, qos: u8) -> Self {
        let subscribe = format!("subscribe = {{ to = \"{to}\", qos = {qos} }}");
        let sub = format!("{{ connect = {{}} }}, {{ {subscribe} }}");
        self.stage("connect", &[("sub", &sub), ("pub", "{ connect = {} }")])
    }

    /// The publishers publish to their own topics; `how` has the other keys of `publish`.
    pub(crate) fn publishing(self, how: &str) -> Self {
        self.stage("publish", &[("pub", &publish(how))])
    }

    /// All say good-bye, as scenarios of the catalogue end.
    pub(crate) fn leaving(self) -> Self {
        let leave = "{ disconnect = {} }";
        self.stage("disconnect", &[("pub", leave), ("sub", leave)])
    }

    pub(crate) fn text(self) -> String {
        self.text
    }
}

/// The text of a draft whose drain, where something is missing, ends after so long. Who loses
/// messages on purpose waits for all of it.
pub(crate) fn drained_for(text: String, time: &str) -> String {
    text.replace(DRAIN, &format!("drain = \"{time}\""))
}

/// Ends as soon as all is there: only what loses messages lasts that long.
const DRAIN: &str = "drain = \"60s\"";

/// The step that publishes to a client's own topic.
pub(crate) fn publish(how: &str) -> String {
    format!("{{ publish = {{ to = \"pairs\", {how} }} }}")
}

/// Pairs of a publisher and a subscriber, `count` messages each.
pub(crate) fn pairs(clients: u64, count: u64, qos: u8, rate: u64) -> String {
    measured(publishing_pairs(clients, count, qos, rate).leaving())
}

fn publishing_pairs(clients: u64, count: u64, qos: u8, rate: u64) -> Draft {
    let how = format!("qos = {qos}, rate = \"{rate}/s\", count = {count}, payload = 16");
    Draft::new(V5, clients).connected("pairs", qos).publishing(&how)
}

fn measured(draft: Draft) -> String {
    draft.text().replace("name = \"publish\"\n", "name = \"publish\"\nmeasured = true\n")
}

/// Pairs that publish until the stage ends, and a search with these keys.
pub(crate) fn searching(clients: u64, keys: &str) -> String {
    // Steps of a hundred messages.
    let search = format!("[search]\npercentile = 90\nstep = \"500ms\"\n{keys}\n");
    measured(publishing_pairs(clients, 1, 0, 1))
        .replace("count = 1, payload", "payload")
        .replace("measured = true", "measured = true\nduration = \"1s\"")
        + &search
}

pub(crate) const V5: &str = "version = \"5\"";
/// Sessions that outlive their connections, and clients that come back.
pub(crate) const LASTING: &str =
    "version = \"5\"\nclean_start = false\nsession_expiry = \"1h\"\nreconnect = true";
