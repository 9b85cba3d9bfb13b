//! [`Results`]: everything a run measured, with the disclosure that lets somebody else repeat it.
//!
//! Times are seconds since the start of the run (`at_secs`), unless a name says otherwise; sizes
//! are bytes, latencies microseconds, rates per second.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::clients::ClientLatency;
use super::heat::Heat;
pub use super::histogram::LatencySummary;
use super::histogram::{LatencyHistogram, LatencyKind};
pub use super::host::{Contention, HostLoad, HostSample, Validity};
use super::routing::Routing;
pub use super::series::{LatencyPoint, QosSecond, QosSeries, Second, StepSpread};
use super::sizing::Sizing;

/// The version of the JSON form, as `docs/flock/results.schema.json` describes it. It rises when a
/// field changes its meaning, comes that a reader cannot do without, or goes. 1 was the form before
/// the schema: without heat maps, and without much of the disclosure.
pub const RESULTS_FORMAT: u32 = 2;

/// One run, whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    pub format: u32,
    pub tool: ToolInfo,
    pub run: RunInfo,
    pub scenario: ScenarioInfo,
    pub broker: BrokerInfo,
    /// The machine that the load came from (the commander's, when there were agents).
    pub machine: MachineInfo,
    pub totals: Totals,
    /// One entry per second of the run, or per step of several in a long run, no gaps.
    pub series: Vec<Second>,
    /// The same by QoS, where the run used more than one.
    #[serde(default)]
    pub qos_series: Vec<QosSeries>,
    /// How the latencies lay second by second: one entry per kind that occurred, of end to end,
    /// publish acknowledged and connect.
    pub heat: Vec<Heat>,
    /// One entry per kind and QoS that occurred.
    pub latencies: Vec<Latency>,
    pub integrity: Integrity,
    /// Clients whose median latency stands out from that of all, the slowest first, at most
    /// [`crate::clients::WORST_CLIENTS_MAX`].
    #[serde(default)]
    pub worst_clients: Vec<ClientLatency>,
    /// Absent when the broker's process was neither given nor scraped.
    pub broker_load: Option<HostLoad>,
    pub tool_load: HostLoad,
    pub validity: Validity,
    /// Stages, ramps and holds as they happened.
    pub phases: Vec<Phase>,
    /// Named timers of the scenario (`startTimer` to `stopTimer`).
    pub timers: Vec<Timer>,
    /// Faults injected, with what they led to.
    pub faults: Vec<FaultRecord>,
    /// Failures by reason, the most frequent first.
    pub errors: Vec<ErrorCount>,
    /// Present when the run looked for the highest rate that holds.
    pub rate_search: Option<RateSearch>,
    /// Present when runs looked for the number of connections, or of connects per second.
    #[serde(default)]
    pub sizing: Option<Sizing>,
    /// Present when the scenario has sinks.
    #[serde(default)]
    pub routing: Option<Routing>,
}

impl Results {
    /// From the text of a results file.
    pub fn parse(text: &str) -> Result<Self, String> {
        /// What every form has, and will have.
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let no_results =
            |error: serde_json::Error| format!("is not a results file of flock: {error}");
        let Head { format } = serde_json::from_str(text).map_err(no_results)?;
        match format {
            RESULTS_FORMAT => serde_json::from_str(text).map_err(no_results),
            ..RESULTS_FORMAT => Err(format!(
                "has results format {format} of an older flock, and this one reads {RESULTS_FORMAT}: run the scenario again, or use the flock that wrote it"
            )),
            _ => Err(format!(
                "has results format {format}, of a newer flock: this one reads {RESULTS_FORMAT}"
            )),
        }
    }

    pub fn latency(&self, kind: LatencyKind, qos: Option<u8>) -> Option<&Latency> {
        self.latencies.iter().find(|latency| latency.kind == kind && latency.qos == qos)
    }

    /// One histogram over every QoS of a kind.
    pub fn latency_merged(&self, kind: LatencyKind) -> LatencyHistogram {
        let mut merged = LatencyHistogram::new();
        for latency in self.latencies.iter().filter(|latency| latency.kind == kind) {
            merged.merge(&latency.histogram);
        }
        merged
    }

    /// Deliveries of QoS 0 that were lost while a search tried rates that did not hold: there a
    /// broker may drop them. At the higher levels nothing excuses a loss.
    pub fn lost_beyond(&self) -> u64 {
        let missing = self.rate_search.as_ref().map_or(0, |search| search.missing_beyond);
        let lost = self.integrity.by_qos.iter().find(|count| count.qos == 0);
        missing.min(lost.map_or(0, |count| count.lost))
    }

    /// How long the steps of the series are, in seconds.
    pub fn step_secs(&self) -> u32 {
        self.series.iter().map(Second::secs).max().unwrap_or(1)
    }

    /// CPU of the broker per message received by subscribers, over the publishing phase.
    pub fn broker_cpu_us_per_message(&self) -> Option<f64> {
        self.broker_load.as_ref().and_then(|load| load.cpu_us_per_message)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolInfo {
    pub name: String,
    pub version: String,
    /// Of the sources that it was built of, with a `+` if they were changed since; `unknown` for a
    /// debug build.
    pub commit: String,
    /// How it was built: `release`, `quick`, or `debug`, which is no tool to measure with.
    pub profile: String,
}

impl ToolInfo {
    /// This program.
    pub fn here() -> Self {
        Self {
            name: "flock".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            commit: env!("BUILD_COMMIT").into(),
            profile: env!("BUILD_PROFILE").into(),
        }
    }

    /// `flock 0.1.0 (commit 0123456789ab, quick build)`.
    pub fn words(&self) -> String {
        let commit = match self.commit.as_str() {
            "" => "commit unknown".to_owned(),
            commit => format!("commit {commit}"),
        };
        format!("{} {} ({commit}, {} build)", self.name, self.version, self.profile)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// The command line as it was given.
    pub command: Vec<String>,
    pub started_unix_ms: u64,
    pub duration_secs: f64,
    /// How the run ended.
    pub outcome: Outcome,
    /// Load threads, over all agents.
    pub threads: u32,
    /// Empty when the run was a single process.
    pub agents: Vec<AgentInfo>,
    /// Present when the same was run several times.
    #[serde(default)]
    pub set: Option<RunSet>,
}

/// Which of several runs of the same thing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSet {
    /// The same for all of them, and for no others.
    pub id: String,
    /// From 1.
    pub number: u32,
    pub of: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "how", content = "why")]
pub enum Outcome {
    /// Every stage ran to its end.
    #[default]
    Completed,
    /// The user or a time limit stopped the run; what was measured so far is here.
    Interrupted(String),
    /// The run could not go on (broker gone, agent dead, every client failed).
    Failed(String),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentInfo {
    pub address: String,
    pub machine: MachineInfo,
    pub clients: u64,
    /// Agent's clock minus commander's clock, and half the round trip it was measured with.
    pub clock_offset_us: f64,
    pub clock_error_us: f64,
    /// How far the clock went away from that offset while the run lasted, at most, and by how much
    /// this may be wrong; of so many readings. Clocks of one machine are the same one.
    #[serde(default)]
    pub clock_drift_us: f64,
    #[serde(default)]
    pub clock_drift_error_us: f64,
    #[serde(default)]
    pub clock_readings: u64,
    /// What else its machine did while the load was measured, where it is not the commander's.
    #[serde(default)]
    pub contention: Option<Contention>,
    /// Why the agent's part is missing, when it is.
    pub died: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScenarioInfo {
    /// Catalogue id, or the file's name.
    pub id: String,
    pub title: String,
    pub scale: f64,
    pub seed: u64,
    /// Chosen values worth printing (payload, QoS, rates, ramps, keep-alive...).
    pub parameters: BTreeMap<String, String>,
    /// What it was written in, with its parameters filled in; empty when it came from flags.
    pub source: String,
    /// What was asked to be otherwise than in the source, by the name of the option.
    pub overrides: BTreeMap<String, String>,
    /// The scenario as it ran, in words: with scale, lengths, rates and addresses.
    pub as_ran: String,
    pub publishers: u64,
    pub subscribers: u64,
    pub clients: u64,
    pub topics: u64,
    /// Some publisher sent as soon as it might, not by a schedule: what the broker made it wait
    /// before it sent is in no latency.
    #[serde(default)]
    pub closed_loop: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BrokerInfo {
    pub name: String,
    pub version: String,
    pub addresses: Vec<String>,
    pub pid: Option<u32>,
    pub command: Vec<String>,
    /// The configuration file given to it, verbatim.
    pub config: String,
    /// Cores it was confined to.
    pub cpus: Option<String>,
    /// What it ran on: this machine, or what the user says.
    pub host: String,
    /// What its control groups leave it, where its process is one of this machine.
    pub limits: Limits,
    /// To its first address, before the load.
    pub round_trip: Option<RoundTrip>,
}

/// Of a TCP connection that is opened, which takes one packet there and one back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundTrip {
    pub min_us: f64,
    pub median_us: f64,
    pub samples: u32,
}

/// What a process may use of a machine. Absent: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    pub cpu_cores: Option<f64>,
    pub memory_bytes: Option<u64>,
}

/// What stands round a process and bears on its figures. Absent is what the system does not tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Surroundings {
    /// What decides the frequency of the cores: `performance`, `powersave`, `schedutil`.
    pub governor: Option<String>,
    pub numa_nodes: Option<u32>,
    /// Whose, as far as it says; absent on a machine of its own.
    pub virtual_machine: Option<String>,
    /// `docker`, `podman` or `kubernetes`; absent outside.
    pub container: Option<String>,
    pub limits: Limits,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineInfo {
    pub hostname: String,
    pub cpu: String,
    pub cores: u32,
    pub memory_bytes: u64,
    pub kernel: String,
    pub os: String,
    pub descriptors_soft: u64,
    pub descriptors_hard: u64,
    /// Kernel settings that bear on the figures, by sysctl name.
    pub sysctls: BTreeMap<String, String>,
    pub surroundings: Surroundings,
}

/// Counts over the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    pub connects_started: u64,
    pub connects_ok: u64,
    pub connects_failed: u64,
    pub reconnects: u64,
    pub disconnects: u64,
    /// Connections that ended without being asked to.
    pub connections_lost: u64,
    /// Of those: cut or taken over, as the scenario plans.
    pub connections_cut: u64,
    pub connections_max: u64,
    pub subscribes_ok: u64,
    pub subscribes_failed: u64,
    /// First connections of a client that went on with a session from before the run.
    #[serde(default)]
    pub sessions_found: u64,
    /// Connections whose session the broker keeps for a shorter time than was asked for.
    #[serde(default)]
    pub sessions_shortened: u64,
    /// Granted a lower QoS than was asked for.
    #[serde(default)]
    pub subscribes_lowered: u64,
    pub unsubscribes_ok: u64,
    /// Refused, or said not to have existed.
    #[serde(default)]
    pub unsubscribes_failed: u64,
    pub publishes_scheduled: u64,
    /// PUBLISH packets sent, by QoS, repeats after a reconnect not included.
    pub published: [u64; 3],
    pub published_bytes: u64,
    pub publishes_repeated: u64,
    /// PUBACK, or PUBCOMP, with success.
    pub acknowledged: u64,
    /// PUBACKs that clients sent, and that they received.
    pub pubacks_sent: u64,
    pub pubacks_received: u64,
    /// Acknowledged with reason 0x10, no matching subscribers.
    pub acknowledged_no_subscribers: u64,
    /// Acknowledged with an error code.
    pub publishes_refused: u64,
    /// Due and never sent: the client was not connected, or the broker held it back (window,
    /// socket) until the stage was over and a second more.
    pub publishes_skipped: u64,
    /// Clients that had no connection, and left out the rest of a stage.
    pub programs_cut_short: u64,
    /// `receive` steps that gave up.
    pub receives_failed: u64,
    /// PUBLISH packets received, by the QoS of the delivery.
    pub received: [u64; 3],
    pub received_bytes: u64,
    /// Of those: retained messages, delivered on subscribing.
    pub received_retained: u64,
    /// Of those: of another run.
    pub received_foreign: u64,
    /// Of those: not from a broker's store, so that somebody else was at work on the same topics.
    #[serde(default)]
    pub received_foreign_live: u64,
    /// Of those: due after they arrived, by the clocks of two machines.
    pub received_early: u64,
    pub wills_received: u64,
    /// Of those published: with a response topic and correlation data.
    pub requests: u64,
    /// Sent by clients that answer requests.
    pub answers_sent: u64,
    /// Requests whose answer came.
    pub answers: u64,
    /// Answers that came again, or to a client that had not asked.
    pub answers_unasked: u64,
    /// Of those: at QoS 1 or 2, to a client whose session was resumed on another connection.
    #[serde(default)]
    pub answers_again: u64,
    /// Requests without an answer when the run was over.
    pub requests_unanswered: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

impl Totals {
    /// Answers that came, over those that were sent and those that a resumed session may bring
    /// again. A service that answers twice has got the request twice, which counts there. Nothing
    /// is known of services that are not of this run.
    pub fn answers_without_cause(&self) -> u64 {
        let came = self.answers + self.answers_unasked;
        match self.answers_sent < self.answers {
            true => 0,
            false => came.saturating_sub(self.answers_sent + self.answers_again),
        }
    }

    pub fn published_all(&self) -> u64 {
        self.published.iter().sum()
    }

    pub fn received_all(&self) -> u64 {
        self.received.iter().sum()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub kind: LatencyKind,
    /// QoS of the delivery or publish; absent where it has no meaning (connect).
    pub qos: Option<u8>,
    pub summary: LatencySummary,
    pub histogram: LatencyHistogram,
    /// Of the messages in it: those that had not been sent, or had not arrived, when the run was
    /// over. They count with what they had waited until then, which is less than the truth.
    #[serde(default)]
    pub unfinished: u64,
    /// Due, and not in it: messages that were lost or refused, connects that failed.
    #[serde(default)]
    pub missing: u64,
}

/// Was anything lost, doubled or disordered? Counted in deliveries: one message to one subscriber
/// (or to one shared group).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Integrity {
    /// One entry per effective QoS of the deliveries that occurred.
    pub by_qos: Vec<IntegrityCount>,
    /// Subscribers that missed or repeated most, at most [`WORST_MAX`].
    pub worst: Vec<IntegritySample>,
    /// Published with QoS 1 or 2 and not acknowledged when the run ended: no promise was made.
    pub unacknowledged: u64,
    /// Deliveries to a client that had not asked for the topic.
    pub misrouted: u64,
    /// Deliveries that were not what was sent: their checksum does not fit, or nobody sent their
    /// number. They stand for no message: what should have come counts as lost.
    #[serde(default)]
    pub damaged: u64,
    /// Deliveries that were as sent but for their topic. They stand for no message either.
    #[serde(default)]
    pub wrong_topic: u64,
    /// Deliveries with another QoS than publish and subscription agree on.
    #[serde(default)]
    pub wrong_qos: u64,
    /// Deliveries that say they were retained and were not, or the other way round.
    #[serde(default)]
    pub wrong_retain: u64,
    /// Deliveries marked DUP that the broker cannot have sent before: on a connection that began
    /// the session (MQTT-3.3.1-3). Shared groups are left out: another member may have had it.
    #[serde(default)]
    pub wrong_dup: u64,
    /// Deliveries that were sent again on another connection under a number that was still taken,
    /// without the DUP flag (MQTT-3.3.1-1).
    #[serde(default)]
    pub missing_dup: u64,
    /// Wills that did not come though their client's connection ended without a good-bye.
    #[serde(default)]
    pub wills_lost: u64,
    /// Wills that came more often than connections of their client had ended.
    #[serde(default)]
    pub wills_repeated: u64,
    /// Wills of clients that were connected, or had said good-bye (MQTT-3.1.2-10).
    #[serde(default)]
    pub wills_unasked: u64,
    /// Acknowledgements for which there was nothing left to acknowledge: sent twice for one packet.
    #[serde(default)]
    pub repeated_pubacks: u64,
    #[serde(default)]
    pub repeated_pubrecs: u64,
    #[serde(default)]
    pub repeated_pubcomps: u64,
    #[serde(default)]
    pub repeated_pubrels: u64,
    /// Deliveries whose properties are not those of their message: user properties, content type,
    /// response topic, correlation data, payload format, or what is left of an expiry.
    #[serde(default)]
    pub wrong_properties: u64,
    /// Deliveries without the identifier of a subscription that matches, or with another.
    #[serde(default)]
    pub wrong_identifiers: u64,
    /// Messages that were acknowledged with "no matching subscribers" (0x10), and that somebody
    /// got.
    #[serde(default)]
    pub denied: u64,
    /// Retained messages that were not the latest of their topic.
    #[serde(default)]
    pub stale_retained: u64,
    /// QoS 2 deliveries that the broker did not release (PUBREL) before their receiver had to
    /// leave.
    #[serde(default)]
    pub unreleased: u64,
    /// Clients that fell silent, and whose connection the broker kept for longer than one and a
    /// half times their keep-alive (MQTT-3.1.2-22) and five seconds.
    #[serde(default)]
    pub unnoticed: u64,
    /// Packets of the broker's that break the protocol. Each ends its connection.
    #[serde(default)]
    pub breaches: u64,
    /// Sessions that the broker was to keep while their client was away, and had not when it came
    /// back.
    #[serde(default)]
    pub forgotten_sessions: u64,
    /// Deliveries to a member of a shared group that came after a later message of the same
    /// publisher and topic to the same member. No standard promises this order, so that these count
    /// neither as [`IntegrityCount::reordered`] nor against a run.
    #[serde(default)]
    pub reordered_in_groups: u64,
    /// Pairs whose beginning could not be judged, because the subscriber came after the first
    /// message.
    pub joined_late: u64,
    /// Pairs judged for gaps only, because a clean session was away for a while.
    pub interrupted: u64,
    /// So long after its SUBACK a subscriber was owed all that was sent, in microseconds: measured
    /// in the run.
    #[serde(default)]
    pub settled_us: u64,
}

impl Integrity {
    pub fn total(&self) -> IntegrityCount {
        let mut total = IntegrityCount::default();
        for count in &self.by_qos {
            total.add(count);
        }
        total
    }

    /// Nothing missing and nothing extra that the QoS does not allow.
    pub fn is_clean(&self) -> bool {
        let total = self.total();
        let whole = total.lost == 0 && total.duplicated == 0 && total.reordered == 0;
        whole && self.wrongs().iter().all(|(_, count)| *count == 0)
    }

    /// What no broker may ever do, in words, and how often it was done.
    pub fn wrongs(&self) -> [(&'static str, u64); 23] {
        [
            ("duplicated without cause", self.total().duplicated_without_cause()),
            ("damaged", self.damaged),
            ("with a wrong topic", self.wrong_topic),
            ("with a wrong QoS", self.wrong_qos),
            ("with a wrong retain flag", self.wrong_retain),
            ("marked DUP on first delivery", self.wrong_dup),
            ("sent again without DUP", self.missing_dup),
            ("wills not delivered", self.wills_lost),
            ("wills delivered again", self.wills_repeated),
            ("wills without cause", self.wills_unasked),
            ("PUBACKs sent twice", self.repeated_pubacks),
            ("PUBRECs sent twice", self.repeated_pubrecs),
            ("PUBCOMPs sent twice", self.repeated_pubcomps),
            ("PUBRELs sent twice", self.repeated_pubrels),
            ("with wrong properties", self.wrong_properties),
            ("with a wrong subscription identifier", self.wrong_identifiers),
            ("delivered despite 0x10", self.denied),
            ("outdated retained messages", self.stale_retained),
            ("without PUBREL", self.unreleased),
            ("silent clients not disconnected", self.unnoticed),
            ("protocol errors", self.breaches),
            ("persistent sessions lost", self.forgotten_sessions),
            ("misrouted", self.misrouted),
        ]
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntegrityCount {
    pub qos: u8,
    /// Deliveries owed: for QoS 1 and 2 of acknowledged messages, for QoS 0 of sent ones.
    pub expected: u64,
    /// Distinct messages that arrived.
    pub received: u64,
    pub lost: u64,
    /// Arrived again, over what was owed.
    pub duplicated: u64,
    /// Of those: marked DUP by the broker, as it must after a reconnect.
    pub duplicated_marked: u64,
    /// Of those: copies that may come again, because the subscriber's session was resumed on
    /// another connection in between, a member of the shared group lost its connection, or the
    /// publisher sent the message again.
    #[serde(default)]
    pub duplicated_explained: u64,
    /// Arrived after a later message of the same publisher and topic.
    pub reordered: u64,
    /// Arrived although the publisher had no acknowledgement for it (allowed).
    pub unacknowledged_received: u64,
    /// Did not arrive, and nobody can say whether they should have: the subscriber was away, or
    /// came later or left earlier than others published.
    #[serde(default)]
    pub unjudged: u64,
}

impl IntegrityCount {
    /// Second copies that nothing explains: no broker may send them.
    pub fn duplicated_without_cause(&self) -> u64 {
        self.duplicated.saturating_sub(self.duplicated_explained)
    }

    pub fn add(&mut self, other: &Self) {
        self.expected += other.expected;
        self.received += other.received;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.duplicated_marked += other.duplicated_marked;
        self.duplicated_explained += other.duplicated_explained;
        self.reordered += other.reordered;
        self.unacknowledged_received += other.unacknowledged_received;
        self.unjudged += other.unjudged;
    }
}

/// How many samples [`Integrity::worst`] keeps.
pub const WORST_MAX: usize = 20;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IntegritySample {
    /// Client id, or `$share/group` for a shared group.
    pub subscriber: String,
    pub publisher: String,
    pub topic: String,
    pub lost: u64,
    pub duplicated: u64,
    pub reordered: u64,
    /// The first missing sequence numbers as ranges, inclusive, at most 16.
    pub missing: Vec<(u32, u32)>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    pub name: String,
    pub from_secs: f64,
    pub to_secs: f64,
    /// Figures are of this phase, and of no other.
    #[serde(default)]
    pub measured: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timer {
    pub name: String,
    pub summary: LatencySummary,
    /// Of those in it: started, and never stopped. They count with their time until the end.
    #[serde(default)]
    pub unfinished: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultRecord {
    /// `kill`, `stop`, `pause`, `restart`, `cut`.
    pub what: String,
    pub at_secs: f64,
    /// Connections that ended within ten seconds of it.
    pub connections_lost: u64,
    /// Whether fewer clients than before were connected after it; than before the fault that it
    /// ends, for one that gives something back.
    #[serde(default)]
    pub dipped: bool,
    /// Until as many clients as before were connected again.
    pub recovered_after_secs: Option<f64>,
    /// The longest time without an acknowledgement to any publisher before the next fault.
    #[serde(default)]
    pub without_service_secs: Option<f64>,
    pub note: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCount {
    /// `connect`, `subscribe`, `publish`, `connection`, `protocol`.
    pub what: String,
    pub reason: String,
    pub count: u64,
    /// The first client it happened to.
    pub client: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RateSearch {
    /// The bound that had to hold.
    pub latency_percentile: f64,
    pub latency_bound_us: u64,
    /// Highest rate that held and was confirmed, messages per second over all publishers; 0 where
    /// not even the lowest did.
    pub rate_held: f64,
    /// What was published and delivered in each second, at least, in the steps in which it held: a
    /// step takes a little longer than its schedule, and some messages are under way at its end.
    pub rate_delivered: f64,
    /// The lowest that did not hold: the true rate is between the two. Absent where the highest
    /// rate allowed held.
    pub rate_failed: Option<f64>,
    /// Where it did not hold, most steps failed because the tool or its machine was late: the
    /// broker's own limit may be higher. A step in which the tool was late never counts as one that
    /// held.
    pub limited_by_tool: bool,
    /// The lowest and the highest rate at which the percentile was about the bound, where they lie
    /// far apart: the latency hardly depends on the rate there, and another search may end
    /// anywhere between them.
    pub blurred: Option<(f64, f64)>,
    /// Messages that a step needs for its percentile.
    pub samples_min: u64,
    /// Messages that did not arrive in steps that did not hold.
    pub missing_beyond: u64,
    pub steps: Vec<RateStep>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RateStep {
    pub rate: f64,
    /// How long it lasted.
    pub secs: f64,
    pub published_per_sec: f64,
    pub received_per_sec: f64,
    /// At the percentile of the search, of so many messages.
    pub latency_us: u64,
    pub samples: u64,
    /// The tool's own part.
    pub lateness_p99_us: u64,
    pub backlog_per_sec: f64,
    /// Deliveries that were owed and had not come after the drain.
    pub missing: u64,
    /// A step that confirms what was found.
    pub confirms: bool,
    pub held: bool,
    pub why: String,
    /// It did not hold, and might have if flock had not been late.
    pub by_tool: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_survive_json() {
        let mut histogram = LatencyHistogram::new();
        histogram.record_nanos(42_000);
        let results = Results {
            format: RESULTS_FORMAT,
            latencies: vec![Latency {
                kind: LatencyKind::EndToEnd,
                qos: Some(1),
                summary: histogram.summary(),
                histogram,
                unfinished: 0,
                missing: 0,
            }],
            run: RunInfo { outcome: Outcome::Failed("broker gone".into()), ..RunInfo::default() },
            series: vec![Second { at_secs: 3, backlog: -4, ..Second::default() }],
            ..Results::default()
        };
        let text = serde_json::to_string(&results).unwrap();
        assert_eq!(serde_json::from_str::<Results>(&text).unwrap(), results);
        assert_eq!(results.latency_merged(LatencyKind::EndToEnd).count(), 1);
        assert!(results.latency(LatencyKind::EndToEnd, Some(0)).is_none());
        assert_eq!(Results::parse(&text).unwrap(), results);
    }

    #[test]
    fn results_of_another_form_are_refused_and_it_is_said_what_to_do() {
        // As the first form began; much of what this one needs is missing.
        let old = Results::parse("{\"format\":1,\"tool\":{\"name\":\"flock\"}}").unwrap_err();
        assert!(old.contains("format 1") && old.contains("run the scenario again"), "{old}");
        let new = Results::parse("{\"format\":99}").unwrap_err();
        assert!(new.contains("newer flock"), "{new}");
        assert!(Results::parse("{}").unwrap_err().contains("not a results file"));
    }
}
