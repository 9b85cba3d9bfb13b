//! The variable byte integer: seven bits per byte, least significant first, four bytes at most.

/// The largest value: 268,435,455.
pub const MAX: u32 = 0x0FFF_FFFF;

/// The fourth byte still had its continuation bit set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a variable byte integer is longer than four bytes")]
pub struct Malformed;

/// Appends `value` in its shortest form.
///
/// # Panics
/// If `value` is larger than [`MAX`].
pub fn write(out: &mut Vec<u8>, mut value: u32) {
    assert!(value <= MAX, "a variable byte integer holds at most {MAX}, not {value}");
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes of the shortest form of `value`: 1 to 4.
pub const fn len(value: u32) -> usize {
    match value {
        0..=0x7F => 1,
        0x80..=0x3FFF => 2,
        0x4000..=0x1F_FFFF => 3,
        _ => 4,
    }
}

/// Reads the integer at the front of `bytes`: its value and the bytes it took, or `None` when more
/// bytes are needed. An overlong form is read; compare with [`len`] to refuse it.
#[inline]
pub fn read(bytes: &[u8]) -> Result<Option<(u32, usize)>, Malformed> {
    // Nearly all are one byte long.
    if let [byte @ 0..0x80, ..] = bytes {
        return Ok(Some((u32::from(*byte), 1)));
    }
    let mut value = 0;
    for (at, &byte) in bytes.iter().take(4).enumerate() {
        value |= u32::from(byte & 0x7F) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((value, at + 1)));
        }
    }
    if bytes.len() < 4 { Ok(None) } else { Err(Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boundary_values_of_the_standard() {
        let cases: [(u32, &[u8]); 8] = [
            (0, &[0x00]),
            (127, &[0x7F]),
            (128, &[0x80, 0x01]),
            (16_383, &[0xFF, 0x7F]),
            (16_384, &[0x80, 0x80, 0x01]),
            (2_097_151, &[0xFF, 0xFF, 0x7F]),
            (2_097_152, &[0x80, 0x80, 0x80, 0x01]),
            (MAX, &[0xFF, 0xFF, 0xFF, 0x7F]),
        ];
        for (value, bytes) in cases {
            let mut out = Vec::new();
            write(&mut out, value);
            assert_eq!(out, bytes);
            assert_eq!(len(value), bytes.len());
            assert_eq!(read(bytes), Ok(Some((value, bytes.len()))));
            for cut in 0..bytes.len() {
                assert_eq!(read(&bytes[..cut]), Ok(None));
            }
        }
    }

    #[test]
    fn a_fifth_byte_is_malformed() {
        assert_eq!(read(&[0x80; 4]), Err(Malformed));
        assert_eq!(read(&[0xFF, 0xFF, 0xFF, 0xFF, 0x01]), Err(Malformed));
    }

    #[test]
    fn an_overlong_form_is_read() {
        assert_eq!(read(&[0x81, 0x00]), Ok(Some((1, 2))));
    }
}
