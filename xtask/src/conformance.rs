//! The table of normative statements with the tests that prove them, and its summary.
//!
//! The statements are data, the tests are found by name: `mqtt_3_3_1_4_...` proves statement
//! MQTT-3.3.1-4 of MQTT 5.0, `mqtt311_3_3_1_4_...` the one of MQTT 3.1.1. In Rust such a name
//! counts as a function with `#[test]` or as an entry of `proves!`, in Python as a function
//! `test_mqtt_...`.

use std::collections::{BTreeMap, BTreeSet};
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

/// Of each statement the tests that prove it, as `file::test`.
type Proofs = BTreeMap<Id, BTreeSet<String>>;

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
        for (name, test) in tests(file) {
            if let Some(id) = name.strip_prefix(prefix).and_then(id_of_name) {
                proofs.entry(id).or_default().insert(format!("{}::{test}", short(&file.path)));
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

/// The tests of a file: the name that carries the statement, and what to call the test.
fn tests(file: &File) -> Vec<(&str, String)> {
    let mut tests = Vec::new();
    let lines: Vec<&str> = file.text.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        let line = line.trim_start();
        if let Some(rest) = line.strip_prefix("def test_") {
            tests.push((word(rest), format!("test_{}", word(rest))));
        } else if let Some(rest) = line.strip_prefix("fn ")
            && is_test(&lines[..number])
        {
            tests.push((word(rest), word(rest).to_owned()));
        }
    }
    for call in file.text.split("proves!(").skip(1) {
        let call = call.split(");").next().unwrap_or_default();
        if let Some((function, clauses)) = call.split_once(':') {
            let clauses = clauses.split(|c: char| !is_word(c));
            tests.extend(clauses.map(|clause| (clause, function.trim().to_owned())));
        }
    }
    tests
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
        let tests = &proofs[id];
        ensure!(known, "{tests:?}: {} has no statement {id:?}", standard.title);
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
fn names(tests: &BTreeSet<String>) -> String {
    tests.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
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

<!-- Generated from the names of tests: `cargo xtask docs`. -->

MQTT 5.0 and 3.1.1 number their normative statements. [conformance.csv](conformance.csv) lists all
of them: whom each binds, its subject in our words, and the tests that prove it.

- The name of a test says which statement it proves. `mqtt_3_3_1_4_...` proves MQTT-3.3.1-4 of
  MQTT 5.0, and `mqtt311_3_3_1_4_...` that of MQTT 3.1.1. A test that names an unknown statement is
  an error.
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
        let found = tests(&file).into_iter();
        found.filter(|(name, _)| name.starts_with("mqtt")).map(|(a, b)| (a.to_owned(), b)).collect()
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
    fn a_test_of_no_statement_is_an_error() {
        let standard = read(include_str!("../data/mqtt5.toml")).expect("good data");
        let file = File { path: "a.rs".into(), text: "#[test]\nfn mqtt_9_9_9_9_x() {}\n".into() };
        let proofs = proofs(&[file], "mqtt_").expect("readable");
        let error = write_section(&mut String::new(), &mut String::new(), &standard, &proofs);
        assert!(error.is_err());
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
