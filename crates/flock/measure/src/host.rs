//! What processes and the machine were at while a run went on, and whether its figures may be
//! believed for it.

use serde::{Deserialize, Serialize};

use super::histogram::LatencySummary;

/// CPU and memory of one process tree (the broker's, or the tool's own).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostLoad {
    pub samples: Vec<HostSample>,
    /// In hundredths of one core: 250 is two and a half cores.
    pub cpu_percent_average: f64,
    pub cpu_percent_max: f64,
    pub memory_bytes_average: f64,
    pub memory_bytes_max: u64,
    /// Least-squares slope over the hold.
    pub memory_slope_bytes_per_sec: f64,
    /// The same over the second half of the hold, when all has grown that only warms up.
    #[serde(default)]
    pub memory_slope_late_bytes_per_sec: f64,
    /// How long the hold was.
    #[serde(default)]
    pub memory_slope_secs: f64,
    /// User + system CPU per message received by subscribers while publishing.
    pub cpu_us_per_message: Option<f64>,
    /// User + system CPU per accepted connection during the connect phase.
    pub cpu_us_per_connect: Option<f64>,
    /// Growth of resident memory over the connect phase, per connection.
    pub memory_bytes_per_connection: Option<f64>,
    /// The clock that CPU was read from goes in steps of this; 0 where CPU is not known. What is no
    /// more than a few of them is no figure.
    #[serde(default)]
    pub cpu_resolution_us: f64,
    /// While the load was measured, how long threads were ready and had to wait for a core, for
    /// each second that they had one.
    #[serde(default)]
    pub cpu_wait_ratio: Option<f64>,
    /// Where the samples came from: `pid 1234`, `http://host/metrics`.
    pub source: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostSample {
    pub at_secs: f64,
    /// What is absent is not known: a page of metrics need not have it.
    pub cpu_percent: Option<f64>,
    /// User and system.
    #[serde(default)]
    pub cpu_secs: Option<f64>,
    pub memory_bytes: Option<u64>,
    pub threads: u32,
    pub descriptors: u64,
    /// The most of one second, where a sample stands for a step of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent_max: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes_max: Option<u64>,
}

impl HostSample {
    /// One sample for each step of `secs`: the last of them, with the average of CPU.
    pub fn merged(samples: &[Self], secs: u32) -> Vec<Self> {
        let index = |sample: &Self| (sample.at_secs / f64::from(secs)).ceil() as u64;
        let tenth = |value: f64| (value * 10.0).round() / 10.0;
        let merge = |step: &[Self]| {
            let cpu: Vec<f64> = step.iter().filter_map(|sample| sample.cpu_percent).collect();
            let average = cpu.iter().sum::<f64>() / cpu.len() as f64;
            Self {
                cpu_percent: (!cpu.is_empty()).then(|| tenth(average)),
                cpu_percent_max: cpu.iter().copied().reduce(f64::max).map(tenth),
                memory_bytes_max: step.iter().filter_map(|sample| sample.memory_bytes).max(),
                ..step.last().copied().unwrap_or_default()
            }
        };
        samples.chunk_by(|a, b| index(a) == index(b)).map(merge).collect()
    }
}

/// May the figures be believed?
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Validity {
    pub valid: bool,
    /// Why not: the tool was late, out of CPU, an agent died...
    pub reasons: Vec<String>,
    /// Worth knowing, but no reason to distrust the figures.
    pub notes: Vec<String>,
    /// What else the machine did while the load was measured.
    #[serde(default)]
    pub contention: Contention,
    /// Why it is not known what other programs spent on this machine.
    #[serde(default)]
    pub others_unknown: Option<String>,
    pub lateness: LatencySummary,
    /// How long messages may have waited for the tool to read them: as long as its threads were
    /// busy with others. It is part of every end-to-end latency.
    #[serde(default)]
    pub receive_lag: LatencySummary,
    /// Busiest load thread, in per cent of one core.
    pub thread_cpu_percent_max: f64,
}

/// Of all the cores' time, in per cent; what the system does not tell is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Contention {
    /// Taken by other machines of the host.
    pub steal_percent: Option<f64>,
    /// Spent by programs other than the broker and the lab, where the broker's process is known
    /// or on another machine.
    pub others_percent: Option<f64>,
    /// Some thread of the machine was ready and had to wait for a core (PSI).
    pub pressure_percent: Option<f64>,
    /// All that ran on the machine, broker and lab with it.
    #[serde(default)]
    pub busy_percent: Option<f64>,
    /// Of the measured time: the lab's container had used up its share of the cores.
    #[serde(default)]
    pub throttled_percent: Option<f64>,
    /// How often a core was slowed down because it was hot.
    #[serde(default)]
    pub heat_events: Option<u64>,
}
