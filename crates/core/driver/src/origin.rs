//! Where a client comes from, as far as limits for each address go.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Who shares a limit: an IPv4 address, or a /64 of IPv6, of which a single customer has at least
/// one. All clients of Unix sockets are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Origin {
    #[default]
    Local,
    V4([u8; 4]),
    V6([u8; 8]),
}

impl Origin {
    pub fn of_socket(address: SocketAddr) -> Self {
        Self::of(address.ip())
    }

    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::V4(octets) => Ipv4Addr::from(*octets).fmt(f),
            Self::V6(front) => {
                let mut octets = [0; 16];
                octets[..8].copy_from_slice(front);
                write!(f, "{}/64", Ipv6Addr::from(octets))
            }
        }
    }
}

impl From<SocketAddr> for Origin {
    fn from(address: SocketAddr) -> Self {
        Self::of_socket(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_customer_is_one_origin() {
        let origin = |text: &str| Origin::of(text.parse().unwrap());
        assert_eq!(origin("2001:db8:0:1::1"), origin("2001:db8:0:1:ffff::9"));
        assert_ne!(origin("2001:db8:0:1::1"), origin("2001:db8:0:2::1"));
        assert_ne!(origin("192.0.2.1"), origin("192.0.2.2"));
        assert_eq!(origin("2001:db8:0:1::1").to_string(), "2001:db8:0:1::/64");
        assert_eq!(origin("192.0.2.1").to_string(), "192.0.2.1");
        assert_eq!(origin("::ffff:192.0.2.1"), origin("192.0.2.1"), "the same on a dual socket");
    }
}
