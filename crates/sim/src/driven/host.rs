//! The drivers of a world, and when each takes a turn.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use broker::{Shard, ShardId, Shared};
use driver::testing::{Alarm, Clock, MemoryHost, Told};
use driver::{Driver, DriverParts, IncomingRoom, Item, Mailbox};
use policy::Access;

use crate::random::Random;
use crate::sabotage::Sabotage;

pub(super) struct Crew {
    pub(super) shared: Arc<Shared>,
    pub(super) drivers: Vec<Driven>,
    pub(super) mailboxes: Arc<[Arc<Mailbox<MemoryHost>>]>,
    pub(super) toll: Toll,
    clock: Rc<Clock>,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Toll {
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

pub(super) struct Driven {
    pub(super) driver: Driver<MemoryHost>,
    pub(super) told: Rc<RefCell<Told>>,
    alarm: Alarm,
    /// Somebody has called it.
    is_called: bool,
    /// None: it is awake.
    sleeps_until_ms: Option<u64>,
}

impl Crew {
    #[expect(clippy::arc_with_non_send_sync, reason = "a world stays on its thread")]
    pub(super) fn new(
        shared: &Arc<Shared>,
        clock: &Rc<Clock>,
        access: &Access,
        room_is_tight: bool,
        random: &mut Random,
    ) -> Self {
        let count = 1 + random.below(usize::from(shared.shard_count));
        let alarms: Vec<Alarm> = (0..count).map(|_| Alarm::default()).collect();
        let mailboxes: Arc<[_]> =
            alarms.iter().map(|alarm| Arc::new(Mailbox::new(alarm.clone()))).collect();
        let room = if room_is_tight { 64 * 1024 } else { 1 << 30 };
        let incoming_room = IncomingRoom::new(room, room / 2);
        let drive = |(index, alarm)| {
            let host = MemoryHost::new(clock);
            let told = host.told();
            let shards = (index as ShardId..shared.shard_count).step_by(count);
            let shards = shards.map(|id| Shard::new(id, shared.clone(), access.clone()));
            let driver = Driver::new(DriverParts {
                host,
                mailboxes: mailboxes.clone(),
                index,
                shards: shards.collect(),
                shutdown_grace_ms: 2000,
                incoming_room: incoming_room.clone(),
            });
            Driven { driver, told, alarm, is_called: false, sleeps_until_ms: None }
        };
        let drivers = alarms.into_iter().enumerate().map(drive).collect();
        let (shared, clock) = (shared.clone(), clock.clone());
        Self { shared, drivers, mailboxes, toll: Toll::default(), clock }
    }

    /// Puts something into the mailbox of the driver that has the shard.
    pub(super) fn put(&self, shard: ShardId, item: Item<MemoryHost>) {
        self.mailboxes[usize::from(shard) % self.mailboxes.len()].put(item);
    }

    /// Has something woken this driver, or is it awake? Err: it sleeps over its mail.
    pub(super) fn is_awake(
        &mut self,
        index: usize,
        random: &mut Random,
        bug: Option<Sabotage>,
    ) -> Result<bool, String> {
        let driven = &mut self.drivers[index];
        driven.is_called |= driven.alarm.take() && bug != Some(Sabotage::SleepOn);
        let Some(until_ms) = driven.sleeps_until_ms else { return Ok(true) };
        let is_awake =
            driven.is_called || driven.driver.host().has_ready() || until_ms <= self.clock.now_ms();
        if !is_awake && driven.driver.has_mail() {
            return Err(format!("driver {index} sleeps over its mail"));
        }
        if is_awake {
            (driven.is_called, driven.sleeps_until_ms) = (false, None);
            driven.driver.wake_up();
        }
        // A thread that was woken runs when the system lets it.
        Ok(is_awake && random.chance(90))
    }

    /// One turn, and then it sleeps if it may.
    pub(super) fn turn(&mut self, index: usize, random: &mut Random, bug: Option<Sabotage>) {
        if bug == Some(Sabotage::SwapItems) {
            self.swap_items(index, random);
        }
        let driven = &mut self.drivers[index];
        if bug == Some(Sabotage::ReuseNumbers) {
            driven.driver.forget_numbers();
        }
        let count_max = if random.chance(50) { 1 + random.below(4) } else { usize::MAX };
        let (ready, has_more) =
            driven.driver.host_mut().ready(count_max, |count| random.below(count));
        driven.driver.turn(ready.into_iter(), has_more);
        self.toll.turns += 1;
        self.toll.turns_cut += u64::from(has_more);
        let idle_ms = driven.driver.fall_asleep();
        if idle_ms == 0 {
            return driven.driver.wake_up();
        }
        self.toll.sleeps += 1;
        driven.sleeps_until_ms = Some(self.clock.now_ms() + idle_ms);
    }

    /// A planted bug: what was put second is taken first.
    fn swap_items(&self, index: usize, random: &mut Random) {
        let mailbox = &self.mailboxes[index];
        if !random.chance(20) || !mailbox.has_items() {
            return;
        }
        let mut items = mailbox.take();
        items.rotate_left(1);
        items.into_iter().for_each(|item| mailbox.put(item));
    }

    /// Is nothing left that somebody waits for?
    pub(super) fn is_quiet(&self) -> bool {
        self.drivers.iter().all(|driven| {
            let shards = driven.driver.shards();
            !driven.driver.has_mail()
                && !driven.driver.host().has_ready()
                && shards.iter().all(|shard| shard.waits().are_over())
        })
    }
}
