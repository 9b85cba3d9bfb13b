//! The stamps of a data directory's parts: all its journals, and the small files beside them.
//!
//! A small file begins with a line that says which directory and which start wrote it, with a
//! checksum of the whole file. One that is damaged, older, foreign or gone is refused, as a journal
//! is.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use storage::{Manifest, Misfit, Stamp, Together, checksum};

use super::{
    DEFINITIONS_FILE, DataDir, DataDirError, JournalFiles, NUMBERS_FILE, is_full, numbers,
    write_whole,
};
use crate::Replica;

/// The small files that every data directory has once a broker has served from it, beside the one
/// of the names, of which there are two.
pub const SMALL_FILES: [&str; 2] = ["bans", "clock"];
/// What namespaces are called: the file in the directory is a copy of the one in the first shard.
pub const NAMES_FILE: &str = "namespaces";
/// Made anew where it is missing: nothing depends on it but itself.
pub const SECRET_FILE: &str = "auth.secret";

/// Small files that need not be there.
pub const MAYBE_FILES: [&str; 3] = [SECRET_FILE, NUMBERS_FILE, DEFINITIONS_FILE];

/// The small files that a cluster replicates, by their paths in the data directory.
pub const CLUSTERED_FILES: [&str; 7] = [
    "bans",
    "clock",
    NAMES_FILE,
    "shard-000/namespaces",
    SECRET_FILE,
    NUMBERS_FILE,
    DEFINITIONS_FILE,
];

/// Reads and writes the small files of a data directory.
#[derive(Clone, Debug, Default)]
pub struct Stamps {
    together: Together,
    /// `None`: the journals are not used. A file keeps the stamp that it has.
    own: Option<Stamp>,
    /// In a cluster: where files are replicated, and the directory that they are in. Neither
    /// journals nor files have stamps there: what belongs together is known by the cluster's id.
    replica: Option<(Arc<dyn Replica>, PathBuf)>,
}

/// A part of a data directory that does not belong to the others.
#[derive(Clone, Debug)]
pub struct Fault {
    pub part: Part,
    pub path: PathBuf,
    misfit: Option<Misfit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Journal(u16),
    Small,
    Names,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.misfit {
            Some(misfit) => write!(to, "{}: {misfit}", self.path.display()),
            None => write!(to, "{}: {DAMAGED}", self.path.display()),
        }
    }
}

impl Fault {
    /// Nothing of it can be used in this directory.
    pub fn is_foreign(&self) -> bool {
        self.misfit == Some(Misfit::Foreign)
    }
}

/// What a small file says.
enum Content {
    Missing,
    /// It has no stamp, as the program of before wrote it.
    Bare(Vec<u8>),
    Stamped(Stamp, Vec<u8>),
    Damaged,
}

impl Stamps {
    /// Files are replicated before they are written.
    pub fn clustered(replica: Arc<dyn Replica>, directory: &Path) -> Self {
        Self { replica: Some((replica, directory.to_owned())), ..Self::default() }
    }

    /// The identity of the directory, which stays the same while it exists. `None`: no journal is
    /// used, or a cluster has the files.
    pub fn directory(&self) -> Option<[u8; 16]> {
        self.own.map(|own| own.directory)
    }

    /// A broker has served from it before.
    pub fn are_of_a_used_directory(&self) -> bool {
        self.together.has_served()
    }

    /// The content of a small file. `None`: there is none, nor has to be.
    ///
    /// # Errors
    ///
    /// It cannot be read, is damaged, or is not of this directory and time.
    pub fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        let found = content_of(path)?;
        if let Err(misfit) = self.check(&found) {
            let fault = Fault { part: Part::Small, path: path.to_owned(), misfit };
            return Err(io::Error::new(io::ErrorKind::InvalidData, fault.to_string()));
        }
        Ok(match found {
            Content::Bare(content) | Content::Stamped(_, content) => Some(content),
            Content::Missing | Content::Damaged => None,
        })
    }

    /// The same, of a file of text.
    ///
    /// # Errors
    ///
    /// It is no text either.
    pub fn read_text(&self, path: &Path) -> io::Result<Option<String>> {
        let text = self.read(path)?.map(String::from_utf8).transpose();
        text.map_err(|_| {
            let text = format!("{}: {DAMAGED}", path.display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        })
    }

    /// Writes a small file: the old content or the new one, whatever happens.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let stamp = match (self.own, content_of(path)) {
            (Some(own), _) => own,
            (None, Ok(Content::Stamped(stamp, _))) => stamp,
            (None, _) => NO_START,
        };
        let bytes = stamped(stamp, content);
        if let Some((member, directory)) = &self.replica
            && let Some(name) = path.strip_prefix(directory).ok().and_then(Path::to_str)
        {
            member.put_file(name, &bytes)?;
            // The file is a copy then: a full disk takes nothing away.
            return write_whole(path, &bytes).or_else(|error| match is_full(&error) {
                true => Ok(()),
                false => Err(error),
            });
        }
        write_whole(path, &bytes)
    }

    /// Gives all small files of the directory the stamp of this start. What they say stays. One
    /// that is missing, where it may be, is made without content.
    ///
    /// # Errors
    ///
    /// When one cannot be written, or read. After [`is_full`] all are written for which there is
    /// space, and the rest can be written later.
    pub fn renew(&self, directory: &Path) -> io::Result<()> {
        let Some(own) = self.own else { return Ok(()) };
        let mut files = Vec::new();
        for path in SMALL_FILES.map(|name| directory.join(name)) {
            let content = self.read(&path)?.unwrap_or_default();
            files.push((path, content));
        }
        let names = names_in(directory);
        let content = match self.read(&names[0]) {
            Ok(Some(content)) => content,
            Ok(None) | Err(_) => self.read(&names[1])?.unwrap_or_default(),
        };
        files.extend(names.map(|path| (path, content.clone())));
        for path in MAYBE_FILES.map(|name| directory.join(name)) {
            let found = self.read_if_there(&path)?;
            files.extend(found.map(|content| (path, content)));
        }
        let mut full = Ok(());
        for (path, content) in files {
            if std::fs::read(&path).is_ok_and(|found| found == stamped(own, &content)) {
                continue;
            }
            match self.write(&path, &content) {
                Err(error) if is_full(&error) => full = Err(error),
                written => written?,
            }
        }
        full
    }

    /// The content of a small file that need not be there. `None`: it is not.
    ///
    /// # Errors
    ///
    /// As with [`Stamps::read`].
    pub fn read_if_there(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        match path.try_exists()? {
            true => self.read(path),
            false => Ok(None),
        }
    }

    fn fault(&self, part: Part, path: &Path, found: &Content) -> Option<Fault> {
        let misfit = self.check(found).err()?;
        Some(Fault { part, path: path.to_owned(), misfit })
    }

    /// `Err(None)`: it is damaged.
    fn check(&self, found: &Content) -> Result<(), Option<Misfit>> {
        let stamp = match found {
            Content::Missing => None,
            Content::Stamped(stamp, _) if self.own.is_some_and(|own| is_same(*stamp, own)) => {
                return Ok(());
            }
            Content::Stamped(stamp, _) => Some(*stamp).filter(|stamp| stamp.start > 0),
            Content::Bare(_) if !self.together.has_served() => return Ok(()),
            Content::Bare(_) | Content::Damaged => return Err(None),
        };
        self.together.check(stamp).map_err(Some)
    }
}

impl DataDir {
    /// What of the directory does not belong to the rest. Changes nothing.
    pub fn look_together(&self) -> Result<(Together, Vec<Fault>), DataDirError> {
        let shards = self.shards()?;
        let journals = shards.iter().map(|shard| self.stamp_of(*shard));
        let journals: Vec<_> = journals.collect::<Result<_, _>>()?;
        let small = SMALL_FILES.map(|name| self.path().join(name));
        let names = names_in(self.path());
        let read = |path: &PathBuf| content_of(path).map_err(|error| self.fail(error));
        let mut contents = Vec::new();
        for path in small.iter().chain(&names) {
            contents.push(read(path)?);
        }
        let votes: Vec<_> = contents.iter().map(stamp_in).collect();
        let known: Vec<_> = journals.iter().map(|found| found.flatten()).collect();
        let together = Together::of(&known, &votes);
        let stamps = Stamps { together, ..Stamps::default() };
        let mut faults = Vec::new();
        for (shard, found) in shards.iter().zip(&journals) {
            // What is wrong with others is found when they are read.
            let Some(stamp) = found else { continue };
            if let Err(misfit) = together.check(*stamp) {
                let (part, path) = (Part::Journal(*shard), self.journal_path(*shard));
                faults.push(Fault { part, path, misfit: Some(misfit) });
            }
        }
        for (path, content) in small.iter().zip(&contents) {
            faults.extend(stamps.fault(Part::Small, path, content));
        }
        let (of_first, of_copy) = (&contents[small.len()], &contents[small.len() + 1]);
        if stamps.check(of_first).is_err() {
            faults.extend(stamps.fault(Part::Names, &names[1], of_copy));
        }
        for path in MAYBE_FILES.map(|name| self.path().join(name)) {
            match read(&path)? {
                Content::Missing if !self.needs(&path)? => {}
                content => faults.extend(stamps.fault(Part::Small, &path, &content)),
            }
        }
        Ok((together, faults))
    }

    /// A small file is missing that there was, as others say.
    fn needs(&self, path: &Path) -> Result<bool, DataDirError> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        numbers::need(self.path(), name).map_err(|error| self.fail(error))
    }

    /// What the manifest of a journal has for a stamp. `None`: the journal has a fault of another
    /// kind.
    fn stamp_of(&self, shard: u16) -> Result<Option<Option<Stamp>>, DataDirError> {
        let files = self.journal_files(shard)?;
        let fail = |error| DataDirError::Io { path: files.path().to_owned(), error };
        match files.manifest().map_err(fail)? {
            Some(content) => Ok(Manifest::read(&content).ok().map(|found| found.stamp)),
            None if files.list().map_err(fail)?.is_empty() => Ok(Some(None)),
            None => Ok(None),
        }
    }

    /// A start begins: all journals get its unfinished stamp.
    ///
    /// # Errors
    ///
    /// When a part of the directory does not belong to the others. Nothing was changed then.
    pub fn begin_start(&self, shards: u16) -> Result<(Stamps, Stamp), DataDirError> {
        let (together, faults) = self.look_together()?;
        if !faults.is_empty() {
            return Err(DataDirError::Apart(faults.iter().map(Fault::to_string).collect()));
        }
        let token = u64::from_ne_bytes(base::random());
        let next = together.next(base::random(), token);
        for shard in 0..shards {
            let files = self.journal_files(shard)?;
            let fail = |error| DataDirError::Io { path: files.path().to_owned(), error };
            let read = files.manifest().map_err(fail)?.map(|content| Manifest::read(&content));
            let known = match read {
                None if files.list().map_err(fail)?.is_empty() => {
                    let id = base::random();
                    Manifest::of_nothing(storage::Identity { id, shard, shards })
                }
                Some(Ok(known)) => known,
                // Whether it can be used is checked when it is read; it has its stamp at the end.
                None | Some(Err(_)) => continue,
            };
            if known.stamp != Some(next) {
                files.put_manifest(&known.stamped(next)).map_err(fail)?;
            }
        }
        Ok((Stamps { together, own: Some(next), replica: None }, next))
    }
}

impl DataDir {
    /// The small files as a cluster replicates them: without the stamp of this directory.
    pub fn files_for_cluster(&self) -> io::Result<Vec<(&'static str, Vec<u8>)>> {
        let mut all = Vec::new();
        for name in CLUSTERED_FILES {
            match content_of(&self.path().join(name))? {
                Content::Bare(content) | Content::Stamped(_, content) => {
                    all.push((name, stamped(NO_START, &content)));
                }
                // One that matters was found when the directory was looked at as a whole.
                Content::Missing | Content::Damaged => {}
            }
        }
        Ok(all)
    }

    /// Makes a directory of what a cluster replicates: journals are here already, files are as
    /// [`DataDir::files_for_cluster`] gives them. All get one finished stamp, as if a broker had
    /// served from it.
    pub fn stamp_as_served(
        &self,
        shards: u16,
        files: &[(&'static str, Vec<u8>)],
    ) -> Result<(), DataDirError> {
        let token = u64::from_ne_bytes(base::random());
        let directory = base::random();
        let stamp = Stamp { directory, start: 1, token, is_finished: true };
        for shard in 0..shards {
            let journal = self.journal_files(shard)?;
            let fail = |error| DataDirError::Io { path: journal.path().to_owned(), error };
            let known = match journal.manifest().map_err(fail)? {
                Some(content) => Manifest::read(&content).map_err(|refusal| {
                    DataDirError::Refused { path: journal.path().into(), refusal }
                })?,
                None => {
                    let id = base::random();
                    Manifest::of_nothing(storage::Identity { id, shard, shards })
                }
            };
            journal.put_manifest(&known.stamped(stamp)).map_err(fail)?;
        }
        for name in CLUSTERED_FILES {
            let found = files.iter().find(|(known, _)| *known == name);
            if found.is_none() && MAYBE_FILES.contains(&name) {
                continue;
            }
            let content = found.map_or(&[][..], |(_, content)| without_stamp(content));
            let path = self.path().join(name);
            write_whole(&path, &stamped(stamp, content)).map_err(|error| self.fail(error))?;
        }
        Ok(())
    }
}

fn without_stamp(bytes: &[u8]) -> &[u8] {
    if !bytes.starts_with(HEAD.as_bytes()) {
        return bytes;
    }
    let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
    &bytes[end..]
}

/// Sets a damaged small file aside, and puts one in its place that says nothing.
pub fn replace_small(path: &Path, stamp: Stamp) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".damaged");
    match std::fs::rename(path, aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    write_whole(path, &stamped(stamp, b""))
}

/// Gives a journal that was mended the stamp of the others.
pub fn stamp_journal(files: &JournalFiles, stamp: Stamp) -> io::Result<()> {
    let content = files.manifest()?.unwrap_or_default();
    let found = Manifest::read(&content).map_err(io::Error::other)?;
    files.put_manifest(&found.stamped(stamp))
}

/// The file of names that counts, and its copy.
fn names_in(directory: &Path) -> [PathBuf; 2] {
    [DataDir::journal_path_in(directory, 0).join(NAMES_FILE), directory.join(NAMES_FILE)]
}

fn content_of(path: &Path) -> io::Result<Content> {
    let bytes = match std::fs::read(path) {
        Err(error) if is_absence(&error) => return Ok(Content::Missing),
        read => read.map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?,
    };
    if bytes.is_empty() {
        return Ok(Content::Damaged);
    }
    if !bytes.starts_with(HEAD.as_bytes()) {
        return Ok(Content::Bare(bytes));
    }
    let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
    let (line, content) = bytes.split_at(end);
    let stamp = std::str::from_utf8(line).ok().and_then(stamp_of_line);
    Ok(match stamp {
        Some(stamp) if stamped(stamp, content) == bytes => Content::Stamped(stamp, content.into()),
        _ => Content::Damaged,
    })
}

/// Neither it nor its directory is there.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn stamp_in(content: &Content) -> Option<Stamp> {
    match content {
        Content::Stamped(stamp, _) if stamp.start > 0 => Some(*stamp),
        _ => None,
    }
}

fn is_same(one: Stamp, other: Stamp) -> bool {
    (one.directory, one.start, one.token) == (other.directory, other.start, other.token)
}

fn stamped(stamp: Stamp, content: &[u8]) -> Vec<u8> {
    let directory = u128::from_be_bytes(stamp.directory);
    let front = format!("{HEAD}{directory:032x} {} {:016x} ", stamp.start, stamp.token);
    let mut bytes = front.clone().into_bytes();
    bytes.extend_from_slice(content);
    let mut bytes = format!("{front}{:08x}\n", checksum(&bytes)).into_bytes();
    bytes.extend_from_slice(content);
    bytes
}

fn stamp_of_line(line: &str) -> Option<Stamp> {
    let mut words = line.strip_prefix(HEAD)?.split(' ');
    let directory = u128::from_str_radix(words.next()?, 16).ok()?.to_be_bytes();
    let start = words.next()?.parse().ok()?;
    let token = u64::from_str_radix(words.next()?, 16).ok()?;
    Some(Stamp { directory, start, token, is_finished: false })
}

/// Its first line goes on with directory, start, token and checksum.
const HEAD: &str = "# quelea 2 ";
/// Of a file that was written without any journal.
const NO_START: Stamp = Stamp { directory: [0; 16], start: 0, token: 0, is_finished: false };
const DAMAGED: &str = "it is damaged: put the right file back, restore all files of a backup, or run `quelea log repair`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_that_was_changed_anywhere_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clock");
        let stamps = Stamps::default();
        assert_eq!(stamps.read(&path).unwrap(), None);
        stamps.write(&path, b"one\ntwo\n").unwrap();
        assert_eq!(stamps.read(&path).unwrap().unwrap(), b"one\ntwo\n");
        let whole = std::fs::read(&path).unwrap();
        for at in HEAD.len()..whole.len() {
            let mut turned = whole.clone();
            turned[at] ^= 4;
            for wrong in [&turned[..], &whole[..at], &[]] {
                std::fs::write(&path, wrong).unwrap();
                let error = stamps.read(&path).unwrap_err().to_string();
                assert!(
                    error.contains("clock: it is damaged") && error.contains("restore"),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn a_start_stamps_all_small_files_and_changes_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        let (stamps, first) = data.begin_start(1).unwrap();
        stamps.renew(dir.path()).unwrap();
        let names = names_in(dir.path());
        let [bans, clock] = SMALL_FILES.map(|name| dir.path().join(name));
        for path in names.iter().chain([&bans, &clock]) {
            assert_eq!(stamps.read(path).unwrap().unwrap(), b"", "{}", path.display());
        }
        assert!(!dir.path().join(SECRET_FILE).exists(), "it is made by whoever needs it");
        stamps.write(&bans, b"bans").unwrap();
        names.iter().for_each(|path| stamps.write(path, b"names").unwrap());
        stamps.write(&dir.path().join(SECRET_FILE), b"secret").unwrap();
        for shard in 0..1 {
            let finished = Stamp { is_finished: true, ..first };
            stamp_journal(&data.journal_files(shard).unwrap(), finished).unwrap();
        }
        std::fs::write(&names[0], b"").unwrap();
        let (stamps, second) = data.begin_start(1).unwrap();
        assert_eq!(second.start, 2);
        stamps.renew(dir.path()).unwrap();
        assert_eq!(stamps.read(&bans).unwrap().unwrap(), b"bans");
        assert_eq!(stamps.read(&dir.path().join(SECRET_FILE)).unwrap().unwrap(), b"secret");
        for path in names {
            assert_eq!(stamps.read(&path).unwrap().unwrap(), b"names");
            let written = std::fs::metadata(&path).unwrap().modified().unwrap();
            stamps.renew(dir.path()).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), written);
        }
    }

    #[test]
    fn a_file_of_the_program_before_is_read_until_a_start_has_stamped_it() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        let path = dir.path().join("clock");
        std::fs::write(&path, b"one\n").unwrap();
        let (stamps, stamp) = data.begin_start(2).unwrap();
        assert_eq!(stamps.read(&path).unwrap().unwrap(), b"one\n");
        let finished = Stamp { is_finished: true, ..stamp };
        let stamps = Stamps {
            together: Together::of(&[Some(finished)], &[]),
            own: Some(stamp),
            replica: None,
        };
        stamps.read(&path).unwrap_err();
        stamps.write(&path, b"two\n").unwrap();
        assert_eq!(stamps.read(&path).unwrap().unwrap(), b"two\n");
    }
}
