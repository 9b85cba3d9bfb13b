//! How every connection of a target is opened: resolve, check, connect, TLS.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use net::{TlsClientContext, TlsClientOptions, TlsError};
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::networks::{HostError, Networks};

/// Turns a name into addresses. It may wait.
pub trait Resolve: Send + Sync {
    /// # Errors
    ///
    /// The name is unknown, or nobody answers.
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// The resolver of the system.
pub struct System;

/// The files of TLS. They are read for each connection, so a renewed certificate counts from the
/// next connection on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM: the CAs that vouch for servers. None: those of the system.
    pub ca: Option<PathBuf>,
    /// PEM: the client's certificate chain; together with `key`.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// Opens connections. Clones share its limit of names that are being resolved.
#[derive(Clone)]
pub struct Dialer {
    resolver: Arc<dyn Resolve>,
    networks: Networks,
    tls: Option<TlsFiles>,
    time_max: Duration,
    resolving: Arc<Semaphore>,
    /// Connections that may be opened. None: the target is the operator's, and has limits of its
    /// own.
    connections: Option<Arc<Semaphore>>,
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum DialError {
    #[error("{host}: cannot resolve the name: {error}")]
    Resolve { host: String, error: io::Error },
    #[error("{host}: the name has no address")]
    NoAddress { host: String },
    #[error(
        "{host}: the address {address} is in a network of this machine: permit it in `networks` of \
        the target"
    )]
    NotPermitted { host: String, address: IpAddr },
    #[error(transparent)]
    OfTenant(#[from] HostError),
    #[error(
        "{host}: {TENANT_CONNECTIONS_MAX} connections are open, which is the maximum for a target of \
         a namespace"
    )]
    TooMany { host: String },
    #[error("{host}: cannot connect to {address}: {error}")]
    Connect { host: String, address: SocketAddr, error: io::Error },
    #[error("TLS: {0}")]
    TlsFiles(#[from] TlsError),
    #[error("{host}: not a name that a certificate can have")]
    ServerName { host: String },
    #[error("{host}: TLS: {error}")]
    Tls { host: String, error: io::Error },
    #[error("{host}: no connection within {} s", time_max.as_secs())]
    TimedOut { host: String, time_max: Duration },
}

/// A connection, with or without TLS.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// A connection that counts until it is dropped.
struct Counted {
    wire: Box<dyn Wire>,
    _permit: OwnedSemaphorePermit,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_read(context, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.wire).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_shutdown(context)
    }
}

impl Resolve for System {
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok((host, port).to_socket_addrs()?.collect())
    }
}

impl TlsFiles {
    /// Reads the files, as each connection does.
    ///
    /// # Errors
    ///
    /// One cannot be read, or is not what it has to be.
    pub fn check(&self) -> Result<(), TlsError> {
        TlsClientContext::load(&self.options()).map(|_| ())
    }

    fn options(&self) -> TlsClientOptions {
        TlsClientOptions {
            ca: self.ca.clone(),
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            ..TlsClientOptions::default()
        }
    }
}

impl Dialer {
    /// `time_max` is the limit of each connection, from the name to the end of the TLS handshake.
    pub fn new(
        resolver: Arc<dyn Resolve>,
        networks: Networks,
        tls: Option<TlsFiles>,
        time_max: Duration,
    ) -> Self {
        let resolving = Arc::new(Semaphore::new(RESOLVING_MAX));
        let is_of_tenant = networks.namespace().is_some();
        let connections = is_of_tenant.then(|| Arc::new(Semaphore::new(TENANT_CONNECTIONS_MAX)));
        Self { resolver, networks, tls, time_max, resolving, connections }
    }

    pub(crate) async fn connect(&self, host: &str, port: u16) -> Result<Box<dyn Wire>, DialError> {
        let own = self.connections.clone();
        let permit = own.map(Semaphore::try_acquire_owned).transpose();
        let permit = permit.map_err(|_| DialError::TooMany { host: host.to_owned() })?;
        let wire = match timeout(self.time_max, self.connect_now(host, port)).await {
            Ok(result) => result?,
            Err(_) => {
                let (host, time_max) = (host.to_owned(), self.time_max);
                return Err(DialError::TimedOut { host, time_max });
            }
        };
        Ok(match permit {
            Some(_permit) => Box::new(Counted { wire, _permit }),
            None => wire,
        })
    }

    async fn connect_now(&self, host: &str, port: u16) -> Result<Box<dyn Wire>, DialError> {
        self.networks.check_host(host)?;
        let addresses = self.permitted(host, self.resolve(host, port).await?)?;
        let stream = connect_to_any(host, &addresses).await?;
        let Some(files) = &self.tls else { return Ok(Box::new(stream)) };
        let options = files.options();
        let host = host.to_owned();
        let loaded = spawn_blocking(move || TlsClientContext::load(&options)).await;
        let context = loaded.map_err(|error| DialError::Tls {
            host: host.clone(),
            error: io::Error::other(error),
        })??;
        let Ok(name) = ServerName::try_from(host.clone()) else {
            return Err(DialError::ServerName { host });
        };
        let connector = TlsConnector::from(Arc::clone(context.config()));
        match connector.connect(name, stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(DialError::Tls { host, error }),
        }
    }

    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, DialError> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        // The permit goes with the thread: after a time-out the resolver may still work.
        let permit = Arc::clone(&self.resolving).acquire_owned().await;
        let resolver = Arc::clone(&self.resolver);
        let name = host.to_owned();
        let resolved = spawn_blocking(move || {
            let _permit = permit;
            resolver.resolve(&name, port)
        })
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)));
        resolved.map_err(|error| DialError::Resolve { host: host.to_owned(), error })
    }

    fn permitted(
        &self,
        host: &str,
        addresses: Vec<SocketAddr>,
    ) -> Result<Vec<SocketAddr>, DialError> {
        let host = host.to_owned();
        let Some(first) = addresses.first().copied() else {
            return Err(DialError::NoAddress { host });
        };
        let (mut permitted, _): (Vec<_>, Vec<_>) =
            addresses.into_iter().partition(|address| self.networks.permits(address.ip()));
        permitted.truncate(ADDRESSES_MAX);
        match (permitted.is_empty(), self.networks.refused(&host)) {
            (false, _) => Ok(permitted),
            (true, Some(error)) => Err(error.into()),
            (true, None) => Err(DialError::NotPermitted { host, address: first.ip() }),
        }
    }
}

/// Tries the addresses in turn. The connection has the address that was checked: the name is not
/// resolved again.
async fn connect_to_any(host: &str, addresses: &[SocketAddr]) -> Result<TcpStream, DialError> {
    let mut last = None;
    for &address in addresses {
        let result = match timeout(ADDRESS_TIME_MAX, TcpStream::connect(address)).await {
            Ok(result) => result,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        match result.and_then(|stream| stream.set_nodelay(true).map(|()| stream)) {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                last = Some(DialError::Connect { host: host.to_owned(), address, error });
            }
        }
    }
    Err(last.unwrap_or_else(|| DialError::NoAddress { host: host.to_owned() }))
}

/// Connections of a target that users of a namespace have written. Servers that they run could name
/// any number of further servers. Policy: a further one is refused.
pub const TENANT_CONNECTIONS_MAX: usize = 32;
/// Names that a target resolves at a time, hanging ones included.
const RESOLVING_MAX: usize = 4;
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;
/// For each of them; the limit of the whole connection is the dialer's.
const ADDRESS_TIME_MAX: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    struct Fixed(Vec<SocketAddr>);

    impl Resolve for Fixed {
        fn resolve(&self, _host: &str, _port: u16) -> io::Result<Vec<SocketAddr>> {
            Ok(self.0.clone())
        }
    }

    struct Hanging;

    impl Resolve for Hanging {
        fn resolve(&self, _host: &str, _port: u16) -> io::Result<Vec<SocketAddr>> {
            std::thread::sleep(Duration::from_millis(500));
            Ok(Vec::new())
        }
    }

    fn dialer(resolver: impl Resolve + 'static, permitted: &[&str]) -> Dialer {
        let permitted = permitted.iter().map(|network| network.parse().unwrap()).collect();
        let networks = Networks::permitting(permitted);
        Dialer::new(Arc::new(resolver), networks, None, Duration::from_millis(100))
    }

    #[tokio::test]
    async fn a_name_that_leads_to_an_own_network_is_refused_before_connecting() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let error =
            dialer(Fixed(vec![address]), &[]).connect("kafka.example", address.port()).await;
        let error = error.err().unwrap();
        assert!(matches!(error, DialError::NotPermitted { .. }), "{error}");
        assert!(error.to_string().contains("kafka.example: the address 127.0.0.1"), "{error}");
        let error = dialer(System, &[]).connect("127.0.0.1", address.port()).await;
        assert!(matches!(error, Err(DialError::NotPermitted { .. })));
        let nobody = timeout(Duration::from_millis(20), listener.accept()).await;
        assert!(nobody.is_err(), "nobody connects");
    }

    #[tokio::test]
    async fn a_tenant_is_refused_a_name_ahead_of_and_behind_its_resolution() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connect = async |networks, host| {
            let (resolver, time_max) = (Arc::new(Fixed(vec![address])), Duration::from_millis(500));
            let dialer = Dialer::new(resolver, networks, None, time_max);
            dialer.connect(host, address.port()).await.map(drop).map_err(|error| error.to_string())
        };
        let hosts = || vec!["*.acme.example".to_owned()];
        let public = Networks::of_namespace("acme", hosts(), Vec::new());
        let error = connect(public.clone(), "kafka.example").await.unwrap_err();
        assert!(error.contains("not among `target_hosts` of namespace 'acme'"), "{error}");
        let error = connect(public, "a.acme.example").await.unwrap_err();
        assert!(error.contains("the address is not public"), "{error}");
        assert!(!error.contains("127.0.0.1"), "what names lead to is not for tenants: {error}");
        let local = vec!["127.0.0.0/8".parse().unwrap()];
        let local = Networks::of_namespace("acme", hosts(), local);
        assert_eq!(connect(local, "a.acme.example").await, Ok(()));
    }

    #[tokio::test]
    async fn a_tenant_has_so_many_connections_and_no_more() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let local = vec!["127.0.0.0/8".parse().unwrap()];
        let networks = Networks::of_namespace("acme", Vec::new(), local);
        let dialer = Dialer::new(Arc::new(System), networks, None, Duration::from_secs(5));
        let mut open = Vec::new();
        for _ in 0..TENANT_CONNECTIONS_MAX {
            open.push(dialer.connect("127.0.0.1", port).await.unwrap());
            drop(listener.accept().await.unwrap());
        }
        let error = dialer.clone().connect("127.0.0.1", port).await.map(drop).unwrap_err();
        assert!(matches!(error, DialError::TooMany { .. }), "{error}");
        open.pop();
        assert!(dialer.connect("127.0.0.1", port).await.is_ok());
        drop(listener);
        assert!(dialer.connect("127.0.0.1", port).await.is_err());
        assert_eq!(dialer.connections.unwrap().available_permits(), 1, "a failure keeps none");
    }

    #[tokio::test]
    async fn of_several_addresses_only_permitted_ones_are_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let metadata = "169.254.169.254:80".parse().unwrap();
        let dialer = dialer(Fixed(vec![metadata, address]), &["127.0.0.0/8"]);
        assert!(dialer.connect("kafka.example", 1).await.is_ok());
    }

    #[tokio::test]
    async fn a_resolver_that_hangs_does_not_hang_the_caller() {
        let error = dialer(Hanging, &[]).connect("kafka.example", 9092).await.err().unwrap();
        assert!(matches!(error, DialError::TimedOut { .. }), "{error}");
    }

    #[tokio::test]
    async fn errors_say_what_failed() {
        let error = dialer(Fixed(Vec::new()), &[]).connect("kafka.example", 1).await.err().unwrap();
        assert_eq!(error.to_string(), "kafka.example: the name has no address");
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let error = dialer(System, &["127.0.0.1"]).connect("127.0.0.1", free.port()).await;
        let error = error.err().unwrap();
        assert!(matches!(error, DialError::Connect { .. }), "{error}");
    }
}
