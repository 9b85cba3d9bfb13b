//! The connecting side: begins connections to one address.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mio::net::{TcpStream, UnixStream};
use mio::{Events, Interest, Poll, Token};
use rustls::pki_types::ServerName;
use socket2::{Domain, SockAddr, Socket as RawSocket, Type};

use crate::address::Address;
use crate::error::HandshakeError;
use crate::handshake::{Handshake, Plan, Progress};
use crate::listener::TcpOptions;
use crate::peer::{PeerAddress, PeerInfo};
use crate::socket::Socket;
use crate::stream::Stream;
use crate::sys;
use crate::tls::{TlsClientContext, parse_server_name};
use crate::ws::upgrade::{KEY_BYTES, Offer};

/// How a connector connects.
#[derive(Clone, Default)]
pub struct ConnectOptions {
    pub tcp: TcpOptions,
    /// Needed for `tls` and `wss` addresses, and used for no other.
    pub tls: Option<TlsClientContext>,
    /// The name to ask a TLS server for and to check its certificate against. Default: the
    /// address's host.
    pub server_name: Option<String>,
}

/// Begins any number of connections to one address, which is resolved once.
#[derive(Clone)]
pub struct Connector {
    target: Target,
    tcp: TcpOptions,
    tls: Option<(TlsClientContext, ServerName<'static>)>,
    websocket: Option<Url>,
}

/// What differs from one connection to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connect {
    /// The local address to connect from. Port 0: any that is free towards this destination.
    pub source: Option<SocketAddr>,
    /// Which of the addresses of the host to take, counted around. To try the next after a failure,
    /// count up to [`Connector::address_count`].
    pub address_index: usize,
    /// Seed of the WebSocket's nonce and masks: a random number.
    pub seed: u64,
}

#[derive(Clone)]
enum Target {
    Inet(Vec<SocketAddr>),
    Unix(PathBuf),
}

#[derive(Clone)]
struct Url {
    authority: String,
    path: String,
}

impl Connector {
    /// Resolves the address, which blocks if it is a name.
    pub fn new(address: &Address, options: &ConnectOptions) -> io::Result<Self> {
        let tcp = options.tcp;
        let (scheme, host, port, path) = match address {
            Address::Inet { scheme, host, port, path } => (*scheme, host, *port, path),
            Address::Unix(path) => {
                let target = Target::Unix(path.clone());
                return Ok(Self { target, tcp, tls: None, websocket: None });
            }
        };
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        let addresses = Address::resolve_remote(host, port).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot resolve {address}: {error}"))
        })?;
        if addresses.is_empty() {
            return Err(invalid(format!("cannot resolve {address}: no address found")));
        }
        let tls = match (&options.tls, scheme.is_tls()) {
            (_, false) => None,
            (None, true) => return Err(invalid(format!("{address} needs TLS options"))),
            (Some(context), true) => {
                let name = options.server_name.as_deref().unwrap_or(host);
                let name = parse_server_name(name).map_err(|error| invalid(error.to_string()))?;
                Some((context.clone(), name))
            }
        };
        let websocket = scheme.is_websocket().then(|| {
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            let host = if host.is_empty() { "localhost".to_owned() } else { host };
            let path = if path.is_empty() { "/" } else { path };
            Url { authority: format!("{host}:{port}"), path: path.to_owned() }
        });
        Ok(Self { target: Target::Inet(addresses), tcp, tls, websocket })
    }

    /// How many addresses the host has; 1 for a unix socket.
    pub fn address_count(&self) -> usize {
        match &self.target {
            Target::Inet(addresses) => addresses.len(),
            Target::Unix(_) => 1,
        }
    }

    /// Begins a connection without waiting for it.
    pub fn connect(&self, connect: &Connect) -> io::Result<Handshake> {
        let (socket, address) = match &self.target {
            Target::Unix(path) => (self.connect_unix(path)?, PeerAddress::Unix),
            Target::Inet(addresses) => {
                let address = addresses[connect.address_index % addresses.len()];
                (self.connect_inet(address, connect.source)?, PeerAddress::inet(address))
            }
        };
        let tls = match &self.tls {
            Some((context, name)) => {
                let session = context.session(name.clone()).map_err(io::Error::other)?;
                Some(Box::new(session))
            }
            None => None,
        };
        let offer = self.websocket.as_ref().map(|url| {
            let [low, high] = [connect.seed, !connect.seed.rotate_left(32)].map(u64::to_ne_bytes);
            let mut nonce = [0; KEY_BYTES];
            nonce[..8].copy_from_slice(&low);
            nonce[8..].copy_from_slice(&high);
            Offer::new(&url.authority, &url.path, nonce)
        });
        let plan = Plan { tls, offer, mask_seed: connect.seed };
        Ok(Handshake::connecting(socket, PeerInfo::new(address), plan))
    }

    /// Connects and waits, trying the host's addresses in turn. For programs with one connection.
    pub fn connect_blocking(
        &self,
        connect: &Connect,
        timeout: Duration,
    ) -> Result<(Stream, Box<PeerInfo>), HandshakeError> {
        let deadline = Instant::now() + timeout;
        let mut index = 0;
        loop {
            let connect = Connect { address_index: connect.address_index + index, ..*connect };
            index += 1;
            let result = self
                .connect(&connect)
                .map_err(HandshakeError::from)
                .and_then(|handshake| wait(handshake, deadline));
            match result {
                // Only a peer that cannot be reached is a reason to try the next.
                Err(HandshakeError::Io(_)) if index < self.address_count() => {}
                result => return result,
            }
        }
    }

    fn connect_inet(&self, address: SocketAddr, source: Option<SocketAddr>) -> io::Result<Socket> {
        let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, None)?;
        self.tcp.apply(&socket)?;
        if let Some(source) = source {
            if source.port() == 0 {
                sys::bind_address_no_port(&socket)?;
            }
            socket.bind(&source.into())?;
        }
        begin_connect(&socket, &address.into())?;
        Ok(Socket::Tcp(TcpStream::from_std(socket.into())))
    }

    fn connect_unix(&self, path: &std::path::Path) -> io::Result<Socket> {
        let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
        begin_connect(&socket, &SockAddr::unix(path)?)?;
        Ok(Socket::Unix(UnixStream::from_std(socket.into())))
    }
}

impl Connect {
    /// From any free port of a local address.
    pub fn from_ip(source: IpAddr) -> Self {
        Self { source: Some(SocketAddr::new(source, 0)), ..Self::default() }
    }
}

fn begin_connect(socket: &RawSocket, address: &SockAddr) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    match socket.connect(address) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(()),
        result => result,
    }
}

fn wait(
    mut handshake: Handshake,
    deadline: Instant,
) -> Result<(Stream, Box<PeerInfo>), HandshakeError> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(4);
    let interests = Interest::READABLE | Interest::WRITABLE;
    poll.registry().register(&mut handshake, Token(0), interests)?;
    let mut scratch = vec![0; SCRATCH_BYTES];
    loop {
        if let Progress::Done(mut stream, peer) = handshake.advance(&mut scratch)? {
            poll.registry().deregister(&mut stream)?;
            return Ok((stream, peer));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        match poll.poll(&mut events, Some(left)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
    }
}

const SCRATCH_BYTES: usize = 16 * 1024;
