//! The ID of an event: the same for all copies of a record, and another one for all others.

use std::fmt;

use broker::streams::StreamNumber;
use routing::dispatch::RecordId;

/// 32 hexadecimal digits. They do not change over restarts: receivers drop copies by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId([u8; 32]);

impl EventId {
    /// `life` tells records apart whose ordinal was given twice after a restored backup.
    pub fn new(life: u64, stream: StreamNumber, record: RecordId) -> Self {
        let parts = [life, u64::from(stream.0) << 16 | u64::from(record.shard), record.ordinal];
        let fold = |seed: u64| parts.iter().fold(seed, |hash, part| mix(hash ^ part));
        let value = u128::from(fold(SEEDS.0)) << 64 | u128::from(fold(SEEDS.1));
        let mut digits = [0; 32];
        for (place, digit) in digits.iter_mut().rev().enumerate() {
            *digit = DIGITS[(value >> (4 * place)) as usize & 0xF];
        }
        Self(digits)
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        // They are ASCII.
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const DIGITS: [u8; 16] = *b"0123456789abcdef";

/// A hash of a publisher and a topic, for the order of records.
pub(crate) fn order_hash(client_id: &str, topic: &str) -> u64 {
    let bytes = client_id.bytes().chain([0xFF]).chain(topic.bytes());
    mix(bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    }))
}

/// Fixed: stored events are recognised by what follows from it.
const SEEDS: (u64, u64) = (0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344);

/// The finalizer of SplitMix64, which maps no two values to one.
const fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_record_has_its_own_and_it_stays() {
        let id = |life, stream, shard, ordinal| {
            EventId::new(life, StreamNumber(stream), RecordId { shard, ordinal })
        };
        let mut seen = BTreeSet::new();
        for life in [0, 1, u64::MAX] {
            for stream in [0, 1, 1 << 16] {
                for (shard, ordinal) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    assert!(seen.insert(id(life, stream, shard, ordinal)));
                }
            }
        }
        assert_eq!(id(1, 2, 3, 4).to_string(), "c7ac94b8e3b6fe7c615f0626b6710ce8");
    }

    #[test]
    fn the_border_of_client_and_topic_counts() {
        assert_ne!(order_hash("ab", "c"), order_hash("a", "bc"));
    }
}
