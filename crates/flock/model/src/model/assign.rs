//! Which topics belong to which client, as arithmetic: nothing is stored per client or topic.

use serde::{Deserialize, Deserializer, Serialize};

/// How `t` topics (or filters) are given to the `n` clients of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Assign {
    /// Client `i` has topic `i mod t`: pairs when the counts are equal.
    #[default]
    Pairwise,
    /// Every client has every topic.
    All,
    /// Topics are cut into `n` blocks that differ by at most one, client `i` has block `i`. With
    /// fewer topics than clients, clients are cut into `t` blocks instead and each has one
    /// topic.
    Partition,
    /// Client `i` has so many consecutive topics, from `i` times as many on, wrapping around.
    Window(#[serde(deserialize_with = "one_at_least")] u32),
}

fn one_at_least<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    u32::deserialize(deserializer).map(|each| each.max(1))
}

/// A set of indices given by a formula: `((start + k * step) / divisor) mod modulus`, `k < len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    start: u64,
    step: u64,
    divisor: u64,
    modulus: u64,
    len: u64,
}

impl Assign {
    /// The topics of client `client`. All counts are those of the whole run.
    pub fn topics_of(self, client: u64, clients: u64, topics: u64) -> Members {
        if topics == 0 || client >= clients {
            return Members::EMPTY;
        }
        match self {
            Self::Pairwise => Members::range(client % topics, 1),
            Self::All => Members::range(0, topics),
            Self::Partition if topics < clients => {
                Members::range(muldiv(client, topics, clients), 1)
            }
            Self::Partition => {
                let first = muldiv(client, topics, clients);
                Members::range(first, muldiv(client + 1, topics, clients) - first)
            }
            Self::Window(each) => {
                let each = u64::from(each);
                let start = (u128::from(client) * u128::from(each) % u128::from(topics)) as u64;
                Members { modulus: topics, ..Members::range(start, each.min(topics)) }
            }
        }
    }

    /// The clients of topic `topic`: the inverse of [`Assign::topics_of`].
    pub fn clients_of(self, topic: u64, clients: u64, topics: u64) -> Members {
        if topic >= topics || clients == 0 {
            return Members::EMPTY;
        }
        match self {
            Self::Pairwise => Members::strided(topic, topics, clients),
            Self::All => Members::range(0, clients),
            Self::Partition if topics < clients => {
                let first = muldiv_up(topic, clients, topics);
                Members::range(first, muldiv_up(topic + 1, clients, topics) - first)
            }
            Self::Partition => {
                // The last client whose block starts at or before the topic.
                let due = (u128::from(topic) + 1) * u128::from(clients) - 1;
                Members::range((due / u128::from(topics)) as u64, 1)
            }
            Self::Window(each) => {
                // Client i stands at positions i*each .. i*each + each of the endless repetition of
                // the topics; the topic itself stands at topic, topic + t, topic +
                // 2t, ...
                let each = u64::from(each).clamp(1, topics);
                let end = clients.saturating_mul(each);
                Members { divisor: each, ..Members::strided(topic, topics, end) }
            }
        }
    }
}

impl Members {
    pub const EMPTY: Self = Self { start: 0, step: 1, divisor: 1, modulus: u64::MAX, len: 0 };

    fn range(start: u64, len: u64) -> Self {
        Self { start, step: 1, divisor: 1, modulus: u64::MAX, len }
    }

    /// `start, start + step, ...` below `end`.
    fn strided(start: u64, step: u64, end: u64) -> Self {
        let len = if start < end { (end - 1 - start) / step + 1 } else { 0 };
        Self { start, step, divisor: 1, modulus: u64::MAX, len }
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The `k`-th member, `k < len`.
    pub fn nth(&self, k: u64) -> u64 {
        debug_assert!(k < self.len);
        (self.start + k * self.step) / self.divisor % self.modulus
    }

    pub fn iter(&self) -> impl Iterator<Item = u64> + use<> {
        let members = *self;
        (0..members.len).map(move |k| members.nth(k))
    }

    /// Where `index` stands in this set, the inverse of [`Members::nth`].
    pub fn position(&self, index: u64) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        let guess = if self.divisor > 1 {
            // Positions ascend, so the first k whose quotient reaches the index is the candidate.
            index.saturating_mul(self.divisor).saturating_sub(self.start).div_ceil(self.step)
        } else if self.modulus != u64::MAX {
            (index + self.modulus - self.start % self.modulus) % self.modulus
        } else {
            index.checked_sub(self.start)? / self.step
        };
        (guess < self.len && self.nth(guess) == index).then_some(guess)
    }
}

fn muldiv(a: u64, b: u64, c: u64) -> u64 {
    (u128::from(a) * u128::from(b) / u128::from(c)) as u64
}

fn muldiv_up(a: u64, b: u64, c: u64) -> u64 {
    (u128::from(a) * u128::from(b)).div_ceil(u128::from(c)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: [Assign; 6] = [
        Assign::Pairwise,
        Assign::All,
        Assign::Partition,
        Assign::Window(1),
        Assign::Window(3),
        Assign::Window(7),
    ];

    #[test]
    fn clients_of_is_the_inverse_of_topics_of() {
        for rule in RULES {
            for clients in 1..14 {
                for topics in 1..14 {
                    for topic in 0..topics {
                        let expected: Vec<u64> = (0..clients)
                            .filter(|&c| {
                                rule.topics_of(c, clients, topics).iter().any(|t| t == topic)
                            })
                            .collect();
                        let found: Vec<u64> =
                            rule.clients_of(topic, clients, topics).iter().collect();
                        assert_eq!(
                            found, expected,
                            "{rule:?} {clients} clients, topic {topic}/{topics}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn position_is_the_inverse_of_nth() {
        for rule in RULES {
            for (clients, topics) in [(5, 5), (12, 4), (4, 13), (1, 9), (9, 1)] {
                for index in 0..clients {
                    check_positions(rule.topics_of(index, clients, topics));
                }
                for index in 0..topics {
                    check_positions(rule.clients_of(index, clients, topics));
                }
            }
        }
    }

    fn check_positions(members: Members) {
        let all: Vec<u64> = members.iter().collect();
        for probe in 0..40 {
            let expected = all.iter().position(|&m| m == probe).map(|k| k as u64);
            assert_eq!(members.position(probe), expected, "{members:?} {probe}");
        }
    }

    #[test]
    fn partition_covers_every_topic_once() {
        for (clients, topics) in [(20, 180), (7, 100), (3, 3)] {
            let mut seen: Vec<u64> = (0..clients)
                .flat_map(|c| Assign::Partition.topics_of(c, clients, topics).iter())
                .collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..topics).collect::<Vec<_>>());
        }
    }

    #[test]
    fn two_hundred_million_do_not_overflow() {
        let members = Assign::Partition.topics_of(19_999_999, 20_000_000, 180_000_000);
        assert_eq!((members.len(), members.nth(8)), (9, 179_999_999));
        assert_eq!(
            Assign::Partition.clients_of(179_999_999, 20_000_000, 180_000_000).nth(0),
            19_999_999
        );
    }
}
