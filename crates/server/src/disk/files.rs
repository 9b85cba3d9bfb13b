//! The segment files of one log.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use storage::{Command, Completion, Fault, FaultKind, Outcome, SegmentFile, Step};

/// The files of one log, and the system calls on them.
#[derive(Debug)]
pub struct LogFiles {
    path: PathBuf,
    /// For syncing entries made, renamed and removed.
    directory: File,
    /// Files used lately, newest last.
    open: Mutex<VecDeque<(u32, Arc<File>)>>,
}

impl LogFiles {
    /// Opens the directory of a log, making it if need be.
    pub fn open(path: &Path) -> io::Result<Self> {
        super::make_private(path)?;
        let directory = File::open(path)?;
        Ok(Self { path: path.to_owned(), directory, open: Mutex::default() })
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
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(number) = name.to_str().and_then(segment_number) else { continue };
            files.push(SegmentFile { number, bytes: entry.metadata()?.len() });
        }
        files.sort_unstable_by_key(|file| file.number);
        Ok(files)
    }

    /// Reads a whole segment file into `buffer`, from the medium where possible: after a failed
    /// sync the page cache may hold what the medium does not.
    pub fn read_whole(&self, number: u32, buffer: &mut Vec<u8>) -> io::Result<()> {
        let file = File::open(self.segment_path(number))?;
        // Only advice: pages that are still to be written are kept, and rightly so.
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
        let _ = fadvise(&file, 0, None, Advice::Sequential);
        buffer.clear();
        io::Read::read_to_end(&mut &file, buffer)?;
        Ok(())
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
            let done = match &step {
                Step::Write { segment, offset, bytes } => self
                    .file(*segment)
                    .and_then(|file| file.write_all_at(bytes, u64::from(*offset)))
                    .map_err(fault("write", *segment)),
                Step::Sync { segment } => self
                    .file(*segment)
                    .and_then(|file| file.sync_data())
                    .map_err(fault("sync", *segment)),
            };
            if let Err(fault) = done {
                return Outcome::Committed { steps_done, fault: Some(fault) };
            }
            steps_done += 1;
        }
        Outcome::Committed { steps_done, fault: None }
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
        let mut buffer = vec![0; bytes as usize];
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read_at(&mut buffer[filled..], u64::from(offset) + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        buffer.truncate(filled);
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
        Err(rustix::io::Errno::OPNOTSUPP) => false,
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
    move |error| Fault {
        kind: match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FaultKind::NoSpace,
            io::ErrorKind::NotFound => FaultKind::Missing,
            _ => FaultKind::Io,
        },
        detail: format!("cannot {verb} segment {segment}: {error}"),
    }
}

/// Open files per log. Policy: the one opened first is closed.
const OPEN_FILES_MAX: usize = 16;
/// What is synced at once of a new file.
const SYNC_BYTES: u64 = 4 << 20;
/// What is written at once of it. The thread of each log would keep a larger buffer for ever: an
/// allocator gives back only what it has mapped, and maps less after the first large block.
const ZEROS_BYTES: usize = 64 << 10;
