//! Where a client comes from, as far as limits for each address go.

use std::net::{IpAddr, SocketAddr};

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

impl From<&net::PeerAddress> for Origin {
    fn from(peer: &net::PeerAddress) -> Self {
        match peer {
            net::PeerAddress::Inet(address) => Self::from(*address),
            net::PeerAddress::Unix => Self::Local,
        }
    }
}

impl From<SocketAddr> for Origin {
    fn from(address: SocketAddr) -> Self {
        Self::of(address.ip())
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
        assert_eq!(origin("::ffff:192.0.2.1"), origin("192.0.2.1"), "the same on a dual socket");
    }
}
