//! What shards know of a namespace beside its number: how much it may have, and how much it has.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use session::{Group, MemoryKind};

use crate::Scope;

/// Those that there are, but for the first scope. Asked when a client connects.
#[derive(Debug, Default)]
pub struct Spaces(RwLock<BTreeMap<Scope, Arc<Space>>>);

/// One of them. Shards count in it, wait-free.
#[derive(Debug)]
pub struct Space {
    /// What users call it.
    name: OnceLock<Box<str>>,
    is_closed: AtomicBool,
    /// By [`Quota`]; [`u64::MAX`]: there is none.
    limits: [AtomicU64; Quota::ALL.len()],
    /// By [`Quota`]: what it has now of what it holds, and what it has had in all of what comes at
    /// a rate.
    counts: [AtomicU64; Quota::ALL.len()],
    /// By [`Quota`]: when what came at a rate would have come at its limit, in microseconds of
    /// broker time.
    due_us: [AtomicU64; Quota::ALL.len()],
    /// By [`Quota`]: how often somebody was refused, or had to wait.
    refused: [AtomicU64; Quota::ALL.len()],
    /// What its owners hold together, and may hold.
    group: Arc<Group>,
}

/// What a namespace can have a limit of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    Connections,
    Sessions,
    Subscriptions,
    RetainedMessages,
    RetainedBytes,
    QueuedBytes,
    LoggedBytes,
    SessionBytes,
    /// Per second, as are those that follow.
    Connects,
    MessagesIn,
    BytesIn,
    MessagesOut,
    BytesOut,
}

impl Quota {
    pub const ALL: [Self; 13] = [
        Self::Connections,
        Self::Sessions,
        Self::Subscriptions,
        Self::RetainedMessages,
        Self::RetainedBytes,
        Self::QueuedBytes,
        Self::LoggedBytes,
        Self::SessionBytes,
        Self::Connects,
        Self::MessagesIn,
        Self::BytesIn,
        Self::MessagesOut,
        Self::BytesOut,
    ];

    /// For a label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Sessions => "sessions",
            Self::Subscriptions => "subscriptions",
            Self::RetainedMessages => "retained_messages",
            Self::RetainedBytes => "retained_bytes",
            Self::QueuedBytes => "queued_bytes",
            Self::LoggedBytes => "logged_bytes",
            Self::SessionBytes => "session_bytes",
            Self::Connects => "connects",
            Self::MessagesIn => "messages_in",
            Self::BytesIn => "bytes_in",
            Self::MessagesOut => "messages_out",
            Self::BytesOut => "bytes_out",
        }
    }

    /// What is counted by the accounts of its owners.
    const fn memory_kind(self) -> Option<MemoryKind> {
        match self {
            Self::QueuedBytes => Some(MemoryKind::Queued),
            Self::LoggedBytes => Some(MemoryKind::Logged),
            Self::SessionBytes => Some(MemoryKind::Sessions),
            _ => None,
        }
    }
}

impl Spaces {
    pub fn get(&self, scope: Scope) -> Option<Arc<Space>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&scope).cloned()
    }

    /// The same, and nothing is asked for the first scope.
    pub(crate) fn of(&self, scope: Scope) -> Option<Arc<Space>> {
        if scope.is_first() { None } else { self.get(scope) }
    }

    /// By their numbers.
    pub fn all(&self) -> Vec<Arc<Space>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// From now on there is one, if there was none.
    pub fn open(&self, scope: Scope) -> Arc<Space> {
        if let Some(known) = self.get(scope) {
            return known;
        }
        let mut spaces = self.0.write().unwrap_or_else(PoisonError::into_inner);
        spaces.entry(scope).or_default().clone()
    }

    /// There is none any more.
    pub fn close(&self, scope: Scope) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&scope);
    }
}

impl Default for Space {
    fn default() -> Self {
        Self {
            name: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            limits: [const { AtomicU64::new(u64::MAX) }; _],
            counts: [const { AtomicU64::new(0) }; _],
            due_us: [const { AtomicU64::new(0) }; _],
            refused: [const { AtomicU64::new(0) }; _],
            group: Arc::default(),
        }
    }
}

impl Space {
    /// It has one name as long as it lasts.
    pub fn set_name(&self, name: &str) {
        self.name.get_or_init(|| name.into());
    }

    pub fn name(&self) -> &str {
        self.name.get().map_or("", |name| name)
    }

    /// A closed one takes no clients.
    pub fn set_closed(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Ordering::Release);
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// None: there is no limit.
    pub fn set_limit(&self, quota: Quota, max: Option<u64>) {
        if let Some(kind) = quota.memory_kind() {
            return self.group.set_bytes_max(kind, max.unwrap_or(u64::MAX));
        }
        let max = max.unwrap_or(u64::MAX);
        let before = self.limits[quota as usize].swap(max, Ordering::Relaxed);
        if before != max {
            // A wait for the old rate does not count at the new one.
            self.due_us[quota as usize].store(0, Ordering::Relaxed);
        }
    }

    /// None: there is none.
    pub fn limit(&self, quota: Quota) -> Option<u64> {
        let max = match quota.memory_kind() {
            Some(kind) => self.group.bytes_max(kind),
            None => self.limits[quota as usize].load(Ordering::Relaxed),
        };
        (max != u64::MAX).then_some(max)
    }

    pub fn count(&self, quota: Quota) -> u64 {
        match quota.memory_kind() {
            Some(kind) => self.group.bytes(kind),
            None => self.counts[quota as usize].load(Ordering::Relaxed),
        }
    }

    pub fn refused(&self, quota: Quota) -> u64 {
        match quota.memory_kind() {
            Some(kind) => self.group.refused(kind),
            None => self.refused[quota as usize].load(Ordering::Relaxed),
        }
    }

    pub(crate) fn group(&self) -> Arc<Group> {
        self.group.clone()
    }

    /// It has so much more, or less.
    pub(crate) fn add(&self, quota: Quota, more: i64) {
        self.counts[quota as usize].fetch_add(more as u64, Ordering::Relaxed);
    }

    /// Would so much more be too much? Shards that ask at the same moment may all get the answer
    /// that it would not. True counts as a refusal.
    pub(crate) fn lacks(&self, quota: Quota, more: u64) -> bool {
        let max = self.limits[quota as usize].load(Ordering::Relaxed);
        let lacks = max != u64::MAX && self.count(quota).saturating_add(more) > max;
        if lacks {
            self.note_refused(quota);
        }
        lacks
    }

    /// Counts what came, and says until when nothing more of the kind is to be taken, if it came
    /// too fast. A second's worth may come at once.
    pub(crate) fn charge(&self, quota: Quota, amount: u64, now_ms: u64) -> Option<u64> {
        self.charge_up_to(quota, amount, u64::MAX, now_ms)
    }

    /// The same for what has been taken already: others wait for it, but not for ever.
    pub(crate) fn charge_late(&self, quota: Quota, amount: u64, now_ms: u64) {
        self.charge_up_to(quota, amount, LATE_US_MAX, now_ms);
    }

    /// The same for what is no publish: those who publish wait a moment for it.
    pub(crate) fn charge_control(&self, quota: Quota, amount: u64, now_ms: u64) {
        self.charge_up_to(quota, amount, CONTROL_US_MAX, now_ms);
    }

    /// What was charged does not come.
    pub(crate) fn give_back(&self, quota: Quota, amount: u64) {
        if let Some(step_us) = self.step_us(quota, amount) {
            let earlier = |due_us: u64| Some(due_us.saturating_sub(step_us));
            let due = &self.due_us[quota as usize];
            let _ = due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, earlier);
        }
    }

    /// When is more of the kind to be taken? None: now.
    pub(crate) fn wait(&self, quota: Quota, now_ms: u64) -> Option<u64> {
        let rate = self.limits[quota as usize].load(Ordering::Relaxed);
        let due_us = self.due_us[quota as usize].load(Ordering::Relaxed);
        let until_ms = due_us.saturating_sub(BURST_US).div_ceil(1000);
        (rate != u64::MAX && until_ms > now_ms).then_some(until_ms)
    }

    /// `ahead_us_max`: it makes nobody wait longer than so long from now on.
    fn charge_up_to(
        &self,
        quota: Quota,
        amount: u64,
        ahead_us_max: u64,
        now_ms: u64,
    ) -> Option<u64> {
        self.counts[quota as usize].fetch_add(amount, Ordering::Relaxed);
        let step_us = self.step_us(quota, amount)?;
        let now_us = now_ms * 1000;
        let latest_us = now_us.saturating_add(ahead_us_max).saturating_add(BURST_US);
        let later =
            |due_us: u64| due_us.max(now_us).saturating_add(step_us).min(latest_us).max(due_us);
        let due = &self.due_us[quota as usize];
        let before =
            due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |due_us| Some(later(due_us)));
        let due_us = later(before.unwrap_or_else(|known| known));
        let until_ms = due_us.saturating_sub(BURST_US).div_ceil(1000);
        (until_ms > now_ms).then_some(until_ms)
    }

    /// How long so much takes at its rate; None: it has none.
    fn step_us(&self, quota: Quota, amount: u64) -> Option<u64> {
        let rate = self.limits[quota as usize].load(Ordering::Relaxed);
        let step_us = || (u128::from(amount) * 1_000_000 / u128::from(rate.max(1))) as u64;
        (rate != u64::MAX).then(step_us)
    }

    pub(crate) fn note_refused(&self, quota: Quota) {
        self.refused[quota as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// What may come at once: as much as in a second.
const BURST_US: u64 = 1_000_000;

/// So long publishers wait at most for what goes out to many subscribers, and for what connections
/// that break have left. What takes longer at the limit is above it.
const LATE_US_MAX: u64 = 60_000_000;

/// And for what is no publish, which nobody can refuse.
const CONTROL_US_MAX: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_too_fast_waits_as_long_as_it_takes_at_the_limit() {
        let space = Space::default();
        assert_eq!(space.charge(Quota::MessagesIn, 1_000_000, 5_000), None);
        space.set_limit(Quota::MessagesIn, Some(100));
        // A second's worth, then one after the other.
        assert_eq!(space.charge(Quota::MessagesIn, 100, 5_000), None);
        assert_eq!(space.charge(Quota::MessagesIn, 1, 5_000), Some(5_010));
        assert_eq!(space.wait(Quota::MessagesIn, 5_000), Some(5_010));
        assert_eq!(space.wait(Quota::MessagesIn, 5_010), None);
        assert_eq!(space.charge(Quota::MessagesIn, 100, 5_010), Some(6_010));
        assert_eq!(space.charge(Quota::MessagesIn, 1_000_000, 6_010), Some(10_006_010));
        assert_eq!(space.count(Quota::MessagesIn), 2_000_201);
    }

    #[test]
    fn what_is_taken_already_makes_nobody_wait_for_ever() {
        let space = Space::default();
        space.set_limit(Quota::BytesIn, Some(1_000));
        space.charge_control(Quota::BytesIn, 1_000_000, 5_000);
        assert_eq!(space.wait(Quota::BytesIn, 5_000), Some(6_000));
        space.charge_late(Quota::BytesIn, 1_000_000, 5_000);
        assert_eq!(space.wait(Quota::BytesIn, 5_000), Some(65_000));
        space.charge_control(Quota::BytesIn, 1_000_000, 5_000);
        assert_eq!(space.wait(Quota::BytesIn, 5_000), Some(65_000), "it takes nothing back");
        assert_eq!(space.charge(Quota::BytesIn, 1_000, 5_000), Some(66_000));
        space.give_back(Quota::BytesIn, 1_000);
        assert_eq!(space.wait(Quota::BytesIn, 5_000), Some(65_000));
        space.set_limit(Quota::BytesIn, Some(1_000));
        assert_eq!(space.wait(Quota::BytesIn, 5_000), Some(65_000), "it is the same limit");
        space.set_limit(Quota::BytesIn, Some(1_000_000));
        assert_eq!(space.wait(Quota::BytesIn, 5_000), None);
    }

    #[test]
    fn in_a_minute_comes_what_the_rate_allows_and_a_second_more() {
        let space = Space::default();
        space.set_limit(Quota::BytesIn, Some(1_000));
        let (mut now_ms, mut bytes) = (77, 0);
        while now_ms < 60_077 {
            bytes += 70;
            now_ms = space.charge(Quota::BytesIn, 70, now_ms).unwrap_or(now_ms);
        }
        assert!((61_000..61_140).contains(&bytes), "{bytes}");
    }

    #[test]
    fn used_bytes_have_a_limit_and_count_refusals() {
        let space = Space::default();
        space.set_limit(Quota::Sessions, Some(2));
        for _ in 0..2 {
            assert!(!space.lacks(Quota::Sessions, 1));
            space.add(Quota::Sessions, 1);
        }
        assert!(space.lacks(Quota::Sessions, 1));
        space.add(Quota::Sessions, -1);
        assert!(!space.lacks(Quota::Sessions, 1));
        assert_eq!((space.refused(Quota::Sessions), space.refused(Quota::Connections)), (1, 0));
    }
}
