//! What waits for a commit: acknowledgements first of all, and the line of a shard.
//!
//! The line has publishes on their way to the retained store, the groups and the other shards, in
//! the order in which they came. A QoS 2 publish of a kept session goes on when it is committed.
//! What its client publishes on the same topic meanwhile, at whatever QoS, would overtake it. So it
//! is delivered here, as the one before it was, and goes on behind it. Publishes on other topics,
//! and of clients that have no QoS 2 publish under way, do not wait.

use std::collections::VecDeque;

use session::Message;
use storage::{Journal, Level, Position};

use crate::log::own_streams::Ordered;
use crate::words::queue_number::QueueNumber;
use crate::{Confirm, SessionKey};

/// Bytes of messages that wait behind others. Policy: above it, whoever sends more of them is not
/// read.
const BEHIND_BYTES_MAX: usize = 1024 * 1024;

/// What may be done once a fact is committed.
#[derive(Debug)]
pub(crate) enum Step {
    /// One of the places that a publish waits for has it.
    Answer(Confirm),
    /// The packet id of a QoS 2 delivery: the PUBLISH may leave.
    Send { session: SessionKey, packet_id: u16 },
    /// A PUBREC: the PUBREL may leave.
    Release { session: SessionKey, packet_id: u16 },
    /// A PUBREL: the PUBCOMP may leave.
    Complete { session: SessionKey, connection: u64, packet_id: u16, serial: u64 },
    /// A packet as it stands: SUBACK, UNSUBACK.
    Packet { session: SessionKey, connection: u64, packet: Box<[u8]> },
    /// What the owner of streams has ordered.
    Order(Ordered),
    /// The end of a session: the client with its id now gets what waits.
    Ended { client: u64 },
    /// A message goes on its way to others.
    Onward(Onward),
}

/// A message that goes on its way in the order of the line.
#[derive(Debug)]
pub(crate) enum Onward {
    /// It was taken on.
    Taken {
        serial: u64,
    },
    Behind(Box<Behind>),
    /// A will, behind others of its client and topic, or behind such a will: their serials have to
    /// reach others in their order.
    Will {
        serial: u64,
    },
}

/// A publish that goes on behind others of its client and topic.
#[derive(Debug)]
pub(crate) struct Behind {
    /// The queue number of its session.
    pub(crate) session: QueueNumber,
    pub(crate) message: Message,
    pub(crate) confirm: Option<Confirm>,
    /// All others have it.
    pub(crate) is_for_store_only: bool,
}

/// What waits, in the order of the journal: a position may be on the disk before an older one is
/// synced, hence a lane for each.
///
/// Bounded by what the clients may have unacknowledged, as each step is one packet of theirs, by
/// the receive maxima of publishers, and by [`BEHIND_BYTES_MAX`].
#[derive(Debug, Default)]
pub(super) struct Waiting {
    disk: VecDeque<(Position, Step)>,
    fsync: VecDeque<(Position, Step)>,
    /// None: it goes on as soon as those before it have.
    line: VecDeque<(Option<(Position, Level)>, Onward)>,
    behind_bytes: usize,
    wills: usize,
}

impl Waiting {
    pub(super) fn push(&mut self, position: Position, level: Level, step: Step) {
        match level {
            Level::Lazy | Level::Disk => self.disk.push_back((position, step)),
            Level::Fsync => self.fsync.push_back((position, step)),
        }
    }

    /// Waits for what waits already. Some: nothing does.
    pub(super) fn push_behind_all(&mut self, level: Level, step: Step) -> Option<Step> {
        let lane = match level {
            Level::Lazy | Level::Disk => &mut self.disk,
            Level::Fsync => &mut self.fsync,
        };
        let Some((position, _)) = lane.back() else { return Some(step) };
        lane.push_back((*position, step));
        None
    }

    pub(super) fn push_taken(&mut self, serial: u64, position: Position, level: Level) {
        self.line.push_back((Some((position, level)), Onward::Taken { serial }));
    }

    pub(super) fn push_behind(&mut self, behind: Behind) {
        self.behind_bytes += behind.message.heap_bytes();
        self.line.push_back((None, Onward::Behind(Box::new(behind))));
    }

    pub(super) fn push_will(&mut self, serial: u64) {
        self.wills += 1;
        self.line.push_back((None, Onward::Will { serial }));
    }

    pub(super) const fn has_will(&self) -> bool {
        self.wills > 0
    }

    /// Does too much wait behind others?
    pub(super) const fn is_line_full(&self) -> bool {
        self.behind_bytes > BEHIND_BYTES_MAX
    }

    /// The next step that may be done. `is_line_open`: not while what was under way when the broker
    /// ended is to be passed on before.
    pub(super) fn next(&mut self, journal: &Journal, is_line_open: bool) -> Option<Step> {
        let is_due = |lane: &VecDeque<(Position, Step)>, level| {
            lane.front().is_some_and(|(position, _)| journal.is_committed(*position, level))
        };
        if is_due(&self.disk, Level::Disk) {
            return self.disk.pop_front().map(|(_, step)| step);
        }
        if is_due(&self.fsync, Level::Fsync) {
            return self.fsync.pop_front().map(|(_, step)| step);
        }
        let (after, _) = self.line.front().filter(|_| is_line_open)?;
        let is_committed = after.is_none_or(|(at, level)| journal.is_committed(at, level));
        if is_committed { self.take_onward() } else { None }
    }

    /// Any step, committed or not.
    pub(super) fn take(&mut self) -> Option<Step> {
        let first = self.disk.pop_front().or_else(|| self.fsync.pop_front());
        first.map(|(_, step)| step).or_else(|| self.take_onward())
    }

    fn take_onward(&mut self) -> Option<Step> {
        let (_, onward) = self.line.pop_front()?;
        match &onward {
            Onward::Taken { .. } => {}
            Onward::Behind(behind) => self.behind_bytes -= behind.message.heap_bytes(),
            Onward::Will { .. } => self.wills -= 1,
        }
        Some(Step::Onward(onward))
    }
}
