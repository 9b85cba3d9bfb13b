//! What everybody has said and asked for, to judge by what they are sent.

use std::collections::{BTreeMap, BTreeSet};

use policy::Access;
use policy::{Action, Identity, Permission, Rule, Who};

/// A client of a user, or of nobody.
pub(super) type Whose = (String, Option<String>);

/// Rules of which one set is in force.
pub(super) const RULE_SETS: usize = 2;

/// May do everything, to clean up.
pub(super) const JANITOR: &str = "janitor";

pub(super) struct Book {
    pub(super) rules: [Access; RULE_SETS],
    pub(super) in_force: usize,
    /// Filters that were ever subscribed to.
    filters: BTreeMap<Whose, BTreeSet<String>>,
    /// Topics and payloads that were ever published, wills included.
    said: BTreeMap<(String, Vec<u8>), BTreeSet<Whose>>,
}

impl Book {
    pub(super) fn new() -> Self {
        let rules = [rules(false), rules(true)];
        Self { rules, in_force: 0, filters: BTreeMap::new(), said: BTreeMap::new() }
    }

    pub(super) fn note_filter(&mut self, whose: &Whose, filter: &str) {
        self.filters.entry(whose.clone()).or_default().insert(filter.into());
    }

    pub(super) fn note_said(&mut self, whose: &Whose, topic: &str, payload: &[u8]) {
        self.said.entry((topic.into(), payload.into())).or_default().insert(whose.clone());
    }

    /// All topics of which something may be retained.
    pub(super) fn topics(&self) -> BTreeSet<String> {
        self.said.keys().map(|(topic, _)| topic.clone()).collect()
    }

    /// A message was written to a client.
    pub(super) fn judge_delivery(&self, whose: &Whose, topic: &str, payload: &[u8]) {
        let may_read = self.allows(self.in_force, whose, Action::Receive, topic);
        assert!(may_read, "{whose:?} got {topic:?}, which it may not read");
        let filters = self.filters.get(whose).into_iter().flatten();
        let is_wanted =
            filters.map(|filter| unshared(filter)).any(|filter| topic::matches(filter, topic));
        assert!(is_wanted, "{whose:?} got {topic:?}, to which it never subscribed");
        let said = self.said.get(&(topic.to_owned(), payload.to_vec()));
        let sets = 0..RULE_SETS;
        let may_say =
            |who: &Whose| sets.clone().any(|rules| self.allows(rules, who, Action::Publish, topic));
        let is_sound = said.into_iter().flatten().any(may_say);
        assert!(is_sound, "{whose:?} got a message of {topic:?} that nobody who may has published");
    }

    fn allows(&self, rules: usize, (client_id, username): &Whose, what: Action, on: &str) -> bool {
        let username = username.as_deref();
        let identity = Identity::new(client_id, username);
        self.rules[rules].grants(username).allows(identity, what, on)
    }
}

/// The filter of a shared subscription, without the name of the group.
fn unshared(filter: &str) -> &str {
    match filter.strip_prefix("$share/").and_then(|rest| rest.split_once('/')) {
        Some((_, filter)) => filter,
        None => filter,
    }
}

/// Two users, those without a name, and what is everybody's. The second set takes some of it away.
fn rules(is_stricter: bool) -> Access {
    let user = |name: &str| Who::User(name.into());
    let mut rules = vec![
        (user(JANITOR), Permission::ReadWrite, "#"),
        (user("anna"), Permission::ReadWrite, "a/#"),
        (user("anna"), Permission::Deny, "a/secret"),
        (user("bruno"), Permission::ReadWrite, "b/#"),
        (user("bruno"), Permission::Write, "p/#"),
        (Who::Anonymous, Permission::Read, "p/#"),
        (Who::Everyone, Permission::ReadWrite, "c/%c/#"),
        (Who::Everyone, Permission::ReadWrite, "s/#"),
    ];
    if is_stricter {
        rules.push((user("bruno"), Permission::Deny, "b/x"));
        rules.push((Who::Everyone, Permission::Deny, "s/y/#"));
    } else {
        rules.push((user("anna"), Permission::Read, "p/#"));
    }
    let rules: Vec<Rule> = rules
        .into_iter()
        .map(|(who, permission, filter)| Rule { who, permission, filter: filter.into() })
        .collect();
    Access::compile(&rules).expect("sound rules")
}
