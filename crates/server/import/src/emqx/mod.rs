//! emqx.conf of EMQX 5, or the `cluster.hocon` that its dashboard writes.
//!
//! Defaults are those of EMQX: listeners at 1883 (TCP) and 8083 (WebSocket), clients without
//! authentication, and all topics for all clients.

mod acl_conf;
mod authentication;
mod authorization;
mod listeners;
mod table;
mod values;

use std::path::PathBuf;

use crate::document::{Document, Table};
use crate::report::{Fate, Note, Place};
use crate::{CONFIG_FILE, Files, Imported, NewFile, Source};

use crate::hocon::{self, Node, Value};
use table::{Action, Form};

/// Translates a configuration.
pub fn import(source: &Source<'_>, files: &dyn Files) -> Imported {
    let mut import = Import {
        source,
        files,
        document: Document::default(),
        notes: Vec::new(),
        new: Vec::new(),
        providers: Vec::new(),
        is_closed: false,
        certificate_field: None,
        has_listener: false,
    };
    match hocon::parse(source.text) {
        Ok(root) => import.all(&root),
        Err((line, detail)) => import.note(line, "", Fate::Error, detail),
    }
    import.finish()
}

/// A translation in progress.
struct Import<'a> {
    source: &'a Source<'a>,
    files: &'a dyn Files,
    document: Document,
    notes: Vec<Note>,
    new: Vec<NewFile>,
    /// The names of the providers that were written.
    providers: Vec<String>,
    /// A provider that decided who may connect has no replacement, so that nobody is admitted
    /// without one.
    is_closed: bool,
    /// The field of client certificates that is the username.
    certificate_field: Option<(&'static str, Place)>,
    /// A listener was written.
    has_listener: bool,
}

impl Import<'_> {
    fn all(&mut self, root: &Node) {
        for key in SECTIONS {
            let node = root.get(key).filter(|node| !matches!(node.value, Value::Object(_)));
            node.into_iter().for_each(|node| {
                self.note(node.line, key, Fate::Error, "must be an object: { ... }");
            });
        }
        if let Some(mqtt) = root.get("mqtt") {
            self.mqtt(mqtt);
        }
        self.defaults(root);
        if let Some(chain) = root.get("authentication") {
            self.chain(chain);
        }
        self.listeners(root);
        self.authorization(root.get("authorization"));
        if let Some(retainer) = root.get("retainer") {
            self.retainer(retainer);
        }
        if let Some(log) = root.get("log") {
            self.log(log);
        }
        self.sys(root);
        self.data(root);
        for (key, node) in root.entries() {
            if key != "authentication" && !SECTIONS.contains(&key.as_str()) {
                self.other(key, node);
            }
        }
    }

    fn finish(mut self) -> Imported {
        let name = self.source.path.file_name().unwrap_or_default().to_string_lossy();
        let comment = format!("Written by `quelea import` from {name}, whose lines are named.");
        let rendered = self.document.render(&comment.replace(char::is_control, " "));
        self.new.insert(0, NewFile::rendered(CONFIG_FILE, rendered));
        self.notes.sort_by_key(|note| note.place.line);
        Imported { files: self.new, notes: self.notes }
    }

    fn place(&self, line: usize) -> Place {
        Place { file: self.source.path.display().to_string(), line }
    }

    fn note(&mut self, line: usize, option: &str, fate: Fate, detail: impl Into<String>) {
        let (place, option) = (self.place(line), option.into());
        self.notes.push(Note { place, option, fate, detail: detail.into() });
    }

    /// Sets a key of a section from an option.
    fn set(&mut self, node: &Node, option: &str, path: &str, value: impl Into<toml::Value>) {
        let (section, key) = path.split_once('.').unwrap_or(("server", path));
        self.document.set(section, key, value, &self.place(node.line));
        self.note(node.line, option, Fate::Carried, path);
    }

    /// Walks the options of an object by their table. Those without a section go into `item`.
    fn apply(
        &mut self,
        prefix: &str,
        object: &Node,
        table: &[(&'static str, Action)],
        item: &mut Table,
    ) {
        for (path, node) in leaves(object) {
            let option = format!("{prefix}.{path}");
            match table::find(table, &path) {
                None => self.note(node.line, &option, Fate::Error, "unknown option"),
                Some(Action::Special) => {}
                Some(Action::Always(fate, detail)) => self.note(node.line, &option, fate, detail),
                Some(Action::Unless(usual, fate, detail)) => {
                    let is_usual = match &node.value {
                        Value::Text(text) => text == usual,
                        Value::Array(items) => usual.is_empty() && items.is_empty(),
                        Value::Object(_) => usual.is_empty() && node.entries().is_empty(),
                    };
                    match is_usual {
                        true => self.note(node.line, &option, Fate::NotNeeded, "always so"),
                        false => self.note(node.line, &option, fate, detail),
                    }
                }
                Some(Action::Key(path, form, infinity)) => {
                    let Some(value) = self.value(&option, node, form, infinity) else { continue };
                    match path.contains('.') {
                        true => self.set(node, &option, path, value),
                        false => {
                            item.set(path, value, &self.place(node.line));
                            self.note(node.line, &option, Fate::Carried, path);
                        }
                    }
                }
            }
        }
    }

    /// None: it was noted.
    fn value(
        &mut self,
        option: &str,
        node: &Node,
        form: Form,
        infinity: &str,
    ) -> Option<toml::Value> {
        let Some(text) = node.text() else {
            self.note(node.line, option, Fate::Error, "must be a single value");
            return None;
        };
        let read = match form {
            Form::Flag => match values::flag(text) {
                Ok(flag) => return Some(flag.into()),
                Err(detail) => Err(detail),
            },
            Form::Count => values::count(text),
            Form::Seconds => values::seconds(text),
            Form::Bytes => values::bytes(text),
            Form::Rate => values::rate(text),
        };
        match (read, infinity) {
            (Ok(Some(number)), _) => Some(number.into()),
            (Ok(None), "") => {
                self.note(node.line, option, Fate::Error, "cannot be infinity");
                None
            }
            (Ok(None), word) => Some(word.parse::<i64>().map_or_else(|_| word.into(), Into::into)),
            (Err(detail), _) => {
                self.note(node.line, option, Fate::Error, detail);
                None
            }
        }
    }

    fn mqtt(&mut self, mqtt: &Node) {
        let mut none = Table::new("");
        self.apply("mqtt", mqtt, table::MQTT, &mut none);
        if let Some(node) = mqtt.get("shared_subscription_strategy") {
            let option = "mqtt.shared_subscription_strategy";
            let word = match node.text().unwrap_or_default() {
                "random" => "random",
                "round_robin" | "round_robin_per_group" => "round_robin",
                "sticky" => "sticky",
                "hash_clientid" => "hash_client",
                "hash_topic" => "hash_topic",
                "local" => {
                    let detail = "all members are on one node: round_robin is used";
                    return self.note(node.line, option, Fate::Differs, detail);
                }
                other => {
                    let detail = format!("unknown strategy '{other}'");
                    return self.note(node.line, option, Fate::Error, detail);
                }
            };
            self.set(node, option, "shared.strategy", word);
        }
        self.certificate_names(mqtt);
    }

    fn certificate_names(&mut self, mqtt: &Node) {
        let Some(node) = mqtt.get("peer_cert_as_username") else { return };
        let option = "mqtt.peer_cert_as_username";
        match node.text().unwrap_or_default() {
            "disabled" => self.note(node.line, option, Fate::NotNeeded, "always so"),
            word @ ("cn" | "dn") => {
                let field = if word == "cn" { "cn" } else { "dn" };
                self.certificate_field = Some((field, self.place(node.line)));
                let detail = "listeners.identity_from_certificate";
                self.note(node.line, option, Fate::Carried, detail);
            }
            other => {
                self.is_closed = true;
                let detail = format!("'{other}' cannot be a username: use cn or dn");
                self.note(node.line, option, Fate::Rights, detail);
            }
        }
    }

    /// What EMQX does unless told otherwise, and the broker does not.
    fn defaults(&mut self, root: &Node) {
        let none = Place::default();
        self.document.set("limits", "session_expiry_max_secs", "never", &none);
        if root.get("mqtt.session_expiry_interval").is_none() {
            self.document.set("limits", "session_expiry_v3_secs", 7_200, &none);
        }
        if root.get("mqtt.mqueue_store_qos0").is_none() {
            self.document.set("limits", "queue_qos0_offline", true, &none);
        }
    }

    fn retainer(&mut self, retainer: &Node) {
        let mut none = Table::new("");
        self.apply("retainer", retainer, table::RETAINER, &mut none);
        for path in ["max_retained_messages", "backend.max_retained_messages"] {
            let Some(node) = retainer.get(path) else { continue };
            let option = format!("retainer.{path}");
            let Some(value) = self.value(&option, node, Form::Count, "auto") else { continue };
            match value.as_integer() {
                Some(0) => self.note(node.line, &option, Fate::NotNeeded, "no limit by default"),
                _ => self.set(node, &option, "limits.retained_messages_max", value),
            }
        }
    }

    fn log(&mut self, log: &Node) {
        let mut none = Table::new("");
        self.apply("log", log, table::LOG, &mut none);
        let is_on = |path: &str| log.get(path).and_then(Node::text) == Some("true");
        let to_file = is_on("file.enable") || is_on("file.default.enable");
        let (on, off) = if to_file { ("file", "console") } else { ("console", "file") };
        for (path, node) in leaves(log) {
            let option = format!("log.{path}");
            let Some(Action::Special) = table::find(table::LOG, &path) else { continue };
            let text = node.text().unwrap_or_default();
            let (part, key) = (path.split('.').next(), path.rsplit('.').next());
            match key {
                _ if part == Some(off) => {
                    let detail = "the log goes to one destination";
                    self.note(node.line, &option, Fate::NotNeeded, detail);
                }
                Some("path") => {
                    let path = self.path(text).to_string_lossy().into_owned();
                    self.set(node, &option, "log.target", path);
                }
                Some("level") => self.log_level(node, &option, text),
                Some("formatter") => {
                    let word = if text == "json" { "json" } else { "text" };
                    self.set(node, &option, "log.format", word);
                }
                _ => self.note(node.line, &option, Fate::Carried, format!("log.target: {on}")),
            }
        }
    }

    fn log_level(&mut self, node: &Node, option: &str, text: &str) {
        let word = match text {
            "debug" | "all" => "debug",
            "info" | "notice" => "info",
            "warning" => "warn",
            "error" | "critical" | "alert" | "emergency" | "none" => "error",
            other => {
                let detail = format!("unknown level '{other}'");
                return self.note(node.line, option, Fate::Error, detail);
            }
        };
        self.set(node, option, "log.level", word);
    }

    fn sys(&mut self, root: &Node) {
        let Some(node) = root.get("sys_topics.sys_msg_interval") else { return };
        let option = "sys_topics.sys_msg_interval";
        match node.text() {
            Some("disabled") => self.set(node, option, "sys.interval_secs", "off"),
            _ => {
                if let Some(value) = self.value(option, node, Form::Seconds, "off") {
                    self.set(node, option, "sys.interval_secs", value);
                }
            }
        }
    }

    fn data(&mut self, root: &Node) {
        let Some((node, text)) = root.get("node.data_dir").and_then(|it| Some((it, it.text()?)))
        else {
            return;
        };
        let path = self.path(text).join("quelea").to_string_lossy().into_owned();
        self.set(node, "node.data_dir", "server.data_dir", path);
    }

    fn other(&mut self, key: &str, node: &Node) {
        match table::find(table::OTHERS, key) {
            Some(Action::Always(fate, detail)) => {
                let is_off = node.get("enable").and_then(Node::text) == Some("false");
                let fate = if is_off && fate > Fate::NotNeeded { Fate::NotNeeded } else { fate };
                self.note(node.line, key, fate, if is_off { "it is disabled" } else { detail });
            }
            _ => self.note(node.line, key, Fate::Error, "unknown option"),
        }
    }

    /// A path as EMQX writes it. `etc` is the directory of the configuration.
    fn path(&self, text: &str) -> PathBuf {
        let directory = self.source.path.parent().unwrap_or(std::path::Path::new("/"));
        for start in ["${EMQX_ETC_DIR}/", "$EMQX_ETC_DIR/", "etc/"] {
            if let Some(rest) = text.strip_prefix(start) {
                return directory.join(rest);
            }
        }
        let text = text.replace("${EMQX_LOG_DIR}", "/var/log/emqx");
        directory.join(text)
    }
}

/// What is read by code of its own, and is an object.
const SECTIONS: [&str; 5] = ["authorization", "listeners", "log", "mqtt", "retainer"];

/// All values below an object, with their paths; arrays are values.
fn leaves(object: &Node) -> Vec<(String, &Node)> {
    let mut found = Vec::new();
    for (key, node) in object.entries() {
        match &node.value {
            Value::Object(_) if !node.entries().is_empty() => {
                let below = leaves(node).into_iter();
                found.extend(below.map(|(path, node)| (format!("{key}.{path}"), node)));
            }
            _ => found.push((key.clone(), node)),
        }
    }
    found
}

#[cfg(test)]
mod tests;
