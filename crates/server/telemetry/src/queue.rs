//! Spans between workers, which never wait, and the thread that sends them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use broker::Span;

/// Spans that wait to be sent. Further ones are dropped and counted. A span is at most 4 KiB, and
/// mostly some 200 bytes.
pub const QUEUE_SPANS_MAX: usize = 4_096;

/// Spans of one request.
pub(crate) const BATCH_SPANS_MAX: usize = 512;

/// How long a batch that is not full waits for more.
const BATCH_WAIT: Duration = Duration::from_secs(1);

/// What became of spans and requests, for metrics.
#[derive(Debug, Default)]
pub struct Counts {
    pub spans_sent: AtomicU64,
    /// At a limit of a shard or of the queue.
    pub spans_dropped: AtomicU64,
    /// The collector did not take them.
    pub spans_failed: AtomicU64,
    pub trace_requests: Requests,
    pub metric_requests: Requests,
}

/// Requests of one signal.
#[derive(Debug, Default)]
pub struct Requests {
    pub succeeded: AtomicU64,
    pub failed: AtomicU64,
}

/// The queue of spans.
#[derive(Debug, Default)]
pub struct SpanQueue {
    state: Mutex<State>,
    changed: Condvar,
    pub counts: Counts,
}

#[derive(Debug, Default)]
struct State {
    spans: VecDeque<Finished>,
    is_stopping: bool,
}

/// A span with its end.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) span: Span,
    pub(crate) end_ms: u64,
}

impl SpanQueue {
    /// Takes spans that end now; `lost`: the number of those that were left out before.
    pub fn put(&self, spans: Vec<Span>, lost: u64, end_ms: u64) {
        let mut state = self.lock();
        let before = state.spans.len();
        let free = if state.is_stopping { 0 } else { QUEUE_SPANS_MAX - before };
        let dropped = lost + spans.len().saturating_sub(free) as u64;
        state.spans.extend(spans.into_iter().take(free).map(|span| Finished { span, end_ms }));
        let has_begun = before == 0 && !state.spans.is_empty();
        let is_full = before < BATCH_SPANS_MAX && state.spans.len() >= BATCH_SPANS_MAX;
        drop(state);
        self.counts.spans_dropped.fetch_add(dropped, Ordering::Relaxed);
        if has_begun || is_full {
            self.changed.notify_all();
        }
    }

    /// The next spans to send. None: the end was asked for, and nothing is left.
    pub(crate) fn next_batch(&self) -> Option<Vec<Finished>> {
        let empty = |state: &mut State| state.spans.is_empty() && !state.is_stopping;
        let waited = self.changed.wait_while(self.lock(), empty);
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        let few = |state: &mut State| state.spans.len() < BATCH_SPANS_MAX && !state.is_stopping;
        let waited = self.changed.wait_timeout_while(state, BATCH_WAIT, few);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let count = state.spans.len().min(BATCH_SPANS_MAX);
        let batch: Vec<_> = state.spans.drain(..count).collect();
        (!batch.is_empty()).then_some(batch)
    }

    pub(crate) fn stop(&self) {
        self.lock().is_stopping = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.lock().is_stopping
    }

    /// Waits until then, or until the end is asked for. True: it is.
    pub(crate) fn wait_until(&self, until: Instant) -> bool {
        let mut state = self.lock();
        while !state.is_stopping {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(count: usize) -> Vec<Span> {
        vec![Span::default(); count]
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let queue = SpanQueue::default();
        queue.put(spans(QUEUE_SPANS_MAX - 1), 0, 1);
        queue.put(spans(3), 5, 1);
        assert_eq!(queue.counts.spans_dropped.load(Ordering::Relaxed), 2 + 5);
        let mut taken = 0;
        queue.stop();
        while let Some(batch) = queue.next_batch() {
            assert!(batch.len() <= BATCH_SPANS_MAX);
            taken += batch.len();
        }
        assert_eq!(taken, QUEUE_SPANS_MAX);
        queue.put(spans(1), 0, 1);
        assert_eq!(queue.counts.spans_dropped.load(Ordering::Relaxed), 2 + 5 + 1);
    }

    #[test]
    fn a_wait_ends_when_the_end_is_asked_for() {
        let queue = SpanQueue::default();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| queue.wait_until(Instant::now() + Duration::from_secs(600)));
            let takes = scope.spawn(|| queue.next_batch().is_none());
            queue.stop();
            assert!(waits.join().unwrap() && takes.join().unwrap());
        });
    }
}
