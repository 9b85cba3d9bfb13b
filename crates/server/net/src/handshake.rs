//! From an accepted socket to a stream: PROXY header, TLS, WebSocket upgrade, as the listener asks.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;

use mio::event::Source;
use mio::{Interest, Registry, Token};

use crate::address::Address;
use crate::error::HandshakeError;
use crate::foreign::Foreign;
use crate::layered::Layered;
use crate::listener::{ListenOptions, WebSocketOptions};
use crate::peer::{PeerAddress, PeerInfo};
use crate::proxy::{self, ProxyError, ProxyHeader};
use crate::socket::Socket;
use crate::stream::{Read, Stream};
use crate::tls::Session;
use crate::ws::WebSocket;
use crate::ws::upgrade::{self, Offer, Request, Rules};

/// A connection on its way to become a [`Stream`]: accepted by a [`Listener`](crate::Listener) or
/// begun by a [`Connector`](crate::Connector).
///
/// Call [`Handshake::advance`] once at the start and then at each readiness event (register it
/// readable and writable). It never blocks, and holds a bounded amount of memory; the deadline is
/// the caller's: drop it when it takes too long.
pub struct Handshake {
    /// Taken out when all is done.
    layers: Option<Box<Layered>>,
    stage: Stage,
    side: Side,
    peer: Box<PeerInfo>,
    /// The part of a PROXY or HTTP header that has come so far.
    header: Vec<u8>,
}

/// How far a handshake has come.
pub enum Progress {
    /// Wait for the next readiness event.
    Pending,
    /// Every layer is up. The stream is registered wherever the handshake was; bytes may already
    /// wait in it, so read it at once.
    Done(Stream, Box<PeerInfo>),
}

/// What a connecting handshake has to do.
pub(crate) struct Plan {
    pub(crate) tls: Option<Box<Session>>,
    pub(crate) offer: Option<Offer>,
    pub(crate) mask_seed: u64,
}

enum Side {
    Accepting { address: Arc<Address>, options: Arc<ListenOptions> },
    Connecting(Plan),
}

/// In the order in which they come; those that a connection does not need are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Start,
    Connect,
    Proxy,
    Tls,
    Upgrade,
    Done,
}

impl Handshake {
    pub(crate) fn accepted(
        socket: Socket,
        peer: PeerInfo,
        address: Arc<Address>,
        options: Arc<ListenOptions>,
    ) -> Self {
        Self::new(socket, peer, Side::Accepting { address, options })
    }

    pub(crate) fn connecting(socket: Socket, peer: PeerInfo, plan: Plan) -> Self {
        Self::new(socket, peer, Side::Connecting(plan))
    }

    fn new(socket: Socket, peer: PeerInfo, side: Side) -> Self {
        let layers = Some(Box::new(Layered::new(socket)));
        Self { layers, stage: Stage::Start, side, peer: Box::new(peer), header: Vec::new() }
    }

    /// The peer as far as it is known by now.
    pub fn peer(&self) -> &PeerInfo {
        &self.peer
    }

    /// Does what can be done without waiting. `scratch` is working space for this call alone, 16
    /// KiB or more for speed. After `Done` or an error every further call is
    /// [`HandshakeError::Closed`].
    pub fn advance(&mut self, scratch: &mut [u8]) -> Result<Progress, HandshakeError> {
        let mut layers = self.layers.take().ok_or(HandshakeError::Closed)?;
        loop {
            match self.work(&mut layers, scratch) {
                Ok(true) => {}
                Ok(false) => {
                    self.layers = Some(layers);
                    return Ok(Progress::Pending);
                }
                Err(error) => {
                    layers.refuse();
                    return Err(error);
                }
            }
            self.stage = self.next_stage();
            if self.stage == Stage::Done {
                let peer = Box::new(PeerInfo::new(self.peer.address));
                let peer = mem::replace(&mut self.peer, peer);
                return Ok(Progress::Done(Stream::new(layers), peer));
            }
            self.begin(&mut layers).inspect_err(|_| layers.refuse())?;
        }
    }

    fn next_stage(&self) -> Stage {
        let mut stage = self.stage;
        loop {
            stage = match stage {
                Stage::Start => Stage::Connect,
                Stage::Connect => Stage::Proxy,
                Stage::Proxy => Stage::Tls,
                Stage::Tls => Stage::Upgrade,
                Stage::Upgrade | Stage::Done => return Stage::Done,
            };
            let is_due = match (&self.side, stage) {
                (Side::Accepting { options, .. }, Stage::Proxy) => options.proxy.is_some(),
                (Side::Accepting { address, .. }, Stage::Tls) => address.is_tls(),
                (Side::Accepting { address, .. }, Stage::Upgrade) => address.is_websocket(),
                (Side::Connecting(_), Stage::Connect) => true,
                (Side::Connecting(plan), Stage::Tls) => plan.tls.is_some(),
                (Side::Connecting(plan), Stage::Upgrade) => plan.offer.is_some(),
                _ => false,
            };
            if is_due {
                return stage;
            }
        }
    }

    /// What a stage does once, before it waits for anything.
    fn begin(&mut self, layers: &mut Layered) -> Result<(), HandshakeError> {
        match (&mut self.side, self.stage) {
            (Side::Accepting { options, .. }, Stage::Tls) => {
                if let Some(tls) = &options.tls {
                    layers.add_tls(Box::new(tls.session()?));
                }
            }
            (Side::Connecting(plan), Stage::Tls) => {
                if let Some(session) = plan.tls.take() {
                    layers.add_tls(session);
                }
            }
            (Side::Connecting(Plan { offer: Some(offer), .. }), Stage::Upgrade) => {
                layers.send_transport(offer.request().as_bytes())?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Goes on with the current stage. `true`: it is complete.
    fn work(&mut self, layers: &mut Layered, scratch: &mut [u8]) -> Result<bool, HandshakeError> {
        match self.stage {
            Stage::Start | Stage::Done => Ok(true),
            Stage::Connect => Ok(layers.socket().is_connected()?),
            Stage::Proxy => self.read_proxy_header(layers.socket_mut(), scratch),
            Stage::Tls => {
                self.peer.tls = layers.handshake_tls()?.map(Box::new);
                Ok(self.peer.tls.is_some())
            }
            Stage::Upgrade => self.upgrade(layers, scratch),
        }
    }

    fn upgrade(
        &mut self,
        layers: &mut Layered,
        scratch: &mut [u8],
    ) -> Result<bool, HandshakeError> {
        loop {
            layers.flush()?;
            let n = match layers.read_transport(scratch)? {
                Read::Bytes(n) => n,
                Read::WouldBlock => return Ok(false),
                Read::Closed => return Err(HandshakeError::Closed),
            };
            self.header.extend_from_slice(&scratch[..n]);
            if let Some(len) = self.finish_upgrade(layers)? {
                let header = mem::take(&mut self.header);
                layers.add_early(&header[len..]);
                return Ok(true);
            }
        }
    }

    /// Looks whether the HTTP header is whole; if so completes the upgrade and says how long it
    /// was.
    fn finish_upgrade(&mut self, layers: &mut Layered) -> Result<Option<usize>, HandshakeError> {
        let len = match &self.side {
            Side::Accepting { address, options } => {
                let path = match &**address {
                    Address::Inet { path, .. } => path,
                    Address::Unix(_) => "",
                };
                let rules = Rules { path, origins: &options.websocket.origins };
                let parsed = upgrade::parse_request(&self.header, rules).map_err(|error| {
                    // The peer is lost either way; the error that counts is the one at hand.
                    let _ = layers.send_transport(error.answer().as_bytes());
                    match Foreign::of(&self.header) {
                        Some(foreign) if foreign != Foreign::Http => HandshakeError::from(foreign),
                        _ => error.into(),
                    }
                })?;
                let Some((request, len)) = parsed else {
                    return Ok(None);
                };
                layers.send_transport(request.answer().as_bytes())?;
                layers.add_websocket(WebSocket::server(options.websocket.frame_bytes_max));
                adopt_forwarded(&mut self.peer, &request, &options.websocket);
                len
            }
            Side::Connecting(Plan { offer: Some(offer), mask_seed, .. }) => {
                let Some(len) = offer.parse_answer(&self.header)? else {
                    return Ok(None);
                };
                layers.add_websocket(WebSocket::client(FRAME_BYTES_MAX, *mask_seed));
                len
            }
            Side::Connecting(_) => 0,
        };
        self.peer.is_websocket = true;
        Ok(Some(len))
    }

    /// Takes the PROXY header off the socket and not one byte more, so that the layers above find
    /// their own bytes in the kernel's buffer, not in ours.
    fn read_proxy_header(
        &mut self,
        socket: &mut Socket,
        scratch: &mut [u8],
    ) -> Result<bool, HandshakeError> {
        let is_trusted = match (self.peer.address, &self.side) {
            (PeerAddress::Inet(address), Side::Accepting { options, .. }) => {
                options.proxy.as_ref().is_some_and(|proxy| proxy.trusts(address.ip()))
            }
            _ => false,
        };
        if !is_trusted {
            return Err(ProxyError::Untrusted.into());
        }
        loop {
            let room = scratch.len().min(proxy::HEADER_BYTES_MAX);
            let n = match socket.peek(&mut scratch[..room])? {
                None => return Ok(false),
                Some(0) => return Err(HandshakeError::Closed),
                Some(n) => n,
            };
            let taken_before = self.header.len();
            self.header.extend_from_slice(&scratch[..n]);
            let parsed = proxy::parse(&self.header)?;
            let take = parsed.as_ref().map_or(n, |(_, len)| len - taken_before);
            // The bytes were just peeked at, so one call takes them all.
            socket.read(&mut scratch[..take])?;
            if let Some((header, _)) = parsed {
                self.header = Vec::new();
                self.adopt(header);
                return Ok(true);
            }
        }
    }

    fn socket(&mut self) -> io::Result<&mut Socket> {
        let over = || io::Error::new(io::ErrorKind::NotConnected, "the handshake is over");
        self.layers.as_mut().map(|layers| layers.socket_mut()).ok_or_else(over)
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
        self.socket()?.register(registry, token, interests)
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        self.socket()?.reregister(registry, token, interests)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.socket()?.deregister(registry)
    }
}

/// Takes the client's address from `X-Forwarded-For`, if whoever sent that is trusted with it.
fn adopt_forwarded(peer: &mut PeerInfo, request: &Request, options: &WebSocketOptions) {
    let is_trusted = |ip| options.trusted_forwarders.iter().any(|range| range.contains(ip));
    let PeerAddress::Inet(sender) = peer.address else {
        return;
    };
    if is_trusted(sender.ip())
        && let Some(client) = request.client(is_trusted)
    {
        peer.proxied_by.get_or_insert(peer.address);
        peer.address = PeerAddress::Inet(SocketAddr::new(client, 0));
    }
}

/// What a connector accepts from a server: frames are not buffered, so it need not be tight.
const FRAME_BYTES_MAX: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use socket2::SockRef;

    use super::*;
    use crate::listener::{Listener, TcpOptions};

    /// Listeners set the options once, on themselves.
    #[test]
    fn accepted_sockets_inherit_the_options_of_their_listener() {
        let tcp = TcpOptions {
            keepalive_secs: Some(77),
            user_timeout_secs: Some(33),
            send_buffer_bytes: Some(50_000),
            ..TcpOptions::default()
        };
        let options = ListenOptions { tcp, ..ListenOptions::default() };
        let url = "tcp://127.0.0.1:0".parse().expect("url");
        let listener = Listener::bind(&url, &options).expect("bind");
        let address = listener.local_address().expect("address");
        let _client = TcpStream::connect(address).expect("connect");
        // The connect has returned, so the connection waits to be accepted.
        let handshake = listener.accept().expect("accept").expect("a connection");
        let layers = handshake.layers.expect("layers");
        let socket = SockRef::from(layers.socket());
        assert!(socket.tcp_nodelay().expect("option"));
        assert!(socket.keepalive().expect("option"));
        assert!(socket.send_buffer_size().expect("option") >= 50_000);
        #[cfg(target_os = "linux")]
        {
            assert_eq!(socket.tcp_keepalive_time().expect("option").as_secs(), 77);
            assert_eq!(socket.tcp_keepalive_interval().expect("option").as_secs(), 19);
            assert_eq!(socket.tcp_keepalive_retries().expect("option"), 4);
            let timeout = socket.tcp_user_timeout().expect("option");
            assert_eq!(timeout.map(|timeout| timeout.as_secs()), Some(33));
        }
    }
}
