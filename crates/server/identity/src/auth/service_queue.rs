//! What waits to be asked of a service, and whether it is asked at all.
//!
//! So many requests are under way at most, of which one address has a part; others wait in a queue
//! for each origin. A service that does not answer is left alone by those who have had a time-out
//! ([`Breaker`]): it does not cost them a time-out each time.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::breaker::{Breaker, Fault, GivesUp};
use super::doubts::{Asker, Standing};
use super::fair_queue::{Asks, FairQueue, Next, Owner};
use super::lock;

/// How often a fault is logged.
const TOLD_EVERY: Duration = Duration::from_secs(10);

pub(super) struct ServiceQueue<T> {
    /// Of the service, in logs.
    name: String,
    state: Mutex<State<T>>,
}

struct State<T> {
    questions: FairQueue<T>,
    /// A task sleeps until then, and looks whether a question may be asked.
    looks_at: Option<Instant>,
    breaker: Breaker,
    /// Requests that have failed since the last answer, and why the latest did.
    faults: u32,
    fault: String,
    logged_at: Option<Instant>,
    is_closed: bool,
}

/// A question that is asked.
pub(super) struct UnderWay {
    asker: Asker,
    standing: Standing,
    asked_at: Instant,
}

/// What is to be done for the questions that wait.
pub(super) enum Ready<T> {
    /// To be asked; [`ServiceQueue::end`] has to follow.
    Ask(T, UnderWay),
    /// Nothing before then: look again ([`ServiceQueue::note_look`]).
    LookAt(Instant),
    Nothing,
}

impl<T: Asks> ServiceQueue<T> {
    pub(super) fn new(name: &str, questions: FairQueue<T>) -> Self {
        let state = State {
            questions,
            looks_at: None,
            breaker: Breaker::default(),
            faults: 0,
            fault: String::new(),
            logged_at: None,
            is_closed: false,
        };
        Self { name: name.to_owned(), state: Mutex::new(state) }
    }

    /// Ok: it waits, and another one has lost its place to it. Err: nobody is asked.
    pub(super) fn put(&self, ticket: u64, question: T) -> Result<Option<T>, T> {
        let (mut state, now) = (lock(&self.state), Instant::now());
        let State { questions, breaker, .. } = &mut *state;
        let may_wait = breaker.lets_through(question.asker(), &questions.doubts, now);
        if state.is_closed || !may_wait {
            return Err(question);
        }
        Ok(state.questions.put(ticket, question, now))
    }

    pub(super) fn next(&self) -> Ready<T> {
        let mut state = lock(&self.state);
        if state.is_closed {
            return Ready::Nothing;
        }
        let now = Instant::now();
        match state.questions.take(now) {
            Next::Item(question, standing) => {
                let under_way = UnderWay { asker: question.asker(), standing, asked_at: now };
                Ready::Ask(question, under_way)
            }
            Next::Later(Some(due)) if state.looks_at.is_none_or(|at| due < at) => {
                state.looks_at = Some(due);
                Ready::LookAt(due)
            }
            Next::Later(_) => Ready::Nothing,
        }
    }

    pub(super) fn note_look(&self) {
        lock(&self.state).looks_at = None;
    }

    /// One that was to be asked has its answer without the service.
    pub(super) fn end_unasked(&self, under_way: &UnderWay) {
        lock(&self.state).questions.end(under_way.asker.0, under_way.standing);
    }

    /// The service has answered, or not. Returns those that are not asked any more.
    pub(super) fn end(&self, under_way: &UnderWay, fault: Option<Fault>) -> Vec<T> {
        let UnderWay { asker, standing, asked_at } = *under_way;
        let (origin, _) = asker;
        let now = Instant::now();
        let mut state = lock(&self.state);
        let State { questions, breaker, faults, .. } = &mut *state;
        questions.end(origin, standing);
        let Some(fault) = fault else {
            // Whatever it says to this one, it is there for others.
            breaker.on_answer(now);
            questions.doubts.note_answered(origin);
            *faults = 0;
            return Vec::new();
        };
        *faults = faults.saturating_add(1);
        if fault == Fault::Unanswered {
            questions.doubts.note_hung(asker, now);
        }
        match breaker.on_fault(origin, fault, (asked_at, now)) {
            GivesUp::All => questions.take_all().collect(),
            GivesUp::Before(then) => questions.take_before(then),
            GivesUp::Nothing => Vec::new(),
        }
    }

    /// Its client is gone. To be dropped by the caller: that ends its attempt.
    pub(super) fn forget(&self, owner: Owner, ticket: u64) -> Option<T> {
        lock(&self.state).questions.forget(owner, ticket)
    }

    /// Nothing is asked any more. Returns what waits.
    pub(super) fn close(&self) -> Vec<T> {
        let mut state = lock(&self.state);
        state.is_closed = true;
        state.questions.take_all().collect()
    }

    /// Requests that have failed since the last answer, and why the latest did.
    pub(super) fn faults(&self) -> (u32, String) {
        let state = lock(&self.state);
        (state.faults, state.fault.clone())
    }

    pub(super) fn log_fault(&self, why: &str) {
        let now = Instant::now();
        let mut state = lock(&self.state);
        state.fault = base::shown(why).into_owned();
        if state.logged_at.is_none_or(|at| now.duration_since(at) >= TOLD_EVERY) {
            state.logged_at = Some(now);
            let why = base::shown(why);
            tracing::warn!(service = self.name, detail = &*why, "request to a service failed");
        }
    }
}
