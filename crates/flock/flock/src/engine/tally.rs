//! What one load thread counts and records, and the slices of it that it reports each second.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::pool::Counting;
use flock_measure::clients::WORST_CLIENTS_MAX;
use flock_measure::series::SecondLatencies;
use flock_measure::service::{Bins, bin_of};
use flock_measure::{
    ClientLatency, ClientTally, ErrorCount, LatencyHistogram, LatencyKind, Totals,
};

/// Counters and histograms of one thread.
#[derive(Debug)]
pub struct Tally {
    pub totals: Totals,
    reported: Totals,
    pub connections: u64,
    connections_reported: u64,
    /// Deliveries that the published messages should make.
    pub owed: u64,
    owed_reported: u64,
    /// Per kind and QoS, over the whole run. Index: `kind * 3 + qos`.
    whole: Vec<Option<Box<LatencyHistogram>>>,
    second: SecondLatencies,
    pub timers: Vec<LatencyHistogram>,
    errors: HashMap<(&'static str, String), (u64, String)>,
    lost_reported: i64,
    duplicated_reported: u64,
    demand: Demand,
    cut_off: Vec<CutOff>,
    /// Whether latencies count for the report at the moment.
    measured: bool,
    /// From the first measured stage to the end of the last.
    measured_ns: (u64, u64),
    /// The last warm-up: what was due in it stands in no figure.
    warming_ns: (u64, u64),
    /// How long a message may have waited for the tool to look, in measured stages.
    pub receive_lag: LatencyHistogram,
    /// Samples of `whole` that are lower bounds.
    unfinished: Vec<u64>,
    /// What is not in `whole` and was due, by the same index.
    missing: Vec<u64>,
    /// Of the timers' samples: started, and never stopped.
    pub timers_unfinished: Vec<u64>,
    /// By client: what those have received that have received something.
    clients: Vec<Option<(bool, Box<ClientTally>)>>,
    /// When acknowledgements came since the last tick, by second.
    served: Vec<(u32, Bins)>,
}

/// What publishers want to send at the moment, whether or not they can.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Demand {
    publishers: u64,
    /// Of those in an open loop.
    per_sec: f64,
}

/// A publisher that cannot go on, and until when its messages stay due.
#[derive(Clone, Copy, Debug)]
struct CutOff {
    until_ns: u64,
    per_sec: f64,
}

/// Latencies of one kind and QoS.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub kind: LatencyKind,
    pub qos: u8,
    pub histogram: LatencyHistogram,
    /// Of them: lower bounds, of what had not come to its end.
    pub unfinished: u64,
    /// Due, and not among them: lost, refused, or not let in.
    #[serde(default)]
    pub missing: u64,
}

/// One second of one thread: differences to the second before.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tick {
    pub at_secs: u32,
    pub totals: Totals,
    pub connections: i64,
    pub owed: u64,
    pub lost: i64,
    pub duplicated: u64,
    pub scheduled: f64,
    /// Publishers that wanted to send at its end.
    #[serde(default)]
    pub publishing: u64,
    pub latencies: SecondLatencies,
    /// When acknowledgements came, by second.
    #[serde(default)]
    pub served: Vec<(u32, Bins)>,
    /// Messages of the thread's publishers without an acknowledgement.
    pub in_flight: u64,
    /// CPU that the thread spent, and the time it had for it.
    pub cpu_ns: u64,
    pub wall_ns: u64,
}

impl Tally {
    pub fn new(timers: usize) -> Self {
        Self {
            totals: Totals::default(),
            reported: Totals::default(),
            connections: 0,
            connections_reported: 0,
            owed: 0,
            owed_reported: 0,
            whole: (0..LatencyKind::ALL.len() * 3).map(|_| None).collect(),
            second: SecondLatencies::default(),
            timers: (0..timers).map(|_| LatencyHistogram::new()).collect(),
            errors: HashMap::new(),
            lost_reported: 0,
            duplicated_reported: 0,
            demand: Demand::default(),
            cut_off: Vec::new(),
            measured: false,
            measured_ns: (u64::MAX, 0),
            warming_ns: (0, 0),
            receive_lag: LatencyHistogram::new(),
            unfinished: vec![0; LatencyKind::ALL.len() * 3],
            missing: vec![0; LatencyKind::ALL.len() * 3],
            timers_unfinished: vec![0; timers],
            clients: Vec::new(),
            served: Vec::new(),
        }
    }

    /// The latency of a message by its receiver, where it counts for the report.
    #[inline]
    pub fn client_latency(&mut self, client: u32, routed: bool, due_ns: u64, now_ns: u64) {
        if !self.was_measured(due_ns) {
            return;
        }
        let at = client as usize;
        if at >= self.clients.len() {
            self.clients.resize_with(at + 1, || None);
        }
        let (_, tally) = self.clients[at].get_or_insert_with(|| (routed, Box::default()));
        tally.record_nanos(now_ns.saturating_sub(due_ns));
    }

    /// The slowest clients, named by `name`.
    pub fn worst_clients(&self, name: impl Fn(u32) -> String) -> Vec<ClientLatency> {
        let known = self.clients.iter().enumerate();
        let mut all: Vec<_> = known
            .filter_map(|(at, one)| one.as_ref().map(|(routed, tally)| (at, *routed, tally)))
            .collect();
        all.sort_by_cached_key(|(_, _, tally)| std::cmp::Reverse(tally.rank()));
        all.truncate(WORST_CLIENTS_MAX);
        all.into_iter().map(|(at, routed, tally)| tally.summary(name(at as u32), routed)).collect()
    }

    /// A publisher begins; `per_sec` is 0 in a closed loop.
    pub fn begin_publisher(&mut self, per_sec: f64) {
        self.demand.publishers += 1;
        self.demand.per_sec += per_sec;
    }

    /// It has sent all that it was to send.
    pub fn end_publisher(&mut self, per_sec: f64) {
        self.demand.publishers -= 1;
        self.demand.per_sec -= per_sec;
    }

    /// It cannot go on. What it was to send until then stays due: a broker that is gone is not
    /// measured by the time that it was there.
    pub fn cut_publisher_off(&mut self, per_sec: f64, until_ns: u64) {
        self.cut_off.push(CutOff { until_ns, per_sec });
    }

    /// Ends those that were cut off and have nothing due after `now_ns`.
    pub fn end_cut_off(&mut self, now_ns: u64) {
        for at in (0..self.cut_off.len()).rev() {
            if self.cut_off[at].until_ns <= now_ns {
                let CutOff { per_sec, .. } = self.cut_off.swap_remove(at);
                self.end_publisher(per_sec);
            }
        }
    }

    /// Until when messages of publishers that were cut off are due. Nothing is, where nobody was
    /// ever connected: such a run has no rates.
    pub fn cut_off_until_ns(&self) -> Option<u64> {
        let last_ns = self.cut_off.iter().map(|one| one.until_ns).max();
        last_ns.filter(|_| self.totals.connects_ok > 0)
    }

    /// A message was acknowledged.
    #[inline]
    pub fn acknowledged(&mut self, now_ns: u64) {
        self.totals.acknowledged += 1;
        let (second, bin) = bin_of(now_ns);
        if self.served.last().is_none_or(|last| last.0 != second) {
            self.served.push((second, Bins::default()));
        }
        if let Some((_, bins)) = self.served.last_mut() {
            bins[(bin / 64) as usize] |= 1 << (bin % 64);
        }
    }

    #[inline]
    pub fn latency(&mut self, kind: LatencyKind, qos: u8, nanos: u64) {
        let connecting = matches!(kind, LatencyKind::Connect | LatencyKind::Subscribe);
        self.record(kind, qos, nanos, self.measured || connecting);
    }

    #[inline]
    fn record(&mut self, kind: LatencyKind, qos: u8, nanos: u64, counts: bool) {
        if counts {
            self.whole[kind as usize * 3 + usize::from(qos)]
                .get_or_insert_with(Box::default)
                .record_nanos(nanos);
        }
        if let Some(histogram) = self.second.of(kind, qos) {
            histogram.record_nanos(nanos);
        }
    }

    /// The latency of a message that was due at `due_ns`, at `now_ns`. It counts for the report if
    /// it was due in a measured stage or arrives in one: what a broker holds back until the stage
    /// is over is not forgotten.
    #[inline]
    pub fn message_latency(&mut self, kind: LatencyKind, qos: u8, due_ns: u64, now_ns: u64) {
        let nanos = now_ns.saturating_sub(due_ns);
        self.record(kind, qos, nanos, self.was_measured(due_ns));
    }

    /// Whether a message that was due then is one of the measured stages.
    #[inline]
    pub fn was_measured(&self, due_ns: u64) -> bool {
        let is_warm_up = (self.warming_ns.0..self.warming_ns.1).contains(&due_ns);
        let is_within = (self.measured_ns.0..self.measured_ns.1).contains(&due_ns);
        (self.measured || is_within) && !is_warm_up
    }

    /// So many messages came in a turn that took so long.
    pub fn receive_lag(&mut self, took_ns: u64, count: u64) {
        if self.measured {
            self.receive_lag.record_micros_n(took_ns / 1_000, count);
        }
    }

    /// Latencies count from now on, or no longer.
    pub fn set_measured(&mut self, counting: Counting, now_ns: u64) {
        let measured = counting == Counting::Yes;
        if counting == Counting::Warming {
            self.warming_ns = (now_ns, u64::MAX);
        } else {
            self.warming_ns.1 = self.warming_ns.1.min(now_ns);
        }
        match (measured, self.measured) {
            (true, false) if self.measured_ns.0 == u64::MAX => {
                self.measured_ns = (now_ns, u64::MAX)
            }
            (false, true) => self.measured_ns.1 = now_ns,
            _ => {}
        }
        self.measured = measured;
    }

    /// Messages that had not been sent, or had not arrived, when the run was over.
    pub fn unfinished(&mut self, kind: LatencyKind, qos: u8, waited_ns: u64, count: u64) {
        let at = kind as usize * 3 + usize::from(qos);
        let histogram = self.whole[at].get_or_insert_with(Box::default);
        histogram.record_micros_n(waited_ns / 1_000, count);
        self.unfinished[at] += count;
    }

    /// Something that was due ended, and not as it should: it has no latency.
    pub fn missing(&mut self, kind: LatencyKind, qos: u8) {
        self.missing[kind as usize * 3 + usize::from(qos)] += 1;
    }

    /// A timer that was never stopped.
    pub fn unstopped(&mut self, timer: u16, waited_ns: u64) {
        self.timers[usize::from(timer)].record_nanos(waited_ns);
        self.timers_unfinished[usize::from(timer)] += 1;
    }

    /// Counts a failure. At most `REASONS_MAX` different reasons are told apart.
    pub fn error(&mut self, what: &'static str, reason: &str, client: impl FnOnce() -> String) {
        let full = self.errors.len() >= REASONS_MAX;
        let key = (what, reason.to_owned());
        if full && !self.errors.contains_key(&key) {
            let entry = self.errors.entry((what, "other reasons".into()));
            entry.or_insert_with(|| (0, client())).0 += 1;
            return;
        }
        self.errors.entry(key).or_insert_with(|| (0, client())).0 += 1;
    }

    /// The second that ends now.
    pub fn tick(&mut self, at_secs: u32, seconds: f64, lost: i64, duplicated: u64) -> Tick {
        let tick = Tick {
            at_secs,
            totals: minus(&self.totals, &self.reported),
            connections: self.connections as i64 - self.connections_reported as i64,
            owed: self.owed - self.owed_reported,
            lost: lost - self.lost_reported,
            duplicated: duplicated - self.duplicated_reported,
            scheduled: self.demand.per_sec * seconds,
            publishing: self.demand.publishers,
            latencies: self.second.take(),
            served: std::mem::take(&mut self.served),
            in_flight: 0,
            cpu_ns: 0,
            wall_ns: 0,
        };
        self.reported = self.totals;
        self.connections_reported = self.connections;
        self.owed_reported = self.owed;
        self.lost_reported = lost;
        self.duplicated_reported = duplicated;
        tick
    }

    /// The whole run's histograms, by kind and QoS.
    pub fn latencies(&self) -> Vec<Measured> {
        let mut all = Vec::new();
        for kind in LatencyKind::ALL {
            for qos in 0..3 {
                let at = kind as usize * 3 + usize::from(qos);
                let (unfinished, missing) = (self.unfinished[at], self.missing[at]);
                let histogram = self.whole[at].as_deref().cloned();
                if histogram.is_some() || missing > 0 {
                    let histogram = histogram.unwrap_or_default();
                    all.push(Measured { kind, qos, histogram, unfinished, missing });
                }
            }
        }
        all
    }

    pub fn errors(&self) -> Vec<ErrorCount> {
        let all = self.errors.iter().map(|((what, reason), (count, client))| ErrorCount {
            what: (*what).to_owned(),
            reason: reason.clone(),
            count: *count,
            client: client.clone(),
        });
        all.collect()
    }
}

/// Joins failures of several threads, the most frequent first.
pub fn merge_errors(parts: impl Iterator<Item = ErrorCount>) -> Vec<ErrorCount> {
    let mut merged: BTreeMap<(String, String), ErrorCount> = BTreeMap::new();
    for part in parts {
        let key = (part.what.clone(), part.reason.clone());
        match merged.get_mut(&key) {
            Some(known) => known.count += part.count,
            None => {
                merged.insert(key, part);
            }
        }
    }
    let mut all: Vec<ErrorCount> = merged.into_values().collect();
    all.sort_by_key(|error| std::cmp::Reverse(error.count));
    all
}

macro_rules! each_total {
    ($apply:ident) => {
        $apply! {
            connects_started, connects_ok, connects_failed, reconnects, disconnects,
            connections_lost, connections_cut, sessions_found, sessions_shortened,
            subscribes_ok, subscribes_failed, subscribes_lowered,
            unsubscribes_ok, unsubscribes_failed,
            publishes_scheduled, published_bytes, publishes_repeated, acknowledged,
            pubacks_sent, pubacks_received,
            acknowledged_no_subscribers, publishes_refused, publishes_skipped, received_bytes,
            programs_cut_short, receives_failed, received_retained, received_foreign,
            received_foreign_live, received_early, wills_received, requests, answers_sent, answers,
            answers_unasked, answers_again, requests_unanswered, bytes_in, bytes_out
        }
    };
}

fn minus(now: &Totals, before: &Totals) -> Totals {
    macro_rules! difference {
        ($($name:ident),*) => {
            Totals {
                $($name: now.$name - before.$name,)*
                published: std::array::from_fn(|qos| now.published[qos] - before.published[qos]),
                received: std::array::from_fn(|qos| now.received[qos] - before.received[qos]),
                connections_max: 0,
            }
        };
    }
    each_total!(difference)
}

/// Adds one thread's part. `connections_max` is the caller's to know.
pub fn add_totals(sum: &mut Totals, part: &Totals) {
    macro_rules! add {
        ($($name:ident),*) => { $(sum.$name += part.$name;)* };
    }
    each_total!(add);
    for qos in 0..3 {
        sum.published[qos] += part.published[qos];
        sum.received[qos] += part.received[qos];
    }
}

const REASONS_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_due_in_a_warm_up_stands_in_no_figure_whenever_it_arrives() {
        let mut tally = Tally::new(0);
        let arrive = |tally: &mut Tally, due_ns, now_ns| {
            tally.message_latency(LatencyKind::EndToEnd, 0, due_ns, now_ns);
            tally.latencies().iter().map(|measured| measured.histogram.count()).sum::<u64>()
        };
        tally.set_measured(Counting::Warming, 10);
        assert_eq!(arrive(&mut tally, 20, 30), 0);
        tally.set_measured(Counting::Yes, 100);
        assert_eq!(arrive(&mut tally, 50, 150), 0, "held back until the warm-up was over");
        assert_eq!(arrive(&mut tally, 120, 160), 1);
        tally.set_measured(Counting::No, 200);
        assert_eq!(arrive(&mut tally, 150, 400), 2, "held back until the cool-down");
        assert_eq!(arrive(&mut tally, 250, 400), 2);
    }
}
