//! Group commit: each turn hands over what it has, and groups at the disk share a sync.

use std::collections::VecDeque;

use crate::command::{Command, CommandId, Fault, FaultKind, InPlace, InPlaceEnd, Step};
use crate::format::{FLAG_MARK, FLAG_OPEN, FLAG_SEAL};
use crate::journal::{Batch, Journal, Level, Phase};
use crate::position::Position;

/// What has been handed to the disk, and what it has made of it.
#[derive(Debug)]
pub(crate) struct Commit {
    /// Groups at the disk, oldest first, at most [`GROUPS_MAX`]: each turn forms one, so that the
    /// disk's thread finds all that there is when it begins its next round.
    in_flight: VecDeque<Group>,
    /// Steps that came back undone, until the groups behind them have come back too.
    returned: Vec<Step>,
    /// The next commit is the first one after a fault, or of all.
    resume: bool,
    pub(crate) written: Position,
    pub(crate) synced: Position,
    /// Everything before this must become durable without delay.
    pub(crate) sync_target: Position,
    /// End of the last batch that holds records.
    pub(crate) records_end: Position,
    /// What the last closed batch states to be durable.
    pub(crate) claimed: Position,
    /// Since when there have been records of level `disk` that nobody asked to sync.
    unsynced_since: Option<u64>,
    last_append_ms: u64,
    /// Since when there have been records that no commit has, if they may wait for others.
    lazy_since: Option<u64>,
    /// Somebody waits for one of those that no commit has.
    is_awaited: bool,
    /// Records to be synced came while a commit was under way; the same for the last commit.
    has_joined: bool,
    is_shared: bool,
    retry_at: Option<u64>,
    /// The end of the last write in place that was slow: the thread takes over until it is synced.
    slow_upto: Position,
    /// Why the last commit could not be carried out for now.
    pub(crate) unavailable: Option<Fault>,
}

#[derive(Debug)]
struct Group {
    id: CommandId,
    /// The end of what had been handed to the disk before. A sync covers what was written when it
    /// began: this, and the writes before it in the group.
    base: Position,
    steps: Vec<Step>,
}

/// Groups of one journal at the disk. Policy: with so many, the next one is formed when the first
/// one is done, and is as large as its limit of bytes allows.
const GROUPS_MAX: usize = 16;

/// A planted bug.
#[cfg(feature = "testing")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JournalFlaw {
    /// A sync counts for what was written while it was under way.
    SyncsLaterWrites,
    /// A write in place does not wait for the writes that the disk's thread still has.
    OvertakesThread,
    /// No sync is due while the disk has a commit.
    StarvesSyncs,
}

impl Commit {
    pub(crate) fn new(written: Position, synced: Position) -> Self {
        Self {
            in_flight: VecDeque::new(),
            returned: Vec::new(),
            resume: true,
            written,
            synced,
            sync_target: Position::default(),
            records_end: Position::default(),
            claimed: Position::default(),
            unsynced_since: None,
            last_append_ms: 0,
            lazy_since: None,
            is_awaited: false,
            has_joined: false,
            is_shared: false,
            retry_at: None,
            slow_upto: Position::default(),
            unavailable: None,
        }
    }

    /// The open batch is on its way: nobody waits for what comes next.
    const fn take_open(&mut self) {
        self.lazy_since = None;
        self.is_awaited = false;
    }

    /// The end of what is synced, or will be by what has been handed to the disk.
    fn sync_handed(&self) -> Position {
        let covered = self.in_flight.iter().rev().find_map(Group::covers);
        covered.unwrap_or(self.synced).max(self.synced)
    }

    /// The end of what has been handed to the disk.
    fn handed(&self) -> Position {
        let steps = self.in_flight.iter().rev().flat_map(|group| group.steps.iter().rev());
        steps.filter_map(write_end).next().unwrap_or(self.written)
    }

    /// The disk has caught up when it has synced the slow write.
    fn sync_slow(&mut self) {
        if self.synced < self.slow_upto && self.slow_upto <= self.written {
            self.sync_target = self.sync_target.max(self.slow_upto);
        }
    }

    /// Has the disk's thread nothing of this journal but syncs? A write must not overtake another
    /// one, nor a manifest, which has to reach as far as the write.
    fn has_only_syncs_in_flight(&self) -> bool {
        let mut steps = self.in_flight.iter().flat_map(|group| &group.steps);
        steps.all(|step| matches!(step, Step::Sync { .. }))
    }

    pub(crate) fn note_append(&mut self, level: Level, position: Position, now_ms: u64) {
        self.last_append_ms = now_ms;
        self.is_awaited |= level > Level::Lazy;
        match level {
            // Any end behind the record's beginning covers it: commits take whole batches.
            Level::Fsync => {
                self.sync_target = Position::from_bits(position.to_bits() + 1);
                self.has_joined |= !self.in_flight.is_empty();
            }
            Level::Lazy | Level::Disk => {
                self.unsynced_since.get_or_insert(now_ms);
            }
        }
    }
}

impl Group {
    /// How far its last sync reaches.
    fn covers(&self) -> Option<Position> {
        let sync = self.steps.iter().rposition(|step| matches!(step, Step::Sync { .. }))?;
        let before = self.steps[..sync].iter().rev().find_map(write_end);
        Some(before.unwrap_or(self.base))
    }
}

impl Journal {
    /// Whether records that nobody waits for wait for others to share a commit with, see
    /// [`Settings::lazy_commit_ms`](crate::Settings::lazy_commit_ms).
    pub fn delays_commit(&self) -> bool {
        self.commit.lazy_since.is_some() && self.poison.is_none()
    }

    /// Whether it has records that the next commit could have, and that nothing looks at again.
    pub fn has_unplanned(&self) -> bool {
        let may_go = self.may_form_group() && self.commit.retry_at.is_none();
        self.open.is_some() && self.commit.lazy_since.is_none() && may_go && self.poison.is_none()
    }

    /// Whether the last commit has records to be synced that came while another one was under way:
    /// then others do not wait for this journal only, see [`Submission::is_shared`].
    ///
    /// [`Submission::is_shared`]: crate::Submission::is_shared
    pub fn is_commit_shared(&self) -> bool {
        self.commit.is_shared
    }

    /// Whether records of level `disk` have waited for twice the time in which a sync is due, and
    /// nothing keeps it from being asked for.
    #[cfg(feature = "testing")]
    pub fn is_sync_overdue(&self, now_ms: u64) -> bool {
        let interval = u64::from(self.settings.sync_interval_ms);
        let may_ask =
            self.phase == Phase::Running && self.poison.is_none() && self.commit.retry_at.is_none();
        may_ask && self.commit.unsynced_since.is_some_and(|since| since + 2 * interval < now_ms)
    }

    /// A planted bug.
    #[cfg(feature = "testing")]
    pub const fn plant(&mut self, flaw: JournalFlaw) {
        self.flaw = Some(flaw);
    }

    pub(crate) fn plan_commit(&mut self, now_ms: u64) {
        let waits = self.commit.retry_at.is_some_and(|at| at > self.now_ms);
        let is_lazy = self.is_lazy(now_ms);
        if self.poison.is_some() || waits || !self.may_form_group() || is_lazy {
            return;
        }
        self.commit.take_open();
        self.commit.retry_at = None;
        self.close_batches();
        let mut steps: Vec<Step> = self.queue.drain(..).collect();
        let is_due = self.upkeep.is_due;
        let is_behind = self.commit.sync_target > self.commit.sync_handed();
        if is_due || is_behind && self.phase > Phase::Unopened {
            steps.push(Step::Sync { segment: self.head.segment });
            self.stats.syncs += 1;
        }
        if is_due {
            steps.push(self.state_end());
        }
        if steps.is_empty() {
            return;
        }
        self.stats.commits += 1;
        let id = self.command_id();
        let base = self.commit.handed();
        self.commit.in_flight.push_back(Group { id, base, steps: steps.clone() });
        self.commit.is_shared = std::mem::take(&mut self.commit.has_joined);
        let resume = std::mem::take(&mut self.commit.resume);
        self.commands.push(Command::Commit { id, steps, resume });
    }

    /// Whether the next commit waits for a record that somebody waits for. Only records may be
    /// late: what a journal needs to open, to go on in the next segment or to close is not, nor is
    /// a sync, nor space that comes back once the journal says that it begins behind it.
    fn is_lazy(&mut self, now_ms: u64) -> bool {
        let has_records_only = self.open.is_some() && self.queue.is_empty() && !self.upkeep.is_due;
        let is_awaited = self.commit.is_awaited
            || self.commit.sync_target > self.commit.sync_handed()
            || self.space.oldest_is_unwritten();
        if self.phase != Phase::Running || !has_records_only || is_awaited {
            return false;
        }
        let since = *self.commit.lazy_since.get_or_insert(now_ms);
        now_ms < since + u64::from(self.settings.lazy_commit_ms)
    }

    /// Whether the disk may have one more. Behind one that was not done none is.
    fn may_form_group(&self) -> bool {
        let groups = self.commit.in_flight.len();
        groups == 0 || groups < GROUPS_MAX && self.commit.returned.is_empty()
    }

    /// Closes the open batch and whatever batches without records are due.
    fn close_batches(&mut self) {
        if self.phase == Phase::Unopened && self.make_control_room() {
            self.close_batch(FLAG_OPEN);
            self.upkeep.is_due = true;
            self.phase = Phase::Opening;
        }
        if self.open.is_some() {
            self.close_batch(0);
        }
        if self.space.oldest_is_unwritten() && self.make_control_room() {
            self.close_batch(FLAG_MARK);
        }
        let complete = self.queue.is_empty() && self.commit.synced >= self.end();
        if self.phase == Phase::Closing && !complete {
            self.commit.sync_target = self.end();
        } else if self.phase == Phase::Closing && self.make_control_room() {
            self.close_batch(FLAG_SEAL);
            self.upkeep.is_due = true;
            self.commit.sync_target = self.end();
            self.phase = Phase::Sealing;
        }
    }

    fn make_control_room(&mut self) -> bool {
        self.has_control_room() || self.roll()
    }

    pub(crate) fn on_committed(&mut self, id: CommandId, steps_done: usize, fault: Option<Fault>) {
        if self.commit.in_flight.front().is_none_or(|group| group.id != id) {
            return;
        }
        let Some(group) = self.commit.in_flight.pop_front() else { return };
        if fault.is_none() {
            self.commit.unavailable = None;
        }
        let mut steps = group.steps.into_iter();
        let mut covered = group.base;
        for step in steps.by_ref().take(steps_done) {
            match step {
                Step::Write { segment, offset, bytes } => {
                    self.pending_bytes = self.pending_bytes.saturating_sub(bytes.len());
                    covered = Position::new(segment, offset + bytes.len() as u32);
                    self.commit.written = self.commit.written.max(covered);
                }
                Step::Sync { .. } => {
                    #[cfg(feature = "testing")]
                    if self.flaw == Some(JournalFlaw::SyncsLaterWrites) {
                        covered = self.commit.written;
                    }
                    self.commit.synced = self.commit.synced.max(covered);
                }
                Step::Manifest { bytes, .. } => self.upkeep.note_durable(&bytes),
            }
        }
        self.commit.sync_slow();
        self.on_not_done(steps.collect(), fault);
        self.recent.evict(self.commit.written);
        if self.commit.synced >= self.commit.records_end && self.open.is_none() {
            self.commit.unsynced_since = None;
        }
        self.advance_phase();
    }

    /// A write that found no space is tried again later, and so is all that found no quorum. Any
    /// other fault ends all promises: after a failed sync it is unknown what is on the medium,
    /// and asking again would hide it.
    fn on_not_done(&mut self, rest: Vec<Step>, fault: Option<Fault>) {
        let fault = match fault {
            None if rest.is_empty() => return,
            Some(fault) => fault,
            None => Fault { kind: FaultKind::Io, detail: "a commit ended early".to_owned() },
        };
        let was_write = matches!(rest.first(), Some(Step::Write { .. } | Step::Manifest { .. }));
        match fault.kind {
            FaultKind::NoSpace if was_write => {
                let retry_at = self.now_ms + u64::from(self.settings.retry_ms);
                self.commit.retry_at = Some(retry_at);
                self.commit.resume = true;
                self.space.set_full(fault, retry_at);
            }
            FaultKind::Unavailable => {
                self.commit.retry_at = Some(self.now_ms + u64::from(self.settings.retry_ms));
                self.commit.resume = true;
                self.commit.unavailable = Some(fault);
            }
            // Behind one that is tried again; it came back in order.
            FaultKind::Skipped if !self.commit.returned.is_empty() => {}
            _ => {
                self.poison.get_or_insert(fault);
                return;
            }
        }
        self.commit.returned.extend(rest);
        if self.commit.in_flight.is_empty() {
            for step in self.commit.returned.drain(..).rev() {
                self.queue.push_front(step);
            }
        }
    }

    /// What the caller may write itself at the end of its turn, before it takes the commands: the
    /// records of the turn, if somebody waits for one, nobody for their sync, and the disk's thread
    /// has no write of this journal that they would overtake. At most `bytes_max` bytes.
    /// [`Journal::end_write`] follows at once.
    pub fn begin_write(&mut self, bytes_max: usize) -> Option<InPlace> {
        if !self.may_write_in_place() {
            return None;
        }
        let bytes = |batch: &Batch| batch.bytes.len();
        let fits = self.open.as_ref().is_none_or(|batch| bytes(batch) <= bytes_max);
        if self.open.is_some() && fits {
            self.commit.take_open();
            self.close_batch(0);
        }
        let fits = matches!(self.queue.front(), Some(step) if step.bytes() <= bytes_max);
        if self.queue.len() != 1 || !fits {
            return None;
        }
        match self.queue.pop_front()? {
            Step::Write { segment, offset, bytes } if segment == self.head.segment => {
                Some(InPlace { segment, offset, bytes })
            }
            other => {
                self.queue.push_front(other);
                None
            }
        }
    }

    fn may_write_in_place(&self) -> bool {
        let commit = &self.commit;
        let overtakes = !commit.has_only_syncs_in_flight();
        #[cfg(feature = "testing")]
        let overtakes = overtakes && self.flaw != Some(JournalFlaw::OvertakesThread);
        self.phase == Phase::Running
            && self.poison.is_none()
            && commit.is_awaited
            && commit.retry_at.is_none()
            && commit.returned.is_empty()
            && commit.sync_target <= commit.written
            && commit.slow_upto <= commit.synced
            && !overtakes
    }

    /// How the write in place ended. After one that was slow or not done, the disk's thread writes
    /// until it has synced all of that, which is asked for at once; it also finds out why one
    /// cannot be done.
    pub fn end_write(&mut self, write: InPlace, end: InPlaceEnd) {
        let InPlace { segment, offset, bytes } = write;
        let written = Position::new(segment, offset + bytes.len() as u32);
        if end != InPlaceEnd::Done {
            self.commit.slow_upto = written;
        }
        if end == InPlaceEnd::NotDone {
            self.queue.push_front(Step::Write { segment, offset, bytes });
            return;
        }
        self.pending_bytes = self.pending_bytes.saturating_sub(bytes.len());
        self.stats.commits += 1;
        self.commit.written = self.commit.written.max(written);
        self.commit.sync_slow();
        self.recent.evict(self.commit.written);
    }

    fn advance_phase(&mut self) {
        let durable = self.commit.synced >= self.commit.sync_target
            && self.queue.is_empty()
            && self.commit.in_flight.is_empty();
        if !durable || self.poison.is_some() {
            return;
        }
        match self.phase {
            Phase::Opening => self.phase = Phase::Running,
            Phase::Sealing => self.phase = Phase::Closed,
            _ => {}
        }
    }

    pub(crate) fn on_tick_commit(&mut self) {
        let Some(deadline) = self.idle_deadline() else { return };
        if deadline > self.now_ms {
            return;
        }
        if self.commit.unsynced_since.take().is_some() {
            // What the disk does not have yet is synced with what follows, so that its write waits
            // for no sync.
            let is_whole = self.open.is_none() && self.queue.is_empty();
            self.commit.unsynced_since = (!is_whole).then_some(self.now_ms);
            self.commit.sync_target = self.commit.sync_target.max(self.commit.handed());
        } else if self.wants_mark() && self.has_control_room() {
            self.close_batch(FLAG_MARK);
        }
    }

    /// None while the disk has to answer first: then somebody looks again.
    pub(crate) fn commit_deadline(&self) -> Option<u64> {
        let may_go = self.may_form_group() && self.commit.retry_at.is_none();
        let lazy = self.commit.lazy_since.filter(|_| may_go);
        let lazy = lazy.map(|since| since + u64::from(self.settings.lazy_commit_ms));
        self.idle_deadline().into_iter().chain(lazy).min()
    }

    /// When the journal has to sync records of level `disk`, or to try again, and a quiet one to
    /// state that its records are durable. A sync is due however busy the disk is: there may always
    /// be a group under way.
    fn idle_deadline(&self) -> Option<u64> {
        #[cfg(feature = "testing")]
        if self.flaw == Some(JournalFlaw::StarvesSyncs) && !self.commit.in_flight.is_empty() {
            return None;
        }
        if self.commit.retry_at.is_some() {
            return self.commit.retry_at.filter(|_| self.commit.in_flight.is_empty());
        }
        let interval = u64::from(self.settings.sync_interval_ms);
        match self.commit.unsynced_since {
            Some(since) => Some(since + interval),
            None => self.wants_mark().then_some(self.commit.last_append_ms + interval),
        }
    }

    /// In a quiet time the last records are followed by a batch that states that they are durable:
    /// from then on damage to them cannot be mistaken for a torn tail.
    fn wants_mark(&self) -> bool {
        self.phase == Phase::Running
            && self.poison.is_none()
            && self.open.is_none()
            && self.queue.is_empty()
            && self.commit.in_flight.is_empty()
            && self.commit.synced >= self.commit.records_end
            && self.commit.claimed < self.commit.records_end
    }
}

fn write_end(step: &Step) -> Option<Position> {
    let Step::Write { segment, offset, bytes } = step else { return None };
    Some(Position::new(*segment, offset + bytes.len() as u32))
}
