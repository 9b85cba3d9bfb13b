//! Who may publish, subscribe to and receive what: rules compiled once, asked without allocating.
//!
//! Rules come as a plain list ([`Rule`]), from whatever source the server reads.
//! [`Access::compile`] sorts them by user; a session keeps the [`Grants`] of its user (two
//! pointers) and asks them on each publish and delivery.
//!
//! The meaning follows mosquitto's ACL file, with four stated differences:
//!
//! - A deny wins over every grant, also a deny of a `pattern` over a grant of a `user`.
//! - A SUBSCRIBE is checked: it is refused when nothing it asks for could ever be received
//!   (mosquitto accepts it and then delivers nothing). [`Access::accepting_all_subscriptions`]
//!   brings mosquitto's behaviour back.
//! - Rules in order ([`OrderedRule`]) come before what is granted, and behind what is denied.
//! - Topics under `$SYS/` belong to the broker: no rule lets a client publish there, except
//!   `$SYS/broker/connection/NAME/state`, where bridges publish whether they are connected.
//!
//! Names with a meaning of their own ([`topic::reserved`]) are nobody's, superusers included.

mod explain;
mod group;
mod ordered;
mod pattern;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use explain::{Decider, DecidingRule, Explanation, Origin, Source};
use group::{Groups, Reading};
use ordered::{Active, OrderedRules};
pub use ordered::{ClientLocation, Manner, OrderedRule, OwnRules};
use pattern::Pattern;
pub(crate) use pattern::substitute;

use topic::without_share;

use crate::Principal;
use crate::principal::Values;
use crate::query::Query;

/// One rule as its source states it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub who: Who,
    pub permission: Permission,
    /// A topic filter. In rules for [`Who::Everyone`] and [`Who::Matching`] `%c` stands for the
    /// client id, `%u` for the user name, and `%{attributes.NAME}` for an attribute; such a rule
    /// does not apply to a client that has none, or one with `/`, `+` or `#` in it. Of a list each
    /// value makes a rule.
    pub filter: String,
}

/// Whom a rule is about.
#[derive(Clone, Debug, PartialEq)]
pub enum Who {
    /// Clients without a user name.
    Anonymous,
    /// Clients with exactly this user name.
    User(String),
    /// All clients.
    Everyone,
    /// Clients of which a query holds. The filter may have in it what those for everyone may.
    Matching(Arc<Query>),
}

/// What a rule grants or denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Subscribe and receive.
    Read,
    /// Publish, also as a will.
    Write,
    ReadWrite,
    /// Neither, whatever other rules say.
    Deny,
}

/// What a client wants to do with a topic or, for [`Action::Subscribe`], with a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Publish,
    /// The text is a filter, with or without its `$share/group/` or `$queue/`.
    Subscribe,
    Receive,
}

/// The client who acts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Identity<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    /// What its credential says of it, if that says more than a user name.
    pub principal: Option<&'a Principal>,
}

/// A rule that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    /// Its place in the list given to [`Access::compile`].
    pub index: usize,
    pub filter: String,
    pub detail: &'static str,
}

/// All rules of a broker, sorted by user. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Access {
    is_open: bool,
    accepts_all_subscriptions: bool,
    anonymous: Option<Arc<RuleSet>>,
    users: Arc<BTreeMap<Box<str>, Arc<RuleSet>>>,
    everyone: Option<Arc<RuleSet>>,
    groups: Groups,
    ordered: OrderedRules,
    heeds_principals: bool,
    asks_service: bool,
}

/// What one user's rules allow. Kept with a session; to be asked for anew after a reload.
#[derive(Clone, Debug, Default)]
pub struct Grants {
    is_open: bool,
    accepts_all_subscriptions: bool,
    receives_all: bool,
    /// No rule is for it.
    is_superuser: bool,
    /// What no rule decides, a service does.
    asks_service: bool,
    own: Option<Arc<RuleSet>>,
    everyone: Option<Arc<RuleSet>>,
}

impl Access {
    /// No rules: everybody may do everything, except publish under `$SYS/`.
    pub fn open() -> Self {
        Self { is_open: true, ..Self::default() }
    }

    /// Rules in force: what they do not grant is denied. An empty list denies everything.
    ///
    /// # Errors
    ///
    /// The first rule whose filter is not a valid topic filter, or that uses `%{attributes.NAME}`
    /// without being for everyone.
    pub fn compile(rules: &[Rule]) -> Result<Self, RuleError> {
        Self::compile_each(rules.iter().map(|rule| (Origin::default(), rule)))
    }

    /// The same for rules with where each stands.
    ///
    /// # Errors
    ///
    /// As [`Self::compile`].
    pub fn compile_from(rules: &[(Origin, Rule)]) -> Result<Self, RuleError> {
        Self::compile_each(rules.iter().map(|(origin, rule)| (origin.clone(), rule)))
    }

    fn compile_each<'a>(
        rules: impl Iterator<Item = (Origin, &'a Rule)>,
    ) -> Result<Self, RuleError> {
        let mut anonymous = RuleSet::default();
        let mut everyone = RuleSet::default();
        let mut users: BTreeMap<Box<str>, RuleSet> = BTreeMap::new();
        let mut groups = Reading::default();
        let mut asks_attributes = false;
        for (index, (origin, rule)) in rules.enumerate() {
            let is_pattern = matches!(rule.who, Who::Everyone | Who::Matching(_));
            let denies = rule.permission == Permission::Deny;
            let pattern = Pattern::compile(&rule.filter, is_pattern, denies)
                .map_err(|detail| RuleError { index, filter: rule.filter.clone(), detail })?
                .from(origin);
            asks_attributes |= pattern.asks_attributes();
            let set = match &rule.who {
                Who::Anonymous => &mut anonymous,
                Who::Everyone => &mut everyone,
                Who::User(name) => users.entry(name.as_str().into()).or_default(),
                Who::Matching(query) => {
                    groups.add(query, rule.permission, pattern);
                    continue;
                }
            };
            set.add(rule.permission, pattern);
        }
        let users = users.into_iter().map(|(name, set)| (name, set.counted())).collect();
        Ok(Self {
            is_open: false,
            accepts_all_subscriptions: false,
            anonymous: anonymous.shared(),
            users: Arc::new(users),
            everyone: everyone.shared(),
            heeds_principals: asks_attributes || !groups.is_empty(),
            groups: groups.finish(),
            ordered: OrderedRules::default(),
            asks_service: false,
        })
    }

    /// With rules in order, which come before what is granted.
    ///
    /// # Errors
    ///
    /// The first rule with a filter that is not valid.
    pub fn in_order(mut self, rules: &[OrderedRule]) -> Result<Self, RuleError> {
        self.ordered = OrderedRules::compile(rules)?;
        let mut everyone = self.everyone.as_deref().cloned().unwrap_or_default();
        everyone.ordered = self.ordered.common();
        self.everyone = everyone.shared();
        self.heeds_principals |= self.ordered.heeds_principals();
        Ok(self)
    }

    /// Accepts every SUBSCRIBE, as mosquitto does; what is delivered is checked all the same.
    #[must_use]
    pub fn accepting_all_subscriptions(mut self, accepts: bool) -> Self {
        self.accepts_all_subscriptions = accepts;
        self
    }

    /// What no rule decides, a service does: it is asked for each publish and subscription. Without
    /// rules it decides everything.
    #[must_use]
    pub fn asking_service(self) -> Self {
        Self { is_open: false, asks_service: true, ..self }
    }

    /// Log-ins may say more of a client than its user name.
    #[must_use]
    pub fn heeding_principals(mut self, heeds: bool) -> Self {
        self.heeds_principals |= heeds;
        self
    }

    /// True when no rules are in force.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    pub fn heeds_principals(&self) -> bool {
        self.heeds_principals && !self.is_open
    }

    /// The grants of a client, by all that is known of it.
    pub fn grants_of(&self, who: Identity<'_>, place: ClientLocation<'_>) -> Grants {
        let mut grants = self.grants(who.username);
        if let Some(principal) = who.principal {
            grants.is_open |= principal.is_superuser;
            grants.receives_all = principal.is_unknown;
            grants.is_superuser = principal.is_superuser;
        }
        if grants.is_superuser {
            return grants;
        }
        let ordered = self.ordered.of(who, place);
        grants.receives_all |= self.ordered.is_in_doubt(who, place);
        if ordered.is_none() && (self.groups.is_empty() || grants.is_open) {
            return grants;
        }
        let mut parts: Vec<Arc<RuleSet>> = grants.own.take().into_iter().collect();
        parts.extend(self.groups.of(who));
        grants.own = RuleSet { parts: parts.into(), ordered, ..RuleSet::default() }.shared();
        grants
    }

    /// The grants of a user (`None`: an anonymous client).
    pub fn grants(&self, username: Option<&str>) -> Grants {
        let own = match username {
            Some(name) => self.users.get(name).cloned(),
            None => self.anonymous.clone(),
        };
        Grants {
            is_open: self.is_open,
            accepts_all_subscriptions: self.accepts_all_subscriptions,
            receives_all: false,
            is_superuser: false,
            asks_service: self.asks_service,
            own,
            everyone: self.everyone.clone(),
        }
    }

    /// [`Self::grants`] and [`Grants::allows`] in one, for a single question.
    pub fn allows(&self, identity: Identity<'_>, action: Action, topic: &str) -> bool {
        self.grants(identity.username).allows(identity, action, topic)
    }
}

impl<'a> Identity<'a> {
    /// One whose credential says no more.
    pub const fn new(client_id: &'a str, username: Option<&'a str>) -> Self {
        Self { client_id, username, principal: None }
    }

    #[must_use]
    pub const fn with(self, principal: Option<&'a Principal>) -> Self {
        Self { principal, ..self }
    }

    /// Does nobody know what its attributes are?
    fn is_unknown(&self) -> bool {
        self.principal.is_some_and(|principal| principal.is_unknown)
    }

    /// What an attribute stands for in a filter.
    fn values(&self, name: &str) -> Values<'a> {
        self.principal.map_or(Values::Many(&[]), |own| own.attributes.values(name))
    }
}

impl Grants {
    /// What it takes to ask them about a filter, in units of work: whether some of it may be
    /// received, and all of it.
    pub fn filter_units(&self) -> usize {
        self.steps() / STEPS_PER_UNIT * 2
    }

    /// What it takes to ask them about a topic, beyond what is usual.
    pub fn topic_units(&self) -> usize {
        self.steps().saturating_sub(USUAL_STEPS) / STEPS_PER_UNIT
    }

    /// Bytes of what no other client has.
    pub fn own_bytes(&self) -> usize {
        let Some(own) = &self.own else { return 0 };
        let ordered = own.ordered.as_ref().map_or(0, |rules| size_of_val(&**rules));
        match ordered + size_of_val(&*own.parts) {
            // They are all that somebody has with this user name.
            0 => 0,
            bytes => size_of::<RuleSet>() + bytes,
        }
    }

    fn steps(&self) -> usize {
        [&self.own, &self.everyone].into_iter().flatten().map(|set| set.steps as usize).sum()
    }

    /// Whether `identity` may do `action`, at QoS 0 and without the retain flag. Publish and
    /// receive do not allocate.
    #[inline]
    pub fn allows(&self, identity: Identity<'_>, action: Action, topic: &str) -> bool {
        self.allows_as(identity, action, topic, Manner::default())
    }

    /// The same, in a certain manner.
    #[inline]
    pub fn allows_as(
        &self,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
        manner: Manner,
    ) -> bool {
        match action {
            Action::Publish => {
                !is_broker_topic(topic) && self.permits(identity, WRITE, topic, manner)
            }
            Action::Receive => {
                self.permits(identity, READ, topic, manner)
                    || self.receives_all
                    || self.is_undecided(identity, action, topic, manner)
            }
            Action::Subscribe => self.may_subscribe(identity, without_share(topic), manner.qos),
        }
    }

    /// True when every topic that `filter` can match may be received, so that deliveries of this
    /// subscription need no check of their own. False when in doubt.
    pub fn covers(&self, identity: Identity<'_>, filter: &str) -> bool {
        let filter = without_share(filter);
        let holds = |pattern: &Pattern| pattern.matches(identity, filter);
        let touches = |pattern: &Pattern| pattern.overlaps(identity, filter);
        let rules = self.ordered().unwrap_or_default();
        let in_order = || ordered::cover(rules, identity, filter);
        let is_granted = || self.is_open || self.asks_service || self.grants_of(READ).any(holds);
        self.is_open() || (!self.denials().any(touches) && in_order().unwrap_or_else(is_granted))
    }

    /// Does a service decide what no rule does?
    #[inline]
    pub const fn asks_service(&self) -> bool {
        self.asks_service
    }

    /// Is it for a service to decide this? What it has let a client subscribe to is received,
    /// unless a rule denies that.
    #[cold]
    pub fn is_undecided(
        &self,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
        manner: Manner,
    ) -> bool {
        if !self.asks_service || self.is_superuser || self.is_open() {
            return false;
        }
        let is_reserved = match action {
            Action::Publish => is_broker_topic(topic),
            Action::Subscribe => topic::reserved(without_share(topic)).is_some(),
            Action::Receive => false,
        };
        let topic = if action == Action::Subscribe { without_share(topic) } else { topic };
        if is_reserved || self.denials().any(|pattern| pattern.matches(identity, topic)) {
            return false;
        }
        let rules = self.ordered().unwrap_or_default();
        let rule = match action {
            Action::Publish => ordered::on_publish(rules, identity, topic, manner),
            Action::Receive => ordered::on_receive(rules, identity, topic),
            Action::Subscribe => ordered::on_subscribe(rules, identity, topic, manner.qos, true),
        };
        let right = if action == Action::Publish { WRITE } else { READ };
        let is_granted = || self.grants_of(right).any(|pattern| pattern.matches(identity, topic));
        rule.is_none() && !self.is_open && !is_granted()
    }

    /// True when no rules are in force.
    pub fn is_open(&self) -> bool {
        self.is_open && self.ordered().is_none()
    }

    /// Its own, if it has some: they have those of everybody in them.
    #[inline]
    fn ordered(&self) -> Option<&[Arc<ordered::Rule>]> {
        if self.is_superuser {
            return None;
        }
        let mut sets = [&self.own, &self.everyone].into_iter().flatten();
        sets.find_map(|set| set.ordered.as_deref())
    }

    #[inline]
    fn permits(&self, identity: Identity<'_>, right: u8, topic: &str, manner: Manner) -> bool {
        match self.ordered() {
            None => self.is_open || self.is_granted(identity, right, topic),
            Some(rules) => self.is_granted_in_order(rules, identity, right, topic, manner),
        }
    }

    /// Apart, so that who has no such rules pays for a comparison only.
    #[cold]
    fn is_granted_in_order(
        &self,
        rules: &[Arc<ordered::Rule>],
        identity: Identity<'_>,
        right: u8,
        topic: &str,
        manner: Manner,
    ) -> bool {
        if self.denials().any(|pattern| pattern.matches(identity, topic)) {
            return false;
        }
        let rule = match right {
            WRITE => ordered::on_publish(rules, identity, topic, manner),
            _ => ordered::on_receive(rules, identity, topic),
        };
        let is_granted = || self.is_open || self.is_granted(identity, right, topic);
        rule.map_or_else(is_granted, |rule| rule.allows)
    }

    fn is_granted(&self, identity: Identity<'_>, permission: u8, topic: &str) -> bool {
        let mut is_granted = false;
        for set in self.sets() {
            if set.denied.iter().any(|pattern| pattern.matches(identity, topic)) {
                return false;
            }
            is_granted = is_granted
                || set.granted.iter().any(|(granted, pattern)| {
                    granted & permission != 0 && pattern.matches(identity, topic)
                });
        }
        is_granted
    }

    fn may_subscribe(&self, identity: Identity<'_>, filter: &str, qos: u8) -> bool {
        if topic::reserved(filter).is_some() {
            return false;
        }
        let holds = |pattern: &Pattern| pattern.matches(identity, filter);
        let touches = |pattern: &Pattern| pattern.overlaps(identity, filter);
        let rules = self.ordered().unwrap_or_default();
        let in_order = || {
            let rule = ordered::on_subscribe(rules, identity, filter, qos, self.asks_service);
            rule.map(|rule| rule.allows)
        };
        // Where a service decides the rest, a grant of a part leaves the whole to it.
        let is_granted = || match self.asks_service {
            true => self.is_open || self.grants_of(READ).any(holds),
            false => self.is_open || self.grants_of(READ).any(touches),
        };
        self.is_open()
            || self.accepts_all_subscriptions
            || (!self.denials().any(holds) && in_order().unwrap_or_else(is_granted))
    }

    fn sets(&self) -> impl Iterator<Item = &RuleSet> {
        let parts = self.own.as_ref().map_or(&[][..], |own| &own.parts);
        self.own.iter().chain(parts).chain(&self.everyone).map(|set| &**set)
    }

    fn denials(&self) -> impl Iterator<Item = &Pattern> {
        self.sets().flat_map(|set| &set.denied)
    }

    fn grants_of(&self, permission: u8) -> impl Iterator<Item = &Pattern> {
        let granted = self.sets().flat_map(|set| &set.granted);
        granted.filter(move |grant| grant.0 & permission != 0).map(|grant| &grant.1)
    }
}

impl std::fmt::Display for RuleError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "access rule {} for '{}': {}", self.index + 1, self.filter, self.detail)
    }
}

impl std::error::Error for RuleError {}

#[derive(Clone, Debug, Default)]
struct RuleSet {
    denied: Vec<Pattern>,
    granted: Vec<(u8, Pattern)>,
    /// Rules in order.
    ordered: Option<Active>,
    /// Those of its user and its groups, which a client has in common with others.
    parts: Box<[Arc<Self>]>,
    /// What it takes to ask all of it.
    steps: u32,
}

impl RuleSet {
    fn add(&mut self, permission: Permission, pattern: Pattern) {
        match permission {
            Permission::Deny => self.denied.push(pattern),
            Permission::Read => self.granted.push((READ, pattern)),
            Permission::Write => self.granted.push((WRITE, pattern)),
            Permission::ReadWrite => self.granted.push((READ | WRITE, pattern)),
        }
    }

    fn shared(self) -> Option<Arc<Self>> {
        let is_empty = self.denied.is_empty()
            && self.granted.is_empty()
            && self.ordered.is_none()
            && self.parts.is_empty();
        (!is_empty).then(|| self.counted())
    }

    fn counted(mut self) -> Arc<Self> {
        self.steps = self.count_steps();
        Arc::new(self)
    }

    fn count_steps(&self) -> u32 {
        let granted = self.granted.iter().map(|(_, pattern)| pattern);
        let own = self.denied.iter().chain(granted).map(Pattern::steps);
        let ordered = self.ordered.iter().flat_map(|rules| rules.iter().map(|it| it.steps()));
        own.chain(ordered).chain(self.parts.iter().map(|part| part.steps)).sum()
    }
}

/// Bridges of mosquitto publish there whether they are connected, also by will.
fn is_bridge_state(topic: &str) -> bool {
    topic
        .strip_prefix("$SYS/broker/connection/")
        .and_then(|rest| rest.strip_suffix("/state"))
        .is_some_and(|name| !name.is_empty() && !name.contains('/'))
}

/// What the broker publishes itself, and names that no subscription can reach.
#[inline]
fn is_broker_topic(topic: &str) -> bool {
    topic.starts_with('$') && is_broker_word(topic)
}

fn is_broker_word(topic: &str) -> bool {
    topic == "$SYS"
        || topic.starts_with("$SYS/") && !is_bridge_state(topic)
        || topic::reserved(topic).is_some()
}

/// Why nobody may publish below a reserved prefix, or subscribe to a filter that begins with it.
fn why_reserved(prefix: &str) -> &'static str {
    match prefix {
        topic::EXCLUSIVE => "exclusive subscriptions ($exclusive/) are not supported",
        topic::DELAYED => "delayed publishing ($delayed/) is not supported",
        topic::FILE => "file transfer ($file/) is not supported",
        topic::FILE_ASYNC => "file transfer ($file-async/) is not supported",
        topic::QUEUE => "topics below $queue/ do not exist: $queue/ begins shared subscriptions",
        _ => "topics below $share/ do not exist: $share/ begins shared subscriptions",
    }
}

/// Steps of some 20 ns, for a unit of work.
const STEPS_PER_UNIT: usize = 5;

/// Rules that take less to ask are part of what a message usually takes.
const USUAL_STEPS: usize = 200;

const READ: u8 = 1;
const WRITE: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attribute, Attributes};

    const ANNA: Identity<'static> = Identity::new("c1", Some("anna"));
    const NOBODY: Identity<'static> = Identity::new("c2", None);

    fn rule(who: Who, permission: Permission, filter: &str) -> Rule {
        Rule { who, permission, filter: filter.into() }
    }

    fn anna(permission: Permission, filter: &str) -> Rule {
        rule(Who::User("anna".into()), permission, filter)
    }

    fn compiled(rules: &[Rule]) -> Access {
        Access::compile(rules).unwrap()
    }

    #[test]
    fn open_access_allows_all_but_publishing_under_sys() {
        let access = Access::open();
        assert!(access.allows(NOBODY, Action::Publish, "a"));
        assert!(access.allows(NOBODY, Action::Subscribe, "#"));
        assert!(access.allows(NOBODY, Action::Receive, "$SYS/broker/uptime"));
        for topic in ["uptime", "connection/me", "connection//state", "connection/a/b/state"] {
            let topic = format!("$SYS/broker/{topic}");
            assert!(!access.allows(NOBODY, Action::Publish, &topic), "{topic}");
        }
        assert!(access.allows(NOBODY, Action::Publish, "$SYS/broker/connection/me/state"));
        assert!(!access.allows(NOBODY, Action::Publish, "$share/group/topic"));
        let grants = access.grants(None);
        let why = |topic| grants.why_denied(NOBODY, Action::Publish, topic, Manner::default());
        assert!(why("$SYS/broker/uptime").contains("$SYS/"));
        let why = why("$share/group/topic");
        assert!(why.contains("$share/") && !why.contains("$SYS/"), "{why}");
        assert!(access.grants(None).covers(NOBODY, "#"));
        assert!(access.grants(None).is_open());
    }

    #[test]
    fn names_with_a_meaning_of_their_own_are_refused_whatever_the_rules() {
        let root = Principal { is_superuser: true, ..Principal::default() };
        let everything = compiled(&[
            rule(Who::Everyone, Permission::ReadWrite, "#"),
            rule(Who::Everyone, Permission::ReadWrite, "$delayed/#"),
            rule(Who::Everyone, Permission::ReadWrite, "$exclusive/#"),
            rule(Who::Everyone, Permission::ReadWrite, "$file/#"),
        ]);
        for access in [Access::open(), everything.accepting_all_subscriptions(true)] {
            for who in [NOBODY, NOBODY.with(Some(&root))] {
                let grants = access.grants_of(who, ClientLocation::default());
                let publishes = ["$share/g/a", "$queue/a", "$exclusive/a", "$delayed/9/a"];
                for name in publishes.into_iter().chain(["$file/f1/init", "$file-async/f1/fin"]) {
                    assert!(!grants.allows(who, Action::Publish, name), "{name}");
                    let manner = Manner::default();
                    let why = grants.why_denied(who, Action::Publish, name, manner);
                    assert!(why.contains(&name[..name.find('/').unwrap()]), "{why}");
                }
                let filters = ["$exclusive/a", "$delayed/#", "$share/g/$exclusive/a", "$queue/"];
                for filter in filters.into_iter().chain(["$file/#", "$share/g/$file-async/#"]) {
                    assert!(!grants.allows(who, Action::Subscribe, filter), "{filter}");
                }
                assert!(grants.allows(who, Action::Subscribe, "$queue/a"));
            }
        }
    }

    #[test]
    fn a_queue_is_authorized_as_the_filter_behind_it() {
        let access = compiled(&[
            rule(Who::Everyone, Permission::ReadWrite, "open/#"),
            rule(Who::Everyone, Permission::Deny, "open/secret/#"),
        ]);
        for (filter, may) in [
            ("$queue/open/a", true),
            ("$queue/open/secret/a", false),
            ("$queue/secret", false),
            ("$share/$queue/open/secret/a", false),
        ] {
            assert_eq!(access.allows(NOBODY, Action::Subscribe, filter), may, "{filter}");
        }
        assert!(!access.grants(None).covers(NOBODY, "$queue/open/#"), "a part is denied");
    }

    #[test]
    fn what_is_not_granted_is_denied() {
        let access = compiled(&[anna(Permission::Read, "a/#"), anna(Permission::Write, "b")]);
        assert!(access.allows(ANNA, Action::Receive, "a/x"));
        assert!(access.allows(ANNA, Action::Receive, "a"));
        assert!(!access.allows(ANNA, Action::Publish, "a/x"));
        assert!(access.allows(ANNA, Action::Publish, "b"));
        assert!(!access.allows(ANNA, Action::Receive, "b"));
        assert!(!access.allows(NOBODY, Action::Receive, "a/x"));
        assert!(!compiled(&[]).allows(ANNA, Action::Receive, "a"));
    }

    #[test]
    fn a_deny_wins_wherever_it_stands() {
        let rules = [
            anna(Permission::ReadWrite, "#"),
            anna(Permission::Deny, "secret/#"),
            rule(Who::Everyone, Permission::Deny, "plans/%u"),
        ];
        let access = compiled(&rules);
        assert!(access.allows(ANNA, Action::Publish, "plans/bob"));
        assert!(!access.allows(ANNA, Action::Publish, "plans/anna"));
        assert!(!access.allows(ANNA, Action::Receive, "secret/x"));
        assert!(!access.allows(ANNA, Action::Subscribe, "secret/+"));
        assert!(access.allows(ANNA, Action::Subscribe, "#"));
        assert!(!access.grants(ANNA.username).covers(ANNA, "#"));
        assert!(access.grants(ANNA.username).covers(ANNA, "other/#"));
    }

    #[test]
    fn anonymous_rules_do_not_reach_named_users() {
        let access = compiled(&[rule(Who::Anonymous, Permission::Read, "public/#")]);
        assert!(access.allows(NOBODY, Action::Receive, "public/a"));
        assert!(!access.allows(ANNA, Action::Receive, "public/a"));
    }

    #[test]
    fn patterns_take_the_identity_in() {
        let access = compiled(&[
            rule(Who::Everyone, Permission::ReadWrite, "dev/%c/%u/+/up"),
            rule(Who::Everyone, Permission::Read, "in-%c/#"),
            rule(Who::Everyone, Permission::Read, "100%/#"),
        ]);
        assert!(access.allows(ANNA, Action::Publish, "dev/c1/anna/x/up"));
        assert!(!access.allows(ANNA, Action::Publish, "dev/c2/anna/x/up"));
        assert!(!access.allows(ANNA, Action::Publish, "dev/c1/anna/x/y/up"));
        assert!(!access.allows(NOBODY, Action::Publish, "dev/c2//x/up"));
        assert!(access.allows(NOBODY, Action::Receive, "in-c2/a/b"));
        assert!(access.allows(NOBODY, Action::Subscribe, "$share/g/in-c2/+"));
        assert!(!access.allows(NOBODY, Action::Subscribe, "$share/g/in-c1/+"));
        assert!(access.allows(NOBODY, Action::Receive, "100%/a"));
    }

    fn of<'a>(who: Identity<'a>, principal: &'a Principal) -> Identity<'a> {
        Identity { principal: Some(principal), ..who }
    }

    fn principal(values: &[(&str, &[&str])]) -> Principal {
        let list = |texts: &[&str]| {
            Attribute::List(texts.iter().map(|text| Attribute::Text((*text).into())).collect())
        };
        let values = values.iter().map(|(name, texts)| ((*name).into(), list(texts)));
        Principal { attributes: Attributes::new(values), ..Principal::default() }
    }

    #[test]
    fn attributes_make_rules_of_a_pattern() {
        let access = compiled(&[
            rule(Who::Everyone, Permission::ReadWrite, "%{attributes.site}/%{attributes.floor}/%c"),
            rule(Who::Everyone, Permission::Deny, "%{attributes.site}/3/#"),
        ]);
        let anna =
            principal(&[("site", &["berlin", "a/b", "+", "%u", "$SYS"]), ("floor", &["1", "3"])]);
        let grants = access.grants_of(of(ANNA, &anna), ClientLocation::default());
        assert!(grants.allows(of(ANNA, &anna), Action::Publish, "berlin/1/c1"));
        for topic in
            ["berlin/1/c2", "berlin/2/c1", "berlin/3/c1", "a/b/1/c1", "x/1/c1", "$SYS/1/c1"]
        {
            assert!(!grants.allows(of(ANNA, &anna), Action::Publish, topic), "{topic}");
            assert!(!grants.allows(of(ANNA, &anna), Action::Receive, topic), "{topic}");
        }
        assert!(!access.allows(ANNA, Action::Publish, "berlin/1/c1"), "without attributes");
        for (who, filter) in [
            (Who::Anonymous, "%{attributes.a}"),
            (Who::Everyone, "%{attributes.a"),
            (Who::Everyone, "%{attributes.}"),
            (Who::Everyone, "#/%{attributes.a}"),
            (Who::Everyone, "%{attributes.a}%{attributes.b}%{attributes.c}"),
        ] {
            assert!(Access::compile(&[rule(who, Permission::Read, filter)]).is_err(), "{filter}");
        }
    }

    #[test]
    fn rules_for_whom_a_query_holds_are_for_nobody_else() {
        let matching = |query: &str| Who::Matching(Arc::new(Query::parse(query).unwrap()));
        let near = matching("attributes.floor = '1'");
        let access = compiled(&[
            rule(near.clone(), Permission::Write, "floor/%{attributes.floor}/%c"),
            rule(near, Permission::Read, "near/%u"),
            rule(matching("user = 'anna' and client.id = 'c1'"), Permission::Read, "anna/#"),
        ]);
        let (one, two) = (principal(&[("floor", &["1"])]), principal(&[("floor", &["2"])]));
        let grants = access.grants_of(of(ANNA, &one), ClientLocation::default());
        assert!(grants.allows(of(ANNA, &one), Action::Publish, "floor/1/c1"));
        assert!(!grants.allows(of(ANNA, &one), Action::Publish, "floor/1/c2"));
        assert!(grants.allows(of(ANNA, &one), Action::Receive, "near/anna"));
        let grants = access.grants_of(of(ANNA, &two), ClientLocation::default());
        assert!(!grants.allows(of(ANNA, &two), Action::Publish, "floor/2/c1"));
        assert!(!grants.allows(of(ANNA, &two), Action::Receive, "near/anna"));
        // What is known without a credential that says more is asked for, too.
        assert!(access.grants_of(ANNA, ClientLocation::default()).allows(
            ANNA,
            Action::Receive,
            "anna/x"
        ));
        assert!(!access.grants_of(NOBODY, ClientLocation::default()).allows(
            NOBODY,
            Action::Receive,
            "anna/x"
        ));
    }

    #[test]
    fn rules_do_not_bind_a_superuser_and_keep_nothing_from_who_is_not_known_yet() {
        let access = compiled(&[anna(Permission::Read, "a")]);
        let superuser = Principal { is_superuser: true, ..Principal::default() };
        let grants = access.grants_of(of(NOBODY, &superuser), ClientLocation::default());
        assert!(grants.allows(of(NOBODY, &superuser), Action::Publish, "x"));
        assert!(!grants.allows(of(NOBODY, &superuser), Action::Publish, "$SYS/x"));
        let unknown = Principal { is_unknown: true, ..Principal::default() };
        let grants = access.grants_of(of(NOBODY, &unknown), ClientLocation::default());
        assert!(grants.allows(of(NOBODY, &unknown), Action::Receive, "x"));
        assert!(!grants.allows(of(NOBODY, &unknown), Action::Publish, "x"));
    }

    #[test]
    fn who_is_not_known_yet_may_not_publish_what_rules_may_forbid_it() {
        let matching = |query: &str| Who::Matching(Arc::new(Query::parse(query).unwrap()));
        let access = compiled(&[
            rule(Who::Everyone, Permission::ReadWrite, "#"),
            rule(matching("attributes.floor = '1'"), Permission::Deny, "floor/#"),
            rule(matching("user = 'anna'"), Permission::Deny, "anna/#"),
            rule(Who::Everyone, Permission::Deny, "at/x-%{attributes.site}/+/%c"),
        ]);
        let unknown = Principal { is_unknown: true, ..Principal::default() };
        let grants = access.grants_of(of(NOBODY, &unknown), ClientLocation::default());
        for topic in ["floor/a", "at/berlin/1/c2"] {
            assert!(!grants.allows(of(NOBODY, &unknown), Action::Publish, topic), "{topic}");
            assert!(grants.allows(of(NOBODY, &unknown), Action::Receive, topic), "{topic}");
        }
        for topic in ["anna/a", "at/berlin/1/c1", "at/berlin/1"] {
            assert!(grants.allows(of(NOBODY, &unknown), Action::Publish, topic), "{topic}");
        }
        let access = compiled(&[
            rule(matching("not attributes.floor = '1'"), Permission::Write, "not-one/#"),
            rule(matching("user = 'anna'"), Permission::Write, "anna/#"),
        ]);
        let grants = access.grants_of(of(ANNA, &unknown), ClientLocation::default());
        assert!(!grants.allows(of(ANNA, &unknown), Action::Publish, "not-one/a"));
        assert!(grants.allows(of(ANNA, &unknown), Action::Publish, "anna/a"));
    }

    #[test]
    fn hostile_names_do_not_widen_a_pattern() {
        let access = compiled(&[
            rule(Who::Everyone, Permission::ReadWrite, "%c/#"),
            rule(Who::Everyone, Permission::ReadWrite, "home/%u"),
        ]);
        for id in ["+", "#", "$SYS", "", "home/bob", "a/../b"] {
            let username = if id.contains('/') { "a/bob" } else { "+" };
            let client = Identity::new(id, Some(username));
            assert!(!access.allows(client, Action::Receive, &format!("{id}/x")), "{id}");
            assert!(!access.allows(client, Action::Subscribe, "home/a/bob"), "{id}");
            assert!(!access.allows(client, Action::Receive, "$SYS/broker"), "{id}");
            assert!(!access.allows(client, Action::Subscribe, "$SYS/#"), "{id}");
            assert!(!access.allows(client, Action::Subscribe, "home/+"), "{id}");
            assert!(!access.allows(client, Action::Receive, "home/bob"), "{id}");
            assert!(!access.grants(client.username).covers(client, "home/+"), "{id}");
            assert!(!access.grants(client.username).covers(client, "#"), "{id}");
        }
    }

    #[test]
    fn wildcards_at_the_front_do_not_reach_dollar_topics() {
        let access = compiled(&[anna(Permission::ReadWrite, "#"), anna(Permission::Read, "+/x")]);
        assert!(!access.allows(ANNA, Action::Receive, "$SYS/x"));
        assert!(!access.allows(ANNA, Action::Subscribe, "$SYS/#"));
        let access = compiled(&[anna(Permission::Read, "$SYS/#")]);
        assert!(access.allows(ANNA, Action::Receive, "$SYS/broker/uptime"));
        assert!(access.grants(ANNA.username).covers(ANNA, "$SYS/broker/+"));
    }

    #[test]
    fn a_subscription_that_could_never_receive_is_refused() {
        let rules = [anna(Permission::Read, "a/+/c"), anna(Permission::Write, "w/#")];
        let access = compiled(&rules);
        for filter in ["a/b/c", "a/#", "+/+/+", "#", "a/+/c"] {
            assert!(access.allows(ANNA, Action::Subscribe, filter), "{filter}");
        }
        for filter in ["b/#", "a/b", "w/x", "a/b/c/d", "$SYS/#"] {
            assert!(!access.allows(ANNA, Action::Subscribe, filter), "{filter}");
        }
        let lenient = access.accepting_all_subscriptions(true);
        assert!(lenient.allows(ANNA, Action::Subscribe, "b/#"));
        assert!(!lenient.allows(ANNA, Action::Receive, "b/x"));
        assert!(!lenient.grants(ANNA.username).covers(ANNA, "b/#"));
    }

    #[test]
    fn unusable_rules_are_named() {
        for filter in ["", "a/#/b", "a#", "a+/b", "nul\0"] {
            let error = Access::compile(&[anna(Permission::Read, filter)]).unwrap_err();
            assert_eq!((error.index, error.filter.as_str()), (0, filter));
        }
        let error = Access::compile(&[anna(Permission::Read, "a/%{attributes.x}")]).unwrap_err();
        assert!(error.to_string().contains("pattern"), "{error}");
    }

    #[test]
    fn grants_kept_with_a_session_are_small() {
        assert!(size_of::<Grants>() <= 24);
    }
}
