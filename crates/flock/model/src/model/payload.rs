//! What a message carries.

use serde::{Deserialize, Serialize};

use super::Pattern;
use crate::scenario::units;

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
    /// These pieces, padded with spaces to `bytes`, at least as many as they can need: with equal
    /// lengths a message's head is made once.
    Composed { pieces: Vec<Piece>, bytes: u32 },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Piece {
    Bytes(Vec<u8>),
    /// When the message was due, by the wall clock, in decimal digits.
    Time(TimeUnit),
    /// The name that has the number of the client in its group.
    Client(Pattern),
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

    /// A payload in words: `SIZE`, `random:SIZE`, `random:MIN..MAX` (random bytes) or `text:TEXT`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let size = |text: &str| units::size(text.trim());
        let content = match text.split_once(':') {
            None => Content::Filler { bytes: size(text)? },
            Some(("text", text)) => Content::Fixed(text.as_bytes().to_vec()),
            Some(("random", sizes)) => match sizes.split_once("..") {
                None => Content::Random { bytes: size(sizes)? },
                Some((min, max)) => {
                    let (bytes_min, bytes_max) = (size(min)?, size(max)?);
                    if bytes_min > bytes_max {
                        return Err(format!("the sizes must rise, got {min}..{max}"));
                    }
                    Content::RandomSize { bytes_min, bytes_max }
                }
            },
            Some(_) => {
                let known = "SIZE, random:SIZE, random:MIN..MAX or text:TEXT";
                return Err(format!("a payload must be {known}, got `{text}`"));
            }
        };
        let mut payload = Self { content, stamped: false };
        payload.stamped = payload.bytes_min() >= STAMP_BYTES;
        Ok(payload)
    }

    /// Whether each message has another one.
    pub fn is_random(&self) -> bool {
        matches!(self.content, Content::Random { .. } | Content::RandomSize { .. })
    }

    /// The largest payload that this can become.
    pub fn bytes_max(&self) -> u32 {
        match &self.content {
            Content::Filler { bytes } | Content::Random { bytes } => *bytes,
            Content::RandomSize { bytes_max, .. } => *bytes_max,
            Content::Composed { bytes, .. } => *bytes,
            Content::Fixed(bytes) => bytes.len() as u32,
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

impl Content {
    /// Of these pieces, for clients with numbers below `clients`.
    pub fn composed(pieces: Vec<Piece>, clients: u32) -> Self {
        let widest = |pattern: &Pattern| {
            let last = u64::from(clients.saturating_sub(1));
            // A name is longest where its number has the most digits, or is one of few.
            let numbers = (0..=last.min(NAMES_MEASURED)).chain([last]);
            numbers.map(|number| pattern.name(number).len()).max().unwrap_or(0)
        };
        let bytes: usize = pieces
            .iter()
            .map(|piece| match piece {
                Piece::Bytes(bytes) => bytes.len(),
                Piece::Time(unit) => unit.width(),
                Piece::Client(pattern) => widest(pattern),
            })
            .sum();
        Self::Composed { pieces, bytes: bytes as u32 }
    }
}

/// Names whose length is looked at to find the longest.
const NAMES_MEASURED: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_in_words() {
        let parsed = |text: &str| Payload::parse(text).map(|it| (it.content, it.stamped));
        assert_eq!(parsed("128"), Ok((Content::Filler { bytes: 128 }, true)));
        assert_eq!(parsed("15"), Ok((Content::Filler { bytes: 15 }, false)));
        assert_eq!(parsed("random:1K"), Ok((Content::Random { bytes: 1024 }, true)));
        let sizes = Content::RandomSize { bytes_min: 4, bytes_max: 64 };
        assert_eq!(parsed("random:4..64"), Ok((sizes, false)));
        assert_eq!(parsed("text:a:b"), Ok((Content::Fixed(b"a:b".to_vec()), false)));
        for wrong in ["", "x", "bytes:7", "random:9..8", "random:..8", "-1"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn composed_content_has_space_for_the_longest_name() {
        let client = Piece::Client(Pattern::parse("VIN-{9..}").unwrap());
        let pieces = vec![Piece::Bytes(b"ab".to_vec()), client, Piece::Time(TimeUnit::Seconds)];
        let payload = |clients| Payload {
            content: Content::composed(pieces.clone(), clients),
            stamped: false,
        };
        assert_eq!(payload(1).bytes_max(), 2 + 5 + 10);
        assert_eq!(payload(2).bytes_max(), 2 + 6 + 10);
        assert_eq!(payload(1_000_000).bytes_max(), 2 + 11 + 10);
    }

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
