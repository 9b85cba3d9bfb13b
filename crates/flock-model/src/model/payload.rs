//! What a message carries.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Payload {
    pub content: Content,
    /// Whether the first [`STAMP_BYTES`] carry due time, publisher and sequence, without which
    /// neither latency nor integrity can be measured. Only where the payload has that many
    /// bytes.
    pub stamped: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// So many bytes of a repeated text.
    Filler { bytes: u32 },
    /// So many random bytes (seeded): they do not compress.
    Random { bytes: u32 },
    /// Between `bytes_min` and `bytes_max` random bytes, evenly distributed.
    RandomSize { bytes_min: u32, bytes_max: u32 },
    /// These very bytes.
    Fixed(Vec<u8>),
    /// These bytes, and from `at` on in place of some of them the time when the message was due, by
    /// the wall clock, in decimal digits.
    Timed { bytes: Vec<u8>, at: u32, unit: TimeUnit },
}

/// What a time is counted in, from 1970 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TimeUnit {
    Seconds,
    Millis,
    Micros,
    Nanos,
}

impl TimeUnit {
    fn nanos(self) -> u64 {
        match self {
            Self::Seconds => 1_000_000_000,
            Self::Millis => 1_000_000,
            Self::Micros => 1_000,
            Self::Nanos => 1,
        }
    }

    /// Always as many digits, until the year 2286.
    pub fn digits(self, wall_ns: u64) -> String {
        (wall_ns / self.nanos()).to_string()
    }

    /// How many those are.
    pub fn width(self) -> usize {
        match self {
            Self::Seconds => 10,
            Self::Millis => 13,
            Self::Micros => 16,
            Self::Nanos => 19,
        }
    }
}

/// What a stamp takes of a payload.
pub const STAMP_BYTES: u32 = 16;

impl Payload {
    /// Filler of `bytes`, stamped if there is room.
    pub fn filler(bytes: u32) -> Self {
        Self { content: Content::Filler { bytes }, stamped: bytes >= STAMP_BYTES }
    }

    /// The largest payload that this can become.
    pub fn bytes_max(&self) -> u32 {
        match &self.content {
            Content::Filler { bytes } | Content::Random { bytes } => *bytes,
            Content::RandomSize { bytes_max, .. } => *bytes_max,
            Content::Fixed(bytes) | Content::Timed { bytes, .. } => bytes.len() as u32,
        }
    }

    /// The smallest.
    pub fn bytes_min(&self) -> u32 {
        match &self.content {
            Content::RandomSize { bytes_min, .. } => *bytes_min,
            _ => self.bytes_max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_the_digits_that_were_left_for_it() {
        for unit in [TimeUnit::Seconds, TimeUnit::Millis, TimeUnit::Micros, TimeUnit::Nanos] {
            // 2001 and 2286.
            for wall_ns in [1_000_000_000_123_456_789, 9_999_999_999_999_999_999] {
                assert_eq!(unit.digits(wall_ns).len(), unit.width(), "{unit:?}");
            }
        }
        assert_eq!(TimeUnit::Millis.digits(1_795_227_564_012_345_678), "1795227564012");
    }
}
