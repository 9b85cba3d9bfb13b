//! Percent-encoding of names in paths, queries and forms.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// All but the unreserved characters of RFC 3986. A `.` is encoded, so that no name becomes a
/// relative path.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

pub fn percent_encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// `None` unless each `%` is followed by two hexadecimal digits and the bytes are UTF-8.
pub fn percent_decoded(text: &str) -> Option<String> {
    let is_escape = |rest: &str| {
        rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let is_whole = text.split('%').skip(1).all(is_escape);
    let decoded = percent_decode_str(text).decode_utf8().ok().filter(|_| is_whole);
    decoded.map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_and_broken_escapes_are_refused() {
        let name = "a/b c.é%&=ä+";
        assert_eq!(percent_encoded("a/b c.é"), "a%2Fb%20c%2E%C3%A9");
        assert_eq!(percent_decoded(&percent_encoded(name)).as_deref(), Some(name));
        for wrong in ["%", "a%4", "%zz", "%+1", "%ff", "%%41"] {
            assert_eq!(percent_decoded(wrong), None, "{wrong}");
        }
    }
}
