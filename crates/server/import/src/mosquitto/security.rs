//! Users and rights: of all listeners, or of each.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::document::Table;
use crate::policy::{POLICY_FILE, PolicyText};
use crate::report::{Fate, Note, Place};
use crate::{NewFile, absolute};

use super::Import;
use super::acl::{self, Rule, Who};
use super::lines::{Lines, Options, Setting};

/// A listener, and its access file.
pub(super) type OwnRules = (String, Option<PathBuf>);

impl Import<'_> {
    pub(super) fn security(&mut self, lines: &Lines) {
        let mut none = Table::new("");
        self.apply(&lines.security, &mut none);
        if !self.has_dynamic_security {
            self.password_file(lines);
        }
        if lines.are_own() {
            self.has_own_rules = self.differ_in_rules(lines);
        } else {
            self.anonymous(lines);
        }
        if self.has_dynamic_security {
            self.has_own_rules = false;
            return self.beside_dynamic_security(lines);
        }
        let mut options = lines.listeners.iter().chain([&lines.security]);
        let acl_file = options.find_map(|own| own.get("acl_file")).filter(|_| !self.has_own_rules);
        if let Some(setting) = acl_file {
            let path = absolute(self.source, &setting.value);
            self.access_file(&setting.at, setting.known.name, &path);
        }
    }

    /// mosquitto asks the files for what the plugin does not know.
    fn beside_dynamic_security(&mut self, lines: &Lines) {
        let all = || lines.listeners.iter().chain([&lines.security]);
        for name in ["password_file", "acl_file"] {
            let found: Vec<&Setting> = all().flat_map(|own| own.all(name)).collect();
            for setting in found {
                let detail = "left out: users and rights are those of the dynamic security \
                              plugin. Append it to the file that is written";
                self.note(setting, Fate::Rights, detail);
            }
        }
        if lines.have_certificate_names() {
            let detail = "a username from a certificate that the plugin does not know has what \
                          defaultACLAccess grants; in mosquitto it has nothing";
            let names = ["use_identity_as_username", "use_subject_as_username"];
            let found = all().find_map(|own| own.any(&names));
            found.into_iter().for_each(|setting| self.note(setting, Fate::Rights, detail));
        }
    }

    /// The password file of all listeners: there is one.
    fn password_file(&mut self, lines: &Lines) {
        let all = lines.listeners.iter().chain([&lines.security]);
        let found: Vec<&Setting> = all.filter_map(|own| own.get("password_file")).collect();
        let Some(first) = found.first() else { return };
        let path = absolute(self.source, &first.value);
        self.set(first, "auth.password_file", path.to_string_lossy().into_owned());
        for other in found.iter().skip(1) {
            if absolute(self.source, &other.value) == path {
                self.carried(other, "auth.password_file");
                continue;
            }
            let detail = format!(
                "all listeners have the users of {}: join the files if each user may use each \
                 listener",
                path.display()
            );
            self.note(other, Fate::Rights, detail);
        }
    }

    /// For all listeners. Without a line that says where it listens, mosquitto admits anonymous
    /// clients: on this machine, or everywhere if it makes the default listener of other lines.
    fn anonymous(&mut self, lines: &Lines) {
        let is_local = !lines.has_address;
        let setting = lines.security.get("allow_anonymous");
        let is_allowed = setting.map_or(is_local, Setting::is_true) && !self.is_closed;
        if let Some(made_by) = lines.listeners.first().filter(|_| is_local && is_allowed) {
            let detail = "as in mosquitto, it makes a listener at port 1883 for all machines and \
                          clients; a `listener` line changes that";
            let note = made_by.list.first().map(|it| it.note(Fate::Differs, detail));
            self.notes.extend(note);
        }
        if let Some(setting) = setting.filter(|setting| is_local && !setting.is_true()) {
            let detail = "mosquitto ignores it without a `listener` line";
            self.note(setting, Fate::Differs, detail);
        }
        let at = setting.map(|setting| setting.at.clone()).unwrap_or_default();
        self.document.set("auth", "allow_anonymous", is_allowed, &at);
        match setting {
            Some(setting) => self.stated_anonymous(setting, "auth.allow_anonymous", is_allowed),
            None if !is_local => self.unstated_anonymous(&Place {
                file: self.source.path.display().to_string(),
                line: 0,
            }),
            None => {}
        }
    }

    fn stated_anonymous(&mut self, setting: &Setting, key: &str, is_allowed: bool) {
        if setting.is_true() && !is_allowed {
            let detail = "false, because nothing replaces the plugin";
            self.note(setting, Fate::Differs, detail);
        } else if is_allowed && !self.has_users {
            let detail = "without a password file, usernames are not verified: they are ignored";
            self.note(setting, Fate::Differs, detail);
        } else {
            self.carried(setting, key);
        }
    }

    fn unstated_anonymous(&mut self, at: &Place) {
        let detail = "not set: mosquitto 2 refuses clients without a username, and so does this \
                      configuration. mosquitto 1 admits them: set allow_anonymous = true for that";
        self.notes.push(Note {
            place: at.clone(),
            option: "allow_anonymous".into(),
            fate: Fate::Differs,
            detail: detail.into(),
        });
    }

    /// Of one listener.
    pub(super) fn own_security(&mut self, options: &Options, lines: &Lines, table: &mut Table) {
        let is_own = lines.are_own();
        let names = ["listener_allow_anonymous", "allow_anonymous"];
        let setting = options.any(&names);
        if setting.is_some() || is_own {
            let is_allowed = setting.is_some_and(Setting::is_true) && !self.is_closed;
            let at = setting.map_or(&options.at, |setting| &setting.at).clone();
            table.set("allow_anonymous", is_allowed, &at);
            match setting {
                Some(setting) => {
                    self.stated_anonymous(setting, "listeners.allow_anonymous", is_allowed);
                }
                None => self.unstated_anonymous(&at),
            }
        }
        if is_own
            && self.has_users
            && !options.has("password_file")
            && let Some(setting) = setting.filter(|setting| setting.is_true())
        {
            let detail = "clients with a username need its password on this listener as well";
            self.note(setting, Fate::Differs, detail);
        }
    }

    /// Do listeners have different access files?
    fn differ_in_rules(&self, lines: &Lines) -> bool {
        let all = lines.listeners.iter();
        let paths: BTreeSet<_> = all.map(|own| own.get("acl_file").map(|own| &own.value)).collect();
        paths.len() > 1
    }

    /// Remembers the access file of a listener, if they have different ones.
    pub(super) fn own_rules(&mut self, options: &Options, url: &str, table: &mut Table) {
        if !self.has_own_rules {
            return;
        }
        let setting = options.get("acl_file");
        table.set("name", url, &Place::default());
        let path = setting.map(|setting| absolute(self.source, &setting.value));
        if let Some(setting) = setting {
            self.carried(setting, "access.policy_file, with the name of the listener");
        }
        self.rules_of_listeners.push((url.into(), path));
    }

    /// Writes the rules of listeners with access files of their own.
    pub(super) fn write_own_rules(&mut self) {
        if !self.has_own_rules {
            return;
        }
        let mut policy = PolicyText::default();
        for (url, path) in std::mem::take(&mut self.rules_of_listeners) {
            let Some(path) = path else {
                policy.everything(true, &[url]);
                continue;
            };
            let at = Place { file: path.display().to_string(), line: 0 };
            let Some(rules) = self.read_rules(&at, "acl_file", &path) else { continue };
            let rules = self.proved(rules, &path);
            self.add_rules(&mut policy, &rules, &path, std::slice::from_ref(&url));
        }
        self.write_policy(policy, &Place::default());
    }

    fn write_policy(&mut self, policy: PolicyText, at: &Place) {
        self.document.set("access", "policy_file", POLICY_FILE, at);
        self.document.set("access", "accept_all_subscriptions", true, at);
        let comment = "Written by `quelea import` from access files of mosquitto.";
        self.new.push(NewFile::rendered(POLICY_FILE, policy.render(comment)));
    }

    /// The access file of all listeners. It stays where it is, unless its order matters.
    pub(super) fn access_file(&mut self, at: &Place, option: &str, path: &Path) {
        let Some(rules) = self.read_rules(at, option, path) else { return };
        let count = rules.len();
        let rules = self.proved(rules, path);
        let denies = rules.iter().any(|rule| rule.is_deny() && rule.who == Who::Everyone);
        let grants = rules.iter().any(|rule| !rule.is_deny() && rule.who != Who::Everyone);
        let note = |fate, detail: &str| Note {
            place: at.clone(),
            option: option.into(),
            fate,
            detail: detail.into(),
        };
        if denies && grants || rules.len() < count {
            let mut policy = PolicyText::default();
            self.add_rules(&mut policy, &rules, path, &[]);
            self.write_policy(policy, at);
            let detail = match rules.len() < count {
                true => "written as policy.toml, without the rules that are left out",
                false => "written as policy.toml, because a topic line wins over a `pattern deny`",
            };
            return self.notes.push(note(Fate::Carried, detail));
        }
        let path = path.to_string_lossy().into_owned();
        self.document.set("access", "acl_file", path, at);
        self.document.set("access", "accept_all_subscriptions", true, at);
        self.notes.push(note(Fate::Carried, "access.acl_file"));
    }

    /// None: it cannot be used, which is noted.
    fn read_rules(&mut self, at: &Place, option: &str, path: &Path) -> Option<Vec<Rule>> {
        let mut error = |place: Place, detail: String| {
            let option = option.into();
            self.notes.push(Note { place, option, fate: Fate::Error, detail });
        };
        let text = match self.files.read(path) {
            Ok(text) => text,
            Err(cause) => {
                error(at.clone(), format!("cannot read {}: {cause}", path.display()));
                return None;
            }
        };
        let rules = match acl::parse(&text) {
            Ok(rules) => rules,
            Err((line, detail)) => {
                error(Place { file: path.display().to_string(), line }, detail);
                return None;
            }
        };
        Some(rules)
    }

    /// Without the rules for usernames, if nothing verifies usernames: a client could state any.
    /// A denial cannot be left out, because all clients have what is granted to clients without a
    /// username.
    fn proved(&mut self, mut rules: Vec<Rule>, path: &Path) -> Vec<Rule> {
        if self.has_users {
            return rules;
        }
        for rule in rules.iter().filter(|rule| rule.is_named()) {
            let place = Place { file: path.display().to_string(), line: rule.line };
            let (fate, detail) = match rule.is_deny() {
                true => (Fate::Error, UNPROVED_DENIAL),
                false => (Fate::Rights, UNPROVED_GRANT),
            };
            let (option, detail) = ("acl_file".into(), detail.into());
            self.notes.push(Note { place, option, fate, detail });
        }
        rules.retain(|rule| !rule.is_named());
        rules
    }

    /// In mosquitto's order: rules of a user, then patterns; denials first.
    fn add_rules(
        &mut self,
        policy: &mut PolicyText,
        rules: &[Rule],
        path: &Path,
        listeners: &[String],
    ) {
        let rank = |rule: &&Rule| (rule.who == Who::Everyone, !rule.is_deny());
        let mut sorted: Vec<&Rule> = rules.iter().collect();
        sorted.sort_by_key(rank);
        for rule in sorted {
            let place = Place { file: path.display().to_string(), line: rule.line };
            if let Err(detail) = policy.acl_rule(rule, &place, listeners, self.has_users) {
                let option = "acl_file".into();
                self.notes.push(Note { place, option, fate: Fate::Error, detail });
            }
        }
    }
}

const UNPROVED_GRANT: &str = "this rule is left out: it is for a username, and nothing verifies \
                              usernames. Add a password_file, or use_identity_as_username with \
                              require_certificate";
const UNPROVED_DENIAL: &str = "this rule denies something to a username, and nothing verifies \
                               usernames: add a password_file, or use_identity_as_username with \
                               require_certificate";
