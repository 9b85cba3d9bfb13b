//! Networks of IP addresses: of proxies that are trusted, of clients that are banned, of rules.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use thiserror::Error;

/// A network such as `10.0.0.0/8` or `fd00::/8`; a bare address is a network of one. IPv4 mapped
/// into IPv6 (`::ffff:10.0.0.0/104`) is IPv4 here, as addresses of clients are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    network: IpAddr,
    prefix_bits: u8,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CidrError {
    #[error("'{0}' is not a network; write 10.0.0.0/8, fd00::/8 or an address")]
    Malformed(String),
    #[error("'{0}' is IPv4 mapped into IPv6 with a prefix below 96; write it as IPv4")]
    Mapped(String),
}

impl Cidr {
    /// Whether `address` lies within. An IPv4 address mapped into IPv6 counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differing = (network.to_bits() ^ address.to_bits()).leading_zeros();
                differing >= u32::from(self.prefix_bits)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differing = (network.to_bits() ^ address.to_bits()).leading_zeros();
                differing >= u32::from(self.prefix_bits)
            }
            _ => false,
        }
    }
}

impl Cidr {
    /// The same network, named by its first address.
    #[must_use]
    pub fn without_host(self) -> Self {
        Self { network: *self.addresses().start(), ..self }
    }

    /// All of them. IPv4 and IPv6 do not mix.
    pub fn addresses(&self) -> RangeInclusive<IpAddr> {
        let prefix_bits = u32::from(self.prefix_bits);
        match self.network {
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

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let error = || CidrError::Malformed(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let network: IpAddr = address.parse().map_err(|_| error())?;
        let bits_max = if network.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match prefix {
            Some(prefix) => prefix.parse::<u8>().map_err(|_| error())?,
            None => bits_max,
        };
        if prefix_bits > bits_max {
            return Err(error());
        }
        match network.to_canonical() {
            IpAddr::V4(mapped) if network.is_ipv6() => {
                let prefix_bits = prefix_bits.checked_sub(MAPPED_PREFIX_BITS);
                let prefix_bits = prefix_bits.ok_or_else(|| CidrError::Mapped(text.to_owned()))?;
                Ok(Self { network: mapped.into(), prefix_bits })
            }
            network => Ok(Self { network, prefix_bits }),
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix_bits)
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
