//! The accounts of those who make the broker hold something, by name.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use foldhash::fast::FixedState;
use session::{Account, Group, MemoryKind, Pot, Pots};

use crate::words::expected::Expected;

/// Accounts of which nobody knows any more are looked for whenever there are twice as many as
/// after the last time, and so many at least.
const PRUNED_MIN: usize = 1_000;

/// So many owners that use nothing are remembered: most of them publish again.
const IDLE_OWNERS_MIN: usize = 64;

/// The number where nobody is charged.
pub(crate) const NOBODY: u32 = 0;

/// Shared by all shards. Asked when a client connects, and by operators.
#[derive(Debug)]
pub struct Ledger {
    pots: Arc<Pots>,
    accounts: Mutex<Accounts>,
    /// Connections are cut of those who have so much in them; [`u64::MAX`]: of nobody.
    cut_from: AtomicU64,
    /// So many bytes have yet to be freed by that.
    to_free: AtomicU64,
}

#[derive(Debug, Default)]
struct Accounts {
    by_name: BTreeMap<Box<str>, Weak<Account>>,
    by_number: HashMap<u32, Weak<Account>, FixedState>,
    pruned_at: usize,
    last_number: u32,
}

/// What one owner holds, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    pub name: Box<str>,
    /// In the order of [`MemoryKind::ALL`].
    pub bytes: [u64; MemoryKind::COUNT],
}

impl Consumer {
    /// What it holds in memory.
    pub fn total(&self) -> u64 {
        let in_memory = |kind: &&MemoryKind| kind.is_in_memory();
        MemoryKind::ALL.iter().filter(in_memory).map(|kind| self.bytes[*kind as usize]).sum()
    }
}

impl Ledger {
    pub(crate) fn new(bytes_max: [u64; MemoryKind::COUNT]) -> Self {
        Self {
            pots: Pots::new(bytes_max),
            accounts: Mutex::default(),
            cut_from: AtomicU64::new(u64::MAX),
            to_free: AtomicU64::new(0),
        }
    }

    /// A namespace is configured, or no more: it has a reserve of all that namespaces share.
    pub(crate) fn set_reserve(&self, group: &Arc<Group>, is_configured: bool) {
        match is_configured {
            true => self.pots.reserve_for(group),
            false => self.pots.end_reserve_of(group),
        }
    }

    pub(crate) fn set_memory_left(&self, bytes: u64) {
        self.pots.set_memory_left(bytes);
    }

    /// Connections of those who have most in them are to be cut until so many bytes are free: of
    /// who has half as much as the first of those that hold too much, or more.
    pub fn cut_largest(&self, bytes: u64) {
        let largest = self.largest_unsent();
        if largest == 0 {
            // Nobody has looked yet.
            return self.cut_nobody();
        }
        self.cut_from.store(largest / 2, Ordering::Relaxed);
        self.to_free.store(bytes, Ordering::Relaxed);
    }

    /// Bytes in the connections of the first of those that hold too much.
    pub fn largest_unsent(&self) -> u64 {
        let unsent = |account: Arc<Account>| account.bytes(MemoryKind::Unsent);
        let greedy = self.known().into_iter().filter(|account| account.lacks_memory(0));
        greedy.map(unsent).max().unwrap_or_default()
    }

    /// There is enough memory, or another ledger has those who hold most.
    pub fn cut_nobody(&self) {
        self.cut_from.store(u64::MAX, Ordering::Relaxed);
        self.to_free.store(0, Ordering::Relaxed);
    }

    /// Is a connection of this account to be cut that holds so much? Then it counts as freed.
    pub(crate) fn cuts(&self, account: &Account, bytes: u64) -> bool {
        let is_large = account.bytes(MemoryKind::Unsent) >= self.cut_from.load(Ordering::Relaxed)
            && account.lacks_memory(0);
        let free = |left: u64| (left > 0).then(|| left.saturating_sub(bytes));
        is_large && self.to_free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).is_ok()
    }

    /// The account of an owner of the default namespace.
    pub fn account(&self, name: &str) -> Arc<Account> {
        self.account_in(name, || None)
    }

    /// The same of an owner of any namespace; which, is asked when nobody knows of it yet.
    pub(crate) fn account_in(
        &self,
        name: &str,
        group: impl FnOnce() -> Option<Arc<Group>>,
    ) -> Arc<Account> {
        let mut accounts = self.accounts();
        if let Some(known) = accounts.by_name.get(name).and_then(Weak::upgrade) {
            return known;
        }
        if accounts.by_number.len() >= accounts.pruned_at.max(PRUNED_MIN) {
            accounts.by_name.retain(|_, account| account.strong_count() > 0);
            accounts.by_number.retain(|_, account| account.strong_count() > 0);
            accounts.pruned_at = 2 * accounts.by_number.len();
        }
        let number = accounts.next_number();
        let account = Arc::new(Account::new(name, number, &self.pots, group()));
        accounts.by_name.insert(name.into(), Arc::downgrade(&account));
        accounts.by_number.insert(number, Arc::downgrade(&account));
        account
    }

    /// The account with this number, if anybody still knows of it.
    pub(crate) fn by_number(&self, number: u32) -> Option<Arc<Account>> {
        self.accounts().by_number.get(&number)?.upgrade()
    }

    /// What all hold.
    pub fn bytes(&self, kind: MemoryKind) -> u64 {
        self.pots.bytes(kind)
    }

    /// Those who hold most memory, the largest first.
    pub fn largest(&self, count: usize) -> Vec<Consumer> {
        self.largest_by(count, Consumer::total)
    }

    /// Those who hold most of one kind.
    pub fn largest_of(&self, kind: MemoryKind, count: usize) -> Vec<Consumer> {
        self.largest_by(count, |consumer| consumer.bytes[kind as usize])
    }

    fn largest_by(&self, count: usize, size: impl Fn(&Consumer) -> u64) -> Vec<Consumer> {
        let mut consumers: Vec<Consumer> = self
            .known()
            .iter()
            .map(|account| Consumer {
                name: account.name().into(),
                bytes: MemoryKind::ALL.map(|kind| account.bytes(kind)),
            })
            .collect();
        consumers.sort_by_key(|consumer| std::cmp::Reverse(size(consumer)));
        consumers.truncate(count);
        consumers
    }

    fn known(&self) -> Vec<Arc<Account>> {
        self.accounts().by_name.values().filter_map(Weak::upgrade).collect()
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Accounts {
    /// One that no account has.
    fn next_number(&mut self) -> u32 {
        loop {
            self.last_number = self.last_number.wrapping_add(1);
            let is_taken = |account: &Weak<Account>| account.strong_count() > 0;
            let is_free = !self.by_number.get(&self.last_number).is_some_and(is_taken);
            if self.last_number != NOBODY && is_free {
                return self.last_number;
            }
        }
    }
}

/// Charges for what may outlive the sessions of its owners, by the numbers of their accounts. Each
/// shard has its own, so that none waits for another.
#[derive(Debug)]
pub(crate) struct OwnerCharges {
    pot: Pot,
    /// Owners that use nothing are forgotten whenever there are twice as many as after the last
    /// time.
    by_number: HashMap<u32, OwnerCharge, FixedState>,
    pruned_at: usize,
}

#[derive(Debug)]
struct OwnerCharge {
    account: Arc<Account>,
    bytes: u64,
}

impl OwnerCharges {
    pub(crate) fn of(pot: Pot) -> Self {
        Self { pot, by_number: HashMap::default(), pruned_at: 0 }
    }

    /// Charges an account for so many bytes; returns its number.
    pub(crate) fn charge(&mut self, account: &Arc<Account>, bytes: u64) -> u32 {
        let number = account.number();
        if !self.by_number.contains_key(&number) {
            self.enter(account.clone());
        }
        self.charge_known(number, bytes)
    }

    /// The account with this number, if anybody knows who it was.
    pub(crate) fn account(&mut self, number: u32, ledger: &Ledger) -> Option<Arc<Account>> {
        if number == NOBODY {
            return None;
        }
        match self.by_number.get(&number) {
            Some(owner) => Some(owner.account.clone()),
            None => ledger.by_number(number),
        }
    }

    fn enter(&mut self, account: Arc<Account>) {
        if self.by_number.len() >= self.pruned_at.max(IDLE_OWNERS_MIN) {
            self.by_number.retain(|_, owner| owner.bytes > 0);
            self.pruned_at = 2 * self.by_number.len();
        }
        self.by_number.insert(account.number(), OwnerCharge { account, bytes: 0 });
    }

    fn charge_known(&mut self, number: u32, bytes: u64) -> u32 {
        let Some(owner) = self.by_number.get_mut(&number) else { return NOBODY };
        owner.bytes += bytes;
        owner.account.add_in(self.pot, bytes);
        number
    }

    /// Something that is charged has become longer or shorter.
    pub(crate) fn change(&mut self, number: u32, before: u64, after: u64) {
        if before != after {
            self.charge_known(number, after);
            self.release(number, before);
        }
    }

    /// Ends a charge.
    pub(crate) fn release(&mut self, number: u32, bytes: u64) {
        if number == NOBODY {
            return;
        }
        let Some(owner) = self.by_number.get_mut(&number).expected() else { return };
        owner.bytes -= bytes;
        owner.account.sub_in(self.pot, bytes);
    }
}

impl Drop for OwnerCharges {
    fn drop(&mut self) {
        for owner in self.by_number.values() {
            owner.account.sub_in(self.pot, owner.bytes);
        }
    }
}

/// What a session counts for at its account. Ends with the session.
#[derive(Debug, Default)]
pub(crate) struct Charged {
    account: Option<Arc<Account>>,
    bytes: u32,
    /// What its connection holds, as of the last look.
    unsent: u32,
}

impl Charged {
    /// Charges another account from now on.
    pub(crate) fn move_to(&mut self, account: Arc<Account>) {
        let (bytes, unsent) = (self.bytes, self.unsent);
        self.set(0);
        self.set_unsent(0);
        self.account = Some(account);
        self.set(bytes);
        self.set_unsent(unsent);
    }

    pub(crate) fn account(&self) -> Option<&Arc<Account>> {
        self.account.as_ref()
    }

    pub(crate) fn set_unsent(&mut self, bytes: u32) {
        let before = std::mem::replace(&mut self.unsent, bytes);
        self.move_by(MemoryKind::Unsent, before, bytes);
    }

    pub(crate) fn set(&mut self, bytes: u32) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        self.move_by(MemoryKind::Sessions, before, bytes);
    }

    fn move_by(&self, kind: MemoryKind, before: u32, after: u32) {
        let Some(account) = self.account.as_ref().filter(|_| before != after) else { return };
        match after.checked_sub(before) {
            Some(more) => account.add(kind, more.into()),
            None => account.sub(kind, (before - after).into()),
        }
    }

    pub(crate) fn lacks_room(&self, more: u64) -> bool {
        self.account.as_ref().is_some_and(|account| account.lacks_room(MemoryKind::Sessions, more))
    }

    /// So many bytes have been refused.
    pub(crate) fn count_refusal(&self, more: u64) {
        if let Some(account) = &self.account {
            account.count_refusal(MemoryKind::Sessions, more);
        }
    }

    /// Would so many bytes more be more than its account leaves to others, while memory is short?
    /// Nobody's share is that of who has nothing.
    pub(crate) fn lacks_memory(&self, ledger: &Ledger, more: u64) -> bool {
        match &self.account {
            Some(account) => account.lacks_memory(more),
            None => more > ledger.pots.memory_left(),
        }
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.set(0);
        self.set_unsent(0);
    }
}
