//! What a tool and a running broker say to each other over the socket in the data directory.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The name of the socket in the data directory.
pub const SOCKET: &str = "control";
/// What a tool writes first, and when it is through.
pub const PIN: &str = "pin";
pub const DONE: &str = "done";
/// What it is answered: lines `file SHARD SEGMENT BYTES` and `manifest SHARD CONTENT`, in
/// hexadecimal without the zeros at its end; then `pinned`, then `unpinned`.
pub const FILE: &str = "file";
pub const MANIFEST: &str = "manifest";
/// Of a node of a cluster: `mark SHARD CONTENT`, for a node that is started on the backup.
pub const MARK: &str = "mark";
pub const PINNED: &str = "pinned";
pub const UNPINNED: &str = "unpinned";

/// Does a broker run on this data directory? It answers anything.
pub fn is_served(directory: &Path) -> bool {
    let Ok(stream) = UnixStream::connect(directory.join(SOCKET)) else { return false };
    greet(&stream);
    true
}

/// Asks for nothing, and waits for the answer.
pub fn greet(stream: &UnixStream) {
    // While it serves a backup the answer takes longer, and whoever accepts is enough.
    let asked = stream
        .set_read_timeout(Some(Duration::from_secs(1)))
        .and_then(|()| writeln!(&mut &*stream, "here?"));
    if asked.is_ok() {
        let _ = BufReader::new(stream).read_line(&mut String::new());
    }
}

/// Bytes in hexadecimal, without the zeros at their end.
pub fn to_hex(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes[..end].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The inverse of [`to_hex`]. `None`: it is no such text.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok();
    digits.map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_without_the_zeros_at_their_end() {
        assert_eq!(to_hex(&[7, 200, 0]), "07c8");
        assert_eq!(from_hex("07c8"), Some(vec![7, 200]));
        assert_eq!(from_hex("07x"), None);
    }
}
