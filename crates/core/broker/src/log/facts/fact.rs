//! The facts, and how each is written and read.

use codec::{QoS, Version};

use crate::log::facts::list::{InFlight, Progress};
use crate::log::facts::streamed::{Archived, Streamed};
use crate::log::facts::wire::{
    Reader, put_bytes, put_fixed, put_number, put_queue, put_queue_if_any,
};
use crate::words::queue_number::QueueNumber;
use crate::words::wire::Unreadable;

/// One fact of a shard's durable state. Times are milliseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fact<'a> {
    /// A session exists. Written again when a connect changes what it says.
    SessionOpened(SessionOpened<'a>),
    /// Its connection ended: from now on its expiry and its will's delay run.
    SessionDetached {
        session: QueueNumber,
        at_ms: u64,
        expiry_secs: u32,
    },
    /// It expired, or a clean start discarded it; with it all its facts are void.
    SessionEnded {
        session: QueueNumber,
    },
    Subscribed(Subscribed<'a>),
    Unsubscribed {
        session: QueueNumber,
        filter: &'a str,
    },
    /// What a subscription was before its options changed, while something was due by it. Only
    /// earlier versions have written it.
    Formerly(Subscribed<'a>),
    /// A message that is assigned to at least one queue of this shard.
    Message(StoredMessage<'a>),
    Progress(Progress<'a>),
    InFlight(InFlight<'a>),
    /// A QoS 2 publish with this packet id was taken on as message `serial` (0: nobody wanted it).
    Received {
        session: QueueNumber,
        packet_id: u16,
        serial: u64,
    },
    /// Its PUBREL came: the packet id means nothing any more.
    Released {
        session: QueueNumber,
        packet_id: u16,
    },
    /// The retained message of its topic. The serial is that of the publish.
    Retained(StoredMessage<'a>),
    RetainedCleared {
        /// As a key, like those of messages.
        topic: &'a str,
    },
    /// The session's will, to be published when it is detached long enough.
    Will(StoredWill<'a>),
    /// Withdrawn by an orderly disconnect, or published without a recipient.
    WillCleared {
        session: QueueNumber,
    },
    /// A shared subscription with a persistent member: it has a queue of its own.
    GroupOpened(GroupOpened<'a>),
    GroupClosed {
        queue: QueueNumber,
    },
    /// [`Fact::Received`] and its [`Fact::Message`] in one record, so that none is without the
    /// other.
    Taken {
        session: QueueNumber,
        packet_id: u16,
        message: StoredMessage<'a>,
    },
    /// [`Fact::WillCleared`] and its [`Fact::Message`] in one record: the will is published, and
    /// on its way to its recipients. No session: it was cleared before.
    WillTaken {
        session: Option<QueueNumber>,
        message: StoredMessage<'a>,
    },
    /// As [`Fact::Received`], of a retained publish: an older one of its client has come again
    /// since, and stands in its place. It is retained anew when it comes again, too.
    Undone {
        session: QueueNumber,
        packet_id: u16,
        serial: u64,
    },
    /// A message that streams have.
    Streamed(Streamed<'a>),
    /// Files have the first records of a stream. Each file has its newest fact; that of file 0
    /// stands for those that were deleted.
    Archived(Archived),
    /// How far a consumer is, as the owner of streams writes it.
    Cursor {
        consumer: u32,
        cursor: &'a [u8],
    },
}

/// What a session is, apart from its subscriptions and queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionOpened<'a> {
    /// Its queue number.
    pub session: QueueNumber,
    pub version: Version,
    pub opened_at_ms: u64,
    /// `u32::MAX`: never.
    pub expiry_secs: u32,
    /// As a key, with its scope ([`crate::Name::key`]).
    pub client_id: &'a str,
    /// Who may resume it; empty when anonymous.
    pub username: &'a str,
}

/// One subscription of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subscribed<'a> {
    pub session: QueueNumber,
    /// The options byte of SUBSCRIBE, and [`Subscribed::OWED`].
    pub options: u8,
    /// 0: none.
    pub identifier: u32,
    /// In [`Fact::Subscribed`], messages up to this serial are none of its business. In
    /// [`Fact::Formerly`], those behind it are not; those up to it are, back to the change before.
    pub serial: u64,
    /// With `$share/NAME/` before it if it is shared.
    pub filter: &'a str,
}

impl Subscribed<'_> {
    /// A bit of the options, of a subscription at QoS 0: it was at another one when messages came
    /// that are still due.
    pub const OWED: u8 = 0b1000_0000;
}

/// A message as it is kept. One record, however many sessions it is assigned to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredMessage<'a> {
    pub serial: u64,
    /// Where it comes from, when another shard took it on.
    pub origin: Option<Origin>,
    /// The one queue it is assigned to, that of a shared group. None: every session with a matching
    /// subscription.
    pub queue: Option<QueueNumber>,
    pub qos: QoS,
    pub retain: bool,
    /// `u64::MAX`: never.
    pub expires_at_ms: u64,
    /// The owner that is charged: the name of an account. Empty: nobody, or a program from before
    /// this was noted has written it.
    pub owner: &'a str,
    /// Stands for the client ID of the publisher ([`session::MessageParts::author`]). 0: nobody
    /// asks for it, or a program from before this was noted has written it.
    pub author: u64,
    /// As a key.
    pub topic: &'a str,
    /// Raw MQTT 5 properties.
    pub properties: &'a [u8],
    pub payload: &'a [u8],
}

/// Where a message was taken on, and its serial there. Mail between shards keeps its order, so the
/// highest serial seen from a source distinguishes a repetition after a crash from news.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The shard, for a QoS 2 publish; twice the number of shards more for a will.
    pub source: u16,
    pub serial: u64,
}

/// A will as it is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredWill<'a> {
    pub session: QueueNumber,
    pub delay_secs: u32,
    /// The lifetime of the message, from when it is published.
    pub message_expiry_secs: Option<u32>,
    pub qos: QoS,
    pub retain: bool,
    pub topic: &'a str,
    pub properties: &'a [u8],
    pub payload: &'a [u8],
}

/// A shared subscription that is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupOpened<'a> {
    /// Its queue number.
    pub queue: QueueNumber,
    /// Messages up to this serial are none of its business.
    pub from_serial: u64,
    pub name: &'a str,
    /// As a key.
    pub filter: &'a str,
}

/// Bytes that are no fact: the journal's checksums were right, so another program version wrote
/// them, or this one has a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub(super) &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a journal record cannot be read: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

impl From<Unreadable> for Malformed {
    fn from(Unreadable(why): Unreadable) -> Self {
        Self(why)
    }
}

impl<'a> Fact<'a> {
    /// The record kind of this fact: 1 to 127.
    pub fn kind(&self) -> u8 {
        match self {
            Self::SessionOpened(_) => 1,
            Self::SessionDetached { .. } => 2,
            Self::SessionEnded { .. } => 3,
            Self::Subscribed(_) => 4,
            Self::Unsubscribed { .. } => 5,
            Self::Message(_) => 6,
            Self::Progress(_) => 7,
            Self::InFlight(_) => 8,
            Self::Received { .. } => 9,
            Self::Released { .. } => 10,
            Self::Retained(_) => 11,
            Self::RetainedCleared { .. } => 12,
            Self::Will(_) => 13,
            Self::WillCleared { .. } => 14,
            Self::GroupOpened(_) => 15,
            Self::GroupClosed { .. } => 16,
            Self::Taken { .. } => 17,
            Self::WillTaken { .. } => 18,
            Self::Undone { .. } => 19,
            Self::Formerly(_) => 20,
            Self::Streamed(_) => 21,
            Self::Archived(_) => 22,
            Self::Cursor { .. } => 23,
        }
    }

    /// Appends the front of the record to `out`, and returns its rest, which is not copied: a
    /// payload goes from the message into the journal's buffer at once.
    pub fn encode(&self, out: &mut Vec<u8>) -> &'a [u8] {
        match *self {
            Self::SessionOpened(opened) => return opened.encode(out),
            Self::SessionDetached { session, at_ms, expiry_secs } => {
                put_queue(out, session);
                put_number(out, at_ms);
                put_number(out, u64::from(expiry_secs));
            }
            Self::Subscribed(own) | Self::Formerly(own) => return own.encode(out),
            Self::Unsubscribed { session, filter } => {
                put_queue(out, session);
                return filter.as_bytes();
            }
            Self::Message(message) | Self::Retained(message) => return message.encode(out),
            Self::Progress(progress) => return progress.raw(),
            Self::InFlight(in_flight) => return in_flight.raw(),
            Self::Received { session, packet_id, serial }
            | Self::Undone { session, packet_id, serial } => {
                put_queue(out, session);
                put_number(out, u64::from(packet_id));
                put_number(out, serial);
            }
            Self::Released { session, packet_id } => {
                put_queue(out, session);
                put_number(out, u64::from(packet_id));
            }
            Self::RetainedCleared { topic } => return topic.as_bytes(),
            Self::Will(will) => return will.encode(out),
            Self::Taken { session, packet_id, message } => {
                put_queue(out, session);
                put_number(out, u64::from(packet_id));
                return message.encode(out);
            }
            Self::WillTaken { session, message } => {
                put_queue_if_any(out, session);
                return message.encode(out);
            }
            Self::Streamed(streamed) => return streamed.encode(out),
            Self::Archived(archived) => archived.encode(out),
            Self::Cursor { consumer, cursor } => {
                put_number(out, u64::from(consumer));
                return cursor;
            }
            Self::GroupOpened(group) => {
                put_queue(out, group.queue);
                put_number(out, group.from_serial);
                put_bytes(out, group.name.as_bytes());
                return group.filter.as_bytes();
            }
            Self::SessionEnded { session: queue }
            | Self::WillCleared { session: queue }
            | Self::GroupClosed { queue } => put_queue(out, queue),
        }
        &[]
    }

    /// Reads a record of this kind.
    ///
    /// # Errors
    ///
    /// The kind is unknown, or the bytes are not what `encode` writes.
    pub fn decode(kind: u8, bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let fact = match kind {
            1 => Self::SessionOpened(SessionOpened::decode(&mut r)?),
            2 => {
                let (session, at_ms) = (r.queue()?, r.number()?);
                Self::SessionDetached { session, at_ms, expiry_secs: r.number_u32()? }
            }
            3 => Self::SessionEnded { session: r.queue()? },
            4 => Self::Subscribed(Subscribed::decode(&mut r)?),
            5 => Self::Unsubscribed { session: r.queue()?, filter: text(r.rest())? },
            6 => Self::Message(StoredMessage::decode(&mut r)?),
            7 => Self::Progress(Progress::decode(r.rest())?),
            8 => Self::InFlight(InFlight::decode(r.rest())?),
            9 => {
                let (session, packet_id) = (r.queue()?, r.number_u16()?);
                Self::Received { session, packet_id, serial: r.number()? }
            }
            10 => Self::Released { session: r.queue()?, packet_id: r.number_u16()? },
            11 => Self::Retained(StoredMessage::decode(&mut r)?),
            12 => Self::RetainedCleared { topic: text(r.rest())? },
            13 => Self::Will(StoredWill::decode(&mut r)?),
            14 => Self::WillCleared { session: r.queue()? },
            15 => Self::GroupOpened(GroupOpened {
                queue: r.queue()?,
                from_serial: r.number()?,
                name: r.text()?,
                filter: text(r.rest())?,
            }),
            16 => Self::GroupClosed { queue: r.queue()? },
            17 => Self::Taken {
                session: r.queue()?,
                packet_id: r.number_u16()?,
                message: StoredMessage::decode(&mut r)?,
            },
            18 => {
                let session = r.queue_if_any()?;
                Self::WillTaken { session, message: StoredMessage::decode(&mut r)? }
            }
            19 => {
                let (session, packet_id) = (r.queue()?, r.number_u16()?);
                Self::Undone { session, packet_id, serial: r.number()? }
            }
            20 => Self::Formerly(Subscribed::decode(&mut r)?),
            21 => Self::Streamed(Streamed::decode(&mut r)?),
            22 => Self::Archived(Archived::decode(&mut r)?),
            23 => Self::Cursor { consumer: r.number_u32()?, cursor: r.rest() },
            _ => {
                return Err(Malformed(
                    "unknown kind of record: use the newer version that wrote it",
                ));
            }
        };
        Ok(r.end(fact)?)
    }
}

impl<'a> SessionOpened<'a> {
    fn encode(&self, out: &mut Vec<u8>) -> &'a [u8] {
        put_queue(out, self.session);
        out.push(self.version as u8);
        put_number(out, self.opened_at_ms);
        put_number(out, u64::from(self.expiry_secs));
        put_bytes(out, self.client_id.as_bytes());
        self.username.as_bytes()
    }

    fn decode(r: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(Self {
            session: r.queue()?,
            version: match r.byte()? {
                3 => Version::V31,
                4 => Version::V311,
                5 => Version::V5,
                _ => return Err(Malformed("the protocol version is unknown")),
            },
            opened_at_ms: r.number()?,
            expiry_secs: r.number_u32()?,
            client_id: r.text()?,
            username: text(r.rest())?,
        })
    }
}

impl<'a> Subscribed<'a> {
    fn encode(&self, out: &mut Vec<u8>) -> &'a [u8] {
        put_queue(out, self.session);
        out.push(self.options);
        put_number(out, u64::from(self.identifier));
        put_number(out, self.serial);
        self.filter.as_bytes()
    }

    fn decode(r: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(Self {
            session: r.queue()?,
            options: r.byte()?,
            identifier: r.number_u32()?,
            serial: r.number()?,
            filter: text(r.rest())?,
        })
    }
}

impl<'a> StoredMessage<'a> {
    fn encode(&self, out: &mut Vec<u8>) -> &'a [u8] {
        let expires = self.expires_at_ms != u64::MAX;
        out.push(
            self.qos as u8
                | u8::from(self.retain) << 2
                | u8::from(expires) << 3
                | u8::from(self.origin.is_some()) << 4
                | u8::from(self.queue.is_some()) << 5
                | u8::from(!self.owner.is_empty()) << 6
                | u8::from(self.author != 0) << 7,
        );
        put_number(out, self.serial);
        if let Some(queue) = self.queue {
            put_queue(out, queue);
        }
        if expires {
            put_number(out, self.expires_at_ms);
        }
        if let Some(origin) = self.origin {
            put_number(out, u64::from(origin.source));
            put_number(out, origin.serial);
        }
        if !self.owner.is_empty() {
            put_bytes(out, self.owner.as_bytes());
        }
        if self.author != 0 {
            put_fixed(out, self.author);
        }
        put_bytes(out, self.topic.as_bytes());
        put_bytes(out, self.properties);
        self.payload
    }

    fn decode(r: &mut Reader<'a>) -> Result<Self, Malformed> {
        let flags = r.byte()?;
        let serial = r.number()?;
        let queue = if flags & 32 == 0 { None } else { Some(r.queue()?) };
        let expires_at_ms = if flags & 8 == 0 { u64::MAX } else { r.number()? };
        if flags & 8 != 0 && expires_at_ms == u64::MAX {
            return Err(Malformed("a message without expiry has an expiry time"));
        }
        let origin = match flags & 16 {
            0 => None,
            _ => Some(Origin { source: r.number_u16()?, serial: r.number()? }),
        };
        let owner = if flags & 64 == 0 { "" } else { r.text()? };
        if flags & 64 != 0 && owner.is_empty() {
            return Err(Malformed("a message has an owner without a name"));
        }
        let author = if flags & 128 == 0 { 0 } else { r.fixed()? };
        if flags & 128 != 0 && author == 0 {
            return Err(Malformed("the author of a message is 0"));
        }
        Ok(Self {
            serial,
            origin,
            queue,
            qos: qos(flags & 3)?,
            retain: flags & 4 != 0,
            expires_at_ms,
            owner,
            author,
            topic: r.text()?,
            properties: r.bytes()?,
            payload: r.rest(),
        })
    }
}

impl<'a> StoredWill<'a> {
    fn encode(&self, out: &mut Vec<u8>) -> &'a [u8] {
        let expires = self.message_expiry_secs.is_some();
        out.push(self.qos as u8 | u8::from(self.retain) << 2 | u8::from(expires) << 3);
        put_queue(out, self.session);
        put_number(out, u64::from(self.delay_secs));
        if let Some(secs) = self.message_expiry_secs {
            put_number(out, u64::from(secs));
        }
        put_bytes(out, self.topic.as_bytes());
        put_bytes(out, self.properties);
        self.payload
    }

    fn decode(r: &mut Reader<'a>) -> Result<Self, Malformed> {
        let flags = r.byte()?;
        if flags >> 4 != 0 {
            return Err(Malformed("a will has unknown flags"));
        }
        Ok(Self {
            qos: qos(flags & 3)?,
            retain: flags & 4 != 0,
            session: r.queue()?,
            delay_secs: r.number_u32()?,
            message_expiry_secs: if flags & 8 == 0 { None } else { Some(r.number_u32()?) },
            topic: r.text()?,
            properties: r.bytes()?,
            payload: r.rest(),
        })
    }
}

fn qos(bits: u8) -> Result<QoS, Malformed> {
    match bits {
        0 => Ok(QoS::AtMostOnce),
        1 => Ok(QoS::AtLeastOnce),
        2 => Ok(QoS::ExactlyOnce),
        _ => Err(Malformed("the QoS is unknown")),
    }
}

fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(bytes).map_err(|_| Malformed("a text is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_kinds_and_flags_are_malformed() {
        for kind in [0, 20, 24, 127, 255] {
            assert!(Fact::decode(kind, &[]).is_err());
        }
        assert!(Fact::decode(6, &[0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, b'a', 0]).is_err());
        assert!(Fact::decode(6, &[0x80, 1, 1, 0, 0, 0]).is_err());
        assert!(Fact::decode(6, &[0x40, 1, 0, 1, b'a', 0]).is_err());
        assert!(Fact::decode(6, &[0x03, 1, 1, 0, 0]).is_err());
        assert!(Fact::decode(13, &[0x10, 1, 1, 0, 0]).is_err());
        assert!(Fact::decode(1, &[1, 6, 1, 1, 0]).is_err());
    }

    #[test]
    fn a_message_costs_its_texts_and_a_few_bytes() {
        let message = StoredMessage {
            serial: 1_000_000,
            origin: None,
            queue: None,
            qos: QoS::AtLeastOnce,
            retain: false,
            expires_at_ms: u64::MAX,
            owner: "",
            author: 0,
            topic: "a/b",
            properties: &[],
            payload: b"payload",
        };
        let mut front = Vec::new();
        let rest = Fact::Message(message).encode(&mut front);
        assert_eq!((front.len(), rest), (9, &b"payload"[..]));
        front.clear();
        let owned = StoredMessage { owner: "user anna", ..message };
        Fact::Message(owned).encode(&mut front);
        assert_eq!(front.len(), 9 + 1 + "user anna".len());
        front.clear();
        Fact::Message(StoredMessage { author: 1, ..message }).encode(&mut front);
        assert_eq!(front.len(), 9 + 8);
    }

    #[test]
    fn a_message_of_which_it_was_not_noted_who_pays_is_read() {
        let before = b"\x01\x07\x01a\x00payload";
        let Ok(Fact::Message(message)) = Fact::decode(6, before) else { panic!("it is read") };
        assert_eq!((message.owner, message.author), ("", 0));
        assert_eq!((message.serial, message.topic), (7, "a"));
        assert_eq!(message.payload, b"payload");
    }
}
