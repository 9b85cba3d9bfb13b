//! Clients that come and go too often: how often each was let in of late, and who is banned for it.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use broker::Name;

use config::Auth;

/// Clients whose connects are counted. At the limit the oldest count is forgotten.
const COUNTS_MAX: usize = 100_000;

/// Bans that are remembered, each as long again as it was. At the limit those that are over are
/// forgotten; while all of them run, who comes too often is refused until its window has passed,
/// and not banned.
const BANS_MAX: usize = 100_000;

/// How often room is made for bans at the limit.
const SWEEPS_EVERY: Duration = Duration::from_secs(1);

/// Each ban of a client that does not mend is twice as long as the one before, up to this.
const BAN_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A client by its namespace, its proved user name and its client id, as a number: a session has
/// one owner, and what others try with its client id is counted for them.
type Key = u64;

/// Counts the connects of clients that were let in.
#[derive(Debug)]
pub(super) struct Flapping {
    limits: Limits,
    keys: RandomState,
    /// Connects in the window of each client.
    counts: HashMap<Key, u32>,
    /// When each window began, in that order.
    windows: VecDeque<(Instant, Key)>,
    bans: HashMap<Key, Ban>,
    swept_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connects in a window.
    pub(super) connects_max: u32,
    pub(super) window: Duration,
    /// The first ban.
    pub(super) ban: Duration,
    pub(super) counts_max: usize,
    pub(super) bans_max: usize,
}

#[derive(Debug)]
struct Ban {
    /// How often it has been banned of late.
    times: u32,
    until: Instant,
    forgotten_at: Instant,
}

impl Limits {
    /// None: nobody is looked at.
    pub(super) fn of(config: &Auth) -> Option<Self> {
        let secs = |secs: u32| Duration::from_secs(secs.into());
        (config.flapping_max > 0).then(|| Self {
            connects_max: config.flapping_max,
            window: secs(config.flapping_window_secs),
            ban: secs(config.flapping_ban_secs),
            counts_max: COUNTS_MAX,
            bans_max: BANS_MAX,
        })
    }

    /// Of a client that has been banned so often before.
    fn ban_length(&self, times: u32) -> Duration {
        self.ban.saturating_mul(1 << times.min(16)).min(BAN_MAX.max(self.ban))
    }
}

impl Flapping {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            keys: RandomState::new(),
            counts: HashMap::new(),
            windows: VecDeque::new(),
            bans: HashMap::new(),
            swept_at: None,
        }
    }

    /// A client was let in.
    pub(super) fn note(&mut self, client: Name<'_>, username: Option<&str>, now: Instant) {
        self.forget_old_counts(now);
        let key = self.key(client, username);
        if let Some(connects) = self.counts.get_mut(&key) {
            *connects = connects.saturating_add(1);
            return;
        }
        if self.counts.len() >= self.limits.counts_max
            && let Some((_, oldest)) = self.windows.pop_front()
        {
            self.counts.remove(&oldest);
        }
        self.counts.insert(key, 1);
        self.windows.push_back((now, key));
    }

    /// A client that has proved who it is wants to be let in. True: it has come too often. That
    /// begins its ban, if none runs.
    pub(super) fn keeps_off(
        &mut self,
        client: Name<'_>,
        username: Option<&str>,
        now: Instant,
    ) -> bool {
        let key = self.key(client, username);
        if self.bans.get(&key).is_some_and(|ban| now < ban.until) {
            return true;
        }
        self.forget_old_counts(now);
        let connects = self.counts.get(&key).copied().unwrap_or(0);
        if connects < self.limits.connects_max {
            return false;
        }
        if self.ban(key, now) {
            self.counts.insert(key, 0);
        }
        true
    }

    /// False: there is no room for a ban more.
    fn ban(&mut self, key: Key, now: Instant) -> bool {
        let before = self.bans.get(&key).filter(|ban| now < ban.forgotten_at);
        let times = before.map_or(0, |ban| ban.times);
        if !self.bans.contains_key(&key) && !self.has_room_for_ban(now) {
            return false;
        }
        let until = now + self.limits.ban_length(times);
        let forgotten_at = until + self.limits.ban_length(times + 1);
        self.bans.insert(key, Ban { times: times + 1, until, forgotten_at });
        true
    }

    fn has_room_for_ban(&mut self, now: Instant) -> bool {
        let is_full = self.bans.len() >= self.limits.bans_max;
        let is_due = self.swept_at.is_none_or(|at| {
            let every = if is_full { SWEEPS_EVERY } else { self.limits.window };
            now.saturating_duration_since(at) >= every
        });
        if is_due {
            self.swept_at = Some(now);
            self.bans.retain(|_, ban| now < ban.forgotten_at);
            if self.bans.len() >= self.limits.bans_max {
                self.bans.retain(|_, ban| now < ban.until);
            }
        }
        self.bans.len() < self.limits.bans_max
    }

    fn forget_old_counts(&mut self, now: Instant) {
        while let Some((since, key)) = self.windows.front().copied()
            && now.saturating_duration_since(since) >= self.limits.window
        {
            self.windows.pop_front();
            self.counts.remove(&key);
        }
    }

    fn key(&self, client: Name<'_>, username: Option<&str>) -> Key {
        self.keys.hash_one((client.scope(), username, client.text()))
    }
}

#[cfg(test)]
mod tests {
    use broker::Scope;

    use super::*;

    const LIMITS: Limits = Limits {
        connects_max: 3,
        window: Duration::from_secs(60),
        ban: Duration::from_secs(300),
        counts_max: 100,
        bans_max: 4,
    };

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// True: it was let in, as its shard lets everybody in.
    fn connects(flapping: &mut Flapping, client: &str, now: Instant) -> bool {
        let name = Name::first(client);
        let is_in = !flapping.keeps_off(name, Some("anna"), now);
        if is_in {
            flapping.note(name, Some("anna"), now);
        }
        is_in
    }

    #[test]
    fn who_connects_too_often_is_kept_off_each_time_longer() {
        let mut flapping = Flapping::new(LIMITS);
        let start = Instant::now();
        let mut storm =
            |from: Instant| (0..10).filter(|_| connects(&mut flapping, "c", from)).count();
        assert_eq!(storm(start), 3);
        assert_eq!(storm(start + secs(299)), 0, "banned");
        assert_eq!(storm(start + secs(300)), 3, "not any more");
        assert_eq!(storm(start + secs(300 + 599)), 0, "twice as long");
        assert_eq!(storm(start + secs(300 + 600)), 3);
        let later = start + secs(300 + 600);
        assert!(connects(&mut flapping, "other", later), "others are not affected");
        let mut flapping = Flapping::new(LIMITS);
        for minute in 0..100 {
            for _ in 0..3 {
                let now = start + secs(minute * 60);
                assert!(connects(&mut flapping, "slow", now), "three a minute");
            }
        }
    }

    #[test]
    fn who_was_not_let_in_counts_for_nobody() {
        let mut flapping = Flapping::new(LIMITS);
        let now = Instant::now();
        let name = Name::first("c");
        for _ in 0..100 {
            assert!(!flapping.keeps_off(name, Some("bruno"), now));
        }
        assert!(flapping.counts.is_empty());
        for _ in 0..100 {
            flapping.note(name, Some("bruno"), now);
            flapping.note(name, None, now);
            flapping.note(Name::new(Scope::new(1), "c"), Some("anna"), now);
        }
        assert!(!flapping.keeps_off(name, Some("anna"), now), "another user or namespace");
        assert!(flapping.keeps_off(name, Some("bruno"), now));
    }

    #[test]
    fn counts_are_bounded_and_leave_bans_alone() {
        let mut flapping = Flapping::new(LIMITS);
        let start = Instant::now();
        assert_eq!((0..4).filter(|_| connects(&mut flapping, "banned", start)).count(), 3);
        for _ in 0..2 {
            assert!(connects(&mut flapping, "old", start));
        }
        for number in 0..10 * LIMITS.counts_max {
            assert!(connects(&mut flapping, &number.to_string(), start));
            assert!(flapping.counts.len() <= LIMITS.counts_max);
            assert_eq!(flapping.counts.len(), flapping.windows.len());
        }
        assert!(!connects(&mut flapping, "banned", start), "it still runs");
        let storm = (0..10).filter(|_| connects(&mut flapping, "old", start)).count();
        assert_eq!(storm, 3, "its count was the oldest");
        flapping.note(Name::first("one more"), None, start + secs(60));
        assert_eq!(flapping.counts.len(), 1);
    }

    #[test]
    fn bans_are_bounded_and_those_that_run_stay() {
        let mut flapping = Flapping::new(LIMITS);
        let start = Instant::now();
        let mut storm = |client: &str, at: Instant| {
            let let_in = (0..10).filter(|_| connects(&mut flapping, client, at)).count();
            (let_in, flapping.bans.len())
        };
        for number in 1..=LIMITS.bans_max {
            assert_eq!(storm(&number.to_string(), start), (3, number));
        }
        let full = LIMITS.bans_max;
        assert_eq!(storm("more", start), (3, full), "not banned, and refused");
        assert_eq!(storm("more", start + secs(59)), (0, full));
        assert_eq!(storm("more", start + secs(60)), (3, full), "its window has passed");
        assert_eq!(storm("1", start + secs(299)), (0, full), "nobody else is let in for it");
        assert_eq!(storm("later", start + secs(300)), (3, 1), "those that are over make room");
    }
}
