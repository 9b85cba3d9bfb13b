//! The rate finder: the highest publish rate that holds a latency and lets nothing pile up.
//!
//! The rate doubles from the lowest until it does not hold, then the gap is halved until it is
//! narrow enough. Every step is the measured stage again, at its own rate; after a step that did
//! not hold the backlog is drained first. Publishers with rates of their own keep their shares of
//! the total; where some have none, all get the same.

use std::time::Duration;

use super::conductor::Conductor;
use super::crew::StagePace;
use super::plan::Plan;
use crate::measure::{LatencyHistogram, RateSearch, RateStep};
use crate::model::{Rate, Search};

impl Conductor<'_> {
    pub(super) fn search(&mut self, stage: usize, search: Search) {
        let mut result = RateSearch {
            latency_percentile: search.percentile,
            latency_bound_us: search.latency_max_us,
            ..RateSearch::default()
        };
        let (mut low, mut high) = (0_u64, None);
        let mut rate = search.rate_min.max(1);
        while result.steps.len() < STEPS_MAX && !self.is_over() {
            let step = self.try_rate(stage, rate, &search);
            if step.held {
                low = rate;
                result.rate_held = rate as f64;
            } else {
                high = Some(rate);
            }
            result.steps.push(step);
            let next = match high {
                None if rate >= search.rate_max => break,
                None => (rate * 2).min(search.rate_max),
                Some(high) if (high - low) as f64 <= high as f64 * search.precision => break,
                Some(high) => low + (high - low) / 2,
            };
            if next == rate || next == 0 {
                break;
            }
            rate = next;
        }
        self.rate_search = Some(result);
    }

    /// Latencies come with the account of each second. The one under way holds the end of a step,
    /// which must not be taken for the beginning of the next.
    fn await_second(&mut self) {
        let under_way = (self.clock.now_ns() / 1_000_000_000) as u32 + 1;
        let started_ns = self.clock.now_ns();
        while self.series.last().is_none_or(|second| second.at_secs < under_way)
            && self.clock.now_ns() - started_ns < SECOND_NS_MAX
            && !self.is_over()
        {
            self.follow(Duration::from_millis(10));
        }
    }

    fn try_rate(&mut self, stage: usize, rate: u64, search: &Search) -> RateStep {
        let before = self.standing();
        self.recent = LatencyHistogram::new();
        let pace = pace_of(&self.plan, stage, rate);
        self.set_stage_duration(search.step_us);
        self.run_stage(stage, pace);
        let after = self.standing();
        // The stage's own time, without the lead before it.
        let seconds =
            self.phases.last().map_or(1.0, |phase| (phase.to_secs - phase.from_secs).max(1e-3));
        let owed = after.owed.saturating_sub(before.owed) as f64 / seconds;
        let received = after.received.saturating_sub(before.received) as f64 / seconds;
        let published = after.published.saturating_sub(before.published) as f64 / seconds;
        let backlog = owed - received;
        self.drain();
        let drained = self.standing();
        self.await_second();
        let latency_us = self.recent.micros_at(search.percentile);
        let slow = latency_us > search.latency_max_us;
        let piled = backlog > owed * BACKLOG_SHARE_MAX;
        let short = published < rate as f64 * PUBLISHED_SHARE_MIN;
        let lost = drained.received < drained.owed;
        let why = match (slow, piled, short, lost) {
            _ if self.recent.is_empty() => "no latency was measured".to_owned(),
            (true, ..) => format!("p{} was {latency_us} us", search.percentile),
            (_, true, ..) => "messages piled up".to_owned(),
            (_, _, true, _) => "publishers could not keep the rate".to_owned(),
            (.., true) => "messages did not arrive".to_owned(),
            _ => String::new(),
        };
        RateStep {
            rate: rate as f64,
            published_per_sec: published,
            received_per_sec: received,
            latency_us,
            backlog_per_sec: backlog,
            held: why.is_empty(),
            why,
        }
    }
}

/// What makes the publishers of a stage send `rate` messages per second in all.
fn pace_of(plan: &Plan, stage: usize, rate: u64) -> StagePace {
    match plan.publish_rate_in(stage) {
        Some(own) if own > 0.0 => StagePace::Times(rate as f64 / own),
        _ => {
            let publishers = plan.publishers_in(stage).max(1);
            StagePace::Each(Rate { count: rate, per_us: 1_000_000 * publishers })
        }
    }
}

/// An account that is so late does not come: a thread is lost.
const SECOND_NS_MAX: u64 = 5_000_000_000;
const STEPS_MAX: usize = 64;
/// Of the deliveries owed in a step, how many may be outstanding at its end.
const BACKLOG_SHARE_MAX: f64 = 0.02;
const PUBLISHED_SHARE_MIN: f64 = 0.95;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::find;
    use crate::model::Pace;
    use crate::scenario::Choice;

    /// Publish rates of all clients of the publishing stage, at `rate` in all.
    fn rates(id: &str, rate: u64) -> Vec<f64> {
        let plan = Plan::new(find(id, &Choice::default()).unwrap().scenario).unwrap();
        let stage = (0..plan.scenario.stages.len()).find(|stage| plan.publishes_in(*stage));
        let pace = pace_of(&plan, stage.unwrap(), rate);
        let each = plan.publishes.iter().map(|planned| {
            let Pace { rate, .. } = planned.command.pace;
            let clients = plan.scenario.group(plan.families[planned.family].group).count as f64;
            pace.of(rate).unwrap().per_sec() * clients
        });
        each.collect()
    }

    #[test]
    fn publishers_keep_their_shares_of_the_total() {
        // 100,000 clients at half the total each, far below and far above the scenario's own rate.
        for rate in [1, 300, 1_000_000] {
            let found = rates("EG-1", rate);
            assert_eq!(found.len(), 2);
            for share in found {
                assert!((share / (rate as f64 / 2.0) - 1.0).abs() < 1e-5, "{share} of {rate}");
            }
        }
        let even = rates("MB-E1", 777);
        assert!((even[0] - 777.0).abs() < 0.01, "{even:?}");
    }

    #[test]
    fn where_a_loop_is_closed_all_get_the_same() {
        let found = rates("AIO-FI-16B", 5_000);
        assert!((found[0] - 5_000.0).abs() < 0.01, "{found:?}");
    }
}
