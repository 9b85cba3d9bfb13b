//! Changes of a password file: whole or not at all, and nothing else in it is touched.

use std::io;
use std::path::Path;

use super::file_changes::{ReplaceError, Seen, read as read_file, replace};
use super::passwords::{PasswordFile, check_username, is_of, user_lines, with_user};

/// A change that was not made. The file is as it was.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    #[error("{0}")]
    Username(&'static str),
    #[error("cannot read {path}: {source}")]
    Read { path: String, source: io::Error },
    #[error("cannot write {path}: {source}")]
    Write { path: String, source: ReplaceError },
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
    let (text, seen) = match read(path) {
        Err(ChangeError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            (String::new(), None)
        }
        read => read.map(|(text, seen)| (text, Some(seen)))?,
    };
    put(path, (&text, seen), user, new)
}

/// Makes a file with one user in place of what there is.
///
/// # Errors
///
/// As [`put_user`].
pub fn create_file(path: &Path, user: &str, new: &NewSecret<'_>) -> Result<(), ChangeError> {
    put(path, ("", None), user, new)
}

/// Deletes a user.
///
/// # Errors
///
/// There is none of that name, or the file cannot be used.
pub fn delete_user(path: &Path, user: &str) -> Result<(), ChangeError> {
    let (text, seen) = read(path)?;
    if !text.lines().any(|line| is_of(line, user)) {
        let (user, path) = (user.to_owned(), path.display().to_string());
        return Err(ChangeError::Unknown { user, path });
    }
    write(path, &with_user(&text, user, &[]), Some(seen))
}

fn put(
    path: &Path,
    (text, seen): (&str, Option<Seen>),
    user: &str,
    new: &NewSecret<'_>,
) -> Result<(), ChangeError> {
    check_username(user).map_err(ChangeError::Username)?;
    if new.password.is_empty() {
        return Err(ChangeError::Empty);
    }
    write(path, &with_user(text, user, &user_lines(user, new.password, new.scram)), seen)
}

/// A line that the broker would refuse is reported now rather than at its next start.
fn read(path: &Path) -> Result<(String, Seen), ChangeError> {
    let shown = || path.display().to_string();
    let (text, seen) =
        read_file(path).map_err(|source| ChangeError::Read { path: shown(), source })?;
    let parsed = PasswordFile::parse(&text);
    parsed.map_err(|(line, detail)| ChangeError::Line { path: shown(), line, detail })?;
    Ok((text, seen))
}

fn write(path: &Path, text: &str, seen: Option<Seen>) -> Result<(), ChangeError> {
    let path_text = || path.display().to_string();
    replace(path, text, seen).map_err(|source| ChangeError::Write { path: path_text(), source })
}
