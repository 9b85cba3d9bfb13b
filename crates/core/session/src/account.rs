//! Accounts of memory and journal, one for each owner: a user, or an address without one.
//!
//! Each kind of memory has a pot for all. One owner may take as much as it leaves to others: alone
//! half of the pot, one of nine a tenth. So a new owner finds free memory without a configured
//! share. The same holds for the memory of the process, while it is short.
//!
//! Where there are namespaces, the pot is divided by namespace first: all owners of one together
//! may take as much as they leave to other namespaces, and each as much as its namespace leaves.
//! Those of the default namespace are one, too, as soon as another one has owners.
//!
//! Each namespace that is configured has a reserve, equal parts of half the pot, that no other may
//! take, whoever comes first. The journals are such pots, each by itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Kinds of memory and journal bytes that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Deliveries that wait in memory for sessions.
    Queued,
    /// Sessions with their wills and subscriptions.
    Sessions,
    /// Retained messages.
    Retained,
    /// What waits to be written to connections, and what has come of them and waits. It is counted
    /// while memory is short.
    Unsent,
    /// Messages that wait in the journals, on the disk.
    Logged,
}

impl MemoryKind {
    pub const COUNT: usize = 5;
    pub const ALL: [Self; Self::COUNT] =
        [Self::Queued, Self::Sessions, Self::Retained, Self::Unsent, Self::Logged];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Sessions => "sessions",
            Self::Retained => "retained",
            Self::Unsent => "unsent",
            Self::Logged => "logged",
        }
    }

    /// Does it take memory?
    pub const fn is_in_memory(self) -> bool {
        !matches!(self, Self::Logged)
    }
}

/// Journals whose bytes are counted apart: one for each shard.
pub const JOURNALS_MAX: usize = 64;

/// This part of a pot is reserved, for all configured namespaces together.
const RESERVED_PART: u64 = 2;

/// Why somebody may not have more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// Its namespace has as much as it is limited to.
    Limit,
    /// It, or its namespace, has as much as it may have of what all share.
    Share,
    /// The memory of the process is short.
    Memory,
}

/// A journal, by its shard, or memory of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pot {
    Memory(MemoryKind),
    Journal(usize),
}

impl Pot {
    const fn kind(self) -> MemoryKind {
        match self {
            Self::Memory(kind) => kind,
            Self::Journal(_) => MemoryKind::Logged,
        }
    }
}

/// What all owners together hold, and may hold.
#[derive(Debug)]
pub struct Pots {
    /// In the order of [`MemoryKind::ALL`], like the next.
    bytes_max: [u64; MemoryKind::COUNT],
    bytes: [AtomicU64; MemoryKind::COUNT],
    /// Those who have something in the journals.
    loggers: AtomicU64,
    /// What namespaces hold beside the default one, which holds the rest.
    in_groups: [AtomicU64; MemoryKind::COUNT],
    group_loggers: AtomicU64,
    /// Namespaces, but for the default one, with something in the journals.
    logging_groups: AtomicU64,
    /// OwnerCharges of namespaces, but for the default one.
    group_members: AtomicU64,
    in_journals: [AtomicU64; JOURNALS_MAX],
    /// Of these, what namespaces hold beside the default one.
    of_groups_in_journals: [AtomicU64; JOURNALS_MAX],
    /// Those of configured namespaces, but for the default one, which has a reserve with them.
    reserved: RwLock<Vec<Arc<Group>>>,
    reserved_count: AtomicU64,
    /// Of the process; [`u64::MAX`] while there is enough.
    memory_left: AtomicU64,
}

/// What all owners of a namespace hold together, and may hold.
#[derive(Debug)]
pub struct Group {
    /// In the order of [`MemoryKind::ALL`], like the next; [`u64::MAX`]: there is no limit.
    bytes_max: [AtomicU64; MemoryKind::COUNT],
    bytes: [AtomicU64; MemoryKind::COUNT],
    /// How often somebody was refused because of that limit.
    refused: [AtomicU64; MemoryKind::COUNT],
    loggers: AtomicU64,
    in_journals: [AtomicU64; JOURNALS_MAX],
}

/// How many share the journals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupJournals {
    /// Namespaces with something in the journals, and this one.
    pub groups: u64,
    /// OwnerCharges of this one with something in the journals, and this owner.
    pub members: u64,
}

/// What a namespace has of a pot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupPart {
    pub bytes: u64,
    /// So much of the pot no other may take. 0: it is not configured, or none is.
    pub reserve: u64,
    /// What is left of the pot beside the reserves of others.
    pub left: u64,
}

impl GroupPart {
    /// Are so many bytes more within its reserve?
    pub const fn is_reserved(&self, more: u64) -> bool {
        self.bytes + more <= self.reserve
    }
}

/// What one owner holds: a user, or an address of clients without a proved name.
#[derive(Debug)]
pub struct Account {
    name: Box<str>,
    pots: Arc<Pots>,
    /// None: of the default namespace.
    group: Option<Arc<Group>>,
    /// By which it is known where a reference would take too much. No other has it meanwhile.
    number: u32,
    bytes: [AtomicU64; MemoryKind::COUNT],
}

impl Pots {
    pub fn new(bytes_max: [u64; MemoryKind::COUNT]) -> Arc<Self> {
        let memory_left = AtomicU64::new(u64::MAX);
        Arc::new(Self {
            bytes_max,
            bytes: Default::default(),
            loggers: AtomicU64::new(0),
            in_groups: Default::default(),
            group_loggers: AtomicU64::new(0),
            logging_groups: AtomicU64::new(0),
            group_members: AtomicU64::new(0),
            in_journals: [const { AtomicU64::new(0) }; _],
            of_groups_in_journals: [const { AtomicU64::new(0) }; _],
            reserved: RwLock::default(),
            reserved_count: AtomicU64::new(0),
            memory_left,
        })
    }

    pub fn memory_left(&self) -> u64 {
        self.memory_left.load(Ordering::Relaxed)
    }

    /// So much memory is left to all; [`u64::MAX`]: enough.
    pub fn set_memory_left(&self, bytes: u64) {
        self.memory_left.store(bytes, Ordering::Relaxed);
    }

    pub fn bytes(&self, kind: MemoryKind) -> u64 {
        self.bytes[kind as usize].load(Ordering::Relaxed)
    }

    /// What the default namespace holds.
    fn default_bytes_in(&self, pot: Pot) -> u64 {
        let (all, of_groups) = match pot {
            Pot::Memory(kind) => (&self.bytes[kind as usize], &self.in_groups[kind as usize]),
            Pot::Journal(shard) => (&self.in_journals[shard], &self.of_groups_in_journals[shard]),
        };
        all.load(Ordering::Relaxed).saturating_sub(of_groups.load(Ordering::Relaxed))
    }

    /// A namespace is configured: from now on it has a reserve.
    pub fn reserve_for(&self, group: &Arc<Group>) {
        self.change_reserved(|groups| {
            if !groups.iter().any(|known| Arc::ptr_eq(known, group)) {
                groups.push(group.clone());
            }
        });
    }

    /// It is configured no more.
    pub fn end_reserve_of(&self, group: &Arc<Group>) {
        self.change_reserved(|groups| groups.retain(|known| !Arc::ptr_eq(known, group)));
    }

    fn change_reserved(&self, change: impl FnOnce(&mut Vec<Arc<Group>>)) {
        let mut groups = self.reserved.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut groups);
        self.reserved_count.store(groups.len() as u64, Ordering::Relaxed);
    }

    /// What a namespace, or the default one, has of a pot of so many bytes, of which so many are
    /// left. Asks all that are configured: only for pots that get short.
    #[cold]
    fn part_of(&self, group: Option<&Group>, pot: Pot, most: u64, left: u64) -> GroupPart {
        let groups = self.reserved.read().unwrap_or_else(PoisonError::into_inner);
        let reserve = most / RESERVED_PART / (groups.len() as u64 + 1);
        let mut part = GroupPart::default();
        let mut unused = 0;
        for known in groups.iter() {
            // A namespace with a lower limit needs no more.
            let of_known = reserve.min(known.bytes_max(pot.kind()));
            if group.is_some_and(|group| std::ptr::eq(group, &raw const **known)) {
                part.reserve = of_known;
            } else {
                unused += of_known.saturating_sub(known.bytes_in(pot));
            }
        }
        let default = self.default_bytes_in(pot);
        if let Some(group) = group {
            part.bytes = group.bytes_in(pot);
            unused += reserve.saturating_sub(default);
        } else {
            (part.bytes, part.reserve) = (default, reserve);
        }
        part.left = left.saturating_sub(unused);
        part
    }
}

impl Default for Group {
    fn default() -> Self {
        Self {
            bytes_max: [const { AtomicU64::new(u64::MAX) }; MemoryKind::COUNT],
            bytes: Default::default(),
            refused: Default::default(),
            loggers: AtomicU64::new(0),
            in_journals: [const { AtomicU64::new(0) }; _],
        }
    }
}

impl Group {
    pub fn bytes(&self, kind: MemoryKind) -> u64 {
        self.bytes[kind as usize].load(Ordering::Relaxed)
    }

    pub fn refused(&self, kind: MemoryKind) -> u64 {
        self.refused[kind as usize].load(Ordering::Relaxed)
    }

    fn bytes_in(&self, pot: Pot) -> u64 {
        match pot {
            Pot::Memory(kind) => self.bytes(kind),
            Pot::Journal(shard) => self.in_journals[shard].load(Ordering::Relaxed),
        }
    }

    /// [`u64::MAX`]: there is none.
    pub fn bytes_max(&self, kind: MemoryKind) -> u64 {
        self.bytes_max[kind as usize].load(Ordering::Relaxed)
    }

    pub fn set_bytes_max(&self, kind: MemoryKind, bytes_max: u64) {
        self.bytes_max[kind as usize].store(bytes_max, Ordering::Relaxed);
    }

    fn is_over(&self, kind: MemoryKind, more: u64) -> bool {
        self.bytes(kind).saturating_add(more) > self.bytes_max(kind)
    }
}

impl Account {
    /// `group`: of whose namespace it is; None: of the default one.
    pub fn new(name: &str, number: u32, pots: &Arc<Pots>, group: Option<Arc<Group>>) -> Self {
        if group.is_some() {
            pots.group_members.fetch_add(1, Ordering::Relaxed);
        }
        Self { name: name.into(), pots: pots.clone(), group, number, bytes: Default::default() }
    }

    pub const fn number(&self) -> u32 {
        self.number
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn bytes(&self, kind: MemoryKind) -> u64 {
        self.bytes[kind as usize].load(Ordering::Relaxed)
    }

    /// What it holds in memory, of all kinds.
    pub fn total(&self) -> u64 {
        total_of(|kind| self.bytes(kind))
    }

    /// What its namespace holds. None: nobody uses namespaces.
    fn group_bytes(&self, kind: MemoryKind) -> Option<u64> {
        match &self.group {
            Some(group) => Some(group.bytes(kind)),
            None => self.are_divided().then(|| {
                let in_groups = self.pots.in_groups[kind as usize].load(Ordering::Relaxed);
                self.pots.bytes(kind).saturating_sub(in_groups)
            }),
        }
    }

    /// Are there owners of more than one namespace, or may some come?
    fn are_divided(&self) -> bool {
        self.group.is_some()
            || self.pots.group_members.load(Ordering::Relaxed) > 0
            || self.has_reserves()
    }

    fn has_reserves(&self) -> bool {
        self.pots.reserved_count.load(Ordering::Relaxed) > 0
    }

    /// What its namespace has of a pot of so many bytes, of which so many are left. None: nothing
    /// is reserved, or enough is left for all that is.
    pub fn group_part(&self, pot: Pot, most: u64, left: u64) -> Option<GroupPart> {
        let is_short = left < most - most / RESERVED_PART;
        let part = || self.pots.part_of(self.group.as_deref(), pot, most, left);
        (is_short && self.has_reserves()).then(part)
    }

    /// How much its namespace may have of a kind of memory, with so much more; None: nobody uses
    /// namespaces.
    fn group_max(&self, kind: MemoryKind, more: u64) -> Option<(u64, u64)> {
        let bytes = self.group_bytes(kind)?;
        let most = self.pots.bytes_max[kind as usize];
        let left = most.saturating_sub(self.pots.bytes(kind));
        let max = match self.group_part(Pot::Memory(kind), most, left) {
            Some(part) if part.is_reserved(more) && more <= left => part.reserve,
            Some(part) => left.min(bytes + part.left),
            None => left,
        };
        Some((bytes, max))
    }

    /// Is memory short, and would it or its namespace hold more, with so many bytes more, than it
    /// leaves to others?
    pub fn lacks_memory(&self, more: u64) -> bool {
        let left = self.pots.memory_left.load(Ordering::Relaxed);
        if left == u64::MAX {
            return false;
        }
        let of_group = |kind| self.group_bytes(kind).unwrap_or_default();
        self.total() + more > left || self.are_divided() && total_of(of_group) + more > left
    }

    /// Would so many bytes more be too many? Two who ask at the same moment may both be refused.
    pub fn lacks_room(&self, kind: MemoryKind, more: u64) -> bool {
        self.lack(kind, more).is_some()
    }

    /// Why would they be?
    pub fn lack(&self, kind: MemoryKind, more: u64) -> Option<Lack> {
        if self.is_over_limit(kind, more) {
            return Some(Lack::Limit);
        }
        let share = match self.group_max(kind, more) {
            None => self.pots.bytes_max[kind as usize].saturating_sub(self.pots.bytes(kind)),
            Some((bytes, max)) if bytes + more > max => return Some(Lack::Share),
            Some((bytes, max)) => max - bytes,
        };
        if self.bytes(kind) + more > share {
            return Some(Lack::Share);
        }
        self.lacks_memory(more).then_some(Lack::Memory)
    }

    /// Would its namespace take more than it leaves to others, whatever this owner may have?
    pub fn lacks_group_room(&self, kind: MemoryKind, more: u64) -> bool {
        self.group_max(kind, more).is_some_and(|(bytes, max)| bytes + more > max)
    }

    /// Would it be more than what its namespace is limited to?
    pub fn is_over_limit(&self, kind: MemoryKind, more: u64) -> bool {
        self.group.as_ref().is_some_and(|group| group.is_over(kind, more))
    }

    /// So much more has been refused: that counts if the limit of the namespace is a reason.
    pub fn count_refusal(&self, kind: MemoryKind, more: u64) {
        if let Some(group) = self.group.as_ref().filter(|group| group.is_over(kind, more)) {
            group.refused[kind as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many share the journals: those who have something there, and it.
    pub fn logging_count(&self) -> u64 {
        let others = self.pots.loggers.load(Ordering::Relaxed);
        self.and_itself(others)
    }

    /// Who shares the journals with it, by namespace. None: nobody uses namespaces.
    pub fn group_journals(&self) -> Option<GroupJournals> {
        if !self.are_divided() {
            return None;
        }
        let in_groups = self.pots.group_loggers.load(Ordering::Relaxed);
        let default = self.pots.loggers.load(Ordering::Relaxed).saturating_sub(in_groups);
        let members = match &self.group {
            Some(group) => group.loggers.load(Ordering::Relaxed),
            None => default,
        };
        let logging = self.pots.logging_groups.load(Ordering::Relaxed) + u64::from(default > 0);
        let groups = logging + u64::from(members == 0);
        Some(GroupJournals { groups: groups.max(1), members: self.and_itself(members) })
    }

    /// What its namespace holds in a journal. Where nobody uses namespaces: all that is in it.
    pub fn group_bytes_in(&self, journal: usize) -> u64 {
        let pot = Pot::Journal(journal);
        self.group.as_ref().map_or_else(|| self.pots.default_bytes_in(pot), |own| own.bytes_in(pot))
    }

    fn and_itself(&self, loggers: u64) -> u64 {
        loggers.max(1) + u64::from(self.bytes(MemoryKind::Logged) == 0 && loggers > 0)
    }

    pub fn add(&self, kind: MemoryKind, bytes: u64) {
        let before = self.bytes[kind as usize].fetch_add(bytes, Ordering::Relaxed);
        self.pots.bytes[kind as usize].fetch_add(bytes, Ordering::Relaxed);
        if let Some(group) = &self.group {
            group.bytes[kind as usize].fetch_add(bytes, Ordering::Relaxed);
            self.pots.in_groups[kind as usize].fetch_add(bytes, Ordering::Relaxed);
        }
        if kind == MemoryKind::Logged && before == 0 && bytes > 0 {
            self.begin_to_journal();
        }
    }

    pub fn sub(&self, kind: MemoryKind, bytes: u64) {
        let before = self.bytes[kind as usize].fetch_sub(bytes, Ordering::Relaxed);
        self.pots.bytes[kind as usize].fetch_sub(bytes, Ordering::Relaxed);
        if let Some(group) = &self.group {
            group.bytes[kind as usize].fetch_sub(bytes, Ordering::Relaxed);
            self.pots.in_groups[kind as usize].fetch_sub(bytes, Ordering::Relaxed);
        }
        if kind == MemoryKind::Logged && before == bytes && bytes > 0 {
            self.end_to_journal();
        }
    }

    /// It holds more in a pot.
    pub fn add_in(&self, pot: Pot, bytes: u64) {
        self.add(pot.kind(), bytes);
        if let Pot::Journal(shard) = pot {
            self.pots.in_journals[shard].fetch_add(bytes, Ordering::Relaxed);
            if let Some(group) = &self.group {
                self.pots.of_groups_in_journals[shard].fetch_add(bytes, Ordering::Relaxed);
                group.in_journals[shard].fetch_add(bytes, Ordering::Relaxed);
            }
        }
    }

    /// It holds less in a pot.
    pub fn sub_in(&self, pot: Pot, bytes: u64) {
        self.sub(pot.kind(), bytes);
        if let Pot::Journal(shard) = pot {
            self.pots.in_journals[shard].fetch_sub(bytes, Ordering::Relaxed);
            if let Some(group) = &self.group {
                self.pots.of_groups_in_journals[shard].fetch_sub(bytes, Ordering::Relaxed);
                group.in_journals[shard].fetch_sub(bytes, Ordering::Relaxed);
            }
        }
    }

    #[cold]
    fn begin_to_journal(&self) {
        self.pots.loggers.fetch_add(1, Ordering::Relaxed);
        if let Some(group) = &self.group {
            self.pots.group_loggers.fetch_add(1, Ordering::Relaxed);
            if group.loggers.fetch_add(1, Ordering::Relaxed) == 0 {
                self.pots.logging_groups.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[cold]
    fn end_to_journal(&self) {
        self.pots.loggers.fetch_sub(1, Ordering::Relaxed);
        if let Some(group) = &self.group {
            self.pots.group_loggers.fetch_sub(1, Ordering::Relaxed);
            if group.loggers.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.pots.logging_groups.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if self.group.is_some() {
            self.pots.group_members.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn total_of(bytes: impl Fn(MemoryKind) -> u64) -> u64 {
    MemoryKind::ALL.into_iter().filter(|kind| kind.is_in_memory()).map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_takes_half_and_leaves_the_rest_to_others() {
        let pots = Pots::new([1000, 0, 0, 0, 0]);
        let greedy = Account::new("greedy", 1, &pots, None);
        let mut taken = 0;
        while !greedy.lacks_room(MemoryKind::Queued, 10) {
            greedy.add(MemoryKind::Queued, 10);
            taken += 10;
        }
        assert_eq!((taken, greedy.lack(MemoryKind::Queued, 10)), (500, Some(Lack::Share)));
        let others: Vec<_> = (0..8).map(|_| Account::new("other", 2, &pots, None)).collect();
        for _ in 0..100 {
            for other in others.iter().filter(|other| !other.lacks_room(MemoryKind::Queued, 1)) {
                other.add(MemoryKind::Queued, 1);
            }
        }
        let (least, most) =
            (others[7].bytes(MemoryKind::Queued), others[0].bytes(MemoryKind::Queued));
        assert!(least >= 50 && most - least <= 1, "{least} {most}");
        let late = Account::new("late", 3, &pots, None);
        assert!(!late.lacks_room(MemoryKind::Queued, 50), "who comes last finds room, too");
        greedy.sub(MemoryKind::Queued, 500);
        assert!(!others[0].lacks_room(MemoryKind::Queued, 100));
    }

    #[test]
    fn those_who_have_something_in_the_journals_are_counted() {
        let pots = Pots::new([u64::MAX; MemoryKind::COUNT]);
        let (one, other) =
            (Account::new("one", 1, &pots, None), Account::new("other", 2, &pots, None));
        let counts = || (one.logging_count(), other.logging_count());
        assert_eq!(counts(), (1, 1));
        one.add(MemoryKind::Logged, 10);
        one.add(MemoryKind::Logged, 5);
        one.add(MemoryKind::Queued, 5);
        assert_eq!(counts(), (1, 2), "who comes counts, too");
        other.add(MemoryKind::Logged, 0);
        other.add(MemoryKind::Logged, 7);
        assert_eq!(counts(), (2, 2));
        one.sub(MemoryKind::Logged, 10);
        assert_eq!(counts(), (2, 2));
        one.sub(MemoryKind::Logged, 5);
        assert_eq!(counts(), (2, 1));
        other.sub(MemoryKind::Logged, 7);
        assert_eq!(counts(), (1, 1));
    }

    #[test]
    fn while_memory_is_short_one_owner_has_no_more_than_it_leaves() {
        let pots = Pots::new([u64::MAX; MemoryKind::COUNT]);
        let (greedy, modest) =
            (Account::new("greedy", 1, &pots, None), Account::new("modest", 2, &pots, None));
        greedy.add(MemoryKind::Unsent, 400);
        greedy.add(MemoryKind::Sessions, 200);
        modest.add(MemoryKind::Queued, 20);
        modest.add(MemoryKind::Logged, 1_000_000);
        let lacks = || {
            (greedy.lacks_room(MemoryKind::Queued, 10), modest.lacks_room(MemoryKind::Queued, 10))
        };
        assert_eq!(lacks(), (false, false));
        pots.set_memory_left(100);
        assert_eq!(lacks(), (true, false));
        assert_eq!(greedy.lack(MemoryKind::Queued, 10), Some(Lack::Memory));
        pots.set_memory_left(25);
        assert_eq!(lacks(), (true, true));
        assert!(!modest.lacks_memory(5), "what is left it may have");
        greedy.sub(MemoryKind::Unsent, 400);
        pots.set_memory_left(u64::MAX);
        assert_eq!(lacks(), (false, false));
    }

    #[test]
    fn many_owners_of_one_namespace_have_no_more_than_one() {
        let pots = Pots::new([30_000, 0, 0, 0, 0]);
        let [crowd, tenant] = [(); 2].map(|()| Arc::new(Group::default()));
        let member = |number| Account::new("member", number, &pots, Some(crowd.clone()));
        let members: Vec<_> = (0..150).map(member).collect();
        for _ in 0..1_000 {
            for member in members.iter().filter(|member| !member.lacks_room(MemoryKind::Queued, 10))
            {
                member.add(MemoryKind::Queued, 10);
            }
        }
        assert!((14_000..=15_000).contains(&crowd.bytes(MemoryKind::Queued)), "{crowd:?}");
        let honest = Account::new("honest", 500, &pots, Some(tenant));
        assert!(!honest.lacks_room(MemoryKind::Queued, 10_000));
        let of_default = Account::new("default", 501, &pots, None);
        assert!(!of_default.lacks_room(MemoryKind::Queued, 10_000));
        crowd.set_bytes_max(MemoryKind::Queued, crowd.bytes(MemoryKind::Queued));
        members[0].sub(MemoryKind::Queued, 20);
        assert!(!members[0].is_over_limit(MemoryKind::Queued, 20));
        assert!(members[0].is_over_limit(MemoryKind::Queued, 21));
        assert_eq!(members[0].lack(MemoryKind::Queued, 21), Some(Lack::Limit));
        assert_eq!(crowd.refused(MemoryKind::Queued), 0, "nobody has been refused yet");
        members[0].count_refusal(MemoryKind::Queued, 20);
        members[0].count_refusal(MemoryKind::Queued, 21);
        assert_eq!(crowd.refused(MemoryKind::Queued), 1);
        drop((members, honest));
        assert!(!of_default.lacks_room(MemoryKind::Queued, 14_000), "as without namespaces");
    }

    /// Takes as much as it gets; returns how much that is.
    fn fill(account: &Account, kind: MemoryKind) -> u64 {
        while !account.lacks_room(kind, 10) {
            account.add(kind, 10);
        }
        account.bytes(kind)
    }

    /// Ten come one after the other, and the default one last.
    #[test]
    fn each_configured_namespace_has_a_reserve_whoever_comes_first() {
        let pots = Pots::new([1_000, 0, 22_000, 0, 0]);
        let groups: Vec<Arc<Group>> = (0..10).map(|_| Arc::default()).collect();
        groups.iter().for_each(|group| pots.reserve_for(group));
        pots.reserve_for(&groups[0]);
        let kind = MemoryKind::Retained;
        // Of 22,000 half is reserved, for eleven; a user gets what its namespace leaves.
        let users = |group: &Option<Arc<Group>>| {
            [1, 2].map(|number| Account::new("user", number, &pots, group.clone()))
        };
        let all: Vec<_> = groups.iter().cloned().map(Some).chain([None]).collect();
        let mut taken = Vec::new();
        let mut held = Vec::new();
        for group in &all {
            let own = users(group);
            taken.push(own.iter().map(|user| fill(user, kind)).sum::<u64>());
            held.extend(own);
        }
        assert!(taken[0] >= 9_000, "{taken:?}");
        assert!(taken.iter().all(|bytes| *bytes >= 700), "{taken:?}");
        assert!(taken.iter().sum::<u64>() <= 22_000);
        // A further user of the last one finds some of the reserve, and nobody of the first.
        let late = Account::new("late", 3, &pots, None);
        assert!(!late.lacks_room(kind, 100) && held[0].lacks_room(kind, 10));
        pots.end_reserve_of(&groups[5]);
        assert_eq!(pots.reserved_count.load(Ordering::Relaxed), 9);
    }

    #[test]
    fn each_journal_is_divided_by_itself_and_a_lower_limit_reserves_less() {
        let pots = Pots::new([u64::MAX; MemoryKind::COUNT]);
        let [full, tight] = [(); 2].map(|()| Arc::new(Group::default()));
        let of = |group: &Arc<Group>| Account::new("user", 1, &pots, Some(group.clone()));
        let (greedy, late) = (of(&full), of(&tight));
        assert_eq!(late.group_part(Pot::Journal(0), 6_000, 10), None, "none is configured");
        [&full, &tight].into_iter().for_each(|group| pots.reserve_for(group));
        greedy.add_in(Pot::Journal(0), 3_500);
        late.add_in(Pot::Journal(1), 200);
        assert_eq!(greedy.bytes(MemoryKind::Logged), 3_500);
        let part = |account: &Account, shard, left| {
            account.group_part(Pot::Journal(shard), 6_000, left).unwrap()
        };
        assert_eq!(greedy.group_part(Pot::Journal(0), 6_000, 3_000), None, "enough is left");
        let expected = GroupPart { bytes: 3_500, reserve: 1_000, left: 500 };
        assert_eq!(part(&greedy, 0, 2_500), expected);
        let expected = GroupPart { bytes: 0, reserve: 1_000, left: 1_500 };
        assert_eq!(part(&late, 0, 2_500), expected);
        assert!(part(&late, 0, 2_500).is_reserved(1_000));
        assert_eq!(part(&late, 1, 2_500).bytes, 200);
        tight.set_bytes_max(MemoryKind::Logged, 300);
        assert_eq!(part(&greedy, 0, 2_500).left, 1_200);
        greedy.sub_in(Pot::Journal(0), 3_500);
        late.sub_in(Pot::Journal(1), 200);
        assert_eq!((pots.bytes(MemoryKind::Logged), part(&late, 1, 2_500).bytes), (0, 0));
    }
}
