//! What the [stand-in](super::StandIn) does wrong.

use std::time::Duration;

use codec::{AckKind, Property, PropertyBuf, QoS, Reason};

/// What the stand-in does wrong. Numbers count deliveries; 0 never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mischief {
    pub lose_every: u64,
    /// Delivers so many, and no more.
    pub lose_after: u64,
    pub duplicate_every: u64,
    /// Sends the second copy so much later.
    pub duplicate_later: Option<Duration>,
    /// Sends a message for a shared group to a second member of it.
    pub share_twice_every: u64,
    /// Delivers nothing to who subscribes after the first message.
    pub forgets_newcomers: bool,
    /// Delivers nothing to who subscribes for so long after the SUBACK.
    pub deaf_after_suback: Option<Duration>,
    /// Whatever goes to the first subscriber is so late.
    pub delays_first: Option<Duration>,
    /// Writes a delivery twice under one number.
    pub repeat_every: u64,
    /// Marks a delivery as one that was sent before.
    pub mark_dup_every: u64,
    /// Writes an acknowledgement of a publisher's packet twice.
    pub acknowledge_twice: Option<AckKind>,
    pub acknowledge_twice_every: u64,
    /// Keeps the last word of a QoS 2 exchange (PUBCOMP) to itself.
    pub uncompleted_every: u64,
    /// Works for so long on each PUBLISH, and reads nothing meanwhile.
    pub work_per_message: Duration,
    /// Delivers so many in a second, and drops what is over it.
    pub deliver_per_sec: u64,
    /// Holds a delivery back until after the next one to the same subscriber.
    pub swap_every: u64,
    pub damage: Option<Damage>,
    pub damage_every: u64,
    /// Does nothing at all for so long, after so many deliveries.
    pub stall: Option<(u64, Duration)>,
    pub refuse: bool,
    /// Holds so many connections, and refuses more (quota exceeded). 0: any number.
    pub connections_max: usize,
    /// Answers so many CONNECTs in a second, and the others when their turn comes. 0: all at once.
    pub connects_per_sec: u64,
    /// So many CONNECTs get no answer, on a connection that stays open.
    pub ignore_connects: u64,
    /// Says that it has a session for everybody, or for who came before.
    pub claims_sessions: bool,
    pub claims_sessions_again: bool,
    /// Says in its CONNACK that it keeps sessions for so many seconds, or that it takes no such
    /// subscriptions or messages; and then behaves as ever.
    pub claims_expiry_secs: Option<u32>,
    pub claims_no: Option<Unavailable>,
    /// Takes SUBSCRIBEs and does not answer them.
    pub ignore_subscribes: bool,
    /// Answers no PINGREQ, as if it stood still.
    pub ignore_pings: bool,
    /// Answers UNSUBSCRIBEs, and goes on delivering.
    pub keeps_subscriptions: bool,
    pub refuse_subscriptions: bool,
    pub answer_garbage: bool,
    /// Sends each message to a client that did not ask for it as well.
    pub misroute: bool,
    /// Sends each message to a client that did not ask for it instead.
    pub misdirect: bool,
    /// Closes all connections and ends after so many messages.
    pub die_after: u64,
    /// Closes the connection of whoever sent this message, and goes on.
    pub hang_up_after: u64,
    /// Grants this QoS at most, and delivers so, as the standard allows.
    pub grants_at_most: Option<QoS>,
    /// Refuses a publisher's QoS 1 message (quota exceeded), and delivers it to nobody.
    pub refuse_every: u64,
    /// Acknowledges nothing until so many QoS 1 messages have come in.
    pub acknowledge_after: u64,
    /// Says of a QoS 1 message that nobody had subscribed to it (0x10), and delivers it.
    pub deny_every: u64,
    /// Grants QoS 2 to everybody.
    pub grants_more: bool,
    /// Takes a PUBREC and does not release the message.
    pub unreleased_every: u64,
    pub retained: RetainedMischief,
    pub will: WillMischief,
    /// Sends a client that comes back its last QoS 2 message again, marked DUP or not.
    pub sends_again: Option<Dup>,
    /// Sends each message to clients that have subscribed to nothing, too.
    pub forces: bool,
    /// Says in its CONNACK that it takes no more than QoS 0, and then behaves as ever.
    pub claims_qos_0: bool,
    /// Says in its CONNACK that it takes no packets above so many bytes. 0: none.
    pub claims_packet_bytes_max: u32,
}

/// What a broker may say that it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    Retain,
    Wildcards,
    Shared,
    Identifiers,
}

/// What becomes of messages that are to be retained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetainedMischief {
    #[default]
    None,
    Forgotten,
    /// The first of a topic stays.
    Stale,
    /// They come without their flag.
    Unmarked,
    Twice,
    /// Whoever subscribes to one topic gets those of all.
    Misrouted,
}

/// What becomes of wills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WillMischief {
    #[default]
    None,
    Forgotten,
    Twice,
    /// They are sent as soon as their client connects.
    Early,
    /// They are sent whatever the client said.
    Always,
    /// They go to a client that did not ask for them as well.
    Misrouted,
}

/// Whether what is sent again says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dup {
    Marked,
    Unmarked,
}

/// What is done to a delivery before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// A bit of the last byte is flipped.
    Payload,
    /// The last byte is missing.
    Shortened,
    /// A byte too many.
    Lengthened,
    /// The last character of the topic is another.
    Topic,
    /// One lower than was agreed, if there is a lower one.
    LowerQos,
    /// Set where it should not be.
    RetainFlag,
    /// A bit of the due time in the stamp.
    DueTime,
    /// The highest byte of the number in the stream.
    Sequence,
    /// QoS 2, whatever was agreed.
    HigherQos,
    /// User properties are dropped.
    UserProperties,
    /// A content type that nobody sent.
    ContentType,
    /// Another byte in the correlation data.
    Correlation,
    /// An hour more than was sent, or a second.
    Expiry,
    LongerExpiry,
    /// A subscription identifier that nobody gave, or the right one twice.
    Identifier,
    IdentifierTwice,
    /// A topic alias that the client does not allow.
    Alias,
}

impl Damage {
    pub(super) fn hurt(self, topic: &mut String, payload: &mut Vec<u8>) {
        let flip = |payload: &mut Vec<u8>, at: usize, bits: u8| {
            if let Some(byte) = payload.get_mut(at) {
                *byte ^= bits;
            }
        };
        match self {
            Self::Payload => flip(payload, payload.len().saturating_sub(1), 0x10),
            Self::Shortened => {
                payload.pop();
            }
            Self::Lengthened => payload.push(b'!'),
            Self::Topic => {
                let last = topic.pop().and_then(|last| last.to_digit(10)).unwrap_or(0);
                topic.push_str(&((last + 1) % 10).to_string());
            }
            Self::DueTime => flip(payload, STAMP_DUE_AT, 0x01),
            Self::Sequence => flip(payload, STAMP_SEQUENCE_AT, 0xFF),
            _ => {}
        }
    }
}

impl Mischief {
    /// Whether a client's will is over once it says that it goes, and why.
    pub(super) fn forgets_will(&self, reason: Reason) -> bool {
        reason != Reason::DISCONNECT_WITH_WILL && self.will != WillMischief::Always
    }

    /// Whether the CONNACK says that there is a session of a client that is known or not.
    pub(super) fn claims_session(&self, is_known: bool) -> bool {
        self.claims_sessions || (self.claims_sessions_again && is_known)
    }

    /// What the CONNACK says.
    pub(super) fn claims(&self) -> PropertyBuf {
        let mut claims = PropertyBuf::new();
        if self.claims_qos_0 {
            claims.push(Property::QosMax(0));
        }
        if self.claims_packet_bytes_max > 0 {
            claims.push(Property::PacketBytesMax(self.claims_packet_bytes_max));
        }
        if let Some(secs) = self.claims_expiry_secs {
            claims.push(Property::SessionExpirySecs(secs));
        }
        match self.claims_no {
            Some(Unavailable::Retain) => claims.push(Property::RetainAvailable(false)),
            Some(Unavailable::Wildcards) => claims.push(Property::WildcardAvailable(false)),
            Some(Unavailable::Shared) => claims.push(Property::SharedAvailable(false)),
            Some(Unavailable::Identifiers) => claims.push(Property::SubscriptionIdAvailable(false)),
            None => &mut claims,
        };
        claims
    }
}

/// Where the stamp has the middle of the due time, and the highest byte of the number: see
/// `engine/stamp.rs`.
const STAMP_DUE_AT: usize = 5;
const STAMP_SEQUENCE_AT: usize = 12;
