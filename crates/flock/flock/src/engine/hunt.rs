//! Which rate, or size, a search tries next, and what its steps together say.
//!
//! Upwards the rate doubles until one does not hold; then the gap between the highest that held and
//! the lowest that did not is halved until it is narrow; then both ends are confirmed by steps of
//! their own. A single step decides nothing against a broker: a rate fails by two steps of three,
//! since whatever disturbs a machine for a moment looks like a broker at its end; where the tool
//! was seen to be disturbed as well, the step is done again before it counts. What failed by bad
//! luck, or held by good, is found out at the end, and the search goes on above or below it.

/// What a step is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aim {
    Find,
    /// Does the rate that did not hold fail again?
    Refute,
    /// Does the rate that held do so again?
    Confirm,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Try {
    pub(crate) rate: u64,
    pub(crate) aim: Aim,
}

/// What is known after the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Held, and was confirmed; `None` where not even the lowest rate did.
    pub(crate) held: Option<u64>,
    /// The lowest that did not hold; `None` where the highest allowed one did.
    pub(crate) failed: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Hunt {
    rate_max: u64,
    precision: f64,
    /// Rates that held for the moment, rising.
    held: Vec<u64>,
    failed: Option<u64>,
    /// Failed, and did so again.
    refuted: Option<u64>,
    next: Option<Try>,
    votes: Votes,
    confirmed: Option<u64>,
}

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Held,
    Failed,
    /// It did not hold, and the machine had its part in it.
    Disturbed,
}

/// On the rate that is tried.
#[derive(Clone, Copy, Debug, Default)]
struct Votes {
    held: u32,
    failed: u32,
    disturbed: u32,
}

impl Hunt {
    /// Begins at `rate_min`, and never goes below.
    pub(crate) fn new(rate_min: u64, rate_max: u64, precision: f64) -> Self {
        let rate = rate_min.clamp(1, rate_max.max(1));
        Self {
            rate_max: rate_max.max(1),
            precision,
            held: Vec::new(),
            failed: None,
            refuted: None,
            next: Some(Try { rate, aim: Aim::Find }),
            votes: Votes::default(),
            confirmed: None,
        }
    }

    /// `None` when all is known.
    pub(crate) fn next(&self) -> Option<Try> {
        self.next
    }

    pub(crate) fn found(&self) -> Found {
        Found { held: self.confirmed, failed: self.failed }
    }

    /// How the step that [`Self::next`] named went.
    pub(crate) fn tell(&mut self, outcome: Outcome) {
        let Some(Try { rate, aim }) = self.next else { return };
        match outcome {
            Outcome::Held => self.votes.held += 1,
            Outcome::Disturbed if self.votes.disturbed < AGAIN_MAX => {
                self.votes.disturbed += 1;
                return;
            }
            Outcome::Failed | Outcome::Disturbed => self.votes.failed += 1,
        }
        // Where it goes on upwards, the confirmation is still to come: one step is enough, unless
        // there is one that failed to outvote.
        let enough = match aim {
            Aim::Find if self.votes.failed == 0 => 1,
            Aim::Find | Aim::Refute | Aim::Confirm => MAJORITY,
        };
        let has_held = self.votes.held >= enough;
        if !has_held && self.votes.failed < MAJORITY {
            return;
        }
        self.votes = Votes::default();
        match (has_held, aim) {
            (true, Aim::Find) => self.held.push(rate),
            (true, Aim::Refute) => {
                self.held.push(rate);
                self.failed = None;
            }
            (true, Aim::Confirm) => {
                self.confirmed = Some(rate);
                self.next = None;
                return;
            }
            (false, Aim::Refute) => self.refuted = Some(rate),
            (false, Aim::Find | Aim::Confirm) => {
                self.failed = Some(rate);
                self.held.retain(|held| *held < rate);
            }
        }
        self.next = self.after();
    }

    fn after(&self) -> Option<Try> {
        let step = |rate, aim| Some(Try { rate, aim });
        match (self.held.last().copied(), self.failed) {
            (Some(low), None) if low >= self.rate_max => step(low, Aim::Confirm),
            (Some(low), None) => step(low.saturating_mul(2).min(self.rate_max), Aim::Find),
            (Some(low), Some(high)) if !self.is_narrow(low, high) => {
                step(low + (high - low) / 2, Aim::Find)
            }
            (_, Some(high)) if self.refuted != Some(high) => step(high, Aim::Refute),
            (Some(low), Some(_)) => step(low, Aim::Confirm),
            // Where even the lowest rate does not hold, there is nothing below it to look for.
            (None, _) => None,
        }
    }

    fn is_narrow(&self, low: u64, high: u64) -> bool {
        (high - low) as f64 <= high as f64 * self.precision || high - low < 2
    }
}

/// Whether the tool, or its machine, was the limit: it failed more of the steps (`true`) than the
/// broker did.
pub(crate) fn is_tool_the_limit(failed_by_tool: impl Iterator<Item = bool>) -> bool {
    let (by_tool, by_broker): (Vec<_>, Vec<_>) = failed_by_tool.partition(|by_tool| *by_tool);
    by_tool.len() > by_broker.len()
}

/// Of three steps.
const MAJORITY: u32 = 2;
/// Disturbed steps of one rate that are done again; a rate at which the tool itself is at its end
/// never gets another kind.
const AGAIN_MAX: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries until all is known; `holds` is told the rate and how many steps were before.
    fn hunt(
        (rate_min, rate_max): (u64, u64),
        mut holds: impl FnMut(u64, usize) -> bool,
    ) -> (Found, Vec<u64>) {
        let outcome = |held| if held { Outcome::Held } else { Outcome::Failed };
        hunt_with((rate_min, rate_max), |rate, n| outcome(holds(rate, n)))
    }

    fn hunt_with(
        (rate_min, rate_max): (u64, u64),
        mut step: impl FnMut(u64, usize) -> Outcome,
    ) -> (Found, Vec<u64>) {
        let mut hunt = Hunt::new(rate_min, rate_max, 0.05);
        let mut tried = Vec::new();
        while let Some(Try { rate, .. }) = hunt.next() {
            let outcome = step(rate, tried.len());
            tried.push(rate);
            assert!(tried.len() < 1_000, "{tried:?}");
            hunt.tell(outcome);
        }
        (hunt.found(), tried)
    }

    /// A number that looks like a random one (splitmix64), below 100.
    fn percent(seed: u64, n: usize) -> u64 {
        let z = (seed << 32 | n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (z ^ (z >> 31)) % 100
    }

    #[test]
    fn the_same_broker_gives_the_same_rate_though_the_machine_stumbles() {
        let mut all = Vec::new();
        for seed in 0..300 {
            // One step in ten fails for no fault of the broker.
            let (found, _) =
                hunt((100, 1_000_000), |rate, n| rate <= 48_000 && percent(seed, n) >= 10);
            all.extend(found.held);
        }
        assert_eq!(all.len(), 300);
        let near = all.iter().filter(|rate| (43_000..=48_000).contains(*rate)).count();
        assert!(near >= 297, "{near} of 300: {all:?}");
    }

    #[test]
    fn a_quiet_machine_gives_a_narrow_interval() {
        let (found, tried) = hunt((100, 1_000_000), |rate, _| rate <= 48_000);
        let (low, high) = (found.held.unwrap(), found.failed.unwrap());
        assert!(low <= 48_000 && 48_000 < high && (high - low) as f64 <= high as f64 * 0.05);
        // Both ends are confirmed.
        assert!(tried.ends_with(&[high, high, low, low]), "{tried:?}");
    }

    #[test]
    fn a_step_that_the_machine_disturbed_is_done_again() {
        // The first two of each rate are disturbed, and would be too many.
        let mut seen = (0, 0);
        let (found, _) = hunt_with((100, 800), |rate, _| {
            seen = if seen.0 == rate { (rate, seen.1 + 1) } else { (rate, 1) };
            match (seen.1 <= 2, rate <= 500) {
                (true, _) => Outcome::Disturbed,
                (false, true) => Outcome::Held,
                (false, false) => Outcome::Failed,
            }
        });
        assert!(found.held >= Some(450) && found.failed <= Some(530), "{found:?}");
        // Where the tool is at its end, that is the end.
        let (found, tried) = hunt_with((100, 800), |rate, _| match rate <= 200 {
            true => Outcome::Held,
            false => Outcome::Disturbed,
        });
        assert_eq!(found.held, Some(200));
        assert!(tried.len() < 60, "{tried:?}");
    }

    #[test]
    fn nothing_is_tried_below_the_minimum() {
        let (found, tried) = hunt((1_000, 50_000), |_, _| false);
        assert_eq!(found, Found { held: None, failed: Some(1_000) });
        assert_eq!(tried, [1_000; 4]);
        let (_, tried) = hunt((1_000, 50_000), |rate, n| n < 3 && rate < 4_000);
        assert!(tried.iter().all(|rate| *rate >= 1_000), "{tried:?}");
    }

    #[test]
    fn what_holds_at_the_highest_rate_has_no_upper_end() {
        let (found, tried) = hunt((100, 300), |_, _| true);
        assert_eq!(found, Found { held: Some(300), failed: None });
        assert_eq!(tried, [100, 200, 300, 300, 300]);
    }

    #[test]
    fn good_and_bad_luck_are_found_out_at_the_end() {
        // 800 held once and never again; 400 failed twice, and never again.
        let (good, bad) = (|n| n == 3, |n| n == 2 || n == 3);
        for (what, n) in [("good", 5), ("bad", 6)] {
            let (found, tried) = hunt((100, 800), |rate, n| match what {
                "good" => rate <= 500 || good(n),
                _ => rate <= 500 && !bad(n),
            });
            let low = found.held.unwrap();
            assert!((450..=500).contains(&low) && found.failed <= Some(530), "{found:?}");
            assert!(tried.len() > n, "{tried:?}");
        }
    }
}
