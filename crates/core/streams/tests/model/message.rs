//! Messages of the model, and which consumers want them: evaluated apart from rules.

use broker::journal::StreamRecord;
use codec::QoS;
use routing::rule::Draft;
use routing::{Condition, Enrichments, Form, Given, PayloadReading, RawCondition, Rule};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Good,
    /// The target never takes it.
    Refused,
    /// The target never decides about it.
    Failing,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    /// In the order of the publishes.
    pub(crate) uid: u64,
    pub(crate) client: u64,
    pub(crate) topic: usize,
    /// Below 10.
    pub(crate) n: u64,
    pub(crate) fate: Fate,
    /// When it expires, in broker time. 0: never.
    pub(crate) expires_ms: u64,
}

pub(crate) const TOPICS: [&str; 4] = ["a/x", "a/y", "b/x", "b/y"];

impl Message {
    pub(crate) fn encode(&self, life: u64, at_ms: u64) -> Vec<u8> {
        let Self { uid, client, topic, n, fate, expires_ms } = self;
        let payload = format!(
            r#"{{"uid":{uid},"client":{client},"topic":{topic},"n":{n},"fate":{},"ends":{}}}"#,
            *fate as u8, expires_ms
        );
        let mut bytes = Vec::new();
        let record = StreamRecord {
            at_ms,
            life,
            qos: QoS::AtLeastOnce,
            retain: false,
            expires_at_ms: if *expires_ms == 0 { u64::MAX } else { *expires_ms },
            client_id: &format!("c{client}"),
            username: None,
            attributes: &[],
            topic: TOPICS[*topic],
            properties: &[],
            payload: payload.as_bytes(),
        };
        record.encode(&mut bytes);
        bytes
    }

    /// Of its payload.
    pub(crate) fn parse(payload: &[u8]) -> Self {
        let text = std::str::from_utf8(payload).expect("it is text");
        let number = |name: &str| -> u64 {
            let name = format!("\"{name}\":");
            let (_, rest) = text.split_once(&name).expect("it has the member");
            let end = rest.find([',', '}']).expect("it ends");
            rest[..end].parse().expect("it is a number")
        };
        let fate = match number("fate") {
            0 => Fate::Good,
            1 => Fate::Refused,
            _ => Fate::Failing,
        };
        let topic = number("topic") as usize;
        let (uid, client, n, expires_ms) =
            (number("uid"), number("client"), number("n"), number("ends"));
        Self { uid, client, topic, n, fate, expires_ms }
    }
}

/// What a consumer wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Want {
    pub(crate) filter: &'static str,
    pub(crate) n_below: Option<u64>,
}

pub(crate) const FILTERS: [&str; 5] = ["a/#", "+/x", "b/y", "#", "none"];

impl Want {
    pub(crate) fn matches_topic(&self, message: &Message) -> bool {
        match self.filter {
            "a/#" => message.topic < 2,
            "+/x" => message.topic.is_multiple_of(2),
            "b/y" => message.topic == 3,
            "#" => true,
            _ => false,
        }
    }

    pub(crate) fn matches(&self, message: &Message) -> bool {
        self.matches_topic(message) && self.n_below.is_none_or(|most| message.n < most)
    }

    pub(crate) fn rule(&self) -> Rule {
        let condition = self.n_below.map(|most| {
            let (key, operator) = ("data.n".to_owned(), "NumberLessThan".to_owned());
            let value = Some(Given::Number(most.to_string()));
            let raw = RawCondition { key, operator, value, values: None };
            Condition::new(&raw, &Enrichments::default()).expect("it is a condition")
        });
        let draft = Draft {
            name: "r".to_owned(),
            is_enabled: true,
            filter: self.filter.to_owned(),
            conditions: condition.into_iter().collect(),
            form: Form::Raw,
            payload: PayloadReading::Json,
            ..Draft::default()
        };
        Rule::new(draft).expect("it is a rule")
    }
}
