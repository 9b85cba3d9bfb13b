//! Plain words in documents and in texts of code: sentences that are short, and words that a reader
//! of the field knows.
//!
//! A file may have as many marks as `xtask/prose.toml` allows it, and none if it is not there: so
//! no page gets worse, and each that is rewritten stays as it is.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::source::{self, File};
use crate::texts::texts;

/// More words are two ideas.
const SENTENCE_WORDS_MAX: usize = 25;

/// Beginnings of sentences that have no subject with a name.
const HEADLESS: [&str; 6] = ["Who ", "What ", "Whoever ", "Whatever ", "Those that ", "Those who "];

/// What follows "is not a" where the text says what is valid.
const REMEDIES: [&str; 7] = [": ", "; ", "expected", "must", "valid", "use ", "such as"];

/// `xtask/prose.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    /// Words that are not used, and what is used instead.
    words: BTreeMap<String, String>,
    /// The same, in code alone: pages may use these.
    code_words: BTreeMap<String, String>,
    /// Directories whose texts only developers read, each with its reason.
    internal: BTreeMap<String, String>,
    /// Words that a file may use, as they are names of things there.
    names: BTreeMap<String, Vec<String>>,
    /// How many marks a file has at most.
    marks: BTreeMap<String, usize>,
}

/// Something in a text that has to be read twice.
pub struct Mark {
    pub path: String,
    pub line: usize,
    pub what: String,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// All marks, file by file.
pub fn marks(root: &Path) -> Result<Vec<Mark>> {
    let rules = rules()?;
    let mut marks = Vec::new();
    for file in files(root, &rules)? {
        marks.extend(marks_of(&file, &rules)?);
    }
    Ok(marks)
}

/// Files with more marks than they may have, and exceptions for files that are gone.
pub fn faults(root: &Path) -> Result<Vec<String>> {
    let rules = rules()?;
    let mut faults = Vec::new();
    let files = files(root, &rules)?;
    for file in &files {
        let found = marks_of(file, &rules)?;
        let most = rules.marks.get(&file.path).copied().unwrap_or(0);
        if found.len() > most {
            faults.extend(found.iter().map(Mark::to_string));
        }
    }
    let exceptions = rules.marks.keys().chain(rules.names.keys());
    for path in exceptions.filter(|path| files.iter().all(|file| file.path != **path)) {
        faults.push(format!("xtask/prose.toml: {path} does not exist: remove the line"));
    }
    Ok(faults)
}

fn rules() -> Result<Rules> {
    toml::from_str(include_str!("../prose.toml")).context("xtask/prose.toml")
}

/// Pages, and code with texts for users.
fn files(root: &Path, rules: &Rules) -> Result<Vec<File>> {
    let mut files = source::files(root, &["md"])?;
    let code = source::files(root, &["rs"])?;
    files.extend(code.into_iter().filter(|file| {
        let is_test = file.path.contains("/tests/") || file.path.ends_with("/tests.rs");
        let is_internal = rules.internal.keys().any(|start| file.path.starts_with(start));
        file.path.contains("/src/") && !is_test && !is_internal
    }));
    Ok(files)
}

fn marks_of(file: &File, rules: &Rules) -> Result<Vec<Mark>> {
    let mut marks = Vec::new();
    if file.path.ends_with(".md") {
        mark_page(file, rules, &mut marks);
        return Ok(marks);
    }
    let all = texts(&file.text).with_context(|| format!("cannot parse {}", file.path))?;
    let names = rules.names.get(&file.path).map_or(&[][..], Vec::as_slice);
    for text in all {
        for (_, sentence) in sentences(&without_values(&without_examples(&text.text))) {
            let mut mark =
                |what| marks.push(Mark { path: file.path.clone(), line: text.line, what });
            check_sentence(&sentence, &rules.words, names, &mut mark);
            check_words(&sentence, &rules.code_words, names, &mut mark);
            check_remedy(&sentence, &mut mark);
        }
    }
    Ok(marks)
}

fn mark_page(page: &File, rules: &Rules, marks: &mut Vec<Mark>) {
    for (line, sentence) in sentences(&page.text) {
        let mut mark = |what| marks.push(Mark { path: page.path.clone(), line, what });
        check_sentence(&sentence, &rules.words, &[], &mut mark);
    }
}

/// Length, subject and words.
fn check_sentence(
    sentence: &str,
    words: &BTreeMap<String, String>,
    names: &[String],
    mark: &mut impl FnMut(String),
) {
    let count = count_words(sentence);
    if count > SENTENCE_WORDS_MAX {
        mark(format!("{count} words: {}", start_of(sentence)));
    }
    if HEADLESS.iter().any(|start| sentence.starts_with(start)) && !sentence.ends_with('?') {
        mark(format!("no subject with a name: {}", start_of(sentence)));
    }
    check_words(sentence, words, names, mark);
}

fn check_words(
    sentence: &str,
    words: &BTreeMap<String, String>,
    names: &[String],
    mark: &mut impl FnMut(String),
) {
    let plain = format!(" {} ", words_of(sentence));
    for (word, instead) in words.iter().filter(|(word, _)| !names.contains(word)) {
        if plain.contains(&format!(" {word} ")) {
            mark(format!("\"{word}\": write {instead}"));
        }
    }
}

/// An error that only denies does not help: "is not a number" begs what is valid.
fn check_remedy(sentence: &str, mark: &mut impl FnMut(String)) {
    let plain = format!(" {} ", words_of(sentence));
    for (start, _) in plain.match_indices(" is no ") {
        if !plain[..start].ends_with(" there") {
            mark(format!("\"is no\": write what is valid: {}", start_of(sentence)));
        }
    }
    let denial = [" is not a ", " is not an "].iter().find_map(|denial| sentence.find(denial));
    if let Some(at) = denial
        && !REMEDIES.iter().any(|remedy| sentence[at..].contains(remedy))
    {
        mark(format!("\"is not a\": add what is valid: {}", start_of(sentence)));
    }
}

/// Without indented lines, which are commands and their output.
fn without_examples(text: &str) -> String {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let rest = lines.map(|line| if line.starts_with("  ") { "" } else { line });
    std::iter::once(first).chain(rest).collect::<Vec<_>>().join("\n")
}

/// Values of a format string as one word each.
fn without_values(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('{') {
        shown.push_str(&rest[..start]);
        let end = rest[start..].find('}').map_or(rest.len(), |end| start + end + 1);
        shown.push_str("value");
        rest = &rest[end..];
    }
    shown + rest
}

/// How many words a text has.
pub fn count_words(text: &str) -> usize {
    text.split_whitespace().filter(|word| has_letter(word)).count()
}

fn has_letter(word: &str) -> bool {
    word.chars().any(char::is_alphanumeric)
}

/// Small letters, and one space between words.
fn words_of(sentence: &str) -> String {
    let is_of_word = |c: char| c.is_alphanumeric() || "_'-".contains(c);
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

    fn marks_in_file(path: &str, text: &str) -> Vec<String> {
        let words = [("flat out".to_owned(), "at full speed".to_owned())].into();
        let code_words = [("told".to_owned(), "reported".to_owned())].into();
        let names = [("b.rs".to_owned(), vec!["told".to_owned()])].into();
        let rules = Rules { words, code_words, internal: [].into(), names, marks: BTreeMap::new() };
        let file = File { path: path.into(), text: text.into() };
        let marks = marks_of(&file, &rules).expect("the text can be parsed");
        marks.into_iter().map(|mark| mark.what).collect()
    }

    fn marks_in(text: &str) -> Vec<String> {
        marks_in_file("a.md", text)
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
    #[test]
    fn texts_in_code_have_their_own_words_and_names() {
        let source = "warn!(\"clients are told flat out\")";
        let (flat_out, told) = ("\"flat out\": write at full speed", "\"told\": write reported");
        assert_eq!(marks_in_file("a.rs", source), [flat_out, told]);
        assert_eq!(marks_in_file("b.rs", source), [flat_out]);
        assert!(marks_in("Clients are told.").is_empty());
    }

    #[test]
    fn an_error_says_what_is_valid() {
        let marks = |text: &str| marks_in_file("a.rs", &format!("bail!(\"{text}\")"));
        assert_eq!(
            marks("{a} is no level"),
            ["\"is no\": write what is valid: value is no level ..."]
        );
        assert_eq!(
            marks("{a} is not a level"),
            ["\"is not a\": add what is valid: value is not a level ..."]
        );
        assert!(marks("{a} is not a level: use 0, 1 or 2").is_empty());
        assert!(marks("there is no such level").is_empty());
    }
}
