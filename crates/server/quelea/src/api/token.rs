//! The token of an admin: a file with the token in its first line and the address of the API in its
//! second. In a cluster all nodes have the same token, unless an operator named a file.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};

use base::random;
use config::{ApiConfig, TOKEN_FILE};

/// Whether the file is the one in the data directory, and not one that an operator chose.
pub(crate) fn is_of_directory(config: &ApiConfig, data_dir: &Path) -> bool {
    config.token_file == data_dir.join(TOKEN_FILE)
}

/// The token of a file, which is made where there is none. `None`: the disk is full. A token that
/// the next start does not know lets nobody in.
///
/// # Errors
///
/// The file cannot be used or made, or other users can read it.
pub(crate) fn kept(path: &Path) -> anyhow::Result<Option<String>> {
    if let Some(known) = known(path)? {
        return Ok(Some(known));
    }
    let token = fresh();
    match write(path, &token, "") {
        Ok(()) => Ok(Some(token)),
        Err(error) if data::is_full(&error) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot make {}", path.display())),
    }
}

/// None: there is no file.
///
/// # Errors
///
/// The file cannot be used, or other users can read it.
pub(crate) fn known(path: &Path) -> anyhow::Result<Option<String>> {
    let shown = path.display();
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
    };
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        bail!("{shown} is open to other users (mode {:o}); chmod 600 it", mode & 0o777);
    }
    match first_line(&text) {
        Some(token) => Ok(Some(token.to_owned())),
        None => bail!(
            "{shown}: the first line must be a token of at least {CHARS_MIN} \
        characters; remove the file to get a new one"
        ),
    }
}

/// The token in a text, if its first line is one.
pub(crate) fn first_line(text: &str) -> Option<&str> {
    let line = text.lines().next().unwrap_or_default().trim();
    (line.len() >= CHARS_MIN).then_some(line)
}

/// A token that a person chose is to be no word.
pub(crate) const CHARS_MIN: usize = 16;

pub(crate) fn fresh() -> String {
    let bytes: [u8; 32] = random();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Puts another token into the file, unless it has this one. The address of the API stays. True:
/// the file had another one.
///
/// # Errors
///
/// When the file cannot be read or written.
pub(crate) fn replace(path: &Path, token: &str) -> io::Result<bool> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    let found = first_line(&text);
    if found == Some(token) {
        return Ok(false);
    }
    write(path, token, text.lines().nth(1).unwrap_or_default())?;
    Ok(found.is_some())
}

/// Writes down where the API is, for tools on this machine.
///
/// # Errors
///
/// When the file cannot be written.
pub(crate) fn note_url(path: &Path, url: &str) -> io::Result<()> {
    let text = fs::read_to_string(path)?;
    let mut lines = text.lines();
    let token = lines.next().unwrap_or_default();
    if lines.next() == Some(url) {
        return Ok(());
    }
    write(path, token, url)
}

fn write(path: &Path, token: &str, url: &str) -> io::Result<()> {
    if let Some(directory) = path.parent().filter(|it| !it.as_os_str().is_empty()) {
        fs::create_dir_all(directory)?;
    }
    data::write_whole(path, format!("{token}\n{url}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_token_replaces_the_one_of_the_file_and_leaves_the_address() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(TOKEN_FILE);
        let (one, two) = (fresh(), fresh());
        assert!(!replace(&path, &one).unwrap(), "there was no file");
        note_url(&path, "http://127.0.0.1:1").unwrap();
        assert!(!replace(&path, &one).unwrap(), "it is the same");
        assert!(replace(&path, &two).unwrap());
        assert_eq!(known(&path).unwrap().as_deref(), Some(&*two));
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().nth(1), Some("http://127.0.0.1:1"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(first_line("short\n"), None);
    }
}
