//! Segment files: made ahead of need, given back when nothing in them is needed.

use std::collections::VecDeque;

use crate::command::{Command, CommandId, Fault, FaultKind};
use crate::format::{BATCH_HEADER_BYTES, HEADER_BLOCK_BYTES};
use crate::journal::{CONTROL_BYTES, Class, Journal};
use crate::ledger::Usage;
use crate::position::Position;

/// The files beside those in use.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// Empty segments, ready for use, in order.
    pub(crate) spares: VecDeque<u32>,
    /// Segments with nothing needed in them, oldest first.
    retired: VecDeque<Retired>,
    /// One thing at a time.
    work: Option<(CommandId, Work)>,
    /// Why no further segment can be made.
    pub(crate) full: Option<Fault>,
    pub(crate) retry_at: Option<u64>,
    /// Why the last file could not be made for now.
    pub(crate) unavailable: Option<Fault>,
    give_back_at: Option<u64>,
    /// While there are any, no file is removed or used again.
    pub(crate) pins: u32,
}

#[derive(Debug, Clone, Copy)]
struct Retired {
    number: u32,
    capacity: u32,
    /// Offset behind the last batch.
    end: u32,
    /// The file may go once this is durable: a batch that states that the journal begins behind it.
    /// None: no such batch has been closed yet.
    after: Option<Position>,
}

#[derive(Debug, Clone, Copy)]
enum Work {
    Create(u32),
    Recycle { from: Retired, to: u32 },
    Delete(Retired),
}

impl Space {
    /// Files that recovery found and the journal has no use for: `misfits` were never begun, and
    /// the journal begins behind the `void` ones, as it says before `end`. After the end of a
    /// process that may be nowhere but in memory, and a loss of power would bring them back.
    pub(crate) fn with_garbage(
        spares: VecDeque<u32>,
        misfits: &[u32],
        void: &[u32],
        end: Position,
    ) -> Self {
        let stale =
            |after| move |&number| Retired { number, capacity: 0, end: 0, after: Some(after) };
        let misfits = misfits.iter().map(stale(Position::default()));
        let void = void.iter().map(stale(end));
        Self { spares, retired: misfits.chain(void).collect(), ..Self::default() }
    }

    pub(crate) fn retire(&mut self, number: u32, usage: Usage) {
        let Usage { capacity, end, .. } = usage;
        self.retired.push_back(Retired { number, capacity, end, after: None });
    }

    /// Segments that a journal written up to `written` does not say yet that it can do without.
    pub(crate) fn still_needed(&self, written: Position) -> impl Iterator<Item = (u32, u32)> {
        let needed = self.retired.iter().filter(move |it| it.after.is_none_or(|at| at > written));
        needed.map(|retired| (retired.number, retired.end))
    }

    pub(crate) fn oldest_is_unwritten(&self) -> bool {
        self.retired.iter().any(|retired| retired.after.is_none())
    }

    /// A batch that states the present oldest segment ends at `end`. True if anybody waits for it.
    pub(crate) fn note_oldest_written(&mut self, end: Position) -> bool {
        let mut waits = false;
        for retired in self.retired.iter_mut().filter(|retired| retired.after.is_none()) {
            retired.after = Some(end);
            waits = true;
        }
        waits
    }

    /// When a file that could not be given back is tried again, and when one that could not be made
    /// is. `synced`: what has to be on disk before a file is given back.
    pub(crate) fn deadline(&self, synced: Position) -> Option<u64> {
        let is_gone = |retired: &Retired| retired.after.is_some_and(|after| after <= synced);
        let may_give_back = self.pins == 0 && self.retired.front().is_some_and(is_gone);
        let give_back_at = self.give_back_at.filter(|_| may_give_back);
        let deadline = [give_back_at, self.retry_at].into_iter().flatten().min();
        deadline.filter(|_| self.work.is_none())
    }

    pub(crate) fn set_full(&mut self, fault: Fault, retry_at: u64) {
        self.full = Some(fault);
        self.retry_at = Some(retry_at);
    }

    /// Whether a file of this number still waits to be removed.
    fn holds_number(&self, number: u32) -> bool {
        self.retired.iter().any(|retired| retired.number == number)
    }

    fn files(&self) -> usize {
        let making = matches!(self.work, Some((_, Work::Create(_) | Work::Recycle { .. })));
        let removing = matches!(self.work, Some((_, Work::Delete(_))));
        self.spares.len() + self.retired.len() + usize::from(making) + usize::from(removing)
    }
}

impl Journal {
    /// Asks for at most one file to be made, renamed or removed.
    pub(crate) fn plan_space(&mut self) {
        let is_fenced = self.poison.as_ref().is_some_and(|fault| fault.kind == FaultKind::Fenced);
        if self.space.work.is_some() || is_fenced {
            return;
        }
        if let Some(retired) = self.take_retired() {
            self.give_back(retired);
            return;
        }
        if self.space.retry_at.is_some_and(|at| at > self.now_ms) {
            return;
        }
        if self.space.retry_at.take().is_some() && self.spare_is_unneeded() {
            self.space.full = None;
        }
        if self.wants_spare() && !self.space.holds_number(self.next_number()) {
            self.make_spare();
        }
    }

    fn take_retired(&mut self) -> Option<Retired> {
        let after = self.space.retired.front()?.after?;
        let waits = self.space.give_back_at.is_some_and(|at| at > self.now_ms);
        let gone = after <= self.commit.synced && self.space.pins == 0;
        if waits || !gone {
            return None;
        }
        self.space.give_back_at = None;
        self.space.retired.pop_front()
    }

    fn give_back(&mut self, retired: Retired) {
        let id = self.command_id();
        let fits = retired.capacity == self.settings.segment_bytes && !self.is_at_quota();
        let (command, work) = if fits && self.wants_spare() {
            let (from, to) = (retired.number, self.next_number());
            (Command::Recycle { id, from, to }, Work::Recycle { from: retired, to })
        } else {
            (Command::Delete { id, segment: retired.number }, Work::Delete(retired))
        };
        self.space.work = Some((id, work));
        self.commands.push(command);
    }

    fn make_spare(&mut self) {
        if self.is_at_quota() {
            let bytes_max = self.settings.log_bytes_max;
            let detail = format!("the log is at its limit, log_bytes_max = {bytes_max}");
            let retry_at = self.now_ms + u64::from(self.settings.retry_ms);
            self.space.set_full(Fault { kind: FaultKind::NoSpace, detail }, retry_at);
            return;
        }
        let (id, segment) = (self.command_id(), self.next_number());
        self.space.work = Some((id, Work::Create(segment)));
        self.commands.push(Command::Create { id, segment, bytes: self.settings.segment_bytes });
    }

    pub(crate) fn on_housekeeping(&mut self, id: CommandId, result: Result<(), Fault>) {
        let Some((_, work)) = self.space.work.take_if(|(working, _)| *working == id) else {
            return;
        };
        let Err(fault) = result else {
            if let Work::Create(number) | Work::Recycle { to: number, .. } = work {
                self.space.spares.push_back(number);
                self.space.full = None;
                self.space.unavailable = None;
            }
            if let Work::Recycle { .. } | Work::Delete(_) = work {
                self.stats.segments_reclaimed += 1;
            }
            return;
        };
        let retry_at = self.now_ms + u64::from(self.settings.retry_ms);
        if fault.kind == FaultKind::Fenced {
            self.poison.get_or_insert(fault);
            return;
        }
        match work {
            Work::Create(_) if fault.kind == FaultKind::Unavailable => {
                self.space.unavailable = Some(fault);
                self.space.retry_at = Some(retry_at);
            }
            // Whatever the reason, there is no further segment for now.
            Work::Create(_) => self.space.set_full(fault, retry_at),
            Work::Recycle { from: retired, .. } | Work::Delete(retired) => {
                self.space.retired.push_front(retired);
                self.space.give_back_at = Some(retry_at);
            }
        }
    }

    /// Bytes that records can take in the spare segments.
    pub(crate) fn spare_bytes(&self) -> u64 {
        self.segment_payload() * self.space.spares.len() as u64
    }

    /// Bytes that records can take in an empty segment.
    pub(crate) fn segment_payload(&self) -> u64 {
        let overhead = HEADER_BLOCK_BYTES + BATCH_HEADER_BYTES + CONTROL_BYTES;
        u64::from(self.settings.segment_bytes - overhead)
    }

    fn wants_spare(&self) -> bool {
        // At the limit older segments have to be emptied first.
        let has_none = self.space.spares.is_empty() && !self.is_at_quota();
        let leaves_head = has_none && self.must_leave_head();
        self.poison.is_none() && (leaves_head || !self.spare_is_unneeded())
    }

    /// So much is at hand, or the next segment is made.
    pub(crate) fn ready_bytes(&self) -> u64 {
        u64::from(self.settings.segment_bytes / 2)
    }

    /// Half a segment is at hand beside what is left alone: time enough to make the next one.
    fn spare_is_unneeded(&self) -> bool {
        let half = self.ready_bytes();
        // From the middle of the head segment on, be ready for the one behind it.
        let segments = self.ledger.len() + usize::from(self.rest_bytes() < half);
        let ready = self.rest_bytes() + self.spare_bytes();
        ready >= half + self.left_alone(Class::Normal, segments)
    }

    fn is_at_quota(&self) -> bool {
        self.segments_left() == Some(0)
    }

    /// Files that may still be made: none where the size of the journal has no limit.
    pub(crate) fn segments_left(&self) -> Option<u64> {
        let most = self.settings.log_bytes_max / u64::from(self.settings.segment_bytes);
        let files = self.ledger.len() + self.space.files();
        let is_limited = self.settings.log_bytes_max != u64::MAX;
        is_limited.then_some(most.saturating_sub(files as u64))
    }

    fn next_number(&self) -> u32 {
        self.space.spares.back().copied().unwrap_or(self.head.segment) + 1
    }
}
