//! The local copy of one shard's journal: files that hold a prefix of what counts in the stream,
//! and while the node is a standby, what the records in them say.

use std::path::PathBuf;

use anyhow::Context as _;
use broker::{Replay, ShardId};
use cluster::{ClusterId, Cursor, Foreign, Mark, Piece, Portion};
use storage::{
    Command, Completion, Fault, FaultKind, Follow, Identity, Outcome, Position, Record, Recovered,
    Refusal, Report, Settings,
};

use data::{DataDir, JournalFiles, MARK_FILE, write_whole};

/// What every copy of a node knows.
#[derive(Clone)]
pub(crate) struct CopyContext {
    pub(crate) cluster: ClusterId,
    pub(crate) shards: u16,
    pub(crate) settings: Settings,
}

/// See the module.
pub(crate) struct LocalCopy {
    shard: ShardId,
    context: CopyContext,
    files: JournalFiles,
    /// `None`: this node writes the journal.
    image: Option<Image>,
    /// Up to here the files held more than the cursor said, when they were opened.
    known_upto: Position,
    /// End of what this node has appended last.
    stored_upto: Position,
    marked: Option<Cursor>,
    /// A backup reads the files.
    pin: Option<Pin>,
}

/// What waits for the end of a backup.
#[derive(Default)]
struct Pin {
    /// Segments to remove. Bound: the journal's own, as the backup of a single broker keeps them.
    held: Vec<u32>,
    /// The copy was thrown away meanwhile.
    is_void: bool,
}

/// What of a copy belongs to a backup.
pub(crate) struct PinnedCopy {
    pub(crate) shard: ShardId,
    /// Numbers, and bytes of each.
    pub(crate) segments: Vec<(u32, u64)>,
    pub(crate) manifest: Option<Vec<u8>>,
    /// For a node that is started on the backup.
    pub(crate) mark: Option<Vec<u8>>,
}

/// What a standby knows of a journal.
struct Image {
    follow: Follow,
    replay: Replay,
    /// Segments below are removed already.
    oldest: u32,
}

/// A journal as it is handed to a node that becomes active.
pub(crate) struct TakenJournal {
    pub(crate) shard: ShardId,
    pub(crate) recovered: Recovered,
    pub(crate) replay: Replay,
    pub(crate) report: Report,
}

/// Why a message cannot be taken into a copy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyFault {
    /// The files cannot be used.
    #[error("{0}")]
    Files(std::io::Error),
    /// What the stream says is no journal, or not the one that the copy is of.
    #[error("{0}")]
    Refused(Refusal),
    #[error("the local copy differs from the stream at {0}")]
    Differs(Position),
}

impl LocalCopy {
    /// Whether a shard's files are of this cluster; its mark, if there is a copy to go on with.
    /// Nothing is written.
    ///
    /// # Errors
    ///
    /// When the directory cannot be used, or is the data of another broker or cluster.
    pub(crate) fn check(
        data: &DataDir,
        shard: ShardId,
        cluster: &ClusterId,
    ) -> anyhow::Result<Option<Mark>> {
        let files = data.journal_files(shard)?;
        let path = files.path().join(MARK_FILE);
        let mark = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            content => Some(content.with_context(|| path.display().to_string())?),
        };
        let has_files = !files.list()?.is_empty() || files.manifest()?.is_some();
        Mark::admit(mark.as_deref(), has_files, cluster).map_err(|foreign| {
            let path = match &foreign {
                Foreign::Cluster { .. } => path.as_path(),
                Foreign::Single => files.path(),
            };
            anyhow::anyhow!("{} {foreign}", path.display())
        })
    }

    /// Opens the copy of a shard. One that cannot be used is removed: the stream has all of it.
    ///
    /// # Errors
    ///
    /// As with [`LocalCopy::check`].
    pub(crate) fn open(
        data: &DataDir,
        shard: ShardId,
        context: &CopyContext,
    ) -> anyhow::Result<(Self, Cursor)> {
        let mark = Self::check(data, shard, &context.cluster)?;
        let mut copy = Self {
            shard,
            context: context.clone(),
            files: data.journal_files(shard)?,
            image: None,
            known_upto: Position::default(),
            stored_upto: Position::default(),
            marked: None,
            pin: None,
        };
        let Some(mut mark) = mark else {
            copy.start_over()?;
            return Ok((copy, Cursor::default()));
        };
        match copy.recover(data) {
            Ok((image, end)) if end.to_bits() >= mark.end => {
                mark.cursor.forget_segments_below(image.oldest);
                copy.image = Some(image);
                copy.known_upto = end;
                Ok((copy, mark.cursor))
            }
            Ok(_) => copy.give_up("the local copy ends before the read position of the stream"),
            Err(error) => copy.give_up(&format!("{error:#}")),
        }
    }

    fn give_up(mut self, why: &str) -> anyhow::Result<(Self, Cursor)> {
        let shard = self.shard;
        tracing::warn!(shard, detail = why, "rebuilding the local copy of the log from the stream");
        self.start_over()?;
        Ok((self, Cursor::default()))
    }

    fn recover(&self, data: &DataDir) -> anyhow::Result<(Image, Position)> {
        let expected = (self.shard, self.context.shards);
        let fresh = Identity { id: [0; 16], shard: self.shard, shards: self.context.shards };
        let mut replay = new_replay();
        let mut sink = |record: Record<'_>, ledger: &mut storage::Ledger| {
            replay.on_record(record, ledger);
        };
        let settings = &self.context.settings;
        let recovered = data.recover(&self.files, fresh, settings, &mut sink, &|_| {})?;
        let follow = Follow::resume(recovered, expected, settings);
        let (end, oldest) = (follow.end(), follow.oldest());
        Ok((Image { follow, replay, oldest }, end))
    }

    fn mark_path(&self) -> PathBuf {
        self.files.path().join(MARK_FILE)
    }

    /// Removes all that there is, and begins with nothing. The mark comes first: files without one
    /// are taken for the journal of a broker without a cluster.
    pub(crate) fn start_over(&mut self) -> std::io::Result<()> {
        self.write_mark(&Cursor::default(), Position::default())?;
        if let Some(pin) = &mut self.pin {
            *pin = Pin { held: Vec::new(), is_void: true };
        }
        for file in self.files.list()? {
            self.files.drop_copy(file.number)?;
        }
        remove(&self.files.manifest_path())?;
        let expected = (self.shard, self.context.shards);
        let follow = Follow::new(expected, &self.context.settings);
        self.image = Some(Image { follow, replay: new_replay(), oldest: 0 });
        self.known_upto = Position::default();
        self.marked = None;
        Ok(())
    }

    /// Takes what a message that counts holds of the shard, as a standby. Returns from which
    /// segment on the journal is needed, if that has changed.
    pub(crate) fn apply(&mut self, portion: &Portion) -> Result<Option<u32>, CopyFault> {
        for piece in portion.pieces() {
            match piece {
                Piece::Write { segment, offset, bytes } => {
                    self.apply_write(segment, offset, bytes)?
                }
                Piece::Manifest { offset, bytes } => {
                    self.files.copy_manifest(offset, bytes).map_err(CopyFault::Files)?;
                    let Some(image) = &mut self.image else { continue };
                    image.follow.on_manifest(offset, bytes).map_err(CopyFault::Refused)?;
                }
            }
        }
        self.remove_old().map_err(CopyFault::Files)
    }

    fn apply_write(&mut self, segment: u32, offset: u32, bytes: &[u8]) -> Result<(), CopyFault> {
        // The stream may begin in the midst of a segment that the shard does not need any more.
        if let Some(Image { follow, .. }) = &mut self.image
            && follow.is_before_beginning(offset)
        {
            follow.skip(segment, offset);
            return Ok(());
        }
        let known = match segment.cmp(&self.known_upto.segment()) {
            std::cmp::Ordering::Less => bytes.len(),
            std::cmp::Ordering::Greater => 0,
            std::cmp::Ordering::Equal => {
                (self.known_upto.offset().saturating_sub(offset) as usize).min(bytes.len())
            }
        };
        if known > 0 {
            self.compare(segment, offset, &bytes[..known])?;
        }
        let (offset, bytes) = (offset + known as u32, &bytes[known..]);
        if bytes.is_empty() {
            return Ok(());
        }
        let of = (segment, self.context.settings.segment_bytes);
        self.files.copy(of, offset, bytes).map_err(CopyFault::Files)?;
        let Some(Image { follow, replay, .. }) = &mut self.image else { return Ok(()) };
        let mut sink = |record: Record<'_>, ledger: &mut storage::Ledger| {
            replay.on_record(record, ledger);
        };
        follow.on_write(segment, offset, bytes, &mut sink).map_err(CopyFault::Refused)
    }

    /// The files were ahead of the cursor: are they what the stream says?
    fn compare(&self, segment: u32, offset: u32, bytes: &[u8]) -> Result<(), CopyFault> {
        if self.image.as_ref().is_some_and(|image| segment < image.oldest) {
            return Ok(());
        }
        let found = self.files.read_back(segment, offset, bytes.len() as u32);
        match found {
            Ok(found) if found == bytes => Ok(()),
            _ => Err(CopyFault::Differs(Position::new(segment, offset))),
        }
    }

    fn remove_old(&mut self) -> std::io::Result<Option<u32>> {
        let Some(image) = &mut self.image else { return Ok(None) };
        let oldest = image.follow.oldest();
        if oldest <= image.oldest {
            return Ok(None);
        }
        image.oldest = oldest;
        for file in self.files.list()?.iter().filter(|file| file.number < oldest) {
            self.drop_segment(file.number)?;
        }
        Ok(Some(oldest))
    }

    /// Removes a segment, unless a backup needs it still.
    fn drop_segment(&mut self, number: u32) -> std::io::Result<()> {
        match &mut self.pin {
            Some(pin) => {
                if !pin.held.contains(&number) {
                    pin.held.push(number);
                }
                Ok(())
            }
            None => self.files.drop_copy(number),
        }
    }

    /// Keeps the files as they are until [`LocalCopy::unpin`], and says which they are. What comes
    /// meanwhile stands behind them.
    pub(crate) fn pin(&mut self, cursor: Option<Cursor>) -> std::io::Result<PinnedCopy> {
        self.mark(cursor);
        let mark = std::fs::read(self.mark_path()).ok();
        let end = self.image.as_ref().map_or(self.stored_upto, |image| image.follow.end());
        let oldest = self.image.as_ref().map_or(0, |image| image.oldest);
        let needed = |number: u32| (oldest..=end.segment()).contains(&number);
        let list = self.files.list()?.into_iter().filter(|file| needed(file.number));
        let segments = list.map(|file| match file.number == end.segment() {
            true => (file.number, u64::from(end.offset())),
            false => (file.number, file.bytes),
        });
        let segments = segments.collect();
        let manifest = self.files.manifest()?;
        self.pin.get_or_insert_default();
        Ok(PinnedCopy { shard: self.shard, segments, manifest, mark })
    }

    /// Removes what has waited for it. False: the files did not stay.
    pub(crate) fn unpin(&mut self) -> std::io::Result<bool> {
        let Some(pin) = self.pin.take() else { return Ok(false) };
        for number in pin.held {
            self.files.drop_copy(number)?;
        }
        Ok(!pin.is_void)
    }

    /// Another writer begins.
    pub(crate) fn on_new_writer(&mut self) {
        if let Some(image) = &mut self.image {
            image.follow.on_new_writer();
        }
    }

    /// Takes what a message that this node has appended holds of the shard.
    pub(crate) fn store(&mut self, portion: &Portion) -> std::io::Result<()> {
        for piece in portion.pieces() {
            match piece {
                Piece::Write { segment, offset, bytes } => {
                    let of = (segment, self.context.settings.segment_bytes);
                    self.files.copy(of, offset, bytes)?;
                    self.stored_upto = Position::new(segment, offset + bytes.len() as u32);
                }
                Piece::Manifest { offset, bytes } => self.files.copy_manifest(offset, bytes)?,
            }
        }
        Ok(())
    }

    /// Does what the journal wants done with its files, or reads them.
    pub(crate) fn carry_out(&mut self, command: Command) -> Completion {
        let id = command.id();
        let done = |result: std::io::Result<()>| {
            Outcome::Done(result.map_err(|error| Fault {
                kind: FaultKind::Io,
                detail: format!("the local copy: {error}"),
            }))
        };
        let outcome = match command {
            Command::Create { segment, bytes, .. } => done(self.files.make_sparse(segment, bytes)),
            Command::Recycle { from, to, .. } => {
                let bytes = self.context.settings.segment_bytes;
                let removed = self.drop_segment(from);
                done(removed.and_then(|()| self.files.make_sparse(to, bytes)))
            }
            Command::Delete { segment, .. } => done(self.drop_segment(segment)),
            command => return self.files.carry_out(command),
        };
        Completion { id, outcome }
    }

    /// The journal at the end of what was read, for this node to write it from now on.
    ///
    /// # Errors
    ///
    /// What was read is not a whole journal, though nothing is missing of what the stream has: the
    /// engine has lost messages. Nobody may go on from there as if they had not been.
    pub(crate) fn take(&mut self) -> anyhow::Result<TakenJournal> {
        let shard = self.shard;
        let image = self.image.take();
        let Image { follow, replay, .. } = image.context("the log is in use already")?;
        follow.check().with_context(|| {
            format!(
                "the stream of shard {shard} is damaged, NATS lost messages: restore the data of \
                 NATS, or a backup"
            )
        })?;
        self.stored_upto = follow.end();
        let fresh = Identity { id: base::random(), shard, shards: self.context.shards };
        let report = follow.report();
        let recovered = follow.finish(fresh);
        Ok(TakenJournal { shard, recovered, replay, report })
    }

    /// Makes files of an ordinary journal of the copy: they end with the last whole batch. Returns
    /// how many bytes they have.
    ///
    /// # Errors
    ///
    /// What was read is not a whole journal, or the files cannot be written.
    pub(crate) fn finish_export(&mut self) -> anyhow::Result<u64> {
        let Some(image) = self.image.take() else { return Ok(0) };
        image.follow.check()?;
        let (end, mut bytes) = (image.follow.end(), 0);
        for file in self.files.list()? {
            let number = file.number;
            let is_last = number == end.segment();
            let kept = if is_last { u64::from(end.offset()) } else { file.bytes };
            let full = file.bytes.max(u64::from(self.context.settings.segment_bytes));
            self.files.finish_copy(number, kept, full)?;
            bytes += kept;
        }
        remove(&self.mark_path())?;
        Ok(bytes)
    }

    /// Bytes of the journal up to its end here, since it began.
    pub(crate) fn bytes(&self) -> u64 {
        let end = self.image.as_ref().map_or(self.stored_upto, |image| image.follow.end());
        let before = u64::from(end.segment().saturating_sub(1));
        before * u64::from(self.context.settings.segment_bytes) + u64::from(end.offset())
    }

    fn write_mark(&self, cursor: &Cursor, end: Position) -> std::io::Result<()> {
        let mark = Mark::new(self.context.cluster, cursor.clone(), end.to_bits());
        write_whole(&self.mark_path(), &mark.to_bytes())
    }

    /// Notes how far the files are, now and then. A loss of power may take away files and leave the
    /// note: then the copy ends before it, and is read again.
    pub(crate) fn mark(&mut self, cursor: Option<Cursor>) {
        let image = self.image.as_ref();
        let end = image.map_or(self.stored_upto, |image| image.follow.end());
        let Some(cursor) = cursor else { return };
        let is_within_batch =
            self.image.as_ref().is_some_and(|image| image.follow.is_within_batch());
        if is_within_batch || self.marked.as_ref() == Some(&cursor) {
            return;
        }
        match self.write_mark(&cursor, end) {
            Ok(()) => self.marked = Some(cursor),
            Err(error) => {
                let shard = self.shard;
                tracing::warn!(shard, %error, "cannot store the position of the local copy");
            }
        }
    }
}

fn new_replay() -> Replay {
    Replay::new(u64::from_ne_bytes(base::random()))
}

fn remove(path: &std::path::Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
