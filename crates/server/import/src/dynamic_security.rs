//! The file of mosquitto's dynamic security plugin: clients, groups, roles and their rights become
//! a password file and ordered rules.
//!
//! The plugin asks the roles of a client by their priority, then those of its groups. In a role the
//! first entry decides that has the type of the action and matches the topic; at the end
//! `defaultACLAccess` decides. To receive a message, a client needs the right to subscribe and the
//! right to receive; here both are one right, which is what the two have in common.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use crate::document::Document;
use crate::hocon::{self, Node, Value};
use crate::policy::{EVERYTHING, Ordered, POLICY_FILE, PolicyText, quoted};
use crate::report::{Fate, Note, Place};
use crate::{CONFIG_FILE, Imported, NewFile, Source, filter};

/// What is made of it.
#[derive(Debug, Default)]
pub(crate) struct Translated {
    pub(crate) files: Vec<NewFile>,
    pub(crate) notes: Vec<Note>,
}

/// Translates the file alone.
pub fn import(source: &Source<'_>) -> Imported {
    let at = Place { file: source.path.display().to_string(), line: 1 };
    let mut translated = translate(source.text, &at.file);
    let mut document = Document::default();
    set_files(&mut document, &at);
    document.set("auth", "allow_anonymous", false, &at);
    let detail = "the listeners, and whether clients without a username are admitted, are in \
                  mosquitto.conf: import that file, which names this one";
    translated.note(at.clone(), "listeners", Fate::Differs, detail);
    let name = source.path.file_name().unwrap_or_default().to_string_lossy();
    let comment = format!("Written by `quelea import` from {name}, whose lines are named.");
    let rendered = document.render(&comment.replace(char::is_control, " "));
    translated.files.insert(0, NewFile::rendered(CONFIG_FILE, rendered));
    Imported { files: translated.files, notes: translated.notes }
}

/// Names the files in a configuration.
pub(crate) fn set_files(document: &mut Document, at: &Place) {
    document.set("auth", "password_file", PASSWORD_FILE, at);
    document.set("access", "policy_file", POLICY_FILE, at);
}

/// Translates the text of a file, whose name is for notes.
pub(crate) fn translate(text: &str, file: &str) -> Translated {
    let mut translated = Translated::default();
    let place = |line| Place { file: file.to_owned(), line };
    let root = match hocon::parse_json(text) {
        Ok(root) => root,
        Err((line, detail)) => {
            translated.note(place(line), "", Fate::Error, detail);
            return translated;
        }
    };
    let mut reading = Reading { file, notes: Vec::new() };
    let security = reading.security(&root);
    let (passwords, lines) = reading.passwords(&security);
    let policy = reading.policy(&security);
    translated.notes = reading.notes;
    translated.files.push(NewFile::rendered(
        POLICY_FILE,
        policy.render("Written by `quelea import` from roles of mosquitto's plugin."),
    ));
    let origins = lines.into_iter().map(place).collect();
    translated.files.push(NewFile { origins, ..NewFile::secret(PASSWORD_FILE, passwords) });
    translated
}

impl Translated {
    fn note(&mut self, place: Place, option: &str, fate: Fate, detail: impl Into<String>) {
        self.notes.push(Note { place, option: option.into(), fate, detail: detail.into() });
    }
}

#[derive(Debug, Default)]
struct Security {
    clients: Vec<Client>,
    roles: Vec<Role>,
    groups: Vec<Group>,
    anonymous: Option<usize>,
    defaults: Defaults,
}

#[derive(Debug)]
struct Client {
    line: usize,
    username: String,
    /// None: it has no password.
    secret: Option<String>,
    client_id: Option<String>,
    is_disabled: bool,
    roles: Vec<Ranked>,
}

#[derive(Debug)]
struct Group {
    name: String,
    roles: Vec<Ranked>,
    /// Usernames.
    clients: Vec<(String, i64)>,
}

/// A role by its place, and its priority.
type Ranked = (usize, i64);

#[derive(Debug, Default)]
struct Role {
    name: String,
    send: Vec<Entry>,
    receive: Vec<Entry>,
    /// Filters of which the very text is meant.
    literal: Vec<Entry>,
    pattern: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    line: usize,
    allows: bool,
    topic: String,
    priority: i64,
}

/// `defaultACLAccess`; what it does not say is denied.
#[derive(Clone, Copy, Debug, Default)]
struct Defaults {
    send: bool,
    receive: bool,
    subscribe: bool,
}

/// A rule for one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    line: usize,
    allows: bool,
    action: &'static str,
    topic: String,
}

struct Reading<'a> {
    file: &'a str,
    notes: Vec<Note>,
}

impl Reading<'_> {
    fn note(&mut self, line: usize, option: &str, fate: Fate, detail: impl Into<String>) {
        let place = Place { file: self.file.to_owned(), line };
        self.notes.push(Note { place, option: option.into(), fate, detail: detail.into() });
    }

    /// The members of an object by their names in lower case. One that is not known may mean
    /// anything.
    fn members<'a>(
        &mut self,
        node: &'a Node,
        option: &str,
        known: &[&str],
    ) -> HashMap<String, &'a Node> {
        if !matches!(node.value, Value::Object(_)) {
            self.note(node.line, option, Fate::Error, "must be an object");
        }
        let mut members = HashMap::new();
        for (key, value) in node.entries() {
            let name = key.to_lowercase();
            if !known.contains(&name.as_str()) {
                self.note(value.line, &format!("{option}.{key}"), Fate::Error, "unknown member");
            }
            if members.insert(name, value).is_some() {
                let option = format!("{option}.{key}");
                self.note(value.line, &option, Fate::Error, "is there twice");
            }
        }
        members
    }

    fn items<'a>(&mut self, node: Option<&&'a Node>, option: &str) -> &'a [Node] {
        let Some(node) = node else { return &[] };
        match &node.value {
            Value::Array(items) => items,
            _ => {
                self.note(node.line, option, Fate::Error, "must be a list");
                &[]
            }
        }
    }

    fn text(&mut self, node: Option<&&Node>, option: &str) -> Option<String> {
        let node = node?;
        let text = node.text().map(str::to_owned);
        if text.is_none() {
            self.note(node.line, option, Fate::Error, "must be a text");
        }
        text
    }

    fn flag(&mut self, node: Option<&&Node>, option: &str) -> Option<bool> {
        let node = node?;
        match node.text() {
            Some("true") => Some(true),
            Some("false") => Some(false),
            _ => {
                self.note(node.line, option, Fate::Error, "must be true or false");
                None
            }
        }
    }

    fn priority(&mut self, node: Option<&&Node>, option: &str, default: i64) -> i64 {
        let Some(node) = node else { return default };
        let number = node.text().and_then(|text| text.parse::<i32>().ok());
        number.map_or_else(
            || {
                self.note(node.line, option, Fate::Error, "must be a whole number");
                default
            },
            i64::from,
        )
    }

    fn security(&mut self, root: &Node) -> Security {
        const KNOWN: [&str; 5] =
            ["clients", "roles", "groups", "defaultaclaccess", "anonymousgroup"];
        let members = self.members(root, "dynamic security", &KNOWN);
        let mut security = Security::default();
        let mut names = HashMap::new();
        for node in self.items(members.get("roles"), "roles") {
            let Some(role) = self.role(node) else { continue };
            if names.insert(role.name.clone(), security.roles.len()).is_some() {
                self.note(
                    node.line,
                    "roles",
                    Fate::Error,
                    format!("'{}' is there twice", role.name),
                );
            }
            security.roles.push(role);
        }
        for node in self.items(members.get("groups"), "groups") {
            security.groups.extend(self.group(node, &names));
        }
        let mut known = HashMap::new();
        for node in self.items(members.get("clients"), "clients") {
            let Some(client) = self.client(node, &names) else { continue };
            if known.insert(client.username.clone(), ()).is_some() {
                let detail = format!("'{}' is there twice", client.username);
                self.note(node.line, "clients", Fate::Error, detail);
            }
            security.clients.push(client);
        }
        if let Some(node) = members.get("defaultaclaccess") {
            security.defaults = self.defaults(node);
        }
        if let Some(name) = self.text(members.get("anonymousgroup"), "anonymousGroup") {
            let line = members.get("anonymousgroup").map_or(0, |node| node.line);
            security.anonymous = security.groups.iter().position(|group| group.name == name);
            match security.anonymous {
                Some(_) => {
                    let detail = "rules for clients without a username";
                    self.note(line, "anonymousGroup", Fate::Carried, detail);
                }
                None => {
                    let detail = format!("there is no group '{name}'");
                    self.note(line, "anonymousGroup", Fate::Error, detail);
                }
            }
        }
        security
    }

    fn defaults(&mut self, node: &Node) -> Defaults {
        const KNOWN: [&str; 4] =
            ["publishclientsend", "publishclientreceive", "subscribe", "unsubscribe"];
        let option = "defaultACLAccess";
        let members = self.members(node, option, &KNOWN);
        let [send, receive, subscribe, unsubscribe] =
            KNOWN.map(|name| self.flag(members.get(name), option));
        if unsubscribe == Some(false) {
            self.note(node.line, option, Fate::Differs, UNSUBSCRIBE);
        }
        self.note(node.line, option, Fate::Carried, "the last rules of policy.toml");
        Defaults {
            send: send.unwrap_or(false),
            receive: receive.unwrap_or(false),
            subscribe: subscribe.unwrap_or(false),
        }
    }

    fn role(&mut self, node: &Node) -> Option<Role> {
        const KNOWN: [&str; 5] =
            ["rolename", "textname", "textdescription", "acls", "allowwildcardsubs"];
        let members = self.members(node, "roles", &KNOWN);
        let Some(name) = self.text(members.get("rolename"), "roles.rolename") else {
            self.note(node.line, "roles", Fate::Error, "needs a rolename");
            return None;
        };
        let wildcards = members.get("allowwildcardsubs");
        if self.flag(wildcards, "roles.allowWildcardSubs") == Some(false) {
            let detail = "subscriptions with wildcards cannot be denied by a rule: see \
                          limits.wildcard_available";
            self.note(node.line, "roles.allowWildcardSubs", Fate::Rights, detail);
        }
        let mut role = Role { name, ..Role::default() };
        for acl in self.items(members.get("acls"), "roles.acls") {
            self.entry(acl, &mut role);
        }
        for list in [&mut role.send, &mut role.receive, &mut role.literal, &mut role.pattern] {
            list.sort_by_key(|entry| std::cmp::Reverse(entry.priority));
        }
        self.note(
            node.line,
            "roles",
            Fate::Carried,
            format!("{}: rules of policy.toml", role.name),
        );
        Some(role)
    }

    fn entry(&mut self, node: &Node, role: &mut Role) {
        let members = self.members(node, "acls", &["acltype", "topic", "priority", "allow"]);
        let kind = self.text(members.get("acltype"), "acls.acltype").unwrap_or_default();
        let Some(topic) = self.text(members.get("topic"), "acls.topic") else {
            return self.note(node.line, "acls", Fate::Error, "needs a topic");
        };
        let entry = Entry {
            line: node.line,
            allows: self.flag(members.get("allow"), "acls.allow").unwrap_or(false),
            topic,
            priority: self.priority(members.get("priority"), "acls.priority", 0),
        };
        let list = match kind.to_lowercase().as_str() {
            "publishclientsend" => &mut role.send,
            "publishclientreceive" => &mut role.receive,
            "subscribeliteral" => &mut role.literal,
            "subscribepattern" => &mut role.pattern,
            "unsubscribeliteral" | "unsubscribepattern" => {
                let fate = if entry.allows { Fate::NotNeeded } else { Fate::Differs };
                return self.note(node.line, "acls", fate, UNSUBSCRIBE);
            }
            other => {
                let detail = format!("unknown acltype '{other}'");
                return self.note(node.line, "acls", Fate::Error, detail);
            }
        };
        list.push(entry);
    }

    fn ranked(&mut self, nodes: &[Node], names: &HashMap<String, usize>) -> Vec<Ranked> {
        let mut roles = Vec::new();
        for node in nodes {
            let members = self.members(node, "roles", &["rolename", "priority"]);
            let name = self.text(members.get("rolename"), "roles.rolename").unwrap_or_default();
            let priority = self.priority(members.get("priority"), "roles.priority", -1);
            match names.get(&name) {
                Some(role) => roles.push((*role, priority)),
                None => {
                    self.note(
                        node.line,
                        "roles",
                        Fate::Error,
                        format!("there is no role '{name}'"),
                    );
                }
            }
        }
        roles.sort_by_key(|(_, priority)| std::cmp::Reverse(*priority));
        roles
    }

    fn group(&mut self, node: &Node, names: &HashMap<String, usize>) -> Option<Group> {
        const KNOWN: [&str; 5] = ["groupname", "textname", "textdescription", "roles", "clients"];
        let members = self.members(node, "groups", &KNOWN);
        let Some(name) = self.text(members.get("groupname"), "groups.groupname") else {
            self.note(node.line, "groups", Fate::Error, "needs a groupname");
            return None;
        };
        let roles = self.items(members.get("roles"), "groups.roles");
        let roles = self.ranked(roles, names);
        let mut clients = Vec::new();
        for node in self.items(members.get("clients"), "groups.clients") {
            let members = self.members(node, "groups.clients", &["username", "priority"]);
            let priority = self.priority(members.get("priority"), "groups.clients.priority", -1);
            let username = self.text(members.get("username"), "groups.clients.username");
            clients.extend(username.map(|username| (username, priority)));
        }
        self.note(node.line, "groups", Fate::Carried, format!("{name}: rules of policy.toml"));
        Some(Group { name, roles, clients })
    }

    fn client(&mut self, node: &Node, names: &HashMap<String, usize>) -> Option<Client> {
        const KNOWN: [&str; 10] = [
            "username",
            "password",
            "salt",
            "iterations",
            "encoded_password",
            "roles",
            "disabled",
            "clientid",
            "textname",
            "textdescription",
        ];
        let members = self.members(node, "clients", &KNOWN);
        let Some(username) = self.text(members.get("username"), "clients.username") else {
            self.note(node.line, "clients", Fate::Error, "needs a username");
            return None;
        };
        let roles = self.items(members.get("roles"), "clients.roles");
        let roles = self.ranked(roles, names);
        let secret = self.secret(node, &username, &members);
        let client_id = self.text(members.get("clientid"), "clients.clientid");
        let is_disabled = self.flag(members.get("disabled"), "clients.disabled").unwrap_or(false);
        let line = node.line;
        Some(Client { line, username, secret, client_id, is_disabled, roles })
    }

    /// The hash as a password file has it.
    fn secret(
        &mut self,
        node: &Node,
        username: &str,
        members: &HashMap<String, &Node>,
    ) -> Option<String> {
        if username.contains([':', '\n', '\r']) || username.starts_with('#') || username.is_empty()
        {
            let detail = format!("'{}' cannot be in a password file", username.escape_default());
            self.note(node.line, "clients.username", Fate::Error, detail);
            return None;
        }
        if let Some(encoded) = self.text(members.get("encoded_password"), "encoded_password") {
            return Some(encoded);
        }
        let mut text = |name| self.text(members.get(name), name);
        match (text("password"), text("salt"), text("iterations")) {
            (Some(hash), Some(salt), Some(count)) => Some(format!("$7${count}${salt}${hash}")),
            (None, None, None) => None,
            _ => {
                let detail = "needs password, salt and iterations, or none of them";
                self.note(node.line, "clients", Fate::Error, detail);
                None
            }
        }
    }

    /// The text of the password file, and the line that each line comes from.
    fn passwords(&mut self, security: &Security) -> (String, Vec<usize>) {
        let (mut text, mut lines) = (String::new(), Vec::new());
        for client in &security.clients {
            let name = &client.username;
            if client.is_disabled {
                let detail = format!("{name}: left out, because it is disabled");
                self.note(client.line, "clients", Fate::Carried, detail);
                continue;
            }
            match &client.secret {
                Some(secret) => {
                    let _ = writeln!(text, "{name}:{secret}");
                    lines.push(client.line);
                    let detail = format!("{name}: a line of {PASSWORD_FILE}");
                    self.note(client.line, "clients", Fate::Carried, detail);
                }
                None => {
                    let detail =
                        format!("{name}: it has no password, so it cannot log in with one");
                    self.note(client.line, "clients", Fate::Differs, detail);
                }
            }
        }
        (text, lines)
    }

    fn policy(&mut self, security: &Security) -> PolicyText {
        let mut policy = PolicyText::default();
        self.bind_client_ids(security, &mut policy);
        let mut groups_of: HashMap<&str, Vec<Ranked>> = HashMap::new();
        for (at, group) in security.groups.iter().enumerate() {
            for (username, priority) in &group.clients {
                groups_of.entry(username).or_default().push((at, *priority));
            }
        }
        // Clients with the same roles in the same order share their rules.
        let mut classes: BTreeMap<(Vec<usize>, Option<&str>), Vec<&str>> = BTreeMap::new();
        for client in security.clients.iter().filter(|client| !client.is_disabled) {
            let mut groups = groups_of.remove(client.username.as_str()).unwrap_or_default();
            groups.sort_by_key(|(_, priority)| std::cmp::Reverse(*priority));
            let of_groups = groups.iter().flat_map(|(at, _)| &security.groups[*at].roles);
            let roles = client.roles.iter().chain(of_groups).map(|(role, _)| *role).collect();
            let class = (roles, client.client_id.as_deref());
            classes.entry(class).or_default().push(&client.username);
        }
        for ((roles, client_id), names) in &classes {
            let pieces = pieces(roles, security);
            for query in self.queries(names, *client_id) {
                self.write(&pieces, Some(&query), &mut policy);
            }
        }
        if let Some(group) = security.anonymous.map(|at| &security.groups[at]) {
            let roles: Vec<usize> = group.roles.iter().map(|(role, _)| *role).collect();
            self.write(&pieces(&roles, security), Some("not (user != '')"), &mut policy);
        }
        let Defaults { send, receive, subscribe } = security.defaults;
        for (action, allows) in [("publish", send), ("subscribe", receive && subscribe)] {
            let topics = EVERYTHING.iter().filter(|_| allows);
            let piece = |topic: &&str| Piece { line: 0, allows, action, topic: (*topic).into() };
            let pieces: Vec<Piece> = topics.map(piece).collect();
            self.write(&pieces, None, &mut policy);
        }
        policy
    }

    /// A client with another client ID than its own may do nothing.
    fn bind_client_ids(&mut self, security: &Security, policy: &mut PolicyText) {
        for client in security.clients.iter().filter(|client| !client.is_disabled) {
            let Some(client_id) = &client.client_id else { continue };
            let detail = format!(
                "{}: it may log in with any client ID, and may then do nothing unless it is \
                 '{client_id}'",
                client.username
            );
            self.note(client.line, "clients.clientid", Fate::Differs, detail);
            let query = quoted(&client.username).and_then(|name| {
                Ok(format!("user = {name} and client.id != {}", quoted(client_id)?))
            });
            let piece = |topic: &str| Piece {
                line: client.line,
                allows: false,
                action: "all",
                topic: topic.into(),
            };
            match query {
                Ok(query) => self.write(&EVERYTHING.map(piece), Some(&query), policy),
                Err(detail) => self.note(client.line, "clients", Fate::Error, detail),
            }
        }
    }

    /// Queries for these usernames, each as long as a query may be.
    fn queries(&mut self, names: &[&str], client_id: Option<&str>) -> Vec<String> {
        let mut lists: Vec<String> = Vec::new();
        for name in names {
            let name = match quoted(name) {
                Ok(name) => name,
                Err(detail) => {
                    self.note(0, "clients", Fate::Error, detail);
                    continue;
                }
            };
            match lists.last_mut() {
                Some(list) if list.len() + name.len() < NAMES_BYTES_MAX => {
                    let _ = write!(list, ", {name}");
                }
                _ => lists.push(name),
            }
        }
        let with_id =
            client_id.and_then(|id| Some(format!(" and client.id = {}", quoted(id).ok()?)));
        let with_id = with_id.unwrap_or_default();
        lists.into_iter().map(|list| format!("user in [{list}]{with_id}")).collect()
    }

    /// Rules that follow each other and do the same are one.
    fn write(&mut self, pieces: &[Piece], query: Option<&str>, policy: &mut PolicyText) {
        let is_same =
            |one: &Piece, other: &Piece| (one.allows, one.action) == (other.allows, other.action);
        for run in pieces.chunk_by(is_same).flat_map(|run| run.chunks(TOPICS_MAX)) {
            let mut topics: Vec<String> = Vec::new();
            for piece in run {
                match template(&piece.topic) {
                    Ok(topic) if topics.contains(&topic) => {}
                    Ok(topic) => topics.push(topic),
                    Err(detail) => self.note(piece.line, "acls", Fate::Error, detail),
                }
            }
            let Some(first) = run.first().filter(|_| !topics.is_empty()) else { continue };
            let rule = Ordered {
                allows: first.allows,
                action: first.action.into(),
                topics,
                query: query.map(str::to_owned),
                ..Ordered::default()
            };
            let place = Place { file: self.file.to_owned(), line: first.line };
            if let Err(detail) = policy.rule(rule, &place) {
                self.note(first.line, "roles", Fate::Error, detail);
                return;
            }
        }
    }
}

/// The rules of a client with these roles, in their order.
fn pieces(roles: &[usize], security: &Security) -> Vec<Piece> {
    let defaults = security.defaults;
    let roles: Vec<&Role> = roles.iter().map(|role| &security.roles[*role]).collect();
    let mut pieces = Vec::new();
    for entry in roles.iter().flat_map(|role| &role.send) {
        pieces.push(entry.piece("publish", entry.topic.clone()));
    }
    let mut receive: Vec<&Entry> = roles.iter().flat_map(|role| &role.receive).collect();
    if defaults.receive {
        // What is allowed at the end of the list is allowed by default as well.
        let denied = receive.iter().rposition(|entry| !entry.allows);
        receive.truncate(denied.map_or(0, |last| last + 1));
    }
    for entry in receive {
        match entry.allows {
            false => pieces.push(entry.piece("subscribe", entry.topic.clone())),
            true => subscriptions(&roles, Some(entry), defaults, &mut pieces),
        }
    }
    if defaults.receive {
        subscriptions(&roles, None, defaults, &mut pieces);
    }
    pieces
}

/// What may be subscribed to of the topics that one entry allows to be received, or of all.
fn subscriptions(
    roles: &[&Role],
    received: Option<&Entry>,
    defaults: Defaults,
    pieces: &mut Vec<Piece>,
) {
    for role in roles {
        for entry in &role.literal {
            // A denied text says nothing of other subscriptions to the same topics.
            match entry.allows {
                false => pieces.push(entry.piece("subscribe", format!("eq {}", entry.topic))),
                true => pieces.extend(entry.within(received)),
            }
        }
        pieces.extend(role.pattern.iter().filter_map(|entry| entry.within(received)));
    }
    if let Some(received) = received.filter(|_| defaults.subscribe) {
        pieces.push(received.piece("subscribe", received.topic.clone()));
    }
}

impl Entry {
    fn piece(&self, action: &'static str, topic: String) -> Piece {
        Piece { line: self.line, allows: self.allows, action, topic }
    }

    /// As far as it is about topics of the other one. Nobody knows whether a placeholder stands for
    /// a certain text: then a denial is kept, and a grant is not.
    fn within(&self, received: Option<&Self>) -> Option<Piece> {
        let Some(received) = received else {
            return Some(self.piece("subscribe", self.topic.clone()));
        };
        let topic = match filter::intersection(&self.topic, &received.topic) {
            Some(both) => both,
            None if !self.allows && (self.has_placeholder() || received.has_placeholder()) => {
                self.topic.clone()
            }
            None => return None,
        };
        Some(self.piece("subscribe", topic))
    }

    fn has_placeholder(&self) -> bool {
        self.topic.contains("%c") || self.topic.contains("%u")
    }
}

/// A topic as a policy file has it.
fn template(topic: &str) -> Result<String, String> {
    let is_exact = topic.starts_with("eq ");
    let bare = if is_exact { topic.to_owned() } else { topic.replace("%c", "").replace("%u", "") };
    if topic.contains("${") || !is_exact && bare.contains('%') {
        let detail = "a topic with ${ or % as its own text cannot be in a policy file";
        return Err(format!("'{topic}': {detail}"));
    }
    if is_exact {
        return Ok(topic.to_owned());
    }
    Ok(topic.replace("%c", "${client.id}").replace("%u", "${user}"))
}

const UNSUBSCRIBE: &str = "clients may always unsubscribe";

/// The name of the password file that is written.
pub(crate) const PASSWORD_FILE: &str = "dynamic-security.passwd";

/// As many topics as a rule takes.
const TOPICS_MAX: usize = 100;

/// A query may have 4 KiB.
const NAMES_BYTES_MAX: usize = 3_500;

#[cfg(test)]
mod tests;
