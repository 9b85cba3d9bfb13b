//! Listener URLs and networks.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use super::schema::{ValueKind, settings};

/// What is spoken on a listener below MQTT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Tls,
    Ws,
    Wss,
    Unix,
}

/// Where a listener listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Ip(SocketAddr),
    Unix(PathBuf),
}

/// A listener URL taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub transport: Transport,
    pub address: Address,
    /// The path of a WebSocket URL, where it has one.
    pub path: Option<String>,
}

impl Endpoint {
    /// Reads a URL. `*` stands for all IPv6 and IPv4 addresses if there is IPv6, else all IPv4.
    ///
    /// # Errors
    ///
    /// What is wrong with it and what would be right.
    pub fn parse(url: &str, has_ipv6: bool) -> Result<Self, String> {
        if let Some(path) = url.strip_prefix("unix://") {
            if !path.starts_with('/') || path.len() == 1 {
                return Err(wrong(url, "needs an absolute path, as in unix:///run/quelea.sock"));
            }
            let address = Address::Unix(path.into());
            return Ok(Self { transport: Transport::Unix, address, path: None });
        }
        let parts = net::Url::parse(url).map_err(|error| wrong(url, &error.to_string()))?;
        let (transport, default_port) = match parts.scheme {
            "tcp" | "mqtt" => (Transport::Tcp, 1883),
            "tls" | "mqtts" | "ssl" => (Transport::Tls, 8883),
            "ws" => (Transport::Ws, 80),
            "wss" => (Transport::Wss, 443),
            _ => return Err(wrong(url, "has an unknown scheme")),
        };
        let path = Some(parts.path).filter(|path| !matches!(*path, "" | "/")).map(str::to_owned);
        if path.is_some() && !matches!(transport, Transport::Ws | Transport::Wss) {
            return Err(wrong(url, "must not have a path"));
        }
        let ip = local_address(parts.host, has_ipv6).filter(|_| parts.user.is_none());
        let address = ip
            .map(|ip| SocketAddr::new(ip, parts.port.unwrap_or(default_port)))
            .ok_or_else(|| wrong(url, "has no usable address and port"))?;
        Ok(Self { transport, address: Address::Ip(address), path })
    }
}

impl Address {
    /// True when only programs of this machine can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Ip(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl Transport {
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Tls | Self::Wss)
    }

    pub fn is_websocket(self) -> bool {
        matches!(self, Self::Ws | Self::Wss)
    }

    /// The scheme of its URLs.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Ws => "ws",
            Self::Wss => "wss",
            Self::Unix => "unix",
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.as_deref().unwrap_or_default();
        write!(f, "{}://{}{path}", self.transport.scheme(), self.address)
    }
}

/// One without a port: letters of ASCII, digits, `.`, `_` and `-`.
pub(super) fn is_host_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !text.is_empty() && !text.ends_with('.') && text.bytes().all(is_plain)
}

/// What a browser sends as `Origin`. `null` is what pages without one send.
pub(super) fn is_origin(text: &str) -> bool {
    let authority = text.split_once("://").filter(|(scheme, _)| is_host_name(scheme));
    let is_whole = |rest: &str| !rest.is_empty() && !rest.contains(['/', '*', '?', '#', ' ']);
    text == "null" || authority.is_some_and(|(_, rest)| is_whole(rest))
}

fn local_address(host: &str, has_ipv6: bool) -> Option<IpAddr> {
    match host {
        "*" if has_ipv6 => Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        "*" => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        _ => host.parse().ok(),
    }
}

fn wrong(url: &str, why: &str) -> String {
    format!(
        "'{url}' {why}; write tcp://127.0.0.1:1883, tls://[::]:8883, ws://0.0.0.0:8080/mqtt, \
         wss://*:8084 or unix:///run/quelea.sock"
    )
}

settings! {
    /// For `ws://` and `wss://` listeners.
    "listeners.websocket" => RawWebSocket {
        /// The only path that is upgraded. Not set: any path.
        path: Option<String> = ValueKind::Text("a path such as /mqtt"), "";
        /// Web pages whose scripts may connect, or "*" for all. Empty: all pages if every client
        /// needs a password, else pages of the same host and port (`docs/use/transports.md`).
        origins: Vec<String> = ValueKind::List("origins such as https://example.org"), "";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_transport_and_address() {
        for (url, shown) in [
            ("tcp://127.0.0.1", "tcp://127.0.0.1:1883"),
            ("mqtt://localhost:2000", "tcp://127.0.0.1:2000"),
            ("mqtts://[::1]", "tls://[::1]:8883"),
            ("tls://[fe80::1]:99", "tls://[fe80::1]:99"),
            ("ws://*:8080/mqtt", "ws://[::]:8080/mqtt"),
            ("wss://0.0.0.0/", "wss://0.0.0.0:443"),
            ("unix:///run/q.sock", "unix:///run/q.sock"),
        ] {
            assert_eq!(Endpoint::parse(url, true).unwrap().to_string(), shown);
        }
        let any = Endpoint::parse("tcp://*", false).unwrap();
        assert_eq!(any.to_string(), "tcp://0.0.0.0:1883");
    }

    #[test]
    fn wrong_urls_say_what_is_right() {
        for url in
            ["", "1883", "http://x", "tcp://", "tcp://::1", "tcp://a:1", "tcp://1.2.3.4:70000"]
        {
            assert!(
                Endpoint::parse(url, true).unwrap_err().contains("tcp://127.0.0.1:1883"),
                "{url}"
            );
        }
        assert!(Endpoint::parse("tcp://127.0.0.1/x", true).unwrap_err().contains("path"));
        assert!(Endpoint::parse("unix://run", true).unwrap_err().contains("absolute"));
    }

    #[test]
    fn local_addresses_are_known() {
        let is_local = |url| Endpoint::parse(url, true).unwrap().address.is_local();
        assert!(
            is_local("tcp://127.9.9.9:1") && is_local("tcp://[::1]:1") && is_local("unix:///a")
        );
        assert!(is_local("tcp://[::ffff:127.0.0.1]:1"));
        assert!(
            !is_local("tcp://*:1") && !is_local("tcp://0.0.0.0:1") && !is_local("ws://10.0.0.1")
        );
    }
}
