//! mosquitto.conf of mosquitto 2, and the options of 1.4 to 1.6 and of 2.1.
//!
//! Defaults are those of mosquitto 2: without a listener it serves this machine only, and a
//! listener refuses clients without a username.

pub(crate) mod acl;
mod bridges;
mod lines;
mod listeners;
mod plugins;
mod security;
mod table;

use std::collections::BTreeSet;

use crate::document::{Document, Table};
use crate::report::{Fate, Note, Place};
use crate::{CONFIG_FILE, Files, Imported, NewFile, Source, absolute};

use lines::{Lines, Options, Setting};
use security::OwnRules;
use table::Action;

/// Translates a configuration, with the files that it includes.
pub fn import(source: &Source<'_>, files: &dyn Files) -> Imported {
    let mut lines = Lines::read(source, files);
    let notes = std::mem::take(&mut lines.notes);
    if let Some(note) = lines.nothing_known(&notes) {
        return Imported { notes: vec![note], ..Imported::default() };
    }
    let mut import = Import::new(source, files, notes);
    import.has_users = lines.have_certificate_names() || lines.have_password_file();
    import.global(&lines.global);
    import.plugins(&lines);
    import.security(&lines);
    for listener in &lines.listeners {
        import.listener(listener, &lines);
    }
    import.write_own_rules();
    import.at_least_one_listener(&lines);
    for bridge in &lines.bridges {
        import.bridge(bridge);
    }
    import.unheeded(&lines);
    import.finish()
}

/// A translation in progress.
struct Import<'a> {
    source: &'a Source<'a>,
    files: &'a dyn Files,
    document: Document,
    notes: Vec<Note>,
    new: Vec<NewFile>,
    /// Something verifies usernames.
    has_users: bool,
    /// A plugin that decided who may connect has no replacement: nobody is admitted without a user.
    is_closed: bool,
    /// Listeners have different access files.
    has_own_rules: bool,
    rules_of_listeners: Vec<OwnRules>,
    /// A listener was written.
    has_listener: bool,
    /// Users and rules are those of the dynamic security plugin.
    has_dynamic_security: bool,
}

impl<'a> Import<'a> {
    fn new(source: &'a Source<'a>, files: &'a dyn Files, notes: Vec<Note>) -> Self {
        Self {
            source,
            files,
            document: Document::default(),
            notes,
            new: Vec::new(),
            has_users: false,
            is_closed: false,
            has_own_rules: false,
            rules_of_listeners: Vec::new(),
            has_listener: false,
            has_dynamic_security: false,
        }
    }

    fn finish(mut self) -> Imported {
        let name = self.source.path.file_name().unwrap_or_default().to_string_lossy();
        let comment = format!("Written by `quelea import` from {name}, whose lines are named.");
        let rendered = self.document.render(&comment.replace(char::is_control, " "));
        self.new.insert(0, NewFile::rendered(CONFIG_FILE, rendered));
        self.notes.sort_by(|a, b| {
            let key = |note: &Note| (note.place.file.clone(), note.place.line);
            key(a).cmp(&key(b))
        });
        Imported { files: self.new, notes: self.notes }
    }

    /// Options that nothing was said of: only the last of two counts.
    fn unheeded(&mut self, lines: &Lines) {
        let known: BTreeSet<(String, usize)> =
            self.notes.iter().map(|note| (note.place.file.clone(), note.place.line)).collect();
        let all = lines.listeners.iter().chain(&lines.bridges);
        let all = all.chain([&lines.global, &lines.security]).flat_map(|options| &options.list);
        for setting in all {
            if !known.contains(&(setting.at.file.clone(), setting.at.line)) {
                self.note(setting, Fate::NotNeeded, UNHEEDED);
            }
        }
    }

    fn note(&mut self, setting: &Setting, fate: Fate, detail: impl Into<String>) {
        self.notes.push(setting.note(fate, detail));
    }

    /// Notes that an option became this key.
    fn carried(&mut self, setting: &Setting, key: &str) {
        self.note(setting, Fate::Carried, key);
    }

    /// Sets a key of a section from an option.
    fn set(&mut self, setting: &Setting, path: &str, value: impl Into<toml::Value>) {
        let (section, key) = path.split_once('.').unwrap_or(("server", path));
        self.document.set(section, key, value, &setting.at);
        self.carried(setting, path);
    }

    /// What the table of options says of each of these. Keys without a section go into `item`.
    fn apply(&mut self, options: &Options, item: &mut Table) {
        for setting in &options.list {
            match setting.known.action {
                Action::Special => {}
                Action::Always(_, "") => {}
                Action::Always(fate, detail) => self.note(setting, fate, detail),
                Action::Unless(usual, _, _) if is_same(&setting.value, usual) => {
                    self.note(setting, Fate::NotNeeded, "this is how it always is");
                }
                Action::Unless(_, fate, detail) => self.note(setting, fate, detail),
                Action::Key(section, key, zero) => {
                    let Some(value) = self.value(setting, zero) else { continue };
                    match section {
                        "" => {
                            item.set(key, value, &setting.at);
                            self.carried(setting, key);
                        }
                        _ => self.set(setting, &format!("{section}.{key}"), value),
                    }
                }
            }
        }
    }

    /// The value of an option whose kind was checked. None: it was noted.
    fn value(&mut self, setting: &Setting, zero: Option<&str>) -> Option<toml::Value> {
        if let Some(flag) = lines::flag(&setting.value)
            && setting.known.kind == table::Kind::Flag
        {
            return Some(flag.into());
        }
        match (setting.value.parse::<i64>(), zero) {
            (Ok(0), Some(word)) => Some(word.into()),
            (Ok(number), _) if number >= 0 => Some(number.into()),
            _ => {
                let detail = format!("must be a number from 0, got '{}'", setting.value);
                self.note(setting, Fate::Error, detail);
                None
            }
        }
    }

    fn global(&mut self, options: &Options) {
        // No key of the table goes into an item here.
        let mut none = Table::new("");
        self.apply(options, &mut none);
        self.in_flight(options);
        self.queues(options);
        self.packets(options);
        self.persistence(options);
        self.keep_alive(options);
        self.expiration(options);
        self.log(options);
        if let Some(setting) = options.get("per_listener_settings") {
            let detail = "each listener has its own settings";
            self.note(setting, Fate::Carried, detail);
        }
    }

    fn in_flight(&mut self, options: &Options) {
        let Some(setting) = options.get("max_inflight_messages") else { return };
        let number = setting.value.parse::<i64>().unwrap_or(-1);
        if !(0..=65_535).contains(&number) {
            return self.note(setting, Fate::Error, "must be from 0 to 65535");
        }
        let number = if number == 0 { 65_535 } else { number };
        self.set(setting, "limits.in_flight_max", number);
        self.set(setting, "limits.receive_max", number);
    }

    fn keep_alive(&mut self, options: &Options) {
        let Some(setting) = options.get("max_keepalive") else { return };
        let value: toml::Value = match setting.value.parse::<u16>() {
            Ok(0) => "unlimited".into(),
            Ok(seconds) => i64::from(seconds).into(),
            Err(_) => return self.note(setting, Fate::Error, "must be from 0 to 65535"),
        };
        self.document.set("limits", "keep_alive_max_secs", value, &setting.at);
        let detail = "limits.keep_alive_max_secs applies to MQTT 5 clients: MQTT 3 clients keep \
                      the keep-alive that they request";
        self.note(setting, Fate::Differs, detail);
    }

    fn queues(&mut self, options: &Options) {
        let limits = [
            ("max_queued_messages", "limits.queued_messages_max", i64::from(u32::MAX).into()),
            ("max_queued_bytes", "limits.queued_bytes_max", toml::Value::from("auto")),
        ];
        for (name, key, unlimited) in limits {
            let Some(setting) = options.get(name) else { continue };
            let Some(value) = self.value(setting, None) else { continue };
            let is_zero = value.as_integer() == Some(0);
            self.set(setting, key, if is_zero { unlimited } else { value });
            // A full queue of mosquitto takes no more.
            self.document.set("limits", "queue_overflow", "drop_newest", &setting.at);
        }
    }

    /// The smaller of two limits, with room for a topic in that of payloads.
    fn packets(&mut self, options: &Options) {
        let whole = options.get("max_packet_size");
        let payload = options.get("message_size_limit");
        let number = |setting: &Setting| setting.value.parse::<i64>().unwrap_or(-1);
        let limit = |setting: &Setting, more: i64| match number(setting) {
            0 => PACKET_BYTES_MAX,
            number => number.saturating_add(more).min(PACKET_BYTES_MAX),
        };
        let mut chosen: Option<(&Setting, i64)> = None;
        for (setting, more) in [(whole, 0), (payload, HEAD_BYTES)] {
            let Some(setting) = setting else { continue };
            if number(setting) < 0 || (more == 0 && (1..20).contains(&number(setting))) {
                self.note(setting, Fate::Error, "must be 0 or at least 20");
                continue;
            }
            let bytes = limit(setting, more);
            let fate = if more == 0 { Fate::Carried } else { Fate::Differs };
            let detail = "limits.packet_bytes_max is for whole packets, and a larger packet closes \
                          the connection";
            self.note(setting, fate, if more == 0 { "limits.packet_bytes_max" } else { detail });
            if chosen.is_none_or(|(_, known)| bytes < known) {
                chosen = Some((setting, bytes));
            }
        }
        if let Some((setting, bytes)) = chosen {
            self.document.set("limits", "packet_bytes_max", bytes, &setting.at);
        }
    }

    fn persistence(&mut self, options: &Options) {
        let setting = options.get("persistence");
        let is_on = setting.is_some_and(Setting::is_true);
        if let Some(setting) = setting.filter(|_| is_on) {
            let detail = "durability.level is fsync: messages are stored before they are \
                          acknowledged. The contents of mosquitto.db are not carried over";
            self.note(setting, Fate::Differs, detail);
        } else {
            let at = setting.map(|setting| setting.at.clone()).unwrap_or_default();
            self.document.set("durability", "level", "memory", &at);
            setting.into_iter().for_each(|setting| self.carried(setting, "durability.level"));
        }
        let Some(location) = options.get("persistence_location") else { return };
        let path = absolute(self.source, &location.value).join("quelea");
        self.set(location, "server.data_dir", path.to_string_lossy().into_owned());
    }

    fn expiration(&mut self, options: &Options) {
        let Some(setting) = options.get("persistent_client_expiration") else {
            let key = "session_expiry_max_secs";
            return self.document.set("limits", key, "never", &Place::default());
        };
        let text = &setting.value;
        let seconds = UNITS.iter().find_map(|(unit, seconds)| {
            let count: u64 = text.strip_suffix(*unit)?.trim_end().parse().ok()?;
            count.checked_mul(*seconds).filter(|seconds| *seconds < u64::from(u32::MAX))
        });
        match seconds.and_then(|seconds| i64::try_from(seconds).ok()) {
            Some(seconds) => self.set(setting, "limits.session_expiry_max_secs", seconds),
            None => {
                let detail = "must be a number with h, d, w, m or y, below 136 years";
                self.note(setting, Fate::Error, detail);
            }
        }
    }

    fn log(&mut self, options: &Options) {
        let mut has_target = false;
        for setting in options.all("log_dest") {
            let (kind, path) = setting.value.split_once(' ').unwrap_or((&setting.value, ""));
            let target = match kind {
                "stdout" | "stderr" => kind.to_owned(),
                "file" => absolute(self.source, path.trim()).to_string_lossy().into_owned(),
                "syslog" => {
                    let detail = "the log goes to standard error, which journald takes";
                    self.note(setting, Fate::Differs, detail);
                    continue;
                }
                "topic" => {
                    let detail = "log lines are not published: see `quelea ctl events`";
                    self.note(setting, Fate::Unsupported, detail);
                    continue;
                }
                "none" => {
                    self.document.set("log", "level", "error", &setting.at);
                    self.note(setting, Fate::Differs, "errors are always logged");
                    continue;
                }
                "dlt" | "android" => {
                    self.note(setting, Fate::Unsupported, "the log goes to standard error");
                    continue;
                }
                _ => {
                    let detail = format!("unknown destination '{kind}'");
                    self.note(setting, Fate::Error, detail);
                    continue;
                }
            };
            if has_target {
                let detail = "the log goes to one destination, the first one";
                self.note(setting, Fate::Unsupported, detail);
            } else {
                has_target = true;
                self.set(setting, "log.target", target);
            }
        }
        self.log_level(options);
    }

    fn log_level(&mut self, options: &Options) {
        let mut level: Option<(usize, &Setting)> = None;
        for setting in options.all("log_type") {
            let rank = match setting.value.as_str() {
                "none" | "error" => 0,
                "warning" => 1,
                "notice" | "information" | "subscribe" | "unsubscribe" | "websockets" => 2,
                "debug" | "all" | "internal" => 3,
                other => {
                    self.note(setting, Fate::Error, format!("unknown type '{other}'"));
                    continue;
                }
            };
            self.carried(setting, "log.level");
            if level.is_none_or(|(known, _)| rank > known) {
                level = Some((rank, setting));
            }
        }
        if let Some((rank, setting)) = level {
            let word = ["error", "warn", "info", "debug"][rank];
            self.document.set("log", "level", word, &setting.at);
        }
    }
}

/// Flags may be written as numbers.
fn is_same(value: &str, usual: &str) -> bool {
    value == usual || (lines::flag(usual).is_some() && lines::flag(value) == lines::flag(usual))
}

const UNHEEDED: &str = "has no effect: another line replaces it, or its listener or bridge is left \
                        out";

/// The largest packet of MQTT.
const PACKET_BYTES_MAX: i64 = 268_435_455 + 5;

/// What a PUBLISH can have ahead of its payload: header, topic, packet ID, some properties.
const HEAD_BYTES: i64 = 2 * 65_536;

/// Units of times, in seconds.
const UNITS: [(&str, u64); 5] =
    [("h", 3_600), ("d", 86_400), ("w", 604_800), ("m", 2_592_000), ("y", 31_536_000)];

#[cfg(test)]
mod tests;
