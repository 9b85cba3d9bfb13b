//! A connected byte stream, whatever lies between it and the wire.

use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};

use mio::event::Source;
use mio::{Interest, Registry, Token};

use crate::layered::Layered;
use crate::socket::Socket;

/// A connection whose handshakes are done: bytes in, bytes out, never blocking.
///
/// Register it with any mio registry, readable and writable; it may move from one to another
/// (deregister, register) and between threads. Readiness is edge triggered, so:
///
/// - at a readable event, and once right after registering, read until [`Read::WouldBlock`] or,
///   cheaper, until [`Stream::is_drained`]. At an event with `is_read_closed` read until
///   [`Read::Closed`];
/// - when [`Stream::write`] takes less than it was given, or [`Stream::wants_write`], go on at the
///   next writable event.
pub struct Stream {
    layers: Layers,
}

/// What a [`Stream::read`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// So many bytes, at the front of the buffer; never 0.
    Bytes(usize),
    WouldBlock,
    /// The peer sends no more. What was written may still reach it.
    Closed,
}

enum Layers {
    Plain(Socket),
    Layered(Box<Layered>),
}

impl Stream {
    /// Without TLS and WebSocket only the socket itself is kept.
    pub(crate) fn new(layered: Box<Layered>) -> Self {
        let layers = match layered.into_socket() {
            Ok(socket) => Layers::Plain(socket),
            Err(layered) => Layers::Layered(layered),
        };
        Self { layers }
    }

    /// Two ends of a connection inside this process.
    pub fn pair() -> io::Result<[Self; 2]> {
        let (one, other) = mio::net::UnixStream::pair()?;
        Ok([one, other].map(|end| Self { layers: Layers::Plain(Socket::Unix(end)) }))
    }

    /// One end of a connection inside this process, as [`Stream::pair`] makes them.
    ///
    /// # Errors
    ///
    /// The socket cannot be made not to block.
    pub fn of_unix(socket: std::os::unix::net::UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let socket = mio::net::UnixStream::from_std(socket);
        Ok(Self { layers: Layers::Plain(Socket::Unix(socket)) })
    }

    /// The socket of one end of such a connection, which does not block. None: it is another
    /// stream.
    pub fn into_unix(self) -> Option<std::os::unix::net::UnixStream> {
        match self.layers {
            Layers::Plain(Socket::Unix(socket)) => Some(socket.into()),
            _ => None,
        }
    }

    /// Reads application bytes into `buffer`, which the caller shares among all its connections: at
    /// most one system call for TCP and no copy. An error means that the connection is lost.
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<Read> {
        match &mut self.layers {
            Layers::Plain(socket) => Ok(match socket.read(buffer)? {
                Some(0) if !buffer.is_empty() => Read::Closed,
                Some(n) => Read::Bytes(n),
                None => Read::WouldBlock,
            }),
            Layers::Layered(layered) => layered.read(buffer),
        }
    }

    /// Like [`Stream::read`], but into the spare capacity behind `bytes`, of which there must be
    /// some: for a reader that knows what comes, and where it is to lie. Not for a stream with
    /// [layers](Stream::has_layers), whose bytes come out of their buffers.
    #[inline]
    pub fn read_onto(&mut self, bytes: &mut Vec<u8>) -> io::Result<Read> {
        match &mut self.layers {
            Layers::Plain(socket) => Ok(match socket.read_onto(bytes)? {
                Some(0) => Read::Closed,
                Some(n) => Read::Bytes(n),
                None => Read::WouldBlock,
            }),
            Layers::Layered(_) => Err(io::Error::other("a layered stream reads into its buffers")),
        }
    }

    /// Whether a read that filled `read_bytes` of `capacity_bytes` has left nothing behind, so that
    /// the next event will report more, and no further call is needed to find out.
    #[inline]
    pub fn is_drained(&self, read_bytes: usize, capacity_bytes: usize) -> bool {
        match &self.layers {
            Layers::Plain(_) => read_bytes < capacity_bytes,
            Layers::Layered(layered) => layered.is_drained(),
        }
    }

    /// Writes the slices in order with one system call, and says how many of their bytes it took:
    /// from none (the connection is congested) to all. Bytes taken are on their way; the others are
    /// to be given again, first, at the next writable event.
    #[inline]
    pub fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.layers {
            Layers::Plain(socket) => socket.write(slices),
            Layers::Layered(layered) => layered.write(slices),
        }
    }

    /// Whether bytes that this stream made itself (TLS records, WebSocket answers) wait for the
    /// next writable event. Ask after reads and writes, then call [`Stream::flush`] at that event.
    #[inline]
    pub fn wants_write(&self) -> bool {
        match &self.layers {
            Layers::Plain(_) => false,
            Layers::Layered(layered) => layered.wants_write(),
        }
    }

    /// Sends what waits inside of the stream. `true`: nothing waits any more.
    pub fn flush(&mut self) -> io::Result<bool> {
        match &mut self.layers {
            Layers::Plain(_) => Ok(true),
            Layers::Layered(layered) => layered.flush(),
        }
    }

    /// Says farewell in the words of each layer and ends the sending direction. The peer may go on
    /// sending until it closes as well; dropping the stream closes both.
    pub fn shutdown(&mut self) -> io::Result<()> {
        match &mut self.layers {
            Layers::Plain(socket) => socket.shutdown(Shutdown::Write),
            Layers::Layered(layered) => layered.shutdown(),
        }
    }

    /// Whether there is more than the socket: then there may be bytes that were read from it and
    /// not handed on yet, and a farewell that closing alone does not say.
    #[inline]
    pub fn has_layers(&self) -> bool {
        matches!(self.layers, Layers::Layered(_))
    }

    /// Version and cipher suite, if TLS ends here.
    pub fn tls(&self) -> Option<(&'static str, &'static str)> {
        match &self.layers {
            Layers::Plain(_) => None,
            Layers::Layered(layered) => layered.tls(),
        }
    }

    /// The certificates that the peer has shown, as DER: its own and those that lead to an
    /// authority.
    pub fn peer_certificates(&self) -> Vec<Vec<u8>> {
        match &self.layers {
            Layers::Plain(_) => Vec::new(),
            Layers::Layered(layered) => layered.peer_certificates(),
        }
    }

    /// The local address of a TCP connection.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.socket().local_address()
    }

    fn socket(&self) -> &Socket {
        match &self.layers {
            Layers::Plain(socket) => socket,
            Layers::Layered(layered) => layered.socket(),
        }
    }

    fn socket_mut(&mut self) -> &mut Socket {
        match &mut self.layers {
            Layers::Plain(socket) => socket,
            Layers::Layered(layered) => layered.socket_mut(),
        }
    }
}

impl Source for Stream {
    fn register(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        self.socket_mut().register(registry, token, interests)
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        self.socket_mut().reregister(registry, token, interests)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.socket_mut().deregister(registry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_small() {
        assert!(size_of::<Stream>() <= 32);
    }
}
