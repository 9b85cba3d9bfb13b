//! Numbers of the files of streams: little endian, and varints.

/// Appends a LEB128 varint, 1 to 10 bytes.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes that are read from the front. What is not there is None.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// None: it does not end, does not fit into 64 bits, or is longer than it has to be.
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.u8()?;
            let part = u64::from(byte & 0x7F);
            if part << shift >> shift != part || byte == 0 && shift > 0 {
                return None;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_varint_that_is_too_long_or_cut_is_none() {
        for bytes in [
            &[0x80][..],
            &[0x80, 0],
            &[0xFF; 10],
            &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2],
        ] {
            assert_eq!(Input::new(bytes).varint(), None, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn a_varint_comes_back(value: u64, behind: u8) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            bytes.push(behind);
            let mut input = Input::new(&bytes);
            assert_eq!((input.varint(), input.u8()), (Some(value), Some(behind)));
            assert!(input.is_empty());
        }
    }
}
