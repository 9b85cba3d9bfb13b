//! The accounts of those who make the broker hold something, by name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use session::{Account, Held, Pots};

/// Accounts of which nobody knows any more are looked for whenever there are twice as many as
/// after the last time, and so many at least.
const PRUNED_MIN: usize = 1_000;

/// Shared by all shards. Asked when a client connects, and by operators.
#[derive(Debug)]
pub struct Ledger {
    pots: Arc<Pots>,
    accounts: Mutex<Accounts>,
}

#[derive(Debug, Default)]
struct Accounts {
    by_name: BTreeMap<Box<str>, Weak<Account>>,
    pruned_at: usize,
}

/// What one payer holds, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub name: Box<str>,
    /// In the order of [`Held::ALL`].
    pub bytes: [u64; 2],
}

impl Ledger {
    pub(crate) fn new(bytes_max: [u64; 2]) -> Self {
        Self { pots: Pots::new(bytes_max), accounts: Mutex::default() }
    }

    /// The account of a payer.
    pub fn account(&self, name: &str) -> Arc<Account> {
        let mut accounts = self.accounts();
        if let Some(known) = accounts.by_name.get(name).and_then(Weak::upgrade) {
            return known;
        }
        if accounts.by_name.len() >= accounts.pruned_at.max(PRUNED_MIN) {
            accounts.by_name.retain(|_, account| account.strong_count() > 0);
            accounts.pruned_at = 2 * accounts.by_name.len();
        }
        let account = Arc::new(Account::new(name, &self.pots));
        accounts.by_name.insert(name.into(), Arc::downgrade(&account));
        account
    }

    /// What all hold.
    pub fn bytes(&self, held: Held) -> u64 {
        self.pots.bytes(held)
    }

    /// Those who hold most, the largest first.
    pub fn largest(&self, count: usize) -> Vec<Holder> {
        let known: Vec<Arc<Account>> =
            self.accounts().by_name.values().filter_map(Weak::upgrade).collect();
        let mut holders: Vec<Holder> = known
            .iter()
            .map(|account| Holder {
                name: account.name().into(),
                bytes: Held::ALL.map(|held| account.bytes(held)),
            })
            .collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes.iter().sum::<u64>()));
        holders.truncate(count);
        holders
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a session counts for at its account. Ends with the session.
#[derive(Debug, Default)]
pub(crate) struct Charged {
    account: Option<Arc<Account>>,
    bytes: u32,
}

impl Charged {
    /// From now on this is who pays.
    pub(crate) fn move_to(&mut self, account: Arc<Account>) {
        let bytes = self.bytes;
        self.set(0);
        self.account = Some(account);
        self.set(bytes);
    }

    pub(crate) fn set(&mut self, bytes: u32) {
        if let Some(account) = &self.account {
            match bytes.checked_sub(self.bytes) {
                Some(more) => account.add(Held::Sessions, more.into()),
                None => account.sub(Held::Sessions, (self.bytes - bytes).into()),
            }
        }
        self.bytes = bytes;
    }

    pub(crate) fn lacks_room(&self, more: u64) -> bool {
        self.account.as_ref().is_some_and(|account| account.lacks_room(Held::Sessions, more))
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.set(0);
    }
}
