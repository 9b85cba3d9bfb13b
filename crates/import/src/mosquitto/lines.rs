//! The lines of a configuration and of the files that it includes, sorted by what they are about.

use std::path::Path;

use crate::report::{Fate, Note, Place};
use crate::{Files, Source, absolute};

use super::table::{self, Kind, Known, Scope};

/// One option that was set.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) at: Place,
    pub(super) known: &'static Known,
    pub(super) value: String,
}

/// The options of the broker, of a listener or of a bridge.
#[derive(Clone, Debug, Default)]
pub(super) struct Options {
    pub(super) at: Place,
    pub(super) list: Vec<Setting>,
}

/// A configuration, sorted.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) global: Options,
    /// The options of security of all listeners.
    pub(super) security: Options,
    /// None: mosquitto listens on loopback only.
    pub(super) listeners: Vec<Options>,
    pub(super) bridges: Vec<Options>,
    /// `plugin_opt_NAME` and `auth_opt_NAME`, with the name.
    pub(super) plugin_options: Vec<(Place, String, String)>,
    pub(super) notes: Vec<Note>,
    count: usize,
}

impl Setting {
    /// For options that are flags.
    pub(super) fn is_true(&self) -> bool {
        flag(&self.value) == Some(true)
    }

    pub(super) fn note(&self, fate: Fate, detail: impl Into<String>) -> Note {
        let option = self.known.name.into();
        Note { place: self.at.clone(), option, fate, detail: detail.into() }
    }
}

impl Options {
    /// The last one counts, as in mosquitto.
    pub(super) fn get(&self, name: &str) -> Option<&Setting> {
        self.list.iter().rev().find(|setting| setting.known.name == name)
    }

    /// The first of these names that was set.
    pub(super) fn any(&self, names: &[&str]) -> Option<&Setting> {
        names.iter().find_map(|name| self.get(name))
    }

    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Setting> {
        self.list.iter().filter(move |setting| setting.known.name == name)
    }

    pub(super) fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(Setting::is_true)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }
}

impl Lines {
    pub(super) fn read(source: &Source<'_>, files: &dyn Files) -> Self {
        // The default listener is the first one.
        let mut lines = Self { listeners: vec![Options::default()], ..Self::default() };
        lines.read_text(source, files, source.path, source.text, true);
        let is_security = |setting: &Setting| setting.known.scope == Scope::Security;
        if !lines.global.is_true("per_listener_settings") {
            for listener in &mut lines.listeners {
                let (security, own) = listener.list.drain(..).partition(is_security);
                listener.list = own;
                lines.security.list.append(&mut { security });
            }
        }
        // What mosquitto makes a listener of port 1883 of.
        let makes_one = |setting: &Setting| {
            let is_file = matches!(setting.known.name, "password_file" | "acl_file" | "psk_file");
            !is_security(setting) || is_file
        };
        if !lines.listeners[0].list.iter().any(makes_one) {
            let unused = lines.listeners.remove(0);
            let unused = unused.list.iter().map(|setting| {
                setting.note(Fate::Error, "belongs to no listener: write it below a `listener`")
            });
            lines.notes.extend(unused);
        }
        lines
    }

    /// Does a listener take usernames from certificates?
    pub(super) fn have_certificate_names(&self) -> bool {
        self.listeners.iter().any(|own| {
            let names = ["use_identity_as_username", "use_subject_as_username"];
            own.is_true("require_certificate") && names.iter().any(|name| own.is_true(name))
        })
    }

    pub(super) fn have_password_file(&self) -> bool {
        let mut all = self.listeners.iter().chain([&self.security]);
        all.any(|own| own.has("password_file"))
    }

    fn read_text(
        &mut self,
        source: &Source<'_>,
        files: &dyn Files,
        path: &Path,
        text: &str,
        is_main: bool,
    ) {
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let at = Place { file: path.display().to_string(), line: index + 1 };
            self.count += 1;
            if self.count > LINES_MAX {
                self.error(&at, "", format!("more than {LINES_MAX} options in all files"));
                return;
            }
            let (name, value) = match line.split_once(char::is_whitespace) {
                Some((name, value)) => (name, value.trim_start()),
                None => (line, ""),
            };
            match name {
                "include_dir" if !is_main => {
                    let detail = "is read in the main file only".into();
                    self.error(&at, name, detail);
                }
                "include_dir" => self.include(source, files, &at, value),
                _ => self.read_option(at, name, value),
            }
        }
    }

    fn include(&mut self, source: &Source<'_>, files: &dyn Files, at: &Place, value: &str) {
        let directory = absolute(source, value);
        let mut found = match files.list(&directory) {
            Ok(found) => found,
            Err(error) => {
                let detail = format!("cannot read {}: {error}", directory.display());
                return self.error(at, "include_dir", detail);
            }
        };
        found.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
        found.sort();
        self.note(at, "include_dir", Fate::Carried, format!("{} files", found.len()));
        for path in found {
            match files.read(&path) {
                Ok(text) => self.read_text(source, files, &path, &text, false),
                Err(error) => {
                    let detail = format!("cannot read {}: {error}", path.display());
                    self.error(at, "include_dir", detail);
                }
            }
        }
    }

    fn read_option(&mut self, at: Place, name: &str, value: &str) {
        if let Some(option) =
            name.strip_prefix("plugin_opt_").or_else(|| name.strip_prefix("auth_opt_"))
        {
            return self.plugin_options.push((at, option.into(), value.into()));
        }
        let Some(known) = table::find(name) else {
            let near = nearest(name, table::names());
            let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            return self.error(&at, name, format!("unknown option{near}"));
        };
        if let Err(detail) = check(known.kind, value) {
            return self.error(&at, name, detail);
        }
        let setting = Setting { at: at.clone(), known, value: value.into() };
        match (known.name, known.scope) {
            ("listener", _) => self.begin_listener(setting),
            ("connection", _) => {
                self.bridges.push(Options { at, list: vec![setting] });
                if self.bridges.len() > ITEMS_MAX {
                    let detail = format!("at most {ITEMS_MAX} bridges can be imported");
                    self.error(&Place::default(), name, detail);
                    self.bridges.pop();
                }
            }
            (_, Scope::Global) => self.global.list.push(setting),
            // They are about the default listener wherever they stand.
            ("port" | "bind_address", _) => self.listeners[0].list.push(setting),
            // Whether what is about security is of one listener only, is known at the end.
            (_, Scope::Listener | Scope::Security) => self.listener().list.push(setting),
            (_, Scope::Bridge) => match self.bridges.last_mut() {
                Some(bridge) => bridge.list.push(setting),
                None => self.error(&at, name, "needs a `connection` ahead of it".into()),
            },
        }
    }

    fn begin_listener(&mut self, setting: Setting) {
        self.listeners.push(Options { at: setting.at.clone(), list: vec![setting] });
        if self.listeners.len() > ITEMS_MAX {
            let detail = format!("at most {ITEMS_MAX} listeners can be imported");
            self.error(&Place::default(), "listener", detail);
            self.listeners.pop();
        }
    }

    /// The present one.
    fn listener(&mut self) -> &mut Options {
        let last = self.listeners.len() - 1;
        &mut self.listeners[last]
    }

    fn note(&mut self, at: &Place, option: &str, fate: Fate, detail: String) {
        self.notes.push(Note { place: at.clone(), option: option.into(), fate, detail });
    }

    fn error(&mut self, at: &Place, option: &str, detail: String) {
        self.note(at, option, Fate::Error, detail);
    }
}

/// As mosquitto reads a flag.
pub(super) fn flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

fn check(kind: Kind, value: &str) -> Result<(), String> {
    match kind {
        _ if value.is_empty() => Err("needs a value".into()),
        Kind::Flag if flag(value).is_none() => Err(format!("must be true or false, got '{value}'")),
        Kind::Number if value.parse::<i64>().is_err() => {
            Err(format!("must be a number, got '{value}'"))
        }
        _ => Ok(()),
    }
}

/// The name that has the longest beginning in common, if it is most of it.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let common = |other: &str| name.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
    let best = known.max_by_key(|other| common(other))?;
    (common(best) >= 4 && common(best) * 2 > name.len()).then_some(best)
}

/// More than anybody has, so that a directory of other files is no configuration.
const LINES_MAX: usize = 20_000;

/// As many listeners, and bridges, as our configuration takes.
const ITEMS_MAX: usize = 1_000;
