//! A file of the operator's is replaced: whole or not at all, and only if it still is what was
//! read.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;

/// Which file it was, and in which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    file: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Why a file was not replaced. It is as it was, or as somebody else has made it.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    #[error("another program has changed it meanwhile")]
    Changed,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The text of a file, and what it is then to be replaced as.
///
/// # Errors
///
/// As of [`fs::read_to_string`].
pub(super) fn read(path: &Path) -> io::Result<(String, Seen)> {
    let file = File::open(path)?;
    // Of the open file, ahead of its text: a change in between is found as one.
    let seen = Seen::of(&file.metadata()?);
    Ok((io::read_to_string(file)?, seen))
}

/// Replaces a file: who reads it meanwhile sees the old one or the new one, also after a crash.
/// Owner and mode of the old one stay; a new one is its owner's alone. `seen`: as [`read`] has
/// found it; none: there was none, or it does not matter what it was.
///
/// # Errors
///
/// It is not as it was read any more, may not be written, or there is no space.
pub(super) fn replace(path: &Path, text: &str, seen: Option<Seen>) -> Result<(), ReplaceError> {
    // Through a symbolic link: the link stays, what it points to is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let new = path.with_file_name(name);
    // Of a process that had this number and crashed: in a container all have the same.
    let _ = fs::remove_file(&new);
    let written = write_new(&new, &path, text).and_then(|()| {
        if seen.is_some_and(|seen| fs::metadata(&path).ok().map(|it| Seen::of(&it)) != Some(seen)) {
            return Err(ReplaceError::Changed);
        }
        fs::rename(&new, &path)?;
        sync_directory(&path)?;
        Ok(())
    });
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&new);
    }
    written
}

impl Seen {
    fn of(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

fn write_new(new: &Path, old: &Path, text: &str) -> Result<(), ReplaceError> {
    let metadata = fs::metadata(old).ok();
    if metadata.is_some() {
        // A directory that may be written is not enough: who made the file read-only meant it.
        OpenOptions::new().write(true).open(old)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    file.write_all(text.as_bytes())?;
    if let Some(metadata) = metadata {
        let own = file.metadata()?;
        if (own.uid(), own.gid()) != (metadata.uid(), metadata.gid()) {
            // Only root may give a file away. The next reader may be another user.
            chown(new, Some(metadata.uid()), Some(metadata.gid()))?;
        }
        fs::set_permissions(new, fs::Permissions::from_mode(metadata.mode() & 0o7777))?;
    }
    file.sync_all()?;
    Ok(())
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or_else(|| ".".as_ref()))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_mode_through_a_link_and_after_a_crash() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let left_over = directory.path().join(format!("file.new-{}", std::process::id()));
        fs::write(&left_over, "of a crash").unwrap();
        let (text, seen) = read(&link).unwrap();
        assert_eq!(text, "old");
        replace(&link, "new", Some(seen)).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && !left_over.exists());
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o640);
    }

    #[test]
    fn a_file_that_has_changed_since_it_was_read_stays() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "old").unwrap();
        let (_, seen) = read(&file).unwrap();
        replace(&file, "other", None).unwrap();
        let error = replace(&file, "new", Some(seen)).unwrap_err();
        assert!(matches!(error, ReplaceError::Changed));
        assert_eq!(fs::read_to_string(&file).unwrap(), "other");
        fs::remove_file(&file).unwrap();
        assert!(matches!(replace(&file, "new", Some(seen)), Err(ReplaceError::Changed)));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left over");
    }
}
