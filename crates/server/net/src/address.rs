//! Where a listener listens or a connector connects, written as a URL.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

use crate::url::{self, Url, UrlError};

/// A URL such as `tcp://127.0.0.1:1883`, `tls://[::]:8883`, `ws://localhost:8083/mqtt`,
/// `wss://broker.example` or `unix:///run/quelea.sock`.
///
/// `mqtt` and `mqtts` mean `tcp` and `tls`. A missing port becomes the usual one of the scheme
/// (1883, 8883, 8083, 8084), a missing WebSocket path becomes `/mqtt`. An empty host or `*` stands
/// for every local address when listening, and for this machine when connecting.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    Inet {
        scheme: Scheme,
        /// Without brackets, also for IPv6; empty for "every local address".
        host: String,
        port: u16,
        /// Begins with `/`; empty unless `scheme` is a WebSocket. A listener with an empty path
        /// serves any, which a URL cannot say.
        path: String,
    },
    Unix(PathBuf),
}

/// The address of a listener. The same type serves connectors.
pub type ListenAddress = Address;

/// The layers between TCP and the application's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    Tcp,
    Tls,
    Ws,
    Wss,
}

/// Why a URL is not an [`Address`].
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AddressError {
    #[error(
        "address `{0}` has no scheme: write tcp://, tls://, ws://, wss:// or unix:// before it"
    )]
    SchemeMissing(String),
    #[error("address `{0}` has an unknown scheme: use tcp, tls, ws, wss or unix")]
    SchemeUnknown(String),
    #[error("address `{0}` has a bad port: use a number from 0 to 65535 after the last colon")]
    PortInvalid(String),
    #[error(
        "address `{0}` has a bad host: put an IPv6 address in brackets, as in tcp://[::1]:1883"
    )]
    HostInvalid(String),
    #[error("address `{0}` has a path, which only ws, wss and unix addresses have")]
    PathUnexpected(String),
    #[error("address `{0}` needs the path of a socket, as in unix:///run/quelea.sock")]
    PathMissing(String),
}

impl Address {
    pub fn tcp(address: SocketAddr) -> Self {
        Self::inet(Scheme::Tcp, address)
    }

    pub fn inet(scheme: Scheme, address: SocketAddr) -> Self {
        let path = if scheme.is_websocket() { WEBSOCKET_PATH_DEFAULT } else { "" };
        Self::Inet {
            scheme,
            host: address.ip().to_string(),
            port: address.port(),
            path: path.to_owned(),
        }
    }

    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Inet { scheme, .. } if scheme.is_tls())
    }

    pub fn is_websocket(&self) -> bool {
        matches!(self, Self::Inet { scheme, .. } if scheme.is_websocket())
    }

    /// Whether only this machine can reach it: an IP address of the loopback, `localhost`, or a
    /// unix socket. Other names are not resolved and count as reachable.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Inet { host, .. } => url::is_loopback(host),
        }
    }

    /// The socket addresses to bind: the wildcard ones (IPv6 first) for an empty host, else
    /// whatever the name resolves to. Blocks while the system's resolver works.
    pub(crate) fn resolve_local(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if host.is_empty() {
            let any = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
            return Ok(any.map(|ip| SocketAddr::new(ip, port)).to_vec());
        }
        Ok((host, port).to_socket_addrs()?.collect())
    }

    /// The socket addresses to connect to, in the resolver's order. Blocks while it works.
    pub(crate) fn resolve_remote(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let host = if host.is_empty() { "localhost" } else { host };
        Ok((host, port).to_socket_addrs()?.collect())
    }
}

impl Scheme {
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Tls | Self::Wss)
    }

    pub fn is_websocket(self) -> bool {
        matches!(self, Self::Ws | Self::Wss)
    }

    pub fn port_default(self) -> u16 {
        match self {
            Self::Tcp => 1883,
            Self::Tls => 8883,
            Self::Ws => 8083,
            Self::Wss => 8084,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Ws => "ws",
            Self::Wss => "wss",
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix://") {
            return match path {
                "" => Err(AddressError::PathMissing(text.to_owned())),
                path => Ok(Self::Unix(PathBuf::from(path))),
            };
        }
        let url = Url::parse(text).map_err(|error| match error {
            UrlError::Scheme => AddressError::SchemeMissing(text.to_owned()),
            UrlError::Host => AddressError::HostInvalid(text.to_owned()),
            UrlError::Port => AddressError::PortInvalid(text.to_owned()),
        })?;
        if url.user.is_some() {
            return Err(AddressError::HostInvalid(text.to_owned()));
        }
        let scheme = match url.scheme {
            "tcp" | "mqtt" => Scheme::Tcp,
            "tls" | "mqtts" | "ssl" => Scheme::Tls,
            "ws" => Scheme::Ws,
            "wss" => Scheme::Wss,
            _ => return Err(AddressError::SchemeUnknown(text.to_owned())),
        };
        let path = match (scheme.is_websocket(), url.path) {
            (true, "" | "/") => WEBSOCKET_PATH_DEFAULT,
            (true, path) => path,
            (false, "" | "/") => "",
            (false, _) => return Err(AddressError::PathUnexpected(text.to_owned())),
        };
        Ok(Self::Inet {
            scheme,
            host: if url.host == "*" { String::new() } else { url.host.to_owned() },
            port: url.port.unwrap_or(scheme.port_default()),
            path: path.to_owned(),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Inet { scheme, host, port, path } => {
                let scheme = scheme.name();
                match host.as_str() {
                    "" => write!(f, "{scheme}://*:{port}{path}"),
                    host if host.contains(':') => write!(f, "{scheme}://[{host}]:{port}{path}"),
                    host => write!(f, "{scheme}://{host}:{port}{path}"),
                }
            }
        }
    }
}

const WEBSOCKET_PATH_DEFAULT: &str = "/mqtt";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Address {
        text.parse().expect("a good address")
    }

    #[test]
    fn addresses_survive_a_round_trip() {
        for text in [
            "tcp://127.0.0.1:1883",
            "tls://[::1]:18883",
            "ws://localhost:8083/mqtt",
            "wss://broker.example:443/a/b",
            "tcp://*:0",
            "unix:///run/quelea.sock",
        ] {
            assert_eq!(parse(text).to_string(), text);
        }
    }

    #[test]
    fn ports_and_paths_have_defaults() {
        for (text, full) in [
            ("mqtt://h", "tcp://h:1883"),
            ("mqtts://h", "tls://h:8883"),
            ("ws://h", "ws://h:8083/mqtt"),
            ("wss://[::1]/", "wss://[::1]:8084/mqtt"),
            ("tcp://:1", "tcp://*:1"),
            ("tcp://h:2/", "tcp://h:2"),
        ] {
            assert_eq!(parse(text).to_string(), full);
        }
    }

    #[test]
    fn faults_say_what_is_wrong() {
        let fault = |text: &str| text.parse::<Address>().expect_err("a bad address").to_string();
        assert!(fault("localhost:1883").contains("no scheme"));
        assert!(fault("http://h").contains("unknown scheme"));
        assert!(fault("tcp://h:65536").contains("bad port"));
        assert!(fault("tcp://h:").contains("bad port"));
        assert!(fault("tcp://::1").contains("brackets"));
        assert!(fault("tcp://[::1").contains("brackets"));
        assert!(fault("tcp://[zz]:1").contains("brackets"));
        assert!(fault("tcp://[::1]x").contains("brackets"));
        assert!(fault("tcp://h/mqtt").contains("path"));
        assert!(fault("unix://").contains("path of a socket"));
    }

    #[test]
    fn loopback_is_distinguished_from_the_world() {
        for text in ["tcp://127.0.0.9", "tcp://[::1]", "ws://localhost", "unix:///x"] {
            assert!(parse(text).is_loopback(), "{text}");
        }
        for text in ["tcp://*", "tcp://0.0.0.0", "tcp://[::]", "tcp://10.0.0.1", "tcp://h"] {
            assert!(!parse(text).is_loopback(), "{text}");
        }
    }
}
