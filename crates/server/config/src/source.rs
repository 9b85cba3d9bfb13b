//! From defaults, file, environment and flags to one checked value per key, each with its origin.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::foreign;
use super::keys::SECTIONS;
use super::mask;
use super::schema::{Key, Value, ValueKind};

/// Where the configuration comes from. Later ones win: file, environment, flags.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub file: Option<SourceFile>,
    /// Variables such as `QUELEA_limits__packet_bytes_max`; others are ignored. What is not UTF-8
    /// is there with replacement characters.
    pub env: Vec<(String, String)>,
    pub flags: Vec<Flag>,
    /// `--listen`: replaces all listeners of the file.
    pub listen: Vec<String>,
    /// `--port`: replaces the port of the first TCP listener, or of the default ones.
    pub port: Option<u16>,
}

/// The configuration file, already read.
#[derive(Clone, Debug)]
pub struct SourceFile {
    pub path: PathBuf,
    pub text: String,
}

/// A command line flag that sets a key.
#[derive(Clone, Debug)]
pub struct Flag {
    /// With its dashes, for messages.
    pub name: &'static str,
    /// The dotted key, e.g. `server.data_dir`.
    pub key: &'static str,
    pub value: String,
}

/// Where a value was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    File {
        path: PathBuf,
        line: usize,
    },
    Env(String),
    Flag(&'static str),
    /// By the management API, since the start.
    Running,
}

/// One effective value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub value: Value,
    pub origin: Origin,
}

/// All values that were set somewhere, by dotted key; those of lists carry their index:
/// `listeners.0.url`.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    values: BTreeMap<String, Setting>,
    /// How many of each list there are; of a list in a list, by entry: `bridges.0.topics`.
    counts: BTreeMap<String, usize>,
}

/// One thing that is wrong, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// `quelea.toml:3:1`, an environment variable or a flag; empty when no place is to blame.
    pub place: String,
    /// The dotted key, where there is one.
    pub key: String,
    pub detail: String,
}

impl Settings {
    /// Reads all sources. Problems are gathered, so that one run shows all of them.
    pub fn read(sources: &Sources, problems: &mut Vec<Problem>) -> Self {
        let mut settings = Self::default();
        if let Some(file) = &sources.file {
            settings.read_file(file, problems);
        }
        settings.read_env(&sources.env, problems);
        for flag in &sources.flags {
            settings.set_text(flag.key, &flag.value, Origin::Flag(flag.name), problems);
        }
        if !sources.listen.is_empty() {
            settings.values.retain(|key, _| !key.starts_with("listeners."));
            settings.counts.remove("listeners");
        }
        for (index, url) in sources.listen.iter().enumerate() {
            let key = format!("listeners.{index}.url");
            settings.set_text(&key, url, Origin::Flag("--listen"), problems);
        }
        settings
    }

    /// The effective value: what was set, else the default. A relative path of a file comes back
    /// relative to that file.
    pub fn setting(&self, section: &str, key: &Key) -> Setting {
        let set = self.values.get(&format!("{section}.{}", key.name)).cloned();
        let set =
            set.unwrap_or_else(|| Setting { value: default_of(key), origin: Origin::Default });
        match (key.kind, set.value, set.origin) {
            (ValueKind::Path, Value::Text(text), Origin::File { path, line }) => {
                let base = path.parent().unwrap_or(Path::new(""));
                let value = Value::Text(base.join(text).to_string_lossy().into_owned());
                Setting { value, origin: Origin::File { path, line } }
            }
            (_, value, origin) => Setting { value, origin },
        }
    }

    /// How many of a list were configured. No listeners: the defaults apply.
    pub fn count_of(&self, list: &str) -> usize {
        self.counts.get(list).copied().unwrap_or(0)
    }

    /// True when any key of the section was set.
    pub fn has_section(&self, section: &str) -> bool {
        let prefix = format!("{section}.");
        self.values.keys().any(|key| key.starts_with(&prefix))
    }

    /// Placeholders stand for something in the templates of providers only. Elsewhere they would be
    /// taken as they are.
    pub fn check_placeholders(&self, problems: &mut Vec<Problem>) {
        for (key, setting) in &self.values {
            let texts = match &setting.value {
                Value::Text(text) => std::slice::from_ref(text),
                Value::List(texts) => texts.as_slice(),
                Value::Unset | Value::Number(_) | Value::Flag(_) => continue,
            };
            let (general, found) =
                (without_index(key), texts.iter().find(|text| text.contains("${")));
            if let (false, Some(text)) = (HAVE_PLACEHOLDERS.contains(&&*general), found) {
                let detail = format!("'{text}': placeholders are not substituted in this key");
                let place = setting.origin.to_string();
                problems.push(Problem { place, key: key.clone(), detail });
            }
        }
    }

    /// Where a key was set, for messages about it.
    pub fn place(&self, key: &str) -> String {
        self.values.get(key).map(|setting| setting.origin.to_string()).unwrap_or_default()
    }

    fn read_file(&mut self, file: &SourceFile, problems: &mut Vec<Problem>) {
        match DeTable::parse(&file.text) {
            Ok(table) => {
                let mut reader = FileReader { file, settings: self, problems: Vec::new() };
                reader.read_table("", "", table.get_ref());
                reader.problems.sort_by_key(|(offset, _)| *offset);
                problems.extend(reader.problems.into_iter().map(|(_, problem)| problem));
            }
            Err(error) => {
                let detail = match foreign::broker_of(&file.text) {
                    Some(hint) => hint.replace("FILE", &file.path.display().to_string()),
                    None => error.message().into(),
                };
                let place = place(file, error.span().map_or(0, |span| span.start));
                problems.push(Problem { place, key: String::new(), detail });
            }
        }
    }

    fn read_env(&mut self, env: &[(String, String)], problems: &mut Vec<Problem>) {
        for (name, text) in env {
            let Some(rest) = name.strip_prefix("QUELEA_").filter(|rest| rest.contains("__")) else {
                continue;
            };
            let key = rest.to_lowercase().replace("__", ".");
            let place = self.place(&key);
            let detail = match self.values.get(&key).map(|known| &known.origin) {
                Some(Origin::Env(_)) => format!("is set by {place} as well; case does not matter"),
                _ if text.contains(char::REPLACEMENT_CHARACTER) => "is not UTF-8".into(),
                _ => {
                    self.set_text(&key, text, Origin::Env(name.clone()), problems);
                    continue;
                }
            };
            problems.push(Problem { place: name.clone(), key, detail });
        }
    }

    /// The effective value of a dotted key outside of lists. None: there is no such key.
    pub fn known(&self, key: &str) -> Option<Setting> {
        let (section, _) = key.rsplit_once('.')?;
        find_key(key).map(|known| self.setting(section, known))
    }

    /// Takes a key as `other` has it, set or not.
    pub(super) fn copy(&mut self, key: &str, other: &Self) {
        match other.values.get(key) {
            Some(setting) => self.values.insert(key.into(), setting.clone()),
            None => self.values.remove(key),
        };
    }

    pub(super) fn set_text(
        &mut self,
        key: &str,
        text: &str,
        origin: Origin,
        problems: &mut Vec<Problem>,
    ) {
        let general = without_index(key);
        let problem = |detail| Problem { place: origin.to_string(), key: key.into(), detail };
        let Some(known) = find_key(&general) else {
            problems.push(problem(unknown_key(&general)));
            return;
        };
        let parsed = known.kind.parse_text(text).map_err(|detail| not_allowed(known.kind, &detail));
        if let Err(detail) = parsed.and_then(|value| self.set(key, value, origin.clone())) {
            problems.push(problem(detail));
        }
    }

    fn set(&mut self, key: &str, value: Value, origin: Origin) -> Result<(), String> {
        let (mut general, mut own) = (String::new(), String::new());
        let mut is_index = false;
        for part in key.split('.') {
            if is_index {
                self.count(&general, &own, part)?;
                is_index = false;
            } else {
                general = join(&general, part);
                is_index = is_list(&general);
            }
            own = join(&own, part);
        }
        self.values.insert(key.into(), Setting { value, origin });
        Ok(())
    }

    /// Counts an entry of a list.
    fn count(&mut self, list: &str, own: &str, index: &str) -> Result<(), String> {
        let count = self.counts.entry(own.into()).or_default();
        let index: Option<usize> = index.parse().ok();
        let index = index.filter(|index| *index <= *count && *index < ITEMS_MAX);
        let index = index.ok_or_else(|| {
            let example = match list {
                "listeners" => "url",
                "bridges.topics" => "filter",
                _ => "name",
            };
            let own = own.replace('.', "__");
            format!(
                "{list} are numbered from 0 without gaps, {ITEMS_MAX} at most, as in \
                 QUELEA_{own}__0__{example}"
            )
        })?;
        *count = (*count).max(index + 1);
        Ok(())
    }
}

/// Walks the tables of a file. `general` names the section as the table of keys has it
/// (`listeners.tls`), `own` as the settings have it (`listeners.0.tls`).
struct FileReader<'a> {
    file: &'a SourceFile,
    settings: &'a mut Settings,
    /// With their offsets: the tables of a document come sorted by name.
    problems: Vec<(usize, Problem)>,
}

impl FileReader<'_> {
    fn read_table(&mut self, general: &str, own: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let general = join(general, name.get_ref());
            let own = join(own, name.get_ref());
            match value.get_ref() {
                _ if find_key(&general).is_some() => self.read_value(&general, &own, value),
                DeValue::Array(items) if is_list(&general) => {
                    self.read_items(&general, &own, items);
                }
                DeValue::Table(inner) if is_section(&general) && !is_list(&general) => {
                    self.read_table(&general, &own, inner);
                }
                _ if is_list(&general) => {
                    let detail = format!("{general} is a list: write [[{general}]]");
                    self.problem(name.span().start, own, detail);
                }
                _ if is_section(&general) => {
                    let detail = format!("{general} is a section: write [{general}]");
                    self.problem(name.span().start, own, detail);
                }
                _ => self.problem(name.span().start, own, unknown_key(&general)),
            }
        }
    }

    fn read_items(&mut self, list: &str, own: &str, items: &[Spanned<DeValue<'_>>]) {
        for (index, item) in items.iter().enumerate() {
            self.settings.counts.insert(own.into(), (index + 1).min(ITEMS_MAX));
            let own = format!("{own}.{index}");
            match item.get_ref() {
                DeValue::Table(table) => self.read_table(list, &own, table),
                _ => self.problem(item.span().start, own, format!("write [[{list}]]")),
            }
        }
    }

    fn read_value(&mut self, general: &str, own: &str, value: &Spanned<DeValue<'_>>) {
        let Some(known) = find_key(general) else { return };
        let offset = value.span().start;
        match known.kind.parse_toml(value.get_ref()) {
            Ok(value) => {
                let line = line_and_column(&self.file.text, offset).0;
                let origin = Origin::File { path: self.file.path.clone(), line };
                if let Err(detail) = self.settings.set(own, value, origin) {
                    self.problem(offset, own.into(), detail);
                }
            }
            Err(detail) => self.problem(offset, own.into(), not_allowed(known.kind, &detail)),
        }
    }

    fn problem(&mut self, offset: usize, key: String, detail: String) {
        let problem = Problem { place: place(self.file, offset), key, detail };
        self.problems.push((offset, problem));
    }
}

impl Origin {
    /// The kind of place, as one word.
    pub fn source(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File { .. } => "file",
            Self::Env(_) => "environment",
            Self::Flag(_) => "flag",
            Self::Running => "running",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Env(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
            Self::Running => f.write_str("set while running"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [&*self.place, &self.key, &mask::urls(&self.detail)];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        f.write_str(&parts.join(": "))
    }
}

/// The value a key has when nobody sets it.
pub fn default_of(key: &Key) -> Value {
    if key.default.is_empty() && !matches!(key.kind, ValueKind::List(_)) {
        return Value::Unset;
    }
    key.kind.parse_text(key.default).unwrap_or(Value::Unset)
}

/// The candidate that is most like `text`, if any is like it.
pub fn nearest<'a>(text: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = candidates.map(|candidate| (edit_distance(text, candidate), candidate));
    let (distance, candidate) = scored.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + text.len() / 4).then_some(candidate)
}

/// What to say about a name that leads to nothing in its list.
pub(super) fn unknown<'a>(list: &str, name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = nearest(name, known).map(|known| format!("; did you mean '{known}'?"));
    let near = near.unwrap_or_default();
    format!("no [[{list}]] has the name '{name}'{near}")
}

/// Keys of earlier versions, and what replaces them.
const REMOVED: [(&str, &str); 2] = [("log.file_bytes_max", ROTATION), ("log.files_kept", ROTATION)];

const ROTATION: &str = "the broker does not rotate its log file; set up logrotate, with \
                        packaging/deb/quelea.logrotate as a sample";

/// What to say about a key that does not exist.
fn unknown_key(general: &str) -> String {
    if let Some((_, remedy)) = REMOVED.iter().find(|(key, _)| *key == general) {
        return format!("this key was removed: {remedy}");
    }
    let (section, name) = general.rsplit_once('.').unwrap_or(("", general));
    let all = || SECTIONS.iter().flat_map(|s| s.keys.iter().map(move |key| (s.name, key.name)));
    let here = all().filter(|(own, _)| *own == section).map(|(_, key)| key);
    let tables = SECTIONS.iter().filter_map(|s| match s.name.rsplit_once('.') {
        Some((parent, last)) => (parent == section).then_some(last),
        None => section.is_empty().then_some(s.name),
    });
    // Most keys of listeners replace one of `[limits]`, which is then the likelier one.
    let elsewhere = || all().filter(|(other, key)| *key == name && *other != section);
    let other = elsewhere().find(|(other, _)| *other != "listeners").or_else(|| elsewhere().next());
    if let Some((other, _)) = other {
        return format!("unknown key; did you mean '{other}.{name}'?");
    }
    match nearest(name, here.chain(tables)) {
        Some(known) => format!("unknown key; did you mean '{known}'?"),
        None => "unknown key; `quelea serve --print-config` lists all keys".into(),
    }
}

fn not_allowed(kind: ValueKind, detail: &str) -> String {
    format!("must be {}; {detail}", kind.allowed())
}

fn find_key(general: &str) -> Option<&'static Key> {
    let (section, name) = general.rsplit_once('.')?;
    let section = SECTIONS.iter().find(|known| known.name == section)?;
    section.keys.iter().find(|key| key.name == name)
}

fn is_section(general: &str) -> bool {
    SECTIONS.iter().any(|known| known.name == general)
}

/// Sections of which there may be many.
/// Keys whose texts are templates.
const HAVE_PLACEHOLDERS: [&str; 9] = [
    "authorization.url",
    "authorization.headers",
    "authorization.body",
    "authentication.username",
    "authentication.attributes",
    "authentication.claims",
    "authentication.url",
    "authentication.headers",
    "authentication.body",
];

const LISTS: [&str; 5] = ["listeners", "authentication", "namespaces", "bridges", "bridges.topics"];

pub(super) fn is_list(section: &str) -> bool {
    LISTS.contains(&section)
}

/// `listeners.0.tls.key` as the table of keys has it: `listeners.tls.key`.
fn without_index(key: &str) -> String {
    key.split('.').fold(String::new(), |general, part| {
        match is_list(&general) && part.parse::<usize>().is_ok() {
            true => general,
            false => join(&general, part),
        }
    })
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.into() } else { format!("{prefix}.{name}") }
}

fn place(file: &SourceFile, offset: usize) -> String {
    let (line, column) = line_and_column(&file.text, offset);
    format!("{}:{line}:{column}", file.path.display())
}

/// Both count from 1; the column counts characters.
fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// More than anybody needs, so that a stray index cannot grow without end.
const ITEMS_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_near() {
        let words = ["packet_bytes_max", "topic_bytes_max"];
        assert_eq!(nearest("packet_byte_max", words.into_iter()), Some("packet_bytes_max"));
        assert_eq!(nearest("zzz", words.into_iter()), None);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
    }

    #[test]
    fn places_count_from_one_in_characters() {
        let text = "a\nüx";
        assert_eq!(line_and_column(text, 0), (1, 1));
        assert_eq!(line_and_column(text, 4), (2, 2));
        assert_eq!(line_and_column(text, 99), (2, 3));
    }
}
