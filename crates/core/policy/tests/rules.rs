//! The compiled access rules against the plain reading of a topic filter, level by level.

use policy::{Access, Action, Identity, Permission, Rule, Who};
use proptest::prelude::*;

const CLIENT: Identity<'static> = Identity::new("a", Some("b"));

fn naive_matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let filter: Vec<&str> = filter.split('/').collect();
    let topic: Vec<&str> = topic.split('/').collect();
    for (at, level) in filter.iter().enumerate() {
        match (*level, topic.get(at)) {
            ("#", _) => return true,
            ("+", Some(_)) => {}
            (level, Some(name)) if level == *name => {}
            _ => return false,
        }
    }
    filter.len() == topic.len()
}

fn level() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("a"), Just("b"), Just("ab"), Just(""), Just("%"), Just("$SYS")]
}

fn topic() -> impl Strategy<Value = String> {
    prop::collection::vec(level(), 1..4)
        .prop_map(|levels| levels.join("/"))
        .prop_filter("a topic is not empty", |topic| !topic.is_empty())
}

fn filter() -> impl Strategy<Value = String> {
    let levels = prop::collection::vec(prop_oneof![4 => level(), 2 => Just("+")], 0..4);
    (levels, any::<bool>())
        .prop_map(|(mut levels, tail)| {
            if tail {
                levels.push("#");
            }
            levels.join("/")
        })
        .prop_filter("a filter is not empty", |filter| !filter.is_empty())
}

fn pattern() -> impl Strategy<Value = String> {
    let piece = prop_oneof![level(), Just("%c"), Just("%u"), Just("x%c"), Just("+")];
    (prop::collection::vec(piece, 1..4), any::<bool>())
        .prop_map(|(levels, tail)| levels.join("/") + if tail { "/#" } else { "" })
        .prop_filter("a filter is not empty", |filter| !filter.is_empty())
}

fn rules(filters: &[(String, bool)]) -> Vec<Rule> {
    let rule = |(filter, denies): &(String, bool)| Rule {
        who: Who::Everyone,
        permission: if *denies { Permission::Deny } else { Permission::Read },
        filter: filter.clone(),
    };
    filters.iter().map(rule).collect()
}

proptest! {
    #[test]
    fn a_pattern_matches_what_its_text_matches(pattern in pattern(), topic in topic()) {
        let access = Access::compile(&rules(&[(pattern.clone(), false)])).unwrap();
        let text = pattern.replace("%c", "a").replace("%u", "b");
        let allowed = access.allows(CLIENT, Action::Receive, &topic);
        prop_assert_eq!(allowed, naive_matches(&text, &topic));
    }

    #[test]
    fn a_covered_filter_never_needs_a_check(
        list in prop::collection::vec((filter(), prop::bool::weighted(0.2)), 1..4),
        filter in filter(),
        topic in topic(),
    ) {
        let access = Access::compile(&rules(&list)).unwrap();
        let grants = access.grants(CLIENT.username);
        if grants.covers(CLIENT, &filter) && naive_matches(&filter, &topic) {
            prop_assert!(grants.allows(CLIENT, Action::Receive, &topic));
        }
    }

    #[test]
    fn a_refused_subscription_could_not_have_received(
        list in prop::collection::vec((filter(), prop::bool::weighted(0.2)), 1..4),
        filter in filter(),
        topic in topic(),
    ) {
        let access = Access::compile(&rules(&list)).unwrap();
        if naive_matches(&filter, &topic) && access.allows(CLIENT, Action::Receive, &topic) {
            prop_assert!(access.allows(CLIENT, Action::Subscribe, &filter));
        }
    }
}
