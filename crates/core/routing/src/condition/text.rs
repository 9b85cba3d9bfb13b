//! Comparison of texts without regard to case, as Event Grid does it.
//!
//! Each character is compared in lower case. Values of conditions are in lower case already.

use std::borrow::Cow;

/// A text in lower case, character by character. Borrowed: it is already.
pub(super) fn lower(text: &str) -> Cow<'_, str> {
    let is_lower = |sign: char| match sign.is_ascii() {
        true => !sign.is_ascii_uppercase(),
        false => sign.to_lowercase().eq([sign]),
    };
    match text.chars().all(is_lower) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(signs(text).collect()),
    }
}

pub(super) fn equals(text: &str, value: &str) -> bool {
    signs(text).eq(value.chars())
}

pub(super) fn begins(text: &str, value: &str) -> bool {
    let mut signs = signs(text);
    value.chars().all(|sign| signs.next() == Some(sign))
}

pub(super) fn ends(text: &str, value: &str) -> bool {
    let mut signs = text.chars().rev().flat_map(|sign| sign.to_lowercase().rev());
    value.chars().rev().all(|sign| signs.next() == Some(sign))
}

/// In time proportional to the length of the text.
pub(super) fn contains(text: &str, value: &str) -> bool {
    lower(text).contains(value)
}

fn signs(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().flat_map(char::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_does_not_matter() {
        for (text, value) in [("Plant/A", "plant/a"), ("GRÖSSE", "grösse"), ("ΣΊΣΥΦΟΣ", "σίσυφοσ")]
        {
            assert_eq!(lower(text), value);
            assert!(equals(text, value) && begins(text, value) && ends(text, value), "{text}");
            assert!(contains(text, value), "{text}");
        }
        assert!(matches!(lower("plant/7 größe"), Cow::Borrowed(_)));
    }

    #[test]
    fn parts_are_found_where_they_are() {
        assert!(begins("Plant/7/temp", "plant/") && !begins("my/plant/", "plant/"));
        assert!(ends("Plant/7/TEMP", "/temp") && !ends("/temp/", "/temp"));
        assert!(contains("Plant/7/TEMP", "/7/t") && !contains("Plant/7/TEMP", "/8/"));
        assert!(!equals("plant", "plan") && !equals("plan", "plant"));
        assert!(begins("x", "") && ends("x", "") && contains("x", "") && !equals("x", ""));
        assert!(!begins("p", "plant") && !ends("p", "plant"));
    }
}
