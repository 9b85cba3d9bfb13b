//! A node's local copy of a journal: files that nothing depends on, and what is known of them.
//!
//! It does what `crates/server/quelea/src/cluster/copy.rs` does.

use std::cmp::Ordering;
use std::sync::Arc;

use broker::{Replay, ShardId};
use cluster::{ClusterId, Cursor, Foreign, Mark, Piece, Portion, Sequence, VERSION};
use storage::testing::{Crash, SimDisk};
use storage::{
    Command, CommandId, Completion, Follow, Identity, Ledger, Position, Record, Recovered,
    Settings, Step,
};

/// Whether a record is replayed: a planted bug says no.
pub(crate) type IsReplayed<'a> = &'a mut dyn FnMut() -> bool;

/// Files of one shard, never synced, and the cursor that was kept beside them.
#[derive(Debug)]
pub(crate) struct Copy {
    shard: ShardId,
    shards: ShardId,
    settings: Settings,
    disk: SimDisk,
    /// Whose it is, and where it ended when that was noted last.
    mark: Option<Mark>,
    /// The cluster of the process that has it.
    cluster: ClusterId,
    /// Of messages that this process reads.
    format: u8,
    /// Another cluster's, and to be left as it is.
    pub(crate) is_foreign: bool,
    /// Of a standby.
    image: Option<Image>,
    /// Up to here the files held more than the mark said, when they were opened.
    known_upto: Position,
    seed: u64,
}

/// What a standby knows of a journal.
#[derive(Debug)]
struct Image {
    follow: Follow,
    replay: Replay,
    /// Segments below are removed already.
    oldest: u32,
}

impl Copy {
    pub(crate) fn new(shard: ShardId, shards: ShardId, settings: Settings, seed: u64) -> Self {
        let (disk, known_upto) = (SimDisk::new(seed), Position::default());
        let (cluster, format) = (ClusterId::default(), VERSION);
        let (mark, image, is_foreign) = (None, None, false);
        Self {
            shard,
            shards,
            settings,
            disk,
            mark,
            cluster,
            format,
            is_foreign,
            image,
            known_upto,
            seed,
        }
    }

    /// The machine has an empty disk.
    pub(crate) fn clear(&mut self) {
        self.disk = SimDisk::new(self.seed);
        (self.mark, self.image, self.is_foreign) = (None, None, false);
    }

    /// The machine has the disk of another cluster's node: a journal that begins as this one, and
    /// of which as much was read.
    pub(crate) fn become_foreign(&mut self, cluster: ClusterId, last: Sequence) {
        let cursor = Cursor { last, epoch: 1, writer: last, number: last, ..Cursor::default() };
        self.mark = Some(Mark::new(cluster, cursor, 0));
        self.is_foreign = true;
    }

    /// Of a process that takes it for one of so many, and reads messages of this format.
    pub(crate) const fn be_of_process(&mut self, shards: ShardId, format: u8) {
        (self.shards, self.format) = (shards, format);
    }

    /// A planted bug: whatever it is, it is taken for this cluster's.
    pub(crate) fn adopt(&mut self, own: ClusterId) {
        self.mark.iter_mut().for_each(|mark| mark.cluster = own);
    }

    /// A process removes all that there is, and begins with nothing.
    pub(crate) fn start_over(&mut self) {
        self.disk = SimDisk::new(self.seed);
        self.mark = Some(Mark::new(self.cluster, Cursor::default(), 0));
        let follow = Follow::new((self.shard, self.shards), &self.settings);
        let replay = Replay::new(u64::from(self.shard));
        self.image = Some(Image { follow, replay, oldest: 0 });
        self.known_upto = Position::default();
    }

    /// Whether the files are of this cluster.
    pub(crate) fn check(&self, own: &ClusterId) -> Result<Option<Mark>, Foreign> {
        // A later program knows later versions.
        let later = self.format - VERSION;
        let known = |mark: &Mark| mark.version.saturating_sub(later).max(VERSION);
        let mark = self.mark.clone().map(|mark| Mark { version: known(&mark), ..mark }.to_bytes());
        Mark::admit(mark.as_deref(), !self.disk.files().is_empty(), own)
    }

    /// A process begins with it. One that cannot be used is removed.
    pub(crate) fn open(&mut self, own: ClusterId) -> Result<Cursor, Foreign> {
        let mark = self.check(&own)?;
        self.cluster = own;
        if let Some(mut mark) = mark
            && let Some(image) = self.recover()
            && image.follow.end().to_bits() >= mark.end
        {
            self.known_upto = image.follow.end();
            mark.cursor.forget_segments_below(image.oldest);
            self.image = Some(image);
            return Ok(mark.cursor);
        }
        self.start_over();
        Ok(Cursor::default())
    }

    fn recover(&self) -> Option<Image> {
        let (owner, mut replay) = ((self.shard, self.shards), Replay::new(u64::from(self.shard)));
        let sink: &mut dyn FnMut(Record<'_>, &mut Ledger) =
            &mut |record, ledger| replay.on_record(record, ledger);
        let recovery = self.disk.read_back(owner, &self.settings, sink).ok()?;
        let follow = Follow::resume(recovery.finish(self.fresh()), owner, &self.settings);
        let oldest = follow.oldest();
        Some(Image { follow, replay, oldest })
    }

    fn fresh(&self) -> Identity {
        let mut id = *b"log 00 of a sim.";
        id[5] += self.shard as u8;
        Identity { id, shard: self.shard, shards: self.shards }
    }

    pub(crate) fn crash(&mut self, crash: Crash) {
        self.disk.crash(crash);
        self.image = None;
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

    /// Notes how far it is.
    pub(crate) fn note(&mut self, cursor: Cursor) {
        if let Some(image) = self.image.as_ref().filter(|it| !it.follow.is_within_batch()) {
            let end = image.follow.end().to_bits();
            let mark = Mark::new(self.cluster, cursor, end);
            self.mark = Some(Mark { version: self.format, ..mark });
        }
    }

    /// Takes what a message that counts holds of the shard, as a standby. Some: the journal is
    /// needed from this segment on.
    pub(crate) fn apply(
        &mut self,
        portion: &Portion,
        is_replayed: IsReplayed<'_>,
    ) -> Result<Option<u32>, String> {
        for piece in portion.pieces() {
            match piece {
                Piece::Write { segment, offset, bytes } => {
                    self.apply_write(segment, offset, bytes, is_replayed)?;
                }
                Piece::Manifest { offset, bytes } => {
                    self.write(&piece);
                    let Some(image) = &mut self.image else { continue };
                    image.follow.on_manifest(offset, bytes).map_err(|it| it.to_string())?;
                }
            }
        }
        Ok(self.remove_old())
    }

    fn apply_write(
        &mut self,
        segment: u32,
        offset: u32,
        bytes: &[u8],
        is_replayed: IsReplayed<'_>,
    ) -> Result<(), String> {
        if let Some(Image { follow, .. }) = &mut self.image
            && follow.is_before_beginning(offset)
        {
            follow.skip(segment, offset);
            return Ok(());
        }
        let known = match segment.cmp(&self.known_upto.segment()) {
            Ordering::Less => bytes.len(),
            Ordering::Greater => 0,
            Ordering::Equal => {
                (self.known_upto.offset().saturating_sub(offset) as usize).min(bytes.len())
            }
        };
        let (before, bytes) = bytes.split_at(known);
        let is_needed = self.image.as_ref().is_none_or(|image| segment >= image.oldest);
        let found = self.disk.content(segment).get(offset as usize..offset as usize + known);
        if is_needed && found != Some(before) {
            return Err("the local copy differs from the stream".to_owned());
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let offset = offset + known as u32;
        self.write(&Piece::Write { segment, offset, bytes });
        let Some(Image { follow, replay, .. }) = &mut self.image else { return Ok(()) };
        let mut sink = |record: Record<'_>, ledger: &mut Ledger| {
            if is_replayed() {
                replay.on_record(record, ledger);
            }
        };
        follow.on_write(segment, offset, bytes, &mut sink).map_err(|it| it.to_string())
    }

    fn remove_old(&mut self) -> Option<u32> {
        let image = self.image.as_mut()?;
        let oldest = image.follow.oldest();
        if oldest <= image.oldest {
            return None;
        }
        image.oldest = oldest;
        for file in self.disk.files().iter().filter(|file| file.number < oldest) {
            self.disk.remove(file.number);
        }
        Some(oldest)
    }

    /// Another writer begins.
    pub(crate) fn on_new_writer(&mut self) {
        if let Some(image) = &mut self.image {
            image.follow.on_new_writer();
        }
    }

    /// Takes what a message that this node has appended holds of the shard.
    pub(crate) fn store(&mut self, portion: &Portion) {
        portion.pieces().for_each(|piece| self.write(&piece));
    }

    /// The journal and the state that follows from it, for this node to write it from now on.
    ///
    /// # Errors
    ///
    /// What was read is not a whole journal, or the journal was taken before.
    pub(crate) fn take(&mut self) -> Result<(Recovered, Replay), String> {
        let image = self.image.take();
        let Image { follow, replay, .. } = image.ok_or("a copy was taken twice")?;
        follow.check().map_err(|refusal| format!("what is taken is not a whole log: {refusal}"))?;
        Ok((follow.finish(self.fresh()), replay))
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
}
