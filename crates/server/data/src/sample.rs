//! A small journal, for tests of other crates.

use std::error::Error;
use std::path::Path;
use std::sync::mpsc::channel;

use storage::{Identity, Journal, Level, RecordKind, Settings, Status};

use crate::{DataDir, JournalDisk};

/// Makes the journal of shard 0: five records of the kind with the content `abc`, each in a batch
/// of its own, closed in order.
///
/// # Errors
///
/// What the disk reports.
pub fn write_journal(directory: &Path, kind: u8, shards: u16) -> Result<(), Box<dyn Error>> {
    let files = DataDir::open(directory)?.journal_files(0)?;
    let identity = Identity { id: [9; 16], shard: 0, shards };
    let (sender, completions) = channel();
    let disk = JournalDisk::spawn(files, move |done| {
        done.into_iter().for_each(|done| drop(sender.send(done.completion)));
    })?;
    let mut journal = Journal::create(identity, Settings::with_segment_bytes(64 * 1024));
    let mut appended = 0;
    loop {
        let mut commands = Vec::new();
        journal.take_commands(&mut commands, 0);
        for command in commands {
            disk.submit(command, false).map_err(|_| "the thread of the disk has ended")?;
        }
        journal.on_completed(completions.recv()?);
        match journal.status() {
            Status::Ready if appended < 5 => {
                journal.append(RecordKind::new(kind), &[b"abc"], Level::Fsync)?;
                appended += 1;
            }
            Status::Ready => journal.close(),
            Status::Closed => return Ok(()),
            _ => {}
        }
    }
}
