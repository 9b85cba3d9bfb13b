//! The rate finder: the highest publish rate that holds a latency and lets nothing pile up.
//!
//! [`Hunt`] says which rate is next; every step is the measured stage again, at its own rate, and
//! long enough for its percentile to rest on several messages. After each step the backlog is
//! drained. No step counts for the report but one more at the rate that was confirmed. Publishers
//! with rates of their own keep their shares of the total; where some have none, all get the same.

use std::time::Duration;

use super::conductor::{Conductor, WARM_UP};
use super::hunt::{Aim, Hunt, Outcome, is_tool_the_limit};
use super::plan::Plan;
use super::pool::{Counting, StagePace};
use super::valid::LATENESS_MAX_US;
use super::worker::Standing;
use flock_measure::text::{micros, number};
use flock_measure::{LatencyHistogram, RateSearch, RateStep};
use flock_model::{Rate, Search};

impl Conductor<'_> {
    /// Looks for the rate, and measures at the one that is found.
    pub(super) fn search(&mut self, stage: usize, search: Search) {
        let mut result = RateSearch {
            latency_percentile: search.percentile,
            latency_bound_us: search.latency_max_us,
            samples_min: samples_min(search.percentile),
            ..RateSearch::default()
        };
        self.count(Counting::No);
        let copies = self.plan.scenario.estimate().copies_per_message.unwrap_or(1.0);
        let rate_min = lowest(&search, copies);
        if rate_min > search.rate_min {
            self.notes.push(format!(
                "the search starts at {rate_min}/s: lower rates have too few messages for p{}",
                search.percentile
            ));
        }
        self.warm_up(stage, rate_min);
        let mut hunt = Hunt::new(rate_min, search.rate_max, search.precision);
        while let Some(next) = hunt.next()
            && result.steps.len() < STEPS_MAX
            && !self.is_over()
        {
            let length_us = match next.aim {
                Aim::Find => step_us(&search, next.rate, copies),
                // What holds for a moment, buffers full and queues long, need not hold.
                Aim::Refute | Aim::Confirm => confirming_us(&search, next.rate, copies),
            };
            let mut step = self.try_rate(stage, next.rate, &search, length_us);
            if self.is_over() {
                break;
            }
            step.confirms = next.aim != Aim::Find;
            hunt.tell(match step.held {
                true => Outcome::Held,
                false if step.by_tool => Outcome::Disturbed,
                false => Outcome::Failed,
            });
            result.steps.push(step);
        }
        let found = hunt.found();
        result.rate_held = found.held.unwrap_or(0) as f64;
        result.rate_failed = found.failed.map(|rate| rate as f64);
        result.limited_by_tool = is_limited_by_tool(&result.steps, result.rate_failed);
        result.rate_delivered = delivered(&result.steps, result.rate_held, copies);
        result.blurred = blurred(&result.steps, search.latency_max_us);
        let beyond = result.steps.iter().filter(|step| !step.held);
        result.missing_beyond = beyond.map(|step| step.missing).sum();
        self.excused_skips = self.totals.publishes_skipped;
        self.excused_refusals = self.totals.publishes_refused;
        match found.held {
            Some(rate) if !self.is_over() => self.measure_at(stage, rate, &search, copies),
            _ if self.is_over() => {}
            _ if hunt.next().is_some() => self.reasons.push(format!(
                "no rate was confirmed within {STEPS_MAX} steps: results of machine or broker \
                     vary too much"
            )),
            _ => self.reasons.push(format!("the lowest rate of the search, {rate_min}/s, failed")),
        }
        self.rate_search = Some(result);
    }

    /// A step of which nothing is asked, so that the first that counts is not a cold one.
    fn warm_up(&mut self, stage: usize, rate: u64) {
        let Some(us) = self.plan.scenario.warm_up_us.filter(|us| *us > 0) else { return };
        self.set_stage_duration(us);
        self.run_stage(stage, pace_of(&self.plan, stage, rate));
        if let Some(phase) = self.phases.last_mut() {
            WARM_UP.clone_into(&mut phase.name);
        }
        self.drain();
        self.await_second();
    }

    /// The step that the report's figures come from.
    fn measure_at(&mut self, stage: usize, rate: u64, search: &Search, copies: f64) {
        self.count(Counting::Yes);
        self.marks.measured_from = Some(self.mark());
        self.set_stage_duration(confirming_us(search, rate, copies));
        self.run_stage(stage, pace_of(&self.plan, stage, rate));
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

    fn try_rate(&mut self, stage: usize, rate: u64, search: &Search, us: u64) -> RateStep {
        let before = self.standing();
        let skipped_before = self.totals.publishes_skipped;
        self.recent = LatencyHistogram::new();
        self.recent_lateness = LatencyHistogram::new();
        let pace = pace_of(&self.plan, stage, rate);
        self.set_stage_duration(us);
        self.run_stage(stage, pace);
        let after = self.standing();
        // The stage's own time, without the lead before it.
        let secs =
            self.phases.last().map_or(1.0, |phase| (phase.to_secs - phase.from_secs).max(1e-3));
        self.drain();
        let drained = self.standing();
        self.await_second();
        let mut step = RateStep {
            rate: rate as f64,
            secs,
            published_per_sec: after.published.saturating_sub(before.published) as f64 / secs,
            received_per_sec: after.received.saturating_sub(before.received) as f64 / secs,
            latency_us: self.recent.micros_at(search.percentile),
            samples: self.recent.count(),
            lateness_p99_us: self.recent_lateness.micros_at(99.0),
            backlog_per_sec: (missing(&before, &after) as f64) / secs,
            missing: missing(&before, &drained),
            ..RateStep::default()
        };
        let open = Open {
            owed_per_sec: after.owed.saturating_sub(before.owed) as f64 / secs,
            unsent: self.totals.publishes_skipped - skipped_before,
            // What an earlier step left open is not this one's.
            unacknowledged: drained.in_flight.saturating_sub(before.in_flight),
        };
        match fault_of(&step, search, &open) {
            Some(Fault { why, by_tool }) => (step.why, step.by_tool) = (why, by_tool),
            None => step.held = true,
        }
        step
    }
}

/// What was owed between two looks and did not arrive between them. What an earlier step lost is
/// not this one's.
fn missing(before: &Standing, after: &Standing) -> u64 {
    let owed = after.owed.saturating_sub(before.owed);
    owed.saturating_sub(after.received.saturating_sub(before.received))
}

/// What was asked for in a step, and what of it is in no latency.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    owed_per_sec: f64,
    /// Messages that were due and not sent.
    unsent: u64,
    /// Messages without an answer when the step was drained.
    unacknowledged: u64,
}

/// Why a step did not hold, and whose fault that is.
#[derive(Clone, Debug, PartialEq)]
struct Fault {
    why: String,
    /// Without the lateness of flock, the step might have held.
    by_tool: bool,
}

/// What a step shows against its rate. Lateness excuses no backlog: that is of messages that were
/// sent.
fn fault_of(step: &RateStep, search: &Search, open: &Open) -> Option<Fault> {
    let needed = samples_min(search.percentile) as f64 * SAMPLES_SHARE_MIN;
    let is_late = step.lateness_p99_us > LATENESS_MAX_US;
    let late = micros(step.lateness_p99_us as f64);
    let (why, by_tool) = if step.samples == 0 {
        ("no latency was measured".to_owned(), false)
    } else if step.backlog_per_sec * step.secs > under_way_max(step, search, open) {
        (format!("the backlog grew by {}/s", number(step.backlog_per_sec)), false)
    } else if step.latency_us > search.latency_max_us {
        let rest_us = step.latency_us.saturating_sub(step.lateness_p99_us);
        let why = format!("p{} was {}", search.percentile, micros(step.latency_us as f64));
        (why, is_late && rest_us <= search.latency_max_us)
    } else if open.unacknowledged > 0 {
        (format!("{} messages were not acknowledged", open.unacknowledged), false)
    } else if step.missing > 0 {
        (format!("{} messages did not arrive", step.missing), false)
    } else if step.published_per_sec < step.rate * PUBLISHED_SHARE_MIN {
        ("publishers did not reach the rate".to_owned(), is_late)
    } else if open.unsent > 0 {
        (format!("{} messages were due and not sent", open.unsent), is_late)
    } else if (step.samples as f64) < needed {
        (format!("only {} latencies were measured", step.samples), is_late)
    } else if is_late {
        // What was sent late was less than the rate for a while, and what came late is not known to
        // have been the broker's doing: such a step speaks neither for the rate nor against it.
        (format!("flock was {late} late"), true)
    } else {
        return None;
    };
    let alone = format!("flock was {late} late");
    let share =
        if by_tool && why != alone { format!("; {late} of it by flock") } else { String::new() };
    Some(Fault { why: why + &share, by_tool })
}

/// Messages that may be under way at the end of a step in which the latency held: those of the last
/// bound (Little's law), and the share that may take longer.
fn under_way_max(step: &RateStep, search: &Search, open: &Open) -> f64 {
    let longer = (1.0 - search.percentile / 100.0).max(0.0) * step.secs;
    open.owed_per_sec * (search.latency_max_us as f64 / 1e6 + longer)
}

/// What was sent and came in each second, at least, in the steps in which this rate held. A little
/// is under way when a step ends, and a step is a little longer than its schedule.
fn delivered(steps: &[RateStep], rate: f64, copies: f64) -> f64 {
    let held = steps.iter().filter(|step| step.held && step.rate == rate);
    let least = held
        .map(|step| step.published_per_sec.min(step.received_per_sec / copies.max(COPIES_MIN)))
        .fold(f64::INFINITY, f64::min);
    if least.is_finite() { least } else { 0.0 }
}

/// From where to where the latency was about the bound, if that is too far for a limit.
fn blurred(steps: &[RateStep], bound_us: u64) -> Option<(f64, f64)> {
    let bound = bound_us as f64;
    let is_about = |step: &&RateStep| {
        let latency = step.latency_us as f64;
        step.samples > 0 && latency * ABOUT >= bound && latency <= bound * ABOUT
    };
    let rates = steps.iter().filter(is_about).map(|step| step.rate);
    let (low, high) =
        rates.fold((f64::INFINITY, 0.0_f64), |(low, high), rate| (low.min(rate), high.max(rate)));
    (high > low * BLURRED_FROM).then_some((low, high))
}

/// Whether it was rather the tool, or its machine, than the broker that ended the search at `rate`.
fn is_limited_by_tool(steps: &[RateStep], rate: Option<f64>) -> bool {
    let failed = steps.iter().filter(|step| !step.held && Some(step.rate) == rate);
    is_tool_the_limit(failed.map(|step| step.by_tool))
}

/// So many messages that several lie beyond the percentile: with one or two there, it is luck.
fn samples_min(percentile: f64) -> u64 {
    // The maximum rests on one message, however many there are.
    let beyond = if percentile < 100.0 { 1.0 - percentile / 100.0 } else { 0.01 };
    (SAMPLES_BEYOND / beyond.max(BEYOND_MIN)).round() as u64
}

/// How long a rate is held: as asked for, or until there are enough messages.
fn step_us(search: &Search, rate: u64, copies: f64) -> u64 {
    let needed = needed_us(search, rate, copies);
    if needed > search.step_us as f64 { needed as u64 } else { search.step_us }
}

/// A step that confirms, or that figures are taken of.
fn confirming_us(search: &Search, rate: u64, copies: f64) -> u64 {
    step_us(search, rate, copies).max(CONFIRMING_US_MIN)
}

/// The time in which so many messages come.
fn needed_us(search: &Search, rate: u64, copies: f64) -> f64 {
    // A little more, as the phases of publishers need not fit the step.
    let samples = samples_min(search.percentile) as f64 * 1.05;
    samples / (rate as f64 * copies.max(COPIES_MIN)) * 1e6
}

/// Where the search begins: with steps that do not take for ever.
fn lowest(search: &Search, copies: f64) -> u64 {
    let step_max_us = search.step_us as f64 * STEP_LONGER_MAX;
    let needed = needed_us(search, 1, copies) / step_max_us;
    search.rate_min.max(needed.ceil() as u64).clamp(1, search.rate_max.max(1))
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
const STEPS_MAX: usize = 96;
/// Messages beyond the percentile, at least.
const SAMPLES_BEYOND: f64 = 10.0;
/// Percentiles closer to 100 than this are taken for this one.
const BEYOND_MIN: f64 = 1e-4;
/// Of the messages that a step was made long enough for; the last ones may not count any more.
const SAMPLES_SHARE_MIN: f64 = 0.9;
/// A step is lengthened so many times at most.
const STEP_LONGER_MAX: f64 = 10.0;
/// So that whole seconds are in it, of which rates are told.
const CONFIRMING_US_MIN: u64 = 3_000_000;
const COPIES_MIN: f64 = 0.01;
/// What is so many times the bound, or the bound so many times it, steps tell apart no more.
const ABOUT: f64 = 1.5;
/// Rates that are so many times apart are no limit.
const BLURRED_FROM: f64 = 1.25;
/// All that was due was sent, or the step does not hold anyhow; its time is up to so much longer
/// than its schedule, as threads are waited for.
const PUBLISHED_SHARE_MIN: f64 = 0.95;

#[cfg(test)]
mod tests {
    use super::*;
    use flock_model::Pace;
    use flock_model::catalogue::find;
    use flock_model::scenario::Choice;

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

    const SEARCH: Search = Search {
        percentile: 90.0,
        latency_max_us: 10_000,
        rate_min: 1,
        rate_max: 1_000,
        step_us: 1_000_000,
        precision: 0.05,
    };

    fn steps(all: &[(u64, u64)]) -> Vec<RateStep> {
        let step = |&(rate, latency_us): &(u64, u64)| RateStep {
            rate: rate as f64,
            latency_us,
            samples: 1_000,
            ..RateStep::default()
        };
        all.iter().map(step).collect()
    }

    #[test]
    fn a_latency_that_hardly_depends_on_the_rate_is_no_sharp_limit() {
        // p99 of one and the same broker in two searches, which ended at 94,000/s and 240,000/s.
        let flat = [(40_000, 45_000), (78_000, 62_000), (155_000, 49_900), (309_000, 59_800)];
        let far = [(20_000, 3_000), (400_000, 600_000)];
        let both = steps(&[&flat[..], &far].concat());
        assert_eq!(blurred(&both, 50_000), Some((40_000.0, 309_000.0)));
        // Where it rises steeply there is one.
        let steep = steps(&[(40_000, 3_000), (80_000, 400_000), (60_000, 9_000), (62_000, 90_000)]);
        assert_eq!(blurred(&steep, 50_000), None);
        assert_eq!(blurred(&steep, 10_000), None);
        assert_eq!(blurred(&[], 10_000), None);
    }

    #[test]
    fn a_step_does_not_hold_by_what_stands_in_no_latency() {
        let step = RateStep {
            rate: 1_000.0,
            published_per_sec: 960.0,
            latency_us: 500,
            samples: 960,
            ..RateStep::default()
        };
        let none = Open { owed_per_sec: 960.0, ..Open::default() };
        assert_eq!(fault_of(&step, &SEARCH, &none), None);
        // A window that was shut at the end of the step.
        let unsent = Open { unsent: 40, ..none };
        assert_eq!(said(&step, &unsent), ("40 messages were due and not sent".to_owned(), false));
        let unacknowledged = Open { unacknowledged: 3, ..none };
        assert!(said(&step, &unacknowledged).0.contains("not acknowledged"));
    }

    fn said(step: &RateStep, open: &Open) -> (String, bool) {
        let Fault { why, by_tool } = fault_of(step, &SEARCH, open).unwrap();
        (why, by_tool)
    }

    /// A broker that takes less than comes is the limit, however late flock was meanwhile.
    #[test]
    fn a_late_flock_is_no_excuse_for_a_capped_broker() {
        let late = RateStep {
            rate: 1_000.0,
            secs: 1.0,
            published_per_sec: 1_000.0,
            latency_us: 11_000,
            samples: 1_000,
            lateness_p99_us: 2_000,
            ..RateStep::default()
        };
        let open = Open { owed_per_sec: 1_000.0, ..Open::default() };
        let piled = RateStep { backlog_per_sec: 400.0, latency_us: 600_000, ..late.clone() };
        assert_eq!(said(&piled, &open), ("the backlog grew by 400/s".to_owned(), false));
        let slow = RateStep { latency_us: 600_000, ..late.clone() };
        assert_eq!(said(&slow, &open), ("p90 was 600 ms".to_owned(), false));
        let dropped = RateStep { latency_us: 900, missing: 7, ..late.clone() };
        assert_eq!(said(&dropped, &open), ("7 messages did not arrive".to_owned(), false));
        // Of 11 ms, 2 ms are flock's: the broker kept within 10 ms.
        assert_eq!(said(&late, &open), ("p90 was 11 ms; 2 ms of it by flock".to_owned(), true));
        let step = |by_tool| RateStep { rate: 1_000.0, by_tool, ..RateStep::default() };
        let is_limited = |all: &[bool]| {
            let steps: Vec<RateStep> = all.iter().copied().map(step).collect();
            is_limited_by_tool(&steps, Some(1_000.0))
        };
        assert!(is_limited(&[true, true, false]) && !is_limited(&[true, false]));
        assert!(!is_limited_by_tool(&[step(true)], Some(2_000.0)));
    }

    #[test]
    fn a_step_in_which_the_tool_was_late_does_not_hold() {
        let step = RateStep {
            rate: 1_000.0,
            secs: 1.0,
            published_per_sec: 1_000.0,
            received_per_sec: 990.0,
            latency_us: 500,
            samples: 1_000,
            held: true,
            ..RateStep::default()
        };
        let open = Open { owed_per_sec: 1_000.0, ..Open::default() };
        let late = RateStep { lateness_p99_us: 1_500, ..step.clone() };
        assert_eq!(said(&late, &open), ("flock was 1.50 ms late".to_owned(), true));
        // A tenth may take longer than the bound, and a hundredth of a second's are under way.
        let piled = |backlog_per_sec| RateStep { backlog_per_sec, ..step.clone() };
        assert_eq!(fault_of(&piled(109.0), &SEARCH, &open), None);
        assert_eq!(said(&piled(111.0), &open), ("the backlog grew by 111/s".to_owned(), false));
        let slower = RateStep { received_per_sec: 1_960.0, ..step.clone() };
        assert!((delivered(&[step, slower], 1_000.0, 2.0) - 495.0).abs() < 1e-9);
    }

    #[test]
    fn where_a_loop_is_closed_all_get_the_same() {
        let found = rates("AIO-FI-16B", 5_000);
        assert!((found[0] - 5_000.0).abs() < 0.01, "{found:?}");
    }
}
