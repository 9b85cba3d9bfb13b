//! A laboratory: shards that one test drives, and clients that speak MQTT bytes.
//!
//! Mail is delivered when the test says so, time passes when the test says so, and a client reads
//! only when it is asked to.

use std::collections::HashMap;
use std::sync::Arc;

use broker::admission::{self, Admission, Refusal};
use broker::{
    ConnectRequest, Event, Figure, Limits, Mail, Metrics, Name, Reauthenticate, Replay, Scope,
    Settings, Shard, Shared,
};
use codec::{
    Ack, AckKind, Connect, FilterBuf, Packet, Properties, Property, PropertyBuf, Publish, QoS,
    Reason, Sender, Subscribe, SubscribeOptions, TopicBuf, Unsubscribe, Version,
};
use policy::Access;
use policy::{Permission, Rule, Who};

use session::{Overflow, QueueLimits};
use storage::testing::{Crash, SimDisk};
use storage::{Identity, Journal};

/// Rounds of mail after which shards that still write to each other are taken to go in circles.
const ROUNDS_MAX: usize = 10_000;

/// A packet that a client was sent, owned.
#[derive(Clone, Debug, PartialEq)]
pub enum Got {
    Connack { session_present: bool, reason: Reason, properties: Vec<u8> },
    Publish(Received),
    Ack(AckKind, u16, Reason),
    Suback(u16, Vec<u8>),
    Unsuback(u16, Vec<u8>),
    Pingresp,
    Disconnect(Reason),
    Auth(Reason, Vec<u8>),
}

/// A PUBLISH that a client was sent.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Received {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub dup: bool,
    pub retain: bool,
    pub packet_id: u16,
    pub alias: Option<u16>,
    pub identifiers: Vec<u32>,
    pub expiry_secs: Option<u32>,
}

#[derive(Debug)]
struct Peer {
    shard: usize,
    slot: u32,
    version: Version,
    /// Bytes that were written to it and that it has not decoded.
    unread: Vec<u8>,
    is_closed: bool,
}

/// A connection of the laboratory.
pub type Conn = u64;

pub struct Lab {
    pub shards: Vec<Shard>,
    pub shared: Arc<Shared>,
    pub now_ms: u64,
    peers: HashMap<Conn, Peer>,
    next_conn: Conn,
    pub events: Vec<Event>,
    pub pauses: Vec<(Conn, u64)>,
    /// Whose pause is over.
    due: Vec<Conn>,
    pub asked: Vec<Reauthenticate>,
    pub journal_settings: storage::Settings,
    /// One per shard, if the laboratory has journals.
    pub disks: Vec<SimDisk>,
    /// The disks do nothing, whatever they are told.
    pub disks_stand_still: bool,
    /// Each answer to a publish, and each page of retained messages, comes several times.
    pub repeats_answers: bool,
}

/// Journals small enough that a test can fill and reclaim them. What nobody waits for is written at
/// once, so that a crash finds it.
pub fn journal_settings() -> storage::Settings {
    storage::Settings { lazy_commit_ms: 0, ..storage::Settings::with_segment_bytes(64 * 1024) }
}

impl Lab {
    pub fn new(shard_count: u16) -> Self {
        Self::with(shard_count, Settings::default(), Access::open())
    }

    pub fn with(shard_count: u16, settings: Settings, access: Access) -> Self {
        let shared = Shared::new(settings, shard_count, 7);
        open_scopes(&shared);
        let shards =
            (0..shard_count).map(|id| Shard::new(id, shared.clone(), access.clone())).collect();
        Self {
            shards,
            shared,
            now_ms: 1_000_000_000,
            peers: HashMap::new(),
            next_conn: 0,
            events: Vec::new(),
            pauses: Vec::new(),
            due: Vec::new(),
            asked: Vec::new(),
            journal_settings: journal_settings(),
            disks: Vec::new(),
            disks_stand_still: false,
            repeats_answers: false,
        }
    }

    /// With journals on simulated disks.
    pub fn durable(shard_count: u16) -> Self {
        Self::durable_with(shard_count, Settings::default())
    }

    pub fn durable_with(shard_count: u16, settings: Settings) -> Self {
        Self::durable_by(shard_count, settings, journal_settings())
    }

    pub fn durable_by(
        shard_count: u16,
        settings: Settings,
        journal_settings: storage::Settings,
    ) -> Self {
        let mut lab = Self::with(shard_count, settings, Access::open());
        lab.journal_settings = journal_settings;
        lab.disks = (0..shard_count).map(|shard| SimDisk::new(shard.into())).collect();
        lab.disks.iter_mut().for_each(SimDisk::record_writes);
        lab.open_journals();
        lab
    }

    /// The broker ends as it is, and starts again on what the disks have. All connections are gone.
    pub fn crash(&mut self, crash: Crash) {
        for disk in &mut self.disks {
            disk.crash(crash);
        }
        self.restart();
    }

    /// New shards on the same disks.
    pub fn restart(&mut self) {
        let count = self.shared.shard_count;
        self.shared = Shared::new(self.shared.settings.clone(), count, 11);
        open_scopes(&self.shared);
        self.shards =
            (0..count).map(|id| Shard::new(id, self.shared.clone(), Access::open())).collect();
        self.peers.clear();
        self.open_journals();
    }

    fn open_journals(&mut self) {
        let (settings, limits) = (self.journal_settings.clone(), Arc::new(Limits::default()));
        let shards = self.shared.shard_count;
        for (shard, disk) in self.shards.iter_mut().zip(&self.disks) {
            let (id, mut replay) = (shard.id(), Replay::new(7));
            let recovery = disk
                .read_back((id, shards), &settings, &mut |record, ledger| {
                    replay.on_record(record, ledger);
                })
                .expect("a sound log");
            let identity = Identity { id: [7; 16], shard: id, shards };
            let recovered = recovery.finish(identity);
            let Some((followed, replay_followed)) = follow(disk, identity, &settings) else {
                shard
                    .open_journal(recovered, settings.clone(), replay, &limits, self.now_ms)
                    .expect("records of this version");
                continue;
            };
            // A standby that has seen every write of all lives has the same.
            assert_eq!(format!("{:?}", followed.ledger), format!("{:?}", recovered.ledger));
            let shared = Shared::new(self.shared.settings.clone(), shards, 11);
            open_scopes(&shared);
            let mut other = Shard::new(id, shared, Access::open());
            let expected = other
                .open_journal(recovered, settings.clone(), replay, &limits, self.now_ms)
                .expect("records of this version");
            let found = shard
                .open_journal(followed, settings.clone(), replay_followed, &limits, self.now_ms)
                .expect("records of this version");
            assert_eq!(found, expected);
            let sizes = |shard: &Shard| {
                let stats = shard.journal().expect("a log").stats();
                (stats.live_bytes, stats.used_bytes, stats.segments)
            };
            assert_eq!(sizes(shard), sizes(&other));
        }
        broker::settle(&mut self.shards, self.now_ms);
        self.settle();
        let are_ready =
            self.shards.iter().all(|shard| shard.journal().is_none_or(Journal::is_ready));
        assert!(are_ready, "the logs are open");
    }

    /// Lets the disks do what they were told; false if there was nothing.
    pub fn work_disks(&mut self) -> bool {
        let mut any = false;
        let mut commands = Vec::new();
        for (shard, disk) in self.shards.iter_mut().zip(&mut self.disks) {
            shard.take_disk_commands(&mut commands, self.now_ms);
            any |= !commands.is_empty();
            commands.drain(..).for_each(|command| disk.submit(command));
            while !self.disks_stand_still && !disk.is_idle() {
                if let Some(completion) = disk.step() {
                    shard.on_disk(completion, self.now_ms);
                    any = true;
                }
            }
        }
        any
    }

    pub fn total<T: Figure>(&self, figure: impl Fn(&Metrics) -> &T) -> u64 {
        self.shared.total(figure)
    }

    /// Fills segments of the first shard with what is replaced at once, so that all before it is
    /// copied forward and its space comes back.
    pub fn turn_the_journal_over(&mut self) {
        let reclaimed =
            |lab: &Self| lab.shards[0].journal().map(|journal| journal.stats().segments_reclaimed);
        let (before, topic) = (reclaimed(self), self.topic_on(0, "busy"));
        let busy = self.open(persistent("busy"));
        for _ in 0..100 {
            self.send(busy, &retained(&topic, &[b'x'; 8000], 1, 1));
        }
        self.take_all(busy);
        self.cut(busy);
        assert!(reclaimed(self) > before.map(|count| count + 3));
    }

    /// A client id that lives on a shard.
    pub fn id_on(&self, shard: u16, name: &str) -> String {
        (0..10_000)
            .map(|number| format!("{name}-{number}"))
            .find(|id| self.shared.shard_of_client(Name::first(id)) == shard)
            .expect("some name hashes to the shard")
    }

    /// A topic whose retained message lives on a shard.
    pub fn topic_on(&self, shard: u16, name: &str) -> String {
        (0..10_000)
            .map(|number| format!("{name}/{number}"))
            .find(|topic| self.shared.shard_of_topic(Name::first(topic)) == shard)
            .expect("some topic hashes to the shard")
    }

    /// Connects without delivering mail.
    pub fn connect_only(&mut self, request: ConnectRequest) -> Conn {
        let conn = self.next_conn;
        self.next_conn += 1;
        let shard = usize::from(self.shared.shard_of_client(request.name()));
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
        let mut filters = FilterBuf::new();
        filters.push(filter, options);
        let mut properties = PropertyBuf::new();
        if let Some(identifier) = identifier {
            properties.push(Property::SubscriptionId(identifier));
        }
        self.send_only(
            conn,
            &Packet::Subscribe(Subscribe {
                packet_id: 1,
                properties: properties.as_properties(),
                filters: filters.as_filters(),
            }),
        );
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

    /// Asks for all of them in one packet; the mail stays where it is.
    pub fn subscribe_all(&mut self, conn: Conn, filters: &[impl AsRef<str>], qos: u8) {
        let mut asked = FilterBuf::new();
        for filter in filters {
            asked.push(filter.as_ref(), SubscribeOptions::new(level(qos)));
        }
        let packet = Packet::Subscribe(Subscribe {
            packet_id: 1,
            properties: Properties::EMPTY,
            filters: asked.as_filters(),
        });
        self.send_only(conn, &packet);
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

    /// Delivers one batch of mail from each shard to each other; false if there was none.
    pub fn deliver_mail(&mut self) -> bool {
        self.deliver_mail_but(None)
    }

    /// The same, but to one shard that hears nothing.
    fn deliver_mail_but(&mut self, deaf: Option<u16>) -> bool {
        let mut batches = Vec::new();
        for shard in &mut self.shards {
            for (to, mail) in shard.effects_mut().mail.iter_mut().enumerate() {
                if !mail.is_empty() && deaf != Some(to as u16) {
                    batches.push((to, std::mem::take(mail)));
                }
            }
        }
        let any = !batches.is_empty();
        for (to, mail) in batches {
            for item in mail {
                let is_answer = matches!(item, Mail::Confirmed { .. } | Mail::Retained { .. });
                let repeats = if self.repeats_answers && is_answer { 3 } else { 0 };
                for again in std::iter::repeat_n(item.clone(), repeats) {
                    self.shards[to].on_mail(again, self.now_ms);
                }
                self.shards[to].on_mail(item, self.now_ms);
            }
        }
        any
    }

    /// Writes the outboxes of connections, as far as sockets take everything; the turn is over.
    pub fn flush(&mut self) {
        for shard in 0..self.shards.len() {
            while let Some((slot, conn)) = self.shards[shard].take_dirty() {
                self.write(shard, slot, conn, usize::MAX);
            }
            self.shards[shard].end_turn();
        }
        self.collect_closes();
    }

    /// Writes at most so many bytes to one connection.
    pub fn write_some(&mut self, conn: Conn, bytes_max: usize) {
        let (shard, slot) = self.place(conn);
        self.write(shard, slot, conn, bytes_max);
    }

    fn write(&mut self, shard: usize, slot: u32, conn: Conn, bytes_max: usize) {
        let Some(outbox) = self.shards[shard].outbox(slot, conn) else { return };
        let mut bytes: Vec<u8> = outbox.slices().flatten().copied().collect();
        bytes.truncate(bytes_max);
        self.shards[shard].on_written(slot, conn, bytes.len(), self.now_ms);
        self.peers.get_mut(&conn).expect("a known connection").unread.extend(bytes);
    }

    /// Until nobody has anything to say: mail and sockets.
    ///
    /// # Panics
    ///
    /// When shards write to each other without an end.
    pub fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.flush();
            let has_read_on = self.read_on();
            if !self.deliver_mail() && !has_read_on {
                self.flush();
                let did_work = !self.disks.is_empty() && self.work_disks();
                if !did_work && self.due.is_empty() && !self.shards.iter().any(has_mail) {
                    return;
                }
            }
        }
        panic!("mail goes round in circles");
    }

    /// Reads those on whose pause is over; false if there is nobody.
    pub fn read_on(&mut self) -> bool {
        let due = std::mem::take(&mut self.due);
        for conn in &due {
            let Some(peer) = self.peers.get(conn).filter(|peer| !peer.is_closed) else { continue };
            self.shards[peer.shard].on_bytes(peer.slot, *conn, &[], self.now_ms);
        }
        let mut any = !due.is_empty();
        for shard in &mut self.shards {
            any |= shard.read_line_on(self.now_ms);
        }
        self.collect_closes();
        any
    }

    /// Is a connection to be read, by the latest of [`Lab::pauses`]?
    pub fn is_read(&self, conn: Conn) -> bool {
        let latest = self.pauses.iter().rev().find(|(paused, _)| *paused == conn);
        latest.is_none_or(|(_, until_ms)| *until_ms <= self.now_ms)
    }

    /// Until nobody has anything to say but to one shard, which hears nothing.
    pub fn settle_but(&mut self, deaf: u16) {
        for _ in 0..ROUNDS_MAX {
            let has_delivered = self.deliver_mail_but(Some(deaf));
            self.flush();
            if !self.work_disks() && !has_delivered {
                return;
            }
        }
        panic!("mail goes round in circles");
    }

    /// Mail until there is none, but sockets take nothing.
    pub fn settle_mail(&mut self) {
        for _ in 0..ROUNDS_MAX {
            if !self.deliver_mail() {
                self.collect_closes();
                return;
            }
        }
        panic!("mail goes round in circles");
    }

    pub fn collect_closes(&mut self) {
        for shard in &mut self.shards {
            for close in shard.effects_mut().closes.drain(..) {
                let Some(peer) = self.peers.get_mut(&close.connection) else { continue };
                peer.unread.extend(close.farewell.slices().flatten());
                peer.is_closed = true;
            }
            self.events.extend(shard.effects_mut().events.drain(..).map(|(_, event)| event));
            let pauses = &mut shard.effects_mut().pauses;
            let is_due = |(_, until_ms): &&(Conn, u64)| *until_ms <= self.now_ms;
            self.due.extend(pauses.iter().filter(is_due).map(|(conn, _)| *conn));
            self.pauses.append(pauses);
            self.asked.append(&mut shard.effects_mut().reauthentications);
        }
    }

    /// The network connection breaks.
    pub fn cut(&mut self, conn: Conn) {
        let (shard, slot) = self.place(conn);
        self.shards[shard].on_closed(slot, conn, self.now_ms);
        self.settle();
    }

    /// Time passes, second by second.
    pub fn pass_secs(&mut self, secs: u64) {
        for _ in 0..secs {
            self.now_ms += 1000;
            for shard in &mut self.shards {
                shard.on_tick(self.now_ms);
            }
            self.settle();
        }
    }

    pub fn is_closed(&self, conn: Conn) -> bool {
        self.peers[&conn].is_closed
    }

    pub fn place(&self, conn: Conn) -> (usize, u32) {
        let peer = &self.peers[&conn];
        (peer.shard, peer.slot)
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

    pub fn payloads(&mut self, conn: Conn) -> Vec<String> {
        self.received(conn)
            .into_iter()
            .map(|received| String::from_utf8(received.payload).expect("text"))
            .collect()
    }
}

/// Beside the first scope there are these.
pub const SCOPES: [Scope; 2] = [Scope::new(1), Scope::new(300)];

/// What a standby has that was brought all writes to a disk, if nothing else has changed it.
fn follow(
    disk: &SimDisk,
    identity: Identity,
    settings: &storage::Settings,
) -> Option<(storage::Recovered, Replay)> {
    let mut replay = Replay::new(7);
    let owner = (identity.shard, identity.shards);
    let follow = disk.follow(owner, settings, &mut |record, ledger| {
        replay.on_record(record, ledger);
    })?;
    let follow = follow.expect("the writes are a log");
    follow.check().expect("a whole log");
    Some((follow.finish(identity), replay))
}

fn open_scopes(shared: &Shared) {
    for scope in SCOPES {
        shared.spaces.open(scope);
    }
}

fn has_mail(shard: &Shard) -> bool {
    shard.effects().mail.iter().any(|mail| !mail.is_empty())
}

fn own(packet: &Packet<'_>) -> Got {
    match packet {
        Packet::Connack(connack) => Got::Connack {
            session_present: connack.session_present,
            reason: connack.reason,
            properties: connack.properties.raw().to_vec(),
        },
        Packet::Publish(publish) => Got::Publish(Received {
            topic: publish.topic.into(),
            payload: publish.payload.to_vec(),
            qos: publish.qos as u8,
            dup: publish.dup,
            retain: publish.retain,
            packet_id: publish.packet_id,
            alias: publish.properties.topic_alias(),
            identifiers: publish.properties.subscription_ids().collect(),
            expiry_secs: publish.properties.message_expiry_secs(),
        }),
        Packet::Ack(ack) => Got::Ack(ack.kind, ack.packet_id, ack.reason),
        Packet::Suback(suback) => Got::Suback(suback.packet_id, suback.reasons.to_vec()),
        Packet::Unsuback(unsuback) => Got::Unsuback(unsuback.packet_id, unsuback.reasons.to_vec()),
        Packet::Pingresp => Got::Pingresp,
        Packet::Disconnect(disconnect) => Got::Disconnect(disconnect.reason),
        Packet::Auth(auth) => {
            Got::Auth(auth.reason, auth.properties.auth_data().unwrap_or_default().to_vec())
        }
        other => panic!("a server does not send {other:?}"),
    }
}

pub fn level(qos: u8) -> QoS {
    QoS::try_from(qos).expect("0, 1 or 2")
}

pub fn publish<'a>(topic: &'a str, payload: &'a [u8], qos: u8, packet_id: u16) -> Packet<'a> {
    Packet::Publish(Publish {
        dup: false,
        qos: level(qos),
        retain: false,
        topic,
        packet_id,
        properties: Properties::EMPTY,
        payload,
    })
}

pub fn retained<'a>(topic: &'a str, payload: &'a [u8], qos: u8, packet_id: u16) -> Packet<'a> {
    let Packet::Publish(publish) = publish(topic, payload, qos, packet_id) else { unreachable!() };
    Packet::Publish(Publish { retain: true, ..publish })
}

/// A CONNECT packet of version 5 with nothing special about it.
pub fn connect_packet(client_id: &str) -> Connect<'_> {
    Connect {
        version: Version::V5,
        clean_start: true,
        keep_alive_secs: 0,
        client_id,
        properties: Properties::EMPTY,
        will: None,
        username: None,
        password: None,
        bridge: false,
    }
}

/// What an acceptor makes of a CONNECT.
pub fn admit(connect: &Connect<'_>, limits: &Arc<Limits>) -> Result<ConnectRequest, Refusal> {
    let mut bytes = Vec::new();
    Packet::Connect(*connect).encode(connect.version, &mut bytes);
    match admission::admit(&bytes, limits, "peer", || "assigned".into()) {
        Admission::Connect(credentials, len) => {
            assert_eq!(len, bytes.len());
            Ok(credentials.request)
        }
        Admission::Refuse(refusal) => Err(refusal),
        Admission::NeedMore => panic!("the packet is whole"),
    }
}

/// A request of version 5 with a clean session that lasts as long as its connection.
pub fn request(client_id: &str) -> ConnectRequest {
    request_with(client_id, Limits::default())
}

pub fn request_with(client_id: &str, limits: Limits) -> ConnectRequest {
    admit(&connect_packet(client_id), &Arc::new(limits)).expect("a sound CONNECT")
}

/// The same, of a session that never expires.
pub fn persistent(client_id: &str) -> ConnectRequest {
    ConnectRequest { clean_start: false, session_expiry_secs: u32::MAX, ..request(client_id) }
}

pub fn of_version(version: Version, client_id: &str) -> ConnectRequest {
    let connect = Connect { version, ..connect_packet(client_id) };
    admit(&connect, &Arc::new(Limits::default())).expect("a sound CONNECT")
}

pub fn with_limits(request: ConnectRequest, limits: Limits) -> ConnectRequest {
    ConnectRequest { limits: Arc::new(limits), ..request }
}

pub fn window(in_flight_max: u16) -> Limits {
    Limits { in_flight_max, ..Limits::default() }
}

pub fn queue(messages_max: u32, overflow: Overflow) -> Limits {
    let queue = QueueLimits { messages_max, overflow, ..Limits::default().queue };
    Limits { queue, ..window(1) }
}

pub fn rule(who: Who, permission: Permission, filter: &str) -> Rule {
    Rule { who, permission, filter: filter.into() }
}

pub fn texts(numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

/// Publishes `0`, `1`, `2`, ... with QoS 1.
pub fn publish_numbers(lab: &mut Lab, publisher: Conn, topic: &str, numbers: std::ops::Range<u32>) {
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
            if publish.qos == 1 {
                lab.ack(conn, AckKind::Puback, publish.packet_id);
            }
        }
    }
}
