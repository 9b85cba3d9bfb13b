//! The disk under the files of streams: what the thread that writes them does, step by step, and
//! what a crash leaves of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;

use broker::streams::StreamNumber;
use storage::stream::{
    BLOCK_HEADER_BYTES, FILE_HEADER_BYTES, FILE_TAIL_BYTES, FileIdentity, FileIndex, FoundFile,
    StreamCommand, StreamCommandId, check_reach,
};
use storage::testing::Crash;
use storage::{Fault, FaultKind};
use streams::ReadFiles;

use super::replica::Replica;
use crate::random::Random;

/// A stream, and the number of one of its files.
pub(super) type FileName = (u32, u64);

/// The answer to a write.
pub(super) type Written = (StreamNumber, StreamCommandId, Result<(), Fault>);

#[derive(Debug)]
pub(super) struct StreamDisk {
    /// Files by the numbers that directories have.
    inodes: Vec<Inode>,
    /// The directories as the system has them, and as the medium has them.
    entries: BTreeMap<FileName, usize>,
    durable_entries: BTreeMap<FileName, usize>,
    queue: VecDeque<(StreamNumber, StreamCommand)>,
    stage: Stage,
    answers: VecDeque<Written>,
    pub(super) faults: Faults,
    /// A planted bug: a write that a crash has met is carried out by the next process.
    pub(super) keeps_queue: bool,
    /// A planted bug: a node takes over without what it had not read.
    pub(super) stays_behind: bool,
    /// The engine of a cluster, which has to have what the disk has done. None: no cluster.
    pub(super) replica: Option<Replica>,
    random: Random,
}

/// What it does wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// Per cent of writes that find no space.
    pub(super) no_space_percent: usize,
    pub(super) fail_next_write: bool,
    /// What the sync should have made durable is lost.
    pub(super) fail_next_sync: bool,
    pub(super) fail_reads: bool,
}

#[derive(Debug, Default)]
struct Inode {
    /// As a reader sees it, and as the medium has it.
    visible: Vec<u8>,
    durable: Vec<u8>,
    /// Writes since the last sync.
    dirty: Vec<(usize, Vec<u8>)>,
}

/// How far the command at the front is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Begin,
    /// So many bytes are written.
    Writing(usize),
    Syncing,
    SyncingDirectory,
}

const SECTOR_BYTES: usize = 512;

impl StreamDisk {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            inodes: Vec::new(),
            entries: BTreeMap::new(),
            durable_entries: BTreeMap::new(),
            queue: VecDeque::new(),
            stage: Stage::Begin,
            answers: VecDeque::new(),
            faults: Faults::default(),
            keeps_queue: false,
            stays_behind: false,
            replica: None,
            random: Random::new(seed),
        }
    }

    pub(super) fn submit(&mut self, stream: StreamNumber, command: StreamCommand) {
        self.queue.push_back((stream, command));
    }

    pub(super) fn is_idle(&self) -> bool {
        self.is_still(u64::MAX) && self.replica.as_ref().is_none_or(Replica::is_idle)
    }

    /// Nothing is left to be done without that time passes.
    pub(super) fn is_still(&self, now_ms: u64) -> bool {
        self.queue.is_empty()
            && self.answers.is_empty()
            && self.replica.as_ref().is_none_or(|replica| replica.is_still(now_ms))
    }

    pub(super) fn next_answer(&mut self) -> Option<Written> {
        self.answers.pop_front()
    }

    /// One step of the command at the front, and of the engine. False: there is none.
    pub(super) fn step(&mut self, now_ms: u64) -> bool {
        let done = self.replica.as_mut().and_then(|replica| replica.step(now_ms));
        let works = done.is_some();
        let answers = done.into_iter().flatten().map(|(stream, id)| (stream, id, Ok(())));
        self.answers.extend(answers);
        self.step_disk() || works
    }

    fn step_disk(&mut self) -> bool {
        let Some((stream, command)) = self.queue.front().cloned() else { return false };
        match command {
            StreamCommand::Write { id, file, offset, bytes } => {
                let name = (stream.0, file);
                if let Some(result) = self.step_write(name, offset as usize, &bytes) {
                    match (&mut self.replica, &result) {
                        (Some(replica), Ok(())) => {
                            replica.put(name, offset, &bytes, Some((stream, id)));
                        }
                        _ => self.answers.push_back((stream, id, result)),
                    }
                    self.end_command();
                }
            }
            StreamCommand::Close { file, offset, bytes } => {
                let name = (stream.0, file);
                if let Some(result) = self.step_write(name, offset as usize, &bytes) {
                    if let (Some(replica), Ok(())) = (&mut self.replica, result) {
                        replica.put(name, offset, &bytes, None);
                    }
                    self.end_command();
                }
            }
            StreamCommand::Delete { file } => match self.stage {
                Stage::Begin => {
                    self.entries.remove(&(stream.0, file));
                    self.stage = Stage::SyncingDirectory;
                }
                _ => {
                    self.sync_directory(stream.0);
                    if let Some(replica) = &mut self.replica {
                        replica.remove((stream.0, file));
                    }
                    self.end_command();
                }
            },
        }
        true
    }

    fn end_command(&mut self) {
        self.queue.pop_front();
        self.stage = Stage::Begin;
    }

    /// Some: it is done, or has failed.
    fn step_write(
        &mut self,
        name: FileName,
        offset: usize,
        bytes: &[u8],
    ) -> Option<Result<(), Fault>> {
        match self.stage {
            Stage::Begin => match self.open(name, offset) {
                Err(fault) => return Some(Err(fault)),
                Ok(()) => self.stage = Stage::Writing(0),
            },
            Stage::Writing(done) => {
                let most = bytes.len() - done;
                let part = if self.random.chance(50) { most } else { self.random.below(most) + 1 };
                let Some(inode) = self.inode(name) else { return Some(Err(gone(name))) };
                inode.write(offset + done, &bytes[done..done + part]);
                let done = done + part;
                let is_whole = done == bytes.len();
                self.stage = if is_whole { Stage::Syncing } else { Stage::Writing(done) };
            }
            Stage::Syncing => {
                let fails = std::mem::take(&mut self.faults.fail_next_sync);
                let Some(inode) = self.inode(name) else { return Some(Err(gone(name))) };
                inode.sync(fails);
                if fails {
                    return Some(Err(fault(FaultKind::Io, "simulated sync error")));
                }
                if offset != 0 {
                    return Some(Ok(()));
                }
                self.stage = Stage::SyncingDirectory;
            }
            Stage::SyncingDirectory => {
                self.sync_directory(name.0);
                return Some(Ok(()));
            }
        }
        None
    }

    fn open(&mut self, name: FileName, offset: usize) -> Result<(), Fault> {
        if std::mem::take(&mut self.faults.fail_next_write) {
            return Err(fault(FaultKind::Io, "simulated write error"));
        }
        if self.random.chance(self.faults.no_space_percent) {
            return Err(fault(FaultKind::NoSpace, "simulated full disk"));
        }
        if offset == 0 {
            self.inodes.push(Inode::default());
            self.entries.insert(name, self.inodes.len() - 1);
        }
        self.entries.get(&name).map(drop).ok_or_else(|| gone(name))
    }

    fn inode(&mut self, name: FileName) -> Option<&mut Inode> {
        let place = *self.entries.get(&name)?;
        self.inodes.get_mut(place)
    }

    fn sync_directory(&mut self, stream: u32) {
        let of_stream = |name: &FileName| name.0 == stream;
        self.durable_entries.retain(|name, _| !of_stream(name));
        let own = self.entries.iter().filter(|(name, _)| of_stream(name));
        self.durable_entries.extend(own.map(|(name, place)| (*name, *place)));
    }

    /// The process ends, or the power.
    pub(super) fn crash(&mut self, crash: Crash) {
        self.answers.clear();
        if let Some(replica) = &mut self.replica {
            replica.crash();
        }
        self.faults = Faults::default();
        if crash == Crash::Power {
            self.lose_power();
        }
        if !self.keeps_queue {
            self.queue.clear();
        }
        self.stage = Stage::Begin;
    }

    fn lose_power(&mut self) {
        let names: BTreeSet<FileName> =
            self.entries.keys().chain(self.durable_entries.keys()).copied().collect();
        for name in names {
            let (now, durable) = (self.entries.get(&name), self.durable_entries.get(&name));
            let kept = if self.random.chance(50) { now } else { durable };
            match kept.copied() {
                Some(place) => drop(self.entries.insert(name, place)),
                None => drop(self.entries.remove(&name)),
            }
        }
        self.durable_entries = self.entries.clone();
        for inode in &mut self.inodes {
            inode.lose_power(&mut self.random);
        }
    }
}

impl Inode {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        put(&mut self.visible, offset, bytes);
        self.dirty.push((offset, bytes.to_vec()));
    }

    /// As on Linux: after a failure the pages count as clean, and are not on the medium.
    fn sync(&mut self, fails: bool) {
        for (offset, bytes) in self.dirty.drain(..) {
            if !fails {
                put(&mut self.durable, offset, &bytes);
            }
        }
    }

    /// Of what was not synced, any set of sectors survives.
    fn lose_power(&mut self, random: &mut Random) {
        for (offset, bytes) in std::mem::take(&mut self.dirty) {
            let mut at = 0;
            while at < bytes.len() {
                let sector_end = ((offset + at) / SECTOR_BYTES + 1) * SECTOR_BYTES - offset;
                let end = sector_end.min(bytes.len());
                if random.chance(50) {
                    put(&mut self.durable, offset + at, &bytes[at..end]);
                }
                at = end;
            }
        }
        self.visible = self.durable.clone();
    }
}

/// What a start finds.
impl StreamDisk {
    /// The directories of streams are opened: what was removed counts from now on.
    pub(super) fn open_directories(&mut self) {
        self.durable_entries = self.entries.clone();
        let Some(replica) = &mut self.replica else { return };
        // What it had not read when it took over, in their order.
        let mut missed = replica.messages();
        // The same node again, or another one.
        if self.random.chance(50) {
            self.entries.clear();
        }
        if self.stays_behind {
            missed.truncate(self.random.below(missed.len() + 1));
        }
        missed.into_iter().for_each(|(name, offset, bytes)| self.copy(name, offset, &bytes));
        self.durable_entries = self.entries.clone();
    }

    fn copy(&mut self, name: FileName, offset: u64, bytes: &[u8]) {
        if !self.entries.contains_key(&name) {
            self.inodes.push(Inode::default());
            self.entries.insert(name, self.inodes.len() - 1);
        }
        if let Some(inode) = self.inode(name) {
            inode.write(offset as usize, bytes);
            inode.sync(false);
        }
    }

    /// What the files of a stream have, each up to where journals say that it is durable. Others
    /// are removed.
    pub(super) fn recover(
        &mut self,
        stream: u32,
        identity: [u8; 16],
        reach: &BTreeMap<u64, u64>,
    ) -> Result<Vec<FoundFile>, String> {
        let mut found = Vec::new();
        for (number, reach) in reach {
            let index = self.read_index((stream, *number), identity, *reach)?;
            found.push(FoundFile { number: *number, index });
        }
        self.entries.retain(|(own, number), _| *own != stream || reach.contains_key(number));
        self.sync_directory(stream);
        Ok(found)
    }

    fn read_index(
        &self,
        name: FileName,
        stream: [u8; 16],
        reach: u64,
    ) -> Result<FileIndex, String> {
        let identity = FileIdentity { stream, number: name.1 };
        let index = match self.content(name) {
            None => FileIndex::default(),
            Some(content) => {
                let header = &content[..content.len().min(FILE_HEADER_BYTES)];
                let is_own = FileIdentity::read(header).is_ok_and(|found| found == identity);
                if !is_own {
                    return Err(format!("file {name:?} has another header"));
                }
                index_of(content, &identity, reach)
            }
        };
        check_reach(&index, name.1, reach).map_err(|refusal| format!("{refusal}"))?;
        Ok(index)
    }

    /// As a reader sees it.
    pub(super) fn content(&self, name: FileName) -> Option<&[u8]> {
        let place = *self.entries.get(&name)?;
        Some(&self.inodes[place].visible)
    }

    /// How many bytes of a file outlive a loss of power, and in a cluster the node.
    pub(super) fn durable_bytes(&self, name: FileName) -> u64 {
        let place = self.durable_entries.get(&name);
        let own = place.map_or(0, |place| self.inodes[*place].durable.len() as u64);
        let Some(replica) = &self.replica else { return own };
        let mut pieces = replica.pieces(name);
        pieces.sort_unstable();
        let behind = |end: u64, (offset, bytes): &(u64, Vec<u8>)| match *offset <= end {
            true => end.max(offset + bytes.len() as u64),
            false => end,
        };
        pieces.iter().fold(0, behind).min(own)
    }

    /// Of a stream, by their numbers.
    pub(super) fn numbers(&self, stream: u32) -> Vec<u64> {
        self.entries.keys().filter(|(own, _)| *own == stream).map(|(_, number)| *number).collect()
    }
}

impl ReadFiles for StreamDisk {
    fn read(
        &self,
        stream: StreamNumber,
        file: u64,
        offset: u64,
        bytes: usize,
    ) -> io::Result<Vec<u8>> {
        if self.faults.fail_reads {
            return Err(io::Error::other("simulated read error"));
        }
        let content = self.content((stream.0, file));
        let content = content.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let begin = content.len().min(offset as usize);
        let end = content.len().min(begin + bytes);
        Ok(content[begin..end].to_vec())
    }
}

/// By its footer if that ends where journals say, or by its blocks, as the program does it
/// (`crates/server/data/src/streams.rs`).
fn index_of(content: &[u8], identity: &FileIdentity, reach: u64) -> FileIndex {
    let len = content.len() as u64;
    let tail = &content[content.len().saturating_sub(FILE_TAIL_BYTES)..];
    if FileIndex::footer_at(tail, identity) == Some(reach)
        && reach < len
        && let Ok(index) = FileIndex::read_footer(&content[reach as usize..], identity)
    {
        return index;
    }
    let mut index = FileIndex::default();
    let reach = reach.min(len);
    while index.end() < reach {
        let begin = index.end() as usize;
        let end = content.len().min(begin + BLOCK_HEADER_BYTES);
        if !index.next_block(&content[begin..end], identity, reach) {
            break;
        }
    }
    index
}

fn put(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(bytes);
}

fn gone(name: FileName) -> Fault {
    fault(FaultKind::Io, &format!("file {name:?} is gone"))
}

fn fault(kind: FaultKind, detail: &str) -> Fault {
    Fault { kind, detail: detail.to_owned() }
}
