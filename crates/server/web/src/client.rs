//! The synchronous HTTP client of command lines and measurements: `ureq` with our TLS.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use net::{TlsClientContext, TlsError, Url};
pub use ureq;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

/// TLS of a client.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientTls<'a> {
    /// Replaces the certificate authorities of the system.
    pub ca: Option<&'a Path>,
    /// Certificate with its chain, and key.
    pub identity: Option<(&'a Path, &'a Path)>,
    /// The server's certificate is not verified.
    pub is_insecure: bool,
}

/// An agent for requests to `url`, with `time_max` for connecting and for each read and write.
///
/// Statuses are not errors, redirects are not followed and proxies are not used: the tokens that
/// are sent are for this server alone.
///
/// # Errors
///
/// For `https`: files that cannot be used.
pub fn agent(
    url: &Url<'_>,
    given: &ClientTls<'_>,
    time_max: Duration,
) -> Result<ureq::Agent, TlsError> {
    let mut tls = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(TlsClientContext::provider()));
    if url.scheme == "https"
        && let Some((certificate, key)) = given.identity
    {
        let chain = owned(&net::authorities(Some(certificate))?);
        tls = tls.client_cert(Some(ClientCert::new_with_certs(&chain, private_key(key)?)));
    }
    if given.is_insecure {
        tls = tls.disable_verification(true);
    } else if url.scheme == "https" {
        let authorities = net::authorities(given.ca)?;
        tls = tls.root_certs(RootCerts::new_with_certs(&owned(&authorities)));
    }
    Ok(ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .timeout_connect(Some(time_max))
        .timeout_per_read(Some(time_max))
        .timeout_per_write(Some(time_max))
        .tls_config(tls.build())
        .build()
        .into())
}

fn owned(certificates: &[impl AsRef<[u8]>]) -> Vec<Certificate<'static>> {
    certificates.iter().map(|der| Certificate::from_der(der.as_ref()).to_owned()).collect()
}

fn private_key(path: &Path) -> Result<PrivateKey<'static>, TlsError> {
    let pem = std::fs::read(path)
        .map_err(|error| TlsError::Unreadable { path: path.to_owned(), error })?;
    PrivateKey::from_pem(&pem)
        .map_err(|error| TlsError::Key { path: path.to_owned(), reason: error.to_string() })
}

/// The URL of an HTTP service, with `port` and `path` where it has none.
///
/// # Errors
///
/// What is wrong with the URL.
pub fn http_url(text: &str, port: u16, path: &str) -> Result<String, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    let port = match (url.scheme, url.port) {
        ("http" | "https", Some(port)) => port,
        ("http", None) => port,
        ("https", None) => 443,
        _ => return Err("needs the scheme http or https".into()),
    };
    if url.user.is_some() || url.host.is_empty() {
        return Err("needs a host, without a username".into());
    }
    let path = if matches!(url.path, "" | "/") { path } else { url.path };
    Ok(format!("{}://{}:{port}{path}", url.scheme, url.bracketed_host()))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// Answers one request over TLS, if the handshake succeeds; returns the port and the CA.
    fn https_server() -> (u16, String) {
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let provider = Arc::new(TlsClientContext::provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![own.cert.der().clone()],
                rustls::pki_types::PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()).into(),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let session = rustls::ServerConnection::new(Arc::new(config)).unwrap();
            let mut stream = BufReader::new(rustls::StreamOwned::new(session, stream));
            let mut line = String::new();
            // A client that does not trust us ends the handshake.
            while stream.read_line(&mut line).is_ok_and(|count| count > 2) {
                line.clear();
            }
            let _ = stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        });
        (port, own.cert.pem())
    }

    fn trusting(ca: &Path) -> ClientTls<'_> {
        ClientTls { ca: Some(ca), ..ClientTls::default() }
    }

    #[test]
    fn https_works_with_an_authority_that_is_trusted_and_not_without() {
        let directory = tempfile::tempdir().unwrap();
        let ca = directory.path().join("ca.pem");
        for is_trusted in [true, false] {
            let (port, mut pem) = https_server();
            if !is_trusted {
                let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
                pem = other.unwrap().cert.pem();
            }
            std::fs::write(&ca, pem).unwrap();
            let text = format!("https://localhost:{port}/x");
            let url = Url::parse(&text).unwrap();
            let agent = agent(&url, &trusting(&ca), Duration::from_secs(30)).unwrap();
            let answer = agent.get(&text).call();
            match is_trusted {
                true => assert_eq!(answer.unwrap().body_mut().read_to_string().unwrap(), "ok"),
                false => assert!(answer.unwrap_err().to_string().contains("ertificate")),
            }
        }
        let url = Url::parse("https://localhost").unwrap();
        let missing = agent(&url, &trusting(Path::new("/nonexistent/ca.pem")), Duration::ZERO);
        assert!(missing.unwrap_err().to_string().contains("/nonexistent/ca.pem"));
    }

    #[test]
    fn urls_get_a_port_and_a_path() {
        for (text, full) in [
            ("http://a", "http://a:9883/x"),
            ("https://a/", "https://a:443/x"),
            ("http://[::1]:7/y?z", "http://[::1]:7/y?z"),
        ] {
            assert_eq!(http_url(text, 9883, "/x").as_deref(), Ok(full));
        }
        for text in ["a:1", "ftp://a", "http://", "http:///x", "http://u:p@a/"] {
            assert!(http_url(text, 80, "/").is_err(), "{text}");
        }
    }
}
