//! Reading TOML so that one run shows all problems, each with its line.

use std::fmt;
use std::ops::{Range, RangeInclusive};

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::{FILE_BYTES_MAX, PROBLEMS_MAX};
use crate::condition::Given;

/// Problems that are looked at to report the first ones: tables are not read in their order.
const PROBLEMS_FOUND_MAX: usize = 10_000;

/// Who has written the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The operator of the broker: it may name files and networks.
    File,
    Api,
}

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

/// Reads a file.
///
/// # Errors
///
/// All problems of the file, in their order.
pub(super) fn read<T>(
    text: &str,
    origin: Origin,
    file: impl FnOnce(&mut Reader<'_>, &Table<'_>) -> T,
) -> Result<T, Vec<Problem>> {
    let mut reader = Reader { text, origin, problems: Vec::new() };
    let value = reader.document().map(|document| {
        let root = Table { path: String::new(), span: 0..0, table: document.get_ref() };
        file(&mut reader, &root)
    });
    match value {
        Some(value) if reader.problems.is_empty() => Ok(value),
        _ => {
            reader.problems.sort_by_key(|found| found.offset);
            reader.problems.truncate(PROBLEMS_MAX);
            Err(reader.problems.into_iter().map(|found| found.located(text)).collect())
        }
    }
}

impl Problem {
    /// A problem with the value of a dotted key, which is found later than by [`super::parse`].
    pub fn at(text: &str, key: &str, detail: String) -> Self {
        let document = DeTable::parse(text).ok();
        let offset = document.as_ref().and_then(|document| offset_of(document.get_ref(), key));
        let offset = offset.unwrap_or(0);
        Found { offset, key: key.into(), detail }.located(text)
    }
}

/// Where the value of a dotted key is, or the innermost value around it that is there.
fn offset_of(root: &DeTable<'_>, key: &str) -> Option<usize> {
    let mut offset = None;
    let (mut table, mut list): (_, Option<&DeArray<'_>>) = (Some(root), None);
    for part in key.split('.') {
        let found: Option<&Spanned<DeValue<'_>>> = match (table, list) {
            (Some(table), _) => {
                table.iter().find(|(key, _)| key.get_ref() == part).map(|(_, value)| value)
            }
            (None, Some(list)) => part.parse().ok().and_then(|index: usize| list.get(index)),
            (None, None) => None,
        };
        let Some(found) = found else { break };
        offset = Some(found.span().start);
        (table, list) = match found.get_ref() {
            DeValue::Table(table) => (Some(table), None),
            DeValue::Array(list) => (None, Some(list)),
            _ => (None, None),
        };
    }
    offset
}

/// Gathers problems, so that one run shows all of them.
pub(super) struct Reader<'t> {
    text: &'t str,
    pub(super) origin: Origin,
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
pub(super) struct Table<'v> {
    pub(super) path: String,
    pub(super) span: Range<usize>,
    pub(super) table: &'v DeTable<'v>,
}

impl<'v> Table<'v> {
    pub(super) fn get(&self, name: &str) -> Option<&'v Spanned<DeValue<'v>>> {
        self.table.iter().find(|(key, _)| key.get_ref() == name).map(|(_, value)| value)
    }

    pub(super) fn key(&self, name: &str) -> String {
        match self.path.is_empty() {
            true => name.into(),
            false => format!("{}.{name}", self.path),
        }
    }
}

impl<'t> Reader<'t> {
    /// None: it has been reported why.
    fn document(&mut self) -> Option<Spanned<DeTable<'t>>> {
        if self.text.len() > FILE_BYTES_MAX {
            self.problem(0, "", format!("a file must have at most {FILE_BYTES_MAX} bytes"));
            return None;
        }
        match DeTable::parse(self.text) {
            Ok(document) => Some(document),
            Err(error) => {
                let start = error.span().map_or(0, |span| span.start);
                self.problem(start, "", error.message().into());
                None
            }
        }
    }

    /// The tables of a list that may be missing.
    pub(super) fn entries<'v>(
        &mut self,
        table: &Table<'v>,
        name: &str,
        count_max: usize,
    ) -> Vec<Table<'v>> {
        if table.get(name).is_none() {
            return Vec::new();
        }
        let all = self.list(table, name).unwrap_or_default();
        if let Some(first) = all.get(count_max) {
            let detail = format!("a file must have at most {count_max} {name}, got {}", all.len());
            self.problem(first.span.start, name, detail);
            return Vec::new();
        }
        all
    }

    /// Reports keys that do not exist.
    pub(super) fn check_keys(&mut self, table: &Table<'_>, known: &[&str]) {
        for (key, _) in table.table.iter() {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                let detail = format!("unknown key: must be one of {}", known.join(", "));
                self.problem(key.span().start, &table.key(name), detail);
            }
        }
    }

    /// The same where keys of another kind exist.
    pub(super) fn check_keys_of(
        &mut self,
        table: &Table<'_>,
        known: &[&str],
        others: &[&str],
        kind: &str,
    ) {
        for (key, _) in table.table.iter() {
            let name: &str = key.get_ref();
            let detail = match others.contains(&name) {
                _ if known.contains(&name) => continue,
                true => format!("{kind} must not have this key: remove it"),
                false => format!("unknown key: must be one of {}", known.join(", ")),
            };
            self.problem(key.span().start, &table.key(name), detail);
        }
    }

    pub(super) fn count_of_problems(&self) -> usize {
        self.problems.len()
    }

    pub(super) fn required_text(&mut self, table: &Table<'_>, name: &str) -> String {
        if table.get(name).is_none() {
            self.problem_at(table, name, "missing: must be a text".into());
        }
        self.text(table, name).unwrap_or_default()
    }

    pub(super) fn text(&mut self, table: &Table<'_>, name: &str) -> Option<String> {
        match table.get(name)?.get_ref() {
            DeValue::String(text) => Some(text.to_string()),
            other => {
                let detail = format!("must be a text, got {}", other.type_str());
                self.problem_at(table, name, detail);
                None
            }
        }
    }

    pub(super) fn flag(&mut self, table: &Table<'_>, name: &str) -> Option<bool> {
        match table.get(name)?.get_ref() {
            DeValue::Boolean(is_set) => Some(*is_set),
            other => {
                let detail = format!("must be true or false, got {}", other.type_str());
                self.problem_at(table, name, detail);
                None
            }
        }
    }

    /// A list of texts, which may be missing.
    pub(super) fn texts(
        &mut self,
        table: &Table<'_>,
        name: &str,
        count_max: usize,
    ) -> Option<Vec<String>> {
        let text = |item: &DeValue<'_>| item.as_str().map(str::to_owned);
        self.items(table, name, count_max, "texts", text)
    }

    /// A list of numbers, which may be missing.
    pub(super) fn numbers(
        &mut self,
        table: &Table<'_>,
        name: &str,
        count_max: usize,
        range: RangeInclusive<u64>,
    ) -> Option<Vec<u64>> {
        let what = format!("numbers from {} to {}", range.start(), range.end());
        let number = |item: &DeValue<'_>| {
            number_of(item, &[]).ok().flatten().filter(|number| range.contains(number))
        };
        self.items(table, name, count_max, &what, number)
    }

    fn items<T>(
        &mut self,
        table: &Table<'_>,
        name: &str,
        count_max: usize,
        what: &str,
        read: impl Fn(&DeValue<'_>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let DeValue::Array(items) = table.get(name)?.get_ref() else {
            self.problem_at(table, name, format!("must be a list of {what}"));
            return None;
        };
        if items.len() > count_max {
            let detail = format!("must have at most {count_max} entries, got {}", items.len());
            self.problem_at(table, name, detail);
            return None;
        }
        let mut all = Vec::new();
        for item in items.iter() {
            match read(item.get_ref()) {
                Some(value) => all.push(value),
                None => {
                    let detail = format!("must be a list of {what}");
                    self.problem(item.span().start, &table.key(name), detail);
                }
            }
        }
        Some(all)
    }

    pub(super) fn count(
        &mut self,
        table: &Table<'_>,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        self.number(table, name, range, &[], "a number")
    }

    /// Bytes, as a number or as a text such as `10 GiB`.
    pub(super) fn size(
        &mut self,
        table: &Table<'_>,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        self.number(table, name, range, &SIZES, "a size (bytes, or like \"64KiB\")")
    }

    /// Seconds, as a number or as a text such as `7d`.
    pub(super) fn secs(
        &mut self,
        table: &Table<'_>,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        self.number(table, name, range, &TIMES, "a time (seconds, or like \"5m\")")
    }

    fn number(
        &mut self,
        table: &Table<'_>,
        name: &str,
        range: RangeInclusive<u64>,
        units: &[(&str, u64)],
        what: &str,
    ) -> Option<u64> {
        let (start, end) = (show(*range.start(), units), show(*range.end(), units));
        let must = format!("must be {what} from {start} to {end}");
        let value = table.get(name)?.get_ref();
        let detail = match number_of(value, units) {
            Ok(Some(number)) if range.contains(&number) => return Some(number),
            Ok(Some(number)) => format!("{must}, got {}", show(number, units)),
            Ok(None) => format!("{must}, got a value that is none"),
            Err(other) => format!("{must}, got {other}"),
        };
        self.problem_at(table, name, detail);
        None
    }

    pub(super) fn word<T: Copy>(
        &mut self,
        table: &Table<'_>,
        name: &str,
        words: &[(&str, T)],
    ) -> Option<T> {
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

    pub(super) fn table<'v>(&mut self, table: &Table<'v>, name: &str) -> Option<Table<'v>> {
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
    pub(super) fn list<'v>(&mut self, table: &Table<'v>, name: &str) -> Option<Vec<Table<'v>>> {
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
    pub(super) fn problem_at(&mut self, table: &Table<'_>, name: &str, detail: String) {
        let offset = offset_of(table.table, name).unwrap_or(table.span.start);
        self.problem(offset, &table.key(name), detail);
    }

    pub(super) fn problem(&mut self, offset: usize, key: &str, detail: String) {
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

pub(super) fn given(value: &DeValue<'_>) -> Given {
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

/// `Ok(None)`: it is out of all ranges, or not written as a number. An error names another type.
fn number_of(value: &DeValue<'_>, units: &[(&str, u64)]) -> Result<Option<u64>, &'static str> {
    match value {
        DeValue::Integer(number) => Ok(u64::from_str_radix(number.as_str(), number.radix()).ok()),
        DeValue::String(text) if !units.is_empty() => Ok(quantity(text, units)),
        other => Err(other.type_str()),
    }
}

/// A number with a unit behind it, as the configuration has them.
fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let is_of_number = |char: char| char.is_ascii_digit() || char == '_';
    let end = text.find(|char: char| !is_of_number(char)).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let number: u64 = digits.replace('_', "").parse().ok()?;
    match unit.trim_start() {
        "" => Some(number),
        unit => {
            let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
            number.checked_mul(*factor)
        }
    }
}

/// With the largest unit that fits.
fn show(number: u64, units: &[(&str, u64)]) -> String {
    let fits = |(_, factor): &&(&str, u64)| {
        *factor > 1 && number >= *factor && number.is_multiple_of(*factor)
    };
    match units.iter().find(fits) {
        Some((unit, factor)) => format!("{}{unit}", number / factor),
        None => number.to_string(),
    }
}

const SIZES: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];
const TIMES: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];

/// Both count from 1; the column counts characters.
fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}
