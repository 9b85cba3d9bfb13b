//! What all clients of one load thread share: clock, timers, counters, buffers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::sync::Arc;

use client::Route;
use hashbrown::HashMap;

use super::clock::Clock;
use super::plan::{Plan, Random};
use super::pool::StagePace;
use super::stamp::Stamps;
use super::tally::Tally;
use flock_measure::ledger::{Ledger, Sent, StreamId, Unpromised, Wills};
use flock_model::{FOR_EVER_US, TopicsId};

/// See the module's text. Passed to every call on a client.
pub(super) struct Context {
    pub(super) plan: Arc<Plan>,
    pub(super) clock: Clock,
    pub(super) stamps: Stamps,
    /// By broker, then by address.
    pub(super) routes: Arc<Vec<Vec<Route>>>,
    /// Servers that brokers referred to, by broker and by name.
    pub(super) elsewhere: HashMap<(usize, String), Route>,
    pub(super) sources: Arc<Vec<IpAddr>>,
    pub(super) registry: mio::Registry,
    pub(super) timers: Timers,
    pub(super) tally: Tally,
    pub(super) ledger: Ledger,
    /// By family, then by slot of the client x stride + topic.
    pub(super) sent: Vec<Vec<Sent>>,
    /// Times that are remembered of each stream.
    pub(super) marks_max: usize,
    pub(super) unpromised: Vec<(StreamId, Unpromised)>,
    /// Messages that their publisher sent again.
    pub(super) resent: Vec<(StreamId, u32)>,
    /// Messages of which the broker said that nobody had subscribed to them (0x10).
    pub(super) unheard: Vec<(StreamId, u32)>,
    /// By the number of their client.
    pub(super) wills: HashMap<u32, Wills>,
    pub(super) random: Random,
    pub(super) stage: usize,
    pub(super) stage_at_ns: u64,
    /// When the stage is to end, if the plan says so.
    pub(super) stage_end_ns: Option<u64>,
    pub(super) pace: StagePace,
    /// Clients with steps left in this stage.
    pub(super) active: usize,
    /// Clients that could go on at once, had they not had their turn.
    pub(super) again: Vec<u32>,
    buffers: Vec<Vec<u8>>,
    copies: HashMap<(TopicsId, u64), u32>,
}

/// Everything of a [`Context`] that comes from outside.
pub(super) struct Setting {
    pub(super) plan: Arc<Plan>,
    pub(super) clock: Clock,
    pub(super) tag: u16,
    pub(super) routes: Arc<Vec<Vec<Route>>>,
    pub(super) sources: Arc<Vec<IpAddr>>,
}

impl Context {
    pub(super) fn new(setting: Setting, registry: mio::Registry, thread: u64) -> Self {
        Self {
            tally: Tally::new(setting.plan.timers.len()),
            random: Random::new(setting.plan.scenario.seed ^ (thread << 32)),
            stamps: Stamps::new(setting.tag, setting.clock, setting.plan.streams()),
            marks_max: marks_max(setting.plan.streams()),
            sent: setting.plan.families.iter().map(|_| Vec::new()).collect(),
            plan: setting.plan,
            clock: setting.clock,
            routes: setting.routes,
            elsewhere: HashMap::new(),
            sources: setting.sources,
            registry,
            timers: Timers::default(),
            ledger: Ledger::default(),
            unpromised: Vec::new(),
            resent: Vec::new(),
            unheard: Vec::new(),
            wills: HashMap::new(),
            stage: 0,
            stage_at_ns: 0,
            stage_end_ns: None,
            pace: StagePace::Own,
            active: 0,
            again: Vec::new(),
            buffers: Vec::new(),
            copies: HashMap::new(),
        }
    }

    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Gives `buffer` room if it has none: an idle client owns no buffer.
    #[inline]
    pub(super) fn lend(&mut self, buffer: &mut Vec<u8>) {
        if buffer.capacity() == 0 {
            *buffer = self.buffers.pop().unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES));
        }
    }

    /// Takes an empty buffer back.
    #[inline]
    pub(super) fn take_back(&mut self, buffer: &mut Vec<u8>) {
        let mut buffer = std::mem::take(buffer);
        if buffer.capacity() >= BUFFER_BYTES
            && buffer.capacity() <= BUFFER_BYTES_MAX
            && self.buffers.len() < BUFFERS_MAX
        {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    /// When the stage is to end; of one that lasts until the user ends it, nothing is planned
    /// beyond now. The end of time where a count is all there is.
    pub(super) fn planned_end_ns(&self) -> u64 {
        let endless_ns = FOR_EVER_US * 1_000;
        match self.stage_end_ns {
            Some(end_ns) if end_ns - self.stage_at_ns >= endless_ns => self.now_ns(),
            Some(end_ns) => end_ns,
            None => u64::MAX,
        }
    }

    /// Nobody promised this message. `waited_ns` as in [`Unpromised`].
    pub(super) fn give_up_on(&mut self, stream: StreamId, sequence: u32, waited_ns: u64) {
        self.unpromised.push((stream, Unpromised { sequence, waited_ns }));
    }

    /// The broker knows of nobody who hears this message. Beyond a limit they are only counted.
    pub(super) fn note_unheard(&mut self, stream: StreamId, sequence: u32) {
        if self.unheard.len() < UNHEARD_MAX {
            self.unheard.push((stream, sequence));
        }
    }

    /// How many deliveries a message on this topic owes.
    pub(super) fn copies(&mut self, topics: TopicsId, index: u64) -> u32 {
        if let Some(&copies) = self.copies.get(&(topics, index)) {
            return copies;
        }
        let copies = u32::try_from(self.plan.copies(topics, index)).unwrap_or(u32::MAX);
        self.copies.insert((topics, index), copies);
        copies
    }
}

/// What a timer is for. A client has at most one valid timer of each kind; older entries in the
/// heap are recognised by their time and ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimerKind {
    /// The program goes on (delay over, next message due, timeout).
    Task,
    /// The connection wants something (timeout, retry, keep-alive).
    Link,
    /// Acknowledgements that were held back.
    Acks,
}

/// Deadlines of all clients of a thread.
#[derive(Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(u64, u32, TimerKind)>>,
}

impl Timers {
    #[inline]
    pub(super) fn set(&mut self, at_ns: u64, client: u32, kind: TimerKind) {
        self.heap.push(Reverse((at_ns, client, kind)));
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(entry)| entry.0)
    }

    #[inline]
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<(u64, u32, TimerKind)> {
        match self.heap.peek() {
            Some(Reverse(entry)) if entry.0 <= now_ns => self.heap.pop().map(|entry| entry.0),
            _ => None,
        }
    }
}

/// All streams of a run share a bound. One that is sent for long, and has few, is judged less
/// closely around the moments at which its subscribers come and go.
fn marks_max(streams: u64) -> usize {
    (MARKS_MAX / streams.max(1)).clamp(16, 1_024) as usize
}

/// Eight bytes each.
const MARKS_MAX: u64 = 1 << 20;
/// Messages without a subscriber that are looked for at the subscribers, for each thread.
const UNHEARD_MAX: usize = 1 << 20;
const BUFFER_BYTES: usize = 2 * 1024;
/// Larger buffers go back to the allocator.
const BUFFER_BYTES_MAX: usize = 256 * 1024;
/// Spare buffers that a thread keeps.
const BUFFERS_MAX: usize = 1_024;
