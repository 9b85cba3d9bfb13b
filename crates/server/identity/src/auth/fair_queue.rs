//! A fair queue of checks: one queue for each origin, served in rotation, so that an origin with
//! many checks delays only its own. Tenants take turns, too, so one with many origins delays only
//! its own.
//!
//! A check whose asker has had a time-out ([`Doubts`]) comes after the others of its origin, and
//! all such checks leave half of what may be under way to others.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::doubts::{Asker, Doubts, Standing};
use super::pace::{Attempt, Due, Pace};
use super::{Step, lock};
use driver::Origin;

/// The part of what may be under way at a time that one origin may have.
const ORIGIN_PART: usize = 4;

/// The part that is kept for origins that have nothing under way.
const KEPT_PART: usize = 8;

/// The part that checks have whose askers or origins have had a time-out.
const DOUBTFUL_PART: usize = 2;

/// A check that can be queued.
pub(super) trait Asks {
    fn attempt(&self) -> &Attempt;

    fn asker(&self) -> Asker {
        (self.attempt().origin, self.attempt().user)
    }

    /// The number of its namespace; of one that has none yet, 0.
    fn tenant(&self) -> u16 {
        0
    }
}

/// Whose turn it is: an origin within a namespace.
pub(super) type Owner = (u16, Origin);

/// The waiting checks of all origins.
pub(super) struct FairQueue<T> {
    /// The provider that is asked.
    step: Step,
    queues: HashMap<Owner, OriginQueue<T>>,
    /// Tenants with something in their queues, in the order of their turns.
    tenants: VecDeque<u16>,
    of_tenant: HashMap<u16, Tenant>,
    len: usize,
    len_max: usize,
    /// So many are taken at a time, of all origins and of each.
    under_way_max: usize,
    under_way: UnderWay,
    of_origin: HashMap<Origin, UnderWay>,
    pace: Arc<Mutex<Pace>>,
    pub(super) doubts: Doubts,
}

/// How many were taken and have not ended.
#[derive(Clone, Copy, Default)]
struct UnderWay {
    all: usize,
    doubtful: usize,
}

/// The origins of a tenant with something in their queues, in the order of their turns.
#[derive(Default)]
struct Tenant {
    order: VecDeque<Origin>,
    len: usize,
}

/// The waiting checks of one origin.
struct OriginQueue<T> {
    /// The pace of its origin has room for these.
    begun: VecDeque<Entry<T>>,
    waiting: VecDeque<Entry<T>>,
    /// Their askers have had a time-out: they come last.
    aside: VecDeque<Entry<T>>,
}

struct Entry<T> {
    ticket: u64,
    since: Instant,
    item: T,
}

/// The next step of a provider.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<T> {
    Item(T, Standing),
    /// Nothing before then; None: before something is put in or ends.
    Later(Due),
}

impl<T: Asks> FairQueue<T> {
    pub(super) fn new(
        step: Step,
        len_max: usize,
        under_way_max: usize,
        pace: &Arc<Mutex<Pace>>,
    ) -> Self {
        Self {
            step,
            queues: HashMap::new(),
            tenants: VecDeque::new(),
            of_tenant: HashMap::new(),
            len: 0,
            len_max,
            under_way_max,
            under_way: UnderWay::default(),
            of_origin: HashMap::new(),
            pace: pace.clone(),
            doubts: Doubts::default(),
        }
    }

    /// Where there is no room, the tenant with the most makes some, and of its queues the longest,
    /// with its newest: the second is given back. That may be the one that comes.
    pub(super) fn put(&mut self, ticket: u64, item: T, now: Instant) -> Option<T> {
        let owner = (item.tenant(), item.attempt().origin);
        let (number, origin) = owner;
        let queue = self.queues.entry(owner).or_default();
        let tenant = self.of_tenant.entry(number).or_default();
        if tenant.len == 0 {
            self.tenants.push_back(number);
        }
        if queue.is_empty() {
            tenant.order.push_back(origin);
        }
        let has_begun = item.attempt().has_begun();
        let entry = Entry { ticket, since: now, item };
        match has_begun {
            true => queue.begun.push_back(entry),
            false => queue.waiting.push_back(entry),
        }
        self.len += 1;
        tenant.len += 1;
        if self.len <= self.len_max {
            return None;
        }
        let owner = self.who_makes_room(owner);
        self.pop(owner, |queue| {
            let OriginQueue { begun, waiting, aside } = queue;
            aside.pop_back().or_else(|| waiting.pop_back()).or_else(|| begun.pop_back())
        })
    }

    /// As many as the most is not more: then it is the one that comes.
    fn who_makes_room(&self, (tenant, origin): Owner) -> Owner {
        let of = |tenant: u16| self.of_tenant.get(&tenant).map_or(0, |own| own.len);
        let most = self.of_tenant.iter().max_by_key(|(_, own)| own.len).map(|(most, _)| *most);
        let most = most.filter(|most| of(*most) > of(tenant)).unwrap_or(tenant);
        let own = match most == tenant {
            true => self.queues.get(&(tenant, origin)).map_or(0, OriginQueue::len),
            false => 0,
        };
        let queues = self.queues.iter().filter(|((tenant, _), _)| *tenant == most);
        let longest = queues.max_by_key(|(_, queue)| queue.len());
        let longest = longest.filter(|(_, queue)| queue.len() > own).map(|(other, _)| *other);
        longest.unwrap_or((tenant, origin))
    }

    /// The next that may begin; [`FairQueue::end`] has to follow. Of an origin with many failed
    /// log-ins another user comes first than the last time, as most who guess go for one; else the
    /// newest, as who has waited for long behind those has likely given up.
    pub(super) fn take(&mut self, now: Instant) -> Next<T> {
        let mut soonest: Due = None;
        if self.under_way.all >= self.under_way_max {
            return Next::Later(None);
        }
        for _ in 0..self.tenants.len() {
            let Some(tenant) = self.tenants.pop_front() else { break };
            self.tenants.push_back(tenant);
            match self.take_of_tenant(tenant, now) {
                Next::Item(item, standing) => {
                    let own = self.of_origin.entry(item.attempt().origin).or_default();
                    for count in [own, &mut self.under_way] {
                        count.all += 1;
                        count.doubtful += usize::from(standing == Standing::Doubtful);
                    }
                    return Next::Item(item, standing);
                }
                Next::Later(due) => soonest = soonest.into_iter().chain(due).min(),
            }
        }
        Next::Later(soonest)
    }

    fn take_of_tenant(&mut self, tenant: u16, now: Instant) -> Next<T> {
        let mut soonest: Due = None;
        let count = self.of_tenant.get(&tenant).map_or(0, |own| own.order.len());
        for _ in 0..count {
            let Some(own) = self.of_tenant.get_mut(&tenant) else { break };
            let Some(origin) = own.order.pop_front() else { break };
            own.order.push_back(origin);
            match self.take_of((tenant, origin), now) {
                Ok(Some((item, standing))) => return Next::Item(item, standing),
                Ok(None) => {}
                Err(due) => soonest = soonest.into_iter().chain(due).min(),
            }
        }
        Next::Later(soonest)
    }

    /// One that was taken is done with.
    pub(super) fn end(&mut self, origin: Origin, standing: Standing) {
        let Some(own) = self.of_origin.get_mut(&origin) else { return };
        for count in [&mut *own, &mut self.under_way] {
            count.all = count.all.saturating_sub(1);
            let doubtful = usize::from(standing == Standing::Doubtful);
            count.doubtful = count.doubtful.saturating_sub(doubtful);
        }
        if own.all == 0 {
            self.of_origin.remove(&origin);
        }
    }

    /// An origin that has none under way gets what is free. Another one gets no more than its part,
    /// no more than it leaves to others, and nothing of what is kept.
    fn has_slot_for(&self, origin: Origin, standing: Standing) -> bool {
        let own = self.of_origin.get(&origin).copied().unwrap_or_default();
        let free = self.under_way_max.saturating_sub(self.under_way.all);
        let (part, kept) = (self.under_way_max / ORIGIN_PART, self.under_way_max / KEPT_PART);
        let has_slot = free > 0 && (own.all == 0 || own.all < part && own.all + kept < free);
        let of_doubtful = |whole: usize| (whole / DOUBTFUL_PART).max(1);
        let is_left = self.under_way.doubtful < of_doubtful(self.under_way_max)
            && own.doubtful < of_doubtful(part);
        has_slot && (standing == Standing::Trusted || is_left)
    }

    fn take_of(&mut self, owner: Owner, now: Instant) -> Result<Option<(T, Standing)>, Due> {
        let (_, origin) = owner;
        self.set_aside(owner, now);
        let Some(queue) = self.queues.get(&owner) else { return Ok(None) };
        let standing = match self.doubts.has_origin_hung(origin, now) {
            true => Standing::Doubtful,
            false => Standing::Trusted,
        };
        let first = queue.begun.front().or(queue.waiting.front());
        let of_others = first.filter(|_| self.has_slot_for(origin, standing));
        let (first, standing, is_aside) = match of_others {
            Some(first) => (first, standing, false),
            None if self.has_slot_for(origin, Standing::Doubtful) => {
                let Some(first) = queue.aside.front() else { return Ok(None) };
                (first, Standing::Doubtful, true)
            }
            None => return Ok(None),
        };
        let mut last_user = None;
        let has_begun = first.item.attempt().has_begun();
        if !has_begun {
            let mut pace = lock(&self.pace);
            // On behalf of whichever is taken.
            pace.begin(origin, self.step, now)?;
            last_user = pace.worn_by(origin);
        }
        let item = self.pop(owner, |queue| match last_user {
            _ if is_aside => queue.aside.pop_front(),
            _ if has_begun => queue.begun.pop_front(),
            Some(last_user) => pop_other(&mut queue.waiting, last_user),
            None => queue.waiting.pop_front(),
        });
        if let Some(item) = item.as_ref().filter(|_| !has_begun) {
            item.attempt().has_room(self.step);
            lock(&self.pace).note_user(origin, item.attempt().user);
        }
        Ok(item.map(|item| (item, standing)))
    }

    /// What comes first and has an asker that has had a time-out comes last from now on.
    fn set_aside(&mut self, owner: Owner, now: Instant) {
        let Some(queue) = self.queues.get_mut(&owner) else { return };
        let has_hung = |entry: &mut Entry<T>| self.doubts.has_hung(entry.item.asker(), now);
        for lane in [&mut queue.begun, &mut queue.waiting] {
            while let Some(entry) = lane.pop_front_if(has_hung) {
                queue.aside.push_back(entry);
            }
        }
    }

    /// Takes out what began to wait before then.
    pub(super) fn take_before(&mut self, then: Instant) -> Vec<T> {
        let mut gone = Vec::new();
        for owner in self.queues.keys().copied().collect::<Vec<_>>() {
            let is_old = |entry: &mut Entry<T>| entry.since < then;
            while let Some(item) = self.pop(owner, |queue| {
                let OriginQueue { begun, waiting, aside } = queue;
                [begun, waiting, aside].into_iter().find_map(|lane| lane.pop_front_if(is_old))
            }) {
                gone.push(item);
            }
        }
        gone
    }

    /// Its client is gone. To be dropped without the lock of the queue: that ends its attempt.
    pub(super) fn forget(&mut self, owner: Owner, ticket: u64) -> Option<T> {
        self.pop(owner, |queue| {
            let OriginQueue { begun, waiting, aside } = queue;
            [begun, waiting, aside].into_iter().find_map(|lane| {
                let place = lane.iter().position(|entry| entry.ticket == ticket)?;
                lane.remove(place)
            })
        })
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.tenants.clear();
        self.of_tenant.clear();
        self.len = 0;
        let queues = std::mem::take(&mut self.queues).into_values();
        let lanes = queues.flat_map(|queue| [queue.begun, queue.waiting, queue.aside]);
        lanes.flatten().map(|entry| entry.item)
    }

    fn pop(
        &mut self,
        owner: Owner,
        end: impl FnOnce(&mut OriginQueue<T>) -> Option<Entry<T>>,
    ) -> Option<T> {
        let queue = self.queues.get_mut(&owner)?;
        let Entry { item, .. } = end(queue)?;
        self.len -= 1;
        let is_empty = queue.is_empty();
        if is_empty {
            self.queues.remove(&owner);
        }
        let (number, origin) = owner;
        if let Some(tenant) = self.of_tenant.get_mut(&number) {
            tenant.len -= 1;
            // Whose turn it was is the last one now.
            if is_empty && tenant.order.pop_back_if(|last| *last == origin).is_none() {
                tenant.order.retain(|waiting| *waiting != origin);
            }
            if tenant.len == 0 {
                self.of_tenant.remove(&number);
                self.tenants.retain(|waiting| *waiting != number);
            }
        }
        Some(item)
    }
}

impl<T> Default for OriginQueue<T> {
    fn default() -> Self {
        Self { begun: VecDeque::new(), waiting: VecDeque::new(), aside: VecDeque::new() }
    }
}

impl<T> OriginQueue<T> {
    fn len(&self) -> usize {
        self.begun.len() + self.waiting.len() + self.aside.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The newest of another user, else the newest.
fn pop_other<T: Asks>(waiting: &mut VecDeque<Entry<T>>, user: u64) -> Option<Entry<T>> {
    let other = waiting.iter().rposition(|entry| entry.item.attempt().user != user);
    waiting.remove(other.unwrap_or(waiting.len().saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[derive(Debug)]
    struct Item(u64, Arc<Attempt>, u16);

    impl Asks for Item {
        fn attempt(&self) -> &Attempt {
            &self.1
        }

        fn tenant(&self) -> u16 {
            self.2
        }
    }

    const ONE: Origin = Origin::V4([192, 0, 2, 1]);
    const OTHER: Origin = Origin::V4([192, 0, 2, 2]);

    fn fair_queue(len_max: usize, failures_per_second_max: u32) -> FairQueue<Item> {
        let pace = Arc::new(Mutex::new(Pace::new(failures_per_second_max)));
        fair_at(Step::File, len_max, &pace)
    }

    fn fair_at(step: Step, len_max: usize, pace: &Arc<Mutex<Pace>>) -> FairQueue<Item> {
        FairQueue::new(step, len_max, 1_000, pace)
    }

    /// A thousand tickets are one user.
    fn put(fair: &mut FairQueue<Item>, origin: Origin, ticket: u64) -> Option<u64> {
        let attempt = Arc::new(Attempt::new(&fair.pace, origin, ticket / 1000));
        attempt.enter(fair.step);
        fair.put(ticket, Item(ticket, attempt, 0), Instant::now()).map(|item| item.0)
    }

    fn taken(fair: &mut FairQueue<Item>, now: Instant) -> Item {
        match fair.take(now) {
            Next::Item(item, _) => item,
            Next::Later(due) => panic!("nothing before {due:?}"),
        }
    }

    fn end(fair: &mut FairQueue<Item>, item: &Item, is_right: bool) {
        fair.end(item.1.origin, Standing::Trusted);
        item.1.end(Some(is_right));
    }

    fn is_later(fair: &mut FairQueue<Item>, now: Instant) -> bool {
        matches!(fair.take(now), Next::Later(None))
    }

    #[test]
    fn origins_take_turns() {
        let mut fair = fair_queue(100, 0);
        let now = Instant::now();
        for ticket in 0..5 {
            assert_eq!(put(&mut fair, ONE, ticket), None);
        }
        assert_eq!(put(&mut fair, OTHER, 9), None);
        let order: Vec<u64> = (0..6).map(|_| taken(&mut fair, now).0).collect();
        assert_eq!(order, [0, 9, 1, 2, 3, 4], "behind one, not behind five");
        assert!(is_later(&mut fair, now));
        assert!(fair.queues.is_empty() && fair.tenants.is_empty());
    }

    #[test]
    fn one_origin_has_a_part_of_what_is_under_way() {
        let pace = Arc::new(Mutex::new(Pace::new(0)));
        let mut fair = FairQueue::new(Step::File, 1_000, 8, &pace);
        let now = Instant::now();
        for ticket in 0..20 {
            put(&mut fair, ONE, ticket);
        }
        let first = taken(&mut fair, now);
        taken(&mut fair, now);
        assert!(is_later(&mut fair, now), "two of eight");
        for number in 0..6 {
            let other = Origin::V4([198, 51, 100, number]);
            put(&mut fair, other, 100);
            assert_eq!(taken(&mut fair, now).1.origin, other);
        }
        put(&mut fair, OTHER, 100);
        assert!(is_later(&mut fair, now), "all are under way");
        fair.end(first.1.origin, Standing::Trusted);
        assert_eq!(taken(&mut fair, now).1.origin, OTHER, "not the one that has another");
    }

    const HANGS: u64 = 1;

    fn asks(fair: &mut FairQueue<Item>, origin: Origin, user: u64, now: Instant) -> Option<u64> {
        let attempt = Arc::new(Attempt::new(&fair.pace, origin, user));
        fair.put(0, Item(user, attempt, 0), now).map(|item| item.0)
    }

    fn all_taken(fair: &mut FairQueue<Item>, now: Instant) -> Vec<(Origin, u64, Standing)> {
        let next = || match fair.take(now) {
            Next::Item(item, standing) => Some((item.1.origin, item.0, standing)),
            Next::Later(_) => None,
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn places_are_kept_for_origins_that_have_nothing_under_way() {
        for origins in 2..56 {
            let pace = Arc::new(Mutex::new(Pace::new(0)));
            let mut fair = FairQueue::new(Step::File, 100_000, 64, &pace);
            let now = Instant::now();
            for number in 0..origins {
                for user in 0..64 {
                    asks(&mut fair, Origin::V4([192, 0, 2, number]), user, now);
                }
            }
            let taken = all_taken(&mut fair, now).len();
            assert!((30..=56).contains(&taken), "{taken} of {origins} origins");
            asks(&mut fair, Origin::Local, 1, now);
            assert_eq!(all_taken(&mut fair, now), [(Origin::Local, 1, Standing::Trusted)]);
        }
    }

    #[test]
    fn who_has_had_a_time_out_leaves_half_to_others_and_comes_last() {
        let pace = Arc::new(Mutex::new(Pace::new(0)));
        let mut fair = FairQueue::new(Step::File, 100_000, 64, &pace);
        let now = Instant::now();
        for number in 0..100 {
            let origin = Origin::V4([192, 0, 2, number]);
            fair.doubts.note_hung((origin, HANGS), now);
            for _ in 0..20 {
                asks(&mut fair, origin, HANGS, now);
            }
            // An answer to another one does not clear it.
            fair.doubts.note_answered(origin);
        }
        assert_eq!(all_taken(&mut fair, now).len(), 32);
        let mixed = Origin::V4([192, 0, 2, 7]);
        asks(&mut fair, mixed, 2, now);
        asks(&mut fair, OTHER, 2, now);
        let mut taken = all_taken(&mut fair, now);
        taken.sort_unstable_by_key(|(origin, ..)| *origin != mixed);
        let expected = [(mixed, 2, Standing::Trusted), (OTHER, 2, Standing::Trusted)];
        assert_eq!(taken, expected, "others of the same address, and of another one");
        let later = now + Duration::from_secs(60);
        asks(&mut fair, mixed, HANGS, later);
        let again = all_taken(&mut fair, later);
        assert_eq!(
            again,
            [(mixed, HANGS, Standing::Trusted)],
            "it is not held against it for ever"
        );
    }

    #[test]
    fn one_place_is_enough_for_those_who_have_had_a_time_out() {
        let pace = Arc::new(Mutex::new(Pace::new(0)));
        let mut fair = FairQueue::new(Step::File, 100, 1, &pace);
        let now = Instant::now();
        fair.doubts.note_hung((ONE, HANGS), now);
        asks(&mut fair, ONE, HANGS, now);
        asks(&mut fair, ONE, 2, now);
        assert_eq!(all_taken(&mut fair, now), [(ONE, 2, Standing::Doubtful)], "its origin has");
        fair.end(ONE, Standing::Doubtful);
        assert_eq!(all_taken(&mut fair, now), [(ONE, HANGS, Standing::Doubtful)]);
    }

    #[test]
    fn what_has_waited_for_long_is_taken_out() {
        let pace = Arc::new(Mutex::new(Pace::new(0)));
        let mut fair = FairQueue::new(Step::File, 100, 1, &pace);
        let start = Instant::now();
        fair.doubts.note_hung((ONE, HANGS), start);
        for (user, secs) in [(HANGS, 0), (2, 1), (3, 2), (4, 3)] {
            asks(&mut fair, ONE, user, start + Duration::from_secs(secs));
        }
        let gone = fair.take_before(start + Duration::from_secs(2));
        assert_eq!(gone.iter().map(|item| item.0).collect::<Vec<_>>(), [HANGS, 2]);
        assert_eq!((fair.len, fair.of_tenant[&0].len), (2, 2));
        assert_eq!(fair.take_all().count(), 2);
    }

    #[test]
    fn who_fills_the_queue_makes_room() {
        let mut fair = fair_queue(3, 0);
        for ticket in 0..3 {
            assert_eq!(put(&mut fair, ONE, ticket), None);
        }
        assert_eq!(put(&mut fair, ONE, 3), Some(3), "its own newest");
        assert_eq!(put(&mut fair, OTHER, 8), Some(2), "the newest of the longest");
        assert_eq!(put(&mut fair, OTHER, 9), Some(9), "as long as the longest is not longer");
        assert_eq!(fair.len, 3);
    }

    fn put_of(fair: &mut FairQueue<Item>, tenant: u16, address: u8, ticket: u64) -> Option<u64> {
        let origin = Origin::V4([192, 0, 2, address]);
        let attempt = Arc::new(Attempt::new(&fair.pace, origin, 1));
        fair.put(ticket, Item(ticket, attempt, tenant), Instant::now()).map(|item| item.0)
    }

    #[test]
    fn a_tenant_with_many_origins_delays_only_its_own() {
        let mut fair = fair_queue(100, 0);
        for address in 0..50 {
            assert_eq!(put_of(&mut fair, 1, address, address.into()), None);
        }
        for (tenant, ticket) in [(2, 200), (3, 300)] {
            assert_eq!(put_of(&mut fair, tenant, 1, ticket), None);
            assert_eq!(put_of(&mut fair, tenant, 1, ticket + 1), None);
        }
        let now = Instant::now();
        let order: Vec<u64> = (0..8).map(|_| taken(&mut fair, now).0).collect();
        let of = |from: u64| order.iter().filter(|it| (from..from + 100).contains(*it)).count();
        assert_eq!((of(0), of(200), of(300)), (4, 2, 2), "in turn: {order:?}");
    }

    #[test]
    fn the_tenant_with_the_most_makes_room() {
        let mut fair = fair_queue(10, 0);
        for address in 0..10 {
            assert_eq!(put_of(&mut fair, 1, address, address.into()), None);
        }
        let gone = put_of(&mut fair, 2, 1, 200).expect("there is no room");
        assert!(gone < 10, "one of the tenant that fills it: {gone}");
        assert!(put_of(&mut fair, 1, 77, 77).is_some_and(|gone| gone < 100), "its own");
        assert_eq!((fair.len, fair.of_tenant[&1].len, fair.of_tenant[&2].len), (10, 9, 1));
        let now = Instant::now();
        while let Next::Item(item, _) = fair.take(now) {
            fair.end(item.1.origin, Standing::Trusted);
        }
        assert!(fair.of_tenant.is_empty() && fair.tenants.is_empty());
    }

    #[test]
    fn who_is_gone_is_not_checked() {
        let mut fair = fair_queue(10, 0);
        for ticket in 0..3 {
            put(&mut fair, ONE, ticket);
        }
        assert_eq!(fair.forget((0, ONE), 1).map(|item| item.0), Some(1));
        assert!(fair.forget((0, ONE), 1).is_none() && fair.forget((0, OTHER), 0).is_none());
        let now = Instant::now();
        assert_eq!(taken(&mut fair, now).0, 0);
        assert_eq!(fair.forget((0, ONE), 2).map(|item| item.0), Some(2));
        assert!(is_later(&mut fair, now));
        assert_eq!(fair.len, 0);
    }

    #[test]
    fn an_origin_that_guesses_waits_for_its_pace_and_its_newest_comes_first() {
        let mut fair = fair_queue(1000, 5);
        let start = Instant::now();
        for ticket in 0..200 {
            put(&mut fair, ONE, ticket);
        }
        let due = loop {
            match fair.take(start) {
                Next::Item(item, _) => end(&mut fair, &item, false),
                Next::Later(due) => break due.unwrap(),
            }
        };
        assert!(due > start && due <= start + Duration::from_millis(400));
        let due = due + Duration::from_millis(10);
        put(&mut fair, OTHER, 500);
        assert_eq!(taken(&mut fair, start).0, 500, "others do not wait");
        put(&mut fair, ONE, 300);
        let newest = taken(&mut fair, due);
        assert_eq!(newest.0, 300, "the newest");
        end(&mut fair, &newest, true);
        put(&mut fair, ONE, 1000);
        put(&mut fair, ONE, 301);
        let other = taken(&mut fair, due);
        assert_eq!(other.0, 1000, "another user");
        end(&mut fair, &other, true);
        assert_eq!(taken(&mut fair, due).0, 301);
    }

    #[test]
    fn a_provider_that_hangs_holds_up_no_other_of_its_origin() {
        let pace = Arc::new(Mutex::new(Pace::new(1)));
        let now = Instant::now();
        let mut hangs = fair_at(Step::Provider(0), 1_000, &pace);
        let mut other = fair_at(Step::File, 1_000, &pace);
        for ticket in 0..80 {
            put(&mut hangs, ONE, ticket);
        }
        // What is taken is not forgotten: it is under way for as long as it is there.
        let mut asked = Vec::new();
        while let Next::Item(item, _) = hangs.take(now) {
            asked.push(item);
        }
        assert_eq!(asked.len(), 64, "a guess each, perhaps");
        for ticket in 0..200 {
            put(&mut other, ONE, ticket);
            let item = taken(&mut other, now);
            end(&mut other, &item, true);
        }
        for item in &asked {
            end(&mut hangs, item, false);
        }
        put(&mut other, ONE, 200);
        assert!(matches!(other.take(now), Next::Later(Some(_))), "failures count everywhere");
    }

    #[test]
    fn who_leaves_has_guessed_if_it_was_tried() {
        let pace = Arc::new(Mutex::new(Pace::new(1)));
        for _ in 0..200 {
            let attempt = Attempt::new(&pace, ONE, 1);
            attempt.enter(Step::File);
            attempt.end(None);
            assert!(!attempt.has_begun());
        }
        let tried = (0..200).take_while(|_| {
            let attempt = Attempt::new(&pace, ONE, 1);
            attempt.enter(Step::File);
            let may = attempt.has_begun();
            attempt.note_tried();
            attempt.end(None);
            may
        });
        assert!((64..70).contains(&tried.count()));
    }
}
