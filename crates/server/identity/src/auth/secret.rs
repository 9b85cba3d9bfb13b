//! A secret that stays the same from one start to the next.

use std::io;
use std::path::Path;

use base::random;
use hmac::Mac as _;

use super::cache::keyed;
use data::{SECRET_FILE, Stamps};

const BYTES: usize = 32;

/// The secret of a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    pub secret: [u8; BYTES],
    /// False: the disk is full. The next start finds or makes the same one.
    pub is_stored: bool,
}

/// Reads the secret of a data directory, and makes it where there is none. It protects no password:
/// who knows it can tell which user names do not exist.
///
/// # Errors
///
/// When the file can be neither read nor made, or is damaged.
pub fn kept(directory: &Path, stamps: &Stamps) -> io::Result<Kept> {
    let path = directory.join(SECRET_FILE);
    let found = stamps.read_if_there(&path)?;
    if let Some(content) = found.filter(|content| !content.is_empty()) {
        let secret = parse(&content).ok_or_else(|| {
            let text = format!("{}: the secret is damaged; remove the file", path.display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        })?;
        return Ok(Kept { secret, is_stored: true });
    }
    let secret = stamps.directory().map_or_else(random, of_directory);
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    match stamps.write(&path, format!("{hex}\n").as_bytes()) {
        Ok(()) if stamps.are_of_a_used_directory() => tracing::warn!(
            path = %path.display(),
            "the secret of the SCRAM salts was missing; a new one was created. A client that saw \
            the old salts can tell which users exist. To prevent this, stop the broker and restore \
            the file"
        ),
        Ok(()) => {}
        Err(error) if data::is_full(&error) && stamps.directory().is_some() => {
            return Ok(Kept { secret, is_stored: false });
        }
        Err(error) => {
            return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())));
        }
    }
    Ok(Kept { secret, is_stored: true })
}

/// The secret of a directory that has none: a start that cannot write it down must not use one that
/// the next start does not know. Whoever may read the identity of the directory may read the file.
fn of_directory(identity: [u8; 16]) -> [u8; BYTES] {
    keyed(&identity).chain_update(SECRET_FILE).finalize().into_bytes().into()
}

/// The program before wrote the bytes as they are.
fn parse(content: &[u8]) -> Option<[u8; BYTES]> {
    if let Ok(secret) = content.try_into() {
        return Some(secret);
    }
    let hex = content.strip_suffix(b"\n").filter(|hex| hex.len() == 2 * BYTES)?;
    let mut secret = [0; BYTES];
    for (byte, pair) in secret.iter_mut().zip(hex.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(secret)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_secret_that_cannot_be_written_down_is_the_one_of_the_next_start() {
        let directory = tempfile::tempdir().unwrap();
        let data = data::DataDir::open(directory.path()).unwrap();
        let stamps = || data.begin_start(1).unwrap().0;
        let path = directory.path().join(SECRET_FILE);
        let secret = kept(directory.path(), &stamps()).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(kept(directory.path(), &stamps()).unwrap(), secret);
        let other = tempfile::tempdir().unwrap();
        let stamps = data::DataDir::open(other.path()).unwrap().begin_start(1).unwrap().0;
        assert_ne!(kept(other.path(), &stamps).unwrap(), secret);
    }

    #[test]
    fn the_secret_of_a_directory_stays_and_is_for_its_owner_only() {
        let directory = std::env::temp_dir().join(format!("quelea-secret-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let made = kept(&directory, &Stamps::default()).unwrap();
        assert_ne!(made.secret, [0; BYTES]);
        assert_eq!(kept(&directory, &Stamps::default()).unwrap(), made);
        let path = directory.join(SECRET_FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, made.secret).unwrap();
        assert_eq!(kept(&directory, &Stamps::default()).unwrap(), made, "as it was made before");
        fs::write(&path, "short").unwrap();
        let error = kept(&directory, &Stamps::default()).unwrap_err().to_string();
        assert!(error.contains(SECRET_FILE) && error.contains("remove the file"), "{error}");
        fs::remove_dir_all(&directory).unwrap();
    }
}
