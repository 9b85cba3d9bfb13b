//! What is known about the other end once the handshakes are done.

use std::fmt;
use std::net::SocketAddr;

use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;

use crate::proxy::ProxyTls;
use crate::sys::UnixCredentials;

/// The other end of a connection, as far as the transport can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The client: what a trusted proxy says, else the peer of the socket.
    pub address: PeerAddress,
    /// The trusted proxy through which `address` was learnt, if any.
    pub proxied_by: Option<PeerAddress>,
    /// Set if TLS ends here.
    pub tls: Option<Box<TlsInfo>>,
    /// What a trusted proxy says of TLS that ended there.
    pub proxy_tls: Option<Box<ProxyTls>>,
    /// The host name that the client asked the proxy for.
    pub proxy_authority: Option<Box<str>>,
    pub is_websocket: bool,
    /// Linux only.
    pub unix: Option<UnixCredentials>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerAddress {
    Inet(SocketAddr),
    Unix,
}

/// What the TLS handshake established.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsInfo {
    /// `TLSv1.2` or `TLSv1.3`.
    pub version: &'static str,
    /// The name of the cipher suite, such as `TLS13_AES_256_GCM_SHA384`.
    pub cipher: &'static str,
    /// The host name that the client asked for.
    pub server_name: Option<Box<str>>,
    pub alpn: Option<Box<str>>,
    pub is_resumed: bool,
    /// The certificate of the peer. On a server: verified against the client CA.
    pub certificate: Option<Box<CertificateInfo>>,
}

/// The parts of a verified certificate by which a client can be named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateInfo {
    /// The first common name of the subject; empty if it has none.
    pub common_name: String,
    /// The whole subject as RFC 4514 writes it, last attribute first: `CN=sensor,O=Example,C=DE`.
    pub subject: String,
    /// The subject alternative names, each behind `DNS:`, `IP:`, `URI:`, `email:`, in the
    /// certificate's order.
    pub alternative_names: Vec<String>,
    /// Lower-case hex of the SHA-256 of the DER encoding.
    pub fingerprint_sha256: String,
    /// The last second of validity, in seconds since 1970.
    pub not_after_secs: u64,
    /// No authority that is known has issued it: it was accepted for its thumbprint
    /// ([`crate::Thumbprints`]). All that it says of its owner, the owner may have made up.
    pub is_unissued: bool,
}

impl TlsInfo {
    /// The version of this name, as another process writes it.
    pub fn version_named(name: &str) -> &'static str {
        ["TLSv1.3", "TLSv1.2"].into_iter().find(|known| *known == name).unwrap_or("unknown")
    }

    /// The cipher suite of this name, as another process writes it.
    pub fn cipher_named(name: &str) -> &'static str {
        let names = ALL_CIPHER_SUITES.iter().filter_map(|suite| suite.suite().as_str());
        names.into_iter().find(|known| *known == name).unwrap_or("unknown")
    }
}

impl PeerInfo {
    /// One of which nothing but the address is known.
    pub const fn new(address: PeerAddress) -> Self {
        Self {
            address,
            proxied_by: None,
            tls: None,
            proxy_tls: None,
            proxy_authority: None,
            is_websocket: false,
            unix: None,
        }
    }
}

impl PeerAddress {
    /// An IPv4 address mapped into IPv6 becomes plain IPv4.
    pub(crate) fn inet(address: SocketAddr) -> Self {
        Self::Inet(SocketAddr::new(address.ip().to_canonical(), address.port()))
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(address) => address.fmt(f),
            Self::Unix => f.write_str("unix"),
        }
    }
}
