//! The thread that commits for all journals of a directory.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{Builder, scope};
use std::time::{Duration, Instant};

use storage::{Fault, RoundRules, Rounds, Step, Submission};

use super::JournalFiles;
use super::thread::Done;

/// A commit, and when it was submitted.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) submission: Submission,
    pub(super) at: Instant,
}

/// Carries out the rounds of [`Rounds`] with system calls.
pub(super) struct CommitThread<F> {
    arrivals: Receiver<Arrival>,
    journals: Vec<CommittedJournal>,
    owners: Vec<F>,
    /// What times are counted from.
    began: Instant,
    /// How long the longest of the last syncs took.
    sync_took: Duration,
}

struct CommittedJournal {
    owner: usize,
    number: u16,
    files: Arc<JournalFiles>,
}

impl<F: Fn(Vec<Done>)> CommitThread<F> {
    pub(super) fn new(arrivals: Receiver<Arrival>) -> Self {
        let (journals, owners) = (Vec::new(), Vec::new());
        Self { arrivals, journals, owners, began: Instant::now(), sync_took: Duration::ZERO }
    }

    /// Adds a journal of the owner; returns its place.
    pub(super) fn add(&mut self, owner: usize, number: u16, files: Arc<JournalFiles>) -> usize {
        self.journals.push(CommittedJournal { owner, number, files });
        self.journals.len() - 1
    }

    /// Adds the next owner.
    pub(super) fn add_owner(&mut self, done: F) {
        self.owners.push(done);
    }

    /// Ends when the last sender is gone, and all is carried out.
    pub(super) fn run(mut self, rules: RoundRules) {
        let mut rounds = Rounds::new(self.journals.len(), rules);
        while self.gather(&mut rounds) {
            self.carry_out(&mut rounds);
        }
    }

    /// Waits until a round may begin. False: there will be none.
    fn gather(&self, rounds: &mut Rounds) -> bool {
        loop {
            for arrival in self.arrivals.try_iter() {
                self.take(arrival, rounds);
            }
            let arrived = match rounds.begins_at_us() {
                None => self.arrivals.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at_us) => match at_us.saturating_sub(self.now_us()) {
                    0 => return true,
                    wait_us => self.arrivals.recv_timeout(Duration::from_micros(wait_us)),
                },
            };
            match arrived {
                Ok(arrival) => self.take(arrival, rounds),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return !rounds.is_idle(),
            }
        }
    }

    fn take(&self, arrival: Arrival, rounds: &mut Rounds) {
        let at_us = arrival.at.saturating_duration_since(self.began).as_micros() as u64;
        rounds.submit(arrival.submission, at_us);
    }

    fn carry_out(&mut self, rounds: &mut Rounds) {
        rounds.begin(self.now_us());
        while let Some(part) = rounds.next_write() {
            let result = self.journals[part.journal].files.write(&part);
            rounds.on_write(&part, result);
        }
        let mut ended_us = self.now_us();
        self.answer(rounds);
        loop {
            let syncs = rounds.syncs();
            if syncs.is_empty() {
                break;
            }
            for (journal, result) in self.sync(syncs) {
                rounds.on_sync(journal, result);
            }
            // A commit may arrive as soon as its publisher has the answer, and is then alone.
            ended_us = self.now_us();
            self.answer(rounds);
        }
        rounds.end(ended_us);
    }

    /// One call for each owner that has answers.
    fn answer(&self, rounds: &mut Rounds) {
        let answers = rounds.take_answers();
        if answers.is_empty() {
            return;
        }
        let now_us = self.now_us();
        let mut done: Vec<Vec<Done>> = self.owners.iter().map(|_| Vec::new()).collect();
        for answer in answers {
            let CommittedJournal { owner, number, .. } = &self.journals[answer.journal];
            let took = Duration::from_micros(now_us.saturating_sub(answer.began_us));
            done[*owner].push(Done { journal: *number, completion: answer.completion, took });
        }
        for (owner, done) in self.owners.iter().zip(done) {
            if !done.is_empty() {
                owner(done);
            }
        }
    }

    /// Syncs one after the other, or side by side where that would take long.
    fn sync(&mut self, syncs: Vec<(usize, Step)>) -> Vec<Synced> {
        let is_slow = self.sync_took * syncs.len() as u32 > SYNCS_IN_LINE;
        let threads = if is_slow { syncs.len().min(SYNCS_AT_ONCE) } else { 1 };
        let timed = side_by_side(threads, syncs, &|(journal, step)| {
            let began = Instant::now();
            let result = self.journals[journal].files.sync(&step);
            ((journal, result), began.elapsed())
        });
        self.sync_took = timed.iter().map(|(_, took)| *took).max().unwrap_or_default();
        timed.into_iter().map(|(synced, _)| synced).collect()
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }
}

/// A journal, and what became of its sync.
type Synced = (usize, Result<(), Fault>);

/// Does the jobs on so many threads, of which this one is the first. Without another thread it does
/// all of them.
fn side_by_side<J: Send, R: Send>(
    threads: usize,
    jobs: Vec<J>,
    work: &(impl Fn(J) -> R + Sync),
) -> Vec<R> {
    if threads <= 1 {
        return jobs.into_iter().map(work).collect();
    }
    let jobs = std::sync::Mutex::new(jobs.into_iter());
    let next = || jobs.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
    let work_on = || std::iter::from_fn(next).map(work).collect::<Vec<R>>();
    scope(|scope| {
        let spawn = |_| {
            // By the end of its name a test knows that it commits.
            let builder = Builder::new().name("log-sync-commit".to_owned());
            builder.spawn_scoped(scope, work_on).ok()
        };
        let helpers: Vec<_> = (1..threads).filter_map(spawn).collect();
        let mut results = work_on();
        for helper in helpers {
            match helper.join() {
                Ok(done) => results.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        results
    })
}

/// Syncs that take longer than this in all are done side by side. A thread costs some 50 µs.
const SYNCS_IN_LINE: Duration = Duration::from_millis(2);

/// Threads that sync at the same time. Policy: other journals wait for the next free one.
const SYNCS_AT_ONCE: usize = 16;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use storage::{Command, CommandId, FaultKind, InPlace, InPlaceEnd, Outcome};

    use super::*;
    use crate::{DataDir, JournalDisk, Owner};

    const SHARDS: u16 = 4;

    /// The disks of two owners with two journals each, and what each of these is notified of.
    struct Directory {
        _dir: tempfile::TempDir,
        data: DataDir,
        disks: Vec<JournalDisk>,
        notices: Receiver<(usize, Vec<Done>)>,
    }

    fn directory(delay: Duration) -> Directory {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        let (sender, notices) = channel();
        let owner = |owner: usize, sender: &Sender<_>| {
            let sender = sender.clone();
            let first = owner as u16 * 2;
            let journals =
                (first..first + 2).map(|shard| (shard, data.journal_files(shard).unwrap()));
            let done = move |done| drop(sender.send((owner, done)));
            Owner { journals: journals.collect(), done }
        };
        let owners = vec![owner(0, &sender), owner(1, &sender)];
        let disks = JournalDisk::spawn_all(owners, delay).unwrap().into_iter().flatten().collect();
        let directory = Directory { _dir: dir, data, disks, notices };
        for shard in 0..SHARDS {
            let create = Command::Create { id: CommandId(1), segment: 1, bytes: 4096 };
            directory.disks[usize::from(shard)].submit(create, false).unwrap();
            let (_, done) = directory.notices.recv().unwrap();
            assert!(matches!(done[0].completion.outcome, Outcome::Done(Ok(()))), "{done:?}");
        }
        directory
    }

    fn commit(id: u64, segment: u32, byte: u8) -> Command {
        let bytes = Arc::new(vec![byte; 10]);
        let steps = vec![Step::Write { segment, offset: 0, bytes }, Step::Sync { segment }];
        Command::Commit { id: CommandId(id), steps, resume: false }
    }

    /// Each journal with the end of its next commit.
    fn ends(directory: &Directory) -> Vec<(u16, usize, Option<FaultKind>)> {
        let mut ends = Vec::new();
        while ends.len() < usize::from(SHARDS) {
            let (owner, all) = directory.notices.recv().unwrap();
            for Done { journal, completion, .. } in all {
                assert_eq!(usize::from(journal) / 2, owner, "each owner has its own");
                let Outcome::Committed { steps_done, fault } = completion.outcome else {
                    panic!("{completion:?}");
                };
                ends.push((journal, steps_done, fault.map(|fault| fault.kind)));
            }
        }
        ends.sort_unstable_by_key(|(journal, ..)| *journal);
        ends
    }

    #[test]
    fn a_fault_of_one_journal_is_no_matter_of_another() {
        let directory = directory(Duration::ZERO);
        for (shard, disk) in directory.disks.iter().enumerate() {
            let segment = if shard == 2 { 9 } else { 1 };
            disk.submit(commit(2, segment, shard as u8 + 1), false).unwrap();
        }
        let missing = (2, 0, Some(FaultKind::Missing));
        assert_eq!(ends(&directory), [(0, 2, None), (1, 2, None), missing, (3, 2, None)]);
        for disk in &directory.disks {
            disk.submit(commit(3, 1, 9), false).unwrap();
        }
        let skipped = (2, 0, Some(FaultKind::Skipped));
        assert_eq!(ends(&directory), [(0, 2, None), (1, 2, None), skipped, (3, 2, None)]);
        for shard in 0..SHARDS {
            let path = directory.data.journal_path(shard).join("0000000001.log");
            let expected = if shard == 2 { [0; 10] } else { [9; 10] };
            assert_eq!(std::fs::read(path).unwrap()[..10], expected);
        }
    }

    #[test]
    fn the_last_journal_to_close_ends_the_wait_and_each_owner_is_notified_once() {
        let mut directory = directory(Duration::from_secs(3600));
        for disk in &directory.disks {
            disk.submit(commit(2, 1, 5), true).unwrap();
        }
        let last = directory.disks.pop().unwrap();
        directory.disks.clear();
        assert!(directory.notices.try_recv().is_err(), "they wait for others");
        drop(last);
        for expected in 0..2 {
            let (owner, done) = directory.notices.recv().unwrap();
            assert_eq!((owner, done.len()), (expected, 2), "{done:?}");
        }
        assert!(directory.notices.recv().is_err(), "no thread is left");
    }

    #[test]
    fn what_its_owner_writes_is_in_the_file_at_once() {
        let mut directory = directory(Duration::ZERO);
        let disk = &mut directory.disks[3];
        let write = |segment, offset| InPlace { segment, offset, bytes: Arc::new(vec![3; 20]) };
        for offset in [0, 20] {
            let (end, _) = disk.write_in_place(&write(1, offset));
            assert_ne!(end, InPlaceEnd::NotDone);
        }
        let path = directory.data.journal_path(3).join("0000000001.log");
        assert_eq!(std::fs::read(path).unwrap()[..41], [[3; 40].as_slice(), &[0]].concat());
        assert_eq!(disk.write_in_place(&write(2, 0)).0, InPlaceEnd::NotDone, "no such file");
        disk.close();
        assert_eq!(disk.write_in_place(&write(1, 0)).0, InPlaceEnd::NotDone);
        assert!(directory.notices.try_recv().is_err(), "no thread had to do with it");
    }

    #[test]
    fn a_closed_disk_answers_with_a_fault() {
        let mut directory = directory(Duration::ZERO);
        directory.disks[0].close();
        let refused = directory.disks[0].submit(commit(2, 1, 5), false).unwrap_err();
        let Outcome::Committed { steps_done: 0, fault: Some(fault) } = refused.outcome else {
            panic!("{refused:?}");
        };
        assert_eq!(fault.kind, FaultKind::Io);
        directory.disks[1].submit(commit(2, 1, 5), false).unwrap();
        assert_eq!(directory.notices.recv().unwrap().1.len(), 1);
    }

    #[test]
    fn jobs_are_done_once_each_on_any_number_of_threads() {
        for threads in [0, 1, 3, 20] {
            let mut done = side_by_side(threads, (0..10).collect(), &|job: u32| job * 2);
            done.sort_unstable();
            assert_eq!(done, (0..10).map(|job| job * 2).collect::<Vec<_>>());
        }
    }
}
