//! What makes bytes a string of MQTT: well-formed UTF-8 without U+0000 (section 1.5.4).
//!
//! The standard lets a receiver refuse control characters too. They are refused in *names*: topic
//! names and filters, client identifiers and user names, since those end up in logs, metrics and
//! access rules. Free text, such as a user property, may contain them.

use crate::rules::{self, Rule};

/// Any string: user properties, reason strings, content types.
#[inline]
pub(crate) fn check(bytes: &[u8]) -> Result<&str, &'static Rule> {
    let Ok(text) = str::from_utf8(bytes) else { return Err(&rules::UTF8) };
    if any(bytes, |byte| byte == 0) {
        return Err(&rules::NUL);
    }
    Ok(text)
}

/// A string that names something: no control characters.
#[inline]
pub(crate) fn check_name(bytes: &[u8]) -> Result<&str, &'static Rule> {
    let Ok(text) = str::from_utf8(bytes) else { return Err(&rules::UTF8) };
    if any(bytes, may_be_control) {
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
    if any(bytes, |byte| may_be_control(byte) || is_wildcard(byte)) {
        no_control(text)?;
        if has_wildcard(text) {
            return Err(wildcard);
        }
    }
    Ok(text)
}

/// Whether the text contains `+` or `#`, which a topic name must not.
pub(crate) fn has_wildcard(text: &str) -> bool {
    any(text.as_bytes(), is_wildcard)
}

#[cold]
fn no_control(text: &str) -> Result<(), &'static Rule> {
    if text.contains('\0') {
        return Err(&rules::NUL);
    }
    if text.contains(char::is_control) {
        return Err(&rules::CONTROL_CHARACTER);
    }
    Ok(())
}

/// A control character below U+0080, or the first byte of U+0080 to U+00BF.
#[inline]
const fn may_be_control(byte: u8) -> bool {
    byte < 0x20 || byte == 0x7F || byte == 0xC2
}

#[inline]
const fn is_wildcard(byte: u8) -> bool {
    byte == b'+' || byte == b'#'
}

/// Without an early exit the loop compiles to vector instructions; topics are short.
#[inline]
fn any(bytes: &[u8], test: impl Fn(u8) -> bool) -> bool {
    bytes.iter().fold(false, |found, &byte| found | test(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_refused_in_names_only() {
        for text in ["a\u{1}", "\u{1F}", "a\u{7F}b", "\u{80}", "a\u{9F}"] {
            assert!(check(text.as_bytes()).is_ok(), "{text:?}");
            assert!(check_name(text.as_bytes()).is_err(), "{text:?}");
        }
        for text in ["", "a b", "\u{A0}", "\u{BF}", "\u{FEFF}", "\u{FFFF}", "\u{2A6D4}"] {
            assert_eq!(check_name(text.as_bytes()).ok(), Some(text));
            assert_eq!(check_topic(text.as_bytes(), &rules::PUBLISH_WILDCARD).ok(), Some(text));
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
