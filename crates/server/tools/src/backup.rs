//! `quelea backup`: copies the journals of a data directory, also while a broker runs on it.
//!
//! A running broker is asked, through the socket in its data directory, to pin its journals: it
//! then neither removes nor reuses a file, and says how much of each belongs to the backup. What it
//! goes on writing comes behind that. Without a broker the directory is locked instead.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Lines, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;

use crate::log_tool;
use base::complain;
use config::TOKEN_FILE;
use data::MARK_FILE;
use data::control;
use data::{
    DataDir, DataDirError, JournalFiles, MAYBE_FILES, NAMES_FILE, SMALL_FILES, STREAMS_DIRECTORY,
    StreamFile, sync_entry, write_whole,
};

/// Copies a data directory, even while a broker uses it. To restore, start a broker on the copy.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BackupArgs {
    /// The data directory.
    dir: PathBuf,
    /// The directory to create. It must not exist, or be empty.
    target: PathBuf,
}

/// Runs the tool. Exit codes: 0 the copy is whole and was checked, 1 there is none.
pub fn run(args: &BackupArgs) -> ExitCode {
    match backup(&args.dir, &args.target) {
        Ok(text) => {
            base::print(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// One file of the backup.
pub(crate) struct Piece {
    pub(crate) shard: u16,
    pub(crate) content: Content,
}

pub(crate) enum Content {
    /// `bytes` of the segment; the rest is not part of it.
    Segment {
        segment: u32,
        bytes: u64,
    },
    Manifest(Vec<u8>),
    /// How far the local copy of a cluster's node is: with it a node can start on the backup.
    Mark(Vec<u8>),
    /// The front of a file of a stream. It is at least as long as the pinned journals say.
    Stream(StreamFile),
}

/// What keeps the files in place while they are copied.
pub(crate) enum Source {
    /// Nobody else has the directory.
    Locked(DataDir),
    /// A broker pins its journals until it hears that we are done.
    Pinned { stream: UnixStream, lines: Lines<BufReader<UnixStream>> },
}

pub(crate) fn backup(dir: &Path, target: &Path) -> anyhow::Result<String> {
    let began = Instant::now();
    std::fs::metadata(dir).with_context(|| dir.display().to_string())?;
    let partial = partial_of(target)?;
    let broker = match DataDir::open(dir) {
        Ok(data) => Ok(data),
        Err(DataDirError::Locked(_)) => Err(connect(dir)?),
        Err(error) => return Err(error.into()),
    };
    let copy = begin_copy(&partial)?;
    let (source, pieces) = match broker {
        Ok(data) => lock(data)?,
        Err(stream) => pin(dir, stream)?,
    };
    let bytes = copy_all(dir, &copy, &pieces)?;
    source.unpin()?;
    let mut report = String::new();
    if !log_tool::check_data(&copy, &mut report)? {
        bail!("the copy in {} is damaged:\n{report}", partial.display());
    }
    std::fs::rename(&partial, target).with_context(|| target.display().to_string())?;
    sync_entry(target).with_context(|| target.display().to_string())?;
    let (files, secs) = (pieces.len(), began.elapsed().as_secs_f64());
    let target = target.display();
    Ok(format!("{report}{target}: {files} files, {bytes} bytes, {secs:.1} s\n"))
}

/// Where the copy is made until it is whole: beside the target, so that it can be renamed.
pub fn partial_of(target: &Path) -> anyhow::Result<PathBuf> {
    let entries = match std::fs::read_dir(target) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error).with_context(|| target.display().to_string()),
    };
    if entries {
        bail!("{} must be empty, or a directory that does not exist yet", target.display());
    }
    let name = target.file_name().context("the target must have a name")?;
    let mut name = name.to_owned();
    name.push(".partial");
    Ok(target.with_file_name(name))
}

/// The copy is a data directory, and locked as such. What a backup that did not end has left there
/// goes; what no backup has made stays, and is in the way.
pub fn begin_copy(partial: &Path) -> anyhow::Result<DataDir> {
    let copy = match DataDir::open(partial) {
        Err(DataDirError::Locked(path)) => bail!(
            "another backup is writing to {}: wait until it is done, or use another target",
            path.display()
        ),
        opened => opened?,
    };
    clear(partial).with_context(|| partial.display().to_string())?;
    Ok(copy)
}

fn clear(partial: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(partial)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name == STREAMS_DIRECTORY {
            std::fs::remove_dir_all(partial.join(&*name))?;
        } else if name.starts_with("shard-") {
            clear_journal(&partial.join(&*name))?;
        } else if small_files().any(|own| own == name) {
            std::fs::remove_file(partial.join(&*name))?;
        } else if name != "lock" {
            return Err(io::Error::other(format!(
                "'{name}' in the target was not created by a \
            backup: remove it"
            )));
        }
    }
    Ok(())
}

fn clear_journal(path: &Path) -> io::Result<()> {
    let own = |name: &str| name == NAMES_FILE || name == MARK_FILE;
    for entry in std::fs::read_dir(path)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name.ends_with(".log") || name.starts_with("manifest") || own(&name) {
            std::fs::remove_file(path.join(&*name))?;
        }
    }
    std::fs::remove_dir(path)
}

pub(crate) fn lock(data: DataDir) -> anyhow::Result<(Source, Vec<Piece>)> {
    let mut pieces = Vec::new();
    for shard in data.shards()? {
        let files = data.journal_files(shard)?;
        let list = files.list().with_context(|| files.path().display().to_string())?;
        let segments = list
            .into_iter()
            .map(|file| Content::Segment { segment: file.number, bytes: file.bytes });
        let manifest = files.manifest().with_context(|| files.path().display().to_string())?;
        let mark = match std::fs::read(files.path().join(MARK_FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            read => Some(read.with_context(|| files.path().display().to_string())?),
        };
        let all = segments.chain(manifest.map(Content::Manifest)).chain(mark.map(Content::Mark));
        pieces.extend(all.map(|content| Piece { shard, content }));
    }
    add_streams(data.path(), &mut pieces)?;
    Ok((Source::Locked(data), pieces))
}

/// The files of streams as they are now. Behind the journals, which say how far they reach.
fn add_streams(dir: &Path, pieces: &mut Vec<Piece>) -> anyhow::Result<()> {
    let files = StreamFile::all_in(dir).with_context(|| dir.display().to_string())?;
    pieces.extend(files.into_iter().map(|file| Piece { shard: 0, content: Content::Stream(file) }));
    Ok(())
}

/// Finds the broker that has the directory.
pub(crate) fn connect(dir: &Path) -> anyhow::Result<UnixStream> {
    let path = dir.join(control::SOCKET);
    UnixStream::connect(&path).with_context(|| {
        format!(
            "{} is in use, and {} does not answer: is it a broker? Stop it, and try again",
            dir.display(),
            path.display()
        )
    })
}

/// Asks it to keep its files as they are.
pub(crate) fn pin(dir: &Path, stream: UnixStream) -> anyhow::Result<(Source, Vec<Piece>)> {
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    writeln!(&stream, "{}", control::PIN)?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let mut pieces = Vec::new();
    loop {
        let line = lines.next().transpose();
        let line = line.context("the broker did not answer: is another backup running?")?;
        let line = line.context("the broker closed the connection; see its log")?;
        match line.split(' ').collect::<Vec<_>>()[..] {
            [control::PINNED] => break,
            [control::FILE, shard, segment, bytes] => {
                let (segment, bytes) = (segment.parse()?, bytes.parse()?);
                let content = Content::Segment { segment, bytes };
                pieces.push(Piece { shard: shard.parse()?, content });
            }
            [control::MANIFEST, shard, content] => {
                let content =
                    control::from_hex(content).context("the manifest is not UTF-8 text")?;
                pieces.push(Piece { shard: shard.parse()?, content: Content::Manifest(content) });
            }
            [control::MARK, shard, content] => {
                let content = control::from_hex(content).context("the mark is not UTF-8 text")?;
                pieces.push(Piece { shard: shard.parse()?, content: Content::Mark(content) });
            }
            _ => bail!("unknown answer of the broker: '{line}'"),
        }
    }
    add_streams(dir, &mut pieces)?;
    Ok((Source::Pinned { stream, lines }, pieces))
}

impl Source {
    /// Gives the files free, and makes sure that they were pinned until now.
    pub(crate) fn unpin(self) -> anyhow::Result<()> {
        match self {
            Self::Locked(data) => drop(data),
            Self::Pinned { stream, mut lines } => {
                let done = writeln!(&stream, "{}", control::DONE);
                let answer = done.ok().and_then(|()| lines.next()).transpose()?;
                if answer.as_deref() != Some(control::UNPINNED) {
                    bail!(
                        "the broker stopped or released the pinned logs before the copy was \
                    complete"
                    );
                }
            }
        }
        Ok(())
    }
}

fn copy_all(from: &Path, to: &DataDir, pieces: &[Piece]) -> anyhow::Result<u64> {
    // Also those of journals that have no file yet: their number is the number of shards.
    let last = pieces.iter().map(|piece| piece.shard).chain(shards_in(from)?).max();
    let shards = 0..last.map_or(0, |last| last + 1);
    let journals: Vec<JournalFiles> =
        shards.map(|shard| to.journal_files(shard)).collect::<Result<_, _>>()?;
    let mut bytes = 0;
    for Piece { shard, content } in pieces {
        let journal = &journals[usize::from(*shard)];
        match content {
            Content::Segment { segment, bytes: count } => {
                let target = journal.segment_path(*segment);
                let name = target.file_name().unwrap_or_default();
                let source = DataDir::journal_path_in(from, *shard).join(name);
                bytes += copy_one(&source, &target, *count, Rest::Zeros)
                    .with_context(|| format!("{} to {}", source.display(), target.display()))?;
            }
            Content::Stream(file) => {
                let (source, target) = (file.path_in(from), file.path_in(to.path()));
                let fail = || format!("{} to {}", source.display(), target.display());
                if let Some(directory) = target.parent() {
                    data::make_private(directory).with_context(fail)?;
                }
                bytes +=
                    copy_one(&source, &target, file.bytes, Rest::Nothing).with_context(fail)?;
                sync_entry(&target).with_context(fail)?;
            }
            Content::Mark(content) => {
                let path = journal.path().join(MARK_FILE);
                write_whole(&path, content).with_context(|| path.display().to_string())?;
            }
            Content::Manifest(content) => {
                let mut content = content.clone();
                content.resize(storage::MANIFEST_BYTES, 0);
                journal
                    .replace_manifest(&content)
                    .with_context(|| journal.manifest_path().display().to_string())?;
            }
        }
    }
    for journal in &journals {
        File::open(journal.path())?.sync_all()?;
    }
    for name in small_files() {
        copy_file(from, to.path(), &name)?;
    }
    if !journals.is_empty() {
        copy_file(&DataDir::journal_path_in(from, 0), &to.journal_path(0), NAMES_FILE)?;
    }
    Ok(bytes)
}

/// What a broker on the copy has to know beside the journals: how the clock was set, who is banned,
/// what namespaces are called, and its secrets. Copied behind the journals: none speaks of a
/// namespace that has no name yet.
pub(crate) fn small_files() -> impl Iterator<Item = String> {
    let all = SMALL_FILES.into_iter().chain(MAYBE_FILES).chain([NAMES_FILE, TOKEN_FILE]);
    all.map(str::to_owned)
}

fn copy_file(from: &Path, to: &Path, name: &str) -> anyhow::Result<()> {
    let (source, target) = (from.join(name), to.join(name));
    let fail = || format!("{} to {}", source.display(), target.display());
    let text = match std::fs::read(&source) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        read => read.with_context(fail)?,
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target)?;
    file.write_all(&text).with_context(fail)?;
    file.sync_all().and_then(|()| sync_entry(&target)).with_context(fail)
}

pub(crate) fn shards_in(dir: &Path) -> anyhow::Result<Vec<u16>> {
    DataDir::shards_in(dir).with_context(|| dir.display().to_string())
}

/// What is behind the copied bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// Up to the size of the original.
    Zeros,
    Nothing,
}

/// Copies the first `bytes`.
fn copy_one(from: &Path, to: &Path, bytes: u64, rest: Rest) -> io::Result<u64> {
    let source = File::open(from)?;
    let size = source.metadata()?.len();
    let mut target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    let copied = io::copy(&mut source.take(bytes), &mut target)?;
    if copied < bytes {
        return Err(io::Error::other(format!("expected {bytes} bytes, got {copied}")));
    }
    if rest == Rest::Zeros {
        target.set_len(size)?;
    }
    target.sync_all()?;
    Ok(copied)
}

/// How long the broker may take for each of its answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

const EXAMPLES: &str = "\
Examples:
  quelea backup /var/lib/quelea /backups/quelea-monday
  quelea serve --data /backups/quelea-monday             restore: start on the copy, or a copy of it";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_tool::tests::directory;

    const CLOCK_FILE: &str = "clock";

    fn segment(dir: &Path) -> PathBuf {
        dir.join("shard-000/0000000001.log")
    }

    #[test]
    fn a_directory_that_nobody_uses_is_copied_whole_and_checked() {
        let dir = directory();
        let target = dir.path().join("copy");
        let report = backup(dir.path(), &target).unwrap();
        assert!(report.contains("shard 0: ok") && report.contains("5 records"), "{report}");
        let read = |dir: &Path| std::fs::read(segment(dir)).unwrap();
        assert_eq!(read(dir.path()), read(&target));
        let manifest = |dir: &Path| std::fs::read(dir.join("shard-000/manifest")).unwrap();
        assert_eq!(manifest(dir.path()), manifest(&target));
        assert!(!target.join(CLOCK_FILE).exists(), "no broker wrote one");
        assert!(!partial_of(&dir.path().join("other")).unwrap().exists());
        let again = backup(dir.path(), &target).unwrap_err().to_string();
        assert!(again.contains("must be empty"), "{again}");
    }

    #[test]
    fn only_what_belongs_to_the_backup_is_copied() {
        let dir = directory();
        let copy = dir.path().join("copy");
        let whole = std::fs::read(segment(dir.path())).unwrap();
        let source = segment(dir.path());
        assert_eq!(copy_one(&source, &copy, 5000, Rest::Zeros).unwrap(), 5000);
        let copied = std::fs::read(&copy).unwrap();
        assert_eq!(copied.len(), whole.len());
        assert_eq!(copied[..5000], whole[..5000]);
        assert!(copied[5000..].iter().all(|byte| *byte == 0));
        std::fs::remove_file(&copy).unwrap();
        let missing = copy_one(&source, &copy, 1 << 40, Rest::Zeros).unwrap_err().to_string();
        assert!(missing.contains("expected"), "{missing}");
        std::fs::remove_file(&copy).unwrap();
        copy_one(&source, &copy, 5000, Rest::Nothing).unwrap();
        assert_eq!(std::fs::read(&copy).unwrap(), whole[..5000]);
    }

    #[test]
    fn a_copy_that_is_not_in_order_is_not_taken_for_a_backup() {
        let dir = directory();
        let mut bytes = std::fs::read(segment(dir.path())).unwrap();
        let at = bytes.windows(3).position(|window| window == b"abc").unwrap();
        bytes[at] ^= 1;
        std::fs::write(segment(dir.path()), bytes).unwrap();
        let target = dir.path().join("copy");
        let report = backup(dir.path(), &target).unwrap_err().to_string();
        assert!(report.contains("is damaged") && report.contains("REFUSED"), "{report}");
        assert!(!target.exists());
        assert!(dir.path().join("copy.partial").exists(), "to be looked at");
    }

    #[test]
    fn how_the_clock_was_set_is_part_of_a_backup() {
        let dir = directory();
        let target = dir.path().join("copy");
        std::fs::write(dir.path().join(CLOCK_FILE), b"ahead_ms = 1\nat_ms = 2\n").unwrap();
        backup(dir.path(), &target).unwrap();
        let read = std::fs::read(target.join(CLOCK_FILE)).unwrap();
        assert_eq!(read, b"ahead_ms = 1\nat_ms = 2\n");
    }

    #[test]
    fn what_a_dead_backup_left_is_replaced() {
        let dir = directory();
        let target = dir.path().join("copy");
        let left = dir.path().join("copy.partial/shard-007");
        std::fs::create_dir_all(&left).unwrap();
        std::fs::write(left.join("0000000009.log"), b"half of it").unwrap();
        std::fs::write(left.join("manifest.new"), b"half of it").unwrap();
        std::fs::write(dir.path().join("copy.partial").join(CLOCK_FILE), b"half of it").unwrap();
        backup(dir.path(), &target).unwrap();
        assert_eq!(DataDir::shards_in(&target).unwrap(), [0]);
        assert!(!target.join(CLOCK_FILE).exists());
    }

    #[test]
    fn what_no_backup_has_made_is_not_removed() {
        let dir = directory();
        let target = dir.path().join("copy");
        for name in ["copy.partial/diary", "copy.partial/shard-000/diary"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, b"dear").unwrap();
            backup(dir.path(), &target).unwrap_err();
            assert_eq!(std::fs::read(&path).unwrap(), b"dear");
            std::fs::remove_dir_all(dir.path().join("copy.partial")).unwrap();
        }
    }

    #[test]
    fn what_a_living_backup_makes_is_left_alone() {
        let dir = directory();
        let target = dir.path().join("copy");
        let living = begin_copy(&partial_of(&target).unwrap()).unwrap();
        let report = backup(dir.path(), &target).unwrap_err().to_string();
        assert!(report.contains("another backup is writing"), "{report}");
        drop(living);
        backup(dir.path(), &target).unwrap();
    }

    #[test]
    fn a_directory_in_use_by_no_broker_is_refused() {
        let dir = directory();
        let _lock = DataDir::open(dir.path()).unwrap();
        let report = backup(dir.path(), &dir.path().join("copy")).unwrap_err();
        assert!(format!("{report:#}").contains("in use"), "{report:#}");
        assert!(!dir.path().join("copy.partial").exists());
    }
}
