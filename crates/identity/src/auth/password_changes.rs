//! Changes of a password file: whole or not at all, and nothing else in it is touched.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;

use super::passwords::{PasswordFile, check_username, is_of, user_lines, with_user};

/// A change that was not made. The file is as it was.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    #[error("{0}")]
    Username(&'static str),
    #[error("cannot read {path}: {source}")]
    Read { path: String, source: io::Error },
    #[error("cannot write {path}: {source}")]
    Write { path: String, source: io::Error },
    #[error("{path}:{line}: {detail}")]
    Line { path: String, line: usize, detail: &'static str },
    #[error("user '{user}' is not in {path}")]
    Unknown { user: String, path: String },
    #[error("the password is empty; nothing was changed")]
    Empty,
}

/// What a user proves its name with from now on.
pub struct NewSecret<'a> {
    pub password: &'a [u8],
    /// Also by SCRAM-SHA-256.
    pub scram: bool,
}

/// Adds a user, or changes its secret. A file that is not there is made.
///
/// # Errors
///
/// What is wrong with the name, the password or the file.
pub fn put_user(path: &Path, user: &str, new: &NewSecret<'_>) -> Result<(), ChangeError> {
    let text = match read(path) {
        Err(ChangeError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            String::new()
        }
        read => read?,
    };
    put(path, &text, user, new)
}

/// Makes a file with one user in place of what there is.
///
/// # Errors
///
/// As [`put_user`].
pub fn create_file(path: &Path, user: &str, new: &NewSecret<'_>) -> Result<(), ChangeError> {
    put(path, "", user, new)
}

/// Deletes a user.
///
/// # Errors
///
/// There is none of that name, or the file cannot be used.
pub fn delete_user(path: &Path, user: &str) -> Result<(), ChangeError> {
    let text = read(path)?;
    if !text.lines().any(|line| is_of(line, user)) {
        let (user, path) = (user.to_owned(), path.display().to_string());
        return Err(ChangeError::Unknown { user, path });
    }
    replace(path, &with_user(&text, user, &[]))
}

fn put(path: &Path, text: &str, user: &str, new: &NewSecret<'_>) -> Result<(), ChangeError> {
    check_username(user).map_err(ChangeError::Username)?;
    if new.password.is_empty() {
        return Err(ChangeError::Empty);
    }
    replace(path, &with_user(text, user, &user_lines(user, new.password, new.scram)))
}

/// A line that the broker would refuse is reported now rather than at its next start.
fn read(path: &Path) -> Result<String, ChangeError> {
    let shown = || path.display().to_string();
    let text =
        fs::read_to_string(path).map_err(|source| ChangeError::Read { path: shown(), source })?;
    let parsed = PasswordFile::parse(&text);
    parsed.map_err(|(line, detail)| ChangeError::Line { path: shown(), line, detail })?;
    Ok(text)
}

fn replace(path: &Path, text: &str) -> Result<(), ChangeError> {
    let shown = || path.display().to_string();
    write(path, text).map_err(|source| ChangeError::Write { path: shown(), source })
}

/// Whole or not at all: a broker that reloads meanwhile sees the old file or the new one. Owner and
/// mode of an existing file stay; a new one is its owner's alone.
fn write(path: &Path, text: &str) -> io::Result<()> {
    // Through a symbolic link: the link stays, what it points to is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let new = path.with_file_name(name);
    let written = write_new(&new, &path, text).and_then(|()| fs::rename(&new, &path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&new);
    }
    written
}

fn write_new(new: &Path, old: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    file.write_all(text.as_bytes())?;
    if let Ok(metadata) = fs::metadata(old) {
        // Only root may give a file away; for others the file already is their own.
        let _ = chown(new, Some(metadata.uid()), Some(metadata.gid()));
        fs::set_permissions(new, fs::Permissions::from_mode(metadata.mode() & 0o7777))?;
    }
    file.sync_all()
}
