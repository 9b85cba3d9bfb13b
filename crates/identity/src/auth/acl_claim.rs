//! Access rules in a token or in the answer of a service, in EMQX's two forms:
//!
//! ```json
//! { "acl": [{ "permission": "allow", "action": "publish", "topic": "${clientid}/#", "qos": [1] }] }
//! { "acl": { "pub": ["up/${clientid}"], "sub": ["down/#"], "all": [] } }
//! ```
//!
//! The list leaves what none of its rules is about to other rules; the object denies it. Whoever
//! wrote rules relies on them: what is not understood refuses the log-in.

use policy::{OrderedRule, OwnRules};
use serde_json::{Map, Value};

use super::policy_file::filter_of;
use config::Network;

/// Rules, topics and networks of all of them, and the bytes of those topics, at most. More refuse
/// the log-in.
const RULES_MAX: usize = 100;
const TOPICS_MAX: usize = 200;
const NETWORKS_MAX: usize = 200;
const BYTES_MAX: usize = 16 * 1024;

/// Where rules are, unless the configuration says otherwise.
pub(super) const ACL: &str = "acl";

/// The rules of a token's claims or of an answer, in the member of this name; none, if there is no
/// such member.
///
/// # Errors
///
/// What is not understood. And rules in [`ACL`], where others are read: whoever wrote them there
/// relies on them.
pub(super) fn rules_of(object: &Map<String, Value>, name: &str) -> Result<OwnRules, String> {
    let rules = stated_rules(object, name)?;
    let compiled = check(&rules).and_then(|()| {
        OwnRules::compile(&rules).map_err(|error| format!("'{}': {}", error.filter, error.detail))
    });
    compiled.map_err(|why| of_rules(name, &why))
}

fn of_rules(name: &str, why: &str) -> String {
    format!("its access rules ({name}): {why}")
}

fn stated_rules(object: &Map<String, Value>, name: &str) -> Result<Vec<OrderedRule>, String> {
    if name != ACL && object.get(ACL).is_some_and(looks_like_rules) {
        return Err(format!(
            "access rules are in the claim '{ACL}', but acl_claim_name is '{name}'"
        ));
    }
    let rules = match object.get(name) {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items.iter().map(rule_of).collect::<Result<Vec<_>, _>>(),
        Some(Value::Object(lists)) => lists_of(lists),
        Some(other) => {
            Err(format!("expected a list of rules or an object, got {}", kind_of(other)))
        }
    };
    rules.map_err(|why| of_rules(name, &why))
}

fn looks_like_rules(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(|item| item.get("permission").is_some()),
        Value::Object(lists) => LISTS.iter().any(|(name, ..)| lists.contains_key(*name)),
        _ => false,
    }
}

pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn check(rules: &[OrderedRule]) -> Result<(), String> {
    let topics = || rules.iter().flat_map(|rule| rule.filters.iter().chain(&rule.exact_filters));
    let bytes: usize = topics().map(String::len).sum();
    let networks: usize = rules.iter().map(|rule| rule.addresses.len()).sum();
    for (what, count, max) in [
        ("rules", rules.len(), RULES_MAX),
        ("topics", topics().count(), TOPICS_MAX),
        ("networks", networks, NETWORKS_MAX),
        ("bytes of topics", bytes, BYTES_MAX),
    ] {
        if count > max {
            return Err(format!("at most {max} {what}, got {count}"));
        }
    }
    Ok(())
}

fn rule_of(item: &Value) -> Result<OrderedRule, String> {
    let Value::Object(item) = item else {
        return Err(format!("a rule must be an object, got {}", kind_of(item)));
    };
    let mut rule = OrderedRule { publish: true, subscribe: true, ..OrderedRule::default() };
    for (name, value) in item {
        let not_understood = || format!("'{name}' has the unknown value {value}");
        match (name.as_str(), value.as_str().unwrap_or_default()) {
            ("permission", word @ ("allow" | "deny")) => rule.allows = word == "allow",
            ("action", "publish" | "pub") => rule.subscribe = false,
            ("action", "subscribe" | "sub") => rule.publish = false,
            ("action", "all") | ("topic" | "topics", _) => {}
            ("qos", _) => rule.qos = qos_of(value).ok_or_else(not_understood)?,
            ("retain", _) => rule.retain = retain_of(value).ok_or_else(not_understood)?,
            ("ipaddr", _) => {
                // Of no network would be of any.
                let networks = texts_of(value).filter(|networks| !networks.is_empty());
                for address in networks.ok_or_else(not_understood)? {
                    let network = address.parse::<Network>().map_err(|error| error.to_string())?;
                    rule.addresses.push(network.addresses());
                }
            }
            _ => return Err(not_understood()),
        }
    }
    // Behind the action, by which they are understood.
    for value in ["topic", "topics"].iter().filter_map(|name| item.get(*name)) {
        for topic in texts_of(value).ok_or_else(|| {
            format!(
                "a topic must be a string that is a \
        valid filter, got {value}"
            )
        })? {
            add_topic(&mut rule, topic)?;
        }
    }
    if let Some(name) = ["permission", "action"].into_iter().find(|it| !item.contains_key(*it)) {
        return Err(format!("a rule lacks its '{name}'"));
    }
    if !has_topic(&rule) {
        return Err("a rule lacks its 'topic'".into());
    }
    Ok(rule)
}

/// The lists of the object form: its name, and whether it is about publishing and subscribing.
const LISTS: [(&str, bool, bool); 3] =
    [("pub", true, false), ("sub", false, true), ("all", true, true)];

fn lists_of(lists: &Map<String, Value>) -> Result<Vec<OrderedRule>, String> {
    let is_list = |name: &&String| LISTS.iter().any(|(known, ..)| known == name);
    if let Some(name) = lists.keys().find(|name| !is_list(name)) {
        return Err(format!("an action must be 'pub', 'sub' or 'all', got '{name}'"));
    }
    let mut rules = Vec::new();
    for (name, publish, subscribe) in LISTS {
        let Some(value) = lists.get(name) else { continue };
        let mut rule = OrderedRule { allows: true, publish, subscribe, ..OrderedRule::default() };
        for topic in texts_of(value).ok_or_else(|| format!("'{name}' must be a list of topics"))? {
            add_topic(&mut rule, topic)?;
        }
        if has_topic(&rule) {
            rules.push(rule);
        }
    }
    rules.push(OrderedRule {
        publish: true,
        subscribe: true,
        is_about_every_topic: true,
        ..OrderedRule::default()
    });
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
        false if exact.contains('%') => {
            return Err(format!(
                "a topic must not have a per cent \
        sign, got '{topic}'"
            ));
        }
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
    let mut levels: Vec<u8> = levels
        .into_iter()
        .map(|level| u8::try_from(level).ok().filter(|it| *it <= 2))
        .collect::<Option<_>>()?;
    levels.sort_unstable();
    levels.dedup();
    Some(levels)
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
mod oracle;

#[cfg(test)]
mod tests {
    use policy::Principal;
    use policy::{Access, Action, ClientLocation, Identity};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn rules(acl: Value) -> Result<Vec<OrderedRule>, String> {
        let object = json!({ "acl": acl });
        rules_of(object.as_object().unwrap(), ACL)?;
        stated_rules(object.as_object().unwrap(), ACL)
    }

    /// What rules of this form let a client do where nothing else forbids anything.
    fn may(acl: Value, action: Action, topic: &str) -> bool {
        let rules = OwnRules::compile(&rules(acl).unwrap()).unwrap();
        let principal = Principal { rules, ..Principal::default() };
        let who = Identity { principal: Some(&principal), ..Identity::new("c1", Some("anna")) };
        let grants = Access::open().grants_of(who, ClientLocation::default());
        grants.allows(who, action, topic)
    }

    #[test]
    fn both_forms_are_read() {
        let read = rules(json!([
            { "permission": "allow", "topic": "a/${clientid}/#", "action": "publish",
              "qos": [0, 1], "retain": false },
            { "permission": "deny", "action": "all", "topic": ["b/${client_attrs.vin}", "eq #", "eq c"],
              "ipaddr": "10.0.0.0/8" },
        ]))
        .unwrap();
        let [first, second] = &read[..] else { panic!("{read:?}") };
        assert!(first.allows && first.publish && !first.subscribe);
        assert_eq!((&*first.filters[0], first.qos.as_slice()), ("a/%c/#", [0, 1].as_slice()));
        assert_eq!((first.retain, second.allows, second.subscribe), (Some(false), false, true));
        assert_eq!(second.filters, ["b/%{attributes.vin}", "c"]);
        assert_eq!((&*second.exact_filters[0], second.addresses.len()), ("#", 1));
        let read = rules(json!({ "pub": ["up"], "sub": "down/#", "all": [] })).unwrap();
        assert_eq!(read.len(), 3, "the last one denies the rest");
        assert!(read[0].publish && !read[0].subscribe && read[1].subscribe && read[1].allows);
        let rule = json!({ "permission": "allow", "action": "sub", "topic": "t", "qos": "1, 2" });
        let read = rules(json!([rule])).unwrap();
        assert_eq!(read[0].qos, [1, 2]);
    }

    #[test]
    fn the_object_denies_what_it_does_not_mention_and_the_list_leaves_it_to_others() {
        let object = || json!({ "pub": ["up/${clientid}", "$app/x"], "sub": ["down/#"] });
        let rule = json!({ "permission": "allow", "action": "publish", "topic": "up/${clientid}" });
        for topic in ["up/c1", "$app/x"] {
            assert!(may(object(), Action::Publish, topic), "{topic}");
        }
        for topic in ["up/c2", "down/x", "elsewhere", "$app/y"] {
            assert!(!may(object(), Action::Publish, topic), "{topic}");
            assert!(may(json!([rule]), Action::Publish, topic), "{topic}");
        }
        assert!(may(object(), Action::Subscribe, "down/+"));
        for filter in ["up/c1", "other/#", "$SYS/#", "$share/g/$app/#"] {
            assert!(!may(object(), Action::Subscribe, filter), "{filter}");
            assert!(!may(object(), Action::Receive, filter), "{filter}");
        }
        for nothing in [json!({}), json!({ "pub": [] }), json!({ "all": [] })] {
            assert!(!may(nothing.clone(), Action::Publish, "t"), "{nothing}");
            assert!(!may(nothing.clone(), Action::Subscribe, "#"), "{nothing}");
        }
        assert!(may(json!([]), Action::Publish, "t"), "no rule, so none is about it");
    }

    #[test]
    fn what_is_no_rules_is_refused() {
        for acl in [
            json!("a word"),
            json!("[{\"permission\":\"deny\",\"action\":\"all\",\"topic\":\"#\"}]"),
            json!(["up/#"]),
            json!([["up/#"]]),
            json!({ "publish": ["up/#"] }),
            json!({ "pub": ["up/#"], "Sub": ["x"] }),
            json!({ "pub": { "up/#": 1 } }),
            json!({ "permission": "allow", "action": "all", "topic": "t" }),
            json!([{ "action": "all", "topic": "t" }]),
            json!([{ "permission": "allow", "topic": "t" }]),
            json!([{ "permission": "allow", "action": "all" }]),
            json!(7),
            json!(true),
            json!(null),
        ] {
            let error = rules(acl.clone()).map(|rules| rules.len()).unwrap_err();
            assert!(error.contains("access rules (acl)"), "{acl}: {error}");
        }
        assert_eq!(rules_of(&Map::new(), ACL).map(|rules| rules.len()), Ok(0));
    }

    #[test]
    fn rules_are_read_where_the_configuration_says() {
        let read = |object: Value| {
            rules_of(object.as_object().unwrap(), "rights").map(|rules| rules.len())
        };
        assert_eq!(read(json!({ "rights": { "pub": ["t"] } })), Ok(2));
        assert_eq!(read(json!({ "acl": "of somebody else", "rights": [] })), Ok(0));
        assert_eq!(read(json!({ "acl": ["read"] })), Ok(0));
        assert!(read(json!({ "rights": "t" })).unwrap_err().contains("(rights)"));
        for acl in [json!({ "pub": [] }), json!([{ "permission": "allow" }])] {
            let error = read(json!({ "acl": acl })).unwrap_err();
            assert!(error.contains("acl_claim_name is 'rights'"), "{error}");
        }
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
            json!({ "ipaddr": [] }),
            json!({ "clientid_re": "^a" }),
            json!({ "topic": "x".repeat(BYTES_MAX + 1) }),
        ] {
            let error = rule(&more).map(|rules| rules.len()).unwrap_err();
            assert!(error.contains("access rules (acl)"), "{more}: {error}");
        }
        let many = json!({ "permission": "allow", "action": "all", "topic": "t" });
        assert!(rules(json!([many.clone(), 7])).is_err());
        for (acl, error) in [
            (json!(vec![many.clone(); RULES_MAX + 1]), "at most 100 rules, got 101"),
            (json!({ "pub": vec!["t"; TOPICS_MAX + 1] }), "at most 200 topics, got 201"),
        ] {
            assert!(rules(acl).unwrap_err().contains(error), "{error}");
        }
        let networks = json!({ "ipaddr": vec!["10.0.0.1"; NETWORKS_MAX + 1] });
        assert!(rule(&networks).unwrap_err().contains("at most 200 networks, got 201"));
        let levels = rule(&json!({ "qos": vec![1; 1_000] })).unwrap();
        assert_eq!(levels[0].qos, [1]);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(name in ".{0,8}", text in ".{0,30}", number: i64) {
            let object = json!({ &*name: text });
            for value in [json!(text), json!(number), json!([text, number]), object] {
                let rule = json!({ "permission": "allow", "action": "all", "topic": value });
                let _ = rules(json!([rule]));
                let _ = rules(json!([{ "permission": "allow", &*name: value }]));
                let _ = rules(json!({ "pub": value, &*name: number }));
            }
        }
    }
}
