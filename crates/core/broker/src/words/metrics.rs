//! Counters of one shard: written by one thread, read by any.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use session::{Control, Controls, QueueLimit, Sent};

/// A number with a single writer: adding is a plain load and store.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    pub fn sub(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).saturating_sub(count), Ordering::Relaxed);
    }

    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one thing that differ in a label.
#[derive(Debug)]
pub struct Counters<const N: usize>([Counter; N]);

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl<const N: usize> Counters<N> {
    /// One more of the label at this index. None at an index that has no label.
    #[inline]
    pub fn count(&self, index: usize) {
        self.add(index, 1);
    }

    #[inline]
    pub fn add(&self, index: usize, count: u64) {
        if let Some(counter) = self.0.get(index) {
            counter.add(count);
        }
    }

    /// With this label only.
    pub fn of(&self, index: usize) -> u64 {
        self.0.get(index).map_or(0, Counter::value)
    }
}

/// What a field of [`Metrics`] counts, whatever its labels.
pub trait Figure {
    fn total(&self) -> u64;
    /// Appends the value of each label.
    fn push_values(&self, values: &mut Vec<u64>);
}

impl Figure for Counter {
    fn total(&self) -> u64 {
        self.value()
    }

    fn push_values(&self, values: &mut Vec<u64>) {
        values.push(self.value());
    }
}

impl<const N: usize> Figure for Counters<N> {
    fn total(&self) -> u64 {
        self.0.iter().map(Counter::value).sum()
    }

    fn push_values(&self, values: &mut Vec<u64>) {
        values.extend(self.0.iter().map(Counter::value));
    }
}

/// Whether a number only grows, or goes up and down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    Counter,
    Gauge,
}

/// A metric as it is shown: name with unit, type, help. Those that differ in a label only stand one
/// after the other.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    pub name: &'static str,
    /// Such as `reason="expired"`, or empty.
    pub label: &'static str,
    pub kind: MetricType,
    /// Of this label.
    pub help: &'static str,
}

/// What metrics with labels have in common.
const FAMILIES: [(&str, &str); 2] = [
    ("quelea_messages_dropped_total", "Messages and deliveries that were dropped, by reason."),
    ("quelea_authorization_answers_total", "Answers of the authorization service."),
];

impl Description {
    /// What the name means, whatever the label.
    pub fn family_help(&self) -> &'static str {
        let family = FAMILIES.into_iter().find(|(name, _)| *name == self.name);
        family.map_or(self.help, |(_, help)| help)
    }
}

/// Names of the fields and their types: those `by` a list of labels have a counter for each.
macro_rules! metrics {
    (@type) => { Counter };
    (@type $labels:ident) => { Counters<{ $labels.len() }> };
    (@labels $($label:literal)?) => { &[concat!("", $($label)?)] };
    (@labels by $labels:ident) => { &$labels };
    ($(
        $field:ident: $kind:ident $name:literal $([$label:literal])? $(by $labels:ident)?,
        $help:literal;
    )*) => {
        /// All counters of a shard.
        #[derive(Debug, Default)]
        #[repr(align(128))] // Own cache lines: shards do not slow each other down.
        pub struct Metrics {
            $(#[doc = $help] pub $field: metrics!(@type $($labels)?),)*
        }

        impl Metrics {
            /// What each metric is, in the order of [`Metrics::values`].
            pub fn descriptions() -> &'static [Description] {
                static ALL: LazyLock<Vec<Description>> = LazyLock::new(|| {
                    let mut all = Vec::new();
                    $(
                        let labels: &[&'static str] = metrics!(@labels $($label)? $(by $labels)?);
                        all.extend(labels.iter().map(|label| Description {
                            name: $name,
                            label,
                            kind: MetricType::$kind,
                            help: $help,
                        }));
                    )*
                    all
                });
                &ALL
            }

            /// The present values.
            pub fn values(&self) -> Vec<u64> {
                let mut values = Vec::new();
                $(self.$field.push_values(&mut values);)*
                values
            }
        }
    };
}

metrics! {
    connections: Gauge "quelea_connections",
        "Connected clients.";
    connections_opened: Counter "quelea_connections_opened_total",
        "Connections that were accepted with a CONNACK.";
    connections_closed: Counter "quelea_connections_closed_total",
        "Accepted connections that were closed.";
    takeovers: Counter "quelea_session_takeovers_total",
        "Connections that were closed because another one took over the session.";
    strangers: Counter "quelea_session_owner_refusals_total",
        "Connects that were refused because the session belongs to another user.";
    keep_alive_timeouts: Counter "quelea_keep_alive_timeouts_total",
        "Connections that were closed because no packet arrived for one and a half keep-alives.";
    credentials_expired: Counter "quelea_credentials_expired_total",
        "Connections that were closed because their credential expired.";
    banned_cut: Counter "quelea_banned_disconnects_total",
        "Connections that were closed because of a new ban.";
    violations: Counter "quelea_protocol_violations_total",
        "Connections that were closed because the client broke the protocol.";
    sessions: Gauge "quelea_sessions",
        "Sessions, connected or not.";
    sessions_refused: Counter "quelea_sessions_refused_total",
        "Connects refused: sessions and wills of the user or address use too much memory.";
    sessions_expired: Counter "quelea_sessions_expired_total",
        "Sessions that expired.";
    subscriptions: Gauge "quelea_subscriptions",
        "Subscriptions of all sessions, shared ones included.";
    shared_subscriptions: Gauge "quelea_shared_subscriptions",
        "Shared subscriptions of all sessions.";
    topic_filters: Gauge "quelea_topic_filters",
        "Topic filters with at least one subscription in the shard. The value is a few seconds old.";
    packets_received: Counter "quelea_packets_received_total" by RECEIVED,
        "Packets from clients that have a session, by type.";
    controls_sent: Counter "quelea_control_packets_sent_total" by SENT,
        "Packets other than PUBLISH to clients, by type, counted when they are written to the connection.";
    bytes_received: Counter "quelea_received_bytes_total",
        "Bytes of MQTT packets from clients.";
    bytes_sent: Counter "quelea_sent_bytes_total",
        "Bytes of MQTT packets to clients.";
    publishes_received: Counter "quelea_publishes_received_total" by QOS,
        "PUBLISH packets from clients, by QoS.";
    publish_bytes_received: Counter "quelea_publish_received_bytes_total",
        "Payload bytes of PUBLISH packets from clients.";
    publishes_sent: Counter "quelea_publishes_sent_total" by QOS,
        "PUBLISH packets to clients, by QoS, counted when they are queued for the socket.";
    publish_bytes_sent: Counter "quelea_publish_sent_bytes_total",
        "Payload bytes of PUBLISH packets to clients.";
    queued: Gauge "quelea_queued_messages",
        "Messages in the queues of sessions. The value is a few seconds old.";
    in_flight: Gauge "quelea_in_flight_messages",
        "Messages sent to clients and not acknowledged yet. The value is a few seconds old.";
    publishes_queued: Counter "quelea_publishes_queued_total",
        "Deliveries that were queued for a session.";
    publishes_unmatched: Counter "quelea_publishes_unmatched_total",
        "Accepted messages without a matching subscription.";
    publishes_denied: Counter "quelea_publishes_denied_total",
        "Publishes that the access rules denied.";
    authorization_questions: Counter "quelea_authorization_questions_total",
        "Publishes, subscriptions and wills that the authorization service was asked about.";
    authorization_allowed: Counter "quelea_authorization_answers_total" ["answer=\"allow\""],
        "the service allowed it";
    authorization_denied: Counter "quelea_authorization_answers_total" ["answer=\"deny\""],
        "the service denied it";
    authorization_ignored: Counter "quelea_authorization_answers_total" ["answer=\"ignore\""],
        "the service did not know";
    authorization_failed: Counter "quelea_authorization_answers_total" ["answer=\"failed\""],
        "the service could not be asked, or gave no valid answer";
    authorization_cache_hits: Counter "quelea_authorization_cache_hits_total",
        "Publishes and subscriptions that a cached answer of the authorization service decided.";
    traceparents_invalid: Counter "quelea_traceparents_invalid_total",
        "Publishes with an invalid traceparent. They are passed on unchanged, without a span.";
    publishes_refused: Counter "quelea_publishes_refused_total",
        "Publishes that were refused because a queue, quota or the memory is full (0x97).";
    stream_messages_unstored: Counter "quelea_stream_messages_unstored_total",
        "Messages without an acknowledgement that a stream did not store: it was full, or the log \
         had no space.";
    dropped_queue_full: Counter "quelea_messages_dropped_total" by QUEUE_FULL,
        "deliveries for which the queue of the session was full, at this limit";
    dropped_slow: Counter "quelea_messages_dropped_total" ["reason=\"slow_subscriber\""],
        "QoS 0 deliveries to a subscriber that reads too slowly";
    dropped_offline: Counter "quelea_messages_dropped_total" ["reason=\"offline\""],
        "QoS 0 deliveries to a session without a connection";
    dropped_expired: Counter "quelea_messages_dropped_total" ["reason=\"expired\""],
        "deliveries of messages that had expired";
    dropped_too_large: Counter "quelea_messages_dropped_total" ["reason=\"too_large\""],
        "deliveries larger than the maximum packet size of the client";
    dropped_denied: Counter "quelea_messages_dropped_total" ["reason=\"denied\""],
        "queued deliveries that the access rules no longer allow";
    dropped_unlogged: Counter "quelea_messages_dropped_total" ["reason=\"log_unavailable\""],
        "QoS 2 deliveries to persistent sessions whose packet IDs could not be logged";
    dropped_group: Counter "quelea_messages_dropped_total" by GROUP,
        "messages of a shared subscription that no member could accept, with the limit of a full \
         queue";
    retained: Gauge "quelea_retained_messages",
        "Retained messages of clients.";
    retained_bytes: Gauge "quelea_retained_bytes",
        "Bytes of retained messages of clients.";
    retained_refused: Counter "quelea_retained_refused_total",
        "Retained messages that were refused because a limit was reached.";
    log_cache_bytes: Gauge "quelea_memory_log_cache_bytes",
        "Memory of the log that no client is charged for: messages that were written or read back recently.";
    wills: Counter "quelea_wills_published_total",
        "Wills that were published.";
    mail_sent: Counter "quelea_mail_sent_total",
        "Messages that shards sent to other shards.";
    mail_lost: Counter "quelea_mail_lost_total",
        "Messages of QoS 0, and wills beyond 65,536, that were dropped because another cell had no owner.";
    mail_waits: Counter "quelea_mail_waits_total",
        "Times that a publisher was paused until another shard had processed its messages.";
    incoming_waits: Counter "quelea_incoming_waits_total",
        "Times that a connection was paused because no memory was free for its packet.";
    incoming_cuts: Counter "quelea_incoming_cuts_total",
        "Connections that were closed because no memory was free for their packets.";
    memory_cuts: Counter "quelea_memory_cuts_total",
        "Connections closed for lack of memory: their user or address was the largest consumer.";
    holds: Counter "quelea_publisher_holds_total",
        "Times that a publisher was paused because the queue of a subscriber was too long.";
    unread_waits: Counter "quelea_unread_waits_total",
        "Times that a client was paused until it had read more of its unsent data.";
    broadcasts_put_off: Counter "quelea_broadcasts_put_off_total",
        "Publishes whose fan-out was spread over several event-loop iterations.";
    work_waits: Counter "quelea_work_waits_total",
        "Times that a client was deferred because it had used up its work budget.";
    subscriptions_refused: Counter "quelea_subscriptions_refused_total",
        "Topic filters that were refused at a limit of subscriptions.";
    events_lost: Counter "quelea_events_lost_total",
        "Events that were not logged because there were too many at once.";
}

impl Metrics {
    /// A packet other than PUBLISH has arrived, with this first byte.
    #[inline]
    pub(crate) fn count_received(&self, first_byte: u8) {
        let index = RECEIVED_INDEX[usize::from(first_byte >> 4)];
        self.packets_received.count(usize::from(index));
    }

    #[inline]
    pub(crate) fn count_publishes_received(&self, count: u64) {
        self.packets_received.add(0, count);
    }

    #[inline]
    pub(crate) fn count_sent(&self, sent: Sent) {
        self.publishes_sent.count(sent.qos as usize);
        self.publish_bytes_sent.add(sent.payload_bytes as u64);
    }

    /// As many packets as an outbox has counted.
    #[inline]
    pub(crate) fn count_controls(&self, controls: Controls) {
        match controls.only_pubacks() {
            Some(count) => self.controls_sent.add(Control::Puback as usize, count),
            None => self.count_all_controls(controls),
        }
    }

    /// Messages of a shared group were dropped, at a limit of its queue or for another reason.
    pub(crate) fn count_group_dropped(&self, limit: Option<QueueLimit>, count: u64) {
        let other = GROUP.len() - 1;
        self.dropped_group.add(limit.map_or(other, |limit| limit as usize), count);
    }

    fn count_all_controls(&self, controls: Controls) {
        for (index, count) in controls.counts().enumerate().filter(|(_, count)| *count > 0) {
            self.controls_sent.add(index, count);
        }
    }
}

/// In the order of [`QueueLimit::ALL`].
const QUEUE_FULL: [&str; QueueLimit::ALL.len()] = [
    "reason=\"queue_full\",limit=\"queued_messages_max\"",
    "reason=\"queue_full\",limit=\"queued_bytes_max\"",
    "reason=\"queue_full\",limit=\"queues_bytes_max\"",
    "reason=\"queue_full\",limit=\"namespaces.queued_bytes_max\"",
    "reason=\"queue_full\",limit=\"memory_bytes_max\"",
];

/// Those that a group's queue has, in the order of [`QueueLimit::ALL`], and none.
const GROUP: [&str; 3] = [
    "reason=\"shared_group\",limit=\"queued_messages_max\"",
    "reason=\"shared_group\",limit=\"queued_bytes_max\"",
    "reason=\"shared_group\"",
];

const QOS: [&str; 3] = ["qos=\"0\"", "qos=\"1\"", "qos=\"2\""];

/// In the order of `RECEIVED_INDEX`. A connection that sends another type is closed.
const RECEIVED: [&str; 11] = [
    "type=\"publish\"",
    "type=\"puback\"",
    "type=\"pubrec\"",
    "type=\"pubrel\"",
    "type=\"pubcomp\"",
    "type=\"subscribe\"",
    "type=\"unsubscribe\"",
    "type=\"pingreq\"",
    "type=\"disconnect\"",
    "type=\"auth\"",
    "type=\"other\"",
];

/// The label of each packet type of the standard, from 0 on.
const RECEIVED_INDEX: [u8; 16] = [10, 10, 10, 0, 1, 2, 3, 4, 5, 10, 6, 10, 7, 10, 8, 9];

/// In the order of [`Control`].
const SENT: [&str; Control::COUNT] = [
    "type=\"puback\"",
    "type=\"pubrec\"",
    "type=\"pubrel\"",
    "type=\"pubcomp\"",
    "type=\"suback\"",
    "type=\"unsuback\"",
    "type=\"pingresp\"",
    "type=\"other\"",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_of_a_dropped_message_is_a_label() {
        let labels: Vec<&str> = Metrics::descriptions().iter().map(|metric| metric.label).collect();
        for (place, reason) in session::Dropped::ALL.into_iter().enumerate() {
            let limit = reason.limit().map(|limit| format!(",limit=\"{}\"", limit.word()));
            let label = format!("reason=\"{}\"{}", reason.word(), limit.unwrap_or_default());
            assert!(labels.contains(&&*label), "{reason:?}");
            assert_eq!(reason.place(), place);
        }
        for (place, limit) in QueueLimit::ALL.into_iter().enumerate() {
            assert!(QUEUE_FULL[place].contains(limit.word()));
            assert!(place > 1 || GROUP[place].contains(limit.word()));
        }
    }
}
