//! Tokens for OAUTHBEARER from an identity provider (OAuth 2.0, grant `client_credentials`).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use net::Url;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::dial::{DialError, Dialer, Resolve, TlsFiles};
use crate::networks::Networks;
use crate::secret::{Secret, SecretError};

/// Where tokens are issued, and for whom.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenEndpoint {
    /// `https://host/path`. `http` is for tests.
    pub url: String,
    pub client_id: String,
    pub client_secret: Secret,
    pub scope: Option<String>,
    /// PEM: the CAs that vouch for the endpoint. None: those of the system.
    pub ca: Option<PathBuf>,
}

/// Why there is no token. None of them shows the secret or an answer.
#[derive(Debug, Error)]
pub enum TokenError {
    #[error("the token endpoint must be https://host/path, got `{0}`")]
    Url(String),
    #[error("the token endpoint: {0}")]
    Dial(#[from] DialError),
    #[error("the token endpoint: {0}")]
    Secret(#[from] SecretError),
    #[error("the token endpoint: {0}")]
    Http(#[from] hyper::Error),
    #[error("the token endpoint answered {0}")]
    Status(StatusCode),
    #[error(
        "the token endpoint: the answer must be JSON of at most {ANSWER_BYTES_MAX} bytes with \
         `access_token`"
    )]
    Answer,
    #[error("the token endpoint gave no answer within {} s", .0.as_secs())]
    TimedOut(Duration),
}

/// Asks for tokens, and keeps one until it is about to expire.
pub(super) struct Tokens {
    endpoint: TokenEndpoint,
    location: Location,
    dialer: Dialer,
    time_max: Duration,
    kept: Mutex<Option<(String, Instant)>>,
}

struct Location {
    host: String,
    port: u16,
    path: String,
}

impl TokenEndpoint {
    fn location(&self) -> Result<(Location, bool), TokenError> {
        let invalid = || TokenError::Url(self.url.clone());
        let url = Url::parse(&self.url).map_err(|_| invalid())?;
        let is_tls = match url.scheme {
            "https" => true,
            "http" => false,
            _ => return Err(invalid()),
        };
        if url.user.is_some() || url.host.is_empty() {
            return Err(invalid());
        }
        let port = url.port.unwrap_or(if is_tls { 443 } else { 80 });
        let path = if url.path.is_empty() { "/" } else { url.path };
        let location = Location { host: url.host.to_owned(), port, path: path.to_owned() };
        Ok((location, is_tls))
    }

    /// # Errors
    ///
    /// The URL is not valid.
    pub fn check(&self) -> Result<(), TokenError> {
        self.location().map(|_| ())
    }
}

impl fmt::Debug for TokenEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {:?}", self.url, self.client_id)
    }
}

impl Tokens {
    pub(super) fn new(
        endpoint: TokenEndpoint,
        resolver: Arc<dyn Resolve>,
        networks: Networks,
        time_max: Duration,
    ) -> Result<Self, TokenError> {
        let (location, is_tls) = endpoint.location()?;
        let tls = is_tls.then(|| TlsFiles { ca: endpoint.ca.clone(), ..TlsFiles::default() });
        let dialer = Dialer::new(resolver, networks, tls, time_max);
        Ok(Self { endpoint, location, dialer, time_max, kept: Mutex::default() })
    }

    /// The token that is kept, or a new one.
    pub(super) async fn token(&self) -> Result<String, TokenError> {
        let mut kept = self.kept.lock().await;
        if let Some((token, until)) = &*kept
            && Instant::now() < *until
        {
            return Ok(token.clone());
        }
        let asked = Instant::now();
        let asking = timeout(self.time_max, self.ask()).await;
        let (token, lifetime) = asking.unwrap_or(Err(TokenError::TimedOut(self.time_max)))?;
        let until = asked + lifetime.saturating_sub(EXPIRY_MARGIN);
        *kept = Some((token.clone(), until));
        Ok(token)
    }

    async fn ask(&self) -> Result<(String, Duration), TokenError> {
        let request = self.request()?;
        let wire = self.dialer.connect(&self.location.host, self.location.port).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(wire)).await?;
        let exchange = async {
            // Redirects are answers like others: only 200 has a token.
            let answer = sender.send_request(request).await?;
            let status = answer.status();
            if status != StatusCode::OK {
                return Err(TokenError::Status(status));
            }
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
            parse(&body.map_err(|_| TokenError::Answer)?.to_bytes())
        };
        tokio::pin!(exchange);
        tokio::select! {
            answer = &mut exchange => answer,
            // The connection may end with its last bytes still unread.
            ended = connection => {
                ended?;
                exchange.await
            }
        }
    }

    fn request(&self) -> Result<Request<Full<Bytes>>, TokenError> {
        let escape = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let secret = self.endpoint.client_secret.read()?;
        let login = format!("{}:{}", escape(&self.endpoint.client_id), escape(&secret));
        let login = format!("Basic {}", BASE64_STANDARD.encode(login));
        let mut body = "grant_type=client_credentials".to_owned();
        if let Some(scope) = &self.endpoint.scope {
            body += &format!("&scope={}", escape(scope));
        }
        let Location { host, port, path } = &self.location;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let invalid = || TokenError::Url(self.endpoint.url.clone());
        let mut login = HeaderValue::from_str(&login).map_err(|_| invalid())?;
        login.set_sensitive(true);
        Request::post(path)
            .header(HOST, format!("{host}:{port}"))
            .header(AUTHORIZATION, login)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::new(body.into()))
            .map_err(|_| invalid())
    }
}

fn parse(body: &[u8]) -> Result<(String, Duration), TokenError> {
    let answer: Value = serde_json::from_slice(body).map_err(|_| TokenError::Answer)?;
    let token = answer.get("access_token").and_then(Value::as_str).ok_or(TokenError::Answer)?;
    let seconds = answer.get("expires_in").and_then(Value::as_u64);
    // One that does not say how long it is valid is asked for each time.
    Ok((token.to_owned(), Duration::from_secs(seconds.unwrap_or(0).min(LIFETIME_SECS_MAX))))
}

const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// The library takes no token that expires within half a minute.
const EXPIRY_MARGIN: Duration = Duration::from_secs(60);
const LIFETIME_SECS_MAX: u64 = 24 * 3600;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::dial::System;

    fn tokens(url: String, permitted: &[&str]) -> Tokens {
        let endpoint = TokenEndpoint {
            url,
            client_id: "an id".into(),
            client_secret: Secret::Text("hunter2".into()),
            scope: Some("kafka/.default".into()),
            ca: None,
        };
        assert_eq!(format!("{endpoint:?}"), format!("{} for \"an id\"", endpoint.url));
        let permitted = permitted.iter().map(|network| network.parse().unwrap()).collect();
        let networks = Networks::permitting(permitted);
        Tokens::new(endpoint, Arc::new(System), networks, Duration::from_secs(5)).unwrap()
    }

    /// Answers each request with the next text; returns the requests.
    async fn serve(listener: TcpListener, answers: Vec<&'static str>) -> Vec<String> {
        let mut requests = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"default") {
                let mut bytes = [0; 1024];
                let count = stream.read(&mut bytes).await.unwrap();
                assert!(count > 0, "the whole request");
                request.extend(&bytes[..count]);
            }
            requests.push(String::from_utf8(request).unwrap());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        requests
    }

    #[tokio::test]
    async fn a_token_is_kept_until_it_expires() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/token", listener.local_addr().unwrap());
        let answers = vec![
            "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"access_token\":\"one\", \"expires_in\": 60} ",
            "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"access_token\":\"two\",\"expires_in\":3600}",
        ];
        let server = tokio::spawn(serve(listener, answers));
        let tokens = tokens(url, &["127.0.0.1"]);
        assert_eq!(tokens.token().await.unwrap(), "one");
        assert_eq!(tokens.token().await.unwrap(), "two");
        assert_eq!(tokens.token().await.unwrap(), "two");
        let requests = server.await.unwrap();
        assert!(requests[0].starts_with("POST /token HTTP/1.1\r\n"), "{}", requests[0]);
        let login = format!("Basic {}", BASE64_STANDARD.encode("an%20id:hunter2"));
        assert!(requests[0].contains(&login), "{}", requests[0]);
        let body = "grant_type=client_credentials&scope=kafka%2F%2Edefault";
        assert!(requests[0].ends_with(body), "{}", requests[0]);
    }

    #[tokio::test]
    async fn answers_without_a_token_are_named_and_not_shown() {
        for (answer, fault) in [
            ("HTTP/1.1 302 Found\r\nlocation: http://[::1]/\r\ncontent-length: 0\r\n\r\n", "302"),
            ("HTTP/1.1 401 Unauthorized\r\ncontent-length: 7\r\n\r\nhunter2", "401"),
            ("HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nhunter2", "`access_token`"),
            ("SSH-2.0\r\n\r\n", "the token endpoint: "),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/token", listener.local_addr().unwrap());
            let server = tokio::spawn(serve(listener, vec![answer]));
            let error = tokens(url, &["127.0.0.1"]).token().await.unwrap_err().to_string();
            assert!(error.contains(fault) && !error.contains("hunter2"), "{error}");
            server.await.unwrap();
        }
    }

    #[tokio::test]
    async fn its_address_is_checked() {
        let tokens = tokens("http://127.0.0.1:1/token".into(), &[]);
        let error = tokens.token().await.unwrap_err();
        assert!(matches!(error, TokenError::Dial(DialError::NotPermitted { .. })), "{error}");
    }

    #[test]
    fn urls_are_checked() {
        for url in ["", "token.example", "ftp://a/b", "https://", "https://u@a/b"] {
            let endpoint = TokenEndpoint {
                url: url.into(),
                client_id: String::new(),
                client_secret: Secret::Text(String::new()),
                scope: None,
                ca: None,
            };
            assert!(endpoint.check().is_err(), "{url}");
        }
    }
}
