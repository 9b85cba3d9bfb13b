//! The disks: one under each shard's journal, the thread that commits for all of them, and what is
//! read from them at a start.

use std::cell::{RefCell, RefMut};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use broker::journal::Fact;
use broker::{Replay, ShardId};
use driver::testing::InPlaceDisk;
use storage::testing::{Crash, SimDisk};
use storage::{
    Command, CommandId, CommandQueue, Completion, Identity, InPlaceEnd, Journal, Ledger, Outcome,
    Position, Record, RecordKind, Recovered, Refusal, RoundRules, Rounds, RoundsFlaw, Settings,
    Step, Submission,
};

use crate::random::Random;
use crate::sabotage::Sabotage;

pub(crate) struct Disks {
    pub(crate) settings: Settings,
    pub(crate) disks: SharedDisks,
    /// Of each disk, the newest segment as it was at some earlier start.
    pub(crate) copies: Vec<Option<(u32, Vec<u8>)>>,
    /// What the commit thread does, and how far it is in its round.
    rounds: Rounds,
    stage: Stage,
    rules: RoundRules,
    in_place_bytes_max: usize,
    /// Commits that came during the round, and when.
    arrivals: VecDeque<(Submission, u64)>,
    /// Done by the disk, and not yet told to the shard.
    completions: Vec<VecDeque<Completion>>,
    sabotage: Option<Sabotage>,
    /// Commands that were reported before they were done.
    early: BTreeSet<(usize, CommandId)>,
    pub(crate) random: Random,
}

/// The disks, which drivers write to in place.
pub(crate) type SharedDisks = Rc<RefCell<Vec<SimDisk>>>;

/// How far the commit thread is.
#[derive(Debug)]
enum Stage {
    Idle,
    Writing,
    /// The syncs that go on side by side.
    Syncing(Vec<(usize, Step)>),
}

/// A record as recovery hands it out: place, kind, content.
pub(crate) type Found = (Position, RecordKind, Vec<u8>);

impl Disks {
    /// `thrift`: how much of a journal is left to what frees more than it takes, and how commits
    /// wait for each other.
    pub(crate) fn new(
        shards: ShardId,
        sabotage: Option<Sabotage>,
        random: &mut Random,
        thrift: &mut Random,
    ) -> Self {
        let ignore_syncs = sabotage == Some(Sabotage::IgnoreSyncs);
        let disk = |random: &mut Random| {
            let mut disk = SimDisk::new(random.next());
            disk.faults.ignore_syncs = ignore_syncs;
            if sabotage.is_none() {
                disk.record_writes();
            }
            disk.faults.ignore_manifests = sabotage == Some(Sabotage::IgnoreManifests);
            disk
        };
        let mut settings = Settings {
            slack_segments: random.below(3) as u32,
            lazy_commit_ms: LAZY_COMMIT_MS[thrift.below(LAZY_COMMIT_MS.len())],
            sync_interval_ms: SYNC_INTERVAL_MS,
            retry_ms: 200,
            ..Settings::with_segment_bytes(SEGMENT_BYTES << random.below(2))
        };
        if thrift.chance(50) {
            settings.reserve_bytes = 0;
        }
        let mut in_place_bytes_max = IN_PLACE_BYTES_MAX[thrift.below(IN_PLACE_BYTES_MAX.len())];
        if sabotage == Some(Sabotage::OvertakeThread) {
            // The thread has a write whenever a turn has more than a message.
            in_place_bytes_max = IN_PLACE_BYTES_MAX[1];
            settings.lazy_commit_ms = 0;
        }
        let delay_ms = COMMIT_DELAY_MS[thrift.below(COMMIT_DELAY_MS.len())];
        let bytes_max = ROUND_BYTES_MAX[thrift.below(ROUND_BYTES_MAX.len())];
        let rules = RoundRules { delay_us: delay_ms * 1000, bytes_max };
        Self {
            settings,
            rounds: new_rounds(shards, rules, sabotage),
            stage: Stage::Idle,
            rules,
            in_place_bytes_max,
            arrivals: VecDeque::new(),
            disks: Rc::new(RefCell::new((0..shards).map(|_| disk(random)).collect())),
            copies: vec![None; usize::from(shards)],
            completions: (0..shards).map(|_| VecDeque::new()).collect(),
            sabotage,
            early: BTreeSet::new(),
            random: Random::new(random.next()),
        }
    }

    /// From now on hostile clients can fill the journals. `padding_max`: of the messages of the
    /// honest ones, to whom as much is left as they need.
    pub(crate) fn make_journals_small(&mut self, padding_max: usize) {
        let needed = HONEST_JOURNAL_BYTES + HONEST_JOURNAL_MESSAGES * padding_max as u64;
        let bytes = needed * JOURNAL_LAST_PART * self.settings.space_percent as u64 / 100;
        let segments = bytes.div_ceil(u64::from(self.settings.segment_bytes));
        let segments = segments + u64::from(self.settings.slack_segments) + 2;
        self.settings.log_bytes_max = u64::from(self.settings.segment_bytes) * segments;
    }

    /// `journal`: that which the command is of.
    pub(crate) fn submit(
        &mut self,
        (shard, journal): (ShardId, Option<&Journal>),
        command: Command,
        now_ms: u64,
    ) {
        let shard = usize::from(shard);
        if self.sabotage == Some(Sabotage::CommitEarly)
            && let Command::Commit { id, steps, .. } = &command
        {
            let outcome = Outcome::Committed { steps_done: steps.len(), fault: None };
            self.completions[shard].push_back(Completion { id: *id, outcome });
            self.early.insert((shard, *id));
        }
        if command.queue() == CommandQueue::Background {
            return self.disk(shard).submit(command);
        }
        let is_shared = journal.is_some_and(Journal::is_commit_shared);
        let submission = Submission { journal: shard, command, is_shared };
        self.arrivals.push_back((submission, now_ms * 1000));
    }

    /// One step of a thread that has something to do.
    pub(crate) fn step_any(&mut self, now_ms: u64) {
        if self.sabotage == Some(Sabotage::CommitEarly) && !self.random.chance(20) {
            // Slow ones: hardly anything happens before the commit otherwise.
            return;
        }
        let busy: Vec<usize> = self.shards().filter(|shard| !self.disk(*shard).is_idle()).collect();
        if !busy.is_empty() && self.random.chance(50) {
            let shard = busy[self.random.below(busy.len())];
            self.step_background(shard);
        } else {
            self.step_commits(now_ms);
        }
    }

    fn step_background(&mut self, shard: usize) {
        let completion = self.disk(shard).step();
        if let Some(completion) = completion {
            self.complete(shard, completion);
        }
    }

    /// One step of the commit thread: a part of a write, or a sync.
    fn step_commits(&mut self, now_ms: u64) {
        match &mut self.stage {
            Stage::Idle => {
                self.take_arrivals();
                if self.rounds.begins_at_us().is_some_and(|at_us| at_us <= now_ms * 1000) {
                    self.rounds.begin(now_ms * 1000);
                    self.stage = Stage::Writing;
                }
            }
            Stage::Writing => match self.rounds.next_write() {
                Some(part) => {
                    let result = disk_of(&self.disks, part.journal).write(&part);
                    self.rounds.on_write(&part, result);
                }
                None => {
                    self.answer();
                    self.stage = Stage::Syncing(self.rounds.syncs());
                }
            },
            Stage::Syncing(syncs) if syncs.is_empty() => {
                self.rounds.end(now_ms * 1000);
                self.stage = Stage::Idle;
            }
            Stage::Syncing(syncs) => {
                let (shard, step) = syncs.swap_remove(self.random.below(syncs.len()));
                let is_last = syncs.is_empty();
                let result = disk_of(&self.disks, shard).sync(&step);
                self.rounds.on_sync(shard, result);
                if is_last {
                    self.answer();
                    self.stage = Stage::Syncing(self.rounds.syncs());
                }
            }
        }
    }

    fn take_arrivals(&mut self) {
        for (submission, at_us) in self.arrivals.drain(..) {
            self.rounds.submit(submission, at_us);
        }
    }

    fn answer(&mut self) {
        for answer in self.rounds.take_answers() {
            self.complete(answer.journal, answer.completion);
        }
    }

    fn complete(&mut self, shard: usize, completion: Completion) {
        if self.early.remove(&(shard, completion.id)) {
            return;
        }
        let loses = self.sabotage == Some(Sabotage::LoseCompletion);
        if !loses || !self.random.chance(5) {
            self.completions[shard].push_back(completion);
        }
    }

    /// Carries out all that was submitted, but what waits for others. False: nothing was.
    pub(crate) fn work(&mut self, now_ms: u64) -> bool {
        let mut has_worked = false;
        for shard in self.shards() {
            while !self.disk(shard).is_idle() {
                self.step_background(shard);
                has_worked = true;
            }
        }
        while !self.are_commits_done() && !self.delays_commit(now_ms) {
            self.step_commits(now_ms);
            has_worked = true;
        }
        has_worked
    }

    /// Commits wait for others, and nothing else is left.
    pub(crate) fn delays_commit(&mut self, now_ms: u64) -> bool {
        if !matches!(self.stage, Stage::Idle) {
            return false;
        }
        self.take_arrivals();
        self.rounds.begins_at_us().is_some_and(|at_us| at_us > now_ms * 1000)
    }

    fn are_commits_done(&self) -> bool {
        let is_idle = matches!(self.stage, Stage::Idle);
        is_idle && self.arrivals.is_empty() && self.rounds.is_idle()
    }

    /// The next thing that a disk has done, of any shard.
    pub(crate) fn next_completion(&mut self) -> Option<(ShardId, Completion)> {
        let completing = self.shards().filter(|shard| !self.completions[*shard].is_empty());
        let completing: Vec<usize> = completing.collect();
        if completing.is_empty() {
            return None;
        }
        let shard = completing[self.random.below(completing.len())];
        let completion = self.completions[shard].pop_front()?;
        Some((shard as ShardId, completion))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.disks.borrow().iter().all(SimDisk::is_idle)
            && self.are_commits_done()
            && self.completions.iter().all(VecDeque::is_empty)
    }

    /// Whose journal begins behind its first segment, because space came back.
    pub(crate) fn reclaimed(&self) -> u32 {
        let first = |disk: &SimDisk| disk.files().first().map_or(0, |file| file.number - 1);
        self.disks.borrow().iter().map(first).max().unwrap_or(0)
    }

    /// The process ends, or the power for all disks.
    pub(crate) fn crash(&mut self, crash: Crash) {
        self.completions.iter_mut().for_each(VecDeque::clear);
        self.early.clear();
        if matches!(self.stage, Stage::Idle) {
            self.take_arrivals();
        }
        self.arrivals.clear();
        // What any journal would do next may have been begun.
        self.rounds.begin(0);
        for (shard, disk) in self.disks.borrow_mut().iter_mut().enumerate() {
            let write = self.rounds.write_of(shard);
            disk.crash_within(crash, write.as_ref(), self.rounds.step_of(shard));
            disk.faults.fail_next_sync = false;
            disk.faults.fail_next_write = false;
            disk.faults.fail_reads = false;
        }
        self.rounds = new_rounds(self.shards().len() as ShardId, self.rules, self.sabotage);
        self.stage = Stage::Idle;
    }

    /// A disk has hardly any space left.
    pub(crate) fn fill_one(&mut self) {
        let shard = self.random.below(self.shards().len());
        let mut disk = disk_of(&self.disks, shard);
        let used: u64 = disk.files().iter().map(|file| file.bytes).sum();
        let more = self.random.below(2) as u64 * u64::from(self.settings.segment_bytes);
        disk.faults.capacity_bytes = used + more;
        disk.faults.write_no_space_percent = if self.random.chance(30) { 30 } else { 0 };
    }

    pub(crate) fn fail_one(&mut self) {
        let shard = self.random.below(self.shards().len());
        let faults = &mut disk_of(&self.disks, shard).faults;
        match self.random.below(3) {
            0 => faults.fail_next_sync = true,
            1 => faults.fail_next_write = true,
            _ => faults.fail_reads = true,
        }
    }

    /// Space is back, and nothing fails.
    pub(crate) fn heal(&mut self) {
        for disk in self.disks.borrow_mut().iter_mut() {
            disk.faults.capacity_bytes = u64::MAX;
            disk.faults.write_no_space_percent = 0;
            disk.faults.fail_next_sync = false;
            disk.faults.fail_next_write = false;
            disk.faults.fail_reads = false;
        }
    }

    /// What is on the disk of a shard, and the state that follows from it.
    pub(crate) fn recover(&mut self, shard: ShardId) -> Result<(Recovered, Replay), Refusal> {
        let mut replay = Replay::new(u64::from(shard));
        let mut random = self.random.clone();
        let sabotage = self.sabotage;
        let newest = match sabotage {
            Some(Sabotage::ForgetNewest) => self.survey(shard)?.0.pop().map(|(at, ..)| at),
            _ => None,
        };
        let recovered = self.read_journal(shard, &mut |record, ledger| {
            let is_forgotten = match sabotage {
                Some(Sabotage::ForgetFact(kind)) => {
                    record.kind == RecordKind::new(kind) && random.chance(30)
                }
                Some(Sabotage::ForgetAll) => true,
                Some(Sabotage::ForgetNewest) => newest == Some(record.position),
                Some(Sabotage::SkipSegment) => record.position.segment().is_multiple_of(3),
                _ => false,
            };
            if sabotage == Some(Sabotage::ClearWillsEarly)
                && let Ok(Fact::WillTaken { session, .. }) =
                    Fact::decode(record.kind.get(), record.bytes)
            {
                if let Some(session) = session {
                    let fact = Fact::WillCleared { session };
                    let mut bytes = Vec::new();
                    fact.encode(&mut bytes);
                    let kind = RecordKind::new(fact.kind());
                    replay.on_record(Record { kind, bytes: &bytes, ..record }, ledger);
                }
            } else if !is_forgotten {
                replay.on_record(record, ledger);
            }
        })?;
        self.random = random;
        match self.follow(shard)? {
            Some((followed, replay)) => {
                let of = |recovered: &Recovered| format!("{:?}", recovered.ledger);
                assert_eq!(of(&followed), of(&recovered), "a standby has another ledger");
                Ok((followed, replay))
            }
            None => Ok((recovered, replay)),
        }
    }

    /// What a standby has that was brought all writes to a disk from the first on. `None`: power
    /// failed, or the files were damaged.
    fn follow(&self, shard: ShardId) -> Result<Option<(Recovered, Replay)>, Refusal> {
        let mut replay = Replay::new(u64::from(shard));
        let owner = (shard, self.shards().len() as ShardId);
        let disk = self.disk(usize::from(shard));
        let followed = disk.follow(owner, &self.settings, &mut |record, ledger| {
            replay.on_record(record, ledger);
        });
        let Some(follow) = followed.transpose()? else { return Ok(None) };
        follow.check()?;
        Ok(Some((follow.finish(self.identity(shard)), replay)))
    }

    fn identity(&self, shard: ShardId) -> Identity {
        let mut id = *b"log 00 of a sim.";
        id[5] += shard as u8;
        Identity { id, shard, shards: self.shards().len() as ShardId }
    }

    fn read_journal(
        &self,
        shard: ShardId,
        sink: &mut dyn FnMut(Record<'_>, &mut Ledger),
    ) -> Result<Recovered, Refusal> {
        let disk = self.disk(usize::from(shard));
        let shards = self.shards().len() as ShardId;
        let recovery = disk.read_back((shard, shards), &self.settings, sink)?;
        Ok(recovery.finish(self.identity(shard)))
    }

    pub(crate) fn survey(&self, shard: ShardId) -> Result<(Vec<Found>, storage::Report), Refusal> {
        let mut found = Vec::new();
        let recovered = self.read_journal(shard, &mut |record, _| {
            found.push((record.position, record.kind, record.bytes.to_vec()));
        })?;
        Ok((found, recovered.report))
    }

    /// What a driver may write in place, and on what.
    pub(crate) fn in_place(&self) -> (usize, SharedDisks) {
        (self.in_place_bytes_max, self.disks.clone())
    }

    pub(crate) fn disk(&self, shard: usize) -> RefMut<'_, SimDisk> {
        disk_of(&self.disks, shard)
    }

    pub(crate) fn shards(&self) -> std::ops::Range<usize> {
        0..self.completions.len()
    }
}

/// Writes in place. Now and then it is slow, or leaves the rest to the commit thread.
pub(crate) fn writer(disks: SharedDisks, seed: u64) -> InPlaceDisk {
    let mut random = Random::new(seed);
    Box::new(move |shard, write| {
        let mut disk = disk_of(&disks, usize::from(shard));
        match random.below(20) {
            0 => disk.tear_in_place(write),
            1 if disk.write_in_place(write) == InPlaceEnd::Done => InPlaceEnd::Slow,
            1 => InPlaceEnd::NotDone,
            _ => disk.write_in_place(write),
        }
    })
}

pub(crate) fn disk_of(disks: &SharedDisks, shard: usize) -> RefMut<'_, SimDisk> {
    RefMut::map(disks.borrow_mut(), |disks| &mut disks[shard])
}

fn new_rounds(shards: ShardId, rules: RoundRules, sabotage: Option<Sabotage>) -> Rounds {
    let mut rounds = Rounds::new(usize::from(shards), rules);
    match sabotage {
        Some(Sabotage::AnswerBeforeSync) => rounds.plant(RoundsFlaw::AnswersBeforeSync),
        Some(Sabotage::FailNeighbour) => rounds.plant(RoundsFlaw::FailsNeighbour),
        _ => {}
    }
    rounds
}

/// The smallest segments, so that space has to come back.
const SEGMENT_BYTES: u32 = 64 * 1024;

/// What honest users hold in a journal between them, beside the padding of their messages.
const HONEST_JOURNAL_BYTES: u64 = 32 * 1024;
const HONEST_JOURNAL_MESSAGES: u64 = 40;
/// The part of a journal that is for those who have little there
/// (`crates/core/broker/src/words/shared.rs`).
const JOURNAL_LAST_PART: u64 = 16;

/// What is kept at level `disk` is synced after so long.
pub(crate) const SYNC_INTERVAL_MS: u32 = 500;

/// How long commits wait for others: in most worlds they do not, as in most brokers.
const COMMIT_DELAY_MS: [u64; 4] = [0, 0, 2, 20];

/// What a journal may write in place: in some worlds nothing, in others not all.
const IN_PLACE_BYTES_MAX: [usize; 4] = [0, 500, 64 << 10, 64 << 10];

/// What a journal may write in a round: so little that some writes take several.
const ROUND_BYTES_MAX: [usize; 4] = [3000, 10_000, 1 << 20, 1 << 20];

/// How long records that nobody waits for may wait, in the logs of a world.
pub(crate) const LAZY_COMMIT_MS: [u32; 3] = [0, 3, 30];
