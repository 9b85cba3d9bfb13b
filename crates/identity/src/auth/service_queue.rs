//! What waits to be asked of a service, and whether it is asked at all.
//!
//! So many requests are under way at most, of which one address has a part; others wait in a queue
//! for each origin. A service that several addresses could not reach is left alone for a while: a
//! service that is down costs its clients no time-out each.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::breaker::Breaker;
use super::fair_queue::{Asks, FairQueue, Next, Owner};
use super::lock;
use driver::Origin;

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

/// What is to be done for the questions that wait.
pub(super) enum Ready<T> {
    /// To be asked; [`ServiceQueue::end`] has to follow.
    Ask(T),
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
        let mut state = lock(&self.state);
        let origin = question.attempt().origin;
        if state.is_closed || !state.breaker.lets_through(origin, Instant::now()) {
            return Err(question);
        }
        Ok(state.questions.put(ticket, question))
    }

    pub(super) fn next(&self) -> Ready<T> {
        let mut state = lock(&self.state);
        if state.is_closed {
            return Ready::Nothing;
        }
        match state.questions.take(Instant::now()) {
            Next::Item(question) => Ready::Ask(question),
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
    pub(super) fn end_unasked(&self, origin: Origin) {
        lock(&self.state).questions.end(origin);
    }

    /// The service has answered, or could not be reached. Returns those that are not asked any
    /// more.
    pub(super) fn end(&self, origin: Origin, asked_at: Instant, is_reached: bool) -> Vec<T> {
        let now = Instant::now();
        let mut state = lock(&self.state);
        state.questions.end(origin);
        if is_reached {
            // Whatever it says to this one, it is there for others.
            state.breaker.on_answer(now);
            state.faults = 0;
            return Vec::new();
        }
        state.faults = state.faults.saturating_add(1);
        match state.breaker.on_fault(origin, asked_at, now) {
            true => state.questions.take_all().collect(),
            false => Vec::new(),
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
