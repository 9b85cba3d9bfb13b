//! Plugins: what they do has its place here, or is named.

use std::path::Path;

use crate::report::{Fate, Note, Place};
use crate::{absolute, dynamic_security};

use super::Import;
use super::lines::{Lines, Plugin, Setting};

impl Import<'_> {
    pub(super) fn plugins(&mut self, lines: &Lines) {
        for Plugin { setting, options } in &lines.plugins {
            if lines.are_own() && lines.listeners.len() > 1 {
                let detail = "its users and rules apply to all listeners here, and to one in \
                              mosquitto";
                self.note(setting, Fate::Rights, detail);
            }
            let mut read = Vec::new();
            self.plugin(setting, options, &mut read);
            for (at, name, value) in options.iter().filter(|(_, name, _)| !read.contains(name)) {
                let detail = match name.contains("password") || name.contains("secret") {
                    true => "an option of the plugin".to_owned(),
                    false => format!("an option of the plugin: {value}"),
                };
                self.plugin_note(at, name, Fate::Unsupported, detail);
            }
        }
        let all = lines.listeners.iter().chain([&lines.security]);
        for setting in all.flat_map(|own| own.all("plugin_use")) {
            self.note(setting, Fate::NotNeeded, "see plugin_load");
        }
    }

    fn plugin(&mut self, setting: &Setting, options: &[Opt], read: &mut Vec<String>) {
        let path = setting.value.split_whitespace().last().unwrap_or_default();
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is = |known: &str| name.replace('-', "_").contains(known);
        if is("go_auth") || is("go_auth_plugin") {
            return self.go_auth(setting, options, read);
        }
        if is("password_file") {
            let found = self.plugin_file(options, &["password_file"], read, Self::users_of);
            return self.replaced(setting, found);
        }
        if is("acl_file") {
            let found = self.plugin_file(options, &["acl_file"], read, Self::rules_of);
            return self.replaced(setting, found);
        }
        if is("persist_sqlite") {
            let detail =
                "sessions and messages are stored in server.data_dir: see durability.level";
            return self.note(setting, Fate::NotNeeded, detail);
        }
        if is("dynamic_security") {
            let found = self.plugin_file(options, &["config_file"], read, Self::dynamic_security);
            return self.replaced(setting, found);
        }
        self.is_closed = true;
        let detail = "plugins cannot be loaded. Users: auth.password_file or [[authentication]] \
                      (JWT, HTTP service, certificates); rights: access.acl_file or \
                      access.policy_file";
        self.note(setting, Fate::Rights, detail);
    }

    fn replaced(&mut self, setting: &Setting, is_replaced: bool) {
        match is_replaced {
            true => self.note(setting, Fate::Carried, "the broker reads its file"),
            false => self.note(setting, Fate::Error, "its file is not named"),
        }
    }

    /// mosquitto-go-auth, with its backends.
    fn go_auth(&mut self, setting: &Setting, options: &[Opt], read: &mut Vec<String>) {
        let Some((at, _, backends)) = options.iter().find(|(_, name, _)| name == "backends") else {
            self.is_closed = true;
            return self.note(setting, Fate::Rights, "auth_opt_backends is not set");
        };
        read.push("backends".into());
        let mut is_whole = true;
        for backend in backends.split(',').map(|backend| backend.trim().to_lowercase()) {
            let remedy = match &*backend {
                "files" => {
                    let users = ["files_password_path", "password_path"];
                    let rules = ["files_acl_path", "acl_path"];
                    let has_users = self.plugin_file(options, &users, read, Self::users_of);
                    let has_rules = self.plugin_file(options, &rules, read, Self::rules_of);
                    if has_users || has_rules {
                        continue;
                    }
                    "its files are not named"
                }
                "jwt" => "use [[authentication]] with kind = \"jwt\"",
                "http" => {
                    "use [[authentication]] with kind = \"http\", whose requests are those of EMQX"
                }
                _ => {
                    "export its users into auth.password_file, which takes its PBKDF2 and bcrypt \
                     hashes, or answer [[authentication]] with kind = \"http\""
                }
            };
            is_whole = false;
            let detail = format!("backend {backend}: {remedy}");
            self.plugin_note(at, "backends", Fate::Rights, detail);
        }
        self.is_closed |= !is_whole;
        if is_whole {
            self.note(setting, Fate::Carried, "the broker reads its files");
        } else {
            self.note(setting, Fate::Rights, "plugins cannot be loaded: see its backends");
        }
    }

    /// Uses the file that the first of these options names.
    fn plugin_file(
        &mut self,
        options: &[Opt],
        names: &[&str],
        read: &mut Vec<String>,
        use_file: fn(&mut Self, &Place, &str, &Path),
    ) -> bool {
        let found = names.iter().find_map(|own| options.iter().find(|(_, name, _)| name == own));
        let Some((at, name, value)) = found else { return false };
        read.push(name.clone());
        let path = absolute(self.source, value);
        use_file(self, at, name, &path);
        true
    }

    fn users_of(&mut self, at: &Place, option: &str, path: &Path) {
        self.has_users = true;
        let value = path.to_string_lossy().into_owned();
        self.document.set("auth", "password_file", value, at);
        self.plugin_note(at, option, Fate::Carried, "auth.password_file".into());
    }

    fn rules_of(&mut self, at: &Place, option: &str, path: &Path) {
        // Users are known by now: they are named ahead of it, or there are none.
        self.access_file(at, option, path);
    }

    fn dynamic_security(&mut self, at: &Place, option: &str, path: &Path) {
        self.has_users = true;
        self.has_dynamic_security = true;
        match self.files.read(path) {
            Ok(text) => {
                let found = dynamic_security::translate(&text, &path.display().to_string());
                self.notes.extend(found.notes);
                self.new.extend(found.files);
                dynamic_security::set_files(&mut self.document, at);
                let detail = "auth.password_file and access.policy_file".into();
                self.plugin_note(at, option, Fate::Carried, detail);
            }
            Err(error) => {
                let detail = format!("cannot read {}: {error}", path.display());
                self.plugin_note(at, option, Fate::Error, detail);
            }
        }
    }

    fn plugin_note(&mut self, at: &Place, option: &str, fate: Fate, detail: String) {
        let place = at.clone();
        self.notes.push(Note { place, option: option.into(), fate, detail });
    }
}

/// An option of plugins: where, its name, its value.
type Opt = (Place, String, String);
