//! The small files of a cluster (bans, namespaces and the like): each is a key of the engine.
//!
//! Only the active node writes them. A node that becomes active reads each file and writes it back
//! with its epoch: from then on the compare-and-set of every earlier active node fails.

use crate::effect::{LeaseAnswer, LeaseRequest};

/// Compare-and-set tries of one file.
const TRIES_MAX: usize = 8;

/// One file that is taken over or replicated, request by request. The value of a key is asked as
/// that of the lease is.
#[derive(Debug)]
pub struct FileTask {
    epoch: u64,
    /// To be replicated. `None`: what is there is taken over.
    content: Option<Vec<u8>>,
    /// What was found, and is written back.
    found: Option<Vec<u8>>,
    tries: usize,
}

/// What a task wants next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileStep {
    Ask(LeaseRequest),
    /// A quorum has it, with this revision. `content`: `None`: there is no such file.
    Done {
        revision: u64,
        content: Option<Vec<u8>>,
    },
    Failed(FileFault),
}

/// Why a file was not taken over or replicated.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FileFault {
    #[error("another node is active, with epoch {0}")]
    Fenced(u64),
    #[error("the value of its key is malformed")]
    Malformed,
    #[error("its key is changed too often by others")]
    Busy,
    /// Whether it was written is not known.
    #[error("{0}")]
    Unknown(String),
}

impl FileTask {
    /// Makes a file this node's own.
    pub const fn take(epoch: u64) -> (Self, FileStep) {
        let task = Self { epoch, content: None, found: None, tries: 0 };
        (task, FileStep::Ask(LeaseRequest::Read))
    }

    /// Replicates a file of which this node knows the revision; 0 if it knows none.
    pub fn put(epoch: u64, revision: u64, content: Vec<u8>) -> (Self, FileStep) {
        let task = Self { epoch, content: Some(content), found: None, tries: 0 };
        let step = task.write(revision);
        (task, step)
    }

    /// Takes the answer to what it asked.
    pub fn on_answer(&mut self, answer: LeaseAnswer) -> FileStep {
        match answer {
            LeaseAnswer::Found { revision, value } => self.on_found(revision, &value),
            LeaseAnswer::Missing => self.on_found(0, &[]),
            LeaseAnswer::Written(revision) => {
                let content = self.content.take().or_else(|| self.found.take());
                FileStep::Done { revision, content }
            }
            // An earlier write of unknown fate may have been stored; or another node is active.
            LeaseAnswer::Conflict => {
                self.tries += 1;
                match self.tries < TRIES_MAX {
                    true => FileStep::Ask(LeaseRequest::Read),
                    false => FileStep::Failed(FileFault::Busy),
                }
            }
            LeaseAnswer::Unknown(why) => FileStep::Failed(FileFault::Unknown(why)),
        }
    }

    fn on_found(&mut self, revision: u64, value: &[u8]) -> FileStep {
        let Some((epoch, content)) = read_file(value) else {
            return FileStep::Failed(FileFault::Malformed);
        };
        if epoch > self.epoch {
            return FileStep::Failed(FileFault::Fenced(epoch));
        }
        self.found = content.map(<[u8]>::to_vec);
        self.write(revision)
    }

    fn write(&self, expected: u64) -> FileStep {
        let content = self.content.as_deref().or(self.found.as_deref());
        let value = file_value(self.epoch, content);
        FileStep::Ask(LeaseRequest::Write { expected, value })
    }
}

/// The value of a key: a line with the epoch, and the content. Without content the file is not
/// there.
pub fn file_value(epoch: u64, content: Option<&[u8]>) -> Vec<u8> {
    let mut value = format!("epoch {epoch}").into_bytes();
    if let Some(content) = content {
        value.push(b'\n');
        value.extend_from_slice(content);
    }
    value
}

/// Epoch and content of a value. An empty one is of no epoch. `None`: it is malformed.
pub fn read_file(value: &[u8]) -> Option<(u64, Option<&[u8]>)> {
    if value.is_empty() {
        return Some((0, None));
    }
    let end = value.iter().position(|byte| *byte == b'\n');
    let line = std::str::from_utf8(&value[..end.unwrap_or(value.len())]).ok()?;
    let epoch = line.strip_prefix("epoch ")?.parse().ok()?;
    Some((epoch, end.map(|end| &value[end + 1..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key as the engine has it: revision and value.
    #[derive(Default)]
    struct Key(u64, Vec<u8>);

    impl Key {
        fn answer(&mut self, request: &LeaseRequest) -> LeaseAnswer {
            match request {
                LeaseRequest::Read if self.0 == 0 => LeaseAnswer::Missing,
                LeaseRequest::Read => {
                    LeaseAnswer::Found { revision: self.0, value: self.1.clone() }
                }
                LeaseRequest::Write { expected, .. } if *expected != self.0 => {
                    LeaseAnswer::Conflict
                }
                LeaseRequest::Write { value, .. } => {
                    *self = Self(self.0 + 1, value.clone());
                    LeaseAnswer::Written(self.0)
                }
            }
        }

        fn run(&mut self, (mut task, mut step): (FileTask, FileStep)) -> FileStep {
            while let FileStep::Ask(request) = step {
                step = task.on_answer(self.answer(&request));
            }
            step
        }
    }

    fn done(revision: u64, content: Option<&[u8]>) -> FileStep {
        FileStep::Done { revision, content: content.map(<[u8]>::to_vec) }
    }

    #[test]
    fn a_value_survives_the_way_there_and_back() {
        for content in [None, Some(&b""[..]), Some(b"a\nb")] {
            assert_eq!(read_file(&file_value(7, content)), Some((7, content)));
        }
        assert_eq!(read_file(b""), Some((0, None)));
        assert_eq!(read_file(b"era 7\nx"), None);
    }

    #[test]
    fn a_file_that_is_taken_over_is_written_by_nobody_before() {
        let mut key = Key::default();
        assert_eq!(key.run(FileTask::take(4)), done(1, None));
        assert_eq!(key.run(FileTask::put(4, 1, b"one".to_vec())), done(2, Some(b"one")));
        assert_eq!(key.run(FileTask::take(5)), done(3, Some(b"one")));
        let late = key.run(FileTask::put(4, 2, b"two".to_vec()));
        assert_eq!(late, FileStep::Failed(FileFault::Fenced(5)));
        assert_eq!(key.run(FileTask::take(4)), FileStep::Failed(FileFault::Fenced(5)));
        assert_eq!(read_file(&key.1), Some((5, Some(&b"one"[..]))));
    }

    #[test]
    fn a_write_whose_answer_is_lost_does_not_keep_the_next_one_from_being_stored() {
        let mut key = Key::default();
        let (mut task, step) = FileTask::put(4, 0, b"one".to_vec());
        let FileStep::Ask(write) = step else { panic!("{step:?}") };
        key.answer(&write);
        let lost = task.on_answer(LeaseAnswer::Unknown("lost".into()));
        assert_eq!(lost, FileStep::Failed(FileFault::Unknown("lost".into())));
        assert_eq!(key.run(FileTask::put(4, 0, b"two".to_vec())), done(2, Some(b"two")));
    }

    #[test]
    fn what_another_writer_stored_meanwhile_is_taken_over_too() {
        let mut key = Key::default();
        let (mut task, step) = FileTask::take(5);
        let FileStep::Ask(read) = step else { panic!("{step:?}") };
        let step = task.on_answer(key.answer(&read));
        assert_eq!(key.run(FileTask::put(4, 0, b"late".to_vec())), done(1, Some(b"late")));
        assert_eq!(key.run((task, step)), done(2, Some(b"late")));
    }

    #[test]
    fn a_key_that_never_rests_is_given_up_and_a_malformed_one_is_left_alone() {
        let (mut task, mut step) = FileTask::take(5);
        for _ in 0..4 * TRIES_MAX {
            let FileStep::Ask(request) = &step else { break };
            step = task.on_answer(match request {
                LeaseRequest::Read => LeaseAnswer::Missing,
                LeaseRequest::Write { .. } => LeaseAnswer::Conflict,
            });
        }
        assert_eq!(step, FileStep::Failed(FileFault::Busy));
        let mut key = Key(3, b"something else".to_vec());
        assert_eq!(key.run(FileTask::take(5)), FileStep::Failed(FileFault::Malformed));
        assert_eq!(key.0, 3);
    }
}
