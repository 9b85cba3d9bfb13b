//! Access rules in a token or in the answer of a service, in EMQX's two forms:
//!
//! ```json
//! { "acl": [{ "permission": "allow", "action": "publish", "topic": "${clientid}/#", "qos": [1] }] }
//! { "acl": { "pub": ["up/${clientid}"], "sub": ["down/#"], "all": [] } }
//! ```
//!
//! The list leaves what none of its rules is about to other rules; the object denies it. Whoever
//! wrote rules relies on them: what is not understood refuses the log-in.

mod whom;

use policy::{OrderedRule, OwnRules};
use serde_json::{Map, Value};

use super::policy_file::filter_of;
use config::Network;
use whom::Reading;
pub(super) use whom::Subject;

/// Rules, topics and networks of all of them, and the bytes of those topics, at most. More refuse
/// the log-in.
const RULES_MAX: usize = 100;
const TOPICS_MAX: usize = 200;
const NETWORKS_MAX: usize = 200;
const BYTES_MAX: usize = 16 * 1024;

/// Where rules are, unless the configuration says otherwise.
pub(super) const ACL: &str = "acl";

/// Rules, and what of the client they depend on beyond its user name. A copy of the text that they
/// were read from is worth the same rules only for a client with the same.
#[derive(Debug, Default)]
pub(super) struct ReadRules {
    pub(super) rules: OwnRules,
    pub(super) asks_client_id: bool,
    pub(super) asks_common_name: bool,
}

/// A rule, and whether it is about the client.
struct Stated {
    rule: OrderedRule,
    holds: bool,
}

/// The rules of a token's claims or of an answer that are for a client, in the member of this name;
/// none, if there is no such member.
///
/// # Errors
///
/// What is not understood. And rules in [`ACL`], where others are read: whoever wrote them there
/// relies on them.
pub(super) fn rules_of(
    object: &Map<String, Value>,
    name: &str,
    subject: Subject<'_>,
) -> Result<ReadRules, String> {
    let mut reading = Reading::new(subject);
    let stated = stated_rules(object, name, &mut reading)?;
    let are_all = stated.iter().all(|stated| stated.holds);
    // Those for others are compiled as well: all of the set is understood, or none of it.
    let all: Vec<_> = stated.iter().map(|stated| stated.rule.clone()).collect();
    let rules = check(&all).and_then(|()| compile(&all)).and_then(|rules| match are_all {
        true => Ok(rules),
        false => {
            let own = stated.into_iter().filter(|stated| stated.holds).map(|stated| stated.rule);
            compile(&own.collect::<Vec<_>>())
        }
    });
    let rules = rules.map_err(|why| of_rules(name, &why))?;
    let Reading { asks_client_id, asks_common_name, .. } = reading;
    Ok(ReadRules { rules, asks_client_id, asks_common_name })
}

fn compile(rules: &[OrderedRule]) -> Result<OwnRules, String> {
    OwnRules::compile(rules).map_err(|error| format!("'{}': {}", error.filter, error.detail))
}

fn of_rules(name: &str, why: &str) -> String {
    format!("its access rules ({name}): {why}")
}

fn stated_rules(
    object: &Map<String, Value>,
    name: &str,
    reading: &mut Reading<'_>,
) -> Result<Vec<Stated>, String> {
    if name != ACL && object.get(ACL).is_some_and(looks_like_rules) {
        return Err(format!(
            "access rules are in the claim '{ACL}', but acl_claim_name is '{name}'"
        ));
    }
    let rules = match object.get(name) {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items.iter().map(|item| rule_of(item, reading)).collect(),
        Some(Value::Object(lists)) => lists_of(lists, reading),
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

fn rule_of(item: &Value, reading: &mut Reading<'_>) -> Result<Stated, String> {
    let Value::Object(item) = item else {
        return Err(format!("a rule must be an object, got {}", kind_of(item)));
    };
    let mut rule = OrderedRule { publish: true, subscribe: true, ..OrderedRule::default() };
    let mut holds = true;
    for (name, value) in item {
        let not_understood = || format!("'{name}' has the unknown value {value}");
        match (name.as_str(), value.as_str().unwrap_or_default()) {
            ("permission", word @ ("allow" | "deny")) => rule.allows = word == "allow",
            ("action", "publish" | "pub") => rule.subscribe = false,
            ("action", "subscribe" | "sub") => rule.publish = false,
            ("action", "all" | "pubsub") | ("topic" | "topics", _) => {}
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
            (name, text) => {
                let held = reading.holds(name, text)?;
                holds &= held.filter(|_| value.is_string()).ok_or_else(not_understood)?;
            }
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
            add_topic(&mut rule, topic, reading)?;
        }
    }
    if let Some(name) = ["permission", "action"].into_iter().find(|it| !item.contains_key(*it)) {
        return Err(format!("a rule lacks its '{name}'"));
    }
    if !has_topic(&rule) {
        return Err("a rule lacks its 'topic'".into());
    }
    Ok(Stated { rule, holds })
}

/// The lists of the object form: its name, and whether it is about publishing and subscribing.
const LISTS: [(&str, bool, bool); 4] =
    [("pub", true, false), ("sub", false, true), ("all", true, true), ("pubsub", true, true)];

fn lists_of(lists: &Map<String, Value>, reading: &mut Reading<'_>) -> Result<Vec<Stated>, String> {
    let is_list = |name: &&String| LISTS.iter().any(|(known, ..)| known == name);
    if let Some(name) = lists.keys().find(|name| !is_list(name)) {
        return Err(format!("an action must be 'pub', 'sub', 'all' or 'pubsub', got '{name}'"));
    }
    let mut rules = Vec::new();
    for (name, publish, subscribe) in LISTS {
        let Some(value) = lists.get(name) else { continue };
        let mut rule = OrderedRule { allows: true, publish, subscribe, ..OrderedRule::default() };
        for topic in texts_of(value).ok_or_else(|| format!("'{name}' must be a list of topics"))? {
            add_topic(&mut rule, topic, reading)?;
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
    Ok(rules.into_iter().map(|rule| Stated { rule, holds: true }).collect())
}

fn has_topic(rule: &OrderedRule) -> bool {
    !rule.filters.is_empty() || !rule.exact_filters.is_empty()
}

fn add_topic(rule: &mut OrderedRule, topic: &str, reading: &mut Reading<'_>) -> Result<(), String> {
    let Some(exact) = topic.strip_prefix("eq ") else {
        let filled = reading.filled(topic)?;
        rule.filters.push(filter_of(&filled).map_err(|why| format!("'{topic}': {why}"))?);
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

/// A number, a list of numbers or their texts, or a text such as `0,1`.
fn qos_of(value: &Value) -> Option<Vec<u8>> {
    let levels: Option<Vec<u64>> = match value {
        Value::Number(number) => number.as_u64().map(|level| vec![level]),
        Value::Array(items) => items.iter().map(level_of).collect(),
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

fn level_of(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
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

    const SUBJECT: Subject<'static> =
        Subject { client_id: "c1", username: Some("anna"), common_name: None };

    /// Of all clients.
    fn rules(acl: Value) -> Result<Vec<OrderedRule>, String> {
        let object = json!({ "acl": acl });
        rules_of(object.as_object().unwrap(), ACL, SUBJECT)?;
        let mut reading = Reading::new(SUBJECT);
        let stated = stated_rules(object.as_object().unwrap(), ACL, &mut reading)?;
        Ok(stated.into_iter().map(|stated| stated.rule).collect())
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
        let none = rules_of(&Map::new(), ACL, SUBJECT);
        assert_eq!(none.map(|read| read.rules.len()), Ok(0));
    }

    #[test]
    fn rules_are_read_where_the_configuration_says() {
        let read = |object: Value| {
            let read = rules_of(object.as_object().unwrap(), "rights", SUBJECT);
            read.map(|read| read.rules.len())
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

    /// Which rules of a list a client has.
    fn of_subject(acl: Value, subject: Subject<'_>) -> Result<ReadRules, String> {
        rules_of(json!({ "acl": acl }).as_object().unwrap(), ACL, subject)
    }

    #[test]
    fn rules_are_for_the_clients_that_their_names_mean() {
        let count = |more: &[(&str, &str)], subject| {
            let mut rule = json!({ "permission": "deny", "action": "all", "topic": "t" });
            for (name, value) in more {
                rule[*name] = json!(value);
            }
            of_subject(json!([rule]), subject).unwrap().rules.len()
        };
        let nobody = Subject { username: None, ..SUBJECT };
        for (more, anna, without_name) in [
            (&[("username", "anna")][..], 1, 0),
            (&[("username", "ann")], 0, 0),
            (&[("username_re", "^an+a$")], 1, 0),
            (&[("username_re", "n")], 1, 0),
            (&[("username_re", "^n")], 0, 0),
            (&[("clientid", "c1")], 1, 1),
            (&[("clientid_re", "^c[0-9]+$")], 1, 1),
            (&[("clientid_re", "^d")], 0, 0),
            (&[("clientid", "c1"), ("username", "bruno")], 0, 0),
            (&[("clientid_re", "c"), ("username_re", "a")], 1, 0),
        ] {
            assert_eq!(count(more, SUBJECT), anna, "{more:?}");
            assert_eq!(count(more, nobody), without_name, "{more:?} without a name");
        }
    }

    #[test]
    fn rules_for_others_are_checked_as_well() {
        let rule = |topic: &str| {
            json!({
                "permission": "allow", "action": "all", "topic": topic, "clientid": "other",
            })
        };
        assert!(of_subject(json!([rule("a/#")]), SUBJECT).unwrap().rules.is_empty());
        for wrong in [json!([rule("a#")]), json!(vec![rule("a"); RULES_MAX + 1])] {
            assert!(of_subject(wrong, SUBJECT).is_err());
        }
        let long = "c".repeat(257);
        let long = Subject { client_id: &long, ..SUBJECT };
        let by_name = |name: &str| {
            json!([{
                "permission": "deny", "action": "all", "topic": "t", name: "^c",
            }])
        };
        assert!(of_subject(by_name("clientid"), long).is_ok(), "no expression");
        assert!(of_subject(by_name("clientid_re"), long).is_err(), "a longer name could be denied");
        let many =
            json!({ "permission": "deny", "action": "all", "topic": "t", "clientid_re": "^x" });
        assert!(of_subject(json!(vec![many.clone(); 10]), SUBJECT).is_ok());
        let error = of_subject(json!(vec![many; 11]), SUBJECT).unwrap_err();
        assert!(error.contains("at most 10 regular expressions"), "{error}");
    }

    #[test]
    fn the_name_of_a_certificate_is_a_part_of_one_level() {
        let acl = || json!({ "all": ["d/x-${cert_common_name}/#", "eq ${cert_common_name}"] });
        let of = |name| of_subject(acl(), Subject { common_name: name, ..SUBJECT });
        let read = of(Some("pump 7")).unwrap();
        assert!(read.asks_common_name && !read.asks_client_id);
        let principal = Principal { rules: read.rules, ..Principal::default() };
        let who = Identity { principal: Some(&principal), ..Identity::new("c1", None) };
        let grants = Access::open().grants_of(who, ClientLocation::default());
        for (topic, may) in
            [("d/x-pump 7/a", true), ("d/x-pump 8/a", false), ("${cert_common_name}", true)]
        {
            assert_eq!(grants.allows(who, Action::Publish, topic), may, "{topic}");
        }
        for name in
            [None, Some(""), Some("a/b"), Some("#"), Some("+"), Some("%c"), Some("${clientid}")]
        {
            let error = of(name).map(|read| read.rules.len()).unwrap_err();
            assert!(error.contains("client certificate"), "{name:?}: {error}");
        }
    }

    #[test]
    fn other_words_of_emqx_are_understood() {
        let read = rules(json!([
            { "permission": "allow", "action": "pubsub", "topics": ["a", "b"], "qos": ["0", 2] },
        ]))
        .unwrap();
        assert!(read[0].publish && read[0].subscribe);
        assert_eq!((read[0].qos.as_slice(), read[0].filters.len()), ([0, 2].as_slice(), 2));
        assert!(may(json!({ "pubsub": ["a"] }), Action::Publish, "a"));
        assert!(!may(json!({ "pubsub": ["a"] }), Action::Publish, "b"));
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
            json!({ "clientid_re": "(a" }),
            json!({ "clientid_re": "" }),
            json!({ "clientid_re": null }),
            json!({ "clientid_re": "(?=a)" }),
            json!({ "username_re": "a".repeat(257) }),
            json!({ "username_re": "(a{100}){100}" }),
            json!({ "username": ["anna"] }),
            json!({ "clientid": 7 }),
            json!({ "zone": "default" }),
            json!({ "listener": "tcp:default" }),
            json!({ "topic": "a/${cert_common_name}" }),
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
