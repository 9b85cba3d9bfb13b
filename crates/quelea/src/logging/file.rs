//! A log file of bounded size: when it is full, it and those before it move on by one number, and
//! the oldest goes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::queue::count;

/// How many files of which size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    /// 0: no limit.
    pub(super) bytes_max: u64,
    /// Besides the one that is written.
    pub(super) kept: u16,
}

pub(super) struct LogFile {
    place: Place,
    file: File,
    bytes: u64,
}

impl LogFile {
    /// Opens it to append to, or makes it, for this user only.
    pub(super) fn open(place: Place) -> io::Result<Self> {
        let file =
            OpenOptions::new().create(true).append(true).mode(FILE_MODE).open(&place.path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { place, file, bytes })
    }

    /// Returns how many lines could not be written.
    pub(super) fn write_lines(&mut self, mut lines: &[u8]) -> u64 {
        let mut unwritten = 0;
        while !lines.is_empty() {
            let (now, later) = lines.split_at(self.fitting(lines));
            // A directory in which nothing can be renamed any more must not make a file without
            // end, so what would go beyond the limit is lost.
            let written = match now.is_empty() {
                true => self.rotate(),
                false => self.file.write_all(now).map(|()| self.bytes += now.len() as u64),
            };
            if written.is_err() {
                unwritten += count(lines);
                break;
            }
            lines = later;
        }
        unwritten
    }

    /// How many bytes of whole lines there is room for. An empty file takes any line.
    fn fitting(&self, lines: &[u8]) -> usize {
        let line_end = |part: &[u8]| part.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
        let room = self.place.bytes_max.saturating_sub(self.bytes);
        if self.place.bytes_max == 0 || room >= lines.len() as u64 {
            return lines.len();
        }
        match line_end(&lines[..room as usize]) {
            Some(end) => end,
            None if self.bytes > 0 => 0,
            None => lines.iter().position(|byte| *byte == b'\n').map_or(lines.len(), |at| at + 1),
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        let path = &self.place.path;
        for number in (1..self.place.kept).rev() {
            rename(&numbered(path, number), &numbered(path, number + 1))?;
        }
        match self.place.kept {
            0 => fs::remove_file(path).or_else(absent_is_fine)?,
            _ => rename(path, &numbered(path, 1))?,
        }
        *self = Self::open(self.place.clone())?;
        Ok(())
    }
}

/// Can the file be opened to append to, or made? Makes nothing, and leaves all as it is.
pub(super) fn check(path: &Path) -> io::Result<()> {
    match OpenOptions::new().append(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let directory = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            if !directory.is_dir() {
                return Err(error);
            }
            let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
            Ok(rustix::fs::access(directory, access)?)
        }
        opened => opened.map(drop),
    }
}

fn numbered(path: &Path, number: u16) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to).or_else(absent_is_fine)
}

fn absent_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Client ids, user names and topics are other people's business.
const FILE_MODE: u32 = 0o600;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn texts(directory: &Path) -> Vec<(String, String)> {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let mut texts: Vec<_> = entries
            .map(|path| {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, fs::read_to_string(path).unwrap())
            })
            .collect();
        texts.sort();
        texts
    }

    fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_full_file_moves_on_and_the_oldest_goes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let place = Place { path: path.clone(), bytes_max: 6, kept: 2 };
        let mut file = LogFile::open(place.clone()).unwrap();
        assert_eq!(file.write_lines(b"1\n2\n3\n4\n"), 0);
        assert_eq!(texts(directory.path()), pairs(&[("log", "4\n"), ("log.1", "1\n2\n3\n")]));
        assert_eq!(file.write_lines(b"a long line\n5\n"), 0);
        let expected = [("log", "5\n"), ("log.1", "a long line\n"), ("log.2", "4\n")];
        assert_eq!(texts(directory.path()), pairs(&expected));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(file);
        // What is there counts.
        let mut again = LogFile::open(place).unwrap();
        assert_eq!(again.write_lines(b"66666\n"), 0);
        assert_eq!(fs::read_to_string(&path).unwrap(), "66666\n");
        assert_eq!(texts(directory.path()).len(), 3);
    }

    #[test]
    fn without_kept_files_or_limits_there_is_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut alone = LogFile::open(Place { path: path.clone(), bytes_max: 2, kept: 0 }).unwrap();
        assert_eq!(alone.write_lines(b"1\n2\n"), 0);
        assert_eq!(texts(directory.path()), pairs(&[("log", "2\n")]));
        let mut endless = LogFile::open(Place { path, bytes_max: 0, kept: 2 }).unwrap();
        assert_eq!(endless.write_lines(&b"3\n".repeat(100)), 0);
        assert_eq!(texts(directory.path()).len(), 1);
    }

    #[test]
    fn a_file_that_cannot_move_on_does_not_grow_and_lines_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        // A directory that is not empty stands where the full file would go.
        fs::create_dir_all(directory.path().join("log.1/inside")).unwrap();
        let mut file = LogFile::open(Place { path: path.clone(), bytes_max: 4, kept: 1 }).unwrap();
        assert_eq!(file.write_lines(b"1\n2\n3\n4\n"), 2);
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n2\n");
        fs::remove_dir_all(directory.path().join("log.1")).unwrap();
        assert_eq!(file.write_lines(b"5\n"), 0);
        assert_eq!(fs::read_to_string(&path).unwrap(), "5\n");
    }

    #[test]
    fn a_check_makes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        assert!(check(&path).is_ok() && !path.exists());
        assert!(check(&directory.path().join("none/log")).is_err());
        assert!(check(directory.path()).is_err());
        fs::write(&path, "old\n").unwrap();
        assert!(check(&path).is_ok());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old\n");
    }
}
