//! The file of rules, in TOML.
//!
//! ```toml
//! [[rules]]
//! name = "overheated"
//! filter = "plants/+/motor"
//! form = "structured"           # raw, structured (default), binary, batch
//! payload = "declared"          # or "json": any payload that is JSON counts as JSON
//! enabled = true                # the default
//!
//! [[rules.conditions]]
//! key = "data.celsius"
//! operator = "NumberGreaterThan"
//! value = 80
//!
//! [rules.enrichments]
//! site = "${client.attributes.site}"
//!
//! [rules.target]
//! name = "alarms"
//! type = "http"                 # or "kafka", with `topic` and `key`
//! url = "https://example.com/alarms"
//! ```
//!
//! A key that is unknown, missing or wrong refuses the whole file, with its line and column.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::condition::{Condition, Given, Part, RawCondition};
use crate::enrich::{Enrichment, Enrichments, Template};
use crate::event::PayloadReading;
use crate::form::Form;
use crate::rule::{Destination, Draft, Rule, Target};

/// Bytes of a file of rules.
pub const FILE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Rules of one file.
pub const RULES_MAX: usize = 1_000;
/// Problems of one file that are reported.
pub const PROBLEMS_MAX: usize = 100;

/// Problems that are looked at to report the first ones: tables are not read in their order.
const PROBLEMS_FOUND_MAX: usize = 10_000;

const RULE_KEYS: [&str; 8] =
    ["name", "filter", "form", "payload", "enabled", "conditions", "enrichments", "target"];
const CONDITION_KEYS: [&str; 4] = ["key", "operator", "value", "values"];
const TARGET_KEYS: [&str; 5] = ["name", "type", "url", "topic", "key"];

/// The default key of a Kafka record: no key, no order.
const DEFAULT_KEY: &str = "${mqtt.message.topicName}";

/// Something that is wrong, with its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Both count from 1; the column counts characters.
    pub line: usize,
    pub column: usize,
    /// The dotted key with the numbers of list entries, such as `rules.0.filter`. Empty: none is to
    /// blame.
    pub key: String,
    pub detail: String,
}

/// Reads a file of rules.
///
/// # Errors
///
/// All problems of the file, in their order.
pub fn parse(text: &str) -> Result<Vec<Rule>, Vec<Problem>> {
    let mut reader = Reader { text, problems: Vec::new() };
    let rules = reader.file();
    match reader.problems.is_empty() {
        true => Ok(rules),
        false => {
            reader.problems.sort_by_key(|found| found.offset);
            reader.problems.truncate(PROBLEMS_MAX);
            Err(reader.problems.into_iter().map(|found| found.located(text)).collect())
        }
    }
}

/// Gathers problems, so that one run shows all of them.
struct Reader<'t> {
    text: &'t str,
    /// In the order of the names of keys, as tables come.
    problems: Vec<Found>,
}

/// A problem whose line is not known yet: to find it reads the text.
struct Found {
    offset: usize,
    key: String,
    detail: String,
}

impl Found {
    fn located(self, text: &str) -> Problem {
        let (line, column) = line_and_column(text, self.offset);
        Problem { line, column, key: self.key, detail: self.detail }
    }
}

/// A table with its dotted key and its location.
struct Table<'v> {
    path: String,
    span: Range<usize>,
    table: &'v DeTable<'v>,
}

impl<'v> Table<'v> {
    fn get(&self, name: &str) -> Option<&'v Spanned<DeValue<'v>>> {
        self.table.iter().find(|(key, _)| key.get_ref() == name).map(|(_, value)| value)
    }

    fn key(&self, name: &str) -> String {
        match self.path.is_empty() {
            true => name.into(),
            false => format!("{}.{name}", self.path),
        }
    }
}

impl Reader<'_> {
    fn file(&mut self) -> Vec<Rule> {
        if self.text.len() > FILE_BYTES_MAX {
            self.problem(0, "", format!("a file must have at most {FILE_BYTES_MAX} bytes"));
            return Vec::new();
        }
        let document = match DeTable::parse(self.text) {
            Ok(document) => document,
            Err(error) => {
                let start = error.span().map_or(0, |span| span.start);
                self.problem(start, "", error.message().into());
                return Vec::new();
            }
        };
        let root = Table { path: String::new(), span: 0..0, table: document.get_ref() };
        self.check_keys(&root, &["rules"]);
        if root.get("rules").is_none() {
            return Vec::new();
        }
        let Some(rules) = self.list(&root, "rules") else { return Vec::new() };
        if rules.len() > RULES_MAX {
            let detail = format!("a file must have at most {RULES_MAX} rules, got {}", rules.len());
            self.problem(rules[RULES_MAX].span.start, "rules", detail);
            return Vec::new();
        }
        let mut names = BTreeSet::new();
        let mut all = Vec::new();
        for table in rules {
            let Some(rule) = self.rule(&table) else { continue };
            if !names.insert(rule.name().to_owned()) {
                let detail = format!("'{}' is used twice: names must be unique", rule.name());
                self.problem_at(&table, "name", detail);
            }
            all.push(rule);
        }
        all
    }

    fn rule(&mut self, table: &Table<'_>) -> Option<Rule> {
        self.check_keys(table, &RULE_KEYS);
        let before = self.problems.len();
        let enrichments = self.enrichments(table);
        let conditions = self.conditions(table, &enrichments);
        let readings = [("declared", PayloadReading::Declared), ("json", PayloadReading::Json)];
        let draft = Draft {
            name: self.required_text(table, "name"),
            is_enabled: self.flag(table, "enabled").unwrap_or(true),
            filter: self.required_text(table, "filter"),
            conditions,
            enrichments,
            form: self.word(table, "form", &Form::WORDS).unwrap_or_default(),
            payload: self.word(table, "payload", &readings).unwrap_or_default(),
            target: self.target(table),
        };
        // What is missing or wrong has been reported.
        if self.problems.len() > before {
            return None;
        }
        match Rule::new(draft) {
            Ok(rule) => Some(rule),
            Err(error) => {
                self.problem_at(table, error.key, error.detail);
                None
            }
        }
    }

    fn conditions(&mut self, rule: &Table<'_>, enrichments: &Enrichments) -> Vec<Condition> {
        let mut all = Vec::new();
        if rule.get("conditions").is_none() {
            return all;
        }
        for table in self.list(rule, "conditions").unwrap_or_default() {
            self.check_keys(&table, &CONDITION_KEYS);
            let before = self.problems.len();
            let raw = RawCondition {
                key: self.required_text(&table, "key"),
                operator: self.required_text(&table, "operator"),
                value: table.get("value").map(|value| given(value.get_ref())),
                values: table.get("values").map(|value| given(value.get_ref())),
            };
            if self.problems.len() > before {
                continue;
            }
            match Condition::new(&raw, enrichments) {
                Ok(condition) => all.push(condition),
                Err(error) => {
                    let key = match error.part {
                        Part::Key => "key",
                        Part::Operator => "operator",
                        Part::Value => "value",
                        Part::Values => "values",
                    };
                    self.problem_at(&table, key, error.detail);
                }
            }
        }
        all
    }

    fn enrichments(&mut self, rule: &Table<'_>) -> Enrichments {
        let Some(table) = self.table(rule, "enrichments") else { return Enrichments::default() };
        let mut all = Vec::new();
        for (key, value) in table.table.iter() {
            let name: &str = key.get_ref();
            let DeValue::String(text) = value.get_ref() else {
                let detail = format!("must be a text, got {}", value.get_ref().type_str());
                self.problem(value.span().start, &table.key(name), detail);
                continue;
            };
            match Enrichment::parse(name, text) {
                Ok(enrichment) => all.push(enrichment),
                Err(error) => {
                    self.problem(key.span().start, &table.key(name), error.to_string());
                }
            }
        }
        Enrichments::new(all).unwrap_or_else(|error| {
            self.problem(table.span.start, &table.path, error.to_string());
            Enrichments::default()
        })
    }

    fn target(&mut self, rule: &Table<'_>) -> Option<Target> {
        let Some(table) = self.table(rule, "target") else {
            if rule.get("target").is_none() {
                self.problem_at(rule, "target", "missing: a rule must have a target".into());
            }
            return None;
        };
        self.check_keys(&table, &TARGET_KEYS);
        let before = self.problems.len();
        let name = self.required_text(&table, "name");
        let is_kafka = match table.get("type") {
            Some(_) => self.word(&table, "type", &[("http", false), ("kafka", true)])?,
            None => {
                let detail = "missing: must be \"http\" or \"kafka\"".into();
                self.problem_at(&table, "type", detail);
                return None;
            }
        };
        let (word, others): (_, &[&str]) =
            if is_kafka { ("kafka", &["url"]) } else { ("http", &["topic", "key"]) };
        for other in others.iter().filter(|other| table.get(other).is_some()) {
            let detail = format!("a target of type {word} must not have this key: remove it");
            self.problem_at(&table, other, detail);
        }
        let destination = match is_kafka {
            false => Destination::Http { url: self.required_text(&table, "url") },
            true => {
                let topic = self.required_text(&table, "topic");
                let key = self.text(&table, "key").unwrap_or_else(|| DEFAULT_KEY.into());
                let key = Template::parse(&key).map_err(|error| {
                    self.problem_at(&table, "key", error.to_string());
                });
                Destination::Kafka { topic, key: key.ok()? }
            }
        };
        (self.problems.len() == before).then_some(Target { name, destination })
    }

    /// Reports keys that do not exist.
    fn check_keys(&mut self, table: &Table<'_>, known: &[&str]) {
        for (key, _) in table.table.iter() {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                let detail = format!("unknown key: must be one of {}", known.join(", "));
                self.problem(key.span().start, &table.key(name), detail);
            }
        }
    }

    fn required_text(&mut self, table: &Table<'_>, name: &str) -> String {
        if table.get(name).is_none() {
            self.problem_at(table, name, "missing: must be a text".into());
        }
        self.text(table, name).unwrap_or_default()
    }

    fn text(&mut self, table: &Table<'_>, name: &str) -> Option<String> {
        match table.get(name)?.get_ref() {
            DeValue::String(text) => Some(text.to_string()),
            other => {
                let detail = format!("must be a text, got {}", other.type_str());
                self.problem_at(table, name, detail);
                None
            }
        }
    }

    fn flag(&mut self, table: &Table<'_>, name: &str) -> Option<bool> {
        match table.get(name)?.get_ref() {
            DeValue::Boolean(is_set) => Some(*is_set),
            other => {
                let detail = format!("must be true or false, got {}", other.type_str());
                self.problem_at(table, name, detail);
                None
            }
        }
    }

    fn word<T: Copy>(&mut self, table: &Table<'_>, name: &str, words: &[(&str, T)]) -> Option<T> {
        let given = self.text(table, name)?;
        let found = words.iter().find(|(word, _)| *word == given).map(|(_, value)| *value);
        if found.is_none() {
            let allowed: Vec<String> =
                words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
            let detail = format!("must be one of {}, got \"{given}\"", allowed.join(", "));
            self.problem_at(table, name, detail);
        }
        found
    }

    fn table<'v>(&mut self, table: &Table<'v>, name: &str) -> Option<Table<'v>> {
        let value = table.get(name)?;
        match value.get_ref() {
            DeValue::Table(inner) => {
                Some(Table { path: table.key(name), span: value.span(), table: inner })
            }
            other => {
                let detail = format!("must be a table, got {}", other.type_str());
                self.problem_at(table, name, detail);
                None
            }
        }
    }

    /// The tables of a list, which must be there.
    fn list<'v>(&mut self, table: &Table<'v>, name: &str) -> Option<Vec<Table<'v>>> {
        let key = table.key(name);
        let Some(DeValue::Array(items)) = table.get(name).map(Spanned::get_ref) else {
            let detail = format!("must be a list of tables: write [[{}]]", general(&key));
            self.problem_at(table, name, detail);
            return None;
        };
        let mut tables = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = format!("{key}.{index}");
            match item.get_ref() {
                DeValue::Table(inner) => {
                    tables.push(Table { path, span: item.span(), table: inner });
                }
                other => {
                    let detail = format!("must be a table, got {}", other.type_str());
                    self.problem(item.span().start, &path, detail);
                }
            }
        }
        Some(tables)
    }

    /// At the value of a key, or at its table if the key is missing. The key may be dotted.
    fn problem_at(&mut self, table: &Table<'_>, name: &str, detail: String) {
        let mut at = table.span.start;
        let mut inside = Some(table.table);
        for part in name.split('.') {
            let found =
                inside.and_then(|table| table.iter().find(|(key, _)| key.get_ref() == part));
            let Some((_, value)) = found else { break };
            at = value.span().start;
            inside = match value.get_ref() {
                DeValue::Table(table) => Some(table),
                _ => None,
            };
        }
        self.problem(at, &table.key(name), detail);
    }

    fn problem(&mut self, offset: usize, key: &str, detail: String) {
        if self.problems.len() < PROBLEMS_FOUND_MAX {
            self.problems.push(Found { offset, key: key.into(), detail });
        }
    }
}

/// `LINE:COLUMN: KEY: DETAIL`; the name of the file belongs before it.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, key, detail } = self;
        match key.is_empty() {
            true => write!(f, "{line}:{column}: {detail}"),
            false => write!(f, "{line}:{column}: {key}: {detail}"),
        }
    }
}

/// A dotted key without the numbers of list entries.
fn general(key: &str) -> String {
    let parts = key.split('.').filter(|part| !part.bytes().all(|byte| byte.is_ascii_digit()));
    parts.collect::<Vec<_>>().join(".")
}

fn given(value: &DeValue<'_>) -> Given {
    match value {
        DeValue::String(text) => Given::Text(text.to_string()),
        DeValue::Boolean(is_set) => Given::Bool(*is_set),
        DeValue::Integer(number) => {
            let parsed = i128::from_str_radix(number.as_str(), number.radix());
            let text = parsed.map_or_else(|_| number.to_string(), |number| number.to_string());
            Given::Number(text)
        }
        DeValue::Float(number) => {
            Given::Number(number.as_str().trim_start_matches('+').replace('_', ""))
        }
        DeValue::Array(items) => {
            Given::List(items.iter().map(|item| given(item.get_ref())).collect())
        }
        DeValue::Datetime(_) => Given::Other("a time"),
        DeValue::Table(_) => Given::Other("a table"),
    }
}

/// Both count from 1; the column counts characters.
fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

#[cfg(test)]
mod tests;
