//! A made-up run with everything in it, for tests of reports.

use std::sync::OnceLock;

use crate::series::{LEVELS, SecondLatencies, StepLatencies, Steps};
use crate::*;

/// 60 seconds of 1,000 messages per second with a stall at 30 s; everything follows from `shift`.
pub fn results(shift: f64) -> Results {
    let measured = Measured::new(shift);
    Results {
        format: RESULTS_FORMAT,
        tool: ToolInfo {
            name: "flock".into(),
            version: "0.1.0".into(),
            commit: "0123456789ab".into(),
            profile: "quick".into(),
        },
        run: run_info(),
        scenario: scenario_info(),
        broker: BrokerInfo {
            name: "sample".into(),
            version: "1.0".into(),
            addresses: vec!["127.0.0.1:1883".into()],
            command: vec!["broker".into(), "-c".into(), "broker.conf".into()],
            config: "# broker.conf\nlistener 1883".into(),
            host: "8 vCPU, 32 GB".into(),
            limits: Limits { cpu_cores: Some(1.5), memory_bytes: Some(2_000_000_000) },
            round_trip: Some(RoundTrip { min_us: 31.0, median_us: 47.0, samples: 7 }),
            ..BrokerInfo::default()
        },
        machine: machine(),
        totals: Totals {
            connects_ok: 2_000,
            connections_max: 2_000,
            published: [0, 55_000, 0],
            received: [0, 54_998, 0],
            ..Totals::default()
        },
        series: measured.series,
        heat: vec![Heat { kind: LatencyKind::EndToEnd, seconds: measured.heat }],
        latencies: vec![
            latency(LatencyKind::Connect, None, measured.connect),
            latency(LatencyKind::EndToEnd, Some(1), measured.end_to_end),
        ],
        integrity: integrity(),
        broker_load: Some(broker_load(shift)),
        validity: Validity { valid: true, ..Validity::default() },
        phases: vec![
            Phase { name: "connect".into(), from_secs: 0.0, to_secs: 5.0, measured: false },
            Phase { name: "publish".into(), from_secs: 5.0, to_secs: 60.0, measured: true },
        ],
        ..Results::default()
    }
}

/// The same, routed to two sinks, one of which did not get all.
pub fn routed() -> Results {
    let mut results = results(1.0);
    let mut histogram = LatencyHistogram::new();
    histogram.record_micros_n(1_500, 54_000);
    histogram.record_micros_n(65_000, 1_000);
    let good =
        IntegrityCount { qos: 1, expected: 55_000, received: 55_000, ..IntegrityCount::default() };
    let bad = IntegrityCount { received: 54_997, lost: 3, duplicated: 2, reordered: 1, ..good };
    let worst = IntegritySample {
        subscriber: "hub".into(),
        publisher: "pub-7".into(),
        topic: "d2c/7".into(),
        lost: 3,
        missing: vec![(5, 6), (9, 9)],
        ..IntegritySample::default()
    };
    let sink = |name: &str, kind: &str, target: &str, count: IntegrityCount, worst| SinkResults {
        name: name.into(),
        kind: kind.into(),
        target: target.into(),
        topics: vec!["telemetry".into()],
        drain_secs: 30.0,
        waited_secs: 1.5,
        events: 55_000,
        received_per_sec: 1_000.0,
        by_qos: vec![count],
        worst,
        latency: histogram.summary(),
        histogram: histogram.clone(),
        missing: count.lost,
        minutes: vec![SinkMinute {
            minute: 1,
            received: 55_000,
            latency: LatencyPoint::of(&histogram),
        }],
        ..SinkResults::default()
    };
    results.latencies.push(latency(LatencyKind::Routed, Some(1), histogram.clone()));
    let minute = Minute { minute: 1, published: [0, 55_000, 0], received: [0, 54_998, 0] };
    results.routing = Some(Routing {
        sinks: vec![
            sink("hub", "kafka", "topic t of Kafka at 127.0.0.1:9092", bad, vec![worst]),
            sink("hook", "webhook", "webhook at http://127.0.0.1:8080", good, Vec::new()),
        ],
        minutes: vec![minute, Minute { minute: 2, ..Minute::default() }],
    });
    results
}

/// A day of 20 messages per second, half of them at QoS 1, in which the broker stops four times for
/// [`STALL_SECS`]: a third of a step that is a long one.
pub fn day() -> Results {
    static DAY: OnceLock<Results> = OnceLock::new();
    DAY.get_or_init(made_day).clone()
}

fn made_day() -> Results {
    let mut results = results(1.0);
    let (mut steps, mut levels) = (Steps::default(), <[Vec<QosSecond>; LEVELS]>::default());
    results.series.clear();
    results.heat = vec![Heat { kind: LatencyKind::EndToEnd, seconds: Vec::new() }];
    results.totals = Totals { connections_max: 40, ..Totals::default() };
    let busy = SecondOfDay::of(10, 0);
    let after = SecondOfDay::of(10 + 10 * u64::from(STALL_SECS), 10_000_000);
    for at_secs in 1..=DAY_SECS {
        let since = at_secs % (DAY_SECS / 4);
        let is_stalled = (1_000..1_000 + STALL_SECS).contains(&since);
        let kind = if since == 1_000 + STALL_SECS { &after } else { &busy };
        let second = kind.second(at_secs, is_stalled);
        results.totals.published[0] += 10;
        results.totals.published[1] += 10;
        results.totals.pubacks_sent += second.pubacks_sent;
        results.series.push(second);
        let received = second.received / 2;
        for (qos, level) in levels.iter_mut().take(2).enumerate() {
            let point = if is_stalled { LatencyPoint::default() } else { kind.level };
            results.totals.received[qos] += received;
            level.push(QosSecond {
                at_secs,
                published: 10,
                acknowledged: if qos == 1 { received } else { 0 },
                received,
                end_to_end: point,
                publish_ack: if qos == 1 { point } else { LatencyPoint::default() },
            });
        }
        if !is_stalled {
            results.heat[0].seconds.push(HeatSecond { at_secs, ..kind.heat.clone() });
            steps.add_second(at_secs, &kind.latencies);
        }
    }
    results.qos_series = QosSeries::of(levels);
    results.run.duration_secs = f64::from(DAY_SECS);
    results.phases = vec![Phase {
        name: "publish".into(),
        from_secs: 0.0,
        to_secs: f64::from(DAY_SECS),
        measured: true,
    }];
    if let Some(load) = &mut results.broker_load {
        load.samples = (0..DAY_SECS).map(|at| load_sample(at % 60, at)).collect();
        results.tool_load.samples.clone_from(&load.samples);
    }
    steps.compact(&mut results);
    results
}

/// What a second of the day has.
struct SecondOfDay {
    received: u64,
    all: LatencyPoint,
    level: LatencyPoint,
    heat: HeatSecond,
    latencies: StepLatencies,
}

impl SecondOfDay {
    /// So many messages at each QoS, which took `us` and a little more.
    fn of(messages: u64, us: u64) -> Self {
        let mut second = SecondLatencies::default();
        for n in 0..messages {
            let us = us + 300 + n * n % 2_000;
            second.end_to_end[0].record_micros_n(us, 1);
            second.end_to_end[1].record_micros_n(us + 150, 1);
            second.publish_ack[1].record_micros_n(us, 1);
        }
        second.lateness.record_micros_n(70, 2 * messages);
        let all = second.all_end_to_end();
        Self {
            received: 2 * messages,
            all: LatencyPoint::of(&all),
            level: LatencyPoint::of(&second.end_to_end[1]),
            heat: HeatSecond::of(0, &all),
            latencies: StepLatencies::of(&second),
        }
    }

    fn second(&self, at_secs: u32, is_stalled: bool) -> Second {
        let received = if is_stalled { 0 } else { self.received };
        Second {
            at_secs,
            connections: 40,
            scheduled: 20,
            published: 20,
            acknowledged: received / 2,
            received,
            pubacks_sent: received / 2,
            pubacks_received: received / 2,
            bytes_in: received * 30,
            bytes_out: 600,
            end_to_end: if is_stalled { LatencyPoint::default() } else { self.all },
            publish_ack: if is_stalled { LatencyPoint::default() } else { self.level },
            lateness_p99_us: 70,
            ..Second::default()
        }
    }
}

struct Measured {
    series: Vec<Second>,
    heat: Vec<HeatSecond>,
    end_to_end: LatencyHistogram,
    connect: LatencyHistogram,
}

impl Measured {
    /// Five seconds of connecting, then 55 of publishing.
    fn new(shift: f64) -> Self {
        let mut measured = Self {
            series: Vec::new(),
            heat: Vec::new(),
            end_to_end: LatencyHistogram::new(),
            connect: LatencyHistogram::new(),
        };
        for at_secs in 0..60_u32 {
            let second = second_of(at_secs, shift);
            if at_secs < 5 {
                measured.connect.record_micros_n(700 + u64::from(at_secs) * 31, 400);
            }
            measured.end_to_end.merge(&second);
            if !second.is_empty() {
                measured.heat.push(HeatSecond::of(at_secs, &second));
            }
            let is_stalled = at_secs == STALL_AT_SECS;
            measured.series.push(Second {
                at_secs,
                connections: u64::from(at_secs.min(5)) * 400,
                connects: if at_secs < 5 { 400 } else { 0 },
                scheduled: second.count(),
                published: second.count(),
                acknowledged: second.count(),
                received: if is_stalled { 350 } else { second.count() },
                backlog: if is_stalled { 650 } else { 3 },
                end_to_end: LatencyPoint::of(&second),
                connect: LatencyPoint::of(&measured.connect),
                lateness_p99_us: 40 + u64::from(at_secs % 7),
                ..Second::default()
            });
        }
        measured
    }
}

fn second_of(at_secs: u32, shift: f64) -> LatencyHistogram {
    let mut second = LatencyHistogram::new();
    if at_secs < 5 {
        return second;
    }
    for n in 0..1_000_u64 {
        let tail = if n % 100 == 0 { 40 } else { 1 };
        let us = (200 + n % 97 * 3) as f64 * shift * f64::from(tail);
        let us = if at_secs == STALL_AT_SECS { us + n as f64 * 900.0 } else { us };
        second.record_micros_n(us as u64, 1);
    }
    second
}

fn latency(kind: LatencyKind, qos: Option<u8>, histogram: LatencyHistogram) -> Latency {
    Latency { kind, qos, summary: histogram.summary(), histogram, unfinished: 0, missing: 0 }
}

fn run_info() -> RunInfo {
    let command = ["flock", "run", "MB-B1", "--broker", "127.0.0.1:1883"];
    RunInfo {
        command: command.map(str::to_owned).to_vec(),
        started_unix_ms: 1_795_227_564_000,
        duration_secs: 60.0,
        threads: 2,
        ..RunInfo::default()
    }
}

fn scenario_info() -> ScenarioInfo {
    ScenarioInfo {
        id: "MB-B1".into(),
        title: "p2p-1K-1K-1K-1K: 1,000 pairs, 1 msg/s each".into(),
        scale: 1.0,
        seed: 1,
        source: "id = \"MB-B1\" # <sample>".into(),
        overrides: [("duration".to_owned(), "55s".to_owned())].into(),
        as_ran: "stage publish: 55s, measured".into(),
        publishers: 1_000,
        subscribers: 1_000,
        clients: 2_000,
        topics: 1_000,
        ..ScenarioInfo::default()
    }
}

fn machine() -> MachineInfo {
    MachineInfo {
        hostname: "lab".into(),
        cpu: "a CPU".into(),
        cores: 4,
        memory_bytes: 16_000_000_000,
        kernel: "6.1".into(),
        os: "Linux".into(),
        descriptors_soft: 65_536,
        descriptors_hard: 1_048_576,
        sysctls: [("net.core.somaxconn".to_owned(), "4096".to_owned())].into(),
        surroundings: Surroundings {
            governor: Some("performance".into()),
            numa_nodes: Some(2),
            virtual_machine: Some("Amazon EC2".into()),
            container: Some("docker".into()),
            limits: Limits::default(),
        },
    }
}

/// Two messages of the stall are lost.
fn integrity() -> Integrity {
    Integrity {
        by_qos: vec![IntegrityCount {
            qos: 1,
            expected: 55_000,
            received: 54_998,
            lost: 2,
            ..IntegrityCount::default()
        }],
        worst: vec![IntegritySample {
            subscriber: "sub-7".into(),
            publisher: "pub-7".into(),
            topic: "p2p/7".into(),
            lost: 2,
            missing: vec![(31, 32)],
            ..IntegritySample::default()
        }],
        ..Integrity::default()
    }
}

/// The load at `at` seconds, as of the time `at_secs`.
fn load_sample(at: u32, at_secs: u32) -> HostSample {
    HostSample {
        at_secs: f64::from(at_secs),
        cpu_percent: Some(if at < 5 { 12.0 } else { 34.0 + f64::from(at % 5) }),
        memory_bytes: Some(8_000_000 + u64::from(at.min(5)) * 900_000),
        ..HostSample::default()
    }
}

fn broker_load(shift: f64) -> HostLoad {
    HostLoad {
        samples: (0..60).map(|at| load_sample(at, at)).collect(),
        cpu_percent_average: 36.0,
        cpu_percent_max: 38.0,
        memory_bytes_average: 12_500_000.0,
        memory_bytes_max: 12_500_000,
        cpu_us_per_message: Some(36.2 * shift),
        memory_bytes_per_connection: Some(2_250.0),
        source: "pid 1234".into(),
        ..HostLoad::default()
    }
}

const STALL_AT_SECS: u32 = 30;
const DAY_SECS: u32 = 86_400;
/// How long the broker of [`day`] stops.
pub const STALL_SECS: u32 = 11;
