//! What makes bytes a string of MQTT: well-formed UTF-8 without U+0000 (section 1.5.4).
//!
//! The standard lets a receiver refuse control characters and noncharacters as well. They are
//! refused in *names* (topic names and filters, client identifiers and user names), since those end
//! up in logs, metrics and access rules, and in what a server passes on (content types and user
//! properties of a PUBLISH or will), since libmosquitto disconnects on them. Other text may contain
//! them, for example the user properties of a CONNECT.

use crate::rules::{self, Rule};

/// Any string, for example a reason string.
#[inline]
pub(crate) fn check(bytes: &[u8]) -> Result<&str, &'static Rule> {
    let Ok(text) = str::from_utf8(bytes) else { return Err(&rules::UTF8) };
    if bytes.contains(&0) {
        return Err(&rules::NUL);
    }
    Ok(text)
}

/// A name, or a text that is passed on: no control characters, no noncharacters.
#[inline]
pub(crate) fn check_name(bytes: &[u8]) -> Result<&str, &'static Rule> {
    let Ok(text) = str::from_utf8(bytes) else { return Err(&rules::UTF8) };
    if !is_plain(bytes) {
        no_control(text)?;
    }
    Ok(text)
}

/// A topic name: neither control characters nor wildcards, whose presence breaks `wildcard`.
#[inline]
pub(crate) fn check_topic<'a>(
    bytes: &'a [u8],
    wildcard: &'static Rule,
) -> Result<&'a str, &'static Rule> {
    let Ok(text) = str::from_utf8(bytes) else { return Err(&rules::UTF8) };
    if !is_plain(bytes) {
        no_control(text)?;
        if has_wildcard(text) {
            return Err(wildcard);
        }
    }
    Ok(text)
}

/// Whether the text contains `+` or `#`, which a topic name must not.
pub(crate) fn has_wildcard(text: &str) -> bool {
    text.bytes().any(|byte| byte == b'+' || byte == b'#')
}

fn no_control(text: &str) -> Result<(), &'static Rule> {
    if text.contains('\0') {
        return Err(&rules::NUL);
    }
    if text.contains(char::is_control) {
        return Err(&rules::CONTROL_CHARACTER);
    }
    if text.contains(is_noncharacter) {
        return Err(&rules::NONCHARACTER);
    }
    Ok(())
}

/// U+FDD0 to U+FDEF, and the last two of each plane.
const fn is_noncharacter(c: char) -> bool {
    matches!(c, '\u{FDD0}'..='\u{FDEF}') || c as u32 & 0xFFFE == 0xFFFE
}

/// Whether all bytes are printable ASCII and none is a wildcard, as in nearly every topic: then
/// nothing is left to check. Eight bytes at a time, the last eight possibly once more.
#[inline]
fn is_plain(bytes: &[u8]) -> bool {
    let Some(last) = bytes.last_chunk::<8>() else {
        return bytes.iter().all(|&byte| is_plain_byte(byte));
    };
    let (words, _) = bytes.as_chunks::<8>();
    let doubt = words.iter().fold(doubt_about(*last), |doubt, word| doubt | doubt_about(*word));
    doubt & HIGH_BITS == 0
}

#[inline]
const fn is_plain_byte(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'+' && byte != b'#'
}

/// Sets a high bit if one of the bytes is a control character, `+`, `#` or no ASCII. A borrow or
/// carry may set further ones, but never the first.
#[inline]
const fn doubt_about(bytes: [u8; 8]) -> u64 {
    let word = u64::from_le_bytes(bytes);
    let below_space = word.wrapping_sub(EACH * 0x20);
    let delete = word.wrapping_add(EACH);
    // `+` and `#` differ in one bit: with that bit set, each is a `+`.
    let plus = EACH * b'+' as u64;
    let wildcard = ((word | plus ^ (EACH * b'#' as u64)) ^ plus).wrapping_sub(EACH);
    word | below_space | delete | wildcard
}

const EACH: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = EACH << 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_refused_in_names_only() {
        for text in ["a\u{1}", "\u{1F}", "a\u{7F}b", "\u{80}", "a\u{9F}", "\u{FDD0}", "\u{3FFFF}"] {
            assert!(check(text.as_bytes()).is_ok(), "{text:?}");
            assert!(check_name(text.as_bytes()).is_err(), "{text:?}");
        }
        for text in ["", "a b", "\u{A0}", "\u{BF}", "\u{FEFF}", "\u{FDF0}", "\u{2A6D4}"] {
            assert_eq!(check_name(text.as_bytes()).ok(), Some(text));
            assert_eq!(check_topic(text.as_bytes(), &rules::PUBLISH_WILDCARD).ok(), Some(text));
        }
    }

    #[test]
    fn every_byte_is_judged_at_every_place() {
        for len in 1..40 {
            for at in 0..len {
                for byte in 0..=255_u8 {
                    let mut bytes = vec![b'a'; len];
                    bytes[at] = byte;
                    let plain = (0x20..0x7F).contains(&byte) && byte != b'+' && byte != b'#';
                    assert_eq!(is_plain(&bytes), plain, "0x{byte:02X} at {at} of {len}");
                }
            }
        }
    }

    #[test]
    fn a_topic_has_no_wildcard() {
        for text in ["+", "a/#", "a\u{A1}+"] {
            assert!(check_topic(text.as_bytes(), &rules::PUBLISH_WILDCARD).is_err(), "{text:?}");
            assert!(check_name(text.as_bytes()).is_ok());
        }
    }

    #[test]
    fn ill_formed_text_is_refused() {
        for bytes in [&b"\xED\xA0\x80"[..], b"\xC0\x80", b"\xFF", b"a\xC2"] {
            assert!(check(bytes).is_err() && check_name(bytes).is_err(), "{bytes:?}");
        }
    }
}
