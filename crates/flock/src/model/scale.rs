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

use super::{Filters, Scenario, Slice};

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
            if stage.duration_us.is_some() {
                stage.duration_us = Some(duration_us);
            }
        }
        scenario
    }

    /// The work package of part `part` of `parts`.
    #[must_use]
    pub fn part(&self, part: u64, parts: u64) -> Self {
        let mut scenario = self.clone();
        for group in &mut scenario.groups {
            group.here = Slice::part(group.count, part, parts);
        }
        scenario
    }
}

fn scaled_count(count: u64, factor: f64) -> u64 {
    ((count as f64 * factor).round() as u64).max(1)
}
