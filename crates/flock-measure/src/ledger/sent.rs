//! What was sent, stream by stream, and what of it nobody promised.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{StreamId, Wills};

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
}

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
