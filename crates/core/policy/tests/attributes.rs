//! Rules with attributes in their filters against what they stand for: a filter for each choice of
//! values, built one by one. The broker never builds them.

use policy::{
    Access, Action, ClientLocation, Identity, Manner, OrderedRule, Permission, Rule, Who,
};
use policy::{Attribute, Attributes, Number, Principal};
use proptest::prelude::*;

const CLIENT_ID: &str = "c1";
const USERNAME: &str = "anna";

#[derive(Clone, Debug)]
enum Part {
    Text(&'static str),
    ClientId,
    Username,
    Attribute(&'static str),
}

/// None: `+`.
type Level = Option<Vec<Part>>;

#[derive(Clone, Debug)]
struct Filter {
    levels: Vec<Level>,
    has_rest: bool,
}

impl Part {
    fn written(&self) -> String {
        match self {
            Self::Text(text) => (*text).into(),
            Self::ClientId => "%c".into(),
            Self::Username => "%u".into(),
            Self::Attribute(name) => format!("%{{attributes.{name}}}"),
        }
    }
}

impl Filter {
    fn joined(&self, mut levels: Vec<String>) -> String {
        if self.has_rest {
            levels.push("#".into());
        }
        levels.join("/")
    }

    fn written(&self) -> String {
        let level = |level: &Level| match level {
            None => "+".to_owned(),
            Some(parts) => parts.iter().map(Part::written).collect(),
        };
        self.joined(self.levels.iter().map(level).collect())
    }

    fn attributes(&self) -> usize {
        let parts = self.levels.iter().flatten().flatten();
        parts.filter(|part| matches!(part, Part::Attribute(_))).count()
    }

    /// All that it stands for. Of what has a wildcard or a slash in it nothing is made, nor of what
    /// reaches topics with `$` though the filter does not say so.
    fn expanded(&self, texts: &dyn Fn(&str) -> Vec<String>) -> Vec<String> {
        let mut all: Vec<Vec<String>> = vec![Vec::new()];
        for level in &self.levels {
            let Some(parts) = level else {
                all.iter_mut().for_each(|levels| levels.push("+".into()));
                continue;
            };
            all.iter_mut().for_each(|levels| levels.push(String::new()));
            for part in parts {
                let values = match part {
                    Part::Text(text) => vec![(*text).to_owned()],
                    Part::ClientId => vec![CLIENT_ID.to_owned()],
                    Part::Username => vec![USERNAME.to_owned()],
                    Part::Attribute(name) => {
                        let is_usable = |text: &String| {
                            !text.is_empty() && !text.contains(['/', '+', '#', '%'])
                        };
                        texts(name).into_iter().filter(is_usable).collect()
                    }
                };
                let with = |levels: &Vec<String>, value: &String| {
                    let mut levels = levels.clone();
                    levels.last_mut().expect("a level").push_str(value);
                    levels
                };
                all = all.iter().flat_map(|it| values.iter().map(|v| with(it, v))).collect();
            }
        }
        let all = all.into_iter().map(|levels| self.joined(levels));
        all.filter(|text| !text.starts_with('$') || self.written().starts_with('$')).collect()
    }

    /// What it is for somebody whose attributes may be anything.
    fn widest(&self) -> Self {
        let has =
            |level: &Level| level.iter().flatten().any(|part| matches!(part, Part::Attribute(_)));
        let levels = self.levels.iter().map(|level| if has(level) { None } else { level.clone() });
        Self { levels: levels.collect(), has_rest: self.has_rest }
    }
}

/// Does every topic of `inner` match `outer`?
fn contains(outer: &str, inner: &str) -> bool {
    if outer.starts_with(['+', '#']) && inner.starts_with('$') {
        return false;
    }
    let (mut outer, mut inner) = (outer.split('/'), inner.split('/'));
    loop {
        match (outer.next(), inner.next()) {
            (Some("#"), _) | (None, None) => return true,
            (None, Some(_)) | (Some(_), None | Some("#")) => return false,
            (Some("+"), Some(_)) => {}
            (Some(a), Some(b)) if a == b => {}
            (Some(_), Some(_)) => return false,
        }
    }
}

/// Does some topic match both?
fn overlaps(a: &str, b: &str) -> bool {
    let is_wild = |filter: &str| filter.starts_with(['+', '#']);
    if is_wild(a) && b.starts_with('$') || is_wild(b) && a.starts_with('$') {
        return false;
    }
    let (mut a, mut b) = (a.split('/'), b.split('/'));
    loop {
        match (a.next(), b.next()) {
            (Some("#"), _) | (_, Some("#")) | (None, None) => return true,
            (None, _) | (_, None) => return false,
            (Some(x), Some(y)) if x == y || x == "+" || y == "+" => {}
            (Some(_), Some(_)) => return false,
        }
    }
}

fn text() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("a"), Just("b"), Just("ab"), Just("-"), Just("%"), Just("$"), Just("1")]
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        3 => text().prop_map(Part::Text),
        1 => Just(Part::ClientId),
        1 => Just(Part::Username),
        4 => prop_oneof![Just("x"), Just("y"), Just("none")].prop_map(Part::Attribute),
    ]
}

fn filter() -> impl Strategy<Value = Filter> {
    let level = prop_oneof![
        5 => proptest::collection::vec(part(), 1..4).prop_map(Some),
        1 => Just(None),
    ];
    (proptest::collection::vec(level, 1..4), any::<bool>())
        .prop_map(|(levels, has_rest)| Filter { levels, has_rest })
        .prop_filter("two attributes at most", |filter| filter.attributes() <= 2)
}

fn values() -> impl Strategy<Value = Attribute> {
    let text = prop_oneof![
        Just("a"),
        Just("b"),
        Just("ab"),
        Just("aa"),
        Just("a-b"),
        Just("-"),
        Just("ba"),
        Just(""),
        Just("a/b"),
        Just("+"),
        Just("#"),
        Just("%u"),
        Just("$SYS"),
        Just("$"),
        Just("c1"),
    ];
    let number = prop_oneof![Just("1"), Just("-2.5"), Just("11")];
    let one = prop_oneof![
        5 => text.prop_map(|text| Attribute::Text(text.into())),
        1 => number.prop_map(|text| Attribute::Number(Number::parse(text).expect("a number"))),
    ];
    let list = proptest::collection::vec(one.clone(), 0..6);
    prop_oneof![1 => one, 3 => list.prop_map(|items| Attribute::List(items.into()))]
}

fn attributes() -> impl Strategy<Value = Attributes> {
    (values(), values()).prop_map(|(x, y)| Attributes::new([("x".into(), x), ("y".into(), y)]))
}

/// Of texts that values and filters are made of.
fn topic() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => text(),
        2 => prop_oneof![Just("c1"), Just("anna"), Just("aa"), Just("ba"), Just("a-b")],
        1 => prop_oneof![Just("$SYS"), Just("-2.5"), Just("11"), Just("")],
    ];
    let level = proptest::collection::vec(piece, 1..4).prop_map(|pieces| pieces.concat());
    let topic = proptest::collection::vec(level, 1..5).prop_map(|levels| levels.join("/"));
    topic.prop_filter("a topic is not empty", |topic| !topic.is_empty())
}

fn asked() -> impl Strategy<Value = String> {
    (topic(), proptest::collection::vec(any::<bool>(), 4), any::<bool>()).prop_map(
        |(topic, wild, has_rest)| {
            let levels = topic.split('/').zip(wild);
            let mut levels: Vec<_> =
                levels.map(|(level, wild)| if wild { "+" } else { level }).collect();
            if has_rest {
                levels.push("#");
            }
            levels.join("/")
        },
    )
}

fn rules() -> impl Strategy<Value = Vec<(Filter, bool)>> {
    proptest::collection::vec((filter(), proptest::bool::weighted(0.3)), 1..5)
}

/// One of the topics and filters that rules and values make, or any.
fn near(all: &[String], (number, instead): (usize, String)) -> String {
    match all.get(number % (all.len() + 1)) {
        Some(text) if !text.is_empty() => text.clone(),
        _ => instead,
    }
}

struct Naive {
    denied: Vec<String>,
    granted: Vec<String>,
}

impl Naive {
    fn of(rules: &[(Filter, bool)], attributes: &Attributes) -> Self {
        let texts = |name: &str| attributes.get(name).map(Attribute::texts).unwrap_or_default();
        let of = |wanted: bool| {
            let rules = rules.iter().filter(move |(_, denies)| *denies == wanted);
            rules.flat_map(|(filter, _)| filter.expanded(&texts)).collect()
        };
        Self { denied: of(true), granted: of(false) }
    }

    fn receives(&self, topic: &str) -> bool {
        let matches = |filter: &String| contains(filter, topic);
        !self.denied.iter().any(matches) && self.granted.iter().any(matches)
    }

    fn subscribes(&self, filter: &str) -> bool {
        !self.denied.iter().any(|own| contains(own, filter))
            && self.granted.iter().any(|own| overlaps(own, filter))
    }

    fn covers(&self, filter: &str) -> bool {
        !self.denied.iter().any(|own| overlaps(own, filter))
            && self.granted.iter().any(|own| contains(own, filter))
    }
}

fn compiled(rules: &[(Filter, bool)]) -> Access {
    let rule = |(filter, denies): &(Filter, bool)| Rule {
        who: Who::Everyone,
        permission: if *denies { Permission::Deny } else { Permission::ReadWrite },
        filter: filter.written(),
    };
    Access::compile(&rules.iter().map(rule).collect::<Vec<_>>()).expect("valid rules")
}

fn who(principal: &Principal) -> Identity<'_> {
    Identity { principal: Some(principal), ..Identity::new(CLIENT_ID, Some(USERNAME)) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn rules_with_attributes_are_what_they_stand_for(
        rules in rules(),
        attributes in attributes(),
        number: usize,
        (topic, asked) in (topic(), asked()),
    ) {
        let naive = Naive::of(&rules, &attributes);
        let principal = Principal { attributes, ..Principal::default() };
        let who = who(&principal);
        let grants = compiled(&rules).grants_of(who, ClientLocation::default());
        let all = [naive.granted.clone(), naive.denied.clone()].concat();
        let filter = near(&all, (number, asked));
        let topic = near(&all, (number / 7, topic)).replace(['+', '#'], "a");
        prop_assert_eq!(grants.allows(who, Action::Receive, &topic), naive.receives(&topic));
        prop_assert_eq!(grants.allows(who, Action::Subscribe, &filter), naive.subscribes(&filter),
            "{}", filter);
        prop_assert_eq!(grants.covers(who, &filter), naive.covers(&filter), "{}", filter);
    }

    #[test]
    fn rules_in_order_with_attributes_are_what_they_stand_for(
        rules in rules(),
        attributes in attributes(),
        number: usize,
        (topic, asked) in (topic(), asked()),
    ) {
        let naive: Vec<_> = rules.iter().map(|(filter, denies)| {
            (Naive::of(&[(filter.clone(), false)], &attributes).granted, !denies)
        }).collect();
        let all: Vec<_> = naive.iter().flat_map(|(texts, _)| texts.clone()).collect();
        let principal = Principal { attributes, ..Principal::default() };
        let who = who(&principal);
        let ordered: Vec<_> = rules.iter().map(|(filter, denies)| OrderedRule {
            allows: !denies,
            publish: true,
            subscribe: true,
            filters: vec![filter.written()],
            ..OrderedRule::default()
        }).collect();
        let access = Access::compile(&[]).unwrap().in_order(&ordered).unwrap();
        let grants = access.grants_of(who, ClientLocation::default());
        let filter = near(&all, (number, asked));
        let topic = near(&all, (number / 7, topic)).replace(['+', '#'], "a");
        let first = |is_about: &dyn Fn(&str, bool) -> bool| {
            let about = |(texts, allows): &&(Vec<String>, bool)| {
                texts.iter().any(|text| is_about(text, *allows))
            };
            naive.iter().find(about).is_some_and(|(_, allows)| *allows)
        };
        let received = first(&|text, _| contains(text, &topic));
        prop_assert_eq!(grants.allows(who, Action::Receive, &topic), received);
        let subscribed = first(&|text, allows| match allows {
            true => overlaps(text, &filter),
            false => contains(text, &filter),
        });
        prop_assert_eq!(grants.allows_as(who, Action::Subscribe, &filter, Manner::default()),
            subscribed, "{}", filter);
    }

    /// What may be denied is denied, what may be granted is not.
    #[test]
    fn attributes_that_nobody_knows_may_be_any(
        rules in rules(),
        attributes in attributes(),
        number: usize,
        (topic, asked) in (topic(), asked()),
    ) {
        let none = |_: &str| Vec::new();
        let of = |wanted: bool| rules.iter().filter(move |(_, denies)| *denies == wanted);
        let naive = Naive {
            denied: of(true).flat_map(|(filter, _)| filter.widest().expanded(&none)).collect(),
            granted: of(false).flat_map(|(filter, _)| filter.expanded(&none)).collect(),
        };
        let possible = Naive::of(&rules, &attributes);
        let unknown = Principal { is_unknown: true, ..Principal::default() };
        let who = who(&unknown);
        let grants = compiled(&rules).grants_of(who, ClientLocation::default());
        let all = [possible.granted.clone(), possible.denied.clone()].concat();
        let (filter, topic) =
            (near(&all, (number, asked)), near(&all, (number / 7, topic)).replace(['+', '#'], "a"));
        let is_open_to_values = rules.iter().any(|(filter, _)| filter.written().starts_with('$'));
        let published = grants.allows(who, Action::Publish, &topic);
        // A denial of `$a%{attributes.x}` is about topics with `$`, which `+` is not.
        if !is_open_to_values && !topic.starts_with("$SYS") {
            prop_assert_eq!(published, naive.receives(&topic));
            prop_assert_eq!(grants.allows(who, Action::Subscribe, &filter),
                naive.subscribes(&filter), "{}", filter);
        }
        let is_broker_topic = topic.starts_with('$');
        prop_assert!(!published || possible.receives(&topic) || is_broker_topic);
    }
}
