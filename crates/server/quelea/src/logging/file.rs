//! The log file. It is rotated from outside, by logrotate for instance, and reopened at SIGHUP.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Opens it to append to, or makes it, for this user only.
pub(super) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(FILE_MODE).open(path)
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

/// Client ids, user names and topics are other people's business.
const FILE_MODE: u32 = 0o600;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_is_private_and_appended_to() {
        use io::Write as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        for line in ["1\n", "2\n"] {
            open(&path).unwrap().write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n2\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
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
