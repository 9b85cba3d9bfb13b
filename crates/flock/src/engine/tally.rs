//! What one load thread counts and records, and the slices of it that it reports each second.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::measure::{ErrorCount, LatencyHistogram, LatencyKind, Totals};

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
    second: [LatencyHistogram; SECOND_KINDS.len()],
    pub timers: Vec<LatencyHistogram>,
    errors: HashMap<(&'static str, String), (u64, String)>,
    lost_reported: i64,
    duplicated_reported: u64,
    /// Messages per second that open-loop publishers want to send at the moment.
    pub wanted_per_sec: f64,
    /// Whether latencies count for the report at the moment.
    pub measured: bool,
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
    pub end_to_end: LatencyHistogram,
    pub publish_ack: LatencyHistogram,
    pub connect: LatencyHistogram,
    pub lateness: LatencyHistogram,
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
            second: std::array::from_fn(|_| LatencyHistogram::new()),
            timers: (0..timers).map(|_| LatencyHistogram::new()).collect(),
            errors: HashMap::new(),
            lost_reported: 0,
            duplicated_reported: 0,
            wanted_per_sec: 0.0,
            measured: false,
        }
    }

    #[inline]
    pub fn latency(&mut self, kind: LatencyKind, qos: u8, nanos: u64) {
        let connecting = matches!(kind, LatencyKind::Connect | LatencyKind::Subscribe);
        if self.measured || connecting {
            self.whole[kind as usize * 3 + usize::from(qos)]
                .get_or_insert_with(Box::default)
                .record_nanos(nanos);
        }
        if let Some(at) = SECOND_KINDS.iter().position(|&wanted| wanted == kind) {
            self.second[at].record_nanos(nanos);
        }
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
        let [end_to_end, publish_ack, connect, lateness] = std::array::from_fn(|at| {
            let taken = if self.second[at].is_empty() {
                LatencyHistogram::new()
            } else {
                self.second[at].clone()
            };
            self.second[at].clear();
            taken
        });
        let tick = Tick {
            at_secs,
            totals: minus(&self.totals, &self.reported),
            connections: self.connections as i64 - self.connections_reported as i64,
            owed: self.owed - self.owed_reported,
            lost: lost - self.lost_reported,
            duplicated: duplicated - self.duplicated_reported,
            scheduled: self.wanted_per_sec * seconds,
            end_to_end,
            publish_ack,
            connect,
            lateness,
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
    pub fn latencies(&self) -> Vec<(LatencyKind, u8, LatencyHistogram)> {
        let mut all = Vec::new();
        for kind in LatencyKind::ALL {
            for qos in 0..3 {
                if let Some(histogram) = &self.whole[kind as usize * 3 + usize::from(qos)] {
                    all.push((kind, qos, (**histogram).clone()));
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
            connections_lost, subscribes_ok, subscribes_failed, unsubscribes_ok,
            publishes_scheduled, published_bytes, publishes_repeated, acknowledged,
            acknowledged_no_subscribers, publishes_refused, publishes_skipped, received_bytes,
            received_retained, received_foreign, wills_received, bytes_in, bytes_out
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

const SECOND_KINDS: [LatencyKind; 4] =
    [LatencyKind::EndToEnd, LatencyKind::PublishAck, LatencyKind::Connect, LatencyKind::Lateness];
const REASONS_MAX: usize = 200;
