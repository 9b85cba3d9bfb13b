//! Worlds whose broker is driven by the code that drives it in the server: the turn of a worker
//! (`driver`), with its reads and writes, mailboxes, pauses and connections that come and go.
//!
//! The clients and the oracle are those of the other worlds. Sockets are in memory; their edges of
//! readiness are told as epoll tells them, and not all in one turn. Of the drivers, each takes a
//! turn when something has woken it, and at no other time.

mod end;
mod host;
mod moves;
mod rest;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use broker::{Limits, ShardId, Shared};
use codec::Version;
use driver::testing::{Clock, PipeEnd};

use crate::client::ModelClient;
use crate::oracle::{Oracle, Rights, Terms};
use crate::policy::{Person, Policy, compile};
use crate::random::Random;
use crate::sabotage::Sabotage;
use crate::world::{BEGIN_MS, Options, Report, new_clients, new_settings, new_terms, pick};
use host::Crew;
pub use host::Toll;

pub(crate) struct DrivenWorld {
    random: Random,
    options: Options,
    limits: Arc<Limits>,
    clock: Rc<Clock>,
    crew: Crew,
    clients: Vec<ModelClient>,
    /// The connections of clients, by the number of the client.
    lines: BTreeMap<usize, Line>,
    /// Ends of connections that their clients have forgotten.
    ghosts: Vec<PipeEnd>,
    /// Connections so far.
    arrivals: u32,
    /// What came of those that were handed over to a driver.
    admitted: BTreeMap<u32, Admitted>,
    has_rules: bool,
    oracle: Oracle,
    /// Clients that do not say anything any more.
    silent: BTreeSet<usize>,
    padding_max: usize,
    unrest_percent: usize,
    /// Bytes of clients under way that the drivers take.
    room_is_tight: bool,
    sabotage: Option<Sabotage>,
}

/// A client's end of a connection.
struct Line {
    arrival: u32,
    pipe: PipeEnd,
    /// Until the CONNECT is whole: what has come, and the end that the driver is to have.
    door: Option<(Vec<u8>, driver::testing::Pipe)>,
    /// When the client last sent all that it had to say.
    sent_ms: u64,
    /// When the broker ended it.
    closed_ms: Option<u64>,
}

/// A connection that a driver has, or is about to have.
struct Admitted {
    who: usize,
    is_clean: bool,
    person: Person,
    /// Its shard has taken it on.
    is_open: bool,
}

/// Runs one such world.
pub(crate) fn run(seed: u64, options: Options) -> Result<Report, (String, Vec<String>)> {
    let mut world = DrivenWorld::new(seed, options);
    let outcome = world.live();
    match outcome {
        Ok(()) => Ok(Report {
            received: world.oracle.received,
            dropped: world.oracle.dropped,
            takeovers: world.crew.shared.total(|metrics| &metrics.takeovers),
            mail_waits: world.crew.shared.total(|metrics| &metrics.mail_waits),
            wills: world.oracle.wills_owed(),
            driven: Toll {
                room_waits: world.crew.shared.total(|metrics| &metrics.incoming_waits),
                ..world.crew.toll
            },
            ..Report::default()
        }),
        Err(rule) => Err((rule, world.oracle.trace.into_lines())),
    }
}

impl DrivenWorld {
    fn new(seed: u64, options: Options) -> Self {
        let (mut random, mut crowd) = (Random::new(seed), Random::new(seed ^ (1 << 62)));
        let shard_count = 1 + random.below(5) as ShardId;
        let (settings, mut limits) = new_settings(options, &mut random, &mut crowd);
        limits.alias_in_max = pick(&[0, 1, 3, 30], &mut random);
        limits.alias_out_max = pick(&[0, 1, 3, 30], &mut random);
        let mut clients = new_clients(seed, false, &mut random);
        if settings.rejects {
            clients.iter_mut().for_each(|client| client.version = Version::V5);
        }
        clients.iter_mut().for_each(|client| dress(client, &mut random));
        let clock = Clock::new(BEGIN_MS);
        let terms = Terms { sees_refusals: false, ..new_terms(options) };
        let has_rules = random.chance(30);
        let policy = if has_rules { Policy::choose(&mut random) } else { Policy::open() };
        let mut oracle = Oracle::new(terms, BEGIN_MS, options.trace_lines);
        if has_rules {
            oracle.rights = Rights::new(vec![policy.clone(); shard_count.into()]);
        }
        let shared = Shared::new(settings, shard_count, random.next());
        let room_is_tight = random.chance(20);
        let access = compile(&policy.rules());
        let crew = Crew::new(&shared, &clock, &access, room_is_tight, &mut random);
        Self {
            crew,
            limits: Arc::new(limits),
            clock,
            clients,
            lines: BTreeMap::new(),
            ghosts: Vec::new(),
            arrivals: 0,
            admitted: BTreeMap::new(),
            has_rules,
            oracle,
            silent: BTreeSet::new(),
            padding_max: pick(&[0, 300, 6000], &mut random),
            unrest_percent: pick(&[5, 20, 100], &mut random),
            room_is_tight,
            sabotage: options.sabotage,
            options,
            random,
        }
    }

    fn live(&mut self) -> Result<(), String> {
        let (drivers, shards) = (self.crew.drivers.len(), self.crew.shared.shard_count);
        self.note(|| format!("{drivers} drivers, {shards} shards"));
        for _ in 0..self.options.steps {
            self.step()?;
        }
        self.come_to_rest()?;
        self.oracle.dropped = self.dropped();
        self.oracle.judge()?;
        self.judge_keep_alive()?;
        self.judge_retained()?;
        self.judge_end()
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        self.oracle.trace.note(line);
    }

    fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    fn dropped(&self) -> u64 {
        let shared = &self.crew.shared;
        shared.total(|m| &m.dropped_queue_full) + shared.total(|m| &m.dropped_group)
    }

    /// Who a client is, as its credential says.
    fn choose_person(&mut self, who: usize) -> Person {
        Person::choose(self.clients[who].username.clone(), &mut self.random)
    }
}

/// What the clients of other worlds do not do: speak MQTT 3.1, use aliases, promise not to be
/// silent.
fn dress(client: &mut ModelClient, random: &mut Random) {
    if client.version == Version::V311 && !client.is_persistent() && random.chance(40) {
        client.version = Version::V31;
    }
    if client.version == Version::V5 {
        client.alias_max = pick(&[0, 0, 1, 3, 30], random);
    }
    client.keep_alive_secs = pick(&[0, 5, 30], random);
}
