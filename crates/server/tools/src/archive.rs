//! A backup as one stream: the data directory of a running broker as a tar archive.
//!
//! Unpacked, it is what `quelea backup` makes, without the token of the API. The unused end of a
//! segment is a hole of the archive (GNU tar's sparse files): it is as large as what was written.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use config::TOKEN_FILE;
use data::{DataDir, MARK_FILE, NAMES_FILE, StreamFile};
use tar::{Builder, EntryType, Header};

use crate::backup::{Content, Piece, Source, connect, pin, shards_in, small_files};

/// The journals of a running broker, which stay as they are until this is dropped.
pub struct PinnedData {
    dir: PathBuf,
    source: Source,
    pieces: Vec<Piece>,
}

impl PinnedData {
    /// Asks the broker on this data directory to keep its journals.
    ///
    /// # Errors
    ///
    /// No broker answers within 20 s: none is there, or another backup runs.
    pub fn pin(dir: &Path) -> anyhow::Result<Self> {
        let (source, pieces) = pin(dir, connect(dir)?)?;
        Ok(Self { dir: dir.to_owned(), source, pieces })
    }

    /// Writes all of them, and the small files beside them. Returns the bytes of content.
    ///
    /// # Errors
    ///
    /// What was written is no backup then, and has no end mark.
    pub fn write_archive(self, out: impl Write) -> anyhow::Result<u64> {
        let Self { dir, source, pieces } = self;
        let mtime = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let tar = Builder::new(Valve { out, is_shut: false });
        let mut archive = Archive { tar, mtime, bytes: 0 };
        let filled = archive.fill(&dir, &pieces).and_then(|()| source.unpin());
        // A dropped builder writes the end mark.
        archive.tar.get_mut().is_shut = filled.is_err();
        filled?;
        archive.tar.into_inner()?.out.flush()?;
        Ok(archive.bytes)
    }
}

struct Archive<W: Write> {
    tar: Builder<Valve<W>>,
    mtime: u64,
    bytes: u64,
}

impl<W: Write> Archive<W> {
    fn fill(&mut self, dir: &Path, pieces: &[Piece]) -> anyhow::Result<()> {
        // Also those of journals that have no file yet: their number is the number of shards.
        for shard in shards_in(dir)? {
            self.put_directory(&journal_name(shard))?;
        }
        for Piece { shard, content } in pieces {
            let journal = journal_name(*shard);
            match content {
                Content::Segment { segment, bytes } => {
                    let name = format!("{journal}/{segment:010}.log");
                    let path = dir.join(&name);
                    let put = self.put_segment(&name, &path, *bytes);
                    put.with_context(|| path.display().to_string())?;
                }
                Content::Manifest(content) => {
                    let mut content = content.clone();
                    content.resize(storage::MANIFEST_BYTES, 0);
                    self.put_file(&format!("{journal}/manifest"), &content)?;
                }
                Content::Stream(file) => self.put_stream(dir, file)?,
                Content::Mark(content) => {
                    self.put_file(&format!("{journal}/{MARK_FILE}"), content)?;
                }
            }
        }
        // Behind the journals: none speaks of a namespace that has no name yet.
        let of_first = format!("{}/{NAMES_FILE}", journal_name(0));
        // Who gets the archive over the API would keep the rights of the token for good.
        let others = small_files().filter(|name| name != TOKEN_FILE);
        for name in others.chain([of_first]) {
            let path = dir.join(&name);
            match std::fs::read(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                read => {
                    let content = read.with_context(|| path.display().to_string())?;
                    self.put_file(&name, &content)?;
                }
            }
        }
        Ok(())
    }

    fn header(&self, name: &str, kind: EntryType, mode: u32, size: u64) -> io::Result<Header> {
        let mut header = Header::new_gnu();
        header.set_path(name)?;
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(self.mtime);
        header.set_size(size);
        Ok(header)
    }

    fn put(&mut self, mut header: Header, content: impl Read) -> io::Result<()> {
        header.set_cksum();
        self.bytes += header.entry_size()?;
        self.tar.append(&header, content)
    }

    fn put_directory(&mut self, name: &str) -> io::Result<()> {
        let header = self.header(&format!("{name}/"), EntryType::Directory, 0o700, 0)?;
        self.put(header, io::empty())
    }

    fn put_file(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let header = self.header(name, EntryType::Regular, 0o600, content.len() as u64)?;
        self.put(header, content)
    }

    fn put_stream(&mut self, dir: &Path, file: &StreamFile) -> anyhow::Result<()> {
        let path = file.path_in(dir);
        let name = file.path_in(Path::new("")).display().to_string();
        let fail = || path.display().to_string();
        let source = File::open(&path).with_context(fail)?;
        let header = self.header(&name, EntryType::Regular, 0o600, file.bytes);
        let content = Exactly { source, left: file.bytes };
        header.and_then(|header| self.put(header, content)).with_context(fail)
    }

    /// The first `bytes` of a segment; behind them its size is a hole.
    fn put_segment(&mut self, name: &str, path: &Path, bytes: u64) -> io::Result<()> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        // What the broker writes behind them belongs to no backup. Data of a sparse file come in
        // whole blocks.
        let stored = bytes.next_multiple_of(BLOCK_BYTES).min(size.max(bytes));
        let content =
            Exactly { source: file, left: bytes }.chain(io::repeat(0).take(stored - bytes));
        if stored >= size {
            let header = self.header(name, EntryType::Regular, 0o600, stored)?;
            return self.put(header, content);
        }
        let mut header = self.header(name, EntryType::GNUSparse, 0o600, stored)?;
        let gnu = header.as_gnu_mut().ok_or_else(|| io::Error::other("no GNU header"))?;
        gnu.set_real_size(size);
        gnu.sparse[0].set_offset(0);
        gnu.sparse[0].set_length(stored);
        // As GNU tar says where a file ends that ends with a hole.
        gnu.sparse[1].set_offset(size);
        gnu.sparse[1].set_length(0);
        self.put(header, content)
    }
}

/// Nothing passes once it is shut.
struct Valve<W> {
    out: W,
    is_shut: bool,
}

impl<W: Write> Write for Valve<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_shut { Err(io::ErrorKind::BrokenPipe.into()) } else { self.out.write(bytes) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// So many bytes; it is an error if there are fewer.
struct Exactly<R> {
    source: R,
    left: u64,
}

impl<R: Read> Read for Exactly<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.by_ref().take(self.left).read(buffer)?;
        if count == 0 && self.left > 0 && !buffer.is_empty() {
            let text = format!("{} bytes are missing", self.left);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        self.left -= count as u64;
        Ok(count)
    }
}

fn journal_name(shard: u16) -> String {
    let path = DataDir::journal_path_in(Path::new(""), shard);
    path.display().to_string()
}

const BLOCK_BYTES: u64 = 512;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::backup::{backup, lock};
    use crate::log_tool::tests::directory;

    /// The archive of a directory that nobody uses; of its first segment only so many bytes.
    fn archive_of(dir: &Path, bytes: Option<u64>) -> Result<Vec<u8>, (anyhow::Error, Vec<u8>)> {
        let (source, mut pieces) = lock(DataDir::open(dir).unwrap()).unwrap();
        let of_segment = pieces.iter_mut().find_map(|piece| match &mut piece.content {
            Content::Segment { bytes, .. } => Some(bytes),
            _ => None,
        });
        if let (Some(of_segment), Some(bytes)) = (of_segment, bytes) {
            *of_segment = bytes;
        }
        let mut out = Vec::new();
        let data = PinnedData { dir: dir.to_owned(), source, pieces };
        match data.write_archive(&mut out) {
            Ok(_) => Ok(out),
            Err(error) => Err((error, out)),
        }
    }

    fn segment(dir: &Path) -> PathBuf {
        dir.join("shard-000/0000000001.log")
    }

    /// Each is one that people have.
    fn unpack(archive: &[u8], into: &Path) -> [PathBuf; 2] {
        let (by_crate, by_system) = (into.join("crate"), into.join("system"));
        tar::Archive::new(archive).unpack(&by_crate).unwrap();
        let file = into.join("backup.tar");
        std::fs::write(&file, archive).unwrap();
        std::fs::create_dir(&by_system).unwrap();
        let run = Command::new("tar").arg("-xf").arg(&file).arg("-C").arg(&by_system).status();
        assert!(run.unwrap().success());
        [by_crate, by_system]
    }

    #[test]
    fn an_archive_unpacks_to_what_a_backup_is() {
        let (dir, out) = (directory(), tempfile::tempdir().unwrap());
        std::fs::write(dir.path().join("clock"), b"ahead_ms = 1\nat_ms = 2\n").unwrap();
        let target = out.path().join("backup");
        backup(dir.path(), &target).unwrap();
        let archive = archive_of(dir.path(), None).unwrap();
        for unpacked in unpack(&archive, out.path()) {
            for name in ["shard-000/0000000001.log", "shard-000/manifest", "clock"] {
                let read = |dir: &Path| std::fs::read(dir.join(name)).unwrap();
                assert_eq!(read(&unpacked), read(&target), "{name}");
            }
            let report = backup(&unpacked, &unpacked.with_extension("again")).unwrap();
            assert!(report.contains("shard 0: ok") && report.contains("5 records"), "{report}");
        }
    }

    #[test]
    fn what_does_not_belong_to_it_is_a_hole() {
        let (dir, out) = (directory(), tempfile::tempdir().unwrap());
        let whole = std::fs::read(segment(dir.path())).unwrap();
        // Not of whole blocks: what the broker has written behind it must not come along.
        let archive = archive_of(dir.path(), Some(4_150)).unwrap();
        assert!(archive.len() < whole.len());
        for unpacked in unpack(&archive, out.path()) {
            let read = std::fs::read(segment(&unpacked)).unwrap();
            assert_eq!(read.len(), whole.len());
            assert_eq!(read[..4_150], whole[..4_150]);
            assert!(read[4_150..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_file_that_became_shorter_ends_the_archive_without_an_end_mark() {
        let dir = directory();
        let size = std::fs::metadata(segment(dir.path())).unwrap().len();
        let (error, written) = archive_of(dir.path(), Some(size + 1)).unwrap_err();
        assert!(format!("{error:#}").contains("bytes are missing"), "{error:#}");
        // The segment is what was written last, and no zeros follow it.
        let segment = std::fs::read(segment(dir.path())).unwrap();
        assert!(written.ends_with(&segment));
    }
}
