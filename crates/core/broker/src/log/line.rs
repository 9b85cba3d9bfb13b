//! The line of a shard: publishes on their way to the retained store, the groups and the other
//! shards, in the order in which they came.
//!
//! A QoS 2 publish of a kept session goes on when it is committed. What its client publishes on the
//! same topic meanwhile, at whatever QoS, would overtake it. So it is delivered here, as the one
//! before it was, and goes on behind it. Publishes on other topics, and of clients that have no QoS
//! 2 publish under way, do not wait.

use std::collections::VecDeque;

use session::Message;
use storage::{Journal, Level, Position};

use crate::Confirm;
use crate::log::{Kept, Log};
use crate::words::expected::Expected;
use crate::words::queue_number::QueueNumber;

/// Bytes of messages that wait behind others. Policy: above it, whoever sends more of them is not
/// read.
const BEHIND_BYTES_MAX: usize = 1024 * 1024;

/// What waits. Bounded by the receive maxima of the publishers, and by [`BEHIND_BYTES_MAX`].
#[derive(Debug, Default)]
pub(super) struct Line {
    waiting: VecDeque<InLine>,
    behind_bytes: usize,
    wills: usize,
}

#[derive(Debug)]
pub(crate) enum InLine {
    /// It was taken on, and goes on when its record is committed.
    Taken {
        serial: u64,
        position: Position,
        level: Level,
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

impl Line {
    pub(super) fn push_taken(&mut self, serial: u64, position: Position, level: Level) {
        self.waiting.push_back(InLine::Taken { serial, position, level });
    }

    fn push_behind(&mut self, behind: Behind) {
        self.behind_bytes += behind.message.heap_bytes();
        self.waiting.push_back(InLine::Behind(Box::new(behind)));
    }

    /// The next one, if it can go on.
    pub(super) fn next(&mut self, journal: &Journal) -> Option<InLine> {
        match self.waiting.front()? {
            InLine::Taken { position, level, .. } if !journal.is_committed(*position, *level) => {
                None
            }
            _ => self.pop(),
        }
    }

    pub(super) fn pop(&mut self) -> Option<InLine> {
        let waiting = self.waiting.pop_front()?;
        match &waiting {
            InLine::Taken { .. } => {}
            InLine::Behind(behind) => self.behind_bytes -= behind.message.heap_bytes(),
            InLine::Will { .. } => self.wills -= 1,
        }
        Some(waiting)
    }
}

impl Log {
    /// Has the session something in the line?
    #[inline]
    pub(crate) fn is_in_line(&self, slot: u32) -> bool {
        self.in_line(slot).is_some_and(|marks| !marks.is_empty())
    }

    /// Would a message of the session overtake an older one on its topic, for which `mark` stands?
    pub(crate) fn would_overtake(&self, slot: u32, mark: u64) -> bool {
        self.in_line(slot).is_some_and(|marks| marks.contains(&mark))
    }

    fn in_line(&self, slot: u32) -> Option<&VecDeque<u64>> {
        Some(&self.kept.get(slot)?.rare.as_ref()?.in_line)
    }

    /// A message goes on behind older ones; so much of its way is left.
    pub(crate) fn wait_in_line(
        &mut self,
        (slot, mark): (u32, u64),
        message: &Message,
        confirm: Option<Confirm>,
        is_for_store_only: bool,
    ) {
        let Some(session) = self.kept.get(slot).map(|kept| kept.queue).expected() else { return };
        self.kept.enter_line(slot, mark);
        let message = message.clone();
        self.store.line.push_behind(Behind { session, message, confirm, is_for_store_only });
    }

    /// Lines a will up if it would overtake anything. Subscribers here have it. False: it would
    /// not. `own`: the slot of its session, if that is there, and the mark of its topic.
    pub(crate) fn will_waits_in_line(&mut self, own: Option<(u32, u64)>, serial: u64) -> bool {
        let waits = self.store.line.wills > 0
            || own.is_some_and(|(slot, mark)| self.would_overtake(slot, mark));
        if !waits {
            return false;
        }
        self.store.line.waiting.push_back(InLine::Will { serial });
        self.store.line.wills += 1;
        if let Some((slot, mark)) = own {
            self.store.handovers.note_in_line(serial);
            self.kept.enter_line(slot, mark);
        }
        true
    }

    /// The next in the line that can go on.
    pub(crate) fn next_in_line(&mut self) -> Option<InLine> {
        match self.store.handovers.is_resuming {
            true => None,
            false => self.store.line.next(&self.store.journal),
        }
    }

    /// The journal is out of service: the next in the line, committed or not.
    pub(crate) fn next_broken_in_line(&mut self) -> Option<InLine> {
        self.store.line.pop()
    }

    /// Does too much wait behind others?
    pub(crate) const fn line_is_full(&self) -> bool {
        self.store.line.behind_bytes > BEHIND_BYTES_MAX
    }
}

impl Kept {
    /// Something of the session is in the line. `mark`: of its topic.
    pub(crate) fn enter_line(&mut self, slot: u32, mark: u64) {
        if let Some(kept) = self.get_mut(slot) {
            kept.rare().in_line.push_back(mark);
        }
    }

    /// What the session had in the line first goes on.
    pub(crate) fn leave_line(&mut self, session: Option<QueueNumber>) {
        let kept = session.and_then(|session| self.of_queue(session));
        if let Some(rare) = kept.and_then(|kept| kept.rare.as_mut()) {
            rare.in_line.pop_front();
        }
    }
}
