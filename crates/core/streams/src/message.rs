//! A stored record as rules see it, and as a dead letter.

use broker::Name;
use broker::journal::{Malformed, StreamRecord, read_attributes};
use codec::{Properties, Property, PropertyBuf};
use policy::Attributes;
use routing::Record;
use routing::dispatch::DeadLetter;

use crate::settings::HubSettings;

/// A record that was read, with what has to be unpacked for rules.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    stored: StreamRecord<'a>,
    /// Without its scope.
    topic: &'a str,
    attributes: Attributes,
    user_properties: Vec<(&'a str, &'a str)>,
    payload_format: u8,
    content_type: Option<&'a str>,
    response_topic: Option<&'a str>,
    correlation_data: Option<&'a [u8]>,
    expiry_secs: Option<u32>,
}

/// The topic of a record, without its scope.
pub(crate) fn topic_of<'a>(record: &StreamRecord<'a>) -> &'a str {
    Name::of_key(record.topic).text()
}

impl<'a> Message<'a> {
    pub(crate) fn unpack(stored: StreamRecord<'a>) -> Result<Self, Malformed> {
        let mut message = Self {
            topic: topic_of(&stored),
            attributes: read_attributes(stored.attributes)?,
            user_properties: Vec::new(),
            payload_format: 0,
            content_type: None,
            response_topic: None,
            correlation_data: None,
            expiry_secs: expiry_secs(&stored),
            stored,
        };
        for property in Properties::from_raw(stored.properties) {
            match property {
                Property::User(name, value) => message.user_properties.push((name, value)),
                Property::PayloadFormat(format) => message.payload_format = format,
                Property::ContentType(text) => message.content_type = Some(text),
                Property::ResponseTopic(text) => message.response_topic = Some(text),
                Property::CorrelationData(bytes) => message.correlation_data = Some(bytes),
                _ => {}
            }
        }
        Ok(message)
    }

    pub(crate) const fn life(&self) -> u64 {
        self.stored.life
    }

    pub(crate) const fn expires_at_ms(&self) -> u64 {
        self.stored.expires_at_ms
    }

    /// `wall_ahead_ms`: how far the wall clock is ahead of broker time, which records have.
    pub(crate) fn as_record<'m>(
        &'m self,
        id: &'m str,
        namespace: &'m str,
        wall_ahead_ms: i64,
    ) -> Record<'m> {
        let StreamRecord { at_ms, client_id, username, qos, retain, payload, .. } = self.stored;
        Record {
            id,
            namespace,
            time_ms: at_ms.saturating_add_signed(wall_ahead_ms),
            client_id,
            username,
            attributes: &self.attributes,
            topic: self.topic,
            qos: qos as u8,
            retain,
            expiry_secs: self.expiry_secs,
            payload_format: self.payload_format,
            content_type: self.content_type,
            response_topic: self.response_topic,
            correlation_data: self.correlation_data,
            user_properties: &self.user_properties,
            payload,
        }
    }
}

/// The Message Expiry Interval that the publisher has given. Full seconds, as it was.
fn expiry_secs(stored: &StreamRecord<'_>) -> Option<u32> {
    let expires = (stored.expires_at_ms != u64::MAX).then_some(stored.expires_at_ms)?;
    Some(u32::try_from(expires.saturating_sub(stored.at_ms) / 1000).unwrap_or(u32::MAX))
}

/// User properties that a dead letter has in addition to its own.
pub mod names {
    /// `refused` or `attempts_used_up`.
    pub const REASON: &str = "quelea-dead-letter-reason";
    /// The name of the consumer.
    pub const CONSUMER: &str = "quelea-dead-letter-consumer";
    /// The `id` of the event that was sent.
    pub const EVENT: &str = "quelea-dead-letter-event";
    /// Answers that the record got by itself.
    pub const ATTEMPTS: &str = "quelea-dead-letter-attempts";
    /// When the first and the last attempt were, in milliseconds since 1970.
    pub const FIRST_ATTEMPT: &str = "quelea-dead-letter-first-attempt";
    pub const LAST_ATTEMPT: &str = "quelea-dead-letter-last-attempt";
    /// The last answer of the target, shortened.
    pub const ANSWER: &str = "quelea-dead-letter-answer";
}

/// Characters of an answer that a dead letter keeps. Policy: the rest is not stored.
pub const ANSWER_CHARS_MAX: usize = 512;

/// The record as it is stored in the stream of dead letters: by this process, under an ordinal of
/// its own.
pub(crate) fn dead_record(
    bytes: &[u8],
    (consumer, event_id): (&str, &str),
    dead: &DeadLetter,
    settings: &HubSettings,
) -> Result<Vec<u8>, Malformed> {
    let stored = StreamRecord::decode(bytes)?;
    let shown = |at_ms: u64| at_ms.saturating_add_signed(settings.wall_ahead_ms).to_string();
    let (attempts, first, last) =
        (dead.attempts.to_string(), shown(dead.first_ms), shown(dead.last_ms));
    let is_plain = |it: &char| !it.is_control();
    let answer: String = dead.answer.chars().filter(is_plain).take(ANSWER_CHARS_MAX).collect();
    let added = [
        (names::REASON, dead.reason.name()),
        (names::CONSUMER, consumer),
        (names::EVENT, event_id),
        (names::ATTEMPTS, &*attempts),
        (names::FIRST_ATTEMPT, &*first),
        (names::LAST_ATTEMPT, &*last),
        (names::ANSWER, &*answer),
    ];
    let mut properties = PropertyBuf::new();
    properties.extend(Properties::from_raw(stored.properties));
    for (name, value) in added {
        properties.push(Property::User(name, value));
    }
    let properties = properties.as_properties().raw();
    let mut out = Vec::with_capacity(bytes.len() + properties.len());
    StreamRecord { life: settings.life, properties, ..stored }.encode(&mut out);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use codec::QoS;
    use routing::dispatch::{DeadReason, RecordId};

    use super::*;

    fn stored(properties: &[u8]) -> StreamRecord<'_> {
        StreamRecord {
            at_ms: 5_000,
            life: 1,
            qos: QoS::AtLeastOnce,
            retain: false,
            expires_at_ms: 35_000,
            client_id: "c",
            username: None,
            attributes: &[],
            topic: "$\u{0}3/a/b",
            properties,
            payload: b"x",
        }
    }

    #[test]
    fn a_record_is_seen_without_its_scope_and_with_its_properties() {
        let mut properties = PropertyBuf::new();
        properties.push(Property::ContentType("text/plain")).push(Property::User("a", "b"));
        let message = Message::unpack(stored(properties.as_properties().raw())).unwrap();
        let record = message.as_record("1", "factory", 0);
        assert_eq!((record.topic, record.expiry_secs, record.qos), ("a/b", Some(30), 1));
        assert_eq!(
            (record.content_type, record.user_properties),
            (Some("text/plain"), &[("a", "b")][..])
        );
        for (ahead_ms, time_ms) in
            [(0, 5_000), (3_600_000, 3_605_000), (-2_000, 3_000), (-9_000, 0)]
        {
            let record = message.as_record("1", "factory", ahead_ms);
            // Its age and its expiry are of broker time.
            assert_eq!((record.time_ms, record.expiry_secs), (time_ms, Some(30)));
        }
    }

    #[test]
    fn a_dead_letter_keeps_its_record_and_says_why() {
        let mut properties = PropertyBuf::new();
        properties.push(Property::User("own", "1"));
        let mut bytes = Vec::new();
        stored(properties.as_properties().raw()).encode(&mut bytes);
        let dead = DeadLetter {
            id: RecordId { shard: 0, ordinal: 1 },
            reason: DeadReason::Refused,
            attempts: 2,
            first_ms: 10,
            last_ms: 20,
            answer: format!("no\u{7}{}", "x".repeat(600)),
        };
        let settings = HubSettings { life: 9, wall_ahead_ms: 1_000, ..HubSettings::new(1) };
        let out = dead_record(&bytes, ("rule", "id-1"), &dead, &settings).unwrap();
        let read = StreamRecord::decode(&out).unwrap();
        assert_eq!((read.life, read.payload, read.topic), (9, &b"x"[..], stored(&[]).topic));
        let user: Vec<_> = Properties::from_raw(read.properties).user_properties().collect();
        assert_eq!(
            user[..4],
            [
                ("own", "1"),
                (names::REASON, "refused"),
                (names::CONSUMER, "rule"),
                (names::EVENT, "id-1"),
            ]
        );
        assert_eq!(user[5..7], [(names::FIRST_ATTEMPT, "1010"), (names::LAST_ATTEMPT, "1020")]);
        let (name, answer) = user[user.len() - 1];
        assert_eq!((name, answer.len(), &answer[..4]), (names::ANSWER, ANSWER_CHARS_MAX, "noxx"));
    }
}
