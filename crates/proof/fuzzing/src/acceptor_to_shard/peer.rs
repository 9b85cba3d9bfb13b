//! A client: what it has asked for on a connection, and whether what it is sent fits that.

use std::collections::{BTreeMap, BTreeSet};

use broker::ShardId;
use broker::admission::Credentials;
use codec::{Ack, AckKind, Packet, Publish, QoS, Reason, Sender, Version};

use super::book::{Book, Whose};

/// A connection as the broker knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionRef {
    pub(super) shard: ShardId,
    pub(super) slot: u32,
    pub(super) connection: u64,
}

/// How far a connection has come.
pub(super) enum Stage {
    /// The first packet is not complete.
    Acceptor(Vec<u8>),
    /// An enhanced authentication is under way.
    Exchange(Box<Credentials>, Vec<u8>),
    Open(ConnectionRef),
    Closed,
}

/// What was asked for and not answered yet. Each answer takes its question away.
#[derive(Default)]
struct Asked {
    connack: bool,
    /// By packet id; of a SUBSCRIBE and UNSUBSCRIBE with the number of filters.
    subscribes: Vec<(u16, usize)>,
    unsubscribes: Vec<(u16, usize)>,
    /// By what answers them, as a number, and packet id.
    publishes: BTreeMap<(u8, u16), usize>,
    pings: usize,
    auths: usize,
}

pub(super) struct Peer {
    pub(super) stage: Stage,
    /// Sent, and not read by the broker yet.
    pub(super) socket: Vec<u8>,
    /// Written by the broker, and not a whole packet yet.
    unread: Vec<u8>,
    /// Read by the broker, and not a whole packet yet.
    heard: Vec<u8>,
    version: Version,
    /// What it says next is in this version, also before the broker has heard of it.
    pub(super) speaks: Version,
    pub(super) whose: Whose,
    packet_bytes_max: u32,
    receive_max: u16,
    alias_max: u16,
    asked: Asked,
    /// Deliveries that it has not finished, by packet id.
    in_flight: BTreeSet<u16>,
    /// Messages to acknowledge, as a client that behaves would.
    to_acknowledge: Vec<(AckKind, u16)>,
    aliases_in: BTreeMap<u16, String>,
    aliases_out: BTreeMap<u16, String>,
    /// The broker goes on with an older session: it may repeat what belongs to it.
    has_past: bool,
    is_told_the_end: bool,
    /// Its network connection is broken.
    pub(super) is_gone: bool,
    /// It has sent what ends the connection; nothing behind it counts.
    has_broken: bool,
}

impl Peer {
    pub(super) fn new() -> Self {
        Self {
            stage: Stage::Acceptor(Vec::new()),
            socket: Vec::new(),
            unread: Vec::new(),
            heard: Vec::new(),
            version: Version::V5,
            speaks: Version::V5,
            whose: (String::new(), None),
            packet_bytes_max: u32::MAX,
            receive_max: u16::MAX,
            alias_max: 0,
            asked: Asked::default(),
            in_flight: BTreeSet::new(),
            to_acknowledge: Vec::new(),
            aliases_in: BTreeMap::new(),
            aliases_out: BTreeMap::new(),
            has_past: false,
            is_told_the_end: false,
            is_gone: false,
            has_broken: false,
        }
    }

    pub(super) fn place(&self) -> Option<ConnectionRef> {
        match self.stage {
            Stage::Open(place) => Some(place),
            _ => None,
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.stage, Stage::Closed)
    }

    /// The acceptor has admitted it.
    pub(super) fn on_admitted(&mut self, credentials: &Credentials) {
        let request = &credentials.request;
        (self.version, self.speaks) = (request.version, request.version);
        self.whose = (request.client_id.to_string(), request.username.as_deref().map(Into::into));
        self.packet_bytes_max = request.packet_bytes_max;
        self.receive_max = request.receive_max;
        self.alias_max = request.alias_max;
        self.asked.connack = true;
    }

    /// The broker has been given these bytes of it.
    pub(super) fn hear(&mut self, bytes: &[u8], packet_bytes_max: u32, book: &mut Book) {
        if self.has_broken {
            return;
        }
        let mut heard = std::mem::take(&mut self.heard);
        heard.extend_from_slice(bytes);
        let mut taken = 0;
        while !self.has_broken {
            let rest = &heard[taken..];
            match codec::decode(rest, self.version, Sender::Client, packet_bytes_max) {
                Ok(Some((packet, len))) => {
                    self.hear_packet(&packet, book);
                    taken += len;
                }
                Ok(None) => break,
                Err(_) => self.has_broken = true,
            }
        }
        heard.drain(..taken);
        self.heard = heard;
    }

    fn hear_packet(&mut self, packet: &Packet<'_>, book: &mut Book) {
        match packet {
            Packet::Publish(publish) => self.hear_publish(publish, book),
            Packet::Ack(ack) => self.hear_ack(ack),
            Packet::Subscribe(subscribe) => {
                let mut count = 0;
                for (filter, _) in subscribe.filters.iter() {
                    book.note_filter(&self.whose, filter);
                    count += 1;
                }
                self.asked.subscribes.push((subscribe.packet_id, count));
            }
            Packet::Unsubscribe(unsubscribe) => {
                let count = unsubscribe.filters.iter().count();
                self.asked.unsubscribes.push((unsubscribe.packet_id, count));
            }
            Packet::Pingreq => self.asked.pings += 1,
            Packet::Auth(_) => self.asked.auths += 1,
            _ => self.has_broken = true,
        }
    }

    fn hear_publish(&mut self, publish: &Publish<'_>, book: &mut Book) {
        let alias = publish.properties.topic_alias();
        let topic = match (publish.topic, alias) {
            ("", Some(alias)) => match self.aliases_in.get(&alias) {
                Some(topic) => topic.clone(),
                None => return,
            },
            (topic, _) => topic.to_owned(),
        };
        if let Some(alias) = alias {
            self.aliases_in.insert(alias, topic.clone());
        }
        book.note_said(&self.whose, &topic, publish.payload);
        let answer = match publish.qos {
            QoS::AtMostOnce => return,
            QoS::AtLeastOnce => AckKind::Puback,
            QoS::ExactlyOnce => AckKind::Pubrec,
        };
        self.ask(answer, publish.packet_id);
    }

    fn hear_ack(&mut self, ack: &Ack<'_>) {
        match ack.kind {
            AckKind::Pubrec if !ack.reason.is_error() => self.ask(AckKind::Pubrel, ack.packet_id),
            AckKind::Pubrel => self.ask(AckKind::Pubcomp, ack.packet_id),
            // Also where it does not fit: then the broker ends the connection or overlooks it.
            AckKind::Puback | AckKind::Pubrec | AckKind::Pubcomp => {
                self.in_flight.remove(&ack.packet_id);
                if ack.kind == AckKind::Pubrec {
                    self.ask(AckKind::Pubrel, ack.packet_id);
                }
            }
        }
    }

    fn ask(&mut self, answer: AckKind, packet_id: u16) {
        *self.asked.publishes.entry((answer as u8, packet_id)).or_default() += 1;
    }

    /// The broker has written to it.
    pub(super) fn read(&mut self, bytes: &[u8], book: &Book) {
        let mut unread = std::mem::take(&mut self.unread);
        unread.extend_from_slice(bytes);
        let mut taken = 0;
        loop {
            let rest = &unread[taken..];
            let decoded = codec::decode(rest, self.version, Sender::Server, u32::MAX);
            let sound =
                decoded.unwrap_or_else(|fault| panic!("{fault:?} of a broker: {rest:02X?}"));
            let Some((packet, len)) = sound else { break };
            assert!(!self.is_told_the_end, "{packet:?} behind a DISCONNECT");
            assert!(len <= self.packet_bytes_max as usize, "{packet:?} has {len} bytes");
            self.read_packet(&packet, book);
            taken += len;
        }
        unread.drain(..taken);
        self.unread = unread;
    }

    /// All that it was to be sent has been written.
    pub(super) fn on_closed(&mut self) {
        assert!(self.unread.is_empty(), "the last packet is cut off: {:02X?}", self.unread);
        self.stage = Stage::Closed;
    }

    fn read_packet(&mut self, packet: &Packet<'_>, book: &Book) {
        match packet {
            Packet::Connack(connack) => {
                assert!(std::mem::take(&mut self.asked.connack), "a second CONNACK");
                self.has_past = connack.session_present || self.version == Version::V31;
                self.is_told_the_end = connack.reason != Reason::SUCCESS;
                return;
            }
            Packet::Auth(_) if self.asked.connack => return,
            _ => assert!(!self.asked.connack, "{packet:?} before the CONNACK"),
        }
        match packet {
            Packet::Publish(publish) => self.read_publish(publish, book),
            Packet::Ack(ack) => self.read_ack(ack),
            Packet::Suback(suback) => {
                let answer = (suback.packet_id, suback.reasons.len());
                take(&mut self.asked.subscribes, answer, "SUBACK");
            }
            Packet::Unsuback(unsuback) => {
                // Before version 5 it has no reasons.
                let (answered, version) = (unsuback.packet_id, self.version);
                let asked = self.asked.unsubscribes.iter().find(|(id, _)| *id == answered);
                let count = match version {
                    Version::V5 => unsuback.reasons.len(),
                    _ => asked.map_or(0, |(_, count)| *count),
                };
                take(&mut self.asked.unsubscribes, (answered, count), "UNSUBACK");
            }
            Packet::Pingresp => {
                assert!(self.asked.pings > 0, "a PINGRESP for nothing");
                self.asked.pings -= 1;
            }
            Packet::Auth(_) => {
                assert!(self.asked.auths > 0, "an AUTH for nothing");
                self.asked.auths -= 1;
            }
            Packet::Disconnect(_) => self.is_told_the_end = true,
            other => panic!("a server does not send {other:?}"),
        }
    }

    fn read_publish(&mut self, publish: &Publish<'_>, book: &Book) {
        let alias = publish.properties.topic_alias();
        let topic = match (publish.topic, alias) {
            ("", Some(alias)) => {
                self.aliases_out.get(&alias).expect("an alias that is set").clone()
            }
            (topic, _) => topic.to_owned(),
        };
        if let Some(alias) = alias {
            assert!((1..=self.alias_max).contains(&alias), "alias {alias} of {}", self.alias_max);
            self.aliases_out.insert(alias, topic.clone());
        }
        book.judge_delivery(&self.whose, &topic, publish.payload);
        let answer = match publish.qos {
            QoS::AtMostOnce => return,
            QoS::AtLeastOnce => AckKind::Puback,
            QoS::ExactlyOnce => AckKind::Pubrec,
        };
        let is_new = self.in_flight.insert(publish.packet_id);
        assert!(is_new, "packet id {} is in use", publish.packet_id);
        let in_flight = self.in_flight.len();
        assert!(in_flight <= usize::from(self.receive_max), "{in_flight} in flight");
        self.to_acknowledge.push((answer, publish.packet_id));
    }

    fn read_ack(&mut self, ack: &Ack<'_>) {
        let asked = self.asked.publishes.get_mut(&(ack.kind as u8, ack.packet_id));
        let is_repeated = ack.kind == AckKind::Pubrel && self.has_past;
        match asked.filter(|count| **count > 0) {
            Some(count) => *count -= 1,
            None => assert!(is_repeated, "{ack:?} for nothing"),
        }
        if ack.kind == AckKind::Pubrel {
            self.to_acknowledge.push((AckKind::Pubcomp, ack.packet_id));
        }
    }

    /// Everything that it asked for has been answered.
    pub(super) fn has_no_question(&self) -> bool {
        let Asked { connack, subscribes, unsubscribes, publishes, pings, auths } = &self.asked;
        let is_answered = publishes.values().all(|count| *count == 0);
        is_answered
            && !connack
            && subscribes.is_empty()
            && unsubscribes.is_empty()
            && *pings + *auths == 0
    }

    /// Acknowledges what it was sent.
    pub(super) fn acknowledge(&mut self) {
        for (kind, packet_id) in std::mem::take(&mut self.to_acknowledge) {
            Ack::new(kind, packet_id, Reason::SUCCESS).encode(self.speaks, &mut self.socket);
        }
    }
}

fn take(asked: &mut Vec<(u16, usize)>, answer: (u16, usize), name: &str) {
    let found = asked.iter().position(|question| *question == answer);
    let found = found.unwrap_or_else(|| panic!("{name} {answer:?} for nothing: {asked:?}"));
    asked.swap_remove(found);
}
