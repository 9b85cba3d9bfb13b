//! The small files of a data directory (bans, namespaces and the like), kept in the key-value store
//! of the engine.
//!
//! Who may write them is decided by [`cluster::FileTask`].

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::Duration;

use cluster::{FileFault, FileStep, FileTask, LeaseAnswer, LeaseRequest, read_file};

use super::engine::{Engine, Put};
use super::import::{IMPORT_KEY, refuse_begun};
use data::{CLUSTERED_FILES, write_whole};

/// A file to replicate, and who waits for it.
pub(crate) struct PutFile {
    pub(crate) name: String,
    pub(crate) content: Vec<u8>,
    pub(crate) done: Sender<io::Result<()>>,
}

/// The files as this node knows them.
pub(crate) struct Files {
    engine: Engine,
    epoch: u64,
    /// By name.
    revisions: HashMap<&'static str, u64>,
}

/// Why the files were not taken over.
#[derive(Debug)]
pub(crate) enum NotTaken {
    /// The engine did not answer: it may at the next try.
    Engine(io::Error),
    /// This node cannot use or write them, or must not.
    Here(String),
}

/// How long a takeover waits for them before it tries again.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_millis(1500);

/// How long a file may take to be replicated: the lease is not renewed meanwhile.
const PUT_TIMEOUT: Duration = Duration::from_millis(1200);

impl Files {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine, epoch: 0, revisions: HashMap::new() }
    }

    /// Makes all files this node's own, and writes them into its data directory.
    pub(crate) async fn take_over(&mut self, epoch: u64, directory: &Path) -> Result<(), NotTaken> {
        self.epoch = epoch;
        let all = async {
            let import = self.engine.get(IMPORT_KEY).await.map_err(NotTaken::Engine)?;
            refuse_begun(&import).map_err(|error| NotTaken::Here(error.to_string()))?;
            for name in CLUSTERED_FILES {
                let content = self.take(name).await?;
                write_local(directory, name, content.as_deref()).map_err(|error| {
                    NotTaken::Here(format!("{}: {error}", directory.join(name).display()))
                })?;
            }
            Ok(())
        };
        match tokio::time::timeout(TAKE_OVER_TIMEOUT, all).await {
            Ok(taken) => taken,
            Err(_) => Err(NotTaken::Engine(late())),
        }
    }

    /// All files as they are now, for a node that does not own them.
    pub(crate) async fn read_all(engine: &Engine) -> io::Result<Vec<(&'static str, Vec<u8>)>> {
        let mut all = Vec::new();
        for name in CLUSTERED_FILES {
            let Some((_, value)) = engine.get(&key(name)).await? else { continue };
            let (_, content) = read_file(&value).ok_or_else(malformed)?;
            all.extend(content.map(|content| (name, content.to_vec())));
        }
        Ok(all)
    }

    /// Writes all files as they are now into the data directory of a standby.
    pub(crate) async fn refresh(&self, directory: &Path) -> io::Result<()> {
        let read = tokio::time::timeout(TAKE_OVER_TIMEOUT, Self::read_all(&self.engine));
        let all = read.await.map_err(|_| late())??;
        for name in CLUSTERED_FILES {
            let found = all.iter().find(|(known, _)| *known == name);
            write_local(directory, name, found.map(|(_, content)| &content[..]))?;
        }
        Ok(())
    }

    async fn take(&mut self, name: &'static str) -> Result<Option<Vec<u8>>, NotTaken> {
        let error = |fault: &FileFault| io::Error::other(format!("the file '{name}': {fault}"));
        self.carry_out(name, FileTask::take(self.epoch)).await.map_err(|fault| match fault {
            FileFault::Unknown(_) | FileFault::Busy => NotTaken::Engine(error(&fault)),
            FileFault::Fenced(_) | FileFault::Malformed => {
                NotTaken::Here(error(&fault).to_string())
            }
        })
    }

    /// Asks what a task wants to know until it is done.
    async fn carry_out(
        &mut self,
        name: &'static str,
        (mut task, mut step): (FileTask, FileStep),
    ) -> Result<Option<Vec<u8>>, FileFault> {
        let unknown = |error: io::Error| LeaseAnswer::Unknown(error.to_string());
        loop {
            let answer = match step {
                FileStep::Ask(LeaseRequest::Read) => match self.engine.get(&key(name)).await {
                    Ok(Some((revision, value))) => LeaseAnswer::Found { revision, value },
                    Ok(None) => LeaseAnswer::Missing,
                    Err(error) => unknown(error),
                },
                FileStep::Ask(LeaseRequest::Write { expected, value }) => {
                    match self.engine.put_if(&key(name), expected, value).await {
                        Ok(Put::Written(revision)) => LeaseAnswer::Written(revision),
                        Ok(Put::Conflict) => LeaseAnswer::Conflict,
                        Err(error) => unknown(error),
                    }
                }
                FileStep::Done { revision, content } => {
                    self.revisions.insert(name, revision);
                    return Ok(content);
                }
                FileStep::Failed(fault) => return Err(fault),
            };
            step = task.on_answer(answer);
        }
    }

    /// Replicates a file, for the node that is active.
    pub(crate) async fn put(&mut self, put: PutFile) {
        let PutFile { name, content, done } = put;
        let tried = tokio::time::timeout(PUT_TIMEOUT, self.try_put(&name, &content)).await;
        let result = tried.unwrap_or_else(|_| Err(late()));
        // Who waited may have given up.
        let _ = done.send(result);
    }

    async fn try_put(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let Some(name) = CLUSTERED_FILES.into_iter().find(|known| *known == name) else {
            return Err(io::Error::other(format!("unknown file of a cluster: '{name}'")));
        };
        let revision = self.revisions.get(name).copied().unwrap_or(0);
        let task = FileTask::put(self.epoch, revision, content.to_vec());
        let put = self.carry_out(name, task).await;
        put.map(drop).map_err(|fault| io::Error::other(format!("the file '{name}': {fault}")))
    }
}

/// Names hold slashes, which keys may.
pub(crate) fn key(name: &str) -> String {
    format!("file.{}", name.replace('/', "."))
}

fn write_local(directory: &Path, name: &str, content: Option<&[u8]>) -> io::Result<()> {
    let path = directory.join(name);
    match content {
        Some(content) => write_whole(&path, content),
        None => match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the engine does not answer")
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a shared file is malformed")
}
