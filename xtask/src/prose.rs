//! Plain words in documents: sentences that are short, and words that a reader of the field knows.
//!
//! A page may have as many marks as `xtask/prose.toml` allows it, and none if it is not there: so
//! no page gets worse, and each that is rewritten stays as it is.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::source::{self, File};

/// More words are two ideas.
const SENTENCE_WORDS_MAX: usize = 25;

/// Beginnings of sentences that have no subject with a name.
const HEADLESS: [&str; 6] = ["Who ", "What ", "Whoever ", "Whatever ", "Those that ", "Those who "];

/// `xtask/prose.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    /// Words that are not used, and what is used instead.
    words: BTreeMap<String, String>,
    /// How many marks a page has at most.
    marks: BTreeMap<String, usize>,
}

/// Something on a page that has to be read twice.
pub struct Mark {
    pub path: String,
    pub line: usize,
    pub what: String,
}

/// All marks, page by page.
pub fn marks(root: &Path) -> Result<Vec<Mark>> {
    let rules = rules()?;
    let pages = pages(root)?;
    Ok(pages.iter().flat_map(|page| marks_of(page, &rules)).collect())
}

/// Pages with more marks than they may have, and numbers of pages that are gone.
pub fn faults(root: &Path) -> Result<Vec<String>> {
    let rules = rules()?;
    let mut faults = Vec::new();
    let pages = pages(root)?;
    for page in &pages {
        let found = marks_of(page, &rules).len();
        let most = rules.marks.get(&page.path).copied().unwrap_or(0);
        if found > most {
            let path = &page.path;
            faults.push(format!(
                "{path}: {found} marks, at most {most} may be there: see `cargo xtask prose {path}`"
            ));
        }
    }
    for path in rules.marks.keys().filter(|path| pages.iter().all(|page| page.path != **path)) {
        faults.push(format!("xtask/prose.toml: {path} is no page: remove the line"));
    }
    Ok(faults)
}

fn rules() -> Result<Rules> {
    toml::from_str(include_str!("../prose.toml")).context("xtask/prose.toml")
}

fn pages(root: &Path) -> Result<Vec<File>> {
    source::files(root, &["md"])
}

fn marks_of(page: &File, rules: &Rules) -> Vec<Mark> {
    let mut marks = Vec::new();
    for (line, sentence) in sentences(&page.text) {
        let mut mark = |what: String| marks.push(Mark { path: page.path.clone(), line, what });
        let count = words(&sentence);
        if count > SENTENCE_WORDS_MAX {
            mark(format!("{count} words: {}", start_of(&sentence)));
        }
        if HEADLESS.iter().any(|start| sentence.starts_with(start)) && !sentence.ends_with('?') {
            mark(format!("no subject with a name: {}", start_of(&sentence)));
        }
        let plain = format!(" {} ", words_of(&sentence));
        for (word, instead) in &rules.words {
            if plain.contains(&format!(" {word} ")) {
                mark(format!("\"{word}\": write {instead}"));
            }
        }
    }
    marks
}

/// How many words a text has.
pub fn words(text: &str) -> usize {
    text.split_whitespace().filter(|word| has_letter(word)).count()
}

fn has_letter(word: &str) -> bool {
    word.chars().any(char::is_alphanumeric)
}

/// Small letters, and one space between words.
fn words_of(sentence: &str) -> String {
    let is_of_word = |c: char| c.is_alphanumeric() || c == '\'' || c == '-';
    let words = sentence.split(|c: char| !is_of_word(c)).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

fn start_of(sentence: &str) -> String {
    let words: Vec<&str> = sentence.split_whitespace().take(8).collect();
    format!("{} ...", words.join(" "))
}

/// The sentences of a page with their lines. An item of a list, a cell and a heading end one; code
/// is left out.
fn sentences(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let (mut begun, mut paragraph) = (0, String::new());
    let (mut is_code, mut is_comment) = (false, false);
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("```") {
            is_code = !is_code;
        }
        is_comment |= line.starts_with("<!--");
        let is_left_out = is_code || is_comment || line.starts_with("```");
        is_comment &= !line.ends_with("-->");
        if is_left_out || line.is_empty() || begins_block(line) {
            split(begun, &std::mem::take(&mut paragraph), &mut found);
        }
        if is_left_out || line.is_empty() {
            continue;
        }
        if line.starts_with('|') {
            let cells = line.trim_matches('|').split(" | ");
            cells.for_each(|cell| split(number + 1, &plain(cell), &mut found));
            continue;
        }
        if paragraph.is_empty() {
            begun = number + 1;
        }
        paragraph.push_str(&plain(line.trim_start_matches(['#', '-', '*', '>', ' '])));
        paragraph.push(' ');
    }
    split(begun, &paragraph, &mut found);
    found
}

fn begins_block(line: &str) -> bool {
    let is_number = || {
        let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
        rest.len() < line.len() && rest.starts_with(". ")
    };
    line.starts_with(['#', '|', '>'])
        || line.starts_with("- ")
        || line.starts_with("* ")
        || is_number()
}

/// Code as one word, the text of a link, no emphasis.
fn plain(line: &str) -> String {
    let mut words = String::new();
    for (place, part) in line.split('`').enumerate() {
        words.push_str(if place % 2 == 0 { part } else { "code" });
    }
    let mut shown = String::new();
    let mut rest = words.as_str();
    while let Some(end) = rest.find("](") {
        shown.push_str(&rest[..end]);
        rest = &rest[end + 2..];
        rest = rest.find(')').map_or("", |end| &rest[end + 1..]);
    }
    shown.push_str(rest);
    shown.replace(['*', '[', ']'], "")
}

fn split(line: usize, paragraph: &str, found: &mut Vec<(usize, String)>) {
    let mut sentence = String::new();
    for word in paragraph.split_whitespace() {
        sentence.push_str(word);
        if word.ends_with(['.', '?', '!']) && word != "e.g." && word != "i.e." {
            found.push((line, std::mem::take(&mut sentence)));
        } else {
            sentence.push(' ');
        }
    }
    if has_letter(&sentence) {
        found.push((line, sentence.trim().to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks_in(text: &str) -> Vec<String> {
        let words = [("flat out".to_owned(), "at full speed".to_owned())].into();
        let rules = Rules { words, marks: BTreeMap::new() };
        let page = File { path: "a.md".into(), text: text.into() };
        marks_of(&page, &rules).into_iter().map(|mark| mark.what).collect()
    }

    #[test]
    fn a_long_sentence_is_marked_and_two_short_ones_are_not() {
        let words = |count: usize| vec!["word"; count].join(" ");
        assert_eq!(
            marks_in(&format!("{}.", words(26))),
            ["26 words: word word word word word word word word ..."]
        );
        assert!(marks_in(&format!("{}. {}.", words(25), words(25))).is_empty());
        assert!(marks_in(&format!("- {}\n- {}", words(25), words(25))).is_empty());
        assert!(marks_in(&format!("| {} | {} |", words(25), words(25))).is_empty());
    }

    #[test]
    fn code_and_targets_of_links_are_no_words() {
        let code = "a ".repeat(40);
        assert!(marks_in(&format!("```\n{code}\n```\n")).is_empty());
        assert!(marks_in(&format!("See `{code}`, and [this](a_b c).")).is_empty());
    }

    #[test]
    fn words_of_our_own_and_headless_sentences_are_marked() {
        assert_eq!(marks_in("It goes *flat\nout*."), ["\"flat out\": write at full speed"]);
        assert_eq!(
            marks_in("Who is late waits."),
            ["no subject with a name: Who is late waits. ..."]
        );
        assert!(marks_in("Who is late?").is_empty());
    }
}
