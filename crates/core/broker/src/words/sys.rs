//! `$SYS/broker/…` topics, named as mosquitto names them.

use codec::QoS;
use session::{MemoryKind, Message, MessageParts, NEVER};

use crate::{Metrics, Shared};

/// Numbers that change between two rounds, for the moving averages.
#[derive(Debug)]
pub struct SysTopics {
    version: String,
    /// The most clients that were connected when somebody looked.
    connected_max: u64,
    loads: Vec<Load>,
}

/// Where the numbers of one round come from.
#[derive(Clone, Copy, Debug)]
pub struct Figures<'a> {
    pub shared: &'a Shared,
    /// Network connections that listeners have accepted since the start.
    pub sockets_opened: u64,
}

impl Figures<'_> {
    fn total<T: crate::Figure>(&self, figure: impl Fn(&Metrics) -> &T) -> u64 {
        self.shared.total(figure)
    }
}

/// The numbers of one round, which can be added: those of a cluster are those of all its cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values([u64; NUMBERS.len()]);

impl Values {
    pub fn of(figures: &Figures<'_>) -> Self {
        Self(std::array::from_fn(|place| (NUMBERS[place].total)(figures)))
    }

    /// What was read by name; a number that is not there is 0.
    pub fn named(value_of: impl Fn(&str) -> Option<u64>) -> Self {
        Self(std::array::from_fn(|place| value_of(NUMBERS[place].name()).unwrap_or_default()))
    }

    /// With their names.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NUMBERS.iter().map(Number::name).zip(self.0)
    }

    pub fn add(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(other.0) {
            *own = own.saturating_add(other);
        }
    }
}

/// One load average: a rate per minute, smoothed over 1, 5 and 15 minutes.
#[derive(Debug)]
struct Load {
    topic: &'static str,
    /// Among all numbers.
    place: usize,
    last: u64,
    averages: [f64; 3],
}

const LOAD_MINUTES: [(&str, f64); 3] = [("1min", 1.0), ("5min", 5.0), ("15min", 15.0)];

/// A number of the broker, and where it is below `$SYS/broker`.
struct Number {
    topic: Option<&'static str>,
    /// Its rate, below `load`.
    load: Option<&'static str>,
    /// A sentence.
    help: &'static str,
    total: fn(&Figures<'_>) -> u64,
}

impl Number {
    /// No other has it.
    fn name(&self) -> &'static str {
        self.topic.or(self.load).unwrap_or_default()
    }

    /// One with a rate as well.
    const fn and_load(self, load: &'static str) -> Self {
        Self { load: Some(load), ..self }
    }
}

const fn number(topic: &'static str, help: &'static str, total: fn(&Figures<'_>) -> u64) -> Number {
    Number { topic: Some(topic), load: None, help, total }
}

/// One of which only the rate is published.
const fn load(load: &'static str, help: &'static str, total: fn(&Figures<'_>) -> u64) -> Number {
    Number { topic: None, load: Some(load), help, total }
}

/// The topics of each round, below `$SYS/broker`, and what they say. `+` stands for the minutes of
/// a load average.
pub fn topics() -> Vec<(String, String)> {
    let texts = [
        ("version", "Name and version of the broker."),
        ("uptime", "Time since the start, such as `90 seconds`."),
        ("clients/maximum", "The most clients that were connected at the time of a round."),
    ];
    let texts = texts.map(|(topic, help)| (topic.to_owned(), help.to_owned()));
    let plain = NUMBERS.iter().filter_map(|own| Some((own.topic?.to_owned(), own.help.to_owned())));
    let loads = NUMBERS.iter().filter_map(|own| {
        let help = format!("{}, per minute.", own.help.trim_end_matches('.'));
        Some((format!("load/{}/+", own.load?), help))
    });
    texts.into_iter().chain(plain).chain(loads).collect()
}

impl SysTopics {
    pub fn new(version: &str) -> Self {
        let loads = NUMBERS.iter().enumerate().filter_map(|(place, own)| {
            Some(Load { topic: own.load?, place, last: 0, averages: [0.0; 3] })
        });
        let version = format!("quelea version {version}");
        Self { version, connected_max: 0, loads: loads.collect() }
    }

    /// The retained messages of one round. `elapsed_secs` since the last one.
    pub fn messages(
        &mut self,
        values: &Values,
        uptime_secs: u64,
        elapsed_secs: f64,
    ) -> Vec<Message> {
        let mut messages = Vec::new();
        let mut add = |topic: &str, value: String| {
            messages.push(message(topic, value.as_bytes(), true));
        };
        add("version", self.version.clone());
        add("uptime", format!("{uptime_secs} seconds"));
        let connected = values.all().find(|(name, _)| *name == CONNECTED);
        self.connected_max = self.connected_max.max(connected.map_or(0, |(_, count)| count));
        add("clients/maximum", self.connected_max.to_string());
        for (own, value) in NUMBERS.iter().zip(values.0) {
            if let Some(topic) = own.topic {
                add(topic, value.to_string());
            }
        }
        for load in &mut self.loads {
            let total = values.0[load.place];
            let per_minute = total.saturating_sub(load.last) as f64 * 60.0 / elapsed_secs.max(1e-3);
            load.last = total;
            for (average, (name, minutes)) in load.averages.iter_mut().zip(LOAD_MINUTES) {
                let weight = (-elapsed_secs / (60.0 * minutes)).exp();
                *average = per_minute + weight * (*average - per_minute);
                add(&format!("load/{}/{name}", load.topic), format!("{average:.2}"));
            }
        }
        messages
    }
}

fn dropped(figures: &Figures<'_>) -> u64 {
    figures.total(|m| &m.dropped_queue_full)
        + figures.total(|m| &m.dropped_slow)
        + figures.total(|m| &m.dropped_expired)
        + figures.total(|m| &m.dropped_too_large)
        + figures.total(|m| &m.dropped_denied)
        + figures.total(|m| &m.dropped_unlogged)
        + figures.total(|m| &m.dropped_group)
}

fn offline(figures: &Figures<'_>) -> u64 {
    figures.total(|m| &m.sessions).saturating_sub(figures.total(|m| &m.connections))
}

fn plain_subscriptions(figures: &Figures<'_>) -> u64 {
    let all = figures.total(|m| &m.subscriptions);
    all.saturating_sub(figures.total(|m| &m.shared_subscriptions))
}

fn packets_sent(figures: &Figures<'_>) -> u64 {
    figures.total(|m| &m.publishes_sent) + figures.total(|m| &m.controls_sent)
}

fn stored(figures: &Figures<'_>) -> u64 {
    figures.total(|m| &m.retained) + figures.total(|m| &m.queued)
}

fn stored_bytes(figures: &Figures<'_>) -> u64 {
    figures.total(|m| &m.retained_bytes) + figures.shared.ledger.bytes(MemoryKind::Queued)
}

const CONNECTED: &str = "clients/connected";

const NUMBERS: &[Number] = &[
    load("sockets", "Network connections that were accepted.", |f| f.sockets_opened),
    load("connections", "Clients that connected.", |f| f.total(|m| &m.connections_opened)),
    number(CONNECTED, "Connected clients.", |f| f.total(|m| &m.connections)),
    number("clients/active", "The same, by its older name.", |f| f.total(|m| &m.connections)),
    number("clients/disconnected", "Sessions without a connection.", offline),
    number("clients/inactive", "The same, by its older name.", offline),
    number("clients/total", "Sessions, connected or not.", |f| f.total(|m| &m.sessions)),
    number("clients/expired", "Sessions that expired since the start.", |f| {
        f.total(|m| &m.sessions_expired)
    }),
    number("subscriptions/count", "Subscriptions that are not shared.", plain_subscriptions),
    number("shared_subscriptions/count", "Shared subscriptions.", |f| {
        f.total(|m| &m.shared_subscriptions)
    }),
    number("retained messages/count", "Retained messages.", |f| f.total(|m| &m.retained)),
    number(
        "store/messages/count",
        "Retained messages, and messages in queues; a message in two queues counts twice.",
        stored,
    ),
    number("messages/stored", "The same, by its older name.", stored),
    number(
        "store/messages/bytes",
        "Bytes of retained messages, and of messages that are queued in memory.",
        stored_bytes,
    ),
    number("messages/inflight", "Messages sent to clients and not acknowledged yet.", |f| {
        f.total(|m| &m.in_flight)
    }),
    number("messages/received", "Packets of any kind from clients.", |f| {
        f.total(|m| &m.packets_received)
    })
    .and_load("messages/received"),
    number("messages/sent", "Packets of any kind to clients.", packets_sent)
        .and_load("messages/sent"),
    number("publish/messages/received", "PUBLISH packets from clients.", |f| {
        f.total(|m| &m.publishes_received)
    })
    .and_load("publish/received"),
    number("publish/messages/sent", "PUBLISH packets to clients.", |f| {
        f.total(|m| &m.publishes_sent)
    })
    .and_load("publish/sent"),
    number(
        "publish/messages/dropped",
        "Dropped messages and deliveries, except QoS 0 to sessions without a connection.",
        dropped,
    )
    .and_load("publish/dropped"),
    number("publish/bytes/received", "Payload bytes of PUBLISH packets from clients.", |f| {
        f.total(|m| &m.publish_bytes_received)
    }),
    number("publish/bytes/sent", "Payload bytes of PUBLISH packets to clients.", |f| {
        f.total(|m| &m.publish_bytes_sent)
    }),
    number("bytes/received", "Bytes of MQTT packets from clients.", |f| {
        f.total(|m| &m.bytes_received)
    })
    .and_load("bytes/received"),
    number("bytes/sent", "Bytes of MQTT packets to clients.", |f| f.total(|m| &m.bytes_sent))
        .and_load("bytes/sent"),
];

/// A message of the broker's own, below `$SYS/broker`: QoS 0, from nobody, in no journal.
pub fn message(topic: &str, payload: &[u8], retain: bool) -> Message {
    Message::new(&MessageParts {
        topic: &format!("$SYS/broker/{topic}"),
        properties: &[],
        payload,
        qos: QoS::AtMostOnce,
        retain,
        expires_at_ms: NEVER,
        publisher: 0,
        author: 0,
        level: 0,
        scope: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Homes, Settings};

    #[test]
    fn values_are_added_by_their_names() {
        let names: Vec<_> = NUMBERS.iter().map(Number::name).collect();
        assert!(names.iter().enumerate().all(|(at, name)| !names[..at].contains(name)));
        let mut sum = Values::named(|name| (name == CONNECTED).then_some(3));
        sum.add(&Values::named(|name| Some(name.len() as u64)));
        for (name, value) in sum.all() {
            let more = if name == CONNECTED { 3 } else { 0 };
            assert_eq!(value, name.len() as u64 + more, "{name}");
        }
        let read = Values::named(|name| sum.all().find(|(own, _)| *own == name).map(|it| it.1));
        assert_eq!(read, sum);
    }

    #[test]
    fn what_is_published_is_what_is_documented() {
        let shared = Shared::new(Settings::default(), Homes::of_one_cell(2), 0);
        let figures = Figures { shared: &shared, sockets_opened: 0 };
        let documented = topics();
        let mut seen = vec![0; documented.len()];
        for message in SysTopics::new("1").messages(&Values::of(&figures), 1, 1.0) {
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
