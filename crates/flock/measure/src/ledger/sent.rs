//! What was sent, stream by stream, and what of it nobody promised.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::marks::Marks;
use super::{Slot, StreamId, Wills, slot};

/// What was sent on one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Messages so far, which is also the next sequence number.
    pub count: u32,
    pub qos: u8,
    /// When the first and the last message were handed to the kernel, nanoseconds of the run's
    /// clock.
    pub first_ns: u64,
    pub last_ns: u64,
    /// Of what is sent over a longer time.
    #[serde(default)]
    marks: Option<Box<Marks>>,
}

impl Sent {
    pub fn new(count: u32, qos: u8, first_ns: u64, last_ns: u64) -> Self {
        Self { count, qos, first_ns, last_ns, marks: None }
    }

    /// Counts a message that is handed to the kernel now. `marks_max` bounds what is remembered of
    /// the times.
    #[inline]
    pub fn note(&mut self, qos: u8, now_ns: u64, marks_max: usize) {
        if self.count == 0 {
            self.first_ns = now_ns;
        } else if now_ns >= self.first_ns.saturating_add(MARKED_NS_MIN) {
            self.marks.get_or_insert_default().note(self.count, now_ns, marks_max);
        }
        self.qos = qos;
        self.last_ns = now_ns;
        self.count += 1;
    }

    /// The messages that were certainly sent between two times, as far as it is known which: from
    /// the first number to one before the second.
    pub(super) fn between(&self, from_ns: u64, to_ns: u64) -> (u32, u32) {
        let marks = self.marks.as_deref();
        let from = match () {
            () if from_ns <= self.first_ns => 0,
            () if from_ns > self.last_ns => self.count,
            () => marks.and_then(|marks| marks.after(from_ns)).unwrap_or(self.count - 1),
        };
        let to = match () {
            () if to_ns >= self.last_ns => self.count,
            () if to_ns < self.first_ns => 0,
            () => marks.and_then(|marks| marks.before(to_ns)).map_or(1, |last| last + 1),
        };
        (from, to)
    }

    /// When it was sent, or before.
    pub(super) fn not_before(&self, sequence: u32) -> Slot {
        let marked = self.marks.as_ref().map_or(0, |marks| marks.not_before(sequence));
        marked.max(slot(self.first_ns))
    }
}

/// What is sent within so long of the first message has the first one's time.
const MARKED_NS_MIN: u64 = 100_000_000;

/// Everything that was sent in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentTable {
    pub streams: BTreeMap<StreamId, Sent>,
    /// QoS 1 and 2 messages that were never acknowledged, or refused: nobody promised them.
    pub unpromised: BTreeMap<StreamId, Vec<Unpromised>>,
    /// QoS 1 and 2 messages that their publisher sent again, once for each time.
    #[serde(default)]
    pub resent: BTreeMap<StreamId, Vec<u32>>,
    /// Messages that were acknowledged with "no matching subscribers", by number.
    #[serde(default)]
    pub unheard: BTreeMap<StreamId, Vec<u32>>,
    /// Wills, by the number of their client.
    #[serde(default)]
    pub wills: BTreeMap<u32, Wills>,
}

/// What was sent on one stream, with what became of it at its publisher.
#[derive(Clone, Copy, Debug)]
pub struct Published<'a> {
    pub sent: &'a Sent,
    pub unpromised: &'a [Unpromised],
    /// In rising order.
    pub resent: &'a [u32],
}

/// A message that its publisher has no promise for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unpromised {
    pub sequence: u32,
    /// How long it had waited, since it was due, when the run ended or it was refused; 0 where that
    /// is no latency of the measured stages.
    pub waited_ns: u64,
}

impl SentTable {
    pub fn merge(&mut self, other: Self) {
        // Each stream has one publisher, which runs in one place: keys never meet.
        self.streams.extend(other.streams);
        for (stream, sequences) in other.unpromised {
            self.unpromised.entry(stream).or_default().extend(sequences);
        }
        for (stream, sequences) in other.resent {
            self.resent.entry(stream).or_default().extend(sequences);
        }
        for (stream, sequences) in other.unheard {
            self.unheard.entry(stream).or_default().extend(sequences);
        }
        // Nor does any client run in two places.
        self.wills.extend(other.wills);
    }

    pub fn sort(&mut self) {
        for sequences in self.unpromised.values_mut() {
            sequences.sort_unstable();
            sequences.dedup_by_key(|unpromised| unpromised.sequence);
        }
        self.resent.values_mut().for_each(|sequences| sequences.sort_unstable());
    }

    /// All streams, by number.
    pub fn published(&self) -> impl Iterator<Item = (StreamId, Published<'_>)> {
        self.streams.iter().map(|(&stream, sent)| {
            let unpromised = self.unpromised.get(&stream).map_or(&[][..], Vec::as_slice);
            let resent = self.resent.get(&stream).map_or(&[][..], Vec::as_slice);
            (stream, Published { sent, unpromised, resent })
        })
    }

    pub fn unpromised_count(&self) -> u64 {
        self.unpromised.values().map(|sequences| sequences.len() as u64).sum()
    }
}
