//! The seam between this crate and the network: where to connect, and the byte stream that results.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use mio::event::Source;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

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
}

impl Endpoint {
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), ..Self::default() }
    }

    /// Resolves names and loads certificates, once for many connections. Blocks while it does.
    pub fn prepare(&self) -> io::Result<Route> {
        let plain = self.url.strip_prefix("tcp://").or_else(|| self.url.strip_prefix("mqtt://"));
        let host = plain.unwrap_or(&self.url);
        let remote = host.to_socket_addrs()?.next().ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("`{host}` has no address"))
        })?;
        Ok(Route { remote })
    }
}

/// An endpoint made ready to be connected to.
#[derive(Clone, Debug)]
pub struct Route {
    remote: SocketAddr,
}

impl Route {
    /// Starts to connect; drive the result with [`Wire::advance`].
    pub fn open(&self, _source: Option<IpAddr>) -> io::Result<Wire> {
        Ok(Wire { stream: TcpStream::connect(self.remote)?, open: false })
    }
}

/// A byte stream that is being connected or is open. Never blocks; readiness is edge triggered.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    open: bool,
}

/// What a [`Wire::read`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    Bytes(usize),
    WouldBlock,
    Closed,
}

impl Wire {
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Goes on with the handshakes after a readiness event; `true` when the stream is open.
    pub fn advance(&mut self, _scratch: &mut [u8]) -> io::Result<bool> {
        if self.open {
            return Ok(true);
        }
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        match self.stream.peer_addr() {
            Ok(_) => {
                self.stream.set_nodelay(true)?;
                self.open = true;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<Read> {
        loop {
            return match self.stream.read(buffer) {
                Ok(0) => Ok(Read::Closed),
                Ok(n) => Ok(Read::Bytes(n)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Read::WouldBlock),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
        }
    }

    pub fn is_drained(&self, read_bytes: usize, capacity_bytes: usize) -> bool {
        read_bytes < capacity_bytes
    }

    /// Bytes taken, 0 when the connection is congested.
    pub fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            return match self.stream.write_vectored(slices) {
                Ok(n) => Ok(n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
        }
    }

    /// Whether bytes of lower layers wait for [`Wire::flush`].
    pub fn wants_write(&self) -> bool {
        false
    }

    pub fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    /// Ends the sending direction in the words of each layer.
    pub fn shutdown(&mut self) -> io::Result<()> {
        self.stream.shutdown(std::net::Shutdown::Write)
    }
}

impl Source for Wire {
    fn register(&mut self, registry: &Registry, token: Token, wanted: Interest) -> io::Result<()> {
        self.stream.register(registry, token, wanted)
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        wanted: Interest,
    ) -> io::Result<()> {
        self.stream.reregister(registry, token, wanted)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.stream.deregister(registry)
    }
}
