//! JSON in streams of lines.

use std::borrow::Cow;

/// Characters that JSON may hold as they are, and that some readers take for the end of a line:
/// `str.splitlines` of Python, `.` of an expression in JavaScript.
const ENDS: [char; 3] = ['\u{85}', '\u{2028}', '\u{2029}'];

/// The same JSON, of which each reader of lines makes one line. `json` has no line feed.
pub fn json_line(json: &str) -> Cow<'_, str> {
    if !json.contains(ENDS) {
        return Cow::Borrowed(json);
    }
    let mut line = String::with_capacity(json.len() + 16);
    for sign in json.chars() {
        match ENDS.contains(&sign) {
            // They are nowhere but in texts.
            true => line.push_str(&format!("\\u{:04x}", u32::from(sign))),
            false => line.push(sign),
        }
    }
    Cow::Owned(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_end_a_line_is_escaped() {
        assert_eq!(json_line(r#"{"a":"é"}"#), r#"{"a":"é"}"#);
        let json = "{\"a\":\"1\u{85}2\u{2028}3\u{2029}4\"}";
        assert_eq!(json_line(json), r#"{"a":"1\u00852\u20283\u20294"}"#);
    }
}
