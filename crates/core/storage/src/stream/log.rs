//! The files of a stream as a state machine: what is written where, what has to go, and where a
//! record is.

use std::collections::{BTreeMap, VecDeque};

use crate::Fault;
use crate::stream::block::{BlockHeader, BlockWriter};
use crate::stream::file::{FILE_HEADER_BYTES, FileIdentity, FileIndex};

/// Limits of a stream. Whole files are deleted, so it may have one file more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamLimits {
    /// Bytes of a file. A block that would go beyond begins another file. Default 64 MiB.
    pub file_bytes: u64,
    /// Age of the newest record of a file, in milliseconds of broker time.
    pub age_ms_max: Option<u64>,
    /// Bytes of all files.
    pub bytes_max: Option<u64>,
    /// Records of all files.
    pub records_max: Option<u64>,
    /// Delete files that all consumers have passed.
    pub consumed: bool,
    /// Delete only files that all consumers have passed, whatever the other limits say: the stream
    /// refuses records instead.
    pub keep_unconsumed: bool,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self {
            file_bytes: 64 << 20,
            age_ms_max: None,
            bytes_max: None,
            records_max: None,
            consumed: false,
            keep_unconsumed: false,
        }
    }
}

/// Names a command, and its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StreamCommandId(u64);

/// What the disk has to do, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamCommand {
    /// Make the file if `offset` is 0, write at the offset, and sync. With an answer.
    Write {
        id: StreamCommandId,
        file: u64,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// Write at the offset and sync. The file is whole without it, so a fault is no matter.
    Close {
        file: u64,
        offset: u64,
        bytes: Vec<u8>,
    },
    Delete {
        file: u64,
    },
}

/// Records of a shard that are durable in the files of the stream: the journal may release those
/// below `next`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Archived {
    pub shard: u16,
    pub next: u64,
    /// The file must reach that far at the next start, or acknowledged records are lost.
    pub file: u64,
    pub end: u64,
}

/// Records of a shard that are gone with a file: from `first` to ahead of `next`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dropped {
    /// The journal forgets it: after a start it counts no more, whether it is still there or not.
    pub file: u64,
    pub shard: u16,
    pub first: u64,
    pub next: u64,
    pub records: u64,
}

/// Where a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// In this file, in a block at this offset or behind it, and before `end`.
    File { file: u64, offset: u64, end: u64 },
    /// Not there any more. The next one of the shard has this number.
    Gone { next: u64 },
    /// It is in no file yet.
    Ahead,
}

/// A file as it was found at a start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundFile {
    pub number: u64,
    pub index: FileIndex,
}

/// The files of a stream.
#[derive(Debug)]
pub struct StreamLog {
    stream: [u8; 16],
    limits: StreamLimits,
    /// In the order of their numbers, those that are dropped included. What is in them is durable.
    files: VecDeque<StoredFile>,
    /// Files below this one are dropped: readers have them until all journals have forgotten them,
    /// as a crash before that may bring them back.
    kept_from: u64,
    /// Files below this one were dropped before the last start, and not all journals know that.
    /// They are dropped again once all consumers have passed them.
    half_dropped: u64,
    /// Of each shard, the number behind the last record that was durable in a file.
    archived: BTreeMap<u16, u64>,
    next_file: u64,
    /// The file that the next block goes to, and the offset. None: a new one.
    head: Option<(u64, u64)>,
    /// Blocks at the disk, oldest first.
    writing: VecDeque<Writing>,
    next_command: u64,
    commands: Vec<StreamCommand>,
    /// Why the last write could not be done. None: it could.
    fault: Option<Fault>,
}

#[derive(Debug)]
struct StoredFile {
    number: u64,
    index: FileIndex,
}

#[derive(Debug)]
struct Writing {
    id: StreamCommandId,
    file: u64,
    header: BlockHeader,
    /// What it was made of, to be written into another file if this one fails.
    block: BlockWriter,
}

impl StreamLog {
    /// A stream with these files, in any order, of which so much of each shard was
    /// [`Archived`]. What the files have of a shard behind that does not count: the journal has it.
    /// The next block begins a new file: what a torn write has left behind the end of the last one
    /// stays where it is.
    pub fn open(
        stream: [u8; 16],
        limits: StreamLimits,
        mut found: Vec<FoundFile>,
        archived: BTreeMap<u16, u64>,
    ) -> Self {
        found.sort_by_key(|file| file.number);
        forget_stale(&mut found, &archived);
        let next_file = found.last().map_or(1, |file| file.number + 1);
        let files = found.into_iter().map(|it| StoredFile { number: it.number, index: it.index });
        Self {
            stream,
            limits,
            files: files.collect(),
            kept_from: 0,
            half_dropped: 0,
            archived,
            next_file,
            head: None,
            writing: VecDeque::new(),
            next_command: 0,
            commands: Vec::new(),
            fault: None,
        }
    }

    /// The next file has at least this number.
    pub fn begin_at(&mut self, first_file: u64) {
        self.next_file = self.next_file.max(first_file);
    }

    /// Files below this one were dropped, as one journal at least says. Nobody begins to read
    /// there. The next file is not one of these, or a journal would take it for gone.
    pub fn resume_drop(&mut self, first_file: u64) {
        self.begin_at(first_file);
        self.half_dropped = first_file;
    }

    pub const fn set_limits(&mut self, limits: StreamLimits) {
        self.limits = limits;
    }

    /// Takes a block, whose records follow those before. They are durable with [`Archived`].
    pub fn append(&mut self, block: BlockWriter) {
        if block.is_empty() {
            return;
        }
        let (file, offset) = self.place_of(&block);
        self.write(block, file, offset);
    }

    /// Bytes of blocks that the disk has not answered. The owner bounds them: it moves the next
    /// block when the first is done.
    pub fn writing_bytes(&self) -> usize {
        self.writing.iter().map(|writing| writing.block.len()).sum()
    }

    /// The first record of the shard that can be read from a file.
    pub fn oldest(&self, shard: u16) -> Option<u64> {
        self.files.iter().find_map(|file| file.index.extent(shard)).map(|extent| extent.first)
    }

    /// The first record of the shard in a file that is not dropped.
    pub fn oldest_kept(&self, shard: u16) -> Option<u64> {
        self.beginnings().find_map(|file| file.index.extent(shard)).map(|extent| extent.first)
    }

    /// Files that are not dropped.
    fn kept(&self) -> impl Iterator<Item = &StoredFile> {
        self.files_from(self.kept_from)
    }

    /// Files at which reading may begin.
    fn beginnings(&self) -> impl Iterator<Item = &StoredFile> {
        self.files_from(self.kept_from.max(self.half_dropped))
    }

    fn files_from(&self, number: u64) -> impl Iterator<Item = &StoredFile> {
        self.files.range(self.files.partition_point(|file| file.number < number)..)
    }

    /// What the disk has to do since it was asked last.
    pub fn take_commands(&mut self, out: &mut Vec<StreamCommand>) {
        out.append(&mut self.commands);
    }

    /// The answer to a write, in their order. What is durable now, if it was done. After a fault
    /// the blocks of its file that are not known to be durable are written into another one by
    /// [`StreamLog::retry`]: after a failed sync it is unknown what the medium has.
    pub fn on_written(
        &mut self,
        id: StreamCommandId,
        result: Result<(), Fault>,
    ) -> Option<Archived> {
        let place = self.writing.iter().position(|writing| writing.id == id)?;
        match result {
            Err(fault) => {
                self.fault = Some(fault);
                self.head = None;
                None
            }
            // Behind one that failed: its file is given up.
            Ok(()) if place > 0 || self.fault.is_some() => None,
            Ok(()) => {
                let Writing { file, header, .. } = self.writing.pop_front()?;
                self.note_stored(file, &header)
            }
        }
    }

    /// Why blocks are not written. They wait for [`StreamLog::retry`].
    pub const fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// Writes what has failed into a new file. The owner says when: after a second, say. A file of
    /// which nothing has counted goes, so that no record is there twice.
    pub fn retry(&mut self) {
        if self.fault.take().is_none() {
            return;
        }
        self.head = None;
        let failed = std::mem::take(&mut self.writing);
        let stored = self.files.back().map(|file| file.number);
        let mut void: Vec<u64> = failed.iter().map(|it| it.file).collect();
        void.retain(|file| Some(*file) != stored);
        void.dedup();
        self.commands.extend(void.into_iter().map(|file| StreamCommand::Delete { file }));
        for Writing { block, .. } in failed {
            self.append(block);
        }
    }

    fn place_of(&mut self, block: &BlockWriter) -> (u64, u64) {
        match self.head {
            Some((file, offset)) if offset + block.len() as u64 <= self.limits.file_bytes => {
                (file, offset)
            }
            head => {
                if let Some((file, offset)) = head {
                    self.close(file, offset);
                }
                let file = self.next_file;
                self.next_file += 1;
                (file, 0)
            }
        }
    }

    fn write(&mut self, block: BlockWriter, file: u64, offset: u64) {
        let identity = FileIdentity { stream: self.stream, number: file };
        let (header, stored) = block.encode(&identity);
        let mut bytes = if offset == 0 { identity.header() } else { Vec::new() };
        bytes.extend_from_slice(&stored);
        self.head = Some((file, offset + bytes.len() as u64));
        let id = StreamCommandId(self.next_command);
        self.next_command += 1;
        self.writing.push_back(Writing { id, file, header, block });
        self.commands.push(StreamCommand::Write { id, file, offset, bytes });
    }

    /// A full file gets its index as the disk will have it: what is under way is in it as well.
    fn close(&mut self, file: u64, offset: u64) {
        let stored = self.files.back().filter(|it| it.number == file);
        let mut index = stored.map(|it| it.index.clone()).unwrap_or_default();
        for writing in self.writing.iter().filter(|writing| writing.file == file) {
            index.note_block(&writing.header);
        }
        let identity = FileIdentity { stream: self.stream, number: file };
        let bytes = index.footer(&identity);
        self.commands.push(StreamCommand::Close { file, offset, bytes });
    }

    fn note_stored(&mut self, number: u64, header: &BlockHeader) -> Option<Archived> {
        if self.files.back().is_none_or(|file| file.number != number) {
            self.files.push_back(StoredFile { number, index: FileIndex::default() });
        }
        let index = &mut self.files.back_mut()?.index;
        let is_next = index.note_block(header);
        debug_assert!(is_next, "blocks of a shard are appended in their order");
        let (shard, next) = (header.shard, header.next());
        self.archived.insert(shard, next);
        Some(Archived { shard, next, file: number, end: index.end() })
    }
}

/// Forgets what counts elsewhere: records that a journal has not released, and those that were
/// moved again into a later file, as an earlier start had found them so.
fn forget_stale(files: &mut [FoundFile], archived: &BTreeMap<u16, u64>) {
    let mut ends = archived.clone();
    for file in files.iter_mut().rev() {
        for (shard, end) in &mut ends {
            file.index.forget_from(*shard, *end);
            *end = file.index.extent(*shard).map_or(*end, |extent| extent.first.min(*end));
        }
    }
}

impl StreamLog {
    /// Drops whole files, the oldest first, until the limits are met. `passed`: what all consumers
    /// have passed of a shard. Readers have them, and the disk, until [`StreamLog::delete_below`]:
    /// a start refuses a journal whose files are missing, and who has read on may not find them
    /// again.
    pub fn retain(&mut self, now_ms: u64, passed: impl Fn(u16) -> u64) -> Vec<Dropped> {
        let mut dropped = Vec::new();
        loop {
            let oldest = self.kept().next().filter(|file| self.is_over(file, now_ms, &passed));
            let Some(file) = oldest else { return dropped };
            let number = file.number;
            dropped.extend(file.index.extents().map(|(shard, extent)| Dropped {
                file: number,
                shard,
                first: extent.first,
                next: extent.next,
                records: extent.records,
            }));
            self.head.take_if(|(head, _)| *head == number);
            self.kept_from = number + 1;
        }
    }

    /// Deletes the dropped files below this one: all journals have forgotten them.
    pub fn delete_below(&mut self, first_file: u64) {
        let end = first_file.min(self.kept_from);
        while let Some(file) = self.files.pop_front_if(|file| file.number < end) {
            self.commands.push(StreamCommand::Delete { file: file.number });
        }
    }

    /// Whether the oldest file that is not dropped is to go.
    fn is_over(&self, oldest: &StoredFile, now_ms: u64, passed: &impl Fn(u16) -> u64) -> bool {
        // A block on its way to this file would be lost with it.
        if self.writing.iter().any(|writing| writing.file == oldest.number) {
            return false;
        }
        let limits = &self.limits;
        let is_old = |age_ms| oldest.index.last_ms().saturating_add(age_ms) < now_ms;
        let is_passed =
            || oldest.index.extents().all(|(shard, extent)| extent.next <= passed(shard));
        if limits.keep_unconsumed && !is_passed() {
            return false;
        }
        limits.age_ms_max.is_some_and(is_old)
            || limits.bytes_max.is_some_and(|most| self.bytes() > most)
            || limits.records_max.is_some_and(|most| self.records() > most)
            || (limits.consumed || oldest.number < self.half_dropped) && is_passed()
    }

    /// Bytes of all files that are not dropped, without their footers.
    pub fn bytes(&self) -> u64 {
        self.kept().map(|file| file.index.end()).sum()
    }

    /// Records of all files that are not dropped.
    pub fn records(&self) -> u64 {
        self.kept().map(|file| file.index.records()).sum()
    }

    /// Where the record of a shard is, or would be.
    pub fn locate(&self, shard: u16, ordinal: u64) -> Location {
        let files = self.files.iter();
        let mut own = files.filter_map(|file| Some((file, file.index.extent(shard)?)));
        match own.find(|(_, extent)| ordinal < extent.next) {
            Some((_, extent)) if ordinal < extent.first => Location::Gone { next: extent.first },
            Some((file, _)) => Self::location(file, file.index.seek(shard, ordinal)),
            None => match self.archived.get(&shard) {
                Some(&next) if ordinal < next => Location::Gone { next },
                _ => Location::Ahead,
            },
        }
    }

    /// What a file has of a shard: the number of its first record, and the one behind its last.
    pub fn extent(&self, file: u64, shard: u16) -> Option<(u64, u64)> {
        let extent = self.file(file)?.index.extent(shard)?;
        Some((extent.first, extent.next))
    }

    /// Where to go on in a file behind a block that is damaged. None: nothing behind it can be
    /// found.
    pub fn resume_behind(&self, file: u64, offset: u64) -> Option<u64> {
        self.file(file)?.index.resume_behind(offset)
    }

    fn file(&self, number: u64) -> Option<&StoredFile> {
        let place = self.files.binary_search_by_key(&number, |file| file.number);
        self.files.get(place.ok()?)
    }

    /// The location of the first record of a shard at this time or later, in a file that is not
    /// dropped.
    pub fn locate_time(&self, shard: u16, at_ms: u64) -> Location {
        let mut found =
            self.beginnings().filter_map(|it| Some((it, it.index.seek_time(shard, at_ms)?)));
        found.next().map_or(Location::Ahead, |(file, offset)| Self::location(file, Some(offset)))
    }

    fn location(file: &StoredFile, offset: Option<u64>) -> Location {
        let offset = offset.unwrap_or(FILE_HEADER_BYTES as u64);
        Location::File { file: file.number, offset, end: file.index.end() }
    }
}
