//! The little that all shards of a process share: wait-free tables and gauges, and the names of
//! groups and the set of streams, which are behind locks; no session state.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use session::{Account, GroupJournals, JOURNALS_MAX, MemoryKind, Pot};
use topic::Interest;

use crate::words::group_names::GroupNames;
use crate::words::homes::{Homes, PLACES_MAX, Place};
use crate::words::owners::scope_of_owner;
use crate::words::stream_set::StreamSet;
use crate::{Ledger, Metrics, Name, Scope, Settings, ShardId, Space, Spaces};

/// Buckets of the interest table, as a power of two. Memory is only taken for those in use.
const INTEREST_BUCKETS_LOG2: u8 = 20;

/// Handed to every shard when it is made.
#[derive(Debug)]
pub struct Shared {
    pub settings: Settings,
    pub homes: Homes,
    /// How often this cell has had a new owner. 0: it is not in a cluster.
    pub(crate) epoch: u64,
    /// Which places may want a topic.
    pub interest: Interest,
    pub metrics: Box<[Arc<Metrics>]>,
    /// Who makes the broker hold how much.
    pub ledger: Ledger,
    /// A number clients cannot guess, for hashes.
    pub(crate) seed: u64,
    pub(crate) group_names: GroupNames,
    /// The namespaces beside the default one.
    pub spaces: Spaces,
    retained_messages: AtomicU64,
    retained_bytes: AtomicU64,
    /// A [`Memory`], which the driver sets.
    memory: AtomicU8,
    reports_subscriptions: AtomicBool,
    /// Those of the broker's own messages may be for streams.
    streams: RwLock<Arc<StreamSet>>,
    /// How often it has come to each stage of a lack of memory, in their order.
    memory_shortages: [AtomicU64; 3],
    /// As in [`Journals`].
    journals_full: AtomicU64,
    journals_poisoned: AtomicU64,
    journals_behind: AtomicU64,
    journals_tight: AtomicU64,
    /// What each journal has left for messages; [`u64::MAX`] while that is enough.
    journals_left: Box<[AtomicU64]>,
    /// What each may hold of them.
    journals_most: Box<[AtomicU64]>,
}

/// One cell has a table of its own. Those of several cells have the same buckets.
fn interest_of(homes: Homes, seed: u64) -> Interest {
    let (shards, places) = (homes.shards(), homes.places());
    match homes.has_other_cells() {
        false => Interest::new(shards, INTEREST_BUCKETS_LOG2, seed),
        true => Interest::of_cell(shards, places, INTEREST_BUCKETS_LOG2, seed),
    }
}

/// When only this part of a journal is left, also those who have less than their share, or have it
/// alone, leave as much as they have to those who have yet to come.
const LAST_PART: u64 = 16;

/// When only this part of it is left, those who hold most are refused more.
const SCARCE_PART: u64 = 4;

const _: () = assert!(PLACES_MAX as usize <= JOURNALS_MAX, "bytes are counted for each journal");

/// How much memory the process has left, as its driver sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Memory {
    #[default]
    Enough,
    /// Those who hold more than they leave to others are slowed: their publishers are paused, their
    /// queues count as full.
    Tight,
    /// What is left is for those who free some: publishes of QoS 1 and 2 and new subscriptions are
    /// refused with 0x97, QoS 0 is dropped; of those only who hold more than they leave to others,
    /// if it is known how much is left. Never refused is what clears a retained message, gives
    /// a subscription up, acknowledges, or ends a connection or a session.
    Short,
    /// As [`Memory::Short`], and new connections are refused, too.
    Out,
}

/// A bit per shard whose journal is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Journals {
    /// It has no space, which may return.
    pub(crate) full: u64,
    /// It is out of service.
    pub(crate) poisoned: u64,
    /// It has much waiting for the disk.
    pub(crate) behind: u64,
    /// Its space gets short: those who hold most of it have to leave what is left to others.
    pub(crate) tight: u64,
}

/// The same of one journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalState {
    pub(crate) full: bool,
    pub(crate) poisoned: bool,
    pub(crate) behind: bool,
    /// How many bytes of messages it has left, and may hold; none while that is enough.
    pub(crate) space: Option<JournalSpace>,
}

/// Bytes of messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalSpace {
    pub(crate) left: u64,
    pub(crate) most: u64,
}

impl JournalSpace {
    /// Is so little left that those who hold most have to leave it to others?
    const fn is_scarce(self) -> bool {
        self.left < self.most / SCARCE_PART
    }

    /// Would somebody have too much with so many bytes, one of so many who share the journal?
    const fn is_too_much(self, own: u64, sharers: u64) -> bool {
        let is_last = self.left < self.most / LAST_PART;
        own > self.left && (is_last || own > self.most / sharers)
    }

    /// What a namespace has of it that holds so much, one of so many.
    fn part_of(self, bytes: u64, groups: u64) -> Self {
        let most = self.most / groups;
        Self { left: self.left.min(most.saturating_sub(bytes)), most }
    }
}

impl Shared {
    /// Of a broker that is not in a cluster of several cells.
    pub fn new(settings: Settings, homes: Homes, seed: u64) -> Arc<Self> {
        Self::of_cell(settings, homes, 0, seed)
    }

    /// `epoch`: of this owner of the cell, above those of all before. `seed`: of all cells.
    pub fn of_cell(settings: Settings, homes: Homes, epoch: u64, seed: u64) -> Arc<Self> {
        let Settings { queues_bytes_max, sessions_bytes_max, .. } = settings;
        // Who may have how much of the last three is decided where they are asked for.
        let retained_bytes_max = settings.retained_bytes_max;
        let pots = [queues_bytes_max, sessions_bytes_max, retained_bytes_max, u64::MAX, u64::MAX];
        Arc::new(Self {
            settings,
            homes,
            epoch,
            interest: interest_of(homes, seed),
            ledger: Ledger::new(pots),
            metrics: (0..homes.shards()).map(|_| Arc::default()).collect(),
            seed,
            group_names: GroupNames::new(homes, seed),
            spaces: Spaces::default(),
            retained_messages: AtomicU64::new(0),
            retained_bytes: AtomicU64::new(0),
            memory: AtomicU8::new(Memory::Enough as u8),
            reports_subscriptions: AtomicBool::new(false),
            streams: RwLock::default(),
            memory_shortages: Default::default(),
            journals_full: AtomicU64::new(0),
            journals_poisoned: AtomicU64::new(0),
            journals_behind: AtomicU64::new(0),
            journals_tight: AtomicU64::new(0),
            journals_left: (0..homes.shards()).map(|_| AtomicU64::new(u64::MAX)).collect(),
            journals_most: (0..homes.shards()).map(|_| AtomicU64::new(u64::MAX)).collect(),
        })
    }

    /// The place that keeps the session of a client id. Stable for one number of cells and shards,
    /// across restarts and versions: stored sessions are found by it.
    pub fn place_of_client(&self, client: Name<'_>) -> Place {
        self.homes.place_of(client.home_of_client(self.homes))
    }

    /// The cell that keeps the sessions of a client id, whatever their scope.
    pub fn cell_of_client(&self, id: &str) -> u16 {
        Name::first(id).home_of_client(self.homes).cell
    }

    /// The place that keeps the retained message of a topic. Stable like the above.
    pub fn place_of_topic(&self, topic: Name<'_>) -> Place {
        topic.place(self.homes)
    }

    pub(crate) const fn place_of_group(&self, group: u64) -> Place {
        (group % self.homes.places() as u64) as Place
    }

    /// Does anybody listen to who subscribes to what? If not, no event is made of it.
    pub(crate) fn set_streams(&self, set: &Arc<StreamSet>) {
        *self.streams.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(set);
    }

    /// Would a message of the broker's own on this topic, of QoS 0, reach anybody? A look-up of
    /// streams takes as long as they have filters.
    pub fn is_heard(&self, topic: &str) -> bool {
        let set = || self.streams.read().unwrap_or_else(PoisonError::into_inner);
        self.interest.shards(topic.as_bytes()).wants != 0
            || set().streams.iter().any(|stream| stream.may_take(Scope::FIRST, topic))
    }

    pub fn set_reports_subscriptions(&self, reports: bool) {
        self.reports_subscriptions.store(reports, Ordering::Relaxed);
    }

    pub(crate) fn reports_subscriptions(&self) -> bool {
        self.reports_subscriptions.load(Ordering::Relaxed)
    }

    /// Nobody knows how much is left: if it is short, it is for everybody.
    pub fn set_memory(&self, left: Memory) {
        self.set_memory_left(left, 0);
    }

    pub fn set_memory_left(&self, left: Memory, bytes: u64) {
        let bytes = match left {
            Memory::Enough => u64::MAX,
            Memory::Tight | Memory::Short => bytes,
            Memory::Out => 0,
        };
        self.ledger.set_memory_left(bytes);
        if left < Memory::Short {
            self.ledger.cut_nobody();
        }
        let before = self.memory.swap(left as u8, Ordering::Relaxed);
        let worse = usize::from(before)..left as usize;
        for reached in &self.memory_shortages[worse.start.min(worse.end)..worse.end] {
            reached.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often memory got tight, short, and ran out.
    pub fn memory_shortages(&self) -> [u64; 3] {
        self.memory_shortages.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn memory_is_tight(&self) -> bool {
        self.memory.load(Ordering::Relaxed) != Memory::Enough as u8
    }

    /// Is less to be kept for connections that do not read?
    pub(crate) fn keeps_less_unsent(&self) -> bool {
        self.memory_is_tight()
            || self.ledger.bytes(MemoryKind::Unsent) > self.settings.unsent_bytes_max
    }

    /// Is what takes memory to be refused?
    #[inline]
    pub(crate) fn memory_is_short(&self) -> bool {
        self.memory.load(Ordering::Relaxed) >= Memory::Short as u8
    }

    /// Is there not even a place for who might free some?
    pub fn memory_is_out(&self) -> bool {
        self.memory.load(Ordering::Relaxed) >= Memory::Out as u8
    }

    pub(crate) fn set_journal_state(&self, shard: ShardId, is: JournalState) {
        let enough = JournalSpace { left: u64::MAX, most: u64::MAX };
        self.set_journal_space(shard, is.space.unwrap_or(enough));
        let all = [
            (&self.journals_tight, is.space.is_some()),
            (&self.journals_full, is.full),
            (&self.journals_poisoned, is.poisoned),
            (&self.journals_behind, is.behind),
        ];
        for (bits, is_set) in all {
            let own = 1 << shard;
            // Only this shard writes its bit, so a look at it saves the write.
            if (bits.load(Ordering::Relaxed) & own != 0) == is_set {
                continue;
            }
            if is_set {
                bits.fetch_or(own, Ordering::Relaxed);
            } else {
                bits.fetch_and(!own, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn set_journal_space(&self, shard: ShardId, space: JournalSpace) {
        let place = usize::from(shard);
        self.journals_most[place].store(space.most, Ordering::Relaxed);
        self.journals_left[place].store(space.left, Ordering::Relaxed);
    }

    /// What is wrong with which journal.
    #[inline]
    pub(crate) fn journals(&self) -> Journals {
        Journals {
            full: self.journals_full.load(Ordering::Relaxed),
            poisoned: self.journals_poisoned.load(Ordering::Relaxed),
            behind: self.journals_behind.load(Ordering::Relaxed),
            tight: self.journals_tight.load(Ordering::Relaxed),
        }
    }

    /// Those of the journals, a bit for each, of which an owner would hold too much with so many
    /// bytes more: while space is short more than its share and than it leaves to others, or what
    /// is reserved for another namespace. What it holds itself counts as spread over all of them
    /// evenly.
    #[cold]
    pub(crate) fn journals_lacking(&self, journals: u64, owner: &Account, more: u64) -> u64 {
        let in_each = |bytes: u64| bytes / u64::from(self.homes.shards());
        let own = in_each(owner.bytes(MemoryKind::Logged)) + more;
        let sharers = owner.logging_count();
        let group = owner.group_journals();
        let lacks = |shard: &usize| {
            let left = self.journals_left[*shard].load(Ordering::Relaxed);
            let most = self.journals_most[*shard].load(Ordering::Relaxed);
            let space = JournalSpace { left, most };
            let Some(GroupJournals { groups, members }) = group else {
                return space.is_scarce() && space.is_too_much(own, sharers);
            };
            let bytes = match owner.group_part(Pot::Journal(*shard), most, left) {
                // Nobody else may have it.
                Some(part) if part.is_reserved(more) && more <= left => {
                    let left = part.reserve - part.bytes - more;
                    let reserve = JournalSpace { left, most: part.reserve };
                    return reserve.is_too_much(own, members);
                }
                Some(part) if more > part.left => return true,
                Some(part) => part.bytes + more,
                None => owner.group_bytes_in(*shard) + more,
            };
            space.is_scarce()
                && (space.is_too_much(bytes, groups)
                    || space.part_of(bytes, groups).is_too_much(own, members))
        };
        let of_journals =
            (0..usize::from(self.homes.shards())).filter(|shard| journals & 1 << shard != 0);
        of_journals.filter(lacks).fold(0, |bits, shard| bits | 1 << shard)
    }

    /// Would a retained message that is new find no room, or one that takes so many bytes more?
    /// Shards that ask at the same moment may all get the answer that there is some.
    pub(crate) fn lacks_room_to_retain(&self, messages: u64, bytes: u64) -> bool {
        let Settings { retained_messages_max, retained_bytes_max, .. } = self.settings;
        let kept = self.retained_messages.load(Ordering::Relaxed);
        let kept_bytes = self.retained_bytes.load(Ordering::Relaxed);
        messages > 0 && kept + messages > retained_messages_max
            || bytes > 0 && kept_bytes + bytes > retained_bytes_max
    }

    /// There is a namespace, and a part of all that namespaces share is reserved for it.
    pub fn open_space(&self, scope: Scope) -> Arc<Space> {
        let space = self.spaces.open(scope);
        self.ledger.set_reserve(&space.group(), true);
        space
    }

    /// There is none any more.
    pub fn close_space(&self, scope: Scope) {
        if let Some(space) = self.spaces.get(scope) {
            self.ledger.set_reserve(&space.group(), false);
        }
        self.spaces.close(scope);
    }

    /// The account of an owner, in its namespace.
    pub(crate) fn account(&self, owner: &str) -> Arc<Account> {
        let group = || Some(self.spaces.of(scope_of_owner(owner))?.group());
        self.ledger.account_in(owner, group)
    }

    /// Would an owner have more retained than its part?
    pub(crate) fn lacks_room_to_retain_for(&self, owner: &Account, bytes: u64) -> bool {
        match self.settings.retained_bytes_per_owner_max {
            None => owner.lacks_room(MemoryKind::Retained, bytes),
            Some(max) => {
                owner.bytes(MemoryKind::Retained) + bytes > max
                    || owner.lacks_group_room(MemoryKind::Retained, bytes)
                    || owner.lacks_memory(bytes)
            }
        }
    }

    pub(crate) fn add_retained(&self, messages: i64, bytes: i64) {
        self.retained_messages.fetch_add(messages as u64, Ordering::Relaxed);
        self.retained_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A figure summed over all shards and labels.
    pub fn total<T: crate::Figure + ?Sized>(&self, figure: impl Fn(&Metrics) -> &T) -> u64 {
        self.metrics.iter().map(|metrics| figure(metrics).total()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shares_a_journal_with_nobody_has_nearly_all_of_it_and_nobody_has_the_last() {
        let is_too_much =
            |left, own, sharers| JournalSpace { left, most: 1_600 }.is_too_much(own, sharers);
        assert!(!is_too_much(110, 1_490, 1), "there is nobody else");
        assert!(is_too_much(99, 1_501, 1), "the last is for those who come");
        assert!(!is_too_much(99, 99, 2));
        assert!(is_too_much(99, 100, 2), "who leave as much to others as they have");
        // What gets free is for those who have less than their share.
        assert!(is_too_much(300, 1_200, 2));
        assert!(!is_too_much(300, 800, 2));
        assert!(is_too_much(300, 801, 2));
        assert!(!is_too_much(300, 300, 100), "that is left, whatever the share is");
    }
}
