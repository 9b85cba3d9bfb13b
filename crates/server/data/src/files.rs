//! The segment files of one journal.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use storage::{
    Command, Completion, Fault, FaultKind, InPlace, InPlaceEnd, Manifest, Outcome, SegmentFile,
    Step, Want, WritePart, manifest_file,
};

/// The files of one journal, and the system calls on them.
#[derive(Debug)]
pub struct JournalFiles {
    path: PathBuf,
    /// For syncing entries made, renamed and removed.
    directory: File,
    /// Files used lately, newest last.
    open: Mutex<VecDeque<(u32, Arc<File>)>>,
    /// The file system cannot write without waiting (`RWF_NOWAIT`).
    waits: AtomicBool,
}

impl JournalFiles {
    /// Opens the directory of a journal, making it if need be.
    pub fn open(path: &Path) -> io::Result<Self> {
        super::make_private(path)?;
        let directory = File::open(path)?;
        // What an earlier process renamed or removed, and did not live to sync, counts from now on.
        directory.sync_all()?;
        let (open, waits) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { path: path.to_owned(), directory, open, waits })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file of a segment.
    pub fn segment_path(&self, number: u32) -> PathBuf {
        self.path.join(format!("{number:010}.log"))
    }

    /// The segment files there are. Other files are left alone.
    pub fn list(&self) -> io::Result<Vec<SegmentFile>> {
        Self::list_in(&self.path)
    }

    /// The same for the directory of a journal that is not opened.
    pub fn list_in(path: &Path) -> io::Result<Vec<SegmentFile>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(number) = name.to_str().and_then(segment_number) else { continue };
            files.push(SegmentFile { number, bytes: entry.metadata()?.len() });
        }
        files.sort_unstable_by_key(|file| file.number);
        Ok(files)
    }

    /// Opens a segment file to read it from the medium where possible: after a failed sync the page
    /// cache may hold what the medium does not.
    pub fn reader(&self, number: u32) -> io::Result<File> {
        let file = File::open(self.segment_path(number))?;
        // Only advice: pages that are still to be written are kept, and rightly so.
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
        Ok(file)
    }

    /// Reads a whole segment file into `buffer`.
    pub fn read_whole(&self, number: u32, buffer: &mut Vec<u8>) -> io::Result<()> {
        buffer.clear();
        io::Read::read_to_end(&mut self.reader(number)?, buffer)?;
        Ok(())
    }

    /// The manifest of the journal.
    pub fn manifest_path(&self) -> PathBuf {
        self.path.join("manifest")
    }

    /// The content of the manifest, if there is one.
    pub fn manifest(&self) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(self.manifest_path()) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the manifest anew: whole and durable, or not at all.
    pub fn replace_manifest(&self, content: &[u8]) -> io::Result<()> {
        let new = self.path.join("manifest.new");
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(true).write(true).mode(0o600).open(&new)?;
        file.write_all_at(content, 0)?;
        file.sync_all()?;
        std::fs::rename(&new, self.manifest_path())?;
        self.directory.sync_all()
    }

    /// Writes the manifest into the slot that is its turn, durably.
    pub fn put_manifest(&self, manifest: &Manifest) -> io::Result<()> {
        let (offset, bytes) = manifest.slot();
        self.write_manifest(offset, &bytes)
    }

    /// Writes a part of the manifest in place: it takes no space, which a full disk would not give.
    fn write_manifest(&self, offset: u32, bytes: &[u8]) -> io::Result<()> {
        match OpenOptions::new().write(true).open(self.manifest_path()) {
            Ok(file) => {
                file.write_all_at(bytes, u64::from(offset))?;
                file.sync_data()
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.replace_manifest(&manifest_file(offset, bytes))
            }
            Err(error) => Err(error),
        }
    }

    /// Writes into a segment of a local copy; one that is not there is made of `segment_bytes`.
    /// Nothing is synced: what a loss of power takes away is read again from the stream.
    pub fn copy(
        &self,
        (segment, segment_bytes): (u32, u32),
        offset: u32,
        bytes: &[u8],
    ) -> io::Result<()> {
        let file = match self.file(segment) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_sparse(segment, segment_bytes)?;
                self.file(segment)?
            }
            found => found?,
        };
        file.write_all_at(bytes, u64::from(offset))
    }

    /// Writes a part of the manifest of a local copy.
    pub fn copy_manifest(&self, offset: u32, bytes: &[u8]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).write(true).mode(0o600);
        let file = options.open(self.manifest_path())?;
        file.set_len(storage::MANIFEST_BYTES as u64)?;
        file.write_all_at(bytes, u64::from(offset))
    }

    /// Makes a segment file of a local copy: of nothing, as the stream is what keeps it.
    pub fn make_sparse(&self, segment: u32, bytes: u32) -> io::Result<()> {
        self.forget(segment);
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(true).read(true).write(true).mode(0o600);
        let file = options.open(self.segment_path(segment))?;
        file.set_len(u64::from(bytes))?;
        self.remember(segment, Arc::new(file));
        Ok(())
    }

    /// Bytes of a segment, fewer where the file ends before.
    pub fn read_back(&self, segment: u32, offset: u32, bytes: u32) -> io::Result<Vec<u8>> {
        self.read(segment, offset, bytes)
    }

    /// Removes a segment file of a local copy. One that is not there counts as removed.
    pub fn drop_copy(&self, segment: u32) -> io::Result<()> {
        self.delete(segment)
    }

    /// Makes a segment file of a local copy durable. Behind `kept` it has zeros, up to `full`.
    pub fn finish_copy(&self, segment: u32, kept: u64, full: u64) -> io::Result<()> {
        let file = self.file(segment)?;
        file.set_len(kept)?;
        file.set_len(full)?;
        file.sync_all()?;
        self.directory.sync_all()
    }

    /// Carries out a command.
    pub fn carry_out(&self, command: Command) -> Completion {
        self.carry_out_in_parts(command, &mut || {})
    }

    /// Carries out a command. One that takes long, the making of a file, calls `between` now and
    /// then.
    pub(super) fn carry_out_in_parts(
        &self,
        command: Command,
        between: &mut dyn FnMut(),
    ) -> Completion {
        let id = command.id();
        let outcome = match command {
            Command::Commit { steps, .. } => self.commit(steps),
            Command::Create { segment, bytes, .. } => {
                let made = self.create(segment, bytes, between);
                Outcome::Done(made.map_err(fault("create", segment)))
            }
            Command::Recycle { from, to, .. } => {
                Outcome::Done(self.recycle(from, to).map_err(fault("rename", from)))
            }
            Command::Delete { segment, .. } => {
                Outcome::Done(self.delete(segment).map_err(fault("remove", segment)))
            }
            Command::Read { segment, offset, bytes, .. } => {
                Outcome::Read(self.read(segment, offset, bytes).map_err(fault("read", segment)))
            }
        };
        Completion { id, outcome }
    }

    fn commit(&self, steps: Vec<Step>) -> Outcome {
        let mut steps_done = 0;
        for step in steps {
            if let Err(fault) = self.step(&step) {
                return Outcome::Committed { steps_done, fault: Some(fault) };
            }
            steps_done += 1;
        }
        Outcome::Committed { steps_done, fault: None }
    }

    fn step(&self, step: &Step) -> Result<(), Fault> {
        match step {
            Step::Write { segment, offset, bytes } => self.write_at(*segment, *offset, bytes),
            step => self.sync(step),
        }
    }

    /// A write of a commit, or a part of it.
    pub(super) fn write(&self, part: &WritePart) -> Result<(), Fault> {
        self.write_at(part.segment, part.offset, part.bytes())
    }

    /// A write in place: without waiting for the disk, where the file system can do that.
    pub(super) fn write_in_place(&self, write: &InPlace) -> (InPlaceEnd, Duration) {
        let began = Instant::now();
        let written = self.file(write.segment).and_then(|file| {
            let offset = u64::from(write.offset);
            if self.waits.load(Ordering::Relaxed) {
                return file.write_at(&write.bytes, offset);
            }
            let slices = [IoSlice::new(&write.bytes)];
            match pwritev2(&file, &slices, offset, ReadWriteFlags::NOWAIT) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                    self.waits.store(true, Ordering::Relaxed);
                    file.write_at(&write.bytes, offset)
                }
                written => Ok(written?),
            }
        });
        let took = began.elapsed();
        let end = match written {
            Ok(count) if count == write.bytes.len() && took > SLOW_WRITE => InPlaceEnd::Slow,
            Ok(count) if count == write.bytes.len() => InPlaceEnd::Done,
            _ => InPlaceEnd::NotDone,
        };
        (end, took)
    }

    fn write_at(&self, segment: u32, offset: u32, bytes: &[u8]) -> Result<(), Fault> {
        let file = self.file(segment);
        let done = file.and_then(|file| file.write_all_at(bytes, u64::from(offset)));
        done.map_err(fault("write", segment))
    }

    /// A step of a commit that waits for the medium.
    pub(super) fn sync(&self, step: &Step) -> Result<(), Fault> {
        match step {
            Step::Sync { segment } => {
                let done = self.file(*segment).and_then(|file| file.sync_data());
                done.map_err(fault("sync", *segment))
            }
            Step::Manifest { offset, bytes } => {
                self.write_manifest(*offset, bytes).map_err(failed("write the manifest"))
            }
            Step::Write { .. } => self.step(step),
        }
    }

    /// Makes a file of zeros that are really written: the first sync of a block that was only
    /// reserved has to write file system metadata too, and takes about twice as long. Of the first
    /// file of all only the front is written, because the first start waits for it.
    fn create(&self, number: u32, bytes: u32, between: &mut dyn FnMut()) -> io::Result<()> {
        let path = self.segment_path(number);
        self.forget(number);
        let made = allocate(&path, bytes, number == 1, between);
        if made.is_err() {
            // A part of a file would only take space away from others.
            let _ = std::fs::remove_file(&path);
        }
        let file = made?;
        self.directory.sync_all()?;
        self.remember(number, Arc::new(file));
        Ok(())
    }

    fn recycle(&self, from: u32, to: u32) -> io::Result<()> {
        self.forget(from);
        self.forget(to);
        let (old, new) = (self.segment_path(from), self.segment_path(to));
        match std::fs::rename(old, &new) {
            // Done by an earlier try that failed to sync the directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound && new.exists() => {}
            other => other?,
        }
        self.directory.sync_all()
    }

    fn delete(&self, number: u32) -> io::Result<()> {
        self.forget(number);
        match std::fs::remove_file(self.segment_path(number)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
        self.directory.sync_all()
    }

    fn read(&self, number: u32, offset: u32, bytes: u32) -> io::Result<Vec<u8>> {
        let file = self.file(number)?;
        let mut buffer = Vec::new();
        let want = Want { segment: number, offset, bytes };
        read_part(&file, want, &mut buffer).map_err(|(error, _)| error)?;
        Ok(buffer)
    }

    fn file(&self, number: u32) -> io::Result<Arc<File>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, file)) = open.iter().rev().find(|(known, _)| *known == number) {
            return Ok(Arc::clone(file));
        }
        drop(open);
        let path = self.segment_path(number);
        let file = Arc::new(OpenOptions::new().read(true).write(true).open(path)?);
        self.remember(number, Arc::clone(&file));
        Ok(file)
    }

    fn remember(&self, number: u32, file: Arc<File>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= OPEN_FILES_MAX {
            open.pop_front();
        }
        open.push_back((number, file));
    }

    fn forget(&self, number: u32) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(known, _)| *known != number);
    }
}

/// Reads bytes of a segment's file into `buffer`, fewer where the file ends before. An error comes
/// with the offset at which it was met.
pub(super) fn read_part(
    file: &File,
    want: Want,
    buffer: &mut Vec<u8>,
) -> Result<(), (io::Error, u64)> {
    buffer.clear();
    buffer.resize(want.bytes as usize, 0);
    let mut filled = 0;
    while filled < buffer.len() {
        let offset = u64::from(want.offset) + filled as u64;
        match file.read_at(&mut buffer[filled..], offset) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((error, offset)),
        }
    }
    buffer.truncate(filled);
    Ok(())
}

fn allocate(
    path: &Path,
    bytes: u32,
    is_first: bool,
    between: &mut dyn FnMut(),
) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(true).read(true).write(true).mode(0o600).open(path)?;
    let is_reserved = match fallocate(&file, FallocateFlags::empty(), 0, u64::from(bytes)) {
        Ok(()) => true,
        Err(Errno::OPNOTSUPP) => false,
        Err(error) => return Err(error.into()),
    };
    let to_write = match is_reserved && is_first {
        true => u64::from(bytes).min(SYNC_BYTES),
        false => u64::from(bytes),
    };
    let zeros = vec![0; ZEROS_BYTES.min(bytes as usize)];
    let mut at = 0;
    while at < to_write {
        let part = zeros.len().min((to_write - at) as usize);
        file.write_all_at(&zeros[..part], at)?;
        at += part as u64;
        if at == to_write || at.is_multiple_of(SYNC_BYTES) {
            // In small parts: commits of records wait for the same disk.
            file.sync_data()?;
            between();
        }
    }
    file.sync_all()?;
    Ok(file)
}

/// The number in a segment file's name.
fn segment_number(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".log")?;
    let canonical = digits.len() == 10 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if canonical { digits.parse().ok() } else { None }
}

fn fault(verb: &'static str, segment: u32) -> impl Fn(io::Error) -> Fault {
    move |error| failed(&format!("{verb} segment {segment}"))(error)
}

/// A fault of what was tried.
fn failed(what: &str) -> impl Fn(io::Error) -> Fault + use<'_> {
    move |error| Fault {
        kind: match error.kind() {
            _ if super::is_full(&error) => FaultKind::NoSpace,
            io::ErrorKind::NotFound => FaultKind::Missing,
            _ => FaultKind::Io,
        },
        detail: format!("cannot {what}: {error}"),
    }
}

/// A write in place that takes longer shows that the disk is behind: the kernel makes writers wait.
const SLOW_WRITE: Duration = Duration::from_millis(1);
/// Open files per journal. Policy: the one opened first is closed.
const OPEN_FILES_MAX: usize = 16;
/// What is synced at once of a new file.
const SYNC_BYTES: u64 = 4 << 20;
/// What is written at once of it. The thread of each journal would keep a larger buffer for ever:
/// an allocator gives back only what it has mapped, and maps less after the first large block.
const ZEROS_BYTES: usize = 64 << 10;
