//! Counters of one shard: written by one thread, read by any.

use std::sync::atomic::{AtomicU64, Ordering};

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
const FAMILIES: [(&str, &str); 1] =
    [("quelea_messages_dropped_total", "Messages and deliveries that were dropped, by reason.")];

impl Description {
    /// What the name means, whatever the label.
    pub fn family_help(&self) -> &'static str {
        let family = FAMILIES.into_iter().find(|(name, _)| *name == self.name);
        family.map_or(self.help, |(_, help)| help)
    }
}

macro_rules! metrics {
    ($($field:ident: $kind:ident $name:literal $([$label:literal])?, $help:literal;)*) => {
        /// All counters of a shard.
        #[derive(Debug, Default)]
        #[repr(align(128))] // Own cache lines: shards do not slow each other down.
        pub struct Metrics {
            $(#[doc = $help] pub $field: Counter,)*
        }

        impl Metrics {
            /// What each metric is, in the order of [`Metrics::values`].
            pub const DESCRIPTIONS: &'static [Description] = &[
                $(Description {
                    name: $name,
                    label: concat!("", $($label)?),
                    kind: MetricType::$kind,
                    help: $help,
                },)*
            ];

            /// The present values.
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$field.value(),)*]
            }
        }
    };
}

metrics! {
    connections: Gauge "quelea_connections",
        "Connected clients.";
    connections_opened: Counter "quelea_connections_opened_total",
        "Connections that were accepted with a successful CONNACK.";
    connections_closed: Counter "quelea_connections_closed_total",
        "Accepted connections that ended.";
    takeovers: Counter "quelea_session_takeovers_total",
        "Connections that were closed because another one took over the session.";
    strangers: Counter "quelea_session_owner_refusals_total",
        "Connects that were refused because the session belongs to another user.";
    keep_alive_timeouts: Counter "quelea_keep_alive_timeouts_total",
        "Connections that were closed because nothing came for one and a half keep-alives.";
    credentials_expired: Counter "quelea_credentials_expired_total",
        "Connections that were closed because the credential of their log-in had ended.";
    banned_cut: Counter "quelea_banned_disconnects_total",
        "Connections that were closed because a ban came into force.";
    violations: Counter "quelea_protocol_violations_total",
        "Connections that were closed because the client broke the protocol.";
    sessions: Gauge "quelea_sessions",
        "Sessions, connected or not.";
    sessions_refused: Counter "quelea_sessions_refused_total",
        "Connects refused because their user or address uses too much for sessions and wills.";
    sessions_expired: Counter "quelea_sessions_expired_total",
        "Sessions that ended because their expiry interval ran out.";
    subscriptions: Gauge "quelea_subscriptions",
        "Subscriptions of all sessions, shared ones included.";
    shared_subscriptions: Gauge "quelea_shared_subscriptions",
        "Shared subscriptions of all sessions.";
    packets_received: Counter "quelea_packets_received_total",
        "Packets of any kind from clients.";
    controls_sent: Counter "quelea_control_packets_sent_total",
        "Packets other than PUBLISH to clients, counted when they are written to the connection.";
    bytes_received: Counter "quelea_received_bytes_total",
        "Bytes of MQTT packets from clients.";
    bytes_sent: Counter "quelea_sent_bytes_total",
        "Bytes of MQTT packets to clients.";
    publishes_received: Counter "quelea_publishes_received_total",
        "PUBLISH packets from clients.";
    publish_bytes_received: Counter "quelea_publish_received_bytes_total",
        "Payload bytes of PUBLISH packets from clients.";
    publishes_sent: Counter "quelea_publishes_sent_total",
        "PUBLISH packets to clients, counted when they join the bytes to be sent.";
    publish_bytes_sent: Counter "quelea_publish_sent_bytes_total",
        "Payload bytes of PUBLISH packets to clients.";
    queued: Gauge "quelea_queued_messages",
        "Messages in the queues of sessions. Sessions are counted in turns: a few seconds old.";
    in_flight: Gauge "quelea_in_flight_messages",
        "Messages sent to clients and not acknowledged yet. Sessions are counted in turns.";
    publishes_queued: Counter "quelea_publishes_queued_total",
        "Deliveries that had to wait in the queue of a session.";
    publishes_unmatched: Counter "quelea_publishes_unmatched_total",
        "Accepted messages for which there was no subscription.";
    publishes_denied: Counter "quelea_publishes_denied_total",
        "Publishes that the access rules did not allow.";
    publishes_refused: Counter "quelea_publishes_refused_total",
        "Publishes that were refused for lack of room (0x97, quota exceeded).";
    dropped_queue_full: Counter "quelea_messages_dropped_total" ["reason=\"queue_full\""],
        "deliveries for which the queue of the session was full";
    dropped_slow: Counter "quelea_messages_dropped_total" ["reason=\"slow_subscriber\""],
        "QoS 0 deliveries to a subscriber that reads too slowly";
    dropped_offline: Counter "quelea_messages_dropped_total" ["reason=\"offline\""],
        "QoS 0 deliveries to a session without a connection";
    dropped_expired: Counter "quelea_messages_dropped_total" ["reason=\"expired\""],
        "deliveries of messages that had expired";
    dropped_too_large: Counter "quelea_messages_dropped_total" ["reason=\"too_large\""],
        "deliveries in packets larger than the client takes";
    dropped_denied: Counter "quelea_messages_dropped_total" ["reason=\"denied\""],
        "queued deliveries that the access rules no longer allow";
    dropped_unlogged: Counter "quelea_messages_dropped_total" ["reason=\"log_unavailable\""],
        "QoS 2 deliveries to persistent sessions whose packet ids the log could not take";
    dropped_group: Counter "quelea_messages_dropped_total" ["reason=\"shared_group\""],
        "messages of a shared subscription that no member could take and its queue had no room for";
    retained: Gauge "quelea_retained_messages",
        "Retained messages of clients.";
    retained_bytes: Gauge "quelea_retained_bytes",
        "Bytes of retained messages of clients.";
    retained_refused: Counter "quelea_retained_refused_total",
        "Retained messages that were refused because a limit was reached.";
    wills: Counter "quelea_wills_published_total",
        "Wills that were published.";
    mail_sent: Counter "quelea_mail_sent_total",
        "Messages between shards.";
    mail_waits: Counter "quelea_mail_waits_total",
        "Times that a publisher was paused until another shard had processed what it was sent.";
    incoming_waits: Counter "quelea_incoming_waits_total",
        "Times that a connection was paused until there was memory for its packet.";
    incoming_cuts: Counter "quelea_incoming_cuts_total",
        "Connections that were closed because there was no memory for their packets.";
    memory_cuts: Counter "quelea_memory_cuts_total",
        "Connections closed for lack of memory: their user or address was the largest consumer.";
    holds: Counter "quelea_publisher_holds_total",
        "Times that publishers were paused because the queue of a subscriber was too long.";
    unread_waits: Counter "quelea_unread_waits_total",
        "Times that a client was paused until it had read more of what it was sent.";
    broadcasts_put_off: Counter "quelea_broadcasts_put_off_total",
        "Messages for more subscribers than a turn has time for; the others got them in later ones.";
    work_waits: Counter "quelea_work_waits_total",
        "Times that a client was paused for a turn because it had asked for much.";
    subscriptions_refused: Counter "quelea_subscriptions_refused_total",
        "Filters that were refused because the client has, or asks for, more than it may.";
    events_lost: Counter "quelea_events_lost_total",
        "Events that are missing in the log because too many came at once.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_of_a_dropped_message_is_a_label() {
        let labels: Vec<&str> = Metrics::DESCRIPTIONS.iter().map(|metric| metric.label).collect();
        for reason in session::Dropped::ALL {
            assert!(labels.contains(&&*format!("reason=\"{}\"", reason.word())), "{reason:?}");
        }
    }
}
