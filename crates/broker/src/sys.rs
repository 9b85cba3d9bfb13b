//! `$SYS/broker/…` topics, named as mosquitto names them.

use codec::QoS;
use session::{Message, MessageParts, NEVER};

use crate::Shared;

/// Numbers that change between two rounds, for the moving averages.
#[derive(Debug)]
pub struct SysTopics {
    version: String,
    loads: Vec<Load>,
}

/// One load average: a rate per minute, smoothed over 1, 5 and 15 minutes.
#[derive(Debug)]
struct Load {
    topic: &'static str,
    total: fn(&Shared) -> u64,
    last: u64,
    averages: [f64; 3],
}

const LOAD_MINUTES: [(&str, f64); 3] = [("1min", 1.0), ("5min", 5.0), ("15min", 15.0)];

/// A topic below `$SYS/broker`, what it says, and where its number comes from.
struct Number(&'static str, &'static str, fn(&Shared) -> u64);

/// The topics of each round, below `$SYS/broker`, and what they say. `+` stands for the minutes of
/// a load average.
pub fn topics() -> Vec<(String, &'static str)> {
    let texts = [
        ("version", "Name and version of the broker."),
        ("uptime", "Time since the start, such as `90 seconds`."),
    ];
    let numbers = NUMBERS.iter().map(|Number(topic, help, _)| (*topic, *help));
    let plain = texts.into_iter().chain(numbers).map(|(topic, help)| (topic.to_owned(), help));
    let loads = LOADS.iter().map(|Number(topic, help, _)| (format!("load/{topic}/+"), *help));
    plain.chain(loads).collect()
}

impl SysTopics {
    pub fn new(version: &str) -> Self {
        let loads = LOADS.iter().map(|&Number(topic, _, total)| Load {
            topic,
            total,
            last: 0,
            averages: [0.0; 3],
        });
        Self { version: format!("quelea version {version}"), loads: loads.collect() }
    }

    /// The retained messages of one round. `elapsed_secs` since the last one.
    pub fn messages(
        &mut self,
        shared: &Shared,
        uptime_secs: u64,
        elapsed_secs: f64,
    ) -> Vec<Message> {
        let mut messages = Vec::new();
        let mut tell = |topic: &str, value: String| {
            messages.push(message(topic, value.as_bytes(), true));
        };
        tell("version", self.version.clone());
        tell("uptime", format!("{uptime_secs} seconds"));
        for Number(topic, _, value) in NUMBERS {
            tell(topic, value(shared).to_string());
        }
        for load in &mut self.loads {
            let total = (load.total)(shared);
            let per_minute = total.saturating_sub(load.last) as f64 * 60.0 / elapsed_secs.max(1e-3);
            load.last = total;
            for (average, (name, minutes)) in load.averages.iter_mut().zip(LOAD_MINUTES) {
                let weight = (-elapsed_secs / (60.0 * minutes)).exp();
                *average = per_minute + weight * (*average - per_minute);
                tell(&format!("load/{}/{name}", load.topic), format!("{average:.2}"));
            }
        }
        messages
    }
}

fn dropped(shared: &Shared) -> u64 {
    shared.total(|m| &m.dropped_queue_full)
        + shared.total(|m| &m.dropped_slow)
        + shared.total(|m| &m.dropped_expired)
        + shared.total(|m| &m.dropped_too_large)
        + shared.total(|m| &m.dropped_denied)
        + shared.total(|m| &m.dropped_unlogged)
        + shared.total(|m| &m.dropped_group)
}

fn offline(shared: &Shared) -> u64 {
    shared.total(|m| &m.sessions).saturating_sub(shared.total(|m| &m.connections))
}

const NUMBERS: &[Number] = &[
    Number("clients/connected", "Connected clients.", |s| s.total(|m| &m.connections)),
    Number("clients/active", "The same, by its older name.", |s| s.total(|m| &m.connections)),
    Number("clients/disconnected", "Sessions without a connection.", offline),
    Number("clients/inactive", "The same, by its older name.", offline),
    Number("clients/total", "Sessions, connected or not.", |s| s.total(|m| &m.sessions)),
    Number("clients/expired", "Sessions that expired since the start.", |s| {
        s.total(|m| &m.sessions_expired)
    }),
    Number("subscriptions/count", "Subscriptions of all sessions, shared ones included.", |s| {
        s.total(|m| &m.subscriptions)
    }),
    Number("retained messages/count", "Retained messages.", |s| s.total(|m| &m.retained)),
    Number("store/messages/count", "The same.", |s| s.total(|m| &m.retained)),
    Number("store/messages/bytes", "Bytes of retained messages.", |s| {
        s.total(|m| &m.retained_bytes)
    }),
    Number("messages/received", "Packets of any kind from clients.", |s| {
        s.total(|m| &m.packets_received)
    }),
    Number("publish/messages/received", "PUBLISH packets from clients.", |s| {
        s.total(|m| &m.publishes_received)
    }),
    Number("publish/messages/sent", "PUBLISH packets to clients.", |s| {
        s.total(|m| &m.publishes_sent)
    }),
    Number(
        "publish/messages/dropped",
        "Dropped messages and deliveries, but for QoS 0 to sessions without a connection.",
        dropped,
    ),
    Number("publish/bytes/received", "Payload bytes of PUBLISH packets from clients.", |s| {
        s.total(|m| &m.publish_bytes_received)
    }),
    Number("publish/bytes/sent", "Payload bytes of PUBLISH packets to clients.", |s| {
        s.total(|m| &m.publish_bytes_sent)
    }),
    Number("bytes/received", "Bytes of MQTT packets from clients.", |s| {
        s.total(|m| &m.bytes_received)
    }),
    Number("bytes/sent", "Bytes of MQTT packets to clients.", |s| s.total(|m| &m.bytes_sent)),
];

const LOADS: &[Number] = &[
    Number("connections", "Accepted connections per minute.", |s| {
        s.total(|m| &m.connections_opened)
    }),
    Number("messages/received", "Packets of any kind from clients per minute.", |s| {
        s.total(|m| &m.packets_received)
    }),
    Number("messages/sent", "PUBLISH packets to clients per minute.", |s| {
        s.total(|m| &m.publishes_sent)
    }),
    Number("publish/received", "PUBLISH packets from clients per minute.", |s| {
        s.total(|m| &m.publishes_received)
    }),
    Number("publish/sent", "PUBLISH packets to clients per minute.", |s| {
        s.total(|m| &m.publishes_sent)
    }),
    Number("publish/dropped", "Dropped messages and deliveries per minute.", dropped),
    Number("bytes/received", "Bytes of MQTT packets from clients per minute.", |s| {
        s.total(|m| &m.bytes_received)
    }),
];

/// A message of the broker's own, below `$SYS/broker`: QoS 0, from nobody, in no log.
pub fn message(topic: &str, payload: &[u8], retain: bool) -> Message {
    Message::new(&MessageParts {
        topic: &format!("$SYS/broker/{topic}"),
        properties: &[],
        payload,
        qos: QoS::AtMostOnce,
        retain,
        expires_at_ms: NEVER,
        publisher: 0,
        level: 0,
        scope: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    #[test]
    fn what_is_published_is_what_is_documented() {
        let shared = Shared::new(Settings::default(), 2, 0);
        let documented = topics();
        let mut seen = vec![0; documented.len()];
        for message in SysTopics::new("1").messages(&shared, 1, 1.0) {
            let topic = message.topic().strip_prefix("$SYS/broker/").unwrap_or_default();
            let matches = |(filter, _): &(String, _)| topic::matches(filter, topic);
            let place = documented.iter().position(matches);
            assert!(place.is_some(), "{topic} is not documented");
            seen[place.unwrap_or_default()] += 1;
        }
        for ((filter, help), count) in documented.iter().zip(seen) {
            let minutes = if filter.ends_with('+') { LOAD_MINUTES.len() } else { 1 };
            assert_eq!(count, minutes, "{filter}");
            assert!(help.ends_with('.'), "{filter}");
        }
    }
}
