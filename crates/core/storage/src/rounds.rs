//! The commits of all journals of a data directory, in rounds of one thread.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::command::{Command, CommandId, CommitGuard, Completion, Fault, Outcome, Step};

/// What the commit thread of a data directory does, as a state machine.
///
/// A round takes what all journals have submitted. It does all writes, then gives the answers to
/// commits without a sync, then does the syncs, then gives their answers. The commits and steps of
/// one journal stay in their order. A fault of one journal does not affect another.
///
/// Commits of a journal that follow each other share a sync: the earlier one uses that of the later
/// one, if this writes to the same segment. So what came during a round is done in the next.
///
/// The length of a round is bounded by [`RoundRules::bytes_max`].
#[derive(Debug)]
pub struct Rounds {
    journals: Vec<Line>,
    answers: Vec<Answer>,
    rules: RoundRules,
    /// When the next round may begin. `None`: nothing waits.
    begins_at_us: Option<u64>,
    /// When two messages last waited for the disk at the same time.
    shared_at_us: Option<u64>,
    /// When the last round ended.
    ended_us: u64,
    is_under_way: bool,
    now_us: u64,
    #[cfg(feature = "testing")]
    flaw: Option<RoundsFlaw>,
}

/// The limits of rounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoundRules {
    /// How long a commit that is not alone waits for others.
    pub delay_us: u64,
    /// What one journal may write in one round. Policy: the rest waits for the next one, so that a
    /// large commit of one journal never holds up the small ones of others. Default 1 MiB.
    pub bytes_max: usize,
}

/// A commit for [`Rounds::submit`].
#[derive(Debug)]
pub struct Submission {
    /// The place of its journal among those of the directory.
    pub journal: usize,
    pub command: Command,
    /// It has messages that came while another commit of its journal was under way.
    pub is_shared: bool,
}

/// The answer to a commit.
#[derive(Debug)]
pub struct Answer {
    pub journal: usize,
    pub completion: Completion,
    /// When the thread began with the commit.
    pub began_us: u64,
}

/// A write to be done now, or a part of one that is large.
#[derive(Debug)]
pub struct WritePart {
    pub journal: usize,
    pub segment: u32,
    /// Of the part in the file.
    pub offset: u32,
    bytes: Arc<Vec<u8>>,
    range: Range<usize>,
}

/// A planted bug.
#[cfg(feature = "testing")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoundsFlaw {
    /// A commit is answered before its sync.
    AnswersBeforeSync,
    /// The fault of one journal is reported to another one, if that has a commit.
    FailsNeighbour,
}

/// The commits of one journal.
#[derive(Debug, Default)]
struct Line {
    commits: VecDeque<Waiting>,
    /// Commits at the front that have nothing to do but their sync, which is left to a later one,
    /// or wait behind such a commit.
    passed: usize,
    /// Of the commit behind them.
    steps_done: usize,
    /// Of its next step, a write.
    bytes_done: usize,
    /// What stopped it: it is answered behind those that are passed.
    fault: Option<Fault>,
    /// What may still be written in this round.
    bytes_left: usize,
    guard: CommitGuard,
}

#[derive(Debug)]
struct Waiting {
    command: Command,
    /// Once it is the first one in a round.
    began_us: Option<u64>,
    #[cfg(feature = "testing")]
    is_answered: bool,
}

impl Default for RoundRules {
    fn default() -> Self {
        Self { delay_us: 0, bytes_max: 1 << 20 }
    }
}

impl WritePart {
    /// What is to be written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }

    /// Where the whole write begins, and what of it is there once the first `len` bytes of this
    /// part are.
    #[cfg(feature = "testing")]
    pub(crate) fn written(&self, len: usize) -> (u32, &[u8]) {
        let end = self.range.start + len;
        (self.offset - self.range.start as u32, &self.bytes[..end])
    }

    #[cfg(feature = "testing")]
    pub(crate) fn is_last(&self) -> bool {
        self.range.end == self.bytes.len()
    }
}

impl Rounds {
    /// For so many journals.
    pub fn new(journals: usize, rules: RoundRules) -> Self {
        Self {
            journals: (0..journals).map(|_| Line::default()).collect(),
            answers: Vec::new(),
            rules,
            begins_at_us: None,
            shared_at_us: None,
            ended_us: 0,
            is_under_way: false,
            now_us: 0,
            #[cfg(feature = "testing")]
            flaw: None,
        }
    }

    /// A planted bug.
    #[cfg(feature = "testing")]
    pub const fn plant(&mut self, flaw: RoundsFlaw) {
        self.flaw = Some(flaw);
    }

    /// Takes a commit between two rounds. It came at a time, which may be before the end of the
    /// last one.
    pub fn submit(&mut self, submission: Submission, at_us: u64) {
        debug_assert!(!self.is_under_way, "a round has what was there when it began");
        let Submission { journal, command, is_shared } = submission;
        if is_shared || !self.is_idle() || at_us < self.ended_us {
            self.shared_at_us = self.shared_at_us.max(Some(at_us));
        }
        let is_alone = self.shared_at_us.is_none_or(|shared| shared + self.rules.delay_us <= at_us);
        let waits = !is_alone && may_wait(&command);
        let begins_at_us = if waits { at_us + self.rules.delay_us } else { 0 };
        let line = &mut self.journals[journal];
        line.commits.push_back(Waiting::new(command));
        let is_full = line.bytes_waiting() >= self.rules.bytes_max;
        let begins_at_us = if is_full { 0 } else { begins_at_us };
        self.begins_at_us = Some(self.begins_at_us.unwrap_or(u64::MAX).min(begins_at_us));
    }

    /// When the next round may begin. `None`: there is nothing to do.
    pub const fn begins_at_us(&self) -> Option<u64> {
        self.begins_at_us
    }

    /// Is there nothing to do?
    pub fn is_idle(&self) -> bool {
        self.journals.iter().all(|line| line.commits.is_empty())
    }

    /// Begins a round.
    pub fn begin(&mut self, now_us: u64) {
        self.now_us = now_us;
        self.is_under_way = true;
        self.begins_at_us = None;
        for journal in 0..self.journals.len() {
            self.journals[journal].bytes_left = self.rules.bytes_max;
            self.advance(journal);
        }
    }

    /// The next write of this round. It is answered by [`Rounds::on_write`] before the next.
    pub fn next_write(&self) -> Option<WritePart> {
        (0..self.journals.len()).find_map(|journal| self.write_of(journal))
    }

    /// The write of the journal that is next in this round, if one is.
    pub fn write_of(&self, journal: usize) -> Option<WritePart> {
        let line = &self.journals[journal];
        let Some(Step::Write { segment, offset, bytes }) = line.step() else { return None };
        let begin = line.bytes_done;
        let end = bytes.len().min(begin + line.bytes_left);
        let is_due = begin < end || bytes.is_empty();
        is_due.then(|| WritePart {
            journal,
            segment: *segment,
            offset: offset + begin as u32,
            bytes: bytes.clone(),
            range: begin..end,
        })
    }

    /// The write was done, or has failed.
    pub fn on_write(&mut self, part: &WritePart, result: Result<(), Fault>) {
        let line = &mut self.journals[part.journal];
        line.bytes_left -= part.range.len().min(line.bytes_left);
        if result.is_ok() && part.range.end < part.bytes.len() {
            line.bytes_done = part.range.end;
            return;
        }
        self.on_step(part.journal, result);
    }

    /// When the writes are done: the sync that is next in each journal, or the write of its
    /// manifest. All may be done at the same time, each is answered by [`Rounds::on_sync`], and
    /// then there may be more.
    pub fn syncs(&self) -> Vec<(usize, Step)> {
        let lines = self.journals.iter().enumerate();
        lines.filter_map(|(journal, line)| Some((journal, line.due_sync()?.clone()))).collect()
    }

    /// The sync of the journal was done, or has failed.
    pub fn on_sync(&mut self, journal: usize, result: Result<(), Fault>) {
        let line = &mut self.journals[journal];
        if line.passed == 0 {
            return self.on_step(journal, result);
        }
        let is_of_last = line.shares_sync();
        match result {
            Ok(()) if is_of_last => {
                self.answer_passed(journal);
                self.on_step(journal, Ok(()));
            }
            Ok(()) => {
                self.answer_passed(journal);
                if let Some(fault) = self.journals[journal].fault.take() {
                    self.fail(journal, fault);
                }
                self.advance(journal);
            }
            Err(fault) => {
                line.begin_again();
                self.fail(journal, fault);
                self.advance(journal);
            }
        }
    }

    /// The answers there are by now.
    pub fn take_answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }

    /// Ends a round. What it has left is for the next one, at once.
    pub fn end(&mut self, now_us: u64) {
        self.ended_us = now_us;
        self.is_under_way = false;
        if !self.is_idle() {
            self.begins_at_us = Some(0);
        }
    }

    /// The step that the journal is at.
    #[cfg(feature = "testing")]
    pub fn step_of(&self, journal: usize) -> Option<&Step> {
        let line = &self.journals[journal];
        line.step().or_else(|| line.due_sync())
    }

    fn on_step(&mut self, journal: usize, result: Result<(), Fault>) {
        let line = &mut self.journals[journal];
        line.bytes_done = 0;
        match result {
            Ok(()) => line.steps_done += 1,
            Err(fault) if line.passed > 0 => line.fault = Some(fault),
            Err(fault) => self.fail(journal, fault),
        }
        self.advance(journal);
    }

    fn fail(&mut self, journal: usize, fault: Fault) {
        #[cfg(feature = "testing")]
        if self.flaw == Some(RoundsFlaw::FailsNeighbour) {
            let neighbour = (journal + 1) % self.journals.len();
            let line = &self.journals[neighbour];
            if neighbour != journal && line.passed == 0 && line.step().is_some() {
                self.journals[journal].steps_done += 1;
                self.answer(neighbour, Some(fault));
                return self.advance(neighbour);
            }
        }
        self.answer(journal, Some(fault));
    }

    /// Answers what is done, or must not be done, until the journal is at a step.
    fn advance(&mut self, journal: usize) {
        loop {
            let line = &mut self.journals[journal];
            let passed = line.passed;
            let Some(current) = line.commits.get_mut(passed).filter(|_| line.fault.is_none())
            else {
                return;
            };
            let began_us = *current.began_us.get_or_insert(self.now_us);
            if line.steps_done == 0
                && line.bytes_done == 0
                && let Some(completion) = line.guard.refuse(&current.command)
            {
                debug_assert_eq!(passed, 0, "those that are passed have not failed");
                line.commits.pop_front();
                self.answers.push(Answer { journal, completion, began_us });
                continue;
            }
            #[cfg(feature = "testing")]
            self.misbehave(journal);
            let line = &mut self.journals[journal];
            let is_done = line.step().is_none();
            if passed == 0 && is_done {
                self.answer(journal, None);
            } else if is_done || line.leaves_sync() {
                line.pass();
            } else {
                return;
            }
        }
    }

    /// Those that are passed have come to their end.
    fn answer_passed(&mut self, journal: usize) {
        let line = &mut self.journals[journal];
        let (steps_done, bytes_done) = (line.steps_done, line.bytes_done);
        for _ in 0..std::mem::take(&mut line.passed) {
            let line = &mut self.journals[journal];
            line.steps_done = line.commits.front().map_or(0, |first| first.steps().len());
            self.answer(journal, None);
        }
        let line = &mut self.journals[journal];
        (line.steps_done, line.bytes_done) = (steps_done, bytes_done);
    }

    /// The first commit of the journal has come to its end.
    fn answer(&mut self, journal: usize, fault: Option<Fault>) {
        let line = &mut self.journals[journal];
        let steps_done = std::mem::take(&mut line.steps_done);
        let Some(first) = line.commits.pop_front() else { return };
        let outcome = Outcome::Committed { steps_done, fault };
        let completion = Completion { id: first.id(), outcome };
        line.guard.note(&completion);
        #[cfg(feature = "testing")]
        if first.is_answered {
            return;
        }
        let began_us = first.began_us.unwrap_or(self.now_us);
        self.answers.push(Answer { journal, completion, began_us });
    }

    #[cfg(feature = "testing")]
    fn misbehave(&mut self, journal: usize) {
        let line = &mut self.journals[journal];
        let at_sync = line.passed == 0 && matches!(line.step(), Some(Step::Sync { .. }));
        let Some(first) = line.commits.front_mut() else { return };
        if self.flaw != Some(RoundsFlaw::AnswersBeforeSync) || !at_sync || first.is_answered {
            return;
        }
        let outcome = Outcome::Committed { steps_done: first.steps().len(), fault: None };
        let completion = Completion { id: first.id(), outcome };
        first.is_answered = true;
        self.answers.push(Answer { journal, completion, began_us: self.now_us });
    }
}

impl Line {
    /// The step that is next, before the sync of those that are passed.
    fn step(&self) -> Option<&Step> {
        let current = self.commits.get(self.passed).filter(|_| self.fault.is_none())?;
        current.steps().get(self.steps_done)
    }

    /// The sync that is next, or the write of a manifest.
    fn due_sync(&self) -> Option<&Step> {
        match self.passed {
            0 => self.step().filter(|step| !matches!(step, Step::Write { .. })),
            _ => self.passed_sync(),
        }
    }

    /// That which those wait for that are passed: all of them for the same.
    fn passed_sync(&self) -> Option<&Step> {
        let passed = self.commits.range(..self.passed);
        passed.filter_map(|it| it.steps().last()).find(|step| synced_segment(step).is_some())
    }

    /// Is the commit behind those that are passed at the same sync?
    fn shares_sync(&self) -> bool {
        let segment = self.step().and_then(synced_segment);
        segment.is_some() && segment == self.passed_sync().and_then(synced_segment)
    }

    /// Is only a sync left of the commit, and goes the next one on in the same segment?
    fn leaves_sync(&self) -> bool {
        let left = self.commits.get(self.passed).and_then(|it| it.steps().get(self.steps_done..));
        let next = self.commits.get(self.passed + 1).and_then(|it| it.steps().first());
        match (left, next) {
            (Some([Step::Sync { segment }]), Some(Step::Write { segment: next, .. })) => {
                let is_same = self.passed == 0 || self.shares_sync();
                segment == next && is_same && self.bytes_left > 0
            }
            _ => false,
        }
    }

    fn pass(&mut self) {
        self.passed += 1;
        (self.steps_done, self.bytes_done) = (0, 0);
    }

    /// The first of those that are passed is at its sync, as if none were.
    fn begin_again(&mut self) {
        let first = self.commits.front().map_or(0, |first| first.steps().len());
        self.steps_done = first.saturating_sub(1);
        (self.passed, self.bytes_done, self.fault) = (0, 0, None);
    }

    fn bytes_waiting(&self) -> usize {
        self.commits.iter().flat_map(Waiting::steps).map(Step::bytes).sum()
    }
}

impl Waiting {
    const fn new(command: Command) -> Self {
        Self {
            command,
            began_us: None,
            #[cfg(feature = "testing")]
            is_answered: false,
        }
    }

    fn id(&self) -> CommandId {
        self.command.id()
    }

    fn steps(&self) -> &[Step] {
        match &self.command {
            Command::Commit { steps, .. } => steps,
            _ => &[],
        }
    }
}

const fn synced_segment(step: &Step) -> Option<u32> {
    match step {
        Step::Sync { segment } => Some(*segment),
        Step::Write { .. } | Step::Manifest { .. } => None,
    }
}

/// Only records that wait for a sync may be late. Others need only a write. What a journal needs to
/// open, to go on in the next segment or to close does not wait.
fn may_wait(command: &Command) -> bool {
    let Command::Commit { steps, .. } = command else { return false };
    let Some((Step::Sync { .. }, before)) = steps.split_last() else { return false };
    before.iter().all(|step| matches!(step, Step::Write { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::FaultKind;

    const MS: u64 = 1000;

    fn rounds(delay_ms: u64) -> Rounds {
        Rounds::new(3, RoundRules { delay_us: delay_ms * MS, bytes_max: 100 })
    }

    fn write(offset: u32, bytes: usize) -> Step {
        Step::Write { segment: 1, offset, bytes: Arc::new(vec![7; bytes]) }
    }

    const fn sync() -> Step {
        Step::Sync { segment: 1 }
    }

    fn manifest() -> Step {
        Step::Manifest { offset: 0, bytes: Arc::default() }
    }

    fn commit(journal: usize, id: u64, steps: Vec<Step>) -> Submission {
        let command = Command::Commit { id: CommandId(id), steps, resume: false };
        Submission { journal, command, is_shared: false }
    }

    fn fault() -> Fault {
        Fault { kind: FaultKind::Io, detail: "a test".to_owned() }
    }

    /// What a round does, in order. `fails`: the writes and syncs of this journal fail.
    fn round(rounds: &mut Rounds, fails: Option<usize>, now_us: u64) -> Vec<String> {
        let mut log = Vec::new();
        let result = |journal| if fails == Some(journal) { Err(fault()) } else { Ok(()) };
        rounds.begin(now_us);
        while let Some(part) = rounds.next_write() {
            log.push(format!("{}: {}+{}", part.journal, part.offset, part.bytes().len()));
            rounds.on_write(&part, result(part.journal));
        }
        note_answers(rounds, &mut log);
        loop {
            let syncs = rounds.syncs();
            if syncs.is_empty() {
                break;
            }
            for (journal, step) in syncs {
                let what = if matches!(step, Step::Sync { .. }) { "sync" } else { "manifest" };
                log.push(format!("{journal}: {what}"));
                rounds.on_sync(journal, result(journal));
            }
        }
        note_answers(rounds, &mut log);
        rounds.end(now_us);
        log
    }

    fn note_answers(rounds: &mut Rounds, log: &mut Vec<String>) {
        for Answer { journal, completion, .. } in rounds.take_answers() {
            let Outcome::Committed { steps_done, fault } = completion.outcome else { continue };
            let kind = fault.map_or("ok".to_owned(), |fault| format!("{:?}", fault.kind));
            log.push(format!("{journal}: {} {steps_done} {kind}", completion.id.0));
        }
    }

    #[test]
    fn all_writes_come_before_the_answers_without_a_sync_and_these_before_the_syncs() {
        let mut rounds = rounds(0);
        rounds.submit(commit(0, 1, vec![write(0, 10), sync()]), 0);
        rounds.submit(commit(1, 1, vec![write(0, 20)]), 0);
        rounds.submit(commit(2, 1, vec![sync(), manifest()]), 0);
        let log = round(&mut rounds, None, 0);
        let order = [
            "0: 0+10",
            "1: 0+20",
            "1: 1 1 ok",
            "0: sync",
            "2: sync",
            "2: manifest",
            "0: 1 2 ok",
            "2: 1 2 ok",
        ];
        assert_eq!(log, order);
        assert!(rounds.is_idle());
        assert_eq!(rounds.begins_at_us(), None);
    }

    #[test]
    fn steps_and_commits_of_one_journal_stay_in_their_order() {
        let mut rounds = rounds(0);
        let steps = vec![sync(), write(0, 1), sync(), manifest(), write(1, 2)];
        rounds.submit(commit(0, 1, steps), 0);
        rounds.submit(commit(0, 2, vec![write(3, 3), sync()]), 0);
        assert_eq!(round(&mut rounds, None, 0), ["0: sync"]);
        assert_eq!(rounds.begins_at_us(), Some(0), "the rest follows at once");
        assert_eq!(round(&mut rounds, None, 0), ["0: 0+1", "0: sync", "0: manifest"]);
        let log = round(&mut rounds, None, 0);
        assert_eq!(log, ["0: 1+2", "0: 3+3", "0: 1 5 ok", "0: sync", "0: 2 2 ok"]);
    }

    #[test]
    fn a_large_commit_takes_several_rounds_and_holds_up_nobody() {
        let mut rounds = rounds(0);
        rounds.submit(commit(0, 1, vec![write(0, 60), write(60, 150), sync()]), 0);
        rounds.submit(commit(1, 1, vec![write(0, 1), sync()]), 0);
        let log = round(&mut rounds, None, 0);
        assert_eq!(log, ["0: 0+60", "0: 60+40", "1: 0+1", "1: sync", "1: 1 2 ok"]);
        rounds.submit(commit(1, 2, vec![write(1, 1), sync()]), 0);
        let log = round(&mut rounds, None, 0);
        assert_eq!(log, ["0: 100+100", "1: 1+1", "1: sync", "1: 2 2 ok"]);
        assert_eq!(round(&mut rounds, None, 0), ["0: 200+10", "0: sync", "0: 1 3 ok"]);
    }

    #[test]
    fn a_fault_stops_its_journal_only_until_a_commit_resumes() {
        let mut rounds = rounds(0);
        rounds.submit(commit(0, 1, vec![write(0, 1), sync()]), 0);
        rounds.submit(commit(0, 2, vec![write(1, 1), sync()]), 0);
        rounds.submit(commit(1, 1, vec![write(0, 1), sync()]), 0);
        let log = round(&mut rounds, Some(0), 0);
        let order = ["0: 0+1", "1: 0+1", "0: 1 0 Io", "0: 2 0 Skipped", "1: sync", "1: 1 2 ok"];
        assert_eq!(log, order);
        rounds.submit(commit(0, 3, vec![sync()]), 0);
        rounds.submit(commit(1, 2, vec![sync()]), 0);
        assert_eq!(round(&mut rounds, None, 0), ["0: 3 0 Skipped", "1: sync", "1: 2 1 ok"]);
        let Submission { journal, command, is_shared } = commit(0, 4, vec![write(0, 1)]);
        let Command::Commit { id, steps, .. } = command else { panic!("a commit") };
        let command = Command::Commit { id, steps, resume: true };
        rounds.submit(Submission { journal, command, is_shared }, 0);
        assert_eq!(round(&mut rounds, None, 0), ["0: 0+1", "0: 4 1 ok"]);
    }

    #[test]
    fn commits_of_one_journal_share_a_sync() {
        let mut rounds = rounds(0);
        rounds.submit(commit(0, 1, vec![write(0, 1), sync()]), 0);
        rounds.submit(commit(0, 2, vec![write(1, 1), sync()]), 0);
        rounds.submit(commit(0, 3, vec![write(2, 1)]), 0);
        let log = round(&mut rounds, None, 0);
        let writes = ["0: 0+1", "0: 1+1", "0: 2+1"];
        assert_eq!(log[..3], writes);
        assert_eq!(log[3..], ["0: sync", "0: 1 2 ok", "0: 2 2 ok", "0: 3 1 ok"]);
        for id in [4, 5, 6] {
            rounds.submit(commit(0, id, vec![write(0, 1), sync()]), 0);
        }
        let log = round(&mut rounds, Some(0), 0);
        assert_eq!(log, ["0: 0+1", "0: 4 0 Io", "0: 5 0 Skipped", "0: 6 0 Skipped"]);
        assert!(rounds.is_idle());
    }

    #[test]
    fn a_sync_that_commits_share_fails_for_all_of_them() {
        let mut rounds = rounds(0);
        rounds.submit(commit(0, 1, vec![write(0, 1), sync()]), 0);
        rounds.submit(commit(0, 2, vec![write(1, 1), sync()]), 0);
        rounds.submit(commit(0, 3, vec![write(2, 200), sync()]), 0);
        rounds.begin(0);
        while let Some(part) = rounds.next_write() {
            rounds.on_write(&part, Ok(()));
        }
        assert_eq!(rounds.syncs().len(), 1);
        rounds.on_sync(0, Err(fault()));
        let mut log = Vec::new();
        note_answers(&mut rounds, &mut log);
        assert_eq!(log, ["0: 1 1 Io", "0: 2 0 Skipped", "0: 3 0 Skipped"]);
        assert!(rounds.is_idle());
    }

    #[test]
    fn a_fault_behind_a_sync_that_is_left_is_answered_behind_it() {
        let mut rounds = rounds(0);
        rounds.submit(commit(0, 1, vec![write(0, 1), sync()]), 0);
        rounds.submit(commit(0, 2, vec![write(1, 1), write(2, 1), sync()]), 0);
        rounds.submit(commit(0, 3, vec![write(3, 1), sync()]), 0);
        rounds.begin(0);
        let mut log = Vec::new();
        while let Some(part) = rounds.next_write() {
            rounds.on_write(&part, if part.offset == 2 { Err(fault()) } else { Ok(()) });
        }
        note_answers(&mut rounds, &mut log);
        assert!(log.is_empty(), "{log:?}");
        for (journal, _) in rounds.syncs() {
            rounds.on_sync(journal, Ok(()));
        }
        note_answers(&mut rounds, &mut log);
        assert_eq!(log, ["0: 1 2 ok", "0: 2 1 Io", "0: 3 0 Skipped"]);
        assert!(rounds.syncs().is_empty() && rounds.is_idle());
    }

    #[test]
    fn a_sync_is_left_only_to_one_of_its_segment_in_the_same_round() {
        let write_2 = |offset| Step::Write { segment: 2, offset, bytes: Arc::new(vec![7]) };
        let sync_2 = || Step::Sync { segment: 2 };
        let mut rounds = rounds(0);
        rounds.submit(commit(0, 1, vec![write(0, 1), sync()]), 0);
        rounds.submit(commit(0, 2, vec![write(1, 1), write_2(0), sync_2()]), 0);
        rounds.submit(commit(0, 3, vec![write_2(1), sync_2()]), 0);
        let log = round(&mut rounds, None, 0);
        assert_eq!(log[..3], ["0: 0+1", "0: 1+1", "0: 0+1"]);
        assert_eq!(log[3..], ["0: sync", "0: sync", "0: 1 2 ok", "0: 2 3 ok"]);
        assert_eq!(round(&mut rounds, None, 0), ["0: 1+1", "0: sync", "0: 3 2 ok"]);

        rounds.submit(commit(0, 4, vec![write(0, 10), sync()]), 0);
        rounds.submit(commit(0, 5, vec![write(10, 200), sync()]), 0);
        assert_eq!(round(&mut rounds, None, 0), ["0: 0+10", "0: 10+90", "0: sync", "0: 4 2 ok"]);
        assert_eq!(round(&mut rounds, None, 0), ["0: 100+100"]);
        assert_eq!(round(&mut rounds, None, 0), ["0: 200+10", "0: sync", "0: 5 2 ok"]);
    }

    #[test]
    fn a_failed_sync_says_how_many_steps_were_done() {
        let mut rounds = rounds(0);
        rounds.submit(commit(2, 1, vec![sync(), manifest()]), 0);
        assert_eq!(round(&mut rounds, Some(2), 0), ["2: sync", "2: 1 0 Io"]);
    }

    #[test]
    fn a_commit_that_is_alone_does_not_wait() {
        let mut rounds = rounds(2);
        for at_ms in [0, 1, 2] {
            let at_us = at_ms * MS;
            rounds.submit(commit(0, at_ms, vec![write(0, 1), sync()]), at_us);
            assert_eq!(rounds.begins_at_us(), Some(0), "whoever waits for each answer is alone");
            round(&mut rounds, None, at_us + 100);
        }
    }

    #[test]
    fn who_has_company_waits_until_it_has_had_none_for_as_long() {
        let mut rounds = rounds(2);
        let record = |journal, id| commit(journal, id, vec![write(0, 1), sync()]);
        rounds.submit(record(0, 1), 0);
        rounds.submit(record(1, 1), MS);
        assert_eq!(rounds.begins_at_us(), Some(0), "the first one was alone");
        round(&mut rounds, None, 2 * MS);
        rounds.submit(record(0, 2), 2 * MS);
        rounds.submit(record(1, 2), 3 * MS);
        assert_eq!(rounds.begins_at_us(), Some(4 * MS), "both share the time of the first");
        round(&mut rounds, None, 4 * MS);
        rounds.submit(record(0, 3), 5 * MS);
        assert_eq!(rounds.begins_at_us(), Some(0), "for so long there was no company");
        round(&mut rounds, None, 6 * MS);
        rounds.submit(record(2, 1), 6 * MS - 1);
        assert_eq!(rounds.begins_at_us(), Some(8 * MS - 1), "it came during a round");
        round(&mut rounds, None, 8 * MS);
        rounds.submit(Submission { is_shared: true, ..record(1, 3) }, 50 * MS);
        assert_eq!(rounds.begins_at_us(), Some(52 * MS), "its journal has company");
    }

    #[test]
    fn only_records_to_be_synced_wait_and_not_many() {
        let shared = |steps| Submission { is_shared: true, ..commit(0, 1, steps) };
        let others = [
            vec![sync(), manifest()],
            vec![sync(), write(0, 1), sync()],
            // Of level `disk`.
            vec![write(0, 1)],
        ];
        for steps in others {
            let mut rounds = rounds(2);
            rounds.submit(shared(vec![write(0, 1), sync()]), 0);
            assert_eq!(rounds.begins_at_us(), Some(2 * MS));
            rounds.submit(commit(1, 1, steps), 0);
            assert_eq!(rounds.begins_at_us(), Some(0));
        }
        let mut rounds = rounds(2);
        rounds.submit(shared(vec![write(0, 50), sync()]), 0);
        assert_eq!(rounds.begins_at_us(), Some(2 * MS));
        rounds.submit(commit(0, 2, vec![write(50, 50), sync()]), 0);
        assert_eq!(rounds.begins_at_us(), Some(0), "as much as a round takes");
    }

    #[test]
    fn a_commit_is_timed_from_when_it_is_begun() {
        let mut rounds = rounds(0);
        rounds.submit(commit(0, 1, vec![write(0, 150)]), 1);
        for (now_us, count) in [(10, 0), (20, 1)] {
            rounds.begin(now_us);
            let part = rounds.next_write().expect("there is one in each round");
            rounds.on_write(&part, Ok(()));
            let answers = rounds.take_answers();
            assert_eq!(answers.len(), count);
            assert!(answers.iter().all(|answer| answer.began_us == 10));
            rounds.end(now_us);
        }
    }
}
