//! Which bucket a text falls into.

use crate::hash::TextHasher;

/// Hashes for buckets. Both kinds need a seed that clients cannot guess.
#[derive(Debug)]
pub(super) enum BucketHasher {
    /// Means something in this process only.
    Own(TextHasher),
    /// The same in all cells of a cluster, whatever version they run.
    Frozen(FrozenHasher),
}

impl BucketHasher {
    pub(super) fn own(seed: u64) -> Self {
        Self::Own(TextHasher::new(seed))
    }

    pub(super) fn frozen(seed: u64) -> Self {
        Self::Frozen(FrozenHasher::new(seed))
    }

    pub(super) fn hash(&self, text: &[u8]) -> u64 {
        match self {
            Self::Own(hasher) => hasher.hash_bytes(text),
            Self::Frozen(hasher) => hasher.hash(text),
        }
    }
}

/// wyhash, final version 4: fixed for ever, as cells exchange the numbers of buckets. A table of
/// one cell keeps its own hash, which takes some 30 instructions less.
#[derive(Debug)]
pub(super) struct FrozenHasher {
    seed: u64,
}

impl FrozenHasher {
    fn new(seed: u64) -> Self {
        Self { seed: seed ^ mix(seed ^ SECRET[0], SECRET[1]) }
    }

    pub(super) fn hash(&self, text: &[u8]) -> u64 {
        let mut seed = self.seed;
        let length = text.len();
        let (first, second) = match length {
            0 => (0, 0),
            1..=3 => {
                let [low, middle, high] = [0, length / 2, length - 1].map(|at| u64::from(text[at]));
                (low << 16 | middle << 8 | high, 0)
            }
            4..=16 => {
                let step = length / 8 * 4;
                let last = length - 4;
                let first = read_4(text, 0) << 32 | read_4(text, step);
                (first, read_4(text, last) << 32 | read_4(text, last - step))
            }
            _ => {
                seed = absorb(text, seed);
                (read_8(text, length - 16), read_8(text, length - 8))
            }
        };
        let (low, high) = multiply(first ^ SECRET[1], second ^ seed);
        mix(low ^ SECRET[0] ^ length as u64, high ^ SECRET[1])
    }
}

/// All of a long text but its last 16 bytes, or some of those as well.
fn absorb(mut text: &[u8], mut seed: u64) -> u64 {
    if text.len() >= 48 {
        let mut others = [seed; 2];
        while text.len() >= 48 {
            seed = mix(read_8(text, 0) ^ SECRET[1], read_8(text, 8) ^ seed);
            others[0] = mix(read_8(text, 16) ^ SECRET[2], read_8(text, 24) ^ others[0]);
            others[1] = mix(read_8(text, 32) ^ SECRET[3], read_8(text, 40) ^ others[1]);
            text = &text[48..];
        }
        seed ^= others[0] ^ others[1];
    }
    while text.len() > 16 {
        seed = mix(read_8(text, 0) ^ SECRET[1], read_8(text, 8) ^ seed);
        text = &text[16..];
    }
    seed
}

fn read_8(text: &[u8], at: usize) -> u64 {
    text[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn read_4(text: &[u8], at: usize) -> u64 {
    text[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes).into())
}

fn mix(one: u64, other: u64) -> u64 {
    let (low, high) = multiply(one, other);
    low ^ high
}

fn multiply(one: u64, other: u64) -> (u64, u64) {
    let product = u128::from(one) * u128::from(other);
    (product as u64, (product >> 64) as u64)
}

const SECRET: [u64; 4] =
    [0x2d35_8dcc_aa6c_78a5, 0x8bb8_4b93_962e_acc9, 0x4b33_a62e_d433_d4a3, 0x4d5a_2da5_1de1_aa47];

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that are published with the algorithm: the seed is the number of the text.
    #[test]
    fn the_frozen_hash_is_what_it_always_was() {
        let vectors = [
            ("", 0x9322_8a4d_e0ee_c5a2),
            ("a", 0xc5ba_c3db_1787_13c4),
            ("abc", 0xa97f_2f7b_1d9b_3314),
            ("message digest", 0x786d_1f1d_f380_1df4),
            ("abcdefghijklmnopqrstuvwxyz", 0xdca5_a813_8ad3_7c87),
            (
                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
                0xb9e7_34f1_17cf_af70,
            ),
            (
                "1234567890123456789012345678901234567890\
                 1234567890123456789012345678901234567890",
                0x6cc5_eab4_9a92_d617,
            ),
        ];
        for (seed, (text, hash)) in (0..).zip(vectors) {
            assert_eq!(FrozenHasher::new(seed).hash(text.as_bytes()), hash, "{text}");
        }
    }

    #[test]
    fn every_byte_of_a_text_counts_at_any_length() {
        let hasher = FrozenHasher::new(7);
        for length in 1..200 {
            let mut text = vec![b'x'; length];
            let before = hasher.hash(&text);
            for at in 0..length {
                text[at] = b'y';
                assert_ne!(hasher.hash(&text), before, "byte {at} of {length}");
                text[at] = b'x';
            }
        }
    }
}
