use super::*;
use crate::enrich::Enrichment;
use crate::record::Record;
use crate::testing::{record, text_record};

const PAYLOAD: &str = r#"{
    "n": 21.5, "big": 9007199254740993, "text": "Motor-A", "on": true, "none": null,
    "list": ["Red", "Green"], "numbers": [1, 7, "x"], "objects": [{"a": 1}], "empty": [],
    "deep": {"er": {"n": 3}}, "object": {}
}"#;

fn given(text: &str) -> Given {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    Given::from(&value)
}

/// `operand` is JSON: a list becomes `values`, anything else `value`.
fn raw(key: &str, operator: &str, operand: &str) -> RawCondition {
    let mut raw =
        RawCondition { key: key.into(), operator: operator.into(), ..RawCondition::default() };
    match operand {
        "" => {}
        list if list.starts_with('[') => raw.values = Some(given(list)),
        one => raw.value = Some(given(one)),
    }
    raw
}

fn enrichments() -> Enrichments {
    let all = [
        ("site", "${client.attributes.site}"),
        ("floor", "${client.attributes.floor}"),
        ("unit", "${mqtt.message.userProperties.unit}"),
        ("fixed", "Yes"),
    ];
    let all = all.map(|(key, value)| Enrichment::parse(key, value).expect("it is allowed"));
    Enrichments::new(all.into()).expect("they differ")
}

fn holds(record: &Record<'_>, raw: &RawCondition) -> bool {
    let enrichments = enrichments();
    let condition = Condition::new(raw, &enrichments);
    let condition = condition.unwrap_or_else(|error| panic!("{raw:?}: {error}"));
    let event = Event::new(record);
    let reading = PayloadReading::Declared;
    condition.holds(Context { event: &event, enrichments: &enrichments, reading })
}

/// Key, operator, operand, whether it holds.
type Row = (&'static str, &'static str, &'static str, bool);

fn check(rows: &[Row]) {
    let record = text_record("Plants/7/Motor", PAYLOAD);
    for (key, operator, operand, expected) in rows {
        let raw = raw(key, operator, operand);
        assert_eq!(holds(&record, &raw), *expected, "{key} {operator} {operand}");
    }
}

#[test]
fn numbers() {
    check(&[
        ("data.n", "NumberIn", "[1, 21.5]", true),
        ("data.n", "NumberIn", "[1, 21]", false),
        ("data.big", "NumberIn", "[9007199254740992]", false),
        ("data.big", "NumberIn", "[9007199254740993]", true),
        ("data.deep.er.n", "NumberIn", "[3.0]", true),
        ("data.n", "NumberNotIn", "[1, 21.5]", false),
        ("data.n", "NumberNotIn", "[1, 21]", true),
        ("data.n", "NumberLessThan", "21.5", false),
        ("data.n", "NumberLessThan", "21.51", true),
        ("data.n", "NumberLessThanOrEquals", "21.5", true),
        ("data.n", "NumberLessThanOrEquals", "21.4", false),
        ("data.n", "NumberGreaterThan", "21.5", false),
        ("data.n", "NumberGreaterThan", "-1e3", true),
        ("data.n", "NumberGreaterThanOrEquals", "21.5", true),
        ("data.n", "NumberGreaterThanOrEquals", "22", false),
        ("data.n", "NumberInRange", "[[0, 1], [21.5, 30]]", true),
        ("data.n", "NumberInRange", "[[0, 21.5]]", true),
        ("data.n", "NumberInRange", "[[0, 1], [22, 30]]", false),
        ("data.n", "NumberNotInRange", "[[0, 1], [21.5, 30]]", false),
        ("data.n", "NumberNotInRange", "[[0, 1], [22, 30]]", true),
        ("floor", "NumberIn", "[3]", true),
        ("floor", "NumberGreaterThan", "3", false),
    ]);
}

#[test]
fn texts_and_truth_values() {
    check(&[
        ("data.on", "BoolEquals", "true", true),
        ("data.on", "BoolEquals", "false", false),
        ("data.text", "StringIn", r#"["x", "MOTOR-a"]"#, true),
        ("data.text", "StringIn", r#"["motor"]"#, false),
        ("data.text", "StringNotIn", r#"["x", "motor-a"]"#, false),
        ("data.text", "StringNotIn", r#"["motor"]"#, true),
        ("subject", "StringBeginsWith", r#"["x", "plants/"]"#, true),
        ("subject", "StringBeginsWith", r#"["lants/"]"#, false),
        ("subject", "StringNotBeginsWith", r#"["x", "plants/"]"#, false),
        ("subject", "StringNotBeginsWith", r#"["x"]"#, true),
        ("subject", "StringEndsWith", r#"["x", "/MOTOR"]"#, true),
        ("subject", "StringEndsWith", r#"["/moto"]"#, false),
        ("subject", "StringNotEndsWith", r#"["/MOTOR"]"#, false),
        ("subject", "StringNotEndsWith", r#"["/moto"]"#, true),
        ("subject", "StringContains", r#"["x/y", "/7/"]"#, true),
        ("subject", "StringContains", r#"["/8/"]"#, false),
        ("subject", "StringNotContains", r#"["/7/"]"#, false),
        ("subject", "StringNotContains", r#"["/8/"]"#, true),
        ("site", "StringIn", r#"["Berlin"]"#, true),
        ("fixed", "StringIn", r#"["yes"]"#, true),
        ("type", "StringIn", r#"["MQTT.EventPublished"]"#, true),
        ("source", "StringContains", r#"["FACT"]"#, true),
        ("time", "StringBeginsWith", r#"["2026-11-29"]"#, true),
    ]);
}

#[test]
fn null_and_missing() {
    check(&[
        ("data.n", "IsNullOrUndefined", "", false),
        ("data.none", "IsNullOrUndefined", "", true),
        ("data.x", "IsNullOrUndefined", "", true),
        ("data.deep.x.y", "IsNullOrUndefined", "", true),
        ("data.text.x", "IsNullOrUndefined", "", true),
        ("data.empty", "IsNullOrUndefined", "", false),
        ("tenant", "IsNullOrUndefined", "", true),
        // An enrichment is there, although the message has no such user property.
        ("unit", "IsNullOrUndefined", "", false),
        ("unit", "StringIn", r#"[""]"#, true),
        ("data.n", "IsNotNull", "", true),
        ("data", "IsNotNull", "", true),
        ("data.none", "IsNotNull", "", false),
        ("data.x", "IsNotNull", "", false),
        ("tenant", "IsNotNull", "", false),
    ]);
}

#[test]
fn a_missing_key_and_a_value_of_another_type_match_two_negations_only() {
    let with_operand = [
        ("NumberIn", "[1]"),
        ("NumberLessThan", "1"),
        ("NumberLessThanOrEquals", "1"),
        ("NumberGreaterThan", "1"),
        ("NumberGreaterThanOrEquals", "1"),
        ("NumberInRange", "[[1, 2]]"),
        ("NumberNotInRange", "[[1, 2]]"),
        ("BoolEquals", "true"),
        ("StringIn", r#"["1"]"#),
        ("StringBeginsWith", r#"[""]"#),
        ("StringNotBeginsWith", r#"["1"]"#),
        ("StringEndsWith", r#"[""]"#),
        ("StringNotEndsWith", r#"["1"]"#),
        ("StringContains", r#"[""]"#),
        ("StringNotContains", r#"["1"]"#),
    ];
    for key in ["data.x", "data.none", "data.object", "tenant"] {
        for (operator, operand) in with_operand {
            check(&[(key, operator, operand, false)]);
        }
        check(&[(key, "NumberNotIn", "[1]", true), (key, "StringNotIn", r#"["1"]"#, true)]);
    }
    check(&[
        ("data.text", "NumberNotIn", "[1]", true),
        ("data.n", "StringNotIn", r#"["1"]"#, true),
        ("data.n", "StringNotContains", r#"["1"]"#, false),
        ("data.text", "NumberNotInRange", "[[1, 2]]", false),
        ("data.text", "BoolEquals", "true", false),
    ]);
}

#[test]
fn one_element_of_an_array_must_fit_or_none() {
    check(&[
        ("data.list", "StringIn", r#"["green"]"#, true),
        ("data.list", "StringIn", r#"["blue"]"#, false),
        ("data.list", "StringNotIn", r#"["green"]"#, false),
        ("data.list", "StringNotIn", r#"["blue"]"#, true),
        ("data.list", "StringNotContains", r#"["ee"]"#, false),
        ("data.list", "StringNotContains", r#"["bl"]"#, true),
        ("data.numbers", "NumberGreaterThan", "6", true),
        ("data.numbers", "NumberGreaterThan", "7", false),
        ("data.numbers", "NumberNotIn", "[7]", false),
        ("data.numbers", "NumberNotInRange", "[[2, 6]]", true),
        ("data.objects", "NumberIn", "[1]", false),
        ("data.objects.a", "NumberIn", "[1]", false),
        ("data.empty", "StringIn", r#"[""]"#, false),
        ("data.empty", "StringNotContains", r#"[""]"#, true),
    ]);
}

#[test]
fn data_is_a_key_only_if_it_counts_as_json() {
    let raw = raw("data.n", "NumberIn", "[1]");
    assert!(holds(&text_record("t", r#"{"n": 1}"#), &raw));
    assert!(!holds(&record("t", br#"{"n": 1}"#), &raw), "it is not declared");
    let content_type = Some("application/json");
    assert!(holds(&Record { content_type, ..record("t", br#"{"n": 1}"#) }, &raw));
    assert!(!holds(&text_record("t", r#"{"n": 1"#), &raw), "it is no JSON");
}

#[test]
fn attributes_do_not_parse_the_payload() {
    let record = text_record("Plants/7", PAYLOAD);
    let event = Event::new(&record);
    let enrichments = enrichments();
    let reading = PayloadReading::Declared;
    let context = Context { event: &event, enrichments: &enrichments, reading };
    for key in ["subject", "site", "id", "tenant"] {
        let raw = raw(key, "StringContains", r#"["x"]"#);
        let condition = Condition::new(&raw, &enrichments).expect("it is valid");
        condition.holds(context);
        assert!(!condition.asks_data() && !event.is_parsed(), "{key}");
    }
    let condition = Condition::new(&raw("data.n", "IsNotNull", ""), &enrichments);
    assert!(condition.expect("it is valid").holds(context) && event.is_parsed());
}

#[test]
fn an_enrichment_takes_precedence_over_an_attribute_of_the_message() {
    let properties =
        [("specversion", "1.0"), ("id", "7"), ("source", "/s"), ("type", "t"), ("site", "forged")];
    let record = Record { user_properties: &properties, ..record("t", b"") };
    assert!(holds(&record, &raw("site", "StringIn", r#"["berlin"]"#)));
    assert!(holds(&record, &raw("id", "StringIn", r#"["7"]"#)));
}

#[test]
fn each_operator_is_tried_above_and_has_its_name() {
    for operator in Operator::ALL {
        assert_eq!(Operator::parse(operator.name()), Some(operator));
        let tests = include_str!("tests.rs");
        assert!(tests.contains(&format!("\"{}\"", operator.name())), "{operator:?}");
    }
    assert_eq!(Operator::parse("numberin"), None);
}

#[test]
fn what_is_not_understood_is_refused_where_it_is() {
    let long = format!("[\"{}\"]", "x".repeat(TEXT_CHARS_MAX + 1));
    let many = format!("[{}]", vec!["1"; VALUES_MAX + 1].join(","));
    let deep = format!("data{}", ".x".repeat(PATH_NAMES_MAX + 1));
    let long_key = format!("data.{}", "x".repeat(KEY_CHARS_MAX));
    for (key, operator, operand, part) in [
        ("subject", "StringEquals", "\"x\"", Part::Operator),
        ("subject", "stringin", "[\"x\"]", Part::Operator),
        ("subject", "", "[\"x\"]", Part::Operator),
        ("", "IsNotNull", "", Part::Key),
        ("Subject", "IsNotNull", "", Part::Key),
        ("eventType", "IsNotNull", "", Part::Key),
        ("data_base64", "IsNotNull", "", Part::Key),
        ("data.", "IsNotNull", "", Part::Key),
        ("data..x", "IsNotNull", "", Part::Key),
        (&deep, "IsNotNull", "", Part::Key),
        (&long_key, "IsNotNull", "", Part::Key),
        ("subject.x", "IsNotNull", "", Part::Key),
        ("data.x", "IsNotNull", "1", Part::Value),
        ("data.x", "IsNullOrUndefined", "[1]", Part::Values),
        ("data.x", "NumberIn", "1", Part::Value),
        ("data.x", "NumberIn", "[]", Part::Values),
        ("data.x", "NumberIn", "[\"1\"]", Part::Values),
        ("data.x", "NumberIn", "[1e99]", Part::Values),
        ("data.x", "NumberIn", &many, Part::Values),
        ("data.x", "NumberLessThan", "[1]", Part::Values),
        ("data.x", "NumberLessThan", "\"1\"", Part::Value),
        ("data.x", "NumberLessThan", "", Part::Value),
        ("data.x", "NumberInRange", "[1, 2]", Part::Values),
        ("data.x", "NumberInRange", "[[1]]", Part::Values),
        ("data.x", "NumberInRange", "[[2, 1]]", Part::Values),
        ("data.x", "BoolEquals", "1", Part::Value),
        ("data.x", "BoolEquals", "[true]", Part::Values),
        ("data.x", "StringIn", "\"x\"", Part::Value),
        ("data.x", "StringIn", "[1]", Part::Values),
        ("data.x", "StringIn", "[null]", Part::Values),
        ("data.x", "StringIn", &long, Part::Values),
    ] {
        let raw = raw(key, operator, operand);
        let error = Condition::new(&raw, &enrichments()).expect_err(operand);
        assert_eq!(error.part, part, "{raw:?}: {error}");
        let says = ["must", "missing", "got", "at most"];
        assert!(says.iter().any(|word| error.detail.contains(word)), "{error}");
    }
}

#[test]
fn a_condition_is_shown_as_it_was_written() {
    for (raw, shown) in [
        (raw("data.x", "NumberInRange", "[[1, 2.50]]"), "data.x NumberInRange [[1, 2.50]]"),
        (raw("subject", "StringIn", r#"["A\"b"]"#), r#"subject StringIn ["A\"b"]"#),
        (raw("data.x", "BoolEquals", "true"), "data.x BoolEquals true"),
        (raw("data.x", "IsNotNull", ""), "data.x IsNotNull"),
    ] {
        assert_eq!(Condition::new(&raw, &enrichments()).expect("valid").to_string(), shown);
    }
}
