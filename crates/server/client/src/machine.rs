//! [`Machine`]: one client's protocol state, without input and output.

use std::collections::VecDeque;

use codec::{
    Ack, AckKind, Auth, Disconnect, Filters, Packet, Properties, Publish, QoS, Reason, Sender,
    Subscribe, Topics, Unsubscribe, Version, Violation,
};

use crate::ConnectOptions;

mod limits;

pub use limits::PeerTakes;

/// The state of one client, from one connection to the next. `T` is what the owner wants back when
/// a QoS 1 or 2 message is acknowledged, and what it needs to send that message again.
///
/// The owner moves bytes: it calls [`Machine::next`] with what arrived until nothing is left, sends
/// whatever was appended to `out`, and reports the end of the connection with
/// [`Machine::on_closed`].
#[derive(Debug)]
pub struct Machine<T> {
    version: Version,
    state: State,
    acks: Acks,
    ping_outstanding: bool,
    keep_alive_secs: u16,
    next_packet_id: u16,
    /// Messages that we may have in flight, by the server's receive maximum and our own limit.
    window_max: u16,
    publishing: u16,
    topic_alias_max: u16,
    packet_bytes_max: u32,
    peer_packet_bytes_max: u32,
    peer_qos_max: QoS,
    peer_retains: bool,
    peer_takes: PeerTakes,
    /// In seconds: ours, or the server's where it says one.
    session_expiry_secs: u32,
    /// Topic aliases that the server may use.
    own_alias_max: u16,
    inbound: Inbound,
    last_sent_ms: u64,
    /// Open exchanges in the order of their packet identifiers, which are given out cyclically:
    /// the identifiers from the front's to `next_packet_id` cover all.
    open: VecDeque<Exchange<T>>,
    /// QoS 2 identifiers received and not released.
    unreleased: Vec<Unreleased>,
    /// The connection goes on with an older session: some answers may be to what came before it.
    is_resumed: bool,
    /// PUBRELs beyond the first of their exchanges, each of which has a PUBCOMP of its own.
    pubcomps_extra: u32,
}

/// What the server has in flight to us on this connection, at least: an acknowledgement that has
/// not left cannot have freed its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Inbound {
    /// Our receive maximum; 0 stands for none.
    max: u16,
    /// QoS 1 messages that the owner has not acknowledged.
    unacked: u16,
    /// Acknowledged in bytes that are not sent yet.
    unsent: u16,
    /// QoS 2 messages of this connection that are not released.
    unreleased: u16,
    /// PUBRECs beyond the first of their messages, each of which has a PUBREL of its own.
    pubrels_extra: u16,
}

/// A QoS 2 message that was handed out and is not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unreleased {
    packet_id: u16,
    /// It came on the present connection.
    is_here: bool,
}

impl Inbound {
    fn is_beyond(self) -> bool {
        let all = [self.unacked, self.unsent, self.unreleased];
        self.max > 0 && all.into_iter().map(u32::from).sum::<u32>() > u32::from(self.max)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Connecting,
    Connected,
}

/// Who acknowledges received messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acks {
    /// The machine, as soon as the message is handed out.
    #[default]
    Automatic,
    /// The owner, with [`Machine::acknowledge`].
    Manual,
}

#[derive(Debug)]
struct Exchange<T> {
    packet_id: u16,
    stage: Stage<T>,
}

#[derive(Debug)]
enum Stage<T> {
    /// PUBLISH sent, PUBACK awaited.
    Puback(T),
    /// PUBLISH sent, PUBREC awaited.
    Pubrec(T),
    /// PUBREL sent, PUBCOMP awaited. What PUBREC said.
    Pubcomp(T, Reason),
    /// The QoS asked for, filter by filter.
    Suback(Box<[u8]>),
    /// So many filters.
    Unsuback(usize),
}

/// What one packet meant.
#[derive(Debug)]
pub enum Event<'a, T> {
    Connected {
        session_present: bool,
        properties: Properties<'a>,
    },
    /// CONNACK with an error; the server closes.
    Refused {
        reason: Reason,
        properties: Properties<'a>,
    },
    Message(Publish<'a>),
    /// A QoS 2 message again that was handed out before: acknowledged, to be ignored.
    Repeated {
        packet_id: u16,
        dup: bool,
        /// It had come on this connection.
        is_here: bool,
    },
    /// An answer to a message of ours of which nothing is left to answer: it came before. PUBREC
    /// had its PUBREL all the same.
    AckedAgain {
        kind: AckKind,
    },
    /// A message of ours reached the end of its exchange. Of one at QoS 2 the reason is what PUBREC
    /// said, unless PUBCOMP says an error.
    Published {
        token: T,
        qos: QoS,
        reason: Reason,
        properties: Properties<'a>,
    },
    Subscribed {
        packet_id: u16,
        reasons: &'a [u8],
    },
    Unsubscribed {
        packet_id: u16,
        reasons: &'a [u8],
    },
    Auth(Auth<'a>),
    /// The server ends the connection and says why.
    Disconnected {
        reason: Reason,
        properties: Properties<'a>,
    },
    /// Nothing that the owner needs to know (PINGRESP, PUBREC...).
    Nothing,
}

/// Why a message cannot be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    #[error("the client is not connected")]
    NotConnected,
    #[error("the window of unacknowledged messages is full")]
    WindowFull,
    #[error("the packet is larger than the server accepts")]
    PacketTooLarge,
}

/// An exchange that the last connection left open, to be repeated on the next.
#[derive(Debug)]
pub enum Unacknowledged<'a, T> {
    /// Send the message again with this identifier and, if the session is the same, DUP.
    Publish { packet_id: u16, qos: QoS, token: &'a T },
    /// Send PUBREL again.
    Pubrel { packet_id: u16, token: &'a T },
}

impl<T> Machine<T> {
    /// `window_max` bounds the unacknowledged messages in flight, on top of what the server says.
    pub fn new(version: Version, acks: Acks) -> Self {
        Self {
            version,
            state: State::Closed,
            acks,
            ping_outstanding: false,
            keep_alive_secs: 0,
            next_packet_id: 1,
            window_max: u16::MAX,
            publishing: 0,
            topic_alias_max: 0,
            packet_bytes_max: crate::options::PACKET_BYTES_MAX,
            peer_packet_bytes_max: crate::options::PACKET_BYTES_MAX,
            peer_qos_max: QoS::ExactlyOnce,
            peer_retains: true,
            peer_takes: PeerTakes::default(),
            session_expiry_secs: 0,
            own_alias_max: 0,
            inbound: Inbound::default(),
            last_sent_ms: 0,
            open: VecDeque::new(),
            unreleased: Vec::new(),
            is_resumed: false,
            pubcomps_extra: 0,
        }
    }

    pub fn version(&self) -> Version {
        self.version
    }

    pub fn is_connected(&self) -> bool {
        self.state == State::Connected
    }

    /// Whether the owner has to acknowledge what it receives.
    pub fn leaves_acks(&self) -> bool {
        self.acks == Acks::Manual
    }

    /// QoS 1 and 2 messages without an acknowledgement.
    pub fn in_flight(&self) -> usize {
        usize::from(self.publishing)
    }

    /// Topic aliases that the server lets us use.
    pub fn topic_alias_max(&self) -> u16 {
        self.topic_alias_max
    }

    /// In seconds: ours, or the server's where it says one. 0 is none.
    pub fn keep_alive_secs(&self) -> u16 {
        self.keep_alive_secs
    }

    /// The highest QoS that the server lets us publish with.
    pub fn peer_qos_max(&self) -> QoS {
        self.peer_qos_max
    }

    /// Whether the server takes messages that are to be retained.
    pub fn peer_retains(&self) -> bool {
        self.peer_retains
    }

    /// The largest packet that the server takes.
    pub fn peer_packet_bytes_max(&self) -> u32 {
        self.peer_packet_bytes_max
    }

    /// QoS 2 messages of this connection whose PUBREL has not come.
    pub fn unreleased(&self) -> usize {
        self.inbound.unreleased as usize
    }

    /// Starts a connection: appends CONNECT.
    pub fn connect(&mut self, options: &ConnectOptions, now_ms: u64, out: &mut Vec<u8>) {
        self.state = State::Connecting;
        self.keep_alive_secs = options.keep_alive_secs;
        self.packet_bytes_max = options.packet_bytes_max;
        let is_v5 = self.version == Version::V5;
        self.own_alias_max = if is_v5 { options.topic_alias_max } else { 0 };
        let max = options.receive_max.filter(|_| is_v5).unwrap_or(0);
        self.inbound = Inbound { max, ..Inbound::default() };
        self.peer_qos_max = QoS::ExactlyOnce;
        self.unreleased.iter_mut().for_each(|one| one.is_here = false);
        self.peer_retains = true;
        self.peer_takes = PeerTakes::default();
        self.session_expiry_secs = options.session_expiry_secs;
        self.ping_outstanding = false;
        self.last_sent_ms = now_ms;
        self.window_max = u16::MAX;
        self.topic_alias_max = 0;
        self.peer_packet_bytes_max = crate::options::PACKET_BYTES_MAX;
        self.is_resumed = false;
        self.pubcomps_extra = 0;
        options.encode(out);
    }

    /// The connection is gone. Open exchanges stay for the next one.
    pub fn on_closed(&mut self) {
        self.state = State::Closed;
        self.ping_outstanding = false;
        // Without a connection nobody answers these; the owner subscribes again.
        self.open.retain(|open| !matches!(open.stage, Stage::Suback(_) | Stage::Unsuback(_)));
    }

    /// The server has no session of ours: identifiers start afresh, and the messages that were in
    /// flight are the owner's to send again or to give up.
    pub fn forget(&mut self) -> Vec<T> {
        self.unreleased = Vec::new();
        self.publishing = 0;
        let open = std::mem::take(&mut self.open);
        open.into_iter()
            .filter_map(|exchange| match exchange.stage {
                Stage::Puback(token) | Stage::Pubrec(token) => Some(token),
                // The server had taken the message over when it sent PUBREC.
                Stage::Pubcomp(..) | Stage::Suback(_) | Stage::Unsuback(_) => None,
            })
            .collect()
    }

    /// What has to be repeated after a reconnect to the same session, in order.
    pub fn unacknowledged(&self) -> impl Iterator<Item = Unacknowledged<'_, T>> {
        self.open.iter().filter_map(|exchange| {
            let packet_id = exchange.packet_id;
            match &exchange.stage {
                Stage::Puback(token) => {
                    Some(Unacknowledged::Publish { packet_id, qos: QoS::AtLeastOnce, token })
                }
                Stage::Pubrec(token) => {
                    Some(Unacknowledged::Publish { packet_id, qos: QoS::ExactlyOnce, token })
                }
                Stage::Pubcomp(token, _) => Some(Unacknowledged::Pubrel { packet_id, token }),
                Stage::Suback(_) | Stage::Unsuback(_) => None,
            }
        })
    }

    /// Opens the exchange of a QoS 1 or 2 message and gives its packet identifier; the owner
    /// encodes the packet. `window_max` is a limit of the owner's own.
    pub fn begin_publish(&mut self, qos: QoS, token: T, window_max: u16) -> Result<u16, NotSent> {
        if self.state != State::Connected {
            return Err(NotSent::NotConnected);
        }
        if self.publishing >= self.window_max.min(window_max) {
            return Err(NotSent::WindowFull);
        }
        let packet_id = self.take_packet_id().ok_or(NotSent::WindowFull)?;
        let stage = match qos {
            QoS::ExactlyOnce => Stage::Pubrec(token),
            QoS::AtLeastOnce | QoS::AtMostOnce => Stage::Puback(token),
        };
        self.publishing += 1;
        self.open.push_back(Exchange { packet_id, stage });
        Ok(packet_id)
    }

    /// Whether [`Machine::begin_publish`] would succeed.
    pub fn has_window(&self, window_max: u16) -> bool {
        self.state == State::Connected && self.publishing < self.window_max.min(window_max)
    }

    /// Appends a PUBLISH; `publish.packet_id` is ignored. QoS 0 has no token to give back.
    pub fn publish(
        &mut self,
        publish: &Publish<'_>,
        token: T,
        out: &mut Vec<u8>,
    ) -> Result<Option<u16>, NotSent> {
        if self.state != State::Connected {
            return Err(NotSent::NotConnected);
        }
        let mut publish = *publish;
        publish.packet_id = 0;
        if publish.qos == QoS::AtMostOnce {
            self.encode_checked(&publish, out)?;
            return Ok(None);
        }
        let packet_id = self.begin_publish(publish.qos, token, u16::MAX)?;
        publish.packet_id = packet_id;
        if let Err(refused) = self.encode_checked(&publish, out) {
            self.open.pop_back();
            self.publishing -= 1;
            return Err(refused);
        }
        Ok(Some(packet_id))
    }

    fn encode_checked(&self, publish: &Publish<'_>, out: &mut Vec<u8>) -> Result<(), NotSent> {
        let start = out.len();
        publish.encode(self.version, out);
        if out.len() - start > self.peer_packet_bytes_max as usize {
            out.truncate(start);
            return Err(NotSent::PacketTooLarge);
        }
        Ok(())
    }

    /// Appends SUBSCRIBE and gives the identifier that [`Event::Subscribed`] will carry.
    pub fn subscribe(
        &mut self,
        filters: Filters<'_>,
        properties: Properties<'_>,
        out: &mut Vec<u8>,
    ) -> Result<u16, NotSent> {
        let asked = filters.iter().map(|(_, options)| options.qos as u8).collect();
        let packet_id = self.begin_request(Stage::Suback(asked))?;
        let start = out.len();
        Subscribe { packet_id, properties, filters }.encode(self.version, out);
        if out.len() - start > self.peer_packet_bytes_max as usize {
            out.truncate(start);
            self.open.pop_back();
            return Err(NotSent::PacketTooLarge);
        }
        Ok(packet_id)
    }

    /// Appends UNSUBSCRIBE and gives the identifier that [`Event::Unsubscribed`] will carry.
    pub fn unsubscribe(
        &mut self,
        filters: Topics<'_>,
        properties: Properties<'_>,
        out: &mut Vec<u8>,
    ) -> Result<u16, NotSent> {
        let packet_id = self.begin_request(Stage::Unsuback(filters.iter().count()))?;
        Unsubscribe { packet_id, properties, filters }.encode(self.version, out);
        Ok(packet_id)
    }

    fn begin_request(&mut self, stage: Stage<T>) -> Result<u16, NotSent> {
        if self.state != State::Connected {
            return Err(NotSent::NotConnected);
        }
        let packet_id = self.take_packet_id().ok_or(NotSent::WindowFull)?;
        self.open.push_back(Exchange { packet_id, stage });
        Ok(packet_id)
    }

    /// Appends DISCONNECT. Nothing may be sent afterwards.
    pub fn disconnect(&mut self, reason: Reason, properties: Properties<'_>, out: &mut Vec<u8>) {
        Disconnect { reason, properties }.encode(self.version, out);
        self.state = State::Closed;
    }

    /// Acknowledges a received message whose acknowledgement was left to the owner.
    pub fn acknowledge(&mut self, packet_id: u16, qos: QoS, out: &mut Vec<u8>) {
        let kind = match qos {
            QoS::AtMostOnce => return,
            QoS::AtLeastOnce => AckKind::Puback,
            QoS::ExactlyOnce => AckKind::Pubrec,
        };
        if qos == QoS::AtLeastOnce {
            self.inbound.unacked = self.inbound.unacked.saturating_sub(1);
            self.inbound.unsent = self.inbound.unsent.saturating_add(1);
        }
        self.ack(kind, packet_id, Reason::SUCCESS, out);
    }

    /// Appends PUBREL for an exchange that [`Machine::unacknowledged`] named.
    pub fn repeat_pubrel(&self, packet_id: u16, out: &mut Vec<u8>) {
        self.ack(AckKind::Pubrel, packet_id, Reason::SUCCESS, out);
    }

    /// To be called whenever bytes were sent: keep-alive counts from the last packet.
    pub fn on_sent(&mut self, now_ms: u64) {
        self.last_sent_ms = now_ms;
        self.inbound.unsent = 0;
    }

    /// When [`Machine::on_tick`] wants to be called next; `None` without keep-alive.
    pub fn next_tick_ms(&self) -> Option<u64> {
        if self.keep_alive_secs == 0 || self.state == State::Closed {
            return None;
        }
        // A quarter before time, as the packet needs its way too.
        Some(self.last_sent_ms + u64::from(self.keep_alive_secs) * 750)
    }

    /// Appends PINGREQ when it is due. `false`: the server has not answered the last one, and the
    /// connection should be given up.
    pub fn on_tick(&mut self, now_ms: u64, out: &mut Vec<u8>) -> bool {
        match self.next_tick_ms() {
            Some(at_ms) if at_ms <= now_ms && self.state == State::Connected => {
                if self.ping_outstanding {
                    return false;
                }
                out.extend_from_slice(&PINGREQ);
                self.ping_outstanding = true;
                self.last_sent_ms = now_ms;
                true
            }
            _ => true,
        }
    }

    /// Asks whether the broker is there, whatever the keep-alive.
    pub fn ping(&mut self, now_ms: u64, out: &mut Vec<u8>) {
        if self.state == State::Connected && !self.ping_outstanding {
            out.extend_from_slice(&PINGREQ);
            self.ping_outstanding = true;
            self.last_sent_ms = now_ms;
        }
    }

    /// Whether a PINGREQ has no answer yet.
    pub fn is_pinging(&self) -> bool {
        self.ping_outstanding
    }

    /// Takes one packet off the front of `bytes`; `None` when more bytes are needed. Answers that
    /// the protocol asks for are appended to `out`.
    pub fn next<'a>(
        &mut self,
        bytes: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<(Event<'a, T>, usize)>, Violation> {
        let decoded = codec::decode(bytes, self.version, Sender::Server, self.packet_bytes_max)?;
        let Some((packet, taken)) = decoded else { return Ok(None) };
        let event = self.on_packet(packet, out)?;
        Ok(Some((event, taken)))
    }

    fn on_packet<'a>(
        &mut self,
        packet: Packet<'a>,
        out: &mut Vec<u8>,
    ) -> Result<Event<'a, T>, Violation> {
        Ok(match packet {
            Packet::Publish(publish) => return self.on_publish(publish, out),
            Packet::Ack(ack) => return self.on_ack(ack, out),
            Packet::Connack(connack) => {
                if self.state != State::Connecting {
                    return Err(unexpected("MQTT-3.2.0-2", "CONNACK on an open connection"));
                }
                if connack.reason.is_error() {
                    self.state = State::Closed;
                    Event::Refused { reason: connack.reason, properties: connack.properties }
                } else {
                    self.state = State::Connected;
                    self.is_resumed = connack.session_present;
                    self.take_limits(connack.properties);
                    Event::Connected {
                        session_present: connack.session_present,
                        properties: connack.properties,
                    }
                }
            }
            Packet::Suback(suback) => {
                self.end_subscribe(suback.packet_id, suback.reasons)?;
                Event::Subscribed { packet_id: suback.packet_id, reasons: suback.reasons }
            }
            Packet::Unsuback(unsuback) => {
                self.end_unsubscribe(unsuback.packet_id, unsuback.reasons)?;
                Event::Unsubscribed { packet_id: unsuback.packet_id, reasons: unsuback.reasons }
            }
            Packet::Pingresp => {
                if !self.ping_outstanding {
                    return Err(unexpected("MQTT-3.12.4-1", "PINGRESP to no PINGREQ"));
                }
                self.ping_outstanding = false;
                Event::Nothing
            }
            Packet::Disconnect(disconnect) => {
                self.state = State::Closed;
                Event::Disconnected { reason: disconnect.reason, properties: disconnect.properties }
            }
            Packet::Auth(auth) => Event::Auth(auth),
            Packet::Connect(_)
            | Packet::Subscribe(_)
            | Packet::Unsubscribe(_)
            | Packet::Pingreq => {
                return Err(unexpected("MQTT-4.13.1-1", "a packet that only clients send"));
            }
        })
    }

    fn on_publish<'a>(
        &mut self,
        publish: Publish<'a>,
        out: &mut Vec<u8>,
    ) -> Result<Event<'a, T>, Violation> {
        if self.state != State::Connected {
            return Err(unexpected("MQTT-3.2.0-1", "PUBLISH before CONNACK"));
        }
        if publish.properties.topic_alias().is_some_and(|alias| alias > self.own_alias_max) {
            let detail = "a topic alias above what the client allows";
            return Err(Violation {
                reason: Reason::TOPIC_ALIAS_INVALID,
                ..unexpected("MQTT-3.1.2-26", detail)
            });
        }
        if publish.qos == QoS::ExactlyOnce {
            let known = self.unreleased.iter_mut().find(|one| one.packet_id == publish.packet_id);
            if let Some(known) = known {
                let is_here = std::mem::replace(&mut known.is_here, true);
                self.ack(AckKind::Pubrec, publish.packet_id, Reason::SUCCESS, out);
                self.inbound.pubrels_extra = self.inbound.pubrels_extra.saturating_add(1);
                return Ok(Event::Repeated {
                    packet_id: publish.packet_id,
                    dup: publish.dup,
                    is_here,
                });
            }
            self.unreleased.push(Unreleased { packet_id: publish.packet_id, is_here: true });
            self.inbound.unreleased = self.inbound.unreleased.saturating_add(1);
        }
        let is_qos_1 = u16::from(publish.qos == QoS::AtLeastOnce);
        self.inbound.unacked = self.inbound.unacked.saturating_add(is_qos_1);
        if self.inbound.is_beyond() {
            let detail = "more messages in flight than the receive maximum";
            return Err(Violation {
                reason: Reason::RECEIVE_MAXIMUM_EXCEEDED,
                ..unexpected("MQTT-3.3.4-9", detail)
            });
        }
        if self.acks == Acks::Automatic {
            self.acknowledge(publish.packet_id, publish.qos, out);
        }
        Ok(Event::Message(publish))
    }

    fn on_ack<'a>(&mut self, ack: Ack<'a>, out: &mut Vec<u8>) -> Result<Event<'a, T>, Violation> {
        if ack.kind == AckKind::Pubrel {
            return Ok(self.on_pubrel(ack.packet_id, out));
        }
        let Some(at) = self.position(ack.packet_id) else { return self.on_stray_ack(ack, out) };
        let stage = &mut self.open[at].stage;
        match (ack.kind, &mut *stage) {
            (AckKind::Puback, Stage::Puback(_)) | (AckKind::Pubcomp, Stage::Pubcomp(..)) => {}
            (AckKind::Pubrec, Stage::Pubrec(_)) if ack.reason.is_error() => {}
            (AckKind::Pubrec, Stage::Pubrec(_)) => {
                // The token moves from one stage to the next.
                let before = std::mem::replace(stage, Stage::Unsuback(0));
                if let Stage::Pubrec(token) = before {
                    *stage = Stage::Pubcomp(token, ack.reason);
                }
                self.ack(AckKind::Pubrel, ack.packet_id, Reason::SUCCESS, out);
                return Ok(Event::Nothing);
            }
            (AckKind::Pubrec, Stage::Pubcomp(..)) => {
                self.ack(AckKind::Pubrel, ack.packet_id, Reason::SUCCESS, out);
                self.pubcomps_extra += 1;
                return Ok(self.acked_again(AckKind::Pubrec));
            }
            _ => return Err(unexpected("MQTT-4.3.2-1", "an acknowledgement of the wrong kind")),
        }
        self.publishing -= 1;
        let qos = if ack.kind == AckKind::Puback { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        Ok(match self.remove(at) {
            Some(Stage::Puback(token) | Stage::Pubrec(token)) => {
                Event::Published { token, qos, reason: ack.reason, properties: ack.properties }
            }
            Some(Stage::Pubcomp(token, received)) => {
                let reason = if ack.reason.is_error() { ack.reason } else { received };
                Event::Published { token, qos, reason, properties: ack.properties }
            }
            _ => Event::Nothing,
        })
    }

    /// After a reconnect a server may answer what we no longer know: PUBREC wants its PUBREL all
    /// the same, the rest is ignored.
    fn on_stray_ack<'a>(
        &mut self,
        ack: Ack<'a>,
        out: &mut Vec<u8>,
    ) -> Result<Event<'a, T>, Violation> {
        match ack.kind {
            AckKind::Pubrec if !ack.reason.is_error() => {
                self.ack(AckKind::Pubrel, ack.packet_id, Reason::PACKET_IDENTIFIER_NOT_FOUND, out);
                self.pubcomps_extra += 1;
            }
            AckKind::Pubcomp if self.pubcomps_extra > 0 => {
                self.pubcomps_extra -= 1;
                return Ok(Event::Nothing);
            }
            _ => {}
        }
        Ok(self.acked_again(ack.kind))
    }

    /// A PUBACK answers a PUBLISH of this connection only, the others perhaps one of the session.
    fn acked_again<'a>(&self, kind: AckKind) -> Event<'a, T> {
        match kind {
            AckKind::Pubrec | AckKind::Pubrel | AckKind::Pubcomp if self.is_resumed => {
                Event::Nothing
            }
            _ => Event::AckedAgain { kind },
        }
    }

    fn on_pubrel<'a>(&mut self, packet_id: u16, out: &mut Vec<u8>) -> Event<'a, T> {
        let Some(at) = self.unreleased.iter().position(|one| one.packet_id == packet_id) else {
            self.ack(AckKind::Pubcomp, packet_id, Reason::PACKET_IDENTIFIER_NOT_FOUND, out);
            let extra = &mut self.inbound.pubrels_extra;
            if *extra > 0 {
                *extra -= 1;
                return Event::Nothing;
            }
            return self.acked_again(AckKind::Pubrel);
        };
        self.unreleased.remove(at);
        self.inbound.unreleased = self.inbound.unreleased.saturating_sub(1);
        self.ack(AckKind::Pubcomp, packet_id, Reason::SUCCESS, out);
        Event::Nothing
    }

    fn end_subscribe(&mut self, packet_id: u16, reasons: &[u8]) -> Result<(), Violation> {
        let Some(Stage::Suback(asked)) = self.take_request(packet_id) else {
            return Err(unexpected("MQTT-3.8.4-2", "an answer to a request that was not made"));
        };
        if reasons.len() != asked.len() {
            return Err(unexpected("MQTT-3.8.4-6", "a SUBACK with more or fewer codes than asked"));
        }
        let is_more = |(granted, asked): (&u8, &u8)| *granted < REFUSED_FROM && granted > asked;
        if reasons.iter().zip(&asked).any(is_more) {
            return Err(unexpected("MQTT-3.8.4-7", "a SUBACK that grants more than was asked for"));
        }
        Ok(())
    }

    fn end_unsubscribe(&mut self, packet_id: u16, reasons: &[u8]) -> Result<(), Violation> {
        let Some(Stage::Unsuback(asked)) = self.take_request(packet_id) else {
            return Err(unexpected("MQTT-3.10.4-4", "an answer to a request that was not made"));
        };
        if self.version == Version::V5 && reasons.len() != asked {
            return Err(unexpected("MQTT-3.11.3-1", "an UNSUBACK with more or fewer codes"));
        }
        Ok(())
    }

    /// The request that this answers, which is over.
    fn take_request(&mut self, packet_id: u16) -> Option<Stage<T>> {
        let at = self.position(packet_id)?;
        let is_request = matches!(self.open[at].stage, Stage::Suback(_) | Stage::Unsuback(_));
        is_request.then(|| self.remove(at)).flatten()
    }

    fn ack(&self, kind: AckKind, packet_id: u16, reason: Reason, out: &mut Vec<u8>) {
        let [high, low] = packet_id.to_be_bytes();
        if reason == Reason::SUCCESS {
            // The short form, the same in every version.
            out.extend_from_slice(&[first_byte(kind), 2, high, low]);
        } else {
            let ack = Ack { kind, packet_id, reason, properties: Properties::EMPTY };
            ack.encode(self.version, out);
        }
    }

    /// The next free identifier, cyclically; `None` when the oldest open exchange stands in the
    /// way.
    fn take_packet_id(&mut self) -> Option<u16> {
        let id = self.next_packet_id;
        if self.open.front().is_some_and(|front| front.packet_id == id) {
            return None;
        }
        self.next_packet_id = if id == u16::MAX { 1 } else { id + 1 };
        Some(id)
    }

    /// Where the exchange stands. Identifiers ascend cyclically from the front's, so that this is
    /// usually the front itself, and a binary search otherwise.
    fn position(&self, packet_id: u16) -> Option<usize> {
        let first = self.open.front()?.packet_id;
        let rank = |id: u16| id.wrapping_sub(first);
        if packet_id == first {
            return Some(0);
        }
        self.open.binary_search_by_key(&rank(packet_id), |open| rank(open.packet_id)).ok()
    }

    fn remove(&mut self, at: usize) -> Option<Stage<T>> {
        let exchange = self.open.remove(at)?;
        if self.open.is_empty() && self.open.capacity() > IDLE_CAPACITY_MAX {
            self.open = VecDeque::new();
        }
        Some(exchange.stage)
    }
}

fn first_byte(kind: AckKind) -> u8 {
    match kind {
        AckKind::Puback => 0x40,
        AckKind::Pubrec => 0x50,
        AckKind::Pubrel => 0x62,
        AckKind::Pubcomp => 0x70,
    }
}

fn unexpected(clause: &'static str, detail: &'static str) -> Violation {
    Violation { reason: Reason::PROTOCOL_ERROR, clause, detail }
}

/// Reason codes from here on refuse.
const REFUSED_FROM: u8 = 0x80;
const PINGREQ: [u8; 2] = [0xC0, 0];
/// Room for open exchanges that an idle client may keep.
const IDLE_CAPACITY_MAX: usize = 64;

#[cfg(test)]
mod tests;
