//! The disk under the journals: a data directory, its lock, and the threads that carry out what a
//! [`storage::Journal`] asks for.
//!
//! ```text
//! DIR                              locked by the process that uses it
//! DIR/lock                         locked too, where file systems lock no directories
//! DIR/shard-000/0000000001.log     segment 1 of the journal of shard 0
//! DIR/shard-000/manifest           how far that journal reaches at least, what it belongs to
//! DIR/streams/7/0000000001.stream  the first file of stream 7
//! DIR/streams/cursor              how far a standby's copies of these files are
//! DIR/stream-numbers               names of streams and consumers, with their numbers
//! DIR/stream-definitions           streams, targets and rules that an API has defined
//! DIR/namespaces, bans, ...        small files, which say what they belong to as well
//! ```
//!
//! [`DataDir::open`] locks the directory, [`DataDir::recover`] reads one journal back,
//! [`JournalDisk::spawn_all`] starts the threads: one commits for all journals, and each journal
//! has one for its files. No caller waits for the medium: commands go in by
//! [`JournalDisk::submit`], completions come back through a callback on a disk thread.
//! [`JournalDisk::write_in_place`] writes on the caller's thread, for records that need no sync.

mod commits;
pub mod control;
mod files;
mod numbers;
#[doc(hidden)]
pub mod sample;
mod stamped;
mod stream_copies;
mod streams;
mod thread;

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use storage::{Identity, Ledger, Record, Recovered, Recovery, Refusal, Report, Settings};

pub use files::JournalFiles;
pub use numbers::{
    DEFINITIONS_FILE, NUMBERS_FILE, NumberChanges, NumberedStream, Numbers, NumbersError,
    STREAMS_DIRECTORY,
};
pub use stamped::Stamps;
pub use stamped::{
    CLUSTERED_FILES, Fault, MAYBE_FILES, NAMES_FILE, Part, SECRET_FILE, SMALL_FILES, replace_small,
    stamp_journal,
};
pub use stream_copies::StreamCopies;
pub use streams::{StreamDisk, StreamFile, StreamFiles, StreamFilesError, StreamJob};
pub use thread::{Done, JournalDisk, Owner};

/// Where small files are replicated before they are written: the other nodes of a cluster.
pub trait Replica: std::fmt::Debug + Send + Sync {
    /// # Errors
    ///
    /// The file was not replicated.
    fn put_file(&self, name: &str, content: &[u8]) -> io::Result<()>;
}

/// The file beside a journal that a node of a cluster has copied.
pub const MARK_FILE: &str = "cursor";

/// A locked data directory.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// The locks go with the handles.
    _locks: [File; 2],
}

/// Why a data directory or a journal in it cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    #[error("{path}: {error}", path = path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error(
        "cannot read {path} at offset {offset}: {error}; the disk may be failing: copy the data directory to another disk, or restore a backup",
        path = path.display()
    )]
    Read { path: PathBuf, offset: u64, error: io::Error },
    #[error(
        "{path} is in use by another process: stop it, or use another data directory",
        path = .0.display()
    )]
    Locked(PathBuf),
    #[error("{path}: {refusal}", path = path.display())]
    Refused { path: PathBuf, refusal: Refusal },
    #[error(
        "server.shards: must be {found}, the fixed number of {path}, got {asked}; omit `shards`, \
        or use another directory",
        path = path.display()
    )]
    Shards { path: PathBuf, found: u16, asked: u16 },
    #[error(
        "{path} is missing, and other shards have logs: put it back, or restore a backup",
        path = .0.display()
    )]
    Missing(PathBuf),
    #[error(
        "{path} has no log, and other shards hold records: put its files back, or restore a \
         backup, or run `quelea log repair`",
        path = .0.display()
    )]
    Emptied(PathBuf),
    #[error("the data directory is incomplete:\n{}", .0.join("\n"))]
    Apart(Vec<String>),
}

impl DataDir {
    /// Makes the directory if need be, and takes its lock.
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        let fail = |error| DataDirError::Io { path: path.to_owned(), error };
        make_private(path).map_err(fail)?;
        sync_entry(path).map_err(fail)?;
        // The directory itself: a file in it may be removed, and the next process would make and
        // lock another one. Some file systems lock files only, NFS for one.
        let directory = File::open(path).map_err(fail)?;
        if matches!(directory.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(DataDirError::Locked(path.to_owned()));
        }
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path.join("lock"))
            .map_err(fail)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _locks: [directory, lock] }),
            Err(TryLockError::WouldBlock) => Err(DataDirError::Locked(path.to_owned())),
            Err(TryLockError::Error(error)) => Err(fail(error)),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Numbers of the shards that have a journal here, in order.
    pub fn shards(&self) -> Result<Vec<u16>, DataDirError> {
        Self::shards_in(&self.path).map_err(|error| self.fail(error))
    }

    /// The same for a directory that somebody else has locked.
    pub fn shards_in(path: &Path) -> io::Result<Vec<u16>> {
        let mut shards = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("shard-"));
            shards.extend(number.and_then(|number| number.parse::<u16>().ok()));
        }
        shards.sort_unstable();
        Ok(shards)
    }

    /// How many shards to run with: as many as the directory was made for, else `asked`. Makes
    /// their directories. An `explicit` wish that contradicts the directory is refused.
    pub fn shard_count(&self, asked: u16, explicit: bool) -> Result<u16, DataDirError> {
        let found = self.shards()?;
        let count = found.last().map_or(asked, |last| last + 1);
        if explicit && count != asked {
            return Err(DataDirError::Shards { path: self.path.clone(), found: count, asked });
        }
        // From the last to the first: however far this came once, the last one gives the number.
        for shard in (0..count).rev() {
            let path = self.journal_path(shard);
            if path.exists() {
                continue;
            }
            if self.has_segments(&found)? {
                return Err(DataDirError::Missing(path));
            }
            self.journal_files(shard)?;
        }
        Ok(count)
    }

    fn has_segments(&self, shards: &[u16]) -> Result<bool, DataDirError> {
        for shard in shards {
            let list = self.journal_files(*shard)?.list().map_err(|error| self.fail(error))?;
            if !list.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The directory of a shard's journal.
    pub fn journal_path(&self, shard: u16) -> PathBuf {
        Self::journal_path_in(&self.path, shard)
    }

    /// The same for a directory that somebody else has locked.
    pub fn journal_path_in(path: &Path, shard: u16) -> PathBuf {
        path.join(format!("shard-{shard:03}"))
    }

    /// Opens the files of a shard's journal, making its directory if need be.
    pub fn journal_files(&self, shard: u16) -> Result<JournalFiles, DataDirError> {
        let path = self.journal_path(shard);
        let opened = JournalFiles::open(&path).and_then(|files| {
            File::open(&self.path)?.sync_all()?;
            Ok(files)
        });
        opened.map_err(|error| DataDirError::Io { path, error })
    }

    /// Reads a journal back, handing each record to `sink` in order, and to `progress` the bytes of
    /// each file. `fresh` is the identity for a journal that does not exist yet; it also names the
    /// shard that an existing one must belong to.
    pub fn recover(
        &self,
        files: &JournalFiles,
        fresh: Identity,
        settings: &Settings,
        sink: &mut dyn FnMut(Record<'_>, &mut Ledger),
        progress: &dyn Fn(u64),
    ) -> Result<Recovered, DataDirError> {
        let path = files.path().to_owned();
        let refused = |refusal| DataDirError::Refused { path: path.clone(), refusal };
        let failed = |error| DataDirError::Io { path: path.clone(), error };
        let list = files.list().map_err(failed)?;
        let manifest = files.manifest().map_err(|error| {
            let path = files.manifest_path();
            DataDirError::Io { path, error }
        })?;
        let owner = (fresh.shard, fresh.shards);
        let recovery = Recovery::new(owner, settings, list, manifest.as_deref());
        let mut recovery = recovery.map_err(refused)?;
        let (mut open, mut buffer) = (None, Vec::new());
        while let Some(want) = recovery.wants() {
            let unreadable = |(error, offset)| {
                let path = files.segment_path(want.segment);
                DataDirError::Read { path, offset, error }
            };
            let file = match open.take() {
                Some((segment, file)) if segment == want.segment => file,
                _ => files.reader(want.segment).map_err(|error| unreadable((error, 0)))?,
            };
            files::read_part(&file, want, &mut buffer).map_err(unreadable)?;
            recovery.on_bytes(&buffer, sink).map_err(refused)?;
            progress(buffer.len() as u64);
            open = Some((want.segment, file));
        }
        Ok(recovery.finish(fresh))
    }

    /// Refuses journals of which one is new and another is not: all are made before the first
    /// record.
    pub fn check_together<'a>(
        &self,
        reports: impl Iterator<Item = (u16, &'a Report)> + Clone,
    ) -> Result<(), DataDirError> {
        let has_records = reports.clone().any(|(_, report)| report.records > 0);
        match reports.clone().find(|(_, report)| report.is_new && has_records) {
            Some((shard, _)) => Err(DataDirError::Emptied(self.journal_path(shard))),
            None => Ok(()),
        }
    }

    fn fail(&self, error: io::Error) -> DataDirError {
        DataDirError::Io { path: self.path.clone(), error }
    }
}

/// Makes a directory for our eyes only: what is in it are other people's messages. One that exists
/// stays as it is.
pub fn make_private(path: &Path) -> io::Result<()> {
    let is_missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    missing.into_iter().try_for_each(sync_entry)
}

/// Makes the entry of a directory durable, so that a loss of power does not take it away with all
/// that is in it.
pub fn sync_entry(path: &Path) -> io::Result<()> {
    let parent = std::fs::canonicalize(path)?.parent().map(Path::to_owned);
    let Some(parent) = parent else { return Ok(()) };
    match File::open(parent) {
        Ok(parent) => parent.sync_all(),
        // Whoever may not read the parent did not make the directory there either.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(error),
    }
}

/// The file system has no space, or no number for one more file. That passes.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The same, of an error that has such a cause.
pub fn lacks_space(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| match (cause.downcast_ref(), cause.downcast_ref()) {
        (Some(error), _) | (_, Some(DataDirError::Io { error, .. })) => is_full(error),
        _ => false,
    })
}

/// The old content of a file or the new one, whatever happens. On a full disk a file whose size
/// stays the same, and that changes in its first sector only, is written in place.
pub fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let written = replace(&fresh, path, content);
    let Err(error) = written else { return Ok(()) };
    // A part of a file would only take space away from others.
    let _ = std::fs::remove_file(&fresh);
    if is_full(&error) && rewrite_front(path, content)? {
        return Ok(());
    }
    Err(error)
}

/// A disk writes a sector as a whole or not at all, which other databases rely on as well. False:
/// more than that would change, and nothing has.
fn rewrite_front(path: &Path, content: &[u8]) -> io::Result<bool> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    let mut old = Vec::with_capacity(content.len());
    (&file).take(content.len() as u64 + 1).read_to_end(&mut old)?;
    if old.len() != content.len() {
        return Ok(false);
    }
    let differs = |at: &usize| old[*at] != content[*at];
    let Some(first) = (0..old.len()).find(differs) else { return Ok(true) };
    let end = (first..old.len()).rfind(differs).map_or(first, |last| last + 1);
    if end > SECTOR_BYTES {
        return Ok(false);
    }
    file.write_all_at(&content[first..end], first as u64)?;
    file.sync_data()?;
    Ok(true)
}

fn replace(fresh: &Path, path: &Path, content: &[u8]) -> io::Result<()> {
    // One that a crash has left may be for other eyes, too.
    match std::fs::remove_file(fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new();
    let mut file = file.create_new(true).write(true).mode(0o600).open(fresh)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(fresh, path)?;
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// The smallest sector that disks have.
const SECTOR_BYTES: usize = 512;

#[cfg(test)]
mod tests;
