//! The files of streams as a standby has them: copies of what the active node of a cluster writes.
//!
//! A copy is written piece by piece and in any order, since a piece says where it belongs.
//! [`StreamCopies::sync`] makes durable what was written, and the mark that is written behind it
//! says up to where the messages of the engine are in the files. What is written again is the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use storage::stream::{FILE_HEADER_BYTES, FileIdentity, check_reach};

use crate::streams::{index_of, read_at};
use crate::{STREAMS_DIRECTORY, StreamFile, make_private, write_whole};

/// How far the copies are, in the directory of all streams.
const STREAMS_MARK_FILE: &str = "cursor";

/// Files that are open. Policy: they are synced before another one is opened.
const DIRTY_MAX: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct StreamCopies {
    /// The data directory.
    directory: PathBuf,
    /// Written since the last sync. Bound: [`DIRTY_MAX`].
    dirty: BTreeMap<(u32, u64), File>,
    /// Directories with entries that were made since.
    made: BTreeSet<u32>,
}

impl StreamCopies {
    /// Of a data directory. Nothing is read or made yet.
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), dirty: BTreeMap::new(), made: BTreeSet::new() }
    }

    fn root(&self) -> PathBuf {
        self.directory.join(STREAMS_DIRECTORY)
    }

    fn path(&self, (stream, file): (u32, u64)) -> PathBuf {
        StreamFile { stream, file, bytes: 0 }.path_in(&self.directory)
    }

    /// Removes all that there is.
    ///
    /// # Errors
    ///
    /// When it cannot be removed.
    pub fn start_over(&mut self) -> io::Result<()> {
        self.dirty.clear();
        self.made.clear();
        match std::fs::remove_dir_all(self.root()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes a piece of a file, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// When it cannot be written. Then it is to be written again.
    pub fn put(&mut self, name: (u32, u64), offset: u64, bytes: &[u8]) -> io::Result<()> {
        if !self.dirty.contains_key(&name) {
            if self.dirty.len() == DIRTY_MAX {
                self.sync()?;
            }
            let file = self.open(name)?;
            self.dirty.insert(name, file);
        }
        match self.dirty.get(&name) {
            Some(file) => file.write_all_at(bytes, offset),
            None => Ok(()),
        }
    }

    fn open(&mut self, name: (u32, u64)) -> io::Result<File> {
        let path = self.path(name);
        let mut options = OpenOptions::new();
        options.write(true).mode(0o600);
        match options.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_private(&self.root())?;
                make_private(path.parent().unwrap_or(Path::new("")))?;
                self.made.insert(name.0);
                options.create(true).open(&path)
            }
            opened => opened,
        }
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    ///
    /// When the medium fails. Then what was written since the last call is to be written again.
    pub fn sync(&mut self) -> io::Result<()> {
        for file in std::mem::take(&mut self.dirty).into_values() {
            file.sync_data()?;
        }
        let made = std::mem::take(&mut self.made);
        for stream in &made {
            File::open(self.root().join(stream.to_string()))?.sync_all()?;
        }
        if !made.is_empty() {
            File::open(self.root())?.sync_all()?;
        }
        Ok(())
    }

    /// Notes how far the copies are. What they have must be [durable](StreamCopies::sync).
    ///
    /// # Errors
    ///
    /// When the mark cannot be written.
    pub fn write_mark(&self, content: &[u8]) -> io::Result<()> {
        make_private(&self.root())?;
        write_whole(&self.root().join(STREAMS_MARK_FILE), content)
    }

    /// What was noted last. None: nothing, or it is gone with the files.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn read_mark(&self) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(self.root().join(STREAMS_MARK_FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            content => content.map(Some),
        }
    }

    /// Deletes a file.
    ///
    /// # Errors
    ///
    /// When it stays.
    pub fn remove(&mut self, name: (u32, u64)) -> io::Result<()> {
        self.dirty.remove(&name);
        match std::fs::remove_file(self.path(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// All files.
    ///
    /// # Errors
    ///
    /// When a directory cannot be read.
    pub fn list(&self) -> io::Result<Vec<StreamFile>> {
        StreamFile::all_in(&self.directory)
    }

    /// Which files of a stream lack something of what the journals say. `reach`: how far each file
    /// must reach.
    ///
    /// # Errors
    ///
    /// When a file cannot be read.
    pub fn lacking(&self, stream: u32, reach: &BTreeMap<u64, u64>) -> io::Result<Vec<u64>> {
        let mut lacking = Vec::new();
        for (number, reach) in reach {
            if !self.is_whole((stream, *number), *reach)? {
                lacking.push(*number);
            }
        }
        Ok(lacking)
    }

    fn is_whole(&self, name: (u32, u64), reach: u64) -> io::Result<bool> {
        let file = match File::open(self.path(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            opened => opened?,
        };
        let header = read_at(&file, 0, FILE_HEADER_BYTES)?;
        // Whose stream it is is checked when the file is used.
        let identity = FileIdentity::read(&header).ok().filter(|own| own.number == name.1);
        let Some(identity) = identity else { return Ok(false) };
        let index = index_of(&file, &identity, reach)?;
        Ok(check_reach(&index, name.1, reach).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use storage::stream::{BlockWriter, StreamCommand, StreamLimits, StreamLog};

    use super::*;
    use crate::StreamFiles;

    /// The writes of a stream with two blocks, and how far its file reaches.
    fn writes() -> (Vec<StreamCommand>, u64) {
        let mut log =
            StreamLog::open([7; 16], StreamLimits::default(), Vec::new(), BTreeMap::new());
        let mut commands = Vec::new();
        let mut end = 0;
        for first in 0..2 {
            let mut block = BlockWriter::new(0, 1, first);
            assert!(block.push(1000, b"record"));
            log.append(block);
            log.take_commands(&mut commands);
            let Some(StreamCommand::Write { id, .. }) = commands.last() else {
                panic!("{commands:?}")
            };
            end = log.on_written(*id, Ok(())).expect("it is durable").end;
        }
        (commands, end)
    }

    #[test]
    fn a_copy_is_whole_when_all_pieces_are_there_in_any_order() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut copies = StreamCopies::new(dir.path());
        let (commands, end) = writes();
        let reach = BTreeMap::from([(1, end)]);
        assert_eq!(copies.lacking(3, &reach).expect("it is read"), [1]);
        for command in commands.iter().rev() {
            assert_eq!(copies.lacking(3, &reach).expect("it is read"), [1], "a hole is found");
            let StreamCommand::Write { offset, bytes, .. } = command else { continue };
            let (front, back) = bytes.split_at(bytes.len() / 2);
            copies.put((3, 1), offset + front.len() as u64, back).expect("it is written");
            copies.put((3, 1), *offset, front).expect("it is written");
        }
        copies.sync().expect("it is synced");
        assert_eq!(copies.lacking(3, &reach).expect("it is read"), []);
        let files = StreamFiles::open(&dir.path().join("streams/3"), [7; 16]).expect("it opens");
        let found = files.recover(&reach).expect("the active node can use it");
        assert_eq!(found[0].index.end(), end);
        copies.remove((3, 1)).expect("it goes");
        copies.remove((3, 1)).expect("once is enough");
        assert_eq!(copies.list().expect("it is read"), []);
    }

    #[test]
    fn the_mark_goes_with_the_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut copies = StreamCopies::new(dir.path());
        assert_eq!(copies.read_mark().expect("it is read"), None);
        copies.put((3, 1), 0, b"x").expect("it is written");
        copies.sync().expect("it is synced");
        copies.write_mark(b"9").expect("it is written");
        assert_eq!(copies.read_mark().expect("it is read"), Some(b"9".to_vec()));
        assert_eq!(copies.list().expect("it is read").len(), 1, "the mark is no stream");
        copies.start_over().expect("it goes");
        assert_eq!(copies.read_mark().expect("it is read"), None);
        copies.start_over().expect("once is enough");
    }
}
