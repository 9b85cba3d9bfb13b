//! Traces of packets that operators read: few, each with a queue of its own. What finds it full is
//! left out, and counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use broker::{TRACES_MAX, TraceFilter, Traced};
use tokio::sync::mpsc;

use super::Caller;

/// Packets that a trace may be behind; of more it gets the number only.
pub(crate) const PACKETS_MAX: usize = 1_000;

/// Traces of one caller, so that another one finds some left.
const TRACES_PER_CALLER_MAX: usize = TRACES_MAX / 2;

#[derive(Debug, Default)]
pub(crate) struct Traces {
    all: Mutex<Vec<Trace>>,
}

#[derive(Debug)]
struct Trace {
    caller: Caller,
    filter: TraceFilter,
    queue: mpsc::Sender<Arc<Traced>>,
    lost: Arc<AtomicU64>,
}

/// The reader's end of it.
#[derive(Debug)]
pub(crate) struct TraceReading {
    pub(crate) number: u8,
    /// It ends when the caller may not read any more.
    pub(crate) queue: mpsc::Receiver<Arc<Traced>>,
    /// Packets that were left out.
    pub(crate) lost: Arc<AtomicU64>,
}

impl Traces {
    /// `announce` gets what is traced from now on. None: the limit is reached.
    pub(crate) fn add(
        &self,
        caller: Caller,
        filter: TraceFilter,
        announce: impl FnOnce(Arc<[TraceFilter]>),
    ) -> Option<TraceReading> {
        let mut all = self.lock();
        let own = all.iter().filter(|trace| trace.caller.name == caller.name).count();
        let is_free = |number: &u8| all.iter().all(|trace| trace.filter.number != *number);
        let number = (0..TRACES_MAX as u8).find(is_free);
        let number = number.filter(|_| own < TRACES_PER_CALLER_MAX)?;
        let (sender, queue) = mpsc::channel(PACKETS_MAX);
        let lost = Arc::<AtomicU64>::default();
        all.push(Trace {
            caller,
            filter: TraceFilter { number, ..filter },
            queue: sender,
            lost: lost.clone(),
        });
        announce(filters_of(&all));
        Some(TraceReading { number, queue, lost })
    }

    pub(crate) fn remove(&self, number: u8, announce: impl FnOnce(Arc<[TraceFilter]>)) {
        let mut all = self.lock();
        all.retain(|trace| trace.filter.number != number);
        announce(filters_of(&all));
    }

    pub(crate) fn put(&self, traced: Vec<Traced>) {
        let all = self.lock();
        for packet in traced {
            let packet = Arc::new(packet);
            for trace in all.iter().filter(|it| packet.traces & (1 << it.filter.number) != 0) {
                // What a shard has left out may have been of any of them.
                let mut lost = packet.lost_before;
                lost += u64::from(trace.queue.try_send(packet.clone()).is_err());
                trace.lost.fetch_add(lost, Ordering::Relaxed);
            }
        }
    }

    /// Ends the traces of callers that may not read any more. Their streams remove them.
    pub(crate) fn end_refused(&self) {
        for trace in self.lock().iter_mut().filter(|trace| !(trace.caller.may_read)()) {
            // A queue that nobody fills ends the stream.
            trace.queue = mpsc::channel(1).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Trace>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn filters_of(all: &[Trace]) -> Arc<[TraceFilter]> {
    all.iter().map(|trace| trace.filter.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(traces: &Traces, caller: &str) -> Option<TraceReading> {
        traces.add(Caller::always(caller), TraceFilter::default(), |_| ())
    }

    fn packet(traces: u8) -> Vec<Traced> {
        vec![Traced { traces, ..Traced::default() }]
    }

    #[test]
    fn who_does_not_read_loses_packets_that_are_counted() {
        let traces = Traces::default();
        let mut one = add(&traces, "a").unwrap();
        let mut two = add(&traces, "a").unwrap();
        assert_ne!(one.number, two.number);
        for _ in 0..PACKETS_MAX + 7 {
            traces.put(packet(1 << one.number));
        }
        assert_eq!(one.lost.load(Ordering::Relaxed), 7);
        assert!(one.queue.try_recv().is_ok() && two.queue.try_recv().is_err());
        traces.put(vec![Traced { lost_before: 3, ..packet(1 << two.number).remove(0) }]);
        assert_eq!(two.lost.load(Ordering::Relaxed), 3);
        assert!(two.queue.try_recv().is_ok());
    }

    #[test]
    fn traces_are_few_and_one_caller_has_not_all_of_them() {
        let traces = Traces::default();
        let own: Vec<_> = std::iter::from_fn(|| add(&traces, "a")).collect();
        assert_eq!(own.len(), TRACES_PER_CALLER_MAX);
        let others: Vec<_> = std::iter::from_fn(|| add(&traces, "b")).collect();
        assert_eq!(own.len() + others.len(), TRACES_MAX);
        assert!(add(&traces, "c").is_none());
        let mut announced = 0;
        traces.remove(own[0].number, |filters| announced = filters.len());
        assert_eq!(announced, TRACES_MAX - 1);
        assert_eq!(add(&traces, "c").unwrap().number, own[0].number);
    }

    #[test]
    fn the_trace_of_a_removed_user_ends() {
        let traces = Traces::default();
        let removed = Caller { name: "a".into(), may_read: Box::new(|| false) };
        let mut one = traces.add(removed, TraceFilter::default(), |_| ()).unwrap();
        let mut two = add(&traces, "b").unwrap();
        traces.end_refused();
        assert_eq!(one.queue.try_recv().unwrap_err(), mpsc::error::TryRecvError::Disconnected);
        assert_eq!(two.queue.try_recv().unwrap_err(), mpsc::error::TryRecvError::Empty);
    }
}
