//! One connection to the server under test.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::received::{Acked, Connack, Message, Packet};
use crate::wire::{self, Connect, Props, Publish, Version, first};
use crate::{broker, fresh};

/// A client that does what the test says and nothing by itself.
///
/// Reading waits up to [`ANSWER_TIMEOUT`]; running out of it, or the connection being closed, fails
/// the test. Helpers named after packets do the whole exchange, `send` and `recv` only their half.
pub struct Peer {
    stream: TcpStream,
    pub version: Version,
    next_packet_id: u16,
    connack: Option<Connack>,
    /// Messages that came while an acknowledgement was waited for.
    inbox: VecDeque<Packet>,
}

impl Peer {
    /// A TCP connection on which nothing has been sent.
    pub fn open(version: Version) -> Self {
        Self::open_at(broker::address(), version)
    }

    pub fn open_at(address: SocketAddr, version: Version) -> Self {
        let stream = TcpStream::connect(address).expect("the server takes TCP connections");
        stream.set_nodelay(true).expect("a TCP option");
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).expect("a TCP option");
        stream.set_write_timeout(Some(ANSWER_TIMEOUT)).expect("a TCP option");
        Self { stream, version, next_packet_id: 1, connack: None, inbox: VecDeque::new() }
    }

    /// Connected with a clean start and a fresh client id.
    pub fn connect(version: Version) -> Self {
        Connect::new(version).open()
    }

    /// What the server said when this connection was accepted.
    pub fn connack(&self) -> &Connack {
        self.connack.as_ref().expect("the connection was opened by a CONNECT")
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the server reads what it is sent");
    }

    /// As [`send`](Self::send), when the server may have closed the connection already.
    pub fn send_anyway(&mut self, bytes: impl AsRef<[u8]>) {
        let _closed = self.stream.write_all(bytes.as_ref());
    }

    /// The next packet; fails when none comes.
    pub fn recv(&mut self) -> Packet {
        self.recv_or_end().expect("a packet, but the server closed the connection")
    }

    /// The next packet that is no message: nothing orders messages and acknowledgements.
    fn recv_answer(&mut self) -> Packet {
        loop {
            let packet = self.read_packet();
            let packet = packet.expect("an answer, but the server closed the connection");
            if packet.kind() != first::PUBLISH {
                return packet;
            }
            self.inbox.push_back(packet);
        }
    }

    /// The next packet, or `None` when the server has closed the connection.
    pub fn recv_or_end(&mut self) -> Option<Packet> {
        self.inbox.pop_front().or_else(|| self.read_packet())
    }

    fn read_packet(&mut self) -> Option<Packet> {
        let first = self.read_byte()?;
        let mut length = 0;
        for length_bytes in 1..=4 {
            let byte = self.read_byte()?;
            length |= usize::from(byte & 0x7F) << (7 * (length_bytes - 1));
            if byte & 0x80 == 0 {
                assert!(byte != 0 || length_bytes == 1, "a length longer than it need be");
                let mut body = vec![0; length];
                self.stream.read_exact(&mut body).expect("the whole packet");
                return Some(Packet { first, body, length_bytes });
            }
        }
        panic!("the server sent a remaining length of more than four bytes");
    }

    fn read_byte(&mut self) -> Option<u8> {
        let mut byte = [0];
        match self.stream.read_exact(&mut byte) {
            Ok(()) => Some(byte[0]),
            Err(error) if is_end(error.kind()) => None,
            Err(error) if is_timeout(error.kind()) => {
                panic!("nothing came within {ANSWER_TIMEOUT:?}")
            }
            Err(error) => panic!("reading failed: {error}"),
        }
    }

    /// The server closes the connection without another word.
    pub fn expect_closed(&mut self) {
        if let Some(packet) = self.recv_or_end() {
            panic!("the connection should be closed, but {packet:02x?} came");
        }
    }

    /// The server closes the connection because of what it was sent. An MQTT 5 server may say why
    /// in a DISCONNECT first, ours has to; the reason is then one of `reasons`.
    pub fn expect_refused(&mut self, reasons: &[u8]) {
        let packet = self.recv_or_end();
        let may_drop = self.version < Version::V5 || !broker::is_ours();
        assert!(packet.is_some() || may_drop, "closed without a DISCONNECT that says why");
        self.inbox.extend(packet);
        self.expect_refused_or_dropped(reasons);
    }

    /// The same for bytes that are hardly MQTT at all, or come with a farewell: any server may
    /// close the connection without a word.
    pub fn expect_refused_or_dropped(&mut self, reasons: &[u8]) {
        if let Some(packet) = self.recv_or_end() {
            assert_eq!(self.version, Version::V5, "only MQTT 5 has DISCONNECT from a server");
            let (reason, _) = packet.disconnect();
            assert!(reasons.contains(&reason), "DISCONNECT {reason:#x}, not {reasons:x?}");
            self.expect_closed();
        }
    }

    /// The server refuses the CONNECT and closes the connection. It may say why in a CONNACK; the
    /// reason is then one of `reasons`.
    pub fn expect_connect_refused(&mut self, reasons: &[u8]) {
        if let Some(packet) = self.recv_or_end() {
            let connack = packet.connack(self.version);
            assert!(reasons.contains(&connack.reason), "{:#x}, not {reasons:x?}", connack.reason);
            assert_eq!(connack.flags, 0, "session present in a refusal");
            self.expect_closed();
        }
    }

    /// The CONNECT that was sent is answered with this reason.
    pub fn expect_connack(&mut self, reason: u8) -> Connack {
        let connack = self.recv().connack(self.version);
        assert_eq!(connack.reason, reason);
        connack
    }

    /// Nothing is on its way: the answer to a PINGREQ is the next packet that comes.
    pub fn ping(&mut self) {
        self.send(wire::pingreq());
        let packet = self.recv();
        assert_eq!((packet.first, packet.body.len()), (first::PINGRESP, 0), "{packet:02x?}");
    }

    /// Nothing that `publisher` has published so far comes to this client: a message published
    /// now, on the same path, comes first.
    pub fn expect_nothing_from(&mut self, publisher: &mut Self) {
        let fence = fresh("fence");
        self.subscribe(&fence, 0);
        publisher.send(Publish::new(&fence, "fence").encoded(publisher.version));
        let message = self.recv_message();
        assert_eq!(message.topic, fence, "this should not have come: {message:?}");
    }

    /// The same for what this client publishes itself.
    pub fn expect_nothing_of_its_own(&mut self) {
        let fence = fresh("fence");
        self.subscribe(&fence, 0);
        self.send(Publish::new(&fence, "fence").encoded(self.version));
        let message = self.recv_message();
        assert_eq!(message.topic, fence, "this should not have come: {message:?}");
    }

    pub fn packet_id(&mut self) -> u16 {
        let id = self.next_packet_id;
        self.next_packet_id = id.checked_add(1).unwrap_or(1);
        id
    }

    /// Subscribes to one filter and returns the reason the server gave.
    pub fn subscribe(&mut self, filter: impl AsRef<[u8]>, options: u8) -> u8 {
        self.subscribe_with(&Props::new(), &[(filter.as_ref(), options)]).reasons[0]
    }

    /// Subscribes and waits for the SUBACK.
    pub fn subscribe_with(&mut self, props: &Props, filters: &[(&[u8], u8)]) -> Acked {
        let id = self.packet_id();
        self.send(wire::subscribe(self.version, id, props, filters));
        let acked = self.recv_answer().acks(first::SUBACK, self.version);
        assert_eq!(acked.packet_id, id);
        assert_eq!(acked.reasons.len(), filters.len());
        acked
    }

    pub fn unsubscribe(&mut self, filters: &[&str]) -> Acked {
        let id = self.packet_id();
        self.send(wire::unsubscribe(self.version, id, filters));
        let acked = self.recv_answer().acks(first::UNSUBACK, self.version);
        assert_eq!(acked.packet_id, id);
        acked
    }

    /// Publishes with the whole exchange of its QoS; returns the reason of the PUBACK or PUBREC.
    /// A packet id is chosen when the packet has none.
    pub fn publish(&mut self, publish: Publish) -> u8 {
        let id = if publish.packet_id == 0 { self.packet_id() } else { publish.packet_id };
        let qos = publish.qos;
        self.send(publish.id(id).encoded(self.version));
        match qos {
            0 => 0,
            1 => self.expect_ack(first::PUBACK, id),
            _ => {
                let reason = self.expect_ack(first::PUBREC, id);
                if reason < 0x80 {
                    self.send(wire::ack(first::PUBREL, id));
                    assert_eq!(self.expect_ack(first::PUBCOMP, id), 0);
                }
                reason
            }
        }
    }

    /// The next packet that is no message is this acknowledgement; returns its reason.
    pub fn expect_ack(&mut self, first: u8, packet_id: u16) -> u8 {
        let acked = self.recv_answer().ack(first, self.version);
        assert_eq!(acked.packet_id, packet_id);
        acked.reasons[0]
    }

    /// The same whatever its packet id.
    pub fn expect_ack_of_any(&mut self, first: u8) -> u8 {
        self.recv_answer().ack(first, self.version).reasons[0]
    }

    /// The next packet is a PUBLISH; it is not acknowledged.
    pub fn recv_message(&mut self) -> Message {
        let message = self.recv().message(self.version);
        assert!(message.qos < 3, "QoS 3 from the server");
        assert!(message.qos == 0 || message.packet_id != 0, "packet id 0 from the server");
        assert!(message.qos > 0 || !message.dup, "QoS 0 with DUP from the server");
        message
    }

    /// The next packet is a PUBLISH; acknowledged with the whole exchange of its QoS.
    pub fn take(&mut self) -> Message {
        let message = self.recv_message();
        match message.qos {
            0 => {}
            1 => self.send(wire::ack(first::PUBACK, message.packet_id)),
            _ => {
                self.send(wire::ack(first::PUBREC, message.packet_id));
                assert_eq!(self.expect_ack(first::PUBREL, message.packet_id), 0);
                self.send(wire::ack(first::PUBCOMP, message.packet_id));
            }
        }
        message
    }

    /// Puts a packet back, to be received again before any other.
    pub fn give_back(&mut self, packet: Packet) {
        self.inbox.push_front(packet);
    }

    /// Says DISCONNECT and waits until the server has closed the connection too.
    pub fn disconnect(mut self) {
        self.send(wire::disconnect());
        self.finish();
    }

    pub fn disconnect_with(mut self, reason: u8, props: &Props) {
        self.send(wire::disconnect_with(reason, props));
        self.finish();
    }

    /// Goes away without a word, as a network failure does.
    pub fn vanish(self) {
        self.stream.shutdown(Shutdown::Write).expect("the connection is open");
        self.finish();
    }

    /// Sends nothing more, but goes on reading.
    pub fn shut_write(&mut self) {
        self.stream.shutdown(Shutdown::Write).expect("the connection is open");
    }

    fn finish(mut self) {
        while self.recv_or_end().is_some() {}
    }
}

impl Connect {
    /// Opens a connection and sends the CONNECT; reads nothing.
    pub fn send(&self) -> Peer {
        self.send_at(broker::address())
    }

    pub fn send_at(&self, address: SocketAddr) -> Peer {
        let mut peer = Peer::open_at(address, self.version);
        peer.send(self.encoded());
        peer
    }

    /// Opens a connection that the server accepts.
    pub fn open(&self) -> Peer {
        self.open_at(broker::address())
    }

    pub fn open_at(&self, address: SocketAddr) -> Peer {
        let mut peer = self.send_at(address);
        let connack = peer.recv().connack(self.version);
        assert_eq!(connack.reason, 0, "the server refuses {self:?}");
        peer.connack = Some(connack);
        peer
    }
}

fn is_end(kind: ErrorKind) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, UnexpectedEof | ConnectionReset | ConnectionAborted)
}

fn is_timeout(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// How long a test waits for something that has to come. Only failing tests wait that long.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
