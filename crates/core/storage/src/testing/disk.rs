//! The simulated disk.

use std::collections::{BTreeMap, VecDeque};

use super::Rng;
use crate::{
    Command, CommandId, CommandQueue, CommitGuard, Completion, Fault, FaultKind, Follow, InPlace,
    InPlaceEnd, Ledger, Outcome, Record, Recovery, Refusal, SegmentFile, Settings, Step, Want,
    WritePart, manifest_file,
};

/// Segment files in memory, with a page cache that a crash may lose in any pattern of sectors.
///
/// Commands are queued by [`SimDisk::submit`] and carried out one step at a time by
/// [`SimDisk::step`], so that a crash can come between any two steps, and within a write.
#[derive(Debug)]
pub struct SimDisk {
    files: BTreeMap<u32, SimFile>,
    manifest: Option<Vec<u8>>,
    commits: VecDeque<Command>,
    background: VecDeque<Command>,
    guard: CommitGuard,
    /// Steps done of the commit at the front.
    steps_done: usize,
    rng: Rng,
    /// The first bytes of a write that is not whole yet, with their place.
    torn: Option<(u32, u32, Vec<u8>)>,
    /// What was written so far, if somebody asked for it.
    trace: Option<Vec<Written>>,
    /// What the disk does wrong, to be changed at any time.
    pub faults: Faults,
}

/// What reached the files, in the order of the writes: of a write that a crash met half way only
/// its first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    Segment {
        segment: u32,
        offset: u32,
        bytes: Vec<u8>,
    },
    Manifest {
        offset: u32,
        bytes: Vec<u8>,
    },
    /// The process that wrote was killed: another one goes on.
    NewWriter,
}

/// What a simulated disk does wrong.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Bytes of files beyond which nothing can be created.
    pub capacity_bytes: u64,
    /// Per cent of writes that find no space, as on a file system that allocates late.
    pub write_no_space_percent: u64,
    /// The next sync fails, and what it should have made durable is lost.
    pub fail_next_sync: bool,
    /// The next write fails.
    pub fail_next_write: bool,
    /// Per cent of steps, and of commands beside commits, that find no quorum.
    pub unavailable_percent: u64,
    /// Another node owns the journal: nothing is written, made or removed any more.
    pub fenced: bool,
    /// Nothing can be read.
    pub fail_reads: bool,
    /// A sync is reported as done and is not: the planted bug that an oracle has to notice.
    pub ignore_syncs: bool,
    /// The same for the manifest, after the first one.
    pub ignore_manifests: bool,
}

/// How a life of the journal ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// The process dies. What the operating system has, it keeps.
    Kill,
    /// The power fails. Of what was not synced, any set of sectors survives.
    Power,
}

#[derive(Debug, Default, Clone)]
struct SimFile {
    /// As a reader sees it.
    visible: Vec<u8>,
    /// As the medium has it.
    durable: Vec<u8>,
    /// Writes since the last sync, in order.
    dirty: Vec<(usize, Vec<u8>)>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            capacity_bytes: u64::MAX,
            write_no_space_percent: 0,
            fail_next_sync: false,
            fail_next_write: false,
            unavailable_percent: 0,
            fenced: false,
            fail_reads: false,
            ignore_syncs: false,
            ignore_manifests: false,
        }
    }
}

impl SimDisk {
    pub fn new(seed: u64) -> Self {
        Self {
            files: BTreeMap::new(),
            manifest: None,
            commits: VecDeque::new(),
            background: VecDeque::new(),
            guard: CommitGuard::default(),
            steps_done: 0,
            rng: Rng::new(seed),
            torn: None,
            trace: None,
            faults: Faults::default(),
        }
    }

    /// From now on the writes are recorded.
    pub fn record_writes(&mut self) {
        self.trace.get_or_insert_default();
    }

    /// What was recorded. `None`: the files are not what was written, because power failed or a
    /// file was changed behind the journal's back.
    pub fn writes(&self) -> Option<&[Written]> {
        self.trace.as_deref()
    }

    /// Follows what was recorded, as a standby does that has seen every write.
    pub fn follow(
        &self,
        owner: (u16, u16),
        settings: &Settings,
        sink: &mut dyn FnMut(Record<'_>, &mut Ledger),
    ) -> Option<Result<Follow, Refusal>> {
        let mut follow = Follow::new(owner, settings);
        for written in self.writes()? {
            let taken = match written {
                Written::Segment { segment, offset, bytes } => {
                    follow.on_write(*segment, *offset, bytes, sink)
                }
                Written::Manifest { offset, bytes } => follow.on_manifest(*offset, bytes),
                Written::NewWriter => {
                    follow.on_new_writer();
                    Ok(())
                }
            };
            if let Err(refusal) = taken {
                return Some(Err(refusal));
            }
        }
        Some(Ok(follow))
    }

    /// Queues a command.
    pub fn submit(&mut self, command: Command) {
        match command.queue() {
            CommandQueue::Commit => self.commits.push_back(command),
            CommandQueue::Background => self.background.push_back(command),
        }
    }

    /// Whether nothing is queued.
    pub fn is_idle(&self) -> bool {
        self.commits.is_empty() && self.background.is_empty()
    }

    /// Carries out one step of one of the two queues.
    pub fn step(&mut self) -> Option<Completion> {
        let commit = match (self.commits.is_empty(), self.background.is_empty()) {
            (true, true) => return None,
            (false, false) => self.rng.chance(50),
            (background_only, _) => !background_only,
        };
        if commit { self.step_commit() } else { self.step_background() }
    }

    /// Carries out a write of a commit that was not queued here.
    pub fn write(&mut self, part: &WritePart) -> Result<(), Fault> {
        self.check_engine()?;
        self.check_write()?;
        self.file(part.segment)?.write(part.offset as usize, part.bytes());
        let (offset, bytes) = part.written(part.bytes().len());
        match part.is_last() {
            true => self.note_write(part.segment, offset, bytes),
            false => self.note_torn(part.segment, offset, bytes),
        }
        Ok(())
    }

    /// Carries out another step of a commit that was not queued here.
    pub fn sync(&mut self, step: &Step) -> Result<(), Fault> {
        self.carry_out(step)
    }

    /// Carries out a write that the user of the journal does itself. A fault is left to the queues.
    pub fn write_in_place(&mut self, write: &InPlace) -> InPlaceEnd {
        let InPlace { segment, offset, bytes } = write;
        let is_refused =
            self.faults.fail_next_write || self.rng.chance(self.faults.write_no_space_percent);
        match self.file(*segment) {
            Ok(file) if !is_refused => file.write(*offset as usize, bytes),
            _ => return InPlaceEnd::NotDone,
        }
        self.note_write(*segment, *offset, bytes);
        InPlaceEnd::Done
    }

    /// Carries out the first part of such a write.
    pub fn tear_in_place(&mut self, write: &InPlace) -> InPlaceEnd {
        if let Some(torn) = self.tear((write.segment, write.offset), &write.bytes) {
            self.note_torn(write.segment, write.offset, &write.bytes[..torn]);
        }
        InPlaceEnd::NotDone
    }

    /// Ends this life while these are under way, of a commit that was not queued here.
    pub fn crash_within(&mut self, crash: Crash, write: Option<&WritePart>, step: Option<&Step>) {
        if self.rng.chance(50) {
            self.step_background();
        }
        if let Some(part) = write
            && let Some(torn) = self.tear((part.segment, part.offset), part.bytes())
        {
            let (offset, bytes) = part.written(torn);
            self.note_torn(part.segment, offset, bytes);
        }
        if let Some(Step::Manifest { offset, bytes }) = step
            && !self.faults.ignore_manifests
        {
            self.tear_manifest(*offset, bytes);
        }
        self.end_life(crash);
    }

    /// Ends this life: what was queued is gone or half done.
    pub fn crash(&mut self, crash: Crash) {
        if self.rng.chance(50) {
            self.step_background();
        }
        self.tear_write_under_way();
        self.tear_manifest_under_way();
        self.end_life(crash);
    }

    fn end_life(&mut self, crash: Crash) {
        if let Some((segment, offset, bytes)) = self.torn.take() {
            self.note_write(segment, offset, &bytes);
        }
        self.commits.clear();
        self.background.clear();
        self.steps_done = 0;
        if let Some(trace) = &mut self.trace {
            trace.push(Written::NewWriter);
        }
        if crash == Crash::Power {
            self.trace = None;
            let mode = self.rng.below(4);
            for file in self.files.values_mut() {
                file.lose(mode, &mut self.rng);
            }
        }
    }

    /// The files, as a directory listing.
    pub fn files(&self) -> Vec<SegmentFile> {
        let entry =
            |(&number, file): (&u32, &SimFile)| SegmentFile { number, bytes: file.len() as u64 };
        self.files.iter().map(entry).collect()
    }

    /// The content of a file as a reader sees it.
    pub fn content(&self, number: u32) -> &[u8] {
        self.files.get(&number).map_or(&[], |file| &file.visible)
    }

    /// The manifest, if there is one.
    pub fn manifest(&self) -> Option<&[u8]> {
        self.manifest.as_deref()
    }

    /// Replaces, makes or removes the manifest.
    pub fn put_manifest(&mut self, content: Option<Vec<u8>>) {
        self.trace = None;
        self.manifest = content;
    }

    /// Reads back what a start would find; ask the result to finish.
    pub fn read_back(
        &self,
        owner: (u16, u16),
        settings: &Settings,
        sink: &mut dyn FnMut(Record<'_>, &mut Ledger),
    ) -> Result<Recovery, Refusal> {
        let mut recovery = Recovery::new(owner, settings, self.files(), self.manifest())?;
        while let Some(Want { segment, offset, bytes }) = recovery.wants() {
            let content = self.content(segment);
            let begin = content.len().min(offset as usize);
            let end = content.len().min(offset as usize + bytes as usize);
            recovery.on_bytes(&content[begin..end], sink)?;
        }
        Ok(recovery)
    }

    /// Replaces or makes a file, on the medium too.
    pub fn put(&mut self, number: u32, content: Vec<u8>) {
        self.trace = None;
        self.make(number, content);
    }

    fn make(&mut self, number: u32, content: Vec<u8>) {
        let file = SimFile { durable: content.clone(), visible: content, dirty: Vec::new() };
        self.files.insert(number, file);
    }

    /// Removes a file behind the journal's back.
    pub fn remove(&mut self, number: u32) {
        self.trace = None;
        self.files.remove(&number);
    }

    /// Turns one bit over, on the medium and for readers.
    pub fn flip_bit(&mut self, number: u32, byte: usize, bit: u8) {
        self.trace = None;
        if let Some(file) = self.files.get_mut(&number) {
            file.visible[byte] ^= 1 << bit;
            file.durable[byte] ^= 1 << bit;
        }
    }

    fn step_commit(&mut self) -> Option<Completion> {
        if let Some(refused) = self.commits.front().and_then(|front| self.guard.refuse(front)) {
            self.commits.pop_front();
            return Some(refused);
        }
        let (id, steps) = match self.commits.front() {
            Some(Command::Commit { id, steps, .. }) => (*id, steps.clone()),
            _ => return None,
        };
        let fault = match steps.get(self.steps_done) {
            Some(step) => self.carry_out(step).err(),
            None => None,
        };
        if fault.is_none() {
            self.steps_done += 1;
            if self.steps_done < steps.len() {
                return None;
            }
        }
        self.commits.pop_front();
        let steps_done = std::mem::take(&mut self.steps_done);
        let completion = Completion { id, outcome: Outcome::Committed { steps_done, fault } };
        self.guard.note(&completion);
        Some(completion)
    }

    /// What keeps a replicated journal from being written.
    fn check_engine(&mut self) -> Result<(), Fault> {
        if self.faults.fenced {
            return Err(fault(FaultKind::Fenced, "simulated other owner"));
        }
        // No number is drawn without need: the other faults of a seed stay what they are.
        let percent = self.faults.unavailable_percent;
        match percent > 0 && self.rng.chance(percent) {
            true => Err(fault(FaultKind::Unavailable, "simulated lack of a quorum")),
            false => Ok(()),
        }
    }

    fn carry_out(&mut self, step: &Step) -> Result<(), Fault> {
        self.check_engine()?;
        match step {
            Step::Write { segment, offset, bytes } => {
                self.check_write()?;
                self.file(*segment)?.write(*offset as usize, bytes);
                self.note_write(*segment, *offset, bytes);
            }
            Step::Sync { segment } => {
                let failing = std::mem::take(&mut self.faults.fail_next_sync);
                let ignoring = self.faults.ignore_syncs;
                let file = self.file(*segment)?;
                if failing {
                    // As on Linux: the pages count as clean from now on, and are not on the medium.
                    file.dirty.clear();
                    return Err(fault(FaultKind::Io, "simulated sync error"));
                }
                if !ignoring {
                    file.sync();
                }
            }
            Step::Manifest { offset, bytes } => {
                if self.rng.chance(self.faults.write_no_space_percent) {
                    return Err(fault(FaultKind::NoSpace, "simulated full disk"));
                }
                if std::mem::take(&mut self.faults.fail_next_sync) {
                    self.tear_manifest(*offset, bytes);
                    return Err(fault(FaultKind::Io, "simulated sync error"));
                }
                if !self.faults.ignore_manifests || self.manifest.is_none() {
                    self.write_manifest(*offset, bytes);
                }
            }
        }
        Ok(())
    }

    fn check_write(&mut self) -> Result<(), Fault> {
        if std::mem::take(&mut self.faults.fail_next_write) {
            return Err(fault(FaultKind::Io, "simulated write error"));
        }
        match self.rng.chance(self.faults.write_no_space_percent) {
            true => Err(fault(FaultKind::NoSpace, "simulated full disk")),
            false => Ok(()),
        }
    }

    /// Of two torn tries of a write the longer one is there.
    fn note_torn(&mut self, segment: u32, offset: u32, bytes: &[u8]) {
        let is_longer = self.torn.as_ref().is_none_or(|(in_segment, at, known)| {
            (*in_segment, *at) != (segment, offset) || known.len() < bytes.len()
        });
        if is_longer {
            self.torn = Some((segment, offset, bytes.to_vec()));
        }
    }

    fn note_write(&mut self, segment: u32, offset: u32, bytes: &[u8]) {
        self.torn = None;
        if let Some(trace) = &mut self.trace {
            trace.push(Written::Segment { segment, offset, bytes: bytes.to_vec() });
        }
    }

    fn write_manifest(&mut self, offset: u32, bytes: &[u8]) {
        if let Some(trace) = &mut self.trace {
            trace.push(Written::Manifest { offset, bytes: bytes.to_vec() });
        }
        match &mut self.manifest {
            Some(file) => {
                let at = offset as usize;
                file[at..at + bytes.len()].copy_from_slice(bytes);
            }
            None => self.manifest = Some(manifest_file(offset, bytes)),
        }
    }

    /// A write to the manifest that ended early: it is there, or not, or in part. A new file is
    /// made whole or not at all.
    fn tear_manifest(&mut self, offset: u32, bytes: &[u8]) {
        match self.rng.below(3) {
            0 => self.write_manifest(offset, bytes),
            // The other slot counts then: as if nothing had been written.
            1 if self.manifest.is_some() => {
                let torn = self.rng.below(bytes.len() as u64) as usize;
                let trace = self.trace.take();
                self.write_manifest(offset, &bytes[..torn]);
                self.trace = trace;
            }
            _ => {}
        }
    }

    fn tear_manifest_under_way(&mut self) {
        let Some(front) = self.commits.front() else { return };
        let refused = self.guard.refuse(front).is_some();
        let Command::Commit { steps, .. } = front else { return };
        if let Some(Step::Manifest { offset, bytes }) = steps.get(self.steps_done).cloned()
            && !refused
            && !self.faults.ignore_manifests
        {
            self.tear_manifest(offset, &bytes);
        }
    }

    fn file(&mut self, segment: u32) -> Result<&mut SimFile, Fault> {
        self.files.get_mut(&segment).ok_or_else(|| fault(FaultKind::Missing, "no such segment"))
    }

    fn step_background(&mut self) -> Option<Completion> {
        let command = self.background.pop_front()?;
        let (id, outcome) = match (self.check_engine(), &command) {
            (Err(fault), Command::Read { id, .. }) if fault.kind == FaultKind::Unavailable => {
                (*id, Outcome::Read(Err(fault)))
            }
            (Ok(()), _) | (_, Command::Read { .. }) => self.housekeep(command),
            (Err(fault), _) => (command.id(), Outcome::Done(Err(fault))),
        };
        Some(Completion { id, outcome })
    }

    fn housekeep(&mut self, command: Command) -> (CommandId, Outcome) {
        match command {
            Command::Create { id, segment, bytes } => {
                let used: u64 = self.files.values().map(|file| file.len() as u64).sum();
                if used + u64::from(bytes) > self.faults.capacity_bytes {
                    return (id, Outcome::Done(Err(fault(FaultKind::NoSpace, "disk full"))));
                }
                self.make(segment, vec![0; bytes as usize]);
                (id, Outcome::Done(Ok(())))
            }
            Command::Recycle { id, from, to } => match self.files.remove(&from) {
                Some(file) => {
                    self.files.insert(to, file);
                    (id, Outcome::Done(Ok(())))
                }
                None => (id, Outcome::Done(Err(fault(FaultKind::Missing, "no such segment")))),
            },
            Command::Delete { id, segment } => {
                self.files.remove(&segment);
                (id, Outcome::Done(Ok(())))
            }
            Command::Read { id, .. } if self.faults.fail_reads => {
                (id, Outcome::Read(Err(fault(FaultKind::Io, "simulated read error"))))
            }
            Command::Read { id, segment, offset, bytes } => {
                let read = self.file(segment).map(|file| {
                    let begin = (offset as usize).min(file.len());
                    let end = (begin + bytes as usize).min(file.len());
                    file.visible[begin..end].to_vec()
                });
                (id, Outcome::Read(read))
            }
            Command::Commit { id, .. } => (id, Outcome::Committed { steps_done: 0, fault: None }),
        }
    }

    /// A write that the crash met half way.
    fn tear_write_under_way(&mut self) {
        let Some(front) = self.commits.front() else { return };
        let refused = self.guard.refuse(front).is_some();
        let Command::Commit { steps, .. } = front else { return };
        if refused {
            return;
        }
        let Some(Step::Write { segment, offset, bytes }) = steps.get(self.steps_done).cloned()
        else {
            return;
        };
        if let Some(torn) = self.tear((segment, offset), &bytes) {
            self.note_torn(segment, offset, &bytes[..torn]);
        }
    }

    /// Writes the first bytes, and returns how many are there then: what follows may have been the
    /// same before, as the zeros of a new file.
    fn tear(&mut self, (segment, offset): (u32, u32), bytes: &[u8]) -> Option<usize> {
        let torn = self.rng.below(bytes.len() as u64 + 1) as usize;
        let file = self.file(segment).ok()?;
        file.write(offset as usize, &bytes[..torn]);
        let there = &file.visible[offset as usize..];
        Some(bytes.iter().zip(there).take_while(|(byte, there)| byte == there).count())
    }
}

impl SimFile {
    fn len(&self) -> usize {
        self.visible.len()
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.visible.len() < end {
            self.visible.resize(end, 0);
        }
        self.visible[offset..end].copy_from_slice(bytes);
        self.dirty.push((offset, bytes.to_vec()));
    }

    fn sync(&mut self) {
        self.durable = self.visible.clone();
        self.dirty.clear();
    }

    /// Loses what was not synced: all of it, none, or per sector any number of the newest writes.
    fn lose(&mut self, mode: u64, rng: &mut Rng) {
        self.durable.resize(self.visible.len().max(self.durable.len()), 0);
        let sectors = self.durable.len().div_ceil(SECTOR_BYTES);
        for sector in 0..sectors {
            let begin = sector * SECTOR_BYTES;
            let end = (begin + SECTOR_BYTES).min(self.durable.len());
            let touching: Vec<&(usize, Vec<u8>)> = self
                .dirty
                .iter()
                .filter(|(at, bytes)| *at < end && at + bytes.len() > begin)
                .collect();
            if touching.is_empty() {
                continue;
            }
            let survive = match mode {
                0 => 0,
                1 => touching.len(),
                _ => rng.below(touching.len() as u64 + 1) as usize,
            };
            for (at, bytes) in &touching[..survive] {
                let (from, to) = ((*at).max(begin), (at + bytes.len()).min(end));
                self.durable[from..to].copy_from_slice(&bytes[from - at..to - at]);
            }
        }
        self.dirty.clear();
        self.visible = self.durable.clone();
    }
}

fn fault(kind: FaultKind, detail: &str) -> Fault {
    Fault { kind, detail: detail.to_owned() }
}

/// The unit that the medium writes whole or not at all.
const SECTOR_BYTES: usize = 512;
