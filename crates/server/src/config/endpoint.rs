//! Listener URLs and networks.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

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

/// A network in CIDR notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u8,
}

impl Endpoint {
    /// Reads a URL. `*` stands for all IPv6 and IPv4 addresses if there is IPv6, else all IPv4.
    ///
    /// # Errors
    ///
    /// What is wrong with it and what would be right.
    pub fn parse(url: &str, has_ipv6: bool) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong(url, "has no scheme"))?;
        let (transport, default_port) = match scheme {
            "tcp" | "mqtt" => (Transport::Tcp, 1883),
            "tls" | "mqtts" | "ssl" => (Transport::Tls, 8883),
            "ws" => (Transport::Ws, 80),
            "wss" => (Transport::Wss, 443),
            "unix" if rest.starts_with('/') && rest.len() > 1 => {
                let address = Address::Unix(rest.into());
                return Ok(Self { transport: Transport::Unix, address, path: None });
            }
            "unix" => {
                return Err(wrong(url, "needs an absolute path, as in unix:///run/quelea.sock"));
            }
            _ => return Err(wrong(url, "has an unknown scheme")),
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => (&rest[..at], Some(rest[at..].to_owned())),
            None => (rest, None),
        };
        let path = path.filter(|path| path != "/");
        if path.is_some() && !matches!(transport, Transport::Ws | Transport::Wss) {
            return Err(wrong(url, "must not have a path"));
        }
        let address = parse_authority(authority, default_port, has_ipv6)
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

impl Network {
    /// True when the address lies in the network. An IPv4 address mapped into IPv6 counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let shift = 32 - u32::from(self.prefix_bits);
                own.to_bits().checked_shr(shift) == other.to_bits().checked_shr(shift)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let shift = 128 - u32::from(self.prefix_bits);
                own.to_bits().checked_shr(shift) == other.to_bits().checked_shr(shift)
            }
            _ => false,
        }
    }

    /// The same network, named by its first address.
    #[must_use]
    pub fn without_host(self) -> Self {
        Self { address: *self.addresses().start(), ..self }
    }

    /// All of them. IPv4 and IPv6 do not mix.
    pub fn addresses(&self) -> RangeInclusive<IpAddr> {
        let prefix_bits = u32::from(self.prefix_bits);
        match self.address {
            IpAddr::V4(own) => {
                let host = u32::MAX.checked_shr(prefix_bits).unwrap_or(0);
                let (first, last) = (own.to_bits() & !host, own.to_bits() | host);
                Ipv4Addr::from_bits(first).into()..=Ipv4Addr::from_bits(last).into()
            }
            IpAddr::V6(own) => {
                let host = u128::MAX.checked_shr(prefix_bits).unwrap_or(0);
                let (first, last) = (own.to_bits() & !host, own.to_bits() | host);
                Ipv6Addr::from_bits(first).into()..=Ipv6Addr::from_bits(last).into()
            }
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("'{text}' is not a network; write 10.0.0.0/8, fd00::/8 or an address");
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match prefix {
            Some(prefix) => {
                prefix.parse().ok().filter(|bits| *bits <= bits_max).ok_or_else(wrong)?
            }
            None => bits_max,
        };
        Ok(Self { address, prefix_bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
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

fn parse_authority(authority: &str, default_port: u16, has_ipv6: bool) -> Option<SocketAddr> {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
        _ => (authority, default_port),
    };
    let ip = match host {
        "*" if has_ipv6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        "*" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        _ => match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(v6) => IpAddr::V6(v6.parse().ok()?),
            None => IpAddr::V4(host.parse().ok()?),
        },
    };
    Some(SocketAddr::new(ip, port))
}

fn wrong(url: &str, why: &str) -> String {
    format!(
        "'{url}' {why}; write tcp://127.0.0.1:1883, tls://[::]:8883, ws://0.0.0.0:8080/mqtt, \
         wss://*:8084 or unix:///run/quelea.sock"
    )
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

    #[test]
    fn networks_contain_addresses() {
        let contains = |network: &str, address: &str| {
            network.parse::<Network>().unwrap().contains(address.parse().unwrap())
        };
        assert!(contains("10.0.0.0/8", "10.255.0.1") && !contains("10.0.0.0/8", "11.0.0.1"));
        assert!(contains("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(contains("0.0.0.0/0", "1.2.3.4") && !contains("0.0.0.0/0", "::1"));
        assert!(contains("fd00::/8", "fd12::1") && !contains("fd00::/8", "fe80::1"));
        assert!(contains("::/0", "::1") && contains("1.2.3.4", "1.2.3.4"));
        assert!(!contains("1.2.3.4", "1.2.3.5"));
        for text in ["10.0.0.0/33", "x", "::/129", "1.2.3.4/", ""] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }

    #[test]
    fn networks_begin_and_end() {
        for (network, first, last) in [
            ("10.1.2.3/8", "10.0.0.0", "10.255.255.255"),
            ("1.2.3.4", "1.2.3.4", "1.2.3.4"),
            ("1.2.3.4/0", "0.0.0.0", "255.255.255.255"),
            ("fd00::7/8", "fd00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("::1/128", "::1", "::1"),
        ] {
            let network: Network = network.parse().unwrap();
            let (first, last) = (first.parse().unwrap(), last.parse().unwrap());
            assert_eq!(network.addresses(), first..=last);
            assert_eq!(network.without_host().addresses(), first..=last);
        }
    }
}
