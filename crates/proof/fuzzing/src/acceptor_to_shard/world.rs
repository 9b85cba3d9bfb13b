//! The broker as its driver runs it: acceptors, shards, mail, disks, time; and what must be left in
//! the end.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::admission::{self, Admission, AuthStep, Credentials};
use broker::{
    Close, Command, Limits, Memory, Metrics, Numbers, Reauthenticate, Reauthenticated, Scope,
    Settings, Shard, TURN_UNITS, key_of,
};
use codec::{Packet, QoS, Reason, Sender, SubscribeOptions, Version};
use rig::{Lab, publish, retained, subscribe_bytes};
use session::{MemoryKind, Overflow, QueueLimits};

use super::book::{Book, JANITOR};
use super::ops;
use super::peer::{ConnectionRef, Peer, Stage};

/// Places for connections; a new one in the same place leaves the old one to the broker.
pub(super) const SLOTS: usize = 6;

/// The enhanced authentication that there is, and what it takes.
pub(super) const METHOD: &str = "M";
pub(super) const PROOF: &[u8] = b"anna";

const EXPIRY_MAX_SECS: u32 = 3600;

/// Rounds after which shards that still have something to say to each other go in circles.
const ROUNDS_MAX: usize = 20_000;

/// Seconds in which everything is over that time ends, when all have gone.
const AFTERMATH_SECS: u64 = 30;

pub(super) struct World {
    /// It has the shards, and disks for them or none.
    lab: Lab,
    pub(super) limits: Arc<Limits>,
    pub(super) book: Book,
    pub(super) peers: Vec<Peer>,
    /// The latest peer of each.
    slots: [Option<usize>; SLOTS],
    /// The peers of connections that the broker knows.
    connected: BTreeMap<u64, usize>,
    /// Connections that are not read, and until when.
    paused: BTreeMap<u64, u64>,
    numbers: Numbers,
    assigned: u32,
}

impl World {
    pub(super) fn new(kind: u8, choice: u8) -> Self {
        let shard_count = u16::from(kind & 3) + 1;
        let book = Book::new();
        let mut lab = Lab::with(shard_count, settings(kind, choice), book.rules[0].clone());
        if kind & 4 != 0 {
            lab.add_disks(storage::Settings::with_segment_bytes(64 * 1024));
            lab.open_journals();
        }
        Self {
            lab,
            limits: Arc::new(limits(kind, choice)),
            book,
            peers: Vec::new(),
            slots: [None; SLOTS],
            connected: BTreeMap::new(),
            paused: BTreeMap::new(),
            numbers: Numbers::default(),
            assigned: 0,
        }
    }

    /// Who sits there; somebody new if nobody does.
    pub(super) fn slot(&mut self, slot: usize) -> usize {
        match self.slots[slot].filter(|who| !self.peers[*who].is_closed()) {
            Some(who) => who,
            None => self.newcomer(slot),
        }
    }

    pub(super) fn newcomer(&mut self, slot: usize) -> usize {
        self.peers.push(Peer::new());
        let who = self.peers.len() - 1;
        self.slots[slot] = Some(who);
        who
    }

    /// The broker reads so many bytes of a client.
    pub(super) fn deliver(&mut self, who: usize, count: usize) {
        let peer = &mut self.peers[who];
        if let Some(place) = peer.place() {
            if self.paused.contains_key(&place.connection) {
                return;
            }
            let bytes: Vec<u8> = peer.socket.drain(..count.min(peer.socket.len())).collect();
            peer.hear(&bytes, self.limits.packet_bytes_max, &mut self.book);
            return self.give(place, &bytes);
        }
        let bytes: Vec<u8> = peer.socket.drain(..count.min(peer.socket.len())).collect();
        let stage = std::mem::replace(&mut peer.stage, Stage::Closed);
        match stage {
            Stage::Acceptor(mut waiting) => {
                waiting.extend_from_slice(&bytes);
                self.on_first_packet(who, waiting);
            }
            Stage::Exchange(credentials, mut waiting) => {
                waiting.extend_from_slice(&bytes);
                self.exchange(who, credentials, waiting);
            }
            Stage::Open(_) | Stage::Closed => {}
        }
    }

    fn give(&mut self, place: ConnectionRef, bytes: &[u8]) {
        // A driver's duty: mail that was sent before the bytes came is delivered before them.
        for from in 0..self.lab.shards.len() {
            self.carry_mail(from, usize::from(place.shard));
        }
        let shard = &mut self.lab.shards[usize::from(place.shard)];
        shard.on_bytes(place.slot, place.connection, bytes, self.lab.now_ms);
        self.collect();
    }

    /// The first packet.
    fn on_first_packet(&mut self, who: usize, waiting: Vec<u8>) {
        let assigned = self.assigned;
        let name = || format!("auto-{assigned}");
        match admission::admit(&waiting, &self.limits, "peer", name) {
            Admission::NeedMore => {
                assert!(waiting.len() < self.limits.connect_bytes_max as usize);
                self.peers[who].stage = Stage::Acceptor(waiting);
            }
            Admission::Refuse(refusal) => {
                let is_connack = |version| {
                    let decoded = codec::decode(&refusal.answer, version, Sender::Server, u32::MAX);
                    matches!(decoded, Ok(Some((Packet::Connack(_), _))))
                };
                let is_sound = [Version::V5, Version::V311].into_iter().any(is_connack);
                assert!(refusal.answer.is_empty() || is_sound, "{refusal:?}");
            }
            Admission::Connect(credentials, len) => {
                self.assigned += u32::from(credentials.request.is_assigned);
                self.peers[who].on_admitted(&credentials);
                self.authenticate(who, credentials, waiting[len..].to_vec());
            }
        }
    }

    fn authenticate(&mut self, who: usize, mut credentials: Box<Credentials>, rest: Vec<u8>) {
        if self.lab.shared.memory_is_out() {
            return self.refuse(who, &credentials, Reason::SERVER_BUSY);
        }
        if let Some(method) = credentials.request.auth_method.as_deref() {
            if method != METHOD {
                return self.refuse(who, &credentials, Reason::BAD_AUTHENTICATION_METHOD);
            }
            let Some(question) = admission::auth_continue(&credentials.request, b"who?") else {
                return self.refuse(who, &credentials, Reason::PACKET_TOO_LARGE);
            };
            self.peers[who].read(&question, &self.book);
            return self.exchange(who, credentials, rest);
        }
        let request = &mut credentials.request;
        let is_right = match (request.username.as_deref(), credentials.password.as_deref()) {
            (None, None) => true,
            (Some(name), Some(password)) => password == ops::password_of(name),
            _ => false,
        };
        match is_right {
            true => self.hand_over(who, &credentials, &rest),
            false => self.refuse(who, &credentials, Reason::NOT_AUTHORIZED),
        }
    }

    fn exchange(&mut self, who: usize, mut credentials: Box<Credentials>, waiting: Vec<u8>) {
        match admission::auth_step(&waiting, &credentials.request, self.limits.connect_bytes_max) {
            AuthStep::NeedMore => self.peers[who].stage = Stage::Exchange(credentials, waiting),
            AuthStep::Refuse(refusal) => self.peers[who].read(&refusal.answer, &self.book),
            AuthStep::Data(data, len) if *data == *PROOF => {
                credentials.request.username = Some("anna".into());
                credentials.request.auth_data = Some(b"welcome".as_slice().into());
                self.hand_over(who, &credentials, &waiting[len..]);
            }
            AuthStep::Data(..) => self.refuse(who, &credentials, Reason::NOT_AUTHORIZED),
        }
    }

    /// Before admission.
    fn refuse(&mut self, who: usize, credentials: &Credentials, reason: Reason) {
        let answer = admission::refuse(&credentials.request, reason);
        self.peers[who].read(&answer, &self.book);
    }

    fn hand_over(&mut self, who: usize, credentials: &Credentials, rest: &[u8]) {
        self.peers[who].on_admitted(credentials);
        let mut request = credentials.request.clone();
        request.origin = format!("10.0.0.{}", who % 2).into();
        if let Some(will) = &request.will {
            self.book.note_said(&self.peers[who].whose, &will.topic, &will.payload);
        }
        let shard = self.lab.shared.place_of_client(request.name());
        let connection = self.numbers.give(who).expect("few connections");
        let core = &mut self.lab.shards[usize::from(shard)];
        match core.on_connect(connection, request, self.lab.now_ms) {
            Err(answer) => self.peers[who].read(&answer, &self.book),
            Ok(slot) => {
                let place = ConnectionRef { shard, slot, connection };
                self.peers[who].stage = Stage::Open(place);
                self.connected.insert(connection, who);
                self.collect();
                if self.peers[who].place().is_some() {
                    let bytes_max = self.limits.packet_bytes_max;
                    self.peers[who].hear(rest, bytes_max, &mut self.book);
                    self.give(place, rest);
                }
            }
        }
    }

    /// The client takes so many bytes of what it is owed.
    pub(super) fn read(&mut self, who: usize, count: usize) {
        let Some(ConnectionRef { shard, slot, connection }) = self.peers[who].place() else {
            return;
        };
        if self.peers[who].is_gone {
            return;
        }
        let core = &mut self.lab.shards[usize::from(shard)];
        let Some(outbox) = core.outbox(slot, connection) else { return };
        let mut bytes: Vec<u8> = outbox.slices().flatten().copied().collect();
        bytes.truncate(count);
        self.peers[who].read(&bytes, &self.book);
        core.on_written(slot, connection, bytes.len(), self.lab.now_ms);
        self.collect();
    }

    fn owes(&mut self, who: usize) -> bool {
        let place = self.peers[who].place().filter(|_| !self.peers[who].is_gone);
        let Some(ConnectionRef { shard, slot, connection }) = place else { return false };
        let outbox = self.lab.shards[usize::from(shard)].outbox(slot, connection);
        outbox.is_some_and(|outbox| !outbox.is_empty())
    }

    /// Everybody takes all.
    pub(super) fn read_all(&mut self) -> bool {
        let mut any = false;
        for who in 0..self.peers.len() {
            while self.owes(who) {
                self.read(who, usize::MAX);
                any = true;
            }
        }
        any
    }

    /// The network connection breaks.
    pub(super) fn cut(&mut self, who: usize) {
        match self.peers[who].place() {
            Some(ConnectionRef { shard, slot, connection }) => {
                self.peers[who].is_gone = true;
                self.lab.shards[usize::from(shard)].on_closed(slot, connection, self.lab.now_ms);
                self.collect();
            }
            None => self.peers[who].stage = Stage::Closed,
        }
    }

    /// What an operator, or the guard of packets under way, does to a connection.
    pub(super) fn push_out(&mut self, who: usize, is_kick: bool) {
        let Some(ConnectionRef { shard, slot, connection }) = self.peers[who].place() else {
            return;
        };
        let client_id = self.peers[who].whose.0.clone();
        let core = &mut self.lab.shards[usize::from(shard)];
        match is_kick {
            // Before that the operator looks around.
            true => {
                let looks = looks_at(&client_id);
                for (ticket, command) in (1..).zip(looks.into_iter().chain([kick(&client_id)])) {
                    core.on_command(ticket, Scope::FIRST, &command, self.lab.now_ms);
                }
                let answers = std::mem::take(&mut core.effects_mut().answers);
                assert_eq!(answers.len(), LOOKS + 1, "each is answered at once");
            }
            false => core.on_crowded(slot, connection, self.lab.now_ms),
        }
        self.collect();
    }

    pub(super) fn carry_mail(&mut self, from: usize, to: usize) -> bool {
        let from = from % self.lab.shards.len();
        let to = to % self.lab.shards.len();
        let mails = self.lab.shards[from].effects_mut().take_batch(to as u16);
        let any = !mails.is_empty();
        self.lab.shards[to].on_batch(mails, self.lab.now_ms);
        self.collect();
        any
    }

    pub(super) fn end_turns(&mut self) -> bool {
        let mut any = false;
        for shard in &mut self.lab.shards {
            shard.end_turn();
            any |= shard.read_line_on(self.lab.now_ms);
        }
        self.collect();
        any
    }

    /// One step of each disk.
    pub(super) fn work_disks(&mut self) -> bool {
        let (mut any, mut commands) = (false, Vec::new());
        for (shard, disk) in self.lab.shards.iter_mut().zip(&mut self.lab.disks) {
            shard.take_disk_commands(&mut commands, self.lab.now_ms);
            commands.drain(..).for_each(|command| disk.submit(command));
            any |= !disk.is_idle();
            if let Some(completion) = disk.step() {
                shard.on_disk(completion, self.lab.now_ms);
            }
        }
        self.collect();
        any
    }

    pub(super) fn pass(&mut self, ms: u64) {
        self.lab.now_ms += ms;
        for shard in &mut self.lab.shards {
            shard.on_tick(self.lab.now_ms);
        }
        self.collect();
        self.read_on();
    }

    /// Those whose pause is over are read on.
    fn read_on(&mut self) -> bool {
        let now_ms = self.lab.now_ms;
        let is_due = |(_, until_ms): &(&u64, &u64)| **until_ms <= now_ms;
        let due: Vec<u64> = self.paused.iter().filter(is_due).map(|(number, _)| *number).collect();
        for connection in &due {
            self.paused.remove(connection);
            if let Some(place) = self.place_of(*connection) {
                self.give(place, &[]);
            }
        }
        !due.is_empty()
    }

    fn place_of(&self, connection: u64) -> Option<ConnectionRef> {
        let who = *self.connected.get(&connection)?;
        self.peers[who].place().filter(|place| place.connection == connection)
    }

    pub(super) fn set_memory(&mut self, left: Memory) {
        self.lab.shared.set_memory(left);
    }

    /// The other rules come into force. What was written by the old ones is taken first.
    pub(super) fn change_rules(&mut self) {
        self.read_all();
        self.book.in_force = (self.book.in_force + 1) % self.book.rules.len();
        let rules = &self.book.rules[self.book.in_force];
        for shard in &mut self.lab.shards {
            shard.set_access(rules.clone());
        }
        self.collect();
    }

    /// Until nobody has anything to say.
    ///
    /// # Panics
    ///
    /// When there is no end of it.
    pub(super) fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let mut any = self.read_all();
            for from in 0..self.lab.shards.len() {
                for to in 0..self.lab.shards.len() {
                    any |= self.carry_mail(from, to);
                }
            }
            any |= self.end_turns() | self.read_on() | self.work_disks();
            let has_unread = |shard: &Shard| shard.next_deadline_ms() == 0;
            if self.lab.shards.iter().any(has_unread) {
                any = true;
                self.pass(0);
            }
            if !any {
                return;
            }
        }
        panic!("no end of mail");
    }

    /// Carries out what the shards want done, but for mail and sockets.
    fn collect(&mut self) {
        for at in 0..self.lab.shards.len() {
            let shard = &mut self.lab.shards[at];
            while shard.take_dirty().is_some() {}
            shard.effects_mut().events.clear();
            for (connection, until_ms) in shard.effects_mut().pauses.drain(..) {
                self.paused.insert(connection, until_ms);
            }
            let asks = std::mem::take(&mut shard.effects_mut().reauthentications);
            asks.iter().for_each(|ask| reauthenticate(shard, ask, self.lab.now_ms));
            let closes = std::mem::take(&mut shard.effects_mut().closes);
            closes.iter().for_each(|close| self.on_close(close));
        }
    }

    fn on_close(&mut self, close: &Close) {
        let known = self.connected.remove(&close.connection);
        let who = known.expect("the broker closes a connection that there is, and once");
        assert_eq!(who, key_of(close.connection));
        self.paused.remove(&close.connection);
        let farewell: Vec<u8> = close.farewell.slices().flatten().copied().collect();
        let peer = &mut self.peers[who];
        if peer.is_gone {
            // Nobody writes to it any more.
            peer.stage = Stage::Closed;
            return;
        }
        peer.read(&farewell, &self.book);
        peer.on_closed();
    }

    /// All go, all times pass: nothing may be left of anybody.
    pub(super) fn end(mut self) {
        self.set_memory(Memory::Enough);
        if self.book.in_force != 0 {
            self.change_rules();
        }
        (0..self.peers.len()).for_each(|who| self.cut(who));
        self.settle();
        self.assert_no_connection();
        // Sessions, and wills that are still to come.
        for secs in [u64::from(EXPIRY_MAX_SECS), u64::from(EXPIRY_MAX_SECS) + 1] {
            self.pass(secs * 1000);
            self.wait_a_while();
        }
        self.clear_retained();
        self.assert_nothing_is_left();
        self.assert_newcomers_are_served();
        self.wait_a_while();
        self.assert_nothing_is_left();
    }

    fn wait_a_while(&mut self) {
        for _ in 0..AFTERMATH_SECS {
            self.pass(1000);
            self.settle();
        }
    }

    fn clear_retained(&mut self) {
        let who = self.newcomer(0);
        let mut socket = ops::connect("janitor", JANITOR);
        for topic in self.book.topics() {
            if topic::check_topic(&topic, &self.limits.topic).is_ok() && !topic.starts_with("$") {
                retained(&topic, b"", 0, 0).encode(Version::V5, &mut socket);
            }
        }
        self.peers[who].socket = socket;
        self.talk(who);
        self.cut(who);
        self.wait_a_while();
    }

    /// All that a client has to say, and all that it hears, until nothing moves.
    fn talk(&mut self, who: usize) {
        for _ in 0..ROUNDS_MAX {
            let before = self.peers[who].socket.len();
            self.deliver(who, usize::MAX);
            self.settle();
            self.peers[who].acknowledge();
            if self.peers[who].socket.is_empty() {
                return;
            }
            if self.peers[who].socket.len() == before {
                self.pass(1000);
            }
        }
        panic!("a client is not read");
    }

    fn assert_newcomers_are_served(&mut self) {
        let (topic, payload) = ("a/newcomer", b"here".as_slice());
        let who = self.newcomer(0);
        let mut socket = ops::connect("newcomer", "anna");
        socket.extend(subscribe_bytes(
            Version::V5,
            &[("a/#", SubscribeOptions::new(QoS::AtLeastOnce))],
            None,
        ));
        self.peers[who].socket = socket;
        self.talk(who);
        let before = self.lab.shared.total(|metrics| &metrics.publishes_sent);
        publish(topic, payload, 1, 1).encode(Version::V5, &mut self.peers[who].socket);
        self.talk(who);
        let sent = self.lab.shared.total(|metrics| &metrics.publishes_sent) - before;
        assert_eq!(sent, 1, "a newcomer gets its message");
        assert!(self.peers[who].has_no_question(), "a newcomer is answered");
        self.cut(who);
        self.settle();
    }

    fn assert_no_connection(&self) {
        assert!(self.connected.is_empty(), "connections are left: {:?}", self.connected);
        assert!(self.paused.is_empty(), "pauses are left: {:?}", self.paused);
    }

    fn assert_nothing_is_left(&self) {
        self.assert_no_connection();
        for held in MemoryKind::ALL {
            let name = held.name();
            assert_eq!(self.lab.shared.ledger.bytes(held), 0, "bytes of {name} are left");
        }
        let consumers = self.lab.shared.ledger.largest(usize::MAX);
        let debtor =
            consumers.iter().find(|consumer| consumer.bytes.iter().any(|bytes| *bytes > 0));
        assert!(debtor.is_none(), "somebody is still charged: {debtor:?}");
        let sessions: usize = self.lab.shards.iter().map(Shard::session_count).sum();
        assert_eq!(sessions, 0, "sessions are left");
        let names = Metrics::descriptions();
        for (shard, metrics) in self.lab.shared.metrics.iter().enumerate() {
            for (description, value) in names.iter().zip(metrics.values()) {
                let is_gauge = description.kind == broker::MetricType::Gauge;
                assert!(!is_gauge || value == 0, "shard {shard}: {} {value}", description.name);
            }
        }
        let opened = self.lab.shared.total(|metrics| &metrics.connections_opened);
        assert_eq!(opened, self.lab.shared.total(|metrics| &metrics.connections_closed));
        for topic in self.book.topics() {
            let wants = self.lab.shared.interest.shards(topic.as_bytes()).wants;
            assert_eq!(wants, 0, "shards still want {topic:?}, and nobody does");
        }
    }
}

fn reauthenticate(shard: &mut Shard, ask: &Reauthenticate, now_ms: u64) {
    let answer = match (ask.is_start, &*ask.data) {
        (true, _) => Reauthenticated::Continue(b"who?".to_vec()),
        (false, data) if data == PROOF => Reauthenticated::Success(Vec::new()),
        (false, _) => Reauthenticated::Failure(Reason::NOT_AUTHORIZED),
    };
    shard.on_reauthenticated(ask.slot, ask.connection, &answer, now_ms);
}

fn overflow(choice: u8) -> Overflow {
    let policies =
        [Overflow::DropOldest, Overflow::DropNewest, Overflow::Reject, Overflow::Disconnect];
    policies[usize::from(choice >> 2 & 3)]
}

fn settings(kind: u8, choice: u8) -> Settings {
    let is_tight = kind & 8 != 0;
    let few = if is_tight { (5, 2_000) } else { (10_000, 1 << 30) };
    Settings {
        retained_messages_max: few.0,
        retained_bytes_max: few.1,
        queues_bytes_max: if is_tight { 20_000 } else { u64::MAX },
        sessions_bytes_max: if is_tight { 20_000 } else { u64::MAX },
        rejects: overflow(choice) == Overflow::Reject,
        share_queue: queue(kind, choice),
        mail_bytes_max: if kind & 16 != 0 { 500 } else { broker::MAIL_BYTES_MAX },
        turn_units: if kind & 32 != 0 { 3 } else { TURN_UNITS },
        ..Settings::default()
    }
}

fn queue(kind: u8, choice: u8) -> QueueLimits {
    let (messages_max, bytes_max) = if kind & 8 != 0 { (3, 3_000) } else { (1_000, 1 << 20) };
    let keeps_qos0 = choice & 1 != 0;
    QueueLimits { messages_max, bytes_max, overflow: overflow(choice), keeps_qos0 }
}

fn limits(kind: u8, choice: u8) -> Limits {
    let mut limits = Limits {
        session_expiry_max_secs: EXPIRY_MAX_SECS,
        session_expiry_v3_secs: EXPIRY_MAX_SECS,
        will_delay_max_secs: EXPIRY_MAX_SECS,
        queue: queue(kind, choice),
        ..Limits::default()
    };
    if kind & 8 != 0 {
        limits.packet_bytes_max = 6_000;
        limits.connect_bytes_max = 400;
        limits.outbox_bytes_max = 300;
        limits.in_flight_max = 2;
        limits.receive_max = 2;
        limits.alias_in_max = 1;
        limits.alias_out_max = 1;
        limits.subscriptions_per_client_max = 4;
        limits.filters_per_packet_max = 2;
        limits.shared_subscriptions_per_client_max = 1;
        limits.properties_bytes_max = 30;
    }
    if choice & 2 != 0 {
        limits.keep_alive_max_secs = 10;
        limits.message_expiry_max_secs = 60;
    }
    limits
}

/// What an operator asks of a shard beside what it changes.
fn looks_at(client_id: &str) -> [Command; LOOKS] {
    let (from, max, wanted) = (0, 10, Default::default());
    [
        Command::Sessions { from, max, wanted },
        Command::Session(client_id.into()),
        Command::Subscriptions { client_id: client_id.into(), from, max },
        Command::Receivers { topic: "a/b".into(), from, max },
        Command::Groups { within: None, from, max },
        Command::Homes { client_id: client_id.into(), scopes: vec![Scope::FIRST] },
        Command::Retained { filter: "#".into(), after: None, max },
    ]
}

const LOOKS: usize = 7;

fn kick(client_id: &str) -> Command {
    Command::Kick(client_id.into())
}
