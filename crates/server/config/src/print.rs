//! The configuration as text for people: what is in force, and what could be.

use super::changes::is_of_running;
use super::keys::{RawListener, SECTIONS};
use super::mask;
use super::schema::{Key, Section, Value, ValueKind};
use super::source::{Origin, Setting, Settings, default_of, is_list};
use super::{Derived, Loaded};

/// The effective configuration as TOML, each value with where it was set, and without secrets.
/// Reads back as the same configuration, except for secrets, and for the listeners where none is
/// configured.
pub fn effective(loaded: &Loaded) -> String {
    let mut out = String::new();
    for section in SECTIONS {
        match section.name {
            "listeners" => print_listeners(loaded, &mut out),
            name if is_inner(name) => {}
            name if is_list(name) => {
                for index in 0..loaded.settings.count_of(name) {
                    out.push_str(&format!("[[{name}]]\n"));
                    let own = format!("{name}.{index}");
                    print_keys(loaded, section, &own, &mut out);
                    print_inner(loaded, name, &own, &mut out);
                    out.push('\n');
                }
            }
            name => {
                out.push_str(&format!("[{name}]\n"));
                print_keys(loaded, section, name, &mut out);
                out.push('\n');
            }
        }
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// A value in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Dotted, as in `limits.memory_bytes_max`.
    pub key: String,
    /// As TOML.
    pub value: String,
    /// Where it was set.
    pub origin: String,
    /// The kind of that place: `default`, `derived`, `file`, `environment`, `flag` or `running`.
    pub source: &'static str,
    /// As TOML; none: not set.
    pub default: Option<String>,
    /// None: it is no number.
    pub unit: Option<&'static str>,
    /// What values it takes.
    pub allowed: String,
    /// Whether it can be set while the broker runs.
    pub changes_while_running: bool,
}

/// What is in force, but for the listeners. Who may read this need not know secrets.
pub fn rows(settings: &Settings, derived: &[Derived]) -> Vec<Row> {
    let mut rows = Vec::new();
    for section in SECTIONS.iter().filter(|section| !section.name.starts_with("listeners")) {
        match section.name {
            name if is_inner(name) => {}
            name if is_list(name) => {
                for own in entries(settings, name) {
                    rows.extend(rows_of_entry(settings, derived, section, &own));
                    for (section, own) in inner(settings, name, &own) {
                        rows.extend(rows_of_entry(settings, derived, section, &own));
                    }
                }
            }
            name => {
                rows.extend(section.keys.iter().map(|key| row(settings, derived, name, key)));
            }
        }
    }
    rows
}

/// Of an entry of a list: keys that are not set and have no default are left out.
fn rows_of_entry(
    settings: &Settings,
    derived: &[Derived],
    section: &Section,
    own: &str,
) -> Vec<Row> {
    let keys = section.keys.iter().filter(|key| !is_absent(&settings.setting(own, key)));
    keys.map(|key| row(settings, derived, own, key)).collect()
}

fn row(settings: &Settings, derived: &[Derived], own: &str, key: &Key) -> Row {
    let setting = settings.setting(own, key);
    let name = format!("{own}.{}", key.name);
    let derived = derived.iter().find(|derived| derived.key == name);
    let value = derived.map(|derived| derived.value.clone());
    let origin = setting.origin.to_string();
    let unit = match key.kind {
        ValueKind::Number { unit, .. } => Some(unit.as_str()),
        _ => None,
    };
    let default = default_of(key);
    Row {
        value: value.unwrap_or_else(|| key.kind.show(&mask::value(key.name, &setting.value))),
        source: derived.map_or(setting.origin.source(), |_| "derived"),
        origin: derived.map_or(origin, |derived| derived.reason.clone()),
        default: (default != Value::Unset).then(|| key.kind.show(&default)),
        unit,
        allowed: key.kind.allowed(),
        changes_while_running: is_of_running(&name),
        key: name,
    }
}

/// The entries of a list, by the beginning of their keys.
fn entries(settings: &Settings, list: &str) -> impl Iterator<Item = String> {
    (0..settings.count_of(list)).map(move |index| format!("{list}.{index}"))
}

fn is_absent(setting: &Setting) -> bool {
    let is_empty = matches!(&setting.value, Value::List(texts) if texts.is_empty());
    setting.origin == Origin::Default && (setting.value == Value::Unset || is_empty)
}

/// `docs/use/configuration.md`.
pub fn markdown() -> String {
    let mut out = String::from(MARKDOWN_HEAD);
    for section in SECTIONS {
        let shown = heading(section);
        out.push_str(&format!("\n## `{shown}`\n\n{}\n", paragraph(section.doc)));
        out.push_str("\n| Key | Default | Value | Meaning |\n|---|---|---|---|\n");
        for key in section.keys {
            let default = match default_of(key) {
                Value::Unset => "not set".into(),
                value => format!("`{}`", key.kind.show(&value)),
            };
            let allowed = key.kind.allowed_in_short();
            let mut doc = paragraph(key.doc);
            if is_of_running(&format!("{}.{}", section.name, key.name)) {
                doc.push_str(" Changes while running.");
            }
            let row = [format!("`{}`", key.name), default, allowed, doc];
            out.push_str(&format!("| {} |\n", row.join(" | ")));
        }
    }
    out
}

/// `docs/use/quelea.reference.toml`: every key, commented out, with its default.
pub fn reference() -> String {
    let mut out = String::from(REFERENCE_HEAD);
    for section in SECTIONS {
        let heading = heading(section);
        out.push_str(&format!("\n{}\n", comment(&paragraph(section.doc))));
        // The tables of lists stay commented out: one that stands there is one that counts.
        let is_in_list = is_list(section.name.split('.').next().unwrap_or_default());
        let mark = if is_in_list { "# " } else { "" };
        out.push_str(&format!("{mark}{heading}\n"));
        for key in section.keys {
            let doc = format!("{} Value: {}.", paragraph(key.doc), key.kind.allowed_in_short());
            let value = key.kind.show(&default_of(key));
            out.push_str(&format!("\n{}\n# {} = {value}\n", comment(&doc), key.name));
        }
    }
    out
}

/// Whether a section is part of the entries of a list.
fn is_inner(name: &str) -> bool {
    name.split_once('.').is_some_and(|(list, _)| is_list(list))
}

/// The sections of one entry of a list, with the beginning of their keys.
fn inner<'a>(
    settings: &'a Settings,
    list: &'a str,
    own: &'a str,
) -> impl Iterator<Item = (&'static Section, String)> + 'a {
    SECTIONS.iter().flat_map(move |section| {
        let name = section.name.strip_prefix(list).and_then(|rest| rest.strip_prefix('.'));
        let inner = name.map(|name| format!("{own}.{name}")).unwrap_or_default();
        let found: Vec<String> = match name {
            None => Vec::new(),
            Some(_) if is_list(section.name) => entries(settings, &inner).collect(),
            Some(_) => Some(inner).filter(|own| settings.has_section(own)).into_iter().collect(),
        };
        found.into_iter().map(move |own| (section, own))
    })
}

fn print_inner(loaded: &Loaded, list: &str, own: &str, out: &mut String) {
    for (section, own) in inner(&loaded.settings, list, own) {
        out.push_str(&format!("{}\n", heading(section)));
        print_keys(loaded, section, &own, out);
    }
}

fn print_listeners(loaded: &Loaded, out: &mut String) {
    if loaded.settings.count_of("listeners") == 0 {
        for listener in &loaded.config.listeners {
            out.push_str(&format!("[[listeners]]\nurl = \"{}\" # default\n\n", listener.name));
        }
        return;
    }
    for index in 0..loaded.settings.count_of("listeners") {
        let own = format!("listeners.{index}");
        out.push_str("[[listeners]]\n");
        print_keys(loaded, &RawListener::SECTION, &own, out);
        print_inner(loaded, "listeners", &own, out);
        out.push('\n');
    }
}

/// Keys that are not set and have no default are left out.
fn print_keys(loaded: &Loaded, section: &Section, own: &str, out: &mut String) {
    for key in section.keys {
        let setting = loaded.settings.setting(own, key);
        if is_absent(&setting) {
            continue;
        }
        out.push_str(&line(key, &setting.value, &setting.origin));
        let name = format!("{own}.{}", key.name);
        if let Some(derived) = loaded.derived.iter().find(|derived| derived.key == name) {
            out.push_str(&format!(": {}, {}", derived.value, derived.reason));
        }
        out.push('\n');
    }
}

fn line(key: &Key, value: &Value, origin: &Origin) -> String {
    format!("{} = {} # {origin}", key.name, key.kind.show(&mask::value(key.name, value)))
}

fn heading(section: &Section) -> String {
    let name = section.name;
    if is_list(name) { format!("[[{name}]]") } else { format!("[{name}]") }
}

/// Doc lines joined into one line.
fn paragraph(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn comment(text: &str) -> String {
    let mut lines = vec![String::from("#")];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        if lines[last].len() + word.len() + 1 > COMMENT_COLUMNS {
            lines.push(format!("# {word}"));
        } else {
            lines[last].push(' ');
            lines[last].push_str(word);
        }
    }
    lines.join("\n")
}

const COMMENT_COLUMNS: usize = 100;

const MARKDOWN_HEAD: &str = "\
# Configuration

<!-- Generated from crates/server/config/src/: `cargo xtask docs`. -->

Without a configuration, `quelea serve` listens on port 1883 of the loopback addresses and stores
its data in `./quelea-data`. `quelea serve --config FILE` reads a TOML file.

- Later sources win: defaults, the file, environment variables, flags.
- An environment variable is the section and the key joined by two underscores, in either case:
  `QUELEA_limits__packet_bytes_max=1MiB`, `QUELEA_listeners__0__url=tcp://127.0.0.1:1884`. Lists are
  separated by commas. Variables without two underscores are ignored.
- Sizes have the units `B`, `KB`, `MB`, `GB`, `KiB`, `MiB`, `GiB`, times `s`, `m`, `h`, `d`. Without
  a unit they are bytes and seconds.
- Relative paths in the file are relative to its directory, others to the working directory.
- `unlimited`, `auto`, `never` and `off` are words. No number means the same, and 0 means none.
- An unknown key or a value out of range is an error, and the broker does not start.
- `--check-config` only checks the configuration and the files that it names. With `--security` it
  lists missing protection. `--print-config` shows each value, its source, and what `auto` means on
  this machine. It hides secrets: values of `headers` and `body`, users and queries of URLs.
- Keys with \"Changes while running\" take effect at a reload (SIGHUP), or are set by the
  [management API](api.md#settings). Other keys need a restart.
- `quelea.reference.toml` has all keys with their defaults.

Example:

```toml
[[listeners]]
url = \"tcp://127.0.0.1:1883\"

[[listeners]]
url = \"tls://*:8883\"
[listeners.tls]
certificate = \"server.crt\"
key = \"server.key\"

[auth]
password_file = \"passwords\"

[access]
acl_file = \"acl\"

[limits]
packet_bytes_max = \"1MiB\"
queue_overflow = \"reject\"
```
";

const REFERENCE_HEAD: &str = "\
# All keys of quelea's configuration with their defaults. \"\" means: not set.
# Generated from crates/server/config/src/keys.rs: `cargo xtask docs`.
";
