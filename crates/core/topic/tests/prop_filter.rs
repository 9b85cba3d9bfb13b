//! Properties of the matching rule itself, on which all other tests lean.

mod common;

use proptest::prelude::*;
use topic::{TopicLimits, check_filter, check_topic, matches, parse_filter};

proptest! {
    #[test]
    fn a_topic_matches_itself_and_everything_widened_from_it(
        topic in common::topic(),
        widened in prop::collection::vec(any::<bool>(), 8),
        cut in 0..8_usize,
    ) {
        let levels: Vec<&str> = topic.split('/').collect();
        let is_plus = |depth: usize| widened[depth] && !(depth == 0 && topic.starts_with('$'));
        let widen = |(depth, level)| if is_plus(depth) { "+" } else { level };
        let wide: Vec<&str> = levels.iter().copied().enumerate().map(widen).collect();
        prop_assert!(matches(&topic, &topic));
        if !wide.join("/").is_empty() {
            prop_assert!(matches(&wide.join("/"), &topic));
        }
        // `x/#` for any number of leading levels, the parent level included.
        let cut = cut.clamp(1, levels.len());
        let open = wide[..cut].join("/") + "/#";
        prop_assert!(matches(&open, &topic), "{}", open);
    }

    #[test]
    fn a_filter_without_hash_matches_only_topics_of_its_depth(
        filter in common::filter(),
        topic in common::topic(),
    ) {
        let depth = |text: &str| text.split('/').count();
        if matches(&filter, &topic) && !filter.ends_with('#') {
            prop_assert_eq!(depth(&filter), depth(&topic));
        }
    }

    #[test]
    fn what_is_a_topic_is_a_filter_that_matches_only_itself(
        topic in common::topic(),
        other in common::topic(),
    ) {
        let limits = TopicLimits::default();
        prop_assert_eq!(check_topic(&topic, &limits), Ok(()));
        prop_assert_eq!(check_filter(&topic, &limits), Ok(()));
        prop_assert_eq!(matches(&topic, &other), topic == other);
    }

    #[test]
    fn any_text_is_judged_alike_by_all_checks(text in "[ab+#/$\0]{0,8}") {
        let limits = TopicLimits::default();
        if check_topic(&text, &limits).is_ok() {
            prop_assert!(check_filter(&text, &limits).is_ok());
        }
        let shared = format!("$share/g/{text}");
        let parsed = parse_filter(&shared, &limits);
        prop_assert_eq!(parsed.is_ok(), check_filter(&text, &limits).is_ok());
        if let Ok(parsed) = parsed {
            prop_assert_eq!((parsed.group, parsed.filter), (Some("g"), text.as_str()));
        }
    }
}
