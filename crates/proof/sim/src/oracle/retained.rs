//! What is retained, by topic.

use std::collections::{BTreeMap, BTreeSet};

use super::Payload;

/// One publisher per topic numbers what it retains there, and what it clears.
#[derive(Debug, Default)]
pub(super) struct Retained {
    topics: BTreeMap<String, Topic>,
}

#[derive(Debug, Default)]
struct Topic {
    /// The last acknowledged change. 0: none.
    acknowledged: u32,
    /// Changes that removed the message.
    clears: BTreeSet<u32>,
    /// Changes that may have been refused first, and taken when later ones were.
    late: BTreeSet<u32>,
}

impl Retained {
    pub(super) fn on_sent(&mut self, topic: &str, sequence: u32, is_clear: bool) {
        let entry = self.topics.entry(topic.to_owned()).or_default();
        if is_clear {
            entry.clears.insert(sequence);
        }
    }

    pub(super) fn on_acknowledged(&mut self, topic: &str, sequence: u32) {
        if let Some(entry) = self.topics.get_mut(topic) {
            entry.acknowledged = entry.acknowledged.max(sequence);
        }
    }

    /// It is sent again, and may have been refused the first time.
    pub(super) fn on_maybe_refused(&mut self, topic: &str, sequence: u32) {
        if let Some(entry) = self.topics.get_mut(topic) {
            entry.late.insert(sequence);
        }
    }

    /// What was acknowledged so far on the topics may be lost.
    pub(super) fn forgive(&mut self, is_lost: impl Fn(&str) -> bool) {
        for (_, entry) in self.topics.iter_mut().filter(|(topic, _)| is_lost(topic)) {
            entry.acknowledged = 0;
        }
    }

    /// Topics of which it is certain what was retained last: the number of the change.
    pub(super) fn certain(&self) -> impl Iterator<Item = (&str, u32)> {
        let is_certain = |entry: &Topic| {
            let is_cleared = entry.clears.range(entry.acknowledged..).next().is_some();
            entry.acknowledged > 0 && !is_cleared && entry.late.is_empty()
        };
        let all = self.topics.iter().filter(move |(_, entry)| is_certain(entry));
        all.map(|(topic, entry)| (&**topic, entry.acknowledged))
    }

    /// A later change may hold without its acknowledgement having come. `is_overtaken`: the reader
    /// has got a later change of the topic as it was made, and what is retained is not sent behind
    /// that.
    pub(super) fn judge(
        &self,
        got: &BTreeMap<String, Payload>,
        is_overtaken: impl Fn(&str, u32) -> bool,
        dropped: u64,
    ) -> Result<(), String> {
        let mut missing = 0;
        for (topic, entry) in self.topics.iter().filter(|(_, entry)| entry.acknowledged > 0) {
            let acknowledged = entry.acknowledged;
            let is_right = match got.get(topic) {
                Some(Payload { sequence, .. }) => {
                    *sequence >= acknowledged || entry.late.contains(sequence)
                }
                None => {
                    entry.clears.range(acknowledged..).next().is_some()
                        || !entry.clears.is_disjoint(&entry.late)
                        || is_overtaken(topic, acknowledged)
                }
            };
            missing += u64::from(!is_right && !got.contains_key(topic));
            if !is_right && (got.contains_key(topic) || missing > dropped) {
                let got = got.get(topic).map(|payload| payload.sequence);
                return Err(format!("retained on {topic}: {got:?}, acknowledged {acknowledged}"));
            }
        }
        Ok(())
    }
}
