//! The lines of a configuration and of the files that it includes, sorted by what they are about.

use std::collections::BTreeMap;
use std::path::Path;

use crate::report::{Fate, Note, Place};
use crate::{Files, Source, absolute};

use super::table::{self, Kind, Known, Scope};

/// A plugin that is loaded, with its options: name and value.
#[derive(Clone, Debug)]
pub(super) struct Plugin {
    pub(super) setting: Setting,
    pub(super) options: Vec<(Place, String, String)>,
}

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
    pub(super) plugins: Vec<Plugin>,
    /// A line says on which addresses mosquitto listens. Else the default listener admits all
    /// clients, whatever `allow_anonymous` says.
    pub(super) has_address: bool,
    pub(super) notes: Vec<Note>,
    count: usize,
    files: usize,
    /// What the lines of the present file are about. Each file begins with the default listener.
    now: Now,
    /// An option about security was read: `per_listener_settings` comes too late.
    has_security: bool,
}

/// The listener, bridge and plugin that following lines are about.
#[derive(Clone, Copy, Debug, Default)]
struct Now {
    listener: usize,
    bridge: Option<usize>,
    plugin: Option<usize>,
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
        if !lines.are_own() {
            for listener in &mut lines.listeners {
                let (security, own) = listener.list.drain(..).partition(is_security);
                listener.list = own;
                lines.security.list.append(&mut { security });
            }
        }
        lines.has_address = lines.listeners.len() > 1
            || ["port", "bind_address"].iter().any(|name| lines.listeners[0].has(name));
        if !lines.listeners[0].list.iter().any(makes_a_listener) {
            let unused = lines.listeners.remove(0);
            let detail = "has no effect in mosquitto: there is no listener ahead of it";
            let unused = unused.list.iter().map(|setting| setting.note(Fate::NotNeeded, detail));
            lines.notes.extend(unused);
        }
        lines.refuse_duplicates();
        lines
    }

    /// Whether it is no configuration at all: one error instead of one for each line.
    pub(super) fn nothing_known(&self, notes: &[Note]) -> Option<Note> {
        let all = self.listeners.iter().chain(&self.bridges).chain([&self.global, &self.security]);
        let is_known = all.map(|options| options.list.len()).sum::<usize>() > 0;
        let first = notes.first().filter(|_| !is_known && notes.len() >= UNKNOWN_MIN)?;
        let is_unknown = |note: &Note| note.detail.starts_with(UNKNOWN);
        notes.iter().all(is_unknown).then(|| {
            let detail = "none of its lines is an option of mosquitto: name the broker with --from \
                          if it is that of another one";
            let place = Place { line: 0, ..first.place.clone() };
            let option = "mosquitto.conf".into();
            Note { place, option, fate: Fate::Error, detail: detail.into() }
        })
    }

    /// Does each listener have settings of its own?
    pub(super) fn are_own(&self) -> bool {
        self.global.all("per_listener_settings").any(Setting::is_true)
    }

    /// mosquitto does not start with such a file, so nobody knows which of two is meant.
    fn refuse_duplicates(&mut self) {
        let all = self.listeners.iter().chain(&self.bridges).chain([&self.global, &self.security]);
        let mut notes = Vec::new();
        for options in all {
            let mut known = BTreeMap::new();
            for setting in options.list.iter().filter(|it| it.known.kind == Kind::Text) {
                if let Some(first) = known.insert(setting.known.name, &setting.at) {
                    let detail = format!("{first} sets it already: mosquitto takes it once");
                    notes.push(setting.note(Fate::Error, detail));
                }
            }
        }
        self.notes.append(&mut notes);
    }

    /// Does a listener take usernames from certificates?
    pub(super) fn have_certificate_names(&self) -> bool {
        self.listeners.iter().any(|own| {
            let names = ["use_identity_as_username", "use_subject_as_username"];
            let has_tls = own.has("certfile") && own.has("keyfile");
            has_tls
                && own.is_true("require_certificate")
                && names.iter().any(|name| own.is_true(name))
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
        self.files += found.len();
        if self.files > FILES_MAX {
            let detail = format!("more than {FILES_MAX} files are included");
            return self.error(at, "include_dir", detail);
        }
        self.note(at, "include_dir", Fate::Carried, format!("{} files", found.len()));
        for path in found {
            match files.read(&path) {
                Ok(text) => {
                    let now = std::mem::take(&mut self.now);
                    self.read_text(source, files, &path, &text, false);
                    self.now = now;
                }
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
            return match self.now.plugin {
                Some(plugin) => {
                    self.plugins[plugin].options.push((at, option.into(), value.into()));
                }
                None => self.error(&at, name, "needs a `plugin` ahead of it".into()),
            };
        }
        let Some(known) = table::find(name) else {
            let near = nearest(name, table::names());
            let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            return self.error(&at, name, format!("{UNKNOWN}{near}"));
        };
        let value = known.kind.value_of(value);
        if let Err(detail) = check(known.kind, value) {
            return self.error(&at, name, detail);
        }
        self.sort_in(Setting { at, known, value: value.into() });
    }

    fn sort_in(&mut self, setting: Setting) {
        let at = setting.at.clone();
        match (setting.known.name, setting.known.scope) {
            ("listener", _) => self.begin_listener(setting),
            ("connection", _) => {
                self.now.bridge = Some(self.bridges.len());
                self.bridges.push(Options { at, list: vec![setting] });
                if self.bridges.len() > ITEMS_MAX {
                    let detail = format!("at most {ITEMS_MAX} bridges can be imported");
                    self.error(&Place::default(), "connection", detail);
                    self.bridges.pop();
                    self.now.bridge = None;
                }
            }
            ("per_listener_settings", _) if self.has_security && setting.is_true() => {
                let detail = "must be ahead of all options about security, as mosquitto demands";
                self.notes.push(setting.note(Fate::Error, detail));
            }
            (_, Scope::Global) => self.global.list.push(setting),
            // They are about the default listener wherever they stand.
            ("port" | "bind_address", _) => self.listeners[0].list.push(setting),
            // Whether what is about security is of one listener only, is known at the end.
            (name, Scope::Listener | Scope::Security) => {
                self.has_security |= setting.known.scope == Scope::Security;
                if table::PLUGINS.contains(&name) {
                    self.now.plugin = Some(self.plugins.len());
                    self.plugins.push(Plugin { setting: setting.clone(), options: Vec::new() });
                }
                self.listeners[self.now.listener].list.push(setting);
            }
            (name, Scope::Bridge) => match self.now.bridge {
                Some(bridge) => self.bridges[bridge].list.push(setting),
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
        self.now.listener = self.listeners.len() - 1;
    }

    fn note(&mut self, at: &Place, option: &str, fate: Fate, detail: String) {
        self.notes.push(Note { place: at.clone(), option: option.into(), fate, detail });
    }

    fn error(&mut self, at: &Place, option: &str, detail: String) {
        self.note(at, option, Fate::Error, detail);
    }
}

/// What mosquitto makes a listener of port 1883 of, at a value that is not its default.
fn makes_a_listener(setting: &Setting) -> bool {
    let (name, value) = (setting.known.name, setting.value.as_str());
    let is_usual = match name {
        "allow_zero_length_clientid" => setting.is_true(),
        "protocol" => value == "mqtt",
        "max_qos" => value == "2",
        "max_connections" => value == "-1",
        "tls_keyform" => value == "pem",
        _ => setting.known.kind == Kind::Flag && !setting.is_true(),
    };
    !is_usual && (MAKE_A_LISTENER.contains(&name) || table::PLUGINS.contains(&name))
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

/// Options that mosquitto makes the default listener of. The files of security are among them if
/// they are its own.
const MAKE_A_LISTENER: [&str; 28] = [
    "acl_file",
    "allow_zero_length_clientid",
    "bind_address",
    "bind_interface",
    "cafile",
    "capath",
    "certfile",
    "ciphers",
    "ciphers_tls1.3",
    "crlfile",
    "dhparamfile",
    "keyfile",
    "max_connections",
    "max_qos",
    "mount_point",
    "password_file",
    "port",
    "protocol",
    "psk_file",
    "psk_hint",
    "require_certificate",
    "socket_domain",
    "tls_engine",
    "tls_engine_kpass_sha1",
    "tls_keyform",
    "use_identity_as_username",
    "use_subject_as_username",
    "use_username_as_clientid",
];

/// What is said of an option that mosquitto does not have.
const UNKNOWN: &str = "unknown option";

/// So many unknown lines, and no known one, are no mistakes in writing.
const UNKNOWN_MIN: usize = 5;

/// More than anybody has, so that a directory of other files is no configuration.
const LINES_MAX: usize = 20_000;

/// As many files as `include_dir` may find, in all directories.
const FILES_MAX: usize = 1_000;

/// As many listeners, and bridges, as our configuration takes.
const ITEMS_MAX: usize = 1_000;
