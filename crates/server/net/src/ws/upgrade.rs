//! The HTTP/1.1 exchange that opens a WebSocket (RFC 6455, section 4), both sides, over bytes.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha1::{Digest as _, Sha1};
use thiserror::Error;

/// What a server asks of an upgrade request.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// The only path served, such as `/mqtt`; empty: any. A query behind it is ignored.
    pub path: &'a str,
    /// The values of `Origin` that are let in. A request without `Origin` does not come from a
    /// browser and is let in.
    pub origins: &'a Origins,
}

/// The web pages whose scripts may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origins {
    #[default]
    Any,
    /// Pages of the host and port that the connection is for. `is_local`: and only if the page
    /// calls that host a loopback address, because anybody can make a name point there.
    Same { is_local: bool },
    /// These, such as `https://app.example`.
    Listed(Vec<String>),
}

impl Origins {
    fn admit(&self, origin: &str, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(listed) => listed.iter().any(|known| known.eq_ignore_ascii_case(origin)),
            Self::Same { is_local } => {
                let page = origin.split_once("://").map_or("", |(_, authority)| authority);
                page.eq_ignore_ascii_case(host) && (!is_local || is_loopback(host))
            }
        }
    }
}

/// Is an authority, with or without a port, this machine whatever a name server says?
fn is_loopback(authority: &str) -> bool {
    let name = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let address: Option<IpAddr> = name.parse().ok();
    name.eq_ignore_ascii_case("localhost") || address.is_some_and(|ip| ip.is_loopback())
}

/// An upgrade request that keeps the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The value of `Sec-WebSocket-Accept`.
    accept: String,
    /// The subprotocol chosen among those offered.
    protocol: &'static str,
    /// The addresses in `X-Forwarded-For`, nearest hop last. Anybody can write them.
    pub forwarded_for: Vec<Option<IpAddr>>,
}

/// Why an upgrade request or its answer was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum UpgradeError {
    #[error("malformed HTTP: {0}")]
    Malformed(&'static str),
    #[error("the HTTP header exceeds {HEADER_BYTES_MAX} bytes or {HEADERS_MAX} lines")]
    TooLong,
    #[error("unknown path: {0}")]
    Path(String),
    #[error("this is a WebSocket endpoint: send `Upgrade: websocket`")]
    NotUpgrade,
    #[error("Sec-WebSocket-Version must be 13")]
    Version,
    #[error("offer the WebSocket subprotocol `mqtt` (MQTT-6.0.0-3)")]
    Protocol,
    #[error("origin not allowed: {0}; add it to websocket.origins")]
    Origin(String),
    #[error("expected status 101, got {0}")]
    Status(u16),
    #[error("the server's answer has a missing or wrong `{0}`")]
    Answer(&'static str),
}

/// Longest request or answer accepted, in bytes, up to and with the empty line.
pub const HEADER_BYTES_MAX: usize = 8 * 1024;
/// Most header lines accepted.
pub const HEADERS_MAX: usize = 64;

/// Reads the request at the front of `bytes` and says how long it is. `None`: it goes on after
/// them.
pub fn parse_request(
    bytes: &[u8],
    rules: Rules<'_>,
) -> Result<Option<(Request, usize)>, UpgradeError> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let Some(len) = finish(request.parse(bytes), bytes)? else {
        return Ok(None);
    };
    if request.method != Some("GET") || request.version != Some(1) {
        return Err(UpgradeError::Malformed("only GET with HTTP/1.1 opens a WebSocket"));
    }
    let path = request.path.unwrap_or_default();
    if !rules.path.is_empty() && path.split(['?', '#']).next() != Some(rules.path) {
        return Err(UpgradeError::Path(path.to_owned()));
    }
    let headers = Headers(request.headers);
    if !headers.has_token("upgrade", "websocket") || !headers.has_token("connection", "upgrade") {
        return Err(UpgradeError::NotUpgrade);
    }
    if headers.first("sec-websocket-version") != Some("13") {
        return Err(UpgradeError::Version);
    }
    let key = headers.first("sec-websocket-key").unwrap_or_default();
    if BASE64.decode(key).map(|nonce| nonce.len()) != Ok(KEY_BYTES) {
        return Err(UpgradeError::Malformed("Sec-WebSocket-Key is not 16 bytes in base64"));
    }
    let Some(host) = headers.first("host") else {
        return Err(UpgradeError::Malformed("Host is missing"));
    };
    if let Some(origin) = headers.first("origin")
        && !rules.origins.admit(origin, host)
    {
        return Err(UpgradeError::Origin(origin.to_owned()));
    }
    let offers = |protocol: &&str| headers.has_token("sec-websocket-protocol", protocol);
    let protocol = PROTOCOLS.into_iter().find(offers).ok_or(UpgradeError::Protocol)?;
    let forwarded_for = headers.forwarded_for().collect();
    Ok(Some((Request { accept: accept_value(key), protocol, forwarded_for }, len)))
}

impl Request {
    /// The answer that completes the upgrade.
    pub fn answer(&self) -> String {
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\nSec-WebSocket-Protocol: {}\r\n\r\n",
            self.accept, self.protocol
        )
    }

    /// The client, if the peer is a proxy: the nearest address that is not one itself. None: what
    /// stands before it is no address, so nobody knows who the client is.
    pub fn client(&self, is_trusted: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let mut farthest = None;
        for element in self.forwarded_for.iter().rev() {
            farthest = Some((*element)?);
            if !farthest.is_some_and(&is_trusted) {
                break;
            }
        }
        farthest
    }
}

impl UpgradeError {
    /// The answer that refuses a request, after which the connection is to be closed.
    pub fn answer(&self) -> String {
        let (status, extra) = match self {
            Self::Path(_) => ("404 Not Found", ""),
            Self::Origin(_) => ("403 Forbidden", ""),
            Self::NotUpgrade => {
                ("426 Upgrade Required", "Upgrade: websocket\r\nConnection: Upgrade\r\n")
            }
            Self::Version => ("426 Upgrade Required", "Sec-WebSocket-Version: 13\r\n"),
            Self::TooLong => ("431 Request Header Fields Too Large", ""),
            _ => ("400 Bad Request", ""),
        };
        // Nothing of the request is echoed.
        let text = match self {
            Self::Path(_) => "unknown path".to_owned(),
            Self::Origin(_) => "this origin is not allowed".to_owned(),
            other => other.to_string(),
        };
        format!(
            "HTTP/1.1 {status}\r\n{extra}Content-Type: text/plain; charset=utf-8\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{text}\n",
            text.len() + 1
        )
    }
}

/// A client's upgrade request, and what its answer must hold.
#[derive(Clone, Debug)]
pub struct Offer {
    request: String,
    accept: String,
}

impl Offer {
    /// `host` is the authority of the URL; `nonce` should be random.
    pub fn new(host: &str, path: &str, nonce: [u8; KEY_BYTES]) -> Self {
        let key = BASE64.encode(nonce);
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Protocol: {}\r\n\r\n",
            PROTOCOLS[0]
        );
        Self { request, accept: accept_value(&key) }
    }

    pub fn request(&self) -> &str {
        &self.request
    }

    /// Reads the answer at the front of `bytes` and says how long it is. `None`: it goes on after
    /// them.
    pub fn parse_answer(&self, bytes: &[u8]) -> Result<Option<usize>, UpgradeError> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let Some(len) = finish(response.parse(bytes), bytes)? else {
            return Ok(None);
        };
        if response.code != Some(101) {
            return Err(UpgradeError::Status(response.code.unwrap_or_default()));
        }
        let headers = Headers(response.headers);
        if !headers.has_token("upgrade", "websocket") {
            return Err(UpgradeError::Answer("Upgrade"));
        }
        if !headers.has_token("connection", "upgrade") {
            return Err(UpgradeError::Answer("Connection"));
        }
        if headers.first("sec-websocket-accept") != Some(&self.accept) {
            return Err(UpgradeError::Answer("Sec-WebSocket-Accept"));
        }
        if headers.first("sec-websocket-protocol") != Some(PROTOCOLS[0]) {
            return Err(UpgradeError::Answer("Sec-WebSocket-Protocol"));
        }
        Ok(Some(len))
    }
}

/// Header lines by lower-case name. Values that are not text count as absent.
struct Headers<'a>(&'a [httparse::Header<'a>]);

impl<'a> Headers<'a> {
    fn lines(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |header| header.name.eq_ignore_ascii_case(name))
            .filter_map(|header| str::from_utf8(header.value).ok())
            .map(str::trim)
    }

    fn first(&self, name: &str) -> Option<&'a str> {
        self.lines(name).next()
    }

    /// The elements of a comma-separated list, over all lines of that name.
    fn all(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.lines(name).flat_map(|line| line.split(',')).map(str::trim)
    }

    /// The elements of `X-Forwarded-For`. None: it is no address.
    fn forwarded_for(&self) -> impl Iterator<Item = Option<IpAddr>> {
        let lines = self.0.iter().filter(|it| it.name.eq_ignore_ascii_case("x-forwarded-for"));
        let elements = lines.flat_map(|line| line.value.split(|byte| *byte == b','));
        elements.map(|element| parse_forwarded(str::from_utf8(element).ok()?.trim()))
    }

    fn has_token(&self, name: &str, token: &str) -> bool {
        self.all(name).any(|found| found.eq_ignore_ascii_case(token))
    }
}

/// Unites the outcomes of httparse with the limits.
fn finish(parsed: httparse::Result<usize>, bytes: &[u8]) -> Result<Option<usize>, UpgradeError> {
    match parsed {
        Ok(httparse::Status::Complete(len)) if len <= HEADER_BYTES_MAX => Ok(Some(len)),
        Ok(httparse::Status::Partial) if bytes.len() < HEADER_BYTES_MAX => Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => Err(UpgradeError::TooLong),
        Err(httparse::Error::HeaderName | httparse::Error::HeaderValue) => {
            Err(UpgradeError::Malformed("a header line is invalid"))
        }
        Err(_) => Err(UpgradeError::Malformed("not HTTP/1.1")),
    }
}

/// `Sec-WebSocket-Accept` for a `Sec-WebSocket-Key` (RFC 6455, section 4.2.2).
fn accept_value(key: &str) -> String {
    let digest = Sha1::new().chain_update(key).chain_update(ACCEPT_SALT).finalize();
    BASE64.encode(digest)
}

/// `192.0.2.7`, `192.0.2.7:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`.
fn parse_forwarded(text: &str) -> Option<IpAddr> {
    let text = text.trim_matches('"');
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    bare.parse::<IpAddr>()
        .or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()))
        .ok()
        .map(|ip| ip.to_canonical())
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.request)
    }
}

/// Length of the random part of `Sec-WebSocket-Key`.
pub const KEY_BYTES: usize = 16;
/// `mqttv3.1` is what clients offered before MQTT 3.1.1.
const PROTOCOLS: [&str; 2] = ["mqtt", "mqttv3.1"];
const ACCEPT_SALT: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules<'_> = Rules { path: "/mqtt", origins: &Origins::Any };

    fn request(path: &str, headers: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")
    }

    const GOOD: &str = "Upgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Protocol: x, mqtt\r\n";

    fn refusal(text: &str) -> (UpgradeError, String) {
        let error = parse_request(text.as_bytes(), RULES).expect_err("a refusal");
        let status = error.answer()["HTTP/1.1 ".len()..][..3].to_owned();
        (error, status)
    }

    #[test]
    fn the_example_of_the_rfc_is_accepted() {
        let text = request("/mqtt?token=1", GOOD) + "rest";
        let (found, len) = parse_request(text.as_bytes(), RULES).expect("good").expect("whole");
        assert_eq!(&text[len..], "rest");
        assert!(found.answer().contains("Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
        assert!(found.answer().contains("Sec-WebSocket-Protocol: mqtt\r\n"));
        for cut in 0..len {
            assert_eq!(parse_request(&text.as_bytes()[..cut], RULES), Ok(None), "cut at {cut}");
        }
    }

    #[test]
    fn the_old_subprotocol_is_accepted() {
        let text = request("/mqtt", &GOOD.replace("x, mqtt", "mqttv3.1"));
        let (found, _) = parse_request(text.as_bytes(), RULES).expect("good").expect("whole");
        assert!(found.answer().contains("Sec-WebSocket-Protocol: mqttv3.1\r\n"));
    }

    #[test]
    fn refusals_have_their_status() {
        for (text, status) in [
            (request("/other", GOOD), "404"),
            (request("/mqtt", ""), "426"),
            (request("/mqtt", &GOOD.replace("13", "8")), "426"),
            (request("/mqtt", &GOOD.replace("x, mqtt", "chat")), "400"),
            (request("/mqtt", &GOOD.replace("dGhl", "")), "400"),
            (request("/mqtt", GOOD).replace("GET", "POST"), "400"),
            (request("/mqtt", GOOD).replace("HTTP/1.1", "HTTP/1.0"), "400"),
            (request("/mqtt", GOOD).replace("Host: localhost\r\n", ""), "400"),
            ("\x10\x0c\0\x04MQTT\x05\x02\0<\0\0".to_owned(), "400"),
            (request("/mqtt", &"X: y\r\n".repeat(HEADERS_MAX)), "431"),
            (request("/mqtt", &format!("X: {}\r\n", "y".repeat(HEADER_BYTES_MAX))), "431"),
        ] {
            assert_eq!(refusal(&text).1, status, "{text}");
        }
        let endless = "GET /".to_owned() + &"x".repeat(HEADER_BYTES_MAX);
        assert_eq!(refusal(&endless).0, UpgradeError::TooLong);
    }

    #[test]
    fn an_empty_path_serves_any() {
        let any = Rules { path: "", ..RULES };
        for path in ["/", "/other?x"] {
            assert!(parse_request(request(path, GOOD).as_bytes(), any).is_ok(), "{path}");
        }
    }

    #[test]
    fn a_refusal_echoes_nothing() {
        let answer = refusal(&request("/<script>", GOOD)).0.answer();
        assert!(!answer.contains("script"));
    }

    #[test]
    fn pages_of_the_same_host_and_port_are_let_in() {
        let anywhere = Origins::Same { is_local: false };
        assert!(anywhere.admit("https://App.example", "app.example"));
        assert!(anywhere.admit("http://192.0.2.7:8080", "192.0.2.7:8080"));
        for (origin, host) in [
            ("https://evil.example", "app.example"),
            ("http://localhost:8000", "localhost:9001"),
            ("null", "app.example"),
            ("", ""),
        ] {
            assert_eq!(anywhere.admit(origin, host), origin.is_empty(), "{origin}");
        }
        let local = Origins::Same { is_local: true };
        for host in ["localhost:9001", "127.0.0.1:9001", "[::1]:9001", "localhost"] {
            assert!(local.admit(&format!("http://{host}"), host), "{host}");
        }
        // A name that its owner lets point to this machine.
        assert!(!local.admit("http://evil.example:9001", "evil.example:9001"));
    }

    #[test]
    fn only_listed_origins_are_let_in() {
        let origins = Origins::Listed(vec!["https://app.example".to_owned()]);
        let rules = Rules { origins: &origins, ..RULES };
        let with = |origin: &str| {
            let text = request("/mqtt", &format!("{origin}{GOOD}"));
            parse_request(text.as_bytes(), rules).map(|found| found.is_some())
        };
        assert_eq!(with("Origin: https://APP.example\r\n"), Ok(true));
        assert_eq!(with(""), Ok(true));
        let error = with("Origin: https://evil.example\r\n").expect_err("a refusal");
        assert!(error.answer().starts_with("HTTP/1.1 403"));
    }

    #[test]
    fn the_nearest_stranger_is_the_client() {
        let headers = format!(
            "X-Forwarded-For: 6.6.6.6, 192.0.2.7:99\r\n\
             x-forwarded-for: \"[fd00::1]:1\", 10.0.0.2\r\n{GOOD}"
        );
        let text = request("/mqtt", &headers);
        let (found, _) = parse_request(text.as_bytes(), RULES).expect("good").expect("whole");
        let is_proxy = |ip: IpAddr| ip.to_string().starts_with("10.") || ip.is_ipv6();
        assert_eq!(found.client(is_proxy).expect("client").to_string(), "192.0.2.7");
        assert_eq!(found.client(|_| true).expect("client").to_string(), "6.6.6.6");
    }

    #[test]
    fn behind_what_is_no_address_nobody_is_looked_for() {
        let is_proxy = |ip: IpAddr| ip.to_string().starts_with("10.");
        let client = |value: &[u8]| {
            let text = request("/mqtt", &format!("X-Forwarded-For: @\r\n{GOOD}"));
            let (before, behind) = text.split_once('@').expect("a mark");
            let bytes = [before.as_bytes(), value, behind.as_bytes()].concat();
            let (found, _) = parse_request(&bytes, RULES).expect("good").expect("whole");
            found.client(is_proxy).map(|ip| ip.to_string())
        };
        for list in
            [&b"6.6.6.6, unknown"[..], b"6.6.6.6, _hidden, 10.0.0.2", b"6.6.6.6, \xff", b"", b"x"]
        {
            assert_eq!(client(list), None, "{list:?}");
        }
        for list in
            [&b"x, 6.6.6.6"[..], b"x, 6.6.6.6, 10.0.0.2", b"6.6.6.6", b"\xff, 6.6.6.6,10.1.1.1"]
        {
            assert_eq!(client(list).as_deref(), Some("6.6.6.6"), "{list:?}");
        }
    }

    #[test]
    fn a_client_accepts_only_its_own_answer() {
        let offer = Offer::new("localhost:8083", "/mqtt", [7; KEY_BYTES]);
        let (request, _) =
            parse_request(offer.request().as_bytes(), RULES).expect("good").expect("whole");
        let answer = request.answer();
        assert_eq!(offer.parse_answer(answer.as_bytes()), Ok(Some(answer.len())));
        assert_eq!(offer.parse_answer(&answer.as_bytes()[..answer.len() - 1]), Ok(None));
        let other = Offer::new("localhost:8083", "/mqtt", [8; KEY_BYTES]);
        let wrong = UpgradeError::Answer("Sec-WebSocket-Accept");
        assert_eq!(other.parse_answer(answer.as_bytes()), Err(wrong));
        let refused = UpgradeError::NotUpgrade.answer();
        assert_eq!(offer.parse_answer(refused.as_bytes()), Err(UpgradeError::Status(426)));
        for header in ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Protocol: mqtt"]
        {
            let answer = answer.replace(header, "X: y");
            assert!(offer.parse_answer(answer.as_bytes()).is_err(), "{header}");
        }
    }
}
