//! A connected TCP or unix socket in non-blocking mode: system calls and nothing more.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::RecvFlags;

pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// `Ok(None)`: nothing there now; `Ok(Some(0))`: the peer will send no more.
    #[inline]
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            let result = match self {
                Self::Tcp(socket) => socket.read(buffer),
                Self::Unix(socket) => socket.read(buffer),
            };
            match result {
                Ok(n) => return Ok(Some(n)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Like [`Socket::read`], into the spare capacity behind `bytes`, which must have some.
    #[inline]
    pub(crate) fn read_onto(&self, bytes: &mut Vec<u8>) -> io::Result<Option<usize>> {
        debug_assert!(bytes.len() < bytes.capacity(), "no room would look like the end");
        loop {
            match rustix::net::recv(self, spare_capacity(bytes), RecvFlags::empty()) {
                Ok((n, _)) => return Ok(Some(n)),
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes 0 bytes if the send buffer is full.
    #[inline]
    pub(crate) fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            let result = match (&mut *self, slices) {
                (Self::Tcp(socket), [slice]) => socket.write(slice),
                (Self::Tcp(socket), slices) => socket.write_vectored(slices),
                (Self::Unix(socket), [slice]) => socket.write(slice),
                (Self::Unix(socket), slices) => socket.write_vectored(slices),
            };
            match result {
                Ok(n) => return Ok(n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Like [`Socket::read`], but leaves the bytes where they are. TCP only.
    pub(crate) fn peek(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let Self::Tcp(socket) = self else {
            return Err(io::Error::other("only a TCP socket can be peeked at"));
        };
        loop {
            match socket.peek(buffer) {
                Ok(n) => return Ok(Some(n)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether a connect begun without blocking has succeeded by now.
    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        let (error, peer) = match self {
            Self::Tcp(socket) => (socket.take_error()?, socket.peer_addr().map(drop)),
            Self::Unix(socket) => (socket.take_error()?, socket.peer_addr().map(drop)),
        };
        match (error, peer) {
            (Some(error), _) => Err(error),
            (None, Ok(())) => Ok(true),
            (None, Err(error)) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            (None, Err(error)) => Err(error),
        }
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let result = match self {
            Self::Tcp(socket) => socket.shutdown(how),
            Self::Unix(socket) => socket.shutdown(how),
        };
        match result {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            other => other,
        }
    }

    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(socket) => socket.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

impl Source for Socket {
    fn register(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.register(registry, token, interests),
            Self::Unix(socket) => socket.register(registry, token, interests),
        }
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.reregister(registry, token, interests),
            Self::Unix(socket) => socket.reregister(registry, token, interests),
        }
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.deregister(registry),
            Self::Unix(socket) => socket.deregister(registry),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_behind_those_that_are_there_as_far_as_there_is_room() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let near = Socket::Unix(near);
        let mut bytes = Vec::with_capacity(8);
        bytes.extend_from_slice(b"abc");
        let (place, room) = (bytes.as_ptr(), bytes.capacity() - bytes.len());
        assert_eq!(near.read_onto(&mut bytes).unwrap(), None);
        far.write_all(&[7; 100]).unwrap();
        assert_eq!(near.read_onto(&mut bytes).unwrap(), Some(room));
        assert_eq!(bytes, [&b"abc"[..], &vec![7; room]].concat());
        assert_eq!(bytes.as_ptr(), place);
        drop(far);
        let mut rest = Vec::with_capacity(1_000);
        assert_eq!(near.read_onto(&mut rest).unwrap(), Some(100 - room));
        assert_eq!(near.read_onto(&mut rest).unwrap(), Some(0));
    }
}
