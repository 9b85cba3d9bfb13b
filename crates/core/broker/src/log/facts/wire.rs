//! The primitives of the journal's encoding: varints, and bytes with their length before them.

use crate::log::facts::fact::Malformed;
use crate::words::queue_number::QueueNumber;

/// Appends a LEB128 varint, 1 to 10 bytes.
pub(super) fn put_number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a number of which any value is as likely, always 8 bytes.
pub(super) fn put_fixed(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_queue(out: &mut Vec<u8>, queue: QueueNumber) {
    put_number(out, queue.get());
}

pub(super) fn put_queue_if_any(out: &mut Vec<u8>, queue: Option<QueueNumber>) {
    put_number(out, QueueNumber::number_of(queue));
}

/// Appends bytes behind their length.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Takes the primitives off the front of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        let (&byte, rest) = self.0.split_first().ok_or(Malformed("the record ends early"))?;
        self.0 = rest;
        Ok(byte)
    }

    pub(super) fn number(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Malformed("a number is too large"));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                // One number has one encoding, so that equal facts are equal bytes.
                let is_padded = byte == 0 && shift > 0;
                return if is_padded { Err(Malformed("a number is padded")) } else { Ok(value) };
            }
        }
        Err(Malformed("a number is too long"))
    }

    pub(super) fn fixed(&mut self) -> Result<u64, Malformed> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Malformed("the record ends early"))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*bytes))
    }

    pub(super) fn number_u32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.number()?).map_err(|_| Malformed("a number exceeds 32 bits"))
    }

    pub(super) fn number_u16(&mut self) -> Result<u16, Malformed> {
        u16::try_from(self.number()?).map_err(|_| Malformed("a number exceeds 16 bits"))
    }

    /// The queue of a session or of a shared group.
    pub(super) fn queue(&mut self) -> Result<QueueNumber, Malformed> {
        QueueNumber::new(self.number()?).ok_or(NOBODYS)
    }

    /// The same where there may be none.
    pub(super) fn queue_if_any(&mut self) -> Result<Option<QueueNumber>, Malformed> {
        QueueNumber::of_number(self.number()?)
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len =
            usize::try_from(self.number()?).map_err(|_| Malformed("a length is too large"))?;
        let (bytes, rest) =
            self.0.split_at_checked(len).ok_or(Malformed("the record ends early"))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("a text is not UTF-8"))
    }

    /// All that is left.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing may be left.
    pub(super) fn end<T>(self, value: T) -> Result<T, Malformed> {
        if self.is_empty() { Ok(value) } else { Err(Malformed("the record is too long")) }
    }
}

impl QueueNumber {
    /// What is written where there may be none.
    pub(super) fn number_of(queue: Option<Self>) -> u64 {
        queue.map_or(NOBODY, Self::get)
    }

    /// The reverse. Err: the number stands for something else.
    pub(super) fn of_number(number: u64) -> Result<Option<Self>, Malformed> {
        match number {
            NOBODY => Ok(None),
            _ => Self::new(number).map(Some).ok_or(NOBODYS),
        }
    }
}

/// Where a fact may name no session or group. No fact can mean either by it.
const NOBODY: u64 = 0;

pub(super) const NOBODYS: Malformed =
    Malformed("a queue number belongs neither to a session nor to a group");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length_come_back() {
        for shift in 0..64 {
            for value in [1_u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put_number(&mut out, value);
                let mut reader = Reader(&out);
                assert_eq!(reader.number(), Ok(value));
                assert!(reader.is_empty());
                assert!(Reader(&out[..out.len() - 1]).number().is_err());
            }
        }
    }

    #[test]
    fn numbers_too_long_too_large_or_padded_are_malformed() {
        assert!(Reader(&[0x80; 11]).number().is_err());
        assert!(
            Reader(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).number().is_err()
        );
        assert!(Reader(&[0x80, 0]).number().is_err());
    }
}
