//! Rights of clients.

use crate::NewFile;
use crate::policy::{Ordered, POLICY_FILE, PolicyText};
use crate::report::Fate;

use super::Import;
use super::acl_conf;
use crate::document::Table;
use crate::hocon::Node;

impl Import<'_> {
    /// Without any source EMQX has its `acl.conf`. It allows all but subscriptions to everything.
    pub(super) fn authorization(&mut self, node: Option<&Node>) {
        let Some(node) = node else {
            let detail = "not set: EMQX uses its acl.conf then. Import it by naming it in \
                          authorization.sources; without rules clients may do everything";
            return self.note(0, "authorization", Fate::Differs, detail);
        };
        let mut policy = PolicyText::default();
        let (mut has_rules, mut service) = (false, None);
        for (index, source) in
            node.get("sources").map(Node::items).unwrap_or_default().iter().enumerate()
        {
            let option = format!("authorization.sources.{}", index + 1);
            if !self.is_enabled(&option, source) {
                continue;
            }
            match source.get("type").and_then(Node::text).unwrap_or_default() {
                "file" => {
                    if service.is_some() {
                        let detail = "rules apply before the service is asked, in EMQX after it";
                        self.note(source.line, &option, Fate::Rights, detail);
                    }
                    has_rules |= self.rules_of_file(&option, source, &mut policy);
                }
                "http" if service.is_none() && self.can_ask(&option, source) => {
                    service = Some(self.service(&option, source, node));
                }
                other => {
                    has_rules = true;
                    let detail = match other {
                        "http" if service.is_some() => "one service is asked: this one is not",
                        "http" => {
                            "it is not asked: return the rules with the login, as `acl` in the \
                             answer of [[authentication]]"
                        }
                        "built_in_database" => {
                            "rules of EMQX's database are not read: write them \
                                                into the policy file"
                        }
                        _ => {
                            "databases are not asked: write the rules into the policy file, or \
                              return them with the login"
                        }
                    };
                    self.note(source.line, &option, Fate::Rights, format!("{other}: {detail}"));
                }
            }
        }
        let has_service = service.is_some();
        self.other_keys(node, has_service);
        let no_match = node.get("no_match");
        let allows = no_match.and_then(Node::text).unwrap_or("allow") == "allow";
        // A source without a replacement may have denied what would be allowed now.
        let is_whole = !self.notes.iter().any(|note| {
            note.fate == Fate::Rights && note.option.starts_with("authorization.sources")
        });
        if let Some(mut table) = service {
            let no_match = if allows && is_whole { "allow" } else { "deny" };
            table.set("no_match", no_match, &self.place(node.line));
            self.document.push(table);
        }
        if has_rules || (!allows && !has_service) {
            if allows && is_whole && !has_service {
                policy.everything(true, &[]);
            }
            let at = self.place(node.line);
            self.document.set("access", "policy_file", POLICY_FILE, &at);
            let rendered = policy.render("Written by `quelea import` from the rules of EMQX.");
            self.new.push(NewFile::rendered(POLICY_FILE, rendered));
        }
    }

    /// False: what it is asked cannot be said here.
    fn can_ask(&mut self, option: &str, source: &Node) -> bool {
        let url = source.get("url").and_then(Node::text).unwrap_or_default();
        let fields = ["body", "headers"].map(|key| source.get(key).map(Node::entries));
        let fields = fields.into_iter().flatten().flatten();
        let texts: Vec<&str> = fields.filter_map(|(_, text)| text.text()).chain([url]).collect();
        for text in &texts {
            if let Some(name) = unknown_placeholder(text) {
                let detail = format!("'${{{name}}}' is not substituted");
                self.note(source.line, option, Fate::Rights, detail);
                return false;
            }
        }
        for name in ["topic", "action"] {
            if !texts.iter().any(|text| text.contains(&format!("${{{name}}}"))) {
                let detail = format!("the service does not get the {name}: add it to `body`");
                self.note(source.line, option, Fate::Error, detail);
                return false;
            }
        }
        let path = url.split('?').next().unwrap_or_default();
        if path.contains("${topic}") {
            let detail = "a topic is several segments of a path: send it in the query or the body";
            self.note(source.line, option, Fate::Rights, detail);
            return false;
        }
        true
    }

    fn service(&mut self, option: &str, source: &Node, node: &Node) -> Table {
        let mut table = Table::new("[authorization]");
        let at = self.place(source.line);
        self.request(option, source, &mut table);
        let cached = |key: &str| node.get(&format!("cache.{key}"));
        if cached("enable").and_then(Node::text) == Some("false") {
            table.set("cache_secs", "0", &at);
        }
        self.note(source.line, option, Fate::Carried, "[authorization]");
        let detail = "a request that fails, or a status such as 403, denies; in EMQX it is ignored";
        self.note(source.line, option, Fate::Differs, detail);
        table
    }

    fn other_keys(&mut self, node: &Node, has_service: bool) {
        for (key, value) in node.entries() {
            let option = format!("authorization.{key}");
            match key.as_str() {
                "sources" => {}
                "no_match" => match value.text() {
                    Some("allow" | "deny") => {
                        let whole = "the last rule of the policy";
                        let detail = if has_service { "authorization.no_match" } else { whole };
                        self.note(value.line, &option, Fate::Carried, detail);
                    }
                    _ => self.note(value.line, &option, Fate::Error, "must be allow or deny"),
                },
                "deny_action" => match value.text() {
                    Some("ignore") => {
                        self.note(value.line, &option, Fate::NotNeeded, "always so");
                    }
                    Some("disconnect") => {
                        let at = self.place(value.line);
                        self.document.set("access", "deny_action", "disconnect", &at);
                        self.note(value.line, &option, Fate::Carried, "access.deny_action");
                    }
                    _ => self.note(value.line, &option, Fate::Error, "ignore or disconnect"),
                },
                "cache" if has_service => {
                    let detail = "set cache_secs and cache_entries_max in [authorization]; an \
                                  answer is cached for one minute";
                    self.note(value.line, &option, Fate::Differs, detail);
                }
                "cache" | "node_cache" => {
                    let detail = "rules are evaluated without a cache";
                    self.note(value.line, &option, Fate::NotNeeded, detail);
                }
                _ => self.note(value.line, &option, Fate::Error, "unknown option"),
            }
        }
    }

    /// False: there are none.
    fn rules_of_file(&mut self, option: &str, source: &Node, policy: &mut PolicyText) -> bool {
        for (key, value) in source.entries() {
            if !["type", "enable", "path", "rules"].contains(&key.as_str()) {
                let option = format!("{option}.{key}");
                self.note(value.line, &option, Fate::Error, "unknown option");
            }
        }
        let (text, file, first) = match (source.get("rules"), source.get("path")) {
            (Some(rules), _) => {
                let file = self.source.path.display().to_string();
                (rules.text().unwrap_or_default().to_owned(), file, rules.line)
            }
            (None, Some(path)) => {
                let path = self.path(path.text().unwrap_or_default());
                match self.files.read(&path) {
                    Ok(text) => (text, path.display().to_string(), 1),
                    Err(error) => {
                        let detail = format!("cannot read {}: {error}", path.display());
                        self.note(source.line, option, Fate::Error, detail);
                        return true;
                    }
                }
            }
            (None, None) => {
                self.note(source.line, option, Fate::Error, "needs path or rules");
                return true;
            }
        };
        let rules = match acl_conf::rules(&text) {
            Ok(rules) => rules,
            Err((line, detail)) => {
                let place = crate::Place { file, line: first + line - 1 };
                let option = option.to_owned();
                let fate = Fate::Error;
                self.notes.push(crate::Note { place, option, fate, detail });
                return true;
            }
        };
        self.note(source.line, option, Fate::Carried, "access.policy_file");
        for (line, rule) in rules {
            let place = crate::Place { file: file.clone(), line: first + line - 1 };
            let option = option.to_owned();
            let problem = match (self.is_unproved(&rule), rule.allows) {
                (true, true) => Some((Fate::Differs, UNPROVED_GRANT.to_owned())),
                (true, false) => Some((Fate::Error, UNPROVED.to_owned())),
                (false, _) => policy.rule(rule, &place).err().map(|it| (Fate::Error, it)),
            };
            if let Some((fate, detail)) = problem {
                self.notes.push(crate::Note { place, option, fate, detail });
            }
        }
        true
    }

    /// Is it about a username, which nothing verifies? The broker would refuse it.
    fn is_unproved(&self, rule: &Ordered) -> bool {
        let asks = rule.query.as_ref().is_some_and(|query| query.contains("user = "))
            || rule.topics.iter().any(|topic| topic.contains("${user}"));
        asks && self.providers.is_empty() && self.certificate_field.is_none()
    }
}

const UNPROVED: &str = "this rule is for a username, and nothing verifies usernames";
const UNPROVED_GRANT: &str = "this rule is left out: it grants something to a username, and nothing \
                              verifies usernames";

/// What the broker does not substitute in the requests to an authorization service.
fn unknown_placeholder(text: &str) -> Option<&str> {
    let names = text.split("${").skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
    let is_known = |name: &&str| name.starts_with("client_attrs.") || PLACEHOLDERS.contains(name);
    names.into_iter().find(|name| !is_known(name))
}

const PLACEHOLDERS: [&str; 8] =
    ["username", "clientid", "peerhost", "proto_name", "action", "topic", "qos", "retain"];
