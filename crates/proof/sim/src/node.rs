//! The broker's process: the drivers that have its shards, and all that ends with them.
//!
//! The drivers are those of the server, on hosts in memory. What one puts into the mailbox of
//! another passes through the hands of the world ([`Node::mail`]), which decides when it arrives.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use broker::{Homes, Mail, NO_CONNECTION, Name, Reauthenticated, Settings, Shard, ShardId, Shared};
use codec::Reason;
use driver::testing::{Alarm, BackEnd, Clock, MemoryHost, PipeEnd, Reports};
use driver::{Driver, DriverParts, Flaw, Host, IncomingRoom, Item, Mailbox};
use policy::Access;

use crate::disks::{SharedDisks, writer};
use crate::policy::Person;
use crate::random::Random;
use crate::sabotage::Sabotage;

/// A connection as the broker knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnectionRef {
    pub(crate) shard: ShardId,
    pub(crate) slot: u32,
    pub(crate) connection: u64,
}

impl ConnectionRef {
    /// That of a connection which its shard does not have any more.
    const fn none(shard: ShardId) -> Self {
        Self { shard, slot: 0, connection: NO_CONNECTION }
    }
}

/// A connection of a client that a driver has, or is about to have.
pub(crate) struct Admitted {
    pub(crate) who: usize,
    pub(crate) is_clean: bool,
    /// Who it is, and until when, where there are rules.
    pub(crate) person: Option<Person>,
    pub(crate) expires_ms: Option<u64>,
    /// Its shard has taken it on.
    pub(crate) is_open: bool,
}

/// What has happened in turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    pub turns: u64,
    /// Turns that were not told of all that was ready.
    pub turns_cut: u64,
    /// Sleeps from which only another driver, or a socket, woke a driver.
    pub sleeps: u64,
    pub keep_alive_cuts: u64,
    pub crowded: u64,
    /// How often a packet waited for room.
    pub room_waits: u64,
}

/// How long drivers wait for their connections to go: longer than any takes.
const GRACE_MS: u64 = 1_000_000;

type Post = Arc<Mailbox<MemoryHost>>;

/// A driver, and whether it sleeps.
pub(crate) struct Driven {
    pub(crate) driver: Driver<MemoryHost>,
    pub(crate) reports: Rc<RefCell<Reports>>,
    /// What it puts for each driver. That in its own place is its own mailbox.
    posts: Arc<[Post]>,
    mailbox: Post,
    alarm: Alarm,
    /// Somebody has called it.
    is_called: bool,
    /// None: it is awake.
    sleeps_until_ms: Option<u64>,
}

pub(crate) struct Node {
    pub(crate) shared: Arc<Shared>,
    /// Shards before their drivers begin.
    pub(crate) unborn: Vec<Shard>,
    pub(crate) drivers: Vec<Driven>,
    driver_count: usize,
    /// For packets under way, once its drivers begin.
    pub(crate) room_bytes: u64,
    clock: Rc<Clock>,
    /// Mail that has not arrived: from which driver, to which shard.
    pub(crate) mail: BTreeMap<(usize, ShardId), VecDeque<Mail>>,
    /// Connections of clients, by arrival.
    pub(crate) admitted: BTreeMap<u32, Admitted>,
    /// Connections that broke, and of which nobody has told the broker yet.
    pub(crate) broken: Vec<PipeEnd>,
    /// Refusals of full journals that were heard of, by driver.
    pub(crate) refused_full: Vec<u64>,
    /// There was one in the latest turn.
    pub(crate) is_unwritten: bool,
    /// What its drivers may write in place, and on what.
    pub(crate) in_place: Option<(usize, SharedDisks)>,
    /// What is wrong with it.
    pub(crate) sabotage: Option<Sabotage>,
}

impl Node {
    pub(crate) fn new(
        settings: &Settings,
        shard_count: ShardId,
        seed: u64,
        access: &Access,
        clock: &Rc<Clock>,
    ) -> Self {
        let life = (Homes::of_one_cell(shard_count), 0, 0);
        Self::of_cell(settings, life, seed, access, clock)
    }

    /// `epoch`: of the owner of the cell, and `buckets`: the seed of those of all cells.
    pub(crate) fn of_cell(
        settings: &Settings,
        (homes, epoch, buckets): (Homes, u64, u64),
        seed: u64,
        access: &Access,
        clock: &Rc<Clock>,
    ) -> Self {
        let mut random = Random::new(seed);
        let shard_count = homes.shards();
        let driver_count = 1 + random.below(usize::from(shard_count));
        let buckets = if homes.has_other_cells() { buckets } else { seed };
        let shared = Shared::of_cell(settings.clone(), homes, epoch, buckets);
        let unborn = (0..shard_count)
            .map(|number| Shard::new(number, shared.clone(), access.clone()))
            .collect();
        Self {
            shared,
            unborn,
            drivers: Vec::new(),
            driver_count,
            room_bytes: 1 << 30,
            clock: clock.clone(),
            mail: BTreeMap::new(),
            admitted: BTreeMap::new(),
            broken: Vec::new(),
            refused_full: vec![0; driver_count],
            is_unwritten: false,
            in_place: None,
            sabotage: None,
        }
    }

    /// The shards get their drivers.
    #[expect(clippy::arc_with_non_send_sync, reason = "a world stays on its thread")]
    pub(crate) fn begin(&mut self, seed: u64) {
        let count = self.driver_count;
        let incoming_room = IncomingRoom::new(self.room_bytes, self.room_bytes / 2);
        let mut shards: Vec<Vec<Shard>> = (0..count).map(|_| Vec::new()).collect();
        for shard in std::mem::take(&mut self.unborn) {
            shards[usize::from(shard.id()) % count].push(shard);
        }
        for (index, shards) in shards.into_iter().enumerate() {
            let alarm = Alarm::default();
            let mailbox = Arc::new(Mailbox::new(alarm.clone()));
            let posts: Arc<[Post]> = (0..count)
                .map(|to| match to == index {
                    true => mailbox.clone(),
                    false => Arc::new(Mailbox::new(Alarm::default())),
                })
                .collect();
            let mut host = MemoryHost::new(&self.clock);
            host.set_back_end(back_end(seed ^ index as u64));
            if let Some((bytes_max, disks)) = &self.in_place {
                host.set_disk(*bytes_max, writer(disks.clone(), !seed ^ index as u64));
            }
            let reports = host.reports();
            let driver = Driver::new(DriverParts {
                host,
                mailboxes: posts.clone(),
                index,
                shards,
                shutdown_grace_ms: GRACE_MS,
                incoming_room: incoming_room.clone(),
            });
            let (is_called, sleeps_until_ms) = (false, None);
            let driven =
                Driven { driver, reports, posts, mailbox, alarm, is_called, sleeps_until_ms };
            self.drivers.push(driven);
        }
    }

    pub(crate) fn shard_count(&self) -> ShardId {
        self.shared.homes.shards()
    }

    /// The driver that has the shard.
    pub(crate) fn driver_of(&self, shard: ShardId) -> usize {
        usize::from(shard) % self.driver_count
    }

    pub(crate) fn shard(&mut self, shard: ShardId) -> &mut Shard {
        let (index, place) = (self.driver_of(shard), usize::from(shard) / self.driver_count);
        match self.drivers.get_mut(index) {
            Some(driven) => driven.driver.shard_mut(place),
            None => &mut self.unborn[usize::from(shard)],
        }
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = &Shard> {
        let driven = self.drivers.iter().flat_map(|driven| driven.driver.shards());
        self.unborn.iter().chain(driven)
    }

    /// Where the client is connected, if it is.
    pub(crate) fn place_of(&mut self, client: Name<'_>) -> ConnectionRef {
        let shard = self.shared.place_of_client(client);
        let Some(connection) = self.shard(shard).connection_of(client) else {
            return ConnectionRef::none(shard);
        };
        let driver = &self.drivers[self.driver_of(shard)].driver;
        let slot = driver.slot_of(connection);
        slot.map_or(ConnectionRef::none(shard), |slot| ConnectionRef { shard, slot, connection })
    }

    /// What the broker has for a connection, and its socket has not taken.
    pub(crate) fn unsent(&mut self, place: ConnectionRef) -> usize {
        let farewell =
            self.drivers[self.driver_of(place.shard)].driver.farewell_len(place.connection);
        let outbox = self.shard(place.shard).outbox(place.slot, place.connection);
        outbox.map_or(0, |outbox| outbox.len()) + farewell
    }

    /// For the driver that has the shard.
    pub(crate) fn put(&mut self, shard: ShardId, item: Item<MemoryHost>) {
        let index = self.driver_of(shard);
        self.drivers[index].mailbox.put(item);
    }

    /// For each driver.
    pub(crate) fn put_to_all(&mut self, item: impl Fn() -> Item<MemoryHost>) {
        self.drivers.iter().for_each(|driven| driven.mailbox.put(item()));
    }

    /// Whether sockets give and take bytes.
    pub(crate) fn shut(&mut self, is_shut: bool) {
        self.drivers.iter_mut().for_each(|driven| driven.driver.host_mut().shut(is_shut));
    }

    /// Has something woken this driver, or is it awake? Err: it sleeps over its mail.
    pub(crate) fn is_awake(&mut self, index: usize) -> Result<bool, String> {
        let bug = self.sabotage;
        let driven = &mut self.drivers[index];
        driven.is_called |= driven.alarm.take() && bug != Some(Sabotage::SleepOn);
        let Some(until_ms) = driven.sleeps_until_ms else { return Ok(true) };
        let is_awake =
            driven.is_called || driven.driver.host().has_ready() || until_ms <= self.clock.now_ms();
        if !is_awake && driven.driver.has_mail() {
            return Err(format!("driver {index} sleeps over its mail"));
        }
        if !is_awake && driven.driver.has_unsent() {
            return Err(format!("driver {index} sleeps over answers for its clients"));
        }
        if is_awake {
            self.wake(index);
        }
        Ok(is_awake)
    }

    fn wake(&mut self, index: usize) {
        let driven = &mut self.drivers[index];
        (driven.is_called, driven.sleeps_until_ms) = (false, None);
        driven.driver.wake_up();
    }

    /// One turn, and then it sleeps if it may. `only`: of all sockets it looks at this one.
    pub(crate) fn turn(
        &mut self,
        index: usize,
        only: Option<&PipeEnd>,
        random: &mut Random,
        toll: &mut Turns,
    ) {
        if self.sabotage == Some(Sabotage::SwapItems) {
            self.swap_items(index, random);
        }
        let driven = &mut self.drivers[index];
        if self.sabotage == Some(Sabotage::ReuseNumbers) {
            driven.driver.forget_numbers();
        }
        match self.sabotage {
            Some(Sabotage::ForgetMarks) => driven.driver.plant(Flaw::ForgetsMarks),
            Some(Sabotage::StrandAnswers) => driven.driver.plant(Flaw::StrandsAnswers),
            Some(Sabotage::KeepDeadlines) => driven.driver.plant(Flaw::KeepsDeadlines),
            _ => {}
        }
        let count_max = if random.chance(50) { 1 + random.below(4) } else { usize::MAX };
        let (ready, has_more) = match only {
            Some(end) => (driven.driver.host().ready_of(end).into_iter().collect(), true),
            None => driven.driver.host_mut().ready(count_max, |count| random.below(count)),
        };
        driven.driver.turn(driven.driver.host().now(), ready.into_iter(), has_more);
        toll.turns += 1;
        toll.turns_cut += u64::from(has_more);
        let idle_ms = driven.driver.fall_asleep(driven.driver.ended());
        if idle_ms == 0 {
            driven.driver.wake_up();
        } else {
            toll.sleeps += 1;
            driven.sleeps_until_ms = Some(self.clock.now_ms() + idle_ms);
        }
        self.gather_mail(index);
    }

    /// A turn without a look at the sockets.
    pub(crate) fn turn_for_mail(&mut self, index: usize) {
        self.wake(index);
        let driver = &mut self.drivers[index].driver;
        driver.turn_for_mail(driver.host().now());
        self.gather_mail(index);
    }

    /// What the driver has put for others is under way.
    fn gather_mail(&mut self, index: usize) {
        let posts = self.drivers[index].posts.clone();
        for (_, post) in posts.iter().enumerate().filter(|(to, _)| *to != index) {
            if !post.has_items() {
                continue;
            }
            for item in post.take() {
                let Item::Mail(shard, mails) = item else { continue };
                self.mail.entry((index, shard)).or_default().extend(mails);
            }
        }
    }

    /// A planted bug: what was put second is taken first.
    fn swap_items(&self, index: usize, random: &mut Random) {
        let mailbox = &self.drivers[index].mailbox;
        if !random.chance(20) || !mailbox.has_items() {
            return;
        }
        let mut items = mailbox.take();
        items.rotate_left(1);
        items.into_iter().for_each(|item| mailbox.put(item));
    }

    /// Records wait for others to share a commit with.
    pub(crate) fn delays_commit(&self) -> bool {
        self.shards().filter_map(Shard::journal).any(storage::Journal::delays_commit)
    }

    /// Is nothing left that somebody waits for?
    pub(crate) fn is_quiet(&self) -> bool {
        let is_quiet =
            |driven: &Driven| !driven.driver.has_mail() && !driven.driver.host().has_ready();
        self.mail.is_empty()
            && self.drivers.iter().all(is_quiet)
            && self.shards().all(|shard| shard.waits().are_over() && shard.next_deadline_ms() > 0)
    }
}

/// Says yes, no, or go on.
fn back_end(seed: u64) -> BackEnd {
    let mut random = Random::new(seed);
    Box::new(move || match random.below(10) {
        0 => Reauthenticated::Failure(Reason::NOT_AUTHORIZED),
        1..=4 => Reauthenticated::Continue(b"and then?".to_vec()),
        _ => Reauthenticated::Success(Vec::new()),
    })
}
