//! A secret that stays the same from one start to the next.

use std::io;
use std::path::Path;

use base::random;
use data::{SECRET_FILE, Stamps};

const BYTES: usize = 32;

/// Reads the secret of a data directory, and makes it where there is none. It protects no password:
/// who knows it can tell which user names do not exist.
///
/// # Errors
///
/// When the file can be neither read nor made, or is damaged.
pub fn kept(directory: &Path, stamps: &Stamps) -> io::Result<[u8; BYTES]> {
    let path = directory.join(SECRET_FILE);
    let found = if path.exists() { stamps.read(&path)? } else { None };
    let secret = match found.filter(|content| !content.is_empty()) {
        Some(content) => parse(&content).ok_or_else(|| {
            let text = format!("{}: the secret is damaged; remove the file", path.display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        })?,
        None => {
            if stamps.are_of_a_used_directory() {
                tracing::warn!(
                    path = %path.display(),
                    "the secret of the SCRAM salts was missing; a new one was created. A client \
                    that saw the old salts can tell which users exist. To prevent this, stop \
                    the broker and restore the file"
                );
            }
            random()
        }
    };
    let error =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    stamps.write(&path, format!("{hex}\n").as_bytes()).map_err(error)?;
    Ok(secret)
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
    fn the_secret_of_a_directory_stays_and_is_for_its_owner_only() {
        let directory = std::env::temp_dir().join(format!("quelea-secret-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let secret = kept(&directory, &Stamps::default()).unwrap();
        assert_ne!(secret, [0; BYTES]);
        assert_eq!(kept(&directory, &Stamps::default()).unwrap(), secret);
        let path = directory.join(SECRET_FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, secret).unwrap();
        assert_eq!(kept(&directory, &Stamps::default()).unwrap(), secret, "as it was made before");
        fs::write(&path, "short").unwrap();
        let error = kept(&directory, &Stamps::default()).unwrap_err().to_string();
        assert!(error.contains(SECRET_FILE) && error.contains("remove the file"), "{error}");
        fs::remove_dir_all(&directory).unwrap();
    }
}
