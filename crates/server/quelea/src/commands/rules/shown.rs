//! The answers of `quelea rules test`, as text and as JSON.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use routing::{Destination, Event, Origin, Output, PayloadReading, Rule, Target, Verdict};
use serde_json::{Map, Value, json};

/// What a rule makes of a message.
pub(super) struct Answer<'r> {
    rule: &'r Rule,
    reason: Option<String>,
    /// All conditions that do not hold.
    failed: Vec<String>,
    hint: Option<&'static str>,
    /// What its target receives, if the rule matches.
    output: Option<Output>,
    /// Of a Kafka record.
    key: Option<String>,
}

impl<'r> Answer<'r> {
    pub(super) fn new(rule: &'r Rule, event: &Event<'_>) -> Self {
        let failed = rule.failed(event);
        let verdict = rule.verdict(event);
        let reason = match verdict {
            Verdict::Matches => None,
            Verdict::Filter => Some(format!("filter '{}' does not match the topic", rule.filter())),
            Verdict::Condition(condition) => Some(format!("condition `{condition}` does not hold")),
        };
        let is_unread = event.origin() != Origin::Structured
            && !event.is_text()
            && rule.payload() == PayloadReading::Declared;
        let asks_data = failed.iter().any(|condition| condition.asks_data());
        let is_near = matches!(verdict, Verdict::Condition(_));
        let matches = reason.is_none();
        Self {
            rule,
            reason,
            hint: (is_unread && asks_data && is_near).then_some(UNREAD),
            failed: failed.into_iter().map(ToString::to_string).collect(),
            output: matches.then(|| rule.output(event)),
            key: rule.target().and_then(|target| target.destination.key(event.record())),
        }
    }

    /// Would a broker that runs the rule send the message?
    pub(super) fn is_routed(&self) -> bool {
        self.rule.is_enabled() && self.output.is_some()
    }
}

/// Why a condition over the payload does not hold, although the payload may be JSON.
const UNREAD: &str = "the payload does not count as JSON. The publisher must set payload format \
                      indicator 1 or a content type of JSON, or the rule payload = \"json\"";

/// The answers for a person.
pub(super) fn text(answers: &[Answer<'_>], event: &Event<'_>, notes: &[String]) -> String {
    let mut text = String::new();
    for note in notes {
        let _ = writeln!(text, "note: {note}");
    }
    let _ = writeln!(text, "message: {}", origin(event));
    if let Some(fault) = event.fault() {
        let _ = writeln!(text, "note: it looks like a CloudEvent, but is wrapped: {fault}");
    }
    for answer in answers {
        let disabled = if answer.rule.is_enabled() { "" } else { " (disabled)" };
        let _ = write!(text, "rule {}{disabled}: ", answer.rule.name());
        match (&answer.reason, &answer.output) {
            (None, Some(output)) => {
                let _ = writeln!(text, "matches");
                sent(answer, output, &mut text);
            }
            (reason, _) => {
                let _ = writeln!(text, "does not match: {}", reason.as_deref().unwrap_or_default());
                if let Some(hint) = answer.hint {
                    let _ = writeln!(text, "  hint: {hint}");
                }
            }
        }
    }
    base::seen_lines(&text).into_owned()
}

fn origin(event: &Event<'_>) -> &'static str {
    match event.origin() {
        Origin::Wrapped => "becomes a CloudEvent",
        Origin::Binary => "is a CloudEvent in binary mode",
        Origin::Structured => "is a CloudEvent in structured mode",
    }
}

fn sent(answer: &Answer<'_>, output: &Output, text: &mut String) {
    let _ = match answer.rule.target() {
        None => writeln!(text, "  target: none"),
        Some(Target { name, destination: Destination::Http { url } }) => {
            writeln!(text, "  target: {name}, http {}", without_query(url))
        }
        Some(Target { name, destination: Destination::Kafka { topic, .. } }) => {
            writeln!(text, "  target: {name}, kafka topic {topic}")
        }
    };
    if let Some(key) = &answer.key {
        let _ = writeln!(text, "  key: {}", base::seen(key));
    }
    for header in &output.headers {
        let _ = writeln!(text, "  header: {}: {}", header.name, base::seen(&header.value));
    }
    let _ = match output.body.as_deref().map(std::str::from_utf8) {
        None => writeln!(text, "  body: none"),
        Some(Ok(body)) => {
            let lines: Vec<_> = body.split('\n').map(base::seen).collect();
            writeln!(text, "  body: {}", lines.join("\n"))
        }
        Some(Err(_)) => {
            let bytes = output.body.as_deref().unwrap_or_default();
            writeln!(text, "  body (base64): {}", STANDARD.encode(bytes))
        }
    };
}

/// The query of a URL is often a key.
fn without_query(url: &str) -> String {
    match url.split_once(['?', '#']) {
        Some((plain, _)) => format!("{plain}?..."),
        None => url.to_owned(),
    }
}

/// The answers for a program.
pub(super) fn json(answers: &[Answer<'_>], event: &Event<'_>, notes: &[String]) -> String {
    let origin = match event.origin() {
        Origin::Wrapped => "wrapped",
        Origin::Binary => "binary",
        Origin::Structured => "structured",
    };
    let document = json!({
        "origin": origin,
        "fault": event.fault(),
        "notes": notes,
        "rules": answers.iter().map(rule_json).collect::<Vec<_>>(),
    });
    base::seen_json(&format!("{document}\n")).into_owned()
}

fn rule_json(answer: &Answer<'_>) -> Value {
    let mut rule = Map::new();
    let mut set = |name: &str, value: Value| rule.insert(name.into(), value);
    set("name", answer.rule.name().into());
    set("enabled", answer.rule.is_enabled().into());
    set("matches", answer.output.is_some().into());
    set("reason", answer.reason.clone().into());
    set("failed_conditions", answer.failed.clone().into());
    set("hint", answer.hint.into());
    set("form", answer.rule.form().word().into());
    set("target", answer.rule.target().map_or(Value::Null, target_json));
    if let Some(output) = &answer.output {
        set("key", answer.key.clone().into());
        let headers = output.headers.iter();
        let headers = headers.map(|header| json!({"name": header.name, "value": header.value}));
        set("headers", headers.collect::<Vec<_>>().into());
        let body = output.body.as_deref();
        set("body", body.and_then(|body| std::str::from_utf8(body).ok()).into());
        set("body_base64", body.map(|body| STANDARD.encode(body)).into());
    }
    Value::Object(rule)
}

fn target_json(target: &Target) -> Value {
    let Target { name, destination } = target;
    match destination {
        Destination::Http { url } => {
            json!({"name": name, "type": "http", "url": without_query(url)})
        }
        Destination::Kafka { topic, key } => {
            json!({"name": name, "type": "kafka", "topic": topic, "key": key.text()})
        }
    }
}
