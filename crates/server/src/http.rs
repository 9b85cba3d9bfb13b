//! HTTP for operators: `/metrics`, `/healthz`, `/readyz`, on a thread and a runtime of its own, so
//! that nothing an operator asks for delays a message.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};

/// The running HTTP server. Dropping it stops it.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// How the broker is, for `/healthz` and `/readyz`. Shared; starts as [`State::Starting`].
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<AtomicU8>);

/// What the broker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not ready yet: healthy, but clients would find no listener.
    Starting,
    /// Healthy and ready.
    Ready,
    /// Shutting down: healthy, but not ready for new clients.
    Stopping,
    /// Neither healthy nor ready, for a fault that a restart may cure, such as a disk that failed.
    Failed,
}

/// Writes the metrics in Prometheus' text format.
pub type Metrics = Arc<dyn Fn() -> String + Send + Sync>;

impl HttpServer {
    /// Binds `address` (port 0: any free port) and serves until dropped.
    ///
    /// # Errors
    ///
    /// When the address cannot be bound or the thread cannot be started.
    pub fn start(address: SocketAddr, health: Health, metrics: Metrics) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            runtime.block_on(async move {
                tokio::select! {
                    result = accept(listener, Pages { health, metrics }) => {
                        if let Err(error) = result {
                            tracing::error!(%error, "the HTTP server ended");
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

impl Drop for HttpServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has told so itself.
            let _ = thread.join();
        }
    }
}

impl Health {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn set(&self, state: State) {
        self.0.store(state as u8, Ordering::Relaxed);
    }

    /// From `Starting` to `Ready`; a fault that came before stays.
    pub fn set_ready(&self) {
        let (starting, ready) = (State::Starting as u8, State::Ready as u8);
        let _ = self.0.compare_exchange(starting, ready, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub fn state(&self) -> State {
        const STATES: [State; 4] = [State::Starting, State::Ready, State::Stopping, State::Failed];
        STATES[usize::from(self.0.load(Ordering::Relaxed)) % STATES.len()]
    }
}

/// What the pages show.
#[derive(Clone)]
struct Pages {
    health: Health,
    metrics: Metrics,
}

impl Pages {
    fn answer(&self, request: &Request<Incoming>) -> Response<String> {
        let state = self.health.state();
        let name = format!("{state:?}\n").to_lowercase();
        let check = |is_fine: bool| match is_fine {
            true => page(StatusCode::OK, TEXT, name.clone()),
            false => page(StatusCode::SERVICE_UNAVAILABLE, TEXT, name.clone()),
        };
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let text = "only GET and HEAD are answered\n".to_owned();
            let mut response = page(StatusCode::METHOD_NOT_ALLOWED, TEXT, text);
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match request.uri().path() {
            "/healthz" => check(state != State::Failed),
            "/readyz" => check(state == State::Ready),
            "/metrics" => page(StatusCode::OK, PROMETHEUS, (self.metrics)()),
            _ => page(StatusCode::NOT_FOUND, TEXT, "try /metrics, /healthz or /readyz\n".into()),
        }
    }
}

async fn accept(listener: std::net::TcpListener, pages: Pages) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // At the limit further connections wait in the system's queue.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        match listener.accept().await {
            Ok((stream, _)) => {
                let pages = pages.clone();
                tokio::spawn(async move {
                    serve(stream, pages).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: others will be closed meanwhile.
                tracing::warn!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, pages: Pages) {
    let answer = move |request: Request<Incoming>| {
        let response = pages.answer(&request);
        async move { Ok::<_, Infallible>(response) }
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(REQUEST_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an HTTP connection failed"),
        Err(_) => tracing::debug!("an HTTP connection was open for too long"),
    }
}

fn page(status: StatusCode, content_type: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

const TEXT: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Scrapers and probes are few.
const CONNECTIONS_MAX: usize = 64;
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// A request that takes longer ends its connection, also while waiting for the next one.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(75);
/// A connection that reads nothing must not hold its place for ever.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(600);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    fn try_to_ask(address: SocketAddr, request: &str) -> io::Result<String> {
        let mut stream = std::net::TcpStream::connect(address)?;
        let request = format!("{request}\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        try_to_ask(address, request).unwrap()
    }

    fn status(address: SocketAddr, path: &str) -> String {
        ask(address, &format!("GET {path} HTTP/1.1"))[9..12].to_owned()
    }

    #[test]
    fn pages_say_how_the_broker_is() {
        let health = Health::new();
        let metrics: Metrics = Arc::new(|| "quelea_connections 3\n".to_owned());
        // One that nobody else is given once the server has gone.
        let port = net::free_port().unwrap();
        let server =
            HttpServer::start(([127, 0, 0, 1], port).into(), health.clone(), metrics).unwrap();
        let address = server.address();
        for (state, healthy, ready) in [
            (State::Starting, "200", "503"),
            (State::Ready, "200", "200"),
            (State::Stopping, "200", "503"),
            (State::Failed, "503", "503"),
        ] {
            health.set(state);
            assert_eq!(health.state(), state);
            assert_eq!(status(address, "/healthz"), healthy, "{state:?}");
            assert_eq!(status(address, "/readyz"), ready, "{state:?}");
        }
        assert_eq!(status(address, "/"), "404");
        let metrics = ask(address, "GET /metrics HTTP/1.1");
        assert!(metrics.contains("version=0.0.4") && metrics.ends_with("quelea_connections 3\n"));
        let post = ask(address, "POST /metrics HTTP/1.1");
        assert!(post.contains("405") && post.to_lowercase().contains("allow: get, head"), "{post}");
        assert!(ask(address, "NOT HTTP").contains("400"));
        // A server that closes with bytes unread may reset the connection before its answer is
        // seen.
        let long = try_to_ask(address, &format!("GET /{} HTTP/1.1", "a".repeat(20_000)));
        assert!(long.as_ref().map_or(true, |answer| answer.starts_with("HTTP/1.1 4")), "{long:?}");
        assert_eq!(status(address, "/healthz"), "503", "still there");
        drop(server);
        assert!(std::net::TcpStream::connect(address).is_err(), "a dropped server is gone");
    }

    #[test]
    fn connections_are_limited() {
        let metrics: Metrics = Arc::new(String::new);
        let server =
            HttpServer::start("127.0.0.1:0".parse().unwrap(), Health::new(), metrics).unwrap();
        let connect = |_| std::net::TcpStream::connect(server.address()).unwrap();
        let mut silent: Vec<_> = (0..CONNECTIONS_MAX).map(connect).collect();
        let mut waiting = std::net::TcpStream::connect(server.address()).unwrap();
        write!(waiting, "GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
        waiting.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(waiting.read(&mut [0; 1]).is_err(), "no place, no answer");
        silent.pop();
        waiting.set_read_timeout(None).unwrap();
        let mut answer = String::new();
        waiting.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("200"), "{answer}");
    }
}
