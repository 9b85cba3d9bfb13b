//! What clients of a laboratory do.

use std::ops::Range;

use broker::ConnectRequest;
use codec::{
    Ack, AckKind, Packet, Properties, Reason, Sender, SubscribeOptions, TopicBuf, Unsubscribe,
};

use crate::got::own;
use crate::lab::Peer;
use crate::{Conn, Got, Lab, Received, level, persistent, publish, request, subscribe_bytes};

impl Lab {
    /// Connects without delivering mail.
    pub fn connect_only(&mut self, request: ConnectRequest) -> Conn {
        let conn = self.next_conn;
        self.next_conn += 1;
        let shard = usize::from(self.shared.place_of_client(request.name()));
        let version = request.version;
        let connected = self.shards[shard].on_connect(conn, request, self.now_ms);
        let is_closed = connected.is_err();
        let (slot, unread) = match connected {
            Ok(slot) => (slot, Vec::new()),
            Err(answer) => (u32::MAX, answer),
        };
        let peer = Peer { shard, slot, version, unread, is_closed };
        self.peers.insert(conn, peer);
        conn
    }

    pub fn connect(&mut self, request: ConnectRequest) -> Conn {
        let conn = self.connect_only(request);
        self.settle();
        conn
    }

    /// Connects, and reads the CONNACK away.
    pub fn open(&mut self, request: ConnectRequest) -> Conn {
        let conn = self.connect(request);
        match self.take(conn) {
            Some(Got::Connack { reason: Reason::SUCCESS, .. }) => conn,
            other => panic!("expected a CONNACK, got {other:?}"),
        }
    }

    /// A session that is kept, subscribed and away.
    pub fn leave(&mut self, client_id: &str, filter: &str, qos: u8) {
        let conn = self.open(persistent(client_id));
        assert_eq!(self.subscribe(conn, filter, qos), qos);
        self.cut(conn);
    }

    /// Connects to a kept session. Returns whether there was one.
    pub fn resume(&mut self, client_id: &str) -> (Conn, bool) {
        let conn = self.connect(persistent(client_id));
        let is_present = self.connack(conn).expect("an answer").expect("success");
        (conn, is_present)
    }

    /// The CONNACK: whether there was a session, or why it is refused. None: there is none yet.
    pub fn connack(&mut self, conn: Conn) -> Option<Result<bool, Reason>> {
        match self.take(conn)? {
            Got::Connack { session_present, reason: Reason::SUCCESS, .. } => {
                Some(Ok(session_present))
            }
            Got::Connack { reason, .. } => Some(Err(reason)),
            other => panic!("expected a CONNACK, got {other:?}"),
        }
    }

    /// Bytes from a client; the mail stays where it is.
    pub fn bytes(&mut self, conn: Conn, bytes: &[u8]) {
        let (shard, slot) = self.place(conn);
        self.shards[shard].on_bytes(slot, conn, bytes, self.now_ms);
        self.collect_closes();
    }

    pub fn send_only(&mut self, conn: Conn, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(self.peers[&conn].version, &mut bytes);
        self.bytes(conn, &bytes);
    }

    pub fn send(&mut self, conn: Conn, packet: &Packet<'_>) {
        self.send_only(conn, packet);
        self.settle();
    }

    pub fn publish(&mut self, conn: Conn, topic: &str, payload: &[u8], qos: u8, packet_id: u16) {
        self.send(conn, &publish(topic, payload, qos, packet_id));
    }

    pub fn subscribe(&mut self, conn: Conn, filter: &str, qos: u8) -> u8 {
        self.subscribe_with(conn, filter, SubscribeOptions::new(level(qos)), None)
    }

    pub fn subscribe_with(
        &mut self,
        conn: Conn,
        filter: &str,
        options: SubscribeOptions,
        identifier: Option<u32>,
    ) -> u8 {
        let version = self.peers[&conn].version;
        self.bytes(conn, &subscribe_bytes(version, &[(filter, options)], identifier));
        self.flush();
        while self.read_on() {
            self.flush();
        }
        // The answer waits for disks, or for other shards.
        if !self.disks.is_empty() || filter.starts_with("$share/") {
            self.settle();
        }
        let reason = match self.take(conn) {
            Some(Got::Suback(1, reasons)) => reasons[0],
            other => panic!("expected a SUBACK, got {other:?}"),
        };
        self.settle();
        reason
    }

    /// What somebody is sent who subscribes now.
    pub fn retained_on(&mut self, filter: &str) -> Vec<String> {
        let fresh = self.open(request("fresh"));
        self.subscribe(fresh, filter, 0);
        self.settle();
        let payloads = self.payloads(fresh);
        self.cut(fresh);
        payloads
    }

    /// Asks for all of them in one packet; the mail stays where it is.
    pub fn subscribe_all(&mut self, conn: Conn, filters: &[impl AsRef<str>], qos: u8) {
        let options = SubscribeOptions::new(level(qos));
        let filters: Vec<_> = filters.iter().map(|filter| (filter.as_ref(), options)).collect();
        self.bytes(conn, &subscribe_bytes(self.peers[&conn].version, &filters, None));
    }

    /// Gives all of them up in one packet; the mail stays where it is.
    pub fn unsubscribe_all(&mut self, conn: Conn, filters: &[impl AsRef<str>]) {
        let mut gone = TopicBuf::new();
        for filter in filters {
            gone.push(filter.as_ref());
        }
        let packet = Packet::Unsubscribe(Unsubscribe {
            packet_id: 2,
            properties: Properties::EMPTY,
            filters: gone.as_topics(),
        });
        self.send_only(conn, &packet);
    }

    pub fn unsubscribe(&mut self, conn: Conn, filter: &str) {
        self.unsubscribe_all(conn, &[filter]);
        self.settle();
    }

    pub fn ack(&mut self, conn: Conn, kind: AckKind, packet_id: u16) {
        self.send(conn, &Packet::Ack(Ack::new(kind, packet_id, Reason::SUCCESS)));
    }

    /// The network connection breaks.
    pub fn cut(&mut self, conn: Conn) {
        let (shard, slot) = self.place(conn);
        self.shards[shard].on_closed(slot, conn, self.now_ms);
        self.settle();
    }

    pub fn is_closed(&self, conn: Conn) -> bool {
        self.peers[&conn].is_closed
    }

    /// The next packet that was written to a client.
    pub fn take(&mut self, conn: Conn) -> Option<Got> {
        let peer = self.peers.get_mut(&conn).expect("a known connection");
        let (packet, len) = codec::decode(&peer.unread, peer.version, Sender::Server, u32::MAX)
            .expect("the broker keeps to the protocol")?;
        let got = own(&packet);
        peer.unread.drain(..len);
        Some(got)
    }

    pub fn take_all(&mut self, conn: Conn) -> Vec<Got> {
        std::iter::from_fn(|| self.take(conn)).collect()
    }

    /// All publishes that were written to a client; other packets are skipped.
    pub fn received(&mut self, conn: Conn) -> Vec<Received> {
        self.take_all(conn)
            .into_iter()
            .filter_map(|got| match got {
                Got::Publish(received) => Some(received),
                _ => None,
            })
            .collect()
    }

    /// All acknowledgements that were written to a client; other packets are skipped.
    pub fn acks(&mut self, conn: Conn) -> Vec<(AckKind, u16, Reason)> {
        let ack = |got| match got {
            Got::Ack(kind, packet_id, reason) => Some((kind, packet_id, reason)),
            _ => None,
        };
        self.take_all(conn).into_iter().filter_map(ack).collect()
    }

    pub fn payloads(&mut self, conn: Conn) -> Vec<String> {
        self.received(conn)
            .into_iter()
            .map(|received| String::from_utf8(received.payload).expect("text"))
            .collect()
    }
}

pub fn texts(numbers: Range<u32>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

/// Publishes `0`, `1`, `2`, ... with QoS 1.
pub fn publish_numbers(lab: &mut Lab, publisher: Conn, topic: &str, numbers: Range<u32>) {
    for number in numbers {
        lab.publish(publisher, topic, number.to_string().as_bytes(), 1, 1);
    }
    lab.take_all(publisher);
}

/// Reads and acknowledges until nothing comes any more.
pub fn read_all(lab: &mut Lab, conn: Conn) -> Vec<String> {
    let mut payloads = Vec::new();
    loop {
        let received = lab.received(conn);
        if received.is_empty() {
            return payloads;
        }
        for publish in received {
            payloads.push(String::from_utf8(publish.payload).expect("text"));
            let kinds: &[AckKind] = match publish.qos {
                0 => &[],
                1 => &[AckKind::Puback],
                _ => &[AckKind::Pubrec, AckKind::Pubcomp],
            };
            kinds.iter().for_each(|kind| lab.ack(conn, *kind, publish.packet_id));
        }
    }
}
