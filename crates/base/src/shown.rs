//! Texts that clients chose, in log lines.

use std::borrow::Cow;

/// Bytes of a text that a client chose, in a log line.
const SHOWN_BYTES_MAX: usize = 100;

/// A text that a client chose, as a log line shows it: cut at a hundred bytes.
pub fn shown(text: &str) -> Cow<'_, str> {
    if text.len() <= SHOWN_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    let cut = &text[..text.floor_char_boundary(SHOWN_BYTES_MAX)];
    Cow::Owned(format!("{cut}… ({} bytes)", text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_clients_are_cut_at_a_character() {
        assert_eq!(shown("short"), "short");
        let exact = "x".repeat(SHOWN_BYTES_MAX);
        assert_eq!(shown(&exact), exact);
        let long = "x".to_owned() + &"ü".repeat(100);
        assert_eq!(shown(&long), format!("x{}… (201 bytes)", "ü".repeat(49)));
    }
}
