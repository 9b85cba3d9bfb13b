//! Rules in tokens against what `docs/use/authorization.md` says of them, read as plainly as can
//! be: any shape of JSON either means that, or is refused.

use policy::{Access, Action, ClientLocation, Identity, Manner};
use policy::{Attribute, Attributes, Principal};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{ACL, ReadRules, Subject, rules_of};

const CLIENT_ID: &str = "c1";
const USERNAME: &str = "anna";
const UNITS: [&str; 2] = ["v1", "v2"];
const ADDRESS: &str = "10.1.2.3";

/// What a rule is about: filters, and those that are meant literally.
struct Rule {
    allows: bool,
    publish: bool,
    subscribe: bool,
    filters: Vec<String>,
    exact: Vec<String>,
    qos: Option<Vec<u64>>,
    retain: Option<bool>,
    is_at_address: bool,
    is_for_client: bool,
}

struct Meaning {
    rules: Vec<Rule>,
    /// What no rule is about.
    allows_rest: bool,
}

#[derive(Clone, Copy, Debug)]
struct Question<'a> {
    action: Action,
    topic: &'a str,
    qos: u8,
    retain: bool,
}

/// None: it is not understood.
fn meaning_of(acl: &Value) -> Option<Meaning> {
    if let Value::Array(items) = acl {
        let rules = items.iter().map(rule_of).collect::<Option<Vec<_>>>()?;
        return Some(Meaning { rules, allows_rest: true });
    }
    let lists = acl.as_object()?;
    let mut rules = Vec::new();
    for (name, value) in lists {
        let (publish, subscribe) = match name.as_str() {
            "pub" => (true, false),
            "sub" => (false, true),
            "all" | "pubsub" => (true, true),
            _ => return None,
        };
        let (filters, exact) = filters_of(value)?;
        let (allows, is_at_address, is_for_client) = (true, true, true);
        let (qos, retain) = (None, None);
        rules.push(Rule {
            allows,
            publish,
            subscribe,
            filters,
            exact,
            qos,
            retain,
            is_at_address,
            is_for_client,
        });
    }
    Some(Meaning { rules, allows_rest: false })
}

fn rule_of(item: &Value) -> Option<Rule> {
    const KNOWN: [&str; 11] = [
        "permission",
        "action",
        "topic",
        "topics",
        "qos",
        "retain",
        "ipaddr",
        "username",
        "username_re",
        "clientid",
        "clientid_re",
    ];
    let item = item.as_object()?;
    if item.keys().any(|name| !KNOWN.contains(&name.as_str())) {
        return None;
    }
    let allows = match item.get("permission")?.as_str()? {
        "allow" => true,
        "deny" => false,
        _ => return None,
    };
    let (publish, subscribe) = match item.get("action")?.as_str()? {
        "publish" | "pub" => (true, false),
        "subscribe" | "sub" => (false, true),
        "all" | "pubsub" => (true, true),
        _ => return None,
    };
    let (mut filters, mut exact) = (Vec::new(), Vec::new());
    let mut topics = 0;
    for value in ["topic", "topics"].iter().filter_map(|name| item.get(*name)) {
        let more = filters_of(value)?;
        topics += texts_of(value)?.len();
        filters.extend(more.0);
        exact.extend(more.1);
    }
    if topics == 0 {
        return None;
    }
    let qos = match item.get("qos") {
        None => None,
        Some(value) => Some(qos_of(value)?),
    };
    let retain = match item.get("retain") {
        None => None,
        Some(value) => retain_of(value)?,
    };
    let (is_at_address, is_for_client) = (is_at_address(item)?, is_for_client(item)?);
    Some(Rule {
        allows,
        publish,
        subscribe,
        filters,
        exact,
        qos,
        retain,
        is_at_address,
        is_for_client,
    })
}

fn is_at_address(item: &Map<String, Value>) -> Option<bool> {
    let Some(value) = item.get("ipaddr") else { return Some(true) };
    let networks = texts_of(value).filter(|texts| !texts.is_empty())?;
    let is_in = |network: &&str| match *network {
        "10.0.0.0/8" | ADDRESS => Some(true),
        "192.168.0.0/16" => Some(false),
        _ => None,
    };
    Some(networks.iter().map(is_in).collect::<Option<Vec<_>>>()?.contains(&true))
}

fn is_for_client(item: &Map<String, Value>) -> Option<bool> {
    let mut is_for_client = true;
    for (name, own) in [("username", USERNAME), ("clientid", CLIENT_ID)] {
        if let Some(value) = item.get(name) {
            is_for_client &= value.as_str().filter(|text| !text.is_empty())? == own;
        }
        if let Some(value) = item.get(&format!("{name}_re")) {
            is_for_client &= match value.as_str()? {
                "^c[0-9]$" => own == CLIENT_ID,
                "an+a" => own == USERNAME,
                "" | "(" => return None,
                plain => own.contains(plain),
            };
        }
    }
    Some(is_for_client)
}

fn texts_of(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(text) => Some(vec![text]),
        Value::Array(items) => items.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

fn qos_of(value: &Value) -> Option<Vec<u64>> {
    let levels: Vec<u64> = match value {
        Value::Number(_) => vec![value.as_u64()?],
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_u64().or_else(|| item.as_str()?.parse().ok()))
            .collect::<Option<_>>()?,
        Value::String(text) => {
            text.split(',').map(|part| part.trim().parse().ok()).collect::<Option<_>>()?
        }
        _ => return None,
    };
    (!levels.is_empty() && levels.iter().all(|level| *level <= 2)).then_some(levels)
}

/// None: it is not understood. None inside: whatever it is.
fn retain_of(value: &Value) -> Option<Option<bool>> {
    if let Some(text) = value.as_str() {
        return match text {
            "all" => Some(None),
            "true" => Some(Some(true)),
            "false" => Some(Some(false)),
            _ => None,
        };
    }
    match (value.as_bool(), value.as_u64()) {
        (Some(retain), _) => Some(Some(retain)),
        (_, Some(1)) => Some(Some(true)),
        (_, Some(0)) => Some(Some(false)),
        _ => None,
    }
}

fn filters_of(value: &Value) -> Option<(Vec<String>, Vec<String>)> {
    let (mut filters, mut exact) = (Vec::new(), Vec::new());
    for topic in texts_of(value)? {
        match topic.strip_prefix("eq ") {
            Some(text) if text.contains(['+', '#']) => exact.push(checked(text)?),
            Some(text) => filters.push(checked(text)?),
            None => filters.extend(expanded(topic)?),
        }
    }
    Some((filters, exact))
}

/// With what the client is put in, for each value of a list.
fn expanded(topic: &str) -> Option<Vec<String>> {
    let plain = topic.replace("${clientid}", CLIENT_ID).replace("${username}", USERNAME);
    let units = UNITS.map(|unit| plain.replace("${client_attrs.unit}", unit));
    let all: Vec<_> = match plain == units[0] {
        true => vec![plain],
        false => units.into(),
    };
    let is_lacking = |text: &String| text.contains("${client_attrs.none}");
    // Names that are not known.
    if all.iter().any(|text| text.replace("${client_attrs.none}", "").contains("${")) {
        return None;
    }
    checked(&all[0].replace("${client_attrs.none}", "x"))?;
    Some(all.into_iter().filter(|text| !is_lacking(text)).collect())
}

fn checked(filter: &str) -> Option<String> {
    let levels: Vec<&str> = filter.split('/').collect();
    let is_right = |(place, level): (usize, &&str)| match *level {
        "#" => place + 1 == levels.len(),
        "+" => true,
        level => !level.contains(['+', '#']),
    };
    let is_filter = !filter.is_empty() && levels.iter().enumerate().all(is_right);
    is_filter.then(|| filter.to_owned())
}

fn matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let (mut filter, mut topic) = (filter.split('/'), topic.split('/'));
    loop {
        match (filter.next(), topic.next()) {
            (Some("#"), _) | (None, None) => return true,
            (Some(own), Some(level)) if own == "+" || own == level => {}
            _ => return false,
        }
    }
}

impl Meaning {
    fn allows(&self, asked: Question<'_>) -> bool {
        let first = self.rules.iter().find(|rule| rule.is_about(asked));
        first.map_or(self.allows_rest, |rule| rule.allows)
    }
}

impl Rule {
    fn is_about(&self, Question { action, topic, qos, retain }: Question<'_>) -> bool {
        let is_about_qos = |qos: u8| self.qos.as_ref().is_none_or(|it| it.contains(&qos.into()));
        let is_of_action = match action {
            Action::Publish => {
                self.publish && is_about_qos(qos) && self.retain.is_none_or(|it| it == retain)
            }
            Action::Subscribe => self.subscribe && is_about_qos(qos),
            // What was allowed at some QoS was asked for so, and is received.
            Action::Receive => self.subscribe && (self.allows || (0..3).all(is_about_qos)),
        };
        let is_on_topic = self.filters.iter().any(|filter| matches(filter, topic))
            || action == Action::Subscribe && self.exact.iter().any(|text| text == topic);
        is_of_action && self.is_at_address && self.is_for_client && is_on_topic
    }
}

const TOPICS: [&str; 9] =
    ["a", "a/b", "c1/x", "c2/x", "anna", "at/v1/x", "at/v3/x", "$app/x", "${clientid}/x"];

fn topic() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        Just("a"),
        Just("a/#"),
        Just("+/b"),
        Just("#"),
        Just("${clientid}/#"),
        Just("${username}"),
        Just("at/${client_attrs.unit}/x"),
        Just("x-${client_attrs.none}/#"),
        Just("$app/+"),
        Just("eq a/b"),
        Just("eq #"),
        Just("eq ${clientid}/x"),
        Just("eq "),
        Just(""),
        Just("a#"),
        Just("${nobody}"),
        Just("${clientid"),
        Just("+/x"),
    ];
    let text = text.prop_map(Value::from);
    prop_oneof![
        4 => text.clone(),
        2 => proptest::collection::vec(text, 0..3).prop_map(Value::from),
        1 => any_value(),
    ]
}

/// Whatever JSON may be, of words that mean something in rules.
fn any_value() -> impl Strategy<Value = Value> {
    let word = prop_oneof![
        Just("allow"),
        Just("deny"),
        Just("publish"),
        Just("all"),
        Just("#"),
        Just("a"),
        Just("1"),
        Just("0,1"),
        Just("true"),
        Just("10.0.0.0/8"),
        Just(""),
    ];
    let name = prop_oneof![
        Just("permission"),
        Just("action"),
        Just("topic"),
        Just("qos"),
        Just("pub"),
        Just("sub"),
        Just("all"),
        Just("retain"),
        Just("other"),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-1_i64..4).prop_map(Value::from),
        Just(json!(1.5)),
        word.prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, move |inner| {
        let members = proptest::collection::vec((name.clone(), inner.clone()), 0..4);
        prop_oneof![
            proptest::collection::vec(inner, 0..4).prop_map(Value::from),
            members.prop_map(|members| {
                let named = members.into_iter().map(|(name, value)| (name.to_owned(), value));
                Value::Object(named.collect::<Map<_, _>>())
            }),
        ]
    })
}

fn one_of(words: &'static [&'static str]) -> impl Strategy<Value = Option<Value>> {
    let word = proptest::sample::select(words).prop_map(Value::from);
    prop_oneof![12 => word.prop_map(Some), 1 => Just(None), 1 => any_value().prop_map(Some)]
}

fn rarely(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Option<Value>> {
    prop_oneof![
        6 => Just(None),
        3 => value.prop_map(Some),
        1 => any_value().prop_map(Some),
    ]
}

fn rule() -> impl Strategy<Value = Value> {
    let qos = prop_oneof![Just(json!(1)), Just(json!([0, 2])), Just(json!("0, 1")), Just(json!(3))];
    let retain = prop_oneof![Just(json!(true)), Just(json!("all")), Just(json!(0))];
    let address = proptest::sample::select(&["10.0.0.0/8", ADDRESS, "192.168.0.0/16", "x"][..]);
    let addresses = proptest::collection::vec(address.prop_map(Value::from), 0..3);
    let members = (
        one_of(&["allow", "allow", "deny", "maybe"]),
        one_of(&["publish", "subscribe", "all", "pub", "sub", "pubsub", "read"]),
        prop_oneof![12 => topic().prop_map(Some), 1 => Just(None)],
        rarely(topic()),
        rarely(qos),
        rarely(retain),
        rarely(addresses.prop_map(Value::from)),
        [rarely(name()), rarely(name()), rarely(name()), rarely(name())],
    );
    members.prop_map(|(permission, action, topic, topics, qos, retain, ipaddr, names)| {
        let [username, username_re, clientid, clientid_re] = names;
        let named = [
            ("permission", permission),
            ("action", action),
            ("topic", topic),
            ("topics", topics),
            ("qos", qos),
            ("retain", retain),
            ("ipaddr", ipaddr),
            ("username", username),
            ("username_re", username_re),
            ("clientid", clientid),
            ("clientid_re", clientid_re),
        ];
        let named = named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Value::Object(named.collect())
    })
}

/// A name, or a regular expression for one.
fn name() -> impl Strategy<Value = Value> {
    let words = &["c1", "anna", "^c[0-9]$", "an+a", "c", "a", "bruno", "("][..];
    proptest::sample::select(words).prop_map(Value::from)
}

fn acl() -> impl Strategy<Value = Value> {
    let name = proptest::sample::select(&["pub", "sub", "all", "pub", "pubsub", "other"][..]);
    let lists = proptest::collection::vec((name, topic()), 0..3).prop_map(|members| {
        let named = members.into_iter().map(|(name, value)| (name.to_owned(), value));
        Value::Object(named.collect::<Map<_, _>>())
    });
    prop_oneof![
        6 => proptest::collection::vec(rule(), 0..4).prop_map(Value::from),
        3 => lists,
        1 => any_value(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn rules_of_a_token_mean_what_is_documented_or_refuse_the_log_in(acl in acl()) {
        let object = json!({ "acl": acl });
        let subject =
            Subject { client_id: CLIENT_ID, username: Some(USERNAME), common_name: None };
        let read = rules_of(object.as_object().unwrap(), ACL, subject);
        let Ok(ReadRules { rules, .. }) = read else {
            prop_assert!(meaning_of(&acl).is_none(), "refused, though it is documented");
            return Ok(());
        };
        let meaning = meaning_of(&acl);
        prop_assert!(meaning.is_some(), "it is not understood, and admitted");
        let meaning = meaning.unwrap();
        let units = UNITS.map(|unit| Attribute::Text(unit.into()));
        let attributes = Attributes::new([("unit".into(), Attribute::List(units.into()))]);
        let principal = Principal { rules, attributes, ..Principal::default() };
        let who =
            Identity { principal: Some(&principal), ..Identity::new(CLIENT_ID, Some(USERNAME)) };
        let place = ClientLocation { address: ADDRESS.parse().ok(), listener: "inside" };
        let grants = Access::open().grants_of(who, place);
        for (topic, number) in TOPICS.iter().flat_map(|topic| (0..6).map(move |it| (topic, it))) {
            let (qos, retain) = (number / 2, number % 2 == 1);
            for action in [Action::Publish, Action::Subscribe, Action::Receive] {
                let asked = Question { action, topic, qos, retain };
                let allowed = grants.allows_as(who, action, topic, Manner { qos, retain });
                prop_assert_eq!(allowed, meaning.allows(asked), "{:?}", asked);
            }
        }
    }
}
