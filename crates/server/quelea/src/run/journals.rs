//! The journals of a worker's shards: what their disks have to do, and how they are.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use broker::{Shard, ShardId};
use driver::{Places, Shards};
use storage::{
    Command, CommandId, Completion, Fault, InPlace, InPlaceEnd, Journal, Outcome, Position, Stats,
    Status,
};

use super::mailbox::{Item, Mailbox};
use super::timing::Timing;
use crate::cluster::{JournalInput, Member, Order};
use crate::http::{Health, State};
use data::{Done, JournalDisk, JournalFiles, Owner};

/// How often figures are shown to others.
const FIGURES_INTERVAL_MS: u64 = 500;

/// What a worker writes itself in a round of a turn, of all its journals. Policy: the disk's thread
/// writes the rest, and all after a write that was slow: the next one would be as well. The first
/// journal is another one after each write.
const IN_PLACE_BYTES_MAX: usize = 64 << 10;

/// The least time between two lines about the space of a journal.
const REPORT_INTERVAL_MS: u64 = 10_000;

/// The journals of one worker, in the order of its shards.
pub(super) struct Journals {
    disks: Vec<Disk>,
    seen: Vec<JournalState>,
    last_reported: Vec<LastReported>,
    commands: Vec<Command>,
    mailbox: Arc<Mailbox>,
    board: Arc<JournalBoard>,
    figures_at_ms: u64,
    /// Something may have changed since figures were shown.
    is_stale: bool,
    /// Where to report the end of each phase of this worker's life.
    phases: Sender<Phase>,
    is_open: bool,
    is_quiet: bool,
    /// The journal that may write first.
    first: usize,
}

/// What a journal is on.
pub(super) enum JournalBackend {
    Files(JournalFiles),
    /// The stream of a cluster.
    Member(Member),
}

/// What carries out the commands of a journal.
enum Disk {
    Files(JournalDisk),
    Member(Member, ShardId, Arc<Submitted>),
}

/// When commits of a journal were submitted that are not answered yet, in their order. The journal
/// bounds how many these are.
#[derive(Debug, Default)]
struct Submitted(Mutex<VecDeque<(CommandId, Instant)>>);

impl Submitted {
    fn note(&self, id: CommandId) {
        self.lock().push_back((id, Instant::now()));
    }

    /// How long the commit was under way. `None`: it is none, or is answered already.
    fn take(&self, id: CommandId) -> Option<Duration> {
        let mut submitted = self.lock();
        let place = submitted.iter().position(|(known, _)| *known == id);
        let found = place.and_then(|place| submitted.remove(place));
        found.map(|(_, at)| at.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(CommandId, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk {
    fn attach(
        member: Member,
        shard: ShardId,
        done: impl Fn(Vec<Done>) + Send + 'static,
        mailbox: Arc<Mailbox>,
    ) -> Self {
        let submitted = Arc::<Submitted>::default();
        let known = submitted.clone();
        let hear = Box::new(move |input: JournalInput| match input {
            JournalInput::Done(completion) => {
                let took = known.take(completion.id).unwrap_or_default();
                done(vec![Done { journal: shard, completion, took }]);
            }
            JournalInput::Renew(segment) => mailbox.put(Item::RenewLog(shard, segment)),
        });
        member.order(Order::Attach(shard, hear));
        Self::Member(member, shard, submitted)
    }

    /// `journal`: whose command it is.
    fn submit(&self, command: Command, journal: Option<&Journal>) -> Result<(), Completion> {
        match self {
            Self::Files(disk) => {
                disk.submit(command, journal.is_some_and(Journal::is_commit_shared))
            }
            Self::Member(member, shard, submitted) => {
                if let Command::Commit { id, .. } = &command {
                    submitted.note(*id);
                }
                let live_bytes = journal.map_or(0, Journal::live_bytes);
                member.order(Order::Submit(*shard, command, live_bytes));
                Ok(())
            }
        }
    }
}

fn write_in_place(disk: &JournalDisk, write: &InPlace, board: &JournalBoard) -> InPlaceEnd {
    let (end, took) = disk.write_in_place(write);
    if end != InPlaceEnd::NotDone {
        board.commits.note(took);
    }
    end
}

/// In their order, but from this one on.
fn from(first: usize, places: Places) -> impl Iterator<Item = usize> {
    let behind = places.filter(move |place| *place >= first);
    behind.chain(places.filter(move |place| *place < first))
}

/// Puts what the disks have done into the mailbox of the worker, all of it at once.
fn deliver(
    mailbox: &Arc<Mailbox>,
    board: &Arc<JournalBoard>,
) -> impl Fn(Vec<Done>) + Clone + Send + use<> {
    let (mailbox, board) = (mailbox.clone(), board.clone());
    move |all: Vec<Done>| {
        for done in &all {
            if matches!(done.completion.outcome, Outcome::Committed { .. }) {
                board.commits.note(done.took);
            }
        }
        let items = all.into_iter();
        mailbox.put_all(items.map(|done| Item::Disk(done.journal, Box::new(done.completion))));
    }
}

/// What a worker with journals reports to those who wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// All of its journals are ready, or one never will be.
    Open(Result<(), Fault>),
    /// It has been requested to stop, and its last connection is gone.
    Quiet,
}

/// How a journal is, without the details.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum JournalState {
    #[default]
    Opening,
    Ready,
    Closed,
    Full,
    Unavailable,
    Poisoned,
    Fenced,
}

impl Journals {
    /// Starts the disks of all workers. `None`: the worker has no journals. All journals are in
    /// files, or all in the stream. `commit_delay`: how long a commit that is not alone waits for
    /// others.
    pub(super) fn start_all(
        of_workers: Vec<Vec<(ShardId, JournalBackend)>>,
        mailboxes: &[Arc<Mailbox>],
        board: &Arc<JournalBoard>,
        phases: &Sender<Phase>,
        commit_delay: Duration,
    ) -> std::io::Result<Vec<Option<Self>>> {
        let mut owners = Vec::new();
        let mut members = Vec::new();
        for (journals, mailbox) in of_workers.into_iter().zip(mailboxes) {
            let mut files_of = Vec::new();
            let mut attached = Vec::new();
            for (shard, place) in journals {
                match place {
                    JournalBackend::Files(files) => files_of.push((shard, files)),
                    JournalBackend::Member(member) => {
                        let done = deliver(mailbox, board);
                        attached.push(Disk::attach(member, shard, done, mailbox.clone()));
                    }
                }
            }
            owners.push(Owner { journals: files_of, done: deliver(mailbox, board) });
            members.push(attached);
        }
        let has_files = owners.iter().any(|owner| !owner.journals.is_empty());
        let disks = match has_files {
            true => JournalDisk::spawn_all(owners, commit_delay)?,
            false => owners.iter().map(|_| Vec::new()).collect(),
        };
        let all = disks.into_iter().zip(members).zip(mailboxes);
        let journals = all.map(|((disks, members), mailbox)| {
            let disks: Vec<_> = disks.into_iter().map(Disk::Files).chain(members).collect();
            (!disks.is_empty()).then(|| Self::new(disks, mailbox, board, phases))
        });
        Ok(journals.collect())
    }

    fn new(
        disks: Vec<Disk>,
        mailbox: &Arc<Mailbox>,
        board: &Arc<JournalBoard>,
        phases: &Sender<Phase>,
    ) -> Self {
        Self {
            seen: vec![JournalState::Opening; disks.len()],
            last_reported: vec![LastReported::default(); disks.len()],
            disks,
            commands: Vec::new(),
            mailbox: mailbox.clone(),
            board: board.clone(),
            figures_at_ms: 0,
            is_stale: false,
            phases: phases.clone(),
            is_open: false,
            is_quiet: false,
            first: 0,
        }
    }

    /// Writes in place what needs no sync, hands over what the disks have to do, and looks how the
    /// journals are: those of shards that something has happened to, and now and then all. True:
    /// something was written in place, so shards may have answers.
    pub(super) fn carry_out(&mut self, shards: &mut Shards, now_ms: u64) -> bool {
        let shows_figures = self.figures_at_ms <= now_ms;
        if shows_figures {
            self.figures_at_ms = now_ms + FIGURES_INTERVAL_MS;
        }
        self.is_stale = !shows_figures;
        if shows_figures || !self.is_open {
            shards.all_mut();
        }
        let mut bytes_left = IN_PLACE_BYTES_MAX;
        let mut has_written = false;
        for place in from(self.first, shards.marked()) {
            let shard = &mut shards[place];
            let is_written = match &self.disks[place] {
                Disk::Files(disk) => {
                    let bytes_max = bytes_left;
                    let write = |write: &InPlace| {
                        let end = write_in_place(disk, write, &self.board);
                        let is_done = end == InPlaceEnd::Done;
                        let rest = bytes_left.saturating_sub(write.bytes.len());
                        bytes_left = if is_done { rest } else { 0 };
                        end
                    };
                    shard.write_in_place(bytes_max, write, now_ms)
                }
                Disk::Member(..) => false,
            };
            if is_written {
                self.first = place + 1;
            }
            shard.take_disk_commands(&mut self.commands, now_ms);
            for command in self.commands.drain(..) {
                if let Err(completion) = self.disks[place].submit(command, shard.journal()) {
                    self.mailbox.put(Item::Disk(shard.id(), Box::new(completion)));
                }
            }
            let status = shard.journal_status().unwrap_or(Status::Closed);
            let state = JournalState::of(&status);
            let has_changed = std::mem::replace(&mut self.seen[place], state) != state;
            self.last_reported[place].look(shard.id(), &status, now_ms);
            self.last_reported[place]
                .look_at_damage(shard.id(), shard.journal().and_then(|journal| journal.damaged()));
            if has_changed || shows_figures {
                self.board.show(
                    shard.id(),
                    state,
                    &shard.journal().map(Journal::stats).unwrap_or_default(),
                );
            }
            if is_written {
                shard.on_disk_write(now_ms);
                has_written = true;
            }
        }
        if !self.is_open {
            self.report_open(shards.all());
        }
        has_written
    }

    /// When figures have to be shown, should nothing else happen: the last turn before a rest must
    /// not leave them behind for ever.
    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.is_stale.then_some(self.figures_at_ms)
    }

    fn report_open(&mut self, shards: &[Shard]) {
        let failed = shards.iter().find_map(|shard| match shard.journal_status() {
            Some(Status::Poisoned(fault) | Status::Fenced(fault)) => Some(fault),
            _ => None,
        });
        let opened = match failed {
            Some(fault) => Err(fault),
            None if shards.iter().all(|shard| shard.journal().is_none_or(Journal::is_ready)) => {
                Ok(())
            }
            None => return,
        };
        self.is_open = true;
        // Nobody waits any more when the process is ending.
        let _ = self.phases.send(Phase::Open(opened));
    }

    /// The last connection is gone after the order to stop.
    pub(super) fn report_quiet(&mut self) {
        if !std::mem::replace(&mut self.is_quiet, true) {
            let _ = self.phases.send(Phase::Quiet);
        }
    }

    /// True when no journal of the worker has anything left to write.
    pub(super) fn have_ended(&self) -> bool {
        use JournalState::{Closed, Fenced, Poisoned};
        self.seen.iter().all(|state| matches!(state, Closed | Poisoned | Fenced))
    }
}

impl JournalState {
    const ALL: [Self; 7] = [
        Self::Opening,
        Self::Ready,
        Self::Closed,
        Self::Full,
        Self::Unavailable,
        Self::Poisoned,
        Self::Fenced,
    ];

    /// As it is called in metrics and on `$SYS`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Ready => "ready",
            Self::Closed => "closed",
            Self::Full => "full",
            Self::Unavailable => "unavailable",
            Self::Poisoned => "poisoned",
            Self::Fenced => "fenced",
        }
    }

    /// Nothing comes of it without an operator, or another owner.
    const fn is_final(self) -> bool {
        matches!(self, Self::Poisoned | Self::Fenced)
    }

    /// What passes by itself, and is reported when it begins and when it ends.
    const fn is_trouble(self) -> bool {
        matches!(self, Self::Full | Self::Unavailable)
    }

    fn of(status: &Status) -> Self {
        match status {
            Status::Opening => Self::Opening,
            Status::Ready => Self::Ready,
            Status::Closed => Self::Closed,
            Status::Full(_) => Self::Full,
            Status::Unavailable(_) => Self::Unavailable,
            Status::Poisoned(_) => Self::Poisoned,
            Status::Fenced(_) => Self::Fenced,
        }
    }
}

/// The last state of a journal that was logged.
#[derive(Clone, Copy, Debug)]
struct LastReported {
    /// [`JournalState::Ready`] stands for all that is no trouble.
    state: JournalState,
    is_damaged: bool,
    at_ms: u64,
}

impl Default for LastReported {
    fn default() -> Self {
        Self { state: JournalState::Ready, is_damaged: false, at_ms: 0 }
    }
}

impl LastReported {
    /// One line per change, not per message; and a journal that is full again and again, because
    /// what is acknowledged makes room for a moment, says so now and then only.
    fn look(&mut self, shard: ShardId, status: &Status, now_ms: u64) {
        let found = JournalState::of(status);
        let state = match found.is_trouble() || found.is_final() {
            true => found,
            false => JournalState::Ready,
        };
        let is_due = state.is_final() || now_ms >= self.at_ms + REPORT_INTERVAL_MS;
        if state != self.state && is_due && !self.state.is_final() {
            journal_change(shard, status, self.state);
            *self = Self { state, at_ms: now_ms, ..*self };
        }
    }

    /// Once, until it can be read again.
    fn look_at_damage(&mut self, shard: ShardId, damage: Option<Position>) {
        let was_damaged = std::mem::replace(&mut self.is_damaged, damage.is_some());
        if was_damaged && !self.is_damaged {
            tracing::info!(shard, "the log can be read again: its disk space is reclaimed");
        }
        let Some(at) = damage.filter(|_| !was_damaged) else { return };
        tracing::error!(
            shard,
            %at,
            "cannot read stored records of the log: its disk space is not reclaimed; make a backup, then run `quelea log check` on it"
        );
    }
}

/// `before`: what was reported last.
fn journal_change(shard: ShardId, status: &Status, before: JournalState) {
    match status {
        Status::Full(fault) => tracing::error!(
            shard,
            %fault,
            "no space for the log: messages that must be stored are refused or wait for free \
            space; stored messages stay readable"
        ),
        // The thread of the cluster logs it: no worker goes on while the lease has run out.
        Status::Unavailable(fault) => tracing::debug!(shard, %fault, "the log has no quorum"),
        Status::Fenced(fault) => tracing::error!(
            shard,
            %fault,
            "another node has taken over the log: this node no longer acknowledges messages and \
             becomes a standby"
        ),
        Status::Poisoned(fault) => tracing::error!(
            shard,
            %fault,
            "a write or sync of the log failed: no message that must be stored is acknowledged \
            any more; repair the disk, then restart the broker"
        ),
        _ if before == JournalState::Unavailable => {
            tracing::debug!(shard, "the log has a quorum again");
        }
        Status::Opening | Status::Ready | Status::Closed => {
            tracing::info!(shard, "the log has free space again");
        }
    }
}

/// How the journals are, for metrics, `$SYS` and health checks. Written by workers and disk
/// threads, read by any.
#[derive(Debug)]
pub struct JournalBoard {
    journals: Box<[JournalFigures]>,
    pub commits: Timing,
    health: Health,
}

/// The last figures of one journal.
#[derive(Debug, Default)]
struct JournalFigures {
    state: AtomicU8,
    figures: [AtomicU64; FIGURES.len()],
}

/// A figure of a journal: the end of its metric's name, whether it only grows, what it is, and
/// where it comes from.
pub struct Figure {
    pub name: &'static str,
    pub kind: broker::MetricType,
    pub help: &'static str,
    of: fn(&Stats) -> u64,
}

impl JournalBoard {
    /// A board for so many journals; 0: nothing is kept.
    pub fn new(journals: u16, health: Health) -> Self {
        let journals = (0..journals).map(|_| JournalFigures::default()).collect();
        Self { journals, commits: Timing::default(), health }
    }

    pub fn journal_count(&self) -> usize {
        self.journals.len()
    }

    /// The state of each journal.
    pub fn states(&self) -> impl Iterator<Item = JournalState> {
        self.journals.iter().map(|journal| {
            JournalState::ALL
                [usize::from(journal.state.load(Ordering::Relaxed)) % JournalState::ALL.len()]
        })
    }

    /// The figure with this place in [`FIGURES`], of each journal.
    pub fn figures(&self, place: usize) -> impl Iterator<Item = u64> {
        self.journals.iter().map(move |journal| journal.figures[place].load(Ordering::Relaxed))
    }

    /// Which journal takes nothing, if one does.
    pub(super) fn why_not_ready(&self) -> Option<String> {
        let mut states = self.states().enumerate();
        let is_stuck = |state| matches!(state, JournalState::Unavailable | JournalState::Fenced);
        let (shard, state) = states.find(|(_, state)| is_stuck(*state))?;
        Some(match state {
            JournalState::Fenced => format!("shard {shard}: another node has taken over its log"),
            _ => format!("shard {shard}: its replicated log has no quorum"),
        })
    }

    pub(crate) fn show(&self, shard: ShardId, state: JournalState, stats: &Stats) {
        let Some(journal) = self.journals.get(usize::from(shard)) else { return };
        journal.state.store(state as u8, Ordering::Relaxed);
        for (cell, figure) in journal.figures.iter().zip(FIGURES) {
            cell.store((figure.of)(stats), Ordering::Relaxed);
        }
        if state == JournalState::Poisoned {
            self.health.set(State::Failed);
        }
    }
}

/// What is shown of each journal.
pub const FIGURES: &[Figure] = &[
    Figure {
        name: "live_bytes",
        kind: broker::MetricType::Gauge,
        help: "Bytes of records that are still needed.",
        of: |stats| stats.live_bytes,
    },
    Figure {
        name: "live_limit_bytes",
        kind: broker::MetricType::Gauge,
        help: "Bytes of needed records above which the log may become full. 0: no limit.",
        of: |stats| stats.live_bytes_max,
    },
    Figure {
        name: "used_bytes",
        kind: broker::MetricType::Gauge,
        help: "Bytes of the log that are used, including those to be reclaimed.",
        of: |stats| stats.used_bytes,
    },
    Figure {
        name: "pending_bytes",
        kind: broker::MetricType::Gauge,
        help: "Bytes queued for a write.",
        of: |stats| stats.pending_bytes as u64,
    },
    Figure {
        name: "segments",
        kind: broker::MetricType::Gauge,
        help: "Files of the log, including spare ones.",
        of: |stats| (stats.segments + stats.spares) as u64,
    },
    Figure {
        name: "records_total",
        kind: broker::MetricType::Counter,
        help: "Records appended.",
        of: |stats| stats.records_appended,
    },
    Figure {
        name: "appended_bytes_total",
        kind: broker::MetricType::Counter,
        help: "Bytes appended.",
        of: |stats| stats.bytes_appended,
    },
    Figure {
        name: "commits_total",
        kind: broker::MetricType::Counter,
        help: "Groups of records written.",
        of: |stats| stats.commits,
    },
    Figure {
        name: "syncs_total",
        kind: broker::MetricType::Counter,
        help: "Groups of records that were synced to the medium.",
        of: |stats| stats.syncs,
    },
    Figure {
        name: "refused_total",
        kind: broker::MetricType::Counter,
        help: "Records refused for lack of space.",
        of: |stats| stats.refused_full,
    },
    Figure {
        name: "segments_reclaimed_total",
        kind: broker::MetricType::Counter,
        help: "Files whose space was reclaimed.",
        of: |stats| stats.segments_reclaimed,
    },
    Figure {
        name: "damaged",
        kind: broker::MetricType::Gauge,
        help: "1 while records cannot be read to reclaim their space. Failed reads are retried; damaged records only at the next start.",
        of: |stats| stats.is_damaged.into(),
    },
    Figure {
        name: "reclaim_read_bytes_total",
        kind: broker::MetricType::Counter,
        help: "Bytes read in order to reclaim space.",
        of: |stats| stats.bytes_reclaim_read,
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::worker::EventWaker;

    #[test]
    fn a_journal_that_is_full_again_and_again_is_reported_now_and_then() {
        let fault = || Fault { kind: storage::FaultKind::NoSpace, detail: "full".to_owned() };
        let mut last_reported = LastReported::default();
        let mut lines = Vec::new();
        let start_ms = 1_700_000_000_000;
        for tick in 0..300 {
            let now_ms = start_ms + tick * 100;
            let status = if tick % 2 == 0 { Status::Full(fault()) } else { Status::Ready };
            let before = last_reported.at_ms;
            last_reported.look(0, &status, now_ms);
            if last_reported.at_ms != before {
                lines.push((now_ms - start_ms, last_reported.state == JournalState::Full));
            }
        }
        assert_eq!(lines, [(0, true), (10_100, false), (20_200, true)]);
        last_reported.look(0, &Status::Poisoned(fault()), start_ms + 30_000);
        assert_eq!(last_reported.state, JournalState::Poisoned, "at once");
        last_reported.look(0, &Status::Ready, start_ms + 90_000);
        assert_eq!(last_reported.state, JournalState::Poisoned, "for ever");
    }

    #[test]
    fn damage_is_reported_once_whatever_else_is() {
        let mut last_reported = LastReported::default();
        last_reported.look_at_damage(0, None);
        assert!(!last_reported.is_damaged);
        last_reported.look_at_damage(0, Some(Position::new(3, 4096)));
        last_reported.look(0, &Status::Ready, 1_700_000_000_000);
        let fault = Fault { kind: storage::FaultKind::NoSpace, detail: "full".to_owned() };
        last_reported.look(0, &Status::Full(fault), 1_700_000_000_000);
        assert_eq!((last_reported.is_damaged, last_reported.state), (true, JournalState::Full));
        let board = JournalBoard::new(1, Health::new());
        board.show(0, JournalState::Ready, &Stats { is_damaged: true, ..Stats::default() });
        let place = FIGURES.iter().position(|figure| figure.name == "damaged").unwrap();
        assert_eq!(board.figures(place).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_turn_too_early_for_figures_is_followed_by_one_that_shows_them() {
        let poll = mio::Poll::new().unwrap();
        let waker = mio::Waker::new(poll.registry(), mio::Token(0)).unwrap();
        let mailbox = Arc::new(Mailbox::new(EventWaker(waker)));
        let board = Arc::new(JournalBoard::new(0, Health::new()));
        let (phases, _ends) = std::sync::mpsc::channel();
        let mut journals = Journals::new(Vec::new(), &mailbox, &board, &phases);
        journals.carry_out(&mut Shards::new(Vec::new()), 1000);
        assert_eq!(journals.next_deadline_ms(), None);
        journals.carry_out(&mut Shards::new(Vec::new()), 1001);
        assert_eq!(journals.next_deadline_ms(), Some(1000 + FIGURES_INTERVAL_MS));
        journals.carry_out(&mut Shards::new(Vec::new()), 1000 + FIGURES_INTERVAL_MS);
        assert_eq!(journals.next_deadline_ms(), None);
    }

    #[test]
    fn a_journal_without_a_quorum_and_one_of_another_owner_do_not_fail_the_health_check() {
        let health = Health::new();
        health.set(State::Ready);
        let board = JournalBoard::new(2, health.clone());
        board.show(0, JournalState::Unavailable, &Stats::default());
        board.show(1, JournalState::Fenced, &Stats::default());
        assert_eq!(health.state(), State::Ready);
        assert_eq!(
            board.states().collect::<Vec<_>>(),
            [JournalState::Unavailable, JournalState::Fenced]
        );

        let fault = |kind| Fault { kind, detail: "no answer".to_owned() };
        let mut last_reported = LastReported::default();
        let start_ms = 1_700_000_000_000;
        last_reported.look(
            0,
            &Status::Unavailable(fault(storage::FaultKind::Unavailable)),
            start_ms,
        );
        assert_eq!(last_reported.state, JournalState::Unavailable);
        last_reported.look(0, &Status::Ready, start_ms + 1000);
        assert_eq!(last_reported.state, JournalState::Unavailable, "later");
        last_reported.look(0, &Status::Ready, start_ms + REPORT_INTERVAL_MS);
        assert_eq!(last_reported.state, JournalState::Ready);
        last_reported.look(
            0,
            &Status::Fenced(fault(storage::FaultKind::Fenced)),
            start_ms + 10_001,
        );
        assert_eq!(last_reported.state, JournalState::Fenced, "at once");
    }

    #[test]
    fn a_journal_without_a_quorum_is_the_reason_not_to_be_ready() {
        let board = JournalBoard::new(2, Health::new());
        assert_eq!(board.why_not_ready(), None);
        board.show(1, JournalState::Unavailable, &Stats::default());
        let why = board.why_not_ready().unwrap();
        assert!(why.contains("shard 1") && why.contains("no quorum"), "{why}");
        board.show(1, JournalState::Ready, &Stats::default());
        assert_eq!(board.why_not_ready(), None);
    }

    #[test]
    fn each_commit_is_timed_by_itself_and_forgotten() {
        let submitted = Submitted::default();
        (1..=3).for_each(|id| submitted.note(CommandId(id)));
        assert!(submitted.take(CommandId(2)).is_some());
        assert_eq!(submitted.take(CommandId(2)), None, "a read, or one twice");
        assert!(submitted.take(CommandId(1)).is_some());
        assert!(submitted.take(CommandId(3)).is_some());
        assert!(submitted.lock().is_empty());
    }

    #[test]
    fn a_poisoned_journal_fails_the_health_check() {
        let health = Health::new();
        health.set(State::Ready);
        let board = JournalBoard::new(2, health.clone());
        board.show(0, JournalState::Full, &Stats::default());
        assert_eq!(health.state(), State::Ready, "a full disk passes");
        board.show(1, JournalState::Poisoned, &Stats { live_bytes: 7, ..Stats::default() });
        assert_eq!(health.state(), State::Failed);
        assert_eq!(
            board.states().collect::<Vec<_>>(),
            [JournalState::Full, JournalState::Poisoned]
        );
        assert_eq!(board.figures(0).collect::<Vec<_>>(), [0, 7]);
    }
}
