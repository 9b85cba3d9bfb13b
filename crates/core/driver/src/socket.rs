//! What a driver reads from and writes to.

use std::io::{self, IoSlice};

/// What a [`Socket::read`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// So many bytes, at the front of the buffer; never 0.
    Bytes(usize),
    WouldBlock,
    /// The peer sends no more. What was written may still reach it.
    Closed,
}

/// A connection whose handshakes are done: bytes in, bytes out, never blocking. An error means that
/// it is lost; dropping it closes it.
///
/// Its readiness is reported by edges: once for what has come, however much it is, and once when a
/// write that fell short may go on.
pub trait Socket {
    /// Reads into `buffer`, which all connections of a driver share.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Read>;

    /// Reads into the spare capacity behind `bytes`, of which there must be some. Not for a socket
    /// with [layers](Socket::has_layers).
    fn read_onto(&mut self, bytes: &mut Vec<u8>) -> io::Result<Read>;

    /// Whether a read that filled `count` bytes of `room` has left nothing behind, so that the next
    /// edge will report more.
    fn is_drained(&self, count: usize, room: usize) -> bool;

    /// Writes the slices in order, and says how many of their bytes it took: from none to all. The
    /// others are to be given again, first, at the next edge.
    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Whether bytes that it made itself wait to be sent.
    fn wants_write(&self) -> bool;

    /// Sends those. `true`: nothing waits any more.
    fn flush(&mut self) -> io::Result<bool>;

    /// Says its own farewell, if it has one, and ends the sending direction.
    fn shutdown(&mut self) -> io::Result<()>;

    /// Whether there is more than a plain byte stream: then it may have read bytes that it has not
    /// handed on, which no edge reports, and a farewell that closing alone does not say.
    fn has_layers(&self) -> bool;

    /// Version and cipher suite, if TLS ends here.
    fn tls(&self) -> Option<(&'static str, &'static str)> {
        None
    }
}
