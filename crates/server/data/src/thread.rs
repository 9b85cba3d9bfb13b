//! The threads of the journals: one commits for all of them, one for each keeps house and reads.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use base::ending_the_process;
use storage::{
    Command, CommandQueue, Completion, FaultKind, InPlace, InPlaceEnd, Outcome, RoundRules,
    Submission,
};

use super::JournalFiles;
use super::commits::{Arrival, CommitThread};

/// Carries out the commands of one journal. Dropping it finishes what was submitted, of commits if
/// it is the last journal of its directory.
///
/// Both queues are bounded by the journal itself: it has a few commits, one housekeeping command
/// and one read for reclaiming under way at a time; its user bounds the other reads.
#[derive(Debug)]
pub struct JournalDisk {
    /// `None` once closed.
    queues: Option<CommandQueues>,
    thread: Option<JoinHandle<()>>,
}

/// Some journals of a directory, and who is notified of what became of their commands.
#[derive(Debug)]
pub struct Owner<F> {
    /// Each with a number that comes back with its completions.
    pub journals: Vec<(u16, JournalFiles)>,
    /// Called on a disk thread, for all commits of the owner that the writes of a round, or its
    /// syncs, have done.
    pub done: F,
}

/// What has become of a command.
#[derive(Debug)]
pub struct Done {
    pub journal: u16,
    pub completion: Completion,
    /// How long it took. For a commit since its round began, with the writes and syncs of other
    /// journals.
    pub took: Duration,
}

#[derive(Debug)]
struct CommandQueues {
    files: Arc<JournalFiles>,
    background: Sender<Command>,
    commits: Arc<CommitQueue>,
    /// The place of the journal at the commit thread.
    place: usize,
}

/// The queue of the commit thread. It goes with the last journal, and then the thread ends.
#[derive(Debug)]
struct CommitQueue {
    sender: Option<Sender<Arrival>>,
    thread: Option<JoinHandle<()>>,
}

impl JournalDisk {
    /// Starts the threads for all journals of a directory: the disks of each owner in the order of
    /// its journals. A commit that is not alone waits up to `delay` for others.
    ///
    /// # Errors
    ///
    /// When the system gives no thread.
    pub fn spawn_all<F>(owners: Vec<Owner<F>>, delay: Duration) -> io::Result<Vec<Vec<Self>>>
    where
        F: Fn(Vec<Done>) + Clone + Send + 'static,
    {
        let rules = RoundRules { delay_us: delay.as_micros() as u64, ..RoundRules::default() };
        let (sender, arrivals) = channel();
        let mut committing = CommitThread::new(arrivals);
        let mut parts = Vec::new();
        for (owner, Owner { journals, done }) in owners.into_iter().enumerate() {
            let mut owned = Vec::new();
            for (journal, files) in journals {
                let files = Arc::new(files);
                let place = committing.add(owner, journal, files.clone());
                owned.push((place, journal, files, done.clone()));
            }
            committing.add_owner(done);
            parts.push(owned);
        }
        let run = move || ending_the_process(|| committing.run(rules));
        let thread = Builder::new().name("log-commit".to_owned()).spawn(run)?;
        let commits = Arc::new(CommitQueue { sender: Some(sender), thread: Some(thread) });
        let spawn = |(place, journal, files, done): (usize, u16, Arc<JournalFiles>, F)| {
            let (background, queue) = channel();
            let queues =
                CommandQueues { files: files.clone(), background, commits: commits.clone(), place };
            let run = BackgroundThread { journal, files, queue, waiting: VecDeque::new(), done };
            let name = format!("log-{journal}-files");
            let thread = Builder::new().name(name).spawn(|| ending_the_process(|| run.run()))?;
            Ok(Self { queues: Some(queues), thread: Some(thread) })
        };
        parts.into_iter().map(|owned| owned.into_iter().map(spawn).collect()).collect()
    }

    /// Starts the threads for the only journal of a directory.
    ///
    /// # Errors
    ///
    /// When the system gives no thread.
    pub fn spawn(
        files: JournalFiles,
        done: impl Fn(Vec<Done>) + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let owner = Owner { journals: vec![(0, files)], done };
        let mut disks = Self::spawn_all(vec![owner], Duration::ZERO)?.into_iter().flatten();
        disks.next().ok_or_else(|| io::Error::other("no disk"))
    }

    /// Queues a command; its completion follows on a disk thread. Should that thread be gone, the
    /// completion comes back at once, as a fault. `is_shared`: see [`Submission::is_shared`].
    pub fn submit(&self, command: Command, is_shared: bool) -> Result<(), Completion> {
        let Some(queues) = &self.queues else { return Err(gone(&command)) };
        match command.queue() {
            CommandQueue::Commit => {
                let submission = Submission { journal: queues.place, command, is_shared };
                queues.commits.send(submission)
            }
            CommandQueue::Background => {
                queues.background.send(command).map_err(|unsent| gone(&unsent.0))
            }
        }
    }

    /// Writes at once, on the thread of the caller. Returns how that ended, and how long it took.
    pub fn write_in_place(&self, write: &InPlace) -> (InPlaceEnd, Duration) {
        let not_done = (InPlaceEnd::NotDone, Duration::ZERO);
        self.queues.as_ref().map_or(not_done, |queues| queues.files.write_in_place(write))
    }

    /// Finishes what was submitted in the background, and ends that thread. The last journal of a
    /// directory finishes the commits of all.
    pub fn close(&mut self) {
        let Some(CommandQueues { background, commits, .. }) = self.queues.take() else { return };
        drop(background);
        if let Some(thread) = self.thread.take() {
            // A panic there was reported by the thread; nothing of ours depends on it any more.
            let _ = thread.join();
        }
        drop(commits);
    }
}

impl CommitQueue {
    fn send(&self, submission: Submission) -> Result<(), Completion> {
        let Some(sender) = &self.sender else { return Err(gone(&submission.command)) };
        let sent = sender.send(Arrival { submission, at: Instant::now() });
        sent.map_err(|unsent| gone(&unsent.0.submission.command))
    }
}

impl Drop for CommitQueue {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // As above.
            let _ = thread.join();
        }
    }
}

/// What the thread of one journal does beside commits.
struct BackgroundThread<F> {
    journal: u16,
    files: Arc<JournalFiles>,
    queue: Receiver<Command>,
    /// Taken from the queue while a file was made, in order.
    waiting: VecDeque<Command>,
    done: F,
}

impl<F: Fn(Vec<Done>)> BackgroundThread<F> {
    /// Ends when the sender is gone and the queue is empty.
    fn run(mut self) {
        while let Some(command) = self.waiting.pop_front().or_else(|| self.queue.recv().ok()) {
            let Self { journal, files, queue, waiting, done } = &mut self;
            let answer = |completion, took| {
                done(vec![Done { journal: *journal, completion, took }]);
            };
            let began = Instant::now();
            let mut between = || read_meanwhile(files, queue, waiting, &answer);
            let completion = files.carry_out_in_parts(command, &mut between);
            answer(completion, began.elapsed());
        }
    }
}

/// Nobody who wants to read waits until a file is made. A read that comes before the making of a
/// file, instead of after it, finds the same.
fn read_meanwhile(
    files: &JournalFiles,
    queue: &Receiver<Command>,
    waiting: &mut VecDeque<Command>,
    answer: &impl Fn(Completion, Duration),
) {
    for command in queue.try_iter() {
        if waiting.is_empty() && matches!(command, Command::Read { .. }) {
            let began = Instant::now();
            answer(files.carry_out(command), began.elapsed());
        } else {
            waiting.push_back(command);
        }
    }
}

impl Drop for JournalDisk {
    fn drop(&mut self) {
        self.close();
    }
}

fn gone(command: &Command) -> Completion {
    let fault = || storage::Fault {
        kind: FaultKind::Io,
        detail: "the disk thread of the log has ended".to_owned(),
    };
    let outcome = match command {
        Command::Commit { .. } => Outcome::Committed { steps_done: 0, fault: Some(fault()) },
        Command::Read { .. } => Outcome::Read(Err(fault())),
        _ => Outcome::Done(Err(fault())),
    };
    Completion { id: command.id(), outcome }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use storage::CommandId;

    use super::*;

    #[test]
    fn reads_go_on_while_a_file_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let files = JournalFiles::open(dir.path()).unwrap();
        let create = |id, segment| Command::Create { id: CommandId(id), segment, bytes: 4096 };
        let read = |id, segment| Command::Read { id: CommandId(id), segment, offset: 0, bytes: 1 };
        files.carry_out(create(1, 1));
        let (sender, queue) = channel();
        let mut waiting = VecDeque::new();
        let answered = RefCell::new(Vec::new());
        let answer =
            |completion: Completion, _: Duration| answered.borrow_mut().push(completion.id.0);

        let mut times = 0;
        let completion = files.carry_out_in_parts(create(2, 2), &mut || {
            if times == 0 {
                for command in [read(3, 1), create(4, 3), read(5, 3)] {
                    sender.send(command).unwrap();
                }
            }
            times += 1;
            read_meanwhile(&files, &queue, &mut waiting, &answer);
        });
        assert!(matches!(completion.outcome, Outcome::Done(Ok(()))), "{completion:?}");
        assert!(times > 0);
        // The second read is behind the file that it reads.
        assert_eq!(*answered.borrow(), [3]);
        assert_eq!(waiting.iter().map(|command| command.id().0).collect::<Vec<_>>(), [4, 5]);
    }
}
