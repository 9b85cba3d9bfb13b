//! The two threads of a log: one commits, one keeps house and reads.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use storage::{Command, CommitGate, Completion, FaultKind, Lane, Outcome};

use super::LogFiles;

/// Carries out the commands of one log. Dropping it finishes what was submitted.
///
/// Both queues are bounded by the log itself: it has two commits, one housekeeping command and one
/// read for reclaiming under way at a time; its user bounds the other reads.
#[derive(Debug)]
pub struct LogDisk {
    /// `None` once closed.
    lanes: Option<Lanes>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Lanes {
    commits: Sender<Command>,
    background: Sender<Command>,
}

impl LogDisk {
    /// Starts the threads. `done` is called on them with each completion and the time it took; it
    /// should hand it to the log's owner and wake that up.
    pub fn spawn(
        files: LogFiles,
        name: &str,
        done: impl Fn(Completion, Duration) + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let files = Arc::new(files);
        let (commits, commit_queue) = channel();
        let (background, background_queue) = channel();
        let spawn = |suffix: &str, queue: Receiver<Command>| {
            let (files, done) = (Arc::clone(&files), done.clone());
            Builder::new().name(format!("{name}-{suffix}")).spawn(move || {
                // Ends when the sender is gone and the queue is empty.
                let mut gate = CommitGate::default();
                for command in queue {
                    let began = Instant::now();
                    let completion =
                        gate.refuse(&command).unwrap_or_else(|| files.carry_out(command));
                    gate.note(&completion);
                    done(completion, began.elapsed());
                }
            })
        };
        let threads = vec![spawn("commit", commit_queue)?, spawn("files", background_queue)?];
        Ok(Self { lanes: Some(Lanes { commits, background }), threads })
    }

    /// Queues a command; its completion follows on a disk thread. Should that thread be gone, the
    /// completion comes back at once, as a fault.
    pub fn submit(&self, command: Command) -> Result<(), Completion> {
        let sent = match (&self.lanes, command.lane()) {
            (Some(lanes), Lane::Commit) => lanes.commits.send(command),
            (Some(lanes), Lane::Background) => lanes.background.send(command),
            (None, _) => return Err(gone(&command)),
        };
        sent.map_err(|unsent| gone(&unsent.0))
    }

    /// Finishes what was submitted, and ends the threads.
    pub fn close(&mut self) {
        self.lanes = None;
        for thread in self.threads.drain(..) {
            // A panic there was reported by the thread; nothing of ours depends on it any more.
            let _ = thread.join();
        }
    }
}

impl Drop for LogDisk {
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
