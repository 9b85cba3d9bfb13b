//! The small HTTP/1.1 server of the lab: one request for each connection, and bounds everywhere.
//!
//! Who connects and says nothing, or a byte now and then, keeps nobody waiting: a request has to be
//! there in time, and where all places are taken the oldest connection whose request is not there
//! makes room for a newcomer.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// What answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Whether the request is heard at all; asked before its body is read.
    fn admit(&self, _request: &Request) -> Result<(), Response> {
        Ok(())
    }

    fn respond(&self, request: &Request) -> Response;
}

/// What a server allows.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub connections_max: usize,
    pub body_bytes_max: u64,
    /// From accept to the last byte of the request.
    pub request_time_max: Duration,
    /// For all of the answer to leave.
    pub answer_time_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 32,
            body_bytes_max: 0,
            request_time_max: Duration::from_secs(10),
            answer_time_max: Duration::from_secs(60),
        }
    }
}

#[derive(Debug, Default)]
pub struct Request {
    pub method: String,
    /// Without what comes after a question mark.
    pub path: String,
    pub query: String,
    /// Names in lower case.
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    /// The first header of this name, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    kind: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Response {
    pub fn text(status: u16, kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status, kind, headers: Vec::new(), body: body.into() }
    }

    pub fn json(status: u16, body: &Value) -> Self {
        Self::text(status, "application/json", format!("{body}\n"))
    }

    /// What is wrong, as RFC 9457 has it.
    pub fn problem(status: u16, detail: impl Into<String>) -> Self {
        Self::problem_with(status, detail, json!({}))
    }

    /// The same with more members, an object.
    pub fn problem_with(status: u16, detail: impl Into<String>, mut more: Value) -> Self {
        more["status"] = status.into();
        more["title"] = reason(status).into();
        more["detail"] = detail.into().into();
        Self { kind: "application/problem+json", ..Self::json(status, &more) }
    }

    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// Listens at `address` until the program ends, and gives back where that is (for port 0).
pub fn serve(address: &str, limits: Limits, handler: Arc<impl Handler>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    let places = Arc::new(Places::default());
    std::thread::Builder::new().name("http".to_owned()).spawn(move || {
        for id in 0.. {
            let Ok((stream, _)) = listener.accept() else {
                // Out of file descriptors, most likely: one of ours may be what is missing.
                places.make_room(0);
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            let stream = Arc::new(stream);
            places.make_room(limits.connections_max.saturating_sub(1));
            places.lock().push_back(Place { id, stream: Arc::clone(&stream), is_heard: false });
            let (own, handler) = (Arc::clone(&places), Arc::clone(&handler));
            let attended = std::thread::Builder::new().name("http".to_owned()).spawn(move || {
                let heard = || own.heard(id);
                // A client that goes away is its own business.
                let _ = attend(&stream, limits, handler.as_ref(), &heard);
                own.leave(id);
            });
            if attended.is_err() {
                places.leave(id);
            }
        }
    })?;
    Ok(address)
}

/// Connections under way, the oldest first.
#[derive(Default)]
struct Places(Mutex<VecDeque<Place>>);

struct Place {
    id: u64,
    stream: Arc<TcpStream>,
    /// Its request is there.
    is_heard: bool,
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make_room(&self, left_max: usize) {
        let mut places = self.lock();
        while places.len() > left_max {
            let at = places.iter().position(|place| !place.is_heard).unwrap_or(0);
            if let Some(place) = places.remove(at) {
                // It may be gone already.
                let _ = place.stream.shutdown(Shutdown::Both);
            }
        }
    }

    fn heard(&self, id: u64) {
        self.lock().iter_mut().filter(|place| place.id == id).for_each(|place| {
            place.is_heard = true;
        });
    }

    fn leave(&self, id: u64) {
        self.lock().retain(|place| place.id != id);
    }
}

fn attend(
    stream: &TcpStream,
    limits: Limits,
    handler: &impl Handler,
    heard: &dyn Fn(),
) -> io::Result<()> {
    let mut timed = Timed { stream, until: Instant::now() + limits.request_time_max };
    let (response, is_head) = match hear(&mut timed, limits.body_bytes_max, handler) {
        Ok(request) => {
            heard();
            (handler.respond(&request), request.method == "HEAD")
        }
        Err(Deaf::Gone(error)) if error.kind() == io::ErrorKind::TimedOut => {
            let secs = limits.request_time_max.as_secs_f64();
            let detail = format!("the request was not there within {secs} s");
            (Response::problem(408, detail), false)
        }
        Err(Deaf::Gone(error)) => return Err(error),
        Err(Deaf::Refused(response)) => (*response, false),
    };
    timed.until = Instant::now() + limits.answer_time_max;
    timed.write_all(head_of(&response).as_bytes())?;
    if !is_head {
        timed.write_all(&response.body)?;
    }
    // Closing with bytes unread would take the answer away from who still sends.
    stream.shutdown(Shutdown::Write)?;
    timed.until = Instant::now() + LINGER_TIME_MAX;
    io::copy(&mut (&mut timed).take(LINGER_BYTES_MAX), &mut io::sink())?;
    Ok(())
}

fn head_of(response: &Response) -> String {
    let mut head = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\n",
        response.status,
        reason(response.status),
        response.kind,
        response.body.len()
    );
    for (name, value) in &response.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head + "\r\n"
}

/// Why there is no request to respond to.
enum Deaf {
    Gone(io::Error),
    Refused(Box<Response>),
}

impl Deaf {
    fn refused(status: u16, detail: impl Into<String>) -> Self {
        Self::Refused(Box::new(Response::problem(status, detail)))
    }
}

impl From<io::Error> for Deaf {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

fn hear(timed: &mut Timed<'_>, body_max: u64, handler: &impl Handler) -> Result<Request, Deaf> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = head_end(&bytes) {
            break end;
        }
        if bytes.len() > HEAD_BYTES_MAX {
            let detail = format!("the head of a request is {HEAD_BYTES_MAX} bytes at most");
            return Err(Deaf::refused(431, detail));
        }
        let mut buffer = [0; 4_096];
        match timed.read(&mut buffer)? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            n => bytes.extend_from_slice(&buffer[..n]),
        }
    };
    let mut request = parse_head(&bytes[..end])?;
    let length = body_length(&request)?;
    handler.admit(&request).map_err(|response| Deaf::Refused(Box::new(response)))?;
    if length > body_max {
        let detail = format!("a body of {length} bytes, {body_max} are allowed");
        return Err(Deaf::refused(413, detail));
    }
    request.body = bytes.split_off(end);
    if request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
        timed.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let missing = length.saturating_sub(request.body.len() as u64);
    timed.take(missing).read_to_end(&mut request.body)?;
    if (request.body.len() as u64) < length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    request.body.truncate(length as usize);
    Ok(request)
}

/// Behind the empty line.
fn head_end(bytes: &[u8]) -> Option<usize> {
    let behind = |mark: &[u8]| {
        bytes.windows(mark.len()).position(|found| found == mark).map(|at| at + mark.len())
    };
    [behind(b"\r\n\r\n"), behind(b"\n\n")].into_iter().flatten().min()
}

fn parse_head(head: &[u8]) -> Result<Request, Deaf> {
    let text = std::str::from_utf8(head)
        .map_err(|_| Deaf::refused(400, "the head of the request is not text"))?;
    let mut lines = text.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version)) = (words.next(), words.next(), words.next())
    else {
        return Err(Deaf::refused(400, "the first line is not METHOD PATH HTTP/1.1"));
    };
    if !version.starts_with("HTTP/1.") || !target.starts_with('/') {
        return Err(Deaf::refused(400, "the first line is not METHOD PATH HTTP/1.1"));
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        ..Request::default()
    };
    for line in lines.take_while(|line| !line.is_empty()) {
        let Some((name, value)) = line.split_once(':') else {
            return Err(Deaf::refused(400, format!("`{line}` is not a header")));
        };
        request.headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
    }
    Ok(request)
}

fn body_length(request: &Request) -> Result<u64, Deaf> {
    if request.header("transfer-encoding").is_some() {
        return Err(Deaf::refused(411, "send the body with a Content-Length, not in chunks"));
    }
    let mut lengths =
        request.headers.iter().filter(|(name, _)| name == "content-length").map(|(_, value)| value);
    let Some(first) = lengths.next() else { return Ok(0) };
    // `parse` would take a plus sign, too.
    let is_number = first.bytes().all(|byte| byte.is_ascii_digit());
    match first.parse() {
        Ok(length) if is_number && lengths.all(|other| other == first) => Ok(length),
        _ => Err(Deaf::refused(400, format!("`{first}` is no length of a body"))),
    }
}

/// A stream whose reads and writes end at one moment, however few bytes each of them moves.
struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

/// Linux says that it would block where a time-out has passed.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        let mut stream = self.stream;
        stream.read(buffer).map_err(timed_out)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        let mut stream = self.stream;
        stream.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}

const HEAD_BYTES_MAX: usize = 8_192;
/// What is still read of a client that was answered before it had sent all.
const LINGER_BYTES_MAX: u64 = 4 * 1024 * 1024;
const LINGER_TIME_MAX: Duration = Duration::from_secs(2);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;

    impl Handler for Echo {
        fn admit(&self, request: &Request) -> Result<(), Response> {
            match request.header("x-no") {
                Some(_) => Err(Response::problem(403, "no")),
                None => Ok(()),
            }
        }

        fn respond(&self, request: &Request) -> Response {
            let Request { method, path, query, body, .. } = request;
            let body = String::from_utf8_lossy(body);
            Response::text(200, "text/plain", format!("{method} {path} {query} {body}"))
        }
    }

    fn limits() -> Limits {
        Limits { connections_max: 3, body_bytes_max: 100, ..Limits::default() }
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn requests_are_heard_whole_and_refused_in_words() {
        let address = serve("127.0.0.1:0", limits(), Arc::new(Echo)).unwrap();
        let body = |request: &str| {
            let text = ask(address, request);
            text.split_once("\r\n\r\n").unwrap().1.to_owned()
        };
        assert_eq!(body("GET /a?b=c HTTP/1.1\r\n\r\n"), "GET /a b=c ");
        assert_eq!(body("GET /a HTTP/1.0\n\n"), "GET /a  ");
        assert_eq!(body("HEAD /a HTTP/1.1\r\n\r\n"), "");
        let post = "POST /a HTTP/1.1\r\ncontent-length: 3\r\n\r\nxyz";
        assert_eq!(body(post), "POST /a  xyz");
        let long = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(HEAD_BYTES_MAX));
        for (request, status) in [
            ("POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n", "413"),
            ("POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", "400"),
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "400"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "411"),
            // Before it is told that its body is too long: it has no business here.
            ("POST / HTTP/1.1\r\nX-No: 1\r\nContent-Length: 101\r\n\r\n", "403"),
            ("nonsense\r\n\r\n", "400"),
            (&long, "431"),
        ] {
            let text = ask(address, request);
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {text}");
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains("application/problem+json"), "{head}");
            let problem: Value = serde_json::from_str(body).unwrap();
            assert_eq!(problem["status"].to_string(), status);
        }
    }

    #[test]
    fn a_body_that_waits_to_be_asked_for_is_asked_for() {
        let address = serve("127.0.0.1:0", limits(), Arc::new(Echo)).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let head = "POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let mut go_on = [0; 25];
        stream.read_exact(&mut go_on).unwrap();
        assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(b"ok").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("POST /a  ok"), "{text}");
    }

    #[test]
    fn who_says_half_is_told_so_in_time() {
        let limits = Limits { request_time_max: Duration::from_millis(50), ..limits() };
        let address = serve("127.0.0.1:0", limits, Arc::new(Echo)).unwrap();
        for half in ["GET / HT", "POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf"] {
            let text = ask(address, half);
            assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
        }
    }

    #[test]
    fn who_says_nothing_makes_room_for_who_does() {
        // No time-out could help here: it is an hour.
        let limits = Limits { request_time_max: Duration::from_secs(3_600), ..limits() };
        let address = serve("127.0.0.1:0", limits, Arc::new(Echo)).unwrap();
        let mut idle: Vec<TcpStream> =
            (0..9).map(|_| TcpStream::connect(address).unwrap()).collect();
        for _ in 0..3 {
            assert!(ask(address, "GET /a HTTP/1.1\r\n\r\n").ends_with("GET /a  "));
        }
        // The oldest was sent away, with nothing.
        let mut text = String::new();
        idle[0].read_to_string(&mut text).unwrap();
        assert_eq!(text, "");
    }
}
