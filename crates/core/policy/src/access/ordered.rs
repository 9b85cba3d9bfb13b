//! Rules in their order: the first that is about what a client does decides it, whatever others
//! grant. Which of them are for a client is found out when it connects; what is left to ask of a
//! message are topic, QoS and retain flag.

use core::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::pattern::Pattern;
use super::{Action, DecidingRule, Identity, Origin, RuleError, Source, without_share};
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
pub struct ClientLocation<'a> {
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

/// Rules that only one client has, ready to be asked: its credential has brought them.
#[derive(Clone, Debug, Default)]
pub struct OwnRules(Arc<[Compiled]>);

/// All rules of a broker.
#[derive(Clone, Debug, Default)]
pub(super) struct OrderedRules {
    rules: Arc<[Compiled]>,
    /// If all are for everybody: what everybody has.
    common: Option<Active>,
}

/// Those that are for one client. It shares them with the others that they are for.
pub(super) type Active = Arc<[Arc<Rule>]>;

#[derive(Clone, Debug)]
struct Compiled {
    rule: Arc<Rule>,
    addresses: Box<[RangeInclusive<IpAddr>]>,
    listeners: Box<[Box<str>]>,
    query: Option<Arc<Query>>,
}

/// What is asked of a message.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) allows: bool,
    line: u32,
    publish: bool,
    subscribe: bool,
    /// A bit for each QoS that it is about.
    qos: u8,
    retain: Option<bool>,
    patterns: Box<[Pattern]>,
    exact: Box<[Box<str>]>,
    is_about_every_topic: bool,
    /// What it takes to ask it.
    steps: u32,
}

const ANY_QOS: u8 = 0b111;

impl OrderedRules {
    pub(super) fn compile(rules: &[OrderedRule]) -> Result<Self, RuleError> {
        let rules = compile(rules)?;
        let is_common = rules.iter().all(Compiled::is_common);
        let common = is_common.then(|| rules.iter().map(|it| it.rule.clone()).collect());
        Ok(Self { rules, common })
    }

    /// What everybody has, if all are for everybody and there are some.
    pub(super) fn common(&self) -> Option<Active> {
        self.common.clone().filter(|rules| !rules.is_empty())
    }

    /// Does it take more than a name to know which are for a client, or what they are for it?
    pub(super) fn heeds_principals(&self) -> bool {
        let asks =
            |compiled: &Compiled| compiled.rule.patterns.iter().any(Pattern::asks_attributes);
        self.common.is_none() || self.rules.iter().any(asks)
    }

    /// Those for a client, behind its own. None: it has what everybody has.
    pub(super) fn of(&self, who: Identity<'_>, place: ClientLocation<'_>) -> Option<Active> {
        let own = who.own_rules();
        if own.is_empty() && (self.common.is_some() || self.rules.is_empty()) {
            return None;
        }
        let mut asked = Asked::default();
        let all = own.iter().chain(&*self.rules);
        let are_for_it = all.filter(|it| it.holds_for(who, &mut asked) && it.holds_at(place));
        let active: Vec<_> = are_for_it.map(|compiled| compiled.rule.clone()).collect();
        (!active.is_empty()).then(|| active.into())
    }

    /// Is there one of which nobody knows whether it is for a client there?
    pub(super) fn is_in_doubt(&self, who: Identity<'_>, place: ClientLocation<'_>) -> bool {
        if place.address.is_none() && who.own_rules().iter().any(|it| !it.addresses.is_empty()) {
            return true;
        }
        self.rules.iter().any(|rule| {
            !rule.addresses.is_empty() && place.address.is_none()
                || !rule.listeners.is_empty() && place.listener.is_empty()
        })
    }
}

impl OwnRules {
    /// # Errors
    ///
    /// The first rule with a filter that is not valid.
    pub fn compile(rules: &[OrderedRule]) -> Result<Self, RuleError> {
        compile(rules).map(Self)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(Compiled::bytes).sum()
    }
}

/// Rules are the same if one is a copy of the other.
impl PartialEq for OwnRules {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.is_empty() && other.is_empty()
    }
}

impl<'a> Identity<'a> {
    fn own_rules(self) -> &'a [Compiled] {
        self.principal.map_or(&[], |principal| &principal.rules.0)
    }
}

/// The query that a client was last asked for: rules of one group follow each other.
#[derive(Default)]
struct Asked<'a> {
    latest: Option<(&'a Arc<Query>, bool)>,
}

impl<'a> Asked<'a> {
    fn holds(&mut self, query: &'a Arc<Query>, who: Identity<'_>) -> bool {
        match self.latest {
            Some((same, held)) if Arc::ptr_eq(query, same) => held,
            _ => {
                let holds = query.holds(who);
                self.latest = Some((query, holds));
                holds
            }
        }
    }
}

/// The error has the place of the rule in the list.
fn compile(rules: &[OrderedRule]) -> Result<Arc<[Compiled]>, RuleError> {
    let compile = |(index, rule): (usize, &OrderedRule)| {
        Compiled::new(rule).map_err(|(filter, detail)| RuleError { index, filter, detail })
    };
    rules.iter().enumerate().map(compile).collect()
}

impl Compiled {
    fn new(rule: &OrderedRule) -> Result<Self, (String, &'static str)> {
        let compile = |filter: &String, is_pattern| {
            let compiled = Pattern::compile(filter, is_pattern, !rule.allows);
            compiled.map_err(|detail| (filter.clone(), detail))
        };
        let patterns = rule.filters.iter().map(|filter| compile(filter, true));
        let patterns = patterns.collect::<Result<Box<[_]>, _>>()?;
        for filter in &rule.exact_filters {
            compile(filter, false)?;
        }
        let qos = rule.qos.iter().fold(0, |bits, qos| bits | 1 << qos.min(&7));
        let compiled = Rule {
            allows: rule.allows,
            line: rule.line as u32,
            publish: rule.publish,
            subscribe: rule.subscribe,
            qos: if qos == 0 { ANY_QOS } else { qos },
            retain: rule.retain,
            steps: patterns.iter().map(Pattern::steps).sum::<u32>()
                + rule.exact_filters.len() as u32
                + 1,
            patterns,
            exact: rule.exact_filters.iter().map(|filter| filter.as_str().into()).collect(),
            is_about_every_topic: rule.is_about_every_topic,
        };
        Ok(Self {
            rule: compiled.into(),
            addresses: rule.addresses.clone().into(),
            listeners: rule.listeners.iter().map(|name| name.as_str().into()).collect(),
            query: rule.query.clone(),
        })
    }

    fn bytes(&self) -> usize {
        let rule = &*self.rule;
        let patterns: usize = rule.patterns.iter().map(Pattern::bytes).sum();
        let texts = rule.exact.iter().chain(&self.listeners);
        let texts = texts.map(|text| size_of_val(text) + text.len()).sum::<usize>();
        size_of::<Self>() + size_of::<Rule>() + patterns + texts + size_of_val(&*self.addresses)
    }

    fn is_common(&self) -> bool {
        self.addresses.is_empty() && self.listeners.is_empty() && self.query.is_none()
    }

    /// If nobody knows the attributes: what may be denied is, and what may be allowed is not.
    fn holds_for<'a>(&'a self, who: Identity<'_>, asked: &mut Asked<'a>) -> bool {
        match &self.query {
            None => true,
            Some(query) if who.is_unknown() && query.asks_attributes() => !self.rule.allows,
            Some(query) => asked.holds(query, who),
        }
    }

    fn holds_at(&self, place: ClientLocation<'_>) -> bool {
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
}

impl Rule {
    /// For people. Rules of a credential have no line.
    pub(super) fn deciding(
        &self,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
    ) -> DecidingRule {
        let is_meant = |pattern: &&Pattern| match action {
            Action::Subscribe if self.allows => pattern.overlaps(identity, topic),
            _ => pattern.matches(identity, topic),
        };
        let filter = self.patterns.iter().find(is_meant).map(|pattern| &*pattern.text);
        let exact = || self.exact.iter().find(|own| ***own == *topic).map(|own| &**own);
        let filter = filter.or_else(exact).unwrap_or_default().into();
        let source = if self.line == 0 { Source::Credential } else { Source::PolicyFile };
        let origin = Origin { source, line: self.line, name: None };
        DecidingRule { allows: self.allows, filter, origin }
    }

    pub(super) const fn steps(&self) -> u32 {
        self.steps
    }

    /// Is it about some topic of the filter?
    fn touches(&self, identity: Identity<'_>, filter: &str) -> bool {
        let touches = |pattern: &Pattern| pattern.overlaps(identity, filter);
        self.is_about_every_topic || self.patterns.iter().any(touches)
    }

    /// Is it about the topic, or each topic of the filter?
    fn matches(&self, identity: Identity<'_>, topic: &str) -> bool {
        let matches = |pattern: &Pattern| pattern.matches(identity, topic);
        self.is_about_every_topic || self.patterns.iter().any(matches)
    }

    const fn is_about_qos(&self, qos: u8) -> bool {
        self.qos & (1 << qos) != 0
    }
}

/// The rule that decides a publish.
pub(super) fn on_publish<'a>(
    rules: &'a [Arc<Rule>],
    identity: Identity<'_>,
    topic: &str,
    manner: Manner,
) -> Option<&'a Rule> {
    rules.iter().map(|rule| &**rule).find(|rule| {
        rule.publish
            && rule.is_about_qos(manner.qos)
            && rule.retain.is_none_or(|retain| retain == manner.retain)
            && rule.matches(identity, topic)
    })
}

/// The rule that decides whether a message is received. One that denies some QoS only is about what
/// is asked for; what one allows at some QoS may be received, for it was asked for so.
pub(super) fn on_receive<'a>(
    rules: &'a [Arc<Rule>],
    identity: Identity<'_>,
    topic: &str,
) -> Option<&'a Rule> {
    rules
        .iter()
        .map(|rule| &**rule)
        .find(|rule| rule.decides_messages() && rule.matches(identity, topic))
}

/// The rule that decides a SUBSCRIBE: whether some topic of its filter may be received. If
/// `is_whole` one that allows a part of the filter decides nothing.
pub(super) fn on_subscribe<'a>(
    rules: &'a [Arc<Rule>],
    identity: Identity<'_>,
    filter: &str,
    qos: u8,
    is_whole: bool,
) -> Option<&'a Rule> {
    let filter = without_share(filter);
    rules.iter().map(|rule| &**rule).find(|rule| {
        rule.subscribe
            && rule.is_about_qos(qos)
            && (rule.exact.iter().any(|own| **own == *filter)
                || if rule.allows && !is_whole {
                    rule.touches(identity, filter)
                } else {
                    rule.matches(identity, filter)
                })
    })
}

/// Do they let all topics of a filter be received, or do they keep any from it? None: what they say
/// nothing of is for others to say.
pub(super) fn cover(rules: &[Arc<Rule>], identity: Identity<'_>, filter: &str) -> Option<bool> {
    for rule in rules.iter().filter(|rule| rule.decides_messages()) {
        if !rule.allows && rule.touches(identity, filter) {
            return Some(false);
        }
        if rule.allows && rule.matches(identity, filter) {
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

    use super::super::{Access, Action, Grants, Permission, Rule as Plain, Who};
    use super::*;
    use crate::{Attribute, Attributes, Principal};

    const ANNA: Identity<'static> = Identity::new("c1", Some("anna"));
    const NEAR: ClientLocation<'static> = ClientLocation { address: None, listener: "inside" };

    fn rule(allows: bool, what: &str, filters: &[&str]) -> OrderedRule {
        OrderedRule {
            allows,
            publish: what != "subscribe",
            subscribe: what != "publish",
            filters: filters.iter().map(|filter| (*filter).to_owned()).collect(),
            ..OrderedRule::default()
        }
    }

    fn grants_at(rules: &[OrderedRule], place: ClientLocation<'_>) -> Grants {
        let access = Access::compile(&[]).unwrap().in_order(rules).unwrap();
        access.grants_of(ANNA, place)
    }

    fn grants(rules: &[OrderedRule]) -> Grants {
        grants_at(rules, NEAR)
    }

    fn may(grants: &Grants, action: Action, topic: &str) -> bool {
        grants.allows(ANNA, action, topic)
    }

    fn anna(principal: &Principal) -> Identity<'_> {
        Identity { principal: Some(principal), ..ANNA }
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
        let grants = access.grants_of(anna(&unknown), NEAR);
        for topic in ["floor/a", "at/berlin/x", "granted/a"] {
            assert!(!grants.allows(anna(&unknown), Action::Publish, topic), "{topic}");
            assert!(grants.allows(anna(&unknown), Action::Receive, topic), "{topic}");
        }
        for topic in ["bob/a", "at/berlin/y"] {
            assert!(grants.allows(anna(&unknown), Action::Publish, topic), "{topic}");
        }
        let known = access.grants_of(anna(&Principal::default()), NEAR);
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
        let grants = access.grants_of(ANNA, NEAR);
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
        let applies = |principal: Option<&Principal>, address: &str, listener, topic| {
            let place = ClientLocation { address: address.parse().ok(), listener };
            let who = Identity { principal, ..ANNA };
            access.grants_of(who, place).allows(who, Action::Publish, topic)
        };
        assert!(applies(None, "::ffff:10.1.2.3", "inside", "there"));
        assert!(!applies(None, "11.0.0.1", "inside", "there"));
        assert!(!applies(None, "10.1.2.3", "outside", "there"));
        assert!(applies(Some(&car), "11.0.0.1", "inside", "fleet"));
        assert!(applies(Some(&car), "11.0.0.1", "inside", "vehicles/v7"));
        assert!(!applies(Some(&car), "11.0.0.1", "inside", "vehicles/v8"));
        assert!(!applies(None, "11.0.0.1", "inside", "fleet"));
        // Where nobody knows, denials hold and grants do not; what waits is kept until it is known.
        let unknown = access.grants_of(anna(&car), ClientLocation::default());
        assert!(!may(&unknown, Action::Publish, "fleet") && may(&unknown, Action::Receive, "x"));
        let superuser = Principal { is_superuser: true, ..Principal::default() };
        assert!(applies(Some(&superuser), "11.0.0.1", "outside", "any"));
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
    fn a_denial_is_reported_with_its_line() {
        let mut first = rule(false, "publish", &["a"]);
        first.line = 17;
        let grants = grants(&[first]);
        let why = |topic| grants.why_denied(ANNA, Action::Publish, topic, Manner::default());
        assert!(why("a").contains("line 17"));
        assert_eq!(&*why("b"), "no rule grants it");
    }

    #[test]
    fn a_filter_that_is_not_valid_is_reported_with_its_rule() {
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
            rules: OwnRules::compile(&rules).unwrap(),
            is_superuser,
            ..Principal::default()
        };
        let open = Access::open().grants_of(anna(&with(false)), NEAR);
        assert!(!may(&open, Action::Publish, "a/closed") && may(&open, Action::Publish, "a/x"));
        assert!(may(&open, Action::Publish, "b"), "no rule is about it, and there are no others");
        assert!(may(&open, Action::Subscribe, "#") && open.covers(ANNA, "#") && !open.is_open());
        let why = open.why_denied(ANNA, Action::Publish, "a/closed", Manner::default());
        assert_eq!(&*why, "a rule of its credential");
        let listed = [rule(false, "all", &["own/#"])];
        let access = Access::compile(&[]).unwrap().in_order(&listed).unwrap();
        let both = access.grants_of(anna(&with(false)), NEAR);
        assert!(may(&both, Action::Publish, "own/c1") && !may(&both, Action::Publish, "own/c2"));
        assert!(!may(&both, Action::Publish, "b"));
        let superuser = access.grants_of(anna(&with(true)), NEAR);
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
            let contains = |filter: &str, topic: &str| {
                Pattern::compile(filter, false, false).unwrap().matches(ANNA, topic)
            };
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
