use super::*;
use crate::condition::{CONDITIONS_MAX, VALUES_MAX};
use crate::enrich::ENRICHMENTS_MAX;
use crate::event::Event;
use crate::rule::Verdict;
use crate::testing::text_record;

const FULL: &str = r##"
[[rules]]
name = "overheated"
filter = "plants/+/motor"
form = "binary"
payload = "json"
enabled = false

[[rules.conditions]]
key = "data.celsius"
operator = "NumberGreaterThan"
value = 80

[[rules.conditions]]
key = "site"
operator = "StringIn"
values = ["Berlin", "Paris"]

[rules.enrichments]
site = "${client.attributes.site}"

[rules.target]
name = "alarms"
type = "kafka"
topic = "alarms"
key = "${client.attributes.site}-${mqtt.message.topicName}"

[[rules]]
name = "all"
filter = "#"
target = { name = "lake", type = "http", url = "https://example.com/lake" }
"##;

fn problems(text: &str) -> Vec<String> {
    let problems = parse(text).map(|rules| format!("{rules:?}")).expect_err(text);
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_file_is_read() {
    let rules = parse(FULL).expect("it is valid");
    let [first, second] = rules.as_slice() else { panic!("{rules:?}") };
    assert_eq!(
        (first.name(), first.is_enabled(), first.form()),
        ("overheated", false, Form::Binary)
    );
    assert_eq!(first.payload(), PayloadReading::Json);
    let target = first.target().expect("it has one");
    let record = text_record("plants/7/motor", r#"{"celsius": 81}"#);
    assert_eq!(target.destination.key(&record).as_deref(), Some("berlin-plants/7/motor"));
    assert_eq!((second.is_enabled(), second.form()), (true, Form::Structured));
    let event = Event::new(&record);
    assert_eq!(first.verdict(&event), Verdict::Matches);
    let cold = text_record("plants/7/motor", r#"{"celsius": 80}"#);
    let Verdict::Condition(condition) = first.verdict(&Event::new(&cold)) else { panic!() };
    assert_eq!(condition.to_string(), "data.celsius NumberGreaterThan 80");
    let elsewhere = text_record("plants/7", "");
    assert_eq!(first.verdict(&Event::new(&elsewhere)), Verdict::Filter);
    assert_eq!(second.verdict(&Event::new(&elsewhere)), Verdict::Matches);
    assert_eq!(second.verdict(&Event::new(&text_record("$SYS/x", ""))), Verdict::Filter);
    assert_eq!(parse(""), Ok(Vec::new()));
}

#[test]
fn conditions_over_attributes_come_first() {
    let rules = parse(FULL).expect("it is valid");
    let shown: Vec<_> = rules[0].conditions().iter().map(ToString::to_string).collect();
    assert_eq!(shown[0], r#"site StringIn ["Berlin", "Paris"]"#);
    let record = text_record("plants/7/motor", "{}");
    let event = Event::new(&record);
    assert_eq!(rules[1].verdict(&event), Verdict::Matches);
    assert!(!event.is_parsed());
}

#[test]
fn each_problem_has_its_line_and_its_key() {
    let change = |from: &str, to: &str| {
        assert!(FULL.contains(from), "{from}");
        problems(&FULL.replacen(from, to, 1))
    };
    for (from, to, expected) in [
        ("form =", "forme =", "5:1: rules.0.forme: unknown key: must be one of name"),
        ("\"binary\"", "\"Binary\"", "5:8: rules.0.form: must be one of \"raw\""),
        ("\"binary\"", "\"batch\"", "5:8: rules.0.form: must be raw, structured or binary"),
        ("= false", "= 0", "7:11: rules.0.enabled: must be true or false, got integer"),
        ("plants/+/motor", "plants/#/motor", "4:10: rules.0.filter: 'plants/#/motor': '#' must"),
        ("plants/+/motor", "$share/g/t", "4:10: rules.0.filter: '$share/g/t': must not begin"),
        ("\"overheated\"", "\"a b\"", "3:8: rules.0.name: 'a b': must have 1 to 64"),
        ("\"overheated\"", "\"all\"", "29:8: rules.1.name: 'all' is used twice"),
        ("\"data.celsius\"", "\"Data.x\"", "10:7: rules.0.conditions.0.key: 'Data.x': must be"),
        ("\"StringIn\"", "\"Is\"", "16:12: rules.0.conditions.1.operator: unknown operator 'Is'"),
        ("= 80", "= \"80\"", "12:9: rules.0.conditions.0.value: NumberGreaterThan must have"),
        ("= 80", "= nan", "12:9: rules.0.conditions.0.value: NumberGreaterThan must have"),
        ("values =", "value =", "17:9: rules.0.conditions.1.value: StringIn must have `values`"),
        ("value = 80", "", "9:1: rules.0.conditions.0.value: missing: NumberGreaterThan"),
        (
            "site = \"${client.attributes.site}\"",
            "site = 1",
            "20:8: rules.0.enrichments.site: must be",
        ),
        (
            "site = \"${client.attributes.site}\"",
            "id = \"1\"",
            "20:1: rules.0.enrichments.id: key 'id'",
        ),
        ("\"kafka\"", "\"nats\"", "24:8: rules.0.target.type: must be one of \"http\", \"kafka\""),
        ("\"kafka\"", "\"http\"", "25:9: rules.0.target.topic: a target of type http must not"),
        ("topic = \"alarms\"", "topic = \"a/b\"", "25:9: rules.0.target.topic: 'a/b': must have"),
        ("-${mqtt.", "-${mqqt.", "26:7: rules.0.target.key: unknown variable"),
        ("https://", "ftp://", "rules.1.target.url: must be a URL"),
        ("example.com/", ":80/", "rules.1.target.url: must have a host"),
        ("example.com/", "user:secret@example.com/", "rules.1.target.url: must have no username"),
        ("example.com/", "${client.id}/", "rules.1.target.url: must have printable"),
        ("value = 80", "value = ", "12:9: string values must be quoted"),
    ] {
        let found = change(from, to);
        assert!(found.iter().any(|line| line.contains(expected)), "{expected}: {found:#?}");
        assert!(found.iter().all(|line| !line.contains("secret")), "{found:?}");
    }
    let found = problems("[[rule]]\nname = \"a\"");
    assert_eq!(found, ["1:3: rule: unknown key: must be one of rules"]);
    assert!(problems("rules = 1")[0].contains("write [[rules]]"));
    assert!(problems("[[rules]]\nname = \"a\"\nfilter = \"a\"")[0].contains("must have a target"));
}

#[test]
fn all_problems_are_reported_in_their_order() {
    let text = FULL.replace("form =", "forme =").replace("= 80", "= \"80\"");
    let found = parse(&text).expect_err("it is wrong");
    let lines: Vec<usize> = found.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [5, 12]);
    let unknown: String = (0..300_000).map(|number| format!("k{number} = 1\n")).collect();
    assert_eq!(problems(&unknown).len(), PROBLEMS_MAX);
    let many = "[[rules]]\n".repeat(PROBLEMS_MAX);
    assert_eq!(problems(&many).len(), PROBLEMS_MAX);
}

const TARGET: &str = "target = { name = \"t\", type = \"http\", url = \"http://h\" }\n";

fn rule(name: &str, more: &str) -> String {
    format!("[[rules]]\nname = \"{name}\"\nfilter = \"a\"\n{TARGET}{more}\n")
}

#[test]
fn limits_are_reached_and_not_exceeded() {
    let rules = |count: usize| (0..count).map(|it| rule(&format!("r{it}"), "")).collect::<String>();
    assert_eq!(parse(&rules(RULES_MAX)).map(|all| all.len()), Ok(RULES_MAX));
    assert!(problems(&rules(RULES_MAX + 1))[0].contains("at most 1000 rules"));

    let condition = "{ key = \"id\", operator = \"IsNotNull\" },";
    let conditions =
        |count: usize| rule("r", &format!("conditions = [{}]", condition.repeat(count)));
    assert!(parse(&conditions(CONDITIONS_MAX)).is_ok());
    assert!(problems(&conditions(CONDITIONS_MAX + 1))[0].contains("at most 25 conditions, got 26"));

    let values = |count: usize| {
        let ones = vec!["1"; count].join(",");
        let one = format!("{{ key = \"data\", operator = \"NumberIn\", values = [{ones}] }}");
        rule("r", &format!("conditions = [{one}, {}]", one.replace(&ones, "1")))
    };
    assert!(parse(&values(VALUES_MAX - 1)).is_ok());
    assert!(problems(&values(VALUES_MAX))[0].contains("at most 25 values together, got 26"));

    let enrichments = |count: usize| {
        let all: Vec<_> = (0..count).map(|it| format!("k{it} = \"x\"")).collect();
        rule("r", &format!("enrichments = {{ {} }}", all.join(", ")))
    };
    assert!(parse(&enrichments(ENRICHMENTS_MAX)).is_ok());
    assert!(problems(&enrichments(ENRICHMENTS_MAX + 1))[0].contains("at most 20 enrichments"));

    let sized = |bytes: usize| format!("#{}", "x".repeat(bytes - 1));
    assert!(parse(&sized(FILE_BYTES_MAX)).is_ok());
    assert!(problems(&sized(FILE_BYTES_MAX + 1))[0].contains("bytes"));
}

#[test]
fn numbers_are_taken_as_they_are_written() {
    for (toml, shown) in [
        ("+1", "1"),
        ("0x10", "16"),
        ("1_000", "1000"),
        ("-2.50", "-2.50"),
        ("+1e3", "1e3"),
        ("9007199254740993", "9007199254740993"),
    ] {
        let one = format!("{{ key = \"data\", operator = \"NumberLessThan\", value = {toml} }}");
        let text = rule("r", &format!("conditions = [{one}]"));
        let rules = parse(&text).unwrap_or_else(|problems| panic!("{toml}: {problems:?}"));
        assert_eq!(rules[0].conditions()[0].to_string(), format!("data NumberLessThan {shown}"));
    }
}

#[test]
fn what_is_hardly_meant_is_noted() {
    let text = rule(
        "r",
        "form = \"raw\"\nenrichments = { a = \"x\" }\n\
         conditions = [{ key = \"tenant\", operator = \"IsNotNull\" }]",
    );
    let notes = parse(&text).expect("it is valid")[0].notes();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("tenant") && notes[1].contains("raw"), "{notes:?}");
    assert_eq!(parse(&rule("r", "")).expect("it is valid")[0].notes(), Vec::<String>::new());
}
