//! Primitives of encodings: varints, and bytes with their length before them.

/// Why bytes are not what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unreadable(pub &'static str);

/// Appends a LEB128 varint, 1 to 10 bytes.
pub fn put_number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a number of which any value is as likely, always 8 bytes.
pub(crate) fn put_fixed(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends bytes behind their length.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Takes primitives off the front of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn byte(&mut self) -> Result<u8, Unreadable> {
        let (&byte, rest) = self.0.split_first().ok_or(ENDS_EARLY)?;
        self.0 = rest;
        Ok(byte)
    }

    pub fn number(&mut self) -> Result<u64, Unreadable> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Unreadable("a number is too large"));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                // One number has one encoding, so that what is equal has equal bytes.
                let is_padded = byte == 0 && shift > 0;
                return if is_padded { Err(Unreadable("a number is padded")) } else { Ok(value) };
            }
        }
        Err(Unreadable("a number is too long"))
    }

    pub fn fixed(&mut self) -> Result<u64, Unreadable> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(ENDS_EARLY)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*bytes))
    }

    pub fn number_u32(&mut self) -> Result<u32, Unreadable> {
        u32::try_from(self.number()?).map_err(|_| Unreadable("a number exceeds 32 bits"))
    }

    pub fn number_u16(&mut self) -> Result<u16, Unreadable> {
        u16::try_from(self.number()?).map_err(|_| Unreadable("a number exceeds 16 bits"))
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Unreadable> {
        let len =
            usize::try_from(self.number()?).map_err(|_| Unreadable("a length is too large"))?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(ENDS_EARLY)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub fn text(&mut self) -> Result<&'a str, Unreadable> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Unreadable("a text is not UTF-8"))
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub const fn left(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing may be left.
    pub fn end<T>(self, value: T) -> Result<T, Unreadable> {
        if self.is_empty() { Ok(value) } else { Err(Unreadable("there are bytes behind the end")) }
    }
}

const ENDS_EARLY: Unreadable = Unreadable("it ends early");

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
    fn numbers_too_long_too_large_or_padded_are_refused() {
        assert!(Reader(&[0x80; 11]).number().is_err());
        assert!(
            Reader(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).number().is_err()
        );
        assert!(Reader(&[0x80, 0]).number().is_err());
    }
}
