//! A SOCKS5 server on loopback, for one client library: through it, all connections of a library
//! that resolves and dials by itself are opened by our [`Dialer`].
//!
//! TLS begins and ends here as well, so the library speaks plain text over loopback. Name and
//! password are random, so no other process of this machine can use the relay.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::dial::{DialError, Dialer};
use crate::versions::negotiate;

/// The running relay. Dropping it closes its connections.
pub(crate) struct Relay {
    address: SocketAddr,
    login: Login,
    last_fault: LastFault,
    accepting: JoinHandle<()>,
}

/// Random texts, as SOCKS5 has them (RFC 1929).
#[derive(Clone)]
struct Login {
    name: String,
    password: String,
}

/// Why the last connection failed, in words: the library only learns a number.
#[derive(Clone, Default)]
pub(crate) struct LastFault(Arc<Mutex<Option<Arc<str>>>>);

impl Relay {
    /// # Errors
    ///
    /// No port, or no random bytes.
    pub(crate) async fn start(dialer: Dialer) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let login = Login::random()?;
        let last_fault = LastFault::default();
        let work = accept(listener, dialer, login.clone(), last_fault.clone());
        Ok(Self { address, login, last_fault, accepting: tokio::spawn(work) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Name and password.
    pub(crate) fn login(&self) -> (&str, &str) {
        (&self.login.name, &self.login.password)
    }

    pub(crate) fn last_fault(&self) -> &LastFault {
        &self.last_fault
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Login {
    fn random() -> io::Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { name: hex(&bytes[..8]), password: hex(&bytes[8..]) })
    }

    fn is(&self, name: &[u8], password: &[u8]) -> bool {
        let is_same = |a: &[u8], b: &[u8]| {
            a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
        };
        is_same(self.name.as_bytes(), name) & is_same(self.password.as_bytes(), password)
    }
}

impl LastFault {
    pub(crate) fn get(&self) -> Option<Arc<str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, fault: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = fault.map(Arc::from);
    }
}

async fn accept(listener: TcpListener, dialer: Dialer, login: Login, last_fault: LastFault) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((client, _)) => {
                let (dialer, login) = (dialer.clone(), login.clone());
                let last_fault = last_fault.clone();
                connections.spawn(async move {
                    // The library sees the end of the connection, and tries again.
                    let _ = serve(client, &dialer, &login, &last_fault).await;
                    drop(permit);
                });
            }
            // No file descriptor is free, for example.
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn serve(
    mut client: TcpStream,
    dialer: &Dialer,
    login: &Login,
    last_fault: &LastFault,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (host, port) = timeout(GREETING_TIME_MAX, greet(&mut client, login)).await??;
    let mut server = match dialer.connect(&host, port).await {
        Ok(server) => server,
        Err(error) => {
            last_fault.set(Some(error.to_string()));
            return client.write_all(&reply(code_of(&error))).await;
        }
    };
    client.write_all(&reply(SUCCEEDED)).await?;
    let negotiation = negotiate(&mut client, &mut server);
    match timeout(NEGOTIATION_TIME_MAX, negotiation).await {
        Ok(Ok(())) => last_fault.set(None),
        Ok(Err(error)) => {
            last_fault.set(Some(format!("{host}:{port}: closed before the login ended: {error}")));
            return Err(error);
        }
        Err(elapsed) => {
            last_fault.set(Some(format!("{host}:{port}: no answer to the login")));
            return Err(elapsed.into());
        }
    }
    let (client_reader, client_writer) = client.split();
    let (server_reader, server_writer) = split(server);
    // Once one side has closed, the other has nobody to talk to.
    tokio::select! {
        end = pass(client_reader, server_writer) => end,
        end = pass(server_reader, client_writer) => end,
    }
}

/// Passes bytes on, until there are no more.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut into: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut buffer = vec![0; PASSED_BYTES];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        into.write_all(&buffer[..count]).await?;
        into.flush().await?;
    }
}

/// The part of SOCKS5 (RFC 1928) that a client sends to open one connection.
async fn greet(client: &mut TcpStream, login: &Login) -> io::Result<(String, u16)> {
    let [version, count] = read(client).await?;
    let mut methods = vec![0; usize::from(count)];
    client.read_exact(&mut methods).await?;
    if version != SOCKS_5 || !methods.contains(&METHOD_PASSWORD) {
        client.write_all(&[SOCKS_5, METHOD_NONE]).await?;
        return Err(refused("no login offered"));
    }
    client.write_all(&[SOCKS_5, METHOD_PASSWORD]).await?;
    let [_version, count] = read(client).await?;
    let name = read_text(client, count).await?;
    let [count] = read(client).await?;
    let password = read_text(client, count).await?;
    if !login.is(&name, &password) {
        client.write_all(&[LOGIN_VERSION, 1]).await?;
        return Err(refused("wrong login"));
    }
    client.write_all(&[LOGIN_VERSION, 0]).await?;
    let [_version, command, _reserved, kind] = read(client).await?;
    let host = match kind {
        KIND_V4 => IpAddr::from(Ipv4Addr::from(read::<4>(client).await?)).to_string(),
        KIND_V6 => IpAddr::from(Ipv6Addr::from(read::<16>(client).await?)).to_string(),
        KIND_NAME => {
            let [count] = read(client).await?;
            let name = read_text(client, count).await?;
            String::from_utf8(name).map_err(|_| refused("not a name"))?
        }
        _ => return Err(refused("unknown kind of address")),
    };
    let port = u16::from_be_bytes(read(client).await?);
    if command != CONNECT {
        client.write_all(&reply(COMMAND_UNSUPPORTED)).await?;
        return Err(refused("not CONNECT"));
    }
    // Kafka's way to write an IPv6 address.
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok((host, port))
}

async fn read<const N: usize>(client: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn read_text(client: &mut TcpStream, count: u8) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::from(count)];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}

fn reply(code: u8) -> [u8; 10] {
    [SOCKS_5, code, 0, KIND_V4, 0, 0, 0, 0, 0, 0]
}

fn code_of(error: &DialError) -> u8 {
    match error {
        DialError::NotPermitted { .. } | DialError::OfTenant(_) => NOT_ALLOWED,
        DialError::Resolve { .. } | DialError::NoAddress { .. } => HOST_UNREACHABLE,
        DialError::Connect { .. } => CONNECTION_REFUSED,
        _ => FAILURE,
    }
}

fn refused(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Kafka's largest clusters have some hundred servers.
const CONNECTIONS_MAX: usize = 1024;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const GREETING_TIME_MAX: Duration = Duration::from_secs(5);
const NEGOTIATION_TIME_MAX: Duration = Duration::from_secs(30);
const PASSED_BYTES: usize = 64 * 1024;

const SOCKS_5: u8 = 5;
const LOGIN_VERSION: u8 = 1;
const METHOD_PASSWORD: u8 = 2;
const METHOD_NONE: u8 = 0xff;
const CONNECT: u8 = 1;
const KIND_V4: u8 = 1;
const KIND_NAME: u8 = 3;
const KIND_V6: u8 = 4;
const SUCCEEDED: u8 = 0;
const FAILURE: u8 = 1;
const NOT_ALLOWED: u8 = 2;
const HOST_UNREACHABLE: u8 = 4;
const CONNECTION_REFUSED: u8 = 5;
const COMMAND_UNSUPPORTED: u8 = 7;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dial::System;
    use crate::networks::Networks;

    async fn relay(permitted: &[&str]) -> Relay {
        let permitted = permitted.iter().map(|network| network.parse().unwrap()).collect();
        let networks = Networks::permitting(permitted);
        let time_max = Duration::from_secs(5);
        Relay::start(Dialer::new(Arc::new(System), networks, None, time_max)).await.unwrap()
    }

    /// Logs in and asks for an address; the code of the answer.
    async fn ask(relay: &Relay, login: (&str, &str), port: u16) -> io::Result<(TcpStream, u8)> {
        let mut client = TcpStream::connect(relay.address()).await?;
        client.write_all(&[5, 1, 2]).await?;
        assert_eq!(read(&mut client).await?, [5, 2]);
        let mut request = vec![1, login.0.len() as u8];
        request.extend(login.0.bytes());
        request.push(login.1.len() as u8);
        request.extend(login.1.bytes());
        client.write_all(&request).await?;
        if read(&mut client).await? != [1, 0] {
            return Err(refused("login"));
        }
        client.write_all(&[5, 1, 0, KIND_V4, 127, 0, 0, 1]).await?;
        client.write_all(&port.to_be_bytes()).await?;
        let answer: [u8; 10] = read(&mut client).await?;
        Ok((client, answer[1]))
    }

    #[tokio::test]
    async fn connections_pass_through_the_check_of_addresses() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let strict = relay(&[]).await;
        let (_client, code) = ask(&strict, strict.login(), port).await.unwrap();
        assert_eq!(code, NOT_ALLOWED);
        let fault = strict.last_fault().get().unwrap();
        assert!(fault.contains("127.0.0.1") && fault.contains("permit it"), "{fault}");
        let networks = Networks::of_namespace("acme", vec!["*".into()], Vec::new());
        let dialer = Dialer::new(Arc::new(System), networks, None, Duration::from_secs(5));
        let of_tenant = Relay::start(dialer).await.unwrap();
        let (_client, code) = ask(&of_tenant, of_tenant.login(), port).await.unwrap();
        assert_eq!(code, NOT_ALLOWED);
        let fault = of_tenant.last_fault().get().unwrap();
        assert!(fault.contains("not in `target_networks` of namespace 'acme'"), "{fault}");
        let open = relay(&["127.0.0.0/8"]).await;
        let (_client, code) = ask(&open, open.login(), port).await.unwrap();
        assert_eq!(code, SUCCEEDED);
    }

    #[tokio::test]
    async fn only_its_own_client_may_use_it() {
        let relay = relay(&["127.0.0.0/8"]).await;
        let (name, password) = relay.login();
        assert!(ask(&relay, (name, "x"), 1).await.is_err());
        assert!(ask(&relay, ("", password), 1).await.is_err());
        let mut client = TcpStream::connect(relay.address()).await.unwrap();
        client.write_all(&[5, 1, 0]).await.unwrap();
        assert_eq!(read(&mut client).await.unwrap(), [5, METHOD_NONE]);
    }

    #[tokio::test]
    async fn dropping_it_closes_its_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let relay = relay(&["127.0.0.0/8"]).await;
        let (mut client, _) = ask(&relay, relay.login(), port).await.unwrap();
        drop(relay);
        let end = timeout(Duration::from_secs(5), client.read(&mut [0; 1])).await.unwrap();
        assert!(matches!(end, Ok(0) | Err(_)));
    }
}
