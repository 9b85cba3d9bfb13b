//! The seam between this crate and the network: where to connect, and the byte stream that results.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::path::PathBuf;

use mio::event::Source;
use mio::{Interest, Registry, Token};
use net::{Connect, ConnectOptions, Connector, Handshake, Progress, Stream};
pub use net::{Read, TlsVersion};
use net::{TlsClientContext, TlsClientOptions};

/// Where a broker listens and how to talk to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// `tcp://host:port`, `tls://`, `ws://host:port/path`, `wss://`, `unix:///path`; a bare
    /// `host:port` is TCP.
    pub url: String,
    pub tls: TlsOptions,
    /// Local address to connect from.
    pub source: Option<IpAddr>,
}

/// TLS settings, used when the URL asks for TLS. Files are PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Roots to trust instead of the system's.
    pub ca_file: Option<String>,
    /// Accept any server certificate.
    pub insecure: bool,
    pub cert_file: Option<String>,
    pub key_file: Option<String>,
    /// Name to ask for and to check, when it is not the host of the URL.
    pub server_name: Option<String>,
    /// Offer to resume the last session on a new connection.
    pub resume: bool,
    /// Speak this version only.
    pub version: Option<TlsVersion>,
    /// Names of the cipher suites to offer; all that are safe if empty.
    pub ciphers: Vec<String>,
}

impl Endpoint {
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), ..Self::default() }
    }

    /// Resolves names and loads certificates, once for many connections. Blocks while it does.
    pub fn prepare(&self) -> io::Result<Route> {
        let url = if self.url.contains("://") { self.url.clone() } else { self.as_tcp() };
        let address: net::Address = url.parse().map_err(io::Error::other)?;
        let mut options = ConnectOptions::default();
        if address.is_tls() {
            options.server_name.clone_from(&self.tls.server_name);
            options.tls = Some(self.tls.load()?);
        }
        Ok(Route { connector: Connector::new(&address, &options)? })
    }

    fn as_tcp(&self) -> String {
        format!("tcp://{}", self.url)
    }
}

impl TlsOptions {
    fn load(&self) -> io::Result<TlsClientContext> {
        let options = TlsClientOptions {
            ca: self.ca_file.as_ref().map(PathBuf::from),
            is_insecure: self.insecure,
            certificate: self.cert_file.as_ref().map(PathBuf::from),
            key: self.key_file.as_ref().map(PathBuf::from),
            sessions_max: if self.resume { SESSIONS_MAX } else { 0 },
            version_min: self.version.unwrap_or_default(),
            is_version_12_only: self.version == Some(TlsVersion::V12),
            ciphers: self.ciphers.clone(),
            ..TlsClientOptions::default()
        };
        TlsClientContext::load(&options).map_err(io::Error::other)
    }
}

/// An endpoint made ready to be connected to, any number of times.
#[derive(Clone)]
pub struct Route {
    connector: Connector,
}

impl Route {
    /// Starts to connect; drive the result with [`Wire::advance`]. `seed` makes the WebSocket's
    /// masks.
    pub fn open(&self, source: Option<IpAddr>, seed: u64) -> io::Result<Wire> {
        let connect = Connect { seed, ..source.map(Connect::from_ip).unwrap_or_default() };
        Ok(Wire { state: State::Opening(Box::new(self.connector.connect(&connect)?)) })
    }

    /// Addresses that the host's name stands for.
    pub fn address_count(&self) -> usize {
        self.connector.address_count()
    }

    /// As [`Route::open`], to the `index`-th of the host's addresses.
    pub fn open_at(&self, index: usize, source: Option<IpAddr>, seed: u64) -> io::Result<Wire> {
        let from = source.map(Connect::from_ip).unwrap_or_default();
        let connect = Connect { seed, address_index: index, ..from };
        Ok(Wire { state: State::Opening(Box::new(self.connector.connect(&connect)?)) })
    }
}

/// A byte stream that is being connected or is open. Never blocks; readiness is edge triggered.
pub struct Wire {
    state: State,
}

enum State {
    Opening(Box<Handshake>),
    Open(Stream),
}

impl Wire {
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Goes on with the handshakes after a readiness event; `true` when the stream is open. It may
    /// hold bytes then: read at once.
    pub fn advance(&mut self, scratch: &mut [u8]) -> io::Result<bool> {
        let State::Opening(handshake) = &mut self.state else { return Ok(true) };
        match handshake.advance(scratch) {
            Ok(Progress::Pending) => Ok(false),
            Ok(Progress::Done(stream, _)) => {
                self.state = State::Open(stream);
                Ok(true)
            }
            Err(net::HandshakeError::Io(error)) => Err(error),
            Err(error) => Err(io::Error::other(format!("{error}{}", error.client_hint()))),
        }
    }

    /// Reads into the caller's buffer; nothing before the stream is open.
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<Read> {
        match &mut self.state {
            State::Open(stream) => stream.read(buffer),
            State::Opening(_) => Ok(Read::WouldBlock),
        }
    }

    /// Whether the next readiness event will report more, so that no further read is needed.
    #[inline]
    pub fn is_drained(&self, read_bytes: usize, capacity_bytes: usize) -> bool {
        match &self.state {
            State::Open(stream) => stream.is_drained(read_bytes, capacity_bytes),
            State::Opening(_) => true,
        }
    }

    /// Bytes taken; 0 when the connection is congested or not open yet.
    #[inline]
    pub fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.state {
            State::Open(stream) => stream.write(slices),
            State::Opening(_) => Ok(0),
        }
    }

    /// Whether bytes of lower layers wait for [`Wire::flush`].
    #[inline]
    pub fn wants_write(&self) -> bool {
        match &self.state {
            State::Open(stream) => stream.wants_write(),
            State::Opening(_) => false,
        }
    }

    pub fn flush(&mut self) -> io::Result<bool> {
        match &mut self.state {
            State::Open(stream) => stream.flush(),
            State::Opening(_) => Ok(true),
        }
    }

    /// Ends the sending direction in the words of each layer.
    pub fn shutdown(&mut self) -> io::Result<()> {
        match &mut self.state {
            State::Open(stream) => stream.shutdown(),
            State::Opening(_) => Ok(()),
        }
    }

    fn source(&mut self) -> &mut dyn Source {
        match &mut self.state {
            State::Open(stream) => stream,
            State::Opening(handshake) => handshake.as_mut(),
        }
    }
}

impl Source for Wire {
    fn register(&mut self, registry: &Registry, token: Token, wanted: Interest) -> io::Result<()> {
        self.source().register(registry, token, wanted)
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        wanted: Interest,
    ) -> io::Result<()> {
        self.source().reregister(registry, token, wanted)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.source().deregister(registry)
    }
}

const SESSIONS_MAX: usize = 256;
