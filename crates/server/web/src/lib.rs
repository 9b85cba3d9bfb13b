//! A small HTTP server on a thread and a runtime of its own, so that nothing that is asked there
//! delays a message. What it answers is an axum router. [`agent`] is a client that blocks.
//!
//! Whoever reaches the address may ask: one request for each connection, few places, and a time
//! for everything.

mod body;
mod client;
mod escapes;
mod lasting;
mod permits;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::server::conn::http1;
use hyper::service::Service as _;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use net::{CertificateInfo, TlsContext};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

pub use axum;
pub use body::{BodyError, read_body};
pub use client::{ClientTls, agent, http_url, ureq};
pub use escapes::{percent_decoded, percent_encoded};
use lasting::Slot;
pub use lasting::{Lasting, stream, stream_of_parts};
use permits::ConnectionPermits;

/// Who asks: in the extensions of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerAddress(pub IpAddr);

/// The certificate of who asks, which was verified: in the extensions of each request that came
/// with one.
#[derive(Clone, Debug)]
pub struct CallerCertificate(pub Arc<CertificateInfo>);

/// What a server allows.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// At the limit a connection of the address with the most of them makes room.
    pub connections_max: usize,
    /// At the limit one of them makes room.
    pub connections_per_address_max: usize,
    /// For all of a request but its body.
    pub head_time_max: Duration,
    /// From accept to the last byte of the answer. Who reads nothing must not hold a place for
    /// ever.
    pub connection_time_max: Duration,
    /// For what answers block on (`tokio::task::spawn_blocking`); more have to wait.
    pub blocking_threads_max: usize,
    /// An idle connection is probed after this time ([`net::set_keepalive`]). None: never.
    pub keepalive_secs: Option<u32>,
}

impl Default for Limits {
    /// For scrapers and probes, which are few.
    fn default() -> Self {
        Self {
            connections_max: 64,
            connections_per_address_max: 16,
            head_time_max: Duration::from_secs(10),
            connection_time_max: Duration::from_secs(60),
            blocking_threads_max: 1,
            keepalive_secs: None,
        }
    }
}

/// The running server. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Binds `address` (port 0: any free port) and serves until dropped.
    ///
    /// # Errors
    ///
    /// When the address cannot be bound or the thread cannot be started.
    pub fn start(address: impl ToSocketAddrs, limits: Limits, router: Router) -> io::Result<Self> {
        Self::start_with(address, None, limits, router)
    }

    /// The same, over TLS if there is a context.
    ///
    /// # Errors
    ///
    /// As of [`Server::start`].
    pub fn start_with(
        address: impl ToSocketAddrs,
        tls: Option<Arc<TlsContext>>,
        limits: Limits,
        router: Router,
    ) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        net::set_keepalive(&listener, limits.keepalive_secs)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(limits.blocking_threads_max)
            .thread_name("http")
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            runtime.block_on(async move {
                tokio::select! {
                    result = accept(listener, tls, limits, router) => {
                        if let Err(error) = result {
                            tracing::error!(%error, "the HTTP server stopped");
                        }
                    }
                    // Dropped senders count as a stop, too.
                    _ = stopped => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("http".into()).spawn(serve)?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has reported it itself.
            let _ = thread.join();
        }
    }
}

/// Does what blocks on a thread of its own, so that no other request waits for it. `None` if it
/// panicked, which it has reported itself.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

async fn accept(
    listener: std::net::TcpListener,
    tls: Option<Arc<TlsContext>>,
    limits: Limits,
    router: Router,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let permits = Arc::new(ConnectionPermits::new(limits));
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let is_asking = Arc::new(AtomicBool::new(false));
                let caller = CallerAddress(peer.ip());
                let service = Service { caller, limits, router: router.clone(), is_asking };
                let is_asking = service.is_asking.clone();
                // A context that was reloaded counts for connections from then on.
                let tls = tls.as_ref().map(|tls| tls.config());
                permits.spawn(peer.ip(), is_asking, service.serve_behind(tls, stream));
            }
            Err(error) => {
                // Out of descriptors, most likely: one of ours may be what is missing.
                permits.close_one();
                tracing::warn!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// What a connection is served with.
struct Service {
    caller: CallerAddress,
    limits: Limits,
    router: Router,
    is_asking: Arc<AtomicBool>,
}

impl Service {
    /// The handshake has the time of a head: until then the connection asks nothing, and makes room
    /// for others.
    async fn serve_behind(self, tls: Option<Arc<ServerConfig>>, stream: TcpStream) {
        let Some(tls) = tls else { return serve(self, stream, None).await };
        let time_max = self.limits.head_time_max;
        match tokio::time::timeout(time_max, handshake(tls, stream)).await {
            Ok(Ok(stream)) => {
                let certificate = certificate_of(&stream);
                serve(self, stream, certificate).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake for HTTP failed"),
            Err(_) => tracing::debug!("a TLS handshake for HTTP took too long"),
        }
    }
}

async fn handshake(tls: Arc<ServerConfig>, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    let mut first = [0];
    if stream.peek(&mut first).await? > 0 && first[0].is_ascii_alphabetic() {
        // The first byte of a handshake is 0x16. This is a request in clear text.
        // Bytes that nobody reads would reset the connection before the answer is seen.
        let _ = stream.try_read(&mut [0; HEAD_BYTES_MAX]);
        stream.writable().await?;
        stream.try_write(IN_CLEAR)?;
        return Err(io::Error::other("a request in clear text"));
    }
    TlsAcceptor::from(tls).accept(stream).await
}

fn certificate_of(stream: &TlsStream<TcpStream>) -> Option<CallerCertificate> {
    let certificate = stream.get_ref().1.peer_certificates()?.first()?;
    net::certificate_info(certificate).map(|info| CallerCertificate(Arc::new(info)))
}

async fn serve(
    service: Service,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    certificate: Option<CallerCertificate>,
) {
    let Service { caller, limits, router, is_asking } = service;
    let router = TowerToHyperService::new(router);
    let lasting = Slot::default();
    let answers = lasting.clone();
    let answer = hyper::service::service_fn(move |mut request: Request<_>| {
        is_asking.store(true, Ordering::Relaxed);
        request.extensions_mut().insert(caller);
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        let response = router.call(request);
        let answers = answers.clone();
        async move {
            let mut response = response.await.unwrap_or_else(|never| match never {});
            answers.keep(response.extensions_mut().remove());
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time_max)
        .keep_alive(false)
        // A client that shuts its writing side still gets the answer to its request.
        .half_close(true)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    let mut connection = std::pin::pin!(connection);
    let mut ended = tokio::time::timeout(limits.connection_time_max, connection.as_mut()).await;
    if ended.is_err()
        && let Some(lasting) = lasting.take()
    {
        ended = lasting.while_open(connection).await;
    }
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an HTTP connection failed"),
        Err(_) => tracing::debug!("an HTTP connection was open for too long"),
    }
}

const IN_CLEAR: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\
Connection: close\r\nContent-Length: 35\r\n\r\nthis port needs https://, not HTTP\n";

const HEAD_BYTES_MAX: usize = 16 << 10;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use axum::http::StatusCode;
    use axum::response::{IntoResponse, Response};

    use super::*;

    async fn echo(request: Request) -> Response {
        let line = format!("{} {}", request.method(), request.uri());
        match body::read_within(request.into_body(), 100, Duration::from_millis(50)).await {
            Ok(body) => format!("{line} {}", String::from_utf8_lossy(&body)).into_response(),
            Err(error @ BodyError::TooLong { .. }) => {
                (StatusCode::PAYLOAD_TOO_LARGE, error.to_string()).into_response()
            }
            Err(error) => (StatusCode::REQUEST_TIMEOUT, error.to_string()).into_response(),
        }
    }

    fn start(limits: Limits) -> Server {
        Server::start("127.0.0.1:0", limits, Router::new().fallback(echo)).expect("a server")
    }

    fn read(mut stream: TcpStream) -> String {
        let mut text = Vec::new();
        // A server that closes with bytes unread may reset the connection behind its answer.
        let _ = stream.read_to_end(&mut text);
        String::from_utf8(text).expect("text")
    }

    fn send(server: &Server, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(server.address()).expect("a connection");
        stream.write_all(request.as_bytes()).expect("room for a request");
        stream
    }

    #[test]
    fn requests_are_heard_whole_or_refused() {
        let server = start(Limits::default());
        let body = |request: &str| {
            let text = read(send(&server, request));
            text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
        };
        assert_eq!(body("GET /a?b=c HTTP/1.1\r\n\r\n"), "GET /a?b=c ");
        assert_eq!(body("GET /a HTTP/1.0\n\n"), "GET /a ");
        assert_eq!(body("HEAD /a HTTP/1.1\r\n\r\n"), "");
        let post = "POST /a HTTP/1.1\r\ncontent-length: 3\r\n\r\nxyz";
        assert_eq!(body(post), "POST /a xyz");
        let chunked = "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nxy\r\n0\r\n\r\n";
        assert_eq!(body(chunked), "POST /a xy");
        let long_body = format!("POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n{:101}", "");
        let long_head = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(HEAD_BYTES_MAX));
        for (request, status) in [
            (long_body.as_str(), "413"),
            (&long_head, "431"),
            ("POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\nx", "400"),
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", "400"),
            ("nonsense\r\n\r\n", "400"),
            ("POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf", "408"),
        ] {
            let text = read(send(&server, request));
            // Of a head that is too long the answer may be lost.
            let is_lost = status == "431" && text.is_empty();
            assert!(is_lost || text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
        }
        let two = "GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n";
        assert!(body(two).ends_with("GET /a "), "one request for each connection");
    }

    #[test]
    fn who_has_asked_and_writes_no_more_is_answered() {
        let (release, held) = oneshot::channel::<()>();
        let (began, begins) = std::sync::mpsc::channel();
        let held = Arc::new(tokio::sync::Mutex::new(Some(held)));
        let answer = move || {
            let (began, held) = (began.clone(), held.clone());
            async move {
                began.send(()).expect("a test that waits");
                let held = held.lock().await.take();
                if let Some(held) = held {
                    let _ = held.await;
                }
                "late"
            }
        };
        let router = Router::new().fallback(answer);
        let server = Server::start("127.0.0.1:0", Limits::default(), router).expect("a server");
        let stream = send(&server, "GET / HTTP/1.1\r\n\r\n");
        stream.shutdown(std::net::Shutdown::Write).expect("a half");
        begins.recv().expect("a request");
        // The server has seen the end of the requests before it answers.
        let other = send(&server, "GET / HTTP/1.1\r\n\r\n");
        begins.recv().expect("a second request");
        assert!(read(other).ends_with("late"));
        release.send(()).expect("a request that waits");
        assert!(read(stream).ends_with("late"));
    }

    #[test]
    fn who_writes_no_more_before_it_has_asked_is_gone() {
        let hour = Duration::from_secs(3_600);
        let limits = Limits { head_time_max: hour, connection_time_max: hour, ..Limits::default() };
        let server = start(limits);
        for half in ["", "GET / HT", "GET / HTTP/1.1\r\nx: y"] {
            let stream = send(&server, half);
            stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out");
            stream.shutdown(std::net::Shutdown::Write).expect("a half");
            let mut answer = Vec::new();
            let end = (&stream).read_to_end(&mut answer);
            // Closed, by an answer of an error or without one.
            assert!(end.is_ok(), "{half:?}: {end:?}");
            assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{half:?}");
        }
        let stream = send(&server, "POST /a HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf");
        stream.shutdown(std::net::Shutdown::Write).expect("a half");
        assert!(!read(stream).contains(" 200 "), "half a body is none");
    }

    #[test]
    fn a_body_that_waits_to_be_asked_for_is_asked_for() {
        let server = start(Limits::default());
        let head = "POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok";
        let (head, body) = head.split_at(head.len() - 2);
        let mut stream = send(&server, head);
        let mut go_on = [0; 25];
        stream.read_exact(&mut go_on).expect("an answer");
        assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(body.as_bytes()).expect("room for a body");
        assert!(read(stream).ends_with("POST /a ok"));
    }

    #[test]
    fn who_says_half_goes_in_time() {
        let head_time_max = Duration::from_millis(50);
        let server = start(Limits { head_time_max, ..Limits::default() });
        assert_eq!(read(send(&server, "GET / HT")), "");
        let connection_time_max = Duration::from_millis(50);
        let server = start(Limits { connection_time_max, ..Limits::default() });
        assert_eq!(read(send(&server, "GET / HT")), "");
    }

    #[test]
    fn an_answer_that_goes_on_lasts_until_it_is_over() {
        use tokio::sync::{mpsc, oneshot};

        type Ends = (mpsc::Sender<axum::body::Bytes>, oneshot::Sender<()>);
        let (give, given) = std::sync::mpsc::channel::<Ends>();
        let answer = move || {
            let (queue, words) = mpsc::channel(8);
            let (open, over) = oneshot::channel();
            give.send((queue, open)).expect("a test that waits");
            async move {
                let mut response = stream(words).into_response();
                response.extensions_mut().insert(Lasting::until(over));
                response
            }
        };
        // Other answers would have no time at all.
        let limits = Limits { connection_time_max: Duration::from_millis(1), ..Limits::default() };
        let router = Router::new().fallback(answer);
        let server = Server::start("127.0.0.1:0", limits, router).expect("a server");
        let mut stream = send(&server, "GET / HTTP/1.0\r\n\r\n");
        let (queue, open) = given.recv().expect("a request");
        let mut answers = Vec::new();
        for word in ["one", "two", "three"] {
            queue.blocking_send(word.into()).expect("a reader");
            let mut bytes = [0; 512];
            while !String::from_utf8_lossy(&answers).ends_with(word) {
                let count = stream.read(&mut bytes).expect("bytes");
                assert!(count > 0, "it ended early: {}", String::from_utf8_lossy(&answers));
                answers.extend_from_slice(&bytes[..count]);
            }
        }
        drop((queue, open));
        assert_eq!(read(stream), "");
    }

    #[test]
    fn who_says_nothing_makes_room_for_who_does() {
        // No time-out could help here: it is an hour.
        let hour = Duration::from_secs(3_600);
        let (head_time_max, connection_time_max) = (hour, hour);
        let (connections_max, connections_per_address_max) = (3, 3);
        let server = start(Limits {
            connections_max,
            connections_per_address_max,
            head_time_max,
            connection_time_max,
            ..Limits::default()
        });
        let mut idle: Vec<_> = (0..9).map(|_| send(&server, "")).collect();
        for _ in 0..3 {
            assert!(read(send(&server, "GET /a HTTP/1.1\r\n\r\n")).ends_with("GET /a "));
        }
        assert_eq!(read(idle.remove(0)), "", "the oldest was sent away, with nothing");
    }
}
