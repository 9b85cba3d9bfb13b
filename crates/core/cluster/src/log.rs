//! What is remembered of the journal of one shard in the stream: where its segments begin.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::effect::Sequence;

/// Where the segments of a shard begin in the stream, of those whose beginning is known.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ShardLog {
    /// Bytes of the stream that were read or written for this shard: of messages of all shards.
    bytes: u64,
    segments: BTreeMap<u32, Begin>,
    /// Segments below are gone. 0: none is known to be.
    #[serde(default)]
    needed: u32,
}

/// Where a segment begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Begin {
    at: Sequence,
    /// [`ShardLog::bytes`] before that message.
    bytes: u64,
}

impl ShardLog {
    /// The message holds the beginning of a segment.
    pub(crate) fn begin(&mut self, segment: u32, at: Sequence) {
        let bytes = self.bytes;
        self.segments.entry(segment).or_insert(Begin { at, bytes });
    }

    /// A message of so many bytes, of whatever shards, is read or written.
    pub(crate) const fn pass(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Segments below are gone.
    pub(crate) fn forget_below(&mut self, oldest: u32) {
        self.needed = self.needed.max(oldest);
        self.segments = self.segments.split_off(&oldest);
    }

    /// The oldest segment whose beginning is known, and the message in which it begins.
    pub fn oldest(&self) -> Option<(u32, Sequence)> {
        self.segments.first_key_value().map(|(segment, begin)| (*segment, begin.at))
    }

    /// Messages before this one hold nothing that the shard needs. `None`: no message does.
    pub(crate) fn needed_from(&self) -> Option<Sequence> {
        match self.segments.first_key_value() {
            Some((_, begin)) => Some(begin.at),
            None if self.needed == 0 => None,
            // Something is needed, and it is not known where it begins.
            None => Some(0),
        }
    }

    /// Bytes of the stream from the beginning of the oldest segment to the end.
    pub fn span(&self) -> u64 {
        self.segments.first_key_value().map_or(0, |(_, begin)| self.bytes - begin.bytes)
    }

    /// The newest segment that begins more than so many bytes before the end.
    pub(crate) fn newest_behind(&self, bytes: u64) -> Option<u32> {
        let is_behind = |begin: &Begin| self.bytes - begin.bytes > bytes;
        let behind = self.segments.iter().take_while(|(_, begin)| is_behind(begin));
        behind.last().map(|(segment, _)| *segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_begins_with_the_oldest_segment() {
        let mut log = ShardLog::default();
        assert_eq!((log.needed_from(), log.span()), (None, 0), "nothing was written");
        log.pass(100);
        log.begin(4, 7);
        log.pass(50);
        log.begin(5, 8);
        log.begin(4, 9);
        log.pass(30);
        assert_eq!((log.oldest(), log.needed_from(), log.span()), (Some((4, 7)), Some(7), 80));
        assert_eq!(log.newest_behind(80), None);
        assert_eq!(log.newest_behind(79), Some(4));
        assert_eq!(log.newest_behind(29), Some(5));
        log.forget_below(5);
        assert_eq!((log.needed_from(), log.span()), (Some(8), 30));
        log.forget_below(6);
        assert_eq!(log.needed_from(), Some(0), "a beginning that is not known keeps all");
    }
}
