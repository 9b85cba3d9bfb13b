//! Passwords and tokens, which nothing shows.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A password or a token.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    Text(String),
    /// The first line of a file, which is read for each login.
    File(PathBuf),
}

#[derive(Debug, Error)]
pub enum SecretError {
    #[error("cannot read {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{}: the first line must have 1 to {SECRET_BYTES_MAX} bytes of UTF-8", path.display())]
    Invalid { path: PathBuf },
}

impl Secret {
    /// Reads the file, if it is one.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or has no valid first line.
    pub fn read(&self) -> Result<String, SecretError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => read(path),
        }
    }
}

fn read(path: &Path) -> Result<String, SecretError> {
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(SECRET_BYTES_MAX as u64 + 2).read_to_end(&mut bytes))
        .map_err(|error| SecretError::Unreadable { path: path.to_owned(), error })?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match std::str::from_utf8(line) {
        Ok(text) if (1..=SECRET_BYTES_MAX).contains(&text.len()) => Ok(text.to_owned()),
        _ => Err(SecretError::Invalid { path: path.to_owned() }),
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("***"),
            Self::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

/// Tokens of identity providers have a few kilobytes.
const SECRET_BYTES_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Secret::Text("hunter2".into())), "***");
    }

    #[test]
    fn the_first_line_of_a_file_is_read_each_time() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let secret = Secret::File(file.path().to_owned());
        assert!(matches!(secret.read(), Err(SecretError::Invalid { .. })));
        file.write_all(b"hunter2\r\nsecond line\n").unwrap();
        assert_eq!(secret.read().unwrap(), "hunter2");
        file.as_file_mut().set_len(0).unwrap();
        let error = secret.read().unwrap_err().to_string();
        assert!(error.contains("first line must have"), "{error}");
        let missing = Secret::File("/nowhere/secret".into());
        assert!(missing.read().unwrap_err().to_string().contains("/nowhere/secret"));
    }
}
