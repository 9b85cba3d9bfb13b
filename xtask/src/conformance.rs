//! The table of normative statements with the tests that prove them, and its summary.
//!
//! The statements are data. A row of a test names the statements that it proves, as in
//! `row("MQTT-3.3.1-4", "a name", ...)`: `MQTT-` is MQTT 5.0, `MQTT311-` is MQTT 3.1.1.
//!
//! All other tests are found by name: `mqtt_3_3_1_4_...` proves statement MQTT-3.3.1-4 of MQTT 5.0,
//! `mqtt311_3_3_1_4_...` the one of MQTT 3.1.1. In Rust such a name counts as a function with
//! `#[test]` or as an entry of `proves!`, in Python as a function `test_mqtt_...`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::source::{self, File};

/// The page with the summary.
pub const PATH: &str = "docs/develop/conformance.md";
/// The table, a row for each statement.
const TABLE: &str = "docs/develop/conformance.csv";

/// One standard, as its data file says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Standard {
    title: String,
    prefix: String,
    /// Id, then whom it binds and what it is about.
    statements: BTreeMap<String, (Binds, String)>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Binds {
    Server,
    Client,
    Both,
}

/// `3.3.1-4` as numbers, which sort as the standard does.
type Id = Vec<u32>;

/// Of each statement the tests that prove it, as `file::test`, and where they are.
type Proofs = BTreeMap<Id, BTreeMap<String, Place>>;

/// The path of a file and a line in it, for errors. The table has no lines, so that it stays as it
/// is when lines move.
type Place = String;

/// A test, as it is found in a file.
#[derive(Debug, PartialEq)]
struct Test {
    /// What carries the statement: `mqtt_3_3_1_4`, with or without more words.
    key: String,
    /// What to call it.
    name: String,
    place: Place,
}

/// The page and the table as they should be.
struct Documents {
    page: String,
    table: String,
}

fn documents(root: &Path) -> Result<Documents> {
    let files = source::files(root, &["rs", "py"])?;
    let standards = [
        read(include_str!("../data/mqtt5.toml")).context("mqtt5.toml")?,
        read(include_str!("../data/mqtt311.toml")).context("mqtt311.toml")?,
    ];
    let mut table = String::from("standard,statement,binds,about,proved by\n");
    let mut summary = String::new();
    for standard in &standards {
        let proofs = proofs(&files, &standard.prefix)?;
        write_section(&mut table, &mut summary, standard, &proofs)?;
    }
    Ok(Documents { page: format!("{HEAD}{summary}"), table })
}

/// Writes the page and the table.
pub fn write(root: &Path) -> Result<()> {
    let Documents { page, table } = documents(root)?;
    fs::write(root.join(PATH), page).with_context(|| format!("cannot write {PATH}"))?;
    fs::write(root.join(TABLE), table).with_context(|| format!("cannot write {TABLE}"))
}

/// What is wrong with the documents on disk: nothing, when they are up to date.
pub fn stale(root: &Path) -> Result<Vec<String>> {
    let Documents { page, table } = documents(root)?;
    let is_stale = |(path, text): &(&str, String)| {
        fs::read_to_string(root.join(path)).unwrap_or_default() != *text
    };
    let written = [(PATH, page), (TABLE, table)];
    let stale = written.iter().filter(|document| is_stale(document));
    Ok(stale.map(|(path, _)| format!("{path} is stale: run `cargo xtask conformance`")).collect())
}

fn read(text: &str) -> Result<Standard> {
    let standard: Standard = toml::from_str(text)?;
    for id in standard.statements.keys() {
        ensure!(parse_id(id).is_some(), "{id} is no id of a statement");
    }
    Ok(standard)
}

fn parse_id(text: &str) -> Option<Id> {
    let id: Option<Id> = text.split(['.', '-']).map(|part| part.parse().ok()).collect();
    id.filter(|id| id.len() == 4)
}

/// All tests with this prefix, by the statement in their name. A name that means a statement which
/// does not exist is an error.
fn proofs(files: &[File], prefix: &str) -> Result<Proofs> {
    let mut proofs = Proofs::new();
    for file in files.iter().filter(|file| !file.path.starts_with("xtask/")) {
        for Test { key, name, place } in tests(file)? {
            if let Some(id) = key.strip_prefix(prefix).and_then(id_of_name) {
                let shown = format!("{}::{name}", short(&file.path));
                proofs.entry(id).or_default().insert(shown, place);
            }
        }
    }
    Ok(proofs)
}

/// `3_3_1_4_and_so_on` means statement 3.3.1-4.
fn id_of_name(rest: &str) -> Option<Id> {
    let mut parts = rest.split('_');
    let id: Option<Id> = parts.by_ref().take(4).map(|part| part.parse().ok()).collect();
    id.filter(|id| id.len() == 4)
}

/// `crates/core/codec/src/publish.rs` as `codec/publish`.
fn short(path: &str) -> String {
    let within = source::crate_of(path).map(|(_, name, rest)| format!("{name}/{rest}"));
    let path = within.unwrap_or_else(|| path.to_owned());
    let path = path.trim_end_matches(".rs").trim_end_matches(".py");
    let parts: Vec<_> = path
        .split('/')
        .filter(|part| !["src", "tests", "wire", "configured"].contains(part))
        .collect();
    parts.join("/")
}

/// The tests of a file that may prove something.
fn tests(file: &File) -> Result<Vec<Test>> {
    let mut tests = rows(file)?;
    let test = |key: &str, name: &str, at: usize| Test {
        key: key.into(),
        name: name.into(),
        place: place(file, at),
    };
    let mut at = 0;
    let mut before = Vec::new();
    for whole in file.text.split_inclusive('\n') {
        let line = whole.trim_start();
        if let Some(rest) = line.strip_prefix("def test_") {
            tests.push(test(word(rest), &format!("test_{}", word(rest)), at));
        } else if let Some(rest) = line.strip_prefix("fn ")
            && is_test(&before)
        {
            tests.push(test(word(rest), word(rest), at));
        }
        at += whole.len();
        before.push(whole);
    }
    for (at, _) in file.text.match_indices("proves!(") {
        let call = &file.text[at + "proves!(".len()..];
        let call = call.split(");").next().unwrap_or_default();
        if let Some((function, clauses)) = call.split_once(':') {
            let clauses = clauses.split(|c: char| !is_word(c));
            tests.extend(clauses.map(|clause| test(clause, function.trim(), at)));
        }
    }
    Ok(tests)
}

/// The rows that name statements: `row("MQTT-3.3.1-4 MQTT311-3.3.1-4", "a name", ...)`, or `rows`
/// for several with one name.
fn rows(file: &File) -> Result<Vec<Test>> {
    let mut rows = Vec::new();
    for (at, _) in file.text.match_indices("row") {
        let line = file.text[..at].rsplit('\n').next().unwrap_or_default();
        let call = file.text[at + "row".len()..].trim_start_matches('s');
        let is_code = !line.ends_with(is_word) && !line.trim_start().starts_with("//");
        let text = call.strip_prefix('(').and_then(|text| text.trim_start().strip_prefix('"'));
        let Some(text) = text.filter(|text| is_code && text.starts_with("MQTT")) else {
            continue;
        };
        let (clauses, rest) = text.split_once('"').unwrap_or_default();
        let name = name_in(rest).or_else(|| test_around(&file.text[..at])).unwrap_or_default();
        let place = place(file, at);
        for clause in clauses.split(' ') {
            let id = clause.strip_prefix("MQTT-").or_else(|| clause.strip_prefix("MQTT311-"));
            let is_id = id.is_some_and(|id| parse_id(id).is_some());
            ensure!(is_id, "{place}: {clause} is no statement: write MQTT-3.3.1-4, or MQTT311-...");
            let key = clause.to_lowercase().replace(['-', '.'], "_");
            rows.push(Test { key, name: as_word(name), place: place.clone() });
        }
    }
    Ok(rows)
}

/// The name in `, "a name"` or `, format!("a name")`. It may also be a variable.
fn name_in(rest: &str) -> Option<&str> {
    let (between, text) = rest.split_once('"')?;
    let is_text = [",", ",format!("].contains(&&*between.replace(char::is_whitespace, ""));
    text.split('"').next().filter(|_| is_text)
}

/// The name of the function that the text ends in.
fn test_around(text: &str) -> Option<&str> {
    text.rsplit_once("\nfn ").map(|(_, function)| word(function))
}

/// A name of several words as a test would have it.
fn as_word(name: &str) -> String {
    let parts = name.split(|c: char| !is_word(c)).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("_").to_lowercase()
}

fn place(file: &File, at: usize) -> Place {
    format!("{}:{}", file.path, file.text[..at].matches('\n').count() + 1)
}

/// Whether the lines before a function make it a test.
fn is_test(before: &[&str]) -> bool {
    let attributes = before.iter().rev().map(|line| line.trim());
    attributes
        .take_while(|line| line.starts_with("#[") || line.starts_with("//"))
        .any(|line| line.starts_with("#[test]"))
}

fn word(text: &str) -> &str {
    let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
    &text[..end]
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn write_section(
    out: &mut String,
    summary: &mut String,
    standard: &Standard,
    proofs: &Proofs,
) -> Result<()> {
    let mut statements: Vec<_> = Vec::new();
    for (id, (binds, about)) in &standard.statements {
        statements.push((parse_id(id).context("checked when read")?, id, *binds, about));
    }
    statements.sort_by(|a, b| a.0.cmp(&b.0));
    for id in proofs.keys() {
        let known = statements.iter().any(|(known, ..)| known == id);
        let places = proofs[id].values().cloned().collect::<Vec<_>>().join(", ");
        ensure!(known, "{places}: {} has no statement {id:?}", standard.title);
    }
    let binding = statements.iter().filter(|(.., binds, _)| *binds != Binds::Client);
    let open = |id: &Id| !proofs.contains_key(id);
    let unproved: Vec<_> = binding
        .clone()
        .filter(|(id, ..)| open(id))
        .map(|(_, id, ..)| format!("MQTT-{id}"))
        .collect();
    writeln!(
        summary,
        "| {} | {} | {} | **{}** |",
        standard.title,
        statements.len(),
        binding.count(),
        unproved.len()
    )?;
    if !unproved.is_empty() {
        writeln!(summary, "| unproved | {} | | |", unproved.join(", "))?;
    }
    for (key, id, binds, about) in &statements {
        let tests = proofs.get(key).map(names).unwrap_or_default();
        let binds = binds.word();
        let title = &standard.title;
        writeln!(out, "{title},MQTT-{id},{binds},{},{tests}", quoted(about))?;
    }
    Ok(())
}

/// Names of tests have no comma and no quotation mark.
fn names(tests: &BTreeMap<String, Place>) -> String {
    tests.keys().map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// A field of the table (RFC 4180).
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

impl Binds {
    fn word(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
            Self::Both => "both",
        }
    }
}

const HEAD: &str = "\
# Conformance

<!-- Generated from the rows and the names of tests: `cargo xtask docs`. -->

MQTT 5.0 and 3.1.1 number their normative statements. [conformance.csv](conformance.csv) lists all
of them: whom each binds, its subject in our words, and the tests that prove it.

- A row of a test begins with the statement that it proves: `row(\"MQTT-3.3.1-4\", ...)`
  for MQTT 5.0, and `MQTT311-3.3.1-4` for MQTT 3.1.1.
- The name of any other test says which statement it proves. `mqtt_3_3_1_4_...` proves MQTT-3.3.1-4
  of MQTT 5.0, and `mqtt311_3_3_1_4_...` that of MQTT 3.1.1.
- A test or a row that names an unknown statement is an error.
- Tests in `crates/proof/conformance` send and compare bytes. They use no code of the broker, and
  run against any server: `make conformance MQTT_ADDRESS=host:port`.
- All other tests are unit tests and end-to-end tests of this repository.
- A statement that binds only clients counts as proved if a test shows that the broker enforces it.
- A statement without a proof is listed here, and its row in the table has no test.

| Standard | Statements | Bind a server | Unproved |
|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(String, String)> {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        let found = tests(&file).expect("sound rows").into_iter();
        let found = found.filter(|test| test.key.starts_with("mqtt"));
        found.map(|test| (test.key, test.name)).collect()
    }

    fn error_of(text: &str) -> String {
        let standard = read(include_str!("../data/mqtt5.toml")).expect("good data");
        let file = File { path: "a.rs".into(), text: text.into() };
        let written = proofs(&[file], "mqtt_").and_then(|proofs| {
            write_section(&mut String::new(), &mut String::new(), &standard, &proofs)
        });
        written.expect_err("no such statement").to_string()
    }

    #[test]
    fn names_carry_statements() {
        assert_eq!(id_of_name("3_3_1_4_qos_3_is_malformed"), Some(vec![3, 3, 1, 4]));
        assert_eq!(id_of_name("4_12_0_1"), Some(vec![4, 12, 0, 1]));
        assert_eq!(id_of_name("3_3_1"), None);
        assert_eq!(id_of_name("something_else_3_1"), None);
    }

    #[test]
    fn only_tests_count() {
        let text =
            "#[test]\nfn mqtt_1_5_4_1_a() {}\nfn mqtt_1_5_4_2_helper() {}\n// mqtt_1_5_4_3\n";
        assert_eq!(found("a.rs", text), [("mqtt_1_5_4_1_a".into(), "mqtt_1_5_4_1_a".into())]);
        let text = "proves!(slow_one:\n    V5 [mqtt_4_2_0_1] V311 [mqtt311_4_2_0_1]);";
        let expected = [
            ("mqtt_4_2_0_1".to_owned(), "slow_one".to_owned()),
            ("mqtt311_4_2_0_1".to_owned(), "slow_one".to_owned()),
        ];
        assert_eq!(found("a.rs", text), expected);
        let text = "def test_mqtt_6_0_0_1_binary(broker):\n    mqtt_6_0_0_2 = 1\n";
        let expected = [("mqtt_6_0_0_1_binary".to_owned(), "test_mqtt_6_0_0_1_binary".to_owned())];
        assert_eq!(found("a.py", text), expected);
    }

    #[test]
    fn rows_carry_statements() {
        let text = "
            row(\"MQTT-3.3.1-4 MQTT311-3.3.1-4\", \"QoS 3 is malformed\", one).steps([
            row(
                \"MQTT-3.3.1-6\",
                \"an empty payload clears\", two)
            // row(\"MQTT-3.3.1-7\", \"not yet\", one)
            grow(\"MQTT-3.3.1-8\", \"something else\")
            row(\"\", \"MQTT says nothing\", one)
            rows(\"MQTT-3.3.1-9\", format!(\"in {count} shards\"))
fn a_test() {
            row(\"MQTT-3.3.1-10\", name, Lab::of(\"x\"))";
        let expected = [
            ("mqtt_3_3_1_4", "qos_3_is_malformed"),
            ("mqtt311_3_3_1_4", "qos_3_is_malformed"),
            ("mqtt_3_3_1_6", "an_empty_payload_clears"),
            ("mqtt_3_3_1_9", "in_count_shards"),
            ("mqtt_3_3_1_10", "a_test"),
        ];
        assert_eq!(found("a.rs", text), expected.map(|(key, name)| (key.into(), name.into())));
    }

    #[test]
    fn a_row_proves_its_statement_in_the_table() {
        let standard = read(include_str!("../data/mqtt5.toml")).expect("good data");
        let text = "row(\"MQTT-3.3.1-6\", \"an empty payload clears\", two)";
        let path = "crates/core/broker/tests/shard/routing.rs".into();
        let proofs = proofs(&[File { path, text: text.into() }], "mqtt_").expect("readable");
        let (mut table, mut summary) = (String::new(), String::new());
        write_section(&mut table, &mut summary, &standard, &proofs).expect("written");
        let row = table.lines().find(|line| line.contains(",MQTT-3.3.1-6,")).expect("its row");
        assert!(row.ends_with(",broker/shard/routing::an_empty_payload_clears"), "{row}");
        assert!(!summary.contains("MQTT-3.3.1-6,"), "{summary}");
    }

    #[test]
    fn a_test_or_row_of_no_statement_is_an_error_with_its_line() {
        let known = "a.rs:2: MQTT 5.0 has no statement [9, 9, 9, 9]";
        assert_eq!(error_of("#[test]\nfn mqtt_9_9_9_9_x() {}\n"), known);
        assert_eq!(error_of("\nrow(\"MQTT-9.9.9-9\", \"x\", one)"), known);
        let error = error_of("\n\nrow(\"MQTT-3.3.1\", \"x\", one)");
        assert!(error.starts_with("a.rs:3: MQTT-3.3.1 is no statement"), "{error}");
    }

    #[test]
    fn unproved_statements_are_named() {
        let standard = read(include_str!("../data/mqtt311.toml")).expect("good data");
        let (mut out, mut summary) = (String::new(), String::new());
        write_section(&mut out, &mut summary, &standard, &Proofs::new()).expect("written");
        assert!(summary.contains("| unproved | MQTT-1.5.3-1, MQTT-1.5.3-2"), "{summary}");
        assert!(out.contains(",MQTT-1.5.3-1,both,\""), "{out}");
        assert!(summary.contains("| MQTT 3.1.1 | 143 |"), "{summary}");
    }
}
