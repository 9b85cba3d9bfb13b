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
    /// The client has named several topics: its wills cannot be told apart.
    pub is_mixed: bool,
}

/// Books what came of a client's wills at one subscriber. `is_whole`: the subscriber was there from
/// before the first was due until long after the last.
pub fn judge_wills(wills: &Wills, came: u32, is_whole: bool, all: &mut Integrity) {
    let may_come = wills.owed + wills.open;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(owed: u32, open: u32, came: u32, is_whole: bool) -> (u64, u64, u64) {
        let wills = Wills {
            topics: 0,
            topic: 0,
            qos: 1,
            retain: false,
            owed,
            open,
            first_ns: 1,
            last_ns: 2,
            is_mixed: false,
        };
        let mut all = Integrity::default();
        judge_wills(&wills, came, is_whole, &mut all);
        (all.wills_lost, all.wills_repeated, all.wills_unasked)
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
