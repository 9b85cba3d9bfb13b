//! Whether an address serves: a CONNECT is sent, and the CONNACK read.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

/// MQTT 3.1.1, clean session, keep-alive 5 s, and an empty client id: the broker makes one up.
pub(crate) const CONNECT: [u8; 14] = [0x10, 12, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 5, 0, 0];
const DISCONNECT: [u8; 2] = [0xE0, 0];
const CONNACK: u8 = 0x20;
/// A refusal that says that somebody is at work there: 4 and 5 are about credentials.
const NOT_SERVING: u8 = 3;

/// Whether a broker at `host:port` accepts clients, over plain TCP. One that refuses the client for
/// its credentials serves others.
pub(super) fn serves(address: &str, wait_max: Duration) -> bool {
    let asked = || -> std::io::Result<bool> {
        let Some(address) = address.to_socket_addrs()?.next() else { return Ok(false) };
        let mut stream = TcpStream::connect_timeout(&address, wait_max)?;
        stream.set_read_timeout(Some(wait_max))?;
        stream.write_all(&CONNECT)?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer)?;
        // It may be gone already, if it refused.
        let _ = stream.write_all(&DISCONNECT);
        Ok(answer[0] == CONNACK && answer[3] != NOT_SERVING)
    };
    asked().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::net::TcpListener;

    use super::*;

    fn asked(answer: [u8; 4]) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let node = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut connect = [0; CONNECT.len()];
            stream.read_exact(&mut connect).unwrap();
            stream.write_all(&answer).unwrap();
            let _ = stream.read(&mut [0; 2]);
        });
        let serves = serves(&address, Duration::from_secs(20));
        node.join().unwrap();
        serves
    }

    #[test]
    fn a_standby_does_not_serve_and_a_broker_with_passwords_does() {
        assert!(asked([CONNACK, 2, 0, 0]));
        assert!(asked([CONNACK, 2, 0, 5]));
        assert!(!asked([CONNACK, 2, 0, NOT_SERVING]));
    }
}
