//! Sockets that wait for connections.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpListener, UnixListener};
use mio::{Interest, Registry, Token};
use socket2::{Domain, SockAddr, SockRef, Socket as RawSocket, TcpKeepalive, Type};

use crate::address::Address;
use crate::cidr::Cidr;
use crate::handshake::Handshake;
use crate::peer::{PeerAddress, PeerInfo};
use crate::socket::Socket;
use crate::sys;
use crate::tls::TlsContext;
use crate::ws::upgrade::Origins;

/// How a listener listens, and what it asks of those who connect.
#[derive(Clone)]
pub struct ListenOptions {
    /// Connections that the kernel completes ahead of [`Listener::accept`]; it caps the value by
    /// `net.core.somaxconn`. Default 4,096.
    pub backlog: u32,
    /// Lets several sockets share one port, the kernel spreading connections over them. Default
    /// off.
    pub reuse_port: bool,
    /// For an IPv6 address: refuse IPv4 clients. Default off.
    pub ipv6_only: bool,
    pub tcp: TcpOptions,
    /// Permission bits of a unix socket's file, such as `0o660`. Default: the process's umask
    /// decides.
    pub unix_mode: Option<u32>,
    /// Expect PROXY headers. TCP only. Default `None`: a header is taken for the client's own
    /// bytes.
    pub proxy: Option<ProxyOptions>,
    /// Needed for `tls` and `wss` addresses, and used for no other.
    pub tls: Option<Arc<TlsContext>>,
    /// Used for `ws` and `wss` addresses.
    pub websocket: WebSocketOptions,
}

/// Options of a TCP socket. `TCP_NODELAY` is always on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Idle time after which the kernel probes the peer, see [`set_keepalive`]. Default off: MQTT
    /// has its own keep-alive.
    pub keepalive_secs: Option<u32>,
    /// How long sent bytes may stay unacknowledged before the connection fails (Linux). Default:
    /// the kernel's.
    pub user_timeout_secs: Option<u32>,
    /// Size of the kernel's send buffer. Default: the kernel tunes it.
    pub send_buffer_bytes: Option<u32>,
    /// Size of the kernel's receive buffer. Default: the kernel tunes it.
    pub receive_buffer_bytes: Option<u32>,
}

/// Who may speak for others by a PROXY header, version 1 or 2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyOptions {
    /// A peer in one of these ranges must send a header; for any other peer a header is refused.
    pub trusted: Vec<Cidr>,
}

/// What a WebSocket listener asks of clients. The path is part of its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSocketOptions {
    /// The origins from which browsers may connect. Default: any.
    pub origins: Origins,
    /// Peers in these ranges are proxies whose `X-Forwarded-For` names the client. Default none.
    pub trusted_forwarders: Vec<Cidr>,
    /// Longest frame. Frames are not buffered, so a long one costs no memory. Default 256 MiB.
    pub frame_bytes_max: u32,
}

/// A bound socket. Register it with mio, readable; accept until `None` at each event. Dropping the
/// listener of a unix address removes the socket's file.
pub struct Listener {
    socket: ListenSocket,
    address: Arc<Address>,
    options: Arc<ListenOptions>,
}

enum ListenSocket {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: UnixFile },
}

impl Listener {
    /// Binds and listens. If the host has several addresses the first that can be bound is taken. A
    /// unix socket's file is replaced if no process listens on it any more.
    ///
    /// Errors name the address and say what to do.
    pub fn bind(address: &Address, options: &ListenOptions) -> io::Result<Self> {
        let socket = match address {
            Address::Unix(path) => bind_unix(path, options),
            Address::Inet { .. } if address.is_tls() && options.tls.is_none() => {
                let text = "a TLS listener needs a certificate and a key";
                Err(io::Error::new(io::ErrorKind::InvalidInput, text))
            }
            Address::Inet { host, port, .. } => bind_inet(host, *port, options),
        };
        let socket = socket.map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::AddrInUse => {
                    ": another program uses the port; stop it, or choose another port"
                }
                io::ErrorKind::PermissionDenied => ": permission denied for this user",
                io::ErrorKind::AddrNotAvailable => ": this machine has no such address",
                _ => "",
            };
            io::Error::new(error.kind(), format!("cannot listen on {address}: {error}{hint}"))
        })?;
        Ok(Self { socket, address: Arc::new(address.clone()), options: Arc::new(options.clone()) })
    }

    /// The next waiting connection, or `None` if there is none now.
    ///
    /// An error such as `EMFILE` (too many open files) leaves the connection waiting: pause and try
    /// again. A connection that its client gave up meanwhile is skipped.
    pub fn accept(&self) -> io::Result<Option<Handshake>> {
        loop {
            let accepted = match &self.socket {
                ListenSocket::Tcp(listener) => listener.accept().map(|(socket, address)| {
                    (Socket::Tcp(socket), PeerInfo::new(PeerAddress::inet(address)))
                }),
                ListenSocket::Unix { listener, .. } => listener.accept().map(|(socket, _)| {
                    let mut peer = PeerInfo::new(PeerAddress::Unix);
                    peer.unix = sys::unix_credentials(&socket);
                    (Socket::Unix(socket), peer)
                }),
            };
            match accepted {
                Ok((socket, peer)) => {
                    let (address, options) = (Arc::clone(&self.address), Arc::clone(&self.options));
                    return Ok(Some(Handshake::accepted(socket, peer, address, options)));
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(None),
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// The address as configured.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The address bound: differs from the configured one where that left host or port open. `None`
    /// for a unix socket.
    pub fn local_address(&self) -> Option<SocketAddr> {
        match &self.socket {
            ListenSocket::Tcp(listener) => listener.local_addr().ok(),
            ListenSocket::Unix { .. } => None,
        }
    }
}

impl TcpOptions {
    /// On Linux an accepted socket inherits all of these from its listener, at no cost.
    pub(crate) fn apply(&self, socket: &RawSocket) -> io::Result<()> {
        socket.set_tcp_nodelay(true)?;
        set_keepalive(socket, self.keepalive_secs)?;
        #[cfg(target_os = "linux")]
        if let Some(secs) = self.user_timeout_secs {
            socket.set_tcp_user_timeout(Some(Duration::from_secs(u64::from(secs))))?;
        }
        if let Some(bytes) = self.send_buffer_bytes {
            socket.set_send_buffer_size(bytes as usize)?;
        }
        if let Some(bytes) = self.receive_buffer_bytes {
            socket.set_recv_buffer_size(bytes as usize)?;
        }
        Ok(())
    }
}

/// An idle connection is probed after this time, then four times at a quarter of it. None:
/// never. Connections inherit it from their listener.
///
/// # Errors
///
/// The system refuses it.
pub fn set_keepalive(socket: impl AsFd, secs: Option<u32>) -> io::Result<()> {
    let Some(secs) = secs else { return Ok(()) };
    let of = |secs: u32| Duration::from_secs(u64::from(secs.max(1)));
    let probes = TcpKeepalive::new().with_time(of(secs)).with_interval(of(secs / PROBES));
    SockRef::from(&socket.as_fd()).set_tcp_keepalive(&probes.with_retries(PROBES))
}

/// Those without an answer after which a peer is gone.
const PROBES: u32 = 4;

impl ProxyOptions {
    pub(crate) fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|range| range.contains(address))
    }
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            backlog: 4096,
            reuse_port: false,
            ipv6_only: false,
            tcp: TcpOptions::default(),
            unix_mode: None,
            proxy: None,
            tls: None,
            websocket: WebSocketOptions::default(),
        }
    }
}

impl Default for WebSocketOptions {
    fn default() -> Self {
        Self { origins: Origins::Any, trusted_forwarders: Vec::new(), frame_bytes_max: 256 << 20 }
    }
}

fn bind_inet(host: &str, port: u16, options: &ListenOptions) -> io::Result<ListenSocket> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "no address found for the host name");
    for address in Address::resolve_local(host, port)? {
        match bind_inet_address(address, options) {
            Ok(listener) => return Ok(ListenSocket::Tcp(listener)),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn bind_inet_address(address: SocketAddr, options: &ListenOptions) -> io::Result<TcpListener> {
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(options.ipv6_only)?;
    }
    socket.set_reuse_address(true)?;
    if options.reuse_port {
        socket.set_reuse_port(true)?;
    }
    options.tcp.apply(&socket)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog(options))?;
    Ok(TcpListener::from_std(socket.into()))
}

fn bind_unix(path: &Path, options: &ListenOptions) -> io::Result<ListenSocket> {
    if options.proxy.is_some() {
        let text = "the PROXY protocol is only for TCP listeners";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    remove_stale_socket(path)?;
    let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let _file = UnixFile::of(path)?;
    if let Some(mode) = options.unix_mode {
        // Nobody can connect before `listen`, so there is no moment with the wrong permissions.
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    socket.listen(backlog(options))?;
    let listener = UnixListener::from_std(socket.into());
    Ok(ListenSocket::Unix { listener, _file })
}

fn backlog(options: &ListenOptions) -> i32 {
    i32::try_from(options.backlog).unwrap_or(i32::MAX)
}

/// Removes a socket file that nobody serves, left behind by a crash. Anything else stays.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => {
            let text = "the path exists and is not a socket; remove it, or use another path";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    let probe = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        _ => Err(io::Error::from(io::ErrorKind::AddrInUse)),
    }
}

/// The file of a bound unix socket; removed on drop unless somebody replaced it meanwhile.
struct UnixFile {
    path: PathBuf,
    device_and_inode: (u64, u64),
}

impl UnixFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), device_and_inode: device_and_inode(path)? })
    }
}

impl Drop for UnixFile {
    fn drop(&mut self) {
        if device_and_inode(&self.path).is_ok_and(|found| found == self.device_and_inode) {
            // Nothing can be done about a failure here; the next start removes the stale file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn device_and_inode(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

impl Source for Listener {
    fn register(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        match &mut self.socket {
            ListenSocket::Tcp(listener) => listener.register(registry, token, interests),
            ListenSocket::Unix { listener, .. } => listener.register(registry, token, interests),
        }
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        match &mut self.socket {
            ListenSocket::Tcp(listener) => listener.reregister(registry, token, interests),
            ListenSocket::Unix { listener, .. } => listener.reregister(registry, token, interests),
        }
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match &mut self.socket {
            ListenSocket::Tcp(listener) => listener.deregister(registry),
            ListenSocket::Unix { listener, .. } => listener.deregister(registry),
        }
    }
}
