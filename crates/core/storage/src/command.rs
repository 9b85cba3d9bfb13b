//! What a journal asks of a disk, and what the disk answers.

use std::fmt;
use std::sync::Arc;

/// One thing for the disk to do. The journal names files by segment number; the driver maps a
/// number to a file name.
///
/// The contract of a driver:
/// - Commands of one [`CommandQueue`] are executed in the order given, one after the other; the
///   two queues are independent of each other.
/// - The steps of a `Commit` are executed in order and **stop at the first fault**. Commits behind
///   one that failed are not carried out, but answered as [`FaultKind::Skipped`], until one comes
///   that says `resume`. A [`CommitGuard`] does this for a driver, [`Rounds`](crate::Rounds) for
///   one that has several journals.
/// - `Create`, `Recycle` and `Delete` are reported as done only when the directory entry itself is
///   durable (directory synced), and a created or recycled file has its blocks allocated.
/// - Each command is answered by exactly one [`Completion`].
#[derive(Clone, Debug)]
pub enum Command {
    /// Writes and syncs that make appended records durable. `resume`: goes on after a fault.
    Commit { id: CommandId, steps: Vec<Step>, resume: bool },
    /// Makes a segment file of `bytes` zero bytes, allocated on the medium.
    Create { id: CommandId, segment: u32, bytes: u32 },
    /// Renames the file of segment `from` to that of `to`, content untouched.
    Recycle { id: CommandId, from: u32, to: u32 },
    /// Removes a segment file. A file that does not exist counts as removed.
    Delete { id: CommandId, segment: u32 },
    /// Reads up to `bytes` bytes; fewer when the file ends before.
    Read { id: CommandId, segment: u32, offset: u32, bytes: u32 },
}

/// One step of a commit.
#[derive(Clone, Debug)]
pub enum Step {
    /// Writes `bytes` at `offset` of a segment's file.
    Write { segment: u32, offset: u32, bytes: Arc<Vec<u8>> },
    /// Makes all that was written to a segment's file durable (fdatasync).
    Sync { segment: u32 },
    /// Writes `bytes` at `offset` of the manifest, in place, and makes them durable. If there is
    /// no manifest it is made: whole ([`manifest_file`](crate::manifest_file)) or not at all, and
    /// with its entry in the directory durable.
    Manifest { offset: u32, bytes: Arc<Vec<u8>> },
}

impl Step {
    /// Bytes of the journal that it writes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Write { bytes, .. } => bytes.len(),
            Self::Sync { .. } | Self::Manifest { .. } => 0,
        }
    }
}

/// A write that the user of a journal does itself, see [`Journal::begin_write`].
///
/// [`Journal::begin_write`]: crate::Journal::begin_write
#[derive(Clone, Debug)]
pub struct InPlace {
    pub segment: u32,
    pub offset: u32,
    pub bytes: Arc<Vec<u8>>,
}

/// How such a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InPlaceEnd {
    /// The operating system has all of it.
    Done,
    /// The same, but it took long.
    Slow,
    /// Not, or not all of it: the disk's thread is to write it.
    NotDone,
}

/// The name by which a command is answered; unique within a journal's life in memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CommandId(pub u64);

/// The two queues of a journal's driver. Housekeeping never delays a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandQueue {
    /// Writes and syncs that a client may be waiting for.
    Commit,
    /// Files made and removed, and reads.
    Background,
}

impl Command {
    /// The name of this command.
    pub fn id(&self) -> CommandId {
        match *self {
            Self::Commit { id, .. }
            | Self::Create { id, .. }
            | Self::Recycle { id, .. }
            | Self::Delete { id, .. }
            | Self::Read { id, .. } => id,
        }
    }

    /// The queue it belongs into.
    pub fn queue(&self) -> CommandQueue {
        match self {
            Self::Commit { .. } => CommandQueue::Commit,
            _ => CommandQueue::Background,
        }
    }
}

/// The answer to one command.
#[derive(Clone, Debug)]
pub struct Completion {
    pub id: CommandId,
    pub outcome: Outcome,
}

/// How a command ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// A commit: how many steps were carried out whole, and the fault that stopped the next one.
    Committed { steps_done: usize, fault: Option<Fault> },
    /// A create, recycle or delete.
    Done(Result<(), Fault>),
    /// A read: the bytes up to the end asked for, or of the file.
    Read(Result<Vec<u8>, Fault>),
}

/// What went wrong at the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// What was tried and what the system answered, for the operator.
    pub detail: String,
}

/// The kinds of fault that a journal treats differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// No space or quota left: passes when space returns.
    NoSpace,
    /// The file does not exist.
    Missing,
    /// Not tried, because a commit before it failed.
    Skipped,
    /// A replicated journal has no quorum at present. Certainly not done; it is tried again.
    Unavailable,
    /// Another node owns the journal. This one never writes to it again.
    Fenced,
    /// Anything else; in a commit it poisons the journal.
    Io,
}

/// Keeps a driver from carrying out a commit after one that failed.
#[derive(Debug, Default)]
pub struct CommitGuard {
    failed: bool,
}

impl CommitGuard {
    /// Whether the command must not be carried out; then this is its completion.
    pub fn refuse(&mut self, command: &Command) -> Option<Completion> {
        let Command::Commit { id, resume, .. } = command else { return None };
        self.failed &= !resume;
        let detail = "a write before it failed".to_owned();
        let fault = Some(Fault { kind: FaultKind::Skipped, detail });
        self.failed
            .then_some(Completion { id: *id, outcome: Outcome::Committed { steps_done: 0, fault } })
    }

    /// Takes note of how a command ended.
    pub fn note(&mut self, completion: &Completion) {
        self.failed |= matches!(completion.outcome, Outcome::Committed { fault: Some(_), .. });
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Fault {}
