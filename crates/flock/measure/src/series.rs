//! What happened second by second, and the coarser steps that a long run is kept in.
//!
//! While a run goes on it has one [`Second`] for each second. A run that has more than
//! [`STEPS_MAX`] of them is kept in steps of 2, 4, 8... seconds, so that a day fits a file.

use serde::{Deserialize, Serialize};

use super::histogram::{LatencyHistogram, LatencyKind};
use super::host::HostSample;
use super::results::Results;

/// One second of the run, or one step of several ([`StepSpread::secs`]). Counters are of all of it;
/// `connections` and `backlog` are as they stood at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Its end.
    pub at_secs: u32,
    pub connections: u64,
    pub connects: u64,
    pub connect_failures: u64,
    pub disconnects: u64,
    pub subscribes: u64,
    /// What the open-loop schedule asked for.
    pub scheduled: u64,
    /// Publishers that had more to send at its end, whether or not they were connected.
    #[serde(default)]
    pub publishing: u64,
    pub published: u64,
    pub acknowledged: u64,
    pub received: u64,
    /// PUBACKs that clients sent, and that they received.
    #[serde(default)]
    pub pubacks_sent: u64,
    #[serde(default)]
    pub pubacks_received: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Published and, at the known fan-out, not received yet.
    pub backlog: i64,
    /// Gaps in what was received. Those of clients that were away count until the end, when it is
    /// known what they were owed.
    pub lost_so_far: u64,
    pub duplicated_so_far: u64,
    /// Latency of the messages that arrived in this second.
    pub end_to_end: LatencyPoint,
    pub publish_ack: LatencyPoint,
    pub connect: LatencyPoint,
    /// From requests to their answers.
    #[serde(default)]
    pub round_trip: LatencyPoint,
    pub lateness_p99_us: u64,
    /// How the seconds of a step differed. Absent for a single second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<StepSpread>,
}

/// The least and the most of one second within a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepSpread {
    /// How many seconds the step has.
    pub secs: u32,
    pub published: (u64, u64),
    pub received: (u64, u64),
    pub connections: (u64, u64),
    pub backlog: (i64, i64),
    /// Seconds in which messages were due, and none arrived or was acknowledged.
    pub outage_secs: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyPoint {
    pub count: u64,
    pub average_us: f64,
    pub p50_us: u64,
    #[serde(default)]
    pub p75_us: u64,
    pub p90_us: u64,
    #[serde(default)]
    pub p95_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
}

/// What happened at one QoS. Only seconds (or steps) in which something did are here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QosSeries {
    pub qos: u8,
    pub seconds: Vec<QosSecond>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QosSecond {
    /// That of the [`Second`] that it is a part of.
    pub at_secs: u32,
    /// At the QoS of the publish.
    pub published: u64,
    pub acknowledged: u64,
    /// At the QoS of the delivery.
    pub received: u64,
    pub end_to_end: LatencyPoint,
    pub publish_ack: LatencyPoint,
}

impl Second {
    /// How long it is.
    pub fn secs(&self) -> u32 {
        self.spread.map_or(1, |spread| spread.secs.max(1))
    }

    /// `count` of it in each second.
    pub fn per_sec(&self, count: u64) -> f64 {
        count as f64 / f64::from(self.secs())
    }

    /// For how long messages were due, and none arrived or was acknowledged.
    pub fn outage_secs(&self) -> u32 {
        let is_out =
            self.scheduled >= OUTAGE_DUE_MIN && self.received == 0 && self.acknowledged == 0;
        self.spread.map_or(u32::from(is_out), |spread| spread.outage_secs)
    }

    /// All of a step; `latencies` are those of the step.
    fn of_step(seconds: &[Self], latencies: &StepLatencies) -> Self {
        let last = seconds.last().copied().unwrap_or_default();
        let sum = |of: fn(&Self) -> u64| seconds.iter().map(of).sum();
        let [end_to_end, publish_ack] = [Kind::EndToEnd(0), Kind::PublishAck(0)].map(|kind| {
            let mut all = Sparse::default();
            latencies.0[kind.at()..][..LEVELS].iter().for_each(|level| all.add(level));
            all.point()
        });
        Self {
            connects: sum(|s| s.connects),
            connect_failures: sum(|s| s.connect_failures),
            disconnects: sum(|s| s.disconnects),
            subscribes: sum(|s| s.subscribes),
            scheduled: sum(|s| s.scheduled),
            published: sum(|s| s.published),
            acknowledged: sum(|s| s.acknowledged),
            received: sum(|s| s.received),
            pubacks_sent: sum(|s| s.pubacks_sent),
            pubacks_received: sum(|s| s.pubacks_received),
            bytes_in: sum(|s| s.bytes_in),
            bytes_out: sum(|s| s.bytes_out),
            end_to_end,
            publish_ack,
            connect: latencies.0[Kind::Connect.at()].point(),
            round_trip: latencies.0[Kind::RoundTrip.at()].point(),
            lateness_p99_us: latencies.0[Kind::Lateness.at()].point().p99_us,
            spread: Some(StepSpread::of(seconds)),
            ..last
        }
    }
}

impl StepSpread {
    fn of(seconds: &[Second]) -> Self {
        fn ends<T: Ord + Copy + Default>(all: impl Iterator<Item = T> + Clone) -> (T, T) {
            (all.clone().min().unwrap_or_default(), all.max().unwrap_or_default())
        }
        Self {
            secs: seconds.iter().map(Second::secs).sum(),
            published: ends(seconds.iter().map(|second| second.published)),
            received: ends(seconds.iter().map(|second| second.received)),
            connections: ends(seconds.iter().map(|second| second.connections)),
            backlog: ends(seconds.iter().map(|second| second.backlog)),
            outage_secs: seconds.iter().map(Second::outage_secs).sum(),
        }
    }
}

impl LatencyPoint {
    pub fn of(histogram: &LatencyHistogram) -> Self {
        let summary = histogram.summary();
        Self {
            count: summary.count,
            average_us: summary.average_us,
            p50_us: summary.p50_us,
            p75_us: summary.p75_us,
            p90_us: summary.p90_us,
            p95_us: summary.p95_us,
            p99_us: summary.p99_us,
            max_us: summary.max_us,
        }
    }
}

/// The latencies of one second, as they were measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SecondLatencies {
    /// By QoS.
    pub end_to_end: [LatencyHistogram; LEVELS],
    pub publish_ack: [LatencyHistogram; LEVELS],
    pub connect: LatencyHistogram,
    pub round_trip: LatencyHistogram,
    pub lateness: LatencyHistogram,
}

impl SecondLatencies {
    /// Where a latency of this kind belongs, if seconds have it.
    #[inline]
    pub fn of(&mut self, kind: LatencyKind, qos: u8) -> Option<&mut LatencyHistogram> {
        let qos = usize::from(qos).min(LEVELS - 1);
        match kind {
            LatencyKind::EndToEnd => Some(&mut self.end_to_end[qos]),
            LatencyKind::PublishAck => Some(&mut self.publish_ack[qos]),
            LatencyKind::Connect => Some(&mut self.connect),
            LatencyKind::RoundTrip => Some(&mut self.round_trip),
            LatencyKind::Lateness => Some(&mut self.lateness),
            LatencyKind::Subscribe | LatencyKind::Routed => None,
        }
    }

    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.each_mut().into_iter().zip(other.each()) {
            mine.merge(theirs);
        }
    }

    /// What was recorded; from here on it is empty.
    pub fn take(&mut self) -> Self {
        let mut taken = Self::default();
        for (mine, taken) in self.each_mut().into_iter().zip(taken.each_mut()) {
            // A new histogram touches no memory before something is recorded.
            taken.merge(mine);
            mine.clear();
        }
        taken
    }

    /// Over all levels.
    pub fn all_end_to_end(&self) -> LatencyHistogram {
        merged(&self.end_to_end)
    }

    pub fn all_publish_ack(&self) -> LatencyHistogram {
        merged(&self.publish_ack)
    }

    /// In the order of [`Kind::at`].
    fn each(&self) -> [&LatencyHistogram; KINDS] {
        let ([e0, e1, e2], [a0, a1, a2]) = (&self.end_to_end, &self.publish_ack);
        [e0, e1, e2, a0, a1, a2, &self.connect, &self.round_trip, &self.lateness]
    }

    fn each_mut(&mut self) -> [&mut LatencyHistogram; KINDS] {
        let ([e0, e1, e2], [a0, a1, a2]) = (&mut self.end_to_end, &mut self.publish_ack);
        [e0, e1, e2, a0, a1, a2, &mut self.connect, &mut self.round_trip, &mut self.lateness]
    }
}

fn merged(levels: &[LatencyHistogram; LEVELS]) -> LatencyHistogram {
    let mut all = LatencyHistogram::new();
    levels.iter().for_each(|level| all.merge(level));
    all
}

/// Gathers the latencies of a run in steps, which double in length when there are too many of
/// them: percentiles of a step are those of all its messages.
#[derive(Clone, Debug)]
pub struct Steps {
    step_secs: u32,
    all: Vec<StepLatencies>,
}

impl Default for Steps {
    fn default() -> Self {
        Self { step_secs: 1, all: Vec::new() }
    }
}

impl Steps {
    pub fn add(&mut self, at_secs: u32, second: &SecondLatencies) {
        self.add_second(at_secs, &StepLatencies::of(second));
    }

    pub(crate) fn add_second(&mut self, at_secs: u32, second: &StepLatencies) {
        while index(at_secs, self.step_secs) >= STEPS_MAX {
            self.double();
        }
        let at = index(at_secs, self.step_secs);
        if self.all.len() <= at {
            self.all.resize_with(at + 1, StepLatencies::default);
        }
        self.all[at].add(second);
    }

    fn double(&mut self) {
        self.step_secs *= 2;
        let pairs = std::mem::take(&mut self.all);
        for (at, step) in pairs.into_iter().enumerate() {
            match self.all.get_mut(at / 2) {
                Some(first) => first.add(&step),
                None => self.all.push(step),
            }
        }
    }

    /// Turns seconds into steps, in everything that has one entry for each second.
    pub fn compact(&self, results: &mut Results) {
        let secs = self.step_secs;
        if secs == 1 {
            return;
        }
        let none = StepLatencies::default();
        let of = |at_secs: u32| self.all.get(index(at_secs, secs)).unwrap_or(&none);
        let same = |a: u32, b: u32| index(a, secs) == index(b, secs);
        let steps = results.series.chunk_by(|a, b| same(a.at_secs, b.at_secs));
        results.series = steps.map(|step| Second::of_step(step, of(step[0].at_secs))).collect();
        // The last step may be shorter than the others.
        let ends: Vec<u32> = results.series.iter().map(|step| step.at_secs).collect();
        let end =
            |at_secs: u32| ends[ends.partition_point(|end| *end < at_secs).min(ends.len() - 1)];
        for series in &mut results.qos_series {
            let steps = series.seconds.chunk_by(|a, b| same(a.at_secs, b.at_secs));
            let qos = usize::from(series.qos).min(LEVELS - 1);
            let merged = steps.map(|step| QosSecond::of_step(step, of(step[0].at_secs), qos));
            series.seconds =
                merged.map(|one| QosSecond { at_secs: end(one.at_secs), ..one }).collect();
        }
        for heat in &mut results.heat {
            heat.merge(end);
        }
        let loads = results.broker_load.iter_mut().chain([&mut results.tool_load]);
        for load in loads {
            load.samples = HostSample::merged(&load.samples, secs);
        }
    }
}

impl QosSecond {
    fn of_step(seconds: &[Self], latencies: &StepLatencies, qos: usize) -> Self {
        Self {
            at_secs: seconds.last().map_or(0, |last| last.at_secs),
            published: seconds.iter().map(|second| second.published).sum(),
            acknowledged: seconds.iter().map(|second| second.acknowledged).sum(),
            received: seconds.iter().map(|second| second.received).sum(),
            end_to_end: latencies.0[Kind::EndToEnd(qos).at()].point(),
            publish_ack: latencies.0[Kind::PublishAck(qos).at()].point(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.published + self.acknowledged + self.received == 0
    }
}

impl QosSeries {
    /// Of those levels that a run used; nothing where it is one, and the series has all.
    pub fn of(levels: [Vec<QosSecond>; LEVELS]) -> Vec<Self> {
        let all = levels.into_iter().enumerate().filter(|(_, seconds)| !seconds.is_empty());
        let all: Vec<Self> = all.map(|(qos, seconds)| Self { qos: qos as u8, seconds }).collect();
        if all.len() > 1 { all } else { Vec::new() }
    }
}

/// The step that a second lies in, which is named after its end.
fn index(at_secs: u32, step_secs: u32) -> usize {
    (at_secs.saturating_sub(1) / step_secs) as usize
}

/// One of the latencies of a step.
#[derive(Clone, Copy)]
enum Kind {
    EndToEnd(usize),
    PublishAck(usize),
    Connect,
    RoundTrip,
    Lateness,
}

impl Kind {
    fn at(self) -> usize {
        match self {
            Self::EndToEnd(qos) => qos,
            Self::PublishAck(qos) => LEVELS + qos,
            Self::Connect => 2 * LEVELS,
            Self::RoundTrip => 2 * LEVELS + 1,
            Self::Lateness => 2 * LEVELS + 2,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct StepLatencies([Sparse; KINDS]);

impl StepLatencies {
    pub(crate) fn of(second: &SecondLatencies) -> Self {
        Self(second.each().map(Sparse::of))
    }

    fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            mine.add(theirs);
        }
    }
}

/// A small histogram: [`PER_DECADE`] buckets for each power of ten, so that a percentile is at most
/// 1.8 % off. Average and maximum are exact.
#[derive(Clone, Debug, Default)]
struct Sparse {
    /// Bucket and count, rising.
    buckets: Vec<(u16, u32)>,
    sum_us: f64,
    max_us: u64,
}

impl Sparse {
    fn of(histogram: &LatencyHistogram) -> Self {
        let mut sparse = Self { max_us: histogram.summary().max_us, ..Self::default() };
        for (micros, count) in histogram.buckets() {
            sparse.sum_us += micros as f64 * count as f64;
            let bucket = ((micros.max(1) as f64).log10() * PER_DECADE) as u16;
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            sparse.buckets.push((bucket, count));
        }
        sparse.join();
        sparse
    }

    fn add(&mut self, other: &Self) {
        if other.buckets.is_empty() {
            return;
        }
        self.buckets.extend(&other.buckets);
        self.sum_us += other.sum_us;
        self.max_us = self.max_us.max(other.max_us);
        self.join();
    }

    /// Sorts the buckets, and leaves each once.
    fn join(&mut self) {
        self.buckets.sort_by_key(|(bucket, _)| *bucket);
        self.buckets.dedup_by(|next, before| {
            let is_same = next.0 == before.0;
            before.1 = before.1.saturating_add(if is_same { next.1 } else { 0 });
            is_same
        });
    }

    fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| u64::from(*count)).sum()
    }

    /// The middle of the bucket that the percentile lies in.
    fn micros_at(&self, percentile: f64) -> u64 {
        let wanted = ((self.count() as f64 * percentile / 100.0).ceil() as u64).max(1);
        let mut below = 0;
        for (bucket, count) in &self.buckets {
            below += u64::from(*count);
            if below >= wanted {
                let middle = 10_f64.powf((f64::from(*bucket) + 0.5) / PER_DECADE);
                return (middle.round() as u64).min(self.max_us);
            }
        }
        self.max_us
    }

    fn point(&self) -> LatencyPoint {
        let count = self.count();
        if count == 0 {
            return LatencyPoint::default();
        }
        LatencyPoint {
            count,
            average_us: (self.sum_us / count as f64 * 10.0).round() / 10.0,
            p50_us: self.micros_at(50.0),
            p75_us: self.micros_at(75.0),
            p90_us: self.micros_at(90.0),
            p95_us: self.micros_at(95.0),
            p99_us: self.micros_at(99.0),
            max_us: self.max_us,
        }
    }
}

/// A run of no more seconds keeps all of them.
pub const STEPS_MAX: usize = 3_600;
/// QoS 0, 1 and 2.
pub const LEVELS: usize = 3;
/// Of fewer messages a second, none may arrive by chance.
const OUTAGE_DUE_MIN: u64 = 10;
const PER_DECADE: f64 = 64.0;
const KINDS: usize = 2 * LEVELS + 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_day_fits_ten_megabytes_and_its_stalls_are_in_it() {
        let day = sample::day();
        let json = serde_json::to_string(&day).unwrap();
        assert!(json.len() < 10_000_000, "{} bytes", json.len());
        assert_eq!(day.step_secs(), 32);
        assert_eq!(day.series.len(), 2_700);
        assert_eq!(day.series.iter().map(Second::outage_secs).sum::<u32>(), 4 * sample::STALL_SECS);
        let stalled = day.series.iter().find(|step| step.outage_secs() > 0).unwrap();
        let spread = stalled.spread.unwrap();
        assert_eq!((spread.received.0, spread.secs), (0, 32));
        assert!(spread.received.1 > 0);
        assert!(stalled.end_to_end.max_us > 5_000_000, "{:?}", stalled.end_to_end);
        assert_eq!(Results::parse(&json).unwrap(), day);
    }

    #[test]
    fn steps_add_up_to_what_the_seconds_were() {
        let day = sample::day();
        let sum = |of: fn(&Second) -> u64| day.series.iter().map(of).sum::<u64>();
        assert_eq!(sum(|s| s.published), day.totals.published_all());
        assert_eq!(sum(|s| s.received), day.totals.received_all());
        assert_eq!(sum(|s| s.end_to_end.count), day.totals.received_all());
        for level in &day.qos_series {
            let published: u64 = level.seconds.iter().map(|second| second.published).sum();
            assert_eq!(published, day.totals.published[usize::from(level.qos)]);
            let is_step = |at: &u32| day.series.iter().any(|step| step.at_secs == *at);
            assert!(level.seconds.iter().all(|second| is_step(&second.at_secs)));
        }
        let heat = day.heat.iter().flat_map(|heat| &heat.seconds).flat_map(|second| &second.steps);
        assert_eq!(heat.map(|(_, count)| count).sum::<u64>(), day.totals.received_all());
        let figures = crate::figures::Figures::of(&day);
        let published = figures.published_per_sec.unwrap();
        assert!((published - 20.0).abs() < 0.1, "{published} per second, not per step");
    }

    #[test]
    fn percentiles_of_a_step_are_those_of_all_its_messages() {
        let mut all = LatencyHistogram::new();
        // Every other second is a hundred times as slow.
        let seconds = [200, 20_000].map(|us| {
            let mut second = SecondLatencies::default();
            (0..7).for_each(|n| second.connect.record_micros_n(us + n, 3));
            all.merge(&second.connect);
            StepLatencies::of(&second)
        });
        let mut steps = Steps::default();
        for at_secs in 1..=2 * STEPS_MAX {
            steps.add_second(at_secs as u32, &seconds[at_secs % 2]);
        }
        assert_eq!(steps.step_secs, 2);
        let (point, exact) = (steps.all[0].0[Kind::Connect.at()].point(), LatencyPoint::of(&all));
        assert_eq!((point.count, point.max_us), (exact.count, exact.max_us));
        for (got, exact) in [(point.p50_us, exact.p50_us), (point.p99_us, exact.p99_us)] {
            assert!((got as f64 / exact as f64 - 1.0).abs() < 0.02, "{got} for {exact}");
        }
    }

    #[test]
    fn a_short_run_keeps_its_seconds_and_one_qos_is_not_written_twice() {
        let mut results = sample::results(1.0);
        let before = results.clone();
        Steps::default().compact(&mut results);
        assert_eq!(results, before);
        let one = vec![QosSecond { at_secs: 1, published: 1, ..QosSecond::default() }];
        assert_eq!(QosSeries::of([Vec::new(), one.clone(), Vec::new()]), []);
        let two = QosSeries::of([one.clone(), Vec::new(), one]);
        assert_eq!(two.iter().map(|level| level.qos).collect::<Vec<_>>(), [0, 2]);
    }
}
