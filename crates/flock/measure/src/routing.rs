//! What came out behind the broker: results of sinks.

use serde::{Deserialize, Serialize};

use crate::text;
use crate::{Due, IntegrityCount, IntegritySample, LatencyHistogram, LatencyPoint, LatencySummary};

/// Of all sinks of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Routing {
    pub sinks: Vec<SinkResults>,
    /// What clients published and received in each minute of the run, no gaps.
    pub minutes: Vec<Minute>,
}

/// What one sink received. Counts are of messages, and of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SinkResults {
    pub name: String,
    /// `kafka` or `webhook`.
    pub kind: String,
    /// Where it is, in words.
    pub target: String,
    /// Names of the topic groups whose messages were routed to it.
    pub topics: Vec<String>,
    /// How long routed messages had to arrive after publishing stopped, and how long they took.
    pub drain_secs: f64,
    pub waited_secs: f64,
    /// All that arrived, whatever it was.
    pub events: u64,
    /// Average over the whole seconds of the measured stages, second copies included.
    pub received_per_sec: f64,
    /// By QoS of the publish.
    pub by_qos: Vec<IntegrityCount>,
    /// Publishers and topics with most that was lost, duplicated or out of order.
    pub worst: Vec<IntegritySample>,
    /// On topics that are not routed to it.
    pub misrouted: u64,
    /// The subject is not the topic of the message.
    pub wrong_topic: u64,
    /// Without a stamp of flock, or not what was sent. They stand for no message.
    pub damaged: u64,
    /// No CloudEvents, although they say so. They stand for no message either.
    pub unreadable: u64,
    /// Messages of other runs.
    pub foreign: u64,
    /// Requests that the webhook refused because the scenario says so.
    pub refused: u64,
    /// Attempts to read that failed, and the last reason.
    pub failures: u64,
    pub last_failure: String,
    /// From the time at which a message was due to its arrival here, of the measured stages. What
    /// was lost has none.
    pub latency: LatencySummary,
    pub histogram: LatencyHistogram,
    /// Of the messages in it: those that had not arrived when the run was over, and that nobody
    /// had acknowledged. They count with what they had waited.
    pub unfinished: u64,
    /// Expected, and not in it: lost.
    pub missing: u64,
    /// Minutes in which something arrived, and those between them.
    pub minutes: Vec<SinkMinute>,
}

/// A minute of a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SinkMinute {
    /// From 1, which begins with the run.
    pub minute: u32,
    /// What arrived in it, second copies included.
    pub received: u64,
    /// Of what arrived in it.
    pub latency: LatencyPoint,
}

/// A minute of the clients, by QoS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Minute {
    /// From 1, which begins with the run.
    pub minute: u32,
    pub published: [u64; 3],
    /// By subscribers.
    pub received: [u64; 3],
}

impl Routing {
    /// Over all sinks.
    pub fn total(&self) -> IntegrityCount {
        let mut total = IntegrityCount::default();
        self.sinks.iter().for_each(|sink| total.add(&sink.total()));
        total
    }

    pub fn received_per_sec(&self) -> f64 {
        self.sinks.iter().map(|sink| sink.received_per_sec).sum()
    }
}

impl SinkResults {
    pub fn total(&self) -> IntegrityCount {
        let mut total = IntegrityCount::default();
        self.by_qos.iter().for_each(|count| total.add(count));
        total
    }

    /// The latency of all that was expected.
    pub fn due(&self) -> Due {
        Due {
            histogram: self.histogram.clone(),
            missing: self.missing,
            unfinished: self.unfinished,
        }
    }

    /// Whether all is well, in words.
    pub fn verdict(&self) -> (bool, String) {
        let total = self.total();
        let counts = [
            ("lost", total.lost),
            ("duplicated", total.duplicated),
            ("out of order", total.reordered),
        ];
        let bad = counts.into_iter().chain(self.wrongs()).filter(|(_, n)| *n > 0);
        let bad: Vec<String> = bad.map(|(what, n)| format!("{} {what}", text::count(n))).collect();
        let found = match bad.is_empty() {
            true => "nothing lost, duplicated or out of order".to_owned(),
            false => bad.join(", "),
        };
        let (expected, name) = (text::count(total.expected), &self.name);
        let is_good = bad.is_empty() && total.expected > 0;
        (is_good, format!("sink {name}: {found} in {expected} messages"))
    }

    /// What may never arrive at a sink, in words, and how often it did.
    pub fn wrongs(&self) -> [(&'static str, u64); 4] {
        [
            ("misrouted", self.misrouted),
            ("with a wrong subject", self.wrong_topic),
            ("damaged or without a stamp", self.damaged),
            ("not readable as events", self.unreadable),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sink(count: IntegrityCount) -> SinkResults {
        SinkResults { name: "hub".to_owned(), by_qos: vec![count], ..SinkResults::default() }
    }

    #[test]
    fn a_sink_is_judged_by_what_was_lost_and_by_what_should_not_have_come() {
        let good = IntegrityCount { expected: 1_000, received: 1_000, ..IntegrityCount::default() };
        let words = "sink hub: nothing lost, duplicated or out of order in 1,000 messages";
        assert_eq!(sink(good).verdict(), (true, words.to_owned()));
        let bad = IntegrityCount { lost: 3, reordered: 1, ..good };
        let found = SinkResults { damaged: 2, ..sink(bad) }.verdict();
        let words =
            "sink hub: 3 lost, 1 out of order, 2 damaged or without a stamp in 1,000 messages";
        assert_eq!(found, (false, words.to_owned()));
        assert!(!sink(IntegrityCount::default()).verdict().0, "nothing was published");
    }
}
