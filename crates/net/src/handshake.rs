//! From an accepted socket to a stream: PROXY header, TLS, WebSocket upgrade, as the listener asks.

use std::io;
use std::sync::Arc;

use mio::event::Source;
use mio::{Interest, Registry, Token};

use crate::error::HandshakeError;
use crate::listener::ListenOptions;
use crate::peer::{PeerAddress, PeerInfo};
use crate::proxy::{self, ProxyError, ProxyHeader, Sniff};
use crate::socket::Socket;
use crate::stream::Stream;

/// A connection on its way to become a [`Stream`].
///
/// Call [`Handshake::advance`] once at the start and then at each readiness event (register it
/// readable and writable). It never blocks, and holds a bounded amount of memory; the deadline is the
/// caller's: drop it when it takes too long.
pub struct Handshake {
    /// Taken out when all is done.
    stream: Option<Stream>,
    stage: Stage,
    options: Arc<ListenOptions>,
    peer: Box<PeerInfo>,
    /// Bytes of a PROXY header taken from the socket so far.
    proxy_header: Vec<u8>,
}

/// How far a handshake has come.
pub enum Progress {
    /// Wait for the next readiness event.
    Pending,
    /// Every layer is up. The stream is registered wherever the handshake was; bytes may already wait
    /// in it, so read it at once.
    Done(Stream, Box<PeerInfo>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Proxy,
    Done,
}

impl Handshake {
    pub(crate) fn new(socket: Socket, peer: PeerInfo, options: Arc<ListenOptions>) -> Self {
        let stage = if options.proxy.is_some() { Stage::Proxy } else { Stage::Done };
        let stream = Some(Stream::plain(socket));
        Self { stream, stage, options, peer: Box::new(peer), proxy_header: Vec::new() }
    }

    /// The peer as far as it is known by now.
    pub fn peer(&self) -> &PeerInfo {
        &self.peer
    }

    /// Does what can be done without waiting. `scratch` is working space for this call alone, 16 KiB
    /// or more for speed. After `Done` or an error every further call is [`HandshakeError::Closed`].
    pub fn advance(&mut self, scratch: &mut [u8]) -> Result<Progress, HandshakeError> {
        let mut stream = self.stream.take().ok_or(HandshakeError::Closed)?;
        while self.stage != Stage::Done {
            let is_complete = match self.stage {
                Stage::Proxy => self.read_proxy_header(stream.socket_mut(), scratch)?,
                Stage::Done => true,
            };
            if !is_complete {
                self.stream = Some(stream);
                return Ok(Progress::Pending);
            }
            self.stage = Stage::Done;
        }
        let peer = Box::new(PeerInfo::new(self.peer.address));
        Ok(Progress::Done(stream, std::mem::replace(&mut self.peer, peer)))
    }

    /// Takes the PROXY header off the socket and not one byte more, so that the layers above find
    /// their own bytes in the kernel's buffer, not in ours.
    fn read_proxy_header(
        &mut self,
        socket: &mut Socket,
        scratch: &mut [u8],
    ) -> Result<bool, HandshakeError> {
        let is_trusted = match (self.peer.address, &self.options.proxy) {
            (PeerAddress::Inet(address), Some(proxy)) => proxy.trusts(address.ip()),
            _ => false,
        };
        loop {
            let room = scratch.len().min(proxy::HEADER_BYTES_MAX);
            let n = match socket.peek(&mut scratch[..room])? {
                None => return Ok(false),
                Some(0) => return Err(HandshakeError::Closed),
                Some(n) => n,
            };
            if !is_trusted {
                return match proxy::sniff(&scratch[..n]) {
                    Sniff::Header => Err(ProxyError::Untrusted.into()),
                    Sniff::Other => Ok(true),
                    // What was peeked at stays readable, and more bytes make a new event.
                    Sniff::Unsure => Ok(false),
                };
            }
            let taken_before = self.proxy_header.len();
            self.proxy_header.extend_from_slice(&scratch[..n]);
            let parsed = proxy::parse(&self.proxy_header)?;
            let take = parsed.as_ref().map_or(n, |(_, len)| len - taken_before);
            // The bytes were just peeked at, so one call takes them all.
            socket.read(&mut scratch[..take])?;
            if let Some((header, _)) = parsed {
                self.proxy_header = Vec::new();
                self.adopt(header);
                return Ok(true);
            }
        }
    }

    fn adopt(&mut self, header: ProxyHeader) {
        if let Some(source) = header.source {
            self.peer.proxied_by = Some(self.peer.address);
            self.peer.address = PeerAddress::inet(source);
        }
        self.peer.proxy_authority = header.authority.map(String::into_boxed_str);
        self.peer.proxy_tls = header.tls.map(Box::new);
    }
}

impl Source for Handshake {
    fn register(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        self.stream.as_mut().ok_or_else(over)?.register(registry, token, interests)
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        self.stream.as_mut().ok_or_else(over)?.reregister(registry, token, interests)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.stream.as_mut().ok_or_else(over)?.deregister(registry)
    }
}

fn over() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the handshake is over")
}
