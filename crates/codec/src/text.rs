//! What makes bytes a string of MQTT: well-formed UTF-8 without U+0000 (section 1.5.4).

use crate::rules::{self, Rule};

/// Any string: user properties, reason strings, user names.
#[inline]
pub(crate) fn check(bytes: &[u8]) -> Result<&str, &'static Rule> {
    let Ok(text) = str::from_utf8(bytes) else { return Err(&rules::UTF8) };
    if any(bytes, |byte| byte == 0) {
        return Err(&rules::NUL);
    }
    Ok(text)
}

/// Whether the text contains `+` or `#`, which a topic name must not.
#[inline]
pub(crate) fn has_wildcard(text: &str) -> bool {
    any(text.as_bytes(), |byte| byte == b'+' || byte == b'#')
}

/// Without an early exit the loop compiles to vector instructions; topics are short.
#[inline]
fn any(bytes: &[u8], test: impl Fn(u8) -> bool) -> bool {
    bytes.iter().fold(false, |found, &byte| found | test(byte))
}
