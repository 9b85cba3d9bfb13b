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

/// A text in which nothing is hidden and nothing changes how a terminal shows the rest: control
/// characters, marks of direction, and what has no width are written as `\u{202e}`.
pub fn seen(text: &str) -> Cow<'_, str> {
    escape(text, is_unseen, |sign, out| out.extend(sign.escape_default()))
}

/// The same of lines: ASCII control characters stay, as line breaks and colours are.
pub fn seen_lines(text: &str) -> Cow<'_, str> {
    let is_unseen = |sign: char| !sign.is_ascii() && is_unseen(sign);
    escape(text, is_unseen, |sign, out| out.extend(sign.escape_default()))
}

/// The same of a JSON document: it means what it did.
pub fn seen_json(text: &str) -> Cow<'_, str> {
    let is_unseen = |sign: char| !sign.is_ascii() && is_unseen(sign);
    escape(text, is_unseen, |sign, out| {
        for unit in sign.encode_utf16(&mut [0; 2]) {
            out.push_str(&format!("\\u{unit:04x}"));
        }
    })
}

fn escape<'a>(
    text: &'a str,
    is_unseen: impl Fn(char) -> bool,
    write: impl Fn(char, &mut String),
) -> Cow<'a, str> {
    let Some(first) = text.find(&is_unseen) else { return Cow::Borrowed(text) };
    let mut out = text[..first].to_owned();
    for sign in text[first..].chars() {
        match is_unseen(sign) {
            true => write(sign, &mut out),
            false => out.push(sign),
        }
    }
    Cow::Owned(out)
}

/// As the library sees it: what `Debug` escapes within a text. Marks that combine with the letter
/// before are seen.
fn is_unseen(sign: char) -> bool {
    if sign == ' ' || sign.is_ascii_graphic() {
        return false;
    }
    if sign.is_alphanumeric() {
        return FILLERS.contains(&sign);
    }
    let within: String = ['x', sign].iter().collect();
    within.escape_debug().count() > 2
}

/// Letters without a shape.
const FILLERS: [char; 4] = ['\u{115f}', '\u{1160}', '\u{3164}', '\u{ffa0}'];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_seen_is_written_out() {
        let unseen = "\0\u{7}\u{1b}\u{7f}\u{85}\u{9b}\u{ad}\u{61c}\u{115f}\u{180e}\u{200b}\u{200e}\
                      \u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2060}\u{2066}\u{2069}\u{feff}\
                      \u{fff9}\u{e0041}";
        for sign in unseen.chars() {
            let text = format!("a{sign}b");
            assert_eq!(seen(&text), format!("a{}b", sign.escape_default()), "{sign:?}");
            if !sign.is_ascii() {
                assert_eq!(seen_lines(&text), seen(&text));
                assert_ne!(seen_json(&text), text);
                assert!(seen_json(&text).is_ascii());
            }
        }
        assert_eq!(seen_json("\u{202e}\u{e0041}"), "\\u202e\\udb40\\udc41");
        assert_eq!(seen_lines("\u{1b}[2m\u{202e}\n"), "\u{1b}[2m\\u{202e}\n");
    }

    #[test]
    fn what_is_seen_stays() {
        for text in ["", "a b", "Größe 7", "e\u{301}", "हिन्दी", "日本語", "🦅", "'\"\\", "€–…"]
        {
            for shown in [seen(text), seen_lines(text), seen_json(text)] {
                assert!(matches!(shown, Cow::Borrowed(_)) && shown == text, "{text}");
            }
        }
    }

    #[test]
    fn texts_of_clients_are_cut_at_a_character() {
        assert_eq!(shown("short"), "short");
        let exact = "x".repeat(SHOWN_BYTES_MAX);
        assert_eq!(shown(&exact), exact);
        let long = "x".to_owned() + &"ü".repeat(100);
        assert_eq!(shown(&long), format!("x{}… (201 bytes)", "ü".repeat(49)));
    }
}
