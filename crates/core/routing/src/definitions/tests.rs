use super::*;
use crate::condition::{CONDITIONS_MAX, VALUES_MAX};
use crate::enrich::ENRICHMENTS_MAX;
use crate::event::{Event, PayloadReading};
use crate::form::Form;
use crate::rule::Verdict;
use crate::testing::text_record;

const FULL: &str = r##"
[[streams]]
name = "plants"
filters = ["plants/#"]

[[targets]]
name = "alarms"
type = "kafka"
servers = ["kafka.example:9092"]

[[targets]]
name = "lake"
type = "http"
url = "https://example.com/lake"

[[rules]]
name = "overheated"
filter = "plants/+/motor"
form = "binary"
payload = "json"
enabled = false
target = "alarms"
topic = "alarms"
key = "${client.attributes.site}-${mqtt.message.topicName}"

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

[[rules]]
name = "all"
filter = "#"
target = "lake"
"##;

fn problems(text: &str) -> Vec<String> {
    let problems = parse(text).map(|found| format!("{found:?}")).expect_err(text);
    problems.iter().map(ToString::to_string).collect()
}

fn rules_of(text: &str) -> Vec<Rule> {
    let found = parse(text).unwrap_or_else(|problems| panic!("{text}: {problems:?}"));
    found.rules.into_iter().map(|spec| spec.rule).collect()
}

#[test]
fn a_file_is_read() {
    let found = parse(FULL).expect("it is valid");
    let [first, second] = found.rules.as_slice() else { panic!("{found:?}") };
    assert_eq!((&*first.stream, first.order, first.start), ("plants", Order::Topic, Start::New));
    assert_eq!((&*second.stream, second.order), ("plants", Order::None));
    assert_eq!((&first.dead_letter, first.skip_expired), (&None, false));
    assert_eq!(first.dispatch, DispatchRules::default());
    assert_eq!(found.target_of(&first.rule).map(|target| &*target.name), Some("alarms"));
    assert_eq!(found.stream("plants").map(|stream| &*stream.namespace), Some("default"));
    assert_eq!(found.notes(), Vec::<String>::new());
    let (first, second) = (&first.rule, &second.rule);
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
    assert_eq!(parse(""), Ok(Definitions::default()));
}

#[test]
fn a_stream_has_all_its_keys() {
    let text = r#"
[[streams]]
name = "a"
namespace = "tenant"
filters = ["plants/#", "sites/+"]
qos_min = 1
retained = false
payload_bytes_max = "1MiB"
durability = "disk"
age_max_secs = "7d"
bytes_max = "10 GiB"
messages_max = 1_000
file_bytes = "16 MiB"
consumed = true
full = "reject"

[[streams]]
name = "b"
bytes_max = "8 MiB"
"#;
    let found = parse(text).expect("it is valid");
    let full = StreamSpec {
        name: "a".into(),
        namespace: "tenant".into(),
        filters: vec!["plants/#".into(), "sites/+".into()],
        qos_min: 1,
        retained: Some(false),
        payload_bytes_max: Some(1 << 20),
        durability: StreamDurability::Disk,
        age_max_secs: Some(7 * 86_400),
        bytes_max: Some(10 << 30),
        messages_max: Some(1_000),
        file_bytes: 16 << 20,
        consumed: true,
        full: WhenFull::Reject,
    };
    assert_eq!(found.streams[0], full);
    let usual = &found.streams[1];
    assert_eq!((usual.file_bytes, usual.durability), (2 << 20, StreamDurability::Fsync));
    assert_eq!((usual.full, usual.qos_min, usual.retained), (WhenFull::DropOldest, 0, None));
    let notes = found.notes();
    assert!(notes[0].contains("stream b") && notes.len() == 1, "{notes:?}");
    for (from, to, expected) in [
        ("= 1\n", "= 3\n", "6:11: streams.0.qos_min: must be a number from 0 to 2, got 3"),
        ("7d", "7 weeks", "10:16: streams.0.age_max_secs: must be a time"),
        ("10 GiB", "1 KiB", "11:13: streams.0.bytes_max: must be a size (bytes, or like"),
        ("\"reject\"", "\"drop\"", "15:8: streams.0.full: must be one of"),
        ("sites/+", "sites/+x", "5:24: streams.0.filters.1: 'sites/+x': '+' must be"),
        ("sites/+", "$share/g/t", "5:24: streams.0.filters.1: '$share/g/t': must not begin"),
        ("\"tenant\"", "\"a b\"", "4:13: streams.0.namespace: 'a b': must have"),
        ("\"b\"", "\"a\"", "18:8: streams.1.name: 'a' is used twice"),
        ("\"10 GiB\"", "\"8 MiB\"", "13:14: streams.0.file_bytes: must not be above"),
        ("retained", "retain", "7:1: streams.0.retain: unknown key"),
        ("16 MiB", "16 mib", "13:14: streams.0.file_bytes: must be a size"),
        ("1_000", "-1", "12:16: streams.0.messages_max: must be a number from 1"),
    ] {
        assert!(text.contains(from), "{from}");
        let found = problems(&text.replacen(from, to, 1));
        assert!(found.iter().any(|line| line.starts_with(expected)), "{expected}: {found:#?}");
    }
}

const TARGETS: &str = r#"
[[targets]]
name = "k"
type = "kafka"
servers = ["a:9092", "b:9092"]
client_id = "plant"
compression = "zstd"
networks = ["10.0.0.0/8"]
record_bytes_max = "2MiB"
linger_ms = 5
timeout_secs = 4
delivery_timeout_secs = 60
tls = { ca = "ca.pem", certificate = "own.pem", key = "own.key" }
sasl = { mechanism = "SCRAM-SHA-512", username = "u", password_file = "p" }
headers = { plant = "p7", celsius = { path = "data.celsius" } }

[[targets]]
name = "hubs"
type = "kafka"
servers = ["x.servicebus.windows.net:9093"]
event_hubs = true
sasl.password_file = "connection-string"

[[targets]]
name = "oauth"
type = "kafka"
servers = ["a:9092"]
tls = true

[targets.sasl]
mechanism = "OAUTHBEARER"
token_url = "https://id.example/token"
client_id = "c"
client_secret_file = "s"
scope = "kafka"

[[targets]]
name = "h"
type = "http"
url = "https://example.com/in"
headers = { authorization = { file = "token" }, x-site = "berlin" }
validation = "cloudevents"
origin = "quelea.example"
signing_secret_file = "signing"
refused_statuses = [400, 404]
requests_max = 8
timeout_secs = 10
tls.ca = "ca.pem"
"#;

#[test]
fn targets_have_all_their_keys() {
    let found = parse(TARGETS).expect("it is valid");
    let kinds: Vec<_> = found.targets.iter().map(|target| &target.kind).collect();
    let [
        TargetKind::Kafka(k),
        TargetKind::Kafka(hubs),
        TargetKind::Kafka(oauth),
        TargetKind::Http(h),
    ] = kinds.as_slice()
    else {
        panic!("{kinds:?}")
    };
    assert_eq!((k.compression, k.record_bytes_max), (KafkaCompression::Zstd, 2 << 20));
    assert_eq!((k.linger_ms, k.timeout_secs, k.delivery_timeout_secs), (5, 4, 60));
    let password = |mechanism, username: &str, file: &str| {
        let (username, password) = (username.into(), SecretSpec::File(file.into()));
        Some(SaslSpec::Password { mechanism, username, password })
    };
    assert_eq!(k.sasl, password(SaslMechanism::ScramSha512, "u", "p"));
    assert_eq!(k.headers[0].value, HeaderValueSpec::Path("data.celsius".into()));
    assert_eq!(k.headers[1].value, HeaderValueSpec::Text("p7".into()));
    assert_eq!(k.tls.as_ref().and_then(|tls| tls.key.as_deref()), Some("own.key"));
    assert_eq!(hubs.sasl, password(SaslMechanism::Plain, "$ConnectionString", "connection-string"));
    assert_eq!((&hubs.tls, hubs.timeout_secs), (&Some(TlsSpec::default()), 10));
    assert_eq!(hubs.delivery_timeout_secs, 30);
    assert!(matches!(&oauth.sasl, Some(SaslSpec::TokenEndpoint(it)) if it.client_id == "c"));
    assert_eq!(oauth.tls, Some(TlsSpec::default()));
    assert_eq!(h.validation, HttpValidation::CloudEvents { origin: "quelea.example".into() });
    assert_eq!(h.headers[0].value, HeaderValueSpec::File("token".into()));
    assert_eq!(h.headers[1].value, HeaderValueSpec::Text("berlin".into()));
    assert_eq!((h.requests_max, h.timeout_secs), (8, 10));
    assert_eq!(h.refused_statuses.as_deref(), Some(&[400, 404][..]));
    assert_eq!(found.targets[0].networks, ["10.0.0.0/8"]);
}

#[test]
fn wrong_targets_are_refused_with_their_lines() {
    let text = TARGETS;
    for (from, to, expected) in [
        ("servers = [\"a:9092\", \"b:9092\"]", "", "targets.0.servers: must name at least one"),
        ("\"zstd\"", "\"snappy\"", "7:15: targets.0.compression: must be one of"),
        ("client_id = \"plant\"", "url = \"x\"", "6:1: targets.0.url: a target of type kafka must"),
        (", key = \"own.key\"", "", "targets.0.tls.certificate: needs key"),
        ("SCRAM-SHA-512", "SCRAM", "14:22: targets.0.sasl.mechanism: must be one of"),
        ("username = \"u\", ", "", "targets.0.sasl.username: missing"),
        ("password_file = \"p\"", "scope = \"s\"", "targets.0.sasl.scope: a login with a password"),
        ("sasl.password_file = \"connection-string\"", "", "targets.1.sasl.password_file: missing"),
        ("event_hubs = true", "event_hubs = true\ntls = false", "targets.1.tls: must not be false"),
        (
            "event_hubs = true",
            "event_hubs = true\ncompression = \"lz4\"",
            "targets.1.compression: must be",
        ),
        ("token_url = \"https://id.example/token\"", "", "targets.2.sasl.token_url: missing"),
        ("token_url", "token_file = \"t\"\ntoken_url", "targets.2.sasl.token_url: must not be set"),
        ("example.com", "user:hunter2@example.com", "targets.3.url: must have no username"),
        ("{ file = \"token\" }", "1", "targets.3.headers.authorization: must be a text, {"),
        ("{ file =", "{ files =", "targets.3.headers.authorization.files: unknown key"),
        (
            "{ file = \"token\"",
            "{ path = \"Data\"",
            "targets.3.headers.authorization.path: 'Data': must",
        ),
        ("{ file =", "{ path = \"id\", file =", "authorization.file: must not be set with path"),
        (
            "x-site = \"berlin\"",
            "ce-x = { path = \"id\" }",
            "targets.3.headers.ce-x: must not be content-type or begin with ce-",
        ),
        ("plant =", "ce_plant =", "0.headers.ce_plant: must not be content-type or begin with ce_"),
        ("plant =", "\"\" =", "targets.0.headers: names must not be empty"),
        ("{ path = \"data.celsius\" }", "1", "targets.0.headers.celsius: must be a text or {"),
        (
            "{ path = \"data.celsius\" }",
            "{ file = \"f\" }",
            "targets.0.headers.celsius.file: a header of Kafka must not have this key",
        ),
        ("path = \"data.celsius\"", "", "targets.0.headers.celsius.path: missing"),
        ("path = \"data.celsius\"", "path = \"\"", "targets.0.headers.celsius.path: "),
        ("x-site", "aeg-site", "targets.3.headers.aeg-site: must not begin"),
        ("\"berlin\"", "\"ber\\tlin\"", "targets.3.headers.x-site: must have at most"),
        ("\"cloudevents\"", "\"none\"", "targets.3.origin: needs validation"),
        ("origin = \"quelea.example\"", "", "targets.3.origin: missing"),
        ("[400, 404]", "[400, 500]", "targets.3.refused_statuses: must be a list of numbers from"),
        ("requests_max = 8", "requests_max = 0", "targets.3.requests_max: must be a number from 1"),
        ("\"http\"", "\"htp\"", "targets.3.type: must be one of \"http\", \"kafka\""),
        ("\"hubs\"", "\"k\"", "targets.1.name: 'k' is used twice"),
    ] {
        assert!(text.contains(from), "{from}");
        let found = problems(&text.replacen(from, to, 1));
        assert!(found.iter().any(|line| line.contains(expected)), "{expected}: {found:#?}");
        assert!(found.iter().all(|line| !line.contains("hunter2")), "{found:?}");
    }
    let late = Problem::at(text, "targets.0.sasl.password_file", "cannot read".into());
    assert_eq!(late.to_string(), "14:71: targets.0.sasl.password_file: cannot read");
    let late = Problem::at(text, "targets.0.networks.0", "wrong".into());
    assert_eq!(late.to_string(), "8:13: targets.0.networks.0: wrong");
}

#[test]
fn a_rule_has_all_its_keys() {
    let text = r#"
[[streams]]
name = "a"
filters = ["a/#"]
[[streams]]
name = "dead"
[[streams]]
name = "other"
namespace = "tenant"
[[targets]]
name = "t"
type = "http"
url = "http://h"
[[rules]]
name = "r"
filter = "a/b"
target = "t"
stream = "a"
start = "beginning"
dead_letter = "dead"
skip_expired = true
in_flight_max = 7
batch_messages_max = 8
batch_bytes_max = "9KiB"
attempts_max = 3
retry_secs = [1, 60]
lanes = 4
order = "topic"
"#;
    let found = parse(text).expect("it is valid");
    let rule = &found.rules[0];
    assert_eq!((&*rule.stream, rule.start, rule.order), ("a", Start::Beginning, Order::Topic));
    assert_eq!((rule.dead_letter.as_deref(), rule.skip_expired), (Some("dead"), true));
    let dispatch = DispatchRules {
        lanes: 4,
        batch_records_max: 8,
        batch_bytes_max: 9 << 10,
        in_flight_max: 7,
        attempts_max: 3,
        retry_after_ms: vec![1_000, 60_000],
        ..DispatchRules::default()
    };
    assert_eq!(rule.dispatch, dispatch);
    for (from, to, expected) in [
        ("stream = \"a\"\n", "", "stream: missing: must be the name of a stream, as there are"),
        ("stream = \"a\"", "stream = \"b\"", "18:10: rules.0.stream: no stream is named 'b'"),
        ("\"dead\"\nskip", "\"x\"\nskip", "20:15: rules.0.dead_letter: no stream is named 'x'"),
        ("\"dead\"\nskip", "\"a\"\nskip", "20:15: rules.0.dead_letter: must not be the rule's own"),
        ("\"dead\"\nskip", "\"other\"\nskip", "must be a stream of namespace 'default'"),
        ("target = \"t\"", "target = \"u\"", "17:10: rules.0.target: no target is named 'u'"),
        ("target = \"t\"", "target = { name = \"t\" }", "rules.0.target: must be the name of"),
        ("target = \"t\"", "", "rules.0.target: missing"),
        ("target = \"t\"", "target = \"t\"\ntopic = \"x\"", "18:9: rules.0.topic: needs a target"),
        ("[1, 60]", "[]", "rules.0.retry_secs: must have at least one"),
        ("[1, 60]", "[0]", "26:15: rules.0.retry_secs: must be a list of numbers from 1 to 604800"),
        ("lanes = 4", "lanes = 0", "27:9: rules.0.lanes: must be a number from 1 to 256, got 0"),
    ] {
        assert!(text.contains(from), "{from}");
        let found = problems(&text.replacen(from, to, 1));
        assert!(found.iter().any(|line| line.contains(expected)), "{expected}: {found:#?}");
    }
    let without = &text[text.find("[[targets]]").expect("it is there")..];
    let without = without.replace("stream = \"a\"", "").replace("dead_letter = \"dead\"", "");
    assert!(problems(&without)[0].contains("add [[streams]]"));
    let found = parse(&text.replace("filter = \"a/b\"", "filter = \"b/+\"")).expect("it is valid");
    let notes = found.notes();
    assert!(notes.iter().any(|note| note.contains("the rule never matches")), "{notes:?}");
}

#[test]
fn secrets_in_clear_text_are_noted() {
    let notes = |target: &str| {
        let text = format!("[[targets]]\nname = \"t\"\n{target}");
        parse(&text).unwrap_or_else(|problems| panic!("{problems:?}")).notes().len()
    };
    let http = |scheme: &str, value: &str| {
        notes(&format!("type = \"http\"\nurl = \"{scheme}://h\"\nheaders = {{ a = {value} }}"))
    };
    assert_eq!(http("http", "{ file = \"f\" }"), 1);
    assert_eq!(http("https", "{ file = \"f\" }"), 0);
    assert_eq!(http("http", "\"x\""), 0);
    let kafka = |tls: bool, mechanism: &str| {
        notes(&format!(
            "type = \"kafka\"\nservers = [\"k:1\"]\ntls = {tls}\n\
             sasl = {{ mechanism = \"{mechanism}\", username = \"u\", password_file = \"p\" }}"
        ))
    };
    assert_eq!((kafka(false, "PLAIN"), kafka(true, "PLAIN")), (1, 0));
    assert_eq!(kafka(false, "SCRAM-SHA-256"), 0);
}

#[test]
fn headers_have_values_of_events() {
    let text = file(&rule("r", "enrichments = { site = \"${client.attributes.site}\" }"));
    let headers = "headers = { x-site = { path = \"site\" }, x-hot = { path = \"data.celsius\" } }";
    let text = text.replace("url = \"http://h\"\n", &format!("url = \"http://h\"\n{headers}\n"));
    let rules = rules_of(&text);
    let record = text_record("plants/7", r#"{"celsius": 81}"#);
    let output = rules[0].output(&Event::new(&record));
    let own = |name: &str| output.headers.iter().find(|it| it.name == name).map(|it| &*it.value);
    assert_eq!((own("x-site"), own("x-hot")), (Some("berlin"), Some("81")));
    let batch = text.replace("filter = \"a\"", "filter = \"a\"\nform = \"batch\"");
    assert!(problems(&batch)[0].contains("rules.0.form: must be raw, structured or binary"));
}

#[test]
fn records_of_kafka_have_headers_of_their_target() {
    let headers = "headers = { plant = \"p7\", celsius = { path = \"data.celsius\" } }";
    let text = file(&rule("r", "topic = \"t\"\nform = \"raw\""));
    let http = "type = \"http\"\nurl = \"http://h\"\n";
    let kafka = format!("type = \"kafka\"\nservers = [\"k:1\"]\n{headers}\n");
    assert!(text.contains(http), "{text}");
    let rules = rules_of(&text.replace(http, &kafka));
    let record = text_record("plants/7", r#"{"celsius": 81}"#);
    let output = rules[0].output(&Event::new(&record));
    let own: Vec<_> = output.headers.iter().map(|it| (&*it.name, &*it.value)).collect();
    assert_eq!(own, [("celsius", "81"), ("plant", "p7")]);
}

#[test]
fn dead_letters_never_come_back() {
    let rule = |from: &str, to: &str| {
        format!(
            "[[rules]]\nname = \"{from}{to}\"\nfilter = \"#\"\ntarget = \"t\"\n\
             stream = \"{from}\"\ndead_letter = \"{to}\"\n"
        )
    };
    let streams: String =
        ["a", "b", "c"].map(|name| format!("[[streams]]\nname = \"{name}\"\n")).concat();
    let file = |rules: &[String]| format!("{streams}{HTTP}{}", rules.concat());
    let fine = [rule("a", "b"), rule("a", "c"), rule("b", "c")];
    assert!(parse(&file(&fine)).is_ok());
    let back = [rule("a", "b"), rule("b", "c"), rule("c", "b")];
    let found = problems(&file(&back));
    assert_eq!(found.len(), 2, "the first leads to a circle, and is in none: {found:?}");
    assert!(found.iter().all(|line| line.contains("come back to the rule's own stream")));
    let whole = [rule("a", "b"), rule("b", "c"), rule("c", "a")];
    assert_eq!(problems(&file(&whole)).len(), 3);
}

#[test]
fn conditions_over_attributes_come_first() {
    let rules = rules_of(FULL);
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
        ("form =", "forme =", "19:1: rules.0.forme: unknown key: must be one of name"),
        ("\"binary\"", "\"Binary\"", "19:8: rules.0.form: must be one of \"raw\""),
        ("\"binary\"", "\"batch\"", "19:8: rules.0.form: must be raw, structured or binary"),
        ("= false", "= 0", "21:11: rules.0.enabled: must be true or false, got integer"),
        ("plants/+/motor", "plants/#/motor", "18:10: rules.0.filter: 'plants/#/motor': '#' must"),
        ("plants/+/motor", "$share/g/t", "18:10: rules.0.filter: '$share/g/t': must not begin"),
        ("\"overheated\"", "\"a b\"", "17:8: rules.0.name: 'a b': must have 1 to 64"),
        ("\"overheated\"", "\"all\"", "40:8: rules.1.name: 'all' is used twice"),
        ("\"data.celsius\"", "\"Data.x\"", "27:7: rules.0.conditions.0.key: 'Data.x': must be"),
        ("\"StringIn\"", "\"Is\"", "33:12: rules.0.conditions.1.operator: unknown operator 'Is'"),
        ("= 80", "= \"80\"", "29:9: rules.0.conditions.0.value: NumberGreaterThan must have"),
        ("= 80", "= nan", "29:9: rules.0.conditions.0.value: NumberGreaterThan must have"),
        ("values =", "value =", "34:9: rules.0.conditions.1.value: StringIn must have `values`"),
        ("value = 80", "", "26:1: rules.0.conditions.0.value: missing: NumberGreaterThan"),
        (
            "site = \"${client.attributes.site}\"",
            "site = 1",
            "37:8: rules.0.enrichments.site: must be",
        ),
        (
            "site = \"${client.attributes.site}\"",
            "id = \"1\"",
            "37:1: rules.0.enrichments.id: key 'id'",
        ),
        ("\"kafka\"", "\"nats\"", "8:8: targets.0.type: must be one of \"http\", \"kafka\""),
        ("\"kafka\"", "\"http\"", "9:1: targets.0.servers: a target of type http must not"),
        ("topic = \"alarms\"", "topic = \"a/b\"", "23:9: rules.0.topic: 'a/b': must have"),
        ("topic = \"alarms\"", "", "16:1: rules.0.topic: missing"),
        ("-${mqtt.", "-${mqqt.", "24:7: rules.0.key: unknown variable"),
        ("https://", "ftp://", "targets.1.url: must be a URL"),
        ("example.com/", ":80/", "targets.1.url: must have a host"),
        ("example.com/", "user:secret@example.com/", "targets.1.url: must have no username"),
        ("example.com/", "${client.id}/", "targets.1.url: must have printable"),
        ("value = 80", "value = ", "29:9: string values must be quoted"),
    ] {
        let found = change(from, to);
        assert!(found.iter().any(|line| line.contains(expected)), "{expected}: {found:#?}");
        assert!(found.iter().all(|line| !line.contains("secret")), "{found:?}");
    }
    let found = problems("[[rule]]\nname = \"a\"");
    assert_eq!(found, ["1:3: rule: unknown key: must be one of streams, targets, rules"]);
    assert!(problems("rules = 1")[0].contains("write [[rules]]"));
}

#[test]
fn all_problems_are_reported_in_their_order() {
    let text = FULL.replace("form =", "forme =").replace("= 80", "= \"80\"");
    let found = parse(&text).expect_err("it is wrong");
    let lines: Vec<usize> = found.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [19, 29]);
    let unknown: String = (0..300_000).map(|number| format!("k{number} = 1\n")).collect();
    assert_eq!(problems(&unknown).len(), PROBLEMS_MAX);
    let many = "[[rules]]\n".repeat(PROBLEMS_MAX);
    assert_eq!(problems(&many).len(), PROBLEMS_MAX);
}

const HTTP: &str = "[[targets]]\nname = \"t\"\ntype = \"http\"\nurl = \"http://h\"\n";

fn rule(name: &str, more: &str) -> String {
    format!("[[rules]]\nname = \"{name}\"\nfilter = \"a\"\ntarget = \"t\"\n{more}\n")
}

fn file(rules: &str) -> String {
    format!("[[streams]]\nname = \"s\"\nfilters = [\"#\"]\n{HTTP}{rules}")
}

#[test]
fn limits_are_reached_and_not_exceeded() {
    let entry = |list: &str, index: usize| match list {
        "streams" => format!("[[streams]]\nname = \"s{index}\"\n"),
        "targets" => HTTP.replace("\"t\"", &format!("\"t{index}\"")),
        _ => rule(&format!("r{index}"), ""),
    };
    for (list, max, own) in
        [("streams", STREAMS_MAX, 1), ("targets", TARGETS_MAX, 1), ("rules", RULES_MAX, 0)]
    {
        let all = |count: usize| file(&(own..count).map(|it| entry(list, it)).collect::<String>());
        assert!(parse(&all(max)).is_ok(), "{list}");
        let found = problems(&all(max + 1));
        assert!(found[0].contains(&format!("at most 1000 {list}, got 1001")), "{found:?}");
    }
    let filters =
        |count: usize| format!("[[streams]]\nname = \"s\"\nfilters = [{}]", "\"a\",".repeat(count));
    assert!(parse(&filters(FILTERS_MAX)).is_ok());
    assert!(problems(&filters(FILTERS_MAX + 1))[0].contains("at most 100 entries, got 101"));

    let condition = "{ key = \"id\", operator = \"IsNotNull\" },";
    let conditions =
        |count: usize| file(&rule("r", &format!("conditions = [{}]", condition.repeat(count))));
    assert!(parse(&conditions(CONDITIONS_MAX)).is_ok());
    assert!(problems(&conditions(CONDITIONS_MAX + 1))[0].contains("at most 25 conditions, got 26"));

    let values = |count: usize| {
        let ones = vec!["1"; count].join(",");
        let one = format!("{{ key = \"data\", operator = \"NumberIn\", values = [{ones}] }}");
        file(&rule("r", &format!("conditions = [{one}, {}]", one.replace(&ones, "1"))))
    };
    assert!(parse(&values(VALUES_MAX - 1)).is_ok());
    assert!(problems(&values(VALUES_MAX))[0].contains("at most 25 values together, got 26"));

    let enrichments = |count: usize| {
        let all: Vec<_> = (0..count).map(|it| format!("k{it} = \"x\"")).collect();
        file(&rule("r", &format!("enrichments = {{ {} }}", all.join(", "))))
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
        let rules = rules_of(&file(&rule("r", &format!("conditions = [{one}]"))));
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
    let notes = parse(&file(&text)).expect("it is valid").notes();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("tenant") && notes[1].contains("raw"), "{notes:?}");
    assert!(parse(&file(&rule("r", ""))).expect("it is valid").notes().is_empty());
}

const BASE: &str = r##"
[[streams]]
name = "plants"
filters = ["plants/#"]
[[streams]]
name = "dead"
[[targets]]
name = "hook"
type = "http"
url = "https://example.com/in"
[[rules]]
name = "alarms"
stream = "plants"
filter = "#"
target = "hook"
dead_letter = "dead"
"##;

const MORE: &str = r##"
[[streams]]
name = "cars"
filters = ["cars/#"]
[[targets]]
name = "lake"
type = "kafka"
servers = ["a:9092"]
tls = true
sasl = { mechanism = "PLAIN", username = "u", password = "hunter2" }
[[targets]]
name = "own-hook"
type = "http"
url = "https://example.com/own"
headers = { authorization = "Bearer hunter2", x-n = { path = "data.n" } }
signing_secret = "hunter2"
[[rules]]
name = "archive"
stream = "cars"
filter = "#"
target = "lake"
topic = "cars"
[[rules]]
name = "copies"
stream = "plants"
filter = "#"
target = "hook"
dead_letter = "cars"
"##;

fn more(text: &str) -> Result<Definitions, Vec<String>> {
    let base = parse(BASE).expect("it is valid");
    parse_more(text, &base).map_err(|all| all.iter().map(ToString::to_string).collect())
}

#[test]
fn an_api_adds_to_a_file_and_refers_to_what_it_has() {
    let found = more(MORE).expect("it is valid");
    let names: Vec<&str> = found.streams.iter().map(|own| &*own.name).collect();
    assert_eq!(names, ["cars"], "those of the file are not repeated");
    let streams: Vec<&str> = found.rules.iter().map(|own| &*own.stream).collect();
    assert_eq!(streams, ["cars", "plants"]);
    let TargetKind::Kafka(kafka) = &found.targets[0].kind else { panic!("{:?}", found.targets) };
    let Some(SaslSpec::Password { password, .. }) = &kafka.sasl else { panic!("{kafka:?}") };
    assert_eq!(*password, SecretSpec::Text("hunter2".into()));
    let TargetKind::Http(http) = &found.targets[1].kind else { panic!("{:?}", found.targets) };
    assert_eq!(http.signing_secret, Some(SecretSpec::Text("hunter2".into())));
    assert!(!format!("{password:?} {:?}", http.signing_secret).contains("hunter2"));
}

#[test]
fn what_an_api_must_not_define_is_refused() {
    let files = "must not have this key: remove it";
    for (from, to, expected) in [
        ("name = \"cars\"", "name = \"plants\"", "streams.0.name: 'plants' is defined in the file"),
        ("\"lake\"\ntype", "\"hook\"\ntype", "targets.0.name: 'hook' is defined in the file of"),
        ("name = \"archive\"", "name = \"alarms\"", "rules.0.name: 'alarms' is defined in the"),
        ("stream = \"cars\"\n", "", "rules.0.stream: missing: must be the name of a stream"),
        ("stream = \"cars\"", "stream = \"bikes\"", "rules.0.stream: no stream is named 'bikes'"),
        ("target = \"lake\"", "target = \"sea\"", "rules.0.target: no target is named 'sea'"),
        ("tls = true", "tls = { ca = \"x.pem\" }", files),
        ("tls = true", "networks = [\"10.0.0.0/8\"]", files),
        ("password =", "password_file =", files),
        ("password =", "password_file =", "targets.0.sasl.password: missing"),
        ("signing_secret =", "signing_secret_file =", files),
        ("{ path = \"data.n\" }", "{ file = \"/etc/shadow\" }", files),
        ("\"hunter2\" }", "\"hunter2\\n\" }", "sasl.password: must have 1 to 65536 bytes"),
        (
            "mechanism = \"PLAIN\", username = \"u\", password = \"hunter2\"",
            "mechanism = \"OAUTHBEARER\", token_file = \"t\"",
            files,
        ),
        (
            "mechanism = \"PLAIN\", username = \"u\", password = \"hunter2\"",
            "mechanism = \"OAUTHBEARER\", token = \"t\", scope = \"s\"",
            "targets.0.sasl.scope: must not be set with token",
        ),
        (
            "mechanism = \"PLAIN\", username = \"u\", password = \"hunter2\"",
            "mechanism = \"OAUTHBEARER\", token_url = \"https://a.b/\", client_id = \"c\", \
             client_secret = \"hunter2\", ca = \"x.pem\"",
            files,
        ),
        // The file leads from plants to dead.
        ("\"plants\"", "\"dead\"", "rules.1.dead_letter"),
    ] {
        assert!(MORE.contains(from), "{from}");
        let text = match expected {
            "rules.1.dead_letter" => MORE
                .replace("stream = \"plants\"", "stream = \"dead\"")
                .replace("dead_letter = \"cars\"", "dead_letter = \"plants\""),
            _ => MORE.replacen(from, to, 1),
        };
        let found = more(&text).expect_err(expected);
        assert!(found.iter().any(|line| line.contains(expected)), "{expected}: {found:#?}");
        assert!(found.iter().all(|line| !line.contains("hunter2")), "{found:?}");
    }
    // And the file must not have what is for the API.
    let wrong = BASE.replace("url =", "signing_secret = \"hunter2\"\nurl =");
    let found = problems(&wrong);
    assert!(found[0].contains("targets.0.signing_secret") && found[0].contains(files), "{found:?}");
}
