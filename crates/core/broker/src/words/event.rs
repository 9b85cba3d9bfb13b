//! What happened, for journals, metrics and whoever listens; declared once.

use std::borrow::Cow;

use codec::{Reason, Version, Violation};
use session::{Dropped, QueueLimit};

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The client said DISCONNECT.
    Client(Reason),
    /// The network connection broke or was closed without a DISCONNECT.
    Network,
    /// The client broke the protocol.
    Violation(Violation),
    /// Nothing came for one and a half keep-alives (MQTT-3.1.2-22).
    KeepAlive,
    /// Another connection took the session over (MQTT-3.1.4-3).
    TakenOver,
    /// The queue of the session was full, and the policy is to disconnect.
    QueueFull,
    /// A subscriber had no room, and a 3.1.1 publisher cannot be notified in another way.
    Refused,
    /// There was no room for packets of it under way.
    Crowded,
    /// The broker was short of memory, and the user or address was the largest consumer.
    LargestConsumer {
        /// Of this connection.
        bytes: u64,
        /// Of its user or address in all.
        owner_bytes: u64,
    },
    /// The journal is out of service, and can keep no promise any more.
    JournalFailed,
    /// Another cell had a new owner, and may have delivered a QoS 2 message of this publisher.
    CellLost,
    /// The journal could not take the session, and the CONNACK has said so.
    NotKept,
    /// The broker is stopping.
    Shutdown,
    /// An operator ended it.
    Administrative,
    /// Not even the CONNACK fits the client's maximum packet size (MQTT-3.1.2-24).
    PacketLimitTooLow,
    /// Re-authentication failed.
    NotAuthorized,
    /// A PUBLISH or SUBSCRIBE was denied ([`crate::Settings::denied_ends`]).
    Denied,
    /// The credential that it logged in with has ended.
    CredentialExpired,
    /// Who vouched for it has taken that back ([`policy::Revocation`]).
    CredentialRevoked,
    /// It is on the list of bans now.
    Banned,
}

impl Ended {
    /// The `reason` of journals and events; that of a violation is its reason code.
    pub fn word(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Client(_) => "client_disconnect",
            Self::Network => "connection_lost",
            Self::Violation(violation) => return violation.reason.word().into(),
            Self::KeepAlive => "keep_alive_timeout",
            Self::TakenOver => "session_taken_over",
            Self::QueueFull => "queue_full",
            Self::Refused => "publish_refused",
            Self::Crowded => "memory_full",
            Self::LargestConsumer { .. } => "largest_consumer",
            Self::JournalFailed | Self::NotKept => "log_unavailable",
            Self::CellLost => "cell_lost",
            Self::Shutdown => "server_shutting_down",
            Self::Administrative => "administrative_action",
            Self::PacketLimitTooLow => "packet_too_large",
            Self::NotAuthorized => "not_authorized",
            Self::Denied => "access_denied",
            Self::CredentialExpired => "credential_expired",
            Self::CredentialRevoked => "credential_revoked",
            Self::Banned => "banned",
        })
    }

    /// The reason code for the client.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Client(reason) => *reason,
            Self::Network => Reason::UNSPECIFIED_ERROR,
            Self::Violation(violation) => violation.reason,
            Self::KeepAlive => Reason::KEEP_ALIVE_TIMEOUT,
            Self::TakenOver => Reason::SESSION_TAKEN_OVER,
            Self::QueueFull | Self::Refused | Self::Crowded | Self::LargestConsumer { .. } => {
                Reason::QUOTA_EXCEEDED
            }
            Self::JournalFailed => Reason::IMPLEMENTATION_SPECIFIC_ERROR,
            Self::NotKept => Reason::SERVER_UNAVAILABLE,
            Self::CellLost | Self::Shutdown => Reason::SERVER_SHUTTING_DOWN,
            // 0x8A, banned, is for the CONNACK only (section 2.4).
            Self::Administrative | Self::Banned => Reason::ADMINISTRATIVE_ACTION,
            Self::PacketLimitTooLow => Reason::PACKET_TOO_LARGE,
            Self::NotAuthorized
            | Self::Denied
            | Self::CredentialExpired
            | Self::CredentialRevoked => Reason::NOT_AUTHORIZED,
        }
    }
}

/// The filters of one packet, or of a part of it: so many as are reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedFilters {
    /// With the granted QoS.
    pub filters: Vec<(Box<str>, u8)>,
    /// How many there were.
    pub count: u32,
}

impl ReportedFilters {
    /// Filters of one event, and their bytes; the others are counted. The first is always reported.
    const FILTERS_MAX: usize = 16;
    const BYTES_MAX: usize = 4 * 1024;

    pub(crate) fn add(&mut self, filter: &str, qos: u8) {
        self.count += 1;
        let bytes =
            self.filters.iter().map(|(reported, _)| reported.len()).sum::<usize>() + filter.len();
        let has_room = self.filters.len() < Self::FILTERS_MAX && bytes <= Self::BYTES_MAX;
        if has_room || self.filters.is_empty() {
            self.filters.push((filter.into(), qos));
        }
    }
}

/// One observable fact. Cheap facts of every message are counters, not events.
#[derive(Clone, Debug)]
pub enum Event {
    Connected {
        client_id: Box<str>,
        username: Option<Box<str>>,
        peer: Box<str>,
        version: Version,
        keep_alive_secs: u16,
        session_present: bool,
        /// Higher than that of any connection of the client before, also of earlier processes.
        sequence: u64,
    },
    Disconnected {
        client_id: Box<str>,
        username: Option<Box<str>>,
        peer: Box<str>,
        ended: Ended,
        /// That of the connection when it began.
        sequence: u64,
        /// How long its session outlives it; 0: it ends with it.
        session_expiry_secs: u32,
    },
    /// Filters were subscribed; this and the next only while somebody is told
    /// ([`crate::Shared::set_reports_subscriptions`]).
    Subscribed {
        client_id: Box<str>,
        username: Option<Box<str>>,
        peer: Box<str>,
        filters: ReportedFilters,
    },
    Unsubscribed {
        client_id: Box<str>,
        username: Option<Box<str>>,
        peer: Box<str>,
        filters: ReportedFilters,
    },
    /// Deliveries to a session were dropped. This and the next three come at most once a second per
    /// client and kind, with the number since.
    Dropped {
        client_id: Box<str>,
        reason: Dropped,
        count: u64,
    },
    /// A publish, subscription or will was not allowed; topic and rule are those of the first.
    Denied {
        client_id: Box<str>,
        username: Option<Box<str>>,
        /// Empty once the connection is gone.
        peer: Box<str>,
        action: &'static str,
        topic: Box<str>,
        rule: Box<str>,
        count: u64,
    },
    /// A publish was refused for lack of room; the topic is that of the first.
    Refused {
        client_id: Box<str>,
        username: Option<Box<str>>,
        /// Empty once the connection is gone.
        peer: Box<str>,
        topic: Box<str>,
        count: u64,
    },
    /// Filters were refused because the client has, or asks for, more than it may; the filter is
    /// the first.
    TooManySubscriptions {
        client_id: Box<str>,
        username: Option<Box<str>>,
        /// Empty once the connection is gone.
        peer: Box<str>,
        filter: Box<str>,
        count: u64,
    },
    /// Somebody has connected with the client id of a session that is another user's, and was
    /// refused.
    Stranger {
        client_id: Box<str>,
        username: Option<Box<str>>,
        peer: Box<str>,
    },
    /// A session was refused that would exceed the share of its owner: [`crate::Ledger`].
    SessionRefused {
        client_id: Box<str>,
        username: Option<Box<str>>,
        peer: Box<str>,
    },
    SessionExpired {
        client_id: Box<str>,
        username: Option<Box<str>>,
    },
    /// An operator has ended a session, with all that waited for it.
    SessionPurged {
        client_id: Box<str>,
        username: Option<Box<str>>,
    },
    /// Retained messages were not kept: the limit is reached. This, the next and that of groups
    /// come at most once a second per shard and, of groups, per group, with the number since.
    RetainedRefused {
        topic: Box<str>,
        count: u64,
    },
    /// The journal could not be read where a waiting message stands; it is tried again.
    JournalUnreadable {
        shard: crate::ShardId,
        fault: storage::Fault,
        count: u64,
    },
    /// A session that is to outlive its connection could not be written into the journal: refused.
    NotKept {
        client_id: Box<str>,
        error: storage::AppendError,
    },
    /// The will of a session could not be written into the journal: it is lost with the process.
    WillNotKept {
        client_id: Box<str>,
        error: storage::AppendError,
    },
    /// Messages of a shared group were dropped.
    GroupDropped {
        group: Box<str>,
        /// Of its queue, if that was full.
        limit: Option<QueueLimit>,
        count: u64,
    },
}
