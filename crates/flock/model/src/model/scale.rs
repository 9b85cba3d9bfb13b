//! Fitting a scenario to the machine at hand without changing its shape.
//!
//! The rules, all of them:
//!
//! 1. Client, topic and filter counts are multiplied by the factor and rounded, never below 1;
//!    groups marked `scales = false` keep theirs.
//! 2. Rates, windows, payloads and message counts are per client and stay, so totals scale with
//!    counts.
//! 3. Durations and linear spreads stay, so connection rates scale with counts too.
//! 4. Total rates of a rate search scale with the factor.
//!
//! Another length for a measured stage moves what happens in it: faults, and pauses and stalls that
//! a client makes once, keep their share of the stage. Pauses in a client's repetitions are pace,
//! and stay; so does the time that a broker is down or stands still, where the stage has room.

use super::{Command, Fault, Filters, Scenario, Slice, Spread, Stage, Step, Who};

impl Scenario {
    /// The same scenario with `factor` times the clients. `factor` is above 0.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let mut scenario = self.clone();
        scenario.scale = self.scale * factor;
        for group in scenario.groups.iter_mut().filter(|group| group.scales) {
            group.count = scaled_count(group.count, factor);
            group.here = Slice::whole(group.count);
        }
        for topics in scenario.topics.iter_mut().filter(|topics| topics.scales) {
            topics.count = scaled_count(topics.count, factor);
        }
        for subscription in &mut scenario.subscriptions {
            if let Filters::Pattern { count, scales: true, .. } = &mut subscription.filters {
                *count = scaled_count(*count, factor);
            }
        }
        if let Some(search) = &mut scenario.search {
            search.rate_min = scaled_count(search.rate_min, factor);
            search.rate_max = scaled_count(search.rate_max, factor);
        }
        scenario
    }

    /// Sets the length of the measured stages that have one.
    #[must_use]
    pub fn with_duration(&self, duration_us: u64) -> Self {
        let mut scenario = self.clone();
        for stage in scenario.stages.iter_mut().filter(|stage| stage.measured) {
            // One without ends when all is done; cut short, it would not be what it says.
            let Some(before_us) = stage.duration_us else { continue };
            stage.duration_us = Some(duration_us);
            if before_us > 0 {
                stage.move_happenings(before_us, duration_us);
            }
        }
        scenario
    }

    /// The work package of part `part` of `parts`. Sinks stay with whoever leads the run.
    #[must_use]
    pub fn part(&self, part: u64, parts: u64) -> Self {
        let mut scenario = Self { sinks: Vec::new(), ..self.clone() };
        for group in &mut scenario.groups {
            group.here = Slice::part(group.count, part, parts);
        }
        scenario
    }
}

impl Scenario {
    /// Warm-up and cool-down where the scenario does not say: a tenth of the shortest measured
    /// stage that can have them, and not for ever.
    #[must_use]
    pub fn with_margins(&self) -> Self {
        let mut scenario = self.clone();
        let steady = self.stages.iter().filter(|stage| stage.is_steady());
        let shortest_us = steady.filter_map(|stage| stage.duration_us).min().unwrap_or(0);
        // Of next to nothing, a part is nothing.
        let tenth_us = if shortest_us >= MARGIN_STAGE_US_MIN { shortest_us / 10 } else { 0 };
        scenario.warm_up_us.get_or_insert(tenth_us.min(WARM_UP_US_MAX));
        scenario.cool_down_us.get_or_insert(tenth_us.min(COOL_DOWN_US_MAX));
        scenario
    }

    /// What goes before the figures of a stage and after them.
    pub fn margins_of(&self, stage: &Stage) -> (u64, u64) {
        // A search takes its figures of a step of its own.
        match stage.is_steady() && self.search.is_none() {
            true => (self.warm_up_us.unwrap_or(0), self.cool_down_us.unwrap_or(0)),
            false => (0, 0),
        }
    }
}

impl Stage {
    /// Puts what happens once in the stage, which was `before_us` long, to the same share of
    /// `duration_us`.
    fn move_happenings(&mut self, before_us: u64, duration_us: u64) {
        let factor = duration_us as f64 / before_us as f64;
        for cycle in &mut self.life_cycles {
            let is_conductor = cycle.who == Who::Conductor;
            let outages =
                if is_conductor { outages(&cycle.steps, factor, duration_us) } else { Vec::new() };
            stretch(&mut cycle.steps, is_conductor, factor);
            for (at, duration_us) in outages {
                if let Command::Delay(delay) = &mut cycle.steps[at].command {
                    delay.duration_us = duration_us;
                }
            }
        }
    }
}

/// The pauses, by their place in the script, in which a broker is down or stands still, and their
/// lengths: they are what the fault is, and stay as long as their end is within the stage.
fn outages(steps: &[Step], factor: f64, end_us: u64) -> Vec<(usize, u64)> {
    let (mut found, mut at_us, mut is_down) = (Vec::new(), 0_u64, false);
    for (at, step) in steps.iter().enumerate() {
        match &step.command {
            Command::Fault(
                Fault::Kill { .. }
                | Fault::Stop { .. }
                | Fault::Pause { .. }
                | Fault::CutLinks { .. },
            ) => is_down = true,
            Command::Fault(Fault::Restart { .. } | Fault::Resume { .. } | Fault::Mend { .. }) => {
                is_down = false;
            }
            Command::Delay(delay) if is_down && at_us + delay.duration_us < end_us => {
                found.push((at, delay.duration_us));
                at_us += delay.duration_us;
            }
            Command::Delay(delay) => at_us += (delay.duration_us as f64 * factor).round() as u64,
            _ => {}
        }
    }
    found
}

fn stretch(steps: &mut [Step], with_repetitions: bool, factor: f64) {
    let stretched = |us: u64| (us as f64 * factor).round() as u64;
    for step in steps {
        match &mut step.command {
            Command::Delay(delay) if delay.spread == Spread::None => {
                delay.duration_us = stretched(delay.duration_us);
            }
            Command::Stall { duration_us } => *duration_us = stretched(*duration_us),
            Command::For(repeat) if with_repetitions => {
                if let Some(rate) = &mut repeat.rate {
                    rate.per_us = stretched(rate.per_us).max(1);
                }
                stretch(&mut repeat.steps, true, factor);
            }
            _ => {}
        }
    }
}

fn scaled_count(count: u64, factor: f64) -> u64 {
    ((count as f64 * factor).round() as u64).max(1)
}

/// Warm-up and cool-down that nobody asked for are no longer.
const WARM_UP_US_MAX: u64 = 10_000_000;
const COOL_DOWN_US_MAX: u64 = 2_000_000;
/// A stage that is shorter has neither.
const MARGIN_STAGE_US_MIN: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::find;
    use crate::scenario::Choice;
    use crate::scenario::check::check;

    fn shortened(id: &str, secs: u64) -> Scenario {
        find(id, &Choice::default()).unwrap().scenario.with_duration(secs * 1_000_000)
    }

    fn delays(scenario: &Scenario) -> Vec<u64> {
        let mut found = Vec::new();
        scenario.each_command(&mut |stage, _, command| match command {
            Command::Delay(delay) if stage.measured => found.push(delay.duration_us),
            Command::Stall { duration_us } => found.push(*duration_us),
            _ => {}
        });
        found
    }

    #[test]
    fn a_shorter_run_has_its_faults_at_the_same_share() {
        // The kill at a third of 60 s, the restart two seconds later.
        assert_eq!(delays(&shortened("X-1", 60)), [20_000_000, 2_000_000]);
        assert_eq!(delays(&shortened("X-1", 15)), [5_000_000, 2_000_000]);
        assert_eq!(delays(&shortened("X-1", 12)), [4_000_000, 2_000_000]);
        assert_eq!(delays(&shortened("X-1", 600)), [200_000_000, 2_000_000]);
        // Two seconds do not fit behind the kill.
        assert_eq!(delays(&shortened("X-1", 3)), [1_000_000, 100_000]);
        assert_eq!(delays(&shortened("X-2", 30)), [5_000_000]);
        assert_eq!(delays(&shortened("X-6", 120)), [10_000_000, 80_000_000]);
        for secs in [1, 5, 20] {
            for id in ["X-1", "X-2", "X-6", "X-9", "X-10"] {
                assert_eq!(check(&shortened(id, secs)), [], "{id} in {secs} s");
            }
        }
    }

    #[test]
    fn a_stage_that_ends_when_all_is_done_is_not_cut_short() {
        let lengths = |scenario: &Scenario| {
            let measured = scenario.stages.iter().filter(|stage| stage.measured);
            measured.map(|stage| stage.duration_us).collect::<Vec<_>>()
        };
        assert_eq!(lengths(&shortened("D-3", 5)), [None, None]);
        assert_eq!(lengths(&shortened("D-2", 5)), [Some(5_000_000)]);
    }
}
