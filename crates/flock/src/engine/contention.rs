//! What else the machine did while the load was measured: a broker that has to share its cores is
//! not the one that was meant.

use std::fs;

use super::conductor::{Conductor, Marks};
use super::host::Sampler;
use crate::measure::Contention;

/// Readings of the whole machine's clocks, in seconds since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct MachineTimes {
    /// Over all cores: busy or idle.
    all: Option<f64>,
    busy: f64,
    steal: f64,
    /// Time in which some thread waited for a core.
    pressure: Option<f64>,
    /// Time in which our control group had used up its share of the cores.
    throttled: Option<f64>,
    /// How often a core was slowed down because it was hot.
    heat_events: Option<u64>,
}

impl MachineTimes {
    pub(super) fn now() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let mut times = Self::parse(&read("/proc/stat"), &read("/proc/pressure/cpu"));
        times.throttled = throttled_secs(&fs::read_to_string(CGROUP_STAT).unwrap_or_default());
        times.heat_events = heat_events();
        times
    }

    fn parse(stat: &str, pressure: &str) -> Self {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "));
        let ticks: Vec<f64> = line
            .into_iter()
            .flat_map(str::split_whitespace)
            .take(STAT_FIELDS)
            .filter_map(|field| Some(field.parse::<f64>().ok()? / TICKS_PER_SEC))
            .collect();
        let [user, nice, system, idle, waiting, irq, softirq, steal] = ticks[..] else {
            return Self::default();
        };
        let busy = user + nice + system + irq + softirq;
        let pressure = pressure.lines().find_map(|line| line.strip_prefix("some "));
        let pressure = pressure.and_then(|line| line.rsplit_once("total=")?.1.parse::<f64>().ok());
        Self {
            all: Some(busy + idle + waiting + steal),
            busy,
            steal,
            pressure: pressure.map(|us| us / 1e6),
            ..Self::default()
        }
    }
}

/// Of a control group's `cpu.stat`.
fn throttled_secs(stat: &str) -> Option<f64> {
    let us = stat.lines().find_map(|line| line.strip_prefix("throttled_usec "))?;
    us.trim().parse::<f64>().ok().map(|us| us / 1e6)
}

/// Over all cores, where they count it.
fn heat_events() -> Option<u64> {
    let cores = fs::read_dir("/sys/devices/system/cpu").ok()?;
    let counts = cores.flatten().filter_map(|core| {
        let count = core.path().join("thermal_throttle/core_throttle_count");
        fs::read_to_string(count).ok()?.trim().parse::<u64>().ok()
    });
    counts.reduce(|sum, count| sum + count)
}

/// Over the measured stages.
pub(super) fn of(conductor: &Conductor<'_>) -> Contention {
    let (Some(from), Some(to)) = (conductor.marks.measured_from, conductor.marks.measured_to)
    else {
        return Contention::default();
    };
    let (Some(all_from), Some(all_to)) = (from.machine.all, to.machine.all) else {
        return Contention::default();
    };
    let (all, secs) = (all_to - all_from, to.at_secs - from.at_secs);
    if all <= 0.0 || secs < SPAN_SECS_MIN {
        return Contention::default();
    }
    let share = |secs: f64| (secs / all * 100.0).clamp(0.0, 100.0);
    let spent = |from: Option<f64>, to: Option<f64>| Some(to? - from?);
    let ours = spent(from.own_cpu_secs, to.own_cpu_secs);
    let is_local = conductor.broker_load.as_ref().is_some_and(Sampler::is_local);
    let brokers = spent(from.broker_cpu_secs, to.broker_cpu_secs).filter(|_| is_local);
    let busy = to.machine.busy - from.machine.busy;
    Contention {
        steal_percent: Some(share(to.machine.steal - from.machine.steal)),
        others_percent: ours.zip(brokers).map(|(ours, brokers)| share(busy - ours - brokers)),
        pressure_percent: spent(from.machine.pressure, to.machine.pressure)
            .map(|waited| (waited / secs * 100.0).clamp(0.0, 100.0)),
        busy_percent: Some(share(busy)),
        throttled_percent: spent(from.machine.throttled, to.machine.throttled)
            .map(|throttled| (throttled / secs * 100.0).clamp(0.0, 100.0)),
        heat_events: from
            .machine
            .heat_events
            .zip(to.machine.heat_events)
            .map(|(from, to)| to.saturating_sub(from)),
    }
}

/// For each second on a core, how long the broker's threads were ready and had none.
pub(super) fn wait_ratio(marks: &Marks) -> Option<f64> {
    let (from, to) = (marks.measured_from?, marks.measured_to?);
    let spent = to.broker_cpu_secs? - from.broker_cpu_secs?;
    let waited = to.broker_wait_secs? - from.broker_wait_secs?;
    (spent > 0.0).then_some(waited.max(0.0) / spent)
}

/// Why the figures may not be believed.
pub(super) fn reasons(contention: &Contention) -> Vec<String> {
    let limits = [
        (contention.steal_percent, STEAL_MAX_PERCENT, "other machines of the host took"),
        (contention.others_percent, OTHERS_MAX_PERCENT, "other programs used"),
    ];
    let found = limits.iter().filter_map(|(percent, most, who)| {
        let percent = (*percent)?;
        (percent > *most).then(|| {
            format!("{who} {percent:.0} % of this machine's cores while the load was measured")
        })
    });
    let mut found: Vec<String> = found.collect();
    if let Some(percent) = contention.throttled_percent.filter(|p| *p > THROTTLED_MAX_PERCENT) {
        found.push(format!(
            "the container had used up its share of the cores in {percent:.0} % of the measured time"
        ));
    }
    if let Some(times) = contention.heat_events.filter(|times| *times > 0) {
        found.push(format!("cores were slowed down {times} times because they were hot"));
    }
    found
}

/// A load that takes every core makes threads wait as well, so that this alone is no reason.
pub(super) fn notes(contention: &Contention) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(percent) = contention.busy_percent.filter(|p| *p > BUSY_MAX_PERCENT) {
        notes.push(format!(
            "this machine's cores were {percent:.0} % busy: what runs on it, broker and load, \
             competed for them"
        ));
    }
    if let Some(percent) = contention.pressure_percent.filter(|p| *p > PRESSURE_MAX_PERCENT) {
        notes.push(format!(
            "in {percent:.0} % of the measured time some thread of this machine was ready and had to \
             wait for a core"
        ));
    }
    notes
}

const STAT_FIELDS: usize = 8;
/// USER_HZ.
const TICKS_PER_SEC: f64 = 100.0;
/// In less, ticks say little.
const SPAN_SECS_MIN: f64 = 2.0;
const STEAL_MAX_PERCENT: f64 = 2.0;
const OTHERS_MAX_PERCENT: f64 = 10.0;
const PRESSURE_MAX_PERCENT: f64 = 20.0;
const BUSY_MAX_PERCENT: f64 = 90.0;
const THROTTLED_MAX_PERCENT: f64 = 1.0;
/// Of the container that this process is in, where it is in one (cgroup 2).
const CGROUP_STAT: &str = "/sys/fs/cgroup/cpu.stat";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_clocks_are_read() {
        let stat = "cpu  100 10 50 800 20 5 5 10 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n";
        let pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n";
        let times = MachineTimes::parse(stat, pressure);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(times.all.unwrap(), 10.0) && near(times.busy, 1.7) && near(times.steal, 0.1));
        assert_eq!(times.pressure, Some(1.5));
        assert_eq!(MachineTimes::parse("", ""), MachineTimes::default());
        let stat = "usage_usec 5\nnr_throttled 2\nthrottled_usec 2500000\n";
        assert_eq!((throttled_secs(stat), throttled_secs("usage_usec 5\n")), (Some(2.5), None));
        assert!(MachineTimes::now().all > Some(0.0));
    }

    #[test]
    fn a_machine_that_others_use_gives_no_valid_figures() {
        let quiet = Contention {
            steal_percent: Some(0.4),
            others_percent: Some(3.0),
            ..Contention::default()
        };
        assert_eq!(reasons(&quiet), Vec::<String>::new());
        assert_eq!(reasons(&Contention::default()), Vec::<String>::new());
        let busy = Contention { steal_percent: Some(9.0), others_percent: Some(48.0), ..quiet };
        let found = reasons(&busy);
        assert!(found[0].contains("9 %") && found[1].contains("48 %"), "{found:?}");
        let squeezed = Contention {
            busy_percent: Some(97.0),
            pressure_percent: Some(70.0),
            throttled_percent: Some(0.5),
            heat_events: Some(0),
            ..quiet
        };
        assert_eq!((reasons(&squeezed).len(), notes(&squeezed).len()), (0, 2));
        let slowed = Contention { throttled_percent: Some(12.0), heat_events: Some(3), ..quiet };
        let found = reasons(&slowed);
        assert!(found[0].contains("12 %") && found[1].contains("3 times"), "{found:?}");
    }
}
