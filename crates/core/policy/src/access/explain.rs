//! What decides whether a client may do something, for people.

use std::sync::Arc;

use super::{
    Action, Grants, Identity, Manner, READ, WRITE, is_broker_topic, ordered, why_reserved,
    without_share,
};

/// Whether a client may do something, and what decides it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// As [`Grants::allows_as`] answers.
    pub is_allowed: bool,
    pub decider: Decider,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decider {
    /// No rules are in force.
    NoRules,
    /// The credential says that rules do not apply to its client.
    Superuser,
    /// Every SUBSCRIBE is accepted, and deliveries are checked.
    AllSubscriptionsAccepted,
    /// The attributes are unknown until the client is back; messages are kept for it.
    UnknownAttributes,
    /// The topic belongs to the broker, or has a meaning of its own ([`topic::reserved`]).
    BrokerTopic,
    Rule(DecidingRule),
    /// No rule decides it, so a service is asked.
    Service,
    /// No rule grants it.
    NoGrant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidingRule {
    pub allows: bool,
    /// Its filter that the topic matches; empty: it is about every topic.
    pub filter: Box<str>,
    pub origin: Origin,
}

/// Where a rule stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pub source: Source,
    /// From 1; 0: it has none.
    pub line: u32,
    /// What its source calls it.
    pub name: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    #[default]
    Unknown,
    AccessFile,
    PolicyFile,
    /// The credential of the client has brought it.
    Credential,
}

impl Source {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "rule",
            Self::AccessFile => "access_file",
            Self::PolicyFile => "policy_file",
            Self::Credential => "credential",
        }
    }
}

impl Decider {
    /// One word for it.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::NoRules => "no_rules",
            Self::Superuser => "superuser",
            Self::AllSubscriptionsAccepted => "accept_all_subscriptions",
            Self::UnknownAttributes => "unknown_attributes",
            Self::BrokerTopic => "broker_topic",
            Self::Rule(rule) => rule.origin.source.as_str(),
            Self::Service => "service",
            Self::NoGrant => "default",
        }
    }

    const fn allows(&self) -> bool {
        match self {
            // To receive what it has let a client subscribe to, no question is asked.
            Self::BrokerTopic | Self::NoGrant | Self::Service => false,
            Self::Rule(rule) => rule.allows,
            _ => true,
        }
    }
}

impl Grants {
    /// What [`Self::allows_as`] answers, and why.
    pub fn explain(
        &self,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
        manner: Manner,
    ) -> Explanation {
        let is_allowed = self.allows_as(identity, action, topic, manner);
        let mut decider = self.decider(identity, action, topic, manner);
        if action == Action::Receive && self.receives_all && !decider.allows() {
            decider = Decider::UnknownAttributes;
        }
        let allows = decider.allows() || action == Action::Receive && decider == Decider::Service;
        debug_assert_eq!(allows, is_allowed, "{action:?} {topic}: {decider:?}");
        Explanation { is_allowed, decider }
    }

    /// In the order of what is stronger.
    fn decider(
        &self,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
        manner: Manner,
    ) -> Decider {
        if action == Action::Publish && is_broker_topic(topic) {
            return Decider::BrokerTopic;
        }
        if action == Action::Subscribe && topic::reserved(without_share(topic)).is_some() {
            return Decider::BrokerTopic;
        }
        if self.is_superuser {
            return Decider::Superuser;
        }
        if self.is_open() {
            return Decider::NoRules;
        }
        if action == Action::Subscribe && self.accepts_all_subscriptions {
            return Decider::AllSubscriptionsAccepted;
        }
        let topic = if action == Action::Subscribe { without_share(topic) } else { topic };
        if let Some(pattern) = self.denials().find(|it| it.matches(identity, topic)) {
            return pattern.decider(false);
        }
        let rules = self.ordered().unwrap_or_default();
        let rule = match action {
            Action::Publish => ordered::on_publish(rules, identity, topic, manner),
            Action::Receive => ordered::on_receive(rules, identity, topic),
            Action::Subscribe => {
                ordered::on_subscribe(rules, identity, topic, manner.qos, self.asks_service)
            }
        };
        if let Some(rule) = rule {
            return Decider::Rule(rule.deciding(identity, action, topic));
        }
        if self.is_open {
            return Decider::NoRules;
        }
        let right = if action == Action::Publish { WRITE } else { READ };
        let granted = self.grants_of(right).find(|pattern| match action {
            Action::Subscribe if !self.asks_service => pattern.overlaps(identity, topic),
            _ => pattern.matches(identity, topic),
        });
        match granted {
            Some(pattern) => pattern.decider(true),
            None if self.asks_service => Decider::Service,
            None => Decider::NoGrant,
        }
    }

    /// Why [`Self::allows`] said no, in words: the rule that denies it, or that none grants it.
    pub fn why_denied(
        &self,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
        manner: Manner,
    ) -> Box<str> {
        let filter = if action == Action::Subscribe { without_share(topic) } else { topic };
        match self.decider(identity, action, topic, manner) {
            Decider::BrokerTopic => {
                let why = topic::reserved(filter).map(why_reserved);
                why.unwrap_or("topics below $SYS/ belong to the broker").into()
            }
            Decider::Rule(rule) if !rule.allows => rule.to_string().into(),
            Decider::Service => "the authorization service".into(),
            _ => "no rule grants it".into(),
        }
    }
}

impl std::fmt::Display for DecidingRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = if self.allows { "allow" } else { "deny" };
        let Origin { source, line, .. } = &self.origin;
        match (source, line) {
            (Source::Credential, _) => f.write_str("a rule of its credential"),
            (Source::PolicyFile, line) => write!(f, "the rule in line {line} of the policy file"),
            (Source::AccessFile, line) => {
                write!(f, "{word} {} (line {line} of the access file)", self.filter)
            }
            (Source::Unknown, _) => write!(f, "{word} {}", self.filter),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Access, ClientLocation, OrderedRule, Permission, Rule, Who};
    use super::*;

    const ANNA: Identity<'static> = Identity::new("c1", Some("anna"));

    fn access(rules: &[(Who, Permission, &str)]) -> Access {
        let rules = rules.iter().zip(1..).map(|((who, permission, filter), line)| {
            let (who, permission) = (who.clone(), *permission);
            let rule = Rule { who, permission, filter: (*filter).to_owned() };
            (Origin { source: Source::AccessFile, line, name: None }, rule)
        });
        Access::compile_from(&rules.collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn each_decision_names_the_rule_that_decides_it() {
        let anna = || Who::User("anna".into());
        let rules = access(&[
            (anna(), Permission::Read, "a/#"),
            (Who::Everyone, Permission::Write, "devices/%c/up"),
            (anna(), Permission::Deny, "a/secret"),
        ]);
        let ordered =
            OrderedRule { allows: false, publish: true, line: 9, ..OrderedRule::default() };
        let rule = OrderedRule { filters: vec!["devices/c1/up".into()], ..ordered };
        let plain = rules.grants(Some("anna"));
        let decided = |grants: &Grants, action, topic: &str| {
            let Explanation { is_allowed, decider } =
                grants.explain(ANNA, action, topic, Manner::default());
            let line = match &decider {
                Decider::Rule(rule) => rule.origin.line,
                _ => 0,
            };
            (is_allowed, decider.as_str(), line)
        };
        let of_file = |allowed, line| (allowed, "access_file", line);
        assert_eq!(decided(&plain, Action::Subscribe, "a/+"), of_file(true, 1));
        assert_eq!(decided(&plain, Action::Receive, "a/x"), of_file(true, 1));
        assert_eq!(decided(&plain, Action::Publish, "devices/c1/up"), of_file(true, 2));
        assert_eq!(decided(&plain, Action::Receive, "a/secret"), of_file(false, 3));
        assert_eq!(decided(&plain, Action::Subscribe, "$share/g/a/secret"), of_file(false, 3));
        assert_eq!(decided(&plain, Action::Publish, "a/x"), (false, "default", 0));
        assert_eq!(decided(&plain, Action::Publish, "$SYS/x"), (false, "broker_topic", 0));
        let in_order = rules.clone().in_order(&[rule]).unwrap();
        let grants = in_order.grants_of(ANNA, ClientLocation::default());
        let denied = decided(&grants, Action::Publish, "devices/c1/up");
        assert_eq!(denied, (false, "policy_file", 9));
        let open = Access::open().grants(None);
        assert_eq!(decided(&open, Action::Publish, "x"), (true, "no_rules", 0));
        let lenient = rules.accepting_all_subscriptions(true).grants(Some("anna"));
        let accepted = (true, "accept_all_subscriptions", 0);
        assert_eq!(decided(&lenient, Action::Subscribe, "x"), accepted);
    }

    proptest! {
        /// The assertion in `explain` compares it with what the broker asks.
        #[test]
        fn an_explanation_never_contradicts_the_decision(
            rules in proptest::collection::vec((0..4_usize, 0..3_usize, 0..FILTERS.len()), 0..6),
            ordered in proptest::collection::vec((any::<bool>(), 1..4_u8, 0..FILTERS.len()), 0..3),
            is_open: bool,
            accepts: bool,
            asks: bool,
            topic in 0..FILTERS.len(),
            what in 0..3_usize,
        ) {
            let listed: Vec<_> = rules.iter().map(|(permission, who, filter)| {
                let who = [Who::Everyone, Who::User("anna".into()), Who::Anonymous][*who].clone();
                let permissions = [
                    Permission::Read, Permission::Write, Permission::ReadWrite, Permission::Deny,
                ];
                (who, permissions[*permission], FILTERS[*filter])
            }).collect();
            let access = if is_open { Access::open() } else { access(&listed) };
            let ordered: Vec<_> = ordered.iter().map(|(allows, what, filter)| OrderedRule {
                allows: *allows,
                publish: what & 1 != 0,
                subscribe: what & 2 != 0,
                filters: vec![FILTERS[*filter].to_owned()],
                line: 1,
                ..OrderedRule::default()
            }).collect();
            let access = access.accepting_all_subscriptions(accepts && !asks);
            let access = access.in_order(&ordered).unwrap();
            let access = if asks { access.asking_service() } else { access };
            let grants = access.grants_of(ANNA, ClientLocation::default());
            let action = [Action::Publish, Action::Subscribe, Action::Receive][what];
            let topic = match action {
                Action::Subscribe => FILTERS[topic].to_owned(),
                _ => FILTERS[topic].replace(['+', '#'], "x"),
            };
            let explained = grants.explain(ANNA, action, &topic, Manner::default());
            let is_service = explained.decider == Decider::Service;
            let may_receive = is_service && action == Action::Receive;
            prop_assert_eq!(explained.decider.allows() || may_receive, explained.is_allowed);
            prop_assert_eq!(
                is_service,
                grants.is_undecided(ANNA, action, &topic, Manner::default())
            );
            prop_assert_eq!(
                explained.is_allowed,
                grants.allows_as(ANNA, action, &topic, Manner::default())
            );
        }
    }

    #[test]
    fn a_grant_of_a_part_of_a_filter_leaves_the_whole_to_the_service() {
        let rules = access(&[
            (Who::Everyone, Permission::Read, "public/#"),
            (Who::Everyone, Permission::Deny, "secret/#"),
        ]);
        let exact = OrderedRule {
            allows: true,
            subscribe: true,
            exact_filters: vec!["+/x".into()],
            filters: vec!["a/b".into()],
            ..OrderedRule::default()
        };
        let asking = rules.in_order(&[exact]).unwrap().asking_service();
        let grants = asking.grants_of(ANNA, ClientLocation::default());
        let decided = |action, topic: &str| {
            let undecided = grants.is_undecided(ANNA, action, topic, Manner::default());
            (grants.allows(ANNA, action, topic), undecided)
        };
        for filter in ["#", "+/x/#", "a/+", "$share/g/#", "secret/+/#"] {
            let expected =
                if filter.starts_with("secret") { (false, false) } else { (false, true) };
            assert_eq!(decided(Action::Subscribe, filter), expected, "{filter}");
        }
        for filter in ["public/a", "public/#", "a/b", "+/x"] {
            assert_eq!(decided(Action::Subscribe, filter), (true, false), "{filter}");
        }
        assert_eq!(decided(Action::Receive, "secret/a"), (false, false));
        assert_eq!(decided(Action::Receive, "other"), (true, true));
        assert_eq!(decided(Action::Publish, "other"), (false, true));
    }

    const FILTERS: &[&str] = &[
        "a",
        "a/b",
        "a/+",
        "a/#",
        "#",
        "+",
        "b/x",
        "$SYS/x",
        "$x/#",
        "$queue/a/b",
        "$share/g/a/+",
        "$delayed/9/a",
        "$share/g/$exclusive/a",
    ];
}
