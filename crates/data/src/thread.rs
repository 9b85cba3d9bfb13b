//! The two threads of a journal: one commits, one keeps house and reads.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use storage::{Command, CommandQueue, CommitGuard, Completion, FaultKind, Outcome};

use super::JournalFiles;

/// Carries out the commands of one journal. Dropping it finishes what was submitted.
///
/// Both queues are bounded by the journal itself: it has two commits, one housekeeping command and
/// one read for reclaiming under way at a time; its user bounds the other reads.
#[derive(Debug)]
pub struct JournalDisk {
    /// `None` once closed.
    queues: Option<CommandQueues>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct CommandQueues {
    commits: Sender<Command>,
    background: Sender<Command>,
}

impl JournalDisk {
    /// Starts the threads. `done` is called on them with each completion and the time it took; it
    /// should hand it to the journal's owner and wake that up.
    pub fn spawn(
        files: JournalFiles,
        name: &str,
        done: impl Fn(Completion, Duration) + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let files = Arc::new(files);
        let (commits, commit_queue) = channel();
        let (background, background_queue) = channel();
        let spawn = |suffix: &str, queue: Receiver<Command>| {
            let queue = QueueThread {
                files: Arc::clone(&files),
                queue,
                waiting: VecDeque::new(),
                guard: CommitGuard::default(),
                done: done.clone(),
            };
            Builder::new().name(format!("{name}-{suffix}")).spawn(move || queue.run())
        };
        let threads = vec![spawn("commit", commit_queue)?, spawn("files", background_queue)?];
        Ok(Self { queues: Some(CommandQueues { commits, background }), threads })
    }

    /// Queues a command; its completion follows on a disk thread. Should that thread be gone, the
    /// completion comes back at once, as a fault.
    pub fn submit(&self, command: Command) -> Result<(), Completion> {
        let sent = match (&self.queues, command.queue()) {
            (Some(queues), CommandQueue::Commit) => queues.commits.send(command),
            (Some(queues), CommandQueue::Background) => queues.background.send(command),
            (None, _) => return Err(gone(&command)),
        };
        sent.map_err(|unsent| gone(&unsent.0))
    }

    /// Finishes what was submitted, and ends the threads.
    pub fn close(&mut self) {
        self.queues = None;
        for thread in self.threads.drain(..) {
            // A panic there was reported by the thread; nothing of ours depends on it any more.
            let _ = thread.join();
        }
    }
}

/// What one of the threads does.
struct QueueThread<F> {
    files: Arc<JournalFiles>,
    queue: Receiver<Command>,
    /// Taken from the queue while a file was made, in order.
    waiting: VecDeque<Command>,
    guard: CommitGuard,
    done: F,
}

impl<F: Fn(Completion, Duration)> QueueThread<F> {
    /// Ends when the sender is gone and the queue is empty.
    fn run(mut self) {
        while let Some(command) = self.waiting.pop_front().or_else(|| self.queue.recv().ok()) {
            let began = Instant::now();
            let completion = self.guard.refuse(&command).unwrap_or_else(|| {
                let (files, queue, waiting) = (&self.files, &self.queue, &mut self.waiting);
                let mut between = || read_meanwhile(files, queue, waiting, &self.done);
                files.carry_out_in_parts(command, &mut between)
            });
            self.guard.note(&completion);
            (self.done)(completion, began.elapsed());
        }
    }
}

/// Nobody who wants to read waits until a file is made. A read that comes before the making of a
/// file, instead of after it, finds the same.
fn read_meanwhile(
    files: &JournalFiles,
    queue: &Receiver<Command>,
    waiting: &mut VecDeque<Command>,
    done: &impl Fn(Completion, Duration),
) {
    for command in queue.try_iter() {
        if waiting.is_empty() && matches!(command, Command::Read { .. }) {
            let began = Instant::now();
            done(files.carry_out(command), began.elapsed());
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
        let done =
            |completion: Completion, _: Duration| answered.borrow_mut().push(completion.id.0);

        let mut times = 0;
        let completion = files.carry_out_in_parts(create(2, 2), &mut || {
            if times == 0 {
                for command in [read(3, 1), create(4, 3), read(5, 3)] {
                    sender.send(command).unwrap();
                }
            }
            times += 1;
            read_meanwhile(&files, &queue, &mut waiting, &done);
        });
        assert!(matches!(completion.outcome, Outcome::Done(Ok(()))), "{completion:?}");
        assert!(times > 0);
        // The second read is behind the file that it reads.
        assert_eq!(*answered.borrow(), [3]);
        assert_eq!(waiting.iter().map(|command| command.id().0).collect::<Vec<_>>(), [4, 5]);
    }
}
