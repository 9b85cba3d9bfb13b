//! The text of a policy file with ordered rules.

use crate::document::{Document, Rendered, Table};
use crate::mosquitto::acl::{Permission, Rule, Who};
use crate::report::Place;

/// A policy file in the making.
#[derive(Debug, Default)]
pub(crate) struct PolicyText {
    /// Queries, by the number of their group.
    queries: Vec<String>,
    rules: Vec<Table>,
}

/// One ordered rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ordered {
    pub(crate) allows: bool,
    /// `publish`, `subscribe` or `all`.
    pub(crate) action: String,
    pub(crate) topics: Vec<String>,
    pub(crate) query: Option<String>,
    pub(crate) addresses: Vec<String>,
    pub(crate) listeners: Vec<String>,
    pub(crate) qos: Vec<i64>,
    pub(crate) retain: Option<bool>,
}

impl PolicyText {
    pub(crate) fn rule(&mut self, rule: Ordered, at: &Place) -> Result<(), String> {
        if self.rules.len() >= RULES_MAX {
            return Err(format!("a policy file takes at most {RULES_MAX} rules"));
        }
        let mut table = Table::new("[[rules]]");
        let none = Place::default();
        table.set("effect", if rule.allows { "allow" } else { "deny" }, at);
        table.set("action", rule.action, &none);
        table.set("topics", rule.topics, &none);
        if let Some(query) = rule.query {
            table.set("group", self.group(query), &none);
        }
        let lists = [("addresses", rule.addresses), ("listeners", rule.listeners)];
        for (key, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            table.set(key, list, &none);
        }
        if !rule.qos.is_empty() {
            table.set("qos", rule.qos, &none);
        }
        if let Some(retain) = rule.retain {
            table.set("retain", retain, &none);
        }
        self.rules.push(table);
        Ok(())
    }

    /// A rule about all topics.
    pub(crate) fn everything(&mut self, allows: bool, listeners: &[String]) {
        let rule = Ordered {
            allows,
            action: "all".into(),
            topics: EVERYTHING.map(Into::into).into(),
            listeners: listeners.to_vec(),
            ..Ordered::default()
        };
        // There are fewer listeners than rules.
        let _ = self.rule(rule, &Place::default());
    }

    /// A line of an access file, for some listeners.
    pub(crate) fn acl_rule(
        &mut self,
        rule: &Rule,
        at: &Place,
        listeners: &[String],
        has_users: bool,
    ) -> Result<(), String> {
        let query = match &rule.who {
            // Nobody has a username that counts.
            Who::Anonymous if !has_users => None,
            Who::Anonymous => Some("not (user != '')".to_owned()),
            Who::User(name) => Some(format!("user = {}", quoted(name)?)),
            Who::Everyone => None,
        };
        let is_literal = rule.who != Who::Everyone;
        if rule.filter.contains("${") || is_literal && rule.filter.contains('%') {
            let detail = "a topic with ${ or % as its own text cannot be in a policy file";
            return Err(format!("'{}': {detail}", rule.filter));
        }
        let topic = match rule.who {
            Who::Everyone => rule.filter.replace("%c", "${client.id}").replace("%u", "${user}"),
            _ => rule.filter.clone(),
        };
        let action = match rule.permission {
            Permission::Read => "subscribe",
            Permission::Write => "publish",
            Permission::ReadWrite | Permission::Deny => "all",
        };
        let ordered = Ordered {
            allows: !rule.is_deny(),
            action: action.into(),
            topics: vec![topic],
            query,
            listeners: listeners.to_vec(),
            ..Ordered::default()
        };
        self.rule(ordered, at)
    }

    /// The name of the group of a query.
    fn group(&mut self, query: String) -> String {
        let known = self.queries.iter().position(|known| *known == query);
        let number = known.unwrap_or_else(|| {
            self.queries.push(query);
            self.queries.len() - 1
        });
        format!("group-{}", number + 1)
    }

    pub(crate) fn render(self, comment: &str) -> Rendered {
        let mut document = Document::default();
        for (index, query) in self.queries.into_iter().enumerate() {
            let mut table = Table::new("[[groups]]");
            table.set("name", format!("group-{}", index + 1), &Place::default());
            table.set("query", query, &Place::default());
            document.push(table);
        }
        self.rules.into_iter().for_each(|rule| document.push(rule));
        document.render(comment)
    }
}

/// A text of a query, which has no escapes.
pub(crate) fn quoted(text: &str) -> Result<String, String> {
    match (text.contains('\''), text.contains('"')) {
        (false, _) => Ok(format!("'{text}'")),
        (true, false) => Ok(format!("\"{text}\"")),
        (true, true) => Err(format!("{text}: a name with both ' and \" cannot be imported")),
    }
}

/// The name of a policy that is written.
pub(crate) const POLICY_FILE: &str = "policy.toml";

/// `#` leaves out topics that begin with `$`.
pub(crate) const EVERYTHING: [&str; 2] = ["#", "$SYS/#"];

/// As many as a policy file takes.
const RULES_MAX: usize = 1_000;
