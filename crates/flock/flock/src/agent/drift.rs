//! An agent's clock against the commander's, over a whole run: how far it was off, and how far it
//! went.

use flock_measure::AgentInfo;

/// One round trip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reading {
    /// Agent's monotonic clock minus ours, in the middle of the round trip.
    pub(super) offset_ns: i64,
    /// Half the round trip: the offset is wrong by no more.
    pub(super) error_ns: i64,
}

impl Reading {
    /// Of a ping that left at `sent_ns`, was answered when their clock showed `theirs_ns`, and was
    /// back at `back_ns`.
    pub(super) fn of(sent_ns: i64, theirs_ns: i64, back_ns: i64) -> Self {
        let round_trip_ns = (back_ns - sent_ns).max(0);
        let offset_ns = theirs_ns - (sent_ns + round_trip_ns / 2);
        Self { offset_ns, error_ns: round_trip_ns / 2 }
    }
}

/// Readings in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(super) struct ClockWatch {
    /// The best before the run: what the agent was told is the offset.
    first: Option<Reading>,
    /// The best of the readings since the last that was kept.
    best: Option<Reading>,
    of_window: u32,
    /// Best reading of each window that is full.
    kept: Vec<Reading>,
}

impl ClockWatch {
    /// The readings from before the run: the quickest is right by most.
    pub(super) fn begin(&mut self, readings: impl Iterator<Item = Reading>) -> i64 {
        self.first = readings.min_by_key(|reading| reading.error_ns);
        self.first.map_or(0, |first| first.offset_ns)
    }

    pub(super) fn add(&mut self, reading: Reading) {
        if self.best.is_none_or(|best| reading.error_ns < best.error_ns) {
            self.best = Some(reading);
        }
        self.of_window += 1;
        if self.of_window >= WINDOW {
            self.close_window();
        }
    }

    fn close_window(&mut self) {
        // Bounded: the later half of a very long run is thinned out.
        if self.kept.len() >= KEPT_MAX {
            self.kept.remove(KEPT_MAX / 2);
        }
        self.kept.extend(self.best.take());
        self.of_window = 0;
    }

    /// Tells what is known in the agent's record.
    pub(super) fn tell(&self, info: &mut AgentInfo) {
        let Some(first) = self.first else { return };
        info.clock_offset_us = first.offset_ns as f64 / 1e3;
        info.clock_error_us = first.error_ns as f64 / 1e3;
        let during = self.kept.iter().chain(&self.best);
        let farthest =
            during.clone().max_by_key(|reading| (reading.offset_ns - first.offset_ns).abs());
        info.clock_readings = during.count() as u64;
        if let Some(farthest) = farthest {
            info.clock_drift_us = (farthest.offset_ns - first.offset_ns) as f64 / 1e3;
            info.clock_drift_error_us = (farthest.error_ns + first.error_ns) as f64 / 1e3;
        }
    }
}

/// Pings of which the quickest counts: on a busy machine most are slow.
const WINDOW: u32 = 8;
const KEPT_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickest_round_trip_tells_the_offset() {
        let mut watch = ClockWatch::default();
        let readings = [Reading::of(0, 5_900, 1_000), Reading::of(2_000, 7_050, 2_100)];
        assert_eq!(watch.begin(readings.into_iter()), 5_000);
        let mut info = AgentInfo::default();
        watch.tell(&mut info);
        assert_eq!((info.clock_offset_us, info.clock_error_us), (5.0, 0.05));
        assert_eq!((info.clock_drift_us, info.clock_readings), (0.0, 0));
    }

    #[test]
    fn a_clock_that_goes_away_is_seen_through_slow_round_trips() {
        let mut watch = ClockWatch::default();
        watch.begin([Reading { offset_ns: 5_000, error_ns: 10 }].into_iter());
        for n in 0..80_i64 {
            // It loses 100 ns with each ping; only every eighth is quick, the others are wrong.
            let quick = n % 8 == 3;
            let error_ns = if quick { 20 } else { 9_000_000 };
            let wrong_ns = if quick { 0 } else { 8_000_000 };
            watch.add(Reading { offset_ns: 5_000 - n * 100 + wrong_ns, error_ns });
        }
        let mut info = AgentInfo::default();
        watch.tell(&mut info);
        assert_eq!(info.clock_readings, 10);
        assert_eq!((info.clock_drift_us, info.clock_drift_error_us), (-7.5, 0.03));
    }
}
