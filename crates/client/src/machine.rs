//! [`Machine`]: one client's protocol state, without input and output.

use std::collections::VecDeque;

use codec::{
    Ack, AckKind, Auth, Disconnect, Filters, Packet, Properties, Property, Publish, QoS, Reason,
    Sender, Subscribe, Topics, Unsubscribe, Version, Violation,
};

use crate::ConnectOptions;

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
    last_sent_ms: u64,
    /// Open exchanges in the order of their packet identifiers, which are given out cyclically:
    /// the identifiers from the front's to `next_packet_id` cover all.
    open: VecDeque<Exchange<T>>,
    /// QoS 2 identifiers received and not released.
    unreleased: Vec<u16>,
    /// The connection goes on with an older session: some answers may be to what came before it.
    is_resumed: bool,
    /// PUBRELs beyond the first of their exchanges, each of which has a PUBCOMP of its own.
    pubcomps_extra: u32,
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
    /// PUBREL sent, PUBCOMP awaited.
    Pubcomp(T),
    Suback,
    Unsuback,
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
    },
    /// An answer to a message of ours of which nothing is left to answer: it came before. PUBREC
    /// had its PUBREL all the same.
    AckedAgain {
        kind: AckKind,
    },
    /// A message of ours reached the end of its exchange.
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

    /// Starts a connection: appends CONNECT.
    pub fn connect(&mut self, options: &ConnectOptions, now_ms: u64, out: &mut Vec<u8>) {
        self.connect_prepared(options.keep_alive_secs, options.packet_bytes_max, now_ms);
        options.encode(out);
    }

    /// Starts a connection whose CONNECT packet the owner encodes itself.
    pub fn connect_prepared(&mut self, keep_alive_secs: u16, packet_bytes_max: u32, now_ms: u64) {
        self.state = State::Connecting;
        self.keep_alive_secs = keep_alive_secs;
        self.packet_bytes_max = packet_bytes_max;
        self.ping_outstanding = false;
        self.last_sent_ms = now_ms;
        self.window_max = u16::MAX;
        self.topic_alias_max = 0;
        self.peer_packet_bytes_max = crate::options::PACKET_BYTES_MAX;
        self.is_resumed = false;
        self.pubcomps_extra = 0;
    }

    /// The connection is gone. Open exchanges stay for the next one.
    pub fn on_closed(&mut self) {
        self.state = State::Closed;
        self.ping_outstanding = false;
        // Without a connection nobody answers these; the owner subscribes again.
        self.open.retain(|open| !matches!(open.stage, Stage::Suback | Stage::Unsuback));
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
                Stage::Pubcomp(_) | Stage::Suback | Stage::Unsuback => None,
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
                Stage::Pubcomp(token) => Some(Unacknowledged::Pubrel { packet_id, token }),
                Stage::Suback | Stage::Unsuback => None,
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
        let packet_id = self.begin_request(Stage::Suback)?;
        Subscribe { packet_id, properties, filters }.encode(self.version, out);
        Ok(packet_id)
    }

    /// Appends UNSUBSCRIBE and gives the identifier that [`Event::Unsubscribed`] will carry.
    pub fn unsubscribe(
        &mut self,
        filters: Topics<'_>,
        properties: Properties<'_>,
        out: &mut Vec<u8>,
    ) -> Result<u16, NotSent> {
        let packet_id = self.begin_request(Stage::Unsuback)?;
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
    pub fn acknowledge(&self, packet_id: u16, qos: QoS, out: &mut Vec<u8>) {
        let kind = match qos {
            QoS::AtMostOnce => return,
            QoS::AtLeastOnce => AckKind::Puback,
            QoS::ExactlyOnce => AckKind::Pubrec,
        };
        self.ack(kind, packet_id, Reason::SUCCESS, out);
    }

    /// Appends PUBREL for an exchange that [`Machine::unacknowledged`] named.
    pub fn repeat_pubrel(&self, packet_id: u16, out: &mut Vec<u8>) {
        self.ack(AckKind::Pubrel, packet_id, Reason::SUCCESS, out);
    }

    /// To be called whenever bytes were sent: keep-alive counts from the last packet.
    pub fn on_sent(&mut self, now_ms: u64) {
        self.last_sent_ms = now_ms;
    }

    /// When [`Machine::on_tick`] wants to be called next; `None` without keep-alive.
    pub fn next_tick_ms(&self) -> Option<u64> {
        if self.keep_alive_secs == 0 || self.state == State::Closed {
            return None;
        }
        // A quarter before time, as the packet needs its way too.
        Some(self.last_sent_ms + u64::from(self.keep_alive_secs) * 750)
    }

    /// Appends PINGREQ when it is due. `false`: the server owes an answer to the last one, and the
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
                self.end_request(suback.packet_id)?;
                Event::Subscribed { packet_id: suback.packet_id, reasons: suback.reasons }
            }
            Packet::Unsuback(unsuback) => {
                self.end_request(unsuback.packet_id)?;
                Event::Unsubscribed { packet_id: unsuback.packet_id, reasons: unsuback.reasons }
            }
            Packet::Pingresp => {
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
        if publish.qos == QoS::ExactlyOnce {
            if self.unreleased.contains(&publish.packet_id) {
                self.ack(AckKind::Pubrec, publish.packet_id, Reason::SUCCESS, out);
                return Ok(Event::Repeated { packet_id: publish.packet_id });
            }
            self.unreleased.push(publish.packet_id);
        }
        if self.acks == Acks::Automatic {
            self.acknowledge(publish.packet_id, publish.qos, out);
        }
        Ok(Event::Message(publish))
    }

    fn on_ack<'a>(&mut self, ack: Ack<'a>, out: &mut Vec<u8>) -> Result<Event<'a, T>, Violation> {
        if ack.kind == AckKind::Pubrel {
            self.on_pubrel(ack.packet_id, out);
            return Ok(Event::Nothing);
        }
        let Some(at) = self.position(ack.packet_id) else { return self.on_stray_ack(ack, out) };
        let stage = &mut self.open[at].stage;
        match (ack.kind, &mut *stage) {
            (AckKind::Puback, Stage::Puback(_)) | (AckKind::Pubcomp, Stage::Pubcomp(_)) => {}
            (AckKind::Pubrec, Stage::Pubrec(_)) if ack.reason.is_error() => {}
            (AckKind::Pubrec, Stage::Pubrec(_)) => {
                // The token moves from one stage to the next.
                let before = std::mem::replace(stage, Stage::Suback);
                if let Stage::Pubrec(token) = before {
                    *stage = Stage::Pubcomp(token);
                }
                self.ack(AckKind::Pubrel, ack.packet_id, Reason::SUCCESS, out);
                return Ok(Event::Nothing);
            }
            (AckKind::Pubrec, Stage::Pubcomp(_)) => {
                self.ack(AckKind::Pubrel, ack.packet_id, Reason::SUCCESS, out);
                self.pubcomps_extra += 1;
                return Ok(self.acked_again(AckKind::Pubrec));
            }
            _ => return Err(unexpected("MQTT-4.3.2-1", "an acknowledgement of the wrong kind")),
        }
        self.publishing -= 1;
        let qos = if ack.kind == AckKind::Puback { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        Ok(match self.remove(at) {
            Some(Stage::Puback(token) | Stage::Pubrec(token) | Stage::Pubcomp(token)) => {
                Event::Published { token, qos, reason: ack.reason, properties: ack.properties }
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
            AckKind::Pubrec | AckKind::Pubcomp if self.is_resumed => Event::Nothing,
            _ => Event::AckedAgain { kind },
        }
    }

    fn on_pubrel(&mut self, packet_id: u16, out: &mut Vec<u8>) {
        let known = self.unreleased.iter().position(|&id| id == packet_id);
        let reason = match known {
            Some(at) => {
                self.unreleased.remove(at);
                Reason::SUCCESS
            }
            None => Reason::PACKET_IDENTIFIER_NOT_FOUND,
        };
        self.ack(AckKind::Pubcomp, packet_id, reason, out);
    }

    fn end_request(&mut self, packet_id: u16) -> Result<(), Violation> {
        let at = self.position(packet_id);
        match at.map(|at| (at, &self.open[at].stage)) {
            Some((at, Stage::Suback | Stage::Unsuback)) => {
                self.remove(at);
                Ok(())
            }
            _ => Err(unexpected("MQTT-3.8.4-2", "an answer to a request that was not made")),
        }
    }

    fn take_limits(&mut self, properties: Properties<'_>) {
        for property in properties.iter() {
            match property {
                Property::ReceiveMax(max) => self.window_max = max,
                Property::TopicAliasMax(max) => self.topic_alias_max = max,
                Property::PacketBytesMax(max) => self.peer_packet_bytes_max = max,
                Property::ServerKeepAliveSecs(secs) => self.keep_alive_secs = secs,
                _ => {}
            }
        }
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

const PINGREQ: [u8; 2] = [0xC0, 0];
/// Room for open exchanges that an idle client may keep.
const IDLE_CAPACITY_MAX: usize = 64;

#[cfg(test)]
mod tests;
