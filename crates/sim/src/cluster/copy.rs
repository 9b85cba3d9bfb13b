//! A node's local copy of a log: files that nothing depends on.

use broker::{Replay, ShardId};
use cluster::{Body, Content, Cursor, Piece, decode};
use std::sync::Arc;
use storage::testing::{Crash, SimDisk};
use storage::{
    Command, CommandId, Completion, Identity, Record, Recovered, Refusal, Settings, Step,
};

/// Files of one shard, never synced, and the cursor that was kept beside them.
#[derive(Debug)]
pub(crate) struct Copy {
    shard: ShardId,
    shards: ShardId,
    settings: Settings,
    disk: SimDisk,
    /// Where the copy ended when that was noted last.
    pub(crate) cursor: Cursor,
    seed: u64,
}

impl Copy {
    pub(crate) fn new(shard: ShardId, shards: ShardId, settings: Settings, seed: u64) -> Self {
        let (disk, cursor) = (SimDisk::new(seed), Cursor::default());
        Self { shard, shards, settings, disk, cursor, seed }
    }

    /// Nothing of it is left.
    pub(crate) fn clear(&mut self) {
        self.disk = SimDisk::new(self.seed);
        self.cursor = Cursor::default();
    }

    pub(crate) fn crash(&mut self, crash: Crash) {
        self.disk.crash(crash);
    }

    /// Some of its bytes are gone, at the end of its newest file or within.
    pub(crate) fn tear(&mut self, at: usize, count: usize) {
        let Some(newest) = self.disk.files().last().map(|file| file.number) else { return };
        let mut content = self.disk.content(newest).to_vec();
        let begin = at % content.len().max(1);
        let end = (begin + count).min(content.len());
        content[begin..end].fill(0);
        self.disk.put(newest, content);
    }

    /// The writes of a message.
    pub(crate) fn store(&mut self, body: &Body) -> Result<(), String> {
        let message = decode(body).map_err(|error| error.to_string())?;
        let Content::Pieces(pieces) = message.content else { return Ok(()) };
        for piece in pieces {
            self.write(&piece);
        }
        Ok(())
    }

    fn write(&mut self, piece: &Piece<'_>) {
        let step = match *piece {
            Piece::Write { segment, offset, bytes } => {
                if !self.disk.files().iter().any(|file| file.number == segment) {
                    self.disk.put(segment, vec![0; self.settings.segment_bytes as usize]);
                }
                Step::Write { segment, offset, bytes: Arc::new(bytes.to_vec()) }
            }
            Piece::Manifest { offset, bytes } => {
                Step::Manifest { offset, bytes: Arc::new(bytes.to_vec()) }
            }
        };
        let id = CommandId(0);
        self.disk.submit(Command::Commit { id, steps: vec![step], resume: true });
        while !self.disk.is_idle() {
            self.disk.step();
        }
    }

    /// A file is made or removed, or a part of it read.
    pub(crate) fn housekeep(&mut self, command: Command) -> Option<Completion> {
        if let Command::Recycle { id, from, to } = command {
            self.disk.remove(from);
            let bytes = self.settings.segment_bytes;
            self.disk.submit(Command::Create { id, segment: to, bytes });
        } else {
            self.disk.submit(command);
        }
        let mut completion = None;
        while !self.disk.is_idle() {
            completion = self.disk.step();
        }
        completion
    }

    /// The log and the state that follows from it. `is_found`: planted bugs find less.
    pub(crate) fn recover(
        &self,
        is_found: &mut dyn FnMut(&Record<'_>) -> bool,
    ) -> Result<(Recovered, Replay), Refusal> {
        let mut replay = Replay::new(u64::from(self.shard));
        let owner = (self.shard, self.shards);
        let recovery = self.disk.read_back(owner, &self.settings, &mut |record, ledger| {
            if is_found(&record) {
                replay.on_record(record, ledger);
            }
        })?;
        let mut id = *b"log 00 of a sim.";
        id[5] += self.shard as u8;
        let recovered = recovery.finish(Identity { id, shard: self.shard, shards: self.shards });
        Ok((recovered, replay))
    }
}
