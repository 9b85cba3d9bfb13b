//! A small log, for tests of other crates.

use std::error::Error;
use std::path::Path;
use std::sync::mpsc::channel;

use storage::{Identity, Level, Log, RecordKind, Settings, Status};

use crate::{DataDir, LogDisk};

/// Makes the log of shard 0: five records of the kind with the content `abc`, each in a batch of
/// its own, closed in order.
///
/// # Errors
///
/// What the disk reports.
pub fn write_log(directory: &Path, kind: u8, shards: u16) -> Result<(), Box<dyn Error>> {
    let files = DataDir::open(directory)?.log_files(0)?;
    let identity = Identity { id: [9; 16], shard: 0, shards };
    let (sender, completions) = channel();
    let disk = LogDisk::spawn(files, "sample", move |done, _| {
        let _ = sender.send(done);
    })?;
    let mut log = Log::create(identity, Settings::with_segment_bytes(64 * 1024));
    let mut appended = 0;
    loop {
        let mut commands = Vec::new();
        log.take_commands(&mut commands, 0);
        for command in commands {
            disk.submit(command).map_err(|_| "the thread of the disk has ended")?;
        }
        log.on_completed(completions.recv()?);
        match log.status() {
            Status::Ready if appended < 5 => {
                log.append(RecordKind::new(kind), &[b"abc"], Level::Fsync)?;
                appended += 1;
            }
            Status::Ready => log.close(),
            Status::Closed => return Ok(()),
            _ => {}
        }
    }
}
