//! Checks that wait: a lane for each origin, and the origins take turns, so that who asks much
//! waits for itself.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::pace::{Due, Pace};
use driver::Origin;

/// What can wait.
pub(super) trait Asks {
    /// A number for the user name that is stated.
    fn user(&self) -> u64;
}

/// What waits, of all origins.
pub(super) struct Lanes<T> {
    lanes: HashMap<Origin, Lane<T>>,
    /// Origins with something in their lanes, in the order of their turns.
    turns: VecDeque<Origin>,
    len: usize,
    len_max: usize,
    pub(super) pace: Pace,
}

/// What waits, of one origin, each with its ticket.
type Lane<T> = VecDeque<(u64, T)>;

/// What there is to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<T> {
    Item(Origin, T),
    /// Nothing before then; None: before something is put in or ends.
    Later(Due),
}

impl<T: Asks> Lanes<T> {
    pub(super) fn new(len_max: usize, pace: Pace) -> Self {
        let (lanes, turns) = (HashMap::new(), VecDeque::new());
        Self { lanes, turns, len: 0, len_max, pace }
    }

    /// Where there is no room, the longest lane makes some with its newest: the second is given
    /// back. That may be the one that comes.
    pub(super) fn put(&mut self, origin: Origin, ticket: u64, item: T) -> Option<T> {
        let lane = self.lanes.entry(origin).or_default();
        if lane.is_empty() {
            self.turns.push_back(origin);
        }
        lane.push_back((ticket, item));
        self.len += 1;
        if self.len <= self.len_max {
            return None;
        }
        let own = self.lanes.get(&origin).map_or(0, VecDeque::len);
        let longest = self.lanes.iter().max_by_key(|(_, lane)| lane.len());
        let longest = longest.filter(|(_, lane)| lane.len() > own).map(|(other, _)| *other);
        self.pop(longest.unwrap_or(origin), VecDeque::pop_back)
    }

    /// The next that may begin. Of an origin with many wrong log-ins another user comes first than
    /// the last time, as most who guess go for one; else the newest, as who has waited for long
    /// behind those has likely given up.
    pub(super) fn take(&mut self, now: Instant) -> Next<T> {
        let mut soonest: Due = None;
        for _ in 0..self.turns.len() {
            let Some(origin) = self.turns.pop_front() else { break };
            self.turns.push_back(origin);
            match self.pace.begin(origin, now) {
                Ok(()) => {
                    let last_user = self.pace.worn_by(origin);
                    let item = self.pop(origin, |lane| match last_user {
                        Some(last_user) => pop_other(lane, last_user),
                        None => lane.pop_front(),
                    });
                    if let Some(item) = item {
                        self.pace.note_user(origin, item.user());
                        return Next::Item(origin, item);
                    }
                }
                Err(due) => soonest = soonest.into_iter().chain(due).min(),
            }
        }
        Next::Later(soonest)
    }

    /// Its client is gone.
    pub(super) fn forget(&mut self, origin: Origin, ticket: u64) -> Option<T> {
        let lane = self.lanes.get(&origin)?;
        let place = lane.iter().position(|(known, _)| *known == ticket)?;
        self.pop(origin, |lane| lane.remove(place))
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.turns.clear();
        self.len = 0;
        std::mem::take(&mut self.lanes).into_values().flatten().map(|(_, item)| item)
    }

    fn pop(
        &mut self,
        origin: Origin,
        end: impl FnOnce(&mut Lane<T>) -> Option<(u64, T)>,
    ) -> Option<T> {
        let lane = self.lanes.get_mut(&origin)?;
        let (_, item) = end(lane)?;
        self.len -= 1;
        if lane.is_empty() {
            self.lanes.remove(&origin);
            self.turns.retain(|waiting| *waiting != origin);
        }
        Some(item)
    }
}

/// The newest of another user, else the newest.
fn pop_other<T: Asks>(lane: &mut Lane<T>, user: u64) -> Option<(u64, T)> {
    let other = lane.iter().rposition(|(_, item)| item.user() != user);
    lane.remove(other.unwrap_or(lane.len().saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A thousand tickets are one user.
    impl Asks for u64 {
        fn user(&self) -> u64 {
            self / 1000
        }
    }

    const ONE: Origin = Origin::V4([192, 0, 2, 1]);
    const OTHER: Origin = Origin::V4([192, 0, 2, 2]);

    fn lanes(len_max: usize, failures_per_second_max: u32) -> Lanes<u64> {
        Lanes::new(len_max, Pace::new(failures_per_second_max))
    }

    #[test]
    fn origins_take_turns() {
        let mut lanes = lanes(100, 0);
        let now = Instant::now();
        for ticket in 0..5 {
            assert_eq!(lanes.put(ONE, ticket, ticket), None);
        }
        assert_eq!(lanes.put(OTHER, 9, 9), None);
        assert_eq!(lanes.take(now), Next::Item(ONE, 0));
        assert_eq!(lanes.take(now), Next::Item(OTHER, 9), "behind one, not behind five");
        for ticket in 1..5 {
            assert_eq!(lanes.take(now), Next::Item(ONE, ticket));
        }
        assert_eq!(lanes.take(now), Next::Later(None));
        assert!(lanes.lanes.is_empty() && lanes.turns.is_empty());
    }

    #[test]
    fn who_fills_the_queue_makes_room() {
        let mut lanes = lanes(3, 0);
        for ticket in 0..3 {
            assert_eq!(lanes.put(ONE, ticket, ticket), None);
        }
        assert_eq!(lanes.put(ONE, 3, 3), Some(3), "its own newest");
        assert_eq!(lanes.put(OTHER, 8, 8), Some(2), "the newest of the longest");
        assert_eq!(lanes.put(OTHER, 9, 9), Some(9), "as long as the longest is not longer");
        assert_eq!(lanes.len, 3);
    }

    #[test]
    fn who_is_gone_is_not_checked() {
        let mut lanes = lanes(10, 0);
        for ticket in 0..3 {
            lanes.put(ONE, ticket, ticket);
        }
        assert_eq!(lanes.forget(ONE, 1), Some(1));
        assert_eq!(lanes.forget(ONE, 1), None);
        assert_eq!(lanes.forget(OTHER, 0), None);
        let now = Instant::now();
        assert_eq!(lanes.take(now), Next::Item(ONE, 0));
        assert_eq!(lanes.forget(ONE, 2), Some(2));
        assert_eq!(lanes.take(now), Next::Later(None));
        assert_eq!(lanes.len, 0);
    }

    #[test]
    fn an_origin_that_guesses_waits_for_its_pace_and_its_newest_comes_first() {
        let mut lanes = lanes(1000, 5);
        let start = Instant::now();
        for ticket in 0..200 {
            lanes.put(ONE, ticket, ticket);
        }
        let due = loop {
            match lanes.take(start) {
                Next::Item(origin, _) => lanes.pace.end(origin, false, start),
                Next::Later(due) => break due.unwrap(),
            }
        };
        assert_eq!(due.duration_since(start), Duration::from_millis(200));
        lanes.put(OTHER, 500, 500);
        assert_eq!(lanes.take(start), Next::Item(OTHER, 500), "others do not wait");
        lanes.put(ONE, 300, 300);
        assert_eq!(lanes.take(due), Next::Item(ONE, 300), "the newest");
        lanes.pace.end(ONE, true, due);
        lanes.put(ONE, 1000, 1000);
        lanes.put(ONE, 301, 301);
        assert_eq!(lanes.take(due), Next::Item(ONE, 1000), "another user");
        lanes.pace.end(ONE, true, due);
        assert_eq!(lanes.take(due), Next::Item(ONE, 301));
    }
}
