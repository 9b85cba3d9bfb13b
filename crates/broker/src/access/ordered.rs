//! Rules in their order: the first that is about what a client does decides it, whatever others
//! grant. Which of them are for a client is found out when it connects; what is left to ask of a
//! message are topic, QoS and retain flag.

use core::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::conditional::{Asked, Template};
use super::pattern::Pattern;
use super::{Identity, Permission, RuleError, contains, overlaps, without_share};
use crate::Attributes;
use crate::query::Query;

/// One rule as its source states it. An empty list of conditions always holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OrderedRule {
    pub allows: bool,
    pub publish: bool,
    /// Subscribe and receive.
    pub subscribe: bool,
    /// Topic filters as in [`super::Rule`] for everyone.
    pub filters: Vec<String>,
    /// Filters of which only a SUBSCRIBE with this very text is meant.
    pub exact_filters: Vec<String>,
    /// Whatever the filters are, and topics that begin with `$` among them.
    pub is_about_every_topic: bool,
    pub qos: Vec<u8>,
    /// Of a publish.
    pub retain: Option<bool>,
    pub addresses: Vec<RangeInclusive<IpAddr>>,
    pub listeners: Vec<String>,
    pub query: Option<Arc<Query>>,
    /// Where it stands, for explanations.
    pub line: usize,
}

/// Where a client is connected. What is not known any more may be anything: then rules that ask for
/// it deny, and allow nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place<'a> {
    pub address: Option<IpAddr>,
    /// Empty: not known.
    pub listener: &'a str,
}

/// How something is published, or asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    pub qos: u8,
    pub retain: bool,
}

/// All rules of a broker.
#[derive(Clone, Debug, Default)]
pub(super) struct OrderedRules {
    rules: Arc<[Compiled]>,
    /// If all are for everybody: what everybody has.
    common: Option<Active>,
}

/// Those that are for one client.
pub(super) type Active = Arc<[Rule]>;

#[derive(Clone, Debug)]
struct Compiled {
    rule: Rule,
    templates: Box<[Template]>,
    addresses: Box<[RangeInclusive<IpAddr>]>,
    listeners: Box<[Box<str>]>,
    query: Option<Arc<Query>>,
}

/// What is asked of a message.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) allows: bool,
    pub(super) line: u32,
    publish: bool,
    subscribe: bool,
    /// A bit for each QoS that it is about.
    qos: u8,
    retain: Option<bool>,
    patterns: Arc<[Pattern]>,
    exact: Arc<[Box<str>]>,
    is_about_every_topic: bool,
}

const ANY_QOS: u8 = 0b111;

impl OrderedRules {
    /// The error has the place of the rule in the list.
    pub(super) fn compile(rules: &[OrderedRule]) -> Result<Self, RuleError> {
        let compile = |(index, rule): (usize, &OrderedRule)| {
            Compiled::new(rule).map_err(|(filter, detail)| RuleError { index, filter, detail })
        };
        let rules: Vec<Compiled> =
            rules.iter().enumerate().map(compile).collect::<Result<_, _>>()?;
        let is_common = rules.iter().all(Compiled::is_common);
        let common = is_common.then(|| rules.iter().map(|it| it.rule.clone()).collect());
        Ok(Self { rules: rules.into(), common })
    }

    /// What everybody has, if all are for everybody and there are some.
    pub(super) fn common(&self) -> Option<Active> {
        self.common.clone().filter(|rules| !rules.is_empty())
    }

    /// Does it take more than a name to know which are for a client?
    pub(super) fn heeds_principals(&self) -> bool {
        self.common.is_none()
    }

    /// Those for a client, behind its own. None: it has what everybody has. Without attributes
    /// nobody knows what it has been given.
    pub(super) fn of(
        &self,
        own: &[OrderedRule],
        identity: Identity<'_>,
        attributes: Option<&Attributes>,
        place: Place<'_>,
    ) -> Option<Active> {
        if own.is_empty() && (self.common.is_some() || self.rules.is_empty()) {
            return None;
        }
        // Who took them has checked them.
        let personal = Self::compile(own).unwrap_or_default();
        let mut asked = Asked::default();
        let mut own = Vec::new();
        for compiled in personal.rules.iter().chain(&*self.rules) {
            let Some(attributes) = attributes else {
                own.extend(compiled.rule_in_doubt(identity).filter(|_| compiled.holds_at(place)));
                continue;
            };
            let holds = asked.holds(compiled.query.as_ref(), identity, attributes);
            if holds && compiled.holds_at(place) {
                own.extend(compiled.rule_of(attributes));
            }
        }
        (!own.is_empty()).then(|| own.into())
    }

    /// Is there one of which nobody knows whether it is for a client there?
    pub(super) fn is_in_doubt(&self, own: &[OrderedRule], place: Place<'_>) -> bool {
        if place.address.is_none() && own.iter().any(|rule| !rule.addresses.is_empty()) {
            return true;
        }
        self.rules.iter().any(|rule| {
            !rule.addresses.is_empty() && place.address.is_none()
                || !rule.listeners.is_empty() && place.listener.is_empty()
        })
    }
}

impl Compiled {
    fn new(rule: &OrderedRule) -> Result<Self, (String, &'static str)> {
        let (mut patterns, mut templates) = (Vec::new(), Vec::new());
        for filter in &rule.filters {
            let fail = |detail| (filter.clone(), detail);
            match Template::of(Permission::ReadWrite, filter).map_err(fail)? {
                Some(template) => templates.push(template),
                None => patterns.push(Pattern::compile(filter, true).map_err(fail)?),
            }
        }
        for filter in &rule.exact_filters {
            Pattern::compile(filter, false).map_err(|detail| (filter.clone(), detail))?;
        }
        let qos = rule.qos.iter().fold(0, |bits, qos| bits | 1 << qos.min(&7));
        let compiled = Rule {
            allows: rule.allows,
            line: rule.line as u32,
            publish: rule.publish,
            subscribe: rule.subscribe,
            qos: if qos == 0 { ANY_QOS } else { qos },
            retain: rule.retain,
            patterns: patterns.into(),
            exact: rule.exact_filters.iter().map(|filter| filter.as_str().into()).collect(),
            is_about_every_topic: rule.is_about_every_topic,
        };
        Ok(Self {
            rule: compiled,
            templates: templates.into(),
            addresses: rule.addresses.clone().into(),
            listeners: rule.listeners.iter().map(|name| name.as_str().into()).collect(),
            query: rule.query.clone(),
        })
    }

    fn is_common(&self) -> bool {
        self.templates.is_empty()
            && self.addresses.is_empty()
            && self.listeners.is_empty()
            && self.query.is_none()
    }

    fn holds_at(&self, place: Place<'_>) -> bool {
        let in_doubt = !self.rule.allows;
        let is_there = match place.address {
            _ if self.addresses.is_empty() => true,
            Some(address) => {
                let address = address.to_canonical();
                self.addresses.iter().any(|range| range.contains(&address))
            }
            None => in_doubt,
        };
        let is_by = match place.listener {
            _ if self.listeners.is_empty() => true,
            "" => in_doubt,
            listener => self.listeners.iter().any(|own| **own == *listener),
        };
        is_there && is_by
    }

    /// For a client whose attributes nobody knows: what may be allowed to it is not, and what may
    /// be denied is.
    fn rule_in_doubt(&self, identity: Identity<'_>) -> Option<Rule> {
        let none = Attributes::default();
        let holds = match &self.query {
            Some(query) if query.asks_attributes() => !self.rule.allows,
            Some(query) => query.holds(identity, &none),
            None => true,
        };
        match holds {
            false => None,
            true if self.rule.allows => self.rule_of(&none),
            true => {
                let widest = self.templates.iter().filter_map(Template::widest_pattern);
                let patterns = self.rule.patterns.iter().cloned().chain(widest).collect();
                Some(Rule { patterns, ..self.rule.clone() })
            }
        }
    }

    /// With the attributes of a client put in. None: it lacks what all its filters ask for.
    fn rule_of(&self, attributes: &Attributes) -> Option<Rule> {
        if self.templates.is_empty() {
            return Some(self.rule.clone());
        }
        let mut patterns = self.rule.patterns.to_vec();
        self.templates.iter().for_each(|it| it.each_pattern(attributes, |own| patterns.push(own)));
        let is_left = !patterns.is_empty() || !self.rule.exact.is_empty();
        is_left.then(|| Rule { patterns: patterns.into(), ..self.rule.clone() })
    }
}

impl Rule {
    fn touches(&self, identity: Identity<'_>, filter: &str) -> bool {
        let own = |pattern: &Pattern| {
            pattern.text_for(identity).is_some_and(|own| overlaps(&own, filter))
        };
        self.is_about_every_topic || self.patterns.iter().any(own)
    }

    fn holds(&self, identity: Identity<'_>, filter: &str) -> bool {
        let own = |pattern: &Pattern| {
            pattern.text_for(identity).is_some_and(|own| contains(&own, filter))
        };
        self.is_about_every_topic || self.patterns.iter().any(own)
    }

    fn matches(&self, identity: Identity<'_>, topic: &str) -> bool {
        self.is_about_every_topic
            || self.patterns.iter().any(|pattern| pattern.matches(identity, topic))
    }

    const fn is_about_qos(&self, qos: u8) -> bool {
        self.qos & (1 << qos) != 0
    }
}

/// The rule that decides a publish.
pub(super) fn on_publish<'a>(
    rules: &'a [Rule],
    identity: Identity<'_>,
    topic: &str,
    manner: Manner,
) -> Option<&'a Rule> {
    rules.iter().find(|rule| {
        rule.publish
            && rule.is_about_qos(manner.qos)
            && rule.retain.is_none_or(|retain| retain == manner.retain)
            && rule.matches(identity, topic)
    })
}

/// The rule that decides whether a message is received. One that denies some QoS only is about what
/// is asked for; what one allows at some QoS may be received, for it was asked for so.
pub(super) fn on_receive<'a>(
    rules: &'a [Rule],
    identity: Identity<'_>,
    topic: &str,
) -> Option<&'a Rule> {
    rules.iter().find(|rule| rule.decides_messages() && rule.matches(identity, topic))
}

/// The rule that decides a SUBSCRIBE: whether some topic of its filter may be received.
pub(super) fn on_subscribe<'a>(
    rules: &'a [Rule],
    identity: Identity<'_>,
    filter: &str,
    qos: u8,
) -> Option<&'a Rule> {
    let filter = without_share(filter);
    rules.iter().find(|rule| {
        rule.subscribe
            && rule.is_about_qos(qos)
            && (rule.exact.iter().any(|own| **own == *filter)
                || if rule.allows {
                    rule.touches(identity, filter)
                } else {
                    rule.holds(identity, filter)
                })
    })
}

/// Do they let all topics of a filter be received, or do they keep any from it? None: what they say
/// nothing of is for others to say.
pub(super) fn cover(rules: &[Rule], identity: Identity<'_>, filter: &str) -> Option<bool> {
    for rule in rules.iter().filter(|rule| rule.decides_messages()) {
        if !rule.allows && rule.touches(identity, filter) {
            return Some(false);
        }
        if rule.allows && rule.holds(identity, filter) {
            return Some(true);
        }
    }
    None
}

impl Rule {
    const fn decides_messages(&self) -> bool {
        self.subscribe && (self.allows || self.qos == ANY_QOS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Access, Action, Grants, Rule as Plain, Who};
    use super::*;
    use crate::{Attribute, Principal};

    const ANNA: Identity<'static> = Identity { client_id: "c1", username: Some("anna") };
    const NEAR: Place<'static> = Place { address: None, listener: "inside" };

    fn rule(allows: bool, what: &str, filters: &[&str]) -> OrderedRule {
        OrderedRule {
            allows,
            publish: what != "subscribe",
            subscribe: what != "publish",
            filters: filters.iter().map(|filter| (*filter).to_owned()).collect(),
            ..OrderedRule::default()
        }
    }

    fn grants_at(rules: &[OrderedRule], place: Place<'_>) -> Grants {
        let access = Access::compile(&[]).unwrap().in_order(rules).unwrap();
        access.grants_of(ANNA, None, place)
    }

    fn grants(rules: &[OrderedRule]) -> Grants {
        grants_at(rules, NEAR)
    }

    fn may(grants: &Grants, action: Action, topic: &str) -> bool {
        grants.allows(ANNA, action, topic)
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let rules = [
            rule(true, "all", &["a/open"]),
            rule(false, "publish", &["a/#"]),
            rule(true, "all", &["a/+", "%u/%c"]),
        ];
        let grants = grants(&rules);
        assert!(may(&grants, Action::Publish, "a/open"));
        assert!(!may(&grants, Action::Publish, "a/b"));
        assert!(may(&grants, Action::Receive, "a/b") && may(&grants, Action::Publish, "anna/c1"));
        assert!(!may(&grants, Action::Publish, "elsewhere"), "what nothing grants is denied");
        assert!(!may(&grants, Action::Publish, "$SYS/x"));
    }

    #[test]
    fn of_whom_nobody_knows_the_attributes_what_may_be_denied_is() {
        let of = |text: &str, rule: OrderedRule| OrderedRule {
            query: Some(Arc::new(Query::parse(text).unwrap())),
            ..rule
        };
        let rules = [
            of("attributes.floor = '1'", rule(false, "all", &["floor/#"])),
            of("user = 'bob'", rule(false, "all", &["bob/#"])),
            rule(false, "all", &["at/%{attributes.site}/x"]),
            of("not attributes.floor = '1'", rule(true, "all", &["granted/#"])),
            rule(false, "all", &["granted/#"]),
            rule(true, "all", &["#"]),
        ];
        let access = Access::compile(&[]).unwrap().in_order(&rules).unwrap();
        let unknown = Principal { is_unknown: true, ..Principal::default() };
        let grants = access.grants_of(ANNA, Some(&unknown), NEAR);
        for topic in ["floor/a", "at/berlin/x", "granted/a"] {
            assert!(!may(&grants, Action::Publish, topic), "{topic}");
            assert!(may(&grants, Action::Receive, topic), "{topic}");
        }
        for topic in ["bob/a", "at/berlin/y"] {
            assert!(may(&grants, Action::Publish, topic), "{topic}");
        }
        let known = access.grants_of(ANNA, Some(&Principal::default()), NEAR);
        assert!(
            may(&known, Action::Publish, "floor/a") && may(&known, Action::Publish, "granted/a")
        );
    }

    #[test]
    fn denials_of_the_access_file_come_first_and_its_grants_last() {
        let plain = |permission, filter: &str| Plain {
            who: Who::Everyone,
            permission,
            filter: filter.into(),
        };
        let listed = [plain(Permission::ReadWrite, "#"), plain(Permission::Deny, "secret/#")];
        let rules = [rule(true, "all", &["secret/#"]), rule(false, "all", &["b/#"])];
        let access = Access::compile(&listed).unwrap().in_order(&rules).unwrap();
        let grants = access.grants_of(ANNA, None, NEAR);
        assert!(
            !may(&grants, Action::Publish, "secret/x") && !may(&grants, Action::Receive, "b/x")
        );
        assert!(may(&grants, Action::Publish, "c"));
    }

    #[test]
    fn qos_and_retain_are_asked_of_what_is_published_and_asked_for() {
        let mut no_qos_2 = rule(false, "all", &["#"]);
        no_qos_2.qos = vec![2];
        let mut no_retain = rule(false, "publish", &["#"]);
        no_retain.retain = Some(true);
        let grants = grants(&[no_qos_2, no_retain, rule(true, "all", &["#"])]);
        let may_as =
            |action, qos, retain| grants.allows_as(ANNA, action, "t", Manner { qos, retain });
        assert!(may_as(Action::Publish, 1, false) && !may_as(Action::Publish, 1, true));
        assert!(!may_as(Action::Publish, 2, false));
        assert!(may_as(Action::Subscribe, 1, false) && !may_as(Action::Subscribe, 2, false));
        assert!(may_as(Action::Receive, 2, false) && grants.covers(ANNA, "t"));
        // What was granted at QoS 0 is received.
        let mut only_qos_0 = rule(true, "subscribe", &["a/#"]);
        only_qos_0.qos = vec![0];
        let grants = grants_at(&[only_qos_0], NEAR);
        let asks =
            |qos| grants.allows_as(ANNA, Action::Subscribe, "a/b", Manner { qos, retain: false });
        assert!(asks(0) && !asks(1) && may(&grants, Action::Receive, "a/b"));
    }

    #[test]
    fn rules_are_for_addresses_listeners_groups_and_attributes() {
        let range = |first: &str, last: &str| first.parse().unwrap()..=last.parse().unwrap();
        let mut from_outside = rule(false, "publish", &["#"]);
        from_outside.listeners = vec!["outside".into()];
        let mut from_there = rule(true, "publish", &["there"]);
        from_there.addresses = vec![range("10.0.0.0", "10.255.255.255")];
        let mut of_fleet = rule(true, "publish", &["fleet", "vehicles/%{attributes.vin}"]);
        of_fleet.query = Some(Arc::new(Query::parse("attributes.type = 'car'").unwrap()));
        let rules = [from_outside, from_there, of_fleet];
        let access = Access::compile(&[]).unwrap().in_order(&rules).unwrap();
        let text = |text: &str| Attribute::Text(text.into());
        let attributes =
            Attributes::new(vec![("type".into(), text("car")), ("vin".into(), text("v7"))]);
        let car = Principal { attributes, ..Principal::default() };
        let told = |principal: Option<&Principal>, address: &str, listener, topic| {
            let place = Place { address: address.parse().ok(), listener };
            access.grants_of(ANNA, principal, place).allows(ANNA, Action::Publish, topic)
        };
        assert!(told(None, "::ffff:10.1.2.3", "inside", "there"));
        assert!(!told(None, "11.0.0.1", "inside", "there"));
        assert!(!told(None, "10.1.2.3", "outside", "there"));
        assert!(told(Some(&car), "11.0.0.1", "inside", "fleet"));
        assert!(told(Some(&car), "11.0.0.1", "inside", "vehicles/v7"));
        assert!(!told(Some(&car), "11.0.0.1", "inside", "vehicles/v8"));
        assert!(!told(None, "11.0.0.1", "inside", "fleet"));
        // Where nobody knows, denials hold and grants do not; what waits is kept until it is known.
        let unknown = access.grants_of(ANNA, Some(&car), Place::default());
        assert!(!may(&unknown, Action::Publish, "fleet") && may(&unknown, Action::Receive, "x"));
        let superuser = Principal { is_superuser: true, ..Principal::default() };
        assert!(told(Some(&superuser), "11.0.0.1", "outside", "any"));
    }

    #[test]
    fn one_filter_can_be_kept_from_being_subscribed() {
        let mut no_all = rule(false, "subscribe", &[]);
        no_all.exact_filters = vec!["#".into(), "+/#".into()];
        let grants = grants(&[no_all, rule(true, "subscribe", &["#"])]);
        assert!(!may(&grants, Action::Subscribe, "#") && !may(&grants, Action::Subscribe, "+/#"));
        assert!(!may(&grants, Action::Subscribe, "$share/g/#"));
        assert!(may(&grants, Action::Subscribe, "a/#") && may(&grants, Action::Receive, "a/b"));
    }

    #[test]
    fn a_denial_is_told_with_its_line() {
        let mut first = rule(false, "publish", &["a"]);
        first.line = 17;
        let grants = grants(&[first]);
        let why = |topic| grants.why_denied(ANNA, Action::Publish, topic, Manner::default());
        assert!(why("a").contains("line 17"));
        assert_eq!(&*why("b"), "no rule grants it");
    }

    #[test]
    fn a_filter_that_is_not_valid_is_told_with_its_rule() {
        let rules = [rule(true, "all", &["a"]), rule(true, "all", &["b", "a#"])];
        let error = Access::compile(&[]).unwrap().in_order(&rules).unwrap_err();
        assert_eq!((error.index, error.filter.as_str()), (1, "a#"));
    }

    fn filter() -> impl Strategy<Value = String> {
        let level = prop_oneof![Just("a"), Just("b"), Just("+")];
        let levels = proptest::collection::vec(level, 1..4);
        (levels, any::<bool>()).prop_map(|(levels, is_open)| {
            let text = levels.join("/");
            if is_open { format!("{text}/#") } else { text }
        })
    }

    #[test]
    fn rules_of_a_credential_come_first_and_hold_where_there_are_no_others() {
        let rules = [rule(false, "publish", &["a/closed"]), rule(true, "all", &["a/#", "own/%c"])];
        let with = |is_superuser| Principal {
            rules: rules.to_vec().into(),
            is_superuser,
            ..Principal::default()
        };
        let open = Access::open().grants_of(ANNA, Some(&with(false)), NEAR);
        assert!(!may(&open, Action::Publish, "a/closed") && may(&open, Action::Publish, "a/x"));
        assert!(may(&open, Action::Publish, "b"), "no rule is about it, and there are no others");
        assert!(may(&open, Action::Subscribe, "#") && open.covers(ANNA, "#") && !open.is_open());
        let why = open.why_denied(ANNA, Action::Publish, "a/closed", Manner::default());
        assert_eq!(&*why, "a rule of its credential");
        let listed = [rule(false, "all", &["own/#"])];
        let access = Access::compile(&[]).unwrap().in_order(&listed).unwrap();
        let both = access.grants_of(ANNA, Some(&with(false)), NEAR);
        assert!(may(&both, Action::Publish, "own/c1") && !may(&both, Action::Publish, "own/c2"));
        assert!(!may(&both, Action::Publish, "b"));
        let superuser = access.grants_of(ANNA, Some(&with(true)), NEAR);
        assert!(may(&superuser, Action::Publish, "a/closed") && superuser.is_open());
    }

    proptest! {
        #[test]
        fn what_is_asked_for_a_filter_agrees_with_what_is_asked_for_its_topics(
            rules in proptest::collection::vec((any::<bool>(), filter()), 0..6),
            asked in filter(),
            topic in proptest::collection::vec(prop_oneof![Just("a"), Just("b"), Just("c")], 1..4),
        ) {
            let rules: Vec<_> =
                rules.iter().map(|(allows, text)| rule(*allows, "subscribe", &[text])).collect();
            let grants = grants(&rules);
            let topic = topic.join("/");
            let naive = rules.iter().find(|it| contains(&it.filters[0], &topic));
            let allowed = may(&grants, Action::Receive, &topic);
            prop_assert_eq!(allowed, naive.is_some_and(|it| it.allows));
            if contains(&asked, &topic) {
                prop_assert!(allowed || !grants.covers(ANNA, &asked));
                prop_assert!(!allowed || may(&grants, Action::Subscribe, &asked));
            }
        }
    }
}
