//! Sections 4.7 and 4.8 of both standards, statement by statement.

use topic::{
    Claim, Index, Interest, InterestCounts, Matches, Retained, Subscription, TopicError,
    TopicLimits, check_filter, check_topic, parse_filter,
};

const LIMITS: TopicLimits = TopicLimits { levels_max: u16::MAX, bytes_max: u16::MAX };

/// Whether a filter matches a topic, as all five implementations in this crate see it.
fn is_match(filter: &str, topic: &str) -> bool {
    assert_eq!(check_filter(filter, &LIMITS), Ok(()), "{filter}");
    assert_eq!(check_topic(topic, &LIMITS), Ok(()), "{topic}");
    let expected = topic::matches(filter, topic);

    let mut index = Index::new(1);
    index.subscribe(filter, Subscription { subscriber: 1, options: 0, identifier: 0 });
    let mut found = Matches::default();
    index.matches(topic.as_bytes(), &mut found);
    assert_eq!(!found.is_empty(), expected, "index: {filter} on {topic}");
    index.matches(topic.as_bytes(), &mut found);
    assert_eq!(!found.is_empty(), expected, "cached: {filter} on {topic}");

    let mut retained = Retained::new();
    retained.insert(topic.as_bytes());
    let mut seen = 0;
    retained.walk(filter, None, 9, &mut |_| seen += 1);
    assert_eq!(seen == 1, expected, "retained: {filter} on {topic}");

    let interest = Interest::new(4, 20, 1);
    InterestCounts::new(0, &interest).add(&interest, filter, Claim::Want);
    let wants = interest.shards(topic.as_bytes()).wants;
    assert!(wants == 1 || !expected, "interest misses {filter} on {topic}");
    expected
}

fn refusal(filter: &str) -> Option<&'static str> {
    parse_filter(filter, &LIMITS).err().map(TopicError::clause)
}

#[test]
fn mqtt_4_7_0_1_wildcards_are_refused_in_a_topic_name() {
    for name in ["a/+", "#", "a/#", "+", "a+b", "a#", "sport/+/player1"] {
        let clause = check_topic(name, &LIMITS).err().map(TopicError::clause);
        assert_eq!(clause, Some("MQTT-4.7.0-1"), "{name}");
    }
    assert_eq!(check_topic("sport/tennis/player1", &LIMITS), Ok(()));
}

#[test]
fn mqtt311_4_7_1_1_wildcards_are_refused_in_a_topic_name() {
    assert_eq!(check_topic("a/+/b", &LIMITS), Err(TopicError::WildcardInName));
}

#[test]
fn mqtt_4_7_1_1_hash_stands_alone_in_the_last_level() {
    for filter in ["sport/tennis/#", "#", "sport/#", "/#", "+/#", "+/tennis/#", "//#"] {
        assert_eq!(refusal(filter), None, "{filter}");
    }
    for filter in ["sport/tennis#", "sport/tennis/#/ranking", "#/", "##", "a/##", "#a", "+#"] {
        assert_eq!(refusal(filter), Some("MQTT-4.7.1-1"), "{filter}");
    }
}

#[test]
fn mqtt_4_7_1_1_hash_matches_the_parent_and_any_depth_below() {
    for topic in ["sport", "sport/", "sport/tennis", "sport/tennis/player1/score/wimbledon"] {
        assert!(is_match("sport/#", topic), "{topic}");
    }
    for topic in ["sports", "spor", "/sport", "other/sport"] {
        assert!(!is_match("sport/#", topic), "{topic}");
    }
    for topic in ["a", "/", "/a", "a/b/c", "//"] {
        assert!(is_match("#", topic), "{topic}");
    }
}

#[test]
fn mqtt311_4_7_1_2_hash_stands_alone_in_the_last_level() {
    assert_eq!(check_filter("sport/tennis/#", &LIMITS), Ok(()));
    assert_eq!(check_filter("sport/tennis#", &LIMITS), Err(TopicError::MisplacedHash));
}

#[test]
fn mqtt_4_7_1_2_plus_occupies_an_entire_level() {
    for filter in ["+", "+/tennis/#", "sport/+/player1", "/+", "+/", "+/+", "sport/+"] {
        assert_eq!(refusal(filter), None, "{filter}");
    }
    for filter in ["sport+", "+sport", "a/b+/c", "++", "a/++", "a+/b"] {
        assert_eq!(refusal(filter), Some("MQTT-4.7.1-2"), "{filter}");
    }
}

#[test]
fn mqtt_4_7_1_2_plus_matches_exactly_one_level() {
    assert!(is_match("sport/tennis/+", "sport/tennis/player1"));
    assert!(is_match("sport/tennis/+", "sport/tennis/player2"));
    assert!(!is_match("sport/tennis/+", "sport/tennis/player1/ranking"));
    assert!(!is_match("sport/+", "sport"));
    assert!(is_match("sport/+", "sport/"));
    assert!(is_match("/+", "/finance"));
    assert!(is_match("+/+", "/finance"));
    assert!(!is_match("+", "/finance"));
}

#[test]
fn mqtt311_4_7_1_3_plus_occupies_an_entire_level() {
    assert_eq!(check_filter("sport/+/player1", &LIMITS), Ok(()));
    assert_eq!(check_filter("sport+", &LIMITS), Err(TopicError::MisplacedPlus));
}

#[test]
fn mqtt_4_7_2_1_a_leading_wildcard_does_not_reach_dollar_topics() {
    assert!(!is_match("#", "$SYS/monitor/Clients"));
    assert!(!is_match("#", "$SYS"));
    assert!(!is_match("+/monitor/Clients", "$SYS/monitor/Clients"));
    assert!(!is_match("+", "$SYS"));
    assert!(!is_match("+/#", "$SYS/monitor"));
    assert!(is_match("$SYS/#", "$SYS/monitor/Clients"));
    assert!(is_match("$SYS/#", "$SYS"));
    assert!(is_match("$SYS/monitor/+", "$SYS/monitor/Clients"));
    assert!(is_match("$SYS/+/Clients", "$SYS/monitor/Clients"));
    // Only the first character of the topic hides it.
    assert!(is_match("#", "a/$SYS"));
    assert!(is_match("a/+", "a/$SYS"));
    assert!(is_match("+/+", "a/$b"));
    assert!(is_match("+/+", "/$b"));
}

#[test]
fn mqtt_4_7_3_1_an_empty_name_or_filter_is_refused() {
    assert_eq!(check_topic("", &LIMITS).err().map(TopicError::clause), Some("MQTT-4.7.3-1"));
    assert_eq!(refusal(""), Some("MQTT-4.7.3-1"));
    assert_eq!(check_topic(" ", &LIMITS), Ok(()));
    assert_eq!(check_topic("/", &LIMITS), Ok(()));
}

#[test]
fn mqtt_4_7_3_2_the_null_character_is_refused() {
    for text in ["\0", "a\0b", "a/\0"] {
        let clause = check_topic(text, &LIMITS).err().map(TopicError::clause);
        assert_eq!(clause, Some("MQTT-4.7.3-2"));
        assert_eq!(refusal(text), Some("MQTT-4.7.3-2"));
    }
    assert_eq!(refusal("$share/g\0/a"), Some("MQTT-4.7.3-2"));
}

#[test]
fn mqtt_4_7_3_3_more_than_65535_bytes_are_refused() {
    let longest = "ä".repeat(32_767) + "a";
    assert_eq!(longest.len(), 65_535);
    assert_eq!(check_topic(&longest, &LIMITS), Ok(()));
    let clause = check_topic(&(longest + "a"), &LIMITS).err().map(TopicError::clause);
    assert_eq!(clause, Some("MQTT-4.7.3-3"));
}

#[test]
fn mqtt_4_7_3_4_nothing_is_normalised_when_matching() {
    // Composed and decomposed, upper and lower case, with and without empty levels.
    for (filter, topic) in [
        ("\u{c5}ngstr\u{f6}m", "A\u{30a}ngstr\u{f6}m"),
        ("accounts", "ACCOUNTS"),
        ("accounts", "Accounts"),
        ("a/b", "a//b"),
        ("a", "/a"),
        ("a", "a/"),
        ("a", " a"),
        ("a", "\u{feff}a"),
    ] {
        assert!(!is_match(filter, topic), "{filter:?} {topic:?}");
        assert!(is_match(topic, topic), "{topic:?}");
    }
    assert!(is_match("\u{feff}a/+", "\u{feff}a/\u{1f426}"));
}

#[test]
fn mqtt_4_7_empty_levels_are_levels_of_their_own() {
    assert!(is_match("+/+/+", "//"));
    assert!(!is_match("+/+", "//"));
    assert!(is_match("/+/", "/a/"));
    assert!(is_match("//#", "//"));
    assert!(is_match("//#", "/"));
    assert!(is_match("/#", "/"));
    assert!(!is_match("/#", "a"));
}

#[test]
fn mqtt_4_8_2_1_a_share_name_has_at_least_one_character() {
    assert_eq!(refusal("$share//a"), Some("MQTT-4.8.2-1"));
    assert_eq!(refusal("$share/"), Some("MQTT-4.8.2-1"));
    let parsed = parse_filter("$share/consumer1/sport/tennis/+", &LIMITS);
    let parsed = parsed.map(|parsed| (parsed.group, parsed.filter));
    assert_eq!(parsed, Ok((Some("consumer1"), "sport/tennis/+")));
}

#[test]
fn mqtt_4_8_2_1_only_the_exact_prefix_makes_a_shared_subscription() {
    for filter in ["$share", "$SHARE/g/a", "$shared/g/a", "a/$share/g", "/$share/g/a"] {
        let parsed = parse_filter(filter, &LIMITS).map(|parsed| (parsed.group, parsed.filter));
        assert_eq!(parsed, Ok((None, filter)));
    }
}

#[test]
fn mqtt_4_8_2_2_a_share_name_holds_no_wildcard_and_a_filter_follows_it() {
    for filter in ["$share/g+/a", "$share/+/a", "$share/#/a", "$share/a#/a", "$share/#"] {
        assert_eq!(refusal(filter), Some("MQTT-4.8.2-2"), "{filter}");
    }
    for filter in ["$share/g", "$share/g/"] {
        assert_eq!(refusal(filter), Some("MQTT-4.8.2-2"), "{filter}");
    }
    for (filter, rest) in [("$share/g//", "/"), ("$share/g//finance", "/finance")] {
        assert_eq!(parse_filter(filter, &LIMITS).map(|parsed| parsed.filter), Ok(rest));
    }
    assert_eq!(refusal("$share/g/a/#/b"), Some("MQTT-4.7.1-1"));
}

#[test]
fn mqtt_3_8_4_3_an_identical_filter_replaces_the_subscription() {
    let mut index = Index::new(1);
    for filter in ["a/b", "a/+", "#"] {
        let old = Subscription { subscriber: 1, options: 0, identifier: 0 };
        let new = Subscription { subscriber: 1, options: 2, identifier: 9 };
        assert!(index.subscribe(filter, old).is_new_subscription);
        let outcome = index.subscribe(filter, new);
        assert!(!outcome.is_new_subscription);
        assert_eq!(outcome.replaced, Some(old));
        assert_eq!(index.subscriptions(outcome.filter), [new]);
    }
}

#[test]
fn mqtt_3_3_4_3_every_overlapping_subscription_is_reported() {
    let mut index = Index::new(1);
    for (identifier, filter) in (1..).zip(["a/b", "a/+", "a/#", "#", "+/b", "a/c"]) {
        index.subscribe(filter, Subscription { subscriber: 1, options: 0, identifier });
    }
    let mut found = Matches::default();
    index.matches(b"a/b", &mut found);
    let mut identifiers: Vec<u32> = found.subscriptions.iter().map(|one| one.identifier).collect();
    identifiers.sort_unstable();
    assert_eq!(identifiers, [1, 2, 3, 4, 5]);
}
