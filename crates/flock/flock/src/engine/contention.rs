//! What else the machine did while the load was measured: a broker that has to share its cores is
//! not the one that was meant.

use std::fs;
use std::time::Instant;

use super::conductor::{Conductor, Marks};
use super::host::Sampler;
use super::owner::{Owner, owner};
use super::pool::Counting;
use flock_measure::Contention;

/// Readings of the whole machine's clocks, in seconds since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct MachineTimes {
    /// Over all cores: busy or idle.
    all: Option<f64>,
    busy: f64,
    /// Of it: packets, for whoever they were.
    interrupts: f64,
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
            interrupts: irq + softirq,
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

/// What a machine did while figures were taken, where only the load runs on it.
#[derive(Debug, Default)]
pub struct Watch {
    from: Option<Reading>,
    /// This process, if none of the brokers is here: all others are strangers then.
    own: Option<Sampler>,
    found: Contention,
}

#[derive(Debug)]
struct Reading {
    at: Instant,
    machine: MachineTimes,
    own_secs: Option<f64>,
}

impl Watch {
    /// Of a load on these brokers.
    pub fn new(brokers: &[String]) -> Self {
        let is_apart = brokers.iter().all(|address| owner(address) == Owner::Remote);
        let own = is_apart.then(|| Sampler::of_process(std::process::id()));
        Self { own, ..Self::default() }
    }

    fn read(&mut self) -> Reading {
        let own = self.own.as_mut().and_then(|own| own.sample(0.0));
        Reading {
            at: Instant::now(),
            machine: MachineTimes::now(),
            own_secs: own.and_then(|sample| sample.cpu_secs),
        }
    }

    /// Told of each order to count, or no longer.
    pub fn on(&mut self, counting: Counting) {
        match (counting, self.from.take()) {
            (Counting::Yes, None) => self.from = Some(self.read()),
            (Counting::Yes, from) => self.from = from,
            (_, Some(from)) => {
                let to = self.read();
                self.found = of_load(&from, &to, (to.at - from.at).as_secs_f64());
            }
            (_, None) => {}
        }
    }

    /// Of what was measured last.
    pub fn found(&self) -> Contention {
        self.found
    }
}

/// Of a machine that only the load is to run on.
fn of_load(from: &Reading, to: &Reading, secs: f64) -> Contention {
    let machine = between(&from.machine, &to.machine, secs);
    let spent = |from: Option<f64>, to: Option<f64>| Some(to? - from?);
    let all = spent(from.machine.all, to.machine.all).filter(|_| machine.busy_percent.is_some());
    let strangers = |(all, own)| {
        let packets = to.machine.interrupts - from.machine.interrupts;
        others_percent(all, to.machine.busy - from.machine.busy - packets, &[own])
    };
    let others_percent = all.zip(spent(from.own_secs, to.own_secs)).map(strangers);
    Contention { others_percent, ..machine }
}

/// What the machine as a whole tells.
fn between(from: &MachineTimes, to: &MachineTimes, secs: f64) -> Contention {
    let spent = |from: Option<f64>, to: Option<f64>| Some(to? - from?);
    let Some(all) = spent(from.all, to.all).filter(|all| *all > 0.0) else {
        return Contention::default();
    };
    if secs < SPAN_SECS_MIN {
        return Contention::default();
    }
    let of_all = |spent: f64| (spent / all * 100.0).clamp(0.0, 100.0);
    let of_time = |spent: f64| (spent / secs * 100.0).clamp(0.0, 100.0);
    Contention {
        steal_percent: Some(of_all(to.steal - from.steal)),
        others_percent: None,
        pressure_percent: spent(from.pressure, to.pressure).map(of_time),
        busy_percent: Some(of_all(to.busy - from.busy)),
        throttled_percent: spent(from.throttled, to.throttled).map(of_time),
        heat_events: from.heat_events.zip(to.heat_events).map(|(from, to)| to.saturating_sub(from)),
    }
}

/// Over the measured stages.
pub(super) fn of(conductor: &Conductor<'_>) -> Contention {
    let (Some(from), Some(to)) = (conductor.marks.measured_from, conductor.marks.measured_to)
    else {
        return Contention::default();
    };
    let secs = to.at_secs - from.at_secs;
    let machine = between(&from.machine, &to.machine, secs);
    let spent = |from: Option<f64>, to: Option<f64>| Some(to? - from?);
    let load = conductor.broker_load.as_ref();
    let brokers = match load.is_some_and(Sampler::is_local) {
        true => spent(from.broker_cpu_secs, to.broker_cpu_secs),
        false => Some(0.0),
    };
    let known = spent(from.own_cpu_secs, to.own_cpu_secs).zip(brokers);
    let known = known.filter(|_| conductor.company.unknown.is_none());
    let company = to.company_cpu_secs - from.company_cpu_secs;
    let busy = to.machine.busy - from.machine.busy;
    // Packets of another machine's broker are taken in by no process.
    let packets = match conductor.company.is_local {
        true => 0.0,
        false => to.machine.interrupts - from.machine.interrupts,
    };
    let all = spent(from.machine.all, to.machine.all).filter(|_| machine.busy_percent.is_some());
    let others =
        |(all, (ours, brokers))| others_percent(all, busy - packets, &[ours, brokers, company]);
    Contention { others_percent: all.zip(known).map(others), ..machine }
}

/// What is left of the busy time without those that take part in the run.
fn others_percent(all: f64, busy: f64, known: &[f64]) -> f64 {
    ((busy - known.iter().sum::<f64>()) / all * 100.0).clamp(0.0, 100.0)
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
        (contention.steal_percent, STEAL_MAX_PERCENT, "other virtual machines took"),
        (contention.others_percent, OTHERS_MAX_PERCENT, "other programs used"),
    ];
    let found = limits.iter().filter_map(|(percent, most, who)| {
        let percent = (*percent)?;
        (percent > *most).then(|| {
            format!("{who} {percent:.0} % of the CPU of this machine during the measurement")
        })
    });
    let mut found: Vec<String> = found.collect();
    if let Some(percent) = contention.throttled_percent.filter(|p| *p > THROTTLED_MAX_PERCENT) {
        found.push(format!(
            "the container was throttled by its CPU limit in {percent:.0} % of the measured time"
        ));
    }
    if let Some(times) = contention.heat_events.filter(|times| *times > 0) {
        found.push(format!("cores were slowed down by heat {times} times"));
    }
    found
}

/// A load that takes every core makes threads wait as well, so that this alone is no reason.
pub(super) fn notes(contention: &Contention) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(percent) = contention.busy_percent.filter(|p| *p > BUSY_MAX_PERCENT) {
        notes.push(format!(
            "the CPU of this machine was {percent:.0} % busy: broker and load competed for it"
        ));
    }
    if let Some(percent) = contention.pressure_percent.filter(|p| *p > PRESSURE_MAX_PERCENT) {
        notes.push(format!(
            "threads of this machine waited for a core in {percent:.0} % of the measured time"
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
    fn a_machine_is_watched_while_figures_are_taken() {
        let times = |all: f64, busy: f64, steal: f64, throttled: f64| MachineTimes {
            all: Some(all),
            busy,
            steal,
            throttled: Some(throttled),
            ..MachineTimes::default()
        };
        let found = between(&times(100.0, 10.0, 1.0, 5.0), &times(140.0, 30.0, 3.0, 7.0), 10.0);
        assert_eq!((found.busy_percent, found.steal_percent), (Some(50.0), Some(5.0)));
        assert_eq!((found.throttled_percent, found.others_percent), (Some(20.0), None));
        let short = between(&times(0.0, 0.0, 0.0, 0.0), &times(2.0, 1.0, 1.0, 1.0), 1.0);
        assert_eq!(short, Contention::default());
        // Of an agent's machine, all that it did not spend itself is others'.
        let reading = |machine: MachineTimes, own_secs: Option<f64>| Reading {
            at: Instant::now(),
            machine,
            own_secs,
        };
        let from = reading(times(100.0, 10.0, 1.0, 5.0), Some(2.0));
        let to = |own_secs| reading(times(140.0, 30.0, 3.0, 7.0), own_secs);
        assert_eq!(of_load(&from, &to(Some(6.0)), 10.0).others_percent, Some(40.0));
        assert_eq!(of_load(&from, &to(None), 10.0).others_percent, None);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap().to_string();
        assert!(Watch::new(&[here, "192.0.2.1:1883".to_owned()]).own.is_none());
        assert!(Watch::new(&["192.0.2.1:1883".to_owned()]).own.is_some());
        let mut watch = Watch::default();
        watch.on(Counting::Warming);
        assert!(watch.from.is_none());
        watch.on(Counting::Yes);
        assert!(watch.from.is_some());
        watch.on(Counting::No);
        assert!(watch.from.is_none());
    }

    #[test]
    fn a_machine_that_others_use_gives_no_valid_figures() {
        // 97 % busy, of which load and broker took 8.
        let others = others_percent(40.0, 38.8, &[2.0, 1.2, 0.0]);
        assert!((others - 89.0).abs() < 1e-9, "{others}");
        assert_eq!(others_percent(40.0, 3.0, &[2.0, 1.2, 0.5]), 0.0);
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
