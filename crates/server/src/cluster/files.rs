//! The small files of a data directory (bans, namespaces and the like), kept in the key-value store
//! of the engine.
//!
//! Only the active node writes them. A node that becomes active reads all and writes them back with
//! its epoch: from then on a former active node's compare-and-set fails.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::engine::{Engine, Put};
use super::import::{IMPORT_KEY, refuse_begun};
use crate::disk::{CLUSTERED_FILES, write_whole};

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

/// Compare-and-set tries of one file.
const TRIES_MAX: usize = 8;

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
            let (_, content) = split(&value)?;
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
        let here = |error: io::Error| NotTaken::Here(format!("the file '{name}': {error}"));
        for _ in 0..TRIES_MAX {
            let found = self.engine.get(&key(name)).await.map_err(NotTaken::Engine)?;
            let (revision, value) = found.unwrap_or_default();
            let (epoch, content) = split(&value).map_err(here)?;
            if epoch > self.epoch {
                return Err(here(fenced(epoch)));
            }
            let own = join(self.epoch, content);
            let put = self.engine.put_if(&key(name), revision, own).await;
            if let Put::Written(revision) = put.map_err(NotTaken::Engine)? {
                self.revisions.insert(name, revision);
                return Ok(content.map(<[u8]>::to_vec));
            }
        }
        let error = format!("the file '{name}' changes all the time");
        Err(NotTaken::Engine(io::Error::other(error)))
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
            return Err(io::Error::other(format!("'{name}' is no file of a cluster")));
        };
        for _ in 0..TRIES_MAX {
            let revision = self.revisions.get(name).copied().unwrap_or(0);
            let value = join(self.epoch, Some(content));
            if let Put::Written(revision) = self.engine.put_if(&key(name), revision, value).await? {
                self.revisions.insert(name, revision);
                return Ok(());
            }
            // An earlier write of unknown fate may have been stored; or another node is active.
            let (revision, value) = self.engine.get(&key(name)).await?.unwrap_or_default();
            let (epoch, _) = split(&value)?;
            if epoch > self.epoch {
                return Err(fenced(epoch));
            }
            self.revisions.insert(name, revision);
        }
        Err(io::Error::other(format!("the file '{name}' cannot be replicated")))
    }
}

/// A value is a line with the epoch, and the content. Without content the file is not there.
pub(crate) fn join(epoch: u64, content: Option<&[u8]>) -> Vec<u8> {
    let mut value = format!("epoch {epoch}").into_bytes();
    if let Some(content) = content {
        value.push(b'\n');
        value.extend_from_slice(content);
    }
    value
}

fn split(value: &[u8]) -> io::Result<(u64, Option<&[u8]>)> {
    if value.is_empty() {
        return Ok((0, None));
    }
    let end = value.iter().position(|byte| *byte == b'\n');
    let line = std::str::from_utf8(&value[..end.unwrap_or(value.len())]).ok();
    let epoch = line.and_then(|line| line.strip_prefix("epoch ")?.parse().ok());
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "a small file is malformed");
    Ok((epoch.ok_or_else(malformed)?, end.map(|end| &value[end + 1..])))
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

fn fenced(epoch: u64) -> io::Error {
    io::Error::other(format!("another node is active, with epoch {epoch}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_survives_the_way_there_and_back() {
        for content in [None, Some(&b""[..]), Some(b"a\nb")] {
            assert_eq!(split(&join(7, content)).unwrap(), (7, content));
        }
        assert_eq!(split(b"").unwrap(), (0, None));
        assert!(split(b"era 7\nx").is_err());
    }
}
