//! What every message carries.

/// Who sent a message, and as which of its messages on the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Payload {
    pub publisher: u32,
    pub sequence: u32,
}

/// Publisher, sequence, length.
const HEAD_BYTES: usize = 12;

impl Payload {
    /// Without padding.
    pub(crate) const BYTES: usize = HEAD_BYTES;

    /// The bytes, with `padding` more behind them.
    pub fn to_bytes(self, padding: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + padding);
        for number in [self.publisher, self.sequence, padding as u32] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes.extend((0..padding).map(|at| self.byte_at(at)));
        bytes
    }

    /// None if a bit of it is not as it was sent.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| {
            let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_be_bytes(bytes))
        };
        let payload = Self { publisher: number(0)?, sequence: number(4)? };
        let padding = &bytes[HEAD_BYTES.min(bytes.len())..];
        let is_whole = number(8)? as usize == padding.len()
            && padding.iter().enumerate().all(|(at, byte)| *byte == payload.byte_at(at));
        is_whole.then_some(payload)
    }

    fn byte_at(self, at: usize) -> u8 {
        (self.publisher as usize + self.sequence as usize * 7 + at) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_bit_is_seen() {
        let payload = Payload { publisher: 3, sequence: 70_000 };
        let bytes = payload.to_bytes(300);
        assert_eq!(Payload::from_bytes(&bytes), Some(payload));
        assert_eq!(Payload::from_bytes(&bytes[..311]), None);
        assert_eq!(Payload::from_bytes(&bytes[..10]), None);
        for byte in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[byte] ^= 0x10;
            assert_ne!(Payload::from_bytes(&wrong), Some(payload), "byte {byte}");
        }
    }
}
