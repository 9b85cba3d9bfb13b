//! What the broker answers operators over HTTP: `/metrics`, `/healthz`, `/readyz`. The crate `web`
//! serves it.
//!
//! Metrics are written on a second thread, one answer at a time: a check of the health never waits
//! for them.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::Semaphore;
use web::axum::Router;
use web::axum::extract::{Request, State as Shared};
use web::axum::http::StatusCode;
use web::axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HOST};
use web::axum::http::uri::Authority;
use web::axum::middleware::{self, Next};
use web::axum::response::{IntoResponse as _, Response};
use web::axum::routing::get;

/// How the broker is, for `/healthz` and `/readyz`. Shared; starts as [`State::Starting`].
#[derive(Clone, Default)]
pub struct Health(Arc<AtomicU8>, Arc<RwLock<Vec<Reason>>>);

/// Why a broker that is ready does not serve: none if it does.
type Reason = Box<dyn Fn() -> Option<String> + Send + Sync>;

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
    /// Healthy: a node of a cluster in which another one serves.
    Standby,
}

impl State {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Stopping => "stopping",
            Self::Failed => "failed",
            Self::Standby => "standby",
        }
    }
}

/// Writes the metrics in Prometheus' text format.
pub type Metrics = Arc<dyn Fn() -> String + Send + Sync>;

/// All that can be asked.
pub fn router(health: Health, metrics: Metrics) -> Router {
    let writer = Writer { metrics, pen: Arc::new(Semaphore::new(1)) };
    let probes = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(health);
    let pages = Router::new().route("/metrics", get(write_metrics)).with_state(writer);
    let unknown =
        || async { page(StatusCode::NOT_FOUND, TEXT, "try /metrics, /healthz or /readyz\n") };
    let not_allowed = || async {
        page(
            StatusCode::METHOD_NOT_ALLOWED,
            TEXT,
            "method not allowed: use GET or \
        HEAD\n",
        )
    };
    probes.merge(pages).fallback(unknown).method_not_allowed_fallback(not_allowed)
}

/// The same routes, for a server on loopback: a request has to name an address, `localhost` or one
/// of `names` as its `Host`. A page of the web that has its name resolved to this machine cannot do
/// so: its browser sends that name.
pub fn guarded(router: Router, names: &[String]) -> Router {
    let names: Arc<[String]> = names.into();
    router.layer(middleware::from_fn(move |request: Request, next: Next| {
        let names = names.clone();
        async move {
            match is_own(&request, &names) {
                true => next.run(request).await,
                false => page(StatusCode::MISDIRECTED_REQUEST, TEXT, OTHER_HOST),
            }
        }
    }))
}

/// One without a `Host` comes from no browser.
fn is_own(request: &Request, names: &[String]) -> bool {
    let header = request.headers().get(HOST).map(|value| value.to_str().unwrap_or("?"));
    let hosts = [request.uri().host(), header];
    hosts.into_iter().flatten().all(|text| {
        let Ok(authority) = text.parse::<Authority>() else { return false };
        let host = authority.host();
        let bare = host.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(host);
        let is = |name: &str| bare.trim_end_matches('.').eq_ignore_ascii_case(name);
        bare.parse::<IpAddr>().is_ok() || is("localhost") || names.iter().any(|name| is(name))
    })
}

const OTHER_HOST: &str = "unknown host name: add it to http.hosts, or use the address of the \
server\n";

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Health").field(&self.state()).finish()
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

    /// From now on the broker is ready only while this gives no reason against it, and none of
    /// those before.
    pub fn depend_on(&self, reason: impl Fn() -> Option<String> + Send + Sync + 'static) {
        self.1.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(reason));
    }

    /// Its state, and why it is not ready if the state does not say so.
    pub fn readiness(&self) -> (State, Option<String>) {
        let state = self.state();
        // One that starts, stops or has failed has no better reason than that.
        let may_serve = matches!(state, State::Ready | State::Standby);
        let reasons = self.1.read().unwrap_or_else(PoisonError::into_inner);
        let reason = reasons.iter().filter(|_| may_serve).find_map(|reason| reason());
        (state, reason)
    }

    pub fn state(&self) -> State {
        const STATES: [State; 5] =
            [State::Starting, State::Ready, State::Stopping, State::Failed, State::Standby];
        STATES[usize::from(self.0.load(Ordering::Relaxed)) % STATES.len()]
    }
}

async fn healthz(Shared(health): Shared<Health>) -> Response {
    let state = health.state();
    probe(state, None, state != State::Failed)
}

async fn readyz(Shared(health): Shared<Health>) -> Response {
    let (state, reason) = health.readiness();
    let is_fine = state == State::Ready && reason.is_none();
    probe(state, reason, is_fine)
}

fn probe(state: State, reason: Option<String>, is_fine: bool) -> Response {
    let status = if is_fine { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    page(status, TEXT, format!("{}\n", reason.as_deref().unwrap_or(state.word())))
}

#[derive(Clone)]
struct Writer {
    metrics: Metrics,
    /// Metrics are written for one at a time.
    pen: Arc<Semaphore>,
}

async fn write_metrics(Shared(Writer { metrics, pen }): Shared<Writer>) -> Response {
    // It goes with the writing, which does not end when the one that asked goes away.
    let pen = pen.acquire_owned().await;
    let write = move || {
        let _pen = pen;
        metrics()
    };
    match web::aside(write).await {
        Some(text) => page(StatusCode::OK, PROMETHEUS, text),
        None => page(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "no metrics\n"),
    }
}

fn page(status: StatusCode, content_type: &'static str, body: impl Into<String>) -> Response {
    let headers = [(CONTENT_TYPE, content_type), (CACHE_CONTROL, "no-store")];
    (status, headers, body.into()).into_response()
}

const TEXT: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

#[cfg(test)]
mod tests {
    use std::io::{self, Read, Write};
    use std::net::SocketAddr;
    use std::sync::Mutex;
    use std::time::Duration;

    use web::{Limits, Server};

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
            Server::start(("127.0.0.1", port), Limits::default(), router(health.clone(), metrics))
                .unwrap();
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
        assert!(post.contains("405") && post.to_lowercase().contains("allow: get,head"), "{post}");
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

    fn server(metrics: Metrics) -> Server {
        let router = router(Health::new(), metrics);
        Server::start("127.0.0.1:0", Limits::default(), router).unwrap()
    }

    #[test]
    fn who_asks_is_answered_whoever_sits_there_with_half_a_request() {
        let server = server(Arc::new(String::new));
        let mut silent: Vec<_> = (0..2 * Limits::default().connections_max)
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

    /// An answer that is being written does not end with the connection that it was for.
    #[test]
    fn metrics_are_written_one_at_a_time_whoever_goes_away() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (held, writing) = (Mutex::new(held), AtomicU8::new(0));
        let most = Arc::new(AtomicU8::new(0));
        let seen = most.clone();
        let metrics: Metrics = Arc::new(move || {
            seen.fetch_max(writing.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            let _ = held.lock().unwrap().recv();
            writing.fetch_sub(1, Ordering::Relaxed);
            String::new()
        });
        let limits = Limits { blocking_threads_max: 8, ..Limits::default() };
        let server = Server::start("127.0.0.1:0", limits, router(Health::new(), metrics)).unwrap();
        let ask = || {
            let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            stream
        };
        // At the limit each that comes sends the one away that has waited longest.
        let mut asked = Vec::new();
        for _ in 0..2 * Limits::default().connections_per_address_max {
            asked.push(ask());
            assert_eq!(status(server.address(), "/healthz"), "200");
        }
        drop(release);
        let mut answer = String::new();
        asked.pop().unwrap().read_to_string(&mut answer).unwrap();
        assert!(answer.contains("200"), "{answer}");
        assert_eq!(most.load(Ordering::Relaxed), 1);
    }
}
