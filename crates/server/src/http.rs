//! HTTP for operators: `/metrics`, `/healthz`, `/readyz`, on a thread and a runtime of its own, so
//! that nothing an operator asks for delays a message.
//!
//! Whoever reaches the address may ask, so places are few, and who sits on one without asking has
//! to go when another comes. Metrics are written on a second thread, one answer at a time: a check
//! of the health never waits for them.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
use tokio::task::AbortHandle;

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
                    result = accept(listener, Pages::new(health, metrics)) => {
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
    /// Metrics are written for one at a time.
    pen: Arc<Semaphore>,
}

impl Pages {
    fn new(health: Health, metrics: Metrics) -> Self {
        Self { health, metrics, pen: Arc::new(Semaphore::new(1)) }
    }

    async fn answer(self, request: Request<Incoming>) -> Response<String> {
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
            "/metrics" => self.write_metrics().await,
            _ => page(StatusCode::NOT_FOUND, TEXT, "try /metrics, /healthz or /readyz\n".into()),
        }
    }

    async fn write_metrics(self) -> Response<String> {
        let _pen = self.pen.acquire().await;
        match tokio::task::spawn_blocking(move || (self.metrics)()).await {
            Ok(text) => page(StatusCode::OK, PROMETHEUS, text),
            // It panicked, and has told so itself.
            Err(_) => page(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "no metrics\n".into()),
        }
    }
}

async fn accept(listener: std::net::TcpListener, pages: Pages) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let guests = Arc::new(Guests::default());
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => guests.seat(peer.ip(), serve(stream, pages.clone())),
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
        let response = pages.clone().answer(request);
        async move { Ok::<_, Infallible>(response.await) }
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

/// The connections there are, oldest first.
#[derive(Default)]
struct Guests {
    seated: Mutex<Seated>,
}

#[derive(Default)]
struct Seated {
    last: u64,
    guests: Vec<Guest>,
}

struct Guest {
    number: u64,
    address: IpAddr,
    abort: AbortHandle,
}

impl Guests {
    /// A newcomer always gets a place: an answer takes a millisecond, so who has been here longest
    /// is most likely one who does not ask.
    fn seat(self: &Arc<Self>, address: IpAddr, serve: impl Future<Output = ()> + Send + 'static) {
        let mut seated = self.lock();
        let of_address = seated.guests.iter().filter(|guest| guest.address == address).count();
        if of_address >= CONNECTIONS_PER_ADDRESS_MAX {
            seated.dismiss_oldest(address);
        } else if seated.guests.len() >= CONNECTIONS_MAX
            && let Some(greediest) = seated.greediest()
        {
            seated.dismiss_oldest(greediest);
        }
        seated.last += 1;
        let number = seated.last;
        let guests = self.clone();
        let task = tokio::spawn(async move {
            serve.await;
            guests.lock().guests.retain(|guest| guest.number != number);
        });
        seated.guests.push(Guest { number, address, abort: task.abort_handle() });
    }

    fn lock(&self) -> MutexGuard<'_, Seated> {
        self.seated.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seated {
    fn dismiss_oldest(&mut self, address: IpAddr) {
        let oldest = self.guests.iter().position(|guest| guest.address == address);
        if let Some(place) = oldest {
            self.guests.remove(place).abort.abort();
        }
    }

    /// The address with the most connections.
    fn greediest(&self) -> Option<IpAddr> {
        let count = |address| self.guests.iter().filter(|guest| guest.address == address).count();
        self.guests.iter().map(|guest| guest.address).max_by_key(|address| count(*address))
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
/// Scrapers and probes are few. At the limit the oldest connection of the address with the most
/// is closed.
const CONNECTIONS_MAX: usize = 64;
/// At the limit the oldest of them is closed.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 16;
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// A request that takes longer ends its connection, also while waiting for the next one.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection that reads nothing must not hold its place for ever.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
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

    const HALF: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Half: ";

    fn send_half(address: SocketAddr) -> std::net::TcpStream {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(HALF).unwrap();
        stream
    }

    fn server(metrics: Metrics) -> HttpServer {
        HttpServer::start("127.0.0.1:0".parse().unwrap(), Health::new(), metrics).unwrap()
    }

    #[test]
    fn who_asks_is_answered_whoever_sits_there_with_half_a_request() {
        let server = server(Arc::new(String::new));
        let mut silent: Vec<_> = (0..2 * CONNECTIONS_MAX)
            .map(|_| {
                let stream = send_half(server.address());
                stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                stream
            })
            .collect();
        assert_eq!(status(server.address(), "/healthz"), "200");
        // Those who had to go are the oldest, and the newest stays.
        assert!(!matches!(silent[0].read(&mut [0; 1]), Ok(1)), "the oldest is closed");
        let newest = silent.last_mut().unwrap();
        newest.write_all(b"\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        newest.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("200"), "{answer}");
    }

    #[test]
    fn health_does_not_wait_for_metrics() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Mutex::new(held);
        let metrics: Metrics = Arc::new(move || {
            let _ = held.lock().unwrap().recv();
            String::new()
        });
        let server = server(metrics);
        let mut waiting = std::net::TcpStream::connect(server.address()).unwrap();
        write!(waiting, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        assert_eq!(status(server.address(), "/healthz"), "200");
        drop(release);
        let mut answer = String::new();
        waiting.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("200"), "{answer}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn places_are_limited_in_all_and_for_each_address() {
        let guests = Arc::new(Guests::default());
        let address = |last: u8| IpAddr::from([192, 0, 2, last]);
        let count = |of: u8| {
            let seated = guests.lock();
            seated.guests.iter().filter(|guest| guest.address == address(of)).count()
        };
        for _ in 0..3 * CONNECTIONS_PER_ADDRESS_MAX {
            guests.seat(address(1), std::future::pending());
        }
        assert_eq!(count(1), CONNECTIONS_PER_ADDRESS_MAX);
        for number in 0..CONNECTIONS_MAX as u8 {
            guests.seat(address(2 + number), std::future::pending());
        }
        assert_eq!(guests.lock().guests.len(), CONNECTIONS_MAX);
        assert_eq!(count(1), 1, "the greediest has made room");
        assert_eq!(count(2), 1);
    }
}
