//! The world: a broker, its network and its clients, moved by one seed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use broker::admission::{Admission, admit};
use broker::{Access, Limits, Mail, Settings, Shard, ShardId, ShareStrategy, Shared};
use codec::{QoS, Version};
use session::{Overflow, QueueLimits};

use crate::client::ModelClient;
use crate::oracle::Oracle;
use crate::random::Random;

/// Trace lines that a failure shows.
const TRACE_LINES: usize = 60;

/// Rounds in which the world has to come to rest at the end.
const REST_ROUNDS_MAX: usize = 5000;

/// Quiet rounds, each with a tick after it, that make rest.
const QUIET_ROUNDS: usize = 4;

/// A planted bug, to prove that the oracle sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    LoseMail,
    DoubleMail,
    SwapMail,
    ForgetDirty,
    LoseSession,
}

/// What kind of world.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub steps: usize,
    pub sabotage: Option<Sabotage>,
    /// Small queues, with this policy.
    pub overflow: Option<Overflow>,
}

impl Default for Options {
    fn default() -> Self {
        Self { steps: 3000, sabotage: None, overflow: None }
    }
}

/// What a world that kept its promises has seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    pub received: u64,
    pub dropped: u64,
    pub takeovers: u64,
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub rule: String,
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.rule)?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        write!(f, "run it again: cargo run -p sim -- {}", self.seed)
    }
}

impl std::error::Error for Failure {}

/// Runs one world from its seed to its end.
pub fn run(seed: u64, options: Options) -> Result<Report, Failure> {
    let mut world = World::new(seed, options);
    let outcome = world.live();
    let trace = world.trace.iter().cloned().collect();
    outcome.map_err(|rule| Failure { seed, rule, trace }).map(|()| Report {
        received: world.oracle.received,
        dropped: world.oracle.dropped,
        takeovers: world.shared.total(|metrics| &metrics.takeovers),
    })
}

/// A connection as the broker knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    shard: ShardId,
    slot: u32,
    connection: u32,
}

struct World {
    random: Random,
    options: Options,
    shared: Arc<Shared>,
    limits: Arc<Limits>,
    shards: Vec<Shard>,
    mail: BTreeMap<(ShardId, ShardId), VecDeque<Mail>>,
    clients: Vec<ModelClient>,
    /// First bytes of connections that are not admitted.
    door: BTreeMap<u32, Vec<u8>>,
    /// Connections that the shards said have something to write.
    dirty: BTreeSet<Place>,
    /// Connections that are not read for a while.
    paused: Vec<(ShardId, u32)>,
    /// Connections that broke, and of which the broker does not know yet.
    broken: Vec<Place>,
    next_connection: u32,
    now_ms: u64,
    oracle: Oracle,
    /// Found where it could not be returned.
    broken_rule: Option<String>,
    trace: VecDeque<String>,
}

impl World {
    fn new(seed: u64, options: Options) -> Self {
        let mut random = Random::new(seed);
        let shard_count = 1 + random.below(5) as ShardId;
        let queue = match options.overflow {
            Some(overflow) => {
                QueueLimits { messages_max: 5, bytes_max: 10_000, overflow, keeps_qos0: false }
            }
            None => Limits::default().queue,
        };
        let strategies = [
            ShareStrategy::Random,
            ShareStrategy::RoundRobin,
            ShareStrategy::LeastInFlight,
            ShareStrategy::Sticky,
            ShareStrategy::HashClient,
            ShareStrategy::HashTopic,
        ];
        let settings = Settings {
            share_strategy: strategies[random.below(strategies.len())],
            rejects: options.overflow == Some(Overflow::Reject),
            ..Settings::default()
        };
        let limits = Limits {
            queue,
            in_flight_max: 1 + random.below(20) as u16,
            outbox_bytes_max: 200 + random.below(2000) as u32,
            ..Limits::default()
        };
        let shared = Shared::new(settings.clone(), shard_count, random.next());
        let shards = (0..shard_count)
            .map(|number| Shard::new(number, shared.clone(), Access::open()))
            .collect();
        let mut clients: Vec<ModelClient> =
            (0..3 + random.below(8) as u32).map(|n| new_client(n, &mut random)).collect();
        if settings.rejects {
            // Refusing a 3.1.1 publisher means to cut it: it comes back with the same message
            // before it acknowledges what fills its own queue, and so on for ever.
            clients.iter_mut().for_each(|client| client.version = Version::V5);
        }
        Self {
            random,
            options,
            shared,
            limits: Arc::new(limits),
            shards,
            mail: BTreeMap::new(),
            clients,
            door: BTreeMap::new(),
            dirty: BTreeSet::new(),
            paused: Vec::new(),
            broken: Vec::new(),
            next_connection: 0,
            now_ms: 1_700_000_000_000,
            oracle: Oracle::new(
                options.overflow.is_some(),
                options.overflow == Some(Overflow::Reject),
            ),
            broken_rule: None,
            trace: VecDeque::new(),
        }
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if self.trace.len() == TRACE_LINES {
            self.trace.pop_front();
        }
        self.trace.push_back(line());
    }

    fn live(&mut self) -> Result<(), String> {
        for _ in 0..self.options.steps {
            self.step()?;
        }
        self.come_to_rest()?;
        self.oracle.dropped = self.shared.total(|metrics| &metrics.dropped_queue_full)
            + self.shared.total(|metrics| &metrics.dropped_group);
        self.oracle.judge()?;
        self.broken_rule.take().map_or(Ok(()), Err)?;
        self.judge_retained()?;
        self.judge_gauges()
    }

    fn step(&mut self) -> Result<(), String> {
        let who = self.random.below(self.clients.len());
        match self.random.below(100) {
            0..=24 => self.carry_to_broker(who),
            25..=44 => self.carry_to_client(who),
            45..=59 => self.carry_mail(),
            60..=69 => self.read(who)?,
            70..=77 => {
                let count = 1 + self.random.below(5);
                self.clients[who].acknowledge(count);
            }
            78..=89 => self.publish(who),
            90..=93 => self.connect(who),
            94 => self.clients[who].disconnect(),
            95 => self.break_connection(who),
            96 => self.notice_broken(),
            97 => self.clients[who].is_deaf = self.random.chance(50),
            _ => self.pass_time(),
        }
        Ok(())
    }

    fn connect(&mut self, who: usize) {
        // Taking over a connection that works is rarer than coming back.
        if self.clients[who].wire.is_some() && !self.random.chance(15) {
            return;
        }
        if let Some(connection) = self.clients[who].wire.as_ref().map(|wire| wire.connection) {
            self.door.remove(&connection);
        }
        self.next_connection += 1;
        let connection = self.next_connection;
        self.clients[who].connect(connection);
        self.note(|| format!("client {who} connects as connection {connection}"));
    }

    fn publish(&mut self, who: usize) {
        if !self.clients[who].may_publish() {
            return;
        }
        let number = self.clients[who].number;
        let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][self.random.below(3)];
        let (topic, qos, retain) = match self.random.below(10) {
            0..=5 => (format!("t/{number}/{}", self.random.below(2)), qos, false),
            // One QoS per topic: a repetition at QoS 1 may rightly come after a newer QoS 2.
            6..=7 if number.is_multiple_of(2) => (format!("r/{number}"), QoS::AtLeastOnce, true),
            6..=7 => (format!("r/{number}"), QoS::ExactlyOnce, true),
            _ => (format!("g/{number}"), QoS::AtLeastOnce, false),
        };
        self.note(|| format!("client {who} publishes on {topic} with {qos:?}"));
        self.clients[who].publish(&topic, qos, retain, &mut self.oracle);
    }

    /// Some bytes of the client reach the broker.
    fn carry_to_broker(&mut self, who: usize) {
        let Some(wire) = &mut self.clients[who].wire else { return };
        if wire.to_broker.is_empty() {
            return;
        }
        let count = 1 + self.random.below(wire.to_broker.len());
        let bytes: Vec<u8> = wire.to_broker.drain(..count).collect();
        let connection = wire.connection;
        match wire.slot {
            Some(slot) => {
                let shard = self.shared.shard_of_client(&self.clients[who].id);
                self.carry_mail_to(shard);
                self.shards[usize::from(shard)].on_bytes(slot, connection, &bytes, self.now_ms);
                self.collect(shard);
            }
            None => self.knock(who, connection, &bytes),
        }
    }

    /// Bytes of a connection that is not admitted.
    fn knock(&mut self, who: usize, connection: u32, bytes: &[u8]) {
        let waiting = self.door.entry(connection).or_default();
        waiting.extend_from_slice(bytes);
        let Admission::Connect(credentials, len) = admit(waiting, &self.limits, "sim", "assigned")
        else {
            return;
        };
        let rest = waiting.split_off(len);
        self.door.remove(&connection);
        let shard = self.shared.shard_of_client(&credentials.request.client_id);
        let now_ms = self.now_ms;
        let mut request = credentials.request;
        if self.options.sabotage == Some(Sabotage::LoseSession) && self.random.chance(10) {
            request.clean_start = true;
        }
        let core = &mut self.shards[usize::from(shard)];
        let slot = core.on_connect(connection, request, now_ms);
        core.on_bytes(slot, connection, &rest, now_ms);
        if let Some(wire) = &mut self.clients[who].wire {
            wire.slot = Some(slot);
        }
        self.note(|| format!("connection {connection} of client {who} is admitted"));
        self.collect(shard);
    }

    /// Some bytes of the outbox reach the client, if the shard said that there are any.
    fn carry_to_client(&mut self, who: usize) {
        let Some(place) = self.place(who) else { return };
        if self.clients[who].is_deaf || !self.dirty.contains(&place) {
            return;
        }
        let core = &mut self.shards[usize::from(place.shard)];
        let Some(outbox) = core.outbox(place.slot, place.connection) else { return };
        let bytes: Vec<u8> = outbox.slices().flatten().copied().collect();
        if bytes.is_empty() {
            self.dirty.remove(&place);
            return;
        }
        let count = 1 + self.random.below(bytes.len());
        if count == bytes.len() {
            self.dirty.remove(&place);
        }
        core.on_written(place.slot, place.connection, count, self.now_ms);
        if let Some(wire) = &mut self.clients[who].wire {
            wire.to_client.extend_from_slice(&bytes[..count]);
        }
        self.collect(place.shard);
    }

    fn place(&self, who: usize) -> Option<Place> {
        let client = &self.clients[who];
        let wire = client.wire.as_ref()?;
        let shard = self.shared.shard_of_client(&client.id);
        Some(Place { shard, slot: wire.slot?, connection: wire.connection })
    }

    fn read(&mut self, who: usize) -> Result<(), String> {
        if self.clients[who].is_deaf {
            return Ok(());
        }
        self.clients[who].read(&mut self.oracle)
    }

    /// One item of mail arrives, from any pair of shards, in the order of that pair.
    fn carry_mail(&mut self) {
        let pairs: Vec<_> = self.mail.keys().copied().collect();
        if pairs.is_empty() {
            return;
        }
        let pair = pairs[self.random.below(pairs.len())];
        self.carry_mail_of(pair);
    }

    fn carry_mail_of(&mut self, pair: (ShardId, ShardId)) {
        let Some(queue) = self.mail.get_mut(&pair) else { return };
        let sabotage = self.options.sabotage.filter(|_| self.random.chance(20));
        if sabotage == Some(Sabotage::SwapMail) && queue.len() > 1 {
            queue.swap(0, 1);
        }
        let Some(mail) = queue.pop_front() else { return };
        if queue.is_empty() {
            self.mail.remove(&pair);
        }
        let core = &mut self.shards[usize::from(pair.1)];
        match sabotage {
            Some(Sabotage::LoseMail) => {}
            Some(Sabotage::DoubleMail) => {
                core.on_mail(mail.clone(), self.now_ms);
                core.on_mail(mail, self.now_ms);
            }
            _ => core.on_mail(mail, self.now_ms),
        }
        self.collect(pair.1);
    }

    /// A driver's duty: mail that was sent before bytes came is delivered before them, so that a
    /// publish finds the subscriptions whose SUBACK was seen before it.
    fn carry_mail_to(&mut self, shard: ShardId) {
        let pairs: Vec<_> = self.mail.keys().filter(|(_, to)| *to == shard).copied().collect();
        for pair in pairs {
            while self.mail.contains_key(&pair) {
                self.carry_mail_of(pair);
            }
        }
    }

    /// The network connection breaks; the broker learns of it later, or when it is taken over.
    fn break_connection(&mut self, who: usize) {
        if let Some(place) = self.place(who) {
            self.broken.push(place);
        }
        if let Some(wire) = self.clients[who].wire.take() {
            self.door.remove(&wire.connection);
            self.note(|| format!("connection {} of client {who} breaks", wire.connection));
        }
    }

    fn notice_broken(&mut self) {
        if self.broken.is_empty() {
            return;
        }
        let index = self.random.below(self.broken.len());
        let place = self.broken.swap_remove(index);
        let core = &mut self.shards[usize::from(place.shard)];
        core.on_closed(place.slot, place.connection, self.now_ms);
        self.collect(place.shard);
    }

    /// Publishers that had to wait for a slow subscriber are read on.
    fn read_on(&mut self) {
        for (shard, connection) in std::mem::take(&mut self.paused) {
            let slot = self.clients.iter().find_map(|client| {
                let wire = client.wire.as_ref().filter(|wire| wire.connection == connection)?;
                wire.slot
            });
            if let Some(slot) = slot {
                self.carry_mail_to(shard);
                self.shards[usize::from(shard)].on_bytes(slot, connection, &[], self.now_ms);
                self.collect(shard);
            }
        }
    }

    fn pass_time(&mut self) {
        self.read_on();
        self.now_ms += self.random.below(3000) as u64;
        for shard in 0..self.shards.len() {
            self.shards[shard].on_tick(self.now_ms);
            self.collect(shard as ShardId);
        }
    }

    /// Carries out the effects of a shard.
    fn collect(&mut self, shard: ShardId) {
        let core = &mut self.shards[usize::from(shard)];
        while let Some((slot, connection)) = core.take_dirty() {
            let forgets = self.options.sabotage == Some(Sabotage::ForgetDirty);
            if !forgets || !self.random.chance(20) {
                self.dirty.insert(Place { shard, slot, connection });
            }
        }
        for (to, mails) in core.effects.mail.iter_mut().enumerate() {
            if !mails.is_empty() {
                self.mail.entry((shard, to as ShardId)).or_default().extend(mails.drain(..));
            }
        }
        core.effects.events.clear();
        let paused = core.effects.pauses.drain(..);
        self.paused.extend(paused.map(|(connection, _)| (shard, connection)));
        for close in std::mem::take(&mut core.effects.closes) {
            self.dirty.retain(|place| place.connection != close.connection);
            self.broken.retain(|place| place.connection != close.connection);
            let owner = self.clients.iter_mut().find(|client| {
                client.wire.as_ref().is_some_and(|wire| wire.connection == close.connection)
            });
            let Some(client) = owner else { continue };
            // What was written last may still be read, or be lost with the connection.
            if let Some(wire) = client.wire.as_mut().filter(|_| self.random.chance(70)) {
                wire.to_client.extend(close.farewell.slices().flatten());
                if let Err(rule) = client.read(&mut self.oracle) {
                    self.broken_rule.get_or_insert(rule);
                }
            }
            client.wire = None;
        }
    }

    /// Everybody comes back, listens and acknowledges until nothing moves any more.
    fn come_to_rest(&mut self) -> Result<(), String> {
        self.options.sabotage = None;
        while !self.broken.is_empty() {
            self.notice_broken();
        }
        let mut quiet_rounds = 0;
        for _ in 0..REST_ROUNDS_MAX {
            for who in 0..self.clients.len() {
                self.clients[who].is_deaf = false;
                if self.clients[who].wire.is_none() {
                    self.connect(who);
                }
                self.carry_to_broker(who);
                self.carry_to_client(who);
                self.read(who)?;
                self.clients[who].acknowledge(usize::MAX);
            }
            while !self.mail.is_empty() {
                self.carry_mail();
            }
            self.read_on();
            if !self.is_at_rest() {
                quiet_rounds = 0;
                continue;
            }
            // What only time moves must move in a few seconds.
            quiet_rounds += 1;
            if quiet_rounds == QUIET_ROUNDS {
                return Ok(());
            }
            self.pass_time();
        }
        Err("the world does not come to rest".into())
    }

    fn is_at_rest(&mut self) -> bool {
        let is_quiet = self.clients.iter().all(|client| client.is_ready() && client.is_quiet());
        is_quiet
            && self.paused.is_empty()
            && self.dirty.is_empty()
            && self.mail.is_empty()
            && self.door.is_empty()
    }

    /// A newcomer asks for all retained messages.
    fn judge_retained(&mut self) -> Result<(), String> {
        let number = self.clients.len() as u32;
        let mut fresh = ModelClient::new(number, Version::V5, false, u16::MAX);
        fresh.filters = vec![("r/#".into(), QoS::AtLeastOnce)];
        self.clients.push(fresh);
        self.come_to_rest()?;
        self.oracle.judge_retained(number)
    }

    fn judge_gauges(&self) -> Result<(), String> {
        let connected = self.clients.iter().filter(|client| client.wire.is_some()).count() as u64;
        let counted = self.shared.total(|metrics| &metrics.connections);
        if counted != connected {
            return Err(format!("{counted} connections counted, {connected} there are"));
        }
        let sessions: u64 = self.shards.iter().map(|shard| shard.session_count() as u64).sum();
        let counted = self.shared.total(|metrics| &metrics.sessions);
        if counted != sessions {
            return Err(format!("{counted} sessions counted, {sessions} there are"));
        }
        Ok(())
    }
}

fn new_client(number: u32, random: &mut Random) -> ModelClient {
    let version = if random.chance(50) { Version::V5 } else { Version::V311 };
    // Client 0 keeps the group alive for ever.
    let is_persistent = number == 0 || random.chance(60);
    let receive_max = [1, 2, 10, 1000][random.below(4)];
    let mut client = ModelClient::new(number, version, is_persistent, receive_max);
    let mut filters = vec![("t/#", QoS::ExactlyOnce), ("t/+/1", QoS::AtLeastOnce)];
    filters.push(("t/0/0", QoS::AtMostOnce));
    filters.push(("t/1/1", QoS::ExactlyOnce));
    for (filter, qos) in filters {
        if random.chance(50) {
            client.filters.push((filter.into(), qos));
        }
    }
    if number == 0 || random.chance(40) {
        client.filters.push(("$share/s/g/#".into(), QoS::AtLeastOnce));
    }
    if client.filters.is_empty() {
        client.filters.push(("t/#".into(), QoS::ExactlyOnce));
    }
    client
}
