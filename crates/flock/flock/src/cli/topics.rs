//! emqtt-bench's `--topics-payload`: a JSON file of topics, each with an interval, a QoS and a
//! payload of its own, all of them published by every client.
//!
//! A client's steps come one after another, so that the intervals become one round: from the start
//! to where all of them end together, every message at its time.

use serde::Deserialize;
use serde_json::Value;

use flock_model::{
    Command, Content, Delay, Order, Pace, Pattern, Payload, Phase, Piece, Publish, QoS, Rate,
    Repeat, STAMP_BYTES, Spread, Step, TimeUnit, TopicsId,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Specs {
    pub topics: Vec<Spec>,
}

/// One topic.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spec {
    pub name: String,
    #[serde(deserialize_with = "whole_number")]
    interval_ms: u64,
    #[serde(default)]
    inject_timestamp: Value,
    #[serde(rename = "QoS", default)]
    qos: u8,
    #[serde(default)]
    retain: bool,
    #[serde(default)]
    payload_encoding: String,
    #[serde(default)]
    payload: Value,
    #[serde(default)]
    render: Option<String>,
    /// What only QUIC has says nothing here.
    #[serde(default, rename = "stream")]
    _stream: Value,
    #[serde(default, rename = "stream_priority")]
    _stream_priority: Value,
}

/// emqtt-bench writes it as text.
fn whole_number<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
    number
        .filter(|ms| *ms > 0)
        .ok_or_else(|| serde::de::Error::custom("`interval_ms` must be a whole number above 0"))
}

pub(super) fn parse(text: &str) -> anyhow::Result<Specs> {
    let specs: Specs = serde_json::from_str(text)?;
    anyhow::ensure!(!specs.topics.is_empty(), "the list `topics` is empty");
    for spec in &specs.topics {
        spec.check()?;
    }
    Ok(specs)
}

impl Spec {
    fn check(&self) -> anyhow::Result<()> {
        let name = &self.name;
        anyhow::ensure!(self.qos <= 2, "{name}: QoS must be 0, 1 or 2, got {}", self.qos);
        anyhow::ensure!(
            matches!(self.payload_encoding.as_str(), "" | "json"),
            "{name}: the payload encoding `{}` is not supported: use json",
            self.payload_encoding
        );
        let rendered = self.render.as_ref().map(|key| (key, self.payload.get(key)));
        if let Some((key, value)) = rendered {
            anyhow::ensure!(
                value.is_some_and(Value::is_string),
                "{name}: `render` must name a text of the payload, got `{key}`"
            );
        }
        self.unit().map(|_| ())
    }

    /// The unit of the time in the payload; `None` where there is to be none.
    fn unit(&self) -> anyhow::Result<Option<TimeUnit>> {
        let name = match &self.inject_timestamp {
            Value::Null | Value::Bool(false) => return Ok(None),
            Value::Bool(true) => "ms",
            other => other.as_str().unwrap_or("?"),
        };
        let unit = match name {
            "s" | "second" => TimeUnit::Seconds,
            "ms" | "millisecond" => TimeUnit::Millis,
            "us" | "microsecond" => TimeUnit::Micros,
            "ns" | "nanosecond" => TimeUnit::Nanos,
            _ => anyhow::bail!(
                "{}: `inject_timestamp` must be true, false, \"s\", \"ms\", \"us\" or \"ns\"",
                self.name
            ),
        };
        anyhow::ensure!(
            self.payload.is_object(),
            "{}: `inject_timestamp` needs an object as payload",
            self.name
        );
        Ok(Some(unit))
    }

    /// The payload of `clients` clients, behind a stamp if there is to be one: others read it, and
    /// it stays whole. The time stands first in an object, whose keys have no order, and what is
    /// rendered (`names` makes the names of a text's placeholders) stands behind it.
    fn payload(&self, stamped: bool, clients: u32, names: Names<'_>) -> anyhow::Result<Payload> {
        let stamp = vec![0; if stamped { STAMP_BYTES as usize } else { 0 }];
        let unit = self.unit()?;
        let (Value::Object(keys), true) = (&self.payload, unit.is_some() || self.render.is_some())
        else {
            let text = match &self.payload {
                Value::String(text) => text.clone(),
                Value::Null => String::new(),
                other => other.to_string(),
            };
            let content = Content::Fixed([stamp, text.into_bytes()].concat());
            return Ok(Payload { content, stamped });
        };
        let mut others = keys.clone();
        let mut pieces = vec![Piece::Bytes(stamp)];
        let mut open = "{";
        if let Some(unit) = unit {
            others.remove("timestamp");
            pieces.extend([text(&format!("{open}\"timestamp\":")), Piece::Time(unit)]);
            open = ",";
        }
        if let Some(key) = &self.render {
            let value = others.remove(key).unwrap_or_default().to_string();
            pieces.push(text(&format!("{open}{}:", Value::from(key.as_str()))));
            pieces.push(Piece::Client(names(&value)?));
            open = ",";
        }
        let others = Value::Object(others).to_string();
        pieces.push(text(if others == "{}" { "" } else { open }));
        pieces.push(text(&others[1..]));
        Ok(Payload { content: Content::composed(pieces, clients), stamped })
    }
}

/// The names that a text with placeholders has for the clients.
pub(super) type Names<'a> = &'a dyn Fn(&str) -> anyhow::Result<Pattern>;

fn text(text: &str) -> Piece {
    Piece::Bytes(text.as_bytes().to_vec())
}

/// One round of all topics, repeated until the stage ends.
pub(super) fn round(
    specs: &Specs,
    publishes: &[(TopicsId, flock_model::Assign)],
    in_flight: Option<u16>,
    stamped: bool,
    (clients, names): (u32, Names<'_>),
) -> anyhow::Result<Command> {
    let too_many = || {
        anyhow::anyhow!(
            "the intervals repeat only after more than {MESSAGES_MAX} messages: use multiples of \
                 each other"
        )
    };
    let mut round_ms = 1_u64;
    for spec in &specs.topics {
        let common = gcd(round_ms, spec.interval_ms);
        round_ms = (round_ms / common).checked_mul(spec.interval_ms).ok_or_else(too_many)?;
    }
    let messages: u64 = specs.topics.iter().map(|spec| round_ms / spec.interval_ms).sum();
    anyhow::ensure!(messages <= MESSAGES_MAX, too_many());
    let mut due: Vec<(u64, usize)> = Vec::new();
    for (at, spec) in specs.topics.iter().enumerate() {
        due.extend((0..round_ms / spec.interval_ms).map(|k| (k * spec.interval_ms, at)));
    }
    due.sort_unstable();
    let (mut steps, mut now_ms): (Vec<Step>, u64) = (Vec::new(), 0);
    for (at_ms, at) in due {
        if at_ms > now_ms {
            let duration_us = (at_ms - now_ms) * 1_000;
            steps.push(Command::Delay(Delay { duration_us, spread: Spread::None }).into());
            now_ms = at_ms;
        }
        let spec = &specs.topics[at];
        let (topics, assign) = publishes[at];
        let publish = Publish {
            topics,
            assign,
            order: Order::RoundRobin,
            qos: QoS::try_from(spec.qos).unwrap_or(QoS::AtMostOnce),
            retain: spec.retain,
            payload: spec.payload(stamped, clients, names)?,
            expiry_secs: None,
            count: Some(1),
            pace: Pace {
                // Due at its time in the round, whatever the broker does; one message a round.
                rate: Some(Rate { count: 1, per_us: round_ms * 1_000 }),
                phase: Phase::Together,
                in_flight,
            },
            reply_to: None,
            topic_alias: false,
            user_properties: Vec::new(),
            content_type: None,
            payload_format: None,
        };
        steps.push(Command::Publish(publish).into());
    }
    let rate = Some(Rate { count: 1, per_us: round_ms * 1_000 });
    Ok(Command::For(Repeat { times: None, rate, steps }))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Of one round: each is a command of the program.
const MESSAGES_MAX: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use flock_model::Assign;

    const FILE: &str = r#"{ "topics": [
        { "name": "t1/%i", "interval_ms": "200", "inject_timestamp": "ms", "QoS": 1,
          "payload_encoding": "json", "stream": 0, "stream_priority": 1,
          "payload": { "timestamp": 1, "foo": "bar", "VIN": "%i" } },
        { "name": "t2", "interval_ms": 500, "inject_timestamp": false, "QoS": 0, "retain": true,
          "payload_encoding": "json", "stream": 0, "stream_priority": 1, "payload": "x" } ] }"#;

    #[test]
    fn intervals_become_one_round() {
        let specs = parse(FILE).unwrap();
        let publishes = [(TopicsId(0), Assign::Pairwise), (TopicsId(1), Assign::All)];
        let Command::For(repeat) = round(&specs, &publishes, Some(5), false, (3, &plain)).unwrap()
        else {
            panic!("a repetition expected");
        };
        assert_eq!(repeat.rate, Some(Rate { count: 1, per_us: 1_000_000 }));
        let (mut at_us, mut seen) = (0, Vec::new());
        for step in &repeat.steps {
            match &step.command {
                Command::Delay(delay) => at_us += delay.duration_us,
                Command::Publish(publish) => {
                    let is_timed = matches!(publish.payload.content, Content::Composed { .. });
                    seen.push((at_us / 1_000, publish.topics.0, is_timed));
                    assert_eq!((publish.count, publish.retain), (Some(1), publish.topics.0 == 1));
                }
                other => panic!("{other:?}"),
            }
        }
        let first = [0, 200, 400, 600, 800].map(|ms| (ms, 0, true));
        let mut expected: Vec<_> =
            first.into_iter().chain([(0, 1, false), (500, 1, false)]).collect();
        expected.sort_unstable();
        assert_eq!(seen, expected);
    }

    fn plain(text: &str) -> anyhow::Result<Pattern> {
        Ok(Pattern::parse(&Pattern::literal(text).source().replace("%i", "{1..}"))?)
    }

    /// What client number `client` sends.
    fn sent(payload: &Payload, client: u64) -> Vec<u8> {
        let Content::Composed { pieces, bytes } = &payload.content else { panic!("no pieces") };
        let mut out = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Bytes(text) => out.extend_from_slice(text),
                Piece::Time(unit) => out.extend(unit.digits(1_795_227_564_012_345_678).bytes()),
                Piece::Client(names) => out.extend(names.name(client).bytes()),
            }
        }
        assert!(out.len() <= *bytes as usize, "{out:?}");
        out
    }

    #[test]
    fn a_payload_stays_json_with_the_time_in_it_and_a_stamp_stands_before_it() {
        let specs = parse(FILE).unwrap();
        for stamped in [false, true] {
            let payload = specs.topics[0].payload(stamped, 3, &plain).unwrap();
            assert_eq!(payload.stamped, stamped);
            let bytes = sent(&payload, 0);
            let own: Value =
                serde_json::from_slice(&bytes[if stamped { 16 } else { 0 }..]).unwrap();
            let expected = serde_json::json!(
                {"timestamp": 1_795_227_564_012_u64, "foo": "bar", "VIN": "%i"}
            );
            assert_eq!(own, expected);
        }
        let fixed = specs.topics[1].payload(false, 3, &plain).unwrap();
        assert_eq!(fixed.content, Content::Fixed(b"x".to_vec()));
        let alone = FILE.replace("\"timestamp\": 1, \"foo\": \"bar\", \"VIN\": \"%i\"", "");
        let alone = parse(&alone).unwrap().topics[0].payload(false, 3, &plain).unwrap();
        assert_eq!(sent(&alone, 0), b"{\"timestamp\":1795227564012}");
    }

    /// The form of emqtt-bench's own example: text intervals, no encoding, one rendered key.
    #[test]
    fn a_rendered_key_names_the_client() {
        let file = r#"{"topics": [
            {"name": "a", "interval_ms": "1000", "inject_timestamp": true, "QoS": 1,
             "payload": {"one": "two", "timestamp": "0"}},
            {"name": "b", "interval_ms": "100", "inject_timestamp": true, "QoS": 0,
             "render": "car", "payload": {"one": "two", "timestamp": "0", "car": "car \"%i\""}},
            {"name": "c", "interval_ms": "100", "QoS": 0,
             "render": "car", "payload": {"car": "%i"}}]}"#;
        let specs = parse(file).unwrap();
        for (client, name) in [(0, "car \"1\""), (11, "car \"12\"")] {
            let payload = specs.topics[1].payload(false, 12, &plain).unwrap();
            let own: Value = serde_json::from_slice(&sent(&payload, client)).unwrap();
            let expected =
                serde_json::json!({"one": "two", "timestamp": 1_795_227_564_012_u64, "car": name});
            assert_eq!(own, expected);
        }
        let alone = specs.topics[2].payload(false, 12, &plain).unwrap();
        assert_eq!(sent(&alone, 1), b"{\"car\":\"2\"}");
    }

    #[test]
    fn bad_files_are_refused() {
        for (from, to, said) in [
            ("\"200\"", "\"0\"", "above 0"),
            ("\"QoS\": 1", "\"QoS\": 3", "QoS must be 0, 1 or 2"),
            (
                "json\", \"stream\": 0, \"stream_priority\": 1, \"payload\": \"x\"",
                "eterm\"",
                "`eterm` is not supported",
            ),
            ("\"retain\": true", "\"render\": \"VIN\"", "`render` must name a text"),
            ("_timestamp\": \"ms\"", "_timestamp\": \"hours\"", "must be true, false"),
            ("_timestamp\": false", "_timestamp\": true", "needs an object"),
        ] {
            let text = FILE.replace(from, to);
            assert_ne!(text, FILE, "{from}");
            assert!(parse(&text).unwrap_err().to_string().contains(said), "{to}");
        }
        let text = FILE.replace("\"200\"", "\"9973\"").replace("500", "9967");
        let publishes = [(TopicsId(0), Assign::Pairwise), (TopicsId(1), Assign::All)];
        let error = round(&parse(&text).unwrap(), &publishes, None, false, (1, &plain))
            .unwrap_err()
            .to_string();
        assert!(error.contains("multiples"), "{error}");
    }
}
