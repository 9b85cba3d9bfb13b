//! Wills: how many of a client's have to come, held against how many came.

use serde::{Deserialize, Serialize};

use crate::Integrity;

/// The wills of one client, over all its connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wills {
    /// Position of the topic group in the scenario.
    pub topics: u32,
    /// Position in the topic group.
    pub topic: u64,
    pub qos: u8,
    pub retain: bool,
    /// Of connections that ended without a good-bye: they have to come.
    pub owed: u32,
    /// Of connections of which it is not known how they ended for the broker: they may come.
    pub open: u32,
    /// When the first of those that are owed was due, and the last; nanoseconds of the run's clock.
    pub first_ns: u64,
    pub last_ns: u64,
    /// When the first of these connections ended; 0: unknown.
    #[serde(default)]
    pub ended_ns: u64,
    /// The client has named several topics: its wills cannot be told apart.
    pub is_mixed: bool,
}

/// What came of a client's wills at one subscriber, live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WillsCame {
    pub count: u32,
    /// When the first one came.
    pub first_ns: u64,
}

impl WillsCame {
    pub fn note(&mut self, now_ns: u64) {
        self.first_ns = if self.count == 0 { now_ns } else { self.first_ns };
        self.count += 1;
    }
}

/// Books what came of a client's wills at one subscriber. `is_whole`: the subscriber was there from
/// before the first was due until long after the last.
pub fn judge_wills(wills: &Wills, came: WillsCame, is_whole: bool, all: &mut Integrity) {
    let may_come = wills.owed + wills.open;
    // Sent while its client was connected, it is none of those that are owed.
    let is_end_known = wills.open == 0 && wills.owed > 0;
    let is_early = is_end_known && came.first_ns.saturating_add(EARLY_NS_MAX) < wills.ended_ns;
    let early = u32::from(is_early && came.count > 0);
    all.wills_unasked += u64::from(early);
    let came = came.count - early;
    let over = u64::from(came.saturating_sub(may_come));
    if may_come == 0 {
        all.wills_unasked += over;
    } else {
        all.wills_repeated += over;
    }
    if is_whole {
        all.wills_lost += u64::from(wills.owed.saturating_sub(came));
    }
}

/// A broker may have seen the end of a connection before its client did.
const EARLY_NS_MAX: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(owed: u32, open: u32, count: u32, is_whole: bool) -> (u64, u64, u64) {
        judged_at((owed, open), WillsCame { count, first_ns: ENDED_NS }, is_whole)
    }

    fn judged_at((owed, open): (u32, u32), came: WillsCame, is_whole: bool) -> (u64, u64, u64) {
        let wills = Wills {
            topics: 0,
            topic: 0,
            qos: 1,
            retain: false,
            owed,
            open,
            first_ns: 1,
            last_ns: 2,
            ended_ns: ENDED_NS,
            is_mixed: false,
        };
        let mut all = Integrity::default();
        judge_wills(&wills, came, is_whole, &mut all);
        (all.wills_lost, all.wills_repeated, all.wills_unasked)
    }

    const ENDED_NS: u64 = 5_000_000_000;

    #[test]
    fn a_will_that_came_while_its_client_was_connected_is_not_the_one_that_is_owed() {
        let mut came = WillsCame::default();
        came.note(1);
        assert_eq!(judged_at((1, 0), came, true), (1, 0, 1));
        came.note(ENDED_NS);
        assert_eq!(judged_at((1, 0), came, true), (0, 0, 1));
        assert_eq!(judged_at((1, 1), came, true), (0, 0, 0), "nobody knows when it ended");
        let soon = WillsCame { count: 1, first_ns: ENDED_NS - EARLY_NS_MAX };
        assert_eq!(judged_at((1, 0), soon, true), (0, 0, 0));
    }

    #[test]
    fn a_will_comes_once_for_each_connection_that_broke() {
        assert_eq!(judged(2, 0, 2, true), (0, 0, 0));
        assert_eq!(judged(2, 0, 1, true), (1, 0, 0));
        assert_eq!(judged(2, 0, 1, false), (0, 0, 0), "who was not there is owed nothing");
        assert_eq!(judged(2, 0, 3, false), (0, 1, 0));
        assert_eq!(judged(0, 0, 1, true), (0, 0, 1), "it said good-bye");
        for came in [0, 1] {
            assert_eq!(judged(0, 1, came, true), (0, 0, 0), "nobody knows");
        }
    }
}
