//! The files of streams, and the thread that writes them.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use base::ending_the_process;
use storage::stream::{
    BLOCK_HEADER_BYTES, FILE_HEADER_BYTES, FILE_TAIL_BYTES, FileFault, FileIdentity, FileIndex,
    FoundFile, StreamCommand, StreamRefusal, check_reach,
};
use storage::{Fault, FaultKind};

use crate::STREAMS_DIRECTORY;

/// The files of one stream, and the system calls on them.
#[derive(Debug)]
pub struct StreamFiles {
    path: PathBuf,
    stream: [u8; 16],
    /// For syncing entries made and removed.
    directory: File,
    /// The file that was written last.
    head: Mutex<Option<(u64, Arc<File>)>>,
}

/// Why the files of a stream cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StreamFilesError {
    #[error("{path}: {error}", path = path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{path}: {fault}: restore a backup", path = path.display())]
    File { path: PathBuf, fault: FileFault },
    #[error(
        "{path} is file {number} of another stream: put the right one back, or restore a backup",
        path = path.display()
    )]
    Foreign { path: PathBuf, number: u64 },
    #[error("{path}: {refusal}", path = path.display())]
    Refused { path: PathBuf, refusal: StreamRefusal },
}

impl StreamFiles {
    /// Opens the directory of a stream, making it if need be. `stream`: its random identity.
    pub fn open(path: &Path, stream: [u8; 16]) -> io::Result<Self> {
        super::make_private(path)?;
        let directory = File::open(path)?;
        // What an earlier process removed, and did not live to sync, counts from now on.
        directory.sync_all()?;
        Ok(Self { path: path.to_owned(), stream, directory, head: Mutex::default() })
    }

    pub fn file_path(&self, number: u64) -> PathBuf {
        self.path.join(format!("{number:010}.stream"))
    }

    /// What the files have, each up to where the journal says that it is durable. Others are
    /// removed: nothing in them has counted.
    ///
    /// # Errors
    ///
    /// When a file is missing, shorter than that, damaged, or of another stream. Then nothing has
    /// changed.
    pub fn recover(&self, reach: &BTreeMap<u64, u64>) -> Result<Vec<FoundFile>, StreamFilesError> {
        let found = reach.iter().map(|(number, reach)| {
            let index = self.read_index(*number, *reach)?;
            Ok(FoundFile { number: *number, index })
        });
        let found = found.collect::<Result<Vec<_>, _>>()?;
        self.remove_others(reach).map_err(|error| self.failed(&self.path, error))?;
        Ok(found)
    }

    fn read_index(&self, number: u64, reach: u64) -> Result<FileIndex, StreamFilesError> {
        let path = self.file_path(number);
        let index = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => FileIndex::default(),
            Err(error) => return Err(self.failed(&path, error)),
            Ok(file) => {
                let identity = self.identify(&path, &file, number)?;
                index_of(&file, &identity, reach).map_err(|error| self.failed(&path, error))?
            }
        };
        check_reach(&index, number, reach)
            .map_err(|refusal| StreamFilesError::Refused { path, refusal })?;
        Ok(index)
    }

    fn identify(
        &self,
        path: &Path,
        file: &File,
        number: u64,
    ) -> Result<FileIdentity, StreamFilesError> {
        let header = read_at(file, 0, FILE_HEADER_BYTES);
        let header = header.map_err(|error| self.failed(path, error))?;
        let damaged = |fault| StreamFilesError::File { path: path.to_owned(), fault };
        let found = FileIdentity::read(&header).map_err(damaged)?;
        let is_own = found == FileIdentity { stream: self.stream, number };
        let foreign = || StreamFilesError::Foreign { path: path.to_owned(), number: found.number };
        is_own.then_some(found).ok_or_else(foreign)
    }

    fn remove_others(&self, known: &BTreeMap<u64, u64>) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(file_number);
            if number.is_some_and(|number| !known.contains_key(&number)) {
                std::fs::remove_file(entry.path())?;
            }
        }
        self.directory.sync_all()
    }

    /// Carries out a command. Only of a write it matters whether it was done: without its index a
    /// file is as good, as a start reads the blocks, and a file that stays is removed at the next
    /// start.
    ///
    /// # Errors
    ///
    /// Why it was not done.
    pub fn carry_out(&self, command: &StreamCommand) -> Result<(), Fault> {
        match command {
            StreamCommand::Write { file, offset, bytes, .. }
            | StreamCommand::Close { file, offset, bytes } => {
                self.write(*file, *offset, bytes).map_err(|error| fault(*file, &error))
            }
            StreamCommand::Delete { file } => {
                self.delete(*file).map_err(|error| fault(*file, &error))
            }
        }
    }

    /// Bytes of a file, fewer where it ends before.
    ///
    /// # Errors
    ///
    /// When the file is gone, or cannot be read.
    pub fn read(&self, file: u64, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        read_at(&File::open(self.file_path(file))?, offset, bytes)
    }

    fn write(&self, number: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let is_new = offset == 0;
        let file = if is_new { self.create(number)? } else { self.head(number)? };
        file.write_all_at(bytes, offset)?;
        file.sync_data()?;
        if is_new {
            self.directory.sync_all()?;
        }
        *self.lock() = Some((number, file));
        Ok(())
    }

    fn create(&self, number: u64) -> io::Result<Arc<File>> {
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(true).read(true).write(true).mode(0o600);
        options.open(self.file_path(number)).map(Arc::new)
    }

    fn head(&self, number: u64) -> io::Result<Arc<File>> {
        if let Some((_, file)) = self.lock().as_ref().filter(|(known, _)| *known == number) {
            return Ok(file.clone());
        }
        OpenOptions::new().write(true).open(self.file_path(number)).map(Arc::new)
    }

    fn delete(&self, number: u64) -> io::Result<()> {
        self.lock().take_if(|(known, _)| *known == number);
        match std::fs::remove_file(self.file_path(number)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
        self.directory.sync_all()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(u64, Arc<File>)>> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, path: &Path, error: io::Error) -> StreamFilesError {
        StreamFilesError::Io { path: path.to_owned(), error }
    }
}

/// The index of a file: by its footer if that ends where the journal says, or by its blocks.
pub(crate) fn index_of(file: &File, identity: &FileIdentity, reach: u64) -> io::Result<FileIndex> {
    let len = file.metadata()?.len();
    let tail = read_at(file, len.saturating_sub(FILE_TAIL_BYTES as u64), FILE_TAIL_BYTES)?;
    if FileIndex::footer_at(&tail, identity) == Some(reach) && reach < len {
        let footer = read_at(file, reach, (len - reach) as usize)?;
        if let Ok(index) = FileIndex::read_footer(&footer, identity) {
            return Ok(index);
        }
    }
    let mut index = FileIndex::default();
    while index.end() < reach.min(len) {
        let header = read_at(file, index.end(), BLOCK_HEADER_BYTES)?;
        if !index.next_block(&header, identity, reach.min(len)) {
            break;
        }
    }
    Ok(index)
}

pub(crate) fn read_at(file: &File, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(filled);
    Ok(buffer)
}

fn fault(file: u64, error: &io::Error) -> Fault {
    let kind = if super::is_full(error) { FaultKind::NoSpace } else { FaultKind::Io };
    Fault { kind, detail: format!("write stream file {file}: {error}") }
}

/// The number in a file's name.
fn file_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".stream")?;
    let is_canonical = digits.len() >= 10 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_canonical.then(|| digits.parse().ok()).flatten()
}

/// A file of a stream in a data directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StreamFile {
    pub stream: u32,
    pub file: u64,
    /// Its size.
    pub bytes: u64,
}

impl StreamFile {
    /// All of a data directory, in their order.
    ///
    /// # Errors
    ///
    /// A directory cannot be read.
    pub fn all_in(directory: &Path) -> io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for (stream, path) in
            numbered(&directory.join(STREAMS_DIRECTORY), |name| name.parse().ok())?
        {
            for (file, path) in numbered(&path, file_number)? {
                match std::fs::metadata(&path) {
                    // It was deleted meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    found => all.push(Self { stream, file, bytes: found?.len() }),
                }
            }
        }
        all.sort_unstable();
        Ok(all)
    }

    /// Where it is in a data directory.
    pub fn path_in(&self, directory: &Path) -> PathBuf {
        let name = format!("{:010}.stream", self.file);
        directory.join(STREAMS_DIRECTORY).join(self.stream.to_string()).join(name)
    }
}

/// The entries of a directory whose names have a number. None if there is no directory.
fn numbered<N>(path: &Path, number: impl Fn(&str) -> Option<N>) -> io::Result<Vec<(N, PathBuf)>> {
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let Some(number) = entry.file_name().to_str().and_then(&number) {
            found.push((number, entry.path()));
        }
    }
    Ok(found)
}

/// What the thread has to do for a stream.
#[derive(Debug)]
pub struct StreamJob {
    pub stream: u32,
    pub files: Arc<StreamFiles>,
    pub command: StreamCommand,
}

/// Writes the files of all streams of a directory, in order, on one thread. Dropping it finishes
/// what was submitted.
///
/// The queue is bounded by its users: a stream has few blocks at the disk at a time.
#[derive(Debug)]
pub struct StreamDisk {
    queue: Option<Sender<StreamJob>>,
    thread: Option<JoinHandle<()>>,
}

impl StreamDisk {
    /// `done` is called on the thread, with each job and what became of it.
    ///
    /// # Errors
    ///
    /// When the system gives no thread.
    pub fn spawn(done: impl Fn(StreamJob, Result<(), Fault>) + Send + 'static) -> io::Result<Self> {
        let (queue, jobs): (_, Receiver<StreamJob>) = channel();
        let run = move || {
            for job in jobs {
                let result = job.files.carry_out(&job.command);
                done(job, result);
            }
        };
        let builder = Builder::new().name("streams".to_owned());
        let thread = builder.spawn(move || ending_the_process(run))?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    /// Its answer follows on the thread.
    pub fn submit(&self, job: StreamJob) {
        // The thread lives as long as this.
        let _ = self.queue.as_ref().map(|queue| queue.send(job));
    }
}

impl Drop for StreamDisk {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has ended the process.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use storage::stream::{
        Archived, Block, BlockWriter, Location, StreamCommandId, StreamLimits, StreamLog,
    };

    use super::*;

    const STREAM: [u8; 16] = [7; 16];

    /// A stream on real files, and what a journal would remember of it.
    struct Lab {
        dir: tempfile::TempDir,
        files: Arc<StreamFiles>,
        log: StreamLog,
        next: u64,
        archived: BTreeMap<u16, u64>,
        reach: BTreeMap<u64, u64>,
    }

    fn limits() -> StreamLimits {
        StreamLimits { file_bytes: 4_000, ..StreamLimits::default() }
    }

    impl Lab {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let files = Arc::new(StreamFiles::open(&dir.path().join("7"), STREAM).unwrap());
            let log = StreamLog::open(STREAM, limits(), Vec::new(), BTreeMap::new());
            Self { dir, files, log, next: 0, archived: BTreeMap::new(), reach: BTreeMap::new() }
        }

        fn append(&mut self) {
            let mut block = BlockWriter::new(0, 1, self.next);
            // Nothing that can be packed.
            let mut state = self.next + 1;
            let mut noise = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as u8
            };
            let noise: Vec<u8> = (0..900).map(|_| noise()).collect();
            assert!(block.push(1000 + self.next, &noise));
            self.next += 1;
            self.log.append(block);
        }

        fn commands(&mut self) -> Vec<StreamCommand> {
            let mut commands = Vec::new();
            self.log.take_commands(&mut commands);
            commands
        }

        fn on_done(&mut self, id: StreamCommandId, result: Result<(), Fault>) {
            if let Some(Archived { shard, next, file, end }) = self.log.on_written(id, result) {
                self.archived.insert(shard, next);
                self.reach.insert(file, end);
            }
        }

        fn work(&mut self) {
            for command in self.commands() {
                let result = self.files.carry_out(&command);
                if let StreamCommand::Write { id, .. } = command {
                    self.on_done(id, result);
                }
            }
        }

        fn restart(&mut self) -> Result<(), StreamFilesError> {
            self.files = Arc::new(StreamFiles::open(&self.dir.path().join("7"), STREAM).unwrap());
            let found = self.files.recover(&self.reach)?;
            self.log = StreamLog::open(STREAM, limits(), found, self.archived.clone());
            Ok(())
        }

        fn first_of(&self, ordinal: u64) -> u64 {
            let Location::File { file, offset, end } = self.log.locate(0, ordinal) else {
                panic!("{ordinal} is not there");
            };
            let bytes = self.files.read(file, offset, (end - offset) as usize).unwrap();
            let identity = FileIdentity { stream: STREAM, number: file };
            let mut at = 0;
            loop {
                let block = Block::read(&bytes[at..], &identity).unwrap();
                if block.header.next() > ordinal {
                    return block.header.first;
                }
                at += block.header.block_bytes() as usize;
            }
        }
    }

    #[test]
    fn blocks_are_found_after_a_start_by_footers_and_by_headers() {
        let mut lab = Lab::new();
        for _ in 0..10 {
            lab.append();
            lab.work();
        }
        assert!(lab.reach.len() > 1, "some files are closed, and the last one is not");
        // What no journal knows of, and what is none of ours.
        std::fs::write(lab.files.file_path(99), b"left over").unwrap();
        let other = lab.dir.path().join("7/notes");
        std::fs::write(&other, b"mine").unwrap();
        lab.restart().unwrap();
        for ordinal in 0..10 {
            assert_eq!(lab.first_of(ordinal), ordinal);
        }
        assert!(!lab.files.file_path(99).exists() && other.exists());
        lab.append();
        lab.work();
        lab.restart().unwrap();
        assert_eq!(lab.first_of(10), 10);
    }

    #[test]
    fn a_file_that_is_missing_short_foreign_or_damaged_refuses_the_start_and_changes_nothing() {
        let mut lab = Lab::new();
        lab.append();
        lab.work();
        let path = lab.files.file_path(1);
        let whole = std::fs::read(&path).unwrap();
        let stranger = FileIdentity { stream: [8; 16], number: 1 }.header();
        let cases = [
            (None, "was durable up to"),
            (Some(whole[..whole.len() - 1].to_vec()), "was durable up to"),
            (Some([&stranger[..], &whole[64..]].concat()), "of another stream"),
            (Some([&[0; 64], &whole[64..]].concat()), "its header is damaged"),
        ];
        for (content, why) in cases {
            match content {
                Some(content) => std::fs::write(&path, content).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            std::fs::write(lab.files.file_path(2), b"left over").unwrap();
            let refusal = lab.restart().unwrap_err().to_string();
            assert!(refusal.contains(why) && refusal.contains("0000000001.stream"), "{refusal}");
            assert!(lab.files.file_path(2).exists());
        }
    }

    #[test]
    fn what_is_behind_the_end_that_the_journal_knows_is_ignored() {
        let mut lab = Lab::new();
        lab.append();
        lab.work();
        let (archived, reach) = (lab.archived.clone(), lab.reach.clone());
        lab.append();
        lab.work();
        (lab.archived, lab.reach) = (archived, reach);
        lab.restart().unwrap();
        assert_eq!(lab.log.locate(0, 1), Location::Ahead);
        assert_eq!(lab.log.records(), 1);
    }

    #[test]
    fn files_that_go_are_removed() {
        let mut lab = Lab::new();
        for _ in 0..10 {
            lab.append();
            lab.work();
        }
        lab.log.set_limits(StreamLimits { records_max: Some(3), ..limits() });
        assert!(!lab.log.retain(0, |_| 0).is_empty());
        lab.log.delete_below(u64::MAX);
        lab.work();
        assert!(!lab.files.file_path(1).exists());
    }

    #[test]
    fn the_thread_answers_in_order_and_reports_what_cannot_be_written() {
        let mut lab = Lab::new();
        let (sender, answers) = channel();
        let disk = StreamDisk::spawn(move |job, result| drop(sender.send((job, result)))).unwrap();
        (0..3).for_each(|_| lab.append());
        for command in lab.commands() {
            disk.submit(StreamJob { stream: 7, files: lab.files.clone(), command });
        }
        let mut writes = 0;
        while writes < 3 {
            let (job, result) = answers.recv().unwrap();
            assert_eq!((job.stream, result.is_ok()), (7, true));
            let StreamCommand::Write { id, .. } = job.command else { continue };
            lab.on_done(id, result);
            writes += 1;
        }
        assert_eq!(lab.archived[&0], 3);
        std::fs::remove_dir_all(lab.dir.path().join("7")).unwrap();
        (0..4).for_each(|_| lab.append());
        for command in lab.commands() {
            disk.submit(StreamJob { stream: 7, files: lab.files.clone(), command });
        }
        drop(disk);
        let failed: Vec<_> = answers.iter().filter(|(_, result)| result.is_err()).collect();
        assert!(!failed.is_empty(), "a file cannot be made there");
    }
}
