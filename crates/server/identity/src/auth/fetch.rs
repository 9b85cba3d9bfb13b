//! HTTP/1.1 requests to the services that providers ask, over connections that are kept.
//!
//! All of it runs on one thread with a small runtime ([`Net`]): a service that hangs holds a few
//! hundred bytes, and no thread.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use net::{TlsClientContext, TlsClientOptions};
use rustls::pki_types::ServerName;
use serde_json::{Map, Value};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;
use web::percent_decoded;

use super::breaker::Fault;
use super::lock;
use config::url::Url;

/// The largest answer that is read.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// The thread that requests are made on.
pub(super) struct Net {
    handle: Handle,
    /// Dropping it ends the thread.
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Asks one service.
pub(super) struct Client {
    url: Url,
    headers: HeaderMap,
    tls: Option<TlsConnector>,
    timeout: Duration,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
    idle_max: usize,
    /// Questions that were sent and have no answer yet.
    unanswered: AtomicUsize,
}

/// What is asked.
pub(super) struct Question {
    pub(super) is_get: bool,
    /// Path and query.
    pub(super) target: String,
    /// In addition to those of all questions.
    pub(super) headers: HeaderMap,
    pub(super) content_type: &'static str,
    pub(super) body: String,
}

/// There is no whole answer.
#[derive(Debug)]
pub(super) enum AskError {
    /// No connection, or nothing came in time.
    Unreachable(Fault, String),
    /// The service was there, and broke off or sent what is no answer. That may be due to what it
    /// was asked.
    Broken(String),
}

/// What an answer is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Json,
    Form,
    Other,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
    /// For how long the service says that it holds, in seconds.
    pub(super) max_age_secs: Option<u32>,
    pub(super) content: Content,
}

impl Net {
    pub(super) fn start() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        let run = move || {
            // An error says that the other end was dropped, which is what ends it.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("auth-net".into()).spawn(run)?;
        Ok(Self { handle, end: Some(end), thread: Some(thread) })
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported on standard error.
            let _ = thread.join();
        }
    }
}

/// Why an exchange has failed.
enum Broke {
    /// Nothing of an answer has come.
    Unanswered(String),
    Within(String),
}

/// A question that was sent, until its answer is here or it is given up.
struct Unanswered<'a>(&'a AtomicUsize);

impl<'a> Unanswered<'a> {
    fn count(all: &'a AtomicUsize) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(all)
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Client {
    /// # Errors
    ///
    /// Authorities that cannot be read; headers that are none.
    pub(super) fn new(
        url: &Url,
        headers: &[(&str, &str)],
        ca: Option<&Path>,
        timeout: Duration,
        idle_max: usize,
    ) -> Result<Self, String> {
        let tls = if url.is_tls { Some(connector(ca)?) } else { None };
        let mut all = HeaderMap::new();
        let shown =
            if url.host.contains(':') { format!("[{}]", url.host) } else { url.host.clone() };
        let host = HeaderValue::from_str(&format!("{shown}:{}", url.port));
        all.insert(HOST, host.map_err(|error| error.to_string())?);
        for (name, value) in headers {
            let wrong = |why: String| format!("invalid header '{name}': {why}");
            let value = HeaderValue::from_str(value).map_err(|error| wrong(error.to_string()))?;
            all.insert(header_name(name)?, value);
        }
        let idle = Mutex::default();
        let (url, unanswered) = (url.clone(), AtomicUsize::new(0));
        Ok(Self { url, headers: all, tls, timeout, idle, idle_max, unanswered })
    }

    /// Asks, and gives up after the time-out, which is for all of it.
    ///
    /// # Errors
    ///
    /// Why there was no whole answer in time.
    pub(super) async fn ask(&self, question: &Question) -> Result<Reply, AskError> {
        let is_connected = AtomicBool::new(false);
        match tokio::time::timeout(self.timeout, self.exchange(question, &is_connected)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                // Questions that wait for their answers may be why it takes no more connections.
                let was_asked = is_connected.load(Ordering::Relaxed)
                    || self.unanswered.load(Ordering::Relaxed) > 0;
                let fault = if was_asked { Fault::Unanswered } else { Fault::Unconnected };
                let why = format!("no answer within {} s", self.timeout.as_secs_f32());
                Err(AskError::Unreachable(fault, why))
            }
        }
    }

    async fn exchange(
        &self,
        question: &Question,
        is_connected: &AtomicBool,
    ) -> Result<Reply, AskError> {
        // A kept connection may have been closed meanwhile: then a new one decides, once. One whose
        // answer has begun is not asked again elsewhere.
        while let Some(mut kept) = self.take_idle() {
            if kept.ready().await.is_err() {
                continue;
            }
            is_connected.store(true, Ordering::Relaxed);
            match self.exchange_on(kept, question).await {
                Ok(reply) => return Ok(reply),
                Err(Broke::Unanswered(_)) => break,
                Err(Broke::Within(why)) => return Err(AskError::Broken(why)),
            }
        }
        is_connected.store(false, Ordering::Relaxed);
        let unconnected = |why| AskError::Unreachable(Fault::Unconnected, why);
        let fresh = self.connect().await.map_err(unconnected)?;
        is_connected.store(true, Ordering::Relaxed);
        self.exchange_on(fresh, question).await.map_err(|broke| match broke {
            Broke::Unanswered(why) | Broke::Within(why) => AskError::Broken(why),
        })
    }

    async fn exchange_on(
        &self,
        mut sender: SendRequest<Full<Bytes>>,
        question: &Question,
    ) -> Result<Reply, Broke> {
        let unanswered = |error: hyper::Error| Broke::Unanswered(error.to_string());
        sender.ready().await.map_err(unanswered)?;
        let request = self.request(question).map_err(Broke::Within)?;
        let _unanswered = Unanswered::count(&self.unanswered);
        let response = sender.send_request(request).await.map_err(unanswered)?;
        let (head, body) = response.into_parts();
        let limited = Limited::new(body, ANSWER_BYTES_MAX);
        let body = limited.collect().await.map_err(|error| Broke::Within(error.to_string()))?;
        let body = body.to_bytes();
        let mut idle = lock(&self.idle);
        if idle.len() < self.idle_max && !sender.is_closed() {
            idle.push(sender);
        }
        drop(idle);
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
        Ok(Reply {
            status: head.status,
            body,
            max_age_secs: header(CACHE_CONTROL).and_then(max_age_secs),
            content: content_of(head.headers.get(CONTENT_TYPE)),
        })
    }

    fn request(&self, question: &Question) -> Result<Request<Full<Bytes>>, String> {
        let method = if question.is_get { Method::GET } else { Method::POST };
        let body = Full::new(Bytes::copy_from_slice(question.body.as_bytes()));
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() =
            question.target.parse().map_err(|_| "the substituted URL is invalid".to_owned())?;
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().extend(question.headers.clone());
        if !question.is_get && !self.headers.contains_key(CONTENT_TYPE) {
            let kind = HeaderValue::from_static(question.content_type);
            request.headers_mut().insert(CONTENT_TYPE, kind);
        }
        Ok(request)
    }

    fn take_idle(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = lock(&self.idle);
        while let Some(sender) = idle.pop() {
            if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let host = self.url.host.as_str();
        let cannot = |error: std::io::Error| format!("cannot connect to {host}: {error}");
        let stream = TcpStream::connect((host, self.url.port)).await.map_err(cannot)?;
        // Without it nothing is wrong but the latency.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else { return open(TokioIo::new(stream)).await };
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        open(TokioIo::new(tls.connect(name, stream).await.map_err(cannot)?)).await
    }
}

async fn open<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, String>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(stream).await.map_err(|error| error.to_string())?;
    // Its end is reported to all that wait for an answer on it.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

fn connector(ca: Option<&Path>) -> Result<TlsConnector, String> {
    let options = TlsClientOptions { ca: ca.map(Path::to_path_buf), ..TlsClientOptions::default() };
    let context = TlsClientContext::load(&options).map_err(|error| error.to_string())?;
    Ok(TlsConnector::from(Arc::clone(context.config())))
}

/// # Errors
///
/// It is no name of a header.
pub(super) fn header_name(name: &str) -> Result<HeaderName, String> {
    HeaderName::try_from(name).map_err(|error| format!("invalid header '{name}': {error}"))
}

/// RFC 9111, section 5.2: what must not be kept has no age.
fn max_age_secs(header: &str) -> Option<u32> {
    let mut directives = header.split(',').map(str::trim);
    if directives.clone().any(|one| one == "no-store" || one == "no-cache") {
        return Some(0);
    }
    directives.find_map(|one| one.strip_prefix("max-age=")?.parse().ok())
}

/// An answer that does not say what it is written in is JSON.
fn content_of(header: Option<&HeaderValue>) -> Content {
    let Some(header) = header else { return Content::Json };
    let text = header.to_str().unwrap_or("?").to_ascii_lowercase();
    match text.split(';').next().unwrap_or_default().trim() {
        "" => Content::Json,
        "application/x-www-form-urlencoded" => Content::Form,
        media if media.contains("json") => Content::Json,
        _ => Content::Other,
    }
}

/// A `+` is a space in forms.
fn form_decoded(text: &str) -> Option<String> {
    percent_decoded(&text.replace('+', " "))
}

/// The fields of a form as members of an object. None: it is none, or a field is there twice.
pub(super) fn members_of_form(body: &[u8]) -> Option<Map<String, Value>> {
    let mut members = Map::new();
    let text = str::from_utf8(body).ok()?.trim();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = Value::String(form_decoded(value)?);
        if members.insert(form_decoded(name)?, value).is_some() {
            return None;
        }
    }
    Some(members)
}

impl AskError {
    pub(super) fn into_text(self) -> String {
        match self {
            Self::Unreachable(_, why) | Self::Broken(why) => why,
        }
    }
}

/// None: the service was there, whatever it has answered.
pub(super) fn fault_of(reply: &Result<Reply, AskError>) -> Option<Fault> {
    match reply {
        Err(AskError::Unreachable(fault, _)) => Some(*fault),
        Ok(_) | Err(AskError::Broken(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_not_be_kept_has_no_age() {
        assert_eq!(max_age_secs("public, max-age=60"), Some(60));
        assert_eq!(max_age_secs("max-age=60, no-store"), Some(0));
        assert_eq!(max_age_secs("private"), None);
        assert_eq!(max_age_secs("max-age=x"), None);
    }

    #[test]
    fn the_content_type_is_read_without_regard_to_case() {
        for (text, expected) in [
            ("application/json", Content::Json),
            ("Application/JSON; charset=UTF-8", Content::Json),
            ("application/problem+json", Content::Json),
            ("", Content::Json),
            ("APPLICATION/x-www-form-urlencoded ;charset=utf-8", Content::Form),
            ("text/html", Content::Other),
            ("text/plain; x=json", Content::Other),
        ] {
            let header = HeaderValue::from_str(text).unwrap();
            assert_eq!(content_of(Some(&header)), expected, "{text}");
        }
        assert_eq!(content_of(None), Content::Json);
    }

    #[test]
    fn forms_are_read() {
        let read = members_of_form(b"result=allow&a%20b=%c3%a4+x&empty=&bare&").unwrap();
        let read: Vec<_> = read.iter().map(|(name, value)| (&**name, value.as_str())).collect();
        let mut expected = vec![
            ("result", Some("allow")),
            ("a b", Some("\u{e4} x")),
            ("empty", Some("")),
            ("bare", Some("")),
        ];
        expected.sort_unstable();
        let mut sorted = read;
        sorted.sort_unstable();
        assert_eq!(sorted, expected);
        for wrong in [&b"a=%"[..], b"a=%4", b"a=%zz", b"a=%ff", b"\xff", b"a=1&a=2"] {
            assert_eq!(members_of_form(wrong), None, "{wrong:?}");
        }
    }
}
