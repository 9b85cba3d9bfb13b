//! Leaves a service alone that does not answer, so that clients do not wait for a time-out each.
//!
//! One client must not be able to cause that for others. So there are two kinds of time-outs:
//!
//! - No connection: the question was not sent, so it cannot be the cause. After [`FAULTS_MAX`] in a
//!   row nobody asks, but for single probes.
//! - No answer: the question may be the cause, and so may be any number of questions of any number
//!   of addresses. After [`FAULTS_MAX`] in a row of [`ORIGINS_MIN`] origins the service is
//!   *suspect*. Then askers that have had a time-out themselves do not ask for [`PAUSE`], and no
//!   question waits longer for its turn than a time-out. All others are asked as ever.
//!
//! An answer, whatever it says, ends both, if it is to a question that was asked since.

use std::time::{Duration, Instant};

use super::doubts::{Asker, Doubts};
use driver::Origin;

/// Time-outs in a row after which the service is left alone.
const FAULTS_MAX: u32 = 8;

/// So many origins have to be among them.
const ORIGINS_MIN: usize = 3;

/// For how long.
const PAUSE: Duration = Duration::from_secs(5);

/// Between probes of a service that cannot be connected to. The same origin makes another one only
/// after [`PAUSE`].
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// A service that refuses connections at once costs nobody a time-out.
const QUICK: Duration = Duration::from_millis(500);

/// Why a service has given no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// There was no connection to it.
    Unconnected,
    /// It was asked, and did not answer in time.
    Unanswered,
}

#[derive(Debug, Default)]
pub(super) struct Breaker {
    unconnected: Row,
    unanswered: Row,
    answered_at: Option<Instant>,
    open: Option<Open>,
}

/// Time-outs of a kind without an answer between them.
#[derive(Debug, Default)]
struct Row {
    faults: u32,
    /// Of those faults, each once, [`ORIGINS_MIN`] at most.
    origins: Vec<Origin>,
}

#[derive(Debug)]
struct Open {
    probe_at: Instant,
    /// Those of the last [`PAUSE`]: as many as fit into it.
    probes: Vec<(Origin, Instant)>,
}

/// Which of the questions that wait are not asked any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivesUp {
    Nothing,
    /// Those that began to wait before then.
    Before(Instant),
    All,
}

impl Breaker {
    /// May a question of this asker wait for its turn?
    pub(super) fn lets_through(&mut self, asker: Asker, doubts: &Doubts, now: Instant) -> bool {
        let Some(open) = &mut self.open else {
            return !(self.unanswered.is_long() && doubts.has_hung_within(asker, PAUSE, now));
        };
        let (origin, _) = asker;
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

    pub(super) fn on_fault(
        &mut self,
        origin: Origin,
        fault: Fault,
        (asked_at, now): (Instant, Instant),
    ) -> GivesUp {
        // It has answered others meanwhile.
        if self.answered_at.is_some_and(|at| asked_at <= at) {
            return GivesUp::Nothing;
        }
        match fault {
            Fault::Unconnected if now.duration_since(asked_at) < QUICK => GivesUp::Nothing,
            Fault::Unconnected => {
                self.unconnected.push(origin);
                if self.open.is_some() || !self.unconnected.is_long() {
                    return GivesUp::Nothing;
                }
                self.open = Some(Open { probe_at: now + PAUSE, probes: Vec::new() });
                GivesUp::All
            }
            Fault::Unanswered => {
                (self.unconnected, self.open) = (Row::default(), None);
                self.unanswered.push(origin);
                match self.unanswered.is_long() {
                    true => GivesUp::Before(asked_at),
                    false => GivesUp::Nothing,
                }
            }
        }
    }
}

impl Row {
    fn push(&mut self, origin: Origin) {
        self.faults = self.faults.saturating_add(1);
        if self.origins.len() < ORIGINS_MIN && !self.origins.contains(&origin) {
            self.origins.push(origin);
        }
    }

    fn is_long(&self) -> bool {
        self.faults >= FAULTS_MAX && self.origins.len() >= ORIGINS_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    const fn origin(number: u8) -> Origin {
        Origin::V4([192, 0, 2, number])
    }

    fn asks(breaker: &mut Breaker, number: u8, now: Instant) -> bool {
        breaker.lets_through((origin(number), 0), &Doubts::default(), now)
    }

    /// Of a question that was asked a time-out ago.
    fn fault(breaker: &mut Breaker, kind: Fault, number: u8, now: Instant) -> GivesUp {
        breaker.on_fault(origin(number), kind, (now - TIMEOUT, now))
    }

    fn is_opened_by(breaker: &mut Breaker, number: u8, now: Instant) -> bool {
        fault(breaker, Fault::Unconnected, number, now) == GivesUp::All
    }

    fn opened(start: Instant) -> Breaker {
        let mut breaker = Breaker::default();
        let opens = (0..FAULTS_MAX).map(|it| is_opened_by(&mut breaker, it as u8, start));
        assert_eq!(opens.filter(|opens| *opens).count(), 1);
        breaker
    }

    #[test]
    fn questions_without_an_answer_close_it_to_those_who_asked_them_only() {
        let (mut breaker, mut doubts) = (Breaker::default(), Doubts::default());
        let now = Instant::now() + TIMEOUT;
        for number in 0..100 {
            doubts.note_hung((origin(number), 1), now);
            let gives_up = fault(&mut breaker, Fault::Unanswered, number, now);
            let is_suspect = u32::from(number) + 1 >= FAULTS_MAX;
            let expected =
                if is_suspect { GivesUp::Before(now - TIMEOUT) } else { GivesUp::Nothing };
            assert_eq!(gives_up, expected);
            assert_eq!(breaker.lets_through((origin(number), 1), &doubts, now), !is_suspect);
            assert!(breaker.lets_through((origin(number), 2), &doubts, now), "another client");
            assert!(breaker.lets_through((origin(200), 1), &doubts, now), "another address");
        }
        assert!(breaker.lets_through((origin(1), 1), &doubts, now + PAUSE), "it may try again");
        breaker.on_answer(now);
        assert!(breaker.lets_through((origin(1), 1), &doubts, now));
    }

    #[test]
    fn time_outs_of_one_origin_or_two_open_nothing() {
        let (mut breaker, start) = (Breaker::default(), Instant::now() + TIMEOUT);
        for number in 0..100 {
            assert!(!is_opened_by(&mut breaker, number % 2, start));
            assert!(asks(&mut breaker, 9, start));
        }
        assert!(is_opened_by(&mut breaker, 2, start), "the third");
        assert!(!asks(&mut breaker, 9, start));
    }

    #[test]
    fn connections_that_are_refused_at_once_open_nothing() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        for number in 0..100 {
            let times = (start, start + QUICK / 2);
            let gives_up = breaker.on_fault(origin(number), Fault::Unconnected, times);
            assert_eq!(gives_up, GivesUp::Nothing);
        }
        assert!(asks(&mut breaker, 1, start));
    }

    #[test]
    fn an_answer_between_faults_closes_it() {
        let (mut breaker, start) = (Breaker::default(), Instant::now() + TIMEOUT);
        for number in 0..100 {
            assert!(!is_opened_by(&mut breaker, number, start));
            if number % 7 == 6 {
                breaker.on_answer(start - 2 * TIMEOUT);
            }
        }
        let mut breaker = opened(start);
        assert!(!asks(&mut breaker, 1, start));
        breaker.on_answer(start);
        assert!(asks(&mut breaker, 1, start));
    }

    #[test]
    fn a_connection_without_an_answer_ends_the_wait_for_one() {
        let start = Instant::now() + TIMEOUT;
        let mut breaker = opened(start);
        assert_eq!(fault(&mut breaker, Fault::Unanswered, 1, start), GivesUp::Nothing);
        assert!(asks(&mut breaker, 2, start));
    }

    #[test]
    fn probes_are_single_and_of_different_origins() {
        let start = Instant::now() + TIMEOUT;
        let mut breaker = opened(start);
        let later = start + PAUSE;
        assert!(asks(&mut breaker, 1, later));
        assert!(!asks(&mut breaker, 2, later), "one at a time");
        let later = later + PROBE_EVERY;
        assert!(!asks(&mut breaker, 1, later), "another origin first");
        assert!(asks(&mut breaker, 2, later));
        assert!(!is_opened_by(&mut breaker, 2, later), "open already");
        assert!(asks(&mut breaker, 2, later + PAUSE), "there is no other");
    }

    #[test]
    fn questions_that_were_asked_before_an_answer_open_nothing() {
        let (mut breaker, start) = (Breaker::default(), Instant::now() + TIMEOUT);
        breaker.on_answer(start);
        for number in 0..100 {
            assert!(!is_opened_by(&mut breaker, number, start));
        }
        assert!(asks(&mut breaker, 1, start));
    }

    #[test]
    fn two_origins_do_not_use_up_the_probes_of_others() {
        let start = Instant::now() + TIMEOUT;
        let mut breaker = opened(start);
        let mut now = start + PAUSE;
        for number in [1, 2] {
            assert!(asks(&mut breaker, number, now));
            now += PROBE_EVERY;
        }
        assert!(!asks(&mut breaker, 1, now) && !asks(&mut breaker, 2, now));
        assert!(asks(&mut breaker, 3, now));
    }
}
