//! What an operator may set: limits and what is offered to clients.

use codec::{QoS, Reason, Violation};
use session::{Overflow, QueueLimits, Rate};
use topic::TopicLimits;

/// How firmly a message, or the session it is assigned to, is kept before its acknowledgement
/// leaves. What each level promises stands in `docs/use/durability.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// In memory only: the end of the process loses it.
    Memory,
    /// Handed to the operating system: survives the end of the process, not a loss of power.
    Disk,
    /// Synced to the medium: survives a loss of power.
    #[default]
    Fsync,
    /// Synced by a majority of the machines of a cluster: survives the loss of one.
    Quorum,
}

/// What happens to publishes that must be kept while the disk has no space for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// ReportedFilters 0x97 (MQTT 5), or the connection is closed (3.1.1); the client sends them
    /// again.
    #[default]
    Refuse,
    /// Their connections are not read until space returns.
    Wait,
}

/// Limits of the connections of one listener. Shared by all its connections.
///
/// Every limit has a policy; it stands with the limit.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The listener that they are of; empty: that of an earlier process.
    pub listener: Box<str>,
    /// Larger packets: DISCONNECT 0x95 and close (MQTT-3.1.2-24 for the other direction).
    pub packet_bytes_max: u32,
    /// Longer or deeper topics: refused with 0x90 or 0x8F.
    pub topic: TopicLimits,
    /// Of the first packet, and of AUTH before the CONNACK.
    pub connect_bytes_max: u32,
    pub username_bytes_max: u16,
    pub password_bytes_max: u16,
    /// Longer client ids: CONNACK 0x85.
    pub client_id_bytes_max: u16,
    /// The longest client id of MQTT 3.1, in characters: 23 by its specification.
    pub client_id_v31_chars_max: u16,
    /// Larger wills: CONNACK 0x95.
    pub will_payload_bytes_max: u16,
    /// With topic and properties; the same.
    pub will_bytes_max: u32,
    /// Of a publish: refused with 0x97. Of a will: CONNACK 0x95.
    pub properties_bytes_max: u32,
    /// Of the subscriptions of one client, as `check_filter` counts them: SUBACK 0x97.
    pub subscription_bytes_max: u32,
    /// More subscriptions: SUBACK 0x97.
    pub subscriptions_per_client_max: u32,
    /// More shared subscriptions: SUBACK 0x97. Each message that one matches is a delivery.
    pub shared_subscriptions_per_client_max: u32,
    /// More filters in a SUBSCRIBE: those behind them SUBACK 0x97. Requests of more than a KiB for
    /// each: DISCONNECT 0x95.
    pub filters_per_packet_max: u32,
    /// Unacknowledged publishes towards a client; more wait in its queue.
    pub in_flight_max: u16,
    /// Unacknowledged publishes from a client; more: DISCONNECT 0x93 (MQTT 5).
    pub receive_max: u16,
    /// Topic aliases a client may set; more: DISCONNECT 0x94.
    pub alias_in_max: u16,
    /// Topic aliases we set towards a client; more topics are sent by name.
    pub alias_out_max: u16,
    /// What may wait for one session.
    pub queue: QueueLimits,
    /// Unsent bytes above which QoS 0 is dropped and others wait in the queue.
    pub outbox_bytes_max: u32,
    /// Longer session expiry intervals are reduced to this, which the client gets (MQTT 5).
    pub session_expiry_max_secs: u32,
    /// What clean session 0 of a 3.1 or 3.1.1 client means. `u32::MAX`: never expires.
    pub session_expiry_v3_secs: u32,
    /// Longer message expiry intervals are cut to this, messages without one get it. 0: no limit.
    pub message_expiry_max_secs: u32,
    /// Longer keep-alives, and none, are replaced by this, which the client gets (MQTT 5). 0: no
    /// limit.
    pub keep_alive_max_secs: u16,
    /// The keep-alive for MQTT 5 clients that ask for none. 0: none.
    pub keep_alive_default_secs: u16,
    /// Longer will delays are cut to this.
    pub will_delay_max_secs: u32,
    /// Publishes above: DISCONNECT 0x9B; subscriptions above are granted this much.
    pub qos_max: QoS,
    /// False: retained publishes end in DISCONNECT 0x9A.
    pub retain_available: bool,
    /// False: wildcard filters end in SUBACK 0xA2.
    pub wildcard_available: bool,
    /// False: shared subscriptions end in SUBACK 0x9E.
    pub shared_available: bool,
    /// False: subscription identifiers end in DISCONNECT 0xA1.
    pub subscription_ids_available: bool,
    /// What one connection may send; above it, its socket is read later.
    pub message_rate: Rate,
    pub byte_rate: Rate,
    /// How firmly sessions and messages that come through this listener are kept. Without a journal
    /// everything is kept in memory.
    pub durability: Durability,
}

/// What a filter may take on average in a request of as many as there may be, and what a request
/// may take in any case.
const REQUEST_FILTER_BYTES: usize = 1024;
const REQUEST_BYTES_MIN: usize = 128 * 1024;

impl Limits {
    /// Does this begin a packet that is longer than anything but a PUBLISH need be? It is checked
    /// whole, and again whenever a part of it is done.
    pub(crate) fn too_long_request(&self, bytes: &[u8]) -> Option<Violation> {
        const PUBLISH: u8 = 3;
        let packet_len = codec::packet_len(bytes).ok().flatten()?;
        let filters_bytes = self.filters_per_packet_max as usize * REQUEST_FILTER_BYTES;
        let is_publish = bytes.first().is_some_and(|first| first >> 4 == PUBLISH);
        (!is_publish && packet_len > filters_bytes.max(REQUEST_BYTES_MIN)).then_some(Violation {
            reason: Reason::PACKET_TOO_LARGE,
            clause: "",
            detail: "SUBSCRIBE or UNSUBSCRIBE with more than 1 KiB for each filter",
        })
    }

    /// The message expiry interval in force for one that was `asked` for.
    pub(crate) fn message_expiry_secs(&self, asked: Option<u32>) -> Option<u32> {
        match (asked, self.message_expiry_max_secs) {
            (asked, 0) => asked,
            (None, max) => Some(max),
            (Some(secs), max) => Some(secs.min(max)),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            listener: Box::default(),
            packet_bytes_max: 16 * 1024 * 1024,
            topic: TopicLimits::default(),
            connect_bytes_max: 128 * 1024,
            username_bytes_max: 1024,
            password_bytes_max: 16 * 1024,
            client_id_bytes_max: u16::MAX,
            client_id_v31_chars_max: u16::MAX,
            will_payload_bytes_max: u16::MAX,
            will_bytes_max: u32::MAX,
            properties_bytes_max: u32::MAX,
            subscription_bytes_max: u32::MAX,
            subscriptions_per_client_max: 100_000,
            shared_subscriptions_per_client_max: 100_000,
            filters_per_packet_max: 100_000,
            in_flight_max: 1000,
            receive_max: 1000,
            alias_in_max: 32,
            alias_out_max: 32,
            queue: QueueLimits {
                messages_max: 100_000,
                bytes_max: 256 * 1024 * 1024,
                overflow: Overflow::DropOldest,
                keeps_qos0: false,
            },
            outbox_bytes_max: 1024 * 1024,
            session_expiry_max_secs: u32::MAX,
            session_expiry_v3_secs: u32::MAX,
            message_expiry_max_secs: 0,
            keep_alive_max_secs: 0,
            keep_alive_default_secs: 0,
            will_delay_max_secs: u32::MAX,
            qos_max: QoS::ExactlyOnce,
            retain_available: true,
            wildcard_available: true,
            shared_available: true,
            subscription_ids_available: true,
            message_rate: Rate::default(),
            byte_rate: Rate::default(),
            durability: Durability::default(),
        }
    }
}

/// How a shared subscription chooses the member that gets a message, among those that can take one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShareStrategy {
    Random,
    #[default]
    RoundRobin,
    LeastInFlight,
    /// The same member for as long as it can take messages.
    Sticky,
    /// The member is chosen by the publishing client.
    HashClient,
    /// The member is chosen by the topic.
    HashTopic,
}

/// Who may go on with a session, end it by a clean start, or take its connection over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionOwner {
    /// Who made it, by the user name. All clients without one are one user.
    User {
        /// Nobody comes without a user name any more: what was made without one is for the first
        /// who knows its client id.
        may_adopt: bool,
    },
    /// Whoever knows its client id.
    Anybody,
}

impl SessionOwner {
    /// Is a session that was made by `owner` also that of this user?
    pub(crate) fn admits(self, owner: Option<&str>, username: Option<&str>) -> bool {
        let (owner, username) = (owner.unwrap_or_default(), username.unwrap_or_default());
        match self {
            Self::User { may_adopt } => owner == username || may_adopt && owner.is_empty(),
            Self::Anybody => true,
        }
    }
}

impl Default for SessionOwner {
    fn default() -> Self {
        Self::User { may_adopt: false }
    }
}

/// Settings of the whole broker.
#[derive(Clone, Debug)]
pub struct Settings {
    pub session_owner: SessionOwner,
    /// Retained messages in all; more: refused with 0x97, counted, reported in an event.
    pub retained_messages_max: u64,
    /// Bytes of retained messages in all; the same policy.
    pub retained_bytes_max: u64,
    /// Of these, one owner's: the user, or the address of clients without a name. None: as much as
    /// it leaves to others. What was retained before a start is nobody's.
    pub retained_bytes_per_owner_max: Option<u64>,
    /// Bytes in the queues of all sessions, of which one owner has half at most, one of many less.
    /// Beyond its part a queue is as if full.
    pub queues_bytes_max: u64,
    /// Bytes of all sessions with their wills and subscriptions, parted likewise. Beyond: CONNACK
    /// or SUBACK 0x97. A session that there is can always be resumed.
    pub sessions_bytes_max: u64,
    /// Bytes that may wait in connections, once they are counted
    /// ([`crate::Shard::on_memory_look`]). Policy: no more than a little is kept for a connection
    /// that does not read.
    pub unsent_bytes_max: u64,
    pub share_strategy: ShareStrategy,
    /// What may wait for one shared group that has no member able to take a message.
    pub share_queue: QueueLimits,
    /// Is [`Overflow::Reject`] in use anywhere? Then publishers of QoS 1 and 2 wait for the word of
    /// every shard that has a matching subscriber.
    pub rejects: bool,
    /// Filters whose messages are kept at a level of their own, whatever their listener says. The
    /// first that matches holds.
    pub topic_durability: Vec<(Box<str>, Durability)>,
    pub when_full: WhenFull,
    /// Bytes of messages that all other shards together may have mailed to a shard before it has
    /// dealt with them, at QoS 1 and 2 a quarter of those above 2 KiB, 32 KiB at most; each has an
    /// equal part of it. Above that part, publishers of more are not read until it has.
    pub mail_bytes_max: u64,
    /// What one client may ask for in a turn, and all mail together, in units of work
    /// (`crates/core/broker/src/parts/work.rs`). 1 at least.
    pub turn_units: u32,
    /// How long the will of a session that ended with its connection waits for its client after a
    /// start.
    pub will_grace_ms: u64,
    /// How the answers of an authorization service are taken. None: there is none.
    pub service: Option<ServiceSettings>,
    /// A PUBLISH or SUBSCRIBE that is denied ends its connection (0x87).
    pub denied_ends: bool,
    /// None: messages get no spans.
    pub spans: Option<SpanSettings>,
}

impl Settings {
    /// How firmly messages of a topic are kept that come through a listener of this level, as a
    /// number that messages carry.
    pub(crate) fn level_of(&self, topic: &str, listener: Durability) -> u8 {
        let rule = self.topic_durability.iter().find(|(filter, _)| topic::matches(filter, topic));
        rule.map_or(listener, |(_, level)| *level) as u8
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            session_owner: SessionOwner::default(),
            retained_messages_max: 10_000_000,
            retained_bytes_max: 4 * 1024 * 1024 * 1024,
            retained_bytes_per_owner_max: None,
            queues_bytes_max: u64::MAX,
            sessions_bytes_max: u64::MAX,
            unsent_bytes_max: u64::MAX,
            share_strategy: ShareStrategy::default(),
            share_queue: Limits::default().queue,
            rejects: false,
            topic_durability: Vec::new(),
            when_full: WhenFull::default(),
            mail_bytes_max: MAIL_BYTES_MAX,
            turn_units: TURN_UNITS,
            will_grace_ms: WILL_GRACE_MS,
            service: None,
            denied_ends: false,
            spans: None,
        }
    }
}

/// The default of [`Settings::mail_bytes_max`], and the most that is worth it: a turn's work, which
/// the caches hold. More makes turns longer, and what lies in mailboxes is memory.
pub const MAIL_BYTES_MAX: u64 = 768 * 1024;

/// No [`Limits::outbox_bytes_max`] is below it: an outbox with less is not full.
pub(crate) const OUTBOX_BYTES_MIN: usize = 1024;

/// The default of [`Settings::will_grace_ms`].
const WILL_GRACE_MS: u64 = 10_000;

/// The default of [`Settings::turn_units`]: some 3 ms.
pub const TURN_UNITS: u32 = 25_000;

/// How messages are sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanSettings {
    /// Of a million messages without a `traceparent`, the number that begins a trace.
    pub sampled_per_million: u32,
}

/// How answers are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSettings {
    /// Answers that are remembered for one client; beyond them the oldest is forgotten. 0: none.
    pub entries_max: u16,
    /// For so long.
    pub holds_ms: u64,
    /// What holds where the service does not know.
    pub no_match_allows: bool,
}
