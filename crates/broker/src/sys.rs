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
    last: u64,
    averages: [f64; 3],
}

const LOADS: [&str; 7] = [
    "connections",
    "messages/received",
    "messages/sent",
    "publish/received",
    "publish/sent",
    "publish/dropped",
    "bytes/received",
];
const LOAD_MINUTES: [(&str, f64); 3] = [("1min", 1.0), ("5min", 5.0), ("15min", 15.0)];

impl SysTopics {
    pub fn new(version: &str) -> Self {
        let loads = LOADS.iter().map(|topic| Load { topic, last: 0, averages: [0.0; 3] }).collect();
        Self { version: format!("quelea version {version}"), loads }
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
        for (topic, value) in numbers(shared) {
            tell(topic, value.to_string());
        }
        let totals = load_totals(shared);
        for (load, total) in self.loads.iter_mut().zip(totals) {
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

fn numbers(shared: &Shared) -> Vec<(&'static str, u64)> {
    let connected = shared.total(|m| &m.connections);
    let sessions = shared.total(|m| &m.sessions);
    vec![
        ("clients/connected", connected),
        ("clients/active", connected),
        ("clients/disconnected", sessions.saturating_sub(connected)),
        ("clients/inactive", sessions.saturating_sub(connected)),
        ("clients/total", sessions),
        ("clients/expired", shared.total(|m| &m.sessions_expired)),
        ("subscriptions/count", shared.total(|m| &m.subscriptions)),
        ("retained messages/count", shared.total(|m| &m.retained)),
        ("store/messages/count", shared.total(|m| &m.retained)),
        ("store/messages/bytes", shared.total(|m| &m.retained_bytes)),
        ("messages/received", shared.total(|m| &m.packets_received)),
        ("publish/messages/received", shared.total(|m| &m.publishes_received)),
        ("publish/messages/sent", shared.total(|m| &m.publishes_sent)),
        ("publish/messages/dropped", dropped(shared)),
        ("publish/bytes/received", shared.total(|m| &m.publish_bytes_received)),
        ("publish/bytes/sent", shared.total(|m| &m.publish_bytes_sent)),
        ("bytes/received", shared.total(|m| &m.bytes_received)),
        ("bytes/sent", shared.total(|m| &m.bytes_sent)),
    ]
}

fn load_totals(shared: &Shared) -> [u64; 7] {
    [
        shared.total(|m| &m.connections_opened),
        shared.total(|m| &m.packets_received),
        shared.total(|m| &m.publishes_sent),
        shared.total(|m| &m.publishes_received),
        shared.total(|m| &m.publishes_sent),
        dropped(shared),
        shared.total(|m| &m.bytes_received),
    ]
}
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
    })
}
