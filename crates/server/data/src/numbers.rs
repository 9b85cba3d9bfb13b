//! The numbers of streams and consumers: a small file that says which name has which.
//!
//! Journals and directories know numbers only. A number is given once: a name that was removed and
//! comes again gets another one, so nothing of the former stream counts for the new one. A number
//! must be in the file before it is in a journal.
//!
//! The file also says which consumers an operator has paused, and whether an API has defined some.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::SplitAsciiWhitespace;

use crate::Stamps;

/// The file in a data directory. It is made with the first stream.
pub const NUMBERS_FILE: &str = "stream-numbers";
/// The file with streams, targets and rules that an API has defined. It is made with the first one.
pub const DEFINITIONS_FILE: &str = "stream-definitions";
/// The directory with the files of streams, one directory for each number.
pub const STREAMS_DIRECTORY: &str = "streams";

/// Which name has which number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    streams: BTreeMap<Box<str>, NumberedStream>,
    consumers: BTreeMap<Box<str>, u32>,
    /// Numbers of consumers that an operator has paused.
    paused: BTreeSet<u32>,
    /// Numbers of streams and consumers whose definitions are about to be gone.
    leaving_streams: BTreeSet<u32>,
    leaving_consumers: BTreeSet<u32>,
    /// There is a file of definitions: without it streams would be deleted.
    has_definitions: bool,
    /// Numbers below were given.
    next_stream: u32,
    next_consumer: u32,
}

/// A stream with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberedStream {
    pub number: u32,
    /// Random: files of another stream with this number are not taken for its own.
    pub identity: [u8; 16],
}

/// What [`Numbers::set`] has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumberChanges {
    pub new_streams: Vec<u32>,
    pub removed_streams: Vec<u32>,
    pub new_consumers: Vec<u32>,
    pub removed_consumers: Vec<u32>,
}

/// Why numbers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NumbersError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error(
        "{path}: line {line} is wrong: put the right file back, or restore all files of a backup",
        path = path.display()
    )]
    Line { path: PathBuf, line: usize },
    #[error(
        "{path}: has version {found}, and this program knows version {VERSION}: use a newer \
         program",
        path = path.display()
    )]
    Version { path: PathBuf, found: u32 },
    #[error(
        "{path} is missing, and there are files of streams: put it back, or restore all files of a \
         backup",
        path = path.display()
    )]
    Missing { path: PathBuf },
    #[error("all numbers of streams or consumers have been given")]
    Exhausted,
}

impl Numbers {
    /// Reads the file of a data directory. Without one no number was given.
    ///
    /// # Errors
    ///
    /// The file is damaged, of another start, of a newer program, or missing although there are
    /// files of streams.
    pub fn read(stamps: &Stamps, directory: &Path) -> Result<Self, NumbersError> {
        let path = directory.join(NUMBERS_FILE);
        let found = stamps.read_if_there(&path)?;
        let highest = highest_directory(directory)?;
        let mut numbers = match found {
            None if highest.is_some() => return Err(NumbersError::Missing { path }),
            None => Self::default(),
            Some(content) => Self::parse(&content, &path)?,
        };
        // A file without content is one that a repair has made.
        numbers.skip_to(highest.map_or(0, |highest| highest.saturating_add(1)), 0);
        Ok(numbers)
    }

    /// Writes the file: the old content or the new one, whatever happens.
    ///
    /// # Errors
    ///
    /// When it cannot be written. Then no number of these may be used.
    pub fn write(&self, stamps: &Stamps, directory: &Path) -> io::Result<()> {
        stamps.write(&directory.join(NUMBERS_FILE), self.to_string().as_bytes())
    }

    /// These are the names from now on. A name that was not there gets a new number. What is to be
    /// used has to be written first.
    ///
    /// # Errors
    ///
    /// There is no number left. Then nothing has changed.
    pub fn set<'n>(
        &mut self,
        streams: impl IntoIterator<Item = &'n str>,
        consumers: impl IntoIterator<Item = &'n str>,
    ) -> Result<NumberChanges, NumbersError> {
        let mut changes = NumberChanges::default();
        let mut next = Self {
            next_stream: self.next_stream.max(FIRST),
            next_consumer: self.next_consumer.max(FIRST),
            has_definitions: self.has_definitions,
            ..Self::default()
        };
        for name in streams {
            let stream = match self.streams.get(name) {
                Some(known) => *known,
                None if next.streams.contains_key(name) => continue,
                None => {
                    let number = take(&mut next.next_stream)?;
                    changes.new_streams.push(number);
                    NumberedStream { number, identity: base::random() }
                }
            };
            next.streams.insert(name.into(), stream);
        }
        for name in consumers {
            let number = match self.consumers.get(name) {
                Some(known) => *known,
                None if next.consumers.contains_key(name) => continue,
                None => {
                    let number = take(&mut next.next_consumer)?;
                    changes.new_consumers.push(number);
                    number
                }
            };
            next.consumers.insert(name.into(), number);
        }
        let gone = self.streams.iter().filter(|(name, _)| !next.streams.contains_key(*name));
        changes.removed_streams = gone.map(|(_, stream)| stream.number).collect();
        let gone = self.consumers.iter().filter(|(name, _)| !next.consumers.contains_key(*name));
        changes.removed_consumers = gone.map(|(_, number)| *number).collect();
        let paused = next.consumers.values().filter(|number| self.paused.contains(number));
        next.paused = paused.copied().collect();
        *self = next;
        Ok(changes)
    }

    /// Numbers below these are not given: a journal has them.
    pub fn skip_to(&mut self, stream: u32, consumer: u32) {
        self.next_stream = self.next_stream.max(stream);
        self.next_consumer = self.next_consumer.max(consumer);
    }

    pub fn stream(&self, name: &str) -> Option<NumberedStream> {
        self.streams.get(name).copied()
    }

    pub fn consumer(&self, name: &str) -> Option<u32> {
        self.consumers.get(name).copied()
    }

    /// Whether an operator has paused this consumer.
    pub fn is_paused(&self, consumer: u32) -> bool {
        self.paused.contains(&consumer)
    }

    /// Notes that an operator pauses or resumes a consumer.
    pub fn set_paused(&mut self, consumer: u32, is_paused: bool) {
        match is_paused {
            true => self.paused.insert(consumer),
            false => self.paused.remove(&consumer),
        };
    }

    /// Notes which names `next` does not have. Their definitions go behind these numbers: a start
    /// in between finds numbers without definitions, and knows why.
    pub fn note_leaving(&mut self, next: &Self) {
        let streams = self.streams.iter().filter(|(name, _)| !next.streams.contains_key(*name));
        self.leaving_streams = streams.map(|(_, stream)| stream.number).collect();
        let consumers = self.consumers.iter();
        let consumers = consumers.filter(|(name, _)| !next.consumers.contains_key(*name));
        self.leaving_consumers = consumers.map(|(_, number)| *number).collect();
    }

    /// Whether the definition of this stream may be gone.
    pub fn is_leaving_stream(&self, number: u32) -> bool {
        self.leaving_streams.contains(&number)
    }

    /// The same of a consumer.
    pub fn is_leaving_consumer(&self, number: u32) -> bool {
        self.leaving_consumers.contains(&number)
    }

    /// Whether there is a file of definitions.
    pub const fn has_definitions(&self) -> bool {
        self.has_definitions
    }

    /// Notes that there is a file of definitions from now on.
    pub const fn note_definitions(&mut self) {
        self.has_definitions = true;
    }

    /// In the order of their names.
    pub fn streams(&self) -> impl Iterator<Item = (&str, NumberedStream)> {
        self.streams.iter().map(|(name, stream)| (&**name, *stream))
    }

    /// In the order of their names.
    pub fn consumers(&self) -> impl Iterator<Item = (&str, u32)> {
        self.consumers.iter().map(|(name, number)| (&**name, *number))
    }

    fn parse(content: &[u8], path: &Path) -> Result<Self, NumbersError> {
        let wrong = |line| NumbersError::Line { path: path.to_owned(), line };
        let text = std::str::from_utf8(content).map_err(|_| wrong(1))?;
        let mut numbers = Self::default();
        let mut lines = text.lines().enumerate();
        let Some((_, first)) = lines.next() else { return Ok(numbers) };
        let version = first.strip_prefix("version ").and_then(|text| text.parse().ok());
        match version {
            Some(VERSION) => {}
            Some(found) if found > VERSION => {
                return Err(NumbersError::Version { path: path.to_owned(), found });
            }
            _ => return Err(wrong(1)),
        }
        for (index, line) in lines {
            let mut words = line.split_ascii_whitespace();
            numbers.add(&mut words).filter(|()| words.next().is_none()).ok_or(wrong(index + 1))?;
        }
        let is_below = |next: u32| move |number: u32| (FIRST..next).contains(&number);
        let streams = numbers.streams.values().map(|stream| stream.number);
        let is_sound = are_different(streams.clone())
            && are_different(numbers.consumers.values().copied())
            && streams.clone().all(is_below(numbers.next_stream))
            && numbers.consumers.values().copied().all(is_below(numbers.next_consumer))
            && numbers.leaving_streams.iter().all(|own| streams.clone().any(|it| it == *own))
            && numbers
                .leaving_consumers
                .iter()
                .all(|own| numbers.consumers.values().any(|it| it == own))
            && numbers.paused.iter().all(|own| numbers.consumers.values().any(|it| it == own));
        is_sound.then_some(numbers).ok_or_else(|| wrong(1))
    }

    fn add(&mut self, words: &mut SplitAsciiWhitespace<'_>) -> Option<()> {
        let mut word = || words.next();
        match word()? {
            "next" => {
                (self.next_stream, self.next_consumer) =
                    (word()?.parse().ok()?, word()?.parse().ok()?);
                Some(())
            }
            "stream" => {
                let number = word()?.parse().ok()?;
                let identity = word().filter(|text| text.len() == 32)?;
                let identity = u128::from_str_radix(identity, 16).ok()?.to_be_bytes();
                let stream = NumberedStream { number, identity };
                self.streams.insert(word()?.into(), stream).is_none().then_some(())
            }
            "consumer" => {
                let number = word()?.parse().ok()?;
                self.consumers.insert(word()?.into(), number).is_none().then_some(())
            }
            DEFINITIONS => (!std::mem::replace(&mut self.has_definitions, true)).then_some(()),
            "leaving-stream" => self.leaving_streams.insert(word()?.parse().ok()?).then_some(()),
            "leaving-consumer" => {
                self.leaving_consumers.insert(word()?.parse().ok()?).then_some(())
            }
            "paused" => self.paused.insert(word()?.parse().ok()?).then_some(()),
            _ => None,
        }
    }
}

/// The content of the file.
impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "version {VERSION}")?;
        writeln!(f, "next {} {}", self.next_stream.max(FIRST), self.next_consumer.max(FIRST))?;
        if self.has_definitions {
            writeln!(f, "{DEFINITIONS}")?;
        }
        for (name, NumberedStream { number, identity }) in &self.streams {
            writeln!(f, "stream {number} {:032x} {name}", u128::from_be_bytes(*identity))?;
        }
        for (name, number) in &self.consumers {
            writeln!(f, "consumer {number} {name}")?;
        }
        for number in &self.leaving_streams {
            writeln!(f, "leaving-stream {number}")?;
        }
        for number in &self.leaving_consumers {
            writeln!(f, "leaving-consumer {number}")?;
        }
        self.paused.iter().try_for_each(|number| writeln!(f, "paused {number}"))
    }
}

fn take(next: &mut u32) -> Result<u32, NumbersError> {
    let number = *next;
    *next = number.checked_add(1).ok_or(NumbersError::Exhausted)?;
    Ok(number)
}

fn are_different(mut numbers: impl Iterator<Item = u32>) -> bool {
    let mut seen = BTreeSet::new();
    numbers.all(|number| seen.insert(number))
}

/// Whether streams need the small file of this name, which is missing: a start without it would
/// delete streams.
pub(crate) fn need(directory: &Path, name: &str) -> io::Result<bool> {
    match name {
        NUMBERS_FILE => Ok(highest_directory(directory)?.is_some()),
        DEFINITIONS_FILE => match std::fs::read_to_string(directory.join(NUMBERS_FILE)) {
            Ok(text) => Ok(text.lines().any(|line| line == DEFINITIONS)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            // What is wrong with it is found as well.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(false),
            Err(error) => Err(error),
        },
        _ => Ok(false),
    }
}

/// The line that says that there is a file of definitions.
const DEFINITIONS: &str = "definitions";

/// The highest number of a directory of streams.
fn highest_directory(directory: &Path) -> io::Result<Option<u32>> {
    let path = directory.join(STREAMS_DIRECTORY);
    let entries = match std::fs::read_dir(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    let mut highest = None;
    for entry in entries {
        let name = entry?.file_name();
        highest = highest.max(name.to_str().and_then(|name| name.parse().ok()));
    }
    Ok(highest)
}

const VERSION: u32 = 1;
const FIRST: u32 = 1;

#[cfg(test)]
mod tests {
    use storage::Stamp;

    use super::*;
    use crate::{DataDir, stamp_journal};

    fn set(numbers: &mut Numbers, streams: &[&str], consumers: &[&str]) -> NumberChanges {
        numbers.set(streams.iter().copied(), consumers.iter().copied()).expect("there are numbers")
    }

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().expect("a directory")
    }

    #[test]
    fn a_name_keeps_its_number_and_a_number_has_one_name() {
        let mut numbers = Numbers::default();
        let changes = set(&mut numbers, &["a", "b", "a"], &["r", "s"]);
        assert_eq!((&*changes.new_streams, &*changes.new_consumers), (&[1, 2][..], &[1, 2][..]));
        let first = numbers.stream("a").expect("it is there");
        assert_ne!(first.identity, numbers.stream("b").expect("it is there").identity);
        let changes = set(&mut numbers, &["b", "c"], &["s"]);
        assert_eq!((&*changes.new_streams, &*changes.removed_streams), (&[3][..], &[1][..]));
        assert_eq!((&*changes.new_consumers, &*changes.removed_consumers), (&[][..], &[1][..]));
        let changes = set(&mut numbers, &["a", "b", "c"], &["r", "s"]);
        assert_eq!((&*changes.new_streams, &*changes.new_consumers), (&[4][..], &[3][..]));
        let again = numbers.stream("a").expect("it is there");
        assert_eq!(again.number, 4);
        assert_ne!(again.identity, first.identity);
        assert_eq!((numbers.consumer("r"), numbers.consumer("s")), (Some(3), Some(2)));
        assert_eq!(set(&mut numbers, &["a", "b", "c"], &["r", "s"]), NumberChanges::default());
        assert_eq!(numbers.streams().map(|(_, it)| it.number).collect::<Vec<_>>(), [4, 2, 3]);
        assert_eq!(numbers.consumers().collect::<Vec<_>>(), [("r", 3), ("s", 2)]);
    }

    #[test]
    fn a_paused_consumer_stays_paused_until_it_is_removed() {
        let (dir, stamps) = (directory(), Stamps::default());
        let mut numbers = Numbers::default();
        set(&mut numbers, &["a"], &["r", "s"]);
        numbers.set_paused(1, true);
        numbers.set_paused(2, true);
        numbers.set_paused(2, false);
        numbers.note_definitions();
        numbers.write(&stamps, dir.path()).expect("it can be written");
        let mut numbers = Numbers::read(&stamps, dir.path()).expect("it is valid");
        assert!(numbers.is_paused(1) && !numbers.is_paused(2) && numbers.has_definitions());
        set(&mut numbers, &["a"], &["r"]);
        assert!(numbers.is_paused(1) && numbers.has_definitions());
        set(&mut numbers, &["a"], &["s"]);
        set(&mut numbers, &["a"], &["r"]);
        assert_eq!(numbers.consumer("r").map(|number| numbers.is_paused(number)), Some(false));
    }

    #[test]
    fn a_number_says_that_its_definition_may_be_gone() {
        let (dir, stamps) = (directory(), Stamps::default());
        let mut numbers = Numbers::default();
        set(&mut numbers, &["a", "b"], &["r", "s"]);
        let mut next = numbers.clone();
        set(&mut next, &["b"], &["r"]);
        numbers.note_leaving(&next);
        numbers.write(&stamps, dir.path()).expect("it can be written");
        let mut found = Numbers::read(&stamps, dir.path()).expect("it is valid");
        assert_eq!(found, numbers);
        assert!(found.is_leaving_stream(1) && !found.is_leaving_stream(2));
        assert!(!found.is_leaving_consumer(1) && found.is_leaving_consumer(2));
        // Whether they have gone is known then.
        set(&mut found, &["a", "b"], &["r"]);
        assert!(!found.is_leaving_stream(1) && !found.is_leaving_consumer(2));
    }

    #[test]
    fn what_was_written_is_read() {
        let (dir, stamps) = (directory(), Stamps::default());
        let mut numbers = Numbers::read(&stamps, dir.path()).expect("there is none");
        assert_eq!(numbers, Numbers::default());
        set(&mut numbers, &["a", "b"], &["r"]);
        set(&mut numbers, &["b"], &[]);
        numbers.write(&stamps, dir.path()).expect("it can be written");
        assert_eq!(Numbers::read(&stamps, dir.path()).expect("it is valid"), numbers);
        // A crash ahead of the file: the next start gives the same numbers, which nobody has used.
        let mut lost = numbers.clone();
        set(&mut lost, &["a", "b"], &["r"]);
        let mut again = Numbers::read(&stamps, dir.path()).expect("it is valid");
        set(&mut again, &["a", "b"], &["r"]);
        assert_eq!(again.stream("a").map(|it| it.number), Some(3));
        assert_eq!(again.consumer("r"), Some(2), "1 was given and removed");
        // A crash behind it: the names have their numbers.
        again.write(&stamps, dir.path()).expect("it can be written");
        let mut later = Numbers::read(&stamps, dir.path()).expect("it is valid");
        assert_eq!(set(&mut later, &["a", "b"], &["r"]), NumberChanges::default());
        assert_eq!(later, again);
    }

    #[test]
    fn numbers_that_a_journal_or_a_directory_has_are_not_given() {
        let (dir, stamps) = (directory(), Stamps::default());
        let mut numbers = Numbers::default();
        numbers.skip_to(7, 5);
        set(&mut numbers, &["a"], &["r"]);
        let number = |numbers: &Numbers, name| numbers.stream(name).map(|it| it.number);
        assert_eq!((number(&numbers, "a"), numbers.consumer("r")), (Some(7), Some(5)));
        std::fs::create_dir_all(dir.path().join("streams/7")).expect("a directory");
        std::fs::create_dir_all(dir.path().join("streams/12")).expect("a directory");
        let error = Numbers::read(&stamps, dir.path()).expect_err("the file is missing");
        assert!(error.to_string().contains("stream-numbers is missing"), "{error}");
        // As a repair leaves it.
        stamps.write(&dir.path().join(NUMBERS_FILE), b"").expect("it can be written");
        let mut numbers = Numbers::read(&stamps, dir.path()).expect("it says nothing");
        set(&mut numbers, &["a"], &[]);
        assert_eq!(number(&numbers, "a"), Some(13));
        let mut full = Numbers::default();
        full.skip_to(u32::MAX, 0);
        let before = full.clone();
        assert!(matches!(full.set(["a"], []), Err(NumbersError::Exhausted)));
        assert_eq!(full, before);
    }

    #[test]
    fn a_file_of_another_start_is_refused() {
        let dir = directory();
        let data = DataDir::open(dir.path()).expect("a directory");
        let start = || {
            let (stamps, stamp) = data.begin_start(1).expect("it belongs together");
            stamps.renew(dir.path()).expect("it can be written");
            let files = data.journal_files(0).expect("its files");
            stamp_journal(&files, Stamp { is_finished: true, ..stamp }).expect("it is written");
            stamps
        };
        let stamps = start();
        let mut numbers = Numbers::read(&stamps, dir.path()).expect("there is none");
        set(&mut numbers, &["a"], &["r"]);
        numbers.write(&stamps, dir.path()).expect("it can be written");
        let path = dir.path().join(NUMBERS_FILE);
        let old = std::fs::read(&path).expect("it is there");
        let stamps = start();
        assert_eq!(Numbers::read(&stamps, dir.path()).expect("it has this start"), numbers);
        std::fs::write(&path, old).expect("it can be written");
        let error = data.begin_start(1).expect_err("it is older").to_string();
        assert!(error.contains(NUMBERS_FILE), "{error}");
    }

    /// Before the start has changed anything: so the right file can be put back.
    #[test]
    fn files_of_streams_that_are_missing_refuse_the_start() {
        let dir = directory();
        let data = DataDir::open(dir.path()).expect("a directory");
        let start = || {
            let (stamps, stamp) = data.begin_start(1)?;
            stamps.renew(dir.path()).expect("it can be written");
            let files = data.journal_files(0).expect("its files");
            stamp_journal(&files, Stamp { is_finished: true, ..stamp }).expect("it is written");
            Ok::<_, crate::DataDirError>(stamps)
        };
        let stamps = start().expect("it is new");
        let mut numbers = Numbers::default();
        set(&mut numbers, &["a"], &[]);
        numbers.note_definitions();
        let definitions = dir.path().join(DEFINITIONS_FILE);
        stamps.write(&definitions, b"").expect("it can be written");
        numbers.write(&stamps, dir.path()).expect("it can be written");
        std::fs::create_dir_all(dir.path().join("streams/1")).expect("a directory");
        for path in [dir.path().join(NUMBERS_FILE), definitions] {
            start().expect("all is there");
            let content = std::fs::read(&path).expect("it is there");
            std::fs::remove_file(&path).expect("it is there");
            let error = start().expect_err("it is missing").to_string();
            assert!(error.contains(&*path.to_string_lossy()), "{error}");
            assert!(error.contains("missing"), "{error}");
            std::fs::write(&path, content).expect("it can be written");
        }
        start().expect("all is there again");
    }

    #[test]
    fn a_file_that_is_wrong_is_refused() {
        let (dir, stamps) = (directory(), Stamps::default());
        let path = dir.path().join(NUMBERS_FILE);
        let mut numbers = Numbers::default();
        set(&mut numbers, &["a", "b"], &["r"]);
        let whole = numbers.to_string();
        let read = |content: &str| {
            stamps.write(&path, content.as_bytes()).expect("it can be written");
            Numbers::read(&stamps, dir.path()).map_err(|error| error.to_string())
        };
        assert_eq!(read(&whole), Ok(numbers));
        for (from, to, expected) in [
            ("version 1", "version 2", "has version 2, and this program knows version 1"),
            ("version 1", "version 0", "line 1 is wrong"),
            ("version 1", "x", "line 1 is wrong"),
            ("next 3 2", "next 3", "line 2 is wrong"),
            ("next 3 2", "next 2 2", "line 1 is wrong"),
            ("stream 2", "stream 1", "line 1 is wrong"),
            ("consumer 1 r", "consumer 1", "line 5 is wrong"),
            ("consumer 1 r", "consumer 1 r r", "line 5 is wrong"),
            ("consumer 1 r", "future 1 r", "line 5 is wrong"),
            (" b\n", " a\n", "line 4 is wrong"),
            ("consumer 1 r", "paused 1", "line 1 is wrong"),
        ] {
            assert!(whole.contains(from), "{from} in {whole}");
            let error = read(&whole.replacen(from, to, 1)).expect_err(to);
            assert!(error.contains(expected), "{expected}: {error}");
        }
        numbers_of_damage(&stamps, dir.path(), &path);
    }

    /// The stamp has a checksum.
    fn numbers_of_damage(stamps: &Stamps, directory: &Path, path: &Path) {
        let mut bytes = std::fs::read(path).expect("it is there");
        *bytes.last_mut().expect("it is not empty") ^= 4;
        std::fs::write(path, bytes).expect("it can be written");
        let error = Numbers::read(stamps, directory).expect_err("it is damaged").to_string();
        assert!(error.contains("it is damaged"), "{error}");
    }
}
