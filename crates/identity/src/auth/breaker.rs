//! Leaves a service alone that cannot be reached, so that clients do not wait for a time-out each.
//!
//! One client must not be able to cause that for others. So an answer, whatever it says, closes the
//! breaker; only failed connects and time-outs of several origins in a row open it, of questions
//! that were asked since the last answer; and while it is open, single questions of different
//! origins are let through to find out.

use std::time::{Duration, Instant};

use driver::Origin;

/// Faults in a row after which the service is left alone.
const FAULTS_MAX: u32 = 8;

/// So many origins have to be among them.
const ORIGINS_MIN: usize = 3;

/// For how long the service is left alone, before the first probe.
const PAUSE: Duration = Duration::from_secs(5);

/// Between probes. The same origin makes another one only after [`PAUSE`].
const PROBE_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Breaker {
    faults: u32,
    /// Of those faults, each once, [`ORIGINS_MIN`] at most.
    origins: Vec<Origin>,
    answered_at: Option<Instant>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    probe_at: Instant,
    /// Those of the last [`PAUSE`]: as many as fit into it.
    probes: Vec<(Origin, Instant)>,
}

impl Breaker {
    /// May a question of this origin be asked? While the breaker is open, that is a probe.
    pub(super) fn lets_through(&mut self, origin: Origin, now: Instant) -> bool {
        let Some(open) = &mut self.open else { return true };
        open.probes.retain(|(_, at)| now.duration_since(*at) < PAUSE);
        if now < open.probe_at || open.probes.iter().any(|(prober, _)| *prober == origin) {
            return false;
        }
        open.probe_at = now + PROBE_EVERY;
        open.probes.push((origin, now));
        true
    }

    /// Whatever it was.
    pub(super) fn on_answer(&mut self, now: Instant) {
        *self = Self { answered_at: Some(now), ..Self::default() };
    }

    /// The service could not be reached. True: it is left alone from now on.
    pub(super) fn on_fault(&mut self, origin: Origin, asked_at: Instant, now: Instant) -> bool {
        // It has answered others meanwhile.
        if self.answered_at.is_some_and(|at| asked_at <= at) {
            return false;
        }
        self.faults = self.faults.saturating_add(1);
        if self.origins.len() < ORIGINS_MIN && !self.origins.contains(&origin) {
            self.origins.push(origin);
        }
        let opens =
            self.open.is_none() && self.faults >= FAULTS_MAX && self.origins.len() >= ORIGINS_MIN;
        if opens {
            self.open = Some(Open { probe_at: now + PAUSE, probes: Vec::new() });
        }
        opens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn origin(number: u8) -> Origin {
        Origin::V4([192, 0, 2, number])
    }

    /// Of a question that was asked just now.
    fn fault(breaker: &mut Breaker, number: u8, now: Instant) -> bool {
        breaker.on_fault(origin(number), now + Duration::from_nanos(1), now)
    }

    fn opened(start: Instant) -> Breaker {
        let mut breaker = Breaker::default();
        let opens = (0..FAULTS_MAX).map(|number| fault(&mut breaker, number as u8, start));
        assert_eq!(opens.filter(|opens| *opens).count(), 1);
        breaker
    }

    #[test]
    fn faults_of_one_origin_or_two_open_nothing() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        for number in 0..100 {
            assert!(!fault(&mut breaker, number % 2, start));
            assert!(breaker.lets_through(origin(9), start));
        }
        assert!(fault(&mut breaker, 2, start), "the third");
        assert!(!breaker.lets_through(origin(9), start));
    }

    #[test]
    fn an_answer_between_faults_closes_it() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        for number in 0..100 {
            assert!(!fault(&mut breaker, number, start));
            if number % 7 == 6 {
                breaker.on_answer(start);
            }
        }
        let mut breaker = opened(start);
        assert!(!breaker.lets_through(origin(1), start));
        breaker.on_answer(start);
        assert!(breaker.lets_through(origin(1), start));
    }

    #[test]
    fn probes_are_single_and_of_different_origins() {
        let start = Instant::now();
        let mut breaker = opened(start);
        let later = start + PAUSE;
        assert!(breaker.lets_through(origin(1), later));
        assert!(!breaker.lets_through(origin(2), later), "one at a time");
        let later = later + PROBE_EVERY;
        assert!(!breaker.lets_through(origin(1), later), "another origin first");
        assert!(breaker.lets_through(origin(2), later));
        assert!(!fault(&mut breaker, 2, later), "open already");
        assert!(breaker.lets_through(origin(2), later + PAUSE), "there is no other");
    }

    #[test]
    fn questions_that_were_asked_before_an_answer_open_nothing() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        let answered = start + PAUSE;
        breaker.on_answer(answered);
        for number in 0..100 {
            assert!(!breaker.on_fault(origin(number), start, answered + PROBE_EVERY));
        }
        assert!(breaker.lets_through(origin(1), answered + PROBE_EVERY));
    }

    #[test]
    fn two_origins_do_not_use_up_the_probes_of_others() {
        let start = Instant::now();
        let mut breaker = opened(start);
        let mut now = start + PAUSE;
        for number in [1, 2] {
            assert!(breaker.lets_through(origin(number), now));
            now += PROBE_EVERY;
        }
        assert!(!breaker.lets_through(origin(1), now) && !breaker.lets_through(origin(2), now));
        assert!(breaker.lets_through(origin(3), now));
    }
}
