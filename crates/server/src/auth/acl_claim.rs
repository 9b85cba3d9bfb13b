//! Access rules in a token or in the answer of a service, in EMQX's two forms:
//!
//! ```json
//! { "acl": [{ "permission": "allow", "action": "publish", "topic": "${clientid}/#", "qos": [1] }] }
//! { "acl": { "pub": ["up/${clientid}"], "sub": ["down/#"], "all": [] } }
//! ```
//!
//! Who wrote them relies on them: what is not understood refuses the log-in.

use std::sync::Arc;

use broker::access::{Access, OrderedRule};
use serde_json::{Map, Value};

use super::policy_file::filter_of;
use crate::config::Network;

/// Rules, topics of all of them, and their bytes, at most.
const RULES_MAX: usize = 100;
const TOPICS_MAX: usize = 200;
const BYTES_MAX: usize = 16 * 1024;

/// The rules of a token's claims, or of an answer; none, if there are none.
///
/// # Errors
///
/// What is not understood.
pub(super) fn rules_of(object: &Map<String, Value>) -> Result<Arc<[OrderedRule]>, String> {
    let rules = match object.get("acl") {
        Some(Value::Array(items)) if items.iter().any(is_rule) => {
            items.iter().map(rule_of).collect::<Result<Vec<_>, _>>()
        }
        Some(Value::Object(lists)) => lists_of(lists),
        _ => return Ok(Arc::default()),
    };
    let rules = rules.and_then(check).map_err(|why| format!("its access rules (acl): {why}"))?;
    Ok(rules.into())
}

fn check(rules: Vec<OrderedRule>) -> Result<Vec<OrderedRule>, String> {
    let topics = || rules.iter().flat_map(|rule| rule.filters.iter().chain(&rule.exact_filters));
    let bytes: usize = topics().map(String::len).sum();
    if rules.len() > RULES_MAX || topics().count() > TOPICS_MAX || bytes > BYTES_MAX {
        return Err(format!(
            "more than {RULES_MAX} rules, {TOPICS_MAX} topics, or {BYTES_MAX} bytes of them"
        ));
    }
    let checked = Access::open().in_order(&rules);
    checked.map_err(|error| format!("'{}': {}", error.filter, error.detail))?;
    Ok(rules)
}

/// A list of something else is somebody else's.
fn is_rule(item: &Value) -> bool {
    item.get("permission").is_some()
}

fn rule_of(item: &Value) -> Result<OrderedRule, String> {
    let Value::Object(item) = item else { return Err(format!("{item} is no rule")) };
    let mut rule = OrderedRule { publish: true, subscribe: true, ..OrderedRule::default() };
    for (name, value) in item {
        let not_understood = || format!("'{name}' is {value}, which is not understood");
        match (name.as_str(), value.as_str().unwrap_or_default()) {
            ("permission", word @ ("allow" | "deny")) => rule.allows = word == "allow",
            ("action", "publish") => rule.subscribe = false,
            ("action", "subscribe") => rule.publish = false,
            ("action", "all") | ("topic" | "topics", _) => {}
            ("qos", _) => rule.qos = qos_of(value).ok_or_else(not_understood)?,
            ("retain", _) => rule.retain = retain_of(value).ok_or_else(not_understood)?,
            ("ipaddr", _) => {
                for address in texts_of(value).ok_or_else(not_understood)? {
                    rule.addresses.push(address.parse::<Network>()?.addresses());
                }
            }
            _ => return Err(not_understood()),
        }
    }
    // Behind the action, by which they are understood.
    for value in ["topic", "topics"].iter().filter_map(|name| item.get(*name)) {
        for topic in texts_of(value).ok_or_else(|| format!("{value} is no topic"))? {
            add_topic(&mut rule, topic)?;
        }
    }
    if !item.contains_key("permission") || !has_topic(&rule) {
        return Err("a rule lacks its permission or its topic".into());
    }
    Ok(rule)
}

fn lists_of(lists: &Map<String, Value>) -> Result<Vec<OrderedRule>, String> {
    let mut rules = Vec::new();
    for (name, (publish, subscribe)) in
        [("pub", (true, false)), ("sub", (false, true)), ("all", (true, true))]
    {
        let Some(value) = lists.get(name) else { continue };
        let mut rule = OrderedRule { allows: true, publish, subscribe, ..OrderedRule::default() };
        for topic in texts_of(value).ok_or_else(|| format!("'{name}' is no list of topics"))? {
            add_topic(&mut rule, topic)?;
        }
        if has_topic(&rule) {
            rules.push(rule);
        }
    }
    Ok(rules)
}

fn has_topic(rule: &OrderedRule) -> bool {
    !rule.filters.is_empty() || !rule.exact_filters.is_empty()
}

fn add_topic(rule: &mut OrderedRule, topic: &str) -> Result<(), String> {
    let Some(exact) = topic.strip_prefix("eq ") else {
        rule.filters.push(filter_of(topic).map_err(|why| format!("'{topic}': {why}"))?);
        return Ok(());
    };
    // Nobody publishes to a wildcard; else the very topic is what its text says.
    match exact.contains(['+', '#']) {
        true => rule.exact_filters.push(exact.to_owned()),
        false if exact.contains('%') => return Err(format!("'{topic}' has a per cent sign")),
        false => rule.filters.push(exact.to_owned()),
    }
    Ok(())
}

fn texts_of(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(text) => Some(vec![text]),
        Value::Array(items) => items.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

/// A number, a list of them, or a text such as `0,1`.
fn qos_of(value: &Value) -> Option<Vec<u8>> {
    let levels: Option<Vec<u64>> = match value {
        Value::Number(number) => number.as_u64().map(|level| vec![level]),
        Value::Array(items) => items.iter().map(Value::as_u64).collect(),
        Value::String(text) => text.split(',').map(|part| part.trim().parse().ok()).collect(),
        _ => None,
    };
    let levels = levels.filter(|levels| !levels.is_empty())?;
    levels.into_iter().map(|level| u8::try_from(level).ok().filter(|it| *it <= 2)).collect()
}

/// None inside: whatever it is.
fn retain_of(value: &Value) -> Option<Option<bool>> {
    match (value, value.as_u64(), value.as_str()) {
        (Value::Bool(retain), ..) => Some(Some(*retain)),
        (_, Some(1), _) | (.., Some("true")) => Some(Some(true)),
        (_, Some(0), _) | (.., Some("false")) => Some(Some(false)),
        (.., Some("all")) => Some(None),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn rules(acl: Value) -> Result<Arc<[OrderedRule]>, String> {
        let object = json!({ "acl": acl });
        rules_of(object.as_object().unwrap())
    }

    #[test]
    fn both_forms_are_read() {
        let read = rules(json!([
            { "permission": "allow", "topic": "a/${clientid}/#", "action": "publish",
              "qos": [0, 1], "retain": false },
            { "permission": "deny", "topic": ["b/${client_attrs.vin}", "eq #", "eq c"],
              "ipaddr": "10.0.0.0/8" },
        ]))
        .unwrap();
        let [first, second] = &*read else { panic!("{read:?}") };
        assert!(first.allows && first.publish && !first.subscribe);
        assert_eq!((&*first.filters[0], first.qos.as_slice()), ("a/%c/#", [0, 1].as_slice()));
        assert_eq!((first.retain, second.allows, second.subscribe), (Some(false), false, true));
        assert_eq!(second.filters, ["b/%{attributes.vin}", "c"]);
        assert_eq!((&*second.exact_filters[0], second.addresses.len()), ("#", 1));
        let read = rules(json!({ "pub": ["up"], "sub": "down/#", "all": [] })).unwrap();
        assert_eq!(read.len(), 2);
        assert!(read[0].publish && !read[0].subscribe && read[1].subscribe && read[1].allows);
        let read = rules(json!([{ "permission": "allow", "topic": "t", "qos": "1, 2" }])).unwrap();
        assert_eq!(read[0].qos, [1, 2]);
    }

    #[test]
    fn what_is_somebody_elses_is_left_alone() {
        for acl in [json!("a word"), json!(["read", "write"]), json!(7), json!(null), json!({})] {
            assert_eq!(rules(acl).map(|rules| rules.len()), Ok(0));
        }
        assert_eq!(rules_of(&Map::new()).map(|rules| rules.len()), Ok(0));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let rule = |more: &Value| {
            let mut rule = json!({ "permission": "allow", "action": "all", "topic": "t" });
            for (name, value) in more.as_object().unwrap() {
                rule[name] = value.clone();
            }
            rules(json!([rule]))
        };
        assert!(rule(&json!({})).is_ok());
        for more in [
            json!({ "permission": "maybe" }),
            json!({ "action": "read" }),
            json!({ "topic": 7 }),
            json!({ "topic": "a#" }),
            json!({ "topic": "${nobody}" }),
            json!({ "topic": "eq %c" }),
            json!({ "topic": [] }),
            json!({ "qos": 3 }),
            json!({ "qos": [] }),
            json!({ "retain": "sometimes" }),
            json!({ "ipaddr": "x" }),
            json!({ "clientid_re": "^a" }),
            json!({ "topic": "x".repeat(BYTES_MAX + 1) }),
        ] {
            let told = rule(&more).map(|rules| rules.len()).unwrap_err();
            assert!(told.contains("access rules (acl)"), "{more}: {told}");
        }
        let many = vec![json!({ "permission": "allow", "topic": "t" }); RULES_MAX + 1];
        assert!(rules(json!(many)).unwrap_err().contains("100 rules"));
        assert!(rules(json!([{ "permission": "allow", "topic": "t" }, 7])).is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(name in ".{0,8}", text in ".{0,30}", number: i64) {
            let object = json!({ &*name: text });
            for value in [json!(text), json!(number), json!([text, number]), object] {
                let _ = rules(json!([{ "permission": "allow", "topic": value, &*name: text }]));
                let _ = rules(json!({ "pub": value, &*name: number }));
            }
        }
    }
}
