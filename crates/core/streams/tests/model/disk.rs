//! The disk of all streams. Writes are whole or fail; a crash comes between commands.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;

use broker::streams::StreamNumber;
use storage::stream::{
    FILE_HEADER_BYTES, FileIdentity, FileIndex, FoundFile, StreamCommand, StreamCommandId,
    check_reach,
};
use storage::testing::Rng;
use storage::{Fault, FaultKind};
use streams::ReadFiles;

pub(crate) struct Disk {
    pub(crate) files: BTreeMap<(StreamNumber, u64), Vec<u8>>,
    /// The same without damage: a start finds what their footers state.
    sound: BTreeMap<(StreamNumber, u64), Vec<u8>>,
    pub(crate) queues: BTreeMap<StreamNumber, VecDeque<StreamCommand>>,
    /// Of a hundred reads so many fail.
    pub(crate) read_faults: Cell<u64>,
    rng: RefCell<Rng>,
}

pub(crate) fn identity_of(stream: StreamNumber) -> [u8; 16] {
    [stream.0 as u8 + 40; 16]
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            files: BTreeMap::new(),
            sound: BTreeMap::new(),
            queues: BTreeMap::new(),
            read_faults: Cell::new(0),
            rng: RefCell::new(Rng::new(seed)),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queues.values().all(VecDeque::is_empty)
    }

    /// Does the oldest command of a stream.
    pub(crate) fn step(
        &mut self,
        stream: StreamNumber,
        fails: bool,
    ) -> Option<(StreamCommandId, Result<(), Fault>)> {
        match self.queues.get_mut(&stream)?.pop_front()? {
            StreamCommand::Write { id, file, offset, bytes } => {
                if fails {
                    let fault = Fault { kind: FaultKind::NoSpace, detail: "full".to_owned() };
                    return Some((id, Err(fault)));
                }
                self.write((stream, file), offset, &bytes);
                Some((id, Ok(())))
            }
            StreamCommand::Close { file, offset, bytes } => {
                if !fails {
                    self.write((stream, file), offset, &bytes);
                }
                None
            }
            StreamCommand::Delete { file } => {
                self.files.remove(&(stream, file));
                self.sound.remove(&(stream, file));
                None
            }
        }
    }

    fn write(&mut self, at: (StreamNumber, u64), offset: u64, bytes: &[u8]) {
        for files in [&mut self.files, &mut self.sound] {
            let content = files.entry(at).or_default();
            content.resize(offset as usize, 0);
            content.extend_from_slice(bytes);
        }
    }

    /// As a start does.
    pub(crate) fn recover(
        &mut self,
        stream: StreamNumber,
        reach: &BTreeMap<u64, u64>,
    ) -> Result<Vec<FoundFile>, String> {
        for files in [&mut self.files, &mut self.sound] {
            files.retain(|(of, file), _| *of != stream || reach.contains_key(file));
        }
        let mut found = Vec::new();
        for (&number, &reach) in reach {
            let identity = FileIdentity { stream: identity_of(stream), number };
            let empty = Vec::new();
            let content = self.sound.get(&(stream, number)).unwrap_or(&empty);
            let mut index = FileIndex::default();
            if content.len() > FILE_HEADER_BYTES {
                index.scan(&content[FILE_HEADER_BYTES..], &identity, reach);
            }
            check_reach(&index, number, reach).map_err(|refusal| refusal.to_string())?;
            found.push(FoundFile { number, index });
        }
        Ok(found)
    }
}

impl ReadFiles for Disk {
    fn read(
        &self,
        stream: StreamNumber,
        file: u64,
        offset: u64,
        bytes: usize,
    ) -> io::Result<Vec<u8>> {
        if self.rng.borrow_mut().chance(self.read_faults.get()) {
            return Err(io::Error::other("the disk is away"));
        }
        let content = self.files.get(&(stream, file)).ok_or(io::ErrorKind::NotFound)?;
        let offset = content.len().min(offset as usize);
        let end = content.len().min(offset + bytes);
        Ok(content[offset..end].to_vec())
    }
}
