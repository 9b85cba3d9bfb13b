//! How many events are published: so many a second, of one client so many, and of one address at
//! most a quarter, so that who comes and goes all the time leaves room for others.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use super::Happened;

/// Clients and addresses share places, each by a hash that nobody can guess: what many of them use
/// up is theirs together.
const PLACES: usize = 4_096;

#[derive(Debug)]
pub(super) struct Pace {
    /// 0: no limit.
    client_max: u32,
    all_max: u32,
    clients: Box<[Window]>,
    addresses: Box<[Window]>,
    all: Window,
    hasher: RandomState,
    withheld: AtomicU64,
    withheld_reported: AtomicU64,
}

/// The second, and in its low half how many there were in it.
#[derive(Debug, Default)]
struct Window(AtomicU64);

impl Pace {
    pub(super) fn new(client_max: u32, all_max: u32) -> Self {
        let places = || (0..PLACES).map(|_| Window::default()).collect();
        Self {
            client_max,
            all_max,
            clients: places(),
            addresses: places(),
            all: Window::default(),
            hasher: RandomState::new(),
            withheld: AtomicU64::new(0),
            withheld_reported: AtomicU64::new(0),
        }
    }

    /// Charges an event to its client, its address and all. If one of them has had enough, it is
    /// counted instead.
    pub(super) fn allows(&self, happened: &Happened<'_>, now_ms: u64) -> bool {
        let place = |hash: u64| hash as usize % PLACES;
        let client = happened.client_id.map(|id| (happened.namespace.as_deref(), id));
        let client = client.map(|name| &self.clients[place(self.hasher.hash_one(name))]);
        let address = happened.address.map(|it| &self.addresses[place(self.hasher.hash_one(it))]);
        let address_max = self.all_max.div_ceil(4);
        let is_allowed = client.is_none_or(|it| it.takes(self.client_max, now_ms))
            && address.is_none_or(|it| it.takes(address_max, now_ms))
            && self.all.takes(self.all_max, now_ms);
        if !is_allowed {
            self.withheld.fetch_add(1, Ordering::Relaxed);
        }
        is_allowed
    }

    pub(super) fn withheld(&self) -> u64 {
        self.withheld.load(Ordering::Relaxed)
    }

    /// How many there were since this was asked last.
    pub(super) fn take_withheld(&self) -> u64 {
        let all = self.withheld();
        all - self.withheld_reported.swap(all, Ordering::Relaxed).min(all)
    }
}

impl Window {
    fn takes(&self, max: u32, now_ms: u64) -> bool {
        let second = (now_ms / 1000) << 32;
        let count = |now: u64| if now >> 32 == second >> 32 { now + 1 } else { second + 1 };
        let before =
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(count(now)));
        let taken = before.map_or(0, |now| count(now) & u64::from(u32::MAX));
        max == 0 || taken <= u64::from(max)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::table;
    use super::*;

    fn allowed(pace: &Pace, client_id: &str, address: &str, now_ms: u64) -> bool {
        let address = address.parse().ok();
        let happened = Happened {
            kind: &table::CONNECTED,
            client_id: Some(client_id),
            address,
            namespace: None,
            data: Value::Null,
        };
        pace.allows(&happened, now_ms)
    }

    #[test]
    fn one_client_and_one_address_leave_room_for_others() {
        let pace = Pace::new(3, 40);
        let count = |client_id: &str, address: &str, now_ms: u64| {
            (0..100).filter(|_| allowed(&pace, client_id, address, now_ms)).count()
        };
        assert_eq!(count("a", "10.0.0.1", 999), 3);
        assert_eq!(count("a", "10.0.0.1", 1000), 3, "the next second");
        let by_address = |address: &str| {
            (0..100).filter(|n| allowed(&pace, &format!("{address}{n}"), address, 2000)).count()
        };
        // Two ids may share a place, and then one has less.
        assert!((8..=10).contains(&by_address("10.0.0.2")));
        assert!((8..=10).contains(&by_address("10.0.0.3")));
        let withheld = pace.withheld();
        assert_eq!(pace.take_withheld(), withheld);
        assert_eq!(pace.take_withheld(), 0);
    }

    #[test]
    fn without_a_limit_all_are_reported() {
        let pace = Pace::new(0, 0);
        assert!((0..10_000).all(|_| allowed(&pace, "a", "10.0.0.1", 5)));
        assert_eq!(pace.withheld(), 0);
    }
}
