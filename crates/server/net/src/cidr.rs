//! Networks of IP addresses: of proxies that are trusted, of clients that are banned, of rules.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};
use thiserror::Error;

/// A network such as `10.0.0.0/8` or `fd00::/8`; a bare address is a network of one. IPv4 mapped
/// into IPv6 (`::ffff:10.0.0.0/104`) is IPv4 here, as addresses of clients are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr(IpNet);

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CidrError {
    #[error("must be a network such as 10.0.0.0/8 or fd00::/8, or an address, got '{0}'")]
    Malformed(String),
    #[error("'{0}' is IPv4 mapped into IPv6 with a prefix below 96; write it as IPv4")]
    Mapped(String),
}

impl Cidr {
    /// Whether `address` lies within. An IPv4 address mapped into IPv6 counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// The same network, named by its first address.
    #[must_use]
    pub fn without_host(self) -> Self {
        Self(self.0.trunc())
    }

    /// All of them. IPv4 and IPv6 do not mix.
    pub fn addresses(&self) -> RangeInclusive<IpAddr> {
        self.0.network()..=self.0.broadcast()
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let net = match text.parse::<IpAddr>() {
            Ok(address) => IpNet::from(address),
            Err(_) => text.parse().map_err(|_| CidrError::Malformed(text.to_owned()))?,
        };
        match (net, net.addr().to_canonical()) {
            (IpNet::V6(net), IpAddr::V4(mapped)) => {
                let prefix_bits = net.prefix_len().checked_sub(MAPPED_PREFIX_BITS);
                let plain = prefix_bits.and_then(|bits| Ipv4Net::new(mapped, bits).ok());
                Ok(Self(plain.ok_or_else(|| CidrError::Mapped(text.to_owned()))?.into()))
            }
            _ => Ok(Self(net)),
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What stands before an IPv4 address that is mapped (RFC 4291, section 2.5.5.2).
const MAPPED_PREFIX_BITS: u8 = 96;

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(range: &str, address: &str) -> bool {
        range.parse::<Cidr>().expect("range").contains(address.parse().expect("address"))
    }

    #[test]
    fn ranges_hold_what_they_should() {
        assert!(holds("10.0.0.0/8", "10.255.0.1"));
        assert!(!holds("10.0.0.0/8", "11.0.0.1"));
        assert!(holds("0.0.0.0/0", "1.2.3.4"));
        assert!(!holds("0.0.0.0/0", "::1"));
        assert!(holds("127.0.0.1", "::ffff:127.0.0.1"));
        assert!(!holds("127.0.0.1", "127.0.0.2"));
        assert!(holds("fd00::/8", "fdff::1"));
        assert!(!holds("fd00::/9", "fd80::1"));
        assert!(holds("::/0", "2001:db8::1"));
    }

    #[test]
    fn ipv4_mapped_into_ipv6_is_ipv4() {
        assert!(holds("::ffff:10.0.0.0/104", "10.1.2.3"));
        assert!(holds("::ffff:10.0.0.0/104", "::ffff:10.1.2.3"));
        assert!(!holds("::ffff:10.0.0.0/104", "11.1.2.3"));
        assert!(holds("::ffff:192.0.2.7", "192.0.2.7") && holds("::ffff:0:0/96", "1.2.3.4"));
        assert!(!holds("::ffff:0:0/96", "::1"));
        for (mapped, plain) in [
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:a00:7", "10.0.0.7"),
            ("::FFFF:0.0.0.0/96", "0.0.0.0/0"),
        ] {
            assert_eq!(mapped.parse::<Cidr>(), plain.parse(), "{mapped}");
        }
        for text in ["::ffff:10.0.0.0/95", "::ffff:10.0.0.0/8", "::ffff:1.2.3.4/0"] {
            let error = text.parse::<Cidr>().unwrap_err();
            assert!(error.to_string().contains("as IPv4"), "{text}: {error}");
        }
    }

    #[test]
    fn networks_begin_and_end() {
        for (network, first, last) in [
            ("10.1.2.3/8", "10.0.0.0", "10.255.255.255"),
            ("::ffff:10.1.2.3/104", "10.0.0.0", "10.255.255.255"),
            ("1.2.3.4", "1.2.3.4", "1.2.3.4"),
            ("1.2.3.4/0", "0.0.0.0", "255.255.255.255"),
            ("fd00::7/8", "fd00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("::1/128", "::1", "::1"),
        ] {
            let network: Cidr = network.parse().unwrap();
            let (first, last) = (first.parse().unwrap(), last.parse().unwrap());
            assert_eq!(network.addresses(), first..=last);
            assert_eq!(network.without_host().addresses(), first..=last);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "10.0.0.0/33", "::/129", "a/8", "10.0.0.0/", "10.0.0.0/-1"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }
}
