//! A secret that stays the same from one start to the next.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::random;

/// Its file in the data directory.
pub const NAME: &str = "auth.secret";

const BYTES: usize = 32;

/// Reads the secret of a data directory, and makes it where there is none. It protects no password:
/// who knows it can tell which user names do not exist.
///
/// # Errors
///
/// When the file can be neither read nor made, or is not of the size it was made with.
pub fn kept(directory: &Path) -> io::Result<[u8; BYTES]> {
    let path = directory.join(NAME);
    let told =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    match fs::read(&path) {
        Ok(bytes) => bytes.try_into().map_err(|_| {
            told(io::Error::new(io::ErrorKind::InvalidData, "it is damaged; remove it"))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(directory, &path).map_err(told)
        }
        Err(error) => Err(told(error)),
    }
}

/// Whole or not at all: a crash leaves a file of another name behind, which is written over.
fn make(directory: &Path, path: &Path) -> io::Result<[u8; BYTES]> {
    let secret = random();
    let unfinished = path.with_extension("new");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    file.write_all(&secret)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    File::open(directory)?.sync_all()?;
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_secret_of_a_directory_stays_and_is_for_its_owner_only() {
        let directory = std::env::temp_dir().join(format!("quelea-secret-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let secret = kept(&directory).unwrap();
        assert_ne!(secret, [0; BYTES]);
        assert_eq!(kept(&directory).unwrap(), secret);
        let path = directory.join(NAME);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "short").unwrap();
        let error = kept(&directory).unwrap_err().to_string();
        assert!(error.contains(NAME) && error.contains("remove it"), "{error}");
        fs::remove_dir_all(&directory).unwrap();
    }
}
