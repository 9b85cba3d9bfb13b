//! Shards, a disk and targets around the owner of streams, all driven by a seed, and an oracle that
//! counts by itself.

mod disk;
mod journal;
mod message;
mod oracle;
mod target;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use broker::streams::{ConsumerNumber, StoredRecord, StreamFound, StreamNumber};
use routing::dispatch::RecordId;
use routing::{Cursor, DispatchRules};
use storage::stream::StreamLimits;
use storage::testing::Rng;
use streams::{
    ConsumerDefinition, Effect, EventId, Flaw, Full, Happening, Hub, HubSettings, Order, Outgoing,
    Position, Seek, Start, StreamDefinition,
};

use disk::{Disk, identity_of};
use journal::{Fact, Journal};
use message::{FILTERS, Fate, Message, TOPICS, Want};
use target::Target;

pub(crate) const MAIN: StreamNumber = StreamNumber(1);
pub(crate) const DEAD: StreamNumber = StreamNumber(2);
const CLIENTS: u64 = 4;
const ATTEMPTS_MAX: u32 = 3;

/// What goes wrong in a world.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    pub(crate) flaw: Option<Flaw>,
    /// Records are deleted by the limits of the stream.
    pub(crate) drops: bool,
    /// Files are damaged.
    pub(crate) damages: bool,
}

pub(crate) struct World {
    rng: Rng,
    weather: Weather,
    settings: HubSettings,
    limits: StreamLimits,
    full: Full,
    now_ms: u64,
    hub: Hub,
    shards: Vec<Journal>,
    disk: Disk,
    targets: BTreeMap<ConsumerNumber, Target>,
    /// As an operator has them.
    wants: BTreeMap<ConsumerNumber, (Want, ConsumerDefinition)>,
    paused: BTreeMap<ConsumerNumber, bool>,
    /// The namespaces of these are suspended.
    suspended: BTreeSet<ConsumerNumber>,
    /// The run of each shard of a consumer.
    runs: BTreeMap<(ConsumerNumber, u16), u64>,
    /// Consumers whose first cursors were confirmed.
    started: BTreeMap<ConsumerNumber, bool>,
    /// Changed rules: what was skipped or not matched is not known exactly.
    changed: BTreeMap<ConsumerNumber, bool>,
    /// Event IDs, and the messages that have them.
    ids: BTreeMap<EventId, u64>,
    /// Events that were not delivered, or deleted: if a crash takes that outcome, they come late.
    excused: BTreeSet<(ConsumerNumber, String)>,
    next_uid: u64,
    next_consumer: u32,
    has_damage: bool,
    is_calm: bool,
    is_traced: bool,
}

type Checked = Result<(), String>;

fn rules(rng: &mut Rng) -> DispatchRules {
    DispatchRules {
        lanes: 1 + rng.below(4) as usize,
        batch_records_max: 1 + rng.below(5) as usize,
        batch_bytes_max: 4_000,
        in_flight_max: [3, 10, 40][rng.below(3) as usize],
        attempts_max: ATTEMPTS_MAX,
        retry_after_ms: vec![20, 80],
        probation_ms: (10, 60),
    }
}

fn settings(rng: &mut Rng, shards: u16, flaw: Option<Flaw>) -> HubSettings {
    HubSettings {
        memory_max: [1_500, 6_000, 1 << 20][rng.below(3) as usize],
        block_age_ms: [50, 400, 5_000][rng.below(3) as usize],
        block_bytes_wait: [200, 1_000, 1 << 20][rng.below(3) as usize],
        writing_bytes_max: [300, 3_000][rng.below(2) as usize],
        read_bytes_max: [100, 1 << 20][rng.below(2) as usize],
        cursor_ms: 30,
        idle_cursor_ms: 200,
        retry_ms: 40,
        ending_ms: 300,
        turn_records: [2, 7, 50][rng.below(3) as usize],
        turns: 3,
        flaw,
        ..HubSettings::new(shards)
    }
}

fn limits(rng: &mut Rng, drops: bool) -> StreamLimits {
    let mut limits = StreamLimits {
        file_bytes: [300, 900, 3_000][rng.below(3) as usize],
        consumed: rng.chance(30),
        ..StreamLimits::default()
    };
    if drops {
        match rng.below(3) {
            0 => limits.age_ms_max = Some(1_500),
            1 => limits.bytes_max = Some(1_500),
            _ => limits.records_max = Some(15),
        }
    }
    limits
}

impl World {
    pub(crate) fn new(seed: u64, weather: Weather) -> Self {
        let mut rng = Rng::new(seed);
        let shards = 1 + rng.below(3) as u16;
        let settings = settings(&mut rng, shards, weather.flaw);
        let limits = limits(&mut rng, weather.drops);
        let full = if rng.chance(30) { Full::Reject } else { Full::DropOldest };
        let mut world = Self {
            weather,
            limits,
            full,
            now_ms: 1_000_000,
            hub: Hub::new(settings.clone()),
            shards: (0..shards).map(|_| Journal::default()).collect(),
            disk: Disk::new(seed ^ 1),
            targets: BTreeMap::new(),
            wants: BTreeMap::new(),
            paused: BTreeMap::new(),
            suspended: BTreeSet::new(),
            runs: BTreeMap::new(),
            started: BTreeMap::new(),
            changed: BTreeMap::new(),
            ids: BTreeMap::new(),
            excused: BTreeSet::new(),
            next_uid: 1,
            next_consumer: 1,
            has_damage: false,
            is_calm: false,
            is_traced: std::env::var_os("QUELEA_SEED").is_some(),
            settings,
            rng,
        };
        world.start().expect("nothing is wrong yet");
        for _ in 0..=world.rng.below(4) {
            world.add_consumer();
        }
        world
    }

    fn shard_count(&self) -> u16 {
        self.shards.len() as u16
    }

    /// From what the journals and the disk have.
    fn start(&mut self) -> Checked {
        self.settings.life = self.rng.next_u64();
        self.hub = Hub::new(self.settings.clone());
        let replayed: Vec<_> = self.shards.iter().map(Journal::replay).collect();
        for number in [MAIN, DEAD] {
            let mut reach: BTreeMap<u64, u64> = BTreeMap::new();
            let mut found: BTreeMap<u16, StreamFound> = BTreeMap::new();
            for (journal, shard) in replayed.iter().zip(0..) {
                let own = journal.streams.get(&number).cloned().unwrap_or_default();
                for (file, end) in &own.reach {
                    let known = reach.entry(*file).or_default();
                    *known = *end.max(known);
                }
                found.insert(shard, own);
            }
            let files = self.disk.recover(number, &reach)?;
            self.trace(|| format!("start {number:?}: {found:?} {files:?}"));
            let is_main = number == MAIN;
            let definition = StreamDefinition {
                number,
                name: "s".into(),
                limits: if is_main { self.limits } else { StreamLimits::default() },
                full: self.full,
                identity: identity_of(number),
            };
            self.hub.add_stream(definition, files, &found).map_err(|it| it.to_string())?;
        }
        self.runs.clear();
        for (number, (_, definition)) in &self.wants {
            let own = |(journal, shard): (&journal::Replayed, u16)| {
                Some((shard, journal.cursors.get(number)?.clone()))
            };
            let cursors: BTreeMap<u16, Vec<u8>> =
                replayed.iter().zip(0..).filter_map(own).collect();
            if self.started.contains_key(number) && cursors.len() < replayed.len() {
                return Err(format!("{number:?} was confirmed, and a cursor of it is lost"));
            }
            let known = cursors.values().filter_map(|bytes| Cursor::decode(bytes));
            let run = known.map(|cursor| cursor.run()).max().unwrap_or(1);
            for shard in 0..self.shards.len() as u16 {
                self.runs.insert((*number, shard), run);
            }
            let added = self.hub.add_consumer(definition.clone(), &cursors);
            added.map_err(|error| error.to_string())?;
            if self.paused[number] {
                self.hub.pause(*number, self.now_ms);
            }
            self.hub.set_suspended(*number, self.suspended.contains(number), self.now_ms);
        }
        for (journal, shard) in replayed.iter().zip(0..) {
            let unknown = journal.cursors.keys().filter(|it| !self.wants.contains_key(it));
            unknown.for_each(|it| self.hub.forget_consumer(shard, *it));
            let own = &mut self.shards[usize::from(shard)];
            for (stream, found) in &journal.streams {
                let records = own.records(*stream, found.archived, own.committed);
                let news = broker::streams::StreamNews::Stored {
                    stream: *stream,
                    first: found.archived,
                    records,
                };
                self.hub.on_news(shard, news, self.now_ms);
            }
            for news in own.sync() {
                self.hub.on_news(shard, news, self.now_ms);
            }
        }
        Ok(())
    }

    /// With `QUELEA_SEED`, so that a history can be read.
    fn trace(&self, text: impl Fn() -> String) {
        if self.is_traced {
            let text = text();
            println!("{} {}", self.now_ms, &text[..text.len().min(1400)]);
        }
    }

    fn crash(&mut self) -> Checked {
        let loses_power = self.rng.chance(50);
        self.trace(|| format!("crash, loses power: {loses_power}"));
        for shard in &mut self.shards {
            shard.crash(loses_power, &mut self.rng);
        }
        self.disk.queues.clear();
        for target in self.targets.values_mut() {
            target.lose_connections(&mut self.rng);
        }
        self.start()
    }

    fn add_consumer(&mut self) {
        let number = ConsumerNumber(self.next_consumer);
        self.next_consumer += 1;
        let rng = &mut self.rng;
        let filter = FILTERS[rng.below(FILTERS.len() as u64) as usize];
        let want = Want { filter, n_below: rng.chance(30).then_some(6) };
        let of_dead = rng.chance(20);
        let definition = ConsumerDefinition {
            number,
            name: format!("consumer-{}", number.0).into(),
            stream: if of_dead { DEAD } else { MAIN },
            namespace: "factory".into(),
            rule: Arc::new(want.rule()),
            dispatch: rules(rng),
            order: if rng.chance(80) { Order::Lanes } else { Order::None },
            start: if rng.chance(70) { Start::Beginning } else { Start::New },
            dead_letter: (!of_dead && rng.chance(60)).then_some(DEAD),
            skip_expired: rng.chance(40),
            in_flight_bytes_max: [400, 1 << 20][rng.below(2) as usize],
        };
        let added = self.hub.add_consumer(definition.clone(), &BTreeMap::new());
        added.expect("it is sound");
        self.wants.insert(number, (want, definition));
        self.paused.insert(number, false);
        self.targets.insert(number, Target::default());
        for shard in 0..self.shard_count() {
            self.runs.insert((number, shard), 1);
        }
    }

    fn any_consumer(&mut self) -> Option<ConsumerNumber> {
        let count = self.wants.len() as u64;
        let place = self.rng.below(count.max(1)) as usize;
        self.wants.keys().nth(place).copied()
    }

    fn publish(&mut self) {
        if self.full == Full::Reject && self.hub.is_full(MAIN) {
            return;
        }
        let rng = &mut self.rng;
        let (client, topic) = (rng.below(CLIENTS), rng.below(TOPICS.len() as u64) as usize);
        let fate = match rng.below(20) {
            0 => Fate::Refused,
            1 => Fate::Failing,
            _ => Fate::Good,
        };
        let expires_ms = if rng.chance(15) { self.now_ms + rng.below(2_000) } else { 0 };
        let (uid, n) = (self.next_uid, rng.below(10));
        let message = Message { uid, client, topic, n, fate, expires_ms };
        self.next_uid += 1;
        let bytes = message.encode(self.settings.life, self.now_ms);
        let record = StoredRecord { at_ms: self.now_ms, bytes: Arc::new(bytes) };
        let shard = (client % u64::from(self.shard_count())) as usize;
        self.shards[shard].push(Fact::Record { stream: MAIN, record });
    }

    fn with_shard(&mut self, act: impl Fn(&mut Journal) -> Vec<broker::streams::StreamNews>) {
        let shard = self.rng.below(self.shards.len() as u64) as usize;
        for news in act(&mut self.shards[shard]) {
            self.hub.on_news(shard as u16, news, self.now_ms);
        }
    }

    fn take_order(&mut self) {
        let shard = self.rng.below(self.shards.len() as u64) as usize;
        let is_dead = matches!(
            self.shards[shard].orders.front().map(|order| &order.change),
            Some(broker::streams::StreamChange::DeadLetter { .. })
        );
        let refuses = !self.is_calm && self.rng.chance(if is_dead { 30 } else { 8 });
        let refused = self.shards[shard].take_order(refuses, self.now_ms);
        if let Some(news) = refused {
            self.hub.on_news(shard as u16, news, self.now_ms);
        }
    }

    fn disk_step(&mut self) {
        let stream = if self.rng.chance(70) { MAIN } else { DEAD };
        let fails = !self.is_calm && self.rng.chance(10);
        if let Some((id, result)) = self.disk.step(stream, fails) {
            self.hub.on_file(stream, id, result, self.now_ms);
        }
    }

    fn damage(&mut self) {
        let count = self.disk.files.len() as u64;
        let place = self.rng.below(count.max(1)) as usize;
        let Some(content) = self.disk.files.values_mut().nth(place) else { return };
        // Behind the header of the file; the index is in memory until a start.
        let at = 64 + self.rng.below((content.len() as u64 - 64).max(1)) as usize;
        if let Some(byte) = content.get_mut(at) {
            *byte ^= 1 << self.rng.below(8);
            self.has_damage = true;
        }
    }

    fn answer(&mut self) {
        let Some(number) = self.any_target() else { return };
        let target = self.targets.get_mut(&number).expect("it has one");
        if let Some((batch, answer)) = target.answer(&mut self.rng, self.is_calm, self.now_ms) {
            self.trace(|| format!("{number:?} {batch:?} {answer:?}"));
            self.hub.on_answer(number, batch, answer, self.now_ms);
        }
    }

    /// One with a batch, also of a consumer that was removed.
    fn any_target(&mut self) -> Option<ConsumerNumber> {
        let busy = self.targets.iter().filter(|(_, target)| !target.batches.is_empty());
        let busy: Vec<ConsumerNumber> = busy.map(|(number, _)| *number).collect();
        (!busy.is_empty()).then(|| busy[self.rng.below(busy.len() as u64) as usize])
    }

    fn control(&mut self) {
        let Some(number) = self.any_consumer() else { return self.add_consumer() };
        match self.rng.below(9) {
            0 | 1 => {
                let is_paused = !self.paused[&number];
                self.paused.insert(number, is_paused);
                match is_paused {
                    true => self.hub.pause(number, self.now_ms),
                    false => self.hub.resume(number, self.now_ms),
                }
            }
            2 | 3 => {
                let to = match self.rng.below(4) {
                    0 => Seek::Beginning,
                    1 => Seek::End,
                    2 => Seek::Time(self.now_ms - self.rng.below(3_000)),
                    _ => Seek::Position(Position(BTreeMap::from([(0, self.rng.below(40))]))),
                };
                self.trace(|| format!("seek {number:?} {to:?}"));
                self.hub.seek(number, &to, self.now_ms);
            }
            4 => {
                self.hub.remove_consumer(number, self.now_ms);
                self.wants.remove(&number);
            }
            5 if self.wants.len() < 6 => self.add_consumer(),
            6 => {
                let (want, definition) = self.wants.get_mut(&number).expect("it is there");
                want.n_below = self.rng.chance(50).then_some(4);
                definition.rule = Arc::new(want.rule());
                let changed = self.hub.change_consumer(definition.clone(), self.now_ms);
                changed.expect("it is sound");
                self.changed.insert(number, true);
            }
            7 => {
                let is_suspended = self.suspended.insert(number);
                if !is_suspended {
                    self.suspended.remove(&number);
                }
                self.hub.set_suspended(number, is_suspended, self.now_ms);
            }
            _ => self.hub.move_all(0),
        }
    }

    fn pass_time(&mut self) {
        self.now_ms += match self.rng.below(3) {
            0 => self.rng.below(10),
            1 => self.rng.below(100),
            _ => self.rng.below(1_500),
        };
    }

    fn work(&mut self) -> Checked {
        let mut out = Vec::new();
        self.hub.work(self.now_ms, &self.disk, &mut out);
        for effect in out {
            self.trace(|| format!("{effect:?}"));
            match effect {
                Effect::Order { shard, order } => {
                    self.excuse(&order.change)?;
                    self.check_number(shard, &order.change)?;
                    self.shards[usize::from(shard)].orders.push_back(order);
                }
                Effect::File { stream, command } => {
                    self.check_command(stream, &command)?;
                    self.disk.queues.entry(stream).or_default().push_back(command);
                }
                Effect::Send { consumer, batch, is_alone, records } => {
                    self.trace(|| {
                        let body = |it: &Outgoing| {
                            String::from_utf8_lossy(it.output.body.as_deref().unwrap_or_default())
                                .into_owned()
                        };
                        let all: Vec<_> =
                            records.iter().map(|it| (it.id.ordinal, body(it))).collect();
                        format!("sent {consumer:?} {batch:?} {is_alone} {all:?}")
                    });
                    self.check_send(consumer, &records)?;
                    let runs = &self.runs;
                    let run = |shard: u16| runs[&(consumer, shard)];
                    let target = self.targets.get_mut(&consumer).expect("it has one");
                    target.send(batch, is_alone, records, run);
                }
                Effect::Happened(Happening::Started { consumer, run }) => {
                    self.started.insert(consumer, true);
                    for shard in 0..self.shard_count() {
                        self.runs.insert((consumer, shard), run);
                    }
                }
                Effect::Happened(Happening::Broken { detail, .. }) => return Err(detail.into()),
                Effect::Happened(Happening::Undelivered { consumer, record, .. }) => {
                    self.excuse_record(consumer, record);
                }
                Effect::Happened(Happening::Dropped { consumer, shard, ordinals, .. }) => {
                    for ordinal in ordinals {
                        self.excuse_record(consumer, RecordId { shard, ordinal });
                    }
                }
                Effect::Happened(_) => {}
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Checked {
        match self.rng.below(100) {
            0..24 => self.publish(),
            24..40 => self.take_order(),
            40..52 => self.with_shard(Journal::commit),
            52..64 => self.with_shard(Journal::sync),
            64..74 => self.disk_step(),
            74..88 => self.answer(),
            88..94 => self.pass_time(),
            94..97 => self.control(),
            97 => self.crash()?,
            98 if self.weather.damages => self.damage(),
            _ => {
                let faults = if self.rng.chance(20) { 50 } else { 0 };
                self.disk.read_faults.set(faults);
                self.check_views()?;
            }
        }
        if self.rng.chance(70) { self.work() } else { Ok(()) }
    }

    /// Nothing goes wrong any more, until all is done.
    fn calm_down(&mut self) -> Checked {
        self.is_calm = true;
        self.disk.read_faults.set(0);
        for number in self.wants.keys() {
            self.hub.resume(*number, self.now_ms);
            self.hub.set_suspended(*number, false, self.now_ms);
        }
        self.suspended.clear();
        self.paused.values_mut().for_each(|is_paused| *is_paused = false);
        for _ in 0..2_000 {
            self.work()?;
            if self.hub.has_work() {
                continue;
            }
            for shard in 0..self.shards.len() {
                while self.shards[shard].take_order(false, self.now_ms).is_some() {}
                while !self.shards[shard].orders.is_empty() {
                    self.shards[shard].take_order(false, self.now_ms);
                }
                let mut news = self.shards[shard].commit();
                news.extend(self.shards[shard].sync());
                for news in news {
                    self.hub.on_news(shard as u16, news, self.now_ms);
                }
            }
            for stream in [MAIN, DEAD] {
                while self.disk.queues.get(&stream).is_some_and(|queue| !queue.is_empty()) {
                    if let Some((id, result)) = self.disk.step(stream, false) {
                        self.hub.on_file(stream, id, result, self.now_ms);
                    }
                }
            }
            while self.any_target().is_some() {
                self.answer();
            }
            if self.is_done() {
                return Ok(());
            }
            if !self.hub.has_work() {
                let next = self.hub.next_deadline().ok_or("it waits for nothing")?;
                self.now_ms = next.max(self.now_ms + 1);
            }
        }
        let hub = format!("{:?}", self.hub);
        let from = hub.find("consumers: {ConsumerNumber").unwrap_or_default();
        Err(format!("it does not end: {}", &hub[from..]))
    }

    fn is_done(&mut self) -> bool {
        let numbers: Vec<ConsumerNumber> = self.wants.keys().copied().collect();
        let is_open = |number: &ConsumerNumber| {
            let view = self.hub.view(*number, self.now_ms).expect("it is there");
            view.sum.lag() > 0 || view.state.name() != "idle"
        };
        let is_open = numbers.iter().any(is_open);
        !is_open && self.disk.is_idle() && self.shards.iter().all(|it| it.orders.is_empty())
    }

    /// Lives for a while, calms down, and is checked.
    pub(crate) fn live(&mut self, steps: usize) -> Checked {
        for _ in 0..steps {
            self.step()?;
        }
        self.calm_down()?;
        // What is committed is what is seen: cursors are ordered within these.
        for _ in 0..12 {
            self.now_ms += 1_000;
            self.calm_down()?;
        }
        self.check_end()?;
        self.crash()?;
        self.calm_down()?;
        self.check_end()
    }
}
