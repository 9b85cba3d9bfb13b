//! The world: a broker, its network and its clients, moved by one seed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use broker::{Limits, Settings, Shard, ShardId};
use codec::{QoS, Version};
use driver::testing::Clock;
use session::Overflow;

use crate::cells::{Cells, first_nodes};
use crate::client::{Draft, ModelClient};
use crate::cluster::Cluster;
use crate::crash::{Calamities, Toll};
use crate::dice::{
    BEGIN_MS, PARTING_MS, moods, new_crowd, new_settings, new_terms, room_bytes, set_levels,
    set_levels_of_cluster, share_out,
};
use crate::disks::Disks;
use crate::hostile::Mob;
use crate::ledger::Asking;
use crate::lines::Line;
use crate::node::{Node, Turns};
use crate::oracle::{GROUP_KEEPER, Oracle, Terms};
use crate::policy::Steering;
use crate::random::Random;
use crate::sabotage::Sabotage;
use crate::service::{Service, first_access};
use crate::silence::dress;
use crate::stream_world::StreamWorld;
use crate::wall::Wall;

/// Times at rest until the connections of hostile clients have ended.
const PARTING_ROUNDS_MAX: usize = 20;

/// Rounds in which the world has to come to rest at the end.
const REST_ROUNDS_MAX: usize = 5000;

/// Of these, those in which clients take what they get as slowly as before.
const NARROW_ROUNDS: usize = 50;

/// Turns of a driver for which no time passes: by then it has heard of all that was ready.
const TURNS_PER_LOOK: usize = 8;

/// A driver that runs looks at the time as often.
const PIECE_MS: u64 = 1000;

/// More time at once than a driver takes for its own: the process stood still.
const STANDSTILL_MS: u64 = PIECE_MS + PIECE_MS / 4;

/// Shards look through their groups and what is retained as often.
const SWEEP_MS: u64 = 1000;

/// Quiet rounds, each with a tick after it, that make rest.
const QUIET_ROUNDS: usize = 4;

/// What kind of world.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub steps: usize,
    pub sabotage: Option<Sabotage>,
    /// Small queues, with this policy.
    pub overflow: Option<Overflow>,
    /// The shards have journals, and everything crashes.
    pub durable: bool,
    /// They do not crash before the end, and nothing fails.
    pub calm: bool,
    /// Clients of other users do their worst.
    pub hostile: bool,
    /// Access rules, credentials and operators come and go.
    pub policy: bool,
    /// Clients use aliases, and promise not to be silent; little room for packets under way.
    pub driven: bool,
    /// A service decides what clients may do, and takes its time.
    pub service: bool,
    /// Some messages begin a trace, and all packets are looked at for one.
    pub spans: bool,
    /// Streams, with consumers. Only in durable worlds.
    pub streams: bool,
    /// Two or three nodes share a simulated engine.
    pub cluster: bool,
    /// Two or three cells share the clients.
    pub cells: bool,
    /// Lines of its history that a failure shows.
    pub trace_lines: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            steps: 3000,
            sabotage: None,
            overflow: None,
            durable: false,
            calm: false,
            hostile: false,
            policy: false,
            driven: false,
            service: false,
            spans: false,
            streams: false,
            cluster: false,
            cells: false,
            trace_lines: 60,
        }
    }
}

impl Options {
    /// Worlds with journals, disks and crashes.
    pub fn durable() -> Self {
        Self { durable: true, steps: 6000, ..Self::default() }
    }

    /// Worlds with journals, disks, crashes, streams and consumers.
    pub fn streams() -> Self {
        Self { streams: true, durable: true, steps: 9000, ..Self::default() }
    }

    /// Worlds with several nodes.
    pub fn cluster() -> Self {
        Self { cluster: true, steps: 6000, ..Self::default() }
    }

    /// Worlds with several cells.
    pub fn cells() -> Self {
        Self { cells: true, durable: true, steps: 9000, ..Self::default() }
    }
}

/// What a world that kept its promises has seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    pub received: u64,
    pub dropped: u64,
    pub takeovers: u64,
    /// How often publishers waited for another shard to deal with its mail.
    pub mail_waits: u64,
    /// Wills that somebody was owed.
    pub wills: u64,
    pub durable: Toll,
    pub driven: Turns,
    /// Answers of the authorization service.
    pub answers: u64,
    pub cluster: crate::cluster::Toll,
    pub streams: crate::stream_world::Toll,
    pub cells: crate::cells::Toll,
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub durable: bool,
    pub hostile: bool,
    pub policy: bool,
    pub driven: bool,
    pub service: bool,
    pub cluster: bool,
    pub streams: bool,
    pub cells: bool,
    pub rule: String,
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.rule)?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        let durable = if self.durable { " --durable" } else { "" };
        let hostile = if self.hostile { " --hostile" } else { "" };
        let policy = if self.policy { " --policy" } else { "" };
        let driven = if self.driven { " --driven" } else { "" };
        let service = if self.service { " --service" } else { "" };
        let cluster = if self.cluster { " --cluster" } else { "" };
        let streams = if self.streams { " --streams" } else { "" };
        let seed = self.seed;
        let cells = if self.cells { " --cells" } else { "" };
        let kinds = format!("{durable}{hostile}{policy}{driven}{service}{cluster}{streams}{cells}");
        write!(f, "run it again: cargo run -p quelea-sim -- {seed}{kinds}")
    }
}

impl std::error::Error for Failure {}

/// Runs one world from its seed to its end.
pub fn run(seed: u64, options: Options) -> Result<Report, Failure> {
    let mut world = World::new(seed, options);
    match world.live() {
        Ok(()) => Ok(Report {
            received: world.oracle.received,
            dropped: world.oracle.dropped,
            takeovers: world.node.shared.total(|metrics| &metrics.takeovers),
            mail_waits: world.node.shared.total(|metrics| &metrics.mail_waits),
            wills: world.oracle.wills_owed(),
            durable: Toll { hostile_refused: world.mob.refused(), ..world.toll },
            driven: Turns {
                room_waits: world.node.shared.total(|metrics| &metrics.incoming_waits),
                ..world.turns
            },
            answers: world.service.answers,
            cluster: world.cluster.as_ref().map(Cluster::toll).unwrap_or_default(),
            streams: world.streams.as_ref().map(StreamWorld::toll).unwrap_or_default(),
            cells: world.cells.as_ref().map(|cells| cells.toll).unwrap_or_default(),
        }),
        Err(rule) => {
            let trace = world.oracle.trace.into_lines();
            let Options {
                durable, hostile, policy, driven, service, cluster, streams, cells, ..
            } = options;
            Err(Failure {
                seed,
                durable,
                hostile,
                policy,
                driven,
                service,
                cluster,
                streams,
                cells,
                rule,
                trace,
            })
        }
    }
}

pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) options: Options,
    pub(crate) settings: Settings,
    pub(crate) limits: Arc<Limits>,
    pub(crate) node: Node,
    pub(crate) disks: Option<Disks>,
    pub(crate) cluster: Option<Cluster>,
    pub(crate) cells: Option<Cells>,
    pub(crate) streams: Option<StreamWorld>,
    pub(crate) calamities: Calamities,
    pub(crate) toll: Toll,
    /// What all drivers look at. It runs a little with each of their turns.
    pub(crate) clock: Rc<Clock>,
    pub(crate) turns: Turns,
    pub(crate) room_is_tight: bool,
    pub(crate) clients: Vec<ModelClient>,
    /// The connections of clients, by the place of the client.
    pub(crate) lines: BTreeMap<usize, Line>,
    /// Clients that do not say anything any more.
    pub(crate) silent: BTreeSet<usize>,
    /// Connections so far.
    pub(crate) arrivals: u32,
    pub(crate) now_ms: u64,
    pub(crate) wall: Wall,
    pub(crate) oracle: Oracle,
    /// What another user does, which changes nothing in the world of the others.
    pub(crate) strangers: Random,
    pub(crate) mob: Mob,
    /// What the broker has said that it dropped, of what was for honest ones.
    pub(crate) honest_dropped: u64,
    pub(crate) steering: Steering,
    pub(crate) service: Service,
    /// Whose session an operator is just ending.
    pub(crate) purging: Option<usize>,
    /// When the shards were last told what time it is.
    pub(crate) looked_ms: u64,
    pub(crate) asking: Asking,
    /// The world is at its end: from now on an operator tidies up.
    pub(crate) is_over: bool,
    /// Who comes back while a disk is full.
    pub(crate) crowd: Random,
    /// Bytes of the largest messages.
    pub(crate) padding_max: usize,
    /// How often clients come and go: 100 is very often.
    pub(crate) unrest_percent: usize,
    /// Found where it could not be returned.
    pub(crate) broken_rule: Option<String>,
}

impl World {
    fn new(seed: u64, options: Options) -> Self {
        let (mut random, mut crowd) = (Random::new(seed), Random::new(seed ^ (1 << 62)));
        let shard_count = 1 + random.below(if options.cells { 3 } else { 5 }) as u16;
        let (mut settings, mut limits) = new_settings(options, &mut random, &mut crowd);
        let (mut terms, clock) = (new_terms(options), Clock::new(BEGIN_MS));
        let (mut disks, mut cluster, mut calamities) = (None, None, Calamities::default());
        let (mut padding_max, mut unrest_percent) = (0, 100);
        if options.durable {
            disks = Some(Disks::new(shard_count, options.sabotage, &mut random, &mut crowd));
            calamities = Calamities::new(options, &mut random);
            (padding_max, unrest_percent) = moods(&mut random);
            calamities.put_into(&mut terms);
            set_levels(&mut settings, &mut limits, &mut terms, &mut random);
        }
        if options.cluster {
            (padding_max, unrest_percent) = moods(&mut random);
            set_levels_of_cluster(&mut settings, &mut limits, &mut terms, &mut random);
            cluster =
                Some(Cluster::new(shard_count, &clock, &settings, options.sabotage, &mut random));
            terms.may_refuse |= cluster.as_ref().is_some_and(Cluster::may_refuse);
        }
        let all = &mut (&mut settings, &mut limits, &mut terms);
        let mut clients = new_crowd(seed, options, all, &mut random);
        let room_is_tight = options.driven && random.chance(20);
        padding_max = dress(options, (&mut limits, &mut clients), padding_max, &mut random);
        let mut mob = Mob::new((options.hostile, options.policy), seed, &limits, &settings);
        share_out(options, &mut settings, disks.as_mut(), &mob, padding_max);
        let steering = Steering::new(options.policy, seed);
        let (oracle, streams) = new_oracle(terms, options, (shard_count, &steering), seed);
        let parts = (&settings, &first_access(options, &mob), &clock);
        let (mut node, cells) = first_nodes(options, shard_count, parts, (&mut random, &mut crowd));
        node.room_bytes = room_bytes(room_is_tight, options.hostile);
        mob.enter(&node.shared, options.sabotage);
        Self {
            node,
            random,
            options,
            settings,
            limits: Arc::new(limits),
            disks,
            cluster,
            cells,
            streams,
            calamities,
            toll: Toll::default(),
            clock,
            turns: Turns::default(),
            room_is_tight,
            clients,
            lines: BTreeMap::new(),
            silent: BTreeSet::new(),
            arrivals: 0,
            now_ms: BEGIN_MS,
            wall: Wall::new(BEGIN_MS, seed ^ (1 << 63)),
            oracle,
            strangers: Random::new(!seed),
            mob,
            honest_dropped: 0,
            steering,
            service: Service::new(options.service, seed),
            purging: None,
            looked_ms: BEGIN_MS,
            asking: Asking::default(),
            is_over: false,
            crowd,
            padding_max,
            unrest_percent,
            broken_rule: None,
        }
    }

    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        self.oracle.trace.note(line);
    }

    fn live(&mut self) -> Result<(), String> {
        self.note_kind();
        self.oracle.spans.watch(self.options.spans && !self.options.cluster);
        if self.steering.is_on() {
            self.set_first_policy();
        }
        self.start_cells()?;
        for _ in 0..self.options.steps {
            self.step()?;
            self.intrude()?;
            self.set_memory_left();
            self.step_hostile()?;
            self.steer()?;
            self.keep_namespace()?;
            self.serve()?;
            self.crowd_in()?;
            self.roam()?;
            self.broken_rule.take().map_or(Ok(()), Err)?;
        }
        self.come_to_rest()?;
        self.judge()?;
        if self.disks.is_some() || self.cluster.is_some() {
            self.crash_at_the_end()?;
            self.come_to_rest()?;
            self.judge()?;
        }
        if self.mob.is_there() {
            self.part_from_hostile()?;
        }
        self.end_steering()?;
        if self.options.driven {
            self.judge_keep_alive()?;
        }
        self.judge_retained()?;
        self.judge_gauges()?;
        if self.options.driven {
            self.judge_partings()?;
        }
        self.is_over = true;
        self.judge_ledger()
    }

    /// The hostile ones go, and their sessions end with the time.
    fn part_from_hostile(&mut self) -> Result<(), String> {
        self.dismiss_hostile();
        self.come_to_rest()?;
        // A connection ends when all that has come of it is dealt with, and its session later.
        for _ in 0..PARTING_ROUNDS_MAX {
            if self.node.shared.total(|metrics| &metrics.connections) <= self.lines.len() as u64 {
                break;
            }
            self.pass_ms(1000)?;
            self.come_to_rest()?;
        }
        self.pass_ms(PARTING_MS)?;
        self.come_to_rest()?;
        self.judge_mob()
    }

    /// A new process, and nothing in it.
    pub(crate) fn new_node(&mut self, shard_count: ShardId) {
        self.service.forget();
        let access = self.access();
        let (seed, clock) = (self.random.next(), &self.clock);
        self.node = match &self.cells {
            Some(cells) => {
                let life = cells.life(self.node.shared.homes);
                Node::of_cell(&self.settings, life, seed, &access, clock)
            }
            None => Node::new(&self.settings, shard_count, seed, &access, clock),
        };
        self.open_gateways();
        self.node.room_bytes = room_bytes(self.room_is_tight, self.options.hostile);
        self.mob.enter(&self.node.shared, self.options.sabotage);
    }

    fn note_kind(&mut self) {
        let shards = self.node.shard_count();
        let (terms, calamities) = (self.oracle.terms.clone(), self.calamities);
        self.note(|| format!("{shards} shards, {terms:?}, {calamities:?}"));
        for who in 0..self.clients.len() {
            let client = &self.clients[who];
            let (version, secs) = (client.version, client.expiry_secs);
            self.oracle.trace.note(|| format!("client {who}: {version:?}, session of {secs} s"));
        }
    }

    fn step(&mut self) -> Result<(), String> {
        if self.cluster.is_some() && self.random.chance(50) {
            return self.step_cluster();
        }
        if self.cells.is_some() && self.random.chance(40) {
            return self.step_cells();
        }
        if self.streams.is_some() && self.random.chance(35) {
            return self.step_streams();
        }
        if self.disks.is_some() && self.random.chance(40) {
            return self.step_durable();
        }
        let who = self.random.below(self.clients.len());
        if self.random.chance(1) && self.random.chance(self.unrest_percent) {
            return self.come_back(who);
        }
        match self.random.below(100) {
            0..=20 => self.send(who),
            21..=38 => self.receive(who)?,
            39..=58 if self.choose_member() => {
                let index = self.random.below(self.node.drivers.len());
                self.turn(index)?;
            }
            59..=67 if self.choose_member() => self.carry_mail()?,
            68..=74 => {
                let count = 1 + self.random.below(5);
                self.clients[who].acknowledge(count);
            }
            75..=85 => self.publish(who),
            86 => self.reconsider(who),
            87..=90 => self.connect(who),
            91 if self.choose_member() => self.turn_between()?,
            92 if self.choose_member() => self.notice_broken(),
            93..=94 => self.pass_time(3000)?,
            _ if !self.random.chance(self.unrest_percent) => {}
            95 if self.random.chance(20) => self.clients[who].leave_badly(),
            95 => self.clients[who].disconnect(),
            96..=97 => self.break_connection(who),
            _ => self.clients[who].is_deaf = self.random.chance(50),
        }
        Ok(())
    }

    /// As the first thread does between two looks at the sockets: for who is awake, and has mail.
    fn turn_between(&mut self) -> Result<(), String> {
        let index = self.random.below(self.node.drivers.len());
        if self.node.is_awake(index)? && self.node.drivers[index].driver.has_mail() {
            self.turn_for_mail(index)?;
        }
        Ok(())
    }

    /// While a disk is full its clients come back again and again: more than the journal can be
    /// told.
    fn crowd_in(&mut self) -> Result<(), String> {
        if !self.has_full_journal() || !self.crowd.chance(10) {
            return Ok(());
        }
        let who = self.crowd.below(self.clients.len());
        self.come_back(who)
    }

    fn publish(&mut self, who: usize) {
        if !self.clients[who].may_publish() {
            return;
        }
        let number = self.clients[who].number;
        let draft = Draft::any(number, true, self.padding_max, &mut self.random);
        self.clients[who].publish(draft, &mut self.oracle);
    }

    /// A client changes its subscriptions, or gives up its session.
    fn reconsider(&mut self, who: usize) {
        let number = self.random.next() as usize;
        // The keeper of the group never ends.
        let is_keeper = self.clients[who].number == GROUP_KEEPER;
        if self.clients[who].is_persistent() && !is_keeper && self.random.chance(10) {
            self.note(|| format!("client {who} begins anew"));
            self.break_connection(who);
            self.clients[who].fate.begin_anew();
            return;
        }
        self.note(|| format!("client {who} reconsiders its subscriptions"));
        let forgets = self.node.sabotage == Some(Sabotage::ForgetOldOptions);
        self.clients[who].reconsider(number, forgets, &mut self.oracle);
    }

    pub(crate) fn pass_time(&mut self, ms_max: usize) -> Result<(), String> {
        let ms = self.random.below(ms_max) as u64;
        self.pass_ms(ms)
    }

    /// Time passes. Who promised not to be silent is not. Sometimes the process stands still
    /// meanwhile.
    pub(crate) fn pass_ms(&mut self, ms: u64) -> Result<(), String> {
        if self.cluster.is_some() {
            self.keep_alive(ms);
            return self.pass_cluster_time(ms);
        }
        let piece_ms = if self.random.chance(20) { ms } else { PIECE_MS };
        let ends_ms = self.now_ms + ms;
        while self.now_ms < ends_ms {
            let next_ms = ends_ms.min(self.now_ms + piece_ms);
            self.keep_alive(next_ms - self.now_ms);
            self.now_ms = next_ms;
            self.tick()?;
        }
        Ok(())
    }

    /// Those whose time comes take their turns. Timers of clients wait for later ones: what clients
    /// said meanwhile comes first.
    pub(crate) fn tick(&mut self) -> Result<(), String> {
        self.oracle.now_ms = self.now_ms;
        if self.now_ms > self.looked_ms + STANDSTILL_MS {
            self.steering.calm_since_ms = self.now_ms;
        }
        self.looked_ms = self.now_ms;
        if self.cluster.is_some() {
            return self.tick_cluster();
        }
        for cell in self.cell_numbers() {
            self.switch_to_cell(cell);
            self.turn_until_heard()?;
        }
        self.tick_gateways();
        Ok(())
    }

    pub(crate) fn turn_until_heard(&mut self) -> Result<(), String> {
        for _ in 0..TURNS_PER_LOOK {
            if !self.turn_all()? {
                break;
            }
        }
        Ok(())
    }

    /// Everybody comes back, listens and acknowledges until nothing moves any more.
    pub(crate) fn come_to_rest(&mut self) -> Result<(), String> {
        self.node.sabotage = self.node.sabotage.filter(|bug| bug.is_of_sockets());
        self.end_calamities();
        self.calm_cells()?;
        self.pardon_all();
        let mut quiet_rounds = 0;
        for round in 0..REST_ROUNDS_MAX {
            self.await_open()?;
            self.choose_open();
            for cell in self.cell_numbers() {
                self.switch_to_cell(cell);
                while !self.node.broken.is_empty() {
                    self.notice_broken();
                }
            }
            if round >= NARROW_ROUNDS {
                self.lines.values().for_each(|line| line.pipe.widen(1 << 20));
            }
            for who in 0..self.clients.len() {
                self.listen(who)?;
            }
            self.answer_one()?;
            let is_still = !self.work_links()?;
            for cell in self.cell_numbers() {
                self.switch_to_cell(cell);
                while !self.node.mail.is_empty() {
                    self.carry_mail()?;
                }
                self.turn_all()?;
                self.set_memory_left();
                self.work_disks()?;
                self.work_streams()?;
                self.restart_poisoned()?;
            }
            if !is_still || !self.is_at_rest() {
                quiet_rounds = 0;
                self.pass_time(if self.waits_for_streams() { 1000 } else { 20 })?;
                continue;
            }
            // What only time moves must move in a few seconds; some of it once in a second.
            quiet_rounds += 1;
            if quiet_rounds == QUIET_ROUNDS {
                return self.judge_layers();
            }
            self.pass_ms(SWEEP_MS)?;
            self.pass_time(3000)?;
        }
        Err(format!("the world does not come to rest: {}", self.unrest()))
    }

    fn listen(&mut self, who: usize) -> Result<(), String> {
        self.clients[who].is_deaf = false;
        if self.clients[who].wire.is_none() {
            self.connect(who);
        }
        self.send(who);
        self.take(who, usize::MAX)?;
        self.clients[who].acknowledge(usize::MAX);
        Ok(())
    }

    /// What the layers of a socket have to say is sent without anybody's asking.
    fn judge_layers(&self) -> Result<(), String> {
        let waiting = self.lines.iter().find(|(_, line)| line.pipe.has_unsent());
        waiting.map_or(Ok(()), |(who, _)| {
            Err(format!("words of the layers of client {who} are never sent"))
        })
    }

    fn is_at_rest(&mut self) -> bool {
        self.cell_numbers().all(|cell| {
            self.switch_to_cell(cell);
            self.is_current_at_rest()
        })
    }

    fn is_current_at_rest(&self) -> bool {
        if self.cells.as_ref().is_some_and(|cells| !cells.is_quiet()) {
            return false;
        }
        if self.cluster.as_ref().is_some_and(|cluster| !cluster.is_idle(self.now_ms)) {
            return false;
        }
        let is_still = |line: &Line| line.acceptor.is_none() && line.pipe.under_way() == (0, 0);
        self.clients.iter().all(|client| client.is_ready() && client.is_quiet())
            && self.lines.values().all(is_still)
            && self.is_node_quiet()
            && !self.service.has_questions()
            && self.disks.as_ref().is_none_or(Disks::is_idle)
            && !self.node.delays_commit()
            && self.streams.as_ref().is_none_or(StreamWorld::is_at_rest)
    }

    /// Nothing else moves, and streams wait until time passes.
    fn waits_for_streams(&self) -> bool {
        let is_waiting =
            |streams: &StreamWorld| streams.is_still(self.now_ms) && !streams.is_at_rest();
        self.streams.as_ref().is_some_and(is_waiting)
    }

    /// Who does not read keeps nobody else from coming to rest.
    fn is_node_quiet(&self) -> bool {
        match self.mob.has_left() {
            true => self.node.is_quiet(),
            false => {
                self.node.mail.is_empty()
                    && self.node.shards().all(|shard| shard.next_deadline_ms() > 0)
            }
        }
    }

    fn unrest(&self) -> String {
        let restless = self.clients.iter().find(|client| !client.is_ready() || !client.is_quiet());
        match restless {
            Some(client) => {
                let who = self.clients.iter().position(|it| it.id == client.id);
                let pipe = who.and_then(|who| self.lines.get(&who)).map(|line| &line.pipe);
                let cells = self.cells.as_ref().map(Cells::unrest).unwrap_or_default();
                format!("{} waits, {}, {pipe:?}; {cells}", client.id, client.unrest())
            }
            None => format!(
                "{:?}, disks idle: {:?}, {}{}",
                self.nodes()
                    .flat_map(|node| node.shards().map(Shard::waits))
                    .find(|waits| !waits.are_over()),
                self.disks.as_ref().map(Disks::is_idle),
                self.cells.as_ref().map(Cells::unrest).unwrap_or_default(),
                self.streams.as_ref().map(StreamWorld::unrest).unwrap_or_default()
            ),
        }
    }

    fn judge(&mut self) -> Result<(), String> {
        self.oracle.dropped = match self.mob.is_there() {
            true => self.honest_dropped,
            false => {
                self.total(|metrics| &metrics.dropped_queue_full)
                    + self.total(|metrics| &metrics.dropped_group)
                    + self.total(|metrics| &metrics.dropped_unlogged)
            }
        };
        self.oracle.judge()?;
        let is_lossy = self.total(|metrics| &metrics.dropped_slow) > 0
            || self.total(|metrics| &metrics.dropped_expired) > 0;
        if self.cells.is_some() && !is_lossy {
            let connected = self.clients.iter().filter(|client| client.wire.is_some());
            self.oracle
                .judge_changes(&connected.map(|client| client.number).collect::<Vec<_>>())?;
        }
        self.judge_streams()?;
        self.broken_rule.take().map_or(Ok(()), Err)
    }

    /// A newcomer asks for all retained messages.
    fn judge_retained(&mut self) -> Result<(), String> {
        let number = self.clients.len() as u32;
        let mut fresh = ModelClient::new(number, Version::V5, 0, u16::MAX);
        fresh.want("r/#", QoS::AtLeastOnce);
        self.clients.push(fresh);
        let dropped = self.total(|metrics| &metrics.dropped_queue_full);
        self.come_to_rest()?;
        let dropped = self.total(|metrics| &metrics.dropped_queue_full) - dropped;
        self.oracle.judge_retained(number, dropped)
    }

    fn judge_gauges(&self) -> Result<(), String> {
        let connected = self.clients.iter().filter(|client| client.wire.is_some()).count() as u64;
        let counted = self.total(|metrics| &metrics.connections);
        if counted != connected {
            return Err(format!("{counted} connections counted, {connected} there are"));
        }
        let sessions: u64 = self
            .nodes()
            .flat_map(|node| node.shards().map(|shard| shard.session_count() as u64))
            .sum();
        let counted = self.total(|metrics| &metrics.sessions);
        if counted != sessions {
            return Err(format!("{counted} sessions counted, {sessions} there are"));
        }
        Ok(())
    }
}

/// It is told what streams and consumers there are.
fn new_oracle(
    mut terms: Terms,
    options: Options,
    (shards, steering): (ShardId, &Steering),
    seed: u64,
) -> (Oracle, Option<StreamWorld>) {
    let streams = StreamWorld::new(options, shards, seed);
    terms.may_refuse |= streams.as_ref().is_some_and(StreamWorld::may_refuse);
    let mut oracle = Oracle::new(terms, BEGIN_MS, options.trace_lines);
    oracle.rights = steering.rights(shards);
    streams.iter().for_each(|streams| streams.introduce(&mut oracle));
    (oracle, streams)
}
