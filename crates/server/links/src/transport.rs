//! TLS on a TCP socket that does not block. The streams of `net` are not used: rustls exports no
//! keying material from connections without buffers of their own.

use std::io::{self, IoSlice, Read as _, Write as _};

use mio::net::TcpStream;
use rustls::pki_types::CertificateDer;

use crate::hello::{EXPORTED_BYTES, EXPORTER_LABEL};

pub(crate) struct Transport {
    socket: TcpStream,
    tls: rustls::Connection,
}

/// What [`Transport::receive`] has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Received {
    /// Something, which may be without plaintext.
    Bytes,
    WouldBlock,
    /// The peer sends no more.
    Closed,
}

impl Transport {
    pub(crate) fn new(socket: TcpStream, tls: impl Into<rustls::Connection>) -> Self {
        Self { socket, tls: tls.into() }
    }

    pub(crate) fn socket_mut(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// Reads from the socket once, and appends what it brings to `plain`: at most the length of
    /// `scratch` and the rest of an earlier record.
    pub(crate) fn receive(
        &mut self,
        scratch: &mut [u8],
        plain: &mut Vec<u8>,
    ) -> io::Result<Received> {
        let read = match self.socket.read(scratch) {
            Ok(0) => return Ok(Received::Closed),
            Ok(read) => read,
            Err(error) if is_retry(&error) => return Ok(Received::WouldBlock),
            Err(error) => return Err(error),
        };
        let mut wire = &scratch[..read];
        while !wire.is_empty() {
            if self.tls.read_tls(&mut wire)? == 0 {
                return Ok(Received::Closed);
            }
            let state = self.tls.process_new_packets().map_err(io::Error::other)?;
            let (begin, count) = (plain.len(), state.plaintext_bytes_to_read());
            plain.resize(begin + count, 0);
            self.tls.reader().read_exact(&mut plain[begin..])?;
        }
        Ok(Received::Bytes)
    }

    /// Encrypts as much as its buffer takes (64 KiB) and sends it. Returns the number of bytes
    /// taken; 0: the connection is congested, go on when it is writable.
    pub(crate) fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.flush()? {
            return Ok(0);
        }
        let taken = self.tls.writer().write_vectored(slices)?;
        self.flush()?;
        Ok(taken)
    }

    /// True: nothing waits any more.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if is_retry(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// A value that only the two ends of this TLS connection know.
    pub(crate) fn exported(&self) -> io::Result<[u8; EXPORTED_BYTES]> {
        let value = [0; EXPORTED_BYTES];
        self.tls.export_keying_material(value, EXPORTER_LABEL, None).map_err(io::Error::other)
    }

    /// The certificate of the peer, which TLS has verified.
    pub(crate) fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.tls.peer_certificates()?.first()
    }
}

/// A socket that is not connected yet reports the same as one that has nothing.
fn is_retry(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}
