//! Small random names and filters, dense enough that matches are common.

use proptest::prelude::*;

/// A topic name of up to four levels, half of the time one of the very few that come up again.
pub(crate) fn topic() -> impl Strategy<Value = String> {
    let wide = levels(prop_oneof![6 => literal(), 1 => Just("$s")]);
    prop_oneof![wide, prop::sample::select(&["a", "b", "a/b", "b/a"][..]).prop_map(String::from)]
        .prop_filter("not empty", |topic| !topic.is_empty())
}

/// A valid filter of up to five levels, half of the time one of very few.
pub(crate) fn filter() -> impl Strategy<Value = String> {
    let few: &'static [&str] = &["a", "b", "a/b", "b/a", "+", "+/b", "a/+", "a/#"];
    prop_oneof![wide_filter(), prop::sample::select(few).prop_map(String::from)]
}

fn wide_filter() -> impl Strategy<Value = String> {
    let levels = levels(prop_oneof![6 => literal(), 1 => Just("$s"), 3 => Just("+")]);
    (levels, prop::bool::weighted(0.3))
        .prop_map(|(levels, is_open)| match (levels.as_str(), is_open) {
            ("", true) => "#".to_string(),
            (_, true) => levels + "/#",
            (_, false) => levels,
        })
        .prop_filter("not empty", |filter| !filter.is_empty())
}

fn literal() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["a", "b", "ab", "c", "", "a-", "\u{1}", "é"][..])
}

fn levels(level: impl Strategy<Value = &'static str>) -> impl Strategy<Value = String> {
    prop::collection::vec(level, 1..5).prop_map(|levels| levels.join("/"))
}
